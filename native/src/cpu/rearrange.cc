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
    /** Rows of a piece of work: enough to use every cache line of src that is fetched. */
    static constexpr int64_t kTileRows = 64;

    TileCopy(const InfiniProblem &problem, int across)
        : outer(loops_without(problem, across)), size(kDtypes[problem.operands[kDst].dtype].size), kernel(kernels().transpose[log2_of(size)]) {
        const InfiniOperand &dst = problem.operands[kDst], &src = problem.operands[kSrc];
        rows = dst.shape[across];
        cols = dst.shape[dst.ndim - 1];
        stride_dst = dst.stride[across];
        stride_src = src.stride[src.ndim - 1];
    }

    void run(const InfiniCall &call) const override {
        char *const dst = static_cast<char *>(call.operands[kDst]);
        const char *const src = static_cast<const char *>(call.operands[kSrc]);
        const int64_t strips = (rows + kTileRows - 1) / kTileRows, total = outer.rows * outer.n * strips;
        const int64_t worth = outer.rows * outer.n * rows * cols * size * 2 / kBytesPerThread;
        const int threads = static_cast<int>(std::clamp<int64_t>(worth, 1, num_threads()));
        const int64_t pieces = std::min<int64_t>(total, threads == 1 ? 1 : threads * 4);
        parallel_for(pieces, threads, [&](int64_t piece, int) {
            for (int64_t strip = total * piece / pieces; strip < total * (piece + 1) / pieces; ++strip) {
                const int64_t item = strip / strips, row = strip % strips * kTileRows;
                outer.walk(item, item + 1, [&](const int64_t *at, int64_t first, int64_t) {
                    kernel(dst + at[kDst] + (first * outer.step[kDst] + row * stride_dst) * size, stride_dst,
                           src + at[kSrc] + (first * outer.step[kSrc] + row) * size, stride_src, std::min(kTileRows, rows - row), cols);
                });
            }
        });
    }

    static RowLoop<2> loops_without(const InfiniProblem &problem, int across) {
        InfiniOperand rest[2] = {problem.operands[kDst], problem.operands[kSrc]};
        for (InfiniOperand &operand : rest) {
            for (int d = across; d + 2 < operand.ndim; ++d) {
                operand.shape[d] = operand.shape[d + 1];
                operand.stride[d] = operand.stride[d + 1];
            }
            operand.ndim -= 2;
        }
        return RowLoop<2>(rest);
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
