/* Products of a few rows of A with a B that is read where it lies: in rows, in long runs of a few rows, or in columns. */

/** What becomes of a tile's sums where a K block ends: rows x cols vectors, the last of a row n_last long. */
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
    if (g.c == nullptr) { // there is room for whole vectors, but another thread's sums may begin in it
        Acc *to = static_cast<Acc *>(g.sums) + j;
        for (; rows > 0; --rows, to += ld)
            for (int col = 0; col < cols; ++col, ++tile) {
                const V sum = add ? load(to + col * N) + *tile : *tile;
                col < cols - 1 || n_last == N ? store(to + col * N, sum) : store_n(to + col * N, sum, n_last);
            }
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

/** The same for sums that go on in the next rows of B, or may be all there is to an element of C, as those of a small product. */
template <class T, int R, int C>
INFINI_INLINE void finish_in_place(const GemmInPlace &g, int64_t j, int64_t n_last,
                                   const typename Units<T>::Sums (&sums)[R][C]) {
    using V = typename Units<T>::Sums;
    constexpr int N = V::N;
    if (!g.ends) { // there is room for whole vectors
        const int64_t ld = g.ld;
        auto *const to = static_cast<typename V::Scalar *>(g.part) + j;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) store(to + r * ld + c * N, sums[r][c]);
        return;
    }
    if (g.add || g.c == nullptr || g.beta != 0) {
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

/** As many sums as the registers hold beside what is loaded: the fewer rows, the longer the runs of B. */
template <class T, int R>
constexpr int tile_vectors() {
    constexpr int kMost = Units<T>::kDepth == 1 ? 16 : 8; // pairs are made of whole rows before they are multiplied
    if (R > kGemmRows) return 1;                          // a second vector would not fit
    return 2 * kGemmRows / R < kMost ? 2 * kGemmRows / R : kMost;
}

constexpr int kStepsUnrolled = 8;

/** What `steps` rows of B, a multiple of kStepsUnrolled, and as many columns of A add to a tile, with hardly an instruction but those that
 *  load and multiply: where another thread has a share of the core, each of them counts. Across: of A, neighbours are what is multiplied
 *  by the same row of B, as if it was packed, and not a row's. */
template <class T, bool Across, int R, int C>
INFINI_INLINE void steps_of_rows(const GemmInPlace &g, const typename Units<T>::Unit *a, const T *b, int64_t steps,
                                 typename Units<T>::Sums (&sums)[R][C], typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Vector;
    // Addresses are of two registers, one of them scaled, and a constant. What is opaque is not invariant to the compiler, which would
    // have a register for each sum of these, and those in memory.
    int64_t a_stride = Across ? g.a_unit : g.a_row, b_stride = g.b_stride, a_three = 3 * a_stride,
            b_three = 3 * b_stride;
    const auto *a3 = a + a_three;
    const auto unit = [&](int k, int r) INFINI_INLINE_LAMBDA {
        if (Across) return (k % 4 < 3 ? a + k % 4 * a_stride : a + a_three)[r];
        return (r < 3 ? a + r * a_stride : a3 + (r - 3) * a_stride)[k];
    };
    for (; steps > 0; steps -= kStepsUnrolled) {
#pragma GCC unroll 8
        for (int k = 0; k < kStepsUnrolled; ++k) {
            const T *const from = k % 4 < 3 ? b + k % 4 * b_stride : b + b_three;
            if constexpr (R < C) {
                V ar[R];
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) ar[r] = broadcast(unit(k, r));
#pragma GCC unroll 16
                for (int c = 0; c < C; ++c) {
                    V x[1];
                    U::across(x, from + c * V::N, static_cast<const T *>(nullptr), least);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) add_product(sums[r][c], ar[r], x[0]);
                }
            } else {
                V x[C];
                U::across(x, from, static_cast<const T *>(nullptr), least);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const V ar = broadcast(unit(k, r));
#pragma GCC unroll 16
                    for (int c = 0; c < C; ++c) add_product(sums[r][c], ar, x[c]);
                }
            }
            if (k % 4 == 3) {
                b = opaque(b + 4 * b_stride);
                if (Across) a = opaque(a + 4 * a_stride);
            }
        }
        if (!Across) {
            a = opaque(a + kStepsUnrolled);
            a3 = opaque(a3 + kStepsUnrolled);
        }
        a_stride = opaque(a_stride);
        a_three = opaque(a_three);
        b_stride = opaque(b_stride);
        b_three = opaque(b_three);
    }
}

