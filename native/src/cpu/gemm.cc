/* gemm on the CPU: one set of parts (pack, multiply, stream, store; see GemmKernel) and three ways to put them together.
 *
 *  blocked   C is cut into blocks of at most kBlockM x kBlockN, K into blocks of kBlockK. For each, A and B are packed into
 *            panels of the register tile's height and width, converted to the type sums are kept in on the way; then tiles
 *            are multiplied, all threads sharing the packed panels.
 *  columns   few rows: A is packed once and stays in the cache; threads share the columns of C, and each packs the part of B
 *            that it needs, a few panels at a time, and uses it at once.
 *  stream    few rows, and rows of B are contiguous: B is not packed but multiplied where it lies.
 *
 *  Whatever the way, an element of C is the sum over k in ascending order, one partial sum for each kBlockK of them: the order
 *  depends on K alone, so a row of C has the same bits whatever M, N, the batch or the number of threads are. */
#include <algorithm>
#include <optional>

#include "core/dtype.h"
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace infini {

namespace {

constexpr int64_t kBlockK = 256;   // two panels of this depth share the first-level cache
constexpr int64_t kBlockM = 2048;  // packed A: 2 MiB of F32
constexpr int64_t kBlockN = 1024;  // packed B: 1 MiB of F32
constexpr int64_t kTaskRows = 168; // of C in one task: its packed operands share the second-level cache
constexpr int64_t kTaskCols = 256;
constexpr int64_t kFewRows = 64;         // up to here a row of B is used for all rows of A at once
constexpr int64_t kPackK = 4 * kBlockK;  // of B packed at a time then: rows of it are read a page at a time
constexpr int64_t kFewRowsOfA = 1 << 22; // elements of A up to which it is packed as a whole
constexpr int64_t kStreamMaxRows = 32;
constexpr int64_t kStreamCols = 1024;        // of B in one task: runs of a page; half for several panels of A
constexpr int64_t kStreamSums = 8 * 1024;    // or as many columns as have so many sums: these stay in the cache
constexpr int64_t kStreamBytes = 256 * 1024; // of B: below, packing it costs nothing that matters
constexpr double kFlopsPerThread = 1 << 20;  // fewer are done before a second thread is awake
constexpr int64_t kLine = 64;

int64_t ceil_div(int64_t x, int64_t y) { return x / y + (x % y != 0); }
int64_t round_up(int64_t x, int64_t y) { return ceil_div(x, y) * y; }

/** How many threads so much work is worth, whatever their number is when it is run. */
int worth_threads(double flops) {
    return static_cast<int>(std::clamp(flops / kFlopsPerThread, 1.0, static_cast<double>(thread_capacity())));
}

/** Strides in elements, offset in bytes. */
struct Matrix {
    int64_t offset, batch, row, col;
};

/** A problem in the form all ways share, for one item of its batch. */
struct Gemm {
    GemmKernel kernel;
    int64_t size; // bytes of an element
    int64_t batch, m, n, k;
    Matrix c, a, b;
    int64_t mr, nr; // the register tile
    bool exchanged; // a is the problem's B^T and b its A^T

    explicit Gemm(const InfiniProblem &problem) {
        const InfiniOperand &dc = problem.operands[0], &da = problem.operands[1], &db = problem.operands[2];
        kernel = kernels().gemm[dc.dtype];
        size = kDtypes[dc.dtype].size;
        const auto matrix = [&](const InfiniOperand &x) {
            return Matrix{x.offset * size, x.stride[0], x.stride[1], x.stride[2]};
        };
        batch = dc.shape[0];
        m = dc.shape[1];
        n = dc.shape[2];
        k = da.shape[2];
        c = matrix(dc);
        a = matrix(da);
        b = matrix(db);
        // One B for all items: their rows are rows of one taller problem.
        if (batch > 1 && b.batch == 0 && (m == 1 || (c.batch == m * c.row && a.batch == m * a.row))) {
            if (m == 1) {
                c.row = c.batch;
                a.row = a.batch;
            }
            m *= batch;
            batch = 1;
        }
        // Sums are stored in rows, so a column-major C is computed as C^T = B^T A^T; so is one with few columns, since the ways
        // for few rows then apply.
        const bool column_major = c.col != 1 && n > 1 && (m == 1 || std::abs(c.row) < std::abs(c.col));
        const bool narrow = n <= kFewRows && m > 4 * n;
        exchanged = column_major || narrow;
        if (exchanged) {
            std::swap(m, n);
            std::swap(a, b);
            for (Matrix *x : {&a, &b, &c}) std::swap(x->row, x->col);
        }
        nr = kernel.nr;
        mr = m > 0 ? ceil_div(m, ceil_div(m, kernel.mr)) : kernel.mr; // panels of one height, none nearly empty
    }

    int64_t acc_bytes(int64_t count) const { return round_up(count * kernel.acc_size, kLine); }
    double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
    int64_t k_blocks() const { return ceil_div(k, kBlockK); }
    const char *at_a(const char *pa, int64_t i, int64_t l) const { return pa + (i * a.row + l * a.col) * size; }
    const char *at_b(const char *pb, int64_t l, int64_t j) const { return pb + (l * b.row + j * b.col) * size; }
    char *at_c(char *pc, int64_t i, int64_t j) const { return pc + (i * c.row + j * c.col) * size; }
};

/** One item's operands and what a run may use for it. */
struct Run {
    char *c;
    const char *a, *b;
    char *workspace;
    int threads;
    float alpha, beta;
};

/* ---- blocked ---------------------------------------------------------------------------------------------------------- */

struct Blocked : Gemm {
    int64_t block_m, block_n;             // multiples of the tile
    int64_t bytes_a, bytes_b, bytes_sums; // of the workspace

    Blocked(const Gemm &gemm, int threads) : Gemm(gemm) {
        block_m = std::min(round_up(m, mr), round_up(kBlockM, mr));
        block_n = std::min(round_up(n, nr), round_up(kBlockN, nr));
        const int64_t depth = std::min(k, kBlockK);
        bytes_a = acc_bytes(block_m * depth);
        bytes_b = acc_bytes(block_n * depth);
        // Sums wait here for the next K block; with one block, a tile a thread is enough.
        bytes_sums = k_blocks() > 1 ? acc_bytes(block_m * block_n) : acc_bytes(mr * nr) * threads;
    }
    int64_t workspace() const { return bytes_a + bytes_b + bytes_sums; }

    void run(const Run &r) const {
        char *const panels_a = r.workspace, *const panels_b = panels_a + bytes_a, *const sums = panels_b + bytes_b;
        for (int64_t n0 = 0; n0 < n; n0 += block_n) {
            for (int64_t m0 = 0; m0 < m; m0 += block_m) {
                for (int64_t k0 = 0; k0 < k; k0 += kBlockK) {
                    const Block block{
                        m0, n0, k0, std::min(block_m, m - m0), std::min(block_n, n - n0), std::min(kBlockK, k - k0)};
                    pack(block, r, panels_a, panels_b);
                    multiply(block, r, panels_a, panels_b, sums);
                }
            }
        }
    }

    /** Rows m0.., columns n0.. of C and the part k0.. of the sums. */
    struct Block {
        int64_t m0, n0, k0, m, n, k;
    };

    void pack(const Block &block, const Run &r, char *panels_a, char *panels_b) const {
        constexpr int64_t kPanels = 8; // a task: long runs of memory, still tasks for all
        const int64_t step_a = kPanels * mr, step_b = kPanels * nr;
        const int64_t tasks_a = ceil_div(block.m, step_a), tasks_b = ceil_div(block.n, step_b);
        parallel_for(tasks_a + tasks_b, r.threads, [&](int64_t t, int) {
            if (t < tasks_a) {
                const int64_t i = t * step_a;
                kernel.pack(panels_a + i * block.k * kernel.acc_size, at_a(r.a, block.m0 + i, block.k0), a.row, a.col,
                            std::min(step_a, block.m - i), mr, block.k);
            } else {
                const int64_t j = (t - tasks_a) * step_b;
                kernel.pack(panels_b + j * block.k * kernel.acc_size, at_b(r.b, block.k0, block.n0 + j), b.col, b.row,
                            std::min(step_b, block.n - j), nr, block.k);
            }
        });
    }

    void multiply(const Block &block, const Run &r, const char *panels_a, const char *panels_b, char *sums) const {
        const bool first = block.k0 == 0, last = block.k0 + block.k == k;
        const int64_t tiles_n = ceil_div(block.n, nr), tile_bytes = mr * nr * kernel.acc_size;
        const int64_t task_n = std::min(round_up(kTaskCols, nr), round_up(block.n, nr));
        int64_t task_m = std::min(round_up(kTaskRows, mr), round_up(block.m, mr));
        // Smaller tasks where there are too few to keep every thread busy to the end.
        while (r.threads > 1 && task_m > mr && ceil_div(block.m, task_m) * ceil_div(block.n, task_n) < r.threads * 4)
            task_m = round_up(task_m / 2, mr);
        const int64_t tasks_n = ceil_div(block.n, task_n);
        parallel_for(ceil_div(block.m, task_m) * tasks_n, r.threads, [&](int64_t t, int slot) {
            const int64_t i0 = t / tasks_n * task_m, i1 = std::min(i0 + task_m, block.m);
            const int64_t j0 = t % tasks_n * task_n, j1 = std::min(j0 + task_n, block.n);
            for (int64_t j = j0; j < j1; j += nr) {
                for (int64_t i = i0; i < i1; i += mr) {
                    char *const tile = k_blocks() > 1 ? sums + (i / mr * tiles_n + j / nr) * tile_bytes
                                                      : sums + slot * acc_bytes(mr * nr);
                    kernel.multiply[mr](block.k, panels_a + i * block.k * kernel.acc_size,
                                        panels_b + j * block.k * kernel.acc_size, tile, !first);
                    if (last)
                        kernel.store(at_c(r.c, block.m0 + i, block.n0 + j), c.row, c.col, tile, nr,
                                     std::min(mr, block.m - i), std::min(nr, block.n - j), r.alpha, r.beta);
                }
            }
        });
    }
};

/* ---- columns and stream: few rows --------------------------------------------------------------------------------------- */

struct FewRows : Gemm {
    bool stream;
    int64_t panels_m;                     // panels of A
    int64_t task_n;                       // columns of C in a task
    int64_t ld;                           // of the sums
    int64_t bytes_a, bytes_b, bytes_sums; // packed A, shared; scratch of B or of partial sums, and sums, a thread

    /** Few rows, and an A that may be packed as a whole; K alone can be as long as 0 strides allow. */
    static bool applies(const Gemm &g) { return g.m <= kFewRows && g.k <= kFewRowsOfA / round_up(g.m, g.mr); }

    static bool can_stream(const Gemm &g) {
        return g.b.col == 1 && g.m <= kStreamMaxRows && g.n >= 2 * g.nr && g.k >= kStreamBytes / (g.n * g.size);
    }

    FewRows(const Gemm &gemm, int threads) : Gemm(gemm), stream(can_stream(gemm)) {
        if (stream) mr = ceil_div(m, ceil_div(m, kernel.stream_rows));
        panels_m = ceil_div(m, mr);
        bytes_a = acc_bytes(panels_m * mr * k);
        if (stream) {
            const int64_t share = round_up(ceil_div(n, threads), 2 * nr);
            // The longer the runs of B the better; the sums and partial sums of one row of A fit the first-level cache.
            task_n = std::min(panels_m > 1 ? kStreamCols / 2 : std::max(kStreamCols, kStreamSums / mr), share);
            ld = round_up(task_n, nr);
            bytes_b = acc_bytes(mr * ld);
        } else {
            constexpr int64_t kPanels = 4;
            task_n = std::min(kPanels * nr, round_up(n, nr));
            ld = nr;
            bytes_b = acc_bytes(task_n * std::min(k, kPackK));
        }
        bytes_sums = acc_bytes(panels_m * mr * round_up(task_n, nr));
    }
    int64_t workspace(int threads) const { return bytes_a + (bytes_b + bytes_sums) * threads; }

    void run(const Run &r) const {
        // [k block][panel][k][row]
        parallel_for(k_blocks(), m * k < 64 * 1024 ? 1 : r.threads, [&](int64_t block, int) {
            const int64_t k0 = block * kBlockK;
            kernel.pack(r.workspace + k0 * panels_m * mr * kernel.acc_size, at_a(r.a, 0, k0), a.row, a.col, m, mr,
                        std::min(kBlockK, k - k0));
        });
        parallel_for(ceil_div(n, task_n), r.threads, [&](int64_t t, int slot) {
            char *const scratch = r.workspace + bytes_a + slot * (bytes_b + bytes_sums);
            const int64_t j0 = t * task_n, columns = std::min(task_n, n - j0);
            stream ? stream_columns(r, j0, columns, scratch, scratch + bytes_b)
                   : pack_columns(r, j0, columns, scratch, scratch + bytes_b);
        });
    }

    const char *panel_a(const Run &r, int64_t k0, int64_t depth, int64_t panel) const {
        return r.workspace + (k0 * panels_m * mr + panel * mr * depth) * kernel.acc_size;
    }

    void stream_columns(const Run &r, int64_t j0, int64_t columns, char *partial, char *sums) const {
        for (int64_t k0 = 0; k0 < k; k0 += kBlockK) {
            const int64_t depth = std::min(kBlockK, k - k0);
            // The first panel of A brings this part of B into the second-level cache, the others find it there.
            for (int64_t p = 0; p < panels_m; ++p)
                kernel.stream[mr](depth, panel_a(r, k0, depth, p), at_b(r.b, k0, j0), b.row, columns,
                                  sums + p * mr * ld * kernel.acc_size, partial, ld, k0 > 0);
        }
        for (int64_t p = 0; p < panels_m; ++p)
            kernel.store(at_c(r.c, p * mr, j0), c.row, c.col, sums + p * mr * ld * kernel.acc_size, ld,
                         std::min(mr, m - p * mr), columns, r.alpha, r.beta);
    }

    void pack_columns(const Run &r, int64_t j0, int64_t columns, char *panels_b, char *sums) const {
        const int64_t tile_bytes = mr * nr * kernel.acc_size, tiles = ceil_div(columns, nr);
        for (int64_t k0 = 0; k0 < k; k0 += kPackK) {
            const int64_t packed = std::min(kPackK, k - k0);
            kernel.pack(panels_b, at_b(r.b, k0, j0), b.col, b.row, columns, nr, packed);
            for (int64_t j = 0; j < tiles; ++j)
                for (int64_t l = 0; l < packed; l += kBlockK) {
                    const int64_t depth = std::min(kBlockK, packed - l);
                    for (int64_t p = 0; p < panels_m; ++p)
                        kernel.multiply[mr](depth, panel_a(r, k0 + l, depth, p),
                                            panels_b + (j * packed + l) * nr * kernel.acc_size,
                                            sums + (j * panels_m + p) * tile_bytes, k0 + l > 0);
                }
        }
        for (int64_t j = 0; j < tiles; ++j)
            for (int64_t p = 0; p < panels_m; ++p)
                kernel.store(at_c(r.c, p * mr, j0 + j * nr), c.row, c.col, sums + (j * panels_m + p) * tile_bytes, nr,
                             std::min(mr, m - p * mr), std::min(nr, columns - j * nr), r.alpha, r.beta);
    }
};

/* ---- the plan --------------------------------------------------------------------------------------------------------- */

struct GemmPlan final : CpuPlan {
    GemmPlan(const Gemm &gemm, size_t *workspace_size) : g(gemm) {
        if (g.k == 0) return; // nothing but scale()
        const int threads = worth_threads(g.flops() * static_cast<double>(g.batch));
        // Small items are worth a thread each, not several threads one after the other.
        by_item = g.batch > 1 && g.flops() < 16 * kFlopsPerThread;
        slots = by_item ? static_cast<int>(std::min<int64_t>(g.batch, threads)) : 1;
        threads_of_item = by_item ? 1 : threads;
        if (FewRows::applies(g))
            few.emplace(g, threads_of_item);
        else
            blocked.emplace(g, threads_of_item);
        bytes = few ? few->workspace(threads_of_item) : blocked->workspace();
        *workspace_size = static_cast<size_t>(slots * bytes + kLine);
    }

    void run(const InfiniCall &call) const override {
        char *const pc = static_cast<char *>(call.operands[0]) + g.c.offset;
        if (g.k == 0 || call.alpha == 0) return scale(pc, call.beta);
        // A and B stand in the order of the problem: exchanged where the plan exchanged them.
        const char *const pa = static_cast<const char *>(call.operands[1]);
        const char *const pb = static_cast<const char *>(call.operands[2]);
        char *const workspace = reinterpret_cast<char *>(
            round_up(static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.workspace)), kLine));
        const auto item = [&](int64_t i, int slot) {
            const Run r{pc + i * g.c.batch * g.size,
                        (g.exchanged ? pb : pa) + g.a.offset + i * g.a.batch * g.size,
                        (g.exchanged ? pa : pb) + g.b.offset + i * g.b.batch * g.size,
                        workspace + slot * bytes,
                        threads_of_item,
                        call.alpha,
                        call.beta};
            few ? few->run(r) : blocked->run(r);
        };
        if (by_item) return parallel_for(g.batch, slots, item);
        for (int64_t i = 0; i < g.batch; ++i) item(i, 0);
    }

    /** C = beta * C: the store of sums that are all 0. */
    void scale(char *pc, float beta) const {
        if (beta == 1) return;
        alignas(kLine) static const char zeros[4096] = {};
        const int64_t columns = static_cast<int64_t>(sizeof zeros) / g.kernel.acc_size;
        parallel_for(g.batch * g.m, worth_threads(4.0 * static_cast<double>(g.batch * g.m) * static_cast<double>(g.n)),
                     [&](int64_t t, int) {
                         for (int64_t j = 0; j < g.n; j += columns)
                             g.kernel.store(g.at_c(pc + t / g.m * g.c.batch * g.size, t % g.m, j), g.c.row, g.c.col,
                                            zeros, 0, 1, std::min(columns, g.n - j), 0.0f, beta);
                     });
    }

    Gemm g;
    bool by_item = false; // threads share the items of the batch, and not one item
    int slots = 1, threads_of_item = 1;
    std::optional<Blocked> blocked; // one of these two
    std::optional<FewRows> few;
    int64_t bytes = 0; // of the workspace, an item
};

} // namespace

std::unique_ptr<CpuPlan> plan_gemm(const InfiniProblem &problem, size_t *workspace_size) {
    return std::make_unique<GemmPlan>(Gemm(problem), workspace_size);
}

} // namespace infini
