/* Transposes of few rows or columns, of which blocks would be mostly empty: between elements in turns, as pixels have them, and
 * lines of each. */

#if defined(__AVX2__)
constexpr int64_t kMostChannels = 4;

INFINI_INLINE __m256i shuffle_lanes(__m256i x, __m128i bytes) {
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(bytes));
}
INFINI_INLINE __m256i either(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }
INFINI_INLINE void put_lanes(char *p, int64_t apart, __m256i x) {
    put<false>(p, _mm256_castsi256_si128(x));
    put<false>(p + apart, _mm256_extracti128_si256(x, 1));
}
#if defined(__AVX512F__)
INFINI_INLINE __m512i shuffle_lanes(__m512i x, __m128i bytes) {
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(bytes));
}
INFINI_INLINE __m512i either(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }
INFINI_INLINE void put_lanes(char *p, int64_t apart, __m512i x) {
    put_lanes(p, apart, _mm512_castsi512_si256(x));
    put_lanes(p + 2 * apart, apart, _mm512_extracti64x4_epi64(x, 1));
}
#endif

/** Which byte of lane `in` byte i of lane `out` is; of none where that is another lane's. A lane of each channel is as many pixels
 *  as kCount lanes of elements in turns. Split: these are what comes in. */
template <int kSize, int kCount, bool kSplit>
struct ChannelBytes {
    struct alignas(16) Lane {
        uint8_t byte[16];
    };
    Lane lane[kCount][kCount]; // [out][in]
    constexpr ChannelBytes() : lane{} {
        constexpr int kElements = 16 / kSize;
        for (int out = 0; out < kCount; ++out)
            for (int in = 0; in < kCount; ++in)
                for (int i = 0; i < 16; ++i) {
                    const int at =
                        kSplit ? i / kSize * kCount + out : out * kElements + i / kSize; // among those in turns
                    const int from = kSplit ? at / kElements : at % kCount;
                    const int element = kSplit ? at % kElements : at / kCount;
                    lane[out][in].byte[i] = static_cast<uint8_t>(from == in ? element * kSize + i % kSize : 128);
                }
    }
    /** x: what comes in. */
    INFINI_INLINE Wide join(const Wide (&x)[kCount], int out) const {
        Wide all = shuffle_lanes(x[0], load_bytes<__m128i>(lane[out][0].byte));
#pragma GCC unroll 4
        for (int in = 1; in < kCount; ++in)
            all = either(all, shuffle_lanes(x[in], load_bytes<__m128i>(lane[out][in].byte)));
        return all;
    }
};
template <int kSize, int kCount, bool kSplit>
constexpr ChannelBytes<kSize, kCount, kSplit> kChannelBytes{};

/** Of pixels of kCount elements the first `rows` to lines of their own; returns how many pixels that were. */
template <int kCount, class T>
int64_t split_channels(Stepped<T> dst, const T *src, int64_t rows, int64_t cols) {
    constexpr int64_t kTogether = sizeof(Wide) / sizeof(T);
    if (rows < kCount) --cols; // the last pixel's other elements may be nobody's
    int64_t j = 0;
    for (; j + kTogether <= cols; j += kTogether) {
        const char *from = reinterpret_cast<const char *>(src + j * kCount);
        Wide x[kCount];
#pragma GCC unroll 4
        for (int i = 0; i < kCount; ++i) gather(x[i], [&](int lane) { return from + (lane * kCount + i) * 16; });
#pragma GCC unroll 4
        for (int i = 0; i < kCount; ++i)
            if (i < rows) put<false>(dst[i] + j, kChannelBytes<sizeof(T), kCount, true>.join(x, i));
    }
    return j;
}

