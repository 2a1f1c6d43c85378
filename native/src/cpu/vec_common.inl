/* What all instruction sets share on top of their vectors. */

/** Sum of the lanes, in halves: few additions have to wait for each other. */
template <class V>
INFINI_INLINE typename V::Scalar sum(V x) {
    typename V::Scalar lanes[V::N];
    store(lanes, x);
#pragma GCC unroll 4
    for (int half = V::N / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

/** sum += a * b: where registers are not scarce, the compiler needs no help. */
template <class V>
INFINI_INLINE void add_product(V &sum, V a, V b) {
    sum = fma(a, b, sum);
}

INFINI_INLINE double to_acc(double x) { return x; }
INFINI_INLINE float to_acc(float x) { return x; }
INFINI_INLINE float to_acc(f16 x) { return to_float(x); }
INFINI_INLINE float to_acc(bf16 x) { return to_float(x); }
