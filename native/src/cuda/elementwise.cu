/* add, mul and their relatives on NVIDIA devices. */
#include "core/binary_ops.h"
#include "cuda/map.h"
#include "cuda/unit_math.h"

namespace infini::cuda {

namespace {

template <class Op, class T>
struct Binary {
    using Element = T;
    static constexpr int kInputs = 2;
    [[maybe_unused]] static constexpr bool kAnyWidth = false;
    static INFINI_DEVICE Unit<T> apply(const Unit<T> *in) { return UnitsOf<Op, T>::apply(in[0], in[1]); }
};

template <class Op>
infiniStatus_t plan_binary(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan) {
    switch (problem.operands[0].dtype) {
    case INFINI_DTYPE_F16: return make_map_plan<Binary<Op, f16>>(problem, plan);
    case INFINI_DTYPE_BF16: return make_map_plan<Binary<Op, bf16>>(problem, plan);
    case INFINI_DTYPE_F32: return make_map_plan<Binary<Op, float>>(problem, plan);
    case INFINI_DTYPE_F64: return make_map_plan<Binary<Op, double>>(problem, plan);
    default: break;
    }
    switch (kDtypes[problem.operands[0].dtype].size) {
    case 1: return make_map_plan<Binary<Op, uint8_t>>(problem, plan);
    case 2: return make_map_plan<Binary<Op, uint16_t>>(problem, plan);
    case 4: return make_map_plan<Binary<Op, uint32_t>>(problem, plan);
    default: return make_map_plan<Binary<Op, uint64_t>>(problem, plan);
    }
}

} // namespace

#define INFINI_BINARY_PLANNER(ID, name, Name)                                                             \
    infiniStatus_t plan_##name(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *) { \
        return plan_binary<Name##Of>(problem, plan);                                                      \
    }
INFINI_BINARY_LIST(INFINI_BINARY_PLANNER)

} // namespace infini::cuda
