/* What x86-64 CPUs with AVX-512 BF16 do otherwise than by kKernelsAvx512: the products of BF16. The build compiles this file alone
 * for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/gemm.inl"

} // namespace

constexpr GemmKernel kGemmAvx512Bf16 = gemm_kernel<bf16>();

} // namespace infini
