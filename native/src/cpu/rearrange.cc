/* rearrange on the CPU: whole rows where both sides are contiguous, tiles where another dimension of the source is, single
 * elements otherwise. */
#include <cstring>

#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/row_loop.h"

namespace infini {

namespace {

enum { kY, kX };

int log2_of(int64_t size) {
    int log = 0;
    while (int64_t{1} << log < size) ++log;
    return log;
}

struct RowCopy final : CpuPlan {
    explicit RowCopy(const InfiniProblem &problem)
        : loop(problem.operands), size(kDtypes[problem.operands[kY].dtype].size), kernel(kernels().copy[log2_of(size)]) {}

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

/** The last dimension is contiguous in y, dimension `across` in x: those two make tiles, the others loops. */
struct TileCopy final : CpuPlan {
    TileCopy(const InfiniProblem &problem, int across)
        : outer(loops_around_tiles<2>(problem.operands, across)), size(kDtypes[problem.operands[kY].dtype].size), kernel(kernels().transpose[log2_of(size)]) {
        const InfiniOperand &y = problem.operands[kY], &x = problem.operands[kX];
        rows = y.shape[across];
        cols = y.shape[y.ndim - 1];
        stride_y = y.stride[across];
        stride_x = x.stride[x.ndim - 1];
    }

    void run(const InfiniCall &call) const override {
        char *const y = static_cast<char *>(call.operands[kY]);
        const char *const x = static_cast<const char *>(call.operands[kX]);
        const int64_t sizes[2] = {size, size};
        constexpr int64_t kTileRows = 64; // of any element size: every cache line of x that is fetched is used up
        parallel_tiles(outer, rows, cols, kTileRows, cols, sizes, 2 * size, [&](const int64_t *at, int64_t row, int64_t n_rows, int64_t, int64_t) {
            kernel(y + at[kY] + row * stride_y * size, stride_y, x + at[kX] + row * size, stride_x, n_rows, cols);
        });
    }

    RowLoop<2> outer;
    int64_t size;
    TransposeTile kernel;
    int64_t rows, cols, stride_y, stride_x; // elements
};

} // namespace

std::unique_ptr<CpuPlan> plan_rearrange(const InfiniProblem &problem, size_t *) {
    const InfiniOperand &y = problem.operands[kY], &x = problem.operands[kX];
    const int last = y.ndim - 1;
    if (y.ndim >= 2 && y.stride[last] == 1 && x.stride[last] != 1)
        for (int d = 0; d < last; ++d)
            if (x.stride[d] == 1) return std::make_unique<TileCopy>(problem, d);
    return std::make_unique<RowCopy>(problem);
}

} // namespace infini
