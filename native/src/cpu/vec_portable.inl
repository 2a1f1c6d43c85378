/* Vectors of 4 floats and 2 doubles, in the compiler's own vector types: SSE2 on x86-64, NEON on aarch64. */
constexpr int kGemmRows = 4; // 8 sums, 2 of B, 1 of A: fits the 16 registers of SSE2
constexpr bool kSmallL2 = true;
constexpr int kInPlaceMaxRows = 4;
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

INFINI_INLINE VF load(const f16 *p) {
    return {VF::Vector{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
}
INFINI_INLINE VF load(const bf16 *p) {
    return {VF::Vector{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
}
INFINI_INLINE void store(f16 *p, VF x) {
    for (int i = 0; i < VF::N; ++i) p[i] = to_f16(x.v[i]);
}
INFINI_INLINE void store(bf16 *p, VF x) {
    for (int i = 0; i < VF::N; ++i) p[i] = to_bf16(x.v[i]);
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
