/* The kernels for tensors on the CPU: a descriptor from a table of this thread, and one call of the library.
 *
 * What is unusual about a call goes to the function in Python, which does it or says what is wrong: so all words about
 * operands are in one place, and nothing here needs to know more than the usual. */
#ifndef INFINIOP_TORCH_CPU_H
#define INFINIOP_TORCH_CPU_H

#include "../_bindings/operators.h"
#include "infinirt.h"
#include "operators.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>

namespace infiniop::torch_ops {

/** Does this thread record calls? Python does that. */
inline thread_local bool records = false;

/** Has the operator an implementation for the CPU that is registered in Python? Or had one. */
inline std::atomic<bool> is_implemented[kOperatorCount];

constexpr int64_t kMaxRank = 16;

inline infiniDtype_t dtype_of(at::ScalarType type) {
    switch (type) {
    case at::kByte: return INFINI_DTYPE_U8;
    case at::kChar: return INFINI_DTYPE_I8;
    case at::kShort: return INFINI_DTYPE_I16;
    case at::kInt: return INFINI_DTYPE_I32;
    case at::kLong: return INFINI_DTYPE_I64;
    case at::kHalf: return INFINI_DTYPE_F16;
    case at::kBFloat16: return INFINI_DTYPE_BF16;
    case at::kFloat: return INFINI_DTYPE_F32;
    case at::kDouble: return INFINI_DTYPE_F64;
    default: return INFINI_DTYPE_INVALID; // left to Python
    }
}

/** Is it memory of this process, in which each element has its place? */
inline bool is_plain(const Tensor &x) {
    return x.defined() && x.is_cpu() && x.layout() == at::kStrided && x.dim() <= kMaxRank &&
           dtype_of(x.scalar_type()) != INFINI_DTYPE_INVALID && x.has_storage() && !x.is_conj() && !x.is_neg();
}

/** May it be written, as far as autograd is concerned? */
template <class... Tensors>
bool need_no_grad(const Tensors &...operands) {
    return !c10::GradMode::is_enabled() || !(operands.requires_grad() || ...);
}

/** Operands as infiniopCreateDescriptor() takes them: of each its element type, rank, sizes and strides in bytes. */
class Layouts {
public:
    /** An operand, broadcast to a shape that it fits. */
    void add(const Tensor &x, at::IntArrayRef shape) {
        const int64_t rank = static_cast<int64_t>(shape.size()), lead = rank - x.dim(), item = x.element_size();
        head(x, rank);
        for (int64_t size : shape) n_[size_++] = size;
        for (int64_t d = 0; d < rank; ++d)
            n_[size_++] = d < lead || x.size(d - lead) != shape[d] ? 0 : x.stride(d - lead) * item;
    }
    void add(const Tensor &x) { add(x, x.sizes()); }

    /** An operand of a product, with the one batch dimension that is left of its own. */
    void add_matrix(const Tensor &x, bool is_batched, int64_t batch, int64_t step) {
        const int64_t rank = x.dim(), item = x.element_size();
        head(x, is_batched ? 3 : 2);
        if (is_batched) n_[size_++] = batch;
        n_[size_++] = x.size(rank - 2);
        n_[size_++] = x.size(rank - 1);
        if (is_batched) n_[size_++] = step * item;
        n_[size_++] = x.stride(rank - 2) * item;
        n_[size_++] = x.stride(rank - 1) * item;
    }

    const int64_t *begin() const { return n_; }
    size_t size() const { return size_; }

private:
    void head(const Tensor &x, int64_t rank) {
        n_[size_++] = dtype_of(x.scalar_type());
        n_[size_++] = rank;
    }

    int64_t n_[kMostOperands * (2 + 2 * kMaxRank)];
    size_t size_ = 0;
};

/** The descriptors that this thread used last, each at the place that its call's numbers lead to. */
class Descriptors {
public:
    struct Entry {
        Entry() = default;
        Entry(const Entry &) = delete;
        Entry &operator=(const Entry &) = delete;
        ~Entry() { clear(); }
        void clear() {
            if (descriptor != nullptr) kOperators[op].destroy(descriptor);
            descriptor = nullptr;
        }

