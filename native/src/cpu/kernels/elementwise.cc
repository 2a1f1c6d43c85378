/* Copies and transposes, add and mul, which may turn what they read as these do, and what the hardware can do at most. The build
 * compiles this file for each instruction set. */
#include "cpu/kernels/intrinsics.h"

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/binary.inl"
#include "cpu/binary_tile.inl"
#include "cpu/ceilings.inl"

} // namespace

void INFINI_ISA::add_elementwise(KernelTable &t) {
    fill_copy(t);
    fill_ceilings(t);
#define INFINI_FILL_BINARY(ID, name, Name)                   \
    fill_binary<Name, false>(t.binary[kBinary##Name]);       \
    fill_binary<Name, true>(t.binary_stream[kBinary##Name]); \
    fill_binary_tile<Name>(t.binary_tile[kBinary##Name]);
    INFINI_BINARY_LIST(INFINI_FILL_BINARY)
#undef INFINI_FILL_BINARY
}

} // namespace infini
