/* Rows and tiles of rearrange, for elements of 1, 2, 4, 8 and 16 bytes. Elements need not be aligned to their size: a
 * complex number is aligned to its parts only. */

template <class T>
INFINI_INLINE T read(const T *p) {
    T x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
template <class T>
INFINI_INLINE void write(T *p, T x) {
    __builtin_memcpy(p, &x, sizeof x);
}

template <class T>
void copy_row(void *dst_, int64_t stride_dst, const void *src_, int64_t stride_src, int64_t n) {
    T *dst = static_cast<T *>(dst_);
    const T *src = static_cast<const T *>(src_);
    for (int64_t i = 0; i < n; ++i) write(dst + i * stride_dst, read(src + i * stride_src));
}

/* ---- transposes: a block of B x B elements at a time, in registers where the instruction set has what it takes ------- */

/** Any block, or part of one, element by element. */
template <class T>
INFINI_INLINE void transpose_elements(T *dst, const int64_t *dst_rows, const T *src, const int64_t *src_cols,
                                      int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) write(dst + dst_rows[i] + j, read(src + src_cols[j] + i));
}

template <class T, int B>
struct ElementBlock {
    static constexpr int kSize = B;
    static INFINI_INLINE void whole(T *dst, const int64_t *dst_rows, const T *src, const int64_t *src_cols) {
        transpose_elements(dst, dst_rows, src, src_cols, B, B);
    }
    static INFINI_INLINE void part(T *dst, const int64_t *dst_rows, const T *src, const int64_t *src_cols, int64_t rows,
                                   int64_t cols) {
        transpose_elements(dst, dst_rows, src, src_cols, rows, cols);
    }
};

/** Four and eight bytes are moved as floats: nothing is computed, so bits stay what they are. */
template <class V>
struct VectorBlock {
    using T = typename V::Scalar;
    static constexpr int kSize = V::N;
    static INFINI_INLINE void whole(T *dst, const int64_t *dst_rows, const T *src, const int64_t *src_cols) {
        V x[V::N];
#pragma GCC unroll 16
        for (int i = 0; i < V::N; ++i) x[i] = load(src + src_cols[i]);
        transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < V::N; ++i) store(dst + dst_rows[i], x[i]);
    }
    static INFINI_INLINE void part(T *dst, const int64_t *dst_rows, const T *src, const int64_t *src_cols, int64_t rows,
                                   int64_t cols) {
        V x[V::N];
#pragma GCC unroll 16
        for (int i = 0; i < V::N; ++i) x[i] = i < cols ? load_n(src + src_cols[i], rows) : zero(V{});
        transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < V::N; ++i)
            if (i < rows) store_n(dst + dst_rows[i], x[i], cols);
    }
};

#if defined(__SSE2__)
/** 16 x 16 bytes or 8 x 8 pairs of them: each step interleaves rows that are half the block apart, which after log2(B) steps
 *  has moved every bit of the column number into the row number. */
template <class T>
struct SseBlock {
    static constexpr int kSize = 16 / sizeof(T);
    static INFINI_INLINE void whole(T *dst, const int64_t *dst_rows, const T *src, const int64_t *src_cols) {
        __m128i x[kSize], y[kSize];
#pragma GCC unroll 16
        for (int i = 0; i < kSize; ++i) x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(src + src_cols[i]));
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
        for (int i = 0; i < kSize; ++i) _mm_storeu_si128(reinterpret_cast<__m128i *>(dst + dst_rows[i]), x[i]);
    }
    static INFINI_INLINE void part(T *dst, const int64_t *dst_rows, const T *src, const int64_t *src_cols, int64_t rows,
                                   int64_t cols) {
        transpose_elements(dst, dst_rows, src, src_cols, rows, cols);
    }
};
using Block1 = SseBlock<uint8_t>;
using Block2 = SseBlock<uint16_t>;
#else
using Block1 = ElementBlock<uint8_t, 16>;
using Block2 = ElementBlock<uint16_t, 8>;
#endif

/** Squares of at least a cache line's width, so that lines and pages of both sides are used up while they are near; blocks
 *  within them. What the next block reads is fetched meanwhile: no prefetcher of the hardware sees these strides. */
template <class T, class B>
void transpose_tile(void *dst_, const int64_t *dst_rows, const void *src_, const int64_t *src_cols, int64_t rows,
                    int64_t cols) {
    T *dst = static_cast<T *>(dst_);
    const T *src = static_cast<const T *>(src_);
    constexpr int64_t N = B::kSize, kSquare = 64;
    for (int64_t i0 = 0; i0 < rows; i0 += kSquare) {
        const int64_t i_end = i0 + kSquare < rows ? i0 + kSquare : rows;
        for (int64_t j0 = 0; j0 < cols; j0 += kSquare) {
            const int64_t j_end = j0 + kSquare < cols ? j0 + kSquare : cols;
            for (int64_t i = i0; i < i_end; i += N)
                for (int64_t j = j0; j < j_end; j += N) {
                    if (j + 2 * N <= cols)
                        for (int64_t ahead = j + N; ahead < j + 2 * N; ++ahead)
                            __builtin_prefetch(src + src_cols[ahead] + i);
                    if (i + N <= i_end && j + N <= j_end)
                        B::whole(dst + j, dst_rows + i, src + i, src_cols + j);
                    else
                        B::part(dst + j, dst_rows + i, src + i, src_cols + j, i_end - i < N ? i_end - i : N,
                                j_end - j < N ? j_end - j : N);
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
    t.transpose[4] = transpose_tile<u128, ElementBlock<u128, 4>>;
}