/** One tile of R rows and C vectors of columns; Part: of the last one there may be n_last < N. */
template <class T, int Exactness, int R, int C, bool Part>
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
    // Returns how long to wait before the next time.
    const auto bring_more = [&]() INFINI_INLINE_LAMBDA {
        if (fetch != nullptr) return fetch_some(*fetch);
        constexpr int64_t kLine = 64 / sizeof(T);
#pragma GCC unroll 2
        for (int d = 0; d < U::kDepth; ++d)
#pragma GCC unroll 16
            for (int64_t at = 0; at < C * N; at += kLine) __builtin_prefetch(ahead + d * stride + at, 0, 2);
        ahead += U::kDepth * stride;
        return g.ahead_every;
    };
    const auto step_by = [&](bool pairs_up, auto &&unit_of_a) INFINI_INLINE_LAMBDA {
        typename U::Vector x[C];
        const T *next_k = pairs_up && U::kDepth > 1 ? b + stride : nullptr;
        if (--wait == 0) wait = bring_more();
        if constexpr (!Part) {
            U::across(x, b, next_k, least);
        } else {
            constexpr int kLast = (C - 1) * N;
            if constexpr (C > 1) {
                typename U::Vector whole[C - 1];
                U::across(whole, b, next_k, least);
#pragma GCC unroll 16
                for (int c = 0; c < C - 1; ++c) x[c] = whole[c];
            }
            x[C - 1] = U::across_n(b + kLast, next_k == nullptr ? nullptr : next_k + kLast, n_last, least);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const auto ar = broadcast(unit_of_a(a, r * g.a_row));
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) sums[r][c] = multiply_add<Exactness>(ar, x[c], sums[r][c]);
        }
        a += g.a_unit;
        b += U::kDepth * stride;
    };
    const auto step = [&](bool pairs_up) INFINI_INLINE_LAMBDA {
        step_by(pairs_up, [](const auto *p, int64_t further) INFINI_INLINE_LAMBDA { return U::one_of_a(p, further); });
    };
    int64_t u = g.kc / U::kDepth;
    if constexpr (kOfPairs<T>) u -= g.odd;
    if constexpr (kLeanSteps && !Part && C == tile_vectors<T, R>()) {
        // Converted elements of A are packed; doubles gain nothing across.
        constexpr bool kAlong = sizeof(T) == sizeof(typename U::Unit),
                       kAcross = sizeof(typename U::Unit) == sizeof(float);
        const bool across = kAcross && g.a_row == 1;
        while (u >= kStepsUnrolled && (across || (kAlong && g.a_unit == 1))) {
            const int64_t steps = wait <= 0 ? u & -kStepsUnrolled : kStepsUnrolled;
            if (wait > 0)
                for (wait -= steps; wait <= 0;) {
                    const int64_t next = bring_more();
                    wait = next == 0 ? 0 : wait + next;
                    if (next == 0) break;
                }
            if (across)
                steps_of_rows<T, kAcross, R, C>(g, a, b, steps, sums, least);
            else
                steps_of_rows<T, !kAlong, R, C>(g, a, b, steps, sums, least);
            a += steps * g.a_unit;
            b += steps * stride;
            u -= steps;
        }
    }
    // See step_tile. Converted elements gain nothing by it, and where products must be exact, which is seldom, it is too much code.
    if constexpr (C > 1 && !kSmallL2 && Exactness == kFast && sizeof(T) == sizeof(typename U::Unit)) {
        constexpr int kTogether = 4;
        for (; u >= kTogether; u -= kTogether)
#pragma GCC unroll 4
            for (int i = 0; i < kTogether; ++i) step(true);
    }
    for (; u > 0; --u) step(true);
    if (g.kc % U::kDepth != 0) step(false);
    if constexpr (kOfPairs<T>)
        if (g.odd)
            step_by(true,
                    [](const auto *p, int64_t further) INFINI_INLINE_LAMBDA { return U::first_of_a(p, further); });
    if (fetch != nullptr) fetch->wait = wait > 0 ? wait : 0;
    finish_in_place<typename U::Result, R, C>(g, j, n_last, sums);
}

template <class T, int Exactness, int R>
int gemm_rows(const GemmInPlace &g) {
    // Pairs whose products must be exact are seldom: of their kernels there is but one width.
    constexpr int N = Units<T>::Sums::N, C = kOfPairs<T> && Exactness == kExact ? 1 : tile_vectors<T, R>();
    typename Units<T>::Least least;
    int64_t j = 0;
    // Few sums wait for what was added before, so no vector is left alone where two and two, or a part of one with the last, will do.
    const auto goes_on = [&](int64_t columns) {
        if (C != 3) return columns >= C * N;
        return columns == 3 * N || (columns > 4 * N && columns <= 5 * N) || columns >= 6 * N;
    };
    for (; goes_on(g.n - j); j += C * N) rows_tile<T, Exactness, R, C, false>(g, j, N, least);
    if constexpr (C > 2)
        for (; j + 2 * N <= g.n; j += 2 * N) rows_tile<T, Exactness, R, 2, false>(g, j, N, least);
    if constexpr (C > 1)
        if (j + N < g.n) {
            rows_tile<T, Exactness, R, 2, true>(g, j, g.n - j - N, least);
            return least.exponent();
        }
    if (j < g.n) rows_tile<T, Exactness, R, 1, true>(g, j, g.n - j, least);
    return least.exponent();
}

