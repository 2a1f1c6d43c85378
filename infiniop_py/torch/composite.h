/* What is made of the operators for every device and every mode of torch at once. */
#ifndef INFINIOP_TORCH_COMPOSITE_H
#define INFINIOP_TORCH_COMPOSITE_H

#include "operators.h"

namespace infiniop::torch_ops {

/** x @ weight^T + bias, of rows of x or of one. */
inline Tensor linear(const Tensor &x, const Tensor &weight, const std::optional<Tensor> &bias) {
    const bool is_row = x.dim() == 1;
    const Tensor rows = is_row ? x.unsqueeze(0) : x;
    std::optional<Tensor> addend;
    if (bias.has_value()) {
        std::vector<c10::SymInt> shape = rows.sym_sizes().vec();
        if (!shape.empty()) shape.back() = weight.sym_size(0);
        addend = bias->expand_symint(shape);
    }
    const Tensor y = call<Gemm>(rows, weight.mT(), 1.0, bias.has_value() ? 1.0 : 0.0, addend);
    return is_row ? y.squeeze(0) : y;
}

} // namespace infiniop::torch_ops

#endif
