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

/** From element [i, j] on. */
template <class T>
INFINI_INLINE TileOperand part(const TileOperand &x, int64_t i, int64_t j) {
    return {static_cast<T *>(x.p) + i * x.row + j * x.col, x.row, x.col};
}

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

/** Rows of it, each operand's a step apart. */
template <class Op, class T, bool Stream, class A, class B>
INFINI_CALLED void binary_units(Stepped<T> c, Stepped<const T> a, Stepped<const T> b, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows; ++i) binary_unit<Op, T, Stream>(c[i], A(a[i]), B(b[i]), n);
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
template <int64_t Stride, int kSize>
INFINI_INLINE void gather_by(void *to, const void *from, int64_t n) {
    using Bits = typename BitsOf<kSize>::type; // the compiler has no vectors of structures
    Bits *const bits = static_cast<Bits *>(to);
    const Bits *const source = static_cast<const Bits *>(from);
    INFINI_NO_DEPENDENCIES
    for (int64_t i = 0; i < n; ++i) bits[i] = source[i * Stride];
}
/** Copies elements of kSize bytes, whatever they are, to or from strided rows. */
template <int kSize>
INFINI_CALLED void copy_strided(TileOperand to, TileOperand from, int64_t rows, int64_t n) {
    using Bits = typename BitsOf<kSize>::type;
    Bits *dst = static_cast<Bits *>(to.p);
    const Bits *src = static_cast<const Bits *>(from.p);
    for (; rows > 0; --rows, dst += to.row, src += from.row) {
        // The compiler has shuffles for strides it knows.
        if (to.col == 1 && from.col == 2) {
            gather_by<2, kSize>(dst, src, n);
        } else if (to.col == 1 && from.col == -1) {
            gather_by<-1, kSize>(dst, src, n);
        } else {
#pragma GCC unroll 4
            for (int64_t i = 0; i < n; ++i) dst[i * to.col] = src[i * from.col];
        }
    }
}

/** Any strides. Strided operands pass through small buffers, so that the arithmetic is always done in vectors: parts of a row,
 *  or as many rows as there is room for. */
template <class Op, class T, bool Stream>
void binary_strided(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t n) {
    using Vector = Source<T, false>;
    constexpr int64_t kRoom = sizeof(T) < 4 ? 1024 / sizeof(T) : 256;
    alignas(64) T buffer_a[kRoom], buffer_b[kRoom], buffer_c[kRoom];
    const auto stepped = [](const TileOperand &x) { return Stepped<T>{static_cast<T *>(x.p), x.row}; };
    const int64_t most = n > 0 && n < kRoom / 2 ? kRoom / n : 1;
    for (int64_t i = 0, n_rows; i < rows; i += n_rows) {
        n_rows = rows - i < most ? rows - i : most;
        for (int64_t j = 0, count; j < n; j += count) {
            count = n - j < kRoom ? n - j : kRoom;
            if (j == 0 && count < n && c.col == 1) // so that the other parts start at whole blocks
                count -= (Block<T>::N - unaligned_head(static_cast<T *>(c.p) + i * c.row, n)) % Block<T>::N;
            const TileOperand to = part<T>(c, i, j), from_a = part<T>(a, i, j), from_b = part<T>(b, i, j);
            const TileOperand in_a{buffer_a, count, 1}, in_b{buffer_b, count, 1}, in_c{buffer_c, count, 1};
            if (a.col != 1) copy_strided<sizeof(T)>(in_a, from_a, n_rows, count);
            if (b.col != 1) copy_strided<sizeof(T)>(in_b, from_b, n_rows, count);
            const auto x = stepped(a.col == 1 ? from_a : in_a), y = stepped(b.col == 1 ? from_b : in_b);
            if (c.col == 1) {
                binary_units<Op, T, Stream, Vector, Vector>(stepped(to), {x.p, x.step}, {y.p, y.step}, n_rows, count);
            } else {
                binary_units<Op, T, false, Vector, Vector>(stepped(in_c), {x.p, x.step}, {y.p, y.step}, n_rows, count);
                copy_strided<sizeof(T)>(to, in_c, n_rows, count);
            }
        }
    }
}

template <class Op, class T, bool Stream>
void binary_rows(TileOperand c_, TileOperand a_, TileOperand b_, int64_t rows, int64_t n) {
    using Vector = Source<T, false>;
    using Element = Source<T, true>;
    const Stepped<T> c{static_cast<T *>(c_.p), c_.row};
    const Stepped<const T> a{static_cast<const T *>(a_.p), a_.row}, b{static_cast<const T *>(b_.p), b_.row};
    if (c_.col == 1 && a_.col == 1 && b_.col == 1)
        binary_units<Op, T, Stream, Vector, Vector>(c, a, b, rows, n);
    else if (c_.col == 1 && a_.col == 1 && b_.col == 0)
        binary_units<Op, T, Stream, Vector, Element>(c, a, b, rows, n);
    else if (c_.col == 1 && a_.col == 0 && b_.col == 1)
        binary_units<Op, T, Stream, Element, Vector>(c, a, b, rows, n);
    else
        binary_strided<Op, T, Stream>(c_, a_, b_, rows, n);
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
