/* Vectors of 4 floats and 2 doubles, in the compiler's own vector types: SSE2 on x86-64, NEON on aarch64. */
constexpr int kGemmRows = 4; // 8 sums, 2 of B, 1 of A: fits the 16 registers of SSE2
constexpr bool kSmallL2 = false;
constexpr int kInPlaceMaxRows = 4;
constexpr int kColumnsRows = 4;
constexpr bool kLineKernels = false; // see gemm_lines.inl
template <class T>
constexpr bool kHasDots = false; // see gemm_dots.inl
constexpr bool kManyRegisters = false;
constexpr bool kLeanSteps = false;
constexpr int kHeldWeights = 8; // vectors of them that rows of add_rms_norm share

struct VF {
    static constexpr int N = 4;
    using Scalar = float;
    typedef float Vector __attribute__((vector_size(16)));
    Vector v;
};
struct VD {
    static constexpr int N = 2;
    using Scalar = double;
    typedef double Vector __attribute__((vector_size(16)));
    Vector v;
};

INFINI_INLINE VF zero(VF) { return {VF::Vector{}}; }
INFINI_INLINE VD zero(VD) { return {VD::Vector{}}; }
INFINI_INLINE VF broadcast(float x) { return {VF::Vector{x, x, x, x}}; }
INFINI_INLINE VD broadcast(double x) { return {VD::Vector{x, x}}; }
INFINI_INLINE VF load(const float *p) {
    VF x;
    __builtin_memcpy(&x.v, p, sizeof x.v);
    return x;
}
INFINI_INLINE VD load(const double *p) {
    VD x;
    __builtin_memcpy(&x.v, p, sizeof x.v);
    return x;
}
INFINI_INLINE void store(float *p, VF x) { __builtin_memcpy(p, &x.v, sizeof x.v); }
INFINI_INLINE void store(double *p, VD x) { __builtin_memcpy(p, &x.v, sizeof x.v); }
INFINI_INLINE VF operator+(VF a, VF b) { return {a.v + b.v}; }
INFINI_INLINE VD operator+(VD a, VD b) { return {a.v + b.v}; }
INFINI_INLINE VF operator*(VF a, VF b) { return {a.v * b.v}; }
INFINI_INLINE VD operator*(VD a, VD b) { return {a.v * b.v}; }
/** a * b + c, with two roundings: the baseline has no fused multiply-add. */
INFINI_INLINE VF fma(VF a, VF b, VF c) { return {a.v * b.v + c.v}; }
INFINI_INLINE VD fma(VD a, VD b, VD c) { return {a.v * b.v + c.v}; }

/* Halves: what half.inl does with one number, with four. */
typedef uint32_t Bits __attribute__((vector_size(16)));
INFINI_INLINE VF::Vector floats_of(Bits x) { return reinterpret_cast<VF::Vector>(x); }
INFINI_INLINE Bits bits_of(VF::Vector x) { return reinterpret_cast<Bits>(x); }
/** All bits of the lanes where a < b, both below 2^31. */
INFINI_INLINE Bits below(Bits a, uint32_t b) {
    typedef int32_t Signed __attribute__((vector_size(16)));
    return reinterpret_cast<Bits>(reinterpret_cast<Signed>(a) < static_cast<int32_t>(b));
}
INFINI_INLINE Bits select(Bits where, Bits x, Bits otherwise) { return (x & where) | (otherwise & ~where); }
template <class T>
INFINI_INLINE Bits load_bits(const T *p) {
    return Bits{p[0].bits, p[1].bits, p[2].bits, p[3].bits};
}
template <class T>
INFINI_INLINE void store_bits(T *p, Bits x) {
    for (int i = 0; i < VF::N; ++i) p[i].bits = static_cast<uint16_t>(x[i]);
}

INFINI_INLINE VF load(const f16 *p) {
    const Bits x = load_bits(p), magnitude = (x & 0x7fffu) << 13;
    const Bits scaled = bits_of(floats_of(magnitude) * 0x1p112f), special = ~below(magnitude, 0x7c00u << 13);
    return {floats_of((x & 0x8000u) << 16 | scaled | (special & 0x7f800000u))};
}
INFINI_INLINE VF load(const bf16 *p) { return {floats_of(load_bits(p) << 16)}; }
INFINI_CALLED void store(f16 *p, VF x) {
    const Bits u = bits_of(x.v), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    const Bits subnormal = bits_of(floats_of(magnitude) + 0.5f) - 0x3f000000u;
    const Bits normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const Bits nan = 0x7e00u | (magnitude >> 13 & 0x1ffu), infinity = Bits{} + 0x7c00u;
    const Bits finite = select(below(magnitude, 0x38800000u), subnormal, normal);
    const Bits large = select(below(magnitude, 0x7f800001u), infinity, nan);
    store_bits(p, sign | select(below(magnitude, 0x477ff000u), finite, large));
}
INFINI_INLINE void store(bf16 *p, VF x) {
    const Bits u = bits_of(x.v), rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    store_bits(p, select(below(u & 0x7fffffffu, 0x7f800001u), rounded, u >> 16 | 0x40u));
}

template <class T, class V = Vec<T>>
INFINI_INLINE V load_n(const T *p, int64_t n) {
    return load_n_by_memory(p, n);
}
template <class T, class V>
INFINI_INLINE void store_n(T *p, V x, int64_t n) {
    store_n_by_memory(p, x, n);
}

/** x[i][j] <-> x[j][i] */
template <class V, int N>
INFINI_INLINE void transpose(V (&x)[N]) {
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < i; ++j) {
            const typename V::Scalar above = x[j].v[i];
            x[j].v[i] = x[i].v[j];
            x[i].v[j] = above;
        }
}
