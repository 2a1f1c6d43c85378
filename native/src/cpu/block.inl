/* Blocks: the vectors that rows are computed in, whole ones of memory. A block of T is kParts vectors, N elements, its lanes in
 * whatever order is cheapest to bring them in, the same for every block of T. Here what holds everywhere; block_x86.inl has the
 * blocks of halves that instruction sets have better ways for. */

/** Integers, as unsigned numbers: they wrap around. */
template <class T>
struct VI {
    typedef T Vector __attribute__((vector_size(sizeof(VF))));
    static constexpr int N = sizeof(VF) / sizeof(T);
    Vector v;
};
template <class T>
INFINI_INLINE VI<T> operator+(VI<T> a, VI<T> b) {
    return {a.v + b.v};
}
template <class T>
INFINI_INLINE VI<T> operator*(VI<T> a, VI<T> b) {
    return {a.v * b.v};
}

/* Vectors as they are, not structures of them: GCC copies those in pieces of 16 bytes, by way of the stack. */

template <class V>
INFINI_INLINE V load_bytes(const void *p) {
    V x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
/** Writes a vector's bytes; with Stream past the caches, to an address that is a multiple of its size. */
template <bool Stream, class V>
INFINI_INLINE void put(void *p, V x) {
#if defined(__AVX512F__)
    if constexpr (Stream && sizeof x == 64) {
        __m512i bytes;
        __builtin_memcpy(&bytes, &x, sizeof x);
        return _mm512_stream_si512(static_cast<__m512i *>(p), bytes);
    }
#endif
#if defined(__AVX2__)
    if constexpr (Stream && sizeof x == 32) {
        __m256i bytes;
        __builtin_memcpy(&bytes, &x, sizeof x);
        return _mm256_stream_si256(static_cast<__m256i *>(p), bytes);
    }
#endif
#if defined(__SSE2__)
    if constexpr (sizeof x == 16) {
        __m128i bytes;
        __builtin_memcpy(&bytes, &x, sizeof x);
        if constexpr (Stream) return _mm_stream_si128(static_cast<__m128i *>(p), bytes);
        return _mm_storeu_si128(static_cast<__m128i *>(p), bytes);
    }
#endif
    __builtin_memcpy(p, &x, sizeof x);
}

template <class V>
INFINI_INLINE V splat(typename V::Scalar x) {
    return broadcast(x);
}

/** The vector of a block's parts, how many there are, and the block as it lies in memory. */
template <class T>
struct PartOf {
    using type = VI<T>;
};
template <>
struct PartOf<float> {
    using type = VF;
};
template <>
struct PartOf<double> {
    using type = VD;
};
template <class T>
constexpr int kParts = 1;
/** Whether a block that has just been stored is cheaper to load than to unpack. */
template <class T>
constexpr bool kReadBack = false;
template <class T>
struct Packed {
    using Vector = decltype(PartOf<T>::type::v);
    Vector v[1];
};

template <class T>
struct Block {
    using V = typename PartOf<T>::type;
    static constexpr int N = kParts<T> * V::N;
    V part[kParts<T>];
};

#if defined(__AVX2__)
#include "cpu/block_x86.inl"
#else
#include "cpu/block_portable.inl"
#endif

template <class T>
INFINI_INLINE Packed<T> pack(const Block<T> &x) {
    return {{x.part[0].v}};
}
template <class T>
INFINI_INLINE Block<T> unpack(const Packed<T> &x) {
    return {{{x.v[0]}}};
}

template <class T>
INFINI_INLINE Packed<T> load_packed(const T *p) {
    Packed<T> x;
    constexpr int kVectors = sizeof x.v / sizeof x.v[0];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
        x.v[i] = load_bytes<typename Packed<T>::Vector>(p + i * (Block<T>::N / kVectors));
    return x;
}
template <class T>
INFINI_INLINE Block<T> load_block(const T *p) {
    return unpack(load_packed(p));
}
template <class T>
INFINI_INLINE Block<T> add_blocks(Block<T> a, const Block<T> &b) {
    for (int i = 0; i < kParts<T>; ++i) a.part[i] = a.part[i] + b.part[i];
    return a;
}
/** Has memory that is needed soon brought to the second-level cache; any address will do. */
template <class T>
INFINI_INLINE void fetch_block(const T *p) {
    __builtin_prefetch(p, 0, 2);
}
/** The same of what lies shortly behind p in memory, as near as can be, of numbers that are converted: conversions are so many
 *  instructions that with what a core looks ahead by itself too few reads from memory are under way. */
template <class T>
INFINI_INLINE void fetch_ahead(const T *p) {
    constexpr int64_t kAhead = 2048 / sizeof(T);
    if constexpr (kParts<T> > 1) __builtin_prefetch(p + kAhead);
}
/** With Stream past the caches; p is then a multiple of the size. */
template <bool Stream, class T>
INFINI_INLINE void put(T *p, const Packed<T> &x) {
    constexpr int kVectors = sizeof x.v / sizeof x.v[0];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) put<Stream>(p + i * (Block<T>::N / kVectors), x.v[i]);
}
template <bool Stream, class T>
INFINI_INLINE void store_block(T *p, const Block<T> &x) {
    put<Stream>(p, pack(x));
}

