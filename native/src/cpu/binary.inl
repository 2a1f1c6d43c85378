/* Rows of add and mul. */

/* Of two NaNs the result is the first. Compilers exchange the operands of what commutes, differently wherever they compile it: one way
 * that adds would give another NaN than the next. */
template <class T>
INFINI_INLINE T ordered_sum(T a, T b) {
    return a + b;
}
template <class T>
INFINI_INLINE T ordered_product(T a, T b) {
    return a * b;
}
#if defined(__AVX2__)
#define INFINI_ORDERED(name, V, instruction)                                           \
    INFINI_INLINE V name(V a, V b) {                                                   \
        V result;                                                                      \
        __asm__("v" instruction " %2, %1, %0" : "=v"(result.v) : "v"(a.v), "vm"(b.v)); \
        return result;                                                                 \
    }
#elif defined(__SSE2__)
#define INFINI_ORDERED(name, V, instruction)                   \
    INFINI_INLINE V name(V a, V b) {                           \
        __asm__(instruction " %1, %0" : "+x"(a.v) : "x"(b.v)); \
        return a;                                              \
    }
#endif
#if defined(__SSE2__)
INFINI_ORDERED(ordered_sum, VF, "addps")
INFINI_ORDERED(ordered_sum, VD, "addpd")
INFINI_ORDERED(ordered_product, VF, "mulps")
INFINI_ORDERED(ordered_product, VD, "mulpd")
#endif
#if defined(__AVX2__) && !defined(INFINI_WIDE_F16)
/** As a * 1 + b, the same number: see its operator. */
INFINI_INLINE VH ordered_sum(VH a, VH b) {
    __asm__("vfmadd213ps %2, %1, %0" : "+v"(a.v) : "v"(_mm256_set1_ps(1)), "vm"(b.v));
    return a;
}
INFINI_ORDERED(ordered_product, VH, "mulps")
#endif
#undef INFINI_ORDERED

