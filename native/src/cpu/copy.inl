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

/** One element n times, 16 bytes or more, in vectors; the last may overlap the one before it. */
template <class T>
INFINI_INLINE void fill_line(T *dst, T x, int64_t n) {
#if defined(__SSE2__)
    const auto pieces = [&](auto all) INFINI_INLINE_LAMBDA {
        each_piece(n, sizeof all / sizeof(T),
                   [&](int64_t i) INFINI_INLINE_LAMBDA { put<false>(static_cast<void *>(dst + i), all); });
    };
    if constexpr (sizeof(T) <= 8) {
        typedef T Line __attribute__((vector_size(sizeof(Wide))));
        typedef T Lane __attribute__((vector_size(16)));
        if (n >= static_cast<int64_t>(sizeof(Line) / sizeof(T))) return pieces(Line{} + x);
        pieces(Lane{} + x);
    } else {
        pieces(load_bytes<__m128i>(&x));
    }
#else
    for (int64_t i = 0; i < n; ++i) write(dst + i, x);
#endif
}

/** Any steps on either side. */
template <class T>
INFINI_INLINE void copy_stepped(TileOperand dst, TileOperand src, int64_t rows, int64_t cols,
                                [[maybe_unused]] bool stream) {
    if constexpr (sizeof(T) <= 8) {
        constexpr int64_t kLanes = sizeof(VF) / sizeof(T);
        const bool lines = stream && dst.col == 1 && cols >= kLanes && near(src.col) && src.col != 1 &&
                           (reinterpret_cast<intptr_t>(dst.p) & (sizeof(T) - 1)) == 0;
        if (!lines) return copy_strided<sizeof(T)>(dst, src, rows, cols);
        for (int64_t i = 0; i < rows; ++i)
            gather_near<kLanes, true>(static_cast<T *>(dst.p) + i * dst.row,
                                      static_cast<const T *>(src.p) + i * src.row, src.col, cols);
    } else {
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < cols; ++j)
                write(static_cast<T *>(dst.p) + i * dst.row + j * dst.col,
                      read(static_cast<const T *>(src.p) + i * src.row + j * src.col));
    }
}

