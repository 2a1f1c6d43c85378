/* The operators as torch's dispatcher knows them, and how to call them from here. */
#ifndef INFINIOP_TORCH_OPERATORS_H
#define INFINIOP_TORCH_OPERATORS_H

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <tuple>

namespace infiniop::torch_ops {

using at::Tensor;

struct Gemm {
    static constexpr char kName[] = "gemm";
    using Signature = Tensor(const Tensor &a, const Tensor &b, double alpha, double beta,
                             const std::optional<Tensor> &c);
};
struct GemmInto {
    static constexpr char kName[] = "gemm_";
    using Signature = void(const Tensor &c, const Tensor &a, const Tensor &b, double alpha, double beta);
};
struct Add {
    static constexpr char kName[] = "add";
    using Signature = Tensor(const Tensor &a, const Tensor &b);
};
struct AddInto {
    static constexpr char kName[] = "add_";
    using Signature = void(const Tensor &c, const Tensor &a, const Tensor &b);
};
struct Mul {
    static constexpr char kName[] = "mul";
    using Signature = Add::Signature;
};
struct MulInto {
    static constexpr char kName[] = "mul_";
    using Signature = AddInto::Signature;
};
struct AddRMSNorm {
    static constexpr char kName[] = "add_rms_norm";
    using Signature = std::tuple<Tensor, Tensor>(const Tensor &a, const Tensor &b, const Tensor &weight,
                                                 double epsilon);
};
struct AddRMSNormInto {
    static constexpr char kName[] = "add_rms_norm_";
    using Signature = void(const Tensor &y, const Tensor &residual_out, const Tensor &a, const Tensor &b,
                           const Tensor &weight, double epsilon);
};
struct Rearrange {
    static constexpr char kName[] = "rearrange";
    using Signature = Tensor(const Tensor &x);
};
struct RearrangeInto {
    static constexpr char kName[] = "rearrange_";
    using Signature = void(const Tensor &y, const Tensor &x);
};

/** torch.ops.infiniop's. */
template <class Op>
const auto &handle() {
    static const auto found = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow((std::string("infiniop::") + Op::kName).c_str(), "")
                                  .template typed<typename Op::Signature>();
    return found;
}

/** An operator as a whole: derivatives, whatever wraps the tensors, and the kernel. */
template <class Op, class... Args>
auto call(const Args &...args) {
    return handle<Op>().call(args...);
}

/** What computes the same in Python, on the CPU, or says what is wrong. */
template <class Op, class... Args>
auto ask_python(const Args &...args) {
    static const auto found = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow((std::string("infiniop_py::") + Op::kName).c_str(), "")
                                  .template typed<typename Op::Signature>();
    return found.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), args...);
}

} // namespace infiniop::torch_ops

#endif