template <bool Far>
INFINI_INLINE void prefetch(const void *p) {
    __builtin_prefetch(p, 0, Far ? 2 : 3);
}

/** Is what is multiplied next fetched ahead, and into the first-level cache or the second? */
enum Fetches { kFetchNone, kFetchNear, kFetchFar };

/** Is there room beside so many rows of sums for B in the first-level cache? Else it is fetched into the second, and from further,
 *  unless rows of sums are short (GemmInPlace::stream_near). */
template <int R>
constexpr bool kFetchesNear = R <= 2;

/* Sums of R rows and C * N columns, or of n_last < N of them if C is 1: what lies behind those may be another thread's. */

template <class V, int R, int C>
INFINI_INLINE void load_tile(V (&sums)[R][C], const typename V::Scalar *from, int64_t ld, int64_t n_last) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c)
            sums[r][c] = C > 1 || n_last == V::N ? load(from + r * ld + c * V::N) : load_n(from + r * ld, n_last);
}
template <class V, int R, int C>
INFINI_INLINE void store_tile(typename V::Scalar *to, int64_t ld, int64_t n_last, const V (&sums)[R][C]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c)
            C > 1 || n_last == V::N ? store(to + r * ld + c * V::N, sums[r][c])
                                    : store_n(to + r * ld, sums[r][c], n_last);
}

/** Vectors of sums at a time: for pairs of eight rows of B two lines of each, as for eight rows of F32. */
template <class T, int R, int G>
constexpr int stream_vectors() {
    return kFetchesNear<R> && Units<T>::kDepth == 2 && G == 4 ? 4 : 2;
}

/** What G units add to the sums of R rows and `tiles` times some vectors of columns. A processor looks ahead for so many
 *  instructions, and what these load is what it waits for at a time: hence hardly one beside those that load and multiply. */
template <class T, int Exactness, Fetches kFetch, int R, int G>
INFINI_INLINE void stream_tiles(const typename Units<T>::Vector (&a)[G][R], const T *b, const T *ahead, int64_t stride,
                                int64_t tiles, bool pairs_up, typename Units<T>::Sums::Scalar *sums, int64_t ld,
                                typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N, D = U::kDepth, C = stream_vectors<T, R, G>();
    int64_t three = 3 * stride; // see steps_of_rows()
    const auto row = [&](const T *p, int i) INFINI_INLINE_LAMBDA { return i % 4 < 3 ? p + i % 4 * stride : p + three; };
    for (; tiles > 0; --tiles) {
        V s[R][C];
        load_tile(s, sums, ld, N);
        const T *at = b, *next = ahead;
#pragma GCC unroll 16
        for (int u = 0; u < G; ++u) {
            if constexpr (kFetch != kFetchNone)
#pragma GCC unroll 2
                for (int d = 0; d < D; ++d)
#pragma GCC unroll 16
                    for (int64_t i = 0; i < C * N; i += kLine / int64_t{sizeof(T)})
                        prefetch<kFetch == kFetchFar>(row(next, u * D + d) + i);
            typename U::Vector x[C];
            U::across(x, row(at, u * D), D > 1 && pairs_up ? row(at, u * D + 1) : nullptr, least);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                for (int c = 0; c < C; ++c) s[r][c] = multiply_add<Exactness>(a[u][r], x[c], s[r][c]);
            if ((u + 1) * D % 4 == 0) {
                at = opaque(at + 4 * stride);
                if (kFetch != kFetchNone) next = opaque(next + 4 * stride);
            }
        }
        store_tile(sums, ld, N, s);
        b = opaque(b + C * N);
        if (kFetch != kFetchNone) ahead = opaque(ahead + C * N);
        sums += C * N;
        stride = opaque(stride);
        three = opaque(three);
    }
}

