/* Columns of B that are contiguous in k, read a cache line of each at a time and transposed on their way to a buffer, where an element
 * of each lies side by side. */

/** Columns of B, `step` bytes apart. */
struct ByteColumns {
    const char *p;
    int64_t step, step_3;

    INFINI_INLINE ByteColumns(const void *first, int64_t bytes)
        : p(static_cast<const char *>(first)), step(opaque(bytes)), step_3(opaque(3 * bytes)) {}
    /** f(number, address) for N of them. Else the compiler would keep more addresses than there are registers. */
    template <int N, class F>
    INFINI_INLINE void each(int64_t first, int64_t byte, F &&f) const {
        const char *at = opaque(p + first * step + byte);
#pragma GCC unroll 4
        for (int i = 0; i < N; i += 4, at = opaque(at + 4 * step)) {
            f(i, at);
            f(i + 1, at + step);
            f(i + 2, at + 2 * step);
            f(i + 3, at + step_3);
        }
    }
};

#if defined(__AVX512F__)
/* A CPU does one shuffle of whole vectors a cycle, and sums are chains, of which few rows of A have few under way: while a line of each
 * column is multiplied, the next ones are transposed. Halves are converted when they have been moved. */

INFINI_INLINE void store_line(char *to, Wide x) { _mm512_store_si512(to, x); }

/** Lines of kSize-byte units, of as many columns as a vector has sums: moved to a buffer of as many lines. In four parts, each with as
 *  many shuffles, for work in between: the columns of one side are read, those of the other, and two halves are written. */
template <int kSize>
struct LineMove {
    static constexpr int kLane = 16 / kSize, kColumns = 4 * kLane;
    Wide x[2][2][kLane]; // [half of the line][half of the columns]: a load into half of a vector is no shuffle

    template <int kPart, class Meet>
    INFINI_INLINE void part(char *to, const ByteColumns &b, int64_t first, Meet &&meet) {
        if constexpr (kPart < 2) {
            // The halves of a line right after each other: many lines may share a set of the cache.
            b.each<kColumns / 2>(first + kPart * kColumns / 2, 0, [&](int i, const char *p) INFINI_INLINE_LAMBDA {
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    const __m256i some = load_bytes<__m256i>(p + half * 32);
                    Wide &wide = x[half][kPart][i % kLane];
                    wide = i < kLane ? _mm512_castsi256_si512(some) : _mm512_inserti64x4(wide, some, 1);
                }
            });
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
                for (int i = 0; i < kLane; ++i) meet(x[half][kPart][i]);
                transpose_lanes<kSize>(x[half][kPart]);
            }
        } else {
            constexpr int half = kPart - 2;
#pragma GCC unroll 4
            for (int i = 0; i < kLane; ++i) {
                char *const units = to + (half * 2 * kLane + i) * kLine;
                store_line(units, _mm512_shuffle_i64x2(x[half][0][i], x[half][1][i], 0x88));
                store_line(units + kLane * kLine, _mm512_shuffle_i64x2(x[half][0][i], x[half][1][i], 0xdd));
            }
        }
    }
};
/** Of 16 columns: a line of the buffer has two units of each, i and i + 8 or i + 16 and i + 24. */
template <>
struct LineMove<2> {
    Wide x[2][8];

    template <int kPart, class Meet>
    INFINI_INLINE void part(char *to, const ByteColumns &b, int64_t first, Meet &&) {
        if constexpr (kPart < 2) {
            b.each<8>(first + kPart * 8, 0,
                      [&](int i, const char *p) INFINI_INLINE_LAMBDA { x[kPart][i] = load_bytes<Wide>(p); });
            transpose_lanes<2>(x[kPart]);
        } else {
            const Wide lanes = kPart == 2 ? _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11)
                                          : _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i)
                store_line(to + ((kPart - 2) * 8 + i) * kLine, _mm512_permutex2var_epi64(x[0][i], lanes, x[1][i]));
        }
    }
};

