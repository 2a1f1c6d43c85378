#include "cuda/map_plan.h"

#include <algorithm>
#include <cstdlib>

namespace infini::cuda {

namespace {

/** A tile that is emptier costs more than single elements from the caches. */
constexpr int64_t kLeastFilled = 4; // one part in

int64_t tiles(int64_t n, int side) { return (n + side - 1) / side; }

/** The dimensions of a tile's sides; -1: none. */
struct Sides {
    int x = -1, far_x = -1, y = -1, far_y = -1;

    bool has(int d) const { return d == x || d == far_x || d == y || d == far_y; }
};

int64_t size_of(const InfiniOperand &operand, int d) { return d < 0 ? 1 : operand.shape[d]; }

/** The dimension that goes on where another ends, if that is shorter than a tile. */
int next_dim(const InfiniOperand &operand, int after, const Sides &taken, int side) {
    if (operand.shape[after] >= side) return -1;
    for (int d = 0; d < operand.ndim; ++d)
        if (!taken.has(d) && operand.stride[d] == operand.shape[after] * operand.stride[after]) return d;
    return -1;
}

/** Are the tiles full enough to be worth it, and few enough for one launch? */
bool worth_tiles(const InfiniOperand &out, const Sides &sides, int side) {
    __extension__ typedef __int128 Wide;
    Wide elements = 1;
    for (int d = 0; d < out.ndim; ++d) elements *= out.shape[d];
    const int64_t x = size_of(out, sides.x) * size_of(out, sides.far_x),
                  y = size_of(out, sides.y) * size_of(out, sides.far_y);
    const Wide blocks = elements / x / y * tiles(x, side) * tiles(y, side);
    return blocks <= kMaxBlocks && x < kMostElements && y < kMostElements &&
           static_cast<Wide>(x) * y * kLeastFilled >= static_cast<Wide>(tiles(x, side)) * tiles(y, side) * side * side;
}

/** The sides of tiles for what some input is contiguous along while it makes steps along the last dimension; none, if no tiles are worth
 *  it. */
Sides sides_of_tiles(const InfiniOperand *operands, int n_operands, int element_size) {
    const InfiniOperand &out = operands[0];
    const int last = out.ndim - 1, side = tile_side(element_size);
    if (last < 1 || out.stride[last] != 1) return {};
    for (int i = 1; i < n_operands; ++i) {
        if (std::abs(operands[i].stride[last]) <= 1) continue;
        for (int d = 0; d < last; ++d) {
            if (operands[i].stride[d] != 1) continue;
            Sides sides;
            sides.x = last;
            sides.y = d;
            if (n_operands == 2) {
                sides.far_x = next_dim(out, last, sides, side);
                sides.far_y = next_dim(operands[i], d, sides, side);
            }
            if (worth_tiles(out, sides, side)) return sides;
        }
    }
    return {};
}

} // namespace

MapLayout plan_map(const InfiniOperand *operands, int n_operands, int element_size) {
    MapLayout plan;
    plan.n_operands = n_operands;
    const InfiniOperand &out = operands[0];
    const int last = out.ndim - 1;
    Sides sides = sides_of_tiles(operands, n_operands, element_size);
    plan.tile = sides.x >= 0;
    sides.x = last;
    plan.x = size_of(out, last);
    plan.y = size_of(out, sides.y);
    plan.far_x = size_of(out, sides.far_x);
    plan.far_y = size_of(out, sides.far_y);
    for (int d = last - 1; d >= 0; --d)
        if (!sides.has(d)) plan.size[plan.outer++] = out.shape[d];
    plan.vectors = true;
    for (int i = 0; i < n_operands; ++i) {
        const InfiniOperand &operand = operands[i];
        const auto stride = [&](int d) { return d < 0 ? 0 : operand.stride[d]; };
        plan.offset[i] = operand.offset;
        plan.along[i] = stride(last);
        plan.across[i] = stride(sides.y);
        plan.far_along[i] = stride(sides.far_x);
        plan.far_across[i] = stride(sides.far_y);
        plan.through[i] = plan.tile && i > 0 && plan.across[i] == 1 && std::abs(plan.along[i]) > 1;
        for (int d = last - 1, k = 0; d >= 0; --d)
            if (!sides.has(d)) plan.stride[i][k++] = operand.stride[d];
        plan.vectors = plan.vectors && (plan.along[i] == 1 || (plan.along[i] == 0 && i > 0));

        uint64_t steps = kVectorBytes; // bits that may be set in an address where a run begins
        const auto step = [&](int64_t elements) { steps |= static_cast<uint64_t>(elements * element_size); };
        for (int k = 0; k < plan.outer; ++k) step(plan.stride[i][k]);
        if (plan.tile) step(plan.through[i] ? plan.along[i] : plan.across[i]);
        if (plan.tile) step(plan.through[i] ? plan.far_along[i] : plan.far_across[i]);
        plan.step_alignment[i] = static_cast<int>(steps & (~steps + 1));
    }
    return plan;
}

int64_t tile_blocks(const MapLayout &layout, int side, int reach) {
    return tiles(layout.x * layout.far_x + reach, side) * tiles(layout.y * layout.far_y, side) * layout.rows();
}

int alignment_of(const MapLayout &layout, int operand, const void *address) {
    const uint64_t bits = reinterpret_cast<uintptr_t>(address) | static_cast<uint64_t>(layout.step_alignment[operand]);
    return static_cast<int>(bits & (~bits + 1));
}

} // namespace infini::cuda
