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

/** The layout of rows along the last dimension, or of tiles, with those sides. */
MapLayout lay_out(const InfiniOperand *operands, int n_operands, int element_size, const Sides &sides, bool tile) {
    MapLayout plan;
    plan.n_operands = n_operands;
    plan.tile = tile;
    const InfiniOperand &out = operands[0];
    const int last = out.ndim - 1;
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

} // namespace

MapLayout plan_map(const InfiniOperand *operands, int n_operands, int element_size) {
    Sides sides = sides_of_tiles(operands, n_operands, element_size);
    const bool tile = sides.x >= 0;
    sides.x = operands[0].ndim - 1;
    return lay_out(operands, n_operands, element_size, sides, tile);
}

namespace {

constexpr int64_t kPieceBytes = 16 << 10, kLeastPieceBytes = 2 << 10; // of the output, for a block
constexpr int kPiecesEach = 4;                                        // of a multiprocessor, so that none is idle
constexpr int64_t kLeastRunBytes = 64;
constexpr int64_t kShortSideBytes = 128; // up to which all of y is in a piece
constexpr int64_t kSparse = 3;           // times as much may be staged as is needed
constexpr int64_t kLeastLineBytes = 32;  // of lines that are staged
constexpr size_t kMostStagedBytes = 48 << 10;
constexpr int64_t kMostSteps = 1 << 30; // elements from end to end of a piece

/** The second dimension of pieces; -1: none. */
int second_dim(const InfiniOperand *operands, int n_operands) {
    const InfiniOperand &out = operands[0];
    const int last = out.ndim - 1;
    for (int i = 1; i < n_operands; ++i)
        for (int d = 0; d < last; ++d)
            if (operands[i].stride[d] == 1 && std::abs(operands[i].stride[last]) > 1) return d;
    for (int d = 0; d < last; ++d)
        if (out.stride[d] == out.shape[last]) return d;
    return last - 1;
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/** How a piece gets at an input. */
void plan_input(PiecesPlan *plan, int i, int element_size) {
    const MapLayout &layout = plan->layout;
    const int64_t along = layout.along[i], across = layout.across[i], chunk = kVectorBytes / element_size;
    if (along == 1 && (!plan->wrapped || across == layout.x)) plan->how[i] = Access::kRun;
    if (along == 0 && !plan->wrapped) plan->how[i] = Access::kConstant;
    if (std::abs(along) <= 1) return;
    const int64_t dense = along > 0 && across >= 0 ? (plan->width - 1) * along + (plan->height - 1) * across + 1 : -1;
    int64_t staged = -1;
    if (dense > 0 && dense <= kSparse * plan->width * plan->height) {
        plan->line[i] = dense;
        plan->pitch[i] = 0;
        staged = round_up(dense, chunk);
    } else if (across == 1 && plan->height * element_size >= kLeastLineBytes) {
        plan->lines[i] = true;
        plan->line[i] = plan->height;
        plan->pitch[i] = round_up(plan->height, chunk);
        staged = plan->width * plan->pitch[i];
    }
    if (staged < 0 || staged > static_cast<int64_t>(kMostStagedBytes)) return;
    const auto size = static_cast<uint32_t>(element_size);
    const auto bytes = static_cast<size_t>(
        round_up(int64_t{place_in_pieces(static_cast<uint32_t>(staged), size)} * element_size, kVectorBytes));
    if (plan->shared_bytes + bytes > kMostStagedBytes) return;
    plan->how[i] = Access::kStaged;
    plan->any_staged = true;
    plan->shared_at[i] = plan->shared_bytes;
    plan->shared_bytes += bytes;
}

PiecesPlan pieces_of(const MapLayout &layout, int n_operands, int element_size, int64_t piece_bytes) {
    PiecesPlan plan;
    plan.layout = layout;
    const int64_t elements = piece_bytes / element_size;
    bool turned = false; // some input is contiguous along y
    for (int i = 1; i < n_operands; ++i) turned = turned || (layout.across[i] == 1 && std::abs(layout.along[i]) > 1);
    plan.wrapped = layout.y > 1 && layout.across[0] == layout.x && layout.x <= elements / 4;
    if (plan.wrapped) {
        plan.width = layout.x;
        plan.height = std::min(layout.y, elements / layout.x);
    } else if (turned) {
        plan.height = std::min(layout.y, kShortSideBytes / element_size);
        plan.width = std::min(layout.x, round_up(elements / plan.height, kVectorBytes));
    } else {
        plan.width = std::min(layout.x, elements);
        plan.height = std::min(layout.y, elements / plan.width);
    }
    for (int i = 1; i < n_operands; ++i) plan_input(&plan, i, element_size);
    return plan;
}

} // namespace

PiecesPlan plan_pieces(const InfiniOperand *operands, int n_operands, int element_size, int processors) {
    const InfiniOperand &out = operands[0];
    const int last = out.ndim - 1;
    if (last < 0 || out.stride[last] != 1 || element_size > 4) return {};
    Sides sides;
    sides.x = last;
    sides.y = second_dim(operands, n_operands);
    const MapLayout layout = lay_out(operands, n_operands, element_size, sides, false);
    if (layout.x > kMostElements || layout.y > kMostElements) return {};
    PiecesPlan plan;
    int64_t blocks = 0;
    for (int64_t bytes = kPieceBytes; bytes >= kLeastPieceBytes && blocks < kPiecesEach * processors; bytes /= 2) {
        plan = pieces_of(layout, n_operands, element_size, bytes);
        __extension__ typedef __int128 Wide;
        const Wide all = static_cast<Wide>(plan.tiles_x()) * plan.tiles_y() * layout.rows();
        if (all > kMaxBlocks) return {};
        blocks = static_cast<int64_t>(all);
    }
    plan.worth = plan.run() * element_size >= kLeastRunBytes;
    for (int i = 0; i < n_operands; ++i)
        plan.worth = plan.worth && std::abs(layout.along[i]) < kMostSteps / plan.width &&
                     std::abs(layout.across[i]) < kMostSteps / plan.height;
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
