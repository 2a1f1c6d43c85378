/* rearrange on the CPU: whole rows where both sides are contiguous, tiles where another dimension of the source is, single
 * elements otherwise. */
#include <cstring>

#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/row_loop.h"

namespace infini {

namespace {

enum { kDst, kSrc };

int log2_of(int64_t size) {
    int log = 0;
    while (int64_t{1} << log < size) ++log;
    return log;
}

struct RowCopy final : CpuPlan {
    explicit RowCopy(const InfiniProblem &problem)
        : loop(problem.operands), size(kDtypes[problem.operands[kDst].dtype].size), kernel(kernels().copy[log2_of(size)]) {}

    void run(const InfiniCall &call) const override {
        char *const dst = static_cast<char *>(call.operands[kDst]);
        const char *const src = static_cast<const char *>(call.operands[kSrc]);
        const bool contiguous = loop.n == 1 || (loop.step[kDst] == 1 && loop.step[kSrc] == 1);
        loop.parallel_walk(std::max<int64_t>(64 / size, 1), [&](const int64_t *at, int64_t first, int64_t n) {
            char *to = dst + at[kDst] + first * loop.step[kDst] * size;
            const char *from = src + at[kSrc] + first * loop.step[kSrc] * size;
            if (contiguous)
                std::memcpy(to, from, static_cast<size_t>(n * size));
            else
                kernel(to, loop.step[kDst], from, loop.step[kSrc], n);
        });
    }

    RowLoop<2> loop;
    int64_t size;
    CopyRow kernel;
};

/** The last dimension is contiguous in dst, dimension `across` in src: those two make tiles, the others loops. */
struct TileCopy final : CpuPlan {
    TileCopy(const InfiniProblem &problem, int across)
        : outer(loops_around_tiles<2>(problem.operands, across)), size(kDtypes[problem.operands[kDst].dtype].size), kernel(kernels().transpose[log2_of(size)]) {
        const InfiniOperand &dst = problem.operands[kDst], &src = problem.operands[kSrc];
        rows = dst.shape[across];
        cols = dst.shape[dst.ndim - 1];
        stride_dst = dst.stride[across];
        stride_src = src.stride[src.ndim - 1];
    }

    void run(const InfiniCall &call) const override {
        char *const dst = static_cast<char *>(call.operands[kDst]);
        const char *const src = static_cast<const char *>(call.operands[kSrc]);
        const int64_t sizes[2] = {size, size};
        constexpr int64_t kTileRows = 64; // of any element size: every cache line of src that is fetched is used up
        parallel_tiles(outer, rows, cols, kTileRows, cols, sizes, 2 * size, [&](const int64_t *at, int64_t row, int64_t n_rows, int64_t, int64_t) {
            kernel(dst + at[kDst] + row * stride_dst * size, stride_dst, src + at[kSrc] + row * size, stride_src, n_rows, cols);
        });
    }

    RowLoop<2> outer;
    int64_t size;
    TransposeTile kernel;
    int64_t rows, cols, stride_dst, stride_src; // elements
};

} // namespace

std::unique_ptr<CpuPlan> plan_rearrange(const InfiniProblem &problem, size_t *) {
    const InfiniOperand &dst = problem.operands[kDst], &src = problem.operands[kSrc];
    const int last = dst.ndim - 1;
    if (dst.ndim >= 2 && dst.stride[last] == 1 && src.stride[last] != 1)
        for (int d = 0; d < last; ++d)
            if (src.stride[d] == 1) return std::make_unique<TileCopy>(problem, d);
    return std::make_unique<RowCopy>(problem);
}

} // namespace infini