/** How lines of T are moved, and unit u of each then. */
template <class T>
struct Lines {
    using Unit = typename Units<T>::Unit;
    using Move = LineMove<sizeof(Unit)>;
    static INFINI_INLINE typename Units<T>::Vector at(const char *lines, int64_t u) {
        return load(reinterpret_cast<const Unit *>(lines + u * kLine));
    }
    static INFINI_INLINE void meet([[maybe_unused]] Wide x, [[maybe_unused]] typename Units<T>::Least &least) {
        if constexpr (Units<T>::kFlush) least.meet(x);
    }
};
template <>
struct Lines<f16> {
    using Move = LineMove<2>;
    static INFINI_INLINE VF at(const char *lines, int64_t u) {
        return load(reinterpret_cast<const f16 *>(lines + (u / 16 * 8 + u % 8) * kLine + u / 8 % 2 * 32));
    }
    static INFINI_INLINE void meet(Wide, Units<f16>::Least &) {}
};
#if !defined(__AVX512BF16__)
template <>
struct Lines<bf16> { // moved in pairs, which a shift and a mask convert
    using Move = LineMove<4>;
    static INFINI_INLINE VF at(const char *lines, int64_t u) {
        const VP x{_mm512_load_si512(lines + u / 2 * kLine)};
        return u % 2 == 0 ? first_of(x) : second_of(x);
    }
    static INFINI_INLINE void meet(Wide, Units<bf16>::Least &) {}
};
#endif

/** What is multiplied next, fetched meanwhile in long runs: `lines` of each of some columns, or what a block has of them. */
struct LineFetch {
    static constexpr int64_t kRun = 8; // lines: more at once would wait for each other
    const char *next;
    int64_t lines, step, columns, at_a_time, line = 0;

    /** During `meanwhile` lines; nothing if `from` is null. */
    INFINI_INLINE LineFetch(const void *from, int64_t lines_, const ByteColumns &b, int64_t columns_, int64_t meanwhile)
        : next(static_cast<const char *>(from)), lines(lines_), step(b.step), columns(from == nullptr ? 0 : columns_),
          at_a_time(meanwhile > 0 ? (columns_ * ((lines_ + kRun - 1) / kRun) + meanwhile - 1) / meanwhile : 0) {}
    INFINI_INLINE void some() {
        for (int64_t i = 0; i < at_a_time && columns > 0; ++i) {
            const char *const from = next + line * kLine;
            if (lines - line >= kRun)
#pragma GCC unroll 8
                for (int64_t j = 0; j < kRun; ++j) __builtin_prefetch(from + j * kLine, 0, 2);
            else
                for (int64_t j = 0; j < lines - line; ++j) __builtin_prefetch(from + j * kLine, 0, 2);
            if ((line += kRun) < lines) continue;
            line = 0;
            next += step;
            --columns;
        }
    }
};

/** Lines at b, of the columns of Groups vectors, go to a buffer: in 4 * Groups parts, and after each there is `meanwhile(part)`. */
template <class T, int Groups, class Meanwhile>
INFINI_INLINE void put_lines(char *buffer, const ByteColumns &b, typename Units<T>::Least &least,
                             Meanwhile &&meanwhile) {
    constexpr int64_t N = Units<T>::Sums::N;
    const auto meet = [&](Wide x) INFINI_INLINE_LAMBDA { Lines<T>::meet(x, least); };
#pragma GCC unroll 4
    for (int group = 0; group < Groups; ++group) {
        typename Lines<T>::Move some;
        char *const to = buffer + group * N * kLine;
        some.template part<0>(to, b, group * N, meet);
        meanwhile(4 * group);
        some.template part<1>(to, b, group * N, meet);
        meanwhile(4 * group + 1);
        some.template part<2>(to, b, group * N, meet);
        meanwhile(4 * group + 2);
        some.template part<3>(to, b, group * N, meet);
        meanwhile(4 * group + 3);
    }
}
/** The same of the first elements of lines, and zeros for what there is not. Touches nothing behind them. */
template <class T, int Groups>
INFINI_CALLED void put_first(char *buffer, ByteColumns b, int64_t elements, typename Units<T>::Least &least) {
    constexpr int64_t kColumns = Groups * Units<T>::Sums::N;
    const auto present = static_cast<__mmask32>((uint64_t{1} << elements * sizeof(T) / 2) - 1u);
    alignas(kLine) char copy[kColumns * kLine];
    for (int64_t i = 0; i < kColumns; ++i)
        store_line(copy + i * kLine, _mm512_maskz_loadu_epi16(present, b.p + i * b.step));
    put_lines<T, Groups>(buffer, ByteColumns(opaque(static_cast<const char *>(copy)), kLine), least,
                         [](int) INFINI_INLINE_LAMBDA {});
}

