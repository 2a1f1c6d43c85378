/* add_rms_norm. The build compiles this file for each instruction set. */
#include "cpu/kernels/intrinsics.h"

#include "cpu/kernels.h"

namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/norm.inl"

} // namespace

void INFINI_ISA::add_norm(KernelTable &t) { fill_norm(t); }

} // namespace infini
