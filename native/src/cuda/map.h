/* Kernels for out[i] = f(in...[i]): rows and tiles of map_plan.h; pieces have theirs in pieces.h. What they compute is a Map:
 *
 *      struct Map {
 *          using Element = f16;                      // of every operand
 *          static constexpr int kInputs = 2;
 *          static constexpr bool kAnyWidth = false;  // true: loads of 8, 4 and 2 bytes, too, where 16 are not aligned
 *          static INFINI_DEVICE Unit<Element> apply(const Unit<Element> *in);
 *      };
 *
 *  They are bound by memory, if they do not spend an instruction on each byte: so elements stay in the registers they came in, and
 *  blocks that are not at an edge ask for none. A thread has 32 bytes of loads in flight before it uses the first, so that 2048
 *  threads of a multiprocessor have 64 KiB: twice bandwidth times latency of the devices of today. (On an H200, 16 more were
 *  slower: by 1 % of large operands, by 15 % of a million elements.) */
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "core/dtype.h"
#include "cuda/chunks.h"
#include "cuda/cuda_plan.h"
#include "cuda/fast_div.h"
#include "cuda/launch.h"
#include "cuda/map_plan.h"
#include "cuda/pieces.h"

namespace infini::cuda {

constexpr int loads_in_flight(int bytes_per_load) {
    return bytes_per_load >= 32 ? 1 : bytes_per_load >= 8 ? 32 / bytes_per_load : 4;
}

/** `count` of N neighbours, or one element for all; whole, if they are all there and aligned. */
template <class T, int N, class Ctx>
INFINI_DEVICE Chunk<T, N> read(Ctx &ctx, const T *from, bool constant, bool whole, int count) {
    if (constant) return repeat<T, N>(load<T, 1>(ctx, from).at[0]);
    return whole ? load_chunk<T, N>(ctx, from) : load_elements<T, N>(ctx, from, 1, count);
}
template <class T, int N, class Ctx>
INFINI_DEVICE void write(Ctx &ctx, T *to, bool whole, int count, const Chunk<T, N> &x) {
    if (whole)
        store_chunk<T, N>(ctx, to, x);
    else
        store_elements<T, N>(ctx, to, x, count);
}

/** Of kernels of rows: a block's vectors, of V elements. */
template <class Map, int V>
struct RowBlocks {
    static constexpr int kThreads = 256;
    static constexpr int kUnroll = loads_in_flight(Map::kInputs * V * static_cast<int>(sizeof(typename Map::Element)));
    static constexpr int kBlockVectors = kThreads * kUnroll;
};

/** All that there is is one row: V elements at once of operands that are contiguous, or constant. */
template <class Map, int V>
struct RunKernel : RowBlocks<Map, V> {
    using T = typename Map::Element;
    using RowBlocks<Map, V>::kThreads, RowBlocks<Map, V>::kUnroll, RowBlocks<Map, V>::kBlockVectors;
    static constexpr int kOperands = 1 + Map::kInputs;

    struct Params {
        T *base[kOperands];
        uint32_t length; // in elements
        bool constant[kOperands];
    };

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        const uint32_t first = (ctx.block() * kBlockVectors + static_cast<uint32_t>(ctx.thread())) * V;
        if ((ctx.block() + 1) * (kBlockVectors * V) <= p.length)
            vectors<true>(ctx, p, first);
        else
            vectors<false>(ctx, p, first);
    }

private:
    template <bool Whole, class Ctx>
    static INFINI_DEVICE void vectors(Ctx &ctx, const Params &p, uint32_t first) {
        Chunk<T, V> x[kUnroll][Map::kInputs];
        const auto start = [&](int u) { return first + static_cast<uint32_t>(u * kThreads * V); };
        const auto count = [&](int u) {
            return Whole || start(u) + V <= p.length ? V
                   : start(u) < p.length             ? static_cast<int>(p.length - start(u))
                                                     : 0;
        };
        INFINI_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
            INFINI_UNROLL
            for (int i = 0; i < Map::kInputs; ++i) {
                const bool constant = p.constant[i + 1];
                const T *const in = constant ? p.base[i + 1] : p.base[i + 1] + start(u);
                x[u][i] = read<T, V>(ctx, in, constant, Whole || count(u) == V, count(u));
            }
        }
        INFINI_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
            write<T, V>(ctx, p.base[0] + start(u), Whole || count(u) == V, count(u), apply<Map, V>(x[u]));
        }
    }
};

/** V elements of a row at once. */
template <class Map, int V>
struct RowsKernel : RowBlocks<Map, V> {
    using T = typename Map::Element;
    using RowBlocks<Map, V>::kThreads, RowBlocks<Map, V>::kUnroll, RowBlocks<Map, V>::kBlockVectors;
    static constexpr int kOperands = 1 + Map::kInputs;

    struct Params {
        T *base[kOperands];
        uint32_t vectors, row_length; // of all rows; of one, in elements
        FastDiv<uint32_t> vectors_per_row;
        int outer;
        FastDiv<uint32_t> size[kMapOuter];
        int64_t along[kOperands], stride[kOperands][kMapOuter];
    };

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        if ((ctx.block() + 1) * kBlockVectors <= p.vectors && p.row_length % V == 0)
            vectors<true>(ctx, p);
        else
            vectors<false>(ctx, p);
    }