/** What some units add to the sums of a few rows and columns, j to end. */
template <class T, int Exactness>
INFINI_CALLED void stream_few(const GemmInPlace &g, int rows, const typename Units<T>::Unit *a, const T *b,
                              int64_t units, bool pairs_up, int64_t j, int64_t end, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    for (; j < end; j += V::N) {
        const int64_t n_last = end - j < V::N ? end - j : V::N;
        auto *part = static_cast<typename V::Scalar *>(g.part) + j;
        for (int r = 0; r < rows; ++r, part += g.ld) {
            V sum = load_n(part, n_last);
            const T *at = b + j;
            for (int64_t u = 0; u < units; ++u, at += U::kDepth * g.b_stride) {
                const T *const next_k = pairs_up && U::kDepth > 1 ? at + g.b_stride : nullptr;
                sum = multiply_add<Exactness>(broadcast(a[r * g.a_row + u * g.a_unit]),
                                              U::across_n(at, next_k, n_last, least), sum);
            }
            store_n(part, sum, n_last);
        }
    }
}

/** G units of all columns. */
template <class T, int Exactness, Fetches kFetch, int R, int G>
INFINI_INLINE void stream_units(const GemmInPlace &g, const typename Units<T>::Unit *a, const T *b, bool pairs_up,
                                typename Units<T>::Least &least) {
    constexpr int64_t kTile = stream_vectors<T, R, G>() * Units<T>::Sums::N;
    const int64_t far = (kFetch == kFetchFar ? 1024 : g.stream_ahead) / int64_t{sizeof(T)};
    const int64_t ld = g.ld, stride = g.b_stride, head = g.head, n = g.n;
    auto *const part = static_cast<typename Units<T>::Sums::Scalar *>(g.part);
    if (head > 0) stream_few<T, Exactness>(g, R, a, b, G, pairs_up, 0, head, least);
    typename Units<T>::Vector wide[G][R];
    for (int u = 0; u < G; ++u)
        for (int r = 0; r < R; ++r) wide[u][r] = broadcast(a[r * g.a_row + u * g.a_unit]);
    // From near_end on it is the next rows' beginning that comes.
    const int64_t end = head + (n - head) / kTile * kTile;
    const int64_t near_end =
        kFetch == kFetchNone ? end : head + (n - head > far ? (n - head - far) / kTile * kTile : 0);
    int64_t j = head, ahead = far;
    for (int64_t to = near_end;; to = end, ahead = G * Units<T>::kDepth * stride - near_end) {
        stream_tiles<T, Exactness, kFetch, R, G>(wide, b + j, b + j + ahead, stride, (to - j) / kTile, pairs_up,
                                                 part + j, ld, least);
        j = to;
        if (to == end) break;
    }
    if (end < n) stream_few<T, Exactness>(g, R, a, b, G, pairs_up, end, n, least);
}

/** So many units of all columns as are a multiple of some: a and b go on to the rest. */
template <class T, int Exactness, Fetches kFetch, int R>
INFINI_INLINE void stream_many(const GemmInPlace &g, const typename Units<T>::Unit *&a, const T *&b, int64_t &left,
                               typename Units<T>::Least &least) {
    using U = Units<T>;
    constexpr int G = 8 * R < 2 * kGemmRows ? 8 : 4; // as many as there are registers for, beside the sums
    constexpr int kFew = 8 / U::kDepth;              // of eight rows, which have room if they meet in a set
    if (kFew < G && g.stream_near && rows_meet(g.b_stride * static_cast<int64_t>(sizeof(T))))
        for (; left >= kFew; left -= kFew, a += kFew * g.a_unit, b += kFew * U::kDepth * g.b_stride)
            stream_units<T, Exactness, kFetch, R, kFew>(g, a, b, true, least);
    for (; left >= G; left -= G, a += G * g.a_unit, b += G * U::kDepth * g.b_stride)
        stream_units<T, Exactness, kFetch, R, G>(g, a, b, true, least);
}

/** As gemm_rows, for a B that comes from memory: a few of its rows at a time, in long runs, since memory is faster at that than at
 *  short runs of many rows. */
