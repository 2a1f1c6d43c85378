/* add_rms_norm: residual_out = A + B; y = residual_out * rsqrt(mean(residual_out^2) + epsilon) * weight. */
#include "core/dtype.h"
#include "op/descriptor.h"

using namespace infini;

namespace {

enum { kY, kResidual, kA, kB, kWeight };

infiniStatus_t check(const OpSpec &spec, const InfiniProblem &problem) {
    const InfiniOperand *const x = problem.operands;
    if (const infiniStatus_t status = check_dtype(spec, problem, kY, kFloatDtypes, "F16, BF16, F32 or F64"))
        return status;
    for (int i : {kResidual, kA, kB})
        if (const infiniStatus_t status = check_same_dtype(spec, problem, i)) return status;
    const bool half = (dtype_bit(x[kY].dtype) & kHalfDtypes) != 0;
    const DtypeSet weights = half ? kHalfDtypes | dtype_bit(INFINI_DTYPE_F32) : dtype_bit(x[kY].dtype);
    if (const infiniStatus_t status = check_dtype(
            spec, problem, kWeight, weights, half ? "F16, BF16 or F32 beside F16 and BF16 tensors" : "the dtype of y"))
        return status;

    const int ndim = x[kY].ndim;
    if (ndim < 1 || ndim > 8)
        return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: y has rank %d, needed 1 to 8", spec.name, ndim);
    for (int i : {kResidual, kA, kB})
        if (const infiniStatus_t status = check_same_shape(spec, problem, i)) return status;
    const int64_t d = x[kY].shape[ndim - 1];
    if (x[kWeight].ndim != 1 || x[kWeight].shape[0] != d)
        return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: weight is %s, needed (%lld,): the last dimension of y %s",
                    spec.name, ShapeText(x[kWeight]).text, static_cast<long long>(d), ShapeText(x[kY]).text);
    for (int i = 0; i < spec.n_operands; ++i) {
        const int64_t stride = x[i].stride[x[i].ndim - 1];
        if (d > 1 && stride != 1 && element_count(x[i]) > 0)
            return fail(INFINI_STATUS_BAD_TENSOR_STRIDES,
                        "%s: the last stride of %s is %lld, needed 1: shape %s, strides %s", spec.name,
                        spec.operand_names[i], static_cast<long long>(stride), ShapeText(x[i]).text,
                        StridesText(x[i]).text);
    }
    return INFINI_STATUS_SUCCESS;
}

void reduce(InfiniProblem &problem) {
    InfiniOperand &weight = problem.operands[kWeight], broadcast = problem.operands[kY];
    for (int d = 0; d < broadcast.ndim; ++d) broadcast.stride[d] = 0;
    broadcast.stride[broadcast.ndim - 1] = weight.stride[0];
    broadcast.dtype = weight.dtype;
    weight = broadcast;
    reduce_dims(problem.operands, problem.n_operands, 1);
}

} // namespace

constexpr OpSpec infini::spec_add_rms_norm = {"add_rms_norm",
                                              INFINI_OP_ADD_RMS_NORM,
                                              2,
                                              5,
                                              {"y", "residual_out", "a", "b", "weight"},
                                              {1u << kA | 1u << kB, 1u << kA | 1u << kB},
                                              check,
                                              reduce};

extern "C" {

INFINI_EXPORT(infiniopCreateAddRMSNormDescriptor,
              (infiniopHandle_t handle, infiniopAddRMSNormDescriptor_t *desc, infiniopTensorDescriptor_t y,
               infiniopTensorDescriptor_t residual_out, infiniopTensorDescriptor_t a, infiniopTensorDescriptor_t b,
               infiniopTensorDescriptor_t weight, float epsilon),
              return create_descriptor(fn, spec_add_rms_norm, handle, desc, {y, residual_out, a, b, weight}, epsilon);)
INFINI_EXPORT(infiniopGetAddRMSNormWorkspaceSize, (infiniopAddRMSNormDescriptor_t desc, size_t *size),
              return get_workspace_size(fn, spec_add_rms_norm, desc, size);)
INFINI_EXPORT(infiniopAddRMSNorm,
              (infiniopAddRMSNormDescriptor_t desc, void *workspace, size_t workspace_size, void *y, void *residual_out,
               const void *a, const void *b, const void *weight, void *stream),
              return run_descriptor(fn, spec_add_rms_norm, desc, workspace, workspace_size,
                                    {y, residual_out, a, b, weight}, stream);)
INFINI_EXPORT(infiniopDestroyAddRMSNormDescriptor, (infiniopAddRMSNormDescriptor_t desc),
              return destroy_descriptor(fn, spec_add_rms_norm, desc);)

} // extern "C"
