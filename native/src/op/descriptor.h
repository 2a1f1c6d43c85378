/* The common part of all operators: descriptors, and the steps every create and every run share. An operator adds an
 * OpSpec (what its operands are) and a check (what makes them a legal problem). */
#pragma once
#include <atomic>
#include <initializer_list>

#include "core/layout.h"
#include "core/slab.h"
#include "infini_backend.h"
#include "infiniop.h"

namespace infini {

struct Handle : InfiniopHandle {
    Handle(infiniDevice_t type, int id, const InfiniOpTable *op_table) : InfiniopHandle{type, id}, ops(op_table) {}
    const InfiniOpTable *ops;
};

} // namespace infini

/** Element strides and sizes as the caller gave them. */
struct InfiniopTensorDescriptor {
    InfiniOperand operand;
};

namespace infini {

using TensorDescriptor = InfiniopTensorDescriptor;

/** What an operator's operands are. Outputs come first. */
struct OpSpec {
    const char *name; // as in messages: "add_rms_norm"
    InfiniOp op;
    int n_outputs;
    int n_operands;
    const char *operand_names[INFINI_MAX_OPERANDS];
    uint32_t may_alias[INFINI_MAX_OPERANDS]; // per output: bit i set when operand i may be exactly this output
    /** Checks dtypes, shapes and strides of the operands, which are as the caller described them. Outputs that overlap
     *  themselves are refused afterwards, by create_descriptor(). */
    infiniStatus_t (*check)(const OpSpec &spec, const InfiniProblem &problem);
    /** Brings a legal problem without empty outputs to the form infini_backend.h promises. */
    void (*reduce)(InfiniProblem &problem);
    bool takes_workspace = true;
};

/* Each in the operator's own file. */
#define INFINI_OP_SPEC(ID, name) extern const OpSpec spec_##name;
INFINI_OP_LIST(INFINI_OP_SPEC)
#undef INFINI_OP_SPEC

/** A backend's plan, shared by a descriptor and the graphs that run it. */
class Plan {
public:
    Plan(const OpSpec &op_spec, const Handle &handle, const InfiniProblem &problem, const InfiniOpTable *op_table);
    ~Plan();
    Plan(const Plan &) = delete;
    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release();

    /** Asks the backend for its plan; a problem whose outputs have no element needs none. */
    infiniStatus_t create_backend_plan(const InfiniProblem &problem);

    /** Every check of a run, in the order NULL, workspace, NULL operands, alignment, overlap. */
    infiniStatus_t check_call(const InfiniCall &call) const;
    infiniStatus_t run(const InfiniCall &call) const {
        return backend_plan_ == nullptr ? INFINI_STATUS_SUCCESS : ops_->run(backend_plan_, &call);
    }

    const char *describe() const {
        const bool tells = backend_plan_ != nullptr && ops_->describe != nullptr;
        const char *const text = tells ? ops_->describe(backend_plan_) : nullptr;
        return text == nullptr ? "" : text;
    }

    const OpSpec &spec() const { return spec_; }
    infiniDevice_t device_type() const { return device_type_; }
    int device_id() const { return device_id_; }
    size_t workspace_size() const { return workspace_size_; }

private:
    infiniStatus_t check_pointers(const InfiniCall &call) const;

    const OpSpec &spec_;
    const InfiniOpTable *ops_;
    infiniDevice_t device_type_;
    int device_id_;
    std::atomic<int> references_{1};
    void *backend_plan_ = nullptr;
    size_t workspace_size_ = 0;
    InfiniOperand operands_[INFINI_MAX_OPERANDS]; // as reduced: the same bytes as the caller described
    struct Memory {
        int64_t begin, end;   // bytes from the operand's pointer
        uintptr_t misaligned; // bits that the pointer must not have
    } memory_[INFINI_MAX_OPERANDS];
};

/** An operator descriptor: the public prefix and a share of the plan. */
struct Descriptor : InfiniopDescriptor {
    explicit Descriptor(Plan *shared_plan)
        : InfiniopDescriptor{shared_plan->device_type(), shared_plan->device_id()}, plan(shared_plan) {}
    ~Descriptor() { plan->release(); }
    Plan *plan;
};

/* ---- the five entry points of an operator, in terms of its spec; `function` is the exported name ----------------- */

infiniStatus_t create_descriptor(const char *function, const OpSpec &spec, infiniopHandle_t handle,
                                 InfiniopDescriptor **desc, std::initializer_list<infiniopTensorDescriptor_t> operands,
                                 float epsilon = 0.0f);
/** The same for operands as make_operand() left them, in `problem`, of which the rest is filled in. */
infiniStatus_t create_descriptor(const char *function, const OpSpec &spec, infiniopHandle_t handle,
                                 InfiniopDescriptor **desc, InfiniProblem &problem);
infiniStatus_t get_workspace_size(const char *function, const OpSpec &spec, const InfiniopDescriptor *desc,
                                  size_t *size);
infiniStatus_t run_descriptor(const char *function, const OpSpec &spec, const InfiniopDescriptor *desc, void *workspace,
                              size_t workspace_size, std::initializer_list<const void *> operands, void *stream,
                              float alpha = 1.0f, float beta = 0.0f);
infiniStatus_t destroy_descriptor(const char *function, const OpSpec &spec, InfiniopDescriptor *desc);

/** The live descriptor behind a pointer, of `spec` or (NULL) of any operator; fails with NULL_POINTER or BAD_PARAM. */
infiniStatus_t find_descriptor(const char *function, const OpSpec *spec, const InfiniopDescriptor *desc,
                               Descriptor **found);
infiniStatus_t find_handle(const char *function, infiniopHandle_t handle, Handle **found);

/* ---- checks that operators share ---------------------------------------------------------------------------------- */

/** Operand `i` has a dtype of `allowed`, the set described by `names`. */
infiniStatus_t check_dtype(const OpSpec &spec, const InfiniProblem &problem, int i, uint32_t allowed,
                           const char *names);
/** Operand `i` has the dtype of operand 0. */
infiniStatus_t check_same_dtype(const OpSpec &spec, const InfiniProblem &problem, int i);
/** Operand `i` has the shape of operand 0. */
infiniStatus_t check_same_shape(const OpSpec &spec, const InfiniProblem &problem, int i);

} // namespace infini
