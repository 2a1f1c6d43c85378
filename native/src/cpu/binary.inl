/* Rows of add and mul. */

struct Add {
    template <class T>
    static INFINI_INLINE T apply(T a, T b) {
        return a + b;
    }
};
struct Mul {
    template <class T>
    static INFINI_INLINE T apply(T a, T b) {
        return a * b;
    }
};

template <class Op, class T>
INFINI_INLINE T apply_one(T a, T b) {
    return from_acc(Op::apply(to_acc(a), to_acc(b)), static_cast<const T *>(nullptr));
}
/* Integers wrap around: they are computed as unsigned numbers, in 32 bits at least so that promotion to int cannot overflow. */
template <class Op>
INFINI_INLINE uint8_t apply_one(uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(Op::template apply<uint32_t>(a, b));
}
template <class Op>
INFINI_INLINE uint16_t apply_one(uint16_t a, uint16_t b) {
    return static_cast<uint16_t>(Op::template apply<uint32_t>(a, b));
}
template <class Op>
INFINI_INLINE uint32_t apply_one(uint32_t a, uint32_t b) {
    return Op::apply(a, b);
}
template <class Op>
INFINI_INLINE uint64_t apply_one(uint64_t a, uint64_t b) {
    return Op::apply(a, b);
}

/** Unit stride of c; a and b each unit or broadcast. Types the compiler vectorises by itself: c may be exactly a or b, which
 *  is no dependency between iterations. */
template <class Op, class T, bool BroadcastA, bool BroadcastB>
INFINI_INLINE void binary_unit(T *c, const T *a, const T *b, int64_t n) {
    INFINI_NO_DEPENDENCIES
    for (int64_t i = 0; i < n; ++i) c[i] = apply_one<Op>(a[BroadcastA ? 0 : i], b[BroadcastB ? 0 : i]);
}

/** The same for halves, in whole vectors: rounding one operation done in F32 is correct, F32 having more than 2p + 2 bits. */
template <class Op, class T, bool BroadcastA, bool BroadcastB>
INFINI_INLINE void binary_unit_half(T *c, const T *a, const T *b, int64_t n) {
    constexpr int N = VF::N;
    const VF a0 = broadcast(to_float(*a)), b0 = broadcast(to_float(*b));
    int64_t i = 0;
    for (; i + N <= n; i += N) store(c + i, Op::apply(BroadcastA ? a0 : load(a + i), BroadcastB ? b0 : load(b + i)));
    if (i < n)
        store_n(c + i, Op::apply(BroadcastA ? a0 : load_n(a + i, n - i), BroadcastB ? b0 : load_n(b + i, n - i)),
                n - i);
}
template <class T>
constexpr bool kIsHalf = false;
template <>
constexpr bool kIsHalf<f16> = true;
template <>
constexpr bool kIsHalf<bf16> = true;

template <class Op, class T, bool BroadcastA, bool BroadcastB>
INFINI_INLINE void binary_unit_any(T *c, const T *a, const T *b, int64_t n) {
    if constexpr (kIsHalf<T>)
        binary_unit_half<Op, T, BroadcastA, BroadcastB>(c, a, b, n);
    else
        binary_unit<Op, T, BroadcastA, BroadcastB>(c, a, b, n);
}

template <class T>
INFINI_INLINE void gather(T *to, const T *from, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
}

template <class Op, class T>
void binary_row(void *c_, int64_t stride_c, const void *a_, int64_t stride_a, const void *b_, int64_t stride_b,
                int64_t n) {
    T *c = static_cast<T *>(c_);
    const T *a = static_cast<const T *>(a_), *b = static_cast<const T *>(b_);
    if (stride_c == 1 && stride_a == 1 && stride_b == 1) return binary_unit_any<Op, T, false, false>(c, a, b, n);
    if (stride_c == 1 && stride_a == 1 && stride_b == 0) return binary_unit_any<Op, T, false, true>(c, a, b, n);
    if (stride_c == 1 && stride_a == 0 && stride_b == 1) return binary_unit_any<Op, T, true, false>(c, a, b, n);
    // Strided operands pass through small buffers, so that the arithmetic is always done in vectors.
    constexpr int64_t kChunk = 256;
    T buffer_a[kChunk], buffer_b[kChunk], buffer_c[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
        const int64_t count = n - i < kChunk ? n - i : kChunk;
        if (stride_a != 1) gather(buffer_a, a + i * stride_a, stride_a, count);
        if (stride_b != 1) gather(buffer_b, b + i * stride_b, stride_b, count);
        T *const to = stride_c == 1 ? c + i : buffer_c;
        binary_unit_any<Op, T, false, false>(to, stride_a == 1 ? a + i : buffer_a, stride_b == 1 ? b + i : buffer_b,
                                             count);
        if (stride_c != 1)
            for (int64_t j = 0; j < count; ++j) c[(i + j) * stride_c] = buffer_c[j];
    }
}

template <class Op>
constexpr void fill_binary(BinaryRow *row) {
    row[INFINI_DTYPE_F16] = binary_row<Op, f16>;
    row[INFINI_DTYPE_BF16] = binary_row<Op, bf16>;
    row[INFINI_DTYPE_F32] = binary_row<Op, float>;
    row[INFINI_DTYPE_F64] = binary_row<Op, double>;
    row[INFINI_DTYPE_I8] = row[INFINI_DTYPE_U8] = binary_row<Op, uint8_t>;
    row[INFINI_DTYPE_I16] = row[INFINI_DTYPE_U16] = binary_row<Op, uint16_t>;
    row[INFINI_DTYPE_I32] = row[INFINI_DTYPE_U32] = binary_row<Op, uint32_t>;
    row[INFINI_DTYPE_I64] = row[INFINI_DTYPE_U64] = binary_row<Op, uint64_t>;
}
