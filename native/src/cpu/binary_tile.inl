/* Tiles of add and mul in which operands are transposed, contiguous in another dimension than the result: in squares that stay in
 * registers, or in bands that are transposed into a buffer and are rows from there on. */

INFINI_INLINE bool transposed(const TileOperand &x) { return x.row == 1 && x.col != 1 && x.col != 0; }
/** Of two NaNs the result is that of the operand whose elements are side by side, as in rows; of two such, or two transposed ones, that
 *  of a. It must be the same one whichever way a tile goes, which may depend on its size. */
INFINI_INLINE bool b_first(const TileOperand &a, const TileOperand &b) { return transposed(a) && b.col == 1; }

/* ---- bands ----------------------------------------------------------------------------------------------------------- */

/** Columns: a cache line of each is in a buffer on the stack, which is a small one in some threads. Streamed, long pieces of rows are
 *  worth more; else half as many columns leave room in the first-level cache for the lines that the next band shares with this one. */
constexpr int64_t kBandWidth = 256;
constexpr int64_t kNear = 262144; // bytes: three operands of that size are likely to be in the second-level cache

#if defined(__SSE2__)
constexpr int64_t kFetchedLines = 8; // side by side of a column, of as many later bands

/** A band of kSide rows of x, and the rest of the rows of y and c that it is to be joined with. */
template <class T>
struct Band {
    static constexpr int64_t kSide = kLine / sizeof(T);
    Stepped<const T> x, ahead; // ahead: what is fetched by the whole band, if `far`
    TileOperand y, c;
    int64_t width;
    bool far;

    void transpose(Stepped<T> buffer) const {
        const bool collide = x.collide(kSide);
        const auto rows_of = [&](const TileOperand &operand, int64_t k) {
            return Stepped<const T>{static_cast<const T *>(operand.p) + k * operand.col, operand.row};
        };
        each_piece(width, kSide, [&](int64_t k) {
            Fetch<1, Stepped<const T>> fetch_next{x.of(after(k, kSide, width - kSide), 0)};
            FetchRuns<2, Stepped<const T>> fetch_ahead{ahead.of(k / kFetchedLines, 0), kFetchedLines * kLine};
            Fetch<2, Stepped<const T>> fetch_y{rows_of(y, k)};
            Fetch<2, Stepped<const T>> fetch_ends{
                rows_of(c, k == 0 ? 0 : width - 1)}; // they share their lines with others
            const auto fetch = [&] {
                fetch_next();
                if (!far) return;
                fetch_ahead();
                fetch_y();
                fetch_ends();
            };
            transpose_square<T, false>(buffer.of(0, k), x.of(k, 0), fetch, collide);
        });
    }
};
#endif

