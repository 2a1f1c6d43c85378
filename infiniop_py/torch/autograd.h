/* Derivatives of the operators, made of operators that have derivatives themselves, on any device.
 *
 * Of each operator a node of torch's graph: what it keeps of a call, and the derivatives by the operands from those by the
 * results. d_x is that of some number by x. */
#ifndef INFINIOP_TORCH_AUTOGRAD_H
#define INFINIOP_TORCH_AUTOGRAD_H

#include "cpu.h"
#include "operators.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>

namespace infiniop::torch_ops {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/** What keeps tensors: torch may let go of them while another thread asks for them. */
template <class Op, size_t kSaved>
class Node : public torch::autograd::Node {
public:
    std::string name() const override { return std::string("Infiniop_") + Op::kName; }

    /** An operand, if a derivative needs it: what is kept stays in memory, and must not be written until then. */
    void save(size_t i, const Tensor &operand, bool is_needed) {
        if (is_needed) saved_[i] = SavedVariable(operand, false);
    }
    /** A result, which knows this node already. */
    void save_result(size_t i, const Tensor &result) { saved_[i] = SavedVariable(result, true); }

    void release_variables() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (SavedVariable &one : saved_) one.reset_data();
    }

protected:
    std::array<Tensor, kSaved> saved() {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::array<Tensor, kSaved> tensors;
        for (size_t i = 0; i < kSaved; ++i) tensors[i] = saved_[i].unpack(getptr());
        return tensors;
    }

private:
    std::array<SavedVariable, kSaved> saved_;
};

using at::sum_to; // of a derivative by an operand that was broadcast

using Shape = std::vector<c10::SymInt>;

/** As flatten(0, -2), which torch cannot do to many gradients at once. A size of -1 would be unknown where rows are of length 0. */
inline Tensor as_matrix(const Tensor &x) {
    c10::SymInt rows = 1;
    for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.sym_size(d);
    return x.reshape_symint({rows, x.sym_size(-1)});
}

struct GemmNode : Node<Gemm, 2> {
    double alpha = 1;
    float beta = 0; // as the product takes it
    Shape of_a, of_b;

    variable_list apply(variable_list &&d_results) override {
        variable_list d(3);
        const Tensor &d_result = d_results[0];
        if (!d_result.defined()) return d;
        const auto [a, b] = saved();
        const auto gemm = [&](const Tensor &x, const Tensor &y) {
            return call<Gemm>(x, y, alpha, 0.0, std::optional<Tensor>());
        };
        if (task_should_compute_output(0)) d[0] = sum_to(gemm(d_result, b.mT()), of_a);
        if (task_should_compute_output(1))
            // Where b is one matrix, one product: what it sums over batches is rounded once.
            d[1] =
                of_b.size() == 2 ? gemm(as_matrix(a).mT(), as_matrix(d_result)) : sum_to(gemm(a.mT(), d_result), of_b);
        if (task_should_compute_output(2)) d[2] = d_result * beta;
        return d;
    }
};

struct AddNode : Node<Add, 0> {
    std::array<Shape, 2> shapes;

    variable_list apply(variable_list &&d_results) override {
        variable_list d(2);
        for (size_t i = 0; i < 2; ++i)
            if (d_results[0].defined() && task_should_compute_output(i)) d[i] = sum_to(d_results[0], shapes[i]);
        return d;
    }
};

struct MulNode : Node<Mul, 2> {
    std::array<Shape, 2> shapes;

    variable_list apply(variable_list &&d_results) override {
        variable_list d(2);
        if (!d_results[0].defined()) return d;
        const auto x = saved();
        for (size_t i = 0; i < 2; ++i)
            if (task_should_compute_output(i)) d[i] = sum_to(call<Mul>(d_results[0], x[1 - i]), shapes[i]);
        return d;
    }
};

