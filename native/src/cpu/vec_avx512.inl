/* Vectors of 16 floats and 8 doubles in AVX-512. */
constexpr int kGemmRows = 12; // 24 sums, 2 of B, 1 of A; measured 8 % ahead of 14 rows, which would fit too
constexpr bool kSmallL2 = false;
constexpr int kInPlaceMaxRows = 8;
constexpr int kColumnsRows = 16;
constexpr bool kLineKernels = true; // see gemm_lines.inl
/** See gemm_dots.inl. F32 was up to 1.5 times as fast so in one to four rows, and took up to 1.5 times as long in eight and more. */
template <class T>
constexpr bool kHasDots = false;
template <>
constexpr bool kHasDots<f16> = true;
constexpr bool kManyRegisters = true; // of vectors: 32
constexpr bool kLeanSteps = false;
constexpr int kHeldWeights = 16; // vectors of them that rows of add_rms_norm share

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

INFINI_INLINE VF load(const f16 *p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
}
INFINI_INLINE void store(f16 *p, VF x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                        _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INFINI_INLINE VF load(const bf16 *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
#if defined(__AVX512BF16__)
/** Instructions that convert to BF16 take and give 0 for such numbers. They are looked for only where a result has a lane of 0. */
INFINI_INLINE bool any_subnormal(VF x) {
    constexpr int kSubnormal = 0x20;
    return _mm512_fpclass_ps_mask(x.v, kSubnormal) != 0;
}
#endif
INFINI_INLINE void store(bf16 *p, VF x) { // to_bf16 in sixteen lanes
#if defined(__AVX512BF16__)
    const auto converted = (__m256i)_mm512_cvtneps_pbh(x.v);
    if (__builtin_expect(_mm256_testn_epi16_mask(converted, _mm256_set1_epi16(0x7f80)) == 0, 1) || !any_subnormal(x))
        return _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), converted);
#endif
    const __m512i u = _mm512_castps_si512(x.v);
    const __m512i high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff)), 16);
    const __m512i quiet_nan = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __m512i result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), quiet_nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16(result));
}

#if defined(__AVX512BF16__)
template <>
constexpr bool kStoresTwo<bf16> = true;
INFINI_INLINE void store_two(bf16 *p, VF x, VF y) {
    const auto converted = (__m512i)_mm512_cvtne2ps_pbh(y.v, x.v);
    const bool zeros = _mm512_testn_epi16_mask(converted, _mm512_set1_epi16(0x7f80)) != 0;
    if (__builtin_expect(!zeros, 1) || !(any_subnormal(x) || any_subnormal(y)))
        return _mm512_storeu_si512(p, converted);
    store(p, x);
    store(p + VF::N, y);
}
#endif

/* The first n < N lanes, by mask. */
INFINI_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
INFINI_INLINE VF load_n(const float *p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
INFINI_INLINE VD load_n(const double *p, int64_t n) {
    return {_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(n)), p)};
}
INFINI_INLINE VF load_n(const f16 *p, int64_t n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
INFINI_INLINE VF load_n(const bf16 *p, int64_t n) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
INFINI_INLINE void store_n(float *p, VF x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }
INFINI_INLINE void store_n(double *p, VD x, int64_t n) {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(first_lanes(n)), x.v);
}
template <class T>
INFINI_INLINE void store_n(T *p, VF x, int64_t n) { // F16 and BF16
    T whole[VF::N];
    store(whole, x);
    _mm256_mask_storeu_epi16(p, first_lanes(n), _mm256_loadu_si256(reinterpret_cast<const __m256i *>(whole)));
}

/** x[i][j] <-> x[j][i] */
INFINI_INLINE void transpose(VF (&x)[16]) {
    __m512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) { // pairs of rows: 2 x 2 blocks within each 128-bit lane
        t[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
        t[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
    }
    __m512 u[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // 4 x 4 blocks: u[i + c] holds column 4 l + c of rows i.. in lane l
        const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 2]), c = _mm512_castps_pd(t[i + 1]),
                      d = _mm512_castps_pd(t[i + 3]);
        u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
        u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) { // the 4 x 4 lanes of four such vectors
        const __m512 p = _mm512_shuffle_f32x4(u[c], u[c + 4], 0x44), q = _mm512_shuffle_f32x4(u[c], u[c + 4], 0xee);
        const __m512 r = _mm512_shuffle_f32x4(u[c + 8], u[c + 12], 0x44),
                     s = _mm512_shuffle_f32x4(u[c + 8], u[c + 12], 0xee);
        x[c].v = _mm512_shuffle_f32x4(p, r, 0x88);
        x[c + 4].v = _mm512_shuffle_f32x4(p, r, 0xdd);
        x[c + 8].v = _mm512_shuffle_f32x4(q, s, 0x88);
        x[c + 12].v = _mm512_shuffle_f32x4(q, s, 0xdd);
    }
}
INFINI_INLINE void transpose(VD (&x)[8]) {
    __m512d t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(x[i].v, x[i + 1].v);
        t[i + 1] = _mm512_unpackhi_pd(x[i].v, x[i + 1].v);
    }
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
        const __m512d p = _mm512_shuffle_f64x2(t[c], t[c + 2], 0x44), q = _mm512_shuffle_f64x2(t[c], t[c + 2], 0xee);
        const __m512d r = _mm512_shuffle_f64x2(t[c + 4], t[c + 6], 0x44),
                      s = _mm512_shuffle_f64x2(t[c + 4], t[c + 6], 0xee);
        x[c].v = _mm512_shuffle_f64x2(p, r, 0x88);
        x[c + 2].v = _mm512_shuffle_f64x2(p, r, 0xdd);
        x[c + 4].v = _mm512_shuffle_f64x2(q, s, 0x88);
        x[c + 6].v = _mm512_shuffle_f64x2(q, s, 0xdd);
    }
}