template <class T, int Exactness, int R>
int gemm_streams(const GemmInPlace &g) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    auto *const part = static_cast<typename V::Scalar *>(g.part);
    typename U::Least least;
    for (int64_t j = 0; j < g.n; j += N) {
        const V nothing[R][1] = {};
        store_tile(part + j, g.ld, g.n - j < N ? g.n - j : N, nothing);
    }
    const auto *a = static_cast<const typename U::Unit *>(g.a);
    const T *b = static_cast<const T *>(g.b);
    int64_t left = g.kc / U::kDepth;
    // A processor with narrower vectors does not ask for others.
    constexpr Fetches kUsual = kFetchesNear<R> ? kFetchNear : kFetchFar;
    constexpr Fetches kOther = VF::N < 16 ? kUsual : R > 2 ? kFetchNear : sizeof(T) > 2 ? kFetchNone : kUsual;
    if (kOther != kUsual && (kFetchesNear<R> ? g.stream_ahead == 0 : g.stream_near))
        stream_many<T, Exactness, kOther, R>(g, a, b, left, least);
    else
        stream_many<T, Exactness, kUsual, R>(g, a, b, left, least);
    for (bool more = g.kc % U::kDepth != 0; left > 0 || more; --left, a += g.a_unit, b += U::kDepth * g.b_stride) {
        if (left == 0) more = false;
        stream_units<T, Exactness, kFetchNone, R, 1>(g, a, b, left > 0, least);
    }
    for (int64_t j = 0; j < g.n; j += N) {
        const int64_t n_last = g.n - j < N ? g.n - j : N;
        V s[R][1];
        load_tile(s, part + j, g.ld, n_last);
        finish_in_place<T, R, 1>(g, j, n_last, s);
    }
    return least.exponent();
}

/** kc rows of B times packed A, for R rows and C * N columns, or n_last < N of them if C is 1: added to `part`, unless it begins. */
template <class T, int R, int C>
INFINI_INLINE void step_tile(const typename Units<T>::Unit *a, const T *b, int64_t stride, Fetches fetch, int64_t ahead,
                             int64_t kc, int64_t n_last, typename Units<T>::Sums::Scalar *part, int64_t ld,
                             bool begins) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    typename U::Least least;
    V sums[R][C];
    if (begins)
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) sums[r][c] = zero(V{});
    else
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) sums[r][c] = load(part + r * ld + c * N);
    const auto step = [&]() INFINI_INLINE_LAMBDA {
        typename U::Vector x[C];
        constexpr int64_t kElements = kLine / sizeof(T);
        if (fetch == kFetchNear) {
#pragma GCC unroll 16
            for (int64_t at = 0; at < C * N; at += kElements) prefetch<false>(b + ahead + at);
        } else if (fetch == kFetchFar) {
#pragma GCC unroll 16
            for (int64_t at = 0; at < C * N; at += kElements) prefetch<true>(b + ahead + at);
        }
        if (C == 1 && n_last < N)
            x[0] = U::across_n(b, nullptr, n_last, least);
        else
            U::across(x, b, static_cast<const T *>(nullptr), least);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const auto ar = broadcast(a[r]);
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) sums[r][c] = fma(ar, x[c], sums[r][c]);
        }
        a += R;
        b += stride;
        // Else the compiler has the lines of all steps of a turn fetched at once, in its beginning, which takes longer.
        asm("" : "+r"(b), "+v"(sums[R - 1][C - 1].v));
    };
    // A loop of so few turns ends where the processor expects it to. One guess that fails stops all reading ahead.
    if constexpr (C == tile_vectors<T, R>()) {
        constexpr int kTogether = 8;
        for (; kc >= kTogether; kc -= kTogether)
#pragma GCC unroll 8
            for (int u = 0; u < kTogether; ++u) step();
    }
    for (; kc > 0; --kc) step();
    store_tile(part, ld, n_last, sums);
}

/** The same for columns from..to. Not inlined: registers are scarce. */
template <class T, int R>
INFINI_CALLED void step_columns(const typename Units<T>::Unit *a, const T *b, int64_t stride, Fetches fetch,
                                int64_t ahead, int64_t kc, int64_t from, int64_t to,
                                typename Units<T>::Sums::Scalar *part, int64_t ld, bool begins) {
    constexpr int N = Units<T>::Sums::N, C = tile_vectors<T, R>();
    int64_t j = from;
    for (; j + C * N <= to; j += C * N) step_tile<T, R, C>(a, b + j, stride, fetch, ahead, kc, N, part + j, ld, begins);
    for (; j < to; j += N)
        step_tile<T, R, 1>(a, b + j, stride, fetch, ahead, kc, to - j < N ? to - j : N, part + j, ld, begins);
}

template <class T>
using StepColumns = decltype(step_columns<T, kStepsGroup>);

