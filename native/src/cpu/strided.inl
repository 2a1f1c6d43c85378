/* Elements at small strides, brought together: whole vectors are read, and what lies between is thrown away. Nothing before the
 * first element or behind the last is touched. */

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

/** Is a stride one that gather_near() takes, or 1, which needs no shuffle? Strided (binary.inl) lists the same ones. */
INFINI_INLINE bool near(int64_t step) { return step >= -1 && step <= 4; }

/** 0..N-1 */
template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I>
struct Count<0, I...> {
    using type = Indices<I...>;
};

/** Lane i of the result is lane kLane[i] of x, or of y from the number of lanes on. */
template <class V, size_t... kLane>
INFINI_INLINE V shuffle(V x, V y, Indices<kLane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(x, y, kLane...);
#else
    using Lane = typename BitsOf<sizeof x[0]>::type;
    typedef Lane Lanes __attribute__((vector_size(sizeof(V))));
    return __builtin_shuffle(x, y, Lanes{static_cast<Lane>(kLane)...});
#endif
}

/** N elements kStep apart, from as many vectors as they span; the last ends with the last of them. */
template <int64_t kStep, int64_t N>
struct Gather {
    static constexpr int64_t kSpan = kStep * (N - 1) + 1, kVectors = (kSpan + N - 1) / N;
    static constexpr int64_t start(int64_t vector) { return vector < kVectors - 1 ? vector * N : kSpan - N; }
    /** When `vector` joins those before it, which lie in order already from the second on. */
    static constexpr size_t lane(int64_t i, int64_t vector) {
        const int64_t at = i * kStep;
        if (at < vector * N) return static_cast<size_t>(vector == 1 ? at : i);
        return static_cast<size_t>(at < start(vector) + N ? N + at - start(vector) : 0); // 0: a later one has it
    }

    template <class V, int64_t kVector = 1, class T, size_t... I>
    static INFINI_INLINE V join(V before, const T *p, Indices<I...> lanes) {
        if constexpr (kVector == kVectors)
            return before;
        else
            return join<V, kVector + 1>(
                shuffle(before, load_bytes<V>(p + start(kVector)), Indices<lane(I, kVector)...>{}), p, lanes);
    }
    template <class V, class T>
    static INFINI_INLINE V load(const T *p) {
        return join<V>(load_bytes<V>(p), p, typename Count<N>::type{});
    }
};
template <int64_t N>
struct Gather<-1, N> {
    template <class V, size_t... I>
    static INFINI_INLINE V reverse(V x, Indices<I...>) {
        return shuffle(x, x, Indices<N - 1 - I...>{});
    }
    template <class V, class T>
    static INFINI_INLINE V load(const T *p) {
        return reverse(load_bytes<V>(p - (N - 1)), typename Count<N>::type{});
    }
};

template <int64_t N>
struct Gather<0, N> {
    template <class V, class T>
    static INFINI_INLINE V load(const T *p) {
        return V{} + load_bytes<T>(p); // which may be aligned to less, as a complex number is
    }
};

/** f(start) of pieces that cover 0..n, n >= size. The last may overlap the one before it. */
template <class F>
INFINI_INLINE void each_piece(int64_t n, int64_t size, F &&f) {
    int64_t i = 0;
    for (; i + size < n; i += size) f(i);
    f(n - size);
}

/** n elements from kStep apart side by side, kLanes at a time. kStream: past the caches, in whole lines; elements cross none. */
template <int64_t kStep, int64_t kLanes, bool kStream = false, class T>
INFINI_INLINE void gather_by(T *to, const T *from, int64_t n) {
    typedef T V __attribute__((vector_size(kLanes * sizeof(T))));
    const auto vector = [&](int64_t i) __attribute__((always_inline)) {
        put<kStream>(static_cast<void *>(to + i), Gather<kStep, kLanes>::template load<V>(from + i * kStep));
    };
    if constexpr (!kStream) return each_piece(n, kLanes, vector);
    constexpr int64_t kElements = kLine / sizeof(T);
    const int64_t head = (-reinterpret_cast<intptr_t>(to) & (kLine - 1)) / static_cast<int64_t>(sizeof(T));
    int64_t i = 0;
    for (; i < head && i < n; ++i) to[i] = load_bytes<T>(from + i * kStep);
    for (; i + kElements <= n; i += kElements)
#pragma GCC unroll 4
        for (int64_t part = 0; part < kElements; part += kLanes) vector(i + part);
    for (; i < n; ++i) to[i] = load_bytes<T>(from + i * kStep);
}
/** The same, of any step; false if that is no way to do it. */
template <int64_t kLanes, bool kStream = false, class T>
INFINI_INLINE bool gather_near(T *to, const T *from, int64_t step, int64_t n) {
    if (n < kLanes) return false;
    switch (step) {
    case -1: gather_by<-1, kLanes, kStream>(to, from, n); return true;
    case 0: gather_by<0, kLanes, kStream>(to, from, n); return true;
    case 2: gather_by<2, kLanes, kStream>(to, from, n); return true;
    case 3: gather_by<3, kLanes, kStream>(to, from, n); return true;
    case 4: gather_by<4, kLanes, kStream>(to, from, n); return true;
    }
    return false;
}

/** Copies elements of kSize bytes, whatever they are, to or from strided rows. */
template <int kSize>
INFINI_CALLED void copy_strided(TileOperand to, TileOperand from, int64_t rows, int64_t n) {
    using Bits = typename BitsOf<kSize>::type;
    Bits *dst = static_cast<Bits *>(to.p);
    const Bits *src = static_cast<const Bits *>(from.p);
    for (; rows > 0; --rows, dst += to.row, src += from.row) {
        if (to.col == 1 && gather_near<sizeof(VF) / kSize>(dst, src, from.col, n)) continue;
#pragma GCC unroll 8
        for (int64_t i = 0; i < n; ++i) dst[i * to.col] = src[i * from.col];
    }
}
