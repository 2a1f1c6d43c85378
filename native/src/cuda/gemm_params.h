/* What the kernels of gemm, gemm_add and gemm_mul share: the problem as they get it, and what becomes of a sum. */
#pragma once
#include "cuda/device.h"

namespace infini::cuda {

/** A or B. `w` is the dimension it shares with C, M or N; `k` the one that is summed over. Strides in elements. */
struct GemmInput {
    const void *p;
    int64_t batch, w, k;
    bool by_k;  // neighbours in k are closer together than those in w: the order it is read in
    bool packs; // all that begins at a multiple of 16 bytes in that order does so in memory, too

    template <class T>
    INFINI_DEVICE const T *at(int64_t item, int64_t i_w, int64_t i_k) const {
        return static_cast<const T *>(p) + item * batch + i_w * w + i_k * k;
    }
};

/** C, or Y, or the D that comes in after the product. */
struct GemmOutput {
    void *p;
    int64_t batch, row, col;
    bool packs; // columns are contiguous, and what begins at a multiple of 16 bytes in a row does so in memory, too

    template <class T>
    INFINI_DEVICE T *at(int64_t item, int64_t i, int64_t j) const {
        return static_cast<T *>(p) + item * batch + i * row + j * col;
    }
};

enum class After { kNothing, kAdd, kMul };

struct GemmParams {
    GemmOutput c, d;
    GemmInput a, b;
    int64_t m, n, k;
    int64_t tiles_m, tiles_n, tiles; // what blocks take one at a time: of one item of the batch, and in all
    float alpha, beta;
    After after;
};

/** N elements from p on, `stride` apart, the first `count` of them: 0 for the others, which are not read. */
template <class T, int N, class Ctx>
INFINI_DEVICE Pack<T, N> load_some(Ctx &ctx, const T *p, int64_t stride, int64_t count, bool packs) {
    if (packs && count >= N) return load<T, N>(ctx, p);
    Pack<T, N> x{};
    INFINI_UNROLL
    for (int i = 0; i < N; ++i)
        if (i < count) x.at[i] = load<T, 1>(ctx, p + i * stride).at[0];
    return x;
}

/** Makes of N sums what row i of C holds from column j on, a multiple of N; writes nothing that lies outside of C. */
template <class T, int N, class Ctx>
INFINI_DEVICE void finish(Ctx &ctx, const GemmParams &p, int64_t item, int64_t i, int64_t j, const Acc<T> (&sums)[N]) {
    static_assert(sizeof(T) * N <= 16, "what GemmOutput::packs speaks of");
    if (i >= p.m || j >= p.n) return;
    const int64_t count = p.n - j;
    const Acc<T> alpha = p.alpha, beta = p.beta;
    T *const c = p.c.at<T>(item, i, j);
    Pack<T, N> before{}, d{}, x;
    if (p.beta != 0) before = load_some<T, N>(ctx, c, p.c.col, count, p.c.packs);
    if (p.after != After::kNothing) d = load_some<T, N>(ctx, p.d.at<T>(item, i, j), p.d.col, count, p.d.packs);
    INFINI_UNROLL
    for (int e = 0; e < N; ++e) {
        const Acc<T> product = alpha * sums[e];
        x.at[e] = round_to<T>(p.beta != 0 ? fused(beta, widen(before.at[e]), product) : product);
        if (p.after == After::kAdd) x.at[e] = round_to<T>(widen(x.at[e]) + widen(d.at[e]));
        if (p.after == After::kMul) x.at[e] = round_to<T>(widen(x.at[e]) * widen(d.at[e]));
    }
    if (p.c.packs && count >= N) return store<T, N>(ctx, c, x);
    INFINI_UNROLL
    for (int e = 0; e < N; ++e)
        if (e < count) store<T, 1>(ctx, c + e * p.c.col, {{x.at[e]}});
}

} // namespace infini::cuda
