/* Walks the rows of operands that have one common, reduced shape, in pieces that threads can share. */
#pragma once
#include <algorithm>

#include "core/dtype.h"
#include "core/layout.h"
#include "cpu/caches.h"
#include "cpu/thread_pool.h"

namespace infini {

/** Below this much memory traffic a second thread costs more than it brings, even if it is awake, and waking one below this. */
constexpr double kBytesPerThread = 256 * 1024, kBytesToWake = 3 << 20;

inline int worth_threads(double bytes) {
    return static_cast<int>(std::clamp(bytes / kBytesPerThread, 1.0, static_cast<double>(num_threads())));
}

/** Past the caches, parts of a line that two rows write apart take several times as long as its halves, which are put together. */
constexpr int64_t kStreamPart = kLine / 2;
/** Do rows of x begin and end at such parts, if it does? */
inline bool in_stream_parts(const InfiniOperand &x) {
    const int last = x.ndim - 1;
    int64_t any = x.offset | x.shape[last];
    for (int d = 0; d < last; ++d) any |= x.stride[d];
    return any * kDtypes[x.dtype].size % kStreamPart == 0;
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

    /** Calls block(byte offsets of the operands, first element, number of elements, number of rows) for the elements begin..end
     *  in row order. Only whole rows come several at a time, of the innermost loop. */
    template <class Block>
    void walk_blocks(int64_t begin, int64_t end, Block &&block) const {
        const int inner = ndim - 1;
        int64_t index[INFINI_MAX_DIMS], at[N];
        int64_t first = begin % n;
        int64_t rest = begin / n;
        for (int i = 0; i < N; ++i) at[i] = offset[i];
        for (int d = inner; d >= 0; --d) {
            index[d] = rest % shape[d];
            rest /= shape[d];
            for (int i = 0; i < N; ++i) at[i] += index[d] * stride[i][d];
        }
        for (;;) {
            const int64_t count = std::min(n - first, end - begin);
            const int64_t together =
                inner >= 0 && count == n ? std::min(shape[inner] - index[inner], (end - begin) / n) : 1;
            block(at, first, count, together);
            begin += count * together;
            if (begin >= end) return;
            first = 0;
            int64_t steps = together;
            for (int d = inner; d >= 0; --d, steps = 1) {
                for (int i = 0; i < N; ++i) at[i] += steps * stride[i][d];
                if ((index[d] += steps) < shape[d]) break;
                for (int i = 0; i < N; ++i) at[i] -= index[d] * stride[i][d];
                index[d] = 0;
            }
        }
    }

    /** Calls row(byte offsets of the operands, first element, number of elements) for each row of these. */
    template <class Row>
    void walk(int64_t begin, int64_t end, Row &&row) const {
        walk_blocks(begin, end, [&](const int64_t *from, int64_t first, int64_t count, int64_t together) {
            int64_t at[N];
            for (int i = 0; i < N; ++i) at[i] = from[i];
            for (int64_t r = 0; r < together; ++r) {
                row(at, first, count);
                for (int i = 0; i < N; ++i) at[i] += row_stride(i);
            }
        });
    }
    /** Bytes from a row to the next one of the innermost loop. */
    int64_t row_stride(int i) const { return ndim > 0 ? stride[i][ndim - 1] : 0; }

    /** Calls piece(begin, end) for pieces of all elements that are not empty, by as many threads as it is worth. Pieces start at
     *  multiples of `grain` elements. */
    template <class Piece>
    void parallel_pieces(int64_t grain, Piece &&piece) const {
        const int64_t total = rows * n;
        const double bytes = static_cast<double>(rows) * bytes_per_row;
        const int threads = worth_threads(bytes);
        if (threads == 1) return piece(int64_t{0}, total);
        const Brief brief(bytes < kBytesToWake);
        const int64_t grains = (total + grain - 1) / grain;
        const int64_t pieces = std::min<int64_t>(threads, grains);
        parallel_for(pieces, threads, [&](int64_t i, int) {
            const int64_t begin = grains * i / pieces * grain;
            const int64_t end = std::min(total, grains * (i + 1) / pieces * grain);
            if (begin < end) piece(begin, end);
        });
    }

    /** walk() over everything in such pieces. */
    template <class Row>
    void parallel_walk(int64_t grain, Row &&row) const {
        parallel_pieces(grain, [&](int64_t begin, int64_t end) { walk(begin, end, row); });
    }
};

} // namespace infini