private:
    template <bool Whole, class Ctx>
    static INFINI_DEVICE void vectors(Ctx &ctx, const Params &p) {
        const uint32_t first = ctx.block() * kBlockVectors + static_cast<uint32_t>(ctx.thread());
        Chunk<T, V> x[kUnroll][Map::kInputs];
        T *out[kUnroll];
        int count[kUnroll]; // of elements in the vector; fewer than V at the end of a row
        INFINI_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
            const uint32_t vector = first + static_cast<uint32_t>(u * kThreads);
            count[u] = Whole ? V : 0;
            if (!Whole && vector >= p.vectors) continue;
            const uint32_t row = p.vectors_per_row.divide(vector),
                           start = (vector - row * p.vectors_per_row.divisor) * V;
            int64_t at[kOperands];
            INFINI_UNROLL
            for (int i = 0; i < kOperands; ++i) at[i] = static_cast<int64_t>(start) * p.along[i];
            add_row(row, p.outer, p.size, p.stride, at);
            if (!Whole) count[u] = p.row_length - start < V ? static_cast<int>(p.row_length - start) : V;
            out[u] = p.base[0] + at[0];
            INFINI_UNROLL
            for (int i = 0; i < Map::kInputs; ++i) {
                x[u][i] = read<T, V>(ctx, p.base[i + 1] + at[i + 1], V == 1 || p.along[i + 1] == 0,
                                     Whole || count[u] == V, count[u]);
            }
        }
        INFINI_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
            if (Whole || count[u] > 0) write<T, V>(ctx, out[u], Whole || count[u] == V, count[u], apply<Map, V>(x[u]));
        }
    }
};

/** What kernels of tiles are told. Sides of `x` by `y`; each may be two dimensions, of which the inner one has x_inner (y_inner). */
template <class T, int kOperands>
struct TileParams {
    T *base[kOperands];
    int64_t x, y;
    FastDiv<uint32_t> tiles_x, tiles_y, x_inner, y_inner;
    int outer;
    FastDiv<uint32_t> size[kMapOuter];
    int64_t along[kOperands], across[kOperands], far_along[kOperands], far_across[kOperands];
    int64_t stride[kOperands][kMapOuter];
    bool through[kOperands];
    uint8_t alignment[kOperands]; // bytes, of an operand's contiguous lines
};

/** A block's tile: where its lines are, and how much of its `side` by `side` elements there are. Lines are contiguous, along y of an
 *  operand that goes through shared memory, else along x. Split: where a side is two dimensions. */
template <class T, int kOperands, bool Split>
class TilePart {
public:
    INFINI_DEVICE TilePart(const TileParams<T, kOperands> &params, uint32_t block, int side) : p(params) {
        const uint32_t line = p.tiles_x.divide(block), batch = p.tiles_y.divide(line);
        x0_ = (block - line * p.tiles_x.divisor) * static_cast<uint32_t>(side);
        y0_ = (line - batch * p.tiles_y.divisor) * static_cast<uint32_t>(side);
        INFINI_UNROLL
        for (int i = 0; i < kOperands; ++i) {
            base_[i] = p.base[i];
            if (!Split) base_[i] += x0_ * p.along[i] + y0_ * p.across[i];
        }
        add_row(batch, p.outer, p.size, p.stride, base_);
        width = p.x - x0_ < side ? static_cast<int>(p.x - x0_) : side;
        height = p.y - y0_ < side ? static_cast<int>(p.y - y0_) : side;
    }

    /** Where column (row) i of the tile begins in an operand that goes through shared memory (in another). */
    INFINI_DEVICE T *column(int operand, int i) const {
        if (!Split) return base_[operand] + i * p.along[operand];
        const uint32_t x = x0_ + static_cast<uint32_t>(i), far = p.x_inner.divide(x);
        return base_[operand] + y0_ + (x - far * p.x_inner.divisor) * p.along[operand] + far * p.far_along[operand];
    }
    INFINI_DEVICE T *row(int operand, int i) const {
        if (!Split) return base_[operand] + i * p.across[operand];
        const uint32_t y = y0_ + static_cast<uint32_t>(i), far = p.y_inner.divide(y);
        return base_[operand] + x0_ + (y - far * p.y_inner.divisor) * p.across[operand] + far * p.far_across[operand];
    }
    /** Where the tile is in its lines, and how much of them is left from there on. */
    INFINI_DEVICE int x0() const { return static_cast<int>(x0_); }
    INFINI_DEVICE int y0() const { return static_cast<int>(y0_); }
    INFINI_DEVICE int left_x() const { return static_cast<int>(p.x - x0_); }
    INFINI_DEVICE int left_y() const { return static_cast<int>(p.y - y0_); }

    const TileParams<T, kOperands> &p;
    int width, height;

private:
    T *base_[kOperands];
    uint32_t x0_, y0_;
};

