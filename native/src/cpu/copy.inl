/* Rows and tiles of rearrange, for elements of 1, 2, 4, 8 and 16 bytes. Elements need not be aligned to their size: a
 * complex number is aligned to its parts only. */

template <class T>
INFINI_INLINE T read(const T *p) {
    T x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
template <class T>
INFINI_INLINE void write(T *p, T x) {
    __builtin_memcpy(p, &x, sizeof x);
}

template <class T>
void copy_row(void *dst_, int64_t stride_dst, const void *src_, int64_t stride_src, int64_t n, bool stream) {
    T *dst = static_cast<T *>(dst_);
    const T *src = static_cast<const T *>(src_);
    if constexpr (sizeof(T) <= 8) {
        constexpr int64_t kLanes = sizeof(VF) / sizeof(T);
        const bool lines = stream && reinterpret_cast<uintptr_t>(dst) % sizeof(T) == 0;
        if (stride_dst == 1 &&
            (lines ? gather_near<kLanes, true>(dst, src, stride_src, n) : gather_near<kLanes>(dst, src, stride_src, n)))
            return;
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; ++i) write(dst + i * stride_dst, read(src + i * stride_src));
}

#if defined(__SSE2__)
/* gather: pieces of 16 bytes, side by side; piece(i) points to the one for lane i. Lanes that come from memory keep the units
 * free that interleave. */
template <class Piece>
INFINI_INLINE void gather(__m128i &x, Piece piece) {
    x = load_bytes<__m128i>(piece(0));
}
#if defined(__AVX2__)
template <class Piece>
INFINI_INLINE void gather(__m256i &x, Piece piece) {
    const __m128i low = load_bytes<__m128i>(piece(0)), high = load_bytes<__m128i>(piece(1));
    x = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
#endif
#if defined(__AVX512F__)
template <class Piece>
INFINI_INLINE void gather(__m512i &x, Piece piece) {
    __m256i low, high;
    gather(low, piece);
    gather(high, [&](int lane) { return piece(lane + 2); });
    x = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
#endif
#endif

/** Rows of n bytes, in pieces of a V: at least one, and the last may overlap the one before it. */
template <class V>
INFINI_INLINE void copy_pieces(char *dst, int64_t dst_row, const char *src, int64_t src_row, int64_t n, int64_t rows) {
    constexpr int64_t kPiece = sizeof(V);
    for (; rows > 0; --rows, dst += dst_row, src += src_row) {
        const V last = load_bytes<V>(src + n - kPiece);
        for (int64_t i = 0; i < n - kPiece; i += kPiece) put<false>(dst + i, load_bytes<V>(src + i));
        put<false>(dst + n - kPiece, last);
    }
}
/** Rows so short that what is called for each takes longer. */
void copy_rows(void *dst, int64_t dst_row, const void *src, int64_t src_row, int64_t n, int64_t rows) {
    char *const to = static_cast<char *>(dst);
    const char *const from = static_cast<const char *>(src);
#if defined(__SSE2__)
    if (n >= int64_t{sizeof(Wide)}) return copy_pieces<Wide>(to, dst_row, from, src_row, n, rows);
    if (n >= 16) return copy_pieces<__m128i>(to, dst_row, from, src_row, n, rows);
#endif
    if (n >= 8) return copy_pieces<uint64_t>(to, dst_row, from, src_row, n, rows);
    if (n >= 4) return copy_pieces<uint32_t>(to, dst_row, from, src_row, n, rows);
    if (n >= 2) return copy_pieces<uint16_t>(to, dst_row, from, src_row, n, rows);
    copy_pieces<uint8_t>(to, dst_row, from, src_row, n, rows);
}

/** As many rows at a time as there are whole ones in a vector, of which the next one overwrites the rest. */
template <class T>
void reverse_rows(void *dst, const void *src, int64_t n, int64_t rows) {
    T *const to = static_cast<T *>(dst);
    const T *const from = static_cast<const T *>(src);
    int64_t row = 0;
#if defined(__AVX2__)
    constexpr int64_t kElements = 16 / sizeof(T);
    const int64_t whole = kElements / n * n;
    alignas(16) uint8_t bytes[16];
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t size = sizeof(T), element = i / size, reversed = element / n * n + n - 1 - element % n;
        bytes[i] = static_cast<uint8_t>(element < whole ? reversed * size + i % size : 128);
    }
    const __m128i order = load_bytes<__m128i>(bytes);
    int64_t i = 0;
    for (; i + kElements <= rows * n; i += whole)
        put<false>(to + i, _mm_shuffle_epi8(load_bytes<__m128i>(from + i), order));
    row = i / n;
#endif
    for (; row < rows; ++row)
        for (int64_t i = 0; i < n; ++i) write(to + row * n + i, read(from + row * n + n - 1 - i));
}

/** n < kLine bytes. */
INFINI_INLINE void copy_part(char *dst, const char *src, int64_t n) {
    if (n == 0) return; // a store of nothing would still end the collecting of streamed lines
#if defined(__AVX512BW__)
    const __mmask64 first = (uint64_t{1} << n) - 1;
    _mm512_mask_storeu_epi8(dst, first, _mm512_maskz_loadu_epi8(first, src));
#else
    __builtin_memcpy(dst, src, static_cast<size_t>(n));
#endif
}

/** In whole lines; a row shares those at its ends with others. Only loads with masks join two parts fast enough: a copy of them would
 *  wait until all that is streamed before it is written. */
void stream_row(void *dst_, const void *src_, int64_t n, [[maybe_unused]] const void *before,
                [[maybe_unused]] bool last) {
    char *dst = static_cast<char *>(dst_);
    const char *src = static_cast<const char *>(src_);
#if defined(__SSE2__)
    const int64_t head = -reinterpret_cast<intptr_t>(dst) & (kLine - 1);
    if (n >= head + kLine) {
        bool own_end = true;
#if defined(__AVX512BW__)
        own_end = last;
        if (before != nullptr && head > 0) {
            const int64_t lead = kLine - head; // bytes of the line that are not this row's
            const __mmask64 other = (uint64_t{1} << lead) - 1;
            const __m512i x = _mm512_maskz_loadu_epi8(other, static_cast<const char *>(before) - lead);
            put<true>(dst - lead, _mm512_mask_loadu_epi8(x, ~other, src - lead));
        } else
#endif
            copy_part(dst, src, head);
        dst += head, src += head, n -= head;
        const auto line = [&](int64_t at) INFINI_INLINE_LAMBDA {
#pragma GCC unroll 4
            for (size_t i = 0; i < kLine; i += sizeof(Wide)) put<true>(dst + at + i, load_bytes<Wide>(src + at + i));
        };
        // A few pages by turns, which are in different parts of the memory: measured 1.17 times as fast.
        constexpr int64_t kPage = 4096, kPages = 4 * kPage;
        for (; n >= kPages; dst += kPages, src += kPages, n -= kPages)
            for (int64_t at = 0; at < kPage; at += kLine)
#pragma GCC unroll 4
                for (int64_t page = 0; page < kPages; page += kPage) line(page + at);
        for (; n >= kLine; dst += kLine, src += kLine, n -= kLine) line(0);
        if (own_end) copy_part(dst, src, n);
        return;
    }
#endif
    __builtin_memcpy(dst, src, static_cast<size_t>(n));
}

/* ---- transposes ------------------------------------------------------------------------------------------------------ */

/* Lines of elements: line i starts at [i]; of(line, element) are the lines that start there. */
template <class T>
struct Stepped {
    T *p;
    int64_t step;
    INFINI_INLINE T *operator[](int64_t i) const { return p + i * step; }
    INFINI_INLINE Stepped of(int64_t line, int64_t element) const { return {p + line * step + element, step}; }
    /** To the next line. What the compiler cannot see through it cannot take apart either: it would keep the starts of more
     *  lines than there are registers. */
    INFINI_INLINE void advance() {
        p += step;
        __asm__("" : "+r"(p));
    }
    /** Do all lines start at cache lines? */
    INFINI_INLINE bool aligned() const {
        return ((reinterpret_cast<intptr_t>(p) | step * static_cast<int64_t>(sizeof(T))) & (kLine - 1)) == 0;
    }
    /** Elements from the start of each line to a cache line, if that is the same number for all. */
    INFINI_INLINE int64_t to_cache_line() const {
        const int64_t bytes = -reinterpret_cast<intptr_t>(p) & (kLine - 1), size = sizeof(T);
        return (step * size & (kLine - 1)) == 0 && bytes % size == 0 ? bytes / size : 0;
    }
    /** Are there too few sets of 8 lines in a first-level cache for `count` of these and as much again? */
    bool collide(int64_t count) const {
        constexpr int64_t kSets = 64, kWays = 8;
        const int64_t bytes = step * static_cast<int64_t>(sizeof(T)), power_of_two = bytes & -bytes;
        return (power_of_two < kSets * kLine ? power_of_two : kSets * kLine) * count * 2 > kSets * kWays * kLine;
    }
};
template <class T>
struct Listed {
    T *p;
    const int64_t *offsets;
    INFINI_INLINE T *operator[](int64_t i) const { return p + offsets[i]; }
    INFINI_INLINE Listed of(int64_t line, int64_t element) const { return {p + element, offsets + line}; }
    INFINI_INLINE void advance() { ++offsets; }
    INFINI_INLINE bool aligned() const { return false; } // not known
    INFINI_INLINE int64_t to_cache_line() const { return 0; }
    bool collide(int64_t) const { return false; }
};

template <class Dst, class Src>
void transpose_elements(Dst dst, Src src, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) write(dst[i] + j, read(src[j] + i));
}

#if defined(__SSE2__)
/** Rows of sizeof(V) bytes from 16 bytes of each of as many columns. fetch() is called once a row, between loads. */
template <class T, class V, class Src, class Fetch>
INFINI_INLINE void load_transposed(V (&x)[16 / sizeof(T)], Src src, Fetch &&fetch) {
    constexpr int kRows = 16 / sizeof(T), kLanes = sizeof(V) / 16;
    Src column[kLanes];
#pragma GCC unroll 4
    for (int lane = 0; lane < kLanes; ++lane) column[lane] = src.of(lane * kRows, 0);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
        gather(x[i], [&](int lane) { return column[lane][0]; });
#pragma GCC unroll 4
        for (int lane = 0; lane < kLanes; ++lane) column[lane].advance();
        fetch();
    }
    transpose_lanes<sizeof(T)>(x);
}
template <class V, bool kStream, class T, class Dst, class Src, class Fetch>
INFINI_INLINE void transpose_block(Dst dst, Src src, Fetch &&fetch) {
    constexpr int kRows = 16 / sizeof(T);
    V x[kRows];
    load_transposed<T>(x, src, fetch);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
        put<kStream>(dst[0], x[i]);
        dst.advance();
    }
}