template <class T>
void binary_bands(BinaryRows kernel, TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t cols,
                  bool stream) {
    constexpr int64_t kSide = kLine / sizeof(T);
    const int64_t most = stream && !(transposed(a) && transposed(b)) ? kBandWidth : kBandWidth / 2;
    const int64_t width = ((cols - 1) / ((cols - 1) / most + 1) / kSide + 1) * kSide, pitch = most + kSide;
    alignas(kLine) T buffer[kSide * (kBandWidth + 2 * kSide)];

    const auto band = [&](const TileOperand &x, [[maybe_unused]] const TileOperand &y, T *lines, int64_t i, int64_t j,
                          int64_t n_rows, int64_t n) {
        if (!transposed(x)) return part<T>(x, i, j);
        const Stepped<const T> columns{static_cast<const T *>(x.p), x.col};
#if defined(__SSE2__)
        if (rows >= kSide && n >= kSide) {
            const int64_t first = i < rows - kSide ? i : rows - kSide; // the last band overlaps the one before it
            // Each of as many bands as a run has lines fetches its share of the runs of the next as many.
            constexpr int64_t kRun = kFetchedLines;
            const int64_t next = (i / (kRun * kSide) + 1) * kRun * kSide, column = i / kSide % kRun * n / kRun;
            const Band<T> rows_of_x{columns.of(j, first),
                                    next < rows ? columns.of(j + column, next + kSide - 1)
                                                : columns.of(j + width + column, kSide - 1),
                                    part<T>(y, first, j),
                                    part<T>(c, first, j),
                                    n,
                                    rows * cols * static_cast<int64_t>(sizeof(T)) > kNear};
            rows_of_x.transpose({lines, pitch});
            return TileOperand{lines + (i - first) * pitch, pitch, 1};
        }
#endif
        transpose_lines<T>(Stepped<T>{lines, pitch}, columns.of(j, i), n_rows, n, false);
        return TileOperand{lines, pitch, 1};
    };
    // Columns that begin alike are read by whole cache lines from the first such on, as parts would be fetched twice.
    const TileOperand &x = transposed(a) ? a : b;
    const int64_t to_line = Stepped<const T>{static_cast<const T *>(x.p), x.col}.to_cache_line();
    const int64_t head = to_line + kSide <= rows ? to_line : 0;
    // Pieces of rows of c end where cache lines do, if the rows begin alike.
    const int64_t c_head = Stepped<T>{static_cast<T *>(c.p), c.row}.to_cache_line();
    for (int64_t j = 0, n = 0; j < cols; j += n) {
        n = j == 0 && c_head > 0 ? width - kSide + c_head : width;
        if (cols - j < n + kSide) n = cols - j; // with what would be less than a square
        for (int64_t i = 0, n_rows = 0; i < rows; i += n_rows) {
            n_rows = i < head ? head : rows - i < kSide ? rows - i : kSide;
            const TileOperand from_a = band(a, b, buffer, i, j, n_rows, n);
            const TileOperand from_b = band(b, a, buffer + (transposed(a) ? kSide * pitch : 0), i, j, n_rows, n);
            if (b_first(a, b))
                kernel(part<T>(c, i, j), from_b, from_a, n_rows, n);
            else
                kernel(part<T>(c, i, j), from_a, from_b, n_rows, n);
        }
    }
}

/** Which bits move is all that matters to a transpose: one for all types of a size. */
template <class T>
constexpr auto kBandsOf = sizeof(T) == 1   ? binary_bands<uint8_t>
                          : sizeof(T) == 2 ? binary_bands<uint16_t>
                          : sizeof(T) == 4 ? binary_bands<uint32_t>
                                           : binary_bands<uint64_t>;

/* ---- squares --------------------------------------------------------------------------------------------------------- */

#if defined(__SSE2__)
/** A cache line of each of as many rows as elements make a line: the transposed operand, x, passes through registers alone. */
template <class Op, class T, bool kStream, class Fetch>
INFINI_INLINE void binary_square(Stepped<T> c, Stepped<const T> x, Stepped<const T> y, bool y_first, Fetch &&fetch) {
    constexpr int64_t kRows = 16 / sizeof(T), kSide = kLine / sizeof(T), kCols = sizeof(Wide) / sizeof(T);
    constexpr int64_t N = Block<T>::N;
#pragma GCC unroll 1
    for (int64_t i = 0; i < kSide; i += kRows) {
        alignas(kLine) T lines[kRows][kSide];
#pragma GCC unroll 4
        for (int64_t j = 0; j < kSide; j += kCols) {
            Wide rows[kRows];
            if (j == 0)
                load_transposed<T>(rows, x.of(j, i), fetch);
            else
                load_transposed<T>(rows, x.of(j, i), [] {});
#pragma GCC unroll 16
            for (int64_t r = 0; r < kRows; ++r) put<false>(lines[r] + j, rows[r]);
        }
#pragma GCC unroll 16
        for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int64_t j = 0; j < kSide; j += N) {
                const T *const from_x = lines[r] + j, *const from_y = y[i + r] + j;
                store_block<kStream>(c[i + r] + j, apply<Op>(load_block(y_first ? from_y : from_x),
                                                             load_block(y_first ? from_x : from_y)));
            }
    }
}

/** Which bits move is all that matters to a transpose: one for all types of a size. */
template <class T>
constexpr TransposeTile kTransposeOf = sizeof(T) == 1   ? transpose_tile<uint8_t>
                                       : sizeof(T) == 2 ? transpose_tile<uint16_t>
                                       : sizeof(T) == 4 ? transpose_tile<uint32_t>
                                                        : transpose_tile<uint64_t>;

/** Whole squares, in blocks, one below the other: x is read in runs, of which those of the columns that come next are fetched.
 *  Nothing overlaps: c may be y. */
