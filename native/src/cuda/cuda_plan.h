/* What an operator is on NVIDIA devices: a function that plans a problem, found in src/cuda/<op>.cu. */
#pragma once
#include <memory>
#include <string>

#include "core/status.h"

namespace infini::cuda {

/** A planned problem. */
struct CudaPlan {
    virtual ~CudaPlan() = default;
    /** Queues the work on call.stream; from any thread, with the plan's device current. It neither allocates nor waits, and the
     *  parameters of kernels go by value, so that it may be captured. */
    virtual infiniStatus_t run(const InfiniCall &call) const = 0;

    int device_id = 0;
    std::string description; // how, in a few words
};

/** Plans a problem with its device current, or fails; kernels are prepared. *workspace_size is 0 at first. */
#define INFINI_CUDA_PLANNER(ID, name) \
    infiniStatus_t plan_##name(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *workspace_size);
INFINI_OP_LIST(INFINI_CUDA_PLANNER)
#undef INFINI_CUDA_PLANNER

} // namespace infini::cuda
