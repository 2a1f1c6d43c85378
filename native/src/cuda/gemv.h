/* gemm where C has 1 to 4 rows: what counts is that B is read once, as fast as memory gives it. (1 to 4 columns are the same, of
 * C^T = B^T A^T.) A multiprocessor gets some 20 bytes of memory a cycle: 5 elements of F32, 20 multiply-adds of the 128 it can do. Of F16
 * or BF16 it would be 40, and as many conversions; an H200 then took 30 to 35 us for 4096 x 11008 elements and 4 rows, which memory
 * gives in 21. So these are for the tensor cores, but for short columns.
 *
 *  To hide the latency of memory (some 0.7 us at 4.8 TB/s: 3.4 MB) each of 132 multiprocessors needs about 25 KB on the way. So each
 *  thread asks for several chunks of 16 bytes before it uses the first.
 *
 *  The order of a sum depends on K and on which of the kernels it is: not on N, the rows, the batch or the device. */
#pragma once
#include "cuda/gemm_params.h"

namespace infini::cuda {

/** B is contiguous along K (it is a row-major weight transposed: x @ W.T). `Lanes` threads share 4 columns, and take chunks of them in
 *  turn; then they add up what they have. 4 columns, because a chunk of A is read, from L1, for each 4 of B. Long columns are for a
 *  whole block, short ones, of keys of attention, for 8 threads. */
template <class T, int Rows, int Lanes>
struct GemvAlongK {
    static constexpr int kThreads = 128;
    static constexpr int kBlocks = Rows == 1 ? 4 : 3; // 128 or 168 registers a thread, so that none is spilled
    static constexpr int kColumns = 4;                // of a group of lanes
    static constexpr int kTileRows = Rows, kTileColumns = kThreads / Lanes * kColumns; // of a block
    static constexpr int kWarps = kThreads / kWarp, kSums = Rows * kColumns;
    static constexpr size_t kSharedBytes = Lanes > kWarp ? kWarps * kSums * sizeof(Acc<T>) : 0;
    using Params = GemmParams;

    static constexpr int E = 16 / sizeof(T);
    using Sums = Acc<T>[Rows][kColumns];

    /** Adds the products of `Count` chunks, `step` elements apart, all of them packs that end before K does. */
    template <int Count, class Ctx>
    static INFINI_DEVICE void add(Ctx &ctx, const T *const (&rows)[Rows], const T *const (&columns)[kColumns],
                                  int64_t k, int64_t step, Sums &sums) {
        Pack<T, E> a[Count][Rows], b[Count][kColumns];
        INFINI_UNROLL
        for (int u = 0; u < Count; ++u) {
            INFINI_UNROLL
            for (int c = 0; c < kColumns; ++c) b[u][c] = load<T, E>(ctx, columns[c] + k + u * step);
            INFINI_UNROLL
            for (int r = 0; r < Rows; ++r) a[u][r] = load<T, E>(ctx, rows[r] + k + u * step);
        }
        INFINI_UNROLL
        for (int i = 0; i < Count * E * kSums; ++i) {
            const int u = i / (E * kSums), e = i / kSums % E, r = i / kColumns % Rows, c = i % kColumns;
            sums[r][c] = fused(widen(a[u][r].at[e]), widen(b[u][c].at[e]), sums[r][c]);
        }
    }

