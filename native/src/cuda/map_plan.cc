#include "cuda/map_plan.h"

#include <algorithm>
#include <cstdlib>

namespace infini::cuda {

namespace {

/** A tile that is emptier costs more than single elements from the caches. */
constexpr int64_t kLeastFilled = 4; // one part in

int64_t tiles(int64_t n, int side) { return (n + side - 1) / side; }

/** Are tiles of x by y full enough to be worth it, and few enough for one launch? */
bool worth_tiles(const InfiniOperand &out, int64_t x, int64_t y, int side) {
    __extension__ typedef __int128 Wide;
    Wide elements = 1;
    for (int d = 0; d < out.ndim; ++d) elements *= out.shape[d];
    const Wide blocks = elements / x / y * tiles(x, side) * tiles(y, side);
    return blocks <= kMaxBlocks &&
           static_cast<Wide>(x) * y * kLeastFilled >= static_cast<Wide>(tiles(x, side)) * tiles(y, side) * side * side;
}

/** The dimension that some input is contiguous along while it makes steps along the last; -1: there is none. */
int dim_to_transpose(const InfiniOperand *operands, int n_operands, int element_size) {
    const InfiniOperand &out = operands[0];
    const int last = out.ndim - 1, side = tile_side(element_size);
    if (last < 1 || out.stride[last] != 1) return -1;
    for (int i = 1; i < n_operands; ++i) {
        if (std::abs(operands[i].stride[last]) <= 1) continue;
        for (int d = 0; d < last; ++d)
            if (operands[i].stride[d] == 1 && worth_tiles(out, out.shape[last], out.shape[d], side)) return d;
    }
    return -1;
}

} // namespace

MapLayout plan_map(const InfiniOperand *operands, int n_operands, int element_size) {
    MapLayout plan;
    plan.n_operands = n_operands;
    const InfiniOperand &out = operands[0];
    const int last = out.ndim - 1;
    const int transposed = dim_to_transpose(operands, n_operands, element_size);
    plan.tile = transposed >= 0;
    if (last >= 0) plan.x = out.shape[last];
    if (plan.tile) plan.y = out.shape[transposed];
    for (int d = last - 1; d >= 0; --d)
        if (d != transposed) plan.size[plan.outer++] = out.shape[d];
    plan.vectors = true;
    for (int i = 0; i < n_operands; ++i) {
        const InfiniOperand &operand = operands[i];
        plan.offset[i] = operand.offset;
        if (last >= 0) plan.along[i] = operand.stride[last];
        if (plan.tile) {
            plan.across[i] = operand.stride[transposed];
            plan.through[i] = i > 0 && plan.across[i] == 1 && std::abs(plan.along[i]) > 1;
        }
        for (int d = last - 1, k = 0; d >= 0; --d)
            if (d != transposed) plan.stride[i][k++] = operand.stride[d];
        plan.vectors = plan.vectors && (plan.along[i] == 1 || (plan.along[i] == 0 && i > 0));

        uint64_t steps = kVectorBytes; // bits that may be set in an address where a run begins
        const auto step = [&](int64_t stride) { steps |= static_cast<uint64_t>(stride * element_size); };
        for (int k = 0; k < plan.outer; ++k) step(plan.stride[i][k]);
        if (plan.tile) step(plan.through[i] ? plan.along[i] : plan.across[i]);
        plan.step_alignment[i] = static_cast<int>(steps & (~steps + 1));
    }
    return plan;
}

int64_t tile_blocks(const MapLayout &layout, int element_size) {
    const int side = tile_side(element_size);
    return tiles(layout.x, side) * tiles(layout.y, side) * layout.rows();
}

int alignment_of(const MapLayout &layout, int operand, const void *address) {
    const uint64_t bits = reinterpret_cast<uintptr_t>(address) | static_cast<uint64_t>(layout.step_alignment[operand]);
    return static_cast<int>(bits & (~bits + 1));
}

} // namespace infini::cuda
