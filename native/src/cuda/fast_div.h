/* Division by a number that is known when a problem is planned: a multiplication and a shift (Granlund and Montgomery, "Division
 * by invariant integers using multiplication", 1994, for dividends that leave the highest bit free). */
#pragma once
#include "cuda/device.h"

namespace infini::cuda {

#ifdef __CUDACC__
INFINI_DEVICE uint32_t high_product(uint32_t a, uint32_t b) { return __umulhi(a, b); }
INFINI_DEVICE uint64_t high_product(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
#else
inline uint32_t high_product(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline uint64_t high_product(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}
#endif

/** U is uint32_t or uint64_t; dividends are below half its range, the divisor is positive and at most that. */
template <class U>
struct FastDiv {
    U divisor = 1, magic = U{1} << (8 * sizeof(U) - 1);
    int shift = 0;

    FastDiv() = default;
    explicit FastDiv(U d) : divisor(d) {
        constexpr int kBits = 8 * sizeof(U);
        while ((U{1} << shift) < d) ++shift;
        // ceil(2^(bits - 1 + shift) / d), bit by bit: no wider type is needed
        U quotient = 0, rest = 0;
        for (int bit = kBits - 1 + shift; bit >= 0; --bit) {
            rest = static_cast<U>(rest << 1 | (bit == kBits - 1 + shift));
            quotient <<= 1;
            if (rest >= d) {
                rest -= d;
                quotient |= 1;
            }
        }
        magic = quotient + (rest != 0);
    }

    INFINI_DEVICE U divide(U n) const { return high_product(n << 1, magic) >> shift; }
};

} // namespace infini::cuda
