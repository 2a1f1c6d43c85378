/* A kernel for out[i] = f(in...[i]) of small elements where rows are short, begin anywhere, or are not contiguous in an input: pieces of
 * map_plan.h's PiecesPlan. Of the output, 16 bytes at a time are made, from where in memory such begin; what they need of an input comes
 * whole where it is contiguous, else element by element, from shared memory where the piece is dense in the input's. */
#pragma once
#include "cuda/chunks.h"
#include "cuda/fast_div.h"
#include "cuda/launch.h"
#include "cuda/map_plan.h"

namespace infini::cuda {

template <class Map>
struct PiecesKernel {
    using T = typename Map::Element;
    static constexpr int kOperands = 1 + Map::kInputs, kSize = static_cast<int>(sizeof(T));
    static constexpr int kThreads = 256, kBlocks = 4, V = kVectorBytes / kSize;
    static_assert(kSize <= 4, "chunks of four registers");

    struct Staged {
        FastDiv<uint32_t> chunks; // of a line
        int64_t step;             // from line to line in memory
        int32_t pitch;            // in shared memory
        uint32_t at;              // where it begins there, in bytes
        bool lines;               // along y, one for each x; else it is one
    };
    struct Params {
        T *base[kOperands];
        uint32_t x, y, width, height; // of all, and of a piece, in elements
        bool wrapped;                 // a piece's rows follow each other in the output
        FastDiv<uint32_t> tiles_x, tiles_y, row, run_chunks;
        int outer;
        FastDiv<uint32_t> size[kMapOuter];
        int64_t stride[kOperands][kMapOuter];
        int32_t along[kOperands];
        int64_t across[kOperands];
        Access how[kOperands];
        Staged staged[kOperands];
    };

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        const uint32_t block = ctx.block(), line = p.tiles_x.divide(block), batch = p.tiles_y.divide(line);
        Piece piece;
        piece.x0 = (block - line * p.tiles_x.divisor) * p.width;
        piece.y0 = (line - batch * p.tiles_y.divisor) * p.height;
        INFINI_UNROLL
        for (int i = 0; i < kOperands; ++i)
            piece.base[i] = p.base[i] + int64_t{piece.x0} * p.along[i] + int64_t{piece.y0} * p.across[i];
        add_row(batch, p.outer, p.size, p.stride, piece.base);
        piece.width = static_cast<int>(p.x - piece.x0 < p.width ? p.x - piece.x0 : p.width);
        piece.height = static_cast<int>(p.y - piece.y0 < p.height ? p.y - piece.y0 : p.height);

        piece.before = few(p.wrapped ? int64_t{piece.y0} * p.x : piece.x0);
        piece.behind = few(p.wrapped ? int64_t{p.y - piece.y0} * p.x : p.x - piece.x0);

        bool any = false;
        INFINI_UNROLL
        for (int i = 1; i < kOperands; ++i) {
            if (p.how[i] != Access::kStaged) continue;
            stage(ctx, p, piece, i);
            any = true;
        }
        if (any) ctx.sync();

        // What is a run in the output: the piece, or each of its rows. It may be contiguous with what is before and behind it.
        const int length = p.wrapped ? piece.width * piece.height : piece.width;
        const uint32_t chunks = (p.wrapped ? 1 : static_cast<uint32_t>(piece.height)) * p.run_chunks.divisor;
        for (uint32_t c = static_cast<uint32_t>(ctx.thread()); c < chunks; c += kThreads) {
            const uint32_t run = p.run_chunks.divide(c);
            T *const out = piece.base[0] + run * p.across[0];
            const int at = static_cast<int>(c - run * p.run_chunks.divisor) * V - past_aligned(out);
            if (at >= length) continue;
            if (at >= 0 && at + V <= length)
                chunk<true>(ctx, p, piece, out, static_cast<int>(run), at, length);
            else
                chunk<false>(ctx, p, piece, out, static_cast<int>(run), at, length);
        }
    }

private:
    struct Piece {
        T *base[kOperands];
        uint32_t x0, y0;
        int width, height;
        int before,
            behind; // elements of its runs that are there before and from its first one on, or as many as are ever asked for
    };

    static INFINI_DEVICE int few(int64_t n) { return n < (1 << 30) ? static_cast<int>(n) : 1 << 30; }

    static INFINI_DEVICE uint32_t place(int e) { return place_in_pieces(static_cast<uint32_t>(e), kSize); }
    template <class Ctx>
    static INFINI_DEVICE T *shared_of(Ctx &ctx, const Params &p, int operand) {
        return reinterpret_cast<T *>(ctx.template shared<unsigned char>() + p.staged[operand].at);
    }