/** The first n < N elements, the others 0. Touches no byte behind them. */
template <class T, int N>
INFINI_INLINE void load_first(T (&whole)[N], const T *p, int64_t n) {
#if defined(__AVX512F__)
    if constexpr (sizeof whole == 64) {
        const __mmask64 first = (uint64_t{1} << static_cast<uint64_t>(n) * sizeof(T)) - 1;
        return _mm512_storeu_si512(whole, _mm512_maskz_loadu_epi8(first, p));
    }
#endif
    __builtin_memset(whole, 0, sizeof whole);
    __builtin_memcpy(whole, p, static_cast<size_t>(n) * sizeof(T));
}
template <class T>
INFINI_INLINE Block<T> load_block_n(const T *p, int64_t n) {
    T whole[Block<T>::N];
    load_first(whole, p, n);
    return load_block(whole);
}
template <class T>
INFINI_INLINE void put_n(T *p, const Packed<T> &x, int64_t n) {
    T whole[Block<T>::N];
    put<false>(whole, x);
#if defined(__AVX512F__)
    const __mmask64 first = (uint64_t{1} << static_cast<uint64_t>(n) * sizeof(T)) - 1;
    _mm512_mask_storeu_epi8(p, first, _mm512_loadu_si512(whole));
#else
    __builtin_memcpy(p, whole, static_cast<size_t>(n) * sizeof(T));
#endif
}
template <class T>
INFINI_INLINE void store_block_n(T *p, const Block<T> &x, int64_t n) {
    put_n(p, pack(x), n);
}

template <class A, class B>
constexpr bool kSame = false;
template <class T>
constexpr bool kSame<T, T> = true;

/** A block of T from numbers of any type that is computed in the same. */
template <class T, class From>
INFINI_INLINE Block<T> load_block_as(const From *p) {
    if constexpr (kSame<T, From>) {
        return load_block(p);
    } else {
        Block<T> x;
        load_parts(x, p);
        return x;
    }
}
template <class T, class From>
INFINI_INLINE Block<T> load_block_as_n(const From *p, int64_t n) {
    From whole[Block<T>::N];
    load_first(whole, p, n);
    return load_block_as<T>(whole);
}

/** Elements before the first at a multiple of a block's size, at most n; 0 where there is none. */
template <class T>
INFINI_INLINE int64_t unaligned_head(const T *p, int64_t n) {
    const uint64_t bytes = -reinterpret_cast<uintptr_t>(p) % (Block<T>::N * sizeof(T));
    if (bytes % sizeof(T) != 0) return 0;
    const int64_t head = static_cast<int64_t>(bytes / sizeof(T));
    return head < n ? head : n;
}
