/* The parts of the matrix product: packing, register tile, products with a B that is read where it lies, store. */

#include "cpu/gemm_units.inl"

#include "cpu/gemm_pack.inl"

/* ---- products ---------------------------------------------------------------------------------------------------------- */

/** What comes next. Returns how long to wait before that which follows. */
INFINI_INLINE int64_t fetch_some(GemmFetch &f) {
    const char *const from = f.at;
    f.at += f.bytes;
    for (const char *p = from; p < f.at; p += 64) __builtin_prefetch(p, 0, 2);
    if (f.at >= f.end) {
        f.end += f.stride;
        f.at = f.end - f.run;
        if (--f.left == 0) {
            f.every = 0;
            if (f.then != nullptr) f = *f.then;
        }
    }
    return f.every;
}

/** The units of 2 * N columns of B from a panel. */
template <class Unit>
struct PackedB {
    using V = Vec<Unit>;
    const Unit *panel;

    template <class Vectors>
    INFINI_INLINE void next(Vectors &x) {
        x[0] = load(panel);
        x[1] = load(panel + V::N);
        panel += 2 * V::N;
    }
};

/** The same from where B lies, and into a panel. */
template <class T>
struct UnpackedB {
    using U = Units<T>;
    const T *b;
    int64_t stride;
    typename U::Unit *panel;
    typename U::Least least{};

    INFINI_INLINE void next(typename U::Vector (&x)[2]) {
        constexpr int N = U::Sums::N;
        U::across(x, b, static_cast<const T *>(nullptr), least);
        store(panel, x[0]);
        store(panel + N, x[1]);
        panel += 2 * N;
        b += stride;
    }
};

/* What a product does meanwhile, each time that kGemmStepsTogether steps begin; or it packs (gemm_ahead.inl). */

struct Nothing {
    INFINI_INLINE void some() {}
};

struct Fetching {
    GemmFetch &fetch;
    int64_t wait = fetch.wait;

    INFINI_INLINE void some() {
        if (--wait == 0) wait = fetch_some(fetch);
    }
    INFINI_INLINE ~Fetching() { fetch.wait = wait > 0 ? wait : 0; }
};

/** R rows: the tallest tile that fits the registers, or less where A has fewer rows. */
template <class Unit, int Exactness, int R, class SourceB, class Meanwhile>
INFINI_INLINE void multiply_tile(int64_t units, const void *a_, SourceB b, const void *in_, void *out_,
                                 Meanwhile &&meanwhile) {
    using V = Vec<Unit>;
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    const Unit *a = static_cast<const Unit *>(a_);
    const Acc *in = static_cast<const Acc *>(in_);
    Acc *out = static_cast<Acc *>(out_);
    const Acc *wanted = in != nullptr ? in : out;
    V sums[R][2];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = zero(V{});
    const auto step = [&] {
        decltype(load(a)) x[2];
        b.next(x);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const auto ai = broadcast(a[i]);
            sums[i][0] = multiply_add<Exactness>(ai, x[0], sums[i][0]);
            sums[i][1] = multiply_add<Exactness>(ai, x[1], sums[i][1]);
        }
        a += R;
    };
    // Counting takes slots that multiply-adds need: once in four steps it costs 2 %, at every step 15 %.
    int64_t u = 0;
    constexpr int64_t kSums = kLine / sizeof(Acc);
    if (!kManyRegisters)
        for (int64_t line = 0; line < R * 2 * N; line += kSums) __builtin_prefetch(wanted + line);
    for (; u + kGemmStepsTogether <= units; u += kGemmStepsTogether) {
        meanwhile.some();
        // The sums may be far away, and are wanted when the products are done: a cache line of them at a time.
        const int64_t line = u / kGemmStepsTogether * kSums;
        if (kManyRegisters && line < R * 2 * N) __builtin_prefetch(wanted + line);
#pragma GCC unroll 4
        for (int i = 0; i < kGemmStepsTogether; ++i) step();
    }
    for (; u < units; ++u) step();
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) {
            const int64_t at = (i * 2 + j) * N;
            store(out + at, in != nullptr ? load(in + at) + sums[i][j] : sums[i][j]);
        }
}

/** Whatever was packed: the kernel knows its units alone. */
template <class Unit, int Exactness, int R>
void gemm_multiply(int64_t units, const void *a, const void *b, const void *in, void *out, GemmFetch *fetch) {
    const PackedB<Unit> packed{static_cast<const Unit *>(b)};
    if (fetch != nullptr)
        multiply_tile<Unit, Exactness, R>(units, a, packed, in, out, Fetching{*fetch});
    else
        multiply_tile<Unit, Exactness, R>(units, a, packed, in, out, Nothing{});
}

