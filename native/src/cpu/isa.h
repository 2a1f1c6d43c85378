/* Which instruction set the kernels use: chosen once, by CPUID and INFINIOP_MAX_ISA. */
#pragma once
#include "cpu/kernels.h"

namespace infini {

/** The kernels of the best instruction set this CPU has and INFINIOP_MAX_ISA allows. */
const KernelTable &kernels();
/** Its name. Static. */
const char *isa_name();
/** Why these, in a few words. Static. */
const char *isa_reason();

} // namespace infini
