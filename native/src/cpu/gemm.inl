/* The parts of the matrix product: packing, register tile, products with a B that is read where it lies, store. */

/* ---- units: what panels are made of ------------------------------------------------------------------------------------ */

/** Units of T as one element each, converted to the type sums are kept in. */
template <class T>
struct Units {
    using Sums = Vec<T>;
    using Vector = Sums;
    using Unit = typename Sums::Scalar;
    static constexpr int kDepth = 1;      // elements of k in a unit
    static constexpr bool kFlush = false; // may multiply_add<kFast>() flush subnormal numbers?

    /** Remembers nothing: no kernel asks for it. */
    struct Least {
        int exponent() const { return kLeastOfNothing; }
    };
    static INFINI_INLINE Vector vector(Sums x) { return x; }
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

template <int Exactness, class V>
INFINI_INLINE V multiply_add(V a, V b, V sum) {
    return fma(a, b, sum);
}

#if defined(__AVX512BF16__)
/** Two neighbours in k, the first in the lower half. The instruction adds the product of the second ones, then that of the first
 *  ones, each rounded like a fused multiply-add, but takes subnormal operands and results for 0. */
template <>
struct Units<bf16> {
    using Sums = VF;
    using Vector = VP;
    using Unit = pair;
    static constexpr int kDepth = 2;
    static constexpr bool kFlush = true;

    struct Least {
        __m512i magnitude = _mm512_set1_epi16(-1); // less 1, so that 0 is the largest
        INFINI_INLINE void meet(__m512i x) {
            const __m512i bits = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
            magnitude = _mm512_min_epu16(magnitude, _mm512_sub_epi16(bits, _mm512_set1_epi16(1)));
        }
        INFINI_INLINE int exponent() const {
            alignas(64) uint16_t lanes[32];
            _mm512_store_si512(lanes, magnitude);
            uint16_t least = 0xffff;
            for (uint16_t lane : lanes) least = lane < least ? lane : least;
            return least == 0xffff ? kLeastOfNothing : (least + 1) >> 7;
        }
    };
    static INFINI_INLINE VP vector(VF x) { return {_mm512_castps_si512(x.v)}; }
    static INFINI_INLINE VF along_k(const bf16 *p, int64_t left, Least &least) {
        const __m512i x =
            left >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << left) - 1u), p);
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

template <int Exactness>
INFINI_INLINE VF multiply_add(VP a, VP b, VF sum) {
    if constexpr (Exactness == kFast) return multiply_add_pairs(a, b, sum);
    return fma(first_of(a), first_of(b), fma(second_of(a), second_of(b), sum));
}
#endif

/* ---- packing ----------------------------------------------------------------------------------------------------------- */

/** How much of a block of N rows and as many units there is. */
enum class Piece { kWhole, kFewRows, kPart };

/** N rows of src that are contiguous in k, `rows` of which there are, transposed in registers: `left` elements of k, as `depth`
 *  units to lanes of a panel. Stores are of whole vectors up to to[room], for masked ones are slow. kFewRows: all of k, and no lane
 *  without a row; what is in the lanes behind the panel is written again. */
template <class T, Piece P>
INFINI_INLINE void pack_block(typename Units<T>::Sums::Scalar *to, int64_t width, const T *src, int64_t stride,
                              int64_t rows, int64_t left, int64_t depth, int64_t lanes, int64_t room,
                              typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    constexpr int64_t kAhead = 1024 / sizeof(T); // these are more streams than the hardware follows
    V x[N];
    const T *from = src;
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        if (P != Piece::kFewRows) from = src + i * stride;
        __builtin_prefetch(from + kAhead, 0, 2);
        x[i] = P != Piece::kPart || i < rows
                   ? U::along_k(from, P == Piece::kPart ? left : int64_t{N} * U::kDepth, least)
                   : zero(V{});
        if (P == Piece::kFewRows && i + 1 < rows) from += stride; // else the last one again
    }
    transpose(x);
    if (P != Piece::kPart) {
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) store(to + i * width, x[i]);
    } else {
        for (int64_t i = 0, at = 0; i < depth; ++i, at += width)
            at + N <= room ? store(to + at, x[i]) : store_n(to + at, x[i], lanes);
    }
}
template <class T>
INFINI_CALLED void pack_part(typename Units<T>::Sums::Scalar *to, int64_t width, const T *src, int64_t stride,
                             int64_t rows, int64_t left, int64_t depth, int64_t lanes, int64_t room,
                             typename Units<T>::Least &least) {
    pack_block<T, Piece::kPart>(to, width, src, stride, rows, left, depth, lanes, room, least);
}

