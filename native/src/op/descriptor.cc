#include "op/descriptor.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/dtype.h"
#include "cpu/cpu_backend.h"

namespace infini {

namespace {

/** Operators of a device type: the CPU's live in this library, the others in their plugins. */
infiniStatus_t find_ops(infiniDevice_t device, const InfiniOpTable **ops) {
    if (device == INFINI_DEVICE_CPU) {
        *ops = &kCpuOps;
        return INFINI_STATUS_SUCCESS;
    }
    const InfiniBackend *backend = nullptr;
    const infiniStatus_t status = infinirtGetBackend(device, &backend);
    if (status == INFINI_STATUS_SUCCESS) *ops = backend->ops;
    return status;
}

infiniStatus_t fail_dead(const char *function, const char *what, const void *pointer) {
    return fail(INFINI_STATUS_BAD_PARAM, "%s: %s %p was destroyed or is no such object", function, what, pointer);
}

#define INFINI_OP_SPEC(ID, name) &spec_##name,
constexpr const OpSpec *kSpecs[] = {INFINI_OP_LIST(INFINI_OP_SPEC)};
#undef INFINI_OP_SPEC

/** The operands of infiniopCreateDescriptor. */
infiniStatus_t read_layouts(const char *function, const OpSpec &spec, const int64_t *at, size_t n,
                            InfiniProblem &problem) {
    size_t left = n;   // not an end pointer: no array ends n numbers from here where n is wrong
    char who[64] = ""; // is wrong; written when it is
    const auto cut_short = [&] {
        return fail(INFINI_STATUS_BAD_PARAM, "%s: layouts has %zu numbers, which are not those of %d operands of %s",
                    function, n, spec.n_operands, spec.name);
    };
    const auto name = [&](int i) {
        std::snprintf(who, sizeof who, "%s: %s", spec.name, spec.operand_names[i]);
        return who;
    };
    for (int i = 0; i < spec.n_operands; ++i) {
        if (left < 2) return cut_short();
        left -= 2;
        const int64_t dtype = *at++, ndim = *at++;
        if (dtype < 0 || dtype > INT32_MAX || !dtype_known(static_cast<infiniDtype_t>(dtype)))
            return fail(INFINI_STATUS_BAD_TENSOR_DTYPE, "%s: dtype %lld is not an element type", name(i),
                        static_cast<long long>(dtype));
        if (ndim < 0 || ndim > INFINI_MAX_DIMS)
            return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: rank %lld, at most %d is possible", name(i),
                        static_cast<long long>(ndim), INFINI_MAX_DIMS);
        if (left < 2 * static_cast<size_t>(ndim)) return cut_short();
        left -= 2 * static_cast<size_t>(ndim);
        const int64_t itemsize = kDtypes[dtype].size;
        size_t shape[INFINI_MAX_DIMS];
        ptrdiff_t strides[INFINI_MAX_DIMS];
        const bool empty = std::find(at, at + ndim, 0) != at + ndim;
        for (int64_t d = 0; d < ndim; ++d) {
            const int64_t bytes = at[ndim + d];
            // Where no step is taken, a stride means nothing.
            if (bytes % itemsize != 0 && at[d] > 1 && !empty)
                return fail(INFINI_STATUS_BAD_TENSOR_STRIDES,
                            "%s: a stride of %lld bytes is not a multiple of its element size %lld (%s); copy it to an "
                            "array of its own",
                            name(i), static_cast<long long>(bytes), static_cast<long long>(itemsize),
                            kDtypes[dtype].name);
            shape[d] = static_cast<size_t>(at[d]);
            strides[d] = bytes / itemsize;
        }
        const auto make = [&](const char *said) {
            return make_operand(&problem.operands[i], said, static_cast<size_t>(ndim), shape, strides,
                                static_cast<infiniDtype_t>(dtype));
        };
        if (make(spec.name) != INFINI_STATUS_SUCCESS) return make(name(i)); // again, for the message
        at += 2 * ndim;
    }
    return left == 0 ? INFINI_STATUS_SUCCESS : cut_short();
}

} // namespace

