/* rearrange on the CPU: whole rows where both sides are contiguous, tiles where x is contiguous in another dimension than y,
 * single elements otherwise. */
#include <cstring>

#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/tiles.h"

namespace infini {

namespace {

enum { kY, kX };

struct RowCopy final : CpuPlan {
    explicit RowCopy(const InfiniProblem &problem)
        : loop(problem.operands), size(kDtypes[problem.operands[kY].dtype].size),
          kernel(kernels().copy[log2_of(size)]) {}

    void run(const InfiniCall &call) const override {
        char *const y = static_cast<char *>(call.operands[kY]);
        const char *const x = static_cast<const char *>(call.operands[kX]);
        const bool contiguous = loop.n == 1 || (loop.step[kY] == 1 && loop.step[kX] == 1);
        loop.parallel_walk(std::max<int64_t>(64 / size, 1), [&](const int64_t *at, int64_t first, int64_t n) {
            char *to = y + at[kY] + first * loop.step[kY] * size;
            const char *from = x + at[kX] + first * loop.step[kX] * size;
            if (contiguous)
                std::memcpy(to, from, static_cast<size_t>(n * size));
            else
                kernel(to, loop.step[kY], from, loop.step[kX], n);
        });
    }

    RowLoop<2> loop;
    int64_t size;
    CopyRow kernel;
};

/** y is contiguous along one axis and x along another: those two make tiles, other dimensions loops. */
struct TileCopy final : CpuPlan {
    static constexpr int64_t kTileRows = 64, kTileCols = 1024; // at a time of a long dimension

    TileCopy(const InfiniProblem &problem, const Axis &row_axis, const Axis &col_axis)
        : outer(loops_without<2>(problem.operands, row_axis.dims | col_axis.dims)),
          size(kDtypes[problem.operands[kY].dtype].size), kernel(kernels().transpose[log2_of(size)]), rows(row_axis),
          cols(col_axis), y_rows(axis_offsets(rows, problem.operands[kY], kTileRows)),
          x_cols(axis_offsets(cols, problem.operands[kX], kTileCols)),
          y_row_step(problem.operands[kY].stride[rows.order.back()]),
          x_col_step(problem.operands[kX].stride[cols.order.back()]) {}

    void run(const InfiniCall &call) const override {
        char *const y = static_cast<char *>(call.operands[kY]);
        const char *const x = static_cast<const char *>(call.operands[kX]);
        parallel_tiles(
            outer, rows.n, cols.n, kTileRows, kTileCols, size, 2 * size,
            [&](const int64_t *at, int64_t row, int64_t n_rows, int64_t col, int64_t n_cols) {
                // A short axis has a table of its own; a long one repeats the start of its table at every tile.
                const int64_t y_row = rows.uniform ? row * y_row_step : 0, x_col = cols.uniform ? col * x_col_step : 0;
                kernel(y + at[kY] + (y_row + col) * size, y_rows.data() + (rows.uniform ? 0 : row),
                       x + at[kX] + (x_col + row) * size, x_cols.data() + (cols.uniform ? 0 : col), n_rows, n_cols);
            });
    }

    RowLoop<2> outer;
    int64_t size;
    TransposeTile kernel;
    Axis rows, cols;
    std::vector<int64_t> y_rows, x_cols; // offsets of rows in y and of columns in x
    int64_t y_row_step, x_col_step;
};

} // namespace

std::unique_ptr<CpuPlan> plan_rearrange(const InfiniProblem &problem, size_t *) {
    Axis rows, cols;
    if (find_tiles(problem.operands[kY], problem.operands[kX], rows, cols))
        return std::make_unique<TileCopy>(problem, rows, cols);
    return std::make_unique<RowCopy>(problem);
}

} // namespace infini