template <class T>
void copy_elements(TileOperand dst, TileOperand src, int64_t rows, int64_t cols, bool stream) {
    constexpr int64_t kLane = 16; // bytes: of fewer there is no vector
    if (dst.col == 1 && src.col == 0 && cols * static_cast<int64_t>(sizeof(T)) >= kLane) {
        for (int64_t i = 0; i < rows; ++i)
            fill_line(static_cast<T *>(dst.p) + i * dst.row, read(static_cast<const T *>(src.p) + i * src.row), cols);
        return;
    }
    // A row takes longer than a few elements do: these down the columns, of as many rows as stay near.
    constexpr int64_t kFew = 8, kRows = 128;
    const bool down = cols <= kFew && rows > cols;
    for (int64_t i = 0, n; i < rows; i += n) {
        n = down && rows - i > kRows ? kRows : rows - i;
        const auto part = [&](const TileOperand &x) {
            T *const p = static_cast<T *>(x.p) + i * x.row;
            return down ? TileOperand{p, x.col, x.row} : TileOperand{p, x.row, x.col};
        };
        copy_stepped<T>(part(dst), part(src), down ? cols : n, down ? n : cols, stream && !down);
    }
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

/** Rows of n bytes, in pieces of a V: at least one, and the last may overlap the one before it, as may the second, where stores begin
 *  that are aligned. */
template <class V>
INFINI_INLINE void copy_pieces(char *dst, int64_t dst_row, const char *src, int64_t src_row, int64_t n, int64_t rows) {
    constexpr int64_t kPiece = sizeof(V);
    const auto piece = [](char *to, const char *from) INFINI_INLINE_LAMBDA { put<false>(to, load_bytes<V>(from)); };
    for (; rows > 0; --rows, dst += dst_row, src += src_row) {
        piece(dst, src);
        int64_t i = kPiece - (reinterpret_cast<intptr_t>(dst) & (kPiece - 1));
        for (; i < n - kPiece; i += kPiece) piece(dst + i, src + i);
        piece(dst + n - kPiece, src + n - kPiece);
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

/** A cache line, at a multiple of its size. */
template <bool kStream>
INFINI_INLINE void put_line(char *dst, const char *src) {
#if defined(__SSE2__)
#pragma GCC unroll 4
    for (size_t i = 0; i < kLine; i += sizeof(Wide)) put<kStream>(dst + i, load_bytes<Wide>(src + i));
#else
    __builtin_memcpy(dst, src, kLine);
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
        const auto line = [&](int64_t at) INFINI_INLINE_LAMBDA { put_line<true>(dst + at, src + at); };
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
    /** Are lines a multiple of so many bytes apart? */
    INFINI_INLINE bool apart_by(int64_t bytes) const {
        return (step * static_cast<int64_t>(sizeof(T)) & (bytes - 1)) == 0;
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
    bool apart_by(int64_t) const { return false; }
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
INFINI_INLINE void transpose_square(Dst dst, Src src, Fetch &&fetch, bool collide) {
    constexpr int64_t kSide = kLine / sizeof(T);
    if (!collide) return transpose_square<T, kStream>(dst, src, fetch);
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
/** The same of the first lines of each, one after the other: memory is slow to give single ones. */
template <int kLevel, class Lines>
struct FetchRuns {
    Lines lines;
    int64_t bytes, at = 0; // of each
    INFINI_INLINE void operator()() {
        if (at == bytes) {
            lines.advance();
            at = 0;
        }
        __builtin_prefetch(reinterpret_cast<const char *>(lines[0]) + at, 0, 4 - kLevel);
        at += kLine;
    }
};
/** `ahead` after i, at most last. */
INFINI_INLINE int64_t after(int64_t i, int64_t ahead, int64_t last) { return i + ahead < last ? i + ahead : last; }

/** A part of a transpose, whose rows are next to each other in so many columns of src. */
template <class T>
struct TransposeBlock {
    static constexpr int64_t kSide = kLine / sizeof(T), kRows = 128, kCols = 2 * kSide; // as measured
    int64_t first_row = 0, first_col = 0, rows = 0, cols = 0;

    /** Squares one below the other. Memory and caches are read fastest in long runs: while some columns are transposed, those that
     *  come next, of `all` rows and columns, are fetched one after the other. */
    template <class Src, class Square>
    INFINI_INLINE void squares(Src src, int64_t all_rows, int64_t all_cols, Square &&square) const {
        const int64_t run = ((rows - 1) / kSide + 1) * kLine;
        int64_t ahead = kSide; // columns: more if they are short
        for (int64_t n = rows; n <= kRows / 2; n *= 2) ahead *= 2;
        for (int64_t begin = 0; begin < cols; begin += kSide) {
            const int64_t k = after(begin, 0, cols - kSide), col = first_col + k;
            const bool more = col + ahead < all_cols; // to the right; else below
            const int64_t next_row = more ? first_row : after(first_row, kRows, all_rows - kSide),
                          next_col = more ? after(col, ahead, all_cols - kSide) : 0;
            FetchRuns<1, Src> fetch{src.of(next_col, next_row + kSide - 1), run};
            for (int64_t below = 0; below < rows; below += kSide) square(after(below, 0, rows - kSide), k, fetch);
        }
    }
};
template <class T, class F>
INFINI_INLINE void each_block(int64_t rows, int64_t cols, F &&f) {
    using Block = TransposeBlock<T>;
    for (int64_t i = 0; i < rows; i += Block::kRows) {
        if (rows - i < Block::kSide) i = rows - Block::kSide;
        for (int64_t j = 0; j < cols; j += Block::kCols)
            f(Block{i, j, after(0, Block::kRows, rows - i), after(0, Block::kCols, cols - j)});
    }
}

template <class T, bool kStream, class Dst, class Src>
INFINI_CALLED void transpose_squares(Dst dst, Src src, int64_t rows, int64_t cols) {
    const bool collide = src.collide(TransposeBlock<T>::kSide);
    each_block<T>(rows, cols, [&](const TransposeBlock<T> &block) INFINI_INLINE_LAMBDA {
        block.squares(src, rows, cols, [&](int64_t i, int64_t j, auto &fetch) INFINI_INLINE_LAMBDA {
            const int64_t row = block.first_row + i, col = block.first_col + j;
            transpose_square<T, kStream>(dst.of(row, col), src.of(col, row), fetch, collide);
        });
    });
}

/** A block's rows on their way; the line before each is the end of the same row of the block on its left. */
template <class T>
struct TransposeBuffer {
    using Block = TransposeBlock<T>;
    static constexpr int64_t kSize = sizeof(T), kPitch = kLine + Block::kCols * kSize; // no power of two
    alignas(kLine) char bytes[Block::kRows * kPitch];
    Block block;

    INFINI_INLINE char *row(int64_t i) { return bytes + i * kPitch + kLine; }

    /** Rows from `begin` to `end`, as whole lines. What is left of one goes to the next block but at the end of a row. */
    template <bool kStream, class Dst>
    INFINI_INLINE void write(Dst dst, int64_t begin, int64_t end, bool last, TransposeBuffer &next) {
        const int64_t n = block.cols * kSize;
        for (int64_t i = begin; i < end; ++i) {
            char *const to = reinterpret_cast<char *>(dst[block.first_row + i] + block.first_col), *const from = row(i);
            int64_t at = -(reinterpret_cast<intptr_t>(to) & (kLine - 1)); // of a line
            if (block.first_col == 0 && at < 0) {
                at += kLine;
                copy_part(to, from, at < n ? at : n);
            }
            for (; at + kLine <= n; at += kLine) put_line<kStream>(to + at, from + at);
            if (at >= n) continue;
            if (last)
                copy_part(to + at, from + at, n - at);
            else
                __builtin_memcpy(next.row(i) - kLine, from + n - kLine, kLine);
        }
    }
};

/** Through buffers, for rows that share sets of a cache, or lines with others that must be written whole: while a block is transposed
 *  into one, the rows of the block before it leave the other. */
template <class T, bool kStream, class Dst, class Src>
INFINI_CALLED void transpose_buffered(Dst dst, Src src, int64_t rows, int64_t cols) {
    using Buffer = TransposeBuffer<T>;
    const bool collide = src.collide(Buffer::Block::kSide);
    Buffer buffers[2]; // on the stack, which is a small one in some threads
    int filled = 0;
    each_block<T>(rows, cols, [&](const TransposeBlock<T> &block) INFINI_INLINE_LAMBDA {
        Buffer &buffer = buffers[filled], &before = buffers[filled ^ 1];
        buffer.block = block;
        filled ^= 1;
        const auto pieces = [](int64_t n) { return (n - 1) / Buffer::Block::kSide + 1; };
        const int64_t to_write = before.block.rows,
                      share = (to_write - 1) / (pieces(block.rows) * pieces(block.cols)) + 1;
        int64_t written = 0;
        const auto write = [&](int64_t end) INFINI_INLINE_LAMBDA {
            if (end > to_write) end = to_write;
            before.template write<kStream>(dst, written, end, block.first_col == 0, buffer);
            written = end;
        };
        block.squares(src, rows, cols, [&](int64_t i, int64_t j, auto &fetch) INFINI_INLINE_LAMBDA {
            const Stepped<T> square{reinterpret_cast<T *>(buffer.row(i)) + j, Buffer::kPitch / Buffer::kSize};
            transpose_square<T, false>(square, src.of(block.first_col + j, block.first_row + i), fetch, collide);
            write(written + share);
        });
    });
    Buffer &end = buffers[filled ^ 1];
    end.template write<kStream>(dst, 0, end.block.rows, true, buffers[filled]);
}
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
    constexpr int64_t kEnoughSquares = 8, kEnoughLines = 8; // of a row: of those, two are parts
    const auto enough = [&](int64_t rest) { return rest >= kBlock ? rest : kSide; };
    if (const int64_t head = src.to_cache_line(); head > 0 && rows - head >= kEnoughSquares * kSide) {
        transpose_lines<T>(dst, src, enough(head), cols, false);
        return transpose_lines<T>(dst.of(head, 0), src.of(0, head), rows - head, cols, stream);
    }
    const int64_t head = dst.to_cache_line();
    const auto buffered = [&] {
        if (stream)
            transpose_buffered<T, true>(dst, src, rows, cols);
        else
            transpose_buffered<T, false>(dst, src, rows, cols);
    };
    // As measured: many such rows are slow to be written single lines of.
    constexpr int64_t kFewRows = 32;
    if (rows > kFewRows && dst.apart_by(stream ? 512 : 4096)) return buffered();
    if (stream && head == 0 && !dst.aligned() && cols * static_cast<int64_t>(sizeof(T)) >= kEnoughLines * kLine)
        return buffered();
    if (head > 0 && cols - head >= (stream ? 1 : kEnoughSquares) * kSide) {
        transpose_lines<T>(dst, src, rows, enough(head), false);
        return transpose_lines<T>(dst.of(0, head), src.of(head, 0), rows, cols - head, stream);
    }
    if (stream && dst.aligned()) {
        const int64_t tail = cols % kSide;
        transpose_squares<T, true>(dst, src, rows, cols - tail);
        if (tail > 0) transpose_lines<T>(dst.of(0, cols - tail), src.of(cols - tail, 0), rows, tail, false);
        return;
    }
    transpose_squares<T, false>(dst, src, rows, cols);
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
    t.copy[0] = copy_elements<uint8_t>;
    t.copy[1] = copy_elements<uint16_t>;
    t.copy[2] = copy_elements<uint32_t>;
    t.copy[3] = copy_elements<uint64_t>;
    t.copy[4] = copy_elements<u128>;
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
#if defined(__AVX512BW__)
    t.stream_joins = true;
#endif
}
