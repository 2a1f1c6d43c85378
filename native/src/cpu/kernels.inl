/* One instruction set's kernels. Everything but the table has internal linkage. */
namespace infini {
namespace {

#include "cpu/vectors.inl"

#include "cpu/strided.inl"
#include "cpu/copy.inl"
#include "cpu/binary.inl"
#include "cpu/norm.inl"
#include "cpu/binary_tile.inl"
#include "cpu/gemm.inl"
#include "cpu/ceilings.inl"

constexpr KernelTable make_table() {
    KernelTable t{};
#define INFINI_FILL_BINARY(ID, name, Name)                   \
    fill_binary<Name, false>(t.binary[kBinary##Name]);       \
    fill_binary<Name, true>(t.binary_stream[kBinary##Name]); \
    fill_binary_tile<Name>(t.binary_tile[kBinary##Name]);
    INFINI_BINARY_LIST(INFINI_FILL_BINARY)
#undef INFINI_FILL_BINARY
    fill_norm(t);
    fill_copy(t);
    t.gemm[INFINI_DTYPE_F16] = gemm_kernel<f16>();
    t.gemm[INFINI_DTYPE_BF16] = gemm_kernel<bf16>();
    t.gemm[INFINI_DTYPE_F32] = gemm_kernel<float>();
    t.gemm[INFINI_DTYPE_F64] = gemm_kernel<double>();
    fill_ceilings(t);
    return t;
}

} // namespace

constexpr KernelTable INFINI_ISA_TABLE = make_table();

} // namespace infini
