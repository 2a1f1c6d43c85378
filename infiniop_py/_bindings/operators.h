/* The operators as rows of a table, for what is compiled where a framework is. */
#ifndef INFINIOP_BINDINGS_OPERATORS_H
#define INFINIOP_BINDINGS_OPERATORS_H

#include "infiniop.h"

namespace infiniop {

using Descriptor = InfiniopDescriptor *;

constexpr size_t kMostOperands = 5;

struct Operator {
    const char *name;
    size_t n_operands;
    infiniStatus_t (*destroy)(Descriptor);
    infiniStatus_t (*run)(Descriptor, void *workspace, size_t size, void *const *x, float alpha, float beta);
};

enum { kGemm, kAdd, kMul, kAddRMSNorm, kRearrange, kOperatorCount };

inline constexpr Operator kOperators[kOperatorCount] = {
    {"gemm", 3, infiniopDestroyGemmDescriptor,
     [](Descriptor d, void *workspace, size_t size, void *const *x, float alpha, float beta) {
         return infiniopGemm(d, workspace, size, x[0], x[1], x[2], alpha, beta, nullptr);
     }},
    {"add", 3, infiniopDestroyAddDescriptor,
     [](Descriptor d, void *workspace, size_t size, void *const *x, float, float) {
         return infiniopAdd(d, workspace, size, x[0], x[1], x[2], nullptr);
     }},
    {"mul", 3, infiniopDestroyMulDescriptor,
     [](Descriptor d, void *workspace, size_t size, void *const *x, float, float) {
         return infiniopMul(d, workspace, size, x[0], x[1], x[2], nullptr);
     }},
    {"add_rms_norm", 5, infiniopDestroyAddRMSNormDescriptor,
     [](Descriptor d, void *workspace, size_t size, void *const *x, float, float) {
         return infiniopAddRMSNorm(d, workspace, size, x[0], x[1], x[2], x[3], x[4], nullptr);
     }},
    {"rearrange", 2, infiniopDestroyRearrangeDescriptor,
     [](Descriptor d, void *, size_t, void *const *x, float, float) {
         return infiniopRearrange(d, x[0], x[1], nullptr);
     }},
};

} // namespace infiniop

#endif
