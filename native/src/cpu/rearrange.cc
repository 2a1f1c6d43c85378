/* rearrange on the CPU: whole rows where both sides are contiguous, tiles where x is contiguous in another dimension than y,
 * single elements otherwise. */
#include <algorithm>
#include <cstdlib>

#include "cpu/caches.h"
#include "cpu/copy_bytes.h"
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/tiles.h"

namespace infini {

namespace {

enum { kY, kX };

/** Then its lines are not read first, and nothing else is evicted for what will be evicted itself. */
bool streams(const InfiniProblem &problem) {
    const InfiniOperand &y = problem.operands[kY];
    return worth_streaming(static_cast<double>(element_count(y) * kDtypes[y.dtype].size), kStreamCopies);
}

/** Rows that are contiguous on both sides go past the caches if the problem is large: then the order they are written in makes
 *  no difference, and x is read in its own. Rows of y that follow one another, `joined`, share cache lines; each is written whole by
 *  the row that ends it, with what it reads of the other: to write parts of lines takes several times as long. */
struct RowCopy final : CpuPlan {
    static constexpr int64_t kShort = 4096; // bytes of a row: longer ones are copied as fast by what is called for each

    RowCopy(const InfiniProblem &problem, bool streams)
        : stream(streams), loop(stream ? in_order_of_x(problem).operands : problem.operands),
          size(kDtypes[problem.operands[kY].dtype].size),
          stream_elements(loop.step[kX] != 1 && loop.step[kX] != 0 && streams_rows(problem, loop.step[kX])) {
        if (stream && kernels().stream_joins) find_joined();
    }
    static std::unique_ptr<RowCopy> of(const InfiniProblem &problem) {
        if (streams_rows(problem, 1)) {
            auto streaming = std::make_unique<RowCopy>(problem, true);
            if (streaming->ends_pay() || in_stream_parts(problem.operands[kY])) return streaming;
        }
        return std::make_unique<RowCopy>(problem, false);
    }

    /** Are rows so long that parts of lines at their ends cost less than streaming brings, or joined there? Measured. */
    bool ends_pay() const {
        constexpr int64_t kLong = 2048;
        return loop.n * size >= kLong || joined_rows > 1;
    }

    /** The dimension along which rows of y follow one another, if the strides of the others tell where along it a row is. */
    void find_joined() {
        constexpr int64_t kMany = 64; // else they are long, and threads share them
        if (loop.rows < kMany) return;
        const int64_t row = loop.n * size, *const y = loop.stride[kY];
        const int d = static_cast<int>(std::find(y, y + loop.ndim, row) - y);
        if (d == loop.ndim) return;
        int64_t apart = INT64_MAX; // bytes from all of its rows to the next ones
        for (int other = 0; other < loop.ndim; ++other)
            if (other != d) apart = std::min(apart, y[other]);
        if (apart < row * loop.shape[d]) return;
        for (int other = 0; other < loop.ndim; ++other)
            if (other != d && y[other] % apart != 0) return;
        joined_rows = loop.shape[d];
        joined_apart = apart;
        x_of_next = loop.stride[kX][d];
    }

    /** Is y written past the caches, of rows of x with this stride? */
    static bool streams_rows(const InfiniProblem &problem, int64_t x_step) {
        const int64_t enough =
            x_step == 1 ? 256 : 1024; // bytes of a row: lines it shares with other rows are written twice
        const InfiniOperand &y = problem.operands[kY], &x = problem.operands[kX];
        const int last = y.ndim - 1;
        return last >= 0 && y.stride[last] == 1 && x.stride[last] == x_step &&
               y.shape[last] * kDtypes[y.dtype].size >= enough && streams(problem);
    }

    static InfiniProblem in_order_of_x(InfiniProblem problem) {
        InfiniOperand &y = problem.operands[kY], &x = problem.operands[kX];
        for (int end = y.ndim - 1; end > 1; --end)
            for (int d = 1; d < end; ++d) {
                if (std::abs(x.stride[d - 1]) >= std::abs(x.stride[d])) continue;
                for (InfiniOperand *operand : {&y, &x}) {
                    std::swap(operand->shape[d - 1], operand->shape[d]);
                    std::swap(operand->stride[d - 1], operand->stride[d]);
                }
            }
        return problem;
    }