/** A cache line of each of as many columns as elements make a line: those of both sides are used up while they are near.
 *  Calls fetch() once a column, evenly. */
template <class T, bool kStream, class Dst, class Src, class Fetch>
INFINI_INLINE void transpose_square(Dst dst, Src src, Fetch &&fetch) {
    constexpr int64_t kRows = 16 / sizeof(T), kCols = sizeof(Wide) / sizeof(T), kSide = kLine / sizeof(T);
#pragma GCC unroll 1
    for (int64_t i = 0; i < kSide; i += kRows) {
        transpose_block<Wide, kStream, T>(dst.of(i, 0), src.of(0, i), fetch);
#pragma GCC unroll 4
        for (int64_t j = kCols; j < kSide; j += kCols)
            transpose_block<Wide, kStream, T>(dst.of(i, j), src.of(j, i), [] {});
    }
}

/** A copy of what transpose_square() reads: where columns share too few sets of the cache, each block would have to fetch its
 *  lines again. */
template <class T, class Src>
INFINI_INLINE Stepped<const T> copy_square(T *lines, Src src) {
    constexpr int64_t kCols = sizeof(Wide) / sizeof(T), kSide = kLine / sizeof(T);
#pragma GCC unroll 8
    for (int64_t j = 0; j < kSide; ++j)
#pragma GCC unroll 4
        for (int64_t i = 0; i < kSide; i += kCols) put<false>(lines + j * kSide + i, load_bytes<Wide>(src[j] + i));
    return {lines, kSide};
}
template <class T, bool kStream, class Dst, class Src, class Fetch>
INFINI_INLINE void transpose_colliding(Dst dst, Src src, Fetch &&fetch) {
    constexpr int64_t kSide = kLine / sizeof(T);
    alignas(kLine) T lines[kSide * kSide];
    transpose_square<T, kStream>(dst, copy_square(lines, src), fetch);
}