/** One panel from rows of src that are contiguous in k. What is written too much is written again, in ascending k and descending w. */
template <class T>
INFINI_INLINE void pack_transposed(typename Units<T>::Unit *panel_, const T *src, int64_t stride_w, int64_t valid,
                                   int64_t width, int64_t kc, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    constexpr int64_t kBlock = int64_t{N} * U::kDepth;                  // elements of k
    auto *const panel = reinterpret_cast<typename V::Scalar *>(panel_); // bits are moved, whatever they are
    const int64_t end = (kc + U::kDepth - 1) / U::kDepth * width;
    for (int64_t w = (width - 1) / N * N; w >= 0; w -= N) {
        const int64_t rows = valid - w, lanes = width - w < N ? width - w : N;
        for (int64_t k = 0; k < kc; k += kBlock) {
            // Else there would be a pointer to each of the rows, in memory.
            const T *from = opaque(src + w * stride_w + k);
            const int64_t stride = opaque(stride_w), step = opaque(width), left = kc - k;
            const int64_t at = k / U::kDepth * width + w, room = end - at;
            const bool whole = left >= kBlock && (N - 1) * width + N <= room;
            if (whole && rows >= N)
                pack_block<T, Piece::kWhole>(panel + at, step, from, stride, N, kBlock, N, lanes, room, least);
            else if (whole && rows >= lanes)
                pack_block<T, Piece::kFewRows>(panel + at, step, from, stride, rows, kBlock, N, lanes, room, least);
            else
                pack_part(panel + at, step, from, stride, rows, left,
                          left < kBlock ? (left + U::kDepth - 1) / U::kDepth : N, lanes, room, least);
        }
    }
}

/** A panel of width 1: elements that are neighbours already. */
template <class T>
INFINI_INLINE void pack_row(typename Units<T>::Unit *panel, const T *src, int64_t kc, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    auto *const to = reinterpret_cast<typename V::Scalar *>(panel);
    constexpr int64_t kBlock = int64_t{V::N} * U::kDepth;
    int64_t k = 0;
    for (; k + kBlock <= kc; k += kBlock) store(to + k / U::kDepth, U::along_k(src + k, kBlock, least));
    if (k < kc) store_n(to + k / U::kDepth, U::along_k(src + k, kc - k, least), (kc - k + U::kDepth - 1) / U::kDepth);
}

/** to[i] = the unit of column i. Something may be written up to to[room]. */
template <class T>
INFINI_INLINE void pack_across(typename Units<T>::Unit *to, const T *from, const T *next_k, int64_t n, int64_t room,
                               typename Units<T>::Least &least) {
    using U = Units<T>;
    constexpr int N = U::Sums::N;
    int64_t i = 0;
    for (; i + 2 * N <= n; i += 2 * N) {
        typename U::Vector x[2];
        U::across(x, from + i, next_k == nullptr ? nullptr : next_k + i, least);
        store(to + i, x[0]);
        store(to + i + N, x[1]);
    }
    for (; i < n; i += N) {
        const int64_t count = n - i < N ? n - i : N;
        const auto x = U::across_n(from + i, next_k == nullptr ? nullptr : next_k + i, count, least);
        i + N <= room ? store(to + i, x) : store_n(to + i, x, count);
    }
}

