/* Products without a library. */
#pragma once
#include "cuda/cuda_plan.h"

namespace infini::cuda {

/** Plans gemm, gemm_add or gemm_mul, any of them, with the tiled kernel. It needs no workspace, and reads neither A nor B where alpha
 *  is 0. */
infiniStatus_t plan_tiled(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *workspace_size);

} // namespace infini::cuda