/** Has the lines of some later square fetched, one a call: in small portions, which leave the loads of this square their turn.
 *  Where lines of elements do not start at cache lines, each of a square ends in the one that the next square begins with:
 *  that is the one to fetch. */
template <int kLevel, class Lines>
struct Fetch {
    Lines lines;
    INFINI_INLINE void operator()() {
        __builtin_prefetch(lines[0], 0, 4 - kLevel);
        lines.advance();
    }
};
/** `ahead` after i, at most last. */
INFINI_INLINE int64_t after(int64_t i, int64_t ahead, int64_t last) { return i + ahead < last ? i + ahead : last; }

/** Squares one below the other: src is read in order. These are more lines than the hardware's prefetchers keep track of. */
template <class T, bool kStream, class Dst, class Src>
void transpose_squares(Dst dst, Src src, int64_t rows, bool collide) {
    constexpr int64_t kSide = kLine / sizeof(T);
    each_piece(rows, kSide, [&](int64_t i) {
        const int64_t next = after(i, kSide, rows - kSide), second = after(i, 2 * kSide, rows - kSide);
        Fetch<2, Dst> fetch_dst{dst.of(second, kSide - 1)};
        Fetch<1, Src> fetch_src{src.of(0, next + kSide - 1)};
        Fetch<2, Src> fetch_colliding{src.of(0, second + kSide - 1)};
        if (collide)
            transpose_colliding<T, kStream>(dst.of(i, 0), src.of(0, i), [&] {
                fetch_colliding();
                if (!kStream) fetch_dst();
            });
        else
            transpose_square<T, kStream>(dst.of(i, 0), src.of(0, i), [&] {
                fetch_src();
                if (!kStream) fetch_dst();
            });
    });
}

