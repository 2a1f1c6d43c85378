/* Rows and tiles of rearrange, for elements of 1, 2, 4, 8 and 16 bytes. Elements need not be aligned to their size: a
 * complex number is aligned to its parts only. */

template <class T>
INFINI_INLINE T read(const T *p) {
    T x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
template <class T>
INFINI_INLINE void write(T *p, T x) { __builtin_memcpy(p, &x, sizeof x); }

template <class T>
void copy_row(void *dst_, int64_t stride_dst, const void *src_, int64_t stride_src, int64_t n) {
    T *dst = static_cast<T *>(dst_);
    const T *src = static_cast<const T *>(src_);
    for (int64_t i = 0; i < n; ++i) write(dst + i * stride_dst, read(src + i * stride_src));
}

/* ---- transposes: a block of B x B elements at a time, in registers where the instruction set has what it takes ------- */

template <class T, int B>
struct Block {
    static constexpr int kSize = B;
    static INFINI_INLINE void transpose(T *dst, int64_t stride_dst, const T *src, int64_t stride_src) {
        for (int i = 0; i < B; ++i)
            for (int j = 0; j < B; ++j) write(dst + i * stride_dst + j, read(src + j * stride_src + i));
    }
};

/** Four and eight bytes are moved as floats: nothing is computed, so bits stay what they are. */
template <class V>
struct VectorBlock {
    using Scalar = typename V::Scalar;
    static constexpr int kSize = V::N;
    static INFINI_INLINE void transpose(Scalar *dst, int64_t stride_dst, const Scalar *src, int64_t stride_src) {
        V x[V::N];
#pragma GCC unroll 16
        for (int i = 0; i < V::N; ++i) x[i] = load(src + i * stride_src);
        infini::transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < V::N; ++i) store(dst + i * stride_dst, x[i]);
    }
};

#if defined(__SSE2__)
/** 16 x 16 bytes or 8 x 8 pairs of them: each step interleaves rows that are half the block apart, which after log2(B) steps
 *  has moved every bit of the column number into the row number. */
template <class T>
struct SseBlock {
    static constexpr int kSize = 16 / sizeof(T);
    static INFINI_INLINE void transpose(T *dst, int64_t stride_dst, const T *src, int64_t stride_src) {
        __m128i x[kSize], y[kSize];
#pragma GCC unroll 16
        for (int i = 0; i < kSize; ++i) x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(src + i * stride_src));
#pragma GCC unroll 4
        for (int step = 1; step < kSize; step *= 2) {
#pragma GCC unroll 8
            for (int i = 0; i < kSize / 2; ++i) {
                const __m128i p = x[i], q = x[i + kSize / 2];
                y[2 * i] = sizeof(T) == 1 ? _mm_unpacklo_epi8(p, q) : _mm_unpacklo_epi16(p, q);
                y[2 * i + 1] = sizeof(T) == 1 ? _mm_unpackhi_epi8(p, q) : _mm_unpackhi_epi16(p, q);
            }
#pragma GCC unroll 16
            for (int i = 0; i < kSize; ++i) x[i] = y[i];
        }
#pragma GCC unroll 16
        for (int i = 0; i < kSize; ++i) _mm_storeu_si128(reinterpret_cast<__m128i *>(dst + i * stride_dst), x[i]);
    }
};
using Block1 = SseBlock<uint8_t>;
using Block2 = SseBlock<uint16_t>;
#else
using Block1 = Block<uint8_t, 16>;
using Block2 = Block<uint16_t, 8>;
#endif

/** Squares of one cache line's width, so that lines of both sides are used up while they are near; blocks within them. */
template <class T, class B>
void transpose_tile(void *dst_, int64_t stride_dst, const void *src_, int64_t stride_src, int64_t rows, int64_t cols) {
    T *dst = static_cast<T *>(dst_);
    const T *src = static_cast<const T *>(src_);
    constexpr int64_t N = B::kSize, kLine = 64 / sizeof(T) > N ? 64 / sizeof(T) : N;
    for (int64_t i0 = 0; i0 < rows; i0 += kLine) {
        const int64_t i_end = i0 + kLine < rows ? i0 + kLine : rows;
        for (int64_t j0 = 0; j0 < cols; j0 += kLine) {
            const int64_t j_end = j0 + kLine < cols ? j0 + kLine : cols;
            for (int64_t i = i0; i < i_end; i += N)
                for (int64_t j = j0; j < j_end; j += N) {
                    T *to = dst + i * stride_dst + j;
                    const T *from = src + j * stride_src + i;
                    if (i + N <= i_end && j + N <= j_end) {
                        B::transpose(to, stride_dst, from, stride_src);
                        continue;
                    }
                    for (int64_t p = 0; p < N && i + p < i_end; ++p)
                        for (int64_t q = 0; q < N && j + q < j_end; ++q) write(to + p * stride_dst + q, read(from + q * stride_src + p));
                }
        }
    }
}

constexpr void fill_copy(KernelTable &t) {
    t.copy[0] = copy_row<uint8_t>;
    t.copy[1] = copy_row<uint16_t>;
    t.copy[2] = copy_row<uint32_t>;
    t.copy[3] = copy_row<uint64_t>;
    t.copy[4] = copy_row<u128>;
    t.transpose[0] = transpose_tile<uint8_t, Block1>;
    t.transpose[1] = transpose_tile<uint16_t, Block2>;
    t.transpose[2] = transpose_tile<float, VectorBlock<VF>>;
    t.transpose[3] = transpose_tile<double, VectorBlock<VD>>;
    t.transpose[4] = transpose_tile<u128, Block<u128, 4>>;
}