    /** The same for what there is of one chunk, anywhere in memory. */
    template <class Ctx>
    static INFINI_DEVICE void add_elements(Ctx &ctx, const Params &p, const T *const (&rows)[Rows],
                                           const T *const (&columns)[kColumns], int64_t k, Sums &sums) {
        const int64_t end = k + E < p.k ? k + E : p.k;
        for (; k < end; ++k) {
            T a[Rows], b[kColumns];
            INFINI_UNROLL
            for (int c = 0; c < kColumns; ++c) b[c] = load<T, 1>(ctx, columns[c] + k * p.b.k).at[0];
            INFINI_UNROLL
            for (int r = 0; r < Rows; ++r) a[r] = load<T, 1>(ctx, rows[r] + k * p.a.k).at[0];
            INFINI_UNROLL
            for (int i = 0; i < kSums; ++i) {
                Acc<T> &sum = sums[i / kColumns][i % kColumns];
                sum = fused(widen(a[i / kColumns]), widen(b[i % kColumns]), sum);
            }
        }
    }

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        const int group = ctx.thread() / Lanes, lane = ctx.thread() % Lanes;
        const bool packs = p.a.packs && p.a.by_k && p.b.packs;
        for (int64_t tile = ctx.block(); tile < p.tiles; tile += ctx.blocks()) {
            const int64_t item = tile / p.tiles_n, j = (tile - item * p.tiles_n) * kTileColumns + group * kColumns;
            // Rows and columns beyond the last are that one: they are read from L1 again, and not written.
            const T *rows[Rows], *columns[kColumns];
            INFINI_UNROLL
            for (int r = 0; r < Rows; ++r) rows[r] = p.a.template at<T>(item, r < p.m ? r : p.m - 1, 0);
            INFINI_UNROLL
            for (int c = 0; c < kColumns; ++c) columns[c] = p.b.template at<T>(item, j + c < p.n ? j + c : p.n - 1, 0);
            Sums sums = {};
            constexpr int64_t kStep = Lanes * E;
            constexpr int kAhead = 2;
            int64_t k = lane * E;
            if (packs) {
                for (; k + (kAhead - 1) * kStep + E <= p.k; k += kAhead * kStep)
                    add<kAhead>(ctx, rows, columns, k, kStep, sums);
                if (k + E <= p.k) {
                    add<1>(ctx, rows, columns, k, kStep, sums);
                    k += kStep;
                }
            }
            for (; k < p.k; k += kStep) add_elements(ctx, p, rows, columns, k, sums);
            sum_up(ctx, p, item, j, lane, sums);
        }
    }

    template <class Ctx>
    static INFINI_DEVICE void sum_up(Ctx &ctx, const Params &p, int64_t item, int64_t j, int lane, Sums &sums) {
        INFINI_UNROLL
        for (int s = 0; s < kSums; ++s) {
            Acc<T> &sum = sums[s / kColumns][s % kColumns];
            INFINI_UNROLL
            for (int mask = (Lanes < kWarp ? Lanes : kWarp) / 2; mask > 0; mask /= 2) sum += ctx.shuffle_xor(sum, mask);
        }
        if constexpr (Lanes <= kWarp) {
            INFINI_UNROLL
            for (int s = 0; s < kSums; ++s)
                if (lane == s % Lanes)
                    finish<T, 1>(ctx, p, item, s / kColumns, j + s % kColumns, {sums[s / kColumns][s % kColumns]});
        } else {
            Acc<T> *const shared = ctx.template shared<Acc<T>>(); // [warp][row][column]
            INFINI_UNROLL
            for (int s = 0; s < kSums; ++s)
                if (lane % kWarp == 0) shared[lane / kWarp * kSums + s] = sums[s / kColumns][s % kColumns];
            ctx.sync();
            if (lane < kSums) {
                Acc<T> sum = shared[lane];
                for (int warp = 1; warp < kWarps; ++warp) sum += shared[warp * kSums + lane];
                finish<T, 1>(ctx, p, item, lane / kColumns, j + lane % kColumns, {sum});
            }
            ctx.sync(); // before the next tile's sums
        }
    }
};

/** B is contiguous along N (row-major). A block takes 256 bytes of columns for one row of A, 128 for more, and 16 or 32 rows of B at a
 *  time: 172 or 344 blocks of 11008 columns of F32. */
template <class T, int Rows>
struct GemvAlongN {
    static constexpr int kThreads = 256;
    static constexpr int kBlocks = Rows == 1 ? 3 : 2; // 80 or 128 registers a thread, so that none is spilled
    static constexpr int E = 16 / sizeof(T);
    static constexpr int kLanes = Rows == 1 ? 16 : 8, kTileRows = Rows, kTileColumns = kLanes * E;
    static constexpr int kStep = kThreads / kLanes; // rows of B that are read at a time
    static constexpr int kAhead =
        Rows * sizeof(T) <= 16 ? 8 : 4; // and how many times that, before any is used: 32 KB a block
    static constexpr int kWarps = kThreads / kWarp, kSums = Rows * kTileColumns;
    static constexpr size_t kSharedBytes = kWarps * kSums * sizeof(Acc<T>);
    using Params = GemmParams;
    using Sums = Acc<T>[Rows][E];