/* The same of N rows of N elements, which begin `step` elements apart. A load into half of a vector is no shuffle, of which a CPU may do
 * one a cycle: a quarter and a third less of them. */

INFINI_INLINE void load_transposed(VF (&x)[16], const float *p, int64_t step) {
    __m512 t[2][2][4]; // [half of a row][rows 0.. or 8..]: row i in the lower half, i + 4 in the upper
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i, p += step)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            __m512 &to = t[half][i / 8][i % 4];
            const __m256 some = _mm256_loadu_ps(p + half * 8);
            to = i % 8 < 4 ? _mm512_castps256_ps512(some) : _mm512_insertf32x8(to, some, 1);
        }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        __m512 u[2][4]; // u[rows][c]: elements c and 4 + c of four rows in each lane
#pragma GCC unroll 2
        for (int rows = 0; rows < 2; ++rows) {
            const auto &r = t[half][rows];
            const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1])),
                          b = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3])),
                          c = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1])),
                          d = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
            u[rows][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[rows][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            u[rows][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
            u[rows][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            x[half * 8 + c].v = _mm512_shuffle_f32x4(u[0][c], u[1][c], 0x88);
            x[half * 8 + 4 + c].v = _mm512_shuffle_f32x4(u[0][c], u[1][c], 0xdd);
        }
    }
}
INFINI_INLINE void load_transposed(VD (&x)[8], const double *p, int64_t step) {
    __m512d t[2][2][2]; // [half of a row][rows 0.. or 4..]: row i in the lower half, i + 2 in the upper
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i, p += step)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            __m512d &to = t[half][i / 4][i % 2];
            const __m256d some = _mm256_loadu_pd(p + half * 4);
            to = i % 4 < 2 ? _mm512_castpd256_pd512(some) : _mm512_insertf64x4(to, some, 1);
        }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) {
            const auto &r = t[half];
            const __m512d low = c == 0 ? _mm512_unpacklo_pd(r[0][0], r[0][1]) : _mm512_unpackhi_pd(r[0][0], r[0][1]),
                          high = c == 0 ? _mm512_unpacklo_pd(r[1][0], r[1][1]) : _mm512_unpackhi_pd(r[1][0], r[1][1]);
            x[half * 4 + c].v = _mm512_shuffle_f64x2(low, high, 0x88);
            x[half * 4 + 2 + c].v = _mm512_shuffle_f64x2(low, high, 0xdd);
        }
}

/** Sixteen pairs of BF16. */
struct VP {
    static constexpr int N = 16;
    __m512i v;
};
INFINI_INLINE VF first_of(VP x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16))}; }
INFINI_INLINE VF second_of(VP x) {
    return {_mm512_castsi512_ps(_mm512_and_si512(x.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

#if defined(__AVX512BF16__)
INFINI_INLINE VP load(const pair *p) { return {_mm512_loadu_si512(p)}; }
INFINI_INLINE VP broadcast(pair x) { return {_mm512_set1_epi32(static_cast<int>(x.bits))}; }
INFINI_INLINE void store(pair *p, VP x) { _mm512_storeu_si512(p, x.v); }
INFINI_INLINE void store_n(pair *p, VP x, int64_t n) { _mm512_mask_storeu_epi32(p, first_lanes(n), x.v); }
INFINI_INLINE VF multiply_add_pairs(VP a, VP b, VF sum) {
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
/** Pairs of the lower, or upper, sixteen elements of two rows. */
alignas(64) constexpr int16_t kInterleave[2][32] = {{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
                                                    {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                                     24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
INFINI_INLINE VP interleave(__m512i first, __m512i second, int half) {
    return {_mm512_permutex2var_epi16(first, _mm512_load_si512(kInterleave[half]), second)};
}
#endif
