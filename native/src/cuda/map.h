/* Kernels for out[i] = f(in...[i]): rows and tiles of map_plan.h. What they compute is a Map:
 *
 *      struct Map {
 *          using Element = f16;                      // of every operand
 *          static constexpr int kInputs = 2;
 *          static constexpr bool kAnyWidth = false;  // true: loads of 8, 4 and 2 bytes, too, where 16 are not aligned
 *          static INFINI_DEVICE Element apply(const Element *in);
 *      };
 *
 *  They are bound by memory. A thread has 64 bytes of loads in flight before it uses the first, so that 2048 threads of a
 *  multiprocessor have 128 KiB: several times bandwidth times latency of the devices of today. */
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "core/dtype.h"
#include "cuda/cuda_plan.h"
#include "cuda/fast_div.h"
#include "cuda/launch.h"
#include "cuda/map_plan.h"

namespace infini::cuda {

constexpr int loads_in_flight(int bytes_per_load) {
    return bytes_per_load >= 64 ? 1 : bytes_per_load >= 16 ? 64 / bytes_per_load : 4;
}

/** V elements of a row at once. */
template <class Map, int V>
struct RowsKernel {
    using T = typename Map::Element;
    static constexpr int kOperands = 1 + Map::kInputs, kVector = V;
    static constexpr int kThreads = 256;
    static constexpr int kUnroll = loads_in_flight(Map::kInputs * V * static_cast<int>(sizeof(T)));
    static constexpr int kBlockVectors = kThreads * kUnroll;

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
        const uint32_t first = ctx.block() * kBlockVectors + static_cast<uint32_t>(ctx.thread());
        Pack<T, V> x[kUnroll][Map::kInputs];
        T *out[kUnroll];
        int count[kUnroll]; // of elements in the vector; fewer than V at the end of a row
        INFINI_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
            const uint32_t vector = first + static_cast<uint32_t>(u * kThreads);
            count[u] = 0;
            if (vector >= p.vectors) continue;
            uint32_t column = vector;
            int64_t at[kOperands] = {};
            if (p.outer > 0) {
                const uint32_t row = p.vectors_per_row.divide(vector);
                column = vector - row * p.vectors_per_row.divisor;
                add_row(row, p.outer, p.size, p.stride, at);
            }
            const uint32_t start = column * V;
            count[u] = p.row_length - start < V ? static_cast<int>(p.row_length - start) : V;
            out[u] = p.base[0] + at[0] + static_cast<int64_t>(start) * p.along[0];
            INFINI_UNROLL
            for (int i = 0; i < Map::kInputs; ++i) {
                const T *in = p.base[i + 1] + at[i + 1] + static_cast<int64_t>(start) * p.along[i + 1];
                read(ctx, x[u][i], in, p.along[i + 1], count[u]);
            }
        }
        INFINI_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
            Pack<T, V> y;
            INFINI_UNROLL
            for (int e = 0; e < V; ++e) {
                T in[Map::kInputs];
                INFINI_UNROLL
                for (int i = 0; i < Map::kInputs; ++i) in[i] = x[u][i].at[e];
                y.at[e] = Map::apply(in);
            }
            if (count[u] == V) {
                store<T, V>(ctx, out[u], y);
            } else {
                INFINI_UNROLL
                for (int e = 0; e < V; ++e)
                    if (e < count[u]) store<T, 1>(ctx, out[u] + e, {y.at[e]});
            }
        }
    }

private:
    template <class Ctx>
    static INFINI_DEVICE void read(Ctx &ctx, Pack<T, V> &x, const T *in, int64_t along, int count) {
        if (V == 1 || along == 0) {
            const T one = load<T, 1>(ctx, in).at[0];
            INFINI_UNROLL
            for (int e = 0; e < V; ++e) x.at[e] = one;
        } else if (count == V) {
            x = load<T, V>(ctx, in);
        } else {
            INFINI_UNROLL
            for (int e = 0; e < V; ++e) x.at[e] = e < count ? load<T, 1>(ctx, in + e).at[0] : T{};
        }
    }
};

/** Squares of 32 by 32 words, each of P elements. An input that is contiguous along y is read by words along y; P by P elements are
 *  transposed in a thread's registers and written to shared memory as words along x. There the word of column c in the rows of lane l
 *  stands at (c + l) mod 32: lanes meet in no bank, neither when they write a column nor when they read a row. */
