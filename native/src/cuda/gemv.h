/* gemm where C has 1 to 4 rows: what counts is that B is read once, as fast as memory gives it. (1 to 4 columns are the same, of
 * C^T = B^T A^T.) Each element of B takes part in `Rows` multiply-adds, so that even of 4 rows of F16 a multiprocessor, which gets
 * some 20 bytes of memory a cycle, is asked for 40 of the 128 multiply-adds it can do.
 *
 *  To hide the latency of memory (some 0.7 us at 4.8 TB/s: 3.4 MB) each of 132 multiprocessors needs about 25 KB on the way. So each
 *  thread asks for several chunks of 16 bytes before it uses the first. Nothing of this was measured yet.
 *
 *  The order of a sum depends on K and on which of the two kernels it is: not on N, the rows, the batch or the device. */
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

/** B is contiguous along N (row-major). A block takes 64 bytes of columns; 4 threads a row of these, 128 rows at a time. 64 bytes are
 *  two sectors, all that memory gives at a time, and make 128 blocks of 4096 columns of F16, 256 of F32. */
template <class T, int Rows>
struct GemvAlongN {
    static constexpr int kThreads = 512;
    static constexpr int E = 16 / sizeof(T);
    static constexpr int kLanes = 4, kTileRows = Rows, kTileColumns = kLanes * E;
    static constexpr int kStep = kThreads / kLanes; // rows of B that are read at a time
    static constexpr int kAhead = 4;                // and how many times that, before any is used: 32 KB a block
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

} // namespace infini::cuda
