/* Columns of F32 that are contiguous in k, by runs of 16 bytes and with vectors of 8, to which a load into half of one is no shuffle: of
 * as many columns four elements each take no more shuffles than make them a square in each half. A sum waits four clocks for what was
 * added before: so of one row of A four of them are under way, of columns beside each other, or where these meet in one set of the
 * first-level cache two of them, of two K blocks. */

#if defined(__AVX2__)
constexpr int kRun = 16 / sizeof(float);

/** x[i] = element i of N columns, of which `b` is the first and `half` the one in the middle. */
INFINI_INLINE void load_runs(VH (&x)[kRun], const float *b, const float *half, int64_t stride) {
    __m256i lanes[kRun];
#pragma GCC unroll 4
    for (int i = 0; i < kRun; ++i)
        lanes[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_bytes<__m128i>(b + i * stride)),
                                           load_bytes<__m128i>(half + i * stride), 1);
    transpose_lanes<sizeof(float)>(lanes);
#pragma GCC unroll 4
    for (int i = 0; i < kRun; ++i) x[i] = {_mm256_castsi256_ps(lanes[i])};
}

/** What comes next in Columns columns of B is fetched so far ahead. */
struct RunFetch {
    const float *end, *after; // of the first column; where the next ones begin, or null
    int64_t distance;         // elements
    bool far;

    template <int Columns>
    INFINI_INLINE void operator()(const float *b, int64_t stride) const {
        const float *const next = b + distance < end ? b + distance : after + (b + distance - end);
#pragma GCC unroll 8
        for (int i = 0; i < Columns; ++i)
            if (far)
                prefetch<true>(next + i * stride);
            else
                prefetch<false>(next + i * stride);
    }
};

/** The sums of R rows of A and Groups * N columns over `elements` of each of Blocks K blocks. Of the last run, which may be part of
 *  one, what lies before it is read once more. */
template <int R, int Groups, int Blocks>
INFINI_INLINE void sum_blocks(VH (&sums)[Blocks][Groups][R], const float *a, int64_t a_unit_, const float *b,
                              int64_t stride_, int64_t elements, const RunFetch &fetch) {
    constexpr int N = VH::N, kLineRuns = kLine / 16;
    const int64_t stride = opaque(stride_), a_unit = R == 1 ? 1 : a_unit_;
    const float *at[Groups][2];
#pragma GCC unroll 4
    for (int group = 0; group < Groups; ++group) {
        at[group][0] = b + group * N * stride;
        at[group][1] = b + (group * N + N / 2) * stride;
#pragma GCC unroll 2
        for (int block = 0; block < Blocks; ++block)
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[block][group][r] = zero(VH{});
    }
    const auto multiply = [&](int first) INFINI_INLINE_LAMBDA {
#pragma GCC unroll 4
        for (int group = 0; group < Groups; ++group) {
            at[group][0] = opaque(at[group][0]);
            at[group][1] = opaque(at[group][1]);
#pragma GCC unroll 2
            for (int block = 0; block < Blocks; ++block) {
                VH x[kRun];
                load_runs(x, at[group][0] + block * kGemmBlockUnits, at[group][1] + block * kGemmBlockUnits, stride);
#pragma GCC unroll 4
                for (int u = 0; u < kRun; ++u)
                    if (u >= first)
#pragma GCC unroll 8
                        for (int r = 0; r < R; ++r) {
                            const VH row = splat<VH>(a[(block * kGemmBlockUnits + u) * a_unit + r]);
                            sums[block][group][r] = fma(row, x[u], sums[block][group][r]);
                        }
            }
        }
    };
    const auto pass = [&](int64_t some) INFINI_INLINE_LAMBDA {
        a += some * a_unit;
#pragma GCC unroll 8
        for (int i = 0; i < 2 * Groups; ++i) at[i / 2][i % 2] += some;
    };
    int64_t i = 0;
    for (; i + kRun <= elements; i += kRun) {
        if (fetch.after != nullptr && i / kRun % kLineRuns == 0)
#pragma GCC unroll 2
            for (int block = 0; block < Blocks; ++block)
                fetch.template operator()<Groups * N>(at[0][0] + block * kGemmBlockUnits, stride);
        multiply(0);
        pass(kRun);
    }
    if (i == elements) return;
    const int before = static_cast<int>(i + kRun - elements);
    pass(-before);
    multiply(before);
}

/** to[r * ld + i] = the sum of row r of A, whose units lie side by side, and column i of Groups * N. k is a run or more. `ahead`: as
 *  many columns of B that come next, or null; far: from memory. */
template <int R, int Groups, int Blocks>
INFINI_INLINE void sum_runs(float *to, int64_t ld, const float *a, int64_t a_unit, int64_t k, const float *b,
                            int64_t stride, const float *ahead, bool far) {
    constexpr int64_t kFar = Blocks == 2 && VF::N == 16 ? 48 : 32; // lines: measured
    const RunFetch fetch{b + k, ahead, (far ? kFar : 5) * kLine / static_cast<int64_t>(sizeof(float)), far};
    VH all[Groups][R];
    int64_t block = 0;
    while (block < k) {
        const auto some = [&](auto &sums, int64_t elements) INFINI_INLINE_LAMBDA {
            sum_blocks(sums, a + block * a_unit, a_unit, b + block, stride, elements, fetch);
            for (const auto &of_block : sums) {
#pragma GCC unroll 4
                for (int group = 0; group < Groups; ++group)
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r)
                        all[group][r] = block == 0 ? of_block[group][r] : all[group][r] + of_block[group][r];
                block += elements;
            }
        };
        VH sums[Blocks][Groups][R], one[1][Groups][R];
        if (Blocks > 1 && k - block >= Blocks * kGemmBlockUnits)
            some(sums, kGemmBlockUnits);
        else
            some(one, k - block < kGemmBlockUnits ? k - block : kGemmBlockUnits);
    }
#pragma GCC unroll 4
    for (int group = 0; group < Groups; ++group)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) store(to + r * ld + group * VH::N, all[group][r]);
}
#endif
