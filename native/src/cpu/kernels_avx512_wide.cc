/* What CPUs with AVX-512 that convert F16 faster in vectors of 64 bytes do otherwise than others: add, mul and
 * add_rms_norm of it. The build compiles this file alone for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

#define INFINI_WIDE_F16 1

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/binary.inl"
#include "cpu/norm.inl"
#include "cpu/binary_tile.inl"

} // namespace

void avx512::add_wide_f16(KernelTable &t) {
    fill_binary_of<f16>(t, INFINI_DTYPE_F16);
    fill_norm_of<f16>(t.add_rms_norm[INFINI_DTYPE_F16]);
}

} // namespace infini
