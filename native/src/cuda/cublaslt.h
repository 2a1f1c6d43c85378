/* gemm, gemm_add and gemm_mul by NVIDIA's cublasLt.
 *
 *  The library is looked for when the first product is planned, and never unloaded:
 *    1. the file that INFINIOP_CUBLASLT_PATH names, an absolute path; where it is set, nothing else is tried
 *       (INFINIOP_CUBLASLT_PATH=/dev/null: no cublasLt)
 *    2. what the process has loaded already, by PyTorch or another
 *    3. the wheels nvidia-cublas and nvidia-cublas-cu12, where they are installed beside the Python package that this plugin is in
 *    4. where the dynamic linker looks
 *    5. lib64 in the folder that CUDA_HOME names, an absolute path
 *  In 2 to 5, libcublasLt.so.13 comes before libcublasLt.so.12. Programs that are AT_SECURE read no variable.
 *
 *  Sums are F32's (F64's for F64), products of F32 are F32's, and where K is split, partial sums are kept in the type of the sums.
 *  Two environment variables give that up for speed, for descriptors made while they are "1":
 *    INFINIOP_CUDA_TF32                     F32 operands may be rounded to TF32, which has 10 bits of fraction
 *    INFINIOP_CUDA_SPLIT_K_LOW_PRECISION    partial sums of F16 and BF16 may be rounded to the output's type */
#pragma once
#include "cuda/cuda_plan.h"

namespace infini::cuda {

/** Plans gemm, gemm_add or gemm_mul with cublasLt, with the problem's device current. NOT_IMPLEMENTED, with a sentence, where the
 *  library cannot be had or cannot take the problem: the next implementation is asked. */
infiniStatus_t plan_cublaslt(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *workspace_size);

} // namespace infini::cuda