/** `count` of N elements, `step` apart; the others are 0. Lines that begin at a multiple of `alignment` bytes do so in memory. */
template <class T, int N, bool Whole, class Ctx>
INFINI_DEVICE Chunk<T, N> read_line(Ctx &ctx, const T *from, int64_t step, int alignment, int count) {
    if ((Whole || count == N) && step == 1 && alignment >= N * static_cast<int>(sizeof(T)))
        return load_chunk<T, N>(ctx, from);
    return load_elements<T, N>(ctx, from, step, Whole ? N : count);
}

/** Squares of 32 by 32 units, or of 64 by 64 elements of 4 bytes. An input that is contiguous along y is read by units along y; as many
 *  by as many elements as a unit has are transposed in a thread's registers and written to shared memory as units along x. There the
 *  unit of column c in the rows of unit l stands at c + l, modulo the units of a row: lanes meet in no bank, neither when they write a
 *  column nor when they read a row. */
template <class Map, bool Split>
struct UnitTileKernel {
    using T = typename Map::Element;
    static constexpr int kOperands = 1 + Map::kInputs;
    static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
    static constexpr int P = kPerUnit<T>, kSide = tile_side(sizeof(T)), kUnits = kSide / P, kParts = kUnits / kWarp;
    static constexpr int kReach = 0;                        // no line is moved
    static constexpr int kBlocks = Split && P == 4 ? 2 : 3; // 128 or 80 registers a thread, so that none is spilled
    static constexpr size_t kTileBytes = static_cast<size_t>(kSide) * kUnits * sizeof(Unit<T>);
    using Params = TileParams<T, kOperands>;
    using Part = TilePart<T, kOperands, Split>;

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        const Part part(p, ctx.block(), kSide);
        if (part.width == kSide && part.height == kSide)
            tile<true>(ctx, part);
        else
            tile<false>(ctx, part);
    }

private:
    template <bool Whole, class Ctx>
    static INFINI_DEVICE void tile(Ctx &ctx, const Part &part) {
        const Params &p = part.p;
        const int lane = ctx.thread() % kWarp, warp = ctx.thread() / kWarp;
        Unit<T> *const tiles = ctx.template shared<Unit<T>>();
        int slot = 0;
        INFINI_UNROLL
        for (int i = 1; i < kOperands; ++i) {
            if (!p.through[i]) continue;
            fill<Whole>(ctx, tiles + slot * (kSide * kUnits), part, i, lane, warp);
            ++slot;
        }
        ctx.sync();
        for (int row = warp; row < (Whole ? kSide : part.height); row += kWarps) {
            INFINI_UNROLL
            for (int h = 0; h < kParts; ++h) {
                const int unit = lane + h * kWarp, column = unit * P, count = at_most(part.width - column, P);
                if (!Whole && count <= 0) continue;
                Chunk<T, P> in[Map::kInputs];
                slot = 0;
                INFINI_UNROLL
                for (int i = 1; i < kOperands; ++i) {
                    if (p.through[i]) {
                        in[i - 1] = {{tiles[slot * (kSide * kUnits) + row * kUnits + (unit + row / P) % kUnits]}};
                        ++slot;
                    } else {
                        in[i - 1] = read_line<T, P, Whole>(ctx, part.row(i, row) + column * p.along[i], p.along[i],
                                                           p.alignment[i], count);
                    }
                }
                write<T, P>(ctx, part.row(0, row) + column, count == P && (P == 1 || p.alignment[0] >= sizeof(Unit<T>)),
                            count, apply<Map, P>(in));
            }
        }
    }

    template <bool Whole, class Ctx>
    static INFINI_DEVICE void fill(Ctx &ctx, Unit<T> *tile, const Part &part, int operand, int lane, int warp) {
        constexpr int kGroups = kUnits / kWarps; // of P columns, for each warp
        Unit<T> in[kGroups][kParts][P];
        INFINI_UNROLL
        for (int g = 0; g < kGroups; ++g) {
            INFINI_UNROLL
            for (int j = 0; j < P; ++j) {
                const int column = (warp + g * kWarps) * P + j;
                const T *const from = part.column(operand, column);
                INFINI_UNROLL
                for (int h = 0; h < kParts; ++h) {
                    const int row = (lane + h * kWarp) * P;
                    const int rows = column < part.width && row < part.height ? at_most(part.height - row, P) : 0;
                    in[g][h][j] = read_line<T, P, Whole>(ctx, from + row, 1, part.p.alignment[operand], rows).unit[0];
                }
            }
        }
        INFINI_UNROLL
        for (int g = 0; g < kGroups; ++g) {
            INFINI_UNROLL
            for (int h = 0; h < kParts; ++h) {
                const int unit = lane + h * kWarp;
                transpose<T>(in[g][h]);
                INFINI_UNROLL
                for (int k = 0; k < P; ++k)
                    tile[(unit * P + k) * kUnits + (warp + g * kWarps + unit) % kUnits] = in[g][h][k];
            }
        }
    }
};

