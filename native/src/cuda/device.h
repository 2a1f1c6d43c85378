/* What kernel bodies are written in. A body is a template over its context, `Ctx`: with CudaCtx nvcc makes it a kernel, with the
 * HostCtx of tests/cuda it runs on the CPU, thread by thread. Nothing here or in a body asks which it is but through these macros
 * and the context. */
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define INFINI_DEVICE __device__ __forceinline__
#define INFINI_PRAGMA(text) _Pragma(#text)
#define INFINI_UNROLL _Pragma("unroll")
#define INFINI_UNROLL_IF(condition) INFINI_PRAGMA(unroll((condition) ? 64 : 1))
#define INFINI_NO_UNROLL _Pragma("unroll 1")
#else
#include <cmath>
#include <cstring>
#define INFINI_DEVICE inline
#define INFINI_UNROLL // tests compile in half the time, and take no longer
#define INFINI_UNROLL_IF(condition)
#define INFINI_NO_UNROLL
#endif

namespace infini::cuda {

/* ---- elements ------------------------------------------------------------------------------------------------------ */

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
/** An element of 16 bytes that is only moved. */
struct alignas(16) u128 {
    uint32_t part[4];
};
/** An element that is only moved and need not be aligned to its size, but to that of its halves. */
template <class U>
struct Pair {
    U half[2];
};
template <class T>
constexpr bool kIsPair = false;
template <class U>
constexpr bool kIsPair<Pair<U>> = true;

#ifdef __CUDACC__
INFINI_DEVICE float to_float(f16 x) { return __half2float(__ushort_as_half(x.bits)); }
INFINI_DEVICE float to_float(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
INFINI_DEVICE f16 to_f16(float x) { return {__half_as_ushort(__float2half_rn(x))}; }
INFINI_DEVICE bf16 to_bf16(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
INFINI_DEVICE float reciprocal_sqrt(float x) { return 1.0f / sqrtf(x); }
INFINI_DEVICE double reciprocal_sqrt(double x) { return 1.0 / sqrt(x); }
INFINI_DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
INFINI_DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }
#else
#include "cpu/half.inl"
inline float reciprocal_sqrt(float x) { return 1.0f / std::sqrt(x); }
inline double reciprocal_sqrt(double x) { return 1.0 / std::sqrt(x); }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
inline double fused(double a, double b, double c) { return std::fma(a, b, c); }
#endif

/** What an element type is computed in, and the way there and back, rounding once. */
template <class T>
struct Arithmetic {
    using Type = T;
    static INFINI_DEVICE T widen(T x) { return x; }
    static INFINI_DEVICE T round(T x) { return x; }
};
template <>
struct Arithmetic<f16> {
    using Type = float;
    static INFINI_DEVICE float widen(f16 x) { return to_float(x); }
    static INFINI_DEVICE f16 round(float x) { return to_f16(x); }
};
template <>
struct Arithmetic<bf16> {
    using Type = float;
    static INFINI_DEVICE float widen(bf16 x) { return to_float(x); }
    static INFINI_DEVICE bf16 round(float x) { return to_bf16(x); }
};
template <class T>
using Acc = typename Arithmetic<T>::Type;

template <class T>
INFINI_DEVICE Acc<T> widen(T x) {
    return Arithmetic<T>::widen(x);
}
template <class T>
INFINI_DEVICE T round_to(Acc<T> x) {
    return Arithmetic<T>::round(x);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/** N elements that are moved as one. They are `sizeof(T) * N` aligned in memory, at most 16 bytes. */
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

/** The unsigned integer of a size, which a Pack of that size is loaded as. */
template <int Bytes>
struct WordOf;
template <>
struct WordOf<1> {
    using Type = uint8_t;
};
template <>
struct WordOf<2> {
    using Type = uint16_t;
};
template <>
struct WordOf<4> {
    using Type = uint32_t;
};
template <>
struct WordOf<8> {
    using Type = uint64_t;
};
template <>
struct WordOf<16> {
    using Type = u128;
};
template <int Bytes>
using Word = typename WordOf<Bytes>::Type;

/** The same bytes as another type of that size. */
template <class To, class From>
INFINI_DEVICE To bits_as(const From &from) {
    static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <class T, int N, class Ctx>
INFINI_DEVICE Pack<T, N> load(Ctx &ctx, const T *p) {
    if constexpr (kIsPair<T> && N == 1)
        return {{{ctx.template load<sizeof(T) / 2>(&p->half[0]), ctx.template load<sizeof(T) / 2>(&p->half[1])}}};
    else
        return bits_as<Pack<T, N>>(ctx.template load<sizeof(T) * N>(p));
}
template <class T, int N, class Ctx>
INFINI_DEVICE void store(Ctx &ctx, T *p, const Pack<T, N> &x) {
    if constexpr (kIsPair<T> && N == 1) {
        ctx.store(&p->half[0], x.at[0].half[0]);
        ctx.store(&p->half[1], x.at[0].half[1]);
    } else {
        ctx.store(p, bits_as<Word<sizeof(T) * N>>(x));
    }
}

/* ---- units --------------------------------------------------------------------------------------------------------- */

/** A register that elements share: of 4 bytes, the first element in its lowest bits, or of one element that is larger. */
template <class T>
using Unit = Word<(sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T)))>;
template <class T>
constexpr int kPerUnit = static_cast<int>(sizeof(Unit<T>) / sizeof(T));

/** N neighbours in units. What they leave of the last one is 0. */
template <class T, int N>
struct Chunk {
    static constexpr int kUnits = N > kPerUnit<T> ? N / kPerUnit<T> : 1;
    Unit<T> unit[kUnits];
};

/** An element as the first of a unit. */
template <class T>
INFINI_DEVICE Unit<T> unit_of(const T &x) {
    return bits_as<Word<static_cast<int>(sizeof(T))>>(x);
}
/** Element i of a unit; i is known when this is compiled. */
template <class T>
INFINI_DEVICE T element_of(const Unit<T> &unit, int i) {
    if constexpr (kPerUnit<T> == 1)
        return bits_as<T>(unit);
    else
        return bits_as<T>(static_cast<Word<static_cast<int>(sizeof(T))>>(unit >> (8 * sizeof(T) * i)));
}
/** Makes x the element i of a unit in which that is 0. */
template <class T>
INFINI_DEVICE void put_element(Unit<T> &unit, int i, const T &x) {
    if constexpr (kPerUnit<T> == 1)
        unit = unit_of(x);
    else
        unit |= unit_of(x) << (8 * sizeof(T) * i);
}

template <class T, int N, class Ctx>
INFINI_DEVICE Chunk<T, N> load_chunk(Ctx &ctx, const T *p) {
    if constexpr (N == 1)
        return {{unit_of(load<T, 1>(ctx, p).at[0])}};
    else if constexpr (N < kPerUnit<T>)
        return {{ctx.template load<sizeof(T) * N>(p)}};
    else
        return bits_as<Chunk<T, N>>(ctx.template load<sizeof(T) * N>(p));
}
template <class T, int N, class Ctx>
INFINI_DEVICE void store_chunk(Ctx &ctx, T *p, const Chunk<T, N> &x) {
    if constexpr (N == 1)
        store<T, 1>(ctx, p, {{element_of<T>(x.unit[0], 0)}});
    else if constexpr (N < kPerUnit<T>)
        ctx.store(p, static_cast<Word<static_cast<int>(sizeof(T)) * N>>(x.unit[0]));
    else
        ctx.store(p, bits_as<Word<static_cast<int>(sizeof(T)) * N>>(x));
}
/** Of N elements from p on, `step` apart, those from `begin` on and before `end`; the others are 0 and are not read. */
template <class T, int N, class Ctx>
INFINI_DEVICE Chunk<T, N> load_elements(Ctx &ctx, const T *p, int64_t step, int end, int begin = 0) {
    Chunk<T, N> x{};
    INFINI_UNROLL
    for (int e = 0; e < N; ++e)
        if (e >= begin && e < end)
            put_element(x.unit[e / kPerUnit<T>], e % kPerUnit<T>, load<T, 1>(ctx, p + e * step).at[0]);
    return x;
}
/** Writes of N elements side by side those from `begin` on and before `end`. */
template <class T, int N, class Ctx>
INFINI_DEVICE void store_elements(Ctx &ctx, T *p, const Chunk<T, N> &x, int end, int begin = 0) {
    INFINI_UNROLL
    for (int e = 0; e < N; ++e)
        if (e >= begin && e < end) store<T, 1>(ctx, p + e, {{element_of<T>(x.unit[e / kPerUnit<T>], e % kPerUnit<T>)}});
}
/** N times the same element. */
template <class T, int N>
INFINI_DEVICE Chunk<T, N> repeat(const T &one) {
    Unit<T> unit = unit_of(one);
    if constexpr (kPerUnit<T> > 1 && N > 1) unit *= sizeof(T) == 1 ? 0x01010101u : 0x00010001u;
    Chunk<T, N> x;
    INFINI_UNROLL
    for (int u = 0; u < Chunk<T, N>::kUnits; ++u) x.unit[u] = unit;
    return x;
}

/** The compiler is not to remember what a number is made from, nor to keep what it has made of it: that takes more registers. */
template <class U>
INFINI_DEVICE void forget_origin([[maybe_unused]] U &x) {
#ifdef __CUDACC__
    if constexpr (sizeof(U) == 4) asm volatile("" : "+r"(x));
    if constexpr (sizeof(U) == 8) asm volatile("" : "+l"(x));
#endif
}

/** Four bytes of the eight of a and b, in one instruction; which ones, from the first on, the four bits each of `which` say. */
#ifdef __CUDACC__
INFINI_DEVICE uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }
#else
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
    uint32_t picked = 0;
    for (int i = 0; i < 4; ++i)
        picked |= static_cast<uint32_t>((uint64_t{b} << 32 | a) >> (8 * (which >> (4 * i) & 7)) & 0xff) << (8 * i);
    return picked;
}
#endif