/** gemm_steps() of two groups of rows, or one: there is one of it, and one of step_columns() for each size of a group. */
template <class T>
INFINI_CALLED void multiply_steps(const GemmInPlace &g, int first, StepColumns<T> *of_first, int second,
                                  StepColumns<T> *of_second) {
    using V = typename Units<T>::Sums;
    constexpr int64_t N = V::N;
    constexpr int64_t kChunk = 6 * N; // columns: whole tiles
    auto *const part = static_cast<typename V::Scalar *>(g.part);
    const auto *a = static_cast<const typename Units<T>::Unit *>(g.a);
    const T *b = static_cast<const T *>(g.b);
    const int64_t n = g.n, stride = g.b_stride, ld = g.ld, kc = g.kc, step = g.step;
    const Fetches fetch = g.step_far ? kFetchFar : kFetchNear;
    const int64_t ahead = (g.step_far ? 1024 : 256) / int64_t{sizeof(T)}; // whole vectors
    const int64_t head = g.head; // of columns; from near_end on it is the next rows' beginning
    const int64_t near_end = head + (n > head + ahead ? (n - head - ahead) / N * N : 0);
    for (int64_t k = 0; k < kc; k += step, b += step * stride) {
        const int64_t steps = kc - k < step ? kc - k : step;
        for (int64_t j = 0, end; j < n; j = end) {
            const int64_t part_end = j < head ? head : j < near_end ? near_end : n;
            end = second > 0 && part_end - j > kChunk ? j + kChunk : part_end;
            of_first(a + k * first, b, stride, fetch, j < near_end ? ahead : step * stride - near_end, steps, j, end,
                     part, ld, k == 0);
            if (second > 0)
                of_second(a + first * kGemmBlockUnits + k * second, b, stride, kFetchNone, 0, steps, j, end,
                          part + first * ld, ld, k == 0);
        }
    }
    GemmInPlace row = g;
    for (int i = 0; i < first + second; ++i) {
        row.part = part + i * ld;
        if (g.sums != nullptr) row.sums = static_cast<typename V::Scalar *>(g.sums) + i * ld;
        if (g.c != nullptr) row.c = static_cast<T *>(g.c) + i * g.c_row;
        int64_t j = 0;
        const auto finish = [&](auto &sums, int64_t n_last) INFINI_INLINE_LAMBDA {
            load_tile(sums, part + i * ld + j, ld, n_last);
            finish_in_place<T>(row, j, n_last, sums);
        };
        for (V some[1][8]; j + 8 * N <= n; j += 8 * N) finish(some, N);
        for (V one[1][1]; j < n; j += N) finish(one, n - j < N ? n - j : N);
    }
}

/** As gemm_streams, for more rows of A than registers hold elements of: they are packed. B is taken in steps of `step` rows, each row
 *  fetched a little ahead of where it is multiplied: into the first-level cache, or, where `step_far` says so, earlier and into the
 *  second. Rows of A that are too many for one group find B there again. */
template <class T, int Rows>
int gemm_steps(const GemmInPlace &g) {
    constexpr int kFirst = steps_first(Rows), kSecond = Rows - kFirst;
    constexpr int kOther = kSecond > 0 ? kSecond : kFirst; // where there is no second group, its kernel is not called
    multiply_steps<T>(g, kFirst, step_columns<T, kFirst>, kSecond, step_columns<T, kOther>);
    return kLeastOfNothing;
}

/** Columns of B, contiguous in k, fetched before they are read: of `k` elements each, then what comes `after` those, or nothing if
 *  that is null. From a cache so little before that the processor's own fetching, which follows what is read, goes on beside it;
 *  from memory it may be (`far`) earlier, and into the second-level cache, since those of columns a power of 2 apart push each other
 *  out of the first. */
template <class T>
struct ColumnFetch {
    static constexpr int64_t kAhead = 5 * kLine / sizeof(T), kFarAhead = 32 * kLine / sizeof(T);
    const T *next, *after;
    int64_t left; // elements of each column until `after`
    bool far;

    INFINI_INLINE ColumnFetch(const T *b, int64_t k, const T *after_, bool far_) : after(after_), far(far_) {
        const int64_t ahead = far ? kFarAhead : kAhead;
        next = b + ahead;
        left = after == nullptr ? 0 : k - ahead;
    }
    template <int N>
    INFINI_INLINE void some(int64_t stride, int64_t elements) {
        if (after == nullptr) return;
        if (left <= 0) {
            next = after;
            left = INT64_MAX;
        }
        if (far)
            each<N, true>(stride);
        else
            each<N, false>(stride);
        next += elements;
        left -= elements;
    }

private:
    template <int N, bool Far>
    INFINI_INLINE void each(int64_t stride) const {
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) prefetch<Far>(next + i * stride);
    }
};

INFINI_INLINE bool fetches_early(const GemmInPlace &g) { return g.far_b && g.ahead_every != kAheadNear; }

/** Elements of each column until a cache line begins, if one does in all of them and between two units: else 0. Whoever reads lines
 *  where they lie reads each once. Parts of two would be read twice, and where columns are a power of 2 apart those of so many
 *  columns push each other out in between. NumPy's arrays begin 16 bytes behind a line. */
template <class T>
INFINI_INLINE int64_t until_line(const T *b, int64_t stride) {
    const int64_t elements = Stepped<const T>{b, stride}.to_cache_line();
    return elements % Units<T>::kDepth == 0 ? elements : 0;
}

