/* gemm by tiles: a block computes a tile of C at a time, and keeps its sums in registers while it walks along K. Each step brings a
 * slice of A and one of B into shared memory, where threads find what they multiply. There are two slices of each: while one is
 * multiplied, the next is on its way through registers, and one barrier a step is enough.
 *
 *  A sum takes its products in the order of k, starting at 0: in ones for F32 and F64, in sixteens (one instruction of the tensor
 *  cores) for F16 and BF16. So it depends on nothing but its row of A and its column of B: not on M, N, the batch, the size of the
 *  tile or the place in it. Slices are filled up with zeros beyond K, M and N.
 *  How the tensor cores round within a sixteen is theirs: known is that they keep F32 or a little more, and cut off.
 *
 *  What bounds a tile of m x n and a slice of depth k: it reads (m + n) * k elements from L2 for 2 * m * n * k flops. 128 x 128 in
 *  F16: 64 flops a byte, so that 800 Tflop/s would take 12.5 TB/s, more than L2 gives; that is beyond `mma.sync` anyway, which is
 *  held to reach some 60 % of Hopper's tensor cores (wgmma is needed for more; cublasLt has it). In F32: 32 flops a byte, 67 Tflop/s
 *  take 2.1 TB/s. 64 x 64 tiles halve the intensity and are for problems that would leave multiprocessors without a tile.
 *  Nothing of this was measured yet. */
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
        : by_k(x.by_k), packs_(x.packs), line_(by_k ? thread / (Depth / E) : thread / (Width / E)),
          at_((by_k ? thread % (Depth / E) : thread % (Width / E)) * E),
          lines_(by_k ? Threads / (Depth / E) : Threads / (Width / E)),
          left_w_(extent - first < Width ? static_cast<int>(extent - first) : Width), left_k_(depth),
          along_(by_k ? x.k : x.w), next_chunk_(lines_ * (by_k ? x.w : x.k)), next_slice_(Depth * x.k),
          from_(by_k ? x.at<T>(item, first + line_, at_) : x.at<T>(item, first + at_, line_)) {}

    /** Reads the next slice into registers. */
    template <class Ctx>
    INFINI_DEVICE void fetch(Ctx &ctx) {
        const int left_k = left_k_ < Depth ? static_cast<int>(left_k_) : Depth;
        if (packs_ && left_k == Depth && left_w_ == Width) {
            INFINI_UNROLL
            for (int i = 0; i < kChunks; ++i) chunk_[i] = load<T, E>(ctx, from_ + i * next_chunk_);
        } else {
            const int lines = by_k ? left_w_ : left_k, length = by_k ? left_k : left_w_;
            INFINI_UNROLL
            for (int i = 0; i < kChunks; ++i)
                chunk_[i] = load_some<T, E>(ctx, from_ + i * next_chunk_, along_,
                                            line_ + i * lines_ < lines ? length - at_ : 0, packs_);
        }
        left_k_ -= Depth;
        from_ += next_slice_;
    }

    /** Writes it to shared memory as it was read: lines of `by_k ? in_k : in_w` elements. */
    template <class Ctx>
    INFINI_DEVICE void put_lines(Ctx &ctx, T *to, int in_k, int in_w) const {
        INFINI_UNROLL
        for (int i = 0; i < kChunks; ++i)
            store<T, E>(ctx, to + (line_ + i * lines_) * (by_k ? in_k : in_w) + at_, chunk_[i]);
    }

    /** Writes it as lines along w, of `in_w` elements. */
    template <class Ctx>
    INFINI_DEVICE void put_along_w(Ctx &ctx, T *to, int in_w) const {
        if (!by_k) return put_lines(ctx, to, 0, in_w);
        INFINI_UNROLL
        for (int i = 0; i < kChunks; ++i) {
            INFINI_UNROLL
            for (int e = 0; e < E; ++e)
                store<T, 1>(ctx, to + (at_ + e) * in_w + line_ + i * lines_, {{chunk_[i].at[e]}});
        }
    }

    const bool by_k;

private:
    const bool packs_;
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

/** F16 and BF16, by tensor cores: warps of a block share its tile in WarpsM x WarpsN. 128 x 128 by 8 warps: 64 sums a thread, and a
 *  warp reads 3 KiB of shared memory for 64 x 32 x 16 products, 21 flops a byte. */
template <class T, int M, int N, int WarpsM, int WarpsN>
struct MmaTile {
    static constexpr int kThreads = kWarp * WarpsM * WarpsN;
    static constexpr int kTileRows = M, kTileColumns = N, kDepth = 32;
    static constexpr int kBlocks = 512 / kThreads; // 128 registers a thread: as many as two blocks of 8 warps may have
    using Params = GemmParams;

