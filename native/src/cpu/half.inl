/* Scalar conversions of F16 and BF16, correctly rounded (nearest even), subnormals included. They assume the default
 * floating-point environment, which guard() of core/status.h sees to. */

inline uint32_t bits_of(float x) {
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}
inline float float_of(uint32_t u) {
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

inline float to_float(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

inline float to_float(f16 x) {
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
    // Read as a float the bits are 2^112 too small, for subnormals too; infinities and NaNs need the full exponent.
    const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
    const uint32_t special = magnitude >= 0x7c00u << 13 ? 0x7f800000u : 0u;
    return float_of(sign | scaled | special);
}

inline bf16 to_bf16(float x) {
    const uint32_t u = bits_of(x);
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    const uint32_t quiet_nan = u >> 16 | 0x40u; // rounding could carry a NaN into an infinity
    return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

inline f16 to_f16(float x) {
    const uint32_t u = bits_of(x);
    const uint32_t sign = u >> 16 & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    // Below 2^-14 the result is subnormal: adding 0.5 lets the float unit round at the right bit, 2^-24.
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x1ffu);
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t large = magnitude > 0x7f800000u ? nan : 0x7c00u; // from 65520 on everything rounds to infinity
    return {static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? large : finite))};
}

inline float to_float(float x) { return x; }
