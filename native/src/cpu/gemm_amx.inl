/* Products of BF16 by AMX: two tiles of sixteen rows of one operand, times two of sixteen columns of the other, and sixteen pairs
 * of k at a time. A tile of the one holds pairs as rows of memory do; of the other, as packed panels do.
 *
 * What the instruction (TDPBF16PS, as Intel's manual defines it) adds to a sum is that of the sixteen pairs' first products and
 * that of the second ones, each a chain of fused multiply-adds from 0, added to each other. It takes subnormal operands and
 * results for 0. Whatever computes a product here, and from whatever layout, gives these bits. */

constexpr int kTileRows = 16;                 // and columns of sums, and pairs
constexpr int kTilesRows = 2 * kTileRows;     // most rows, and columns, of a product
constexpr int kTileK = 2 * kTileRows;         // elements
constexpr int64_t kTileLine = 64;             // bytes of a row
constexpr int64_t kPairsLine = 2 * kTileLine; // of the columns of two tiles

constexpr int tiles_of(int rows) { return rows > kTileRows ? 2 : 1; }
INFINI_INLINE int64_t least_of(int64_t x, int64_t y) { return x < y ? x : y; }

/** What LDTILECFG reads. */
struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int its_rows, int its_bytes) {
        if (its_rows <= 0 || its_bytes <= 0) return;
        rows[tile] = static_cast<uint8_t>(its_rows);
        row_bytes[tile] = static_cast<uint16_t>(its_bytes);
    }
};

/** For sums of so many rows and columns in tiles 0 to 3, [i][j]; tiles 4 and 5 are rows i of the first operand, 6 and 7 columns j
 *  of the second. */
INFINI_INLINE void begin_tiles(int rows, int cols) {
    TileConfig config;
    const auto part = [](int all, int tile) { return static_cast<int>(least_of(all - tile * kTileRows, kTileRows)); };
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) config.set(i * 2 + j, part(rows, i), part(cols, j) * 4);
        config.set(4 + i, part(rows, i), static_cast<int>(kTileLine));
        config.set(6 + i, part(cols, i) > 0 ? kTileRows : 0, part(cols, i) * 4);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
INFINI_INLINE void end_tiles() { __asm__ volatile("tilerelease"); }

template <int Tile>
INFINI_INLINE void load_tile_from(const void *p, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
INFINI_INLINE void store_tile_to(void *p, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1)" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
INFINI_INLINE void zero_tile() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
template <int Sums, int A, int B>
INFINI_INLINE void multiply_tiles() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(A), "i"(B));
}

/** Sixteen rows in memory, so many bytes apart. */
struct TileLines {
    const void *p;
    int64_t stride;
};

/** Sums of I * J tiles. */
template <int Exactness, int I, int J>
struct TileSums {
    INFINI_INLINE TileSums(int, int) {}
    INFINI_INLINE void zero() {
        zero_tile<0>();
        if constexpr (J > 1) zero_tile<1>();
        if constexpr (I > 1) zero_tile<2>();
        if constexpr (I > 1 && J > 1) zero_tile<3>();
    }
    INFINI_INLINE void load(const float *p, int64_t ld) {
        load_tile_from<0>(p, ld * 4);
        if constexpr (J > 1) load_tile_from<1>(p + kTileRows, ld * 4);
        if constexpr (I > 1) load_tile_from<2>(p + kTileRows * ld, ld * 4);
        if constexpr (I > 1 && J > 1) load_tile_from<3>(p + kTileRows * ld + kTileRows, ld * 4);
    }
    INFINI_INLINE void store(float *p, int64_t ld) const {
        store_tile_to<0>(p, ld * 4);
        if constexpr (J > 1) store_tile_to<1>(p + kTileRows, ld * 4);
        if constexpr (I > 1) store_tile_to<2>(p + kTileRows * ld, ld * 4);
        if constexpr (I > 1 && J > 1) store_tile_to<3>(p + kTileRows * ld + kTileRows, ld * 4);
    }
    /** Adds the products of 32 elements of k. */
    INFINI_INLINE void add(const TileLines (&a)[I], const char *b, int64_t b_stride) {
        load_tile_from<4>(a[0].p, a[0].stride);
        load_tile_from<6>(b, b_stride);
        multiply_tiles<0, 4, 6>();
        if constexpr (J > 1) {
            load_tile_from<7>(b + kTileLine, b_stride);
            multiply_tiles<1, 4, 7>();
        }
        if constexpr (I > 1) {
            load_tile_from<5>(a[1].p, a[1].stride);
            multiply_tiles<2, 5, 6>();
            if constexpr (J > 1) multiply_tiles<3, 5, 7>();
        }
    }
};

