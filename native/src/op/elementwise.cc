/* add, mul and their relatives: C = A op B, element by element. */
#include "core/binary_ops.h"
#include "core/dtype.h"
#include "op/descriptor.h"

using namespace infini;

namespace {

infiniStatus_t check(const OpSpec &spec, const InfiniProblem &problem) {
    if (const infiniStatus_t status =
            check_dtype(spec, problem, 0, kFloatDtypes | kIntDtypes, "F16, BF16, F32, F64, I8..I64 or U8..U64"))
        return status;
    for (int i = 1; i < spec.n_operands; ++i)
        if (const infiniStatus_t status = check_same_dtype(spec, problem, i)) return status;
    for (int i = 1; i < spec.n_operands; ++i)
        if (const infiniStatus_t status = check_same_shape(spec, problem, i)) return status;
    return INFINI_STATUS_SUCCESS;
}

void reduce(InfiniProblem &problem) { reduce_dims(problem.operands, problem.n_operands); }

constexpr uint32_t kOnAorB = 1u << 1 | 1u << 2;
} // namespace

#define INFINI_BINARY_SPEC(ID, name, Name) \
    constexpr OpSpec infini::spec_##name = {#name, INFINI_OP_##ID, 1, 3, {"c", "a", "b"}, {kOnAorB}, check, reduce};
INFINI_BINARY_LIST(INFINI_BINARY_SPEC)

#define EXPORT_BINARY(ID, name, Op)                                                                                 \
    INFINI_EXPORT(infiniopCreate##Op##Descriptor,                                                                   \
                  (infiniopHandle_t handle, infiniop##Op##Descriptor_t * desc, infiniopTensorDescriptor_t c,        \
                   infiniopTensorDescriptor_t a, infiniopTensorDescriptor_t b),                                     \
                  return create_descriptor(fn, spec_##name, handle, desc, {c, a, b});)                              \
    INFINI_EXPORT(infiniopGet##Op##WorkspaceSize, (infiniop##Op##Descriptor_t desc, size_t *size),                  \
                  return get_workspace_size(fn, spec_##name, desc, size);)                                          \
    INFINI_EXPORT(infiniop##Op,                                                                                     \
                  (infiniop##Op##Descriptor_t desc, void *workspace, size_t workspace_size, void *c, const void *a, \
                   const void *b, void *stream),                                                                    \
                  return run_descriptor(fn, spec_##name, desc, workspace, workspace_size, {c, a, b}, stream);)      \
    INFINI_EXPORT(infiniopDestroy##Op##Descriptor, (infiniop##Op##Descriptor_t desc),                               \
                  return destroy_descriptor(fn, spec_##name, desc);)

extern "C" {
INFINI_BINARY_LIST(EXPORT_BINARY)
} // extern "C"
