/* Columns of B that are contiguous in k, two K blocks side by side: a vector holds the sums of eight columns over one block, and
 * beside each that over the next, its twin. Halves of their cache lines are transposed in registers and used at once. Where columns
 * meet in one set of the first-level cache, so few have room there, beside what is fetched of them; and two vectors of sums, which
 * do not wait for each other, take twice as many blocks, but no more columns. A is packed for it, an element beside its twin. */

#if defined(__AVX512F__)
/** What 32 bytes of eight columns, and of their twins, become: eight vectors of a unit of each, the twin beside it. */
template <class T>
struct Twins {
    static constexpr int64_t kUnitBytes = sizeof(T) * Units<T>::kDepth, kUnits = 32 / kUnitBytes;
    static INFINI_INLINE void transpose(Wide (&x)[8], Wide (&t)[2][4]) {
#pragma GCC unroll 2
        for (auto &rows : t) transpose_lanes<4>(rows);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            x[i] = _mm512_shuffle_i64x2(t[0][i], t[1][i], 0x88);
            x[4 + i] = _mm512_shuffle_i64x2(t[0][i], t[1][i], 0xdd);
        }
    }
    static INFINI_INLINE auto at(const Wide (&x)[8], int u) { return bits_of(x[u], typename Units<T>::Vector{}); }
    static INFINI_INLINE VF bits_of(Wide x, VF) { return {_mm512_castsi512_ps(x)}; }
#if defined(__AVX512BF16__)
    static INFINI_INLINE VP bits_of(Wide x, VP) { return {x}; }
#endif
    /** A unit of A for the blocks of even number, and its twin. */
    static INFINI_INLINE auto broadcast_twins(const typename Units<T>::Unit *a) {
        return bits_of(_mm512_set1_epi64(load_bytes<long long>(a)), typename Units<T>::Vector{});
    }
};
/** Units of two bytes: two in each vector, the second in its upper half. */
template <>
struct Twins<f16> {
    static constexpr int64_t kUnitBytes = 2, kUnits = 16;
    static INFINI_INLINE void transpose(Wide (&x)[8], Wide (&t)[2][4]) {
#pragma GCC unroll 2
        for (auto &rows : t) transpose_lanes<2>(rows);
        const Wide low = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13),
                   high = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            x[i] = _mm512_permutex2var_epi64(t[0][i], low, t[1][i]);
            x[4 + i] = _mm512_permutex2var_epi64(t[0][i], high, t[1][i]);
        }
    }
    static INFINI_INLINE VF at(const Wide (&x)[8], int u) {
        const Wide both = x[u / 2];
        return {_mm512_cvtph_ps(u % 2 == 0 ? _mm512_castsi512_si256(both) : _mm512_extracti64x4_epi64(both, 1))};
    }
    static INFINI_INLINE VF broadcast_twins(const float *a) { return Twins<float>::broadcast_twins(a); }
};

/** all[row] += the sums of `blocks` blocks, two in each of a row's `tiles` but for the last: in their order. */
template <class V>
INFINI_INLINE void add_twin_sums(V *all, const V *sums, int rows, int tiles, int64_t blocks, bool first) {
    const __m512i apart = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int t = 0; t < tiles; ++t, ++sums) {
            const V low{_mm512_permutexvar_ps(apart, sums->v)};
            const V high{_mm512_castps256_ps512(_mm512_extractf32x8_ps(low.v, 1))};
            all[r] = first && t == 0 ? low : all[r] + low;
            if (2 * t + 1 < blocks) all[r] = all[r] + high;
        }
}
template <class V>
INFINI_CALLED void add_many_twin_sums(V *all, const V *sums, int rows, int tiles, int64_t blocks, bool first) {
    add_twin_sums(all, sums, rows, tiles, blocks, first);
}

/** R rows of A times eight columns of B. */
template <class T, int Exactness, int R>
struct TwinProduct {
    using U = Units<T>;
    using W = Twins<T>;
    using Unit = typename U::Unit;
    static constexpr int64_t kColumns = 8, kHalfLine = 32, kBlockBytes = kGemmBlockUnits * W::kUnitBytes;
    static constexpr int64_t kAhead = 6 * kLine; // measured: what comes of eight columns stays until it is used
    typename U::Least &least;
    VF all[R][1] = {}; // of the blocks so far, in the lower half
    bool first = true;

