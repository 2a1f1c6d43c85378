/* The parts of the blocked matrix product: packing, register tile, streaming product, store. */

/** out[i] = in[i], converted to the type sums are kept in. */
template <class T>
INFINI_INLINE void convert(typename Vec<T>::Scalar *out, const T *in, int64_t n) {
    constexpr int N = Vec<T>::N;
    int64_t i = 0;
    for (; i + N <= n; i += N) store(out + i, load(in + i));
    for (; i < n; ++i) out[i] = to_acc(in[i]);
}

/** One panel from rows of src that are contiguous in k: N x N blocks are transposed in registers. */
template <class T>
INFINI_INLINE void pack_transposed(typename Vec<T>::Scalar *panel, const T *src, int64_t stride_w, int64_t valid,
                                   int64_t width, int64_t kc) {
    using V = Vec<T>;
    constexpr int N = V::N;
    constexpr int64_t kAhead = 512 / sizeof(T); // these are more streams than the hardware follows
    for (int64_t w = 0; w < width; w += N) {
        const int64_t lanes = width - w < N ? width - w : N;
        const T *rows = src + w * stride_w;
        for (int64_t k = 0; k < kc; k += N) {
            const int64_t depth = kc - k < N ? kc - k : N;
            V x[N];
#pragma GCC unroll 16
            for (int i = 0; i < N; ++i) {
                const T *from = rows + i * stride_w + k;
                __builtin_prefetch(from + kAhead);
                x[i] = w + i >= valid ? zero(V{}) : depth == N ? load(from) : load_n(from, depth);
            }
            transpose(x);
            typename V::Scalar *to = panel + k * width + w;
            if (depth == N && lanes == N) {
#pragma GCC unroll 16
                for (int i = 0; i < N; ++i) store(to + i * width, x[i]);
            } else if (depth == N) {
#pragma GCC unroll 16
                for (int i = 0; i < N; ++i) store_n(to + i * width, x[i], lanes);
            } else {
                for (int64_t i = 0; i < depth; ++i)
                    lanes == N ? store(to + i * width, x[i]) : store_n(to + i * width, x[i], lanes);
            }
        }
    }
}

template <class T>
void gemm_pack(void *panels_, const void *src_, int64_t stride_w, int64_t stride_k, int64_t count, int64_t width,
               int64_t kc) {
    using Acc = typename Vec<T>::Scalar;
    Acc *panels = static_cast<Acc *>(panels_);
    const T *src = static_cast<const T *>(src_);
    if (stride_k == 1 && stride_w != 1) {
        for (int64_t w = 0; w < count; w += width)
            pack_transposed(panels + w * kc, src + w * stride_w, stride_w, count - w < width ? count - w : width, width,
                            kc);
        return;
    }
    // A row of src at a time, over all panels: memory is read in its own order.
    for (int64_t k = 0; k < kc; ++k) {
        const T *from = src + k * stride_k;
        for (int64_t w = 0; w < count; w += width) {
            Acc *to = panels + w * kc + k * width;
            const int64_t valid = count - w < width ? count - w : width;
            if (stride_w == 1)
                convert(to, from + w, valid);
            else
                for (int64_t i = 0; i < valid; ++i) to[i] = to_acc(from[(w + i) * stride_w]);
            for (int64_t i = valid; i < width; ++i) to[i] = 0;
        }
    }
}

/** R rows: the tallest tile that fits the registers, or less where A has fewer rows. */
template <class V, int R>
void gemm_multiply(int64_t kc, const void *a_, const void *b_, void *tile_, bool accumulate) {
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    const Acc *a = static_cast<const Acc *>(a_), *b = static_cast<const Acc *>(b_);
    Acc *tile = static_cast<Acc *>(tile_);
    V sums[R][2];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = zero(V{});
    const auto step = [&] {
        const V b0 = load(b), b1 = load(b + N);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const V ai = broadcast(a[i]);
            sums[i][0] = fma(ai, b0, sums[i][0]);
            sums[i][1] = fma(ai, b1, sums[i][1]);
        }
        a += R;
        b += 2 * N;
    };
    // Counting takes slots that multiply-adds need: once in four steps it costs 2 %, at every step 15 %.
    int64_t k = 0;
    constexpr int64_t kLine = 64 / sizeof(Acc);
    for (; k + 4 <= kc; k += 4) {
        // The tile may be far away, and is wanted when the products are done: a cache line of it at a time.
        if (k / 4 * kLine < R * 2 * N) __builtin_prefetch(tile + k / 4 * kLine, 1);
        step();
        step();
        step();
        step();
    }
    for (; k < kc; ++k) step();
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) {
            Acc *to = tile + (i * 2 + j) * N;
            store(to, accumulate ? load(to) + sums[i][j] : sums[i][j]);
        }
}