/* Exchanged: what gives the same of b and a. Kernels of two unlike operands are written, and compiled, in one order of them. */
struct Add {
    using Exchanged = Add;
    template <class T>
    static INFINI_INLINE T apply(T a, T b) {
        return ordered_sum(a, b);
    }
};
struct Mul {
    using Exchanged = Mul;
    template <class T>
    static INFINI_INLINE T apply(T a, T b) {
        return ordered_product(a, b);
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

/* Operands in blocks: of unit stride, one element for all, or of another stride: that is near(), or any if kSingle.
 * with_stride(f) is f(these, as blocks of which the stride is known). ahead(i) fetches what will be read after block i. fast():
 * whether a block takes no longer than to store it. */
template <class T>
struct Unit {
    static constexpr bool kGathers = false;
    INFINI_INLINE Unit(const T *from, int64_t) : p(from) {}
    INFINI_INLINE Block<T> at(int64_t i) const { return load_block(p + i); }
    INFINI_INLINE Block<T> end(int64_t i) const { return at(i); }
    INFINI_INLINE Block<T> at_n(int64_t i, int64_t n) const { return load_block_n(p + i, n); }
    INFINI_INLINE void ahead(int64_t i) const { fetch_ahead(p + i); }
    INFINI_INLINE bool fast() const { return true; }
    template <class F>
    INFINI_INLINE void with_stride(F &&f) const {
        f(*this);
    }
    const T *p;
};
template <class T>
struct Element {
    static constexpr bool kGathers = false;
    INFINI_INLINE Element(const T *from, int64_t) {
        using Bits = typename BitsOf<sizeof(T)>::type;
        typedef Bits Lanes __attribute__((vector_size(sizeof(typename Packed<T>::Vector))));
        const Lanes lanes = Lanes{} + *reinterpret_cast<const Bits *>(from);
        Packed<T> whole;
        for (auto &vector : whole.v) __builtin_memcpy(&vector, &lanes, sizeof lanes);
        all = unpack(whole);
    }
    INFINI_INLINE Block<T> at(int64_t) const { return all; }
    INFINI_INLINE void ahead(int64_t) const {}
    INFINI_INLINE Block<T> end(int64_t) const { return all; }
    INFINI_INLINE Block<T> at_n(int64_t, int64_t) const { return all; }
    INFINI_INLINE bool fast() const { return true; }
    template <class F>
    INFINI_INLINE void with_stride(F &&f) const {
        f(*this);
    }
    Block<T> all;
};
template <class T, int64_t kStep>
struct Every {
    INFINI_INLINE Block<T> at(int64_t i) const {
        using Bits = typename BitsOf<sizeof(T)>::type;
        constexpr int64_t N = Block<T>::N, kVector = sizeof(VF) / sizeof(T);
        alignas(64) T whole[N];
        gather_by<kStep, (N < kVector ? N : kVector)>(reinterpret_cast<Bits *>(whole),
                                                      reinterpret_cast<const Bits *>(p + i * kStep), N);
        return load_block(whole);
    }
    INFINI_INLINE void ahead(int64_t i) const {
#pragma GCC unroll 4
        for (int block = 0; block < kStep; ++block) fetch_ahead(p + i * kStep + block * Block<T>::N);
    }
    const T *p;
};
/** Elements that are loaded one by one are as soon in a vector as others, if they are few. */
template <class T>
constexpr bool kSingle = sizeof(T) >= 4;
template <class T>
struct Single {
    template <size_t... I>
    static INFINI_INLINE Block<T> join(const T *x, Indices<I...>) {
        const typename Packed<T>::Vector whole = {x[I]...};
        return unpack(Packed<T>{{whole}});
    }
    INFINI_INLINE Block<T> at(int64_t i) const {
        constexpr int kTogether = Block<T>::N < 4 ? Block<T>::N : 4; // whose addresses take few registers
        T x[Block<T>::N];
        Stepped<const T> from{p + i * step, step * kTogether};
#pragma GCC unroll 16
        for (int j = 0; j < Block<T>::N; j += kTogether) {
#pragma GCC unroll 4
            for (int lane = 0; lane < kTogether; ++lane) x[j + lane] = from.p[lane * step];
            from.advance();
        }
        return join(x, typename Count<Block<T>::N>::type{});
    }
    INFINI_INLINE void ahead(int64_t) const {}
    const T *p;
    int64_t step;
};
template <class T>
struct Strided {
    static constexpr bool kGathers = true;
    INFINI_INLINE Strided(const T *from, int64_t step_) : p(from), step(step_) {}
    template <class F>
    INFINI_INLINE void with_stride(F &&f) const {
        switch (step) {
        case -1: return f(Every<T, -1>{p});
        case 2: return f(Every<T, 2>{p});
        case 3: return f(Every<T, 3>{p});
        case 4: return f(Every<T, 4>{p});
        }
        if constexpr (kSingle<T>) f(Single<T>{p, step});
    }
    INFINI_INLINE bool fast() const { return near(step); }
    /* At the ends of a row, the same for any stride: more code is not worth it. */
    INFINI_INLINE Block<T> end(int64_t i) const {
        if constexpr (kSingle<T>)
            return Single<T>{p, step}.at(i);
        else
            return at_n(i, Block<T>::N);
    }
    INFINI_INLINE Block<T> at_n(int64_t i, int64_t n) const {
        alignas(64) T whole[Block<T>::N] = {};
        copy_strided<sizeof(T)>({whole, 0, 1}, {const_cast<T *>(p + i * step), 0, step}, 1, n);
        return load_block(whole);
    }
    const T *p;
    int64_t step;
};

/** Unit stride of c and a; b in blocks. Halves are rounded right: F32, in which they are computed, has more than 2p + 2 bits. */
template <class Op, class T, bool Stream, class B>
INFINI_INLINE void binary_unit(T *c, const Unit<T> a, const B b, int64_t n) {
    constexpr int N = Block<T>::N;
    if (n < N) return n > 0 ? store_block_n(c, apply<Op>(a.at_n(0, n), b.at_n(0, n)), n) : void();
    // Aligned stores: one across two cache lines costs two, though in a short row less than one more block of b that is not fast;
    // and streamed ones have to be. The first and the last block overlap them, and are computed before and stored after, as c may
    // be a or b.
    int64_t i = Stream || b.fast() || n >= 8 * N ? unaligned_head(c, n) : 0;
    const int64_t head = i, tail = (n - i) % N;
    Packed<T> first, last;
    if (head > 0) first = pack(apply<Op>(a.at(0), b.end(0)));
    if (tail > 0) last = pack(apply<Op>(a.at(n - N), b.end(n - N)));
    // A line that has just been streamed must not be written again: it would have to be read back.
    if (Stream && head > 0) put_n(c, first, head);
    b.with_stride([&](const auto &y) INFINI_INLINE_LAMBDA {
        const auto block = [&](int64_t at) INFINI_INLINE_LAMBDA {
            a.ahead(at);
            y.ahead(at);
            store_block<Stream>(c + at, apply<Op>(a.at(at), y.at(at)));
        };
        // Two halves of a cache line right after each other, and each stored before the next is loaded: measured with Zen 4.
        if constexpr (2 * N * sizeof(T) == kLine && !B::kGathers)
            for (; i + 2 * N <= n; i += 2 * N) {
                block(i);
                __asm__ volatile("" ::: "memory");
                block(i + N);
            }
        for (; i + N <= n; i += N) block(i);
    });
    if (Stream) return tail > 0 ? store_block_n(c + i, apply<Op>(a.at_n(i, tail), b.at_n(i, tail)), tail) : void();
    if (head > 0) put<false>(c, first);
    if (tail > 0) put<false>(c + n - N, last);
}

/** The same of a row so short that finding out where lines begin takes longer than blocks across two of them. */
template <class Op, class T, class B>
INFINI_INLINE void binary_few(T *c, const Unit<T> a, const B b, int64_t n) {
    constexpr int N = Block<T>::N;
    const Packed<T> last = pack(apply<Op>(a.at(n - N), b.at(n - N)));
    for (int64_t i = 0; i + N < n; i += N) store_block<false>(c + i, apply<Op>(a.at(i), b.at(i)));
    put<false>(c + n - N, last);
}

/** Rows of it, each operand's a step apart. */
template <class Op, class T, bool Stream, class B>
INFINI_CALLED void binary_units(Stepped<T> c, Stepped<const T> a, Stepped<const T> b, int64_t b_col, int64_t rows,
                                int64_t n) {
    if constexpr (!Stream && !B::kGathers) {
        constexpr int kFew = 8 * Block<T>::N;
        if (rows > 1 && n >= Block<T>::N && n <= kFew) {
            for (int64_t i = 0; i < rows; ++i) {
                binary_few<Op>(c.p, Unit<T>(a.p, 1), B(b.p, b_col), n);
                c.advance(), a.advance(), b.advance();
            }
            return;
        }
    }
    for (int64_t i = 0; i < rows; ++i) binary_unit<Op, T, Stream>(c[i], Unit<T>(a[i], 1), B(b[i], b_col), n);
}
template <class T>
INFINI_INLINE bool has_blocks(int64_t stride) {
    return kSingle<T> || near(stride);
}
/** Strides of a and b that have kernels: one of them is 1. Kernels of two others would be as much code as all of these;
 *  binary_far() copies one of the two, and it is so, too. */
template <class T>
INFINI_INLINE bool joined(int64_t a, int64_t b) {
    return (a == 1 && has_blocks<T>(b)) || (b == 1 && has_blocks<T>(a));
}
/** Does b stay where it is when binary_far() copies? It does if what becomes of a can be joined with it. */
template <class T>
INFINI_INLINE bool stays(int64_t a, int64_t b) {
    return has_blocks<T>(b) && (a != 0 || b == 0 || b == 1);
}
/** Is it b that kernels take first, so that of two NaNs it gives the result? It must be whichever way a row goes, which depends on how
 *  many there are and on the number of threads. */
template <class T>
INFINI_INLINE bool exchanges(int64_t a, int64_t b) {
    return a != 1 && has_blocks<T>(a) && (b == 1 || !stays<T>(a, b));
}
/** Where a and b are joined(). */
template <class Op, class T, bool Stream>
INFINI_INLINE void binary_near(TileOperand c_, TileOperand a_, TileOperand b_, int64_t rows, int64_t n) {
    const bool in_order = a_.col == 1;
    const TileOperand &x = in_order ? a_ : b_, &y = in_order ? b_ : a_;
    const auto units = [&](auto op) INFINI_INLINE_LAMBDA {
        using Way = decltype(op);
        return y.col == 1   ? binary_units<Way, T, Stream, Unit<T>>
               : y.col == 0 ? binary_units<Way, T, Stream, Element<T>>
                            : binary_units<Way, T, Stream, Strided<T>>;
    };
    (in_order ? units(Op{}) : units(typename Op::Exchanged{}))({static_cast<T *>(c_.p), c_.row},
                                                               {static_cast<const T *>(x.p), x.row},
                                                               {static_cast<const T *>(y.p), y.row}, y.col, rows, n);
}

/** Elements that pass through small buffers at a time. */
template <class T>
constexpr int64_t kBuffered = sizeof(T) < 4 ? 1024 / sizeof(T) : 256;

/** Any strides. What binary_near() does not take passes through small buffers, so that the arithmetic is always done in vectors:
 *  parts of a row, or as many rows as there is room for. */
template <class Op, class T>
INFINI_CALLED void binary_far(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t n, bool stream) {
    constexpr int64_t kRoom = kBuffered<T>;
    alignas(64) T buffer_a[kRoom], buffer_b[kRoom], buffer_c[kRoom];
    const int64_t most = n > 0 && n < kRoom / 2 ? kRoom / n : 1;
    for (int64_t i = 0, n_rows; i < rows; i += n_rows) {
        n_rows = rows - i < most ? rows - i : most;
        for (int64_t j = 0, count; j < n; j += count) {
            count = n - j < kRoom ? n - j : kRoom;
            if (j == 0 && count < n && c.col == 1) // so that the other parts start at whole blocks
                count -= (Block<T>::N - unaligned_head(static_cast<T *>(c.p) + i * c.row, n)) % Block<T>::N;
            const auto bring = [&](const TileOperand &x, T *buffer, bool as_it_is) {
                if (as_it_is) return part<T>(x, i, j);
                const TileOperand copy{buffer, count, 1};
                copy_strided<sizeof(T)>(copy, part<T>(x, i, j), n_rows, count);
                return copy;
            };
            // And a stays if it can be joined with what b has become.
            const TileOperand to = part<T>(c, i, j), y = bring(b, buffer_b, stays<T>(a.col, b.col)),
                              x = bring(a, buffer_a, a.col == 1 || joined<T>(a.col, y.col));
            if (stream && c.col == 1) {
                binary_near<Op, T, true>(to, x, y, n_rows, count);
                continue;
            }
            const TileOperand result = c.col == 1 ? to : TileOperand{buffer_c, count, 1};
            binary_near<Op, T, false>(result, x, y, n_rows, count);
            if (c.col != 1) copy_strided<sizeof(T)>(to, result, n_rows, count);
        }
    }
}

/** Which bits move is all that matters to a copy: one for all types of a size. */
template <class T>
constexpr CopyElements kCopyOf = sizeof(T) == 1   ? copy_elements<uint8_t>
                                 : sizeof(T) == 2 ? copy_elements<uint16_t>
                                 : sizeof(T) == 4 ? copy_elements<uint32_t>
                                                  : copy_elements<uint64_t>;

/** Rows shorter than a vector: as many as there is room for are brought together, and are one row. */
template <class Op, class T>
INFINI_CALLED void binary_short(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t n) {
    constexpr int64_t kRoom = kBuffered<T>;
    alignas(64) T buffer_a[kRoom], buffer_b[kRoom], buffer_c[kRoom];
    const int64_t most = kRoom / n;
    for (int64_t i = 0, n_rows; i < rows; i += n_rows) {
        n_rows = rows - i < most ? rows - i : most;
        const auto dense = [&](const TileOperand &x) { return x.col == 1 && x.row == n; };
        const auto copy = [&](const TileOperand &to, const TileOperand &from) {
            const int64_t size = sizeof(T);
            if (to.col == 1 && from.col == 1)
                copy_rows(to.p, to.row * size, from.p, from.row * size, n * size, n_rows);
            else
                kCopyOf<T>(to, from, n_rows, n, false);
        };
        const auto bring = [&](const TileOperand &x, T *buffer) {
            if (dense(x)) return part<T>(x, i, 0);
            const TileOperand together{buffer, n, 1};
            copy(together, part<T>(x, i, 0));
            return together;
        };
        const TileOperand result = dense(c) ? part<T>(c, i, 0) : TileOperand{buffer_c, n, 1};
        const TileOperand x = bring(a, buffer_a), y = bring(b, buffer_b);
        if (exchanges<T>(a.col, b.col))
            binary_near<typename Op::Exchanged, T, false>(result, y, x, 1, n_rows * n);
        else
            binary_near<Op, T, false>(result, x, y, 1, n_rows * n);
        if (!dense(c)) copy(part<T>(c, i, 0), result);
    }
}

template <class Op, class T, bool Stream>
void binary_rows(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t n) {
    constexpr int64_t kMany = 8;
    if (n > 0 && n < Block<T>::N && rows >= kMany)
        binary_short<Op, T>(c, a, b, rows, n);
    else if (c.col == 1 && joined<T>(a.col, b.col))
        binary_near<Op, T, Stream>(c, a, b, rows, n);
    else
        binary_far<Op, T>(c, a, b, rows, n, Stream);
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