/** The same bits, but for what the instruction would have flushed. */
template <int I, int J>
struct TileSums<kExact, I, J> {
    int rows, cols;
    float sums[I * kTileRows][J * kTileRows];

    TileSums(int rows_, int cols_) : rows(rows_), cols(cols_) {}
    void zero() {
        for (auto &row : sums)
            for (float &x : row) x = 0;
    }
    void load(const float *p, int64_t ld) {
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < cols; ++j) sums[i][j] = p[i * ld + j];
    }
    void store(float *p, int64_t ld) const {
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < cols; ++j) p[i * ld + j] = sums[i][j];
    }
    void add(const TileLines (&a)[I], const char *b, int64_t b_stride) {
        Units<pair>::Least none;
        for (int i = 0; i < rows; ++i) {
            const TileLines &lines = a[i / kTileRows];
            const auto *pairs =
                reinterpret_cast<const pair *>(static_cast<const char *>(lines.p) + i % kTileRows * lines.stride);
            for (int j = 0; j < cols; j += kTileRows) {
                VF first = infini::zero(VF{}), second = first;
                for (int u = 0; u < kTileRows; ++u) {
                    const VP x = broadcast(pairs[u]);
                    const auto *row = reinterpret_cast<const pair *>(b + u * b_stride) + j;
                    const VP y = Units<pair>::across_n(row, nullptr, least_of(cols - j, kTileRows), none);
                    first = fma(first_of(x), first_of(y), first);
                    second = fma(second_of(x), second_of(y), second);
                }
                infini::store(&sums[i][j], infini::load(&sums[i][j]) + (first + second));
            }
        }
    }
};

/* ---- packing ----------------------------------------------------------------------------------------------------------- */

/** As gemm_pack, and up to sixteen units filled up with 0: a part of k that ends before is a multiple of them. */
inline int amx_pack(void *panels, int64_t panel_stride, const void *src, int64_t stride_w, int64_t stride_k,
                    int64_t count, int64_t width, int64_t kc) {
    const int64_t units = (kc + 1) / 2, missing = -units & (kTileRows - 1);
    for (int64_t w = 0; missing > 0 && w < count; w += width) {
        pair *const end = static_cast<pair *>(panels) + w / width * panel_stride + units * width;
        for (int64_t i = 0; i < missing * width; ++i) end[i] = {};
    }
    return gemm_pack<bf16>(panels, panel_stride, src, stride_w, stride_k, count, width, kc);
}

/** Rows of src whose elements are not neighbours: sixteen pairs of up to sixteen of them. */
INFINI_INLINE void turn_pairs(pair *to, const bf16 *src, int64_t stride_w, int64_t stride_k, int64_t rows, int64_t left,
                              Units<bf16>::Least &least) {
    using U = Units<bf16>;
    VF x[kTileRows];
    for (int u = 0; u < kTileRows; ++u) {
        const bf16 *const at = src + 2 * u * stride_k, *const next_k = 2 * u + 1 < left ? at + stride_k : nullptr;
        if (2 * u >= left) {
            x[u] = zero(VF{});
        } else if (stride_w == 1) {
            x[u] = {_mm512_castsi512_ps(U::across_n(at, next_k, rows, least).v)};
        } else {
            pair units[kTileRows] = {};
            for (int64_t i = 0; i < rows; ++i)
                units[i] = U::one(at + i * stride_w, next_k == nullptr ? nullptr : next_k + i * stride_w, least);
            x[u] = {_mm512_castsi512_ps(load(units).v)};
        }
    }
    transpose(x);
    for (int64_t i = 0; i < rows; ++i) store(reinterpret_cast<float *>(to + i * kTileRows), x[i]);
}

