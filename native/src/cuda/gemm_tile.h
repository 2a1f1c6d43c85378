/* gemm by tiles: a block computes a tile of C at a time, and keeps its sums in registers while it walks along K. Each step brings a
 * slice of A and one of B into shared memory, where threads find what they multiply; one barrier a step is enough.
 *  F32 and F64 have two slices of each there: while one is multiplied, the next is on its way through registers.
 *  F16 and BF16 have several, the stages, which copies fill that no thread waits for: memory has all the time to answer in which
 *  the slices before are multiplied, and what is on its way takes no registers, which sums need.
 *
 *  A sum takes its products in the order of k, starting at 0: in ones for F32 and F64, in sixteens (one instruction of the tensor
 *  cores) for F16 and BF16. So it depends on nothing but its row of A and its column of B: not on M, N, the batch, the size of the
 *  tile or the place in it. Slices are filled up with zeros beyond K, M and N.
 *  How the tensor cores round within a sixteen is theirs: known is that they keep F32 or a little more, and cut off.
 *
 *  What bounds a tile of m x n: for each 16 of k it reads (m + n) * 16 elements from L2, writes them to shared memory, and reads
 *  there (wm + wn) * 16 for each warp's part of wm x wn, all of it for 2 * m * n * 16 flops. Hopper's `mma.sync` is held to reach
 *  some 60 % of its tensor cores, 600 Tflop/s (wgmma is needed for more; cublasLt has it): 2500 flops a clock of each
 *  multiprocessor, which moves some 24 bytes from L2 and 128 to or from shared memory in that time. In F16
 *      tile       of a warp  flops a byte of L2  of shared memory
 *      64 x 64    32 x 32    32                  11
 *      128 x 128  64 x 64    64                  21
 *  A warp's part cannot be larger: 64 x 64 sums fill half of its registers. 64 x 64 tiles are for problems that would leave
 *  multiprocessors without a tile. In F32 128 x 128 have 32 flops a byte of L2: 67 Tflop/s take 2.1 TB/s.
 *
 *  Measured on an H200, in Tflop/s: F16 at 4096 x 4096 x 4096 and at 8192 x 8192 x 8192 320 and 370, of cublasLt's 750 (with two slices
 *  that went through registers and 64 x 32 a warp 150); tiles of 128 x 256, of which a multiprocessor holds one, not two, 290 and 360;
 *  with one fragment in registers at a time, not two, 300 and 340. At 1024 x 1024 x 1024 tiles of 64 x 64 160, with slices of 32, not 64,
 *  137, and 128 x 128 56. F32 at 4096 38.5, of cublasLt's 51. F64 at 2048 19 (with 4 x 4 sums a thread 13), of cublasLt's 59 (on tensor
 *  cores; 34 is what others can do). */
#pragma once
#include "cuda/gemm_params.h"

namespace infini::cuda {

/** Where a tile lies: the item of the batch, and the first row and column. */
struct TilePlace {
    int64_t item, row, col;
};

/** Tiles are numbered down groups of 8 rows of tiles, so that blocks that run at the same time share rows of A and columns of B
 *  in L2: 8 and about sm_count / 8. */
template <int M, int N>
INFINI_DEVICE TilePlace place_of(int64_t number, const GemmParams &p) {
    constexpr int64_t kGroup = 8;
    const int64_t of_item = p.tiles_m * p.tiles_n, item = number / of_item, rest = number - item * of_item;
    const int64_t group = rest / (kGroup * p.tiles_n), in_group = rest - group * kGroup * p.tiles_n;
    const int64_t below = p.tiles_m - group * kGroup, rows = below < kGroup ? below : kGroup;
    const int64_t j = in_group / rows, i = group * kGroup + in_group - j * rows;
    return {item, i * M, j * N};
}

/** A thread's part in bringing the slices of one operand, of `Width` rows of A or columns of B, to shared memory: some chunks of
 *  16 bytes. A slice is read in lines, along k or along w, whichever is contiguous in memory. */
template <class T, int Width, int Depth, int Threads>
class Slice {
public:
    static constexpr int E = 16 / sizeof(T); // elements of a chunk
    static constexpr int kChunks = Width * Depth / E / Threads;
    static_assert(kChunks * Threads * E == Width * Depth, "all threads have as many chunks");
    static_assert(Threads % (Width / E) == 0 && Threads % (Depth / E) == 0,
                  "a thread's chunks lie at one place of their lines");

