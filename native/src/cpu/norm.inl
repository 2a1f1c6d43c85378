/* Rows of add_rms_norm. */

/** r = a + b; returns the sum of the squares of r as it is written, in an order that depends on n alone. FromMemory: where a and b
 *  probably are. */
template <bool FromMemory, class T>
INFINI_INLINE double norm_sum(T *r, const T *a, const T *b, int64_t n) {
    using V = typename Block<T>::V;
    constexpr int N = Block<T>::N, kSums = 4; // enough independent sums to hide the latency of an addition
    V sums[kSums] = {zero(V{}), zero(V{}), zero(V{}), zero(V{})};
    const auto square = [&](const Block<T> &x, int first_sum) INFINI_INLINE_LAMBDA {
        for (int p = 0; p < kParts<T>; ++p) {
            V &s = sums[(first_sum + p) % kSums];
            s = fma(x.part[p], x.part[p], s);
        }
    };
    const auto block = [&](int64_t i, int first_sum) INFINI_INLINE_LAMBDA {
        if constexpr (FromMemory) fetch_ahead(a + i), fetch_ahead(b + i);
        const Packed<T> rounded = pack(add_blocks(load_block(a + i), load_block(b + i)));
        put<false>(r + i, rounded);
        square(kReadBack<T> ? load_block(r + i) : unpack(rounded), first_sum);
    };
    constexpr int kBlocks = kSums / kParts<T>;
    int64_t i = 0;
    for (; i + kBlocks * N <= n; i += kBlocks * N)
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j) block(i + j * N, j * kParts<T>);
    for (; i + N <= n; i += N) block(i, 0);
    if (i < n) {
        const Packed<T> rounded = pack(add_blocks(load_block_n(a + i, n - i), load_block_n(b + i, n - i)));
        put_n(r + i, rounded, n - i);
        square(unpack(rounded), 0);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class T>
INFINI_INLINE Block<T> norm_product(Block<T> x, typename Block<T>::V scale, const Block<T> &weight) {
    for (int p = 0; p < kParts<T>; ++p) x.part[p] = x.part[p] * scale * weight.part[p];
    return x;
}

/** y = r * scale * w for `count` rows whose y start alike within a block. Weights are taken a few blocks at a time and used for all
 *  rows. */
template <class T, class W>
INFINI_INLINE void norm_products(T **y, const T **r, const typename Block<T>::V *scale, int count, const W *w,
                                 int64_t n) {
    constexpr int N = Block<T>::N, kHeld = kHeldWeights / kParts<T>;
    const auto one_block = [&](int64_t i) INFINI_INLINE_LAMBDA {
        const Block<T> weight = load_block_as<T>(w + i);
        for (int row = 0; row < count; ++row)
            store_block<false>(y[row] + i, norm_product(load_block(r[row] + i), scale[row], weight));
    };
    if (n < N) {
        const Block<T> weight = load_block_as_n<T>(w, n);
        for (int row = 0; row < count; ++row)
            store_block_n(y[row], norm_product(load_block_n(r[row], n), scale[row], weight), n);
        return;
    }
    // From the end, which is what the first pass has left in the cache of a row that does not fit. The first and the last block
    // overlap the aligned ones.
    const int64_t head = unaligned_head(y[0], n);
    const int64_t end = head + (n - head) / N * N;
    if (end < n) one_block(n - N);
    int64_t i = end;
    if (count == 1) {
        for (; i > head; i -= N) one_block(i - N);
    } else {
        // Rows' own pointers are moved, as offsets from common ones would not fit the registers.
        for (int row = 0; row < count; ++row) y[row] += end, r[row] += end;
        for (; i - kHeld * N >= head; i -= kHeld * N) {
            Block<T> weight[kHeld];
#pragma GCC unroll 16
            for (int j = 0; j < kHeld; ++j) weight[j] = load_block_as<T>(w + i + (j - kHeld) * N);
            for (int row = count; row-- > 0;) {
                const typename Block<T>::V row_scale = scale[row];
                const T *const from = r[row] -= kHeld * N;
                T *const to = y[row] -= kHeld * N;
#pragma GCC unroll 16
                for (int j = 0; j < kHeld; ++j)
                    store_block<false>(to + j * N, norm_product(load_block(from + j * N), row_scale, weight[j]));
            }
        }
        for (int row = 0; row < count; ++row) y[row] -= i, r[row] -= i;
        for (; i > head; i -= N) one_block(i - N);
    }
    if (head > 0) one_block(0);
}

template <class T>
INFINI_INLINE typename Block<T>::V norm_scale(double square_sum, int64_t n, float epsilon) {
    using Scalar = typename Block<T>::V::Scalar;
    const Scalar mean = static_cast<Scalar>(square_sum) / static_cast<Scalar>(n) + static_cast<Scalar>(epsilon);
    if constexpr (sizeof(Scalar) == 4)
        return splat<typename Block<T>::V>(1 / __builtin_sqrtf(mean));
    else
        return splat<typename Block<T>::V>(1 / __builtin_sqrt(mean));
}

template <class T>
double norm_add(void *r, const void *a, const void *b, int64_t n) {
    return norm_sum<false>(static_cast<T *>(r), static_cast<const T *>(a), static_cast<const T *>(b), n);
}
template <class T, class W>
void norm_multiply(const NormRow *rows, int count, const void *w, int64_t n, int64_t n_row, float epsilon) {
    T *y[kNormRows];
    const T *r[kNormRows];
    typename Block<T>::V scale[kNormRows];
    for (int i = 0; i < count; ++i) {
        y[i] = static_cast<T *>(rows[i].y);
        r[i] = static_cast<const T *>(rows[i].r);
        scale[i] = norm_scale<T>(rows[i].square_sum, n_row, epsilon);
    }
    norm_products<T>(y, r, scale, count, static_cast<const W *>(w), n);
}

void close_line(OpenLine &line) {
    if (line.end == nullptr) return;
    const size_t n = reinterpret_cast<uintptr_t>(line.end) % sizeof line.bytes;
    __builtin_memcpy(line.end - n, line.bytes, n);
    line.end = nullptr;
}

/** Where cache lines begin and end in a row of n elements from p on. */
template <class T>
struct RowLines {
    static constexpr int64_t kElements = kLine / sizeof(T);
    int64_t before, head, end; // elements of other rows in the first line, and of this one; where the last line begins

    INFINI_INLINE RowLines(const T *p, int64_t n)
        : before(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kLine / sizeof(T))),
          head(before == 0 ? 0 : kElements - before), end(head + (n - head) / kElements * kElements) {}

    /** The line that p's row begins in, if that has a head. */
    INFINI_INLINE T *open(OpenLine &line, T *p) const {
        if (line.end != reinterpret_cast<char *>(p)) close_line(line);
        return reinterpret_cast<T *>(line.bytes) + before;
    }
    /** Writes it: as a whole if another row has ended there. */
    INFINI_INLINE void put_first(OpenLine &line, T *p) const {
        const T *const bytes = reinterpret_cast<const T *>(line.bytes);
        if (line.end == nullptr)
            __builtin_memcpy(p, bytes + before, static_cast<size_t>(head) * sizeof(T));
        else
            for (int64_t i = 0; i < kElements; i += Block<T>::N) put<true>(p - before + i, load_packed(bytes + i));
    }
    /** Opens the line of the row's last elements. */
    INFINI_INLINE void put_last(OpenLine &line, T *p, int64_t n, const T *last) const {
        __builtin_memcpy(line.bytes, last, sizeof line.bytes);
        line.end = end < n ? reinterpret_cast<char *>(p + n) : nullptr;
    }
};

