/* What x86-64 CPUs with AMX do otherwise than by kKernelsAvx512: products of BF16. The build compiles this file alone for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/binary.inl"
#include "cpu/gemm.inl"
#include "cpu/gemm_amx.inl"

constexpr KernelTable make_table() {
    KernelTable t{};
    t.gemm[INFINI_DTYPE_BF16] = amx_kernel();
    return t;
}

} // namespace

constexpr KernelTable kKernelsAmxBf16 = make_table();

} // namespace infini