/** x[i] = element i of N columns of B, contiguous in k, or of the first n < N: of a square of them, or of the first elements of one. */
template <class T, bool Whole>
INFINI_INLINE void load_columns(typename Units<T>::Sums (&x)[Units<T>::Sums::N], const T *b, int64_t stride,
                                int64_t left, int64_t n, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
#if defined(__AVX512F__)
    if constexpr (Whole && sizeof(T) == sizeof(typename V::Scalar))
        if (left == V::N) return load_transposed(x, b, stride);
#endif
#pragma GCC unroll 16
    for (int i = 0; i < V::N; ++i) x[i] = Whole || i < n ? U::along_k(b + i * stride, left, least) : zero(V{});
    transpose(x);
}

/** N columns of B, contiguous in k, or the first n < N: N x N blocks are transposed in registers and used at once. */
template <class T, int Exactness, int R, bool Whole>
INFINI_INLINE void columns_tile(const GemmInPlace &g, int64_t j, int64_t n, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    constexpr int64_t kSquare = int64_t{N} * U::kDepth, kBlock = kGemmBlockUnits * U::kDepth;
    const T *b = static_cast<const T *>(g.b) + j * g.b_stride;
    const auto *a = static_cast<const typename U::Unit *>(g.a);
    ColumnFetch<T> fetch(b, g.kc, g.ahead_every == 0 ? nullptr : static_cast<const T *>(g.ahead) + j * g.b_stride,
                         fetches_early(g));
    V sums[R][1], all[R][1];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) all[r][0] = zero(V{});
    const auto square = [&](int64_t left) INFINI_INLINE_LAMBDA {
        V x[N];
        fetch.template some<N>(g.b_stride, kSquare);
        load_columns<T, Whole>(x, b, g.b_stride, left, n, least);
#pragma GCC unroll 16
        for (int u = 0; u < N; ++u) {
            if (u * U::kDepth >= left) break;
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                sums[r][0] =
                    multiply_add<Exactness>(broadcast(a[r * g.a_row + u * g.a_unit]), U::vector(x[u]), sums[r][0]);
        }
        a += (left + U::kDepth - 1) / U::kDepth * g.a_unit;
        b += left;
    };
    for (int64_t k0 = 0; k0 < g.kc; k0 += kBlock) {
        const int64_t here = kBlock < g.kc - k0 ? kBlock : g.kc - k0, head = until_line(b, g.b_stride) % kSquare;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sums[r][0] = zero(V{});
        int64_t part = head < here ? head : here, k = 0;
        if constexpr (Whole) {
            for (; k < here; part = here - k) {
                if (part > 0) square(part);
                for (k += part; k + kSquare <= here; k += kSquare) square(kSquare);
            }
        } else { // less code
            for (; k < here; k += part, part = kSquare < here - k ? kSquare : here - k)
                if (part > 0) square(part);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) all[r][0] = k0 == 0 ? sums[r][0] : all[r][0] + sums[r][0];
    }
    if constexpr (Whole)
        finish_in_place<T, R, 1>(g, j, N, all);
    else
        finish_sums<T>(g, j, n, R, 1, all[0]);
}

/* What is left of the columns, once per task, or all of them where products must be exact, which is seldom: so many rows at a time, by
 * the same kernels for any number of rows. */

constexpr int kRestRows = 8;

/** Columns j.. of R rows, of which row `first` is the first one. */
template <class T, int Exactness, int R>
INFINI_CALLED void multiply_rest(GemmInPlace g, int first, int64_t j, typename Units<T>::Least &least) {
    constexpr int N = Units<T>::Sums::N;
    g.a = static_cast<const typename Units<T>::Unit *>(g.a) + first * g.a_row;
    if (g.sums != nullptr) g.sums = static_cast<typename Units<T>::Sums::Scalar *>(g.sums) + first * g.ld;
    if (g.c != nullptr) g.c = static_cast<T *>(g.c) + first * g.c_row;
    for (; j < g.n; j += N) columns_tile<T, Exactness, R, false>(g, j, g.n - j < N ? g.n - j : N, least);
}
template <class T, int Exactness, int R, int First = 0>
INFINI_INLINE void multiply_rest_of_rows(const GemmInPlace &g, int64_t j, typename Units<T>::Least &least) {
    constexpr int kGroups = (R - First + kRestRows - 1) / kRestRows, kRows = (R - First + kGroups - 1) / kGroups;
    multiply_rest<T, Exactness, kRows>(g, First, j, least);
    if constexpr (First + kRows < R) multiply_rest_of_rows<T, Exactness, R, First + kRows>(g, j, least);
}