        bool is(int other_op, const Layouts &other, float other_epsilon) const {
            return descriptor != nullptr && op == other_op && layouts.size() == other.size() &&
                   std::memcmp(layouts.data(), other.begin(), other.size() * sizeof(int64_t)) == 0 &&
                   std::memcmp(&epsilon, &other_epsilon, sizeof epsilon) == 0;
        }

        Descriptor descriptor = nullptr;
        size_t workspace_size = 0;
        int op = 0;
        float epsilon = 0;
        std::vector<int64_t> layouts;
    };

    /** nullptr if the library refuses it. */
    const Entry *find(int op, const Layouts &layouts, float epsilon) {
        uint64_t hash = static_cast<uint64_t>(op);
        for (size_t i = 0; i < layouts.size(); ++i)
            hash = (hash ^ static_cast<uint64_t>(layouts.begin()[i])) * 0x9E3779B97F4A7C15u;
        Entry &entry = entries_[hash >> 57];
        return entry.is(op, layouts, epsilon) || make(entry, op, layouts, epsilon) ? &entry : nullptr;
    }

private:
    static bool make(Entry &entry, int op, const Layouts &layouts, float epsilon) {
        entry.clear();
        entry.op = op;
        entry.epsilon = epsilon;
        entry.layouts.assign(layouts.begin(), layouts.begin() + layouts.size());
        infiniDevice_t device = INFINI_DEVICE_CPU;
        int id = 0;
        if (infinirtGetDevice(&device, &id) != INFINI_STATUS_SUCCESS) return false;
        if (device != INFINI_DEVICE_CPU) infinirtUseDevice(INFINI_DEVICE_CPU, 0);
        infiniopHandle_t handle = nullptr;
        infiniStatus_t status = infiniopCreateHandle(&handle);
        if (device != INFINI_DEVICE_CPU) infinirtUseDevice(device, id);
        if (status != INFINI_STATUS_SUCCESS) return false;
        status = infiniopCreateDescriptor(handle, &entry.descriptor, &entry.workspace_size, kOperators[op].name,
                                          layouts.begin(), layouts.size(), epsilon);
        infiniopDestroyHandle(handle);
        if (status != INFINI_STATUS_SUCCESS) entry.descriptor = nullptr;
        return status == INFINI_STATUS_SUCCESS;
    }