    /** `first` and `extent`: of w. */
    INFINI_DEVICE Slice(const GemmInput &x, int64_t item, int64_t first, int64_t extent, int64_t depth, int thread)
        : by_k_(x.by_k), packs_(x.packs), line_(by_k_ ? thread / (Depth / E) : thread / (Width / E)),
          at_((by_k_ ? thread % (Depth / E) : thread % (Width / E)) * E),
          lines_(by_k_ ? Threads / (Depth / E) : Threads / (Width / E)),
          left_w_(extent - first < Width ? static_cast<int>(extent - first) : Width), left_k_(depth),
          along_(by_k_ ? x.k : x.w), next_chunk_(lines_ * (by_k_ ? x.w : x.k)), next_slice_(Depth * x.k),
          from_(by_k_ ? x.at<T>(item, first + line_, at_) : x.at<T>(item, first + at_, line_)) {}

    /** Reads the next slice into registers. */
    template <class Ctx>
    INFINI_DEVICE void fetch(Ctx &ctx) {
        const int left_k = left_k_ < Depth ? static_cast<int>(left_k_) : Depth;
        if (packs_ && left_k == Depth && left_w_ == Width) {
            INFINI_UNROLL
            for (int i = 0; i < kChunks; ++i) chunk_[i] = load<T, E>(ctx, from_ + i * next_chunk_);
        } else {
            const int lines = by_k_ ? left_w_ : left_k, length = by_k_ ? left_k : left_w_;
            INFINI_UNROLL
            for (int i = 0; i < kChunks; ++i)
                chunk_[i] = load_some<T, E>(ctx, from_ + i * next_chunk_, along_,
                                            line_ + i * lines_ < lines ? length - at_ : 0, packs_);
        }
        left_k_ -= Depth;
        from_ += next_slice_;
    }

    /** Writes it as lines along w, of `in_w` elements. */
    template <class Ctx>
    INFINI_DEVICE void put_along_w(Ctx &ctx, T *to, int in_w) const {
        INFINI_UNROLL
        for (int i = 0; i < kChunks; ++i) {
            const int line = line_ + i * lines_;
            if (!by_k_) {
                store<T, E>(ctx, to + line * in_w + at_, chunk_[i]);
            } else {
                INFINI_UNROLL
                for (int e = 0; e < E; ++e) store<T, 1>(ctx, to + (at_ + e) * in_w + line, {{chunk_[i].at[e]}});
            }
        }
    }

private:
    const bool by_k_, packs_;
    const int line_, at_; // where in the slice the first chunk is: its line, and its element in that
    const int lines_;     // how many lines on the next one is
    const int left_w_;
    int64_t left_k_;
    const int64_t along_, next_chunk_, next_slice_;
    const T *from_;
    Pack<T, E> chunk_[kChunks];
};

/** Walks along K. `put(buffer)` brings what was fetched to one of two buffers, `multiply(buffer)` adds its products. */
template <int Depth, class Ctx, class A, class B, class Put, class Multiply>
INFINI_DEVICE void walk(Ctx &ctx, int64_t k, A &a, B &b, Put &&put, Multiply &&multiply) {
    if (k == 0) return;
    a.fetch(ctx);
    b.fetch(ctx);
    put(0);
    ctx.sync();
    int buffer = 0;
    for (int64_t left = k; left > 0; left -= Depth, buffer ^= 1) {
        const bool more = left > Depth;
        if (more) {
            a.fetch(ctx);
            b.fetch(ctx);
        }
        multiply(buffer);
        if (more) put(buffer ^ 1);
        ctx.sync(); // the next slice is there, and nobody needs this one any more
    }
}

/** How chunks of 16 bytes lie in a line of `Chunks` of them: in an order that differs from line to line, so that the same chunk of
 *  eight neighbours, which the tensor cores' loads take at a time, lies in different banks; and a line's chunks still lie in a
 *  line, so that those which threads write side by side do, too. The number of a chunk is changed by exclusive or with this one. */
template <int Chunks>
INFINI_DEVICE int order_of(int line) {
    static_assert(Chunks == 4 || Chunks % 8 == 0, "128 bytes, which are all banks, have whole lines or parts of one");
    return Chunks == 4 ? line / 2 % 4 : line % 8;
}

/** A thread's part in bringing the slices of one operand, of `Width` rows of A or columns of B, to stages in shared memory: some
 *  chunks, which lie there in lines as they do in memory, along k or along w. */
template <class T, int Width, int Depth, int Threads, bool ByK>
class StagedSlice {
public:
    static constexpr int E = 16 / sizeof(T);                         // elements of a chunk
    static constexpr int kLength = ByK ? Depth : Width;              // of a line, in elements
    static constexpr int kPerLine = kLength / E;                     // in chunks
    static constexpr int kLines = Threads / kPerLine;                // how many lines on a thread's next chunk is
    static constexpr int kChunks = Width * Depth / kLength / kLines; // of a thread
    static_assert(kChunks * kLines * kLength == Width * Depth && kLines * kPerLine == Threads,
                  "all threads have as many chunks");
    static_assert(kLines % 8 == 0, "all of a thread's chunks lie in the same place of their lines");