/** As gemm_pack, for the first operand: [16 pairs of k][row], a cache line each. */
inline int amx_pack_rows(void *panels, int64_t panel_stride, const void *src_, int64_t stride_w, int64_t stride_k,
                         int64_t count, int64_t width, int64_t kc) {
    const bf16 *const src = static_cast<const bf16 *>(src_);
    Units<bf16>::Least least;
    for (int64_t w0 = 0; w0 < count; w0 += width) {
        pair *const panel = static_cast<pair *>(panels) + w0 / width * panel_stride;
        const int64_t rows = least_of(count - w0, width);
        if (stride_k == 1) {
            // A few rows at a time, which follow one another in a tile: else each line would be written to a page of its own.
            constexpr int64_t kTogether = 4;
            for (int64_t w = 0; w < rows; w += kTogether) {
                const bf16 *const from = src + (w0 + w) * stride_w;
                const int64_t some = least_of(rows - w, kTogether);
                pair *to = panel + w * kTileRows;
                for (int64_t k = 0; k < kc; k += kTileK, to += width * kTileRows)
                    for (int64_t i = 0; i < some; ++i) {
                        const __m512i x = load_some(from + i * stride_w + k, kc - k);
                        least.meet(x);
                        store(to + i * kTileRows, {x});
                    }
            }
        } else {
            for (int64_t k = 0; k < kc; k += kTileK)
                for (int64_t w = 0; w < rows; w += kTileRows)
                    turn_pairs(panel + (k / kTileK * width + w) * kTileRows, src + (w0 + w) * stride_w + k * stride_k,
                               stride_w, stride_k, least_of(rows - w, kTileRows), kc - k, least);
        }
        for (int64_t k = 0; rows < width && k < kc; k += kTileK)
            for (int64_t i = rows * kTileRows; i < width * kTileRows; ++i) panel[k / 2 * width + i] = {};
    }
    return least.exponent();
}

/* ---- products ---------------------------------------------------------------------------------------------------------- */

/** What the sixteen units that a step takes let a product fetch. */
INFINI_INLINE void fetch_for_step(GemmFetch *fetch) {
    if (fetch == nullptr) return;
    for (int i = 0; i < kTileRows / kGemmStepsTogether; ++i)
        if (fetch->wait > 0 && --fetch->wait == 0) fetch->wait = fetch_some(*fetch);
}

inline void amx_begin(int rows) { begin_tiles(rows, kTilesRows); }
inline void amx_end() { end_tiles(); }

/** Panels of so many rows, in I tiles, between amx_begin() for at least as many, and amx_end(). */
template <int Exactness, int I>
INFINI_CALLED void multiply_panels(int rows, int64_t units, const char *a, const char *b, const void *in, void *out,
                                   GemmFetch *fetch) {
    TileSums<Exactness, I, 2> sums(rows, kTilesRows);
    if (in == nullptr)
        sums.zero();
    else
        sums.load(static_cast<const float *>(in), kTilesRows);
    for (; units > 0; units -= kTileRows) {
        fetch_for_step(fetch);
        TileLines lines[I];
        for (int i = 0; i < I; ++i) lines[i] = {a + i * kTileRows * kTileLine, kTileLine};
        sums.add(lines, b, kPairsLine);
        a += rows * kTileLine;
        b += kTileRows * kPairsLine;
    }
    sums.store(static_cast<float *>(out), kTilesRows);
}
template <int Exactness, int R>
void amx_multiply(int64_t units, const void *a, const void *b, const void *in, void *out, GemmFetch *fetch) {
    multiply_panels<Exactness, tiles_of(R)>(R, units, static_cast<const char *>(a), static_cast<const char *>(b), in,
                                            out, fetch);
}

/** Sums of 32 columns as two vectors, in the order in which a kernel has them. */
struct InOrder {
    static INFINI_INLINE void restore(VF (&)[2]) {}
};
/** The columns of an even number, then the others: pairs of a row taken apart. */
struct EvenFirst {
    static INFINI_INLINE void restore(VF (&x)[2]) {
        const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512 even = x[0].v, odd = x[1].v;
        x[0] = {_mm512_permutex2var_ps(even, low, odd)};
        x[1] = {_mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd)};
    }
};
/** Four columns each: lanes that unpacking has put side by side. */
struct LanesOfFour {
    static INFINI_INLINE void restore(VF (&x)[2]) {
        const __m512d low = _mm512_castps_pd(x[0].v), high = _mm512_castps_pd(x[1].v);
        x[0] = {_mm512_castpd_ps(_mm512_permutex2var_pd(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high))};
        x[1] = {_mm512_castpd_ps(_mm512_permutex2var_pd(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high))};
    }
};

/** Sums of so many rows and columns: what becomes of them where all of K is in them. */
template <class Order>
INFINI_INLINE void finish_tiles(const GemmInPlace &g, int64_t j, int rows, int64_t cols, VF (*sums)[2]) {
    for (int i = 0; i < rows; ++i) Order::restore(sums[i]);
    if (cols > VF::N) return finish_sums<bf16>(g, j, cols - VF::N, rows, 2, sums[0]);
    for (int i = 1; i < rows; ++i) sums[0][i] = sums[i][0];
    finish_sums<bf16>(g, j, cols, rows, 1, sums[0]);
}

