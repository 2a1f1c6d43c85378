/* Products of rows of A with so few columns that sums of a row are a vector, or two, and with so short a K that B stays in the
 * first-level cache. */

/** See GemmNarrow. V: of the type sums are kept in; C of them in a row. */
template <class V, int C>
void gemm_narrow(const GemmNarrow &g) {
    using Acc = typename V::Scalar;
    constexpr int R = C == 1 || kManyRegisters ? kNarrowRows : kNarrowRows / 2;
    constexpr int kRows = 3; // of one pointer: addresses are of two registers, one of them scaled
    int64_t a_row = g.a_row;
    const V alpha = broadcast(static_cast<Acc>(g.alpha));
    for (int64_t i = 0; i < g.m; i += R) {
        const Acc *rows[R / kRows], *b = static_cast<const Acc *>(g.b);
#pragma GCC unroll 4
        for (int p = 0; p < R / kRows; ++p) rows[p] = static_cast<const Acc *>(g.a) + (i + p * kRows) * a_row;
        V sums[R][C];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) sums[r][c] = zero(V{});
        for (int64_t k = g.k; k > 0; --k, b += C * V::N) {
            V x[C];
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) x[c] = load(b + c * V::N);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const V ar = broadcast(rows[r / kRows][r % kRows * a_row]);
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) add_product(sums[r][c], ar, x[c]);
            }
            a_row = opaque(a_row); // see steps_of_rows()
#pragma GCC unroll 4
            for (int p = 0; p < R / kRows; ++p) rows[p] = opaque(rows[p] + 1);
        }
        Acc *to = static_cast<Acc *>(g.c) + i * g.c_row;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r, to += g.c_row)
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) store(to + c * V::N, alpha * sums[r][c]);
    }
}
