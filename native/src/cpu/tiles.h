/* Operands that are contiguous in different dimensions, walked in tiles that threads can share. */
#pragma once
#include <vector>

#include "cpu/caches.h"
#include "cpu/row_loop.h"

namespace infini {

/** Base 2, of an element's size in bytes: the index of the kernels that only move elements. */
inline int log2_of(int64_t size) {
    int log = 0;
    while (int64_t{1} << log < size) ++log;
    return log;
}

/** Dimensions of a problem walked as one, such as the inner dimensions of a side where they are contiguous. */
struct Axis {
    int64_t n = 1;          // product of the sizes
    uint32_t dims = 0;      // which: bit d for dimension d
    bool uniform = true;    // one dimension: index i is i * step, and only the start of a table is needed
    std::vector<int> order; // of the dimensions, the innermost last

    void push_front(const InfiniOperand &x, int d) {
        n *= x.shape[d];
        dims |= 1u << d;
        uniform = order.empty();
        order.insert(order.begin(), d);
    }
};

/** Where the elements of an axis lie in one operand, relative to the first; for a uniform axis the first `limit` of them. */
inline std::vector<int64_t> axis_offsets(const Axis &axis, const InfiniOperand &x, int64_t limit) {
    std::vector<int64_t> table{0};
    for (auto d = axis.order.rbegin(); d != axis.order.rend(); ++d) {
        const size_t inner = table.size();
        const int64_t size = axis.uniform ? std::min(limit, x.shape[*d]) : x.shape[*d];
        for (int64_t i = 1; i < size; ++i)
            for (size_t j = 0; j < inner; ++j) table.push_back(table[j] + i * x.stride[*d]);
    }
    return table;
}

/** Is `in` contiguous in another dimension than `out`? Then they are walked in tiles of `rows`, contiguous in `in`, by `cols`,
 *  contiguous in `out`. Several small dimensions may make up either. False when there is nothing to transpose. */
inline bool find_tiles(const InfiniOperand &out, const InfiniOperand &in, Axis &rows, Axis &cols) {
    constexpr int64_t kEnough =
        64; // elements of an axis: a cache line and more; further dimensions only lengthen tables
    const int last = out.ndim - 1;
    if (last < 1 || out.stride[last] != 1 || in.stride[last] == 1 || in.stride[last] == 0) return false;
    const auto grow = [&](Axis &axis, const InfiniOperand &x, uint32_t taken) {
        for (bool found = true; found && axis.n < kEnough;) {
            found = false;
            for (int d = 0; d <= last && !found; ++d) {
                if (x.stride[d] != axis.n || (taken | axis.dims) >> d & 1) continue;
                if (!axis.order.empty() && axis.n * x.shape[d] > kEnough * kEnough) continue;
                axis.push_front(x, d);
                found = true;
            }
        }
    };
    rows = Axis();
    cols = Axis();
    // The first dimension of each side, then more of both while they are short.
    cols.push_front(out, last);
    for (int d = 0; d < last && rows.order.empty(); ++d)
        if (in.stride[d] == 1) rows.push_front(in, d);
    if (rows.order.empty()) return false;
    grow(rows, in, cols.dims);
    grow(cols, out, rows.dims);
    return true;
}

/** The loops that are left of a problem without the dimensions in `dims`. */
template <int N>
RowLoop<N> loops_without(const InfiniOperand *operands, uint32_t dims) {
    InfiniOperand rest[N];
    for (int i = 0; i < N; ++i) {
        rest[i] = operands[i];
        rest[i].ndim = 0;
        for (int d = 0; d < operands[i].ndim; ++d) {
            if ((dims >> d & 1) != 0) continue;
            rest[i].shape[rest[i].ndim] = operands[i].shape[d];
            rest[i].stride[rest[i].ndim++] = operands[i].stride[d];
        }
    }
    return RowLoop<N>(rest);
}

/** Tiles of at most tile_rows x tile_cols of `rows` x `cols` for every position of `outer`, by as many threads as they are
 *  worth: tile(byte offsets of the operands there, row, number of rows, col, number of cols). The first are longer by the heads. */
template <int N, class Tile>
void parallel_tiles(const RowLoop<N> &outer, int64_t rows, int64_t cols, int64_t tile_rows, int64_t tile_cols,
                    int64_t size, int64_t bytes_per_element, Tile &&tile, int64_t head_rows = 0,
                    int64_t head_cols = 0) {
    const int64_t items = outer.rows * outer.n;
    const double bytes =
        static_cast<double>(items) * static_cast<double>(rows) * static_cast<double>(cols * bytes_per_element);
    const int threads = worth_threads(bytes);
    const Brief brief(bytes < kBytesToWake);
    const int64_t wanted = threads == 1 ? 1 : threads * 4; // pieces
    constexpr int64_t kGrain = 64;                         // rows: whole cache lines of any type
    if (items < wanted) tile_rows = std::min(tile_rows, ((rows * items - 1) / (wanted * kGrain) + 1) * kGrain);
    const Strips by_rows{rows, tile_rows, head_rows}, by_cols{cols, tile_cols, head_cols};
    const int64_t strips = by_rows.count(), total = items * strips;
    const int64_t pieces = std::min(total, wanted);
    const auto strip_of = [&](const int64_t *at, int64_t strip) {
        for (int64_t i = 0; i < by_cols.count(); ++i)
            tile(at, by_rows.begin(strip), by_rows.size(strip), by_cols.begin(i), by_cols.size(i));
    };
    parallel_divided(pieces, threads, [&](int64_t piece, int) {
        const int64_t begin = total * piece / pieces, end = total * (piece + 1) / pieces;
        const int64_t first_item = begin / strips, end_item = (end + strips - 1) / strips;
        int64_t item = first_item;
        outer.walk(first_item, end_item, [&](const int64_t *at, int64_t first, int64_t count) {
            for (int64_t i = 0; i < count; ++i, ++item) {
                int64_t offset[N];
                for (int o = 0; o < N; ++o) offset[o] = at[o] + (first + i) * outer.step[o] * size;
                for (int64_t strip = std::max(begin - item * strips, int64_t{0});
                     strip < std::min(end - item * strips, strips); ++strip)
                    strip_of(offset, strip);
            }
        });
    });
}

} // namespace infini
