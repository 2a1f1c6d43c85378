/* Vectors of 8 floats and 4 doubles in AVX2 with FMA and F16C. */
constexpr int kGemmRows = 6;    // 12 sums, 2 of B, 1 of A: 15 of 16 registers
constexpr bool kSmallL2 = true; // Zen 3 has 512 KiB
constexpr int kInPlaceMaxRows = 6;
constexpr int kColumnsRows = 6;
constexpr bool kLineKernels = false; // see gemm_lines.inl
template <class T>
constexpr bool kHasDots = true; // see gemm_dots.inl
constexpr bool kManyRegisters = false;
constexpr bool kLeanSteps = true; // see steps_of_rows()
constexpr int kHeldWeights = 8;   // vectors of them that rows of add_rms_norm share

struct VF {
    static constexpr int N = 8;
    using Scalar = float;
    __m256 v;
};
struct VD {
    static constexpr int N = 4;
    using Scalar = double;
    __m256d v;
};

INFINI_INLINE VF zero(VF) { return {_mm256_setzero_ps()}; }
INFINI_INLINE VD zero(VD) { return {_mm256_setzero_pd()}; }
INFINI_INLINE VF broadcast(float x) { return {_mm256_set1_ps(x)}; }
INFINI_INLINE VD broadcast(double x) { return {_mm256_set1_pd(x)}; }
INFINI_INLINE VF load(const float *p) { return {_mm256_loadu_ps(p)}; }
INFINI_INLINE VD load(const double *p) { return {_mm256_loadu_pd(p)}; }
INFINI_INLINE void store(float *p, VF x) { _mm256_storeu_ps(p, x.v); }
INFINI_INLINE void store(double *p, VD x) { _mm256_storeu_pd(p, x.v); }
INFINI_INLINE VF operator+(VF a, VF b) { return {_mm256_add_ps(a.v, b.v)}; }
INFINI_INLINE VD operator+(VD a, VD b) { return {_mm256_add_pd(a.v, b.v)}; }
INFINI_INLINE VF operator*(VF a, VF b) { return {_mm256_mul_ps(a.v, b.v)}; }
INFINI_INLINE VD operator*(VD a, VD b) { return {_mm256_mul_pd(a.v, b.v)}; }
/** a * b + c */
INFINI_INLINE VF fma(VF a, VF b, VF c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
INFINI_INLINE VD fma(VD a, VD b, VD c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }

/** sum += a * b, in sum's own register: left to itself the compiler moves sums about. */
INFINI_INLINE void add_product(VF &sum, VF a, VF b) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
}
INFINI_INLINE void add_product(VD &sum, VD a, VD b) {
    asm("vfmadd231pd %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
}

INFINI_INLINE VF widen(const f16 *, __m128i bits) { return {_mm256_cvtph_ps(bits)}; }
INFINI_INLINE VF widen(const bf16 *, __m128i bits) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
INFINI_INLINE VF load(const f16 *p) { return widen(p, _mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
INFINI_INLINE VF load(const bf16 *p) { return widen(p, _mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
INFINI_INLINE void store(f16 *p, VF x) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p),
                     _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INFINI_INLINE void store(bf16 *p, VF x) { // to_bf16 in eight lanes
    const __m256i u = _mm256_castps_si256(x.v);
    const __m256i high = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff)), 16);
    const __m256i quiet_nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet_nan, is_nan);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1)));
}

/* The first n lanes, by mask. AVX2 has none for 16-bit elements. */
INFINI_INLINE __m256i first_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INFINI_INLINE __m256i first_wide_lanes(int64_t n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
INFINI_INLINE VF load_n(const float *p, int64_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
INFINI_INLINE VD load_n(const double *p, int64_t n) { return {_mm256_maskload_pd(p, first_wide_lanes(n))}; }
INFINI_INLINE void store_n(float *p, VF x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x.v); }
INFINI_INLINE void store_n(double *p, VD x, int64_t n) { _mm256_maskstore_pd(p, first_wide_lanes(n), x.v); }
/** By two loads that overlap. */
template <class T>
INFINI_INLINE VF load_n(const T *p, int64_t n) {
    if (n >= VF::N) return load(p);
    uint64_t low = 0, high = 0;
    if (n >= 4) {
        __builtin_memcpy(&low, p, 8);
        __builtin_memcpy(&high, p + (n - 4), 8);
        high = high >> (7 - n) * 16 >> 16; // n may be 4
    } else if (n >= 2) {
        uint32_t first, last;
        __builtin_memcpy(&first, p, 4);
        __builtin_memcpy(&last, p + (n - 2), 4);
        low = first | static_cast<uint64_t>(last) << (n - 2) * 16;
    } else if (n == 1) {
        __builtin_memcpy(&low, p, 2);
    }
    return widen(p, _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)));
}
template <class T>
INFINI_INLINE void store_n(T *p, VF x, int64_t n) {
    store_n_by_memory(p, x, n);
}

/** x[i][j] <-> x[j][i] */
INFINI_INLINE void transpose(VF (&x)[8]) {
    __m256 t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) { // pairs of rows: 2 x 2 blocks within each 128-bit lane
        t[i] = _mm256_unpacklo_ps(x[i].v, x[i + 1].v);
        t[i + 1] = _mm256_unpackhi_ps(x[i].v, x[i + 1].v);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) { // 4 x 4 blocks: u[i + c] holds column 4 l + c of rows i.. in lane l
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        x[c].v = _mm256_permute2f128_ps(u[c], u[c + 4], 0x20);
        x[c + 4].v = _mm256_permute2f128_ps(u[c], u[c + 4], 0x31);
    }
}
INFINI_INLINE void transpose(VD (&x)[4]) {
    const __m256d a = _mm256_unpacklo_pd(x[0].v, x[1].v), b = _mm256_unpackhi_pd(x[0].v, x[1].v);
    const __m256d c = _mm256_unpacklo_pd(x[2].v, x[3].v), d = _mm256_unpackhi_pd(x[2].v, x[3].v);
    x[0].v = _mm256_permute2f128_pd(a, c, 0x20);
    x[1].v = _mm256_permute2f128_pd(b, d, 0x20);
    x[2].v = _mm256_permute2f128_pd(a, c, 0x31);
    x[3].v = _mm256_permute2f128_pd(b, d, 0x31);
}
