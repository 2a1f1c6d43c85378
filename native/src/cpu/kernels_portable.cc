/* Kernels for any CPU: what the compiler's baseline offers. */
#include "cpu/kernels.h"

#define INFINI_ISA portable
#define INFINI_ISA_TABLE kKernelsPortable
#include "cpu/kernels.inl"
