/* What a file of kernels includes first: vectors.inl has the intrinsics of the instruction set that it is compiled for. */
#pragma once
#if defined(__SSE2__)
#include <immintrin.h>
#endif