template <class T>
int gemm_pack(void *panels_, int64_t panel_stride, const void *src_, int64_t stride_w, int64_t stride_k, int64_t count,
              int64_t width, int64_t kc) {
    using U = Units<T>;
    auto *panels = static_cast<typename U::Unit *>(panels_);
    const T *src = static_cast<const T *>(src_);
    typename U::Least least;
    if (stride_k == 1 && width == 1) {
        for (int64_t w = 0; w < count; ++w) pack_row(panels + w * panel_stride, src + w * stride_w, kc, least);
        return least.exponent();
    }
    if (stride_k == 1 && stride_w != 1) {
        for (int64_t w = 0; w < count; w += width)
            pack_transposed(panels + w / width * panel_stride, src + w * stride_w, stride_w,
                            count - w < width ? count - w : width, width, kc, least);
        return least.exponent();
    }
    // A row of src at a time, over all panels: memory is read in its own order. Of short rows the hardware sees too late that
    // others follow. Long ones would write to more pages at a time than its first-level TLB holds, so they are cut; not those
    // that are read in pairs, of which there are half as many. (A single row may have any stride.)
    constexpr int64_t kLine = 64 / sizeof(T), kShort = 2048 / sizeof(T), kStrip = 512 / sizeof(T), kRowsAhead = 32;
    constexpr int kWide = 2 * U::Sums::N; // of a panel of B, and of no other
    const bool wide = stride_w == 1 && width == kWide, cut = wide && U::kDepth == 1 && count >= kShort;
    const bool fetch = (count < kShort || cut) && kc > 1;
    const int64_t strip = cut ? kStrip : count;
    const T *const ahead = src + (cut ? 1 : kRowsAhead) * stride_k;
    for (int64_t w0 = 0; w0 < count; w0 += strip) {
        const int64_t end = w0 + strip < count ? w0 + strip : count;
        for (int64_t k = 0; k < kc; k += U::kDepth) {
            const T *from = src + k * stride_k, *next_k = k + 1 < kc ? from + stride_k : nullptr;
            auto *to = panels + w0 / width * panel_stride + k / U::kDepth * width;
            const auto next = [&](int64_t at) { return next_k == nullptr ? nullptr : next_k + at; };
            int64_t w = w0;
            if (wide)
                for (; w + kWide <= end; w += kWide, to += panel_stride) {
                    typename U::Vector x[2];
                    U::across(x, from + w, next(w), least);
                    store(to, x[0]);
                    store(to + kWide / 2, x[1]);
                    if (fetch)
#pragma GCC unroll 2
                        for (int64_t d = 0; d < U::kDepth; ++d)
#pragma GCC unroll 4
                            for (int64_t at = 0; at < kWide; at += kLine)
                                __builtin_prefetch(ahead + (k + d) * stride_k + w + at, 0, 2);
                }
            for (; w < end; w += width, to += panel_stride) {
                const int64_t valid = end - w < width ? end - w : width;
                if (stride_w == 1)
                    pack_across(to, from + w, next(w), valid, (kc - k + U::kDepth - 1) / U::kDepth * width,
                                least); // written later
                else
                    for (int64_t i = 0; i < valid; ++i)
                        to[i] = U::one(from + (w + i) * stride_w, next((w + i) * stride_w), least);
                for (int64_t i = valid; i < width; ++i) to[i] = {};
            }
        }
    }
    return least.exponent();
}

/* ---- products ---------------------------------------------------------------------------------------------------------- */

/** What comes next. Returns how long to wait before that which follows. */
INFINI_INLINE int64_t fetch_some(GemmFetch &f) {
    const char *const from = f.at;
    f.at += f.bytes;
    for (const char *p = from; p < f.at; p += 64) __builtin_prefetch(p, 0, 2);
    if (f.at >= f.end) {
        f.end += f.stride;
        f.at = f.end - f.run;
        if (--f.left == 0) {
            f.every = 0;
            if (f.then != nullptr) f = *f.then;
        }
    }
    return f.every;
}

/** The units of 2 * N columns of B from a panel. */
template <class Unit>
struct PackedB {
    using V = Vec<Unit>;
    const Unit *panel;

    template <class Vectors>
    INFINI_INLINE void next(Vectors &x) {
        x[0] = load(panel);
        x[1] = load(panel + V::N);
        panel += 2 * V::N;
    }
};

/** The same from where B lies, and into a panel. */
template <class T>
struct UnpackedB {
    using U = Units<T>;
    const T *b;
    int64_t stride;
    typename U::Unit *panel;
    typename U::Least least{};

    INFINI_INLINE void next(typename U::Vector (&x)[2]) {
        constexpr int N = U::Sums::N;
        U::across(x, b, static_cast<const T *>(nullptr), least);
        store(panel, x[0]);
        store(panel + N, x[1]);
        panel += 2 * N;
        b += stride;
    }
};

