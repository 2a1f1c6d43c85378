/* gemm of F16 and BF16. The build compiles this file for each instruction set. */
#include "cpu/kernels/intrinsics.h"

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/gemm.inl"

constexpr GemmKernel kOfF16 = gemm_kernel<f16>(), kOfBf16 = gemm_kernel<bf16>();
constexpr GemmKernel kDotsOfF16 = gemm_dots_kernel<f16>(), kDotsOfBf16 = gemm_dots_kernel<bf16>();
constexpr int kHalves[] = {INFINI_DTYPE_F16, INFINI_DTYPE_BF16};

} // namespace

void INFINI_ISA::add_gemm_halves(KernelTable &t) {
    t.gemm[INFINI_DTYPE_F16] = kOfF16;
    t.gemm[INFINI_DTYPE_BF16] = kOfBf16;
    t.gemm_dots[INFINI_DTYPE_F16] = kDotsOfF16;
    t.gemm_dots[INFINI_DTYPE_BF16] = kDotsOfBf16;
    for (const int half : kHalves) {
        take_multiply(t.gemm[half], t.gemm[INFINI_DTYPE_F32]);
        if (t.gemm_dots[half].lanes != 0) take_multiply(t.gemm_dots[half], t.gemm[INFINI_DTYPE_F32]);
    }
}

} // namespace infini