    template <int Count, bool Whole, class Ctx>
    static INFINI_DEVICE void add(Ctx &ctx, const Params &p, const T *const (&rows)[Rows], const T *column,
                                  int64_t left, int64_t k, Sums &sums) {
        Pack<T, E> b[Count];
        T a[Count][Rows];
        INFINI_UNROLL
        for (int u = 0; u < Count; ++u) {
            const int64_t at = k + u * kStep;
            b[u] = Whole ? load<T, E>(ctx, column + at * p.b.k)
                         : load_some<T, E>(ctx, column + at * p.b.k, p.b.w, left, p.b.packs);
            INFINI_UNROLL
            for (int r = 0; r < Rows; ++r) a[u][r] = load<T, 1>(ctx, rows[r] + at * p.a.k).at[0];
        }
        INFINI_UNROLL
        for (int i = 0; i < Count * Rows * E; ++i) {
            const int u = i / (Rows * E), r = i / E % Rows, e = i % E;
            sums[r][e] = fused(widen(a[u][r]), widen(b[u].at[e]), sums[r][e]);
        }
    }

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        Acc<T> *const shared = ctx.template shared<Acc<T>>(); // [warp][row][column]
        const int lane = ctx.thread() % kLanes, warp = ctx.thread() / kWarp;
        for (int64_t tile = ctx.block(); tile < p.tiles; tile += ctx.blocks()) {
            const int64_t item = tile / p.tiles_n;
            const int64_t first = (tile - item * p.tiles_n) * kTileColumns, j = first + lane * E;
            const T *rows[Rows];
            INFINI_UNROLL
            for (int r = 0; r < Rows; ++r) rows[r] = p.a.template at<T>(item, r < p.m ? r : p.m - 1, 0);
            const T *const column = p.b.template at<T>(item, j, 0);
            const int64_t left = p.n - j; // columns; none of them is read where that is not positive
            Sums sums = {};
            int64_t k = ctx.thread() / kLanes;
            if (p.b.packs && left >= E)
                for (; k + (kAhead - 1) * kStep < p.k; k += kAhead * kStep)
                    add<kAhead, true>(ctx, p, rows, column, left, k, sums);
            constexpr int kHalf = kAhead / 2;
            if (p.b.packs && left >= E && k + (kHalf - 1) * kStep < p.k) {
                add<kHalf, true>(ctx, p, rows, column, left, k, sums);
                k += kHalf * kStep;
            }
            for (; k < p.k; k += kStep) add<1, false>(ctx, p, rows, column, left, k, sums);

            INFINI_UNROLL
            for (int s = 0; s < Rows * E; ++s) {
                Acc<T> &sum = sums[s / E][s % E];
                INFINI_UNROLL
                for (int mask = kWarp / 2; mask >= kLanes; mask /= 2) sum += ctx.shuffle_xor(sum, mask);
                if (ctx.thread() % kWarp < kLanes) shared[warp * kSums + s / E * kTileColumns + lane * E + s % E] = sum;
            }
            ctx.sync();
            if (ctx.thread() < kSums) {
                Acc<T> sum = shared[ctx.thread()];
                for (int other = 1; other < kWarps; ++other) sum += shared[other * kSums + ctx.thread()];
                finish<T, 1>(ctx, p, item, ctx.thread() / kTileColumns, first + ctx.thread() % kTileColumns, {sum});
            }
            ctx.sync(); // before the next tile's sums
        }
    }
};

/** F16 and BF16, by tensor cores: C^T = B^T A^T. 16 columns of B are what an instruction calls rows; its 8 columns are rows of A, which
 *  there are at most 4 of, so that B along K uses them for two sets of k: a column of B is in one of them, and its sums with A's k's of
 *  the other are left alone. That makes 8 columns of a block, and enough blocks for all multiprocessors to have as much to do. What
 *  lies beyond K is 0, in A and in B.
 *
 *  Within an instruction any k may have any place, if it has the same in A and in B. So 16 bytes along K, of a column of B or a row of A,
 *  are a lane's part of two instructions as they are, and a lane reads neighbouring rows of B.
 *
 *  Warps take turns along K. Each lane asks for 8 chunks of B at a time, 16 or 32 KB in a block. */
