/* Rows of add_rms_norm. */

/** Pass 1 writes the rounded sums and squares what it wrote; pass 2 finds the row in the cache. */
template <class T, class W>
void norm_row(void *y_, void *r_, const void *a_, const void *b_, const void *w_, int64_t n, float epsilon) {
    using V = Vec<T>;
    using Scalar = typename V::Scalar;
    constexpr int N = V::N, kSums = 4; // enough independent sums to hide the latency of an addition
    T *y = static_cast<T *>(y_), *r = static_cast<T *>(r_);
    const T *a = static_cast<const T *>(a_), *b = static_cast<const T *>(b_);
    const W *w = static_cast<const W *>(w_);

    V sums[kSums] = {zero(V{}), zero(V{}), zero(V{}), zero(V{})};
    int64_t i = 0;
    for (; i + kSums * N <= n; i += kSums * N) {
#pragma GCC unroll 4
        for (int s = 0; s < kSums; ++s) {
            T *at = r + i + s * N;
            store(at, load(a + i + s * N) + load(b + i + s * N));
            const V x = load(at); // as rounded
            sums[s] = fma(x, x, sums[s]);
        }
    }
    for (; i + N <= n; i += N) {
        store(r + i, load(a + i) + load(b + i));
        const V x = load(r + i);
        sums[0] = fma(x, x, sums[0]);
    }
    if (i < n) {
        store_n(r + i, load_n(a + i, n - i) + load_n(b + i, n - i), n - i);
        const V x = load_n(r + i, n - i);
        sums[0] = fma(x, x, sums[0]);
    }
    const Scalar square_sum = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    const Scalar mean = square_sum / static_cast<Scalar>(n) + static_cast<Scalar>(epsilon);
    const V scale =
        broadcast(Scalar{1} / (sizeof(Scalar) == 4 ? static_cast<Scalar>(__builtin_sqrtf(static_cast<float>(mean)))
                                                   : static_cast<Scalar>(__builtin_sqrt(static_cast<double>(mean)))));
    for (i = 0; i + N <= n; i += N) store(y + i, load(r + i) * scale * load(w + i));
    if (i < n) store_n(y + i, load_n(r + i, n - i) * scale * load_n(w + i, n - i), n - i);
}

constexpr void fill_norm(KernelTable &t) {
    auto &norm = t.add_rms_norm;
    norm[INFINI_DTYPE_F16][INFINI_DTYPE_F16] = norm_row<f16, f16>;
    norm[INFINI_DTYPE_F16][INFINI_DTYPE_BF16] = norm_row<f16, bf16>;
    norm[INFINI_DTYPE_F16][INFINI_DTYPE_F32] = norm_row<f16, float>;
    norm[INFINI_DTYPE_BF16][INFINI_DTYPE_F16] = norm_row<bf16, f16>;
    norm[INFINI_DTYPE_BF16][INFINI_DTYPE_BF16] = norm_row<bf16, bf16>;
    norm[INFINI_DTYPE_BF16][INFINI_DTYPE_F32] = norm_row<bf16, float>;
    norm[INFINI_DTYPE_F32][INFINI_DTYPE_F32] = norm_row<float, float>;
    norm[INFINI_DTYPE_F64][INFINI_DTYPE_F64] = norm_row<double, double>;
}
