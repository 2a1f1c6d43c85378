/* What every instruction set declares before its vectors: which vector a type is computed in, and partial loads and stores
 * for those without masks. */
#define INFINI_INLINE __attribute__((always_inline)) inline
#define INFINI_INLINE_LAMBDA __attribute__((always_inline))
/** One copy of it for all that use it, as it is kilobytes of code. */
#if defined(__clang__)
#define INFINI_CALLED __attribute__((noinline))
#else
#define INFINI_CALLED __attribute__((noinline, noclone))
#endif
/** x, of which the compiler knows nothing: it cannot keep each of its multiples in a register, and then in memory. */
template <class T>
INFINI_INLINE T opaque(T x) {
    __asm__("" : "+r"(x));
    return x;
}
/** Before a loop: its iterations do not depend on each other. */
#if defined(__clang__)
#define INFINI_NO_DEPENDENCIES _Pragma("clang loop vectorize(assume_safety)")
#else
#define INFINI_NO_DEPENDENCIES _Pragma("GCC ivdep")
#endif

struct VF; // floats
struct VD; // doubles
INFINI_INLINE VF load(const float *p);
INFINI_INLINE VD load(const double *p);
INFINI_INLINE void store(float *p, VF x);
INFINI_INLINE void store(double *p, VD x);

/** The vector a type is computed in. */
template <class T>
struct VecOf {
    using type = VF;
};
template <>
struct VecOf<double> {
    using type = VD;
};
template <class T>
using Vec = typename VecOf<T>::type;

/** Has T an instruction that converts two vectors to a whole cache line, and store_two()? */
template <class T>
constexpr bool kStoresTwo = false;

/** The first n < N elements, the others 0. Touches no byte behind them. */
template <class T, class V = Vec<T>>
INFINI_INLINE V load_n_by_memory(const T *p, int64_t n) {
    T whole[V::N] = {};
    for (int64_t i = 0; i < n; ++i) whole[i] = p[i];
    return load(whole);
}
template <class T, class V>
INFINI_INLINE void store_n_by_memory(T *p, V x, int64_t n) {
    T whole[V::N];
    store(whole, x);
    for (int64_t i = 0; i < n; ++i) p[i] = whole[i];
}
