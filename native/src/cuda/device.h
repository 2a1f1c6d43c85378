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
#define INFINI_UNROLL _Pragma("unroll")
#else
#include <cmath>
#include <cstring>
#define INFINI_DEVICE inline
#define INFINI_UNROLL _Pragma("GCC unroll 64")
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