template <class Map>
struct TileKernel {
    using T = typename Map::Element;
    static constexpr int kOperands = 1 + Map::kInputs;
    static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
    static constexpr int kWordBytes = sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T));
    static constexpr int kP = kWordBytes / static_cast<int>(sizeof(T)), kSide = kWarp * kP;
    static constexpr int kGroups = kWarp / kWarps; // of P columns, for each warp
    static constexpr size_t kTileBytes = static_cast<size_t>(kSide) * kWarp * kWordBytes;
    static_assert(kSide == tile_side(sizeof(T)), "the planner's tile");
    using W = Word<kWordBytes>;
    using Elements = Pack<T, kP>;

    struct Params {
        T *base[kOperands];
        int64_t x, y;
        FastDiv<uint32_t> tiles_x, tiles_y;
        int outer;
        FastDiv<uint32_t> size[kMapOuter];
        int64_t along[kOperands], across[kOperands], stride[kOperands][kMapOuter];
        bool through[kOperands], words[kOperands]; // words: P elements at once are aligned
    };

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        const uint32_t line = p.tiles_x.divide(ctx.block()), batch = p.tiles_y.divide(line);
        const int64_t x0 = static_cast<int64_t>(ctx.block() - line * p.tiles_x.divisor) * kSide;
        const int64_t y0 = static_cast<int64_t>(line - batch * p.tiles_y.divisor) * kSide;
        T *base[kOperands];
        INFINI_UNROLL
        for (int i = 0; i < kOperands; ++i) base[i] = p.base[i] + x0 * p.along[i] + y0 * p.across[i];
        add_row(batch, p.outer, p.size, p.stride, base);
        const auto left = [](int64_t n) { return n < kSide ? static_cast<int>(n) : kSide; };
        const int width = left(p.x - x0), height = left(p.y - y0);
        const int lane = ctx.thread() % kWarp, warp = ctx.thread() / kWarp;
        W *const tiles = ctx.template shared<W>();

        int slot = 0;
        INFINI_UNROLL
        for (int i = 1; i < kOperands; ++i) {
            if (!p.through[i]) continue;
            fill(ctx, tiles + slot * (kSide * kWarp), base[i], p.along[i], p.words[i], width, height, lane, warp);
            ++slot;
        }
        ctx.sync();
        const int column = lane * kP;
        if (column >= width) return;
        const int count = width - column < kP ? width - column : kP;
        for (int row = warp; row < height; row += kWarps) {
            Elements in[Map::kInputs];
            slot = 0;
            INFINI_UNROLL
            for (int i = 1; i < kOperands; ++i) {
                if (p.through[i]) {
                    in[i - 1] =
                        bits_as<Elements>(tiles[slot * (kSide * kWarp) + row * kWarp + (lane + row / kP) % kWarp]);
                    ++slot;
                } else {
                    const T *from = base[i] + column * p.along[i] + row * p.across[i];
                    read(ctx, in[i - 1], from, p.along[i], p.words[i], count);
                }
            }
            Elements y;
            INFINI_UNROLL
            for (int e = 0; e < kP; ++e) {
                T one[Map::kInputs];
                INFINI_UNROLL
                for (int i = 0; i < Map::kInputs; ++i) one[i] = in[i].at[e];
                y.at[e] = Map::apply(one);
            }
            T *const out = base[0] + column + row * p.across[0];
            if (count == kP && p.words[0]) {
                store<T, kP>(ctx, out, y);
            } else {
                INFINI_UNROLL
                for (int e = 0; e < kP; ++e)
                    if (e < count) store<T, 1>(ctx, out + e, {y.at[e]});
            }
        }
    }

private:
    /** Up to P elements, `step` apart; what is beyond `count` is left 0. */
    template <class Ctx>
    static INFINI_DEVICE void read(Ctx &ctx, Elements &x, const T *from, int64_t step, bool words, int count) {
        if (count == kP && words && step == 1) {
            x = load<T, kP>(ctx, from);
            return;
        }
        INFINI_UNROLL
        for (int e = 0; e < kP; ++e) x.at[e] = e < count ? load<T, 1>(ctx, from + e * step).at[0] : T{};
    }

    template <class Ctx>
    static INFINI_DEVICE void fill(Ctx &ctx, W *tile, const T *base, int64_t along, bool words, int width, int height,
                                   int lane, int warp) {
        Elements in[kGroups][kP];
        const int row = lane * kP;
        INFINI_UNROLL
        for (int g = 0; g < kGroups; ++g) {
            INFINI_UNROLL
            for (int j = 0; j < kP; ++j) {
                const int column = (warp + g * kWarps) * kP + j;
                const int rows = column < width && row < height ? height - row : 0;
                read(ctx, in[g][j], base + column * along + row, 1, words, rows < kP ? rows : kP);
            }
        }
        INFINI_UNROLL
        for (int g = 0; g < kGroups; ++g) {
            INFINI_UNROLL
            for (int k = 0; k < kP; ++k) {
                Elements y;
                INFINI_UNROLL
                for (int j = 0; j < kP; ++j) y.at[j] = in[g][j].at[k];
                tile[(row + k) * kWarp + (warp + g * kWarps + lane) % kWarp] = bits_as<W>(y);
            }
        }
    }
};

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