/** R rows: the tallest tile that fits the registers, or less where A has fewer rows. */
template <class Unit, int Exactness, int R, bool Fetches, class SourceB>
INFINI_INLINE void multiply_tile(int64_t units, const void *a_, SourceB b, const void *in_, void *out_,
                                 [[maybe_unused]] GemmFetch *fetch) {
    using V = Vec<Unit>;
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    const Unit *a = static_cast<const Unit *>(a_);
    const Acc *in = static_cast<const Acc *>(in_);
    Acc *out = static_cast<Acc *>(out_);
    const Acc *wanted = in != nullptr ? in : out;
    V sums[R][2];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = zero(V{});
    const auto step = [&] {
        decltype(load(a)) x[2];
        b.next(x);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const auto ai = broadcast(a[i]);
            sums[i][0] = multiply_add<Exactness>(ai, x[0], sums[i][0]);
            sums[i][1] = multiply_add<Exactness>(ai, x[1], sums[i][1]);
        }
        a += R;
    };
    // Counting takes slots that multiply-adds need: once in four steps it costs 2 %, at every step 15 %.
    int64_t u = 0;
    [[maybe_unused]] int64_t wait = Fetches ? fetch->wait : 0;
    constexpr int64_t kLine = 64 / sizeof(Acc);
    for (; u + kGemmStepsTogether <= units; u += kGemmStepsTogether) {
        if (Fetches && --wait == 0) wait = fetch_some(*fetch);
        // The sums may be far away, and are wanted when the products are done: a cache line of them at a time.
        const int64_t line = u / kGemmStepsTogether * kLine;
        if (line < R * 2 * N) __builtin_prefetch(wanted + line);
#pragma GCC unroll 4
        for (int i = 0; i < kGemmStepsTogether; ++i) step();
    }
    for (; u < units; ++u) step();
    if (Fetches) fetch->wait = wait > 0 ? wait : 0;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) {
            const int64_t at = (i * 2 + j) * N;
            store(out + at, in != nullptr ? load(in + at) + sums[i][j] : sums[i][j]);
        }
}

/** Whatever was packed: the kernel knows its units alone. */
template <class Unit, int Exactness, int R>
void gemm_multiply(int64_t units, const void *a, const void *b, const void *in, void *out, GemmFetch *fetch) {
    const PackedB<Unit> packed{static_cast<const Unit *>(b)};
    if (fetch != nullptr)
        multiply_tile<Unit, Exactness, R, true>(units, a, packed, in, out, fetch);
    else
        multiply_tile<Unit, Exactness, R, false>(units, a, packed, in, out, fetch);
}

template <class T, int R>
void gemm_multiply_pack(int64_t units, const void *a, const void *b, int64_t stride, void *panel, const void *in,
                        void *out, GemmFetch *fetch) {
    using Unit = typename Units<T>::Unit;
    const UnpackedB<T> unpacked{static_cast<const T *>(b), stride, static_cast<Unit *>(panel)};
    multiply_tile<Unit, kExact, R, true>(units, a, unpacked, in, out, fetch);
}

/** What becomes of a tile's sums where that is more than one store of each: rows x cols vectors, the last of a row n_last long. */
template <class T>
INFINI_CALLED void finish_sums(const GemmInPlace &g, int64_t j, int64_t n_last, int rows, int cols,
                               const typename Units<T>::Sums *tile) {
    using V = typename Units<T>::Sums;
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    // Read once: for all the compiler knows, what is stored may be g.
    const int64_t ld = g.ld, c_row = g.c_row;
    const bool add = g.add, reads = g.beta != 0;
    const V alpha = broadcast(static_cast<Acc>(g.alpha)), beta = broadcast(static_cast<Acc>(g.beta));
    if (!g.ends || g.c == nullptr) { // there is room for whole vectors
        const bool adds = g.ends && add;
        Acc *to = static_cast<Acc *>(g.ends ? g.sums : g.part) + j;
        for (; rows > 0; --rows, to += ld)
            for (int64_t i = 0; i < cols * N; i += N, ++tile) store(to + i, adds ? load(to + i) + *tile : *tile);
        return;
    }
    const Acc *earlier = add ? static_cast<const Acc *>(g.sums) + j : nullptr;
    T *c = static_cast<T *>(g.c) + j;
    for (int row = 0; row < rows; ++row)
        for (int col = 0; col < cols; ++col, ++tile) {
            const V product = alpha * (add ? load(earlier + row * ld + col * N) + *tile : *tile);
            T *const to = c + row * c_row + col * N;
            if (col < cols - 1 || n_last == N)
                store(to, reads ? fma(beta, load(to), product) : product);
            else
                store_n(to, reads ? fma(beta, load_n(to, n_last), product) : product, n_last);
        }
}

