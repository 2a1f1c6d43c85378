/* Products of an A whose rows are contiguous in k and a B whose columns are: vectors along k are multiplied as they lie, and
 * nothing but sums has to be brought to another lane. A K block, which is longer than others, has a sum for each lane: of every
 * N-th element of k, in ascending order. An element of C is the sum of these, one after the other, lane by lane and K block by
 * K block. In packed panels, for more rows of A, a lane's elements lie one behind the other, and are what a K block is to other
 * products. Several rows of A are packed for columns of B in place, too, vector beside vector: where rows and columns are a power
 * of 2 apart they would meet in one set of the first-level cache. */

/** Of k, in a K block: a lane has as much in it as is in others, or F64's twice as much. */
constexpr int64_t kDotsBlock = kGemmBlockUnits * VF::N;

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

/** n < N elements, and -0 for what there is not: where the other factor is 0, a sum stays what it is then, even -0. */
template <class T>
INFINI_CALLED typename Units<T>::Sums load_last(const T *p, int64_t n) {
    constexpr int N = Units<T>::Sums::N;
    T x[N];
    __builtin_memset(x, 0, sizeof x);
    for (int i = 0; i < N; ++i) reinterpret_cast<unsigned char *>(x + i)[sizeof(T) - 1] = 0x80;
    for (int64_t i = 0; i < n; ++i) x[i] = p[i];
    return load(x);
}

/** F16, which one instruction converts, is packed as it is where registers are few: tiles are small then, and A soon has no room in
 *  the first-level cache. */
template <class T>
constexpr bool kPackedAsItIs = false;
template <>
constexpr bool kPackedAsItIs<f16> = !kManyRegisters;

template <class T, bool kAsItIs>
struct DotsElement {
    using type = typename Units<T>::Unit;
};
template <class T>
struct DotsElement<T, true> {
    using type = T;
};
/** What kernels of R rows of A read: one row where it lies, several as they are packed. */
template <class T, int R>
using DotsOfA = typename DotsElement<T, R == 1 || kPackedAsItIs<T>>::type;

/** See GemmPackVectors. */
template <class T>
void gemm_pack_vectors(void *to_, const void *a_, int64_t a_row, int64_t rows, int64_t k) {
    constexpr int64_t N = Units<T>::Sums::N;
    auto *to = static_cast<DotsOfA<T, 2> *>(to_);
    const T *a = static_cast<const T *>(a_);
    for (; k > 0; k -= N, a += N)
        for (int64_t r = 0; r < rows; ++r, to += N)
            store(to, k >= N ? load(a + r * a_row) : load_last(a + r * a_row, k));
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

template <class V, class From>
INFINI_INLINE void load_whole(V &x, const From *p) {
    x = load(p);
}
template <class V>
INFINI_INLINE void take(V &x, V whole) {
    x = whole;
}

#if defined(__AVX512F__)
/** A vector in two halves, which a Zen 4 converts faster. */
struct InHalves {
    static constexpr int N = VF::N;
    VH low, high;
};
INFINI_INLINE InHalves fma(InHalves a, InHalves b, InHalves c) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}
INFINI_INLINE void load_whole(InHalves &x, const f16 *p) { x = {load_eight(p), load_eight(p + VH::N)}; }
INFINI_INLINE void take(InHalves &x, VF whole) {
    x = {{_mm512_castps512_ps256(whole.v)}, {_mm512_extractf32x8_ps(whole.v, 1)}};
}
INFINI_INLINE VF joined(InHalves x) { return {_mm512_insertf32x8(_mm512_castps256_ps512(x.low.v), x.high.v, 1)}; }
#endif

/** The sums of each lane, [r * C + c], of elements k0 to `end`, a K block of k, of R rows of A, whose vectors are a_step apart,
 *  and C columns of B. Fetches: into the second-level cache, a line of each column before each that is multiplied. */
template <class T, int R, int C, class V, class A>
INFINI_INLINE void multiply_dots(V (&sums)[R * C], const A *a, int64_t a_step, bool packed, const T *b, int64_t b_col_,
                                 int64_t k0, int64_t end, int64_t k, bool fetches) {
    constexpr int N = V::N;
    constexpr int64_t kElements = kLine / sizeof(T); // of a line
    const int64_t b_col = opaque(b_col_), ahead = ColumnFetch<T>::kFarAhead < k ? ColumnFetch<T>::kFarAhead : k;
    int64_t i = k0;
    const auto step = [&](int64_t left) INFINI_INLINE_LAMBDA {
        V x[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
            if (left >= N || packed)
                load_whole(x[r], a + r * N);
            else
                take(x[r], load_last(a, left));
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
            const T *const from = b + c * b_col + i;
            V y;
            if (left >= N)
                load_whole(y, from);
            else
                take(y, load_n(from, left));
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                V &sum = sums[r * C + c];
                if constexpr (R > 1 && sizeof(T) == 2) // what is converted has a register in any case
                    add_product(sum, x[r], y);
                else
                    sum = fma(x[r], y, sum);
            }
        }
        a += a_step;
        i += N;
    };
    while (i + kElements <= end) {
        if (fetches) { // of these columns, or of those that follow
            const T *const next = b + (i + ahead < k ? i + ahead : C * b_col + i + ahead - k);
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) prefetch<true>(next + c * b_col);
        }
        for (const int64_t line_end = i + kElements; i < line_end;) step(N);
    }
