/* The operators as XLA's custom calls on the CPU: one target for all of them. A descriptor is made when a program is compiled, from
 * attributes that say what infiniopCreateDescriptor() wants, and run in each call. _build.py has this compiled where JAX is. */
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "operators.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using infiniop::kMostOperands;
using infiniop::kOperators;
using infiniop::Operator;

ffi::Error refusal() { return ffi::Error(ffi::ErrorCode::kInvalidArgument, infiniopGetLastErrorMessage()); }

/** What a compiled program keeps of a call. */
struct Call {
    static ffi::TypeId id;

    Call() = default;
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
    ~Call() {
        if (descriptor != nullptr) op->destroy(descriptor);
    }

    const Operator *op = nullptr;
    infiniop::Descriptor descriptor = nullptr;
    size_t workspace_size = 0;
    float alpha = 1, beta = 0;
    std::unique_ptr<int64_t[]> offsets; // of each run, of each operand, bytes; none: one run, no offsets
    size_t n_offsets = 0;

    bool keep_offsets(ffi::Span<const int64_t> given) {
        n_offsets = given.size();
        if (n_offsets == 0) return true;
        offsets.reset(new (std::nothrow) int64_t[n_offsets]);
        if (offsets != nullptr) std::copy(given.begin(), given.end(), offsets.get());
        return offsets != nullptr;
    }
};

ffi::TypeId Call::id = {};
const XLA_FFI_TypeInfo kCallInfo = ffi::MakeTypeInfo<Call>();

ffi::ErrorOr<std::unique_ptr<Call>> create(ffi::Dictionary attributes) {
    const auto name = attributes.get<std::string_view>("op");
    const auto layouts = attributes.get<ffi::Span<const int64_t>>("layouts");
    const auto offsets = attributes.get<ffi::Span<const int64_t>>("offsets");
    const auto scalars = attributes.get<ffi::Span<const float>>("scalars"); // alpha, beta, epsilon
    if (!name || !layouts || !offsets || !scalars || scalars->size() != 3)
        return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kInvalidArgument, "infiniop: attributes are missing"));
    std::unique_ptr<Call> call(new (std::nothrow) Call);
    if (call == nullptr || !call->keep_offsets(*offsets))
        return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kResourceExhausted, "infiniop: no memory for a call"));
    for (const Operator &op : kOperators)
        if (*name == op.name) call->op = &op;
    if (call->op == nullptr)
        return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kInvalidArgument, "infiniop: there is no such operator"));
    // XLA compiles in threads of its own, whose current device is the CPU.
    infiniopHandle_t handle = nullptr;
    if (infiniopCreateHandle(&handle) != INFINI_STATUS_SUCCESS) return ffi::Unexpected(refusal());
    const infiniStatus_t status =
        infiniopCreateDescriptor(handle, &call->descriptor, &call->workspace_size, call->op->name, layouts->begin(),
                                 layouts->size(), (*scalars)[2]);
    const ffi::Error error = status == INFINI_STATUS_SUCCESS ? ffi::Error::Success() : refusal();
    infiniopDestroyHandle(handle);
    if (!error.success()) return ffi::Unexpected(error);
    call->alpha = (*scalars)[0];
    call->beta = (*scalars)[1];
    return call;
}

ffi::Error run(const Call *call, ffi::RemainingArgs inputs, ffi::RemainingRets results, ffi::Dictionary) {
    // Results first. What is behind the last operand is the memory of a result: the addend of a product.
    const size_t n = call->op->n_operands, n_results = results.size();
    if (n_results > n || n - n_results > inputs.size())
        return ffi::Error(ffi::ErrorCode::kInvalidArgument, "infiniop: operands are missing");
    char *operands[kMostOperands];
    for (size_t i = 0; i < n; ++i)
        operands[i] = static_cast<char *>(i < n_results ? results.get<ffi::AnyBuffer>(i).value()->untyped_data()
                                                        : inputs.get<ffi::AnyBuffer>(i - n_results)->untyped_data());
    std::unique_ptr<void, decltype(&std::free)> workspace(nullptr, &std::free);
    if (call->workspace_size > 0) {
        workspace.reset(std::aligned_alloc(64, (call->workspace_size + 63) / 64 * 64));
        if (workspace == nullptr)
            return ffi::Error(ffi::ErrorCode::kResourceExhausted, "infiniop: no memory for the workspace");
    }
    for (size_t run = 0; run == 0 || run * n < call->n_offsets; ++run) {
        void *x[kMostOperands];
        for (size_t i = 0; i < n; ++i) x[i] = operands[i] + (call->offsets ? call->offsets[run * n + i] : 0);
        const infiniStatus_t status =
            call->op->run(call->descriptor, workspace.get(), call->workspace_size, x, call->alpha, call->beta);
        if (status != INFINI_STATUS_SUCCESS) return refusal();
    }
    return ffi::Error::Success();
}

} // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(infiniop_jax_create, create, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER_SYMBOL(infiniop_jax_run, run,
                              ffi::Ffi::Bind().Ctx<ffi::State<Call>>().RemainingArgs().RemainingRets().Attrs());

extern "C" ffi::TypeId *infiniop_jax_type_id() { return &Call::id; }
extern "C" const XLA_FFI_TypeInfo *infiniop_jax_type_info() { return &kCallInfo; }