#if defined(__AVX512F__)
/* Lines that go past the caches: vectors that are whole lines write them at once, parts must not go one by one. */

/** A cache line of dst, of which n bytes from `first` on are there to be written. */
INFINI_INLINE void stream_line(char *line, const char *src, int64_t first, int64_t n) {
    if (first == 0 && n == kLine)
#pragma GCC unroll 4
        for (size_t i = 0; i < kLine; i += sizeof(Wide)) put<true>(line + i, load_bytes<Wide>(src + i));
    else
        copy_part(line + first, src, n);
}

/** Past the caches to rows that do not start at cache lines: through a buffer that whole lines are cut from. They leave it a
 *  line of each row at a time, which spreads over more of the memory than a row at a time: measured 1.2 times as fast. */
template <class T, class Dst, class Src>
void transpose_past_caches(Dst dst, Src src, int64_t rows, int64_t cols, bool collide) {
    constexpr int64_t kBufferBytes = 32768, kSize = sizeof(T); // on the stack, which is a small one in some threads
    constexpr int64_t kSide = kLine / kSize, kWidth = kBufferBytes / kLine, kPitch = kWidth + kSide; // no power of two
    alignas(kLine) T buffer[kSide * kPitch];
    for (int64_t j = 0; j < cols; j += kWidth) {
        if (cols - j < kSide) j = cols - kSide;
        const int64_t width = cols - j < kWidth ? cols - j : kWidth, n = width * kSize;
        each_piece(rows, kSide, [&](int64_t i) {
            // The ends of a row share their lines with others, and these are read first.
            for (int64_t r = 0; r < kSide; ++r) {
                __builtin_prefetch(dst[i + r] + j, 0, 3);
                __builtin_prefetch(dst[i + r] + j + width - 1, 0, 3);
            }
            const int64_t below = after(i, kSide, rows - kSide);
            each_piece(width, kSide, [&](int64_t k) {
                const Stepped<T> square{buffer + k, kPitch};
                Fetch<2, Src> fetch_below{src.of(j + k, below + kSide - 1)};
                Fetch<1, Src> fetch_next{src.of(j + after(k, kSide, width - kSide), i)};
                const auto fetch = [&] {
                    fetch_below();
                    fetch_next();
                };
                if (collide)
                    transpose_colliding<T, false>(square, src.of(j + k, i), fetch);
                else
                    transpose_square<T, false>(square, src.of(j + k, i), fetch);
            });
            for (int64_t k = 0; k < n + kLine; k += kLine)
                for (int64_t r = 0; r < kSide; ++r) {
                    char *const row = reinterpret_cast<char *>(dst[i + r] + j);
                    const char *const from = reinterpret_cast<const char *>(buffer + r * kPitch);
                    const int64_t at = k - (reinterpret_cast<intptr_t>(row) & (kLine - 1)); // of the line, in the row
                    const int64_t begin = at > 0 ? at : 0, end = at + kLine < n ? at + kLine : n;
                    if (begin < end) stream_line(row + at, from + begin, begin - at, end - begin);
                }
        });
    }
}
#endif
#endif