/** Depth rows of B times R rows of A, over n columns. First: the partial sums start at 0; last: they are added to sums. */
template <class T, int R, int Depth>
INFINI_INLINE void stream_rows(const typename Vec<T>::Scalar *a, const T *b, int64_t stride_k, int64_t n,
                               typename Vec<T>::Scalar *sums, typename Vec<T>::Scalar *partial, int64_t ld, bool first,
                               bool last, bool accumulate) {
    using V = Vec<T>;
    constexpr int N = V::N;
    for (int64_t j = 0; j < n; j += 2 * N) {
        const int64_t left = n - j;
        const bool whole = left >= 2 * N;
        const int64_t n0 = left < N ? left : N, n1 = left < N ? 0 : left < 2 * N ? left - N : N;
        V p[R][2];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            p[r][0] = first ? zero(V{}) : load(partial + r * ld + j);
            p[r][1] = first ? zero(V{}) : load(partial + r * ld + j + N);
        }
#pragma GCC unroll 16
        for (int k = 0; k < Depth; ++k) {
            const T *row = b + k * stride_k + j;
            if constexpr (R <= 4) { // bound by memory: the next rows are on their way while these are multiplied
                constexpr int64_t kLine = 64 / sizeof(T);
                for (int64_t at = 0; at < 2 * N; at += kLine) __builtin_prefetch(row + Depth * stride_k + at, 0, 2);
            }
            const V b0 = whole ? load(row) : load_n(row, n0), b1 = whole    ? load(row + N)
                                                                   : n1 > 0 ? load_n(row + N, n1)
                                                                            : zero(V{});
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const V ai = broadcast(a[k * R + r]);
                p[r][0] = fma(ai, b0, p[r][0]);
                p[r][1] = fma(ai, b1, p[r][1]);
            }
        }
        typename V::Scalar *to = last ? sums : partial;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            typename V::Scalar *at = to + r * ld + j;
            const bool add = last && accumulate;
            store(at, add ? load(at) + p[r][0] : p[r][0]);
            store(at + N, add ? load(at + N) + p[r][1] : p[r][1]);
        }
    }
}

/** Eight rows of B at a time: as many as the hardware follows streams of, and enough to keep the partial sums, which live in
 *  the cache, from being the bottleneck. */
template <class T, int R>
void gemm_stream(int64_t kc, const void *a_, const void *b_, int64_t stride_k, int64_t n, void *sums_, void *partial_,
                 int64_t ld, bool accumulate) {
    using Acc = typename Vec<T>::Scalar;
    constexpr int kDepth = 8;
    const Acc *a = static_cast<const Acc *>(a_);
    const T *b = static_cast<const T *>(b_);
    Acc *sums = static_cast<Acc *>(sums_), *partial = static_cast<Acc *>(partial_);
    int64_t k = 0;
    for (; k + kDepth <= kc; k += kDepth)
        stream_rows<T, R, kDepth>(a + k * R, b + k * stride_k, stride_k, n, sums, partial, ld, k == 0, k + kDepth == kc,
                                  accumulate);
    for (; k < kc; ++k)
        stream_rows<T, R, 1>(a + k * R, b + k * stride_k, stride_k, n, sums, partial, ld, k == 0, k + 1 == kc,
                             accumulate);
}

template <class T>
void gemm_store(void *c_, int64_t row_stride, int64_t col_stride, const void *sums_, int64_t ld, int64_t m, int64_t n,
                float alpha_, float beta_) {
    using V = Vec<T>;
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    T *c = static_cast<T *>(c_);
    const Acc alpha = alpha_, beta = beta_;
    const V alphas = broadcast(alpha), betas = broadcast(beta);
    for (int64_t i = 0; i < m; ++i) {
        const Acc *sums = static_cast<const Acc *>(sums_) + i * ld;
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
            const V product = alphas * load_n(sums + j, count);
            store(out, beta == 0 ? product : fma(betas, load(out), product));
            for (int64_t l = 0; l < count; ++l) row[(j + l) * col_stride] = out[l];
        }
    }
}

template <class V, int R>
constexpr void fill_multiply(GemmMultiply *multiply) {
    multiply[R] = gemm_multiply<V, R>;
    if constexpr (R > 1) fill_multiply<V, R - 1>(multiply);
}

template <class T, int R>
constexpr void fill_stream(GemmStream *stream) {
    stream[R] = gemm_stream<T, R>;
    if constexpr (R > 1) fill_stream<T, R - 1>(stream);
}

template <class T>
constexpr GemmKernel gemm_kernel() {
    constexpr int kStreamRows = kGemmRows > 8 ? 8 : 4; // twice that many sums beside the rows of B
    GemmKernel kernel{kGemmRows, 2 * Vec<T>::N, kStreamRows, sizeof(typename Vec<T>::Scalar), gemm_pack<T>, {},
                      {},        gemm_store<T>};
    fill_multiply<Vec<T>, kGemmRows>(kernel.multiply);
    fill_stream<T, kStreamRows>(kernel.stream);
    return kernel;
}

constexpr void fill_gemm(KernelTable &t) {
    t.gemm[INFINI_DTYPE_F16] = gemm_kernel<f16>();
    t.gemm[INFINI_DTYPE_BF16] = gemm_kernel<bf16>();
    t.gemm[INFINI_DTYPE_F32] = gemm_kernel<float>();
    t.gemm[INFINI_DTYPE_F64] = gemm_kernel<double>();
}