    /** x = the halves of lines that some(address in the first block, twin) gives. */
    template <class Load>
    INFINI_INLINE void load(Wide (&x)[8], const ByteColumns &b, int64_t byte, Load &&some) {
        // A column and its twin are neighbours. Of eight such rows i is in the lower half, to which a load is no shuffle, i + 4 in
        // the upper.
        Wide t[2][4];
        b.each<kColumns>(0, byte, [&](int i, const char *p) INFINI_INLINE_LAMBDA {
#pragma GCC unroll 2
            for (int twin = 0; twin < 2; ++twin) {
                const int row = 2 * i + twin;
                Wide &to = t[row / 8][row % 4];
                const __m256i half = some(p, twin);
                to = row % 8 < 4 ? _mm512_castsi256_si512(half) : _mm512_inserti64x4(to, half, 1);
            }
        });
        if constexpr (U::kFlush)
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) least.meet(t[i / 4][i % 4]);
        W::transpose(x, t);
    }
    /** sums += R rows of A times the units of x. */
    template <int Tiles>
    static INFINI_INLINE void multiply(VF (&sums)[R][Tiles], const Wide (&x)[Tiles][8], const Unit *a, int64_t a_unit) {
        const int64_t tile = kGemmBlockUnits * a_unit;
#pragma GCC unroll 16
        for (int u = 0; u < W::kUnits; ++u, a = opaque(a + a_unit)) {
            typename U::Vector columns[Tiles];
#pragma GCC unroll 2
            for (int t = 0; t < Tiles; ++t) columns[t] = W::at(x[t], u);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int t = 0; t < Tiles; ++t)
                    sums[r][t] =
                        multiply_add<Exactness>(W::broadcast_twins(a + t * tile + 2 * r), columns[t], sums[r][t]);
        }
    }
    /** Of many rows by one function for all, which is less code; of few it would take longer. */
    template <int Tiles>
    INFINI_INLINE void add_sums(const VF (&sums)[R][Tiles], int64_t blocks) {
        if constexpr (R <= kTwinsFewRows)
            add_twin_sums(all[0], sums[0], R, Tiles, blocks, first);
        else
            add_many_twin_sums(all[0], sums[0], R, Tiles, blocks, first);
        first = false;
    }
    /** Two whole blocks, or twice as many; `next`: where what is multiplied after them begins. */
    template <int Tiles>
    INFINI_INLINE void add_blocks(const ByteColumns &b, const Unit *a, int64_t a_unit, const char *next) {
        VF sums[R][Tiles];
#pragma GCC unroll 16
        for (int i = 0; i < R * Tiles; ++i) sums[i / Tiles][i % Tiles] = zero(VF{});
#pragma GCC unroll 1
        for (int64_t at = 0; at < kBlockBytes; at += kHalfLine, a += W::kUnits * a_unit) {
            // With each half of a line, the lines of as many columns.
            ByteColumns ahead = b;
            ahead.p = at + kAhead < kBlockBytes ? b.p + at + kAhead : next + at + kAhead - kBlockBytes;
            ahead.each<kColumns / 2>(at % kLine == 0 ? 0 : kColumns / 2, 0,
                                     [&](int, const char *p) INFINI_INLINE_LAMBDA {
#pragma GCC unroll 4
                                         for (int i = 0; i < 2 * Tiles; ++i) prefetch<false>(p + i * kBlockBytes);
                                     });
            Wide x[Tiles][8];
#pragma GCC unroll 2
            for (int t = 0; t < Tiles; ++t)
                load(x[t], b, at + t * 2 * kBlockBytes, [&](const char *p, int twin) INFINI_INLINE_LAMBDA {
                    return load_bytes<__m256i>(p + twin * kBlockBytes);
                });
            multiply<Tiles>(sums, x, a, a_unit);
        }
        add_sums<Tiles>(sums, 2 * Tiles);
    }
    /** Fewer blocks, or parts of one. Touches nothing behind them. */
    template <int Tiles>
    INFINI_INLINE void add_rest(const ByteColumns &b, const Unit *a, int64_t a_unit, int64_t bytes) {
        constexpr int kBlocks = 2 * Tiles;
        VF sums[R][Tiles];
#pragma GCC unroll 16
        for (int i = 0; i < R * Tiles; ++i) sums[i / Tiles][i % Tiles] = zero(VF{});
        for (int64_t at = 0; at < kBlockBytes && at < bytes; at += kHalfLine, a += W::kUnits * a_unit) {
            __mmask16 present[kBlocks];
#pragma GCC unroll 4
            for (int i = 0; i < kBlocks; ++i) {
                const int64_t left = bytes - i * kBlockBytes - at, here = left < kHalfLine ? left : kHalfLine;
                present[i] = static_cast<__mmask16>((1u << (here > 0 ? here / 2 : 0)) - 1u);
            }
            Wide x[Tiles][8];
#pragma GCC unroll 2
            for (int t = 0; t < Tiles; ++t)
                load(x[t], b, at + t * 2 * kBlockBytes, [&](const char *p, int twin) INFINI_INLINE_LAMBDA {
                    return _mm256_maskz_loadu_epi16(present[2 * t + twin], p + twin * kBlockBytes);
                });
            multiply<Tiles>(sums, x, a, a_unit);
        }
        add_sums<Tiles>(sums, (bytes + kBlockBytes - 1) / kBlockBytes);
    }
};

