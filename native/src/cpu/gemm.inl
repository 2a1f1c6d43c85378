/* The parts of the blocked matrix product: packing, register tile, store. */

/** out[i] = in[i], converted to the type sums are kept in. */
template <class T>
INFINI_INLINE void convert(typename Vec<T>::Scalar *out, const T *in, int64_t n) {
    constexpr int N = Vec<T>::N;
    int64_t i = 0;
    for (; i + N <= n; i += N) store(out + i, load(in + i));
    for (; i < n; ++i) out[i] = to_acc(in[i]);
}

template <class T>
void gemm_pack(void *panel_, const void *src_, int64_t stride_w, int64_t stride_k, int64_t valid, int64_t width, int64_t kc) {
    using Acc = typename Vec<T>::Scalar;
    Acc *panel = static_cast<Acc *>(panel_);
    const T *src = static_cast<const T *>(src_);
    if (valid < width)
        for (int64_t k = 0; k < kc; ++k)
            for (int64_t w = valid; w < width; ++w) panel[k * width + w] = 0;
    if (stride_w == 1) {
        for (int64_t k = 0; k < kc; ++k) convert(panel + k * width, src + k * stride_k, valid);
    } else if (stride_k == 1) {
        constexpr int64_t kChunk = 4 * Vec<T>::N;
        Acc chunk[kChunk];
        for (int64_t w = 0; w < valid; ++w)
            for (int64_t k0 = 0; k0 < kc; k0 += kChunk) {
                const int64_t n = kc - k0 < kChunk ? kc - k0 : kChunk;
                convert(chunk, src + w * stride_w + k0, n);
                for (int64_t k = 0; k < n; ++k) panel[(k0 + k) * width + w] = chunk[k];
            }
    } else {
        for (int64_t k = 0; k < kc; ++k)
            for (int64_t w = 0; w < valid; ++w) panel[k * width + w] = to_acc(src[w * stride_w + k * stride_k]);
    }
}

template <class V>
void gemm_multiply(int64_t kc, const void *a_, const void *b_, void *tile_, bool accumulate) {
    using Acc = typename V::Scalar;
    constexpr int N = V::N, R = kGemmRows;
    const Acc *a = static_cast<const Acc *>(a_), *b = static_cast<const Acc *>(b_);
    Acc *tile = static_cast<Acc *>(tile_);
    V sums[R][2];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = zero(V{});
    for (int64_t k = 0; k < kc; ++k) {
        const V b0 = load(b), b1 = load(b + N);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const V ai = broadcast(a[i]);
            sums[i][0] = fma(ai, b0, sums[i][0]);
            sums[i][1] = fma(ai, b1, sums[i][1]);
        }
        a += R;
        b += 2 * N;
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) {
            Acc *to = tile + (i * 2 + j) * N;
            store(to, accumulate ? load(to) + sums[i][j] : sums[i][j]);
        }
}

template <class T>
void gemm_store(void *c_, int64_t row_stride, int64_t col_stride, const void *tile_, int64_t m, int64_t n, float alpha_, float beta_) {
    using V = Vec<T>;
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    const Acc *tile = static_cast<const Acc *>(tile_);
    T *c = static_cast<T *>(c_);
    const Acc alpha = alpha_, beta = beta_;
    const V alphas = broadcast(alpha), betas = broadcast(beta);
    for (int64_t i = 0; i < m; ++i) {
        const Acc *sums = tile + i * 2 * N;
        T *row = c + i * row_stride;
        // One formula for every element, whatever path it takes: in vectors, the last one partly filled.
        for (int64_t j = 0; j < n; j += N) {
            const int64_t count = n - j < N ? n - j : N;
            if (col_stride == 1 && count == N) {
                const V product = alphas * load(sums + j);
                store(row + j, beta == 0 ? product : fma(betas, load(row + j), product));
                continue;
            }
            T out[N] = {};
            if (beta != 0)
                for (int64_t l = 0; l < count; ++l) out[l] = row[(j + l) * col_stride];
            const V product = alphas * load(sums + j);
            store(out, beta == 0 ? product : fma(betas, load(out), product));
            for (int64_t l = 0; l < count; ++l) row[(j + l) * col_stride] = out[l];
        }
    }
}

template <class T>
constexpr GemmKernel gemm_kernel() {
    return {kGemmRows, 2 * Vec<T>::N, sizeof(typename Vec<T>::Scalar), gemm_pack<T>, gemm_multiply<Vec<T>>, gemm_store<T>};
}

constexpr void fill_gemm(KernelTable &t) {
    t.gemm[INFINI_DTYPE_F16] = gemm_kernel<f16>();
    t.gemm[INFINI_DTYPE_BF16] = gemm_kernel<bf16>();
    t.gemm[INFINI_DTYPE_F32] = gemm_kernel<float>();
    t.gemm[INFINI_DTYPE_F64] = gemm_kernel<double>();
}
