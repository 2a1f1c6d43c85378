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
INFINI_INLINE Block<T> apply(Block<T> a, const Block<T> &b) {
    for (int i = 0; i < kParts<T>; ++i) a.part[i] = Op::apply(a.part[i], b.part[i]);
    return a;
}

/** An operand of unit stride, or one element for all. */
template <class T, bool Broadcast>
struct Source {
    explicit INFINI_INLINE Source(const T *from) : p(from) {
        if constexpr (Broadcast) {
            alignas(64) T whole[Block<T>::N];
            for (T &x : whole) x = *from;
            all = load_block(whole);
        }
    }
    INFINI_INLINE Block<T> at(int64_t i) const {
        if constexpr (Broadcast)
            return all;
        else
            return load_block(p + i);
    }
    INFINI_INLINE Block<T> at_n(int64_t i, int64_t n) const {
        if constexpr (Broadcast)
            return all;
        else
            return load_block_n(p + i, n);
    }
    const T *p;
    Block<T> all;
};

/** Unit stride of c; a and b each unit or broadcast. Halves are rounded right: F32, in which they are computed, has more than
 *  2p + 2 bits. */
template <class Op, class T, bool Stream, class A, class B>
INFINI_INLINE void binary_unit(T *c, const A a, const B b, int64_t n) {
    constexpr int N = Block<T>::N;
    if (n < N) return n > 0 ? store_block_n(c, apply<Op>(a.at_n(0, n), b.at_n(0, n)), n) : void();
    // Aligned stores: one across two cache lines costs two, and streamed ones have to be. The first and the last block overlap
    // them, and are computed before and stored after, as c may be a or b.
    int64_t i = unaligned_head(c, n);
    const int64_t head = i, tail = (n - i) % N;
    Packed<T> first, last;
    if (head > 0) first = pack(apply<Op>(a.at(0), b.at(0)));
    if (tail > 0) last = pack(apply<Op>(a.at(n - N), b.at(n - N)));
    // A line that has just been streamed must not be written again: it would have to be read back.
    if (Stream && head > 0) put_n(c, first, head);
    for (; i + N <= n; i += N) store_block<Stream>(c + i, apply<Op>(a.at(i), b.at(i)));
    if (Stream) return tail > 0 ? store_block_n(c + i, apply<Op>(a.at_n(i, tail), b.at_n(i, tail)), tail) : void();
    if (head > 0) put<false>(c, first);
    if (tail > 0) put<false>(c + n - N, last);
}

template <int kSize>
struct BitsOf;
template <>
struct BitsOf<1> {
    typedef uint8_t type __attribute__((may_alias));
};
template <>
struct BitsOf<2> {
    typedef uint16_t type __attribute__((may_alias));
};
template <>
struct BitsOf<4> {
    typedef uint32_t type __attribute__((may_alias));
};
template <>
struct BitsOf<8> {
    typedef uint64_t type __attribute__((may_alias));
};
template <int64_t Stride, class T>
INFINI_INLINE void gather_by(T *to, const T *from, int64_t n) {
    using Bits = typename BitsOf<sizeof(T)>::type; // the compiler has no vectors of structures
    Bits *const bits = reinterpret_cast<Bits *>(to);
    const Bits *const source = reinterpret_cast<const Bits *>(from);
    INFINI_NO_DEPENDENCIES
    for (int64_t i = 0; i < n; ++i) bits[i] = source[i * Stride];
}
/** The compiler has shuffles for strides it knows. */
template <class T>
INFINI_INLINE void gather(T *to, const T *from, int64_t stride, int64_t n) {
    if (stride == 2) return gather_by<2>(to, from, n);
    if (stride == -1) return gather_by<-1>(to, from, n);
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
}

/** Any strides. Strided operands pass through small buffers, so that the arithmetic is always done in vectors. */
template <class Op, class T, bool Stream>
INFINI_INLINE void binary_strided(T *c, int64_t stride_c, const T *a, int64_t stride_a, const T *b, int64_t stride_b,
                                  int64_t n) {
    using Vector = Source<T, false>;
    constexpr int64_t kChunk = 256;
    alignas(64) T buffer_a[kChunk], buffer_b[kChunk], buffer_c[kChunk];
    int64_t count = stride_c == 1 ? unaligned_head(c, n) : 0; // so that what follows is aligned
    if (count == 0) count = n < kChunk ? n : kChunk;
    for (int64_t i = 0; i < n; i += count, count = n - i < kChunk ? n - i : kChunk) {
        if (stride_a != 1) gather(buffer_a, a + i * stride_a, stride_a, count);
        if (stride_b != 1) gather(buffer_b, b + i * stride_b, stride_b, count);
        const Vector from_a(stride_a == 1 ? a + i : buffer_a), from_b(stride_b == 1 ? b + i : buffer_b);
        if (stride_c == 1) {
            binary_unit<Op, T, Stream>(c + i, from_a, from_b, count);
        } else {
            binary_unit<Op, T, false>(buffer_c, from_a, from_b, count);
            for (int64_t j = 0; j < count; ++j) c[(i + j) * stride_c] = buffer_c[j];
        }
    }
}

template <class Op, class T, bool Stream>
void binary_rows(TileOperand c_, TileOperand a_, TileOperand b_, int64_t rows, int64_t n) {
    using Vector = Source<T, false>;
    using Element = Source<T, true>;
    T *c = static_cast<T *>(c_.p);
    const T *a = static_cast<const T *>(a_.p), *b = static_cast<const T *>(b_.p);
    const auto each_row = [&](auto &&row) INFINI_INLINE_LAMBDA {
        for (; rows > 0; --rows, c += c_.row, a += a_.row, b += b_.row) row();
    };
    if (c_.col == 1 && a_.col == 1 && b_.col == 1)
        each_row([&]() INFINI_INLINE_LAMBDA { binary_unit<Op, T, Stream>(c, Vector(a), Vector(b), n); });
    else if (c_.col == 1 && a_.col == 1 && b_.col == 0)
        each_row([&]() INFINI_INLINE_LAMBDA { binary_unit<Op, T, Stream>(c, Vector(a), Element(b), n); });
    else if (c_.col == 1 && a_.col == 0 && b_.col == 1)
        each_row([&]() INFINI_INLINE_LAMBDA { binary_unit<Op, T, Stream>(c, Element(a), Vector(b), n); });
    else
        each_row([&]() INFINI_INLINE_LAMBDA { binary_strided<Op, T, Stream>(c, c_.col, a, a_.col, b, b_.col, n); });
}

template <class Op, bool Stream>
constexpr void fill_binary(BinaryRows *rows) {
    rows[INFINI_DTYPE_F16] = binary_rows<Op, f16, Stream>;
    rows[INFINI_DTYPE_BF16] = binary_rows<Op, bf16, Stream>;
    rows[INFINI_DTYPE_F32] = binary_rows<Op, float, Stream>;
    rows[INFINI_DTYPE_F64] = binary_rows<Op, double, Stream>;
    rows[INFINI_DTYPE_I8] = rows[INFINI_DTYPE_U8] = binary_rows<Op, uint8_t, Stream>;
    rows[INFINI_DTYPE_I16] = rows[INFINI_DTYPE_U16] = binary_rows<Op, uint16_t, Stream>;
    rows[INFINI_DTYPE_I32] = rows[INFINI_DTYPE_U32] = binary_rows<Op, uint32_t, Stream>;
    rows[INFINI_DTYPE_I64] = rows[INFINI_DTYPE_U64] = binary_rows<Op, uint64_t, Stream>;
}