template <class T, bool AlongK>
struct GemvMma {
    static constexpr int kWarps = AlongK ? 4 : 8, kSets = AlongK ? 2 : 1; // of a block; of k
    static constexpr int kThreads = kWarp * kWarps;
    static constexpr int kBlocks = AlongK ? 5 : 3;      // 96 or 80 registers a thread, so that none is spilled
    static constexpr int kRows = 4, kLines = 8 / kSets; // of A; and how many there would be room for in a set of k
    static constexpr int kFragments = AlongK ? 1 : 4;   // of 16 columns
    static constexpr int kTileRows = kRows, kTileColumns = 2 * kLines * kFragments; // a group of 4 lanes has 2 or 8
    static constexpr int E = 16 / sizeof(T);
    static constexpr int kOfA = AlongK ? E : 4;    // k's that a lane multiplies at a time
    static constexpr int kOfB = AlongK ? 2 : kOfA; // and the chunks of B they are in
    static constexpr int kAhead = 8 / kOfB;        // how many times that it asks for before it uses the first
    static constexpr int kNext = AlongK ? 4 * E * kSets : kOfA; // and how far these are apart
    static constexpr int kDepth = kOfA * kAhead * 4 * kSets;    // k's that a warp takes at a time
    static constexpr size_t kSharedBytes = kWarps * kSets * kRows * kTileColumns * sizeof(float);
    static_assert(kRows <= kLines && kRows * kTileColumns <= kThreads, "a thread finishes one element of C");
    using Params = GemmParams;

    /** What a lane multiplies. */
    struct Lane {
        const T *a, *b[2]; // its row of A; its two columns of B, or where its chunks of columns begin
        int columns;       // how many of a chunk there are
    };

    template <int N>
    struct Words {
        uint32_t at[N / 2]; // two elements each
    };
    template <int N, class Ctx>
    static INFINI_DEVICE Words<N> words(Ctx &ctx, const T *p) {
        return bits_as<Words<N>>(ctx.template load<N * sizeof(T)>(p));
    }