    /** Brings what a piece needs of an operand. */
    template <class Ctx>
    static INFINI_DEVICE void stage(Ctx &ctx, const Params &p, const Piece &piece, int operand) {
        const Staged &staged = p.staged[operand];
        const int lines = staged.lines ? piece.width : 1;
        const int length = staged.lines ? piece.height
                                        : (piece.width - 1) * p.along[operand] +
                                              (piece.height - 1) * static_cast<int>(p.across[operand]) + 1;
        T *const to = shared_of(ctx, p, operand);
        const uint32_t chunks = static_cast<uint32_t>(lines) * staged.chunks.divisor;
        for (uint32_t c = static_cast<uint32_t>(ctx.thread()); c < chunks; c += kThreads) {
            const uint32_t line = staged.chunks.divide(c);
            const int at = static_cast<int>(c - line * staged.chunks.divisor) * V;
            if (at >= length) continue;
            const T *const from = piece.base[operand] + line * staged.step + at;
            const auto x = read_part<T, V>(ctx, from, -at, length - at);
            auto *const word = reinterpret_cast<Unit<T> *>(to + place(static_cast<int>(line) * staged.pitch + at));
            INFINI_UNROLL
            for (int u = 0; u < x.kUnits; ++u) word[u] = x.unit[u];
        }
    }

    /** Makes V elements of a run, from `at` on; of those that are before 0 or not before `length`, none. */
    template <bool Whole, class Ctx>
    static INFINI_DEVICE void chunk(Ctx &ctx, const Params &p, const Piece &piece, T *out, int run, int at,
                                    int length) {
        const int begin = Whole || at >= 0 ? 0 : -at, end = Whole ? V : at_most(length - at, V);
        const int row = p.wrapped ? static_cast<int>(p.row.divide(static_cast<uint32_t>(at + begin))) : run;
        const int column = p.wrapped ? at + begin - row * piece.width : at + begin;
        Chunk<T, V> in[Map::kInputs];
        INFINI_UNROLL
        for (int i = 1; i < kOperands; ++i) {
            const T *const base = piece.base[i];
            const int32_t along = p.along[i], across = static_cast<int32_t>(p.across[i]);
            const Access how = p.how[i];
            if (how == Access::kRun) {
                // Run 0, if the piece is one; it goes on beyond the piece, where others may write meanwhile.
                const T *const from = base + run * p.across[i] + at;
                in[i - 1] = Whole ? read_part<T, V>(ctx, from, -piece.before - at, piece.behind - at)
                                  : load_elements<T, V>(ctx, from, 1, end, begin);
            } else if (how == Access::kConstant) {
                in[i - 1] = repeat<T, V>(load<T, 1>(ctx, base + run * p.across[i]).at[0]);
            } else if (how == Access::kStaged) {
                const T *const from = shared_of(ctx, p, i);
                const Staged &staged = p.staged[i];
                const int sx = staged.lines ? staged.pitch : along, sy = staged.lines ? 1 : across;
                in[i - 1] = gather<Whole>([&](int32_t offset) { return from[place(offset)]; }, row, column, piece.width,
                                          sx, sy, begin, end);
            } else if (Whole && along == 1 && column + V <= piece.width) {
                in[i - 1] = read_part<T, V>(ctx, base + row * across + column, -column, piece.width - column);
            } else {
                in[i - 1] = gather<Whole>([&](int32_t offset) { return load<T, 1>(ctx, base + offset).at[0]; }, row,
                                          column, piece.width, along, across, begin, end);
            }
        }
        const auto y = apply<Map, V>(in);
        if (Whole)
            store_chunk<T, V>(ctx, out + at, y);
        else
            store_elements<T, V>(ctx, out + at, y, end, begin);
    }

    /** V elements from a row's column on, those from `begin` on and before `end`, of rows that are so wide. */
    template <bool Whole, class Load>
    static INFINI_DEVICE Chunk<T, V> gather(Load &&element, int row, int column, int width, int32_t along,
                                            int32_t across, int begin, int end) {
        Chunk<T, V> x{};
        int32_t offset = row * across + column * along;
        const int32_t wrap = across - width * along;
        INFINI_UNROLL
        for (int e = 0; e < V; ++e) {
            if (!Whole && (e < begin || e >= end)) continue;
            put_element(x.unit[e / kPerUnit<T>], e % kPerUnit<T>, element(offset));
            offset += along;
            if (++column == width) column = 0, offset += wrap;
        }
        return x;
    }
};

} // namespace infini::cuda
