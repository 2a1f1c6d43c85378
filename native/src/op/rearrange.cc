/* rearrange: y[i] = x[i] for every index, bits unchanged. */
#include "core/dtype.h"
#include "op/descriptor.h"

using namespace infini;

namespace {

infiniStatus_t check(const OpSpec &spec, const InfiniProblem &problem) {
    if (const infiniStatus_t status = check_same_dtype(spec, problem, 1)) return status;
    return check_same_shape(spec, problem, 1);
}

void reduce(InfiniProblem &problem) { reduce_dims(problem.operands, problem.n_operands); }

} // namespace

constexpr OpSpec infini::spec_rearrange = {"rearrange", INFINI_OP_REARRANGE, 1, 2, {"y", "x"}, {}, check, reduce,
                                           false};

extern "C" {

INFINI_EXPORT(infiniopCreateRearrangeDescriptor,
              (infiniopHandle_t handle, infiniopRearrangeDescriptor_t *desc, infiniopTensorDescriptor_t y,
               infiniopTensorDescriptor_t x),
              return create_descriptor(fn, spec_rearrange, handle, desc, {y, x});)
INFINI_EXPORT(infiniopRearrange, (infiniopRearrangeDescriptor_t desc, void *y, const void *x, void *stream),
              return run_descriptor(fn, spec_rearrange, desc, nullptr, SIZE_MAX, {y, x}, stream);)
INFINI_EXPORT(infiniopDestroyRearrangeDescriptor, (infiniopRearrangeDescriptor_t desc),
              return destroy_descriptor(fn, spec_rearrange, desc);)

} // extern "C"
