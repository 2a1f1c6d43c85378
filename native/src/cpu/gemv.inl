/* One row of A times a B whose columns are contiguous in k. Every element of B is used once, so what counts is what it takes to
 * bring it to the lane of its column, and that memory is read in long runs: some columns at a time, over all of K, and a cache line
 * of each after the other, since columns that are a power of 2 apart meet in one set of the first-level cache. */

/* ---- by squares of N x N elements, transposed in registers --------------------------------------------------------------- */

/** Squares side by side, so that short vectors need not wait for their sums. Measured: more than eight columns are too many to
 *  read at a time if they are a power of 2 apart or come from memory. */
template <class T>
constexpr int kSideBySide = Units<T>::Sums::N < 8 ? 8 / Units<T>::Sums::N : 1;

/** Where one tile's A and B start, and where the next one's do. */
template <class T>
struct Tiled {
    const typename Units<T>::Unit *a;
    const T *b;
    int64_t a_step, b_step;
};

/** to[i] = the sum of column i of Tiles * N, or if not Whole, of the first `count`. `ahead`: as many columns of B that come next,
 *  or null; far: from memory. */
template <class T, int Exactness, int Tiles, bool Whole>
INFINI_INLINE void sum_squares(typename Units<T>::Sums::Scalar *to, Tiled<T> tiled, int64_t a_unit, int64_t k,
                               int64_t stride_, int64_t count, const T *ahead, bool far,
                               typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    constexpr int64_t kSquare = int64_t{N} * U::kDepth, kBlock = kGemmBlockUnits * U::kDepth;
    constexpr int64_t kLineSquares = kLine / sizeof(T) < kSquare ? 1 : kLine / sizeof(T) / kSquare;
    const auto *a = tiled.a;
    const T *b = tiled.b;
    constexpr int64_t kLineElements = kLineSquares * kSquare;
    V sums[Tiles], all[Tiles];
#pragma GCC unroll 4
    for (int tile = 0; tile < Tiles; ++tile) sums[tile] = all[tile] = zero(V{});
    bool first = true;
    int64_t until = kBlock; // elements, until the K block ends
    const auto end_block = [&](int tile) INFINI_INLINE_LAMBDA {
        all[tile] = first ? sums[tile] : all[tile] + sums[tile];
        sums[tile] = zero(V{});
    };
    const auto end_blocks = [&]() INFINI_INLINE_LAMBDA {
#pragma GCC unroll 4
        for (int tile = 0; tile < Tiles; ++tile) end_block(tile);
        first = false;
        until = kBlock;
    };
    const int64_t stride = opaque(stride_);
    /** Of the first `left` elements of each column; before element `end` another K block begins. */
    const auto square = [&](int tile, int64_t at, int64_t left, int64_t end) INFINI_INLINE_LAMBDA {
        const T *const from = opaque(b + tile * tiled.b_step + at * U::kDepth);
        V x[N];
        load_columns<T, Whole>(x, from, stride, left, count, least);
#pragma GCC unroll 16
        for (int u = 0; u < N; ++u) {
            if (u * U::kDepth >= left) break;
            if (u * U::kDepth == end) end_block(tile);
            sums[tile] = multiply_add<Exactness>(broadcast(a[tile * tiled.a_step + (at + u) * a_unit]), U::vector(x[u]),
                                                 sums[tile]);
        }
    };
    const auto pass = [&](int64_t elements) INFINI_INLINE_LAMBDA {
        a += (elements + U::kDepth - 1) / U::kDepth * a_unit;
        b += elements;
        if ((until -= elements) >= 0) return;
        first = false;
        until += kBlock;
    };
    const auto part_squares = [&](int64_t elements) INFINI_INLINE_LAMBDA {
        while (elements > 0) {
            const int64_t some = elements < kSquare ? elements : kSquare;
            if (until == 0) end_blocks();
#pragma GCC unroll 4
            for (int tile = 0; tile < Tiles; ++tile) square(tile, 0, some, until);
            pass(some);
            elements -= some;
        }
    };
    ColumnFetch<T> fetch(b, k, ahead, far);
    const int64_t to_line = Tiles * N > 8 ? until_line(b, stride) : 0; // few columns leave each other room
    const int64_t head = to_line < k ? to_line : k;
    part_squares(head);
    int64_t left = k - head;
    for (; left >= kLineElements; left -= kLineElements) {
        fetch.template some<Tiles * N>(stride, kLineElements);
        if (until == 0) end_blocks();
        const auto line = [&](bool ends) INFINI_INLINE_LAMBDA {
#pragma GCC unroll 4
            for (int tile = 0; tile < Tiles; ++tile)
#pragma GCC unroll 4
                for (int64_t at = 0; at < kLineSquares; ++at)
                    square(tile, at * N, kSquare, ends ? until - at * kSquare : int64_t{-1});
        };
        if (until >= kLineElements)
            line(false);
        else
            line(true);
        pass(kLineElements);
    }
    part_squares(left);
    end_blocks();
#pragma GCC unroll 4
    for (int tile = 0; tile < Tiles; ++tile) store(to + tile * N, all[tile]);
}

