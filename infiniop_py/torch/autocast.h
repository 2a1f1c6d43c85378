/* What torch.autocast does to operands: those of products become its type, others that of the widest. */
#ifndef INFINIOP_TORCH_AUTOCAST_H
#define INFINIOP_TORCH_AUTOCAST_H

#include "operators.h"

#include <ATen/autocast_mode.h>

namespace infiniop::torch_ops {

/** Autocast is off until this goes, as it is in torch's own. */
struct Converted {
    c10::impl::ExcludeDispatchKeyGuard guard;
    explicit Converted(at::DeviceType device)
        : guard(at::autocast::get_autocast_dispatch_key_from_device_type(device)) {}
};

/** Two of floating types as the wider of them; others as they are. */
inline std::pair<Tensor, Tensor> widened(const Tensor &a, const Tensor &b) {
    if (a.scalar_type() == b.scalar_type() || !a.is_floating_point() || !b.is_floating_point()) return {a, b};
    const at::ScalarType type = at::promote_types(a.scalar_type(), b.scalar_type());
    return {a.to(type), b.to(type)};
}

/** F64 is left alone, as by torch's own products. */
template <at::DeviceType device>
Tensor gemm_converted(const Tensor &a, const Tensor &b, double alpha, double beta, const std::optional<Tensor> &c) {
    const Converted off(device);
    const at::ScalarType type = at::autocast::get_autocast_dtype(device);
    const auto as = [&](const Tensor &x) { return at::autocast::cached_cast(type, x, device); };
    return call<Gemm>(as(a), as(b), alpha, beta, c.has_value() ? std::optional<Tensor>(as(*c)) : c);
}

template <at::DeviceType device, class Op>
Tensor elementwise_converted(const Tensor &a, const Tensor &b) {
    const Converted off(device);
    const auto [x, y] = widened(a, b);
    return call<Op>(x, y);
}

template <at::DeviceType device>
std::tuple<Tensor, Tensor> add_rms_norm_converted(const Tensor &a, const Tensor &b, const Tensor &weight,
                                                  double epsilon) {
    const Converted off(device);
    const auto [x, y] = widened(a, b);
    const bool is_half =
        x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16; // scaled by what the weight is
    return call<AddRMSNorm>(x, y, is_half ? weight : weight.to(x.scalar_type()), epsilon);
}

} // namespace infiniop::torch_ops

#endif