/** The same for sums that may be all there is to an element of C, as those of a small product. */
template <class T, int R, int C>
INFINI_INLINE void finish_in_place(const GemmInPlace &g, int64_t j, int64_t n_last,
                                   const typename Units<T>::Sums (&sums)[R][C]) {
    using V = typename Units<T>::Sums;
    constexpr int N = V::N;
    if (!g.ends || g.add || g.c == nullptr || g.beta != 0) {
        V tile[R][C];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) tile[r][c] = sums[r][c];
        return finish_sums<T>(g, j, n_last, R, C, tile[0]);
    }
    // Read once: for all the compiler knows, what is stored may be g.
    const int64_t c_row = g.c_row;
    T *const to = static_cast<T *>(g.c) + j;
    const V alpha = broadcast(static_cast<typename V::Scalar>(g.alpha));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
            T *const at = to + r * c_row + c * N;
            c < C - 1 || n_last == N ? store(at, alpha * sums[r][c]) : store_n(at, alpha * sums[r][c], n_last);
        }
}

/** One tile of R rows and C * N columns, or of n_last < N columns if C is 1. */
template <class T, int Exactness, int R, int C>
INFINI_INLINE void rows_tile(const GemmInPlace &g, int64_t j, int64_t n_last, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    const auto *a = static_cast<const typename U::Unit *>(g.a);
    const T *b = static_cast<const T *>(g.b) + j;
    const int64_t stride = g.b_stride;
    const auto *part = g.begins ? nullptr : static_cast<const typename V::Scalar *>(g.part) + j;
    V sums[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) sums[r][c] = part == nullptr ? zero(V{}) : load(part + r * g.ld + c * N);
    const T *ahead = static_cast<const T *>(g.ahead) + j;
    GemmFetch *const fetch = g.fetch;
    int64_t wait = fetch != nullptr ? fetch->wait : g.ahead_every;
    const auto step = [&](bool pairs_up) {
        typename U::Vector x[C];
        const T *next_k = pairs_up && U::kDepth > 1 ? b + stride : nullptr;
        if (--wait == 0) {
            if (fetch != nullptr) {
                wait = fetch_some(*fetch);
            } else {
                constexpr int64_t kLine = 64 / sizeof(T);
#pragma GCC unroll 2
                for (int d = 0; d < U::kDepth; ++d)
#pragma GCC unroll 16
                    for (int64_t at = 0; at < C * N; at += kLine) __builtin_prefetch(ahead + d * stride + at, 0, 2);
                ahead += U::kDepth * stride;
                wait = g.ahead_every;
            }
        }
        if constexpr (C == 1)
            x[0] = U::across_n(b, next_k, n_last, least);
        else
            U::across(x, b, next_k, least);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const auto ar = broadcast(a[r * g.a_row]);
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) sums[r][c] = multiply_add<Exactness>(ar, x[c], sums[r][c]);
        }
        a += g.a_unit;
        b += U::kDepth * stride;
    };
    for (int64_t u = g.kc / U::kDepth; u > 0; --u) step(true);
    if (g.kc % U::kDepth != 0) step(false);
    if (fetch != nullptr) fetch->wait = wait > 0 ? wait : 0;
    finish_in_place<T, R, C>(g, j, n_last, sums);
}

/** As many sums as the registers hold beside what is loaded: the fewer rows, the longer the runs of B. */
template <class T, int R>
constexpr int tile_vectors() {
    constexpr int kMost = Units<T>::kDepth == 1 ? 16 : 8; // pairs are made of whole rows before they are multiplied
    return 2 * kGemmRows / R < kMost ? 2 * kGemmRows / R : kMost;
}