template <class T, int R>
void gemm_multiply_pack(int64_t units, const void *a, const void *b, int64_t stride, void *panel, const void *in,
                        void *out, GemmFetch *fetch) {
    using Unit = typename Units<T>::Unit;
    const UnpackedB<T> unpacked{static_cast<const T *>(b), stride, static_cast<Unit *>(panel)};
    multiply_tile<Unit, kExact, R>(units, a, unpacked, in, out, Fetching{*fetch});
}

#include "cpu/gemm_ahead.inl"

#include "cpu/gemm_in_place.inl"

#include "cpu/gemm_narrow.inl"

#include "cpu/gemv.inl"

template <class T>
void gemm_store(void *c_, int64_t row_stride, int64_t col_stride, const void *sums_, int64_t ld, int64_t m, int64_t n,
                float alpha_, float beta_) {
    using V = Vec<T>;
    using Acc = typename V::Scalar;
    constexpr int N = V::N;
    T *c = static_cast<T *>(c_);
    const Acc alpha = alpha_, beta = beta_;
    const V alphas = broadcast(alpha), betas = broadcast(beta);
    const bool reads = beta != 0;
    if constexpr (kStoresTwo<T>)
        if (n == 2 * N && col_stride == 1 && !reads) { // a whole panel
            const Acc *sums = static_cast<const Acc *>(sums_);
            for (int64_t i = 0; i < m; ++i, c += row_stride, sums += ld)
                store_two(c, alphas * load(sums), alphas * load(sums + N));
            return;
        }
    for (int64_t i = 0; i < m; ++i) {
        const Acc *sums = static_cast<const Acc *>(sums_) + i * ld;
        T *row = c + i * row_stride;
        // One formula for every element, whatever path it takes: in vectors, the last one partly filled.
        for (int64_t j = 0; j < n; j += N) {
            const int64_t count = n - j < N ? n - j : N;
            if (col_stride == 1 && count == N) {
                const V product = alphas * load(sums + j);
                store(row + j, reads ? fma(betas, load(row + j), product) : product);
                continue;
            }
            const V product = alphas * load_n(sums + j, count);
            if (sizeof(T) == sizeof(Acc) && col_stride == 1) { // halves would go by memory, too
                store_n(row + j, reads ? fma(betas, load_n(row + j, count), product) : product, count);
                continue;
            }
            T out[N] = {};
            if (reads)
                for (int64_t l = 0; l < count; ++l) out[l] = row[(j + l) * col_stride];
            store(out, reads ? fma(betas, load(out), product) : product);
            for (int64_t l = 0; l < count; ++l) row[(j + l) * col_stride] = out[l];
        }
    }
}

template <class T>
int gemm_least(const void *a, int64_t row_stride, int64_t m, int64_t k) {
    using U = Units<T>;
    constexpr int64_t kBlock = int64_t{U::Sums::N} * U::kDepth;
    typename U::Least least;
    for (int64_t i = 0; i < m; ++i) {
        const T *const row = static_cast<const T *>(a) + i * row_stride;
        int64_t l = 0;
        for (; l + kBlock <= k; l += kBlock) U::along_k(row + l, kBlock, least);
        if (l < k) U::along_k(row + l, k - l, least);
    }
    return least.exponent();
}

/** Kernels that multiply panels know their units alone, so halves that are converted to floats take those of F32. */
template <class T>
constexpr bool kOwnMultiply = sizeof(T) == sizeof(typename Units<T>::Unit) || Units<T>::kDepth > 1;

template <class T, int Exactness, int R>
constexpr void fill_multiply(GemmKernel &kernel) {
    if constexpr (kOwnMultiply<T>) kernel.multiply[Exactness][R] = gemm_multiply<typename Units<T>::Unit, Exactness, R>;
    if constexpr (!Units<T>::kFlush) kernel.multiply_pack[R] = gemm_multiply_pack<T, R>;
    if constexpr (kManyRegisters && Exactness == kFast) fill_ahead<T, R>(kernel);
    if constexpr (R > 1) fill_multiply<T, Exactness, R - 1>(kernel);
}

inline void take_multiply(GemmKernel &to, const GemmKernel &from) {
    for (int exactness = kFast; exactness <= kExact; ++exactness)
        for (int r = 0; r <= kGemmMaxRows; ++r) to.multiply[exactness][r] = from.multiply[exactness][r];
    for (int vectors = 0; vectors < 2; ++vectors) to.narrow[vectors] = from.narrow[vectors];
}

template <class T, int Exactness, int R>
constexpr void fill_in_place(GemmKernel &kernel) {
    kernel.rows[Exactness][R] = gemm_rows<T, Exactness, R>;
    if constexpr (R > 1) fill_in_place<T, Exactness, R - 1>(kernel);
}

