/* Kernels for x86-64 CPUs with AVX-512 F, BW, DQ and VL. The build compiles this file alone for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

#define INFINI_ISA_TABLE kKernelsAvx512
#include "cpu/kernels.inl"
