/* Products of an A whose rows are contiguous in k and a B whose columns are: vectors along k are multiplied as they lie, and
 * nothing but sums has to be brought to another lane. A K block, which is longer than others, has a sum for each lane: of every N-th
 * element of k, in ascending order. An element of C is the sum of these, one after the other, lane by lane and K block by K block.
 * In packed panels, for more rows of A, a lane's elements lie one behind the other, and are what a K block is to other products. */

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

/** n < N elements, and -0 for what there is not: where the other factor is 0, a sum stays what it is, even -0. */
template <class T>
INFINI_INLINE typename Units<T>::Sums load_last(const T *p, int64_t n) {
    constexpr int N = Units<T>::Sums::N;
    T x[N];
    __builtin_memset(x, 0, sizeof x);
    for (int i = 0; i < N; ++i) reinterpret_cast<unsigned char *>(x + i)[sizeof(T) - 1] = 0x80;
    for (int64_t i = 0; i < n; ++i) x[i] = p[i];
    return load(x);
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
            step([&](const T *p) INFINI_INLINE_LAMBDA { return load_n(p + i, end - i); },
                 [&](const T *p) INFINI_INLINE_LAMBDA { return load_last(p + i, end - i); });
#pragma GCC unroll 16
        for (int first = 0; first < kAll; first += N) {
            V x[N];
#pragma GCC unroll 16
            for (int l = 0; l < N; ++l) x[l] = first + l < R * C ? sums[(first + l) / C][(first + l) % C] : zero(V{});
            transpose(x);
            V &total = all[first / N];
            total = k0 == 0 ? x[0] : total + x[0];
#pragma GCC unroll 16
            for (int l = 1; l < N; ++l) total = total + x[l];
        }
    }
    typename V::Scalar each[kAll];
#pragma GCC unroll 16
    for (int i = 0; i < kAll; i += N) store(each + i, all[i / N]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) to[r * ld + c] = each[r * C + c];
}

/** Rows of A up to which it is faster to multiply B where it lies than to pack it, and of a group that does so. Halves are converted at
 *  each use, F16 by one instruction. Measured with AVX2 alone. */
template <class T>
struct DotsRows {
    static constexpr int kMost = 12, kGroup = kGemmRows;
};
template <>
struct DotsRows<f16> {
    static constexpr int kMost = 20, kGroup = 4;
};
template <>
struct DotsRows<bf16> {
    static constexpr int kMost = 9, kGroup = 4;
};

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
        typename V::Scalar sums[R][kColumns] = {};
        int64_t i = 0;
        for (; i + C <= columns; i += C, b += C * g.b_stride)
            sum_dots<T, R, C>(&sums[0][i], kColumns, a, g.a_row, b, g.b_stride, g.kc);
        for (; i < columns; ++i, b += g.b_stride)
            sum_dots<T, R, 1>(&sums[0][i], kColumns, a, g.a_row, b, g.b_stride, g.kc);
        for (i = 0; i < columns; i += N) {
            V x[R][1];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) x[r][0] = load(&sums[r][i]);
            finish_in_place<T, R, 1>(g, j + i, columns - i < N ? columns - i : N, x);
        }
    }
    return kLeastOfNothing;
}

template <class T, int R>
constexpr void fill_dots(GemmKernel &kernel) {
    if constexpr (kOwnMultiply<T>) kernel.multiply[kFast][R] = gemm_multiply<T, kFast, R>;
    if constexpr (R <= DotsRows<T>::kGroup) kernel.columns[kFast][R] = gemm_dots<T, R>;
    if constexpr (R > 1) fill_dots<T, R - 1>(kernel);
}

template <class T>
constexpr GemmKernel gemm_dots_kernel() {
    using U = Units<T>;
    GemmKernel kernel{};
    if constexpr (!kHasDots) return kernel;
    kernel.mr = kGemmRows;
    kernel.nr = 2 * U::Sums::N;
    kernel.in_place_rows = DotsRows<T>::kMost;
    kernel.columns_rows = DotsRows<T>::kGroup;
    kernel.acc_size = sizeof(typename U::Unit);
    kernel.unit_k = 1;
    kernel.has_small_l2 = kSmallL2;
    kernel.unit_group = 1;
    kernel.lanes = U::Sums::N;
    kernel.block_units = kDotsBlock;
    kernel.pack = kernel.pack_rows = gemm_pack_dots<T>;
    kernel.store = gemm_store<T>;
    fill_dots<T, kGemmRows>(kernel);
    return kernel;
}