/* What the rest of K adds, a few rows at a time: it is little, and so is its code then. */

template <class T, int Exactness, int R, int Tiles>
INFINI_CALLED void add_rest(VF (*all)[1], bool first, const ByteColumns &b, const typename Units<T>::Unit *a,
                            int64_t a_unit, int64_t bytes, typename Units<T>::Least &least) {
    TwinProduct<T, Exactness, R> product{least};
    product.first = first;
    for (int r = 0; r < R; ++r) product.all[r][0] = all[r][0];
    product.template add_rest<Tiles>(b, a, a_unit, bytes);
    for (int r = 0; r < R; ++r) all[r][0] = product.all[r][0];
}
template <class T, int Exactness, int R, int Tiles, int First = 0>
INFINI_INLINE void add_rest_of_rows(VF (&all)[R][1], bool first, const ByteColumns &b, const typename Units<T>::Unit *a,
                                    int64_t a_unit, int64_t bytes, typename Units<T>::Least &least) {
    constexpr int kRows = R - First < kTwinsFewRows ? R - First : kTwinsFewRows;
    add_rest<T, Exactness, kRows, Tiles>(all + First, first, b, a + 2 * First, a_unit, bytes, least);
    if constexpr (First + kRows < R)
        add_rest_of_rows<T, Exactness, R, Tiles, First + kRows>(all, first, b, a, a_unit, bytes, least);
}

/** Columns of B times packed A (gemm_pack_twins), for a K of two blocks or more. Where the last columns are fewer than eight, those
 *  before them are summed up again: B has as many, if not this task. */
template <class T, int Exactness, int R>
int gemm_twins(const GemmInPlace &g) {
    using P = TwinProduct<T, Exactness, R>;
    constexpr int kTiles = R <= kTwinsFewRows ? 2 : 1; // sums wait for what was added before, and few rows have few
    constexpr int64_t kSize = sizeof(T), kColumns = P::kColumns;
    const auto *const first = static_cast<const T *>(g.b);
    const int64_t bytes = g.kc * kSize, a_unit = 2 * g.a_unit;
    typename Units<T>::Least least;
    for (int64_t j = 0; j < g.n; j += kColumns) {
        const auto columns_until = [&](int64_t end) {
            return reinterpret_cast<const char *>(first + ((end < g.n ? end : g.n) - kColumns) * g.b_stride);
        };
        ByteColumns b(columns_until(j + kColumns), g.b_stride * kSize);
        const char *const after =
            j + kColumns < g.n ? columns_until(j + 2 * kColumns) : static_cast<const char *>(g.ahead);
        const auto *a = static_cast<const typename P::Unit *>(g.a);
        P product{least};
        int64_t left = bytes;
        for (constexpr int64_t kSome = 2 * kTiles * P::kBlockBytes; left >= kSome; left -= kSome, b.p += kSome) {
            product.template add_blocks<kTiles>(b, a, a_unit, left > kSome ? b.p + kSome : after);
            a += kTiles * kGemmBlockUnits * a_unit;
        }
        if (left > 2 * P::kBlockBytes)
            add_rest_of_rows<T, Exactness, R, kTiles>(product.all, product.first, b, a, a_unit, left, least);
        else if (left > 0)
            add_rest_of_rows<T, Exactness, R, 1>(product.all, product.first, b, a, a_unit, left, least);
        const int64_t count = g.n - j < kColumns ? g.n - j : kColumns;
        if (count < kColumns)
            for (auto &row : product.all) {
                float lanes[3 * kColumns] = {};
                store(lanes, row[0]);
                row[0] = load(lanes + kColumns - count);
            }
        if constexpr (R <= kTwinsFewRows)
            finish_in_place<T, R, 1>(g, j, count, product.all);
        else
            finish_sums<T>(g, j, count, R, 1, product.all[0]);
    }
    return least.exponent();
}

