/* The NVIDIA backend's operator table. */
#include "cuda/cuda_backend.h"
#include "cuda/cuda_plan.h"
#include "cuda/error.h"

namespace infini::cuda {

namespace {

using Planner = infiniStatus_t (*)(const InfiniProblem &, std::unique_ptr<CudaPlan> *, size_t *);

constexpr Planner kPlanners[] = {
#define INFINI_CUDA_PLANNER(ID, name) plan_##name,
    INFINI_OP_LIST(INFINI_CUDA_PLANNER)
#undef INFINI_CUDA_PLANNER
};

infiniStatus_t create(const InfiniProblem *problem, void **plan, size_t *workspace_size) {
    return on_device(problem->device_id, [&]() -> infiniStatus_t {
        std::unique_ptr<CudaPlan> made;
        *workspace_size = 0;
        if (const infiniStatus_t status = kPlanners[problem->op](*problem, &made, workspace_size)) return status;
        made->device_id = problem->device_id;
        *plan = made.release();
        return INFINI_STATUS_SUCCESS;
    });
}

infiniStatus_t run(const void *opaque, const InfiniCall *call) {
    const auto *plan = static_cast<const CudaPlan *>(opaque);
    return on_device(plan->device_id, [&] { return plan->run(*call); });
}

void destroy(void *plan) { delete static_cast<CudaPlan *>(plan); }

const char *describe(const void *plan) { return static_cast<const CudaPlan *>(plan)->description.c_str(); }

} // namespace

const InfiniOpTable kCudaOps = {sizeof(InfiniOpTable), create, run, destroy, describe};

} // namespace infini::cuda
