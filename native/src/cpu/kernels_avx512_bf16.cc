/* What x86-64 CPUs with AVX-512 BF16 do otherwise than others with AVX-512: the operators on BF16, which it multiplies in pairs and
 * rounds to. The build compiles this file alone for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/binary.inl"
#include "cpu/norm.inl"
#include "cpu/binary_tile.inl"
#include "cpu/gemm.inl"

constexpr GemmKernel kKernel = gemm_kernel<bf16>();
constexpr GemmKernel kPairs[] = {gemm_pairs_kernel<kFast>(), gemm_pairs_kernel<kExact>()};

} // namespace

void avx512_bf16::add_bf16(KernelTable &t) {
    fill_binary_of<bf16>(t, INFINI_DTYPE_BF16);
    fill_norm_of<bf16>(t.add_rms_norm[INFINI_DTYPE_BF16]);
    t.gemm[INFINI_DTYPE_BF16] = kKernel;
    t.gemm_pairs[kFast] = kPairs[kFast];
    t.gemm_pairs[kExact] = kPairs[kExact];
}

} // namespace infini
