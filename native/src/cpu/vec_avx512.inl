/* Vectors of 16 floats and 8 doubles in AVX-512. */
#define INFINI_INLINE __attribute__((always_inline)) inline

constexpr int kGemmRows = 14; // 28 sums, 2 of B, 1 of A: 31 of 32 registers

struct VF {
    static constexpr int N = 16;
    using Scalar = float;
    __m512 v;
};
struct VD {
    static constexpr int N = 8;
    using Scalar = double;
    __m512d v;
};

INFINI_INLINE VF zero(VF) { return {_mm512_setzero_ps()}; }
INFINI_INLINE VD zero(VD) { return {_mm512_setzero_pd()}; }
INFINI_INLINE VF broadcast(float x) { return {_mm512_set1_ps(x)}; }
INFINI_INLINE VD broadcast(double x) { return {_mm512_set1_pd(x)}; }
INFINI_INLINE VF load(const float *p) { return {_mm512_loadu_ps(p)}; }
INFINI_INLINE VD load(const double *p) { return {_mm512_loadu_pd(p)}; }
INFINI_INLINE void store(float *p, VF x) { _mm512_storeu_ps(p, x.v); }
INFINI_INLINE void store(double *p, VD x) { _mm512_storeu_pd(p, x.v); }
INFINI_INLINE VF operator+(VF a, VF b) { return {_mm512_add_ps(a.v, b.v)}; }
INFINI_INLINE VD operator+(VD a, VD b) { return {_mm512_add_pd(a.v, b.v)}; }
INFINI_INLINE VF operator*(VF a, VF b) { return {_mm512_mul_ps(a.v, b.v)}; }
INFINI_INLINE VD operator*(VD a, VD b) { return {_mm512_mul_pd(a.v, b.v)}; }
/** a * b + c */
INFINI_INLINE VF fma(VF a, VF b, VF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INFINI_INLINE VD fma(VD a, VD b, VD c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }

INFINI_INLINE VF load(const f16 *p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))}; }
INFINI_INLINE void store(f16 *p, VF x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INFINI_INLINE VF load(const bf16 *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
INFINI_INLINE void store(bf16 *p, VF x) { // to_bf16 in sixteen lanes
    const __m512i u = _mm512_castps_si512(x.v);
    const __m512i high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff)), 16);
    const __m512i quiet_nan = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __m512i result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), quiet_nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16(result));
}