    /** `first` and `extent`: of w. */
    INFINI_DEVICE StagedSlice(const GemmInput &x, int64_t item, int64_t first, int64_t extent, int thread)
        : x_(x), line_(thread / kPerLine), at_(thread % kPerLine * E),
          to_(line_ * kLength + (thread % kPerLine ^ order_of<kPerLine>(line_)) * E),
          left_w_(extent - first < Width ? static_cast<int>(extent - first) : Width),
          from_(ByK ? x.at<T>(item, first + line_, at_) : x.at<T>(item, first + at_, line_)) {}

    /** Are slices whose k are all there such that all of a thread's chunks can be copied? */
    INFINI_DEVICE bool whole() const { return x_.packs && left_w_ == Width; }

    /** Has the next slice, of those, copied to a stage. */
    template <class Ctx>
    INFINI_DEVICE void copy(Ctx &ctx, T *stage) {
        const int64_t next_chunk = kLines * (ByK ? x_.w : x_.k);
        INFINI_UNROLL
        for (int i = 0; i < kChunks; ++i) ctx.copy_async(stage + to_ + i * kLines * kLength, from_ + i * next_chunk);
        from_ += Depth * x_.k;
    }
    /** The same with any slice, of which `left_k` k are there. */
    template <class Ctx>
    INFINI_DEVICE void copy_some(Ctx &ctx, T *stage, int left_k) {
        const int64_t next_chunk = kLines * (ByK ? x_.w : x_.k);
        const int lines = ByK ? left_w_ : left_k, length = ByK ? left_k : left_w_;
        const int there = length - at_ < 0 ? 0 : length - at_ < E ? length - at_ : E; // of a chunk
        INFINI_NO_UNROLL
        for (int i = 0; i < kChunks; ++i) {
            T *const to = stage + to_ + i * kLines * kLength;
            const T *const from = from_ + i * next_chunk;
            const int count = line_ + i * kLines < lines ? there : 0;
            if (x_.packs && count == E)
                ctx.copy_async(to, from);
            else // less than a chunk, or elements apart: one at a time, which is waited for
                store<T, E>(ctx, to, load_some<T, E>(ctx, from, ByK ? x_.k : x_.w, count, false));
        }
        from_ += Depth * x_.k;
    }

private:
    const GemmInput &x_;
    const int line_, at_; // where in the slice the first chunk is: its line, and its element in that
    const int to_;        // where in a stage
    const int left_w_;
    const T *from_;
};

/** Where a lane finds the lines that it names when fragments of an operand are loaded from a stage: 16 of w by 16 of k each, those
 *  of a warp side by side. A fragment is four matrices of 8 by 8, of which eight lanes each name the lines; in the order of the
 *  registers that multiply_add() takes together: w and k, then w + 8 and k, w and k + 8 in A, w and k + 8, w + 8 and k in B (which
 *  are two times 8 of w there), last w + 8 and k + 8. */
template <class T, int Width, int Depth, int OfWarp, bool ByK, bool OfB>
class FragmentWalk {
public:
    static constexpr int E = 16 / sizeof(T), kLength = ByK ? Depth : Width;
    static_assert(ByK || (OfWarp & (OfWarp - 1)) == 0, "numbers of a warp's chunks differ in bits of their own");