#if defined(__AVX2__)
/* ---- by runs of 16 bytes ------------------------------------------------------------------------------------------------- */

/** How many of the columns are summed up so. From memory columns that meet are read faster eight at a time than sixteen. With
 *  vectors of 8 it is faster in the caches, if columns that meet need not be fetched. */
INFINI_INLINE int64_t sum_columns_by_runs(float *sums, const GemmInPlace &g, const float *b, int64_t columns,
                                          const float *ahead) {
    constexpr bool kWide = VF::N > VH::N;
    const bool meet = rows_meet(g.b_stride * 4), fetched = ahead != nullptr, far = fetches_early(g);
    if (!(kWide ? fetched && far && (meet || g.chains_bind) : !fetched || (!far && !meet))) return 0;
    int64_t i = 0;
    const auto some = [&](auto kernel, int64_t n) INFINI_INLINE_LAMBDA {
        for (; i + n <= columns; i += n) {
            const float *const from = b + i * g.b_stride;
            const float *const next = !fetched || i + 2 * n > columns ? ahead : from + n * g.b_stride;
            kernel(sums + i, 0, static_cast<const float *>(g.a), 1, g.kc, from, g.b_stride, next, far);
        }
    };
    if constexpr (kWide) {
        if (g.chains_bind)
            some(sum_runs<1, 1, 2>, VH::N);
        else
            some(sum_runs<1, 1, 1>, VH::N);
    } else {
        if (!meet) some(sum_runs<1, 4, 1>, 4 * VH::N);
        some(sum_runs<1, 1, 2>, VH::N);
    }
    return i;
}
#endif

/* ---- by cache lines, transposed on their way to a buffer -------------------------------------------------------------------- */

#if defined(__AVX512F__)
/** to[i] = the sum of column i of Groups * N. See multiply_lines(). */
template <class T, int Exactness, int Groups>
INFINI_INLINE void sum_lines(typename Units<T>::Sums::Scalar *to, const GemmInPlace &g, const T *b, const T *ahead,
                             typename Units<T>::Least &least) {
    using U = Units<T>;
    typename U::Sums sums[1][Groups];
    multiply_lines<T, Exactness, 1, Groups>(sums, static_cast<const typename U::Unit *>(g.a), g.a_unit, g.kc, b,
                                            g.b_stride, ahead, g.ahead_every, least);
#pragma GCC unroll 4
    for (int i = 0; i < Groups; ++i) store(to + i * U::Sums::N, sums[0][i]);
}
#elif defined(__AVX2__)
/* They are moved before they are converted, while they are half as large, and within lanes of 16 bytes, by shuffles of whole
 * vectors. From the buffer, eight columns' elements are converted and multiplied at a time. */

/** A cache line of each of eight columns: to [element of a lane][lane][column]. */
INFINI_INLINE void transpose_line(char *to, const ByteColumns &b, int64_t first, int64_t byte) {
#pragma GCC unroll 2
    for (int64_t at = 0; at < kLine; at += sizeof(Wide)) {
        Wide x[8];
        b.each<8>(first, byte + at, [&](int i, const char *p) INFINI_INLINE_LAMBDA { x[i] = load_bytes<Wide>(p); });
        transpose_lanes<2>(x);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) put<false>(to + i * kLine + at, x[i]);
    }
}
/** sums += the products of an element of A with Groups of eight columns. */
template <class T, int Groups>
INFINI_INLINE void multiply_eights(VF (&sums)[Groups], float a, const char *lines) {
#pragma GCC unroll 4
    for (int64_t group = 0; group < Groups; ++group)
        sums[group] = fma(broadcast(a), load(reinterpret_cast<const T *>(lines + group * VF::N * kLine)), sums[group]);
}