/** Squares whose lines are read and written 16 bytes at a time. Lines of the input are copied to shared memory, where each begins a chunk
 *  later for each as many lines as a chunk has elements, of which one element each makes a chunk of the output. A warp makes 8 chunks
 *  side by side, of 4 units of lines: its lanes meet in no bank.
 *
 *  Anywhere: where lines do not all begin at a multiple of 16 bytes. They are copied from the last such before on, and then moved to where
 *  they belong. In the output, a tile's part of each line is moved left by one to V elements, to where a chunk begins: so a tile needs V
 *  more lines of the input, which are the first ones in shared memory. What bounds this is L2, of which whole lines are asked for parts
 *  of: longer lines are faster. */
template <class Map, int LineBytes, bool Anywhere, bool Split = false>
struct ChunkTileKernel {
    using T = typename Map::Element;
    static constexpr int kOperands = 1 + Map::kInputs;
    static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
    // 64 registers a thread: more are slower. Bytes of two operands do not get by with that.
    static constexpr int kBlocks = !Anywhere ? 1 : sizeof(T) == 1 && Map::kInputs == 2 ? 2 : 4;
    static constexpr int V = kVectorBytes / static_cast<int>(sizeof(T)), P = kPerUnit<T>;
    static constexpr int kChunks = LineBytes / kVectorBytes, kSide = kChunks * V; // of a line of the output
    static constexpr int kReach = Anywhere ? V : 0;
    static constexpr int kLines = kSide + kReach, kLineChunks = kChunks + (Anywhere ? 1 : 0); // of the input
    static constexpr int kPassLines = kThreads / kChunks, kPasses = (kLines + kPassLines - 1) / kPassLines;
    static constexpr int kUnits = kVectorBytes / static_cast<int>(sizeof(Unit<T>)); // of a chunk
    static constexpr int kTileChunks = kLines * kLineChunks + kLines / V;
    static constexpr size_t kTileBytes = static_cast<size_t>(kTileChunks) * kVectorBytes;
    static constexpr int kChunkGroups = kChunks / 8, kUnitGroups = kSide / P / 4;
    static constexpr int kWork = kChunkGroups * kUnitGroups / kWarps; // of a warp
    static_assert(kWork * kWarps == kChunkGroups * kUnitGroups && kUnits == 4, "a whole tile, of small elements");
    static_assert(Anywhere || !Split, "sides of two dimensions are taken wherever they begin");
    using Params = TileParams<T, kOperands>;
    using Part = TilePart<T, kOperands, Split>;

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        const Part part(p, ctx.block(), kSide);
        if (part.width == kSide && part.height == kSide && part.x0() >= kReach && part.y0() >= kReach &&
            part.left_y() >= kSide + kReach)
            tile<true>(ctx, part);
        else
            tile<false>(ctx, part);
    }

