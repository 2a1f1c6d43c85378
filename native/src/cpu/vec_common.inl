/* What all instruction sets share on top of their vectors. */

/** Sum of the lanes, in their order. */
template <class V>
INFINI_INLINE typename V::Scalar sum(V x) {
    typename V::Scalar lanes[V::N], total = 0;
    store(lanes, x);
    for (int i = 0; i < V::N; ++i) total += lanes[i];
    return total;
}

INFINI_INLINE float from_acc(float x, const float *) { return x; }
INFINI_INLINE double from_acc(double x, const double *) { return x; }
INFINI_INLINE f16 from_acc(float x, const f16 *) { return to_f16(x); }
INFINI_INLINE bf16 from_acc(float x, const bf16 *) { return to_bf16(x); }
INFINI_INLINE double to_acc(double x) { return x; }
INFINI_INLINE float to_acc(float x) { return x; }
INFINI_INLINE float to_acc(f16 x) { return to_float(x); }
INFINI_INLINE float to_acc(bf16 x) { return to_float(x); }
