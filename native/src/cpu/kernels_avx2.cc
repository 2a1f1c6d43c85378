/* Kernels for x86-64 CPUs with AVX2, FMA and F16C. The build compiles this file alone for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

#define INFINI_ISA_TABLE kKernelsAvx2
#include "cpu/kernels.inl"