template <class T, int Exactness, int R>
int gemm_rows(const GemmInPlace &g) {
    constexpr int N = Units<T>::Sums::N, C = tile_vectors<T, R>();
    typename Units<T>::Least least;
    int64_t j = 0;
    for (; j + C * N <= g.n; j += C * N) rows_tile<T, Exactness, R, C>(g, j, N, least);
    if constexpr (C > 2)
        for (; j + 2 * N <= g.n; j += 2 * N) rows_tile<T, Exactness, R, 2>(g, j, N, least);
    for (; j + N <= g.n; j += N) rows_tile<T, Exactness, R, 1>(g, j, N, least);
    if (j < g.n) rows_tile<T, Exactness, R, 1>(g, j, g.n - j, least);
    return least.exponent();
}

/** One row of `units` after the other: what they add to the sums of R rows and C * N columns, or of n_last < N if C is 1. */
template <class T, int Exactness, int R, int G, int C>
INFINI_INLINE void stream_tile(const typename Units<T>::Vector (&a)[G][R], const T *b, const T *ahead, int64_t stride,
                               int64_t n_last, bool pairs_up, typename Units<T>::Sums::Scalar *sums, int64_t ld,
                               typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    constexpr int64_t kLine = 64 / sizeof(T);
    V s[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) s[r][c] = load(sums + r * ld + c * N);
#pragma GCC unroll 16
    for (int u = 0; u < G; ++u) {
        typename U::Vector x[C];
        const T *at = b + u * U::kDepth * stride, *next_k = pairs_up && U::kDepth > 1 ? at + stride : nullptr;
        if (C > 1)
#pragma GCC unroll 2
            for (int d = 0; d < U::kDepth; ++d)
#pragma GCC unroll 16
                for (int64_t i = 0; i < C * N; i += kLine)
                    __builtin_prefetch(ahead + (u * U::kDepth + d) * stride + i, 0, 2);
        if constexpr (C == 1)
            x[0] = U::across_n(at, next_k, n_last, least);
        else
            U::across(x, at, next_k, least);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) s[r][c] = multiply_add<Exactness>(a[u][r], x[c], s[r][c]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) store(sums + r * ld + c * N, s[r][c]);
}

/** G units of all columns. */
template <class T, int Exactness, int R, int G>
INFINI_INLINE void stream_units(const GemmInPlace &g, const typename Units<T>::Unit *a, const T *b, bool pairs_up,
                                typename Units<T>::Least &least) {
    constexpr int N = Units<T>::Sums::N;
    constexpr int64_t kAhead = 1024 / sizeof(T); // these are more streams than the hardware follows
    typename Units<T>::Vector wide[G][R];
    for (int u = 0; u < G; ++u)
        for (int r = 0; r < R; ++r) wide[u][r] = broadcast(a[r * g.a_row + u * g.a_unit]);
    auto *const part = static_cast<typename Units<T>::Sums::Scalar *>(g.part);
    int64_t j = 0;
    for (; j + 2 * N <= g.n; j += 2 * N) {
        const int64_t beyond = j + kAhead - g.n; // of these rows: it is the next ones' beginning that comes then
        const T *ahead = beyond < 0 ? b + j + kAhead : b + G * Units<T>::kDepth * g.b_stride + beyond;
        stream_tile<T, Exactness, R, G, 2>(wide, b + j, ahead, g.b_stride, N, pairs_up, part + j, g.ld, least);
    }
    for (; j < g.n; j += N)
        stream_tile<T, Exactness, R, G, 1>(wide, b + j, nullptr, g.b_stride, g.n - j < N ? g.n - j : N, pairs_up,
                                           part + j, g.ld, least);
}

/** As gemm_rows, for a B that comes from memory: a few of its rows at a time, in long runs, since memory is faster at that than at
 *  short runs of many rows. */
template <class T, int Exactness, int R>
int gemm_streams(const GemmInPlace &g) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N, G = 8 * R < 2 * kGemmRows ? 8 : 4; // as many as there are registers for, beside the sums
    auto *const part = static_cast<typename V::Scalar *>(g.part);
    typename U::Least least;
    for (int r = 0; r < R; ++r)
        for (int64_t j = 0; j < g.n; j += N) store(part + r * g.ld + j, zero(V{}));
    const auto *a = static_cast<const typename U::Unit *>(g.a);
    const T *b = static_cast<const T *>(g.b);
    int64_t left = g.kc / U::kDepth;
    for (; left >= G; left -= G, a += G * g.a_unit, b += G * U::kDepth * g.b_stride)
        stream_units<T, Exactness, R, G>(g, a, b, true, least);
    for (; left > 0; --left, a += g.a_unit, b += U::kDepth * g.b_stride)
        stream_units<T, Exactness, R, 1>(g, a, b, true, least);
    if (g.kc % U::kDepth != 0) stream_units<T, Exactness, R, 1>(g, a, b, false, least);
    for (int64_t j = 0; j < g.n; j += N) {
        V s[R][1];
        for (int r = 0; r < R; ++r) s[r][0] = load(part + r * g.ld + j);
        finish_in_place<T, R, 1>(g, j, g.n - j < N ? g.n - j : N, s);
    }
    return least.exponent();
}