    /** `w`: the warp's first, a multiple of OfWarp. */
    INFINI_DEVICE FragmentWalk(int w, int lane) {
        const int own = lane % 8, w8 = OfB ? lane / 16 : lane / 8 % 2, k8 = OfB ? lane / 8 % 2 : lane / 16;
        const int line = ByK ? w + w8 * 8 + own : k8 * 8 + own, chunk = ByK ? k8 : w / 8 + w8;
        line_ = line * kLength;
        at_ = (chunk ^ order_of<kLength / E>(line)) * E;
    }
    template <class Ctx>
    INFINI_DEVICE void load(Ctx &ctx, uint32_t (&to)[4], const T *stage, int i_w, int i_k) const {
        ctx.template load_matrices<!ByK>(to, stage + line_ + 16 * kLength * (ByK ? i_w : i_k) +
                                                 (at_ ^ 16 * (ByK ? i_k : i_w)));
    }

private:
    int line_, at_; // of the first fragment: what begins its line, and its place in that
};

/** F16 and BF16, by tensor cores: warps of a block share its tile in WarpsM x WarpsN. A warp of 64 x 64 has 128 sums a thread, and
 *  reads 4 KiB of shared memory for 64 x 64 x 16 products. */
template <class T, int M, int N, int WarpsM, int WarpsN, int Depth, int Stages>
struct MmaTile {
    static constexpr int kThreads = kWarp * WarpsM * WarpsN;
    static constexpr int kTileRows = M, kTileColumns = N, kDepth = Depth;
    static constexpr int kWarpM = M / WarpsM, kWarpN = N / WarpsN;           // of a warp's part of the tile
    static constexpr int kAs = kWarpM / 16, kBs = kWarpN / 16;               // in fragments of 16
    static constexpr int kSixteens = Depth / 16;                             // of k
    static constexpr int kBlocks = (kAs * kBs >= 16 ? 256 : 512) / kThreads; // 255 registers a thread, or 128
    static constexpr int kRoom = (M + N) * Depth;                            // elements of a stage
    static constexpr size_t kSharedBytes = Stages * kRoom * sizeof(T);
    static_assert(kSixteens % 2 == 0, "fragments of a slice's first sixteen always lie in the same registers");
    using Params = GemmParams;

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        const int lane = ctx.thread() % kWarp, warp = ctx.thread() / kWarp;
        const int row = warp / WarpsN * kWarpM, col = warp % WarpsN * kWarpN;
        for (int64_t tile = ctx.block(); tile < p.tiles; tile += ctx.blocks()) {
            const TilePlace place = place_of<M, N>(tile, p);
            float sums[kAs][2 * kBs][4] = {};
            // What is asked here need not be asked, by a jump each, wherever matrices are loaded.
            if (p.a.by_k && p.b.by_k)
                add_up<true, true>(ctx, p, place, row, col, lane, sums);
            else if (p.a.by_k)
                add_up<true, false>(ctx, p, place, row, col, lane, sums);
            else if (p.b.by_k)
                add_up<false, true>(ctx, p, place, row, col, lane, sums);
            else
                add_up<false, false>(ctx, p, place, row, col, lane, sums);
            write(ctx, p, place, row, col, lane, sums);
        }
    }

