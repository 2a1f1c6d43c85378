/* add and mul on the CPU. */
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/row_loop.h"

namespace infini {

namespace {

enum { kC, kA, kB };

struct BinaryPlan final : CpuPlan {
    BinaryPlan(const InfiniProblem &problem, BinaryRow row)
        : loop(problem.operands), kernel(row), size(kDtypes[problem.operands[kC].dtype].size) {}

    void run(const InfiniCall &call) const override {
        char *const c = static_cast<char *>(call.operands[kC]);
        const char *const a = static_cast<const char *>(call.operands[kA]), *const b = static_cast<const char *>(call.operands[kB]);
        const int64_t cache_line = 64 / size;
        loop.parallel_walk(cache_line, [&](const int64_t *at, int64_t first, int64_t n) {
            kernel(c + at[kC] + first * loop.step[kC] * size, loop.step[kC], a + at[kA] + first * loop.step[kA] * size, loop.step[kA],
                   b + at[kB] + first * loop.step[kB] * size, loop.step[kB], n);
        });
    }

    RowLoop<3> loop;
    BinaryRow kernel;
    int64_t size;
};

} // namespace

std::unique_ptr<CpuPlan> plan_add(const InfiniProblem &problem, size_t *) {
    return std::make_unique<BinaryPlan>(problem, kernels().add[problem.operands[kC].dtype]);
}

std::unique_ptr<CpuPlan> plan_mul(const InfiniProblem &problem, size_t *) {
    return std::make_unique<BinaryPlan>(problem, kernels().mul[problem.operands[kC].dtype]);
}

} // namespace infini