    /** Adds the products of `Count` times kOfA k's of this lane, from k on. Whole: all chunks are, but for some beyond K if AlongK, and
     *  aligned; else they are what there is of them, anywhere in memory. Whole chunks are asked for without a branch in between. */
    template <int Count, bool Whole, class Ctx>
    static INFINI_DEVICE void add(Ctx &ctx, const Params &p, const Lane &lane, int k, float (&sums)[kFragments][4]) {
        const int left = Whole && !AlongK ? kDepth : static_cast<int>(p.k) - k;
        Words<kOfA> a[Count] = {};
        Words<E> b[Count][kOfB] = {};
        int64_t step = p.b.k;
        if (!AlongK) forget_origin(step);
        const T *const row = lane.b[0] + k * step;
        const auto at_b = [&](int u, int c) {
            return AlongK ? lane.b[c] + k + u * kNext : row + (u * kNext + c) * step;
        };
        const auto count_b = [&](int u, int c) {
            return AlongK ? left - u * kNext : u * kNext + c < left ? lane.columns : 0;
        };
        INFINI_UNROLL
        for (int u = 0; u < Count; ++u) {
            INFINI_UNROLL
            for (int c = 0; c < kOfB; ++c)
                if ((Whole && !AlongK) || ((Whole || p.b.packs) && count_b(u, c) >= E))
                    b[u][c] = words<E>(ctx, at_b(u, c));
            if constexpr (Whole)
                if (!AlongK || left - u * kNext >= kOfA) a[u] = words<kOfA>(ctx, lane.a + k + u * kNext);
        }
        if constexpr (!Whole) {
            static_assert(Count == 1);
            a[0] =
                bits_as<Words<kOfA>>(load_some<T, kOfA>(ctx, lane.a + k * p.a.k, p.a.k, left, p.a.packs && p.a.by_k));
            if (!p.b.packs || (AlongK ? left : lane.columns) < E) {
                INFINI_UNROLL
                for (int c = 0; c < kOfB; ++c)
                    if (!p.b.packs || count_b(0, c) < E)
                        b[0][c] = bits_as<Words<E>>(load_some<T, E>(ctx, at_b(0, c), 1, count_b(0, c), false));
            }
        }
        INFINI_UNROLL
        for (int u = 0; u < Count; ++u) {
            const auto &x = a[u].at;
            const auto &y = b[u];
            if constexpr (AlongK) {
                ctx.template multiply_add<T>(sums[0], {y[0].at[0], y[1].at[0], y[0].at[1], y[1].at[1]}, {x[0], x[1]});
                ctx.template multiply_add<T>(sums[0], {y[0].at[2], y[1].at[2], y[0].at[3], y[1].at[3]}, {x[2], x[3]});
            } else { // a word has two columns of one k
                INFINI_UNROLL
                for (int f = 0; f < kFragments; ++f)
                    ctx.template multiply_add<T>(
                        sums[f],
                        {pick_bytes(y[0].at[f], y[1].at[f], 0x5410), pick_bytes(y[0].at[f], y[1].at[f], 0x7632),
                         pick_bytes(y[2].at[f], y[3].at[f], 0x5410), pick_bytes(y[2].at[f], y[3].at[f], 0x7632)},
                        {x[0], x[1]});
            }
        }
    }

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        float *const shared = ctx.template shared<float>(); // [warp][set][row][column]
        const int warp = ctx.thread() / kWarp, group = ctx.thread() % kWarp / 4, quarter = ctx.thread() % 4;
        const int line = group % kLines, own_set = group / kLines, own_k = (own_set * 4 + quarter) * E;
        for (int64_t tile = ctx.block(); tile < p.tiles; tile += ctx.blocks()) {
            const int64_t item = tile / p.tiles_n, first = (tile - item * p.tiles_n) * kTileColumns;
            const bool ragged = !AlongK && p.n % E != 0 && first + kTileColumns > p.n;
            // Rows and columns beyond the last are those before: they are read from L1 again, and not written.
            Lane lane{p.a.template at<T>(item, line < p.m ? line : p.m - 1, 0), {}, E};
            if constexpr (AlongK) {
                INFINI_UNROLL
                for (int c = 0; c < 2; ++c) {
                    const int64_t j = first + kLines * c + line;
                    lane.b[c] = p.b.template at<T>(item, j < p.n ? j : p.n - 1, 0);
                }
            } else {
                const int64_t j = first + line * E;
                lane.b[0] = p.b.template at<T>(item, j + E <= p.n || ragged ? j : p.n - E, 0);
                if (ragged) lane.columns = static_cast<int>(p.n - j < E ? p.n - j : E);
            }
            const bool packs = p.b.packs && p.a.packs && p.a.by_k && !ragged;
            // Where a step begins that is not whole, or later.
            const int depth = static_cast<int>(p.k);
            const int whole = !packs ? 0 : AlongK && depth % E == 0 ? depth : depth - kDepth + 1;
            float sums[kFragments][4] = {};
            int k = warp * kDepth;
            INFINI_NO_UNROLL // chunks of two steps would not fit in the registers
                for (; k < whole; k += kWarps * kDepth) add<kAhead, true>(ctx, p, lane, k + own_k, sums);
            for (; k < depth; k += kWarps * kDepth) INFINI_NO_UNROLL
            for (int u = 0; u < kAhead; ++u) add<1, false>(ctx, p, lane, k + own_k + u * kNext, sums);

            INFINI_UNROLL
            for (int i = 0; i < kFragments * 4; ++i) {
                const int f = i / 4, row = (2 * quarter + i % 2) % kLines, set = (2 * quarter + i % 2) / kLines;
                const int column = AlongK ? line + i / 2 * kLines : line * E + 2 * f + i / 2 % 2;
                if (set == own_set && row < kRows)
                    shared[((warp * kSets + set) * kRows + row) * kTileColumns + column] = sums[f][i % 4];
            }
            ctx.sync();
            constexpr int kSums = kRows * kTileColumns;
            if (ctx.thread() < kSums) {
                float sum = shared[ctx.thread()];
                INFINI_UNROLL
                for (int other = 1; other < kWarps * kSets; ++other) sum += shared[other * kSums + ctx.thread()];
                finish<T, 1>(ctx, p, item, ctx.thread() / kTileColumns, first + ctx.thread() % kTileColumns, {sum});
            }
            ctx.sync(); // before the next tile's sums
        }
    }
};

} // namespace infini::cuda
