/* add_rms_norm on the CPU: one kernel call a row, rows shared among threads. */
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/row_loop.h"

namespace infini {

namespace {

enum { kY, kResidual, kA, kB, kWeight };

struct NormPlan final : CpuPlan {
    explicit NormPlan(const InfiniProblem &problem)
        : loop(problem.operands), epsilon(problem.epsilon),
          kernel(kernels().add_rms_norm[problem.operands[kY].dtype][problem.operands[kWeight].dtype]) {}

    void run(const InfiniCall &call) const override {
        loop.parallel_walk(loop.n, [&](const int64_t *at, int64_t, int64_t n) {
            const auto operand = [&](int i) { return static_cast<char *>(call.operands[i]) + at[i]; };
            kernel(operand(kY), operand(kResidual), operand(kA), operand(kB), operand(kWeight), n, epsilon);
        });
    }

    RowLoop<5> loop;
    float epsilon;
    NormRow kernel;
};

} // namespace

std::unique_ptr<CpuPlan> plan_add_rms_norm(const InfiniProblem &problem, size_t *) {
    return std::make_unique<NormPlan>(problem);
}

} // namespace infini
