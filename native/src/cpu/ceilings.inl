/* What the hardware can do at most. */

inline double read_bytes(const void *p_, int64_t n_bytes) {
    const double *p = static_cast<const double *>(p_);
    VD sums[4] = {zero(VD{}), zero(VD{}), zero(VD{}), zero(VD{})};
    const int64_t n = n_bytes / static_cast<int64_t>(sizeof(double));
    int64_t i = 0;
    for (; i + 4 * VD::N <= n; i += 4 * VD::N)
#pragma GCC unroll 4
        for (int s = 0; s < 4; ++s) sums[s] = sums[s] + load(p + i + s * VD::N);
    for (; i < n; ++i) sums[0] = sums[0] + broadcast(p[i]);
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

constexpr int kChains =
    12; // independent sums: latency times throughput of every core this runs on, and all fit the registers
constexpr int kRepeats = 4; // so that counting iterations costs nothing

template <class V>
double fma_chains(int64_t iterations) {
    using Scalar = typename V::Scalar;
    V sums[kChains], x = broadcast(Scalar(0.5)), y = broadcast(Scalar(0.25));
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = broadcast(static_cast<Scalar>(i));
    for (int64_t n = 0; n < iterations; ++n)
#pragma GCC unroll 4
        for (int repeat = 0; repeat < kRepeats; ++repeat)
#pragma GCC unroll 12
            for (int i = 0; i < kChains; ++i) sums[i] = fma(sums[i], x, y);
    double total = 0;
    for (int i = 0; i < kChains; ++i) total += static_cast<double>(sum(sums[i]));
    return total;
}

constexpr void fill_ceilings(KernelTable &t) {
    t.ceilings = {read_bytes, fma_chains<VF>, fma_chains<VD>, int64_t{2} * kRepeats * kChains * VF::N,
                  int64_t{2} * kRepeats * kChains * VD::N};
}