template <class T, int Exactness, int R>
constexpr void fill_columns(GemmKernel &kernel) {
    if constexpr (R > 1) {
        kernel.columns[Exactness][R] = gemm_columns<T, Exactness, R>;
        fill_columns<T, Exactness, R - 1>(kernel);
    } else {
        kernel.columns[Exactness][R] = gemv<T, Exactness>;
    }
}

template <class T, int Exactness, int R>
constexpr void fill_streams(GemmKernel &kernel) {
    kernel.streams[Exactness][R] = gemm_streams<T, Exactness, R>;
    if constexpr (R > 1) fill_streams<T, Exactness, R - 1>(kernel);
}

/** Fewer rows are as fast in short steps, or held. */
constexpr int kStepsLeastRows = 3;

template <class T, int R>
constexpr void fill_steps(GemmKernel &kernel) {
    kernel.steps[R] = gemm_steps<T, R>;
    if constexpr (R > kStepsLeastRows) fill_steps<T, R - 1>(kernel);
}

template <class T, int Exactness>
constexpr void fill_products(GemmKernel &kernel) {
    fill_multiply<T, Exactness, kGemmRows>(kernel);
    // With a large second-level cache, K blocks in place are soon faster; units of two rows bring more rows at a time, and from its last
    // one a Zen 5 streams as many of units that need no conversion (kHeldUnits of gemm_in_place.cc).
    constexpr bool kConverts = Units<T>::kDepth == 1 && sizeof(T) != sizeof(typename Units<T>::Unit);
    fill_streams<T, Exactness, kSmallL2 ? kHeldRows : kConverts ? 2 : 4>(kernel);
    if constexpr (kManyRegisters && Units<T>::kDepth == 1) fill_steps<T, kStepsRows>(kernel);
    fill_in_place<T, Exactness, kInPlaceMaxRows>(kernel);
    fill_columns<T, Exactness, kColumnsRows>(kernel);
    fill_twins<T, Exactness>(kernel);
}

template <class T>
constexpr GemmKernel gemm_kernel() {
    using U = Units<T>;
    GemmKernel kernel{};
    kernel.mr = kGemmRows;
    kernel.nr = 2 * U::Sums::N;
    kernel.in_place_rows = kInPlaceMaxRows;
    kernel.columns_rows = kColumnsRows;
    kernel.acc_size = sizeof(typename U::Unit);
    kernel.unit_k = U::kDepth;
    kernel.packs_for_columns = kLineKernels;
    kernel.has_small_l2 = kSmallL2;
    kernel.unit_group = 1;
    kernel.block_units = kGemmBlockUnits;
    kernel.lanes = 1;
    kernel.pack = kernel.pack_rows = gemm_pack<T>;
    kernel.store = gemm_store<T>;
    fill_products<T, kFast>(kernel);
#if defined(__AVX2__) // not of portable vectors, for the library's size
    if constexpr (kOwnMultiply<T> && U::kDepth == 1) {
        kernel.narrow[0] = gemm_narrow<typename U::Sums, 1>;
        kernel.narrow[1] = gemm_narrow<typename U::Sums, 2>;
    }
#endif
    if constexpr (U::kFlush) {
        kernel.least = gemm_least<T>;
        fill_products<T, kExact>(kernel);
    } else {
        for (int r = 0; r <= kGemmMaxRows; ++r) {
            kernel.multiply[kExact][r] = kernel.multiply[kFast][r];
            kernel.rows[kExact][r] = kernel.rows[kFast][r];
        }
        for (int r = 0; r <= kColumnsMaxRows; ++r) kernel.columns[kExact][r] = kernel.columns[kFast][r];
    }
    return kernel;
}

#include "cpu/gemm_dots.inl"

#if defined(__AVX512BF16__)
template <int Exactness, int R>
constexpr void fill_pairs(GemmKernel &kernel) {
    kernel.rows[kFast][R] = gemm_rows<pair, Exactness, R>;
    if constexpr (R > 1) fill_pairs<Exactness, R - 1>(kernel);
}

template <int Exactness>
constexpr GemmKernel gemm_pairs_kernel() {
    GemmKernel kernel{};
    kernel.mr = kGemmRows;
    kernel.nr = 2 * VP::N;
    kernel.in_place_rows = kInPlaceMaxRows;
    kernel.acc_size = sizeof(pair);
    kernel.unit_k = kernel.unit_group = 1;
    kernel.block_units = kGemmBlockUnits;
    kernel.has_small_l2 = kSmallL2;
    kernel.store = gemm_store<bf16>;
    fill_pairs<Exactness, kInPlaceMaxRows>(kernel);
    return kernel;
}
#endif