template <class Op, class T, bool kStream>
INFINI_CALLED void binary_squares(Stepped<T> c, Stepped<const T> x, const T *y, int64_t y_row, int64_t y_col,
                                  int64_t rows, int64_t cols, bool near, bool y_first) {
    constexpr int64_t kSide = kLine / sizeof(T), kBlockRows = 64, kBlockCols = 4 * kSide; // as measured
    alignas(kLine) T x_lines[kSide * kSide], y_lines[kSide * kSide];
    const bool collide = x.collide(kSide);
    const auto square = [&](int64_t i, int64_t j, auto &fetch) INFINI_INLINE_LAMBDA {
        Stepped<const T> from_x = x.of(j, i), from_y{y + i * y_row + j * y_col, y_row};
        if (y_col == 1) {
            if (!near)
                for (int64_t line = 0; line < kSide; ++line) __builtin_prefetch(from_y[line] + kSide, 0, 2);
        } else {
            if (y_row == 1)
                kTransposeOf<T>(y_lines, {kSide, nullptr}, from_y.p, {y_col, nullptr}, kSide, kSide, false);
            else
                copy_strided<sizeof(T)>({y_lines, kSide, 1}, {const_cast<T *>(from_y.p), y_row, y_col}, kSide, kSide);
            from_y = {y_lines, kSide};
        }
        if (collide) from_x = copy_square(x_lines, from_x);
        // Here because loads wait for stores whose addresses end in the same bits.
        if (from_y.collide(kSide)) from_y = copy_square(y_lines, from_y);
        binary_square<Op, T, kStream>(c.of(i, j), from_x, from_y, y_first, fetch);
    };
    for (int64_t top = 0; top < rows; top += kBlockRows)
        for (int64_t left = 0; left < cols; left += kBlockCols) {
            const int64_t bottom = after(top, kBlockRows, rows), right = after(left, kBlockCols, cols);
            for (int64_t j = left; j < right; j += kSide) {
                const bool more = j + kSide < cols; // to the right; else below
                FetchRuns<1, Stepped<const T>> fetch{
                    x.of(more ? j + kSide : 0, (more ? top : after(bottom, 0, rows - kSide)) + kSide - 1),
                    (bottom - top) / kSide * kLine};
                for (int64_t i = top; i < bottom; i += kSide) square(i, j, fetch);
            }
        }
}
#endif

/* ---- elements one by one --------------------------------------------------------------------------------------------- */

/** Rows of c in pieces of so many columns of x, each of which has a cache line in the first-level cache while as many rows of it
 *  are read as elements make a line. Lines of these need not begin alike, and b and c are read and written in long runs. */
constexpr int64_t kSingleColumns = 256;

/** Whether one of a and b is transposed and its columns have blocks, the other one is not, that room is enough, and it pays: for
 *  few rows, of which squares would be mostly empty; for vectors of few elements otherwise where squares would not begin at lines
 *  of c, and if elements are smaller than 8 bytes, where they are not near. */
template <class T>
INFINI_INLINE bool has_singles(const TileOperand &a, const TileOperand &b, int64_t rows, int64_t cols, bool lines,
                               bool near) {
    constexpr int64_t kFewRows = sizeof(T) == 8 ? 8 : 6, kFewElements = 8;
    const TileOperand &x = transposed(a) ? a : b;
    if ((a.col != 1 && b.col != 1) || !has_blocks<T>(x.col) || cols < Block<T>::N) return false;
    if (rows >= kFewRows && (lines || Block<T>::N > kFewElements || (near && sizeof(T) < 8))) return false;
    return !Stepped<const T>{static_cast<const T *>(x.p), x.col}.collide(cols < kSingleColumns ? cols : kSingleColumns);
}

template <class T>
void binary_singles(BinaryRows kernel, TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t cols) {
    for (int64_t j = 0; j < cols; j += kSingleColumns)
        kernel(part<T>(c, 0, j), part<T>(a, 0, j), part<T>(b, 0, j), rows,
               cols - j < kSingleColumns ? cols - j : kSingleColumns);
}

/* ---- which ----------------------------------------------------------------------------------------------------------- */

/** Are squares as fast as bands in a second-level cache? Those of F16 are not, whose arithmetic is fast in rows only. */
template <class T>
constexpr bool kSquares = true;
template <>
constexpr bool kSquares<f16> = false;