/** R rows of A, unit by unit side by side, times the columns of Groups vectors. */
template <class T, int Exactness, int R, int Groups>
struct LineProduct {
    using L = Lines<T>;
    using U = Units<T>;
    using V = typename U::Sums;
    using Unit = typename U::Unit;
    static constexpr int64_t N = V::N, kElements = kLine / sizeof(T), kUnits = kElements / U::kDepth;
    static constexpr int64_t kLines = N * kLine; // bytes of one group's
    static constexpr int kParts = 4 * Groups;    // see put_lines()
    using Buffer = char[2][Groups * kLines];
    using Sums = V[R][Groups];
    static constexpr int64_t kBlockLines = kGemmBlockUnits / kUnits;

    static INFINI_INLINE void clear(Sums &sums) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int group = 0; group < Groups; ++group) sums[r][group] = zero(V{});
    }
    static INFINI_INLINE void multiply_one(Sums &sums, const Unit *&a, int64_t a_unit, const char *lines, int64_t u) {
        typename U::Vector x[Groups];
#pragma GCC unroll 4
        for (int64_t group = 0; group < Groups; ++group) {
            x[group] = L::at(lines + group * kLines, u);
            if (R < 4) __asm__("" : "+v"(x[group].v)); // else each row loads it again
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const auto row = broadcast(a[r]);
#pragma GCC unroll 4
            for (int group = 0; group < Groups; ++group)
                sums[r][group] = multiply_add<Exactness>(row, x[group], sums[r][group]);
        }
        a = opaque(a + a_unit);
    }
    static INFINI_INLINE void multiply_some(Sums &sums, const Unit *&a, int64_t a_unit, const char *lines,
                                            int64_t first, int64_t last) {
#pragma GCC unroll 1
        for (int64_t u = first; u < last; ++u) multiply_one(sums, a, a_unit, lines, u);
    }
    static INFINI_INLINE void multiply(Sums &sums, const Unit *&a, int64_t a_unit, const char *lines, int64_t first,
                                       int64_t last) {
#pragma GCC unroll 32
        for (int64_t u = first; u < last; ++u) multiply_one(sums, a, a_unit, lines, u);
    }
    /** Adds the products of lines of b, the first of which is in buffer[which]. In the end the line at `then` is there, unless null. */
    static INFINI_INLINE void add(Sums &sums, const Unit *&a, int64_t a_unit, const ByteColumns &b, int64_t lines,
                                  const char *then, Buffer &buffer, int64_t &which, LineFetch &fetch,
                                  ColumnFetch<T> &near, int64_t stride, typename U::Least &least) {
        ByteColumns next = b;
        for (int64_t line = 1; line <= lines; ++line) {
            const char *const now = opaque(static_cast<const char *>(buffer[which]));
            which ^= 1;
            next.p = line < lines ? b.p + line * kLine : then;
            fetch.some();
            near.template some<Groups * N>(stride, kElements);
            if (next.p == nullptr) return multiply_some(sums, a, a_unit, now, 0, kUnits);
            if constexpr (U::kFlush && Exactness == kExact) { // seldom called: less code
                put_lines<T, Groups>(buffer[which], next, least, [](int) INFINI_INLINE_LAMBDA {});
                multiply_some(sums, a, a_unit, now, 0, kUnits);
            } else {
                put_lines<T, Groups>(buffer[which], next, least, [&](int part) INFINI_INLINE_LAMBDA {
                    multiply(sums, a, a_unit, now, part * kUnits / kParts, (part + 1) * kUnits / kParts);
                });
            }
        }
    }
    /** Adds the products of the first elements of a line, or none. Goes on to what follows them, and returns how many they were. */
    static INFINI_INLINE int64_t add_rest(Sums &sums, const Unit *&a, int64_t a_unit, ByteColumns &b, int64_t rest,
                                          char *buffer, typename U::Least &least) {
        if (rest == 0) return 0;
        put_first<T, Groups>(buffer, b, rest, least);
        multiply_some(sums, a, a_unit, opaque(static_cast<const char *>(buffer)), 0,
                      (rest + U::kDepth - 1) / U::kDepth);
        b.p += rest * static_cast<int64_t>(sizeof(T));
        return rest;
    }
};