    void run(const InfiniCall &call) const override {
        char *const y = static_cast<char *>(call.operands[kY]);
        char *const x = static_cast<char *>(call.operands[kX]);
        const bool contiguous = loop.n == 1 || (loop.step[kY] == 1 && loop.step[kX] == 1);
        const int64_t bytes = loop.n * size;
        const bool lines = bytes % kLine == 0 && reinterpret_cast<intptr_t>(y + loop.offset[kY]) % kLine == 0;
        const bool joined = joined_rows > 1 && !lines;
        const int64_t grain = joined ? loop.n : std::max<int64_t>(kLine / size, 1);
        const bool past = stream && (ends_pay() || reinterpret_cast<uintptr_t>(y) % kStreamPart == 0); // the caches
        if (!past && (!contiguous || bytes <= kShort)) {
            const CopyRows copy_rows = kernels().copy_rows;
            const CopyElements copy_elements = kernels().copy[log2_of(size)];
            loop.parallel_pieces(grain, [&](int64_t begin, int64_t end) {
                loop.walk_blocks(begin, end, [&](const int64_t *at, int64_t first, int64_t n, int64_t rows) {
                    const auto operand = [&](int i, char *p) {
                        return TileOperand{p + at[i] + first * loop.step[i] * size, loop.row_stride(i) / size,
                                           loop.step[i]};
                    };
                    const TileOperand to = operand(kY, y), from = operand(kX, x);
                    if (contiguous)
                        copy_rows(to.p, to.row * size, from.p, from.row * size, n * size, rows);
                    else
                        copy_elements(to, from, rows, n, stream_elements);
                });
            });
            if (stream_elements) finish_streams();
            return;
        }
        const StreamRow stream_row = kernels().stream_row;
        loop.parallel_walk(grain, [&](const int64_t *at, int64_t first, int64_t n) {
            char *to = y + at[kY] + first * size;
            const char *from = x + at[kX] + first * size;
            if (joined) {
                const int64_t row = (at[kY] - loop.offset[kY]) % joined_apart / bytes;
                stream_row(to, from, bytes, row > 0 ? from - x_of_next + bytes : nullptr, row == joined_rows - 1);
            } else if (past)
                stream_row(to, from, n * size, nullptr, true);
            else
                copy_bytes(to, from, static_cast<size_t>(n * size));
        });
        if (past) finish_streams();
    }

    bool stream; // whole rows
    RowLoop<2> loop;
    int64_t size;
    bool stream_elements;    // rows of y from elements of x that are apart
    int64_t joined_rows = 1; // 1: none are
    int64_t joined_apart = INT64_MAX;
    int64_t x_of_next = 0; // bytes from such a row to the next one in x
};

/** Short rows that follow one another on both sides, in reverse in x: pixels whose channels change their order. */
struct RowReversal final : CpuPlan {
    explicit RowReversal(const InfiniProblem &problem)
        : loop(problem.operands), size(kDtypes[problem.operands[kY].dtype].size) {}

    bool applies() const {
        const int64_t row = loop.n * size;
        return loop.n > 1 && row <= 16 && loop.step[kY] == 1 && loop.step[kX] == -1 && loop.row_stride(kY) == row &&
               loop.row_stride(kX) == row;
    }

    void run(const InfiniCall &call) const override {
        char *const y = static_cast<char *>(call.operands[kY]);
        const char *const x = static_cast<const char *>(call.operands[kX]) - (loop.n - 1) * size;
        const ReverseRows reverse_rows = kernels().reverse_rows[log2_of(size)];
        loop.parallel_pieces(loop.n * kLine, [&](int64_t begin, int64_t end) { // whole rows
            loop.walk_blocks(begin, end, [&](const int64_t *at, int64_t, int64_t n, int64_t rows) {
                reverse_rows(y + at[kY], x + at[kX], n, rows);
            });
        });
    }

    RowLoop<2> loop;
    int64_t size;
};

/** y is contiguous along one axis and x along another: those two make tiles, other dimensions loops. */
struct TileCopy final : CpuPlan {
    // At a time of a long dimension. Tiles are tall: x is read along their rows, and long runs are what hardware fetches ahead.
    static constexpr int64_t kTileRows = 2048, kTileCols = 1024;
    static constexpr int64_t kRowsPerThread = 128; // two pieces of whole cache lines of any type

    TileCopy(const InfiniProblem &problem, const Axis &row_axis, const Axis &col_axis)
        : outer(loops_without<2>(problem.operands, row_axis.dims | col_axis.dims)),
          size(kDtypes[problem.operands[kY].dtype].size), kernel(kernels().transpose[log2_of(size)]), rows(row_axis),
          cols(col_axis), y_row_step(problem.operands[kY].stride[rows.order.back()]),
          x_col_step(problem.operands[kX].stride[cols.order.back()]), stream(streams(problem)) {
        if (rows.uniform && cols.uniform) return;
        y_rows = axis_offsets(rows, problem.operands[kY], kTileRows);
        x_cols = axis_offsets(cols, problem.operands[kX], kTileCols);
    }

