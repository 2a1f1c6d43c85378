/* gemm: C = alpha * A @ B + beta * C, and gemm with an epilogue: Y = (alpha * A @ B) op D. */
#include <algorithm>
#include <string>

#include "core/binary_ops.h"
#include "core/dtype.h"
#include "op/descriptor.h"

using namespace infini;

namespace {

enum { kC, kA, kB, kD }; // of gemm; with an epilogue kC is called y, and there is a kD

infiniStatus_t check(const OpSpec &spec, const InfiniProblem &problem) {
    const InfiniOperand *const x = problem.operands;
    const std::string c = spec.operand_names[kC];
    if (const infiniStatus_t status = check_dtype(spec, problem, kC, kFloatDtypes, "F16, BF16, F32 or F64"))
        return status;
    for (int i = kA; i < spec.n_operands; ++i)
        if (const infiniStatus_t status = check_same_dtype(spec, problem, i)) return status;
    for (int i : {kC, kA, kB})
        if (x[i].ndim != 2 && x[i].ndim != 3)
            return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: %s has rank %d, needed 2 or 3: %s is %s, a is %s, b is %s",
                        spec.name, spec.operand_names[i], x[i].ndim, c.c_str(), ShapeText(x[kC]).text,
                        ShapeText(x[kA]).text, ShapeText(x[kB]).text);
    const auto from_end = [&](int i, int back) { return x[i].shape[x[i].ndim - back]; };
    const auto batch_of = [&](int i) { return x[i].ndim == 3 ? x[i].shape[0] : 1; };
    const auto mismatch = [&](const std::string &what) {
        return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: %s: %s is %s, a is %s, b is %s", spec.name, what.c_str(),
                    c.c_str(), ShapeText(x[kC]).text, ShapeText(x[kA]).text, ShapeText(x[kB]).text);
    };
    if (from_end(kA, 1) != from_end(kB, 2))
        return mismatch("inner dimensions differ, a.shape[-1] must equal b.shape[-2]");
    if (from_end(kC, 2) != from_end(kA, 2)) return mismatch("rows differ, " + c + ".shape[-2] must equal a.shape[-2]");
    if (from_end(kC, 1) != from_end(kB, 1))
        return mismatch("columns differ, " + c + ".shape[-1] must equal b.shape[-1]");
    const int64_t batch = batch_of(kC);
    for (int i : {kA, kB})
        if (batch_of(i) != batch && batch_of(i) != 1)
            return mismatch("batches differ, those of a and b must be 1 or that of " + c);
    return spec.n_operands > kD ? check_same_shape(spec, problem, kD) : INFINI_STATUS_SUCCESS;
}

/** [M, N] becomes [1, M, N]; a batch of 1 gets the common batch, with stride 0. */
void reduce(InfiniProblem &problem) {
    const InfiniOperand &c = problem.operands[kC];
    const int64_t batch = c.ndim == 3 ? c.shape[0] : 1;
    for (int i = 0; i < problem.n_operands; ++i) {
        InfiniOperand &x = problem.operands[i];
        if (x.ndim == 2) {
            for (int d = 2; d > 0; --d) {
                x.shape[d] = x.shape[d - 1];
                x.stride[d] = x.stride[d - 1];
            }
            x.ndim = 3;
            x.shape[0] = 1;
        }
        if (x.shape[0] == 1) x.stride[0] = 0;
        x.shape[0] = batch;
    }
}

} // namespace

constexpr OpSpec infini::spec_gemm = {"gemm", INFINI_OP_GEMM, 1, 3, {"c", "a", "b"}, {}, check, reduce};

#define EPILOGUE_SPEC(ID, name, Name, Op) \
    constexpr OpSpec infini::spec_##name = {#name, INFINI_OP_##ID, 1, 4, {"y", "a", "b", "d"}, {}, check, reduce};
INFINI_GEMM_EPILOGUE_LIST(EPILOGUE_SPEC)

#define EXPORT_EPILOGUE(ID, name, Name, Op)                                                                    \
    INFINI_EXPORT(infiniopCreate##Name##Descriptor,                                                            \
                  (infiniopHandle_t handle, infiniop##Name##Descriptor_t * desc, infiniopTensorDescriptor_t y, \
                   infiniopTensorDescriptor_t a, infiniopTensorDescriptor_t b, infiniopTensorDescriptor_t d),  \
                  return create_descriptor(fn, spec_##name, handle, desc, {y, a, b, d});)                      \
    INFINI_EXPORT(infiniopGet##Name##WorkspaceSize, (infiniop##Name##Descriptor_t desc, size_t *size),         \
                  return get_workspace_size(fn, spec_##name, desc, size);)                                     \
    INFINI_EXPORT(                                                                                             \
        infiniop##Name,                                                                                        \
        (infiniop##Name##Descriptor_t desc, void *workspace, size_t workspace_size, void *y, const void *a,    \
         const void *b, const void *d, float alpha, void *stream),                                             \
        return run_descriptor(fn, spec_##name, desc, workspace, workspace_size, {y, a, b, d}, stream, alpha);) \
    INFINI_EXPORT(infiniopDestroy##Name##Descriptor, (infiniop##Name##Descriptor_t desc),                      \
                  return destroy_descriptor(fn, spec_##name, desc);)

extern "C" {

INFINI_EXPORT(infiniopCreateGemmDescriptor,
              (infiniopHandle_t handle, infiniopGemmDescriptor_t *desc, infiniopTensorDescriptor_t c,
               infiniopTensorDescriptor_t a, infiniopTensorDescriptor_t b),
              return create_descriptor(fn, spec_gemm, handle, desc, {c, a, b});)
INFINI_EXPORT(infiniopGetGemmWorkspaceSize, (infiniopGemmDescriptor_t desc, size_t *size),
              return get_workspace_size(fn, spec_gemm, desc, size);)
INFINI_EXPORT(infiniopGemm,
              (infiniopGemmDescriptor_t desc, void *workspace, size_t workspace_size, void *c, const void *a,
               const void *b, float alpha, float beta, void *stream),
              return run_descriptor(fn, spec_gemm, desc, workspace, workspace_size, {c, a, b}, stream, alpha, beta);)
INFINI_EXPORT(infiniopDestroyGemmDescriptor, (infiniopGemmDescriptor_t desc),
              return destroy_descriptor(fn, spec_gemm, desc);)
INFINI_GEMM_EPILOGUE_LIST(EXPORT_EPILOGUE)

} // extern "C"