template <class Map>
class MapPlan final : public CudaPlan {
    using T = typename Map::Element;
    static constexpr int kOperands = 1 + Map::kInputs;
    static constexpr int kSize = sizeof(T), kVectorElements = kVectorBytes / kSize;
    using Tile = TileKernel<Map>;

public:
    explicit MapPlan(const InfiniProblem &problem) : layout_(plan_map(problem.operands, kOperands, kSize)) {
        for (int d = 0; d < kOperands; ++d) tiles_ += layout_.through[d];
        const char *const rows = layout_.vectors ? "rows of vectors" : "rows of single elements";
        description = layout_.tile ? "tiles of " + std::to_string(Tile::kSide) + " squared" : rows;
    }

    infiniStatus_t prepare_kernels() const {
        if (layout_.tile) return prepare<Tile>(shared_bytes());
        infiniStatus_t status = INFINI_STATUS_SUCCESS;
        for (int alignment = layout_.vectors ? kVectorBytes : kSize;
             alignment >= kSize && status == INFINI_STATUS_SUCCESS; alignment /= 2)
            status = with_rows(alignment, [](auto kernel) { return prepare<decltype(kernel)>(); });
        return status;
    }

    infiniStatus_t run(const InfiniCall &call) const override {
        T *base[kOperands];
        int alignment = kVectorBytes; // of all that is contiguous
        bool words[kOperands];
        for (int i = 0; i < kOperands; ++i) {
            base[i] = static_cast<T *>(call.operands[i]);
            const int own = alignment_of(layout_, i, base[i] + layout_.offset[i]);
            words[i] = own >= Tile::kWordBytes;
            if (layout_.along[i] != 0) alignment = std::min(alignment, own);
        }
        if (layout_.tile) return run_tiles(base, words, call.stream);
        return with_rows(layout_.vectors ? alignment : kSize,
                         [&](auto kernel) { return run_rows<decltype(kernel)>(base, call.stream); });
    }

private:
    size_t shared_bytes() const { return static_cast<size_t>(tiles_) * Tile::kTileBytes; }

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
        return body(RowsKernel<Map, V>{});
    }

    template <class Kernel>
    infiniStatus_t run_rows(T *const *base, void *stream) const {
        constexpr int V = Kernel::kVector;
        return for_each_part(layout_, [&](const MapLayout &part) {
            typename Kernel::Params p{};
            const int64_t per_row = (part.x + V - 1) / V, vectors = per_row * part.rows();
            p.vectors = static_cast<uint32_t>(vectors);
            p.row_length = static_cast<uint32_t>(part.x);
            p.vectors_per_row = FastDiv<uint32_t>(static_cast<uint32_t>(per_row));
            fill(p, part, base);
            return launch<Kernel>((vectors + Kernel::kBlockVectors - 1) / Kernel::kBlockVectors, p, stream);
        });
    }

    infiniStatus_t run_tiles(T *const *base, const bool *words, void *stream) const {
        typename Tile::Params p{};
        const auto tiles = [](int64_t n) {
            return FastDiv<uint32_t>(static_cast<uint32_t>((n + Tile::kSide - 1) / Tile::kSide));
        };
        p.x = layout_.x;
        p.y = layout_.y;
        p.tiles_x = tiles(layout_.x);
        p.tiles_y = tiles(layout_.y);
        for (int i = 0; i < kOperands; ++i) {
            p.across[i] = layout_.across[i];
            p.through[i] = layout_.through[i];
            p.words[i] = words[i];
        }
        fill(p, layout_, base);
        return launch<Tile>(tile_blocks(layout_, kSize), p, stream, shared_bytes());
    }

    /** What both kernels are told alike. */
    template <class Params>
    static void fill(Params &p, const MapLayout &layout, T *const *base) {
        p.outer = layout.outer;
        for (int d = 0; d < layout.outer; ++d) p.size[d] = FastDiv<uint32_t>(static_cast<uint32_t>(layout.size[d]));
        for (int i = 0; i < kOperands; ++i) {
            p.base[i] = base[i] + layout.offset[i];
            p.along[i] = layout.along[i];
            for (int d = 0; d < layout.outer; ++d) p.stride[i][d] = layout.stride[i][d];
        }
    }

    MapLayout layout_;
    int tiles_ = 0; // inputs that go through shared memory
};

/** The plan of a Map. */
template <class Map>
infiniStatus_t make_map_plan(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan) {
    auto made = std::make_unique<MapPlan<Map>>(problem);
    if (const infiniStatus_t status = made->prepare_kernels()) return status;
    *plan = std::move(made);
    return INFINI_STATUS_SUCCESS;
}

} // namespace infini::cuda
