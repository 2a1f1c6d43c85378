/* Products of an A whose rows are contiguous in k and a B whose columns are: vectors along k are multiplied as they lie, and
 * nothing but sums has to be brought to another lane. A K block, which is longer than others, has a sum for each lane: of every
 * N-th element of k, in ascending order. An element of C is the sum of these, one after the other, lane by lane and K block by
 * K block. In packed panels, for more rows of A, a lane's elements lie one behind the other, and are what a K block is to other
 * products. */

/** One K block of a panel. What is written too much, of lanes that are less than a vector, is written again, in ascending k. */
template <class T>
INFINI_INLINE void pack_dots(typename Units<T>::Unit *panel, const T *src, int64_t stride_w, int64_t valid,
                             int64_t width, int64_t kc, typename Units<T>::Least &least) {
    constexpr int64_t N = Units<T>::Sums::N;
    const int64_t in_lane = (kc + N - 1) / N;
    for (int64_t w = (width - 1) / N * N; w >= 0; w -= N) {
        const int64_t rows = valid - w, lanes = width - w < N ? width - w : N;
        const int64_t written = (N - lanes + width - 1) / width; // units that follow
        for (int64_t i = 0; i < in_lane; ++i) {
            const T *const from = opaque(src + w * stride_w + i * N);
            auto *const to = panel + i * width + w;
            const int64_t stride = opaque(stride_w), step = opaque(dots_step(kc, N) * width), left = kc - i * N;
            const bool whole = left >= N && i + written < in_lane;
            if (whole && rows >= N)
                pack_block<T, Piece::kWhole>(to, step, from, stride, N, N, N, lanes, 0, least);
            else if (whole && rows >= lanes)
                pack_block<T, Piece::kFewRows>(to, step, from, stride, rows, N, N, lanes, 0, least);
            else
                pack_part(to, step, from, stride, rows, left, N, lanes, 0, least);
        }
    }
}

/** See GemmPack; stride_k is 1, and kc at most a K block. */
template <class T>
int gemm_pack_dots(void *panels, int64_t panel_stride, const void *src, int64_t stride_w, int64_t, int64_t count,
                   int64_t width, int64_t kc) {
    typename Units<T>::Least least;
    for (int64_t w = 0; w < count; w += width)
        pack_dots<T>(static_cast<typename Units<T>::Unit *>(panels) + w / width * panel_stride,
                     static_cast<const T *>(src) + w * stride_w, stride_w, count - w < width ? count - w : width, width,
                     kc, least);
    return least.exponent();
}

/** n < N elements, and 0 for what there is not, or -0: where the other factor is 0, a sum stays what it is then, even -0. */
template <class T>
INFINI_CALLED typename Units<T>::Sums load_last(const T *p, int64_t n, bool negative) {
    constexpr int N = Units<T>::Sums::N;
    T x[N];
    __builtin_memset(x, 0, sizeof x);
    if (negative)
        for (int i = 0; i < N; ++i) reinterpret_cast<unsigned char *>(x + i)[sizeof(T) - 1] = 0x80;
    for (int64_t i = 0; i < n; ++i) x[i] = p[i];
    return load(x);
}

/** Adds sums of N elements of C, lane by lane, to each of so many vectors, or begins with the first lane. */
template <class V>
INFINI_CALLED void add_lanes(V *to, const V *sums, int vectors, bool begins) {
    for (; vectors > 0; --vectors, ++to, sums += V::N) {
        V x[V::N];
#pragma GCC unroll 16
        for (int l = 0; l < V::N; ++l) x[l] = sums[l];
        transpose(x);
        V total = begins ? x[0] : *to + x[0];
#pragma GCC unroll 16
        for (int l = 1; l < V::N; ++l) total = total + x[l];
        *to = total;
    }
}

/** to[r * ld + c] = the sum of row r of A and column c of B, of all of k. */
template <class T, int R, int C>
INFINI_INLINE void sum_dots(typename Units<T>::Sums::Scalar *to, int64_t ld, const T *a, int64_t a_row, const T *b,
                            int64_t b_col, int64_t k) {
    using V = typename Units<T>::Sums;
    constexpr int N = V::N, kAll = (R * C + N - 1) / N * N;
    V all[kAll / N];
#pragma GCC unroll 16
    for (V &sum : all) sum = zero(V{});
    for (int64_t k0 = 0; k0 < k; k0 += kDotsBlock) {
        V sums[R][C];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) sums[r][c] = zero(V{});
        const int64_t end = k - k0 < kDotsBlock ? k : k0 + kDotsBlock;
        const auto step = [&](auto &&of_a, auto &&of_b) INFINI_INLINE_LAMBDA {
            V x[R];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) x[r] = of_a(a + r * a_row);
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) {
                const V y = of_b(b + c * b_col);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) sums[r][c] = fma(x[r], y, sums[r][c]);
            }
        };
        int64_t i = k0;
        const auto all_lanes = [&](const T *p) INFINI_INLINE_LAMBDA { return load(p + i); };
        for (; i + N <= end; i += N) step(all_lanes, all_lanes);
        if (i < end)
            step([&](const T *p) INFINI_INLINE_LAMBDA { return load_last(p + i, end - i, false); },
                 [&](const T *p) INFINI_INLINE_LAMBDA { return load_last(p + i, end - i, true); });
        V block[kAll];
