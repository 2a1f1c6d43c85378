/* Walks the rows of operands that have one common, reduced shape, in pieces that threads can share. */
#pragma once
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/layout.h"
#include "cpu/thread_pool.h"

namespace infini {

/** Below this much memory traffic a second thread costs more than it brings: waking one takes about as long as moving it. */
constexpr double kBytesPerThread = 256 * 1024;

inline int worth_threads(double bytes) {
    return static_cast<int>(std::clamp(bytes / kBytesPerThread, 1.0, static_cast<double>(num_threads())));
}

/** The loops of a problem: `ndim` outer ones around rows of `n` elements. Strides in bytes, of up to N operands. */
template <int N>
struct RowLoop {
    int ndim = 0;
    int64_t n = 1;            // elements of a row
    int64_t rows = 1;         // product of the outer sizes
    double bytes_per_row = 0; // read and written; broadcast operands make it longer than memory
    int64_t shape[INFINI_MAX_DIMS];
    int64_t stride[N][INFINI_MAX_DIMS];
    int64_t offset[N];
    int64_t step[N]; // within a row, in elements

    /** Rows are the last dimension of `operands`; rank 0 is one row of one element. */
    explicit RowLoop(const InfiniOperand *operands) {
        const int rank = operands[0].ndim;
        ndim = std::max(rank - 1, 0);
        n = rank > 0 ? operands[0].shape[rank - 1] : 1;
        for (int d = 0; d < ndim; ++d) {
            shape[d] = operands[0].shape[d];
            rows *= shape[d];
        }
        for (int i = 0; i < N; ++i) {
            const int64_t size = kDtypes[operands[i].dtype].size;
            offset[i] = operands[i].offset * size;
            step[i] = rank > 0 ? operands[i].stride[rank - 1] : 0;
            bytes_per_row += static_cast<double>(n) * static_cast<double>(size);
            for (int d = 0; d < ndim; ++d) stride[i][d] = operands[i].stride[d] * size;
        }
    }

    /** Calls row(byte offsets of the operands, first element, number of elements) for the elements begin..end in row order. */
    template <class Row>
    void walk(int64_t begin, int64_t end, Row &&row) const {
        int64_t index[INFINI_MAX_DIMS], at[N];
        int64_t first = begin % n;
        int64_t rest = begin / n;
        for (int i = 0; i < N; ++i) at[i] = offset[i];
        for (int d = ndim - 1; d >= 0; --d) {
            index[d] = rest % shape[d];
            rest /= shape[d];
            for (int i = 0; i < N; ++i) at[i] += index[d] * stride[i][d];
        }
        for (;;) {
            const int64_t count = std::min(n - first, end - begin);
            row(at, first, count);
            begin += count;
            if (begin >= end) return;
            first = 0;
            for (int d = ndim - 1; d >= 0; --d) {
                for (int i = 0; i < N; ++i) at[i] += stride[i][d];
                if (++index[d] < shape[d]) break;
                for (int i = 0; i < N; ++i) at[i] -= index[d] * stride[i][d];
                index[d] = 0;
            }
        }
    }

    /** walk() over everything, by as many threads as it is worth. Pieces start at multiples of `grain` elements. */
    template <class Row>
    void parallel_walk(int64_t grain, Row &&row) const {
        const int64_t total = rows * n;
        const int threads = worth_threads(static_cast<double>(rows) * bytes_per_row);
        if (threads == 1) return walk(0, total, row);
        const int64_t grains = (total + grain - 1) / grain;
        const int64_t pieces = std::min<int64_t>(threads, grains);
        parallel_for(pieces, threads, [&](int64_t piece, int) {
            const int64_t begin = grains * piece / pieces * grain;
            const int64_t end = std::min(total, grains * (piece + 1) / pieces * grain);
            if (begin < end) walk(begin, end, row);
        });
    }
};

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

/** An element of C-like side `out` meets one of side `in` that is contiguous elsewhere: tiles of `rows`, contiguous in `in`, by
 *  `cols`, contiguous in `out`. Several small dimensions may make up either. False when there is nothing to transpose. */
inline bool find_tiles(const InfiniOperand &out, const InfiniOperand &in, Axis &rows, Axis &cols) {
    constexpr int64_t kEnough =
        64; // elements along an axis: a cache line and more; further dimensions would only lengthen tables
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
 *  worth: tile(byte offsets of the operands there, row, number of rows, col, number of cols). */
template <int N, class Tile>
void parallel_tiles(const RowLoop<N> &outer, int64_t rows, int64_t cols, int64_t tile_rows, int64_t tile_cols,
                    int64_t size, int64_t bytes_per_element, Tile &&tile) {
    const int64_t strips = (rows + tile_rows - 1) / tile_rows, items = outer.rows * outer.n, total = items * strips;
    const int threads = worth_threads(static_cast<double>(items) * static_cast<double>(rows) *
                                      static_cast<double>(cols * bytes_per_element));
    const int64_t pieces = std::min<int64_t>(total, threads == 1 ? 1 : threads * 4);
    const auto strip_of = [&](const int64_t *at, int64_t strip) {
        const int64_t row = strip * tile_rows;
        for (int64_t col = 0; col < cols; col += tile_cols)
            tile(at, row, std::min(tile_rows, rows - row), col, std::min(tile_cols, cols - col));
    };
    parallel_for(pieces, threads, [&](int64_t piece, int) {
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