#include "cpu/channels.inl"

/** Of fewer rows or columns than a block has. */
template <class T, class Dst, class Src>
void transpose_few(Dst dst, Src src, int64_t rows, int64_t cols) {
#if defined(__AVX2__)
    if constexpr (sizeof(T) <= 4 && kSame<Src, Stepped<const T>>)
        return transpose_few_lines<T>(dst, src, rows, cols, [&](int64_t i, int64_t j) {
            transpose_elements(dst.of(i, j), src.of(j, i), rows - i, cols - j);
        });
#endif
    transpose_elements(dst, src, rows, cols);
}

template <class T, class Dst, class Src>
void transpose_lines(Dst dst, Src src, int64_t rows, int64_t cols, [[maybe_unused]] bool stream) {
    constexpr int64_t kSide = kLine / sizeof(T);
#if defined(__SSE2__)
    constexpr int64_t kBlock = 16 / sizeof(T);
    if (rows < kBlock || cols < kBlock) return transpose_few<T>(dst, src, rows, cols);
    if (rows < kSide || cols < kSide) {
        const auto block = [&](int64_t i, int64_t j) {
            transpose_block<__m128i, false, T>(dst.of(i, j), src.of(j, i), [] {});
        };
        if (rows > cols)
            return each_piece(rows, kBlock,
                              [&](int64_t i) { each_piece(cols, kBlock, [&](int64_t j) { block(i, j); }); });
        return each_piece(cols, kBlock, [&](int64_t j) { each_piece(rows, kBlock, [&](int64_t i) { block(i, j); }); });
    }
    // Lines of either side that begin alike are read and written whole, as parts would be twice, and fetched twice where lines
    // collide. What comes before the first of them, and behind the last of those that are streamed, is written alone if it
    // makes a block, for a line that is streamed and written otherwise, too, takes long; else with a square that overlaps it.
    constexpr int64_t kEnoughSquares = 8;
    const auto enough = [&](int64_t rest) { return rest >= kBlock ? rest : kSide; };
    if (const int64_t head = src.to_cache_line(); head > 0 && rows - head >= kEnoughSquares * kSide) {
        transpose_lines<T>(dst, src, enough(head), cols, false);
        return transpose_lines<T>(dst.of(head, 0), src.of(0, head), rows - head, cols, stream);
    }
    const bool collide = src.collide(kSide);
    if (const int64_t head = dst.to_cache_line(); head > 0 && cols - head >= (stream ? 1 : kEnoughSquares) * kSide) {
        transpose_lines<T>(dst, src, rows, enough(head), false);
        return transpose_lines<T>(dst.of(0, head), src.of(head, 0), rows, cols - head, stream);
    }
    if (const int64_t tail = cols % kSide; stream && dst.aligned() && tail >= kBlock) {
        transpose_lines<T>(dst, src, rows, cols - tail, stream);
        return transpose_lines<T>(dst.of(0, cols - tail), src.of(cols - tail, 0), rows, tail, false);
    }
#if defined(__AVX512F__)
    constexpr int64_t kEnoughLines = 8; // of a row: of those, two are parts
    if (stream && !dst.aligned() && cols * static_cast<int64_t>(sizeof(T)) >= kEnoughLines * kLine)
        return transpose_past_caches<T>(dst, src, rows, cols, collide);
    if (stream)
        return each_piece(cols, kSide, [&](int64_t j) {
            if (dst.of(0, j).aligned())
                transpose_squares<T, true>(dst.of(0, j), src.of(j, 0), rows, collide);
            else
                transpose_squares<T, false>(dst.of(0, j), src.of(j, 0), rows, collide);
        });
#endif
    each_piece(cols, kSide, [&](int64_t j) { transpose_squares<T, false>(dst.of(0, j), src.of(j, 0), rows, collide); });
#else
    for (int64_t j = 0; j < cols; j += kSide)
        for (int64_t i = 0; i < rows; i += kSide)
            transpose_elements(dst.of(i, j), src.of(j, i), rows - i < kSide ? rows - i : kSide,
                               cols - j < kSide ? cols - j : kSide);
#endif
}

