/* One instruction set's kernels. Everything but the table has internal linkage. */
#define INFINI_STRINGIFY_(x) #x
#define INFINI_STRINGIFY(x) INFINI_STRINGIFY_(x)

namespace infini {
namespace {

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
struct pair { // of BF16, the first in the lower half
    uint32_t bits;
};
struct u128 {
    uint64_t lo, hi;
};

#include "cpu/half.inl"
#include "cpu/vec_before.inl"
#if defined(__AVX512F__)
#include "cpu/vec_avx512.inl"
#elif defined(__AVX2__)
#include "cpu/vec_avx2.inl"
#else
#include "cpu/vec_portable.inl"
#endif
#include "cpu/vec_common.inl"
#include "cpu/block.inl"

#include "cpu/copy.inl"
#include "cpu/binary.inl"
#include "cpu/norm.inl"
#include "cpu/binary_tile.inl"
#include "cpu/gemm.inl"
#include "cpu/ceilings.inl"

constexpr KernelTable make_table() {
    KernelTable t{};
    t.name = INFINI_STRINGIFY(INFINI_ISA);
#define INFINI_FILL_BINARY(ID, name, Name)                   \
    fill_binary<Name, false>(t.binary[kBinary##Name]);       \
    fill_binary<Name, true>(t.binary_stream[kBinary##Name]); \
    fill_binary_tile<Name>(t.binary_tile[kBinary##Name]);
    INFINI_BINARY_LIST(INFINI_FILL_BINARY)
#undef INFINI_FILL_BINARY
    fill_norm(t);
    fill_copy(t);
    fill_gemm(t);
    fill_ceilings(t);
    return t;
}

} // namespace

constexpr KernelTable INFINI_ISA_TABLE = make_table();

} // namespace infini
