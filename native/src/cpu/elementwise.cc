/* add, mul and their relatives on the CPU. */
#include "cpu/caches.h"
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/tiles.h"

namespace infini {

namespace {

enum { kC, kA, kB };

/** The kernel for rows of c, past the caches where c is `stream_share` of them or more, and neither a nor b. */
struct BinaryKernel {
    BinaryKernel(const InfiniProblem &problem, BinaryOp op, double stream_share) {
        const InfiniOperand &c = problem.operands[kC];
        plain = kernels().binary[op][c.dtype];
        size = align = kDtypes[c.dtype].size;
        const bool unit = c.ndim > 0 && c.stride[c.ndim - 1] == 1;
        if (unit && worth_streaming(static_cast<double>(element_count(c) * size), stream_share))
            stream = kernels().binary_stream[op][c.dtype];
    }
    /** Rows of fewer bytes are streamed only if no two share a line, which is written in parts then: as measured, one of 168 bytes
     *  takes 13 times as long as by way of the caches, one of 1000 bytes 2 times, one of 2000 as long. */
    void need_whole_lines(const InfiniOperand &c, int64_t bytes) {
        if (stream == nullptr || c.shape[c.ndim - 1] * size >= bytes) return;
        if (in_stream_parts(c))
            align = kStreamPart;
        else
            stream = nullptr;
    }
    BinaryRows of(const InfiniCall &call) const {
        const void *const c = call.operands[kC];
        const bool elsewhere = c != call.operands[kA] && c != call.operands[kB];
        const bool aligned = reinterpret_cast<uintptr_t>(c) % static_cast<size_t>(align) == 0;
        return stream != nullptr && elsewhere && aligned ? stream : plain;
    }
    void finish(BinaryRows used) const {
        if (used == stream) finish_streams();
    }

    BinaryRows plain, stream = nullptr;
    int64_t size, align; // bytes: of an element; what the address of c has to be a multiple of to be streamed
};

struct BinaryPlan final : CpuPlan {
    BinaryPlan(const InfiniProblem &problem, BinaryOp op)
        : loop(problem.operands), kernel(problem, op, kStreamResults) {
        kernel.need_whole_lines(problem.operands[kC], 1536);
    }

    void run(const InfiniCall &call) const override {
        const int64_t size = kernel.size, cache_line = 64 / size;
        const BinaryRows rows = kernel.of(call);
        const auto operand = [&](int i, const int64_t *at, int64_t first) {
            return TileOperand{static_cast<char *>(call.operands[i]) + at[i] + first * loop.step[i] * size,
                               loop.row_stride(i) / size, loop.step[i]};
        };
        loop.parallel_pieces(cache_line, [&](int64_t begin, int64_t end) {
            loop.walk_blocks(begin, end, [&](const int64_t *at, int64_t first, int64_t n, int64_t n_rows) {
                rows(operand(kC, at, first), operand(kA, at, first), operand(kB, at, first), n_rows, n);
            });
        });
        kernel.finish(rows);
    }

    RowLoop<3> loop;
    BinaryKernel kernel;
};

/** c is contiguous in the last dimension, an input in dimension `across`: it is transposed on its way. */
struct BinaryTilePlan final : CpuPlan {
    // A tile is worked off from the left to the right and down. Long rows are read and written in order; what lies below them
    // waits in the second-level cache, a cache line of each column.
    static constexpr int64_t kTileRows = 512, kTileRowBytes = 4096;

    BinaryTilePlan(const InfiniProblem &problem, BinaryOp op, int across_dim)
        : outer(loops_without<3>(problem.operands, 1u << across_dim | 1u << (problem.operands[kC].ndim - 1))),
          kernel(problem, op, kStreamCopies), tile(kernels().binary_tile[op][problem.operands[kC].dtype]) {
        kernel.need_whole_lines(problem.operands[kC], 256); // longer ones pass through a buffer, whose lines are whole
        const int last = problem.operands[kC].ndim - 1;
        rows = problem.operands[kC].shape[across_dim];
        cols = problem.operands[kC].shape[last];
        for (int i = 0; i < 3; ++i) {
            across[i] = problem.operands[i].stride[across_dim];
            along[i] = problem.operands[i].stride[last];
        }
    }

    static bool transposed(int64_t across, int64_t along) { return across == 1 && along != 0 && along != 1; }

    void run(const InfiniCall &call) const override {
        const int64_t size = kernel.size;
        const BinaryRows used = kernel.of(call);
        const auto operand = [&](int i, const int64_t *at, int64_t r, int64_t col) {
            return TileOperand{static_cast<char *>(call.operands[i]) + at[i] + (r * across[i] + col * along[i]) * size,
                               across[i], along[i]};
        };
        // Tiles begin where cache lines of c do, and of an operand that is transposed.
        const auto head = [&](int i, int64_t line_step) {
            return line_step * size % kLine == 0
                       ? elements_until_line(static_cast<char *>(call.operands[i]) + outer.offset[i], size)
                       : 0;
        };
        const int across_in = transposed(across[kA], along[kA]) ? kA : kB;
        parallel_tiles(
            outer, rows, cols, kTileRows, kTileRowBytes / size, size, 3 * size,
            [&](const int64_t *at, int64_t r, int64_t n_rows, int64_t col, int64_t n_cols) {
                tile(operand(kC, at, r, col), operand(kA, at, r, col), operand(kB, at, r, col), n_rows, n_cols,
                     used == kernel.stream);
            },
            head(across_in, along[across_in]), head(kC, across[kC]));
        kernel.finish(used);
    }

    RowLoop<3> outer;
    BinaryKernel kernel;
    BinaryTile tile;
    int64_t rows, cols;
    int64_t across[3], along[3]; // strides of the two tiled dimensions, elements
};

std::unique_ptr<CpuPlan> plan_binary(const InfiniProblem &problem, BinaryOp op) {
    const InfiniOperand *x = problem.operands;
    const int last = x[kC].ndim - 1;
    const auto transposed = [&](int i, int d) { return BinaryTilePlan::transposed(x[i].stride[d], x[i].stride[last]); };
    for (int d = 0; d < last; ++d) {
        const bool both = transposed(kA, d) && transposed(kB, d);
        if (x[kC].stride[last] != 1 || !(transposed(kA, d) || transposed(kB, d))) continue;
        // Too few of either make no tiles: they are faster as what they are, short rows or a near stride. Measured.
        const int64_t size = kDtypes[x[kC].dtype].size, few_rows_of_larger = both ? 3 : 0;
        const int64_t few_columns = size < 4 ? 12 : 8, few_rows = size == 1 ? 4 : few_rows_of_larger;
        if (x[kC].shape[last] > few_columns && x[kC].shape[d] > few_rows)
            return std::make_unique<BinaryTilePlan>(problem, op, d);
    }
    return std::make_unique<BinaryPlan>(problem, op);
}

} // namespace

#define INFINI_BINARY_PLANNER(ID, name, Name)                                      \
    std::unique_ptr<CpuPlan> plan_##name(const InfiniProblem &problem, size_t *) { \
        return plan_binary(problem, kBinary##Name);                                \
    }
INFINI_BINARY_LIST(INFINI_BINARY_PLANNER)

} // namespace infini