private:
    template <bool Whole, class Ctx>
    static INFINI_DEVICE void tile(Ctx &ctx, const Part &part) {
        const Params &p = part.p;
        Word<kVectorBytes> *const tiles = ctx.template shared<Word<kVectorBytes>>();
        int slot = 0;
        INFINI_UNROLL
        for (int i = 1; i < kOperands; ++i) {
            if (!p.through[i]) continue;
            fill<Whole>(ctx, tiles + slot * kTileChunks, part, i);
            ++slot;
        }
        if constexpr (Anywhere) {
            ctx.commit_copies();
            ctx.template wait_copies<0>();
            slot = 0;
            INFINI_UNROLL
            for (int i = 1; i < kOperands; ++i)
                if (p.through[i]) align(ctx, tiles + slot++ * kTileChunks, part, i);
        }
        ctx.sync();
        const int lane = ctx.thread() % kWarp, warp = ctx.thread() / kWarp;
        INFINI_UNROLL_IF(Whole) // less code for the few tiles at edges
        for (int n = 0; n < kWork; ++n) {
            const int work = warp + n * kWarps;
            const int chunk = work % kChunkGroups * 8 + lane % 8, unit = work / kChunkGroups * 4 + lane / 8;
            if (!Whole && (chunk * V - kReach >= part.width || unit * P >= part.height)) continue;
            T *line[P];
            int moved[P]; // from where the tile begins to the first chunk that begins in its part of a line
            INFINI_UNROLL
            for (int k = 0; k < P; ++k) {
                line[k] = part.row(0, unit * P + k) + (chunk * V - kReach);
                moved[k] = Anywhere ? static_cast<int>((0 - low_bits(line[k])) % kVectorBytes / sizeof(T)) : 0;
                line[k] += moved[k];
            }
            const auto column = [&](int k) { return chunk * V - kReach + moved[k]; };
            Chunk<T, V> in[P][Map::kInputs];
            INFINI_UNROLL
            for (int i = 1; i < kOperands; ++i) {
                if (p.through[i]) continue;
                INFINI_UNROLL
                for (int k = 0; k < P; ++k)
                    if (Whole || unit * P + k < part.height)
                        in[k][i - 1] = read_beside<Whole>(ctx, part, i, unit * P + k, column(k));
            }
            slot = 0;
            INFINI_UNROLL
            for (int i = 1; i < kOperands; ++i) {
                if (!p.through[i]) continue;
                const auto *const tile = reinterpret_cast<const Unit<T> *>(tiles + slot * kTileChunks);
                ++slot;
                Chunk<T, V> made[P];
                make(tile, chunk, unit, moved, made);
                INFINI_UNROLL
                for (int k = 0; k < P; ++k) in[k][i - 1] = made[k];
            }
            INFINI_UNROLL
            for (int k = 0; k < P; ++k) {
                if (!Whole && unit * P + k >= part.height) continue;
                const int begin = Anywhere ? -part.x0() - column(k) : 0, end = part.left_x() - column(k);
                const Chunk<T, V> out = apply<Map, V>(in[k]);
                if (Whole || (begin <= 0 && end >= V))
                    store_chunk<T, V>(ctx, line[k], out);
                else
                    store_elements<T, V>(ctx, line[k], out, end, begin);
            }
        }
    }

    static INFINI_DEVICE uint32_t low_bits(const T *p) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)); }

    /** A chunk of an input that does not go through shared memory. */
    template <bool Whole, class Ctx>
    static INFINI_DEVICE Chunk<T, V> read_beside(Ctx &ctx, const Part &part, int operand, int row, int column) {
        const int64_t along = part.p.along[operand];
        const T *const from = part.row(operand, row) + column * along;
        if constexpr (Anywhere)
            return read_anywhere<T, V>(ctx, from, along, -part.x0() - column, part.left_x() - column);
        else
            return read_line<T, V, Whole>(ctx, from, along, part.p.alignment[operand], at_most(part.width - column, V));
    }

    /** Where a line is in shared memory, in chunks. */
    static INFINI_DEVICE int place(int line) { return line * kLineChunks + line / V; }

    /** How many bytes into its first chunk a line begins. */
    static INFINI_DEVICE uint32_t skipped(const Part &part, int operand, int line) {
        return Anywhere ? low_bits(part.column(operand, line - kReach)) % kVectorBytes : 0;
    }

    /** Makes the chunks of a unit's lines of the output: of the lines of the input from chunk * V + moved on. */
    static INFINI_DEVICE void make(const Unit<T> *tile, int chunk, int unit, const int (&moved)[P],
                                   Chunk<T, V> (&to)[P]) {
        if constexpr (!Anywhere) {
            gather(tile, chunk, unit, to);
        } else if constexpr (P == 1) {
            INFINI_UNROLL
            for (int e = 0; e < V; ++e) to[0].unit[e] = tile[place(chunk * V + moved[0] + e) * kUnits + unit];
        } else {
            Chunk<T, V> next[P];
            gather(tile, chunk, unit, to);
            gather(tile, chunk + 1, unit, next);
            INFINI_UNROLL
            for (int k = 0; k < P; ++k) to[k] = part_of(to[k], next[k], static_cast<uint32_t>(moved[k]) * sizeof(T));
        }
    }
    /** The same, of the lines from chunk * V on. */
    static INFINI_DEVICE void gather(const Unit<T> *tile, int chunk, int unit, Chunk<T, V> (&to)[P]) {
        const Unit<T> *const from = tile + place(chunk * V) * kUnits + unit;
        INFINI_UNROLL
        for (int u = 0; u < V / P; ++u) {
            Unit<T> square[P];
            INFINI_UNROLL
            for (int j = 0; j < P; ++j) square[j] = from[(u * P + j) * (kLineChunks * kUnits)];
            transpose<T>(square);
            INFINI_UNROLL
            for (int k = 0; k < P; ++k) to[k].unit[u] = square[k];
        }
    }

    /** Calls `body` with each line of which this thread is to bring a chunk; with all that its warp brings at once. */
    template <bool Unroll, class Body>
    static INFINI_DEVICE void for_each_line(int thread, Body &&body) {
        INFINI_UNROLL_IF(Unroll)
        for (int n = 0; n < kPasses; ++n) {
            const int line = thread / kChunks + n * kPassLines;
            if (kLines % kPassLines == 0 || n < kPasses - 1 || line < kLines) body(line);
        }
    }

    template <bool Whole, class Ctx>
    static INFINI_DEVICE void fill(Ctx &ctx, Word<kVectorBytes> *tile, const Part &part, int operand) {
        const int chunk = ctx.thread() % kChunks;
        // Through registers: on an H200 faster than copies that nobody waits for, by 1 to 3 %, `add` of F16 by 10.
        if constexpr (!Anywhere) {
            Chunk<T, V> in[kPasses];
            int n = 0;
            for_each_line<true>(ctx.thread(), [&](int line) {
                const int row = chunk * V;
                const int rows = line < part.width && row < part.height ? at_most(part.height - row, V) : 0;
                in[n++] = read_line<T, V, Whole>(ctx, part.column(operand, line) + row, 1, kVectorBytes, rows);
            });
            n = 0;
            for_each_line<true>(ctx.thread(),
                                [&](int line) { tile[place(line) + chunk] = bits_as<Word<kVectorBytes>>(in[n++]); });
            return;
        }
        for_each_line<Whole>(ctx.thread(), [&](int line) {
            const int row = chunk * V - static_cast<int>(skipped(part, operand, line) / sizeof(T));
            bring<Whole>(ctx, tile + place(line) + chunk, part, operand, line - kReach, row);
            if (chunk == kChunks - 1)
                bring<Whole>(ctx, tile + place(line) + kChunks, part, operand, line - kReach, row + V);
        });
    }
    /** One chunk. */
    template <bool Whole, class Ctx>
    static INFINI_DEVICE void bring(Ctx &ctx, Word<kVectorBytes> *to, const Part &part, int operand, int column,
                                    int row) {
        const T *const from = part.column(operand, column) + row;
        if (Whole) return ctx.copy_async(to, from);
        const bool there = column >= -part.x0() && column < part.width;
        const int begin = -part.y0() - row, end = there ? part.left_y() - row : 0;
        if (begin <= 0 && end >= V)
            ctx.copy_async(to, from);
        else if (end > 0) // else nobody uses it
            *to = bits_as<Word<kVectorBytes>>(load_elements<T, V>(ctx, from, 1, end, begin));
    }
    /** Moves lines to where they belong, by the warp that brought them. */
    template <class Ctx>
    static INFINI_DEVICE void align(Ctx &ctx, Word<kVectorBytes> *tile, const Part &part, int operand) {
        const int chunk = ctx.thread() % kChunks;
        ctx.sync_warp();
        for_each_line<true>(ctx.thread(), [&](int line) {
            Word<kVectorBytes> *const to = tile + place(line) + chunk;
            const auto first = bits_as<Chunk<T, V>>(to[0]), second = bits_as<Chunk<T, V>>(to[1]);
            ctx.sync_warp();
            *to = bits_as<Word<kVectorBytes>>(part_of(first, second, skipped(part, operand, line)));
        });
    }
};

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

