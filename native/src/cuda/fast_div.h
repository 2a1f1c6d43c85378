/* Division by a number that is known when a problem is planned: a multiplication and a shift (Granlund and Montgomery, "Division
 * by invariant integers using multiplication", 1994, for dividends that leave the highest bit free). */
#pragma once
#include <type_traits>

#include "cuda/device.h"

namespace infini::cuda {

__extension__ typedef unsigned __int128 Wide;

#ifdef __CUDACC__
INFINI_DEVICE uint32_t high_product(uint32_t a, uint32_t b) { return __umulhi(a, b); }
INFINI_DEVICE uint64_t high_product(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
#else
inline uint32_t high_product(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline uint64_t high_product(uint64_t a, uint64_t b) { return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64); }
#endif

/** U is uint32_t or uint64_t; dividends are below half its range, the divisor is positive and at most that. */
template <class U>
struct FastDiv {
    U divisor = 1, magic = U{1} << (8 * sizeof(U) - 1);
    int shift = 0;

    FastDiv() = default;
    explicit FastDiv(U d) : divisor(d) {
        while ((U{1} << shift) < d) ++shift;
        using Product = std::conditional_t<sizeof(U) == 4, uint64_t, Wide>;
        const Product power = Product{1} << (8 * sizeof(U) - 1 + shift);
        magic = static_cast<U>((power + d - 1) / d);
    }

    INFINI_DEVICE U divide(U n) const { return high_product(n << 1, magic) >> shift; }
};

/** Adds to `at` of each operand where it has the row of a number: dimensions are counted from the innermost on. */
template <class U, class At, int N, int D>
INFINI_DEVICE void add_row(U row, int n_dims, const FastDiv<U> (&size)[D], const int64_t (&stride)[N][D], At (&at)[N]) {
    for (int d = 0; d < n_dims; ++d) {
        const U next = size[d].divide(row);
        const auto index = static_cast<int64_t>(row - next * size[d].divisor);
        INFINI_UNROLL
        for (int i = 0; i < N; ++i) at[i] += index * stride[i][d];
        row = next;
    }
}

} // namespace infini::cuda