/** N columns of B, contiguous in k, or the first n < N: N x N blocks are transposed in registers and used at once. */
template <class T, int Exactness, int R, bool Whole>
INFINI_INLINE void columns_tile(const GemmInPlace &g, int64_t j, int64_t n, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    constexpr int64_t kBlock = int64_t{N} * U::kDepth;
    const T *b = static_cast<const T *>(g.b) + j * g.b_stride;
    const auto *a = static_cast<const typename U::Unit *>(g.a);
    const T *ahead = g.ahead_every == 0 ? nullptr : static_cast<const T *>(g.ahead) + j * g.b_stride;
    V sums[R][1];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sums[r][0] = zero(V{});
    const auto block = [&](int64_t left) INFINI_INLINE_LAMBDA {
        V x[N];
        if (ahead != nullptr) {
#pragma GCC unroll 16
            for (int i = 0; i < N; ++i) __builtin_prefetch(ahead + i * g.b_stride, 0, 2);
            ahead += kBlock;
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) x[i] = Whole || i < n ? U::along_k(b + i * g.b_stride, left, least) : zero(V{});
        transpose(x);
#pragma GCC unroll 16
        for (int u = 0; u < N; ++u) {
            if (u * U::kDepth >= left) break;
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                sums[r][0] =
                    multiply_add<Exactness>(broadcast(a[r * g.a_row + u * g.a_unit]), U::vector(x[u]), sums[r][0]);
        }
        b += kBlock;
        a += N * g.a_unit;
    };
    int64_t k = 0;
    for (; k + kBlock <= g.kc; k += kBlock) block(kBlock);
    if (k < g.kc) block(g.kc - k);
    finish_in_place<T, R, 1>(g, j, n, sums);
}

#include "cpu/gemm_lines.inl"

#if defined(__AVX512F__) && !defined(__AVX512BF16__)
/** The columns of g by cache lines, as far as there are enough of them, and lines. Returns how many that were. */
template <class T, int R>
INFINI_INLINE int64_t columns_by_lines(const GemmInPlace &g) {
    using P = LineProduct<T, R, 2>;
    constexpr int64_t kColumns = 2 * P::N;
    const int64_t lines = g.kc / kHalvesOfLine;
    if (lines == 0) return 0;
    int64_t j = 0;
    for (; j + kColumns <= g.n; j += kColumns) {
        ByteColumns b(static_cast<const T *>(g.b) + j * g.b_stride, g.b_stride * 2);
        LineFetch fetch(g.ahead_every == 0 ? nullptr : static_cast<const T *>(g.ahead) + j * g.b_stride, lines, b,
                        kColumns, lines);
        const float *a = static_cast<const float *>(g.a);
        alignas(kLine) typename P::Buffer buffer;
        typename P::Sums sums;
        P::clear(sums);
        P::put(buffer[0], b);
        int64_t which = 0;
        P::add(sums, a, g.a_unit, b, lines, nullptr, buffer, which, fetch);
        b.p += lines * kLine;
        if (g.kc % kHalvesOfLine != 0) P::add_rest(sums, a, g.a_unit, b, g.kc % kHalvesOfLine, buffer[0]);
        finish_in_place<T, R, 2>(g, j, P::N, sums);
    }
    return j;
}
#endif

template <class T, int Exactness, int R>
int gemm_columns(const GemmInPlace &g) {
    constexpr int N = Units<T>::Sums::N;
    typename Units<T>::Least least;
    int64_t j = 0;
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
    if constexpr (sizeof(T) == 2) j = columns_by_lines<T, R>(g);
#endif
    for (; j + N <= g.n; j += N) columns_tile<T, Exactness, R, true>(g, j, N, least);
    if (j < g.n) columns_tile<T, Exactness, R, false>(g, j, g.n - j, least);
    return least.exponent();
}

