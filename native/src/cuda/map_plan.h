/* How out[i] = f(in...[i]) over operands of one shape is cut into work for kernels; plain C++, without CUDA. */
#pragma once
#include <cstdint>

#include "infini_backend.h"

#ifdef __CUDACC__
#define INFINI_PLAN_DEVICE __host__ __device__
#else
#define INFINI_PLAN_DEVICE
#endif

namespace infini::cuda {

constexpr int kMapOperands = 3; // the output first
constexpr int kMapOuter = INFINI_MAX_DIMS - 1;
constexpr int kVectorBytes = 16; // the widest load

/** Strides and sizes in elements.
 *
 *  rows  The innermost dimension, `x`, is a row. Where every operand is contiguous or constant along it (`vectors`), a thread takes
 *        up to 16 bytes of a row at once, else one element.
 *  tile  The output is contiguous along x, an input along another dimension, y: squares of x and y go through shared memory, so that
 *        both sides are read and written in whole cache lines. Where one of them is too short for that, and there is but one input,
 *        the next dimension that the output (the input) is contiguous along is made a part of it: `far_x` (`far_y`) times x (y). */
struct MapLayout {
    bool tile = false, vectors = false;
    int n_operands = 0;
    int64_t x = 1, y = 1;                                        // y: of tiles
    int64_t along[kMapOperands] = {}, across[kMapOperands] = {}; // strides of x and y
    int64_t far_x = 1, far_y = 1;                                // of tiles
    int64_t far_along[kMapOperands] = {}, far_across[kMapOperands] = {};
    bool through[kMapOperands] = {}; // a tile's input that is contiguous along y
    int outer = 0;                   // the other dimensions, innermost first
    int64_t size[kMapOuter] = {}, stride[kMapOperands][kMapOuter] = {};
    int64_t offset[kMapOperands] = {};
    /** The largest power of two, at most kVectorBytes, that divides all steps in bytes between the places at which an operand's
     *  contiguous runs begin. */
    int step_alignment[kMapOperands] = {};

    int64_t rows() const {
        int64_t n = 1;
        for (int d = 0; d < outer; ++d) n *= size[d];
        return n;
    }
    bool split() const { return far_x > 1 || far_y > 1; }
};

/** Elements along each side of a tile, for elements of a size in bytes: 128 bytes of small ones, else 256 or more. */
constexpr int tile_side(int element_size) { return element_size == 1 ? 128 : element_size <= 4 ? 64 : 32; }

constexpr int64_t kMaxBlocks = 0x7fffffff; // of a launch

/** The blocks that a plan of tiles needs, with so many elements along each side, where lines of the output may begin as much as `reach`
 *  elements before they do. */
int64_t tile_blocks(const MapLayout &layout, int side, int reach = 0);

/** Plans operands that are reduced as an InfiniProblem's are. */
MapLayout plan_map(const InfiniOperand *operands, int n_operands, int element_size);

/** How a piece's elements of an operand are read. */
enum class Access : uint8_t {
    kElements, // one by one
    kRun,      // contiguous where the output's are
    kConstant, // one for each run
    kStaged    // from shared memory
};

/** Where an element of a size is in shared memory that 128 bytes at a time are followed there by 4 of none: so lanes meet in few banks,
 *  whatever their steps are. */
constexpr INFINI_PLAN_DEVICE uint32_t place_in_pieces(uint32_t e, uint32_t size) {
    return e + e / (128 / size) * (4 / size);
}

/** An output that is contiguous along x, in pieces of `width` by `height` elements of x and y that a block makes. Where rows follow each
 *  other in the output (`wrapped`), a piece is one run of it, else each row is. An input may be staged in shared memory: as it is in
 *  memory, if the piece is dense there, or by lines along y, if these are contiguous. */
struct PiecesPlan {
    bool worth = false; // else it is not to be used
    bool wrapped = false, any_staged = false;
    MapLayout layout; // x, y, and the other dimensions
    int64_t width = 1, height = 1;
    Access how[kMapOperands] = {};
    bool lines[kMapOperands] = {};       // of a staged input: by lines
    int64_t line[kMapOperands] = {};     // elements of each line, or of all of it
    int64_t pitch[kMapOperands] = {};    // from line to line in shared memory
    size_t shared_at[kMapOperands] = {}; // in bytes
    size_t shared_bytes = 0;

    int64_t tiles_x() const { return (layout.x + width - 1) / width; }
    int64_t tiles_y() const { return (layout.y + height - 1) / height; }
    /** The longest run of a piece. */
    int64_t run() const { return wrapped ? width * height : width; }
};

/** Plans pieces of elements of at most 4 bytes, enough of them for so many multiprocessors if there can be. */
PiecesPlan plan_pieces(const InfiniOperand *operands, int n_operands, int element_size, int processors);

/** What a launch of rows may count, so that 32 bits are enough with some to spare. */
constexpr int64_t kMostElements = (int64_t{1} << 31) - (1 << 16);

/** Calls `body(part)` for parts of a plan of rows that have at most `most` elements each and together are all of it, until one
 *  fails. Parts begin where vectors do. */
template <class Body>
infiniStatus_t for_each_part(MapLayout layout, const Body &body, int64_t most = kMostElements) {
    if (layout.x * layout.rows() <= most) return body(layout);
    int longest = -1; // an outer dimension; -1: x
    for (int d = 0; d < layout.outer; ++d)
        if (layout.size[d] > (longest < 0 ? layout.x - 2 * kVectorBytes : layout.size[longest])) longest = d;
    int64_t &size = longest < 0 ? layout.x : layout.size[longest];
    const int64_t all = size;
    const int64_t half = longest < 0 ? all / 2 / kVectorBytes * kVectorBytes : all / 2;
    size = half;
    if (const infiniStatus_t status = for_each_part(layout, body, most)) return status;
    size = all - half;
    for (int i = 0; i < kMapOperands; ++i)
        layout.offset[i] += half * (longest < 0 ? layout.along[i] : layout.stride[i][longest]);
    return for_each_part(layout, body, most);
}

/** Bytes that an operand's contiguous runs are aligned to when it starts at an address. */
int alignment_of(const MapLayout &layout, int operand, const void *address);

} // namespace infini::cuda