template <class Map>
class MapPlan final : public CudaPlan {
    using T = typename Map::Element;
    static constexpr int kOperands = 1 + Map::kInputs;
    static constexpr int kSize = sizeof(T), kVectorElements = kVectorBytes / kSize;
    using UnitTile = UnitTileKernel<Map, false>;
    using SplitTile = UnitTileKernel<Map, Map::kInputs == 1>; // as map_plan.h splits sides
    // Of larger elements, units make lines that are long enough.
    static constexpr bool kHasChunkTiles = kSize <= 4;
    static constexpr int kLongLine = kSize == 4 || (kSize == 2 && Map::kInputs == 1) ? 256 : 128; // bytes
    using SmallTile = ChunkTileKernel<Map, 128, false>;
    using LargeTile = ChunkTileKernel<Map, kLongLine, false>;
    using SmallAnywhere = ChunkTileKernel<Map, 128, true>;
    using LargeAnywhere = ChunkTileKernel<Map, kSize == 1 ? 128 : 256, true>;
    // Bytes are in too many lines for a unit of each at a time. Larger elements are faster that way where the other reads more.
    static constexpr bool kHasSplitAnywhere = kSize == 1 && Map::kInputs == 1;
    using SplitAnywhere = ChunkTileKernel<Map, 128, true, kHasSplitAnywhere>;
    static constexpr bool kHasPieces = kSize <= 4;
    static constexpr int64_t kEnoughTiles = 4; // large ones for each multiprocessor, so that none is idle

public:
    MapPlan(const InfiniProblem &problem, int processors)
        : layout_(plan_map(problem.operands, kOperands, kSize)), processors_(processors) {
        if constexpr (kHasPieces) pieces_ = plan_pieces(problem.operands, kOperands, kSize, processors);
        for (int d = 0; d < kOperands; ++d) tiles_ += layout_.through[d];
        description = prefers_pieces()     ? "pieces"
                      : layout_.tile       ? "tiles"
                      : !layout_.vectors   ? "rows of single elements"
                      : layout_.outer == 0 ? "one row of vectors"
                                           : "rows of vectors";
    }

    infiniStatus_t prepare_kernels() const {
        infiniStatus_t status = INFINI_STATUS_SUCCESS;
        const auto also = [&](auto kernel, size_t shared_bytes) {
            if (status == INFINI_STATUS_SUCCESS) status = prepare<decltype(kernel)>(shared_bytes);
        };
        if constexpr (kHasPieces) {
            if (pieces_.worth) also(PiecesKernel<Map>{}, pieces_.shared_bytes);
        }
        if (layout_.split()) {
            also(SplitTile{}, tiles_ * SplitTile::kTileBytes);
            if constexpr (kHasSplitAnywhere) also(SplitAnywhere{}, tiles_ * SplitAnywhere::kTileBytes);
        } else if (layout_.tile) {
            also(UnitTile{}, tiles_ * UnitTile::kTileBytes);
            if constexpr (kHasChunkTiles) {
                also(SmallTile{}, tiles_ * SmallTile::kTileBytes);
                also(LargeTile{}, tiles_ * LargeTile::kTileBytes);
                also(SmallAnywhere{}, tiles_ * SmallAnywhere::kTileBytes);
                also(LargeAnywhere{}, tiles_ * LargeAnywhere::kTileBytes);
            }
        }
        if (layout_.tile) return status;
        for (int alignment = layout_.vectors ? kVectorBytes : kSize;
             alignment >= kSize && status == INFINI_STATUS_SUCCESS; alignment /= 2)
            status = with_rows(alignment, [](auto kernel) { return prepare<decltype(kernel)>(); });
        return status;
    }