/** A's part of two K blocks, or what there is of them and nothing: to [unit][row][twin]. */
template <class T>
int gemm_pack_twins(void *to_, const void *a_, int64_t a_row, int64_t a_col, int64_t rows, int64_t k) {
    using U = Units<T>;
    using Unit = typename U::Unit;
    constexpr int64_t kMost = 2048, kBlock = kGemmBlockUnits * U::kDepth;
    const int64_t units = rows <= 8 ? kGemmBlockUnits : rows <= 16 ? kGemmBlockUnits / 2 : kGemmBlockUnits / 4;
    const T *const a = static_cast<const T *>(a_);
    auto *to = static_cast<Unit *>(to_);
    const GemmPack pack = opaque(static_cast<GemmPack>(gemm_pack<T>)); // called: there is one of it
    const Wide low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
               high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    int least = kLeastOfNothing;
    for (int64_t u = 0; u < kGemmBlockUnits; u += units) {
        alignas(64) Unit part[2][kMost];
        for (int64_t twin = 0; twin < 2; ++twin) {
            const int64_t k0 = twin * kBlock + u * U::kDepth, most = units * U::kDepth;
            const int64_t some = k - k0 < 0 ? 0 : k - k0 < most ? k - k0 : most;
            if (some > 0) {
                const int met = pack(part[twin], 0, a + k0 * a_col, a_row, a_col, rows, rows, some);
                least = met < least ? met : least;
            }
            // Then -0, whose product with the 0 that is read of B leaves every sum as it is, -0 too.
            constexpr uint32_t kNothing = U::kDepth == 1 ? 0x80000000 : 0x80008000;
            for (int64_t i = (some + U::kDepth - 1) / U::kDepth * rows; i < units * rows; ++i)
                part[twin][i] = load_bytes<Unit>(&kNothing);
        }
        for (int64_t i = 0; i < units * rows; i += 16, to += 32) {
            const Wide x = _mm512_load_si512(part[0] + i), y = _mm512_load_si512(part[1] + i);
            _mm512_storeu_si512(to, _mm512_permutex2var_epi32(x, low, y));
            _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi32(x, high, y));
        }
    }
    return least;
}

template <class T, int Exactness, int R>
constexpr void fill_twins_of(GemmKernel &kernel) {
    kernel.twins[Exactness][R] = gemm_twins<T, Exactness, R>;
    if constexpr (R > 1) fill_twins_of<T, Exactness, R - 1>(kernel);
}
#endif

/** Most rows of T: of F32, and of BF16 where it is multiplied in pairs; conversions are what F16 waits for. */
template <class T>
constexpr int kTwinsRowsOf = Units<T>::kDepth * sizeof(T) == sizeof(float) ? kTwinsRows : 0;
template <>
constexpr int kTwinsRowsOf<f16> = 4;
template <class T, int Exactness>
constexpr void fill_twins([[maybe_unused]] GemmKernel &kernel) {
#if defined(__AVX512F__)
    constexpr int kRows = kTwinsRowsOf<T>;
    if constexpr (kRows > 0) {
        kernel.pack_twins = gemm_pack_twins<T>;
        fill_twins_of<T, Exactness, Exactness == kFast ? kRows : kTwinsExactRows>(kernel);
    }
#endif
}