/** Asks for the lines of columns j.. in rows that are multiplied soon: their share when rows up to `end` of kc are multiplied. */
struct RowsAhead {
    int64_t fetched = 0;

    INFINI_INLINE void fetch(const GemmInPlace &g, int64_t j, int64_t end) {
        if (g.fetch != nullptr || g.ahead_every == 0) return;
        const bf16 *const ahead = static_cast<const bf16 *>(g.ahead) + j;
        for (; fetched * g.ahead_every < least_of(end, g.kc); ++fetched)
            __builtin_prefetch(ahead + fetched * g.b_stride, 0, 2);
    }
};

/** Rows of B, up to 32, and columns, up to 32, as pairs, LanesOfFour. */
INFINI_INLINE void pair_rows(pair *to, const bf16 *b, int64_t stride, int64_t rows, int64_t cols,
                             Units<bf16>::Least &least) {
    const auto pairs = [&](int u, __m512i first, __m512i second) {
        store(to + u * kTilesRows, {_mm512_unpacklo_epi16(first, second)});
        store(to + u * kTilesRows + kTileRows, {_mm512_unpackhi_epi16(first, second)});
        least.meet(first);
        least.meet(second);
    };
    if (rows >= kTileK && cols >= kTilesRows) {
#pragma GCC unroll 4
        for (int u = 0; u < kTileRows; ++u, b += 2 * stride)
            pairs(u, _mm512_loadu_si512(b), _mm512_loadu_si512(b + stride));
        return;
    }
    const auto line = [&](int64_t row) {
        return row < rows ? load_some(b + row * stride, cols) : _mm512_setzero_si512();
    };
    for (int u = 0; u < kTileRows; ++u) pairs(u, line(2 * u), line(2 * u + 1));
}

constexpr int kFewRows = 2;           // are multiplied sooner than B's would be pairs
constexpr int kFewRowsOfB = 8;        // at a time, in long runs, as memory delivers them
constexpr int64_t kFewRowsRun = 2048; // columns

/** The sums of so few rows of A and a run of columns of B, EvenFirst in each 32, and the chains that are added to them. */
template <int R>
struct FewRows {
    alignas(64) float sums[R][kFewRowsRun], first[R][kFewRowsRun], second[R][kFewRowsRun];
};

/** Up to eight rows of B, of each 32, times elements that are converted: nothing is flushed. `ahead`: how far the elements are that
 *  are asked for, those of the next rows where a run ends. */
template <int R, bool Whole>
INFINI_INLINE void add_few_rows(FewRows<R> &to, const pair *a, const bf16 *b, int64_t stride, int64_t cols,
                                int64_t count, bool begins, bool ends, int64_t ahead) {
    VF elements[kFewRowsOfB][R];
#pragma GCC unroll 8
    for (int i = 0; i < kFewRowsOfB; i += 2)
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
            const VP x = broadcast(a[r * kTileRows + i / 2]);
            elements[i][r] = first_of(x);
            elements[i + 1][r] = second_of(x);
        }
    for (int64_t j = 0; j < cols; j += kTilesRows) {
        VF first[R][2], second[R][2];
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < 2; ++c) {
                first[r][c] = begins ? zero(VF{}) : load(&to.first[r][j + c * VF::N]);
                second[r][c] = begins ? zero(VF{}) : load(&to.second[r][j + c * VF::N]);
            }
        const bf16 *at = b + j, *soon = j + ahead < cols ? at + ahead : b + kFewRowsOfB * stride + (j + ahead - cols);
#pragma GCC unroll 8
        for (int i = 0; i < kFewRowsOfB; ++i, at += stride, soon += stride) {
            if (!Whole && i >= count) break;
            __builtin_prefetch(soon);
            const VP x = {Whole ? _mm512_loadu_si512(at) : load_some(at, cols - j)};
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r) {
                VF(&chain)[2] = i % 2 == 0 ? first[r] : second[r];
                chain[0] = fma(elements[i][r], first_of(x), chain[0]);
                chain[1] = fma(elements[i][r], second_of(x), chain[1]);
            }
        }
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < 2; ++c) {
                float *const sums = &to.sums[r][j + c * VF::N];
                if (ends) {
                    store(sums, load(sums) + (first[r][c] + second[r][c]));
                } else {
                    store(&to.first[r][j + c * VF::N], first[r][c]);
                    store(&to.second[r][j + c * VF::N], second[r][c]);
                }
            }
    }
}

