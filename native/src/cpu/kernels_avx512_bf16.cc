/* Kernels for x86-64 CPUs with AVX-512 F, BW, DQ, VL and BF16. The build compiles this file alone for them. */
#include <immintrin.h>

#include "cpu/kernels.h"

#define INFINI_ISA avx512_bf16
#define INFINI_ISA_TABLE kKernelsAvx512Bf16
#include "cpu/kernels.inl"