/** kCount lines to pixels; returns how many that were. */
template <int kCount, class T>
int64_t join_channels(T *dst, Stepped<const T> src, int64_t rows) {
    constexpr int64_t kTogether = sizeof(Wide) / sizeof(T);
    int64_t i = 0;
    for (; i + kTogether <= rows; i += kTogether) {
        char *to = reinterpret_cast<char *>(dst + i * kCount);
        Wide x[kCount];
#pragma GCC unroll 4
        for (int j = 0; j < kCount; ++j) x[j] = load_bytes<Wide>(src[j] + i);
#pragma GCC unroll 4
        for (int j = 0; j < kCount; ++j)
            put_lanes(to + j * 16, kCount * 16, kChannelBytes<sizeof(T), kCount, false>.join(x, j));
    }
    return i;
}

/** Fewer rows than a block has: blocks that end in the columns that follow. Returns how many columns that were. */
template <class T>
int64_t split_blocks(Stepped<T> dst, Stepped<const T> src, int64_t rows, int64_t cols) {
    constexpr int64_t kRows = 16 / sizeof(T), kTogether = sizeof(Wide) / sizeof(T);
    if (src.step < 1) return 0;
    cols -= (kRows - rows + src.step - 1) / src.step; // what follows the last ones may be nobody's
    int64_t j = 0;
    for (; j + kTogether <= cols; j += kTogether) {
        Wide x[kRows];
        load_transposed<T>(x, src.of(j, 0), [] {});
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i)
            if (i < rows) put<false>(dst[i] + j, x[i]);
    }
    return j;
}

/** Fewer columns than a block has, where rows follow one another: each is written with what the next ones overwrite. Returns how
 *  many rows that were. */
template <class T>
int64_t join_blocks(Stepped<T> dst, Stepped<const T> src, int64_t rows, int64_t cols) {
    constexpr int64_t kCols = 16 / sizeof(T), kTogether = sizeof(Wide) / sizeof(T);
    if (dst.step != cols) return 0;
    rows -= (kCols - 1) / cols;
    int64_t i = 0;
    for (; i + kTogether <= rows; i += kTogether) {
        Wide x[kCols];
#pragma GCC unroll 16
        for (int j = 0; j < kCols; ++j) x[j] = load_bytes<Wide>(src[j < cols ? j : 0] + i);
        transpose_lanes<sizeof(T)>(x);
        alignas(sizeof(Wide)) __m128i lanes[kCols][sizeof(Wide) / 16];
#pragma GCC unroll 16
        for (int j = 0; j < kCols; ++j) put<false>(lanes[j], x[j]);
        T *to = dst[i];
        for (size_t lane = 0; lane < sizeof(Wide) / 16; ++lane)
#pragma GCC unroll 16
            for (int j = 0; j < kCols; ++j, to += cols) put<false>(to, lanes[j][lane]);
    }
    return i;
}

/** Of a transpose of few rows or columns what vectors are good for. The rest is left to `elements`(row, column) from there on. */
template <class T, class Elements>
INFINI_INLINE void transpose_few_lines(Stepped<T> dst, Stepped<const T> src, int64_t rows, int64_t cols,
                                       Elements &&elements) {
    constexpr bool kBlocks = 16 / sizeof(T) > kMostChannels;
    int64_t done = 0;
    if (rows > 1 && rows <= src.step && src.step <= kMostChannels) {
        done = src.step == 2   ? split_channels<2>(dst, src.p, rows, cols)
               : src.step == 3 ? split_channels<3>(dst, src.p, rows, cols)
                               : split_channels<4>(dst, src.p, rows, cols);
    } else if (cols > 1 && cols == dst.step && cols <= kMostChannels) {
        done = cols == 2   ? join_channels<2>(dst.p, src, rows)
               : cols == 3 ? join_channels<3>(dst.p, src, rows)
                           : join_channels<4>(dst.p, src, rows);
        return elements(done, 0);
    } else if constexpr (kBlocks) {
        if (rows >= cols) return elements(join_blocks(dst, src, rows, cols), 0);
        done = split_blocks(dst, src, rows, cols);
    }
    elements(0, done);
}
#endif
