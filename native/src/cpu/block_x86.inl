/* Blocks of halves with AVX2 and with AVX-512. */

/** F16 is computed in vectors of 8 floats even where there are longer ones, which Zen 4 converts at a lower rate; but in
 *  kernels_avx512_wide.cc. */
struct VH {
    static constexpr int N = 8;
    using Scalar = float;
    __m256 v;
};
template <>
INFINI_INLINE VH splat<VH>(float x) {
    return {_mm256_set1_ps(x)};
}
INFINI_INLINE VH zero(VH) { return {_mm256_setzero_ps()}; }
/** As a * 1 + b, the same number: conversions take the units that add, and are what bounds rows of F16. */
INFINI_INLINE VH operator+(VH a, VH b) { return {_mm256_fmadd_ps(a.v, _mm256_set1_ps(1), b.v)}; }
INFINI_INLINE VH operator*(VH a, VH b) { return {_mm256_mul_ps(a.v, b.v)}; }
INFINI_INLINE VH fma(VH a, VH b, VH c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
INFINI_INLINE void store(float *p, VH x) { _mm256_storeu_ps(p, x.v); }
/* Eight elements. A conversion that reads memory by itself takes no shuffle, as one from a register does. */
INFINI_INLINE VH load_eight(const float *p) { return {_mm256_loadu_ps(p)}; }
INFINI_INLINE VH load_eight(const f16 *p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)))};
}
INFINI_INLINE VH load_eight(const bf16 *p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
}

template <>
constexpr bool kReadBack<f16> = true;
#if defined(INFINI_WIDE_F16)
template <>
struct PartOf<f16> {
    using type = VF;
};
template <>
constexpr int kParts<f16> = 2;

template <>
struct Packed<f16> {
    using Vector = __m256i;
    Vector v[2];
};
INFINI_INLINE Block<f16> unpack(const Packed<f16> &x) {
    return {{{_mm512_cvtph_ps(x.v[0])}, {_mm512_cvtph_ps(x.v[1])}}};
}
INFINI_INLINE Packed<f16> pack(const Block<f16> &x) {
    constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {{_mm512_cvtps_ph(x.part[0].v, kRounding), _mm512_cvtps_ph(x.part[1].v, kRounding)}};
}
template <class From>
INFINI_INLINE void load_parts(Block<f16> &x, const From *p) {
    x.part[0] = load(p);
    x.part[1] = load(p + VF::N);
}
#else
template <>
struct PartOf<f16> {
    using type = VH;
};
template <>
constexpr int kParts<f16> = 4;

template <>
struct Packed<f16> {
    using Vector = __m128i;
    Vector v[4];
};
INFINI_INLINE Block<f16> unpack(const Packed<f16> &x) {
    Block<f16> block;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) block.part[i].v = _mm256_cvtph_ps(x.v[i]);
    return block;
}
INFINI_INLINE Packed<f16> pack(const Block<f16> &x) {
    Packed<f16> packed;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        packed.v[i] = _mm256_cvtps_ph(x.part[i].v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return packed;
}
template <class From>
INFINI_INLINE void load_parts(Block<f16> &x, const From *p) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x.part[i] = load_eight(p + i * VH::N);
}
#endif
INFINI_INLINE Block<f16> load_block(const f16 *p) {
    Block<f16> block;
    load_parts(block, p);
    return block;
}

/* BF16: part 0 holds the elements of even index, part 1 those of odd index, which the upper half of a 32-bit lane is already:
 * both ways take no shuffle. */
template <>
struct PartOf<bf16> {
    using type = VF;
};
template <>
constexpr int kParts<bf16> = 2;

#if defined(__AVX512F__)
template <>
struct Packed<bf16> {
    using Vector = __m512i;
    Vector v[1];
};
INFINI_INLINE Block<bf16> unpack(const Packed<bf16> &x) {
    return {{{_mm512_castsi512_ps(_mm512_slli_epi32(x.v[0], 16))},
             {_mm512_castsi512_ps(_mm512_and_si512(x.v[0], _mm512_set1_epi32(~0xffff)))}}};
}
/** to_bf16 in sixteen lanes, the result in their upper halves; but for NaNs. */
INFINI_INLINE __m512i round_numbers(VF x) {
    const __m512i u = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
}
INFINI_INLINE __m512i quiet_nans(VF x, __m512i rounded) {
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), _mm512_castps_si512(x.v),
                                _mm512_set1_epi32(0x400000));
}
INFINI_INLINE __m512i join(__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(even, 16), odd);
}
INFINI_INLINE Packed<bf16> pack(const Block<bf16> &block) {
    const VF *const x = block.part;
#if defined(__AVX512BF16__)
    static constexpr uint16_t kInterleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i result = (__m512i)_mm512_cvtne2ps_pbh(x[1].v, x[0].v);
    result = _mm512_permutexvar_epi16(_mm512_loadu_si512(kInterleaved), result);
    if (__builtin_expect(_mm512_testn_epi16_mask(result, _mm512_set1_epi16(0x7f80)) != 0, 0) &&
        (any_subnormal(x[0]) || any_subnormal(x[1])))
        result = join(quiet_nans(x[0], round_numbers(x[0])), quiet_nans(x[1], round_numbers(x[1])));
#else
    __m512i even = round_numbers(x[0]), odd = round_numbers(x[1]);
    if (__builtin_expect(_mm512_cmp_ps_mask(x[0].v, x[1].v, _CMP_UNORD_Q) != 0, 0)) {
        even = quiet_nans(x[0], even);
        odd = quiet_nans(x[1], odd);
    }
    const __m512i result = join(even, odd);
#endif
    return {{result}};
}
/** Elements in order -> as in a block of BF16. */
INFINI_INLINE void deal(VF (&x)[2]) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512 low = x[0].v;
    x[0].v = _mm512_permutex2var_ps(low, even, x[1].v);
    x[1].v = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), x[1].v);
}
#else
template <>
struct Packed<bf16> {
    using Vector = __m256i;
    Vector v[1];
};
INFINI_INLINE Block<bf16> unpack(const Packed<bf16> &x) {
    return {{{_mm256_castsi256_ps(_mm256_slli_epi32(x.v[0], 16))},
             {_mm256_castsi256_ps(_mm256_and_si256(x.v[0], _mm256_set1_epi32(~0xffff)))}}};
}
/** to_bf16 in eight lanes, the result in their upper halves; but for NaNs. */
INFINI_INLINE __m256i round_numbers(VF x) {
    const __m256i u = _mm256_castps_si256(x.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}
INFINI_INLINE __m256i quiet_nans(VF x, __m256i rounded) {
    const __m256 quiet = _mm256_or_ps(x.v, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q)));
}
INFINI_INLINE Packed<bf16> pack(const Block<bf16> &block) {
    const VF *const x = block.part;
    __m256i even = round_numbers(x[0]), odd = round_numbers(x[1]);
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(x[0].v, x[1].v, _CMP_UNORD_Q)) != 0, 0)) {
        even = quiet_nans(x[0], even);
        odd = quiet_nans(x[1], odd);
    }
    return {{_mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa)}};
}
/** Elements in order -> as in a block of BF16. */
INFINI_INLINE void deal(VF (&x)[2]) {
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(x[0].v, x[1].v, 0x88)),
                  odd = _mm256_castps_pd(_mm256_shuffle_ps(x[0].v, x[1].v, 0xdd));
    x[0].v = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
    x[1].v = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}
#endif
template <class From>
INFINI_INLINE void load_parts(Block<bf16> &x, const From *p) {
    x.part[0] = load(p);
    x.part[1] = load(p + VF::N);
    deal(x.part);
}
