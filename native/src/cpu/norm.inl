/* Rows of add_rms_norm. */

/** r = a + b; returns the sum of the squares of r as it is written, in an order that depends on n alone. */
template <class T>
INFINI_INLINE double norm_sum(T *r, const T *a, const T *b, int64_t n) {
    using V = typename Block<T>::V;
    constexpr int N = Block<T>::N, kSums = 4; // enough independent sums to hide the latency of an addition
    V sums[kSums] = {zero(V{}), zero(V{}), zero(V{}), zero(V{})};
    const auto square = [&](const Block<T> &x, int first_sum) INFINI_INLINE_LAMBDA {
        for (int p = 0; p < kParts<T>; ++p) {
            V &s = sums[(first_sum + p) % kSums];
            s = fma(x.part[p], x.part[p], s);
        }
    };
    const auto block = [&](int64_t i, int first_sum) INFINI_INLINE_LAMBDA {
        const Packed<T> rounded = pack(add_blocks(load_block(a + i), load_block(b + i)));
        put<false>(r + i, rounded);
        square(kReadBack<T> ? load_block(r + i) : unpack(rounded), first_sum);
    };
    constexpr int kBlocks = kSums / kParts<T>;
    int64_t i = 0;
    for (; i + kBlocks * N <= n; i += kBlocks * N)
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j) block(i + j * N, j * kParts<T>);
    for (; i + N <= n; i += N) block(i, 0);
    if (i < n) {
        const Packed<T> rounded = pack(add_blocks(load_block_n(a + i, n - i), load_block_n(b + i, n - i)));
        put_n(r + i, rounded, n - i);
        square(unpack(rounded), 0);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/** y = r * scale * w for `count` rows whose y start alike within a block. Weights are taken a few blocks at a time and used for all
 *  rows. Streamed, it has `next` fetched meanwhile, as many elements; for one row. */
template <class T, bool Stream, class W>
INFINI_INLINE void norm_product(T **y, const T **r, const typename Block<T>::V *scale, int count, const W *w, int64_t n,
                                [[maybe_unused]] const T *next = nullptr) {
    constexpr int N = Block<T>::N, kHeld = kHeldWeights / kParts<T>;
    const auto product = [](Block<T> x, typename Block<T>::V scale, const Block<T> &weight) INFINI_INLINE_LAMBDA {
        for (int p = 0; p < kParts<T>; ++p) x.part[p] = x.part[p] * scale * weight.part[p];
        return x;
    };
    const auto one_block = [&](int64_t i) INFINI_INLINE_LAMBDA {
        const Block<T> weight = load_block_as<T>(w + i);
        for (int row = 0; row < count; ++row)
            store_block<false>(y[row] + i, product(load_block(r[row] + i), scale[row], weight));
    };
    if (n < N) {
        const Block<T> weight = load_block_as_n<T>(w, n);
        for (int row = 0; row < count; ++row)
            store_block_n(y[row], product(load_block_n(r[row], n), scale[row], weight), n);
        return;
    }
    // From the end, which is what the first pass has left in the cache of a row that does not fit. The first and the last block
    // overlap the aligned ones.
    const int64_t head = unaligned_head(y[0], n);
    const int64_t end = head + (n - head) / N * N;
    if (end < n) one_block(n - N);
    int64_t i = end;
    if (Stream || count == 1) {
        for (; i > head; i -= N) {
            if constexpr (Stream) fetch_block(next + (end - i));
            store_block<Stream>(y[0] + i - N, product(load_block(r[0] + i - N), scale[0], load_block_as<T>(w + i - N)));
        }
    } else {
        // Rows' own pointers are moved, as offsets from common ones would not fit the registers.
        for (int row = 0; row < count; ++row) y[row] += end, r[row] += end;
        for (; i - kHeld * N >= head; i -= kHeld * N) {
            Block<T> weight[kHeld];
#pragma GCC unroll 16
            for (int j = 0; j < kHeld; ++j) weight[j] = load_block_as<T>(w + i + (j - kHeld) * N);
            for (int row = count; row-- > 0;) {
                const typename Block<T>::V row_scale = scale[row];
                const T *const from = r[row] -= kHeld * N;
                T *const to = y[row] -= kHeld * N;
#pragma GCC unroll 16
                for (int j = 0; j < kHeld; ++j)
                    store_block<false>(to + j * N, product(load_block(from + j * N), row_scale, weight[j]));
            }
        }
        for (int row = 0; row < count; ++row) y[row] -= i, r[row] -= i;
        for (; i > head; i -= N) one_block(i - N);
    }
    if (head > 0) one_block(0);
}

template <class T>
INFINI_INLINE typename Block<T>::V norm_scale(double square_sum, int64_t n, float epsilon) {
    using Scalar = typename Block<T>::V::Scalar;
    const Scalar mean = static_cast<Scalar>(square_sum) / static_cast<Scalar>(n) + static_cast<Scalar>(epsilon);
    if constexpr (sizeof(Scalar) == 4)
        return splat<typename Block<T>::V>(1 / __builtin_sqrtf(mean));
    else
        return splat<typename Block<T>::V>(1 / __builtin_sqrt(mean));
}

template <class T>
double norm_add(void *r, const void *a, const void *b, int64_t n) {
    return norm_sum(static_cast<T *>(r), static_cast<const T *>(a), static_cast<const T *>(b), n);
}
template <class T, class W>
void norm_multiply(const NormRow *rows, int count, const void *w, int64_t n, int64_t n_row, float epsilon) {
    T *y[kNormRows];
    const T *r[kNormRows];
    typename Block<T>::V scale[kNormRows];
    for (int i = 0; i < count; ++i) {
        y[i] = static_cast<T *>(rows[i].y);
        r[i] = static_cast<const T *>(rows[i].r);
        scale[i] = norm_scale<T>(rows[i].square_sum, n_row, epsilon);
    }
    norm_product<T, false>(y, r, scale, count, static_cast<const W *>(w), n);
}

/** Both passes over a row, past the caches: what is streamed cannot be read back, so that the row is computed on the stack. While it is
 *  written the next row is fetched, which mostly follows in memory: reading and writing take turns otherwise. */
template <class T, class W>
void norm_row_stream(void *y_, void *r_, const void *a_, const void *b_, const void *w, int64_t n, float epsilon) {
    constexpr int N = Block<T>::N;
    T *y = static_cast<T *>(y_), *const r = static_cast<T *>(r_);
    const T *const a = static_cast<const T *>(a_), *const b = static_cast<const T *>(b_);
    alignas(64) T row[kNormChunk];
    const double square_sum = norm_sum(row, a, b, n);
    int64_t i = unaligned_head(r, n);
    __builtin_memcpy(r, row, static_cast<size_t>(i) * sizeof(T));
    for (; i + N <= n; i += N) {
        const Packed<T> x = load_packed(row + i);
        fetch_block(a + n + i);
        put<true>(r + i, x);
    }
    __builtin_memcpy(r + i, row + i, static_cast<size_t>(n - i) * sizeof(T));
    const T *computed = row;
    const typename Block<T>::V scale = norm_scale<T>(square_sum, n, epsilon);
    norm_product<T, true>(&y, &computed, &scale, 1, static_cast<const W *>(w), n, b + n);
}

template <class T, class W>
constexpr NormKernel norm_kernel() {
    return {norm_add<T>, norm_multiply<T, W>, norm_row_stream<T, W>};
}

constexpr void fill_norm_bf16(KernelTable &t) {
    auto &norm = t.add_rms_norm[INFINI_DTYPE_BF16];
    norm[INFINI_DTYPE_F16] = norm_kernel<bf16, f16>();
    norm[INFINI_DTYPE_BF16] = norm_kernel<bf16, bf16>();
    norm[INFINI_DTYPE_F32] = norm_kernel<bf16, float>();
}

constexpr void fill_norm(KernelTable &t) {
    auto &norm = t.add_rms_norm;
    norm[INFINI_DTYPE_F16][INFINI_DTYPE_F16] = norm_kernel<f16, f16>();
    norm[INFINI_DTYPE_F16][INFINI_DTYPE_BF16] = norm_kernel<f16, bf16>();
    norm[INFINI_DTYPE_F16][INFINI_DTYPE_F32] = norm_kernel<f16, float>();
    fill_norm_bf16(t);
    norm[INFINI_DTYPE_F32][INFINI_DTYPE_F32] = norm_kernel<float, float>();
    norm[INFINI_DTYPE_F64][INFINI_DTYPE_F64] = norm_kernel<double, double>();
}