/** to[i] = the sum of column i of Groups * N. k is a line or more. `ahead`: as many columns of B that come next, or null; far: from
 *  memory. */
template <class T, int Groups>
INFINI_INLINE void sum_lines(float *to, const float *a, int64_t k, const T *b_, int64_t stride, const T *ahead_,
                             bool far) {
    constexpr int64_t N = VF::N, kElements = kLine / 2, kBlockBytes = kGemmBlockUnits * 2;
    const int64_t distance = (far ? 8 : 3) * kLine; // see ColumnFetch; measured with Zen 4 and Zen 3
    const ByteColumns b(b_, stride * 2);
    const char *const ahead = reinterpret_cast<const char *>(ahead_);
    alignas(kLine) char buffer[Groups * N * kLine];
    // Else the compiler would keep vectors that it has just stored, and take these apart.
    const char *const lines = opaque(static_cast<const char *>(buffer));
    VF all[Groups];
#pragma GCC unroll 4
    for (int i = 0; i < Groups; ++i) all[i] = zero(VF{});
    const int64_t end = k * 2;
    const int64_t head = until_line(b_, stride) * 2;
    int64_t at = 0, split = 0; // bytes; of the line in the buffer, what belongs to the block before
    for (int64_t block = 0; block < end; block += kBlockBytes) {
        VF sums[Groups];
#pragma GCC unroll 4
        for (int i = 0; i < Groups; ++i) sums[i] = zero(VF{});
        const auto some = [&](int64_t from, int64_t until) INFINI_INLINE_LAMBDA {
            for (int64_t i = from / 2; i < until / 2; ++i, ++a)
                multiply_eights<T, Groups>(sums, *a, lines + i % N * kLine + i / N * 16);
        };
        const int64_t block_end = end - block < kBlockBytes ? end : block + kBlockBytes;
        if (block == 0 && head > 0) {
            for (int i = 0; i < Groups; ++i) transpose_line(buffer + i * N * kLine, b, i * N, 0);
            some(0, head);
            at = head;
        } else if (split > 0) {
            some(split, kLine);
            at += kLine;
        }
        for (; at + kLine <= block_end; at += kLine) {
#pragma GCC unroll 4
            for (int i = 0; i < Groups; ++i) {
                transpose_line(buffer + i * N * kLine, b, i * N, at);
                if (ahead == nullptr) continue;
                ByteColumns next = b;
                next.p = at + distance < end ? b.p + distance : ahead + distance - end;
                if (far)
                    next.each<N>(i * N, at, [](int, const char *p) INFINI_INLINE_LAMBDA { prefetch<true>(p); });
                else
                    next.each<N>(i * N, at, [](int, const char *p) INFINI_INLINE_LAMBDA { prefetch<false>(p); });
            }
            const char *lane = lines;
            for (const auto *const a_end = a + kElements; a < a_end; a += N, lane += 16)
#pragma GCC unroll 8
                for (int64_t i = 0; i < N; ++i) multiply_eights<T, Groups>(sums, a[i], lane + i * kLine);
        }
        split = 0;
        if (at < block_end) { // of a line that goes on in the next block, or of the last one, which begins before
            const int64_t line = at + kLine <= end ? at : end - kLine;
            for (int i = 0; i < Groups; ++i) transpose_line(buffer + i * N * kLine, b, i * N, line);
            some(at - line, block_end - line);
            if (line == at)
                split = block_end - at;
            else
                at = block_end;
        }
#pragma GCC unroll 4
        for (int i = 0; i < Groups; ++i) all[i] = block == 0 ? sums[i] : all[i] + sums[i];
    }
#pragma GCC unroll 4
    for (int i = 0; i < Groups; ++i) store(to + i * N, all[i]);
}
#endif

/* ---- the product --------------------------------------------------------------------------------------------------------- */

/** Sums of `columns` of B, at most kGemvColumns, as many at a time as is best. Where the last ones are fewer, some are summed up
 *  again. */