template <class T>
void transpose_tile(void *dst, LineOffsets dst_rows, const void *src, LineOffsets src_cols, int64_t rows, int64_t cols,
                    bool stream) {
    T *to = static_cast<T *>(dst);
    const T *from = static_cast<const T *>(src);
    if (dst_rows.table == nullptr)
        transpose_lines<T>(Stepped<T>{to, dst_rows.step}, Stepped<const T>{from, src_cols.step}, rows, cols, stream);
    else
        transpose_lines<T>(Listed<T>{to, dst_rows.table}, Listed<const T>{from, src_cols.table}, rows, cols, stream);
}

constexpr void fill_copy(KernelTable &t) {
    t.copy[0] = copy_row<uint8_t>;
    t.copy[1] = copy_row<uint16_t>;
    t.copy[2] = copy_row<uint32_t>;
    t.copy[3] = copy_row<uint64_t>;
    t.copy[4] = copy_row<u128>;
    t.transpose[0] = transpose_tile<uint8_t>;
    t.transpose[1] = transpose_tile<uint16_t>;
    t.transpose[2] = transpose_tile<uint32_t>;
    t.transpose[3] = transpose_tile<uint64_t>;
    t.transpose[4] = transpose_tile<u128>;
    t.copy_rows = copy_rows;
    t.reverse_rows[0] = reverse_rows<uint8_t>;
    t.reverse_rows[1] = reverse_rows<uint16_t>;
    t.reverse_rows[2] = reverse_rows<uint32_t>;
    t.reverse_rows[3] = reverse_rows<uint64_t>;
    t.stream_row = stream_row;
}