#pragma GCC unroll 1
    while (i + N <= end) step(N);
    if (i < end) step(end - i);
}

/** to[r * ld + c] = the sum of row r of A and column c of B, of all of k. */
template <class T, int R, int C, class A>
INFINI_INLINE void sum_dots(typename Units<T>::Sums::Scalar *to, int64_t ld, const A *a, int64_t a_step, bool packed,
                            const T *b, int64_t b_col, int64_t k, bool fetches) {
    using V = typename Units<T>::Sums;
    constexpr int N = V::N, kAll = (R * C + N - 1) / N * N;
    V all[kAll / N];
#pragma GCC unroll 16
    for (V &sum : all) sum = zero(V{});
    for (int64_t k0 = 0; k0 < k; k0 += kDotsBlock) {
        V sums[R * C], block[kAll];
#pragma GCC unroll 32
        for (V &sum : sums) sum = zero(V{});
        const int64_t block_end = k - k0 < kDotsBlock ? k : k0 + kDotsBlock;
        const auto multiply = [&](auto &of_lanes) INFINI_INLINE_LAMBDA {
            multiply_dots<T, R, C>(of_lanes, a + k0 / N * a_step, a_step, packed, b, b_col, k0, block_end, k, fetches);
        };
#if defined(__AVX512F__)
        if constexpr (kSame<T, f16> && kSame<A, f16>) {
            // From memory whole ones are faster: more of what follows is on its way.
            if (fetches) {
                multiply(sums);
            } else {
                InHalves halves[R * C];
#pragma GCC unroll 16
                for (InHalves &sum : halves) take(sum, zero(V{}));
                multiply(halves);
#pragma GCC unroll 16
                for (int i = 0; i < R * C; ++i) sums[i] = joined(halves[i]);
            }
        } else {
            multiply(sums);
        }
#else
        multiply(sums);
#endif
#pragma GCC unroll 32
        for (int i = 0; i < kAll; ++i) block[i] = i < R * C ? sums[i] : zero(V{});
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

/** The same for columns that are fewer than kernels take at a time. */
template <class T, class A>
INFINI_CALLED void sum_few_dots(typename Units<T>::Sums::Scalar *to, int64_t ld, const A *a, int rows, const T *b,
                                int64_t b_col, int64_t columns, int64_t k) {
    constexpr int N = Units<T>::Sums::N;
    for (int r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            sum_dots<T, 1, 1>(to + r * ld + c, 1, a + r * N, int64_t{N} * rows, rows > 1, b + c * b_col, b_col, k,
                              false);
}

constexpr int kDotsGroup = kManyRegisters ? 6 : 4; // rows of A at a time
/** And up to which it is faster to multiply B where it lies, by several groups, than to pack it: measured on a Zen 4, AVX2's with
 *  what Zen 3 has for a second-level cache. */
template <class T>
constexpr int kDotsRows = 12;
template <>
constexpr int kDotsRows<f16> = kManyRegisters ? 512 : 32;
template <>
constexpr int kDotsRows<bf16> = 16;

/** Columns of B at a time: a sum waits for what was added before, and there are 16 registers or 32. */
constexpr int dots_columns(int rows) { return rows == 1 ? 8 : (rows <= 3 ? 4 : 2) * (kManyRegisters ? 2 : 1); }

/** R rows of A times columns of B, of any number of K blocks. */
template <class T, int R>
int gemm_dots(const GemmInPlace &g) {
    using V = typename Units<T>::Sums;
    constexpr int N = V::N, C = dots_columns(R);
    constexpr int64_t kColumns = C < N ? N : C;
    static_assert(R == 1 || kColumns == N);
    const auto *const a = static_cast<const DotsOfA<T, R> *>(g.a);
    const T *b = static_cast<const T *>(g.b);
    for (int64_t j = 0; j < g.n; j += kColumns, b += kColumns * g.b_stride) {
        const int64_t columns = g.n - j < kColumns ? g.n - j : kColumns;
        typename V::Scalar sums[R * kColumns] = {};
        if (columns < C) sum_few_dots(sums, kColumns, a, R, b, g.b_stride, columns, g.kc);
        for (int64_t i = 0; columns >= C && i < columns; i += C) { // of the last ones some are summed up again
            const int64_t at = i + C <= columns ? i : columns - C;
            sum_dots<T, R, C>(sums + at, kColumns, a, R * N, R > 1, b + at * g.b_stride, g.b_stride, g.kc,
                              g.ahead_every != 0);
        }
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
    if constexpr (kHasDots<T>) {
        kernel.mr = kGemmRows;
        kernel.nr = 2 * U::Sums::N;
        kernel.in_place_rows = kDotsRows<T>;
        kernel.columns_rows = kDotsGroup;
        kernel.acc_size = sizeof(typename U::Unit);
        kernel.unit_k = 1;
        kernel.has_small_l2 = kSmallL2;
        kernel.unit_group = 1;
        kernel.lanes = U::Sums::N;
        kernel.least_k = 64 * VF::N;
        kernel.block_units = kDotsBlock;
        kernel.pack = kernel.pack_rows = gemm_pack_dots<T>;
        kernel.pack_vectors = gemm_pack_vectors<T>;
        kernel.store = gemm_store<T>;
        fill_dots<T, kGemmRows>(kernel);
    }
    return kernel;
}