INFINI_INLINE int64_t at_most(int64_t x, int64_t most) { return x < most ? x : most; }

/** all = R rows of A times Groups * N columns of B. `ahead`: as many columns that come next, or null; so many lines of each at a time,
 *  or those of a K block if they are more; kAheadNear: each shortly before it is read. */
template <class T, int Exactness, int R, int Groups>
INFINI_INLINE void multiply_lines(typename Units<T>::Sums (&all)[R][Groups], const typename Units<T>::Unit *a,
                                  int64_t a_unit, int64_t k, const T *b_, int64_t stride, const T *ahead,
                                  int64_t ahead_lines, typename Units<T>::Least &least) {
    using P = LineProduct<T, Exactness, R, Groups>;
    constexpr int64_t kDepth = Units<T>::kDepth, kBlock = kGemmBlockUnits * kDepth;
    ByteColumns b(b_, stride * static_cast<int64_t>(sizeof(T)));
    alignas(kLine) typename P::Buffer buffer;
    typename P::Sums sums;
    P::clear(all);
    ColumnFetch<T> near(b_, k, ahead_lines == kAheadNear ? ahead : nullptr, false);
    if (ahead_lines == kAheadNear) ahead = nullptr;
    // Else parts of K of about the same size, each fetched during the one before, column by column.
    const int64_t k_lines = k / P::kElements, parts = ahead == nullptr ? 1 : (k_lines + ahead_lines - 1) / ahead_lines;
    const int64_t fetch_lines = (k_lines + parts * P::kBlockLines - 1) / (parts * P::kBlockLines) * P::kBlockLines;
    LineFetch fetch(nullptr, 0, b, 0, 0);
    int64_t until_fetch = 0;      // lines
    int64_t which = 0, split = 0; // of the line in the buffer: what belongs to the block before
    const auto add_some = [&](int64_t from, int64_t end) INFINI_INLINE_LAMBDA {
        P::multiply_some(sums, a, a_unit, opaque(static_cast<const char *>(buffer[which])), from / kDepth,
                         end / kDepth);
    };
    for (int64_t left = k; left > 0;) {
        P::clear(sums);
        int64_t here = left < kBlock ? left : kBlock;
        const bool first = left == k;
        left -= here;
        if (first) {
            const int64_t head = until_line(b_, stride);
            here -= P::add_rest(sums, a, a_unit, b, head < here ? head : here, buffer[0], least);
        } else if (split > 0) {
            add_some(split, P::kElements);
            here -= P::kElements - split;
            b.p += kLine;
        }
        if ((first || split > 0) && here + left >= P::kElements)
            put_lines<T, Groups>(buffer[which], b, least, [](int) INFINI_INLINE_LAMBDA {});
        const int64_t lines = here / P::kElements, rest = here % P::kElements;
        const char *const end = b.p + lines * kLine, *const then = rest + left < P::kElements ? nullptr : end;
        if (until_fetch <= 0) {
            const int64_t rest_lines = (here + left) / P::kElements, now = at_most(rest_lines, fetch_lines);
            const bool more = ahead != nullptr && rest_lines > now;
            fetch = LineFetch(more ? static_cast<const void *>(b.p + now * kLine) : ahead,
                              at_most(more ? rest_lines - now : k_lines, fetch_lines), b, Groups * P::N, now);
            until_fetch = now;
        }
        until_fetch -= lines + (split > 0);
        P::add(sums, a, a_unit, b, lines, then, buffer, which, fetch, near, stride, least);
        b.p = end;
        split = then != nullptr ? rest : 0;
        if (split > 0)
            add_some(0, split);
        else
            P::add_rest(sums, a, a_unit, b, rest, buffer[0], least);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int i = 0; i < Groups; ++i) all[r][i] = first ? sums[r][i] : all[r][i] + sums[r][i];
    }
}
#endif
