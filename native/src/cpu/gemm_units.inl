/* Units: what panels of a matrix product are made of, one element each or the pairs that some instructions sum up. */

/** Units of T as one element each, converted to the type sums are kept in. */
template <class T>
struct Units {
    using Sums = Vec<T>;
    using Vector = Sums;
    using Unit = typename Sums::Scalar;
    using Result = T;                     // an element of C
    static constexpr int kDepth = 1;      // elements of k in a unit
    static constexpr bool kFlush = false; // may multiply_add<kFast>() flush subnormal numbers?

    /** Remembers nothing: no kernel asks for it. */
    struct Least {
        int exponent() const { return kLeastOfNothing; }
    };
    static INFINI_INLINE Vector vector(Sums x) { return x; }
    /** A's, so many elements further. */
    static INFINI_INLINE Unit one_of_a(const Unit *a, int64_t further) { return a[further]; }
    /** Elements k.. of one row, `left` of which there are: those of N units. */
    static INFINI_INLINE Sums along_k(const T *p, int64_t left, Least &) {
        return left >= Sums::N ? load(p) : load_n(p, left);
    }
    /** The units of C * N columns, or of the first n < N. `next_k` is where the next k lies. */
    template <int C>
    static INFINI_INLINE void across(Vector (&x)[C], const T *p, const T *, Least &) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) x[c] = load(p + c * Sums::N);
    }
    static INFINI_INLINE Vector across_n(const T *p, const T *, int64_t n, Least &) { return load_n(p, n); }
    static INFINI_INLINE Unit one(const T *p, const T *, Least &) { return to_acc(*p); }
};

template <class T>
constexpr bool kOfPairs = false;
template <>
constexpr bool kOfPairs<pair> = true;

template <int Exactness, class V>
INFINI_INLINE V multiply_add(V a, V b, V sum) {
    return fma(a, b, sum);
}

#if defined(__AVX512BF16__)
/** 32 elements of a row, or n < 32 and zeros. */
INFINI_INLINE __m512i load_some(const bf16 *p, int64_t n) {
    return n >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1u), p);
}

/** Two neighbours in k, the first in the lower half. The instruction adds the product of the second ones, then that of the first
 *  ones, each rounded like a fused multiply-add, but takes subnormal operands and results for 0. */
template <>
struct Units<bf16> {
    using Sums = VF;
    using Vector = VP;
    using Unit = pair;
    using Result = bf16;
    static constexpr int kDepth = 2;
    static constexpr bool kFlush = true;

    static INFINI_INLINE Unit one_of_a(const Unit *a, int64_t further) { return a[further]; } // packed

    struct Least {
        __m512i magnitude = _mm512_set1_epi16(-1); // less 1, so that 0 is the largest
        INFINI_INLINE void meet(__m512i x) {
            const __m512i bits = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
            magnitude = _mm512_min_epu16(magnitude, _mm512_sub_epi16(bits, _mm512_set1_epi16(1)));
        }
        INFINI_INLINE int exponent() const {
            const __m256i halves =
                _mm256_min_epu16(_mm512_castsi512_si256(magnitude), _mm512_extracti64x4_epi64(magnitude, 1));
            const __m128i lanes = _mm_min_epu16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
            const int least = _mm_extract_epi16(_mm_minpos_epu16(lanes), 0);
            return least == 0xffff ? kLeastOfNothing : (least + 1) >> 7;
        }
    };
    static INFINI_INLINE VP vector(VF x) { return {_mm512_castps_si512(x.v)}; }
    static INFINI_INLINE VF along_k(const bf16 *p, int64_t left, Least &least) {
        const __m512i x = load_some(p, left);
        least.meet(x);
        return {_mm512_castsi512_ps(x)};
    }
    template <int C>
    static INFINI_INLINE void across(VP (&x)[C], const bf16 *p, const bf16 *next_k, Least &least) {
#pragma GCC unroll 4
        for (int c = 0; c + 1 < C; c += 2) {
            const __m512i first = _mm512_loadu_si512(p + c * 16);
            const __m512i second = next_k != nullptr ? _mm512_loadu_si512(next_k + c * 16) : _mm512_setzero_si512();
            least.meet(first);
            least.meet(second);
            x[c] = interleave(first, second, 0);
            x[c + 1] = interleave(first, second, 1);
        }
        if constexpr (C % 2 != 0)
            x[C - 1] = across_n(p + (C - 1) * 16, next_k == nullptr ? nullptr : next_k + (C - 1) * 16, 16, least);
    }
    static INFINI_INLINE VP across_n(const bf16 *p, const bf16 *next_k, int64_t n, Least &least) {
        const __mmask16 lanes = first_lanes(n);
        const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
        const __m512i second =
            next_k != nullptr ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, next_k)) : _mm512_setzero_si512();
        const __m512i both = _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
        least.meet(both);
        return {both};
    }
    static INFINI_INLINE pair one(const bf16 *p, const bf16 *next_k, Least &least) {
        const pair both = {p->bits | (next_k != nullptr ? static_cast<uint32_t>(next_k->bits) << 16 : 0u)};
        least.meet(_mm512_set1_epi32(static_cast<int>(both.bits)));
        return both;
    }
};

/** Pairs that are elements themselves. Whoever packed them knows their exponents. */
template <>
struct Units<pair> {
    using Sums = VF;
    using Vector = VP;
    using Unit = pair;
    using Result = bf16;
    static constexpr int kDepth = 1;
    static constexpr bool kFlush = false;

    struct Least {
        int exponent() const { return kLeastOfNothing; }
    };
    static INFINI_INLINE Unit one_of_a(const Unit *a, int64_t further) {
        Unit unit;
        __builtin_memcpy(&unit, reinterpret_cast<const bf16 *>(a) + further, sizeof unit);
        return unit;
    }
    /** With 0 for what may not be there. */
    static INFINI_INLINE Unit first_of_a(const Unit *a, int64_t further) {
        return {reinterpret_cast<const bf16 *>(a)[further].bits};
    }
    template <int C>
    static INFINI_INLINE void across(VP (&x)[C], const pair *p, const pair *, Least &) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) x[c] = load(p + c * VP::N);
    }
    static INFINI_INLINE VP across_n(const pair *p, const pair *, int64_t n, Least &) {
        return {_mm512_maskz_loadu_epi32(first_lanes(n), p)};
    }
};

template <int Exactness>
INFINI_INLINE VF multiply_add(VP a, VP b, VF sum) {
    if constexpr (Exactness == kFast) return multiply_add_pairs(a, b, sum);
    return fma(first_of(a), first_of(b), fma(second_of(a), second_of(b), sum));
}
#endif
