/* Columns of B that are contiguous in k, read a cache line of each at a time and transposed on their way to a buffer, where an element
 * of each lies side by side. */

/** Columns of B, `step` bytes apart. */
struct ByteColumns {
    const char *p;
    int64_t step, step_3;

    INFINI_INLINE ByteColumns(const void *first, int64_t bytes)
        : p(static_cast<const char *>(first)), step(opaque(bytes)), step_3(opaque(3 * bytes)) {}
    /** f(number, address) for N of them. Else the compiler would keep more addresses than there are registers. */
    template <int N, class F>
    INFINI_INLINE void each(int64_t first, int64_t byte, F &&f) const {
        const char *at = opaque(p + first * step + byte);
#pragma GCC unroll 4
        for (int i = 0; i < N; i += 4, at = opaque(at + 4 * step)) {
            f(i, at);
            f(i + 1, at + step);
            f(i + 2, at + 2 * step);
            f(i + 3, at + step_3);
        }
    }
};

#if defined(__AVX512F__) && !defined(__AVX512BF16__)
/* Halves. Sums are long chains, of which one row of A has few under way, and Intel's CPUs do one shuffle of whole vectors a cycle: while
 * a line of each column is multiplied, the next ones are transposed. Elements are converted when they have been moved. F32 and F64
 * are faster by squares: their chains are shorter for as many bytes, and fewer columns are read at a time. */

constexpr int64_t kHalvesOfLine = kLine / 2;
constexpr int64_t kBytesOfLines = VF::N * kLine; // of N columns

INFINI_INLINE void store_line(char *to, Wide x) { _mm512_store_si512(to, x); }

/** A line of each of N columns in a buffer. put() brings it there, of the columns from the first on, at() has element k of each. */
template <class T>
struct Lines;
/** In pairs, which a shift and a mask convert. */
template <>
struct Lines<bf16> {
    static INFINI_INLINE void put(char *to, const ByteColumns &b, int64_t first) {
        Wide lanes[2][2][4]; // [half of the line][half of the columns]: a load into half of a vector is no shuffle
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            const char *c[8];
            b.each<8>(first + side * 8, 0, [&](int i, const char *p) INFINI_INLINE_LAMBDA { c[i] = p; });
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) // right after each other: many lines may share a set of the cache
                    lanes[half][side][i] =
                        _mm512_inserti64x4(_mm512_castsi256_si512(load_bytes<__m256i>(c[i] + half * 32)),
                                           load_bytes<__m256i>(c[i + 4] + half * 32), 1);
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            transpose_lanes<4>(lanes[half][0]);
            transpose_lanes<4>(lanes[half][1]);
            char *const pairs = to + half * 8 * kLine;
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                store_line(pairs + i * kLine, _mm512_shuffle_i64x2(lanes[half][0][i], lanes[half][1][i], 0x88));
                store_line(pairs + (4 + i) * kLine, _mm512_shuffle_i64x2(lanes[half][0][i], lanes[half][1][i], 0xdd));
            }
        }
    }
    static INFINI_INLINE VF at(const char *lines, int64_t k) {
        const VP x{_mm512_load_si512(lines + k / 2 * kLine)};
        return k % 2 == 0 ? first_of(x) : second_of(x);
    }
};
template <>
struct Lines<f16> {
    static INFINI_INLINE void put(char *to, const ByteColumns &b, int64_t first) {
        Wide x[2][8];
        b.each<16>(first, 0, [&](int i, const char *p) INFINI_INLINE_LAMBDA { x[i / 8][i % 8] = load_bytes<Wide>(p); });
        transpose_lanes<2>(x[0]);
        transpose_lanes<2>(x[1]);
        const Wide low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                   high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) { // elements i and i + 8, i + 16 and i + 24
            store_line(to + i * kLine, _mm512_permutex2var_epi64(x[0][i], low, x[1][i]));
            store_line(to + (8 + i) * kLine, _mm512_permutex2var_epi64(x[0][i], high, x[1][i]));
        }
    }
    static INFINI_INLINE VF at(const char *lines, int64_t k) {
        return load(reinterpret_cast<const f16 *>(lines + (k / 16 * 8 + k % 8) * kLine + k / 8 % 2 * 32));
    }
};

/** What is multiplied next, fetched meanwhile in long runs: `lines` of each of some columns, or what a block has of them. */
struct LineFetch {
    static constexpr int64_t kBlockLines = kGemmBlockUnits / kHalvesOfLine;
    const char *next;
    int64_t lines, step, columns, at_a_time;