    Entry entries_[128];
};

inline thread_local Descriptors descriptors;

/** Runs an operator; false if the library refuses it, before anything is written. Outputs come first. */
inline bool run(int op, const Layouts &layouts, std::initializer_list<const Tensor *> outputs,
                std::initializer_list<const Tensor *> inputs, float alpha = 1, float beta = 0, float epsilon = 0) {
    const Descriptors::Entry *entry = descriptors.find(op, layouts, epsilon);
    if (entry == nullptr) return false;
    void *x[kMostOperands];
    size_t n = 0;
    for (const Tensor *output : outputs) x[n++] = output->mutable_data_ptr();
    for (const Tensor *input : inputs) x[n++] = const_cast<void *>(input->const_data_ptr());
    c10::DataPtr workspace;
    if (entry->workspace_size > 0) workspace = c10::GetCPUAllocator()->allocate(entry->workspace_size);
    return kOperators[op].run(entry->descriptor, workspace.get(), entry->workspace_size, x, alpha, beta) ==
           INFINI_STATUS_SUCCESS;
}

/** Are these calls that need not go to Python? */
template <class... Tensors>
bool is_usual(int op, const Tensors &...operands) {
    return !records && !is_implemented[op].load(std::memory_order_relaxed) && (is_plain(operands) && ...);
}

/** A new row-major tensor. */
inline Tensor empty(at::IntArrayRef shape, const Tensor &like) {
    return at::detail::empty_cpu(shape, like.scalar_type());
}

/** So that autograd sees that what it saved has changed. */
inline void count_write(const Tensor &x) {
    if (!x.is_inference()) x.unsafeGetTensorImpl()->bump_version();
}

inline bool have_one_dtype(const Tensor &a, const Tensor &b) { return a.scalar_type() == b.scalar_type(); }

// ---- add, mul ------------------------------------------------------------------------------------------------------------

/** The shape that two make, as NumPy has it; false if they make none. */
inline bool broadcast(at::IntArrayRef a, at::IntArrayRef b, at::DimVector &shape) {
    const size_t rank = std::max(a.size(), b.size());
    shape.resize(rank);
    for (size_t d = 0; d < rank; ++d) {
        const int64_t of_a = d < rank - a.size() ? 1 : a[d - (rank - a.size())];
        const int64_t of_b = d < rank - b.size() ? 1 : b[d - (rank - b.size())];
        if (of_a != of_b && of_a != 1 && of_b != 1) return false;
        shape[d] = of_a == 1 ? of_b : of_a;
    }
    return true;
}

inline bool elementwise(int op, const Tensor &c, const Tensor &a, const Tensor &b) {
    Layouts layouts;
    layouts.add(c);
    layouts.add(a, c.sizes());
    layouts.add(b, c.sizes());
    return run(op, layouts, {&c}, {&a, &b});
}

template <class Op, int op>
Tensor elementwise_on_cpu(const Tensor &a, const Tensor &b) {
    at::DimVector shape;
    if (is_usual(op, a, b) && have_one_dtype(a, b) && broadcast(a.sizes(), b.sizes(), shape)) {
        const Tensor c = empty(shape, a);
        if (elementwise(op, c, a, b)) return c;
    }
    return ask_python<Op>(a, b);
}

template <class Op, int op>
void elementwise_into_on_cpu(const Tensor &c, const Tensor &a, const Tensor &b) {
    at::DimVector shape;
    if (is_usual(op, c, a, b) && need_no_grad(c, a, b) && have_one_dtype(a, b) && have_one_dtype(a, c) &&
        broadcast(a.sizes(), b.sizes(), shape) && c.sizes() == at::IntArrayRef(shape) && elementwise(op, c, a, b))
        count_write(c);
    else
        ask_python<Op>(c, a, b);
}

// ---- gemm ----------------------------------------------------------------------------------------------------------------

/** The one batch dimension to which those of a product reduce, where one stride walks through all of them in each operand. */
struct Batch {
    int64_t size = 1, steps[3] = {0, 0, 0}; // of c, a, b; in elements

