/* The CPU backend's operator table. */
#include "cpu/cpu_backend.h"
#include "cpu/cpu_plan.h"

namespace infini {

namespace {

using Planner = std::unique_ptr<CpuPlan> (*)(const InfiniProblem &, size_t *);

constexpr Planner kPlanners[] = {
#define INFINI_CPU_PLANNER(ID, name) plan_##name,
    INFINI_OP_LIST(INFINI_CPU_PLANNER)
#undef INFINI_CPU_PLANNER
};

infiniStatus_t create(const InfiniProblem *problem, void **plan, size_t *workspace_size) {
    *workspace_size = 0;
    *plan = kPlanners[problem->op](*problem, workspace_size).release();
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t run(const void *plan, const InfiniCall *call) {
    static_cast<const CpuPlan *>(plan)->run(*call);
    return INFINI_STATUS_SUCCESS;
}

void destroy(void *plan) { delete static_cast<CpuPlan *>(plan); }

const char *describe(const void *plan) { return static_cast<const CpuPlan *>(plan)->description.c_str(); }

} // namespace

const InfiniOpTable kCpuOps = {sizeof(InfiniOpTable), create, run, destroy, describe};

} // namespace infini
