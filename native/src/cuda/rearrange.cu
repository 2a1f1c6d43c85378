/* rearrange on NVIDIA devices: elements of 1 to 16 bytes whose bits are moved unchanged. */
#include "cuda/map.h"

namespace infini::cuda {

namespace {

template <class T>
struct Copy {
    using Element = T;
    static constexpr int kInputs = 1;
    [[maybe_unused]] static constexpr bool kAnyWidth = true;
    static INFINI_DEVICE Unit<T> apply(const Unit<T> *in) { return in[0]; }
};

/** Both sides are one run: the driver's own copy, whatever their addresses are. */
class RunPlan final : public CudaPlan {
public:
    explicit RunPlan(const InfiniProblem &problem)
        : size_(static_cast<size_t>(kDtypes[problem.operands[0].dtype].size)) {
        for (int i = 0; i < 2; ++i) offset_[i] = problem.operands[i].offset;
        count_ = problem.operands[0].ndim == 0 ? 1 : static_cast<size_t>(problem.operands[0].shape[0]);
        description = "one copy";
    }
    static bool fits(const InfiniProblem &problem) {
        const InfiniOperand &y = problem.operands[0], &x = problem.operands[1];
        return y.ndim == 0 || (y.ndim == 1 && y.stride[0] == 1 && x.stride[0] == 1);
    }
    infiniStatus_t run(const InfiniCall &call) const override {
        const auto at = [&](int i) {
            return static_cast<char *>(call.operands[i]) + offset_[i] * static_cast<int64_t>(size_);
        };
        return check("copying", cudaMemcpyAsync(at(0), at(1), count_ * size_, cudaMemcpyDeviceToDevice,
                                                static_cast<cudaStream_t>(call.stream)));
    }

private:
    size_t size_, count_;
    int64_t offset_[2];
};

/** Complex numbers, which need only be aligned like their parts: moved whole where both sides happen to be aligned to that. */
class ComplexPlan final : public CudaPlan {
public:
    template <class Whole, class Half>
    static infiniStatus_t make(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan) {
        auto made = std::make_unique<ComplexPlan>();
        made->size_ = sizeof(Whole);
        if (const infiniStatus_t status = make_map_plan<Copy<Whole>>(problem, &made->whole_)) return status;
        if (const infiniStatus_t status = make_map_plan<Copy<Pair<Half>>>(problem, &made->halves_)) return status;
        made->description = made->whole_->description;
        *plan = std::move(made);
        return INFINI_STATUS_SUCCESS;
    }
    infiniStatus_t run(const InfiniCall &call) const override {
        const uintptr_t bits =
            reinterpret_cast<uintptr_t>(call.operands[0]) | reinterpret_cast<uintptr_t>(call.operands[1]);
        return (bits % size_ == 0 ? whole_ : halves_)->run(call);
    }

private:
    std::unique_ptr<CudaPlan> whole_, halves_;
    uintptr_t size_ = 1;
};

} // namespace

infiniStatus_t plan_rearrange(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *) {
    if (RunPlan::fits(problem)) {
        *plan = std::make_unique<RunPlan>(problem);
        return INFINI_STATUS_SUCCESS;
    }
    const DtypeInfo &dtype = kDtypes[problem.operands[0].dtype];
    const bool halves = dtype.alignment < dtype.size;
    switch (dtype.size) {
    case 1: return make_map_plan<Copy<uint8_t>>(problem, plan);
    case 2:
        return halves ? ComplexPlan::make<uint16_t, uint8_t>(problem, plan)
                      : make_map_plan<Copy<uint16_t>>(problem, plan);
    case 4:
        return halves ? ComplexPlan::make<uint32_t, uint16_t>(problem, plan)
                      : make_map_plan<Copy<uint32_t>>(problem, plan);
    case 8:
        return halves ? ComplexPlan::make<uint64_t, uint32_t>(problem, plan)
                      : make_map_plan<Copy<uint64_t>>(problem, plan);
    default: return ComplexPlan::make<u128, uint64_t>(problem, plan);
    }
}

} // namespace infini::cuda
