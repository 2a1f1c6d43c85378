/* What vectors do within lanes of 16 bytes, where x86 CPUs shuffle at the highest rate. */

constexpr int64_t kLine = 64; // bytes of a cache line

#if defined(__SSE2__)
/* interleave_*: the elements of two vectors in turns, of the lower or the upper half of each lane. */
#define INFINI_INTERLEAVE(V, PREFIX)                                                       \
    template <int kSize>                                                                   \
    INFINI_INLINE V interleave_low(V a, V b) {                                             \
        if (kSize == 1) return PREFIX##_unpacklo_epi8(a, b);                               \
        if (kSize == 2) return PREFIX##_unpacklo_epi16(a, b);                              \
        return kSize == 4 ? PREFIX##_unpacklo_epi32(a, b) : PREFIX##_unpacklo_epi64(a, b); \
    }                                                                                      \
    template <int kSize>                                                                   \
    INFINI_INLINE V interleave_high(V a, V b) {                                            \
        if (kSize == 1) return PREFIX##_unpackhi_epi8(a, b);                               \
        if (kSize == 2) return PREFIX##_unpackhi_epi16(a, b);                              \
        return kSize == 4 ? PREFIX##_unpackhi_epi32(a, b) : PREFIX##_unpackhi_epi64(a, b); \
    }
INFINI_INTERLEAVE(__m128i, _mm)
#if defined(__AVX2__)
INFINI_INTERLEAVE(__m256i, _mm256)
#endif
#if defined(__AVX512F__)
INFINI_INTERLEAVE(__m512i, _mm512)
using Wide = __m512i;
#elif defined(__AVX2__)
using Wide = __m256i;
#else
using Wide = __m128i;
#endif
#undef INFINI_INTERLEAVE

/** x[i][j] <-> x[j][i] in each lane. A step interleaves vectors half of them apart; after log2 of them as many, every bit of the
 *  one number has moved into the other. Of fewer vectors than a lane has elements, x[i] gets some j after the other. */
template <int kSize, class V, int kRows>
INFINI_INLINE void transpose_lanes(V (&x)[kRows]) {
    V y[kRows];
#pragma GCC unroll 4
    for (int step = 1; step < kRows; step *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows / 2; ++i) {
            y[2 * i] = interleave_low<kSize>(x[i], x[i + kRows / 2]);
            y[2 * i + 1] = interleave_high<kSize>(x[i], x[i + kRows / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) x[i] = y[i];
    }
}
#endif