    /** Slice s is multiplied while those up to s + Stages - 1 are on their way. Fragments of the next sixteen are loaded before
     *  those of this one are multiplied, across the slices' borders, too. */
    template <bool AByK, bool BByK, class Ctx>
    static INFINI_DEVICE void add_up(Ctx &ctx, const Params &p, const TilePlace &place, int row, int col, int lane,
                                     float (&sums)[kAs][2 * kBs][4]) {
        if (p.k == 0) return;
        T *const shared = ctx.template shared<T>();
        StagedSlice<T, M, Depth, kThreads, AByK> a(p.a, place.item, place.row, p.m, ctx.thread());
        StagedSlice<T, N, Depth, kThreads, BByK> b(p.b, place.item, place.col, p.n, ctx.thread());
        const FragmentWalk<T, M, Depth, kWarpM, AByK, false> walk_a(row, lane);
        const FragmentWalk<T, N, Depth, kWarpN, BByK, true> walk_b(col, lane);
        const bool whole = a.whole() && b.whole();
        int64_t to_fetch = p.k; // that nobody has begun to copy
        const auto fetch = [&](int stage) {
            T *const to_a = shared + stage * kRoom, *const to_b = to_a + M * Depth;
            if (whole && to_fetch >= Depth) {
                a.copy(ctx, to_a);
                b.copy(ctx, to_b);
            } else if (to_fetch > 0) {
                const int left = to_fetch < Depth ? static_cast<int>(to_fetch) : Depth;
                a.copy_some(ctx, to_a, left);
                b.copy_some(ctx, to_b, left);
            }
            to_fetch -= Depth;
            ctx.commit_copies(); // of no slice, too: so that counting them says which is there
        };
        uint32_t of_a[2][kAs][4], of_b[2][kBs][4];
        const auto load = [&](int to, int stage, int k) {
            const T *const at = shared + stage * kRoom;
            INFINI_UNROLL
            for (int i = 0; i < kAs; ++i) walk_a.load(ctx, of_a[to][i], at, i, k);
            INFINI_UNROLL
            for (int j = 0; j < kBs; ++j) walk_b.load(ctx, of_b[to][j], at + M * Depth, j, k);
        };

        INFINI_NO_UNROLL
        for (int s = 0; s < Stages - 1; ++s) fetch(s);
        ctx.template wait_copies<Stages - 2>();
        ctx.sync();
        load(0, 0, 0);
        int stage = 0, next = Stages - 1; // where this slice is, and where the last one was, to which the next one goes
        INFINI_NO_UNROLL
        for (int64_t left = p.k; left > 0; left -= Depth) {
            INFINI_UNROLL
            for (int k = 0; k < kSixteens; ++k) {
                const bool last = k + 1 == kSixteens;
                if (last) {
                    ctx.template wait_copies<Stages - 2>();
                    ctx.sync(); // the next slice is there, and nobody needs this one any more
                    stage = stage + 1 < Stages ? stage + 1 : 0;
                }
                load((k + 1) % 2, stage, last ? 0 : k + 1); // behind the last slice: of anything, and nobody uses it
                if (k == 0) {
                    fetch(next);
                    next = next + 1 < Stages ? next + 1 : 0;
                }
                INFINI_UNROLL
                for (int s = 0; s < kAs * 2 * kBs; ++s) {
                    const int i = s / (2 * kBs), j = s % (2 * kBs);
                    const uint32_t (&two)[4] = of_b[k % 2][j / 2];
                    ctx.template multiply_add<T>(sums[i][j], of_a[k % 2][i], {two[j % 2 * 2], two[j % 2 * 2 + 1]});
                }
            }
        }
        ctx.sync(); // nobody still loads that, either: the next tile's slices may come
    }

    /** A lane holds two neighbours in each row and 8 columns. Two lanes exchange half of what they have of 16 columns and hold four
     *  then, so that each row of these is written as one whole sector of 32 bytes. */
    template <class Ctx>
    static INFINI_DEVICE void write(Ctx &ctx, const Params &p, const TilePlace &place, int row, int col, int lane,
                                    const float (&sums)[kAs][2 * kBs][4]) {
        const bool odd = lane % 2 == 1;
        INFINI_UNROLL
        for (int s = 0; s < kAs * kBs * 2; ++s) {
            const int i = s / (2 * kBs), j = s / 2 % kBs, half = s % 2;
            const float *left = &sums[i][2 * j][2 * half], *right = &sums[i][2 * j + 1][2 * half];
            const float other0 = ctx.shuffle_xor(odd ? left[0] : right[0], 1);
            const float other1 = ctx.shuffle_xor(odd ? left[1] : right[1], 1);
            const float four[4] = {odd ? other0 : left[0], odd ? other1 : left[1], odd ? right[0] : other0,
                                   odd ? right[1] : other1};
            finish<T, 4>(ctx, p, place.item, place.row + row + 16 * i + 8 * half + lane / 4,
                         place.col + col + 16 * j + (odd ? 8 : 0) + lane % 4 / 2 * 4, four);
        }
    }
};

