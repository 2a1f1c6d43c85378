/* gemm on the CPU: one packed, cache-blocked product for every type and stride pattern.
 *
 *  C is cut into blocks of at most kBlockM x kBlockN, K into blocks of kBlockK. For each, A and B are packed into panels of
 *  the register tile's height and width, converted to the type sums are kept in on the way; then tiles are multiplied. An
 *  element of C is the sum over k in ascending order, one partial sum a K block: that order depends on K alone, so a row of
 *  C has the same bits whatever M, N, the batch or the number of threads are. */
#include <algorithm>

#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "core/dtype.h"
#include "cpu/thread_pool.h"

namespace infini {

namespace {

constexpr int64_t kBlockK = 256;  // two panels of this depth share the first-level cache
constexpr int64_t kBlockM = 2048; // packed A: 2 MiB of F32
constexpr int64_t kBlockN = 1024; // packed B: 1 MiB of F32
constexpr int64_t kTaskRows = 168, kTaskCols = 256; // of C in one task: its packed operands share the second-level cache
constexpr int64_t kFlopsPerThread = 1 << 18; // fewer are done before a second thread is awake
constexpr size_t kLine = 64;

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
size_t round_up(size_t x, size_t y) { return (x + y - 1) / y * y; }

/** Strides in elements, offset in bytes. */
struct Matrix {
    int64_t offset, batch, row, col;
};

struct GemmPlan final : CpuPlan {
    GemmPlan(const InfiniProblem &problem, size_t *workspace_size) {
        const InfiniOperand &dc = problem.operands[0], &da = problem.operands[1], &db = problem.operands[2];
        kernel = kernels().gemm[dc.dtype];
        size = kDtypes[dc.dtype].size;
        const auto matrix = [&](const InfiniOperand &x) { return Matrix{x.offset * size, x.stride[0], x.stride[1], x.stride[2]}; };
        batch = dc.shape[0];
        m = dc.shape[1];
        n = dc.shape[2];
        k = da.shape[2];
        c = matrix(dc);
        a = matrix(da);
        b = matrix(db);
        // Rows of the tile are stored as vectors: a column-major C is computed as C^T = B^T A^T.
        if (n > 1 && (m == 1 || std::abs(c.row) < std::abs(c.col)) && c.col != 1) {
            std::swap(m, n);
            std::swap(a, b);
            for (Matrix *x : {&a, &b, &c}) std::swap(x->row, x->col);
        }
        // One B for all items: their rows are rows of one taller problem.
        if (batch > 1 && b.batch == 0 && (m == 1 || (c.batch == m * c.row && a.batch == m * a.row))) {
            if (m == 1) {
                c.row = c.batch;
                a.row = a.batch;
            }
            m *= batch;
            batch = 1;
        }
        k_blocks = ceil_div(k, kBlockK);
        const int64_t block_m = std::min(round_to(m, kernel.mr), round_to(kBlockM, kernel.mr));
        const int64_t block_n = std::min(round_to(n, kernel.nr), round_to(kBlockN, kernel.nr));
        const auto bytes = [&](int64_t count) { return round_up(static_cast<size_t>(count * kernel.acc_size), kLine); };
        bytes_a = bytes(block_m * std::min(k, kBlockK));
        bytes_b = bytes(block_n * std::min(k, kBlockK));
        // Partial sums wait here for the next K block; with one block, one tile a thread is enough.
        const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
        const int available = worth_threads(flops * static_cast<double>(batch));
        by_item = batch > 1 && flops < kFlopsPerThread * 16;
        slots = by_item ? static_cast<int>(std::min<int64_t>(batch, available)) : 1;
        threads = available;
        bytes_sums = k_blocks > 1 ? bytes(block_m * block_n) : bytes(kernel.mr * kernel.nr) * static_cast<size_t>(by_item ? 1 : threads);
        *workspace_size = k > 0 ? static_cast<size_t>(slots) * (bytes_a + bytes_b + bytes_sums) + kLine : 0;
    }

    void run(const InfiniCall &call) const override {
        char *const pc = static_cast<char *>(call.operands[0]) + c.offset;
        if (k == 0 || call.alpha == 0) return scale(pc, call.beta);
        const char *const pa = static_cast<const char *>(call.operands[1]) + a.offset;
        const char *const pb = static_cast<const char *>(call.operands[2]) + b.offset;
        char *const workspace = reinterpret_cast<char *>(round_up(reinterpret_cast<uintptr_t>(call.workspace), kLine));
        const auto item = [&](int64_t i, int slot, int item_threads) {
            multiply(pc + i * c.batch * size, pa + i * a.batch * size, pb + i * b.batch * size,
                     workspace + static_cast<size_t>(slot) * (bytes_a + bytes_b + bytes_sums), item_threads, call.alpha, call.beta);
        };
        if (by_item) {
            parallel_for(batch, slots, [&](int64_t i, int slot) { item(i, slot, 1); });
        } else {
            for (int64_t i = 0; i < batch; ++i) item(i, 0, threads);
        }
    }

private:
    static int64_t round_to(int64_t x, int64_t y) { return ceil_div(x, y) * y; }

    /** How many threads so much work is worth, whatever their number is when it is run. */
    static int worth_threads(double flops) {
        return static_cast<int>(std::clamp(flops / kFlopsPerThread, 1.0, static_cast<double>(thread_capacity())));
    }

