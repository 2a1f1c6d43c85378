/* What CPUs with AVX-512 that convert F16 as fast in vectors of 64 bytes do otherwise than by kKernelsAvx512: add, mul and
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

constexpr KernelTable make_table() {
    KernelTable t{};
#define INFINI_FILL_BINARY(ID, name, Name)                                           \
    t.binary[kBinary##Name][INFINI_DTYPE_F16] = binary_rows<Name, f16, false>;       \
    t.binary_stream[kBinary##Name][INFINI_DTYPE_F16] = binary_rows<Name, f16, true>; \
    t.binary_tile[kBinary##Name][INFINI_DTYPE_F16] = binary_tile<Name, f16>;
    INFINI_BINARY_LIST(INFINI_FILL_BINARY)
#undef INFINI_FILL_BINARY
    fill_norm_f16(t);
    return t;
}

} // namespace

constexpr KernelTable kKernelsAvx512Wide = make_table();

} // namespace infini