    infiniStatus_t run(const InfiniCall &call) const override {
        T *base[kOperands];
        uint8_t alignment[kOperands];
        int vectors = kVectorBytes, lines = kVectorBytes; // of all that is contiguous in rows; of lines of tiles
        for (int i = 0; i < kOperands; ++i) {
            base[i] = static_cast<T *>(call.operands[i]);
            const int own = alignment_of(layout_, i, base[i] + layout_.offset[i]);
            alignment[i] = static_cast<uint8_t>(own);
            if (layout_.along[i] != 0) vectors = std::min(vectors, own);
            if (i == 0 || layout_.through[i]) lines = std::min(lines, own);
        }
        if constexpr (kHasPieces) {
            if (prefers_pieces() || prefers_pieces(vectors)) return run_pieces(base, call.stream);
        }
        if (!layout_.tile)
            return with_rows(layout_.vectors ? vectors : kSize,
                             [&](auto kernel) { return run_rows(kernel, base, call.stream); });
        const auto tiles = [&](auto kernel) { return run_tiles<decltype(kernel)>(base, alignment, call.stream); };
        if (layout_.split()) {
            if constexpr (kHasSplitAnywhere) {
                if (few_more<SplitAnywhere, SplitTile>()) return tiles(SplitAnywhere{});
            }
            return tiles(SplitTile{});
        }
        if constexpr (kHasChunkTiles) {
            const auto enough = [&](int side) { return tile_blocks(layout_, side) >= kEnoughTiles * processors_; };
            if (lines == kVectorBytes) return enough(LargeTile::kSide) ? tiles(LargeTile{}) : tiles(SmallTile{});
            if (enough(LargeAnywhere::kSide) && few_more<LargeAnywhere, UnitTile>()) return tiles(LargeAnywhere{});
            if (few_more<SmallAnywhere, UnitTile>()) return tiles(SmallAnywhere{});
        }
        return tiles(UnitTile{});
    }

private:
    /** Whatever the addresses are, are pieces faster than rows of single elements, or tiles that are not full? On an H200 the first reach
     *  13 to 56 % of the copy rate with elements of 1 and 2 bytes; with 4 bytes 13 to 74 % if one side of a transpose is short, else 75 to
     *  100. The second reach 18 to 48 % if a side is short. */
    bool prefers_pieces() const {
        if (!pieces_.worth) return false;
        if (!layout_.tile)
            return !layout_.vectors && (kSize <= 2 || (pieces_.any_staged && (Map::kInputs == 1 || !pieces_.wrapped)));
        const int side = UnitTile::kSide;
        if (layout_.split() || !pieces_.any_staged || std::min(layout_.x, layout_.y) >= 2 * side) return false;
        return 10 * layout_.x * layout_.y < 9 * tile_blocks(layout_, side) / layout_.rows() * side * side;
    }
    /** The same of rows that are contiguous, but aligned to so many bytes: single elements of 1 and 2 bytes reach 17 to 56 %, a run of
     *  those of 2 bytes 90. */
    bool prefers_pieces(int alignment) const {
        return pieces_.worth && !layout_.tile && layout_.vectors && kSize <= (layout_.outer > 0 ? 2 : 1) &&
               alignment < (Map::kAnyWidth ? 8 : kVectorBytes);
    }

    infiniStatus_t run_pieces(T *const *base, void *stream) const {
        using Kernel = PiecesKernel<Map>;
        const auto divide_by = [](int64_t n) { return FastDiv<uint32_t>(static_cast<uint32_t>(n)); };
        typename Kernel::Params p{};
        const MapLayout &layout = pieces_.layout;
        p.x = static_cast<uint32_t>(layout.x);
        p.y = static_cast<uint32_t>(layout.y);
        p.width = static_cast<uint32_t>(pieces_.width);
        p.height = static_cast<uint32_t>(pieces_.height);
        p.wrapped = pieces_.wrapped;
        p.tiles_x = divide_by(pieces_.tiles_x());
        p.tiles_y = divide_by(pieces_.tiles_y());
        p.row = divide_by(pieces_.width);
        p.run_chunks = divide_by((pieces_.run() + 2 * Kernel::V - 2) / Kernel::V);
        fill(p, layout, base);
        for (int i = 0; i < kOperands; ++i) {
            p.across[i] = layout.across[i];
            p.how[i] = pieces_.how[i];
            auto &staged = p.staged[i];
            staged.lines = pieces_.lines[i];
            staged.chunks = divide_by(blocks(std::max<int64_t>(pieces_.line[i], 1), Kernel::V));
            staged.step = pieces_.lines[i] ? layout.along[i] : 0;
            staged.pitch = static_cast<int32_t>(pieces_.pitch[i]);
            staged.at = static_cast<uint32_t>(pieces_.shared_at[i]);
        }
        return launch<Kernel>(pieces_.tiles_x() * pieces_.tiles_y() * layout.rows(), p, stream, pieces_.shared_bytes);
    }