template <int R>
int amx_few_rows(const GemmInPlace &g) {
    FewRows<R> run;
    float *part = static_cast<float *>(g.part); // sums of 32 columns each, though there be fewer
    for (int64_t j0 = 0, cols; j0 < g.n; j0 += cols) {
        cols = j0 < g.head ? g.head : least_of(g.n - j0, kFewRowsRun);
        const bool whole = cols % kTilesRows == 0;
        const int64_t room = (cols + kTilesRows - 1) / kTilesRows * kTilesRows;
        for (int r = 0; r < R; ++r)
            for (int64_t j = 0; j < room; j += VF::N)
                store(&run.sums[r][j], g.begins ? zero(VF{}) : load(part + r * g.ld + j));
        const char *a = static_cast<const char *>(g.a);
        for (int64_t k = 0; k < g.kc; k += kTileK, a += g.a_unit * kTileLine) {
            fetch_for_step(g.fetch);
            const int64_t rows = least_of(g.kc - k, kTileK);
            for (int64_t row = 0; row < rows; row += kFewRowsOfB) {
                const auto *pairs = reinterpret_cast<const pair *>(a) + row / 2;
                const bf16 *b = static_cast<const bf16 *>(g.b) + (k + row) * g.b_stride + j0;
                const bool begins = row == 0, ends = row + kFewRowsOfB >= rows;
                const int64_t count = rows - row;
                if (count >= kFewRowsOfB && whole)
                    add_few_rows<R, true>(run, pairs, b, g.b_stride, cols, count, begins, ends, g.stream_ahead / 2);
                else
                    add_few_rows<R, false>(run, pairs, b, g.b_stride, cols, count, begins, ends, g.stream_ahead / 2);
            }
        }
        for (int64_t j = 0; j < cols; j += kTilesRows)
            if (g.ends) {
                VF tile[R][2];
                for (int r = 0; r < R; ++r)
                    for (int c = 0; c < 2; ++c) tile[r][c] = load(&run.sums[r][j + c * VF::N]);
                finish_tiles<EvenFirst>(g, j0 + j, R, least_of(cols - j, kTilesRows), tile);
            }
        for (int r = 0; r < R && !g.ends; ++r)
            for (int64_t j = 0; j < room; j += VF::N) store(part + r * g.ld + j, load(&run.sums[r][j]));
        part += room;
    }
    return kLeastOfNothing;
}

/** So many rows of A, in I tiles, and rows of B. */
template <int Exactness, int I>
INFINI_CALLED int rows_in_place(int rows, const GemmInPlace &g) {
    // While one block of B is multiplied, the next one is on its way to the cache.
    alignas(64) pair b_pairs[2][kTileRows][kTilesRows];
    VF tile[I * kTileRows][2];
    const bf16 *const b = static_cast<const bf16 *>(g.b);
    float *const part = static_cast<float *>(g.part);
    Units<bf16>::Least least;
    RowsAhead ahead;
    int now = 0;
    const auto make_pairs = [&](int which, int64_t j, int64_t k) INFINI_INLINE_LAMBDA {
        if (k == 0) ahead = {};
        ahead.fetch(g, j, k + kTileK);
        pair_rows(b_pairs[which][0], b + k * g.b_stride + j, g.b_stride, g.kc - k, least_of(g.n - j, kTilesRows),
                  least);
    };
    begin_tiles(rows, kTilesRows);
    make_pairs(now, 0, 0);
    for (int64_t j = 0; j < g.n; j += kTilesRows) {
        TileSums<Exactness, I, 2> sums(rows, kTilesRows);
        if (g.begins)
            sums.zero();
        else
            sums.load(part + j, g.ld);
        const char *a = static_cast<const char *>(g.a);
        for (int64_t k = 0; k < g.kc; k += kTileK, a += g.a_unit * kTileLine, now = 1 - now) {
            fetch_for_step(g.fetch);
            const bool last = k + kTileK >= g.kc;
            if (!last || j + kTilesRows < g.n) make_pairs(1 - now, last ? j + kTilesRows : j, last ? 0 : k + kTileK);
            TileLines lines[I];
            for (int i = 0; i < I; ++i) lines[i] = {a + i * kTileRows * kTileLine, kTileLine};
            sums.add(lines, reinterpret_cast<const char *>(b_pairs[now]), kPairsLine);
        }
        if (!g.ends) {
            sums.store(part + j, g.ld);
            continue;
        }
        sums.store(reinterpret_cast<float *>(tile), kTilesRows);
        finish_tiles<LanesOfFour>(g, j, rows, least_of(g.n - j, kTilesRows), tile);
    }
    end_tiles();
    return least.exponent();
}
template <int Exactness, int R>
int amx_rows(const GemmInPlace &g) {
    return rows_in_place<Exactness, tiles_of(R)>(R, g);
}

