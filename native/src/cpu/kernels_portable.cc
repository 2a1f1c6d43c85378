/* Kernels for any CPU: what the compiler's baseline offers. */
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cpu/kernels.h"

#define INFINI_ISA_TABLE kKernelsPortable
#include "cpu/kernels.inl"
