/* Blocks of halves without instructions for them. */
template <>
struct PartOf<f16> {
    using type = VF;
};
template <>
struct PartOf<bf16> {
    using type = VF;
};

template <class T>
struct PackedHalves {
    struct Vector {
        T lanes[VF::N];
    } v[1];
};
template <>
struct Packed<f16> : PackedHalves<f16> {};
template <>
struct Packed<bf16> : PackedHalves<bf16> {};

INFINI_INLINE Packed<f16> pack(const Block<f16> &x) {
    Packed<f16> packed;
    store(packed.v[0].lanes, x.part[0]);
    return packed;
}
INFINI_INLINE Packed<bf16> pack(const Block<bf16> &x) {
    Packed<bf16> packed;
    store(packed.v[0].lanes, x.part[0]);
    return packed;
}
INFINI_INLINE Block<f16> unpack(const Packed<f16> &x) { return {{load(x.v[0].lanes)}}; }
INFINI_INLINE Block<bf16> unpack(const Packed<bf16> &x) { return {{load(x.v[0].lanes)}}; }
template <class T, class From>
INFINI_INLINE void load_parts(Block<T> &x, const From *p) {
    x.part[0] = load(p);
}