/** 16 of the 32 bytes of two chunks side by side, from the byte `from` on, less than 16, where an element begins. */
template <class T, int N>
INFINI_DEVICE Chunk<T, N> part_of(const Chunk<T, N> &first, const Chunk<T, N> &second, uint32_t from) {
    static_assert(sizeof first == 16 && sizeof(Unit<T>) == 4, "chunks of four registers");
    uint32_t word[8];
    INFINI_UNROLL
    for (int i = 0; i < 4; ++i) word[i] = first.unit[i], word[i + 4] = second.unit[i];
    INFINI_UNROLL
    for (int i = 0; i < 6; ++i) word[i] = (from & 8) != 0 ? word[i + 2] : word[i];
    INFINI_UNROLL
    for (int i = 0; i < 5; ++i) word[i] = (from & 4) != 0 ? word[i + 1] : word[i];
    Chunk<T, N> part;
    INFINI_UNROLL
    for (int i = 0; i < 4; ++i)
        part.unit[i] = sizeof(T) == 4 ? word[i] : pick_bytes(word[i], word[i + 1], 0x3210u + 0x1111u * (from % 4));
    return part;
}

/** Transposes as many units as a unit has elements: element i of unit j becomes element j of unit i. */
template <class T>
INFINI_DEVICE void transpose(Unit<T> *x) {
    if constexpr (kPerUnit<T> == 2) {
        const uint32_t a = x[0], b = x[1];
        x[0] = pick_bytes(a, b, 0x5410);
        x[1] = pick_bytes(a, b, 0x7632);
    } else if constexpr (kPerUnit<T> == 4) {
        const uint32_t low_ab = pick_bytes(x[0], x[1], 0x5140), high_ab = pick_bytes(x[0], x[1], 0x7362);
        const uint32_t low_cd = pick_bytes(x[2], x[3], 0x5140), high_cd = pick_bytes(x[2], x[3], 0x7362);
        x[0] = pick_bytes(low_ab, low_cd, 0x5410);
        x[1] = pick_bytes(low_ab, low_cd, 0x7632);
        x[2] = pick_bytes(high_ab, high_cd, 0x5410);
        x[3] = pick_bytes(high_ab, high_cd, 0x7632);
    }
}

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

constexpr int kWarp = 32;

/** The sum over a warp, the same in every lane, in a fixed order. All lanes call it. */
template <class T, class Ctx>
INFINI_DEVICE T warp_sum(Ctx &ctx, T x) {
    INFINI_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2) x += ctx.shuffle_xor(x, mask);
    return x;
}

} // namespace infini::cuda