    bool reduce(const Tensor &c, const Tensor &a, const Tensor &b) {
        const Tensor *operands[3] = {&c, &a, &b};
        const int64_t rank = c.dim();
        for (int64_t d = 0; d < rank - 2; ++d) {
            const int64_t n = c.size(d);
            if (n == 1) continue;
            int64_t here[3];
            for (int i = 0; i < 3; ++i) {
                const int64_t own = d - (rank - operands[i]->dim());
                here[i] = own < 0 || operands[i]->size(own) == 1 ? 0 : operands[i]->stride(own);
            }
            for (int i = 0; i < 3; ++i)
                if (size != 1 && steps[i] != n * here[i]) return false;
            size *= n;
            std::copy(here, here + 3, steps);
        }
        return true;
    }
};

/** The shape of a @ b; false if there is none, or if it has no elements. */
inline bool product_shape(const Tensor &a, const Tensor &b, at::DimVector &shape) {
    if (a.dim() < 2 || b.dim() < 2 || a.size(-1) != b.size(-2) || !have_one_dtype(a, b)) return false;
    const at::IntArrayRef of_a = a.sizes(), of_b = b.sizes();
    if ((a.dim() > 2 || b.dim() > 2) &&
        !broadcast(of_a.slice(0, of_a.size() - 2), of_b.slice(0, of_b.size() - 2), shape))
        return false;
    shape.push_back(a.size(-2));
    shape.push_back(b.size(-1));
    return std::find(shape.begin(), shape.end(), 0) == shape.end();
}

inline bool product(const Tensor &c, const Tensor &a, const Tensor &b, float alpha, float beta) {
    Batch batch;
    if (!batch.reduce(c, a, b)) return false;
    Layouts layouts;
    const Tensor *operands[3] = {&c, &a, &b};
    for (int i = 0; i < 3; ++i) layouts.add_matrix(*operands[i], batch.size != 1, batch.size, batch.steps[i]);
    return run(kGemm, layouts, {&c}, {&a, &b}, alpha, beta);
}

inline bool copy_to(const Tensor &y, const Tensor &x) {
    Layouts layouts;
    layouts.add(y);
    layouts.add(x);
    return run(kRearrange, layouts, {&y}, {&x});
}

inline Tensor gemm_on_cpu(const Tensor &a, const Tensor &b, double alpha, double beta, const std::optional<Tensor> &c) {
    at::DimVector shape;
    if (is_usual(kGemm, a, b) && product_shape(a, b, shape) &&
        (c.has_value() ? is_usual(kRearrange, *c) && c->sizes() == at::IntArrayRef(shape) && have_one_dtype(a, *c)
                       : static_cast<float>(beta) == 0)) {
        const Tensor result = empty(shape, a);
        const float alpha32 = static_cast<float>(alpha), beta32 = static_cast<float>(beta);
        if ((beta32 == 0 || copy_to(result, *c)) && product(result, a, b, alpha32, beta32)) return result;
    }
    return ask_python<Gemm>(a, b, alpha, beta, c);
}

inline void gemm_into_on_cpu(const Tensor &c, const Tensor &a, const Tensor &b, double alpha, double beta) {
    at::DimVector shape;
    if (is_usual(kGemm, c, a, b) && need_no_grad(c, a, b) && product_shape(a, b, shape) &&
        c.sizes() == at::IntArrayRef(shape) && have_one_dtype(a, c) &&
        product(c, a, b, static_cast<float>(alpha), static_cast<float>(beta)))
        count_write(c);
    else
        ask_python<GemmInto>(c, a, b, alpha, beta);
}

// ---- add_rms_norm --------------------------------------------------------------------------------------------------------

inline bool norm(const Tensor &y, const Tensor &residual, const Tensor &a, const Tensor &b, const Tensor &weight,
                 double epsilon) {
    Layouts layouts;
    for (const Tensor *x : {&y, &residual, &a, &b, &weight}) layouts.add(*x);
    return run(kAddRMSNorm, layouts, {&y, &residual}, {&a, &b, &weight}, 1, 0, static_cast<float>(epsilon));
}

inline std::tuple<Tensor, Tensor> add_rms_norm_on_cpu(const Tensor &a, const Tensor &b, const Tensor &weight,
                                                      double epsilon) {
    if (is_usual(kAddRMSNorm, a, b, weight) && a.dim() > 0) {
        const Tensor y = empty(a.sizes(), a), residual = empty(a.sizes(), a);
        if (norm(y, residual, a, b, weight, epsilon)) return {y, residual};
    }
    return ask_python<AddRMSNorm>(a, b, weight, epsilon);
}

inline void add_rms_norm_into_on_cpu(const Tensor &y, const Tensor &residual, const Tensor &a, const Tensor &b,
                                     const Tensor &weight, double epsilon) {
    if (is_usual(kAddRMSNorm, y, residual, a, b, weight) && need_no_grad(y, residual, a, b, weight) &&
        norm(y, residual, a, b, weight, epsilon)) {
        count_write(y);
        count_write(residual);
    } else {
        ask_python<AddRMSNormInto>(y, residual, a, b, weight, epsilon);
    }
}

// ---- rearrange -----------------------------------------------------------------------------------------------------------

inline Tensor rearrange_on_cpu(const Tensor &x) {
    if (is_usual(kRearrange, x)) {
        const Tensor y = empty(x.sizes(), x);
        if (copy_to(y, x)) return y;
    }
    return ask_python<Rearrange>(x);
}

inline void rearrange_into_on_cpu(const Tensor &y, const Tensor &x) {
    if (is_usual(kRearrange, y, x) && need_no_grad(y, x) && copy_to(y, x))
        count_write(y);
    else
        ask_python<RearrangeInto>(y, x);
}

} // namespace infiniop::torch_ops

#endif