    void run(const InfiniCall &call) const override {
        char *const y = static_cast<char *>(call.operands[kY]);
        const char *const x = static_cast<const char *>(call.operands[kX]);
        const bool tables = !y_rows.empty();
        const auto tile = [&](const int64_t *at, int64_t row, int64_t n_rows, int64_t col, int64_t n_cols) {
            // A short axis has a table of its own; a long one repeats the start of its table at every tile.
            const int64_t y_row = rows.uniform ? row * y_row_step : 0, x_col = cols.uniform ? col * x_col_step : 0;
            const LineOffsets y_offsets{y_row_step, tables ? y_rows.data() + (rows.uniform ? 0 : row) : nullptr},
                x_offsets{x_col_step, tables ? x_cols.data() + (cols.uniform ? 0 : col) : nullptr};
            kernel(y + at[kY] + (y_row + col) * size, y_offsets, x + at[kX] + (x_col + row) * size, x_offsets, n_rows,
                   n_cols, stream);
        };
        // Tiles begin at cache lines where lines of both sides do, whole ones of which are written.
        const bool lines = !tables && y_row_step * size % kLine == 0 && x_col_step * size % kLine == 0;
        const int64_t head_rows = lines ? elements_until_line(x + outer.offset[kX], size) : 0,
                      head_cols = lines ? elements_until_line(y + outer.offset[kY], size) : 0;
        // Threads share columns, if there are enough, rather than rows: they then read runs of x as long as tiles allow. But of rows
        // that begin anywhere, one line of each is two threads', who wait for each other's, unless they wait longer for x. Past the
        // caches rows are written best as a whole, and x is read in short runs either way.
        const int64_t items = outer.rows * outer.n;
        const double bytes = 2.0 * static_cast<double>(size * items) * static_cast<double>(rows.n * cols.n);
        const int threads = worth_threads(bytes);
        const int64_t enough = kRowsPerThread * threads;
        const bool crowded = threads > 1 && y_row_step * size % kLine != 0 &&
                             bytes <= static_cast<double>(second_level_cache() / 2 * threads);
        const bool by_rows = (stream || crowded) && items * rows.n >= enough;
        if (!by_rows && (items * cols.n >= 2 * enough || cols.n >= rows.n))
            parallel_tiles(
                outer, cols.n, rows.n, kTileCols, kTileRows, size, 2 * size,
                [&](const int64_t *at, int64_t col, int64_t n_cols, int64_t row, int64_t n_rows) {
                    tile(at, row, n_rows, col, n_cols);
                },
                head_cols, head_rows);
        else if (stream && !tables)
            parallel_tiles(outer, rows.n, cols.n, kTileRows, cols.n, size, 2 * size, tile, head_rows);
        else
            parallel_tiles(outer, rows.n, cols.n, kTileRows, kTileCols, size, 2 * size, tile, head_rows, head_cols);
        if (stream) finish_streams();
    }

    RowLoop<2> outer;
    int64_t size;
    TransposeTile kernel;
    Axis rows, cols;
    int64_t y_row_step, x_col_step;
    std::vector<int64_t> y_rows, x_cols; // offsets of rows in y and of columns in x, where either axis is not uniform
    bool stream;
};

/** Where the last dimension is contiguous on both sides and as long as an element may be, it is one. */
InfiniProblem in_large_elements(InfiniProblem problem) {
    const InfiniOperand &y = problem.operands[kY], &x = problem.operands[kX];
    const int last = y.ndim - 1;
    if (last < 1 || y.stride[last] != 1 || x.stride[last] != 1) return problem;
    const int64_t n = y.shape[last];
    int dtype = INFINI_DTYPE_INVALID;
    for (const int known : {INFINI_DTYPE_U16, INFINI_DTYPE_U32, INFINI_DTYPE_U64, INFINI_DTYPE_C128})
        if (kDtypes[known].size == n * kDtypes[y.dtype].size) dtype = known;
    if (dtype == INFINI_DTYPE_INVALID) return problem;
    for (const InfiniOperand *operand : {&y, &x}) {
        if (operand->offset % n != 0) return problem;
        for (int d = 0; d < last; ++d)
            if (operand->stride[d] % n != 0) return problem;
    }
    for (InfiniOperand *operand : {&problem.operands[kY], &problem.operands[kX]}) {
        operand->dtype = dtype;
        operand->offset /= n;
        operand->ndim = last;
        for (int d = 0; d < last; ++d) operand->stride[d] /= n;
    }
    return problem;
}

/** Where x is contiguous backwards in another dimension than the last, as that of an image that is turned, y is walked backwards. */
InfiniProblem upwards_in_x(InfiniProblem problem) {
    const InfiniOperand &x = problem.operands[kX];
    for (int d = 0; d < x.ndim - 1; ++d) {
        if (x.stride[d] != -1) continue;
        for (InfiniOperand *operand : {&problem.operands[kY], &problem.operands[kX]}) {
            operand->offset += (operand->shape[d] - 1) * operand->stride[d];
            operand->stride[d] = -operand->stride[d];
        }
    }
    return problem;
}

} // namespace

std::unique_ptr<CpuPlan> plan_rearrange(const InfiniProblem &given, size_t *) {
    const InfiniProblem problem = in_large_elements(given), upwards = upwards_in_x(problem);
    Axis rows, cols;
    if (find_tiles(upwards.operands[kY], upwards.operands[kX], rows, cols))
        return std::make_unique<TileCopy>(upwards, rows, cols);
    if (auto reversal = std::make_unique<RowReversal>(problem); reversal->applies()) return reversal;
    return RowCopy::of(problem);
}

} // namespace infini