/** F32 and F64, by fused multiply-adds: each thread has RowsOfThread x ColsOfThread sums, in groups of 16 bytes of neighbours that lie
 *  as far apart as the threads of the block take up together: a warp of 4 x 8 threads then reads up to 128 bytes of B at a time. 8 x 8
 *  sums take 16 numbers from shared memory for 64 multiply-adds. */
template <class T, int M, int N, int RowsOfThread, int ColsOfThread>
struct PlainTile {
    static constexpr int kThreads = M / RowsOfThread * (N / ColsOfThread);
    static constexpr int kTileRows = M, kTileColumns = N, kDepth = 8;
    // 128 registers a thread, but for 64 sums: the compiler does not get by with that.
    static constexpr int kBlocks = RowsOfThread * ColsOfThread * sizeof(T) < 256 ? 512 / kThreads : 256 / kThreads;
    using Params = GemmParams;

    static constexpr int V = 16 / sizeof(T);
    static constexpr int kRowGroups = RowsOfThread / V, kColGroups = ColsOfThread / V;
    static constexpr int kThreadsN = N / ColsOfThread, kWarpsN = kThreadsN / 8;
    static_assert(kWarpsN > 0 && M / RowsOfThread % 4 == 0 && kRowGroups > 0 && kColGroups > 0,
                  "warps of 4 x 8 threads fill the tile");
    // Lines along w, 16 bytes longer than needed: so neighbours in k that were read together are written to different banks.
    static constexpr int kInM = M + V, kInN = N + V, kRoom = kDepth * (kInM + kInN);
    static constexpr size_t kSharedBytes = 2 * kRoom * sizeof(T);

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        T *const shared = ctx.template shared<T>();
        const int lane = ctx.thread() % kWarp, warp = ctx.thread() / kWarp;
        const int row = (warp / kWarpsN * 4 + lane / 8) * V,
                  col = (warp % kWarpsN * 8 + lane % 8) * V; // of the first group
        for (int64_t tile = ctx.block(); tile < p.tiles; tile += ctx.blocks()) {
            const TilePlace place = place_of<M, N>(tile, p);
            Slice<T, M, kDepth, kThreads> a(p.a, place.item, place.row, p.m, p.k, ctx.thread());
            Slice<T, N, kDepth, kThreads> b(p.b, place.item, place.col, p.n, p.k, ctx.thread());
            T sums[RowsOfThread][kColGroups][V] = {};
            const auto put = [&](int buffer) {
                a.put_along_w(ctx, shared + buffer * kRoom, kInM);
                b.put_along_w(ctx, shared + buffer * kRoom + kDepth * kInM, kInN);
            };
            const auto multiply = [&](int buffer) {
                const T *const at_a = shared + buffer * kRoom + row, *const at_b =
                                                                         shared + buffer * kRoom + kDepth * kInM + col;
                INFINI_UNROLL
                for (int k = 0; k < kDepth; ++k) {
                    Pack<T, V> of_a[kRowGroups], of_b[kColGroups];
                    INFINI_UNROLL
                    for (int g = 0; g < kRowGroups; ++g)
                        of_a[g] = load<T, V>(ctx, at_a + k * kInM + g * (M / kRowGroups));
                    INFINI_UNROLL
                    for (int g = 0; g < kColGroups; ++g)
                        of_b[g] = load<T, V>(ctx, at_b + k * kInN + g * (N / kColGroups));
                    INFINI_UNROLL
                    for (int s = 0; s < RowsOfThread * ColsOfThread; ++s) {
                        const int i = s / ColsOfThread, j = s % ColsOfThread;
                        T &sum = sums[i][j / V][j % V];
                        sum = fused(of_a[i / V].at[i % V], of_b[j / V].at[j % V], sum);
                    }
                }
            };
            walk<kDepth>(ctx, p.k, a, b, put, multiply);
            INFINI_UNROLL
            for (int s = 0; s < RowsOfThread * kColGroups; ++s) {
                const int i = s / kColGroups, g = s % kColGroups;
                finish<T, V>(ctx, p, place.item, place.row + row + i / V * (M / kRowGroups) + i % V,
                             place.col + col + g * (N / kColGroups), sums[i][g]);
            }
        }
    }
};

} // namespace infini::cuda
