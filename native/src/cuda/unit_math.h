/* Arithmetic on units: with all the elements of a register, each rounded once. */
#pragma once
#include "cuda/device.h"

namespace infini::cuda {

/* Sums and products of two elements: those of F16 and BF16 are computed in F32, whose digits are enough that rounding twice is rounding
 * once. Integers wrap around, which is the same for signed ones. */
struct AddOf {
    template <class A>
    static INFINI_DEVICE A apply(A a, A b) {
        return a + b;
    }
};
struct MulOf {
    template <class A>
    static INFINI_DEVICE A apply(A a, A b) {
        return a * b;
    }
};

/** Small integers are computed in `unsigned`, in which no product is undefined. */
template <class T>
struct Operation {
    using Type = Acc<T>;
};
template <>
struct Operation<uint8_t> {
    using Type = uint32_t;
};
template <>
struct Operation<uint16_t> {
    using Type = uint32_t;
};

/** Op of each two elements of a and b. */
template <class Op, class T>
struct UnitsOf {
    static INFINI_DEVICE Unit<T> apply(const Unit<T> &a, const Unit<T> &b) {
        using A = typename Operation<T>::Type;
        Unit<T> y{};
        INFINI_UNROLL
        for (int i = 0; i < kPerUnit<T>; ++i) {
            const A one = Op::template apply<A>(widen(element_of<T>(a, i)), widen(element_of<T>(b, i)));
            put_element(y, i, round_to<T>(static_cast<Acc<T>>(one)));
        }
        return y;
    }
};
/* The lower bits of bytes and halves do not carry into their neighbours without the highest, which is added then. */
template <>
struct UnitsOf<AddOf, uint8_t> {
    static INFINI_DEVICE uint32_t apply(uint32_t a, uint32_t b) {
        return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
    }
};
template <>
struct UnitsOf<AddOf, uint16_t> {
    static INFINI_DEVICE uint32_t apply(uint32_t a, uint32_t b) {
        return ((a & 0x7fff7fffu) + (b & 0x7fff7fffu)) ^ ((a ^ b) & 0x80008000u);
    }
};

/** A unit's elements of what they are computed in, rounded. */
template <class T>
INFINI_DEVICE Unit<T> round_unit(const Acc<T> (&x)[kPerUnit<T>]) {
    Unit<T> y{};
    INFINI_UNROLL
    for (int i = 0; i < kPerUnit<T>; ++i) put_element(y, i, round_to<T>(x[i]));
    return y;
}

#ifdef __CUDACC__
/* The same two at a time. */
#define INFINI_HALVES(T, Two)                                                       \
    template <>                                                                     \
    struct UnitsOf<AddOf, T> {                                                      \
        static INFINI_DEVICE uint32_t apply(uint32_t a, uint32_t b) {               \
            return bits_as<uint32_t>(__hadd2_rn(bits_as<Two>(a), bits_as<Two>(b))); \
        }                                                                           \
    };                                                                              \
    template <>                                                                     \
    struct UnitsOf<MulOf, T> {                                                      \
        static INFINI_DEVICE uint32_t apply(uint32_t a, uint32_t b) {               \
            return bits_as<uint32_t>(__hmul2_rn(bits_as<Two>(a), bits_as<Two>(b))); \
        }                                                                           \
    };
INFINI_HALVES(f16, __half2)
INFINI_HALVES(bf16, __nv_bfloat162)
#undef INFINI_HALVES
template <>
INFINI_DEVICE uint32_t round_unit<f16>(const float (&x)[2]) {
    return bits_as<uint32_t>(__floats2half2_rn(x[0], x[1]));
}
template <>
INFINI_DEVICE uint32_t round_unit<bf16>(const float (&x)[2]) {
    return bits_as<uint32_t>(__floats2bfloat162_rn(x[0], x[1]));
}
#endif

} // namespace infini::cuda
