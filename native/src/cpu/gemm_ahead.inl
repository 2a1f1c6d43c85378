/* Products that pack what follows: the part of B that GemmAhead names, a piece each time that they begin a few steps. */

/** The units of a row in two panels. */
template <class T>
struct PackingAhead {
    using U = Units<T>;
    GemmAhead &next;
    // Read once: for all the compiler knows, what is stored may be these.
    const T *from = static_cast<const T *>(next.from);
    typename U::Unit *to = static_cast<typename U::Unit *>(next.to);
    const int64_t stride = next.stride, fetch = next.fetch, pieces = next.pieces;
    /** Do rows of a piece begin elsewhere than cache lines do? */
    const bool straddles =
        (reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(stride) * sizeof(T)) % kLine != 0;
    int64_t in_row = next.in_row, left = next.left;
    typename U::Least least{};

    INFINI_INLINE void some() {
        constexpr int N = U::Sums::N;
        constexpr int64_t kElements = kLine / sizeof(T), kPanel = ahead_panel(2 * N, sizeof(typename U::Unit));
        if (left == 0) return;
        // First, since it is wanted later than what is read here, which may be waited for.
#pragma GCC unroll 2
        for (int d = 0; d < U::kDepth; ++d) {
            const T *const ahead = from + fetch + d * stride;
#pragma GCC unroll 4
            for (int64_t at = 0; at < 4 * N; at += kElements) __builtin_prefetch(ahead + at, 0, 0);
            if (straddles) __builtin_prefetch(ahead + 4 * N - 1, 0, 0);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            typename U::Vector x[2];
            U::across(x, from + i * 2 * N, from + i * 2 * N + stride, least);
            store(to + i * kPanel, x[0]);
            store(to + i * kPanel + N, x[1]);
        }
        from += 4 * N;
        to += 2 * kPanel;
        if (--in_row > 0) return;
        in_row = pieces;
        from += U::kDepth * stride - 4 * N * pieces;
        to += 2 * N - 2 * kPanel * pieces;
        --left;
    }
    INFINI_INLINE ~PackingAhead() {
        next.from = from;
        next.to = to;
        next.in_row = in_row;
        next.left = left;
        const int exponent = least.exponent();
        if (exponent < next.least) next.least = exponent;
    }
};

/** As much again each time, for products of so few rows that half of it would be left over. */
template <class T>
struct PackingTwiceAhead : PackingAhead<T> {
    INFINI_INLINE void some() {
        PackingAhead<T>::some();
        PackingAhead<T>::some();
    }
};

#if defined(__AVX512F__)
/** 8 columns x 8 units of 4 bytes, one of which is contiguous in k: more columns would meet in one set of the first-level cache,
 *  if they are a power of 2 apart. Afterwards x[i] has unit i of all columns, and then unit i + 4. */
INFINI_INLINE void load_columns(__m512 (&x)[4], const char *from, int64_t stride) {
    __m512 c[4], t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const char *const p = from + i * stride;
        const __m256d low = _mm256_loadu_pd(reinterpret_cast<const double *>(p));
        const __m256d high = _mm256_loadu_pd(reinterpret_cast<const double *>(p + 4 * stride));
        c[i] = _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castpd256_pd512(low), high, 1));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
        t[i] = _mm512_unpacklo_ps(c[i], c[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(c[i], c[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 2]);
        x[2 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        x[2 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    // Each lane has four columns of a unit: 0 to 3 of two units, then 4 to 7.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = _mm512_shuffle_f32x4(x[i], x[i], 0xd8);
}
/** Half a vector to each of two rows. */
INFINI_INLINE void store_halves(float *first, float *second, __m512 x) {
    _mm256_storeu_ps(first, _mm512_castps512_ps256(x));
    _mm256_storeu_pd(reinterpret_cast<double *>(second), _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}

template <class T>
constexpr bool kPacksColumns = sizeof(T) * Units<T>::kDepth == 4;
template <>
constexpr bool kPacksColumns<f16> = true;

template <class T>
struct PackingColumnsAhead {
    using U = Units<T>;
    static constexpr int kUnits = kAheadBytes / sizeof(T) / U::kDepth; // of a column in a piece
    GemmAhead &next;
    const char *from = static_cast<const char *>(next.from);
    float *to = static_cast<float *>(next.to);
    const int64_t stride = next.stride * int64_t{sizeof(T)}, fetch = next.fetch * int64_t{sizeof(T)},
                  pieces = next.pieces;
    int64_t in_row = next.in_row, left = next.left;
    typename U::Least least{};

    INFINI_INLINE void some() {
        constexpr int64_t N = U::Sums::N, kRow = 2 * N;
        if (left == 0) return;
        // A line of a column is two pieces: half of the columns each time.
        const char *const ahead = from + fetch + (in_row & 1) * 4 * stride;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) __builtin_prefetch(ahead + i * stride, 0, 2);
        __m512 x[4];
        load_columns(x, from, stride);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) put(to + i * (kUnits / 8) * kRow, x[i]);
        from += kAheadBytes;
        to += kUnits * kRow;
        if (--in_row > 0) return;
        in_row = pieces;
        from += kAheadColumns * stride - kAheadBytes * pieces;
        to += kAheadColumns - kUnits * kRow * pieces;
        --left;
        if (left % (kRow / kAheadColumns) == 0) to += ahead_panel(kRow, sizeof(float)) - kRow;
    }
    INFINI_INLINE void put(float *at, __m512 x) {
        constexpr int64_t kRow = 2 * U::Sums::N;
        if constexpr (sizeof(T) == 4) return store_halves(at, at + 4 * kRow, x);
        const __m512i both = _mm512_castps_si512(x);
        if constexpr (U::kDepth == 2) {
            least.meet(both);
            store_halves(at, at + 4 * kRow, x);
        } else { // F16, which is converted
            const __m512i second = _mm512_srli_epi32(both, 16);
            store_halves(at, at + 8 * kRow, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both)));
            store_halves(at + kRow, at + 9 * kRow, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(second)));
        }
    }
    INFINI_INLINE ~PackingColumnsAhead() {
        next.from = from;
        next.to = to;
        next.in_row = in_row;
        next.left = left;
        const int exponent = least.exponent();
        if (exponent < next.least) next.least = exponent;
    }
};
#endif

template <class T, int R, template <class> class Packing>
void gemm_multiply_ahead(int64_t units, const void *a, const void *b, const void *in, void *out, GemmAhead &next) {
    using Unit = typename Units<T>::Unit;
    const PackedB<Unit> packed{static_cast<const Unit *>(b)};
    multiply_tile<Unit, kFast, R>(units, a, packed, in, out, Packing<T>{next});
}

template <class T, int R>
constexpr void fill_ahead(GemmKernel &kernel) {
    kernel.multiply_ahead[kAheadOfRows][R] = gemm_multiply_ahead<T, R, PackingAhead>;
    if constexpr (Units<T>::kDepth == 2 && R >= kAheadTwiceRows)
        kernel.multiply_ahead[kAheadTwiceOfRows][R] = gemm_multiply_ahead<T, R, PackingTwiceAhead>;
#if defined(__AVX512F__)
    if constexpr (kPacksColumns<T>)
        kernel.multiply_ahead[kAheadOfColumns][R] = gemm_multiply_ahead<T, R, PackingColumnsAhead>;
#endif
}