#pragma GCC unroll 16
        for (int at = 0; at < kAll; ++at) block[at] = at < R * C ? sums[at / C][at % C] : zero(V{});
        add_lanes(all, block, kAll / N, k0 == 0);
    }
    typename V::Scalar each[kAll];
#pragma GCC unroll 16
    for (int i = 0; i < kAll; i += N) store(each + i, all[i / N]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) to[r * ld + c] = each[r * C + c];
}

/** Of one row and one column: what is left where columns are not as many as are multiplied at a time. */
template <class T>
INFINI_CALLED typename Units<T>::Sums::Scalar sum_dot(const T *a, const T *b, int64_t k) {
    typename Units<T>::Sums::Scalar sum;
    sum_dots<T, 1, 1>(&sum, 1, a, 0, b, 0, k);
    return sum;
}

constexpr int kDotsGroup = 4; // rows of A at a time
/** And up to which it is faster to multiply B where it lies, by several groups, than to pack it. Halves are converted at each
 *  use, F16 by one instruction. Measured with AVX2 alone. */
template <class T>
constexpr int kDotsRows = 10;
template <>
constexpr int kDotsRows<f16> = 20;
template <>
constexpr int kDotsRows<bf16> = 9;

/** Columns of B at a time: a sum waits for what was added before, and there are 16 registers. */
constexpr int dots_columns(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }

/** R rows of A where they lie times columns of B, of any number of K blocks. */
template <class T, int R>
int gemm_dots(const GemmInPlace &g) {
    using V = typename Units<T>::Sums;
    constexpr int N = V::N, C = dots_columns(R);
    constexpr int64_t kColumns = C < N ? N : C;
    const T *const a = static_cast<const T *>(g.a), *b = static_cast<const T *>(g.b);
    for (int64_t j = 0; j < g.n; j += kColumns) {
        const int64_t columns = g.n - j < kColumns ? g.n - j : kColumns;
        typename V::Scalar sums[R * kColumns] = {};
        int64_t i = 0;
        for (; i + C <= columns; i += C, b += C * g.b_stride)
            sum_dots<T, R, C>(sums + i, kColumns, a, g.a_row, b, g.b_stride, g.kc);
        for (; i < columns; ++i, b += g.b_stride)
            for (int r = 0; r < R; ++r) sums[r * kColumns + i] = sum_dot(a + r * g.a_row, b, g.kc);
        static_assert(R == 1 || kColumns == N);
        V x[R * kColumns / N];
#pragma GCC unroll 16
        for (int v = 0; v < R * kColumns / N; ++v) x[v] = load(sums + v * N);
        const int64_t vectors = (columns + N - 1) / N;
        finish_sums<T>(g, j, columns - (vectors - 1) * N, R, static_cast<int>(vectors), x);
    }
    return kLeastOfNothing;
}

template <class T, int R>
constexpr void fill_dots(GemmKernel &kernel) {
    if constexpr (kOwnMultiply<T>) kernel.multiply[kFast][R] = gemm_multiply<T, kFast, R>;
    if constexpr (R <= kDotsGroup) kernel.columns[kFast][R] = gemm_dots<T, R>;
    if constexpr (R > 1) fill_dots<T, R - 1>(kernel);
}

template <class T>
constexpr GemmKernel gemm_dots_kernel() {
    using U = Units<T>;
    GemmKernel kernel{};
    if constexpr (kHasDots) {
        kernel.mr = kGemmRows;
        kernel.nr = 2 * U::Sums::N;
        kernel.in_place_rows = kDotsRows<T>;
        kernel.columns_rows = kDotsGroup;
        kernel.acc_size = sizeof(typename U::Unit);
        kernel.unit_k = 1;
        kernel.has_small_l2 = kSmallL2;
        kernel.unit_group = 1;
        kernel.lanes = U::Sums::N;
        kernel.block_units = kDotsBlock;
        kernel.pack = kernel.pack_rows = gemm_pack_dots<T>;
        kernel.store = gemm_store<T>;
        fill_dots<T, kGemmRows>(kernel);
    }
    return kernel;
}