/** Columns of B are the rows of the first operand, where they lie: C^T = B^T A^T. */
template <int Exactness, int J>
INFINI_CALLED int columns_in_place(int rows, const GemmInPlace &g) {
    alignas(64) pair lines[2][kTileRows][kTileRows];
    alignas(64) float turned[kTilesRows][J * kTileRows];
    VF tile[J * kTileRows][2];
    const int64_t stride = g.b_stride;
    Units<bf16>::Least least;
    begin_tiles(kTilesRows, rows);
    for (int64_t j = 0; j < g.n; j += kTilesRows) {
        const int64_t cols = least_of(g.n - j, kTilesRows);
        TileSums<Exactness, 2, J> sums(kTilesRows, rows);
        sums.zero();
        for (int64_t k = 0; k < g.kc; k += kTileK) {
            TileLines b[2];
            for (int i = 0; i < 2; ++i) {
                const bf16 *const at = static_cast<const bf16 *>(g.b) + (j + i * kTileRows) * stride + k;
                const int64_t there = cols - i * kTileRows, left = g.kc - k;
                if (there >= kTileRows && left >= kTileK) {
                    for (int c = 0; c < kTileRows; ++c) least.meet(_mm512_loadu_si512(at + c * stride));
                    b[i] = {at, stride * 2};
                    continue;
                }
                for (int c = 0; c < kTileRows; ++c) {
                    const __m512i x = c < there ? load_some(at + c * stride, left) : _mm512_setzero_si512();
                    least.meet(x);
                    store(lines[i][c], {x});
                }
                b[i] = {lines[i], kTileLine};
            }
            sums.add(b, static_cast<const char *>(g.a) + k / 2 * g.a_unit * 4, g.a_unit * 4);
        }
        sums.store(turned[0], J * kTileRows);
        for (int c = 0; c < 2; ++c)
            for (int i = 0; i < J; ++i) {
                VF x[kTileRows];
                for (int row = 0; row < kTileRows; ++row) x[row] = load(&turned[c * kTileRows + row][i * kTileRows]);
                transpose(x);
                for (int row = 0; row < kTileRows; ++row) tile[i * kTileRows + row][c] = x[row];
            }
        finish_tiles<InOrder>(g, j, rows, cols, tile);
    }
    end_tiles();
    return least.exponent();
}
template <int Exactness, int R>
int amx_columns(const GemmInPlace &g) {
    return columns_in_place<Exactness, tiles_of(R)>(R, g);
}

template <int Exactness, int R>
constexpr void fill_amx(GemmKernel &kernel) {
    kernel.multiply[Exactness][R] = amx_multiply<Exactness, R>;
    if constexpr (R <= kFewRows)
        kernel.rows[Exactness][R] = kernel.streams[Exactness][R] = amx_few_rows<R>;
    else
        kernel.rows[Exactness][R] = amx_rows<Exactness, R>;
    kernel.columns[Exactness][R] = amx_columns<Exactness, R>;
    if constexpr (R > 1) fill_amx<Exactness, R - 1>(kernel);
}

constexpr GemmKernel amx_kernel() {
    GemmKernel kernel{};
    kernel.mr = kernel.nr = kTilesRows;
    kernel.in_place_rows = kernel.columns_rows = kTilesRows;
    kernel.acc_size = sizeof(pair);
    kernel.unit_k = 2;
    kernel.unit_group = kTileRows;
    kernel.block_units = 8 * kTileRows; // of a panel of A and of B, and the sums: what the first-level cache holds
    kernel.in_tiles = true;
    kernel.packs_for_columns = true;
    kernel.has_small_l2 = kSmallL2;
    kernel.pack = amx_pack;
    kernel.pack_rows = amx_pack_rows;
    kernel.begin = amx_begin;
    kernel.end = amx_end;
    kernel.least = gemm_least<bf16>;
    kernel.store = gemm_store<bf16>;
    fill_amx<kFast, kTilesRows>(kernel);
    fill_amx<kExact, kTilesRows>(kernel);
    return kernel;
}
