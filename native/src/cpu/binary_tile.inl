/* Tiles of add and mul in which an operand is transposed: contiguous in another dimension than the result. */

#if defined(__SSE2__)
/** A cache line of each of as many rows as elements make a line: the transposed operand, x, passes through registers alone. */
template <class Op, class T, bool kStream>
INFINI_INLINE void binary_square(Stepped<T> c, Stepped<const T> x, Stepped<const T> y, bool y_first) {
    constexpr int64_t kRows = 16 / sizeof(T), kSide = kLine / sizeof(T), kCols = sizeof(Wide) / sizeof(T);
    constexpr int64_t N = Block<T>::N;
#pragma GCC unroll 1
    for (int64_t i = 0; i < kSide; i += kRows) {
        alignas(kLine) T lines[kRows][kSide];
#pragma GCC unroll 4
        for (int64_t j = 0; j < kSide; j += kCols) {
            Wide rows[kRows];
            load_transposed<T>(rows, x.of(j, i), [] {});
#pragma GCC unroll 16
            for (int64_t r = 0; r < kRows; ++r) put<false>(lines[r] + j, rows[r]);
        }
#pragma GCC unroll 16
        for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int64_t j = 0; j < kSide; j += N) {
                const Block<T> from_x = load_block(lines[r] + j), from_y = load_block(y[i + r] + j);
                store_block<kStream>(c[i + r] + j, y_first ? apply<Op>(from_y, from_x) : apply<Op>(from_x, from_y));
            }
    }
}
#endif

/** Which bits move is all that matters to a transpose: one for all types of a size. */
template <class T>
constexpr TransposeTile kTransposeOf = sizeof(T) == 1   ? transpose_tile<uint8_t>
                                       : sizeof(T) == 2 ? transpose_tile<uint16_t>
                                       : sizeof(T) == 4 ? transpose_tile<uint32_t>
                                                        : transpose_tile<uint64_t>;

/** Squares side by side, then those below them. Nothing overlaps: c may be y. */
template <class Op, class T, bool kStream>
void binary_squares(Stepped<T> c, Stepped<const T> x, const T *y, int64_t y_row, int64_t y_col, bool y_first,
                    int64_t rows, int64_t cols, bool far) {
    constexpr int64_t kSide = kLine / sizeof(T);
    alignas(kLine) T x_lines[kSide * kSide], y_lines[kSide * kSide];
    const bool collide = x.collide(kSide);
    for (int64_t i = 0; i < rows; i += kSide)
        for (int64_t j = 0; j < cols; j += kSide) {
            const int64_t n_rows = rows - i < kSide ? rows - i : kSide, n_cols = cols - j < kSide ? cols - j : kSide;
            const Stepped<T> to = c.of(i, j);
            Stepped<const T> from_x = x.of(j, i), from_y{y + i * y_row + j * y_col, y_row};
            // What comes next, if there is room for it, and what comes below: more columns than the hardware's prefetchers keep
            // track of.
            if (!collide)
                for (int64_t line = 0; line < kSide; ++line) __builtin_prefetch(from_x[line + kSide], 0, 3);
            for (int64_t line = 0; line < kSide; ++line) __builtin_prefetch(from_x[line] + kSide, 0, 2);
            if (far)
                for (int64_t line = 0; line < kSide; ++line) __builtin_prefetch(from_y[line + kSide], 0, 2);
            if (y_col != 1) {
                if (y_row == 1)
                    kTransposeOf<T>(y_lines, {kSide, nullptr}, from_y.p, {y_col, nullptr}, n_rows, n_cols, false);
                else
                    for (int64_t r = 0; r < n_rows; ++r) gather(y_lines + r * kSide, from_y[r], y_col, n_cols);
                from_y = {y_lines, kSide};
            }
#if defined(__SSE2__)
            if (n_rows == kSide && n_cols == kSide) {
                if (collide) from_x = copy_square(x_lines, from_x);
                // Here because loads wait for stores whose addresses end in the same bits.
                if (from_y.collide(kSide)) from_y = copy_square(y_lines, from_y);
                binary_square<Op, T, kStream>(to, from_x, from_y, y_first);
                continue;
            }
#endif
            kTransposeOf<T>(x_lines, {kSide, nullptr}, from_x.p, {from_x.step, nullptr}, n_rows, n_cols, false);
            const Stepped<const T> from_lines{x_lines, kSide};
            for (int64_t r = 0; r < n_rows; ++r)
                binary_row<Op, T, false>(to[r], 1, y_first ? from_y[r] : from_lines[r], 1,
                                         y_first ? from_lines[r] : from_y[r], 1, n_cols);
        }
}

template <class Op, class T>
void binary_tile(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t cols, bool stream) {
    const bool y_first = !(a.row == 1 && a.col != 1 && a.col != 0);
    const TileOperand &x = y_first ? b : a, &y = y_first ? a : b;
    const Stepped<T> to{static_cast<T *>(c.p), c.row};
    const Stepped<const T> from{static_cast<const T *>(x.p), x.col};
    const auto squares = stream && to.aligned() ? binary_squares<Op, T, true> : binary_squares<Op, T, false>;
    squares(to, from, static_cast<const T *>(y.p), y.row, y.col, y_first, rows, cols, stream);
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
