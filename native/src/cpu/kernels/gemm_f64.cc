/* gemm of F64. The build compiles this file for each instruction set. */
#include "cpu/kernels/intrinsics.h"

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/gemm.inl"

constexpr GemmKernel kKernel = gemm_kernel<double>(), kDots = gemm_dots_kernel<double>();

} // namespace

void INFINI_ISA::add_gemm_f64(KernelTable &t) {
    t.gemm[INFINI_DTYPE_F64] = kKernel;
    t.gemm_dots[INFINI_DTYPE_F64] = kDots;
}

} // namespace infini