/** Both passes over a row, past the caches: what is streamed cannot be read back, so that the row is computed on the stack. While it is
 *  written the next row is fetched, which mostly follows in memory: reading and writing take turns otherwise. A line that two
 *  rows share is written once, as a whole. It is put together long before, as a load of what was stored in parts waits until all
 *  that was streamed before these is written. */
template <class T, class W>
void norm_row_stream(void *y_, void *r_, const void *a_, const void *b_, const void *w_, int64_t n, float epsilon,
                     OpenLine &y_line, OpenLine &r_line) {
    constexpr int N = Block<T>::N;
    constexpr int64_t kElements = RowLines<T>::kElements;
    T *const y = static_cast<T *>(y_), *const r = static_cast<T *>(r_);
    const T *const a = static_cast<const T *>(a_), *const b = static_cast<const T *>(b_);
    const W *const w = static_cast<const W *>(w_);
    alignas(64) T row[kNormChunk + kElements], y_last[kElements];
    const typename Block<T>::V scale = norm_scale<T>(norm_sum<true>(row, a, b, n), n, epsilon);
    const auto products = [&](T *to, int64_t i, int64_t count) {
        for (; count > 0; to += N, i += N, count -= N) {
            const int64_t elements = count < N ? count : N;
            store_block_n(to, norm_product(load_block_n(row + i, elements), scale, load_block_as_n<T>(w + i, elements)),
                          elements);
        }
    };
    const RowLines<T> lines_r(r, n), lines_y(y, n);
    __builtin_memcpy(lines_r.open(r_line, r), row, static_cast<size_t>(lines_r.head) * sizeof(T));
    products(lines_y.open(y_line, y), 0, lines_y.head);
    products(y_last, lines_y.end, n - lines_y.end);
    lines_r.put_first(r_line, r);
    for (int64_t i = lines_r.head; i < lines_r.end; i += N) {
        fetch_block(a + n + i);
        put<true>(r + i, load_packed(row + i));
    }
    lines_y.put_first(y_line, y);
    for (int64_t i = lines_y.head; i < lines_y.end; i += N) {
        fetch_block(b + n + i);
        store_block<true>(y + i, norm_product(load_block(row + i), scale, load_block_as<T>(w + i)));
    }
    lines_r.put_last(r_line, r, n, row + lines_r.end);
    lines_y.put_last(y_line, y, n, y_last);
}

template <class T, class W>
constexpr NormKernel norm_kernel() {
    return {norm_add<T>, norm_multiply<T, W>, norm_row_stream<T, W>, close_line};
}

/** Of F16 or BF16. */
template <class T>
constexpr void fill_norm_of(NormKernel *by_weight) {
    by_weight[INFINI_DTYPE_F16] = norm_kernel<T, f16>();
    by_weight[INFINI_DTYPE_BF16] = norm_kernel<T, bf16>();
    by_weight[INFINI_DTYPE_F32] = norm_kernel<T, float>();
}

constexpr void fill_norm(KernelTable &t) {
    auto &norm = t.add_rms_norm;
    fill_norm_of<f16>(norm[INFINI_DTYPE_F16]);
    fill_norm_of<bf16>(norm[INFINI_DTYPE_BF16]);
    norm[INFINI_DTYPE_F32][INFINI_DTYPE_F32] = norm_kernel<float, float>();
    norm[INFINI_DTYPE_F64][INFINI_DTYPE_F64] = norm_kernel<double, double>();
}