#include "cpu/gemm_lines.inl"
#include "cpu/gemm_runs.inl"
#include "cpu/gemm_twins.inl"

#if defined(__AVX512F__)
/** From memory columns that meet in one set of the first-level cache are read faster eight at a time than sixteen; of few rows, whose
 *  products take no longer than that. */
constexpr int kRunRows = 4;

template <int R>
INFINI_INLINE int64_t columns_by_runs(const GemmInPlace &g) {
    constexpr int N = VF::N;
    const auto *const a = static_cast<const float *>(g.a);
    int64_t j = 0;
    for (; j + N <= g.n; j += N) {
        float sums[R][N];
        for (int64_t i = 0; i < N; i += VH::N) {
            const float *const b = static_cast<const float *>(g.b) + (j + i) * g.b_stride;
            const float *const ahead =
                i == 0 ? b + VH::N * g.b_stride : static_cast<const float *>(g.ahead) + j * g.b_stride;
            sum_runs<R, 1, 1>(&sums[0][i], N, a, g.a_unit, g.kc, b, g.b_stride, ahead, true);
        }
        VF x[R][1];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) x[r][0] = load(sums[r]);
        finish_in_place<float, R, 1>(g, j, N, x);
    }
    return j;
}

/** Columns j.. of g, as many vectors of them at a time as Groups says, as long as there are so many. */
template <class T, int Exactness, int R, int Groups>
INFINI_INLINE int64_t groups_by_lines(const GemmInPlace &g, int64_t j, typename Units<T>::Least &least) {
    using U = Units<T>;
    constexpr int64_t kColumns = Groups * U::Sums::N;
    const auto *const a = static_cast<const typename U::Unit *>(g.a);
    const T *b = static_cast<const T *>(g.b) + j * g.b_stride;
    const T *ahead = g.ahead_every == 0 ? nullptr : static_cast<const T *>(g.ahead) + j * g.b_stride;
    for (; j + kColumns <= g.n; j += kColumns, b += kColumns * g.b_stride) {
        typename U::Sums sums[R][Groups];
        multiply_lines<T, Exactness, R, Groups>(sums, a, g.a_unit, g.kc, b, g.b_stride, ahead, g.ahead_every, least);
        finish_in_place<T, R, Groups>(g, j, U::Sums::N, sums);
        if (ahead != nullptr) ahead += kColumns * g.b_stride;
    }
    return j;
}
#endif

/** Columns of g by cache lines, where A is packed and there are enough of them, and of lines. Returns how many that were. */
template <class T, int Exactness, int R>
INFINI_INLINE int64_t columns_by_lines([[maybe_unused]] const GemmInPlace &g,
                                       [[maybe_unused]] typename Units<T>::Least &least) {
#if defined(__AVX512F__)
    constexpr int64_t kSize = sizeof(T);
    if (g.a_row != 1 || g.kc < kLine / kSize) return 0;
    if constexpr (kSize == 4 && R <= kRunRows)
        if (g.ahead_every != 0 && fetches_early(g) && rows_meet(g.b_stride * kSize)) return columns_by_runs<R>(g);
    int64_t j = 0;
    // A sum waits for what was added before, and few rows have few sums. Twice as many columns are too many if they meet in one set of
    // the first-level cache, unless they are of halves and near.
    constexpr int kFewSums = 4;
    if constexpr (R <= kFewSums && (!Units<T>::kFlush || Exactness == kFast)) {
        const bool meet = rows_meet(g.b_stride * kSize);
        if (g.ahead_every == 0 ? kSize == 2 || !meet : g.ahead_every == kAheadNear && !meet)
            j = groups_by_lines<T, Exactness, R, 2>(g, j, least);
    }
    return groups_by_lines<T, Exactness, R, 1>(g, j, least);
#else
    return 0;
#endif
}

template <class T, int Exactness, int R>
int gemm_columns(const GemmInPlace &g) {
    constexpr int N = Units<T>::Sums::N;
    typename Units<T>::Least least;
    int64_t j = 0;
    if constexpr (!Units<T>::kFlush || Exactness == kFast) { // the others are left to those of the rest
        j = columns_by_lines<T, Exactness, R>(g, least);
        // Where there are lines, these take all but what is too little for them; of more rows, sums and a square would not have room.
        if constexpr (!kLineKernels || (sizeof(T) > 2 && R <= kInPlaceMaxRows))
            for (; j + N <= g.n; j += N) columns_tile<T, Exactness, R, true>(g, j, N, least);
    }
    if (j < g.n) multiply_rest_of_rows<T, Exactness, R>(g, j, least);
    return least.exponent();
}