#include "cpu/gemv.inl"

template <class T>
void gemm_store(void *c_, int64_t row_stride, int64_t col_stride, const void *sums_, int64_t ld, int64_t m, int64_t n,
                float alpha_, float beta_) {
    using V = Vec<T>;
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    T *c = static_cast<T *>(c_);
    const Acc alpha = alpha_, beta = beta_;
    const V alphas = broadcast(alpha), betas = broadcast(beta);
    for (int64_t i = 0; i < m; ++i) {
        const Acc *sums = static_cast<const Acc *>(sums_) + i * ld;
        T *row = c + i * row_stride;
        // One formula for every element, whatever path it takes: in vectors, the last one partly filled.
        for (int64_t j = 0; j < n; j += N) {
            const int64_t count = n - j < N ? n - j : N;
            if (col_stride == 1 && count == N) {
                const V product = alphas * load(sums + j);
                store(row + j, beta == 0 ? product : fma(betas, load(row + j), product));
                continue;
            }
            T out[N] = {};
            if (beta != 0)
                for (int64_t l = 0; l < count; ++l) out[l] = row[(j + l) * col_stride];
            const V product = alphas * load_n(sums + j, count);
            store(out, beta == 0 ? product : fma(betas, load(out), product));
            for (int64_t l = 0; l < count; ++l) row[(j + l) * col_stride] = out[l];
        }
    }
}

template <class T, int Exactness, int R>
constexpr void fill_multiply(GemmKernel &kernel) {
    kernel.multiply[Exactness][R] = gemm_multiply<typename Units<T>::Unit, Exactness, R>;
    if constexpr (!Units<T>::kFlush) kernel.multiply_pack[R] = gemm_multiply_pack<T, R>;
    if constexpr (R > 1) fill_multiply<T, Exactness, R - 1>(kernel);
}

template <class T, int Exactness, int R>
constexpr void fill_in_place(GemmKernel &kernel) {
    kernel.rows[Exactness][R] = gemm_rows<T, Exactness, R>;
    if constexpr (R > 1) {
        kernel.columns[Exactness][R] = gemm_columns<T, Exactness, R>;
        fill_in_place<T, Exactness, R - 1>(kernel);
    } else {
        kernel.columns[Exactness][R] = gemv<T, Exactness>;
    }
}

template <class T, int Exactness, int R>
constexpr void fill_streams(GemmKernel &kernel) {
    kernel.streams[Exactness][R] = gemm_streams<T, Exactness, R>;
    if constexpr (R > 1) fill_streams<T, Exactness, R - 1>(kernel);
}

template <class T, int Exactness>
constexpr void fill_products(GemmKernel &kernel) {
    fill_multiply<T, Exactness, kGemmRows>(kernel);
    // With a large second-level cache, K blocks in place are soon faster; units of two rows bring more rows at a time.
    fill_streams<T, Exactness, kSmallL2 ? kStreamRows : 2 * Units<T>::kDepth>(kernel);
    fill_in_place<T, Exactness, kInPlaceMaxRows>(kernel);
}

/** Twice where it takes few instructions to transpose and convert a line once more. */
template <class T>
constexpr int kColumnsMaxRows = kInPlaceMaxRows;
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
template <>
constexpr int kColumnsMaxRows<bf16> = 2 * kInPlaceMaxRows;
#endif

template <class T>
constexpr GemmKernel gemm_kernel() {
    using U = Units<T>;
    GemmKernel kernel{kGemmRows,
                      2 * U::Sums::N,
                      kInPlaceMaxRows,
                      kColumnsMaxRows<T>,
                      sizeof(typename U::Unit),
                      U::kDepth,
                      kSmallL2,
                      gemm_pack<T>,
                      {},
                      {},
                      {},
                      {},
                      {},
                      gemm_store<T>};
    fill_products<T, kFast>(kernel);
    if constexpr (U::kFlush)
        fill_products<T, kExact>(kernel);
    else
        for (int r = 0; r <= kGemmMaxRows; ++r) {
            kernel.multiply[kExact][r] = kernel.multiply[kFast][r];
            kernel.rows[kExact][r] = kernel.rows[kFast][r];
            kernel.columns[kExact][r] = kernel.columns[kFast][r];
        }
    return kernel;
}
