/* add, mul and their relatives on the CPU. */
#include "cpu/caches.h"
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/tiles.h"

namespace infini {

namespace {

enum { kC, kA, kB };

/** The kernel for rows of c, past the caches where that is better and c is neither a nor b. */
struct BinaryKernel {
    BinaryKernel(const InfiniProblem &problem, BinaryOp op) {
        const InfiniOperand &c = problem.operands[kC];
        plain = kernels().binary[op][c.dtype];
        size = kDtypes[c.dtype].size;
        const bool unit = c.ndim > 0 && c.stride[c.ndim - 1] == 1;
        if (unit && worth_streaming(static_cast<double>(element_count(c) * size), kStreamResults))
            stream = kernels().binary_stream[op][c.dtype];
    }
    BinaryRow of(const InfiniCall &call) const {
        const void *const c = call.operands[kC];
        const bool elsewhere = c != call.operands[kA] && c != call.operands[kB];
        const bool aligned = reinterpret_cast<uintptr_t>(c) % static_cast<size_t>(size) == 0;
        return stream != nullptr && elsewhere && aligned ? stream : plain;
    }
    void finish(BinaryRow used) const {
        if (used == stream) finish_streams();
    }

    BinaryRow plain, stream = nullptr;
    int64_t size;
};

struct BinaryPlan final : CpuPlan {
    BinaryPlan(const InfiniProblem &problem, BinaryOp op) : loop(problem.operands), kernel(problem, op) {}

    void run(const InfiniCall &call) const override {
        char *const c = static_cast<char *>(call.operands[kC]);
        const char *const a = static_cast<const char *>(call.operands[kA]);
        const char *const b = static_cast<const char *>(call.operands[kB]);
        const int64_t size = kernel.size, cache_line = 64 / size;
        const BinaryRow row = kernel.of(call);
        loop.parallel_walk(cache_line, [&](const int64_t *at, int64_t first, int64_t n) {
            row(c + at[kC] + first * loop.step[kC] * size, loop.step[kC], a + at[kA] + first * loop.step[kA] * size,
                loop.step[kA], b + at[kB] + first * loop.step[kB] * size, loop.step[kB], n);
        });
        kernel.finish(row);
    }

    RowLoop<3> loop;
    BinaryKernel kernel;
};

/** Of a transposed operand at a time: so many rows that its columns are read by several cache lines, so much of each row that few
 *  calls and few ends of rows come with it. */
struct TileShape {
    int64_t rows, bytes;
    constexpr int64_t pitch() const { return bytes + 64; } // of the rows of a buffer: no power of two
};

/** c is contiguous in the last dimension, an input in dimension `across`: it is transposed tile by tile on its way. */
struct BinaryTilePlan final : CpuPlan {
    // Two such buffers lie on the stack, which is a small one in some threads.
    static constexpr TileShape kShape{32, 512};
    static constexpr int64_t kStripRows = 512; // of tiles that go down the columns
    static constexpr int64_t kBufferBytes = kShape.rows * kShape.pitch();

    BinaryTilePlan(const InfiniProblem &problem, BinaryOp op, int across_dim)
        : outer(loops_without<3>(problem.operands, 1u << across_dim | 1u << (problem.operands[kC].ndim - 1))),
          kernel(problem, op), transpose(kernels().transpose[log2_of(kernel.size)]) {
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
        char *const base[3] = {static_cast<char *>(call.operands[kC]), static_cast<char *>(call.operands[kA]),
                               static_cast<char *>(call.operands[kB])};
        const BinaryRow compute = kernel.of(call);
        const int64_t size = kernel.size, pitch = kShape.pitch(), tile_cols = kShape.bytes / size;
        const auto tile = [&](const int64_t *at, int64_t row, int64_t n_rows, int64_t col, int64_t n_cols) {
            alignas(64) char buffer[2][kBufferBytes];
            char *x[3];
            int64_t row_step[3], col_step[3];
            for (int i = 0; i < 3; ++i) {
                x[i] = base[i] + at[i] + (row * across[i] + col * along[i]) * size;
                row_step[i] = across[i] * size;
                col_step[i] = along[i];
                if (i == kC || !transposed(across[i], along[i])) continue;
                transpose(buffer[i - kA], {pitch / size, nullptr}, x[i], {along[i], nullptr}, n_rows, n_cols, false);
                x[i] = buffer[i - kA];
                row_step[i] = pitch;
                col_step[i] = 1;
            }
            for (int64_t r = 0; r < n_rows; ++r)
                compute(x[kC] + r * row_step[kC], col_step[kC], x[kA] + r * row_step[kA], col_step[kA],
                        x[kB] + r * row_step[kB], col_step[kB], n_cols);
        };
        parallel_tiles(outer, rows, cols, kStripRows, tile_cols, size, 3 * size,
                       [&](const int64_t *at, int64_t row, int64_t n_rows, int64_t col, int64_t n_cols) {
                           for (int64_t r = 0; r < n_rows; r += kShape.rows)
                               tile(at, row + r, std::min(kShape.rows, n_rows - r), col, n_cols);
                       });
        kernel.finish(compute);
    }

    RowLoop<3> outer;
    BinaryKernel kernel;
    TransposeTile transpose;
    int64_t rows, cols;
    int64_t across[3], along[3]; // strides of the two tiled dimensions, elements
};

std::unique_ptr<CpuPlan> plan_binary(const InfiniProblem &problem, BinaryOp op) {
    const InfiniOperand *x = problem.operands;
    const int last = x[kC].ndim - 1;
    for (int d = 0; d < last; ++d)
        for (int i : {kA, kB})
            if (x[kC].stride[last] == 1 && BinaryTilePlan::transposed(x[i].stride[d], x[i].stride[last]))
                return std::make_unique<BinaryTilePlan>(problem, op, d);
    return std::make_unique<BinaryPlan>(problem, op);
}

} // namespace

#define INFINI_BINARY_PLANNER(ID, name, Name)                                      \
    std::unique_ptr<CpuPlan> plan_##name(const InfiniProblem &problem, size_t *) { \
        return plan_binary(problem, kBinary##Name);                                \
    }
INFINI_BINARY_LIST(INFINI_BINARY_PLANNER)

} // namespace infini