/** The sum of those that are defined. */
inline Tensor plus(const Tensor &a, const Tensor &b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

inline Tensor mean_of_rows(const Tensor &x) { return x.mean(-1, /*keepdim=*/true); }

/** What y = r * s * w is made of but for the weight, with s = 1 / sqrt(mean(r * r) + epsilon), halves in F32. */
struct Norm {
    Tensor r, s;
    Norm(const Tensor &residual, double epsilon) {
        const at::ScalarType type = residual.scalar_type();
        r = residual.to(type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type);
        s = at::rsqrt(mean_of_rows(r * r) + static_cast<float>(epsilon)); // which the operator takes
    }
};

/** With g = w * d_y: d_w = sum(d_y * r * s) over the rows, d_r = s * (g - r * s * s * mean(g * r)), and d_r + d_residual is
 *  the derivative by both of what was added. */
struct AddRMSNormNode : Node<AddRMSNorm, 2> {
    double epsilon = 0;
    at::ScalarType of_weight = at::kFloat;

    variable_list apply(variable_list &&d_results) override {
        variable_list d(3);
        const Tensor &d_y = d_results[0], &d_residual = d_results[1];
        const bool needs_sum = task_should_compute_output(0) || task_should_compute_output(1);
        if (!d_y.defined()) {
            if (needs_sum) d[0] = d[1] = d_residual;
            return d;
        }
        const auto [weight, residual] = saved();
        const auto [r, s] = Norm(residual, epsilon);
        const Tensor dy = d_y.to(r.scalar_type());
        if (needs_sum) {
            const Tensor g = dy * weight.to(r.scalar_type());
            const Tensor d_r = s * (g - r * (s * s * mean_of_rows(g * r)));
            d[0] = d[1] = plus(d_r, d_residual).to(residual.scalar_type());
        }
        if (task_should_compute_output(2)) d[2] = sum_to(dy * r * s, {r.sym_sizes().back()}).to(of_weight);
        return d;
    }
};

struct RearrangeNode : Node<Rearrange, 0> {
    variable_list apply(variable_list &&d_results) override { return std::move(d_results); }
};

// ---- calls ---------------------------------------------------------------------------------------------------------------

/** Has autograd never been told of these? As of most operands where nothing is trained. */
template <class... Tensors>
bool are_unknown(const Tensors &...operands) {
    const auto is_unknown = [](const Tensor &x) {
        return !x.defined() || x.unsafeGetTensorImpl()->autograd_meta() == nullptr;
    };
    return (is_unknown(operands) && ...);
}

/** A node for a call with these operands, or none where nothing is to be recorded. */
template <class NodeOf, class... Tensors>
c10::intrusive_ptr<NodeOf> node_for(const Tensors &...operands) {
    if (are_unknown(operands...) || !torch::autograd::compute_requires_grad(operands...)) return {};
    auto node = c10::make_intrusive<NodeOf>();
    node->set_next_edges(torch::autograd::collect_next_edges(operands...));
    return node;
}

/** The call without derivatives: that of `kernel`, where nothing is to be done before the one for the CPU. */
template <class Op, class... Args>
auto below(c10::DispatchKeySet keys, typename Op::Signature *kernel, const Args &...args) {
    const c10::DispatchKeySet rest = keys & c10::after_ADInplaceOrView_keyset;
    if (rest.highestPriorityTypeId() == c10::DispatchKey::CPU) return kernel(args...);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return handle<Op>().redispatch(rest, args...);
}

// In forward mode a tensor carries its derivative with it, its tangent, which may be undefined.

template <class... Tensors>
bool have_tangents(const Tensors &...operands) {
    return !are_unknown(operands...) && (torch::autograd::isFwGradDefined(operands) || ...);
}

inline Tensor tangent(const Tensor &x) { return x.defined() ? x._fw_grad(/*level=*/0) : Tensor(); }

/** The tensor without its tangent. */
inline Tensor primal(const Tensor &x) { return tangent(x).defined() ? x._fw_primal(/*level=*/0) : x; }

inline void set_tangent(const Tensor &x, const Tensor &tangent) {
    if (tangent.defined()) x._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
}

inline Tensor gemm_recorded(c10::DispatchKeySet keys, const Tensor &a, const Tensor &b, double alpha, double beta,
                            const std::optional<Tensor> &addend) {
    if (!addend.has_value() && are_unknown(a, b)) return below<Gemm>(keys, gemm_on_cpu, a, b, alpha, beta, addend);
    const Tensor c = addend.value_or(Tensor());
    const auto node = node_for<GemmNode>(a, b, c);
    if (node) {
        node->alpha = alpha;
        node->beta = static_cast<float>(beta);
        node->of_a = a.sym_sizes().vec();
        node->of_b = b.sym_sizes().vec();
        node->save(0, a, node->should_compute_output(1));
        node->save(1, b, node->should_compute_output(0));
    }
    Tensor result = below<Gemm>(keys, gemm_on_cpu, a, b, alpha, beta, addend);
    if (node) torch::autograd::set_history(result, node);
    if (have_tangents(a, b, c)) {
        const auto gemm = [&](const Tensor &x, const Tensor &y) {
            return x.defined() && y.defined() ? call<Gemm>(x, y, alpha, 0.0, std::optional<Tensor>()) : Tensor();
        };
        const Tensor of_c = tangent(c);
        const Tensor of_product = plus(gemm(tangent(a), primal(b)), gemm(primal(a), tangent(b)));
        set_tangent(result, plus(of_product, of_c.defined() ? of_c * static_cast<float>(beta) : of_c));
    }
    return result;
}

inline Tensor add_recorded(c10::DispatchKeySet keys, const Tensor &a, const Tensor &b) {
    const auto node = node_for<AddNode>(a, b);
    if (node) node->shapes = {a.sym_sizes().vec(), b.sym_sizes().vec()};
    Tensor c = below<Add>(keys, elementwise_on_cpu<Add, kAdd>, a, b);
    if (node) torch::autograd::set_history(c, node);
    if (have_tangents(a, b)) set_tangent(c, plus(tangent(a), tangent(b)).expand_symint(c.sym_sizes()));
    return c;
}

inline Tensor mul_recorded(c10::DispatchKeySet keys, const Tensor &a, const Tensor &b) {
    const auto node = node_for<MulNode>(a, b);
    if (node) {
        node->shapes = {a.sym_sizes().vec(), b.sym_sizes().vec()};
        node->save(0, a, node->should_compute_output(1));
        node->save(1, b, node->should_compute_output(0));
    }
    Tensor c = below<Mul>(keys, elementwise_on_cpu<Mul, kMul>, a, b);
    if (node) torch::autograd::set_history(c, node);
    if (have_tangents(a, b)) {
        const auto mul = [](const Tensor &x, const Tensor &y) {
            return x.defined() && y.defined() ? call<Mul>(x, y) : Tensor();
        };
        set_tangent(c, plus(mul(tangent(a), primal(b)), mul(primal(a), tangent(b))));
    }
    return c;
}

/** The tangent of y, from those of what was added and of the weight, which of them there are; as of AddRMSNormNode. */
inline Tensor tangent_of_norm(const Tensor &residual, const Tensor &weight, double epsilon, const Tensor &of_residual,
                              const Tensor &of_weight) {
    const Norm norm(residual, epsilon);
    Tensor result;
    if (of_residual.defined()) {
        const Tensor t = of_residual.to(norm.r.scalar_type());
        result = norm.s * (t - norm.r * (norm.s * norm.s * mean_of_rows(norm.r * t))) * weight;
    }
    if (of_weight.defined()) result = plus(result, norm.r * norm.s * of_weight);
    return result.to(residual.scalar_type());
}

inline std::tuple<Tensor, Tensor> add_rms_norm_recorded(c10::DispatchKeySet keys, const Tensor &a, const Tensor &b,
                                                        const Tensor &weight, double epsilon) {
    const auto node = node_for<AddRMSNormNode>(a, b, weight);
    std::tuple<Tensor, Tensor> results = below<AddRMSNorm>(keys, add_rms_norm_on_cpu, a, b, weight, epsilon);
    const auto &[y, residual] = results;
    if (node) {
        node->epsilon = epsilon;
        node->of_weight = weight.scalar_type();
        node->save(0, weight, node->should_compute_output(0) || node->should_compute_output(1));
        torch::autograd::set_history(y, node);
        torch::autograd::set_history(residual, node);
    }
    if (have_tangents(a, b, weight)) {
        const Tensor of_residual = plus(tangent(a), tangent(b));
        set_tangent(y, tangent_of_norm(residual, primal(weight), epsilon, of_residual, tangent(weight)));
        set_tangent(residual, of_residual);
    }
    if (node) node->save_result(1, residual); // with its tangent
    return results;
}

inline Tensor rearrange_recorded(c10::DispatchKeySet keys, const Tensor &x) {
    const auto node = node_for<RearrangeNode>(x);
    Tensor y = below<Rearrange>(keys, rearrange_on_cpu, x);
    if (node) torch::autograd::set_history(y, node);
    if (have_tangents(x)) set_tangent(y, tangent(x));
    return y;
}

/** Those that write an operand are not recorded. */
template <class Op, class Signature = typename Op::Signature>
struct Written;
template <class Op, class... Args>
struct Written<Op, void(Args...)> {
    template <void (*kernel)(Args...)>
    static void unrecorded(c10::DispatchKeySet keys, Args... args) {
        below<Op>(keys, kernel, args...);
    }
};

} // namespace infiniop::torch_ops

#endif