infiniStatus_t find_handle(const char *function, infiniopHandle_t handle, Handle **found) {
    *found = nullptr;
    if (handle == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: handle is NULL", function);
    *found = slab<Handle>.find(handle);
    return *found != nullptr ? INFINI_STATUS_SUCCESS : fail_dead(function, "handle", handle);
}

infiniStatus_t find_descriptor(const char *function, const OpSpec *spec, const InfiniopDescriptor *desc,
                               Descriptor **found) {
    *found = nullptr;
    if (desc == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: desc is NULL", function);
    *found = slab<Descriptor>.find(desc);
    if (*found == nullptr) return fail_dead(function, "descriptor", desc);
    if (spec != nullptr && &(*found)->plan->spec() != spec)
        return fail(INFINI_STATUS_BAD_PARAM, "%s: desc is a descriptor of %s, needed one of %s", function,
                    (*found)->plan->spec().name, spec->name);
    return INFINI_STATUS_SUCCESS;
}

/* ---- plan ----------------------------------------------------------------------------------------------------------- */

Plan::Plan(const OpSpec &op_spec, const Handle &handle, const InfiniProblem &problem, const InfiniOpTable *op_table)
    : spec_(op_spec), ops_(op_table), device_type_(handle.device), device_id_(handle.device_id) {
    for (int i = 0; i < spec_.n_operands; ++i) {
        operands_[i] = problem.operands[i];
        const Extent elements = extent_of(operands_[i]);
        const DtypeInfo &dtype = kDtypes[operands_[i].dtype];
        memory_[i] = {elements.lo * dtype.size, elements.hi * dtype.size, static_cast<uintptr_t>(dtype.alignment - 1)};
    }
}

Plan::~Plan() {
    if (backend_plan_ != nullptr) ops_->destroy(backend_plan_);
}

void Plan::release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

infiniStatus_t Plan::create_backend_plan(const InfiniProblem &problem) {
    void *plan = nullptr; // of which a create that fails may leave anything
    size_t workspace_size = 0;
    if (const infiniStatus_t status = ops_->create(&problem, &plan, &workspace_size)) return status;
    backend_plan_ = plan;
    workspace_size_ = workspace_size;
    if (backend_plan_ == nullptr || (workspace_size_ > 0 && !spec_.takes_workspace))
        return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: the backend of device type %d broke its contract: %s",
                    spec_.name, device_type_,
                    backend_plan_ == nullptr ? "its plan is NULL"
                                             : "it asks for a workspace that this operator cannot be given");
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t Plan::check_pointers(const InfiniCall &call) const {
    for (int i = 0; i < spec_.n_operands; ++i)
        if (call.operands[i] == nullptr && memory_[i].begin != memory_[i].end)
            return fail(INFINI_STATUS_NULL_POINTER, "%s: %s is NULL and has elements", spec_.name,
                        spec_.operand_names[i]);
    for (int i = 0; i < spec_.n_operands; ++i) {
        if ((reinterpret_cast<uintptr_t>(call.operands[i]) & memory_[i].misaligned) == 0) continue;
        const DtypeInfo &dtype = kDtypes[operands_[i].dtype];
        return fail(INFINI_STATUS_BAD_PARAM, "%s: %s at %p is not aligned to the %d bytes of %s", spec_.name,
                    spec_.operand_names[i], call.operands[i], dtype.alignment, dtype.name);
    }
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t Plan::check_call(const InfiniCall &call) const {
    if (call.workspace_size < workspace_size_)
        return fail(INFINI_STATUS_INSUFFICIENT_WORKSPACE, "%s: workspace has %zu bytes, needed %zu", spec_.name,
                    call.workspace_size, workspace_size_);
    if (call.workspace == nullptr && workspace_size_ > 0)
        return fail(INFINI_STATUS_NULL_POINTER, "%s: workspace is NULL, needed %zu bytes", spec_.name, workspace_size_);
    bool wrong = false; // perhaps
    for (int i = 0; i < spec_.n_operands; ++i) {
        const uintptr_t address = reinterpret_cast<uintptr_t>(call.operands[i]);
        wrong |= address == 0 || (address & memory_[i].misaligned) != 0;
    }
    if (wrong)
        if (const infiniStatus_t status = check_pointers(call)) return status;
    for (int o = 0; o < spec_.n_outputs; ++o) {
        for (int i = o + 1; i < spec_.n_operands; ++i) {
            const char *output = static_cast<const char *>(call.operands[o]),
                       *other = static_cast<const char *>(call.operands[i]);
            // Most calls end here: the byte ranges are apart.
            if (output + memory_[o].end <= other + memory_[i].begin ||
                other + memory_[i].end <= output + memory_[o].begin)
                continue;
            if ((spec_.may_alias[o] >> i & 1) != 0 && output == other && same_layout(operands_[o], operands_[i]))
                continue;
            if (overlap(operands_[o], output, operands_[i], other))
                return fail(INFINI_STATUS_BAD_PARAM, "%s: %s overlaps %s%s", spec_.name, spec_.operand_names[o],
                            spec_.operand_names[i],
                            (spec_.may_alias[o] >> i & 1) != 0 ? " without being exactly the same memory and layout"
                                                               : "");
        }
    }
    for (int i = 0; workspace_size_ > 0 && i < spec_.n_operands; ++i) {
        const char *const operand = static_cast<const char *>(call.operands[i]);
        const char *const workspace = static_cast<const char *>(call.workspace);
        if (workspace + workspace_size_ <= operand + memory_[i].begin || operand + memory_[i].end <= workspace)
            continue;
        InfiniOperand bytes{};
        bytes.dtype = INFINI_DTYPE_U8;
        bytes.ndim = 1;
        bytes.shape[0] = static_cast<int64_t>(workspace_size_);
        bytes.stride[0] = 1;
        if (overlap(bytes, workspace, operands_[i], operand))
            return fail(INFINI_STATUS_BAD_PARAM, "%s: the workspace overlaps %s", spec_.name, spec_.operand_names[i]);
    }
    return INFINI_STATUS_SUCCESS;
}

/* ---- entry points --------------------------------------------------------------------------------------------------- */

infiniStatus_t create_descriptor(const char *function, const OpSpec &spec, infiniopHandle_t handle,
                                 InfiniopDescriptor **desc, std::initializer_list<infiniopTensorDescriptor_t> operands,
                                 float epsilon) {
    if (desc == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: desc is NULL", function);
    int i = 0;
    for (infiniopTensorDescriptor_t operand : operands) {
        if (operand == nullptr)
            return fail(INFINI_STATUS_NULL_POINTER, "%s: the tensor descriptor of %s is NULL", function,
                        spec.operand_names[i]);
        ++i;
    }
    InfiniProblem problem{};
    problem.epsilon = epsilon;
    i = 0;
    for (infiniopTensorDescriptor_t operand : operands) {
        const TensorDescriptor *tensor = slab<TensorDescriptor>.find(operand);
        if (tensor == nullptr)
            return fail(INFINI_STATUS_BAD_PARAM,
                        "%s: the tensor descriptor of %s, %p, was destroyed or is no such object", function,
                        spec.operand_names[i], static_cast<void *>(operand));
        problem.operands[i++] = tensor->operand;
    }
    return create_descriptor(function, spec, handle, desc, problem);
}

infiniStatus_t create_descriptor(const char *function, const OpSpec &spec, infiniopHandle_t handle,
                                 InfiniopDescriptor **desc, InfiniProblem &problem) {
    Handle *device;
    if (const infiniStatus_t status = find_handle(function, handle, &device)) return status;
    problem.struct_size = sizeof problem;
    problem.op = spec.op;
    problem.device_id = device->device_id;
    problem.n_operands = spec.n_operands;
    if (const infiniStatus_t status = spec.check(spec, problem)) return status;
    bool empty = true;
    for (int o = 0; o < spec.n_outputs; ++o) {
        if (overlaps_itself(problem.operands[o]))
            return fail(INFINI_STATUS_BAD_TENSOR_STRIDES,
                        "%s: elements of output %s overlap each other: shape %s, strides %s", spec.name,
                        spec.operand_names[o], ShapeText(problem.operands[o]).text,
                        StridesText(problem.operands[o]).text);
        empty = empty && element_count(problem.operands[o]) == 0;
    }
    if (!empty) spec.reduce(problem);

    std::unique_ptr<Plan, void (*)(Plan *)> plan(new Plan(spec, *device, problem, device->ops),
                                                 [](Plan *p) { p->release(); });
    if (!empty)
        if (const infiniStatus_t status = plan->create_backend_plan(problem)) return status;
    Descriptor *made = slab<Descriptor>.create(plan.get());
    plan.release(); // now the descriptor's
    *desc = made;
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t get_workspace_size(const char *function, const OpSpec &spec, const InfiniopDescriptor *desc,
                                  size_t *size) {
    Descriptor *found;
    if (const infiniStatus_t status = find_descriptor(function, &spec, desc, &found)) return status;
    if (size == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: size is NULL", function);
    *size = found->plan->workspace_size();
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t run_descriptor(const char *function, const OpSpec &spec, const InfiniopDescriptor *desc, void *workspace,
                              size_t workspace_size, std::initializer_list<const void *> operands, void *stream,
                              float alpha, float beta) {
    Descriptor *found;
    if (const infiniStatus_t status = find_descriptor(function, &spec, desc, &found)) return status;
    const InfiniCall call{workspace, workspace_size, const_cast<void *const *>(operands.begin()), alpha, beta, stream};
    if (const infiniStatus_t status = found->plan->check_call(call)) return status;
    return found->plan->run(call);
}

infiniStatus_t destroy_descriptor(const char *function, const OpSpec &spec, InfiniopDescriptor *desc) {
    if (desc == nullptr) return INFINI_STATUS_SUCCESS;
    Descriptor *found;
    if (const infiniStatus_t status = find_descriptor(function, &spec, desc, &found)) return status;
    return slab<Descriptor>.destroy(found) ? INFINI_STATUS_SUCCESS : fail_dead(function, "descriptor", desc);
}

/* ---- shared checks -------------------------------------------------------------------------------------------------- */

infiniStatus_t check_dtype(const OpSpec &spec, const InfiniProblem &problem, int i, uint32_t allowed,
                           const char *names) {
    const int dtype = problem.operands[i].dtype;
    if ((allowed & dtype_bit(dtype)) != 0) return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_TENSOR_DTYPE, "%s: %s has dtype %s, needed %s", spec.name, spec.operand_names[i],
                kDtypes[dtype].name, names);
}

infiniStatus_t check_same_dtype(const OpSpec &spec, const InfiniProblem &problem, int i) {
    if (problem.operands[i].dtype == problem.operands[0].dtype) return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_TENSOR_DTYPE, "%s: dtypes differ: %s is %s, %s is %s; they must be equal", spec.name,
                spec.operand_names[0], kDtypes[problem.operands[0].dtype].name, spec.operand_names[i],
                kDtypes[problem.operands[i].dtype].name);
}

infiniStatus_t check_same_shape(const OpSpec &spec, const InfiniProblem &problem, int i) {
    const InfiniOperand &first = problem.operands[0], &other = problem.operands[i];
    if (first.ndim == other.ndim &&
        std::memcmp(first.shape, other.shape, sizeof(int64_t) * static_cast<size_t>(first.ndim)) == 0)
        return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: shapes differ: %s is %s, %s is %s; they must be equal", spec.name,
                spec.operand_names[0], ShapeText(first).text, spec.operand_names[i], ShapeText(other).text);
}

} // namespace infini

using namespace infini;

extern "C" {

INFINI_EXPORT(infiniopCreateHandle, (infiniopHandle_t * handle), {
    if (handle == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: handle is NULL", fn);
    infiniDevice_t device;
    int id;
    const InfiniOpTable *ops;
    if (const infiniStatus_t status = infinirtGetDevice(&device, &id)) return status;
    if (const infiniStatus_t status = find_ops(device, &ops)) return status;
    *handle = slab<Handle>.create(device, id, ops);
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopDestroyHandle, (infiniopHandle_t handle), {
    if (handle == nullptr) return INFINI_STATUS_SUCCESS;
    Handle *found;
    if (const infiniStatus_t status = find_handle(fn, handle, &found)) return status;
    return slab<Handle>.destroy(found) ? INFINI_STATUS_SUCCESS : fail_dead(fn, "handle", handle);
})

INFINI_EXPORT(infiniopCreateTensorDescriptor,
              (infiniopTensorDescriptor_t * desc, size_t ndim, const size_t *shape, const ptrdiff_t *strides,
               infiniDtype_t dtype),
              {
                  if (desc == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: desc is NULL", fn);
                  InfiniOperand operand;
                  if (const infiniStatus_t status = make_operand(&operand, fn, ndim, shape, strides, dtype))
                      return status;
                  TensorDescriptor *made = slab<TensorDescriptor>.create();
                  made->operand = operand;
                  *desc = made;
                  return INFINI_STATUS_SUCCESS;
              })

INFINI_EXPORT(infiniopDestroyTensorDescriptor, (infiniopTensorDescriptor_t desc), {
    if (desc == nullptr) return INFINI_STATUS_SUCCESS;
    TensorDescriptor *found = slab<TensorDescriptor>.find(desc);
    return found != nullptr && slab<TensorDescriptor>.destroy(found) ? INFINI_STATUS_SUCCESS
                                                                     : fail_dead(fn, "tensor descriptor", desc);
})

INFINI_EXPORT(infiniopGetDescriptorDeviceType, (const struct InfiniopDescriptor *desc, infiniDevice_t *device_type), {
    if (device_type == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: device_type is NULL", fn);
    Descriptor *found;
    if (const infiniStatus_t status = find_descriptor(fn, nullptr, desc, &found)) return status;
    *device_type = found->device_type;
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopGetDescriptorDeviceId, (const struct InfiniopDescriptor *desc, int *device_id), {
    if (device_id == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: device_id is NULL", fn);
    Descriptor *found;
    if (const infiniStatus_t status = find_descriptor(fn, nullptr, desc, &found)) return status;
    *device_id = found->device_id;
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopGetDescriptorPlan, (const struct InfiniopDescriptor *desc, const char **text), {
    if (text == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: text is NULL", fn);
    Descriptor *found;
    if (const infiniStatus_t status = find_descriptor(fn, nullptr, desc, &found)) return status;
    *text = found->plan->describe();
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopCreateDescriptor,
              (infiniopHandle_t handle, struct InfiniopDescriptor **desc, size_t *workspace_size, const char *op,
               const int64_t *layouts, size_t n, float epsilon),
              {
                  if (desc == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: desc is NULL", fn);
                  if (workspace_size == nullptr)
                      return fail(INFINI_STATUS_NULL_POINTER, "%s: workspace_size is NULL", fn);
                  if (op == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: op is NULL", fn);
                  if (layouts == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: layouts is NULL", fn);
                  const OpSpec *spec = nullptr;
                  for (const OpSpec *one : kSpecs)
                      if (std::strcmp(one->name, op) == 0) spec = one;
                  if (spec == nullptr) return fail(INFINI_STATUS_BAD_PARAM, "%s: op is no operator's name", fn);
                  InfiniProblem problem{};
                  problem.epsilon = epsilon;
                  if (const infiniStatus_t status = read_layouts(fn, *spec, layouts, n, problem)) return status;
                  InfiniopDescriptor *made;
                  if (const infiniStatus_t status = create_descriptor(fn, *spec, handle, &made, problem)) return status;
                  *workspace_size = static_cast<Descriptor *>(made)->plan->workspace_size();
                  *desc = made;
                  return INFINI_STATUS_SUCCESS;
              })

INFINI_EXPORT(infiniopRun3, (const struct InfiniopDescriptor *desc, void *x0, const void *x1, const void *x2), {
    Descriptor *found;
    if (const infiniStatus_t status = find_descriptor(fn, nullptr, desc, &found)) return status;
    const OpSpec &spec = found->plan->spec();
    if (spec.n_operands != 3)
        return fail(INFINI_STATUS_BAD_PARAM, "%s: desc is a descriptor of %s, which has %d operands, needed 3", fn,
                    spec.name, spec.n_operands);
    return run_descriptor(fn, spec, desc, nullptr, 0, {x0, x1, x2}, nullptr);
})

} // extern "C"
