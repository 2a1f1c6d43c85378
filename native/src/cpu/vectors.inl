/* The types of elements and one instruction set's vectors of them. */
struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
struct pair { // of BF16, the first in the lower half
    uint32_t bits;
};
struct u128 {
    uint64_t lo, hi;
};

#include "cpu/half.inl"
#include "cpu/vec_before.inl"
#if defined(__AVX512F__)
#include "cpu/vec_avx512.inl"
#elif defined(__AVX2__)
#include "cpu/vec_avx2.inl"
#else
#include "cpu/vec_portable.inl"
#endif
#include "cpu/vec_common.inl"
#include "cpu/block.inl"
#include "cpu/lanes.inl"