    /** Calls `body` with the kernel for rows whose runs are aligned so. */
    template <class Body>
    infiniStatus_t with_rows(int alignment, const Body &body) const {
        return with_vectors<kVectorElements>(alignment, body);
    }
    template <int V, class Body>
    infiniStatus_t with_vectors(int alignment, const Body &body) const {
        if constexpr (V > 1) {
            if (alignment < V * kSize) return with_vectors<Map::kAnyWidth ? V / 2 : 1>(alignment, body);
        }
        return layout_.vectors && layout_.outer == 0 ? body(RunKernel<Map, V>{}) : body(RowsKernel<Map, V>{});
    }

    template <int V>
    infiniStatus_t run_rows(RunKernel<Map, V>, T *const *base, void *stream) const {
        using Kernel = RunKernel<Map, V>;
        return for_each_part(layout_, [&](const MapLayout &part) {
            typename Kernel::Params p{};
            p.length = static_cast<uint32_t>(part.x);
            for (int i = 0; i < kOperands; ++i) {
                p.base[i] = base[i] + part.offset[i];
                p.constant[i] = part.along[i] == 0;
            }
            return launch<Kernel>(blocks(part.x, Kernel::kBlockVectors * V), p, stream);
        });
    }
    template <int V>
    infiniStatus_t run_rows(RowsKernel<Map, V>, T *const *base, void *stream) const {
        using Kernel = RowsKernel<Map, V>;
        return for_each_part(layout_, [&](const MapLayout &part) {
            typename Kernel::Params p{};
            const int64_t per_row = blocks(part.x, V), vectors = per_row * part.rows();
            p.vectors = static_cast<uint32_t>(vectors);
            p.row_length = static_cast<uint32_t>(part.x);
            p.vectors_per_row = FastDiv<uint32_t>(static_cast<uint32_t>(per_row));
            fill(p, part, base);
            return launch<Kernel>(blocks(vectors, Kernel::kBlockVectors), p, stream);
        });
    }

    /** Does a kernel take at most a quarter more of elements, those of tiles that are not full among them? */
    template <class Kernel, class Other>
    bool few_more() const {
        const int64_t own = tile_blocks(layout_, Kernel::kSide, Kernel::kReach) * Kernel::kSide * Kernel::kSide;
        const int64_t other = tile_blocks(layout_, Other::kSide) * Other::kSide * Other::kSide;
        return own <= other + other / 4 && tile_blocks(layout_, Kernel::kSide, Kernel::kReach) <= kMaxBlocks;
    }

    template <class Kernel>
    infiniStatus_t run_tiles(T *const *base, const uint8_t *alignment, void *stream) const {
        typename Kernel::Params p{};
        p.x = layout_.x * layout_.far_x;
        p.y = layout_.y * layout_.far_y;
        p.tiles_x = FastDiv<uint32_t>(static_cast<uint32_t>(blocks(p.x + Kernel::kReach, Kernel::kSide)));
        p.tiles_y = FastDiv<uint32_t>(static_cast<uint32_t>(blocks(p.y, Kernel::kSide)));
        p.x_inner = FastDiv<uint32_t>(static_cast<uint32_t>(layout_.x));
        p.y_inner = FastDiv<uint32_t>(static_cast<uint32_t>(layout_.y));
        for (int i = 0; i < kOperands; ++i) {
            p.across[i] = layout_.across[i];
            p.far_along[i] = layout_.far_along[i];
            p.far_across[i] = layout_.far_across[i];
            p.through[i] = layout_.through[i];
            p.alignment[i] = alignment[i];
        }
        fill(p, layout_, base);
        return launch<Kernel>(tile_blocks(layout_, Kernel::kSide, Kernel::kReach), p, stream,
                              tiles_ * Kernel::kTileBytes);
    }

    /** What kernels of rows and of tiles are told alike. */
    template <class Params>
    static void fill(Params &p, const MapLayout &layout, T *const *base) {
        p.outer = layout.outer;
        for (int d = 0; d < layout.outer; ++d) p.size[d] = FastDiv<uint32_t>(static_cast<uint32_t>(layout.size[d]));
        for (int i = 0; i < kOperands; ++i) {
            p.base[i] = base[i] + layout.offset[i];
            p.along[i] = static_cast<std::remove_reference_t<decltype(p.along[i])>>(layout.along[i]);
            for (int d = 0; d < layout.outer; ++d) p.stride[i][d] = layout.stride[i][d];
        }
    }

    static int64_t blocks(int64_t n, int64_t of) { return (n + of - 1) / of; }

    MapLayout layout_;
    PiecesPlan pieces_;
    int processors_;
    size_t tiles_ = 0; // inputs that go through shared memory
};

/** The plan of a Map. */
template <class Map>
infiniStatus_t make_map_plan(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan) {
    int processors;
    if (const infiniStatus_t status = count_multiprocessors(problem.device_id, &processors)) return status;
    auto made = std::make_unique<MapPlan<Map>>(problem, processors);
    if (const infiniStatus_t status = made->prepare_kernels()) return status;
    *plan = std::move(made);
    return INFINI_STATUS_SUCCESS;
}

} // namespace infini::cuda