    /** During `meanwhile` lines; nothing if `from` is null. */
    INFINI_INLINE LineFetch(const void *from, int64_t lines_, const ByteColumns &b, int64_t columns_, int64_t meanwhile)
        : next(static_cast<const char *>(from)), lines(lines_), step(b.step), columns(from == nullptr ? 0 : columns_),
          at_a_time(meanwhile > 0 ? (columns_ + meanwhile - 1) / meanwhile : 0) {}
    INFINI_INLINE void some() {
        for (int64_t i = 0; i < at_a_time && columns > 0; ++i, --columns, next += step) {
            const char *const from = next;
            if (lines >= kBlockLines)
#pragma GCC unroll 8
                for (int64_t line = 0; line < kBlockLines; ++line) __builtin_prefetch(from + line * kLine, 0, 2);
            else
                for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(from + line * kLine, 0, 2);
        }
    }
};

/** R rows of A, packed, times the columns of Groups vectors. */
template <class T, int R, int Groups>
struct LineProduct {
    using L = Lines<T>;
    static constexpr int64_t N = VF::N, kPart = kHalvesOfLine / Groups;
    using Buffer = char[2][Groups * kBytesOfLines];
    using Sums = VF[R][Groups];

    static INFINI_INLINE void clear(Sums &sums) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int group = 0; group < Groups; ++group) sums[r][group] = zero(VF{});
    }
    static INFINI_INLINE void multiply_one(Sums &sums, const float *&a, int64_t a_unit, const char *lines, int64_t k) {
        VF x[Groups];
#pragma GCC unroll 4
        for (int64_t group = 0; group < Groups; ++group) x[group] = L::at(lines + group * kBytesOfLines, k);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const VF row = broadcast(a[r]);
#pragma GCC unroll 4
            for (int group = 0; group < Groups; ++group) sums[r][group] = fma(row, x[group], sums[r][group]);
        }
        a = opaque(a + a_unit);
    }
    static INFINI_INLINE void multiply(Sums &sums, const float *&a, int64_t a_unit, const char *lines, int64_t first,
                                       int64_t last) {
#pragma GCC unroll 32
        for (int64_t k = first; k < last; ++k) multiply_one(sums, a, a_unit, lines, k);
    }
    static INFINI_INLINE void put(char *buffer, const ByteColumns &b) {
#pragma GCC unroll 4
        for (int64_t group = 0; group < Groups; ++group) L::put(buffer + group * kBytesOfLines, b, group * N);
    }
    /** Adds the products of lines of b, the first of which is in buffer[which]. In the end the line at `then` is there, unless null. */
    static INFINI_INLINE void add(Sums &sums, const float *&a, int64_t a_unit, const ByteColumns &b, int64_t lines,
                                  const char *then, Buffer &buffer, int64_t &which, LineFetch &fetch) {
        ByteColumns next = b;
        for (int64_t line = 1; line <= lines; ++line) {
            const char *const now = opaque(static_cast<const char *>(buffer[which]));
            which ^= 1;
            next.p = line < lines ? b.p + line * kLine : then;
            fetch.some();
            if (next.p == nullptr) return multiply(sums, a, a_unit, now, 0, kHalvesOfLine);
#pragma GCC unroll 4
            for (int64_t group = 0; group < Groups; ++group) {
                L::put(buffer[which] + group * kBytesOfLines, next, group * N);
                multiply(sums, a, a_unit, now, group * kPart, (group + 1) * kPart);
            }
        }
    }
    /** Adds the products of the first elements of a line, or none, by way of a copy with zeros for what there is not. Goes on to what
     *  follows them, and returns how many they were. */
    static INFINI_INLINE int64_t add_rest(Sums &sums, const float *&a, int64_t a_unit, ByteColumns &b, int64_t rest,
                                          char *buffer) {
        if (rest == 0) return 0;
        const auto present = static_cast<__mmask32>((1u << rest) - 1u);
        for (int64_t group = 0; group < Groups; ++group) {
            alignas(kLine) char copy[kBytesOfLines];
            for (int64_t i = 0; i < N; ++i)
                store_line(copy + i * kLine, _mm512_maskz_loadu_epi16(present, b.p + (group * N + i) * b.step));
            L::put(buffer + group * kBytesOfLines, ByteColumns(opaque(static_cast<const char *>(copy)), kLine), 0);
        }
        const char *const now = opaque(static_cast<const char *>(buffer));
#pragma GCC unroll 1
        for (int64_t k = 0; k < rest; ++k) multiply_one(sums, a, a_unit, now, k);
        b.p += rest * 2;
        return rest;
    }
};
#endif