    static constexpr int kWarpM = M / WarpsM, kWarpN = N / WarpsN; // of a warp's part of the tile
    static constexpr int kAs = kWarpM / 16, kBs = kWarpN / 16;     // in fragments of 16
    static constexpr int kStep = 16;                               // of k
    // Lines are 16 bytes longer than needed: eight neighbours, which the tensor cores' loads take at a time, lie in different banks.
    static constexpr int kPad = 8, kInK = kDepth + kPad, kInM = M + kPad, kInN = N + kPad;
    static constexpr int kRoomA = M * kInK > kDepth *kInM ? M * kInK : kDepth * kInM;
    static constexpr int kRoomB = N * kInK > kDepth *kInN ? N * kInK : kDepth * kInN;
    static constexpr int kRoom = kRoomA + kRoomB; // elements of a buffer
    static constexpr size_t kSharedBytes = 2 * kRoom * sizeof(T);

    /** Where a lane finds its line of the first fragment, and how far it is to others. */
    struct Walk {
        int first, next_w, next_k;
        bool by_k;

        /** A fragment is 16 of w by 16 of k: four matrices of 8 by 8, of which eight lanes each name the lines; in this order: w and k,
         *  w + 8 and k, w and k + 8, w + 8 and k + 8. */
        INFINI_DEVICE Walk(bool along_k, int in_w, int w, int lane) : by_k(along_k) {
            const int line = lane % 8, second_w = lane / 8 % 2 * 8, second_k = lane / 16 * 8;
            const int stride_w = by_k ? kInK : 1, stride_k = by_k ? 1 : in_w;
            first = by_k ? (w + second_w + line) * stride_w + second_k : w + second_w + (second_k + line) * stride_k;
            next_w = 16 * stride_w;
            next_k = kStep * stride_k;
        }
        template <class Ctx>
        INFINI_DEVICE void load(Ctx &ctx, uint32_t (&to)[4], const T *tile, int i_w, int i_k) const {
            const T *line = tile + first + i_w * next_w + i_k * next_k;
            if (by_k)
                ctx.template load_matrices<false>(to, line);
            else
                ctx.template load_matrices<true>(to, line);
        }
    };

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        T *const shared = ctx.template shared<T>();
        const int lane = ctx.thread() % kWarp, warp = ctx.thread() / kWarp;
        const int row = warp / WarpsN * kWarpM, col = warp % WarpsN * kWarpN;
        const Walk walk_a(p.a.by_k, kInM, row, lane), walk_b(p.b.by_k, kInN, col, lane);
        for (int64_t tile = ctx.block(); tile < p.tiles; tile += ctx.blocks()) {
            const TilePlace place = place_of<M, N>(tile, p);
            Slice<T, M, kDepth, kThreads> a(p.a, place.item, place.row, p.m, p.k, ctx.thread());
            Slice<T, N, kDepth, kThreads> b(p.b, place.item, place.col, p.n, p.k, ctx.thread());
            float sums[kAs][2 * kBs][4] = {};
            const auto put = [&](int buffer) {
                a.put_lines(ctx, shared + buffer * kRoom, kInK, kInM);
                b.put_lines(ctx, shared + buffer * kRoom + kRoomA, kInK, kInN);
            };
            const auto multiply = [&](int buffer) {
                const T *const at_a = shared + buffer * kRoom, *const at_b = at_a + kRoomA;
                INFINI_UNROLL
                for (int k = 0; k < kDepth / kStep; ++k) {
                    uint32_t of_a[kAs][4], of_b[kBs][4];
                    INFINI_UNROLL
                    for (int i = 0; i < kAs; ++i) walk_a.load(ctx, of_a[i], at_a, i, k);
                    INFINI_UNROLL
                    for (int j = 0; j < kBs; ++j) walk_b.load(ctx, of_b[j], at_b, j, k);
                    INFINI_UNROLL
                    for (int s = 0; s < kAs * 2 * kBs; ++s) {
                        const int i = s / (2 * kBs), j = s % (2 * kBs);
                        ctx.template multiply_add<T>(sums[i][j], of_a[i], {of_b[j / 2][j % 2], of_b[j / 2][j % 2 + 2]});
                    }
                }
            };
            walk<kDepth>(ctx, p.k, a, b, put, multiply);
            write(ctx, p, place, row, col, lane, sums);
        }
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
    // 128 registers a thread, but for 64 sums of F32: the compiler does not get by with that.
    static constexpr int kBlocks = RowsOfThread * ColsOfThread * sizeof(T) < 256 ? 512 / kThreads : 1;
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