template <class T, int Exactness>
INFINI_INLINE void sum_columns(typename Units<T>::Sums::Scalar *sums, const GemmInPlace &g, const T *b, int64_t columns,
                               const T *ahead, typename Units<T>::Least &least) {
    using V = typename Units<T>::Sums;
    const auto *const a = static_cast<const typename Units<T>::Unit *>(g.a);
    int64_t i = 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 2)
        if (columns >= V::N && g.kc >= kLine / 2) {
            if (columns == kGemvColumns && (g.chains_bind || !rows_meet(g.b_stride * 2)))
                return sum_lines<T, Exactness, kGemvColumns / V::N>(sums, g, b, ahead, least);
            for (; i < columns; i += V::N) {
                i = i + V::N < columns ? i : columns - V::N;
                sum_lines<T, Exactness, 1>(sums + i, g, b + i * g.b_stride,
                                           ahead == nullptr ? nullptr : ahead + i * g.b_stride, least);
            }
            return;
        }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 2) {
        if (columns == kGemvColumns && g.kc >= kLine / 2)
            return sum_lines<T, kGemvColumns / V::N>(sums, a, g.kc, b, g.b_stride, ahead, fetches_early(g));
    }
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(T) == 4)
        if (g.a_unit == 1 && g.kc >= kRun) i = sum_columns_by_runs(sums, g, b, columns, ahead);
#endif
    constexpr int64_t kSome = kSideBySide<T> * V::N;
    const auto columns_at = [&](int64_t at) { return Tiled<T>{a, b + at * g.b_stride, 0, V::N * g.b_stride}; };
    if constexpr (sizeof(T) >= 4 && V::N >= 8) {
        // One tile's sums are a chain that a fast CPU waits for; sixteen columns are not too many for its first-level cache.
        const bool apart = !rows_meet(g.b_stride * static_cast<int64_t>(sizeof(T)));
        if (ahead == nullptr) {
            if (apart || (g.chains_bind && V::N == 8))
                for (; i + 2 * V::N <= columns; i += 2 * V::N)
                    sum_squares<T, Exactness, 2, true>(sums + i, columns_at(i), g.a_unit, g.kc, g.b_stride, 2 * V::N,
                                                       nullptr, false, least);
        } else if (!kHasDots<T> && apart && g.chains_bind) {
            for (; i + 2 * V::N <= columns; i += 2 * V::N)
                sum_squares<T, Exactness, 2, true>(sums + i, columns_at(i), g.a_unit, g.kc, g.b_stride, 2 * V::N,
                                                   i + 4 * V::N > columns ? ahead : b + (i + 2 * V::N) * g.b_stride,
                                                   false, least);
        }
    }
    for (; i + kSome <= columns; i += kSome)
        sum_squares<T, Exactness, kSideBySide<T>, true>(
            sums + i, columns_at(i), g.a_unit, g.kc, g.b_stride, kSome,
            ahead == nullptr || i + 2 * kSome > columns ? ahead : b + (i + kSome) * g.b_stride, fetches_early(g),
            least);
    for (; i < columns; i += V::N)
        sum_squares<T, Exactness, 1, false>(sums + i, columns_at(i), g.a_unit, g.kc, g.b_stride,
                                            columns - i < V::N ? columns - i : V::N, nullptr, false, least);
}

template <class T, int Exactness>
int gemv(const GemmInPlace &g) {
    using V = typename Units<T>::Sums;
    const T *b = static_cast<const T *>(g.b), *ahead = g.ahead_every == 0 ? nullptr : static_cast<const T *>(g.ahead);
    typename Units<T>::Least least;
    for (int64_t j = 0; j < g.n; j += kGemvColumns, b += kGemvColumns * g.b_stride) {
        typename V::Scalar sums[kGemvColumns + V::N]; // a last vector may begin where half of one ends
        const int64_t columns = g.n - j < kGemvColumns ? g.n - j : kGemvColumns;
        sum_columns<T, Exactness>(sums, g, b, columns, ahead, least);
        for (int64_t i = 0; i < columns; i += V::N) {
            const V x[1][1] = {{load(sums + i)}};
            finish_in_place<T, 1, 1>(g, j + i, columns - i < V::N ? columns - i : V::N, x);
        }
        if (ahead != nullptr) ahead += kGemvColumns * g.b_stride;
    }
    return least.exponent();
}