    /** C = beta * C: the store of sums that are all 0. */
    void scale(char *pc, float beta) const {
        if (beta == 1) return;
        alignas(kLine) static const char zeros[32 * 64 * sizeof(float)] = {};
        const int64_t rows = ceil_div(m, kernel.mr), cols = ceil_div(n, kernel.nr);
        const int scale_threads = worth_threads(16.0 * static_cast<double>(batch * m) * static_cast<double>(n));
        parallel_for(batch * rows, scale_threads, [&](int64_t t, int) {
            const int64_t i = t % rows * kernel.mr;
            for (int64_t j = 0; j < cols; ++j)
                kernel.store(pc + (t / rows * c.batch + i * c.row + j * kernel.nr * c.col) * size, c.row, c.col, zeros, std::min<int64_t>(kernel.mr, m - i),
                             std::min<int64_t>(kernel.nr, n - j * kernel.nr), 0.0f, beta);
        });
    }

    /** One item of the batch. */
    void multiply(char *pc, const char *pa, const char *pb, char *workspace, int item_threads, float alpha, float beta) const {
        char *const panels_a = workspace, *const panels_b = panels_a + bytes_a, *const sums = panels_b + bytes_b;
        const int64_t block_m = round_to(kBlockM, kernel.mr), block_n = round_to(kBlockN, kernel.nr);
        for (int64_t n0 = 0; n0 < n; n0 += block_n) {
            for (int64_t m0 = 0; m0 < m; m0 += block_m) {
                for (int64_t k0 = 0; k0 < k; k0 += kBlockK) {
                    const Block block{m0, n0, k0, std::min(block_m, m - m0), std::min(block_n, n - n0), std::min(kBlockK, k - k0)};
                    pack(block, pa, pb, panels_a, panels_b, item_threads);
                    multiply_block(block, pc, panels_a, panels_b, sums, item_threads, alpha, beta);
                }
            }
        }
    }

    /** Rows m0.., columns n0.. of C and the part k0.. of the sums. */
    struct Block {
        int64_t m0, n0, k0, m, n, k;
    };

    void pack(const Block &block, const char *pa, const char *pb, char *panels_a, char *panels_b, int item_threads) const {
        const int64_t count_a = ceil_div(block.m, kernel.mr), count_b = ceil_div(block.n, kernel.nr);
        parallel_for(count_a + count_b, item_threads, [&](int64_t t, int) {
            if (t < count_a) {
                const int64_t i = t * kernel.mr;
                kernel.pack(panels_a + i * block.k * kernel.acc_size, pa + ((block.m0 + i) * a.row + block.k0 * a.col) * size, a.row, a.col,
                            std::min<int64_t>(kernel.mr, block.m - i), kernel.mr, block.k);
            } else {
                const int64_t j = (t - count_a) * kernel.nr;
                kernel.pack(panels_b + j * block.k * kernel.acc_size, pb + ((block.n0 + j) * b.col + block.k0 * b.row) * size, b.col, b.row,
                            std::min<int64_t>(kernel.nr, block.n - j), kernel.nr, block.k);
            }
        });
    }

    void multiply_block(const Block &block, char *pc, const char *panels_a, const char *panels_b, char *sums, int item_threads, float alpha, float beta) const {
        const bool first = block.k0 == 0, last = block.k0 + block.k == k;
        const int64_t tiles_n = ceil_div(block.n, kernel.nr);
        const int64_t tile_bytes = static_cast<int64_t>(kernel.mr) * kernel.nr * kernel.acc_size;
        const int64_t task_n = std::min<int64_t>(round_to(kTaskCols, kernel.nr), round_to(block.n, kernel.nr));
        int64_t task_m = std::min<int64_t>(round_to(kTaskRows, kernel.mr), round_to(block.m, kernel.mr));
        // Smaller tasks where there are too few to keep every thread busy to the end.
        while (item_threads > 1 && task_m > kernel.mr && ceil_div(block.m, task_m) * ceil_div(block.n, task_n) < item_threads * 4) task_m = round_to(task_m / 2, kernel.mr);
        const int64_t tasks_n = ceil_div(block.n, task_n);
        parallel_for(ceil_div(block.m, task_m) * tasks_n, item_threads, [&](int64_t t, int slot) {
            const int64_t i0 = t / tasks_n * task_m, i1 = std::min(i0 + task_m, block.m);
            const int64_t j0 = t % tasks_n * task_n, j1 = std::min(j0 + task_n, block.n);
            for (int64_t j = j0; j < j1; j += kernel.nr) {
                for (int64_t i = i0; i < i1; i += kernel.mr) {
                    char *const tile = k_blocks > 1 ? sums + (i / kernel.mr * tiles_n + j / kernel.nr) * tile_bytes
                                                    : sums + slot * static_cast<int64_t>(round_up(static_cast<size_t>(tile_bytes), kLine));
                    kernel.multiply(block.k, panels_a + i * block.k * kernel.acc_size, panels_b + j * block.k * kernel.acc_size, tile, !first);
                    if (last)
                        kernel.store(pc + ((block.m0 + i) * c.row + (block.n0 + j) * c.col) * size, c.row, c.col, tile, std::min<int64_t>(kernel.mr, block.m - i),
                                     std::min<int64_t>(kernel.nr, block.n - j), alpha, beta);
                }
            }
        });
    }

    GemmKernel kernel;
    int64_t size; // bytes of an element
    int64_t batch, m, n, k, k_blocks;
    Matrix a, b, c;
    bool by_item; // threads share the items of the batch, and not one item
    int threads, slots;
    size_t bytes_a, bytes_b, bytes_sums; // of the workspace, a slot
};

} // namespace

std::unique_ptr<CpuPlan> plan_gemm(const InfiniProblem &problem, size_t *workspace_size) {
    return std::make_unique<GemmPlan>(problem, workspace_size);
}

} // namespace infini