/** Squares pass through registers. Bands need a buffer, but stream whole lines to rows that start anywhere, and are better where rows
 *  share sets of a cache; only those of halves, whose pieces of a row are few lines, lose more at their ends than streaming gains. */
template <class Op, class T>
void binary_tile(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t cols, bool stream) {
    [[maybe_unused]] constexpr int64_t kSide = kLine / sizeof(T);
    const Stepped<T> to{static_cast<T *>(c.p), c.row};
    const int64_t head = to.to_cache_line();
    const bool near = rows * cols * static_cast<int64_t>(sizeof(T)) <= kNear;
    if (sizeof(T) == 2 && head == 0 && !to.aligned()) stream = false;
    const BinaryRows kernel = stream ? binary_rows<Op, T, true> : binary_rows<Op, T, false>;
    if (has_singles<T>(a, b, rows, cols, stream || to.aligned(), near))
        return binary_singles<T>(kernel, c, a, b, rows, cols);
#if defined(__SSE2__)
    // Columns that make no square go in bands, with those of one more: rows of less than a vector take long.
    const auto with_a_square = [](int64_t n) { return n == 0 ? 0 : n + kSide; };
    const int64_t left = with_a_square(head), right = with_a_square((cols - left) % kSide);
    const int64_t across = cols - left - right, down = rows / kSide * kSide;
    const bool aligned = head > 0 || to.aligned(), crowded = to.collide(kSide) || to.apart_by(2048);
    if (across > 0 && down > 0 && !crowded && (aligned || !stream) && (kSquares<T> || !near)) {
        const bool in_order = transposed(a);
        const TileOperand x = part<T>(in_order ? a : b, 0, left), y = part<T>(in_order ? b : a, 0, left);
        const bool y_first = in_order ? b_first(a, b) : y.col == 1 || transposed(y) || !has_blocks<T>(y.col);
        const auto squares = stream ? binary_squares<Op, T, true> : binary_squares<Op, T, false>;
        squares(to.of(0, left), {static_cast<const T *>(x.p), x.col}, static_cast<const T *>(y.p), y.row, y.col, down,
                across, near, y_first);
        const auto bands = [&](int64_t i, int64_t j, int64_t n_rows, int64_t n_cols) {
            if (n_rows > 0 && n_cols > 0)
                kBandsOf<T>(binary_rows<Op, T, false>, part<T>(c, i, j), part<T>(a, i, j), part<T>(b, i, j), n_rows,
                            n_cols, false);
        };
        bands(0, 0, down, left);
        bands(0, left + across, down, right);
        return bands(down, 0, rows - down, cols);
    }
#endif
    kBandsOf<T>(kernel, c, a, b, rows, cols, stream);
}

template <class Op>
constexpr void fill_binary_tile(BinaryTile *tile) {
    tile[INFINI_DTYPE_F16] = binary_tile<Op, f16>;
    tile[INFINI_DTYPE_BF16] = binary_tile<Op, bf16>;
    tile[INFINI_DTYPE_F32] = binary_tile<Op, float>;
    tile[INFINI_DTYPE_F64] = binary_tile<Op, double>;
    tile[INFINI_DTYPE_I8] = tile[INFINI_DTYPE_U8] = binary_tile<Op, uint8_t>;
    tile[INFINI_DTYPE_I16] = tile[INFINI_DTYPE_U16] = binary_tile<Op, uint16_t>;
    tile[INFINI_DTYPE_I32] = tile[INFINI_DTYPE_U32] = binary_tile<Op, uint32_t>;
    tile[INFINI_DTYPE_I64] = tile[INFINI_DTYPE_U64] = binary_tile<Op, uint64_t>;
}

/** All that there is of one type: add and mul. */
template <class T>
constexpr void fill_binary_of(KernelTable &t, infiniDtype_t type) {
#define INFINI_FILL_BINARY(ID, name, Name)                             \
    t.binary[kBinary##Name][type] = binary_rows<Name, T, false>;       \
    t.binary_stream[kBinary##Name][type] = binary_rows<Name, T, true>; \
    t.binary_tile[kBinary##Name][type] = binary_tile<Name, T>;
    INFINI_BINARY_LIST(INFINI_FILL_BINARY)
#undef INFINI_FILL_BINARY
}
