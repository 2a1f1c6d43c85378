/* What x86-64 CPUs with AMX do otherwise than others with AVX-512: products of BF16. The build compiles this file alone for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/gemm.inl"
#include "cpu/gemm_amx.inl"

constexpr GemmKernel kKernel = amx_kernel();

} // namespace

void amx_bf16::add_bf16(KernelTable &t) { t.gemm[INFINI_DTYPE_BF16] = kKernel; }

} // namespace infini
