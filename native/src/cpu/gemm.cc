/* gemm on the CPU: one set of parts (see GemmKernel) and three ways to put them together.
 *
 *  in place  B is multiplied where it lies, in tasks that need nothing of each other: F32 and F64 where the rows of B and of A are
 *            contiguous and B stays in the second-level cache; every dtype where A has few rows, or not many and K is short. A
 *            is not packed either, unless it must be converted. Where there is more of B than the cache holds, few rows of A
 *            are multiplied by short blocks of K, and very few by long runs of some of B's rows; one row by some columns of B
 *            over all of K (gemv.inl).
 *  columns   so few rows that a K block of A stays in the second-level cache beside B's: A is packed once, as a whole; threads
 *            share the columns of C, and each packs the part of B that it needs: a panel whose rows are contiguous while the
 *            first rows of A are multiplied with it, others at once, or where B comes from memory while the K block before is
 *            multiplied. Between the threads there is nothing to wait for, and no line of B that one of them wrote and
 *            another reads.
 *  blocked   all else. C is cut into blocks, K into as many K blocks as fit. B is packed into panels of the register tile's width,
 *            converted to the type sums are kept in on the way, while the threads are still busy with the block before; each
 *            task packs its own rows of A into its thread's second-level cache. From one K block to the next, a tile's sums stay
 *            in the first-level cache.
 *
 *  An epilogue is applied by each task to its part of C as soon as all of K is in it, and while it is in the cache.
 *
 *  Whatever the way, an element of C is the sum over k in ascending order (of units of k, see GemmKernel), one partial sum for
 *  each kGemmBlockUnits of them: the order depends on K alone, so a row of C has the same bits whatever M, N, the batch or the
 *  number of threads are. */
#include <algorithm>
#include <atomic>
#include <memory>

#include "core/dtype.h"
#include "cpu/caches.h"
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace infini {

namespace {

constexpr double kFlopsPerThread = 1 << 20; // fewer are done before a second thread is awake
constexpr double kFlopsOfLoad = 8;          // that take as long as an element of B to come from the second-level cache
constexpr double kItemsFlops = 1 << 19;     // of items that a thread takes at a time: where that is often, threads wait
constexpr double kFetchItemFlops = 2 * 48 * 48 * 48; // for less, fetching the next item costs more than it saves
constexpr int64_t kLine = 64;
constexpr int64_t kFarB = 12 << 20; // bytes of B from which on it comes from memory, and is streamed or packed ahead

/* In place. A task's K block of B fills half of a second-level cache of 1 MiB, A's part and the sums some more of it. */
constexpr int64_t kInPlaceRun = 2048; // bytes of a row of B in one task
constexpr int64_t kInPlaceStep = 256; // rows of B that are multiplied before the next ones
constexpr int64_t kInPlaceTaskRows = 96;
constexpr int64_t kInPlaceFarRows =
    16 * 1024;                            // bytes between rows of B: with each in pages of its own, packing pays from
constexpr int64_t kInPlaceManyRows = 512; // so many rows of A on
constexpr int64_t kInPlaceFewRows = 32;
/* M and K of a product that is over before packing has paid; packing while rows of B are multiplied. */
constexpr int64_t kInPlaceShort = 128, kInPlaceShortOfRows = 64;
constexpr int64_t kInPlaceFewRowsRun =
    1024; // so that the next K block, on its way from memory, has room beside this one
/* More of B than this, of which rows a power of 2 apart would have no room in the cache, is packed for many rows of A. Few rows of A
 * are multiplied with so many rows of it at a time, in longer runs: they have room, those that follow beside them, and memory
 * is faster at long runs. In a smaller cache (see GemmKernel) they have none where rows of B meet in a few of its sets. */
constexpr int64_t kInPlaceNearB = 768 * 1024, kInPlaceNearBSmallL2 = 256 * 1024, kInPlaceMostNearB = 1024 * 1024;
constexpr int64_t kInPlaceShortStep = 32;
constexpr int64_t kInPlaceShortRun = 4096; // 2048 or 1024 in a smaller cache
/* Bytes of B up to which its columns need no fetching, and the first rows of a task. Columns that few shuffles transpose come fast
 * enough from the last-level cache. */
constexpr int64_t kColumnsNearB = 16 << 20, kColumnsNearBSmallL2 = 512 * 1024;
constexpr int64_t kRowsNearB = 1024 * 1024;
constexpr int64_t kInPlaceCrowdedEvery = 4096;
constexpr int64_t kStreamRun = 16 * 1024;     // bytes of a row of sums
constexpr int64_t kStreamLeastRun = 2048;     // bytes of a row of B, where tasks are shorter for their number's sake:
constexpr int64_t kStreamMostSums = 16 << 20; // bytes of those of all K blocks
constexpr int64_t kStreamTasks = 16; // for a thread, since one of two often falls behind with what comes from memory
constexpr int64_t kStreamRowsUncrowded = 4; // from more rows on, short steps are faster

/* Columns. */
constexpr int64_t kColumnsA = 256 * 1024; // bytes of a K block of packed A: a quarter of a second-level cache of 1 MiB
constexpr int64_t kColumnsRun = 1024;     // bytes of a row of B in one task where it is contiguous,
constexpr int64_t kColumnsPanels = 2; // else panels of B: what lies ahead in k is then in the cache when it is packed
/* For a B from memory more rows of A pay, if the second-level cache is as large as those that this was measured on, there are so many
 * columns, and packed A, which each task reads, has so few bytes. */
constexpr int64_t kColumnsL2 = 2 << 20, kColumnsMany = 1536, kColumnsManyRowsA = 12 << 20;
constexpr int64_t kFewRowsOfA = 1 << 22; // elements of A up to which it is packed as a whole

constexpr int64_t kFewColumns = 64;

/* Blocked. */
constexpr int64_t kBlockM = 4096;  // C of one block: 16 MiB of sums, which wait where K is long
constexpr int64_t kBlockN = 1024;  // packed B: 1 MiB a K block
constexpr int64_t kTaskRows = 168; // of C in one task: its packed rows of A stay in the second-level cache
constexpr int64_t kParts = 3;      // of that cache; into one go as many K blocks of such rows as fit, but at least one
constexpr int64_t kTaskCols = 256; // small enough that all threads end at about the same time

int64_t ceil_div(int64_t x, int64_t y) { return x / y + (x % y != 0); }
int64_t round_up(int64_t x, int64_t y) { return ceil_div(x, y) * y; }
std::string text(int64_t x) { return std::to_string(x); }

/** How many threads so much work is worth, whatever their number is when it is run. */
int worth_threads(double flops) {
    return static_cast<int>(std::clamp(flops / kFlopsPerThread, 1.0, static_cast<double>(thread_capacity())));
}

/** Strides in elements. */
struct Matrix {
    int64_t batch, row, col;
};

/** What follows the product: C = C op D, by the kernels and with the roundings of the operator itself. */
struct Epilogue {
    BinaryRows kernel = nullptr; // null: nothing
    BinaryTile tile = nullptr;

    Epilogue() = default;
    Epilogue(BinaryOp op, int dtype) : kernel(kernels().binary[op][dtype]), tile(kernels().binary_tile[op][dtype]) {}

    void run(TileOperand c, TileOperand d, int64_t rows, int64_t cols) const {
        constexpr int64_t kFewSteps = 4; // so short a row costs a call that strided elements are not worth saving
        if (c.col != 1 && (rows > cols || (c.row == 1 && rows >= kFewSteps))) {
            std::swap(rows, cols);
            for (TileOperand *x : {&c, &d}) std::swap(x->row, x->col);
        }
        if (c.row == cols * c.col && d.row == cols * d.col) { // one row
            cols *= rows;
            rows = 1;
        }
        const bool transposed = rows > 1 && d.row == 1 && d.col != 0 && d.col != 1;
        if (c.col == 1 && transposed) return tile(c, c, d, rows, cols, false);
        kernel(c, c, d, rows, cols);
    }
};

/** A problem in the form all ways share, for one item of its batch. */
struct Gemm {
    GemmKernel kernel;
    int64_t size;    // bytes of an element
    int64_t block_k; // kGemmBlockUnits, in elements
    int64_t batch, m, n, k;
    Matrix c, a, b, d; // d: of the epilogue, if there is one
    Epilogue epilogue;
    int64_t mr, nr;                // the register tile
    int64_t panels_m, low, taller; // panels of A; the rows of one; how many, the first ones, have a row more
    bool exchanged;                // a is the problem's B^T and b its A^T

    Gemm(const InfiniProblem &problem, const Epilogue &then) : d{}, epilogue(then) {
        const InfiniOperand &dc = problem.operands[0], &da = problem.operands[1], &db = problem.operands[2];
        kernel = kernels().gemm[dc.dtype];
        size = kDtypes[dc.dtype].size;
        block_k = kGemmBlockUnits * kernel.unit_k;
        const auto matrix = [&](const InfiniOperand &x) { return Matrix{x.stride[0], x.stride[1], x.stride[2]}; };
        batch = dc.shape[0];
        m = dc.shape[1];
        n = dc.shape[2];
        k = da.shape[2];
        c = matrix(dc);
        a = matrix(da);
        b = matrix(db);
        if (epilogue.kernel != nullptr) d = matrix(problem.operands[3]);
        // One B for all items: their rows are rows of one taller problem.
        const auto goes_on = [&](const Matrix &x) { return m == 1 || x.batch == m * x.row; };
        if (batch > 1 && b.batch == 0 && goes_on(c) && goes_on(a) && goes_on(d)) {
            if (m == 1)
                for (Matrix *x : {&c, &a, &d}) x->row = x->batch;
            m *= batch;
            batch = 1;
        }
        // Sums are stored in rows, so a column-major C is computed as C^T = B^T A^T; so is one with few columns, since the ways
        // for few rows then apply.
        const bool column_major = c.col != 1 && n > 1 && (m == 1 || std::abs(c.row) < std::abs(c.col));
        const bool narrow = n <= kFewColumns && m > 4 * n;
        exchanged = column_major || narrow;
        if (exchanged) {
            std::swap(m, n);
            std::swap(a, b);
            for (Matrix *x : {&a, &b, &c, &d}) std::swap(x->row, x->col);
        }
        nr = kernel.nr;
        // As few panels of A as can be, and as equal: no row is computed that does not exist.
        panels_m = std::max<int64_t>(ceil_div(m, kernel.mr), 1);
        low = m / panels_m;
        taller = m % panels_m;
        mr = low + (taller != 0);
    }

    int64_t acc_bytes(int64_t count) const { return round_up(count * kernel.acc_size, kLine); }
    int64_t tile_bytes() const { return acc_bytes(mr * nr); }
    /** Of a panel of B. A line more than it holds, for panels of powers of 2 would meet in one set of the first-level cache when
     *  a row of B is dealt out to them. */
    int64_t panel_b(int64_t depth) const { return acc_bytes(nr * depth) + kLine; }
    bool b_is_in_memory() const { return n > kFarB / size / k; }
    /** Has B rows that a product may pack on its way? */
    bool can_pack_rows() const { return b.col == 1 && n >= nr && kernel.multiply_pack[1] != nullptr; }
    /** B lies in memory as runs: rows where those are contiguous (or nothing is), else columns. */
    bool runs_are_rows() const { return b.col == 1 || b.row != 1; }
    int64_t runs(int64_t count, int64_t kc) const { return runs_are_rows() ? kc : count; }
    /** Runs from..to of kc rows and `count` columns of B. Runs that share units or a panel are packed together. */
    int pack_b(char *panels, const char *pb, int64_t count, int64_t kc, int64_t from, int64_t to) const {
        const int64_t panel = panel_b(units(kc)), stride = panel / kernel.acc_size;
        if (runs_are_rows())
            return kernel.pack(panels + from / kernel.unit_k * nr * kernel.acc_size, stride, at_b(pb, from, 0), b.col,
                               b.row, count, nr, to - from);
        return kernel.pack(panels + from / nr * panel, stride, at_b(pb, 0, from), b.col, b.row, to - from, nr, kc);
    }
    /** Where panel p of A begins, in rows: those of the panels before it. */
    int64_t row_of(int64_t p) const { return p * low + std::min(p, taller); }
    int64_t height(int64_t p) const { return low + (p < taller); }
    /** Bytes of all panels of A before p. */
    int64_t bytes_before(int64_t p, int64_t depth) const { return row_of(p) * depth * kernel.acc_size; }
    /** Panels p0..p1 of A, one behind the other. */
    int pack_a(char *panels, const char *pa, int64_t p0, int64_t p1, int64_t k0, int64_t kc) const {
        const int64_t depth = units(kc), lower = std::clamp(taller, p0, p1);
        const auto pack = [&](int64_t from, int64_t to) {
            if (from == to) return kLeastOfNothing;
            const int64_t i0 = row_of(from);
            return kernel.pack(panels + bytes_before(from, depth) - bytes_before(p0, depth), height(from) * depth,
                               at_a(pa, i0, k0), a.row, a.col, row_of(to) - i0, height(from), kc);
        };
        return std::min(pack(p0, lower), pack(lower, p1));
    }
    /** The same, for products that read as much of B `passes` times. */
    GemmFetch fetch_b(const char *pb, int64_t count, int64_t kc, int64_t passes) const {
        if (b.col != 1 && b.row != 1) return {};
        const int64_t run = (runs_are_rows() ? count : kc) * size, stride = (runs_are_rows() ? b.row : b.col) * size;
        return {pb,     pb + run, run, stride, runs(count, kc), kGemmStepsTogether * nr * kernel.unit_k * size,
                passes, passes};
    }
    /** `left` runs, within so many steps of the kernel. */
    static GemmFetch fetch_runs(const char *at, int64_t run, int64_t stride, int64_t left, int64_t steps) {
        constexpr int64_t kLeast = 8 * kLine; // at a time, since counting steps costs something, too
        if (left == 0 || steps == 0) return {};
        const int64_t bytes = std::max(round_up(ceil_div(run * left, steps), kLine), kLeast);
        const int64_t every = std::max<int64_t>(steps * bytes / (run * left), 1);
        return {at, at + run, run, stride, left, bytes, every, every};
    }
    /** What the product of an item brings nearer: A, B and C of another, as far as they lie in runs and are not shared. Returns how
     *  many parts that is, each followed by the next. */
    int fetch_item(const char *pa, const char *pb, const char *pc, GemmFetch (&parts)[3]) const {
        struct {
            const char *at;
            Matrix x;
            int64_t rows, cols;
        } const all[] = {{pa, a, m, k}, {pb, b, k, n}, {pc, c, m, n}};
        int count = 0;
        int64_t bytes = 0;
        for (auto [at, x, rows, cols] : all) {
            if (x.row == 1 && x.col != 1) {
                std::swap(x.row, x.col);
                std::swap(rows, cols);
            }
            if (x.batch == 0 || x.col != 1) continue;
            if (x.row == cols) {
                cols *= rows;
                rows = 1;
            }
            bytes += rows * cols * size;
            parts[count++] = {at, at + cols * size, cols * size, x.row * size, rows, 0, 0, 0};
        }
        const int64_t steps = std::max<int64_t>(m * n * units(k) / (kernel.mr * nr), 1); // at least
        const int64_t at_once = std::max(round_up(ceil_div(bytes, steps), kLine), 4 * kLine);
        for (int i = count - 1; i >= 0; --i) {
            parts[i].bytes = at_once;
            parts[i].every = parts[i].wait = std::max<int64_t>(steps * at_once / std::max<int64_t>(bytes, 1), 1);
            if (i + 1 < count) parts[i].then = &parts[i + 1];
        }
        return count;
    }
    int64_t units(int64_t depth) const { return ceil_div(depth, kernel.unit_k); }
    double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
    int64_t k_blocks() const { return ceil_div(k, block_k); }
    const char *at_a(const char *pa, int64_t i, int64_t l) const { return pa + (i * a.row + l * a.col) * size; }
    const char *at_b(const char *pb, int64_t l, int64_t j) const { return pb + (l * b.row + j * b.col) * size; }
    char *at_c(char *pc, int64_t i, int64_t j) const { return pc + (i * c.row + j * c.col) * size; }

    /** Rows i0.., columns j0.. of C hold the product: what follows it, once. */
    void finish(char *pc, char *pd, int64_t i0, int64_t j0, int64_t rows, int64_t cols) const {
        if (epilogue.kernel == nullptr) return;
        epilogue.run({at_c(pc, i0, j0), c.row, c.col}, {pd + (i0 * d.row + j0 * d.col) * size, d.row, d.col}, rows,
                     cols);
    }
};

/** One item's operands and what a run may use for it. */
struct Run {
    char *c;
    const char *a, *b;
    char *d; // only read; null without an epilogue
    char *workspace;
    int threads;
    float alpha, beta;
    GemmFetch *fetch = nullptr; // the operands of an item that follows
};

/** One way to compute an item. */
struct Way : Gemm {
    explicit Way(const Gemm &gemm) : Gemm(gemm) {}
    virtual ~Way() = default;
    virtual int64_t workspace(int threads) const = 0;
    virtual std::string describe() const = 0;
    virtual void run(const Run &r) const = 0;
};

/** May an instruction that flushes subnormal numbers meet one? Given the exponents of the least elements of A and B, as stored.
 *  With eight significant bits each, products are multiples of 2^(a + b - 268); so are sums, rounded or not, and none but 0
 *  is below the least normal number, 2^-126, if that is a multiple of it too. */
bool may_flush(int least_a, int least_b) { return least_a < 1 || least_b < 1 || least_a + least_b < 142; }

/** The least of what several threads find. */
class Least {
public:
    void meet(int exponent) {
        int least = least_.load(std::memory_order_relaxed);
        while (exponent < least && !least_.compare_exchange_weak(least, exponent, std::memory_order_relaxed)) {
        }
    }
    int exponent() const { return least_.load(std::memory_order_relaxed); }
    void forget() { least_.store(kLeastOfNothing, std::memory_order_relaxed); }

private:
    std::atomic<int> least_{kLeastOfNothing};
};

/** Tasks 0..n_tasks in as many shares as there are threads: neighbours stay together until a thread has done its own and helps
 *  the others. */
class Shares {
public:
    Shares(int64_t n_tasks, int threads) : n_tasks_(n_tasks), n_(std::min(threads, kMost)) {
        for (int64_t i = 0; i < n_; ++i) next_[i].at.store(begin(i), std::memory_order_relaxed);
    }
    template <class Task>
    void work(int64_t share, Task &&task) {
        for (int64_t i = 0; i < n_; ++i) {
            const int64_t from = (share + i) % n_;
            for (int64_t t; (t = next_[from].at.fetch_add(1, std::memory_order_relaxed)) < begin(from + 1);) task(t);
        }
    }

private:
    static constexpr int kMost = 64;
    int64_t begin(int64_t share) const { return n_tasks_ * share / n_; }

    const int64_t n_tasks_, n_;
    struct alignas(kLine) {
        std::atomic<int64_t> at;
    } next_[kMost];
};

/* ---- blocked ---------------------------------------------------------------------------------------------------------- */

struct Blocked final : Way {
    int64_t block_p, block_n, deep; // panels of A; columns, a multiple of the tile's; elements of K, whole K blocks
    int64_t bytes_a, bytes_b, bytes_sums; // of the workspace: A for each thread, B twice where a block follows

    explicit Blocked(const Gemm &gemm) : Way(gemm) {
        block_p = std::min(panels_m, ceil_div(kBlockM, mr));
        block_n = std::min(round_up(n, nr), round_up(kBlockN, nr));
        const int64_t bytes_k_block = kTaskRows * kGemmBlockUnits * kernel.acc_size;
        const int64_t most = std::max<int64_t>(second_level_cache() / kParts / bytes_k_block, 1);
        deep = ceil_div(k_blocks(), ceil_div(k_blocks(), most)) * block_k;
        const int64_t depth = units(std::min(k, deep));
        bytes_a = acc_bytes(std::min(block_p, task_panels()) * mr * depth) + tile_bytes();
        bytes_b = block_n / nr * panel_b(depth);
        // They wait here for the next K blocks.
        bytes_sums = k_steps() > 1 ? block_p * ceil_div(block_n, nr) * tile_bytes() : 0;
    }
    std::string describe() const override {
        return "blocked " + text(block_p * mr) + " x " + text(block_n) + " x " + text(std::min(k, deep)) + ", tiles " +
               text(mr) + " x " + text(nr);
    }
    int64_t workspace(int threads) const override {
        return bytes_a * threads + bytes_b * (steps() > 1 ? 2 : 1) + bytes_sums;
    }

    /** `panels` panels of A from p0 on, columns n0.. of C and the part k0.. of the sums. */
    struct Block {
        int64_t p0, n0, k0, panels, n, k;
    };

    int64_t blocks_m() const { return ceil_div(panels_m, block_p); }
    int64_t k_steps() const { return ceil_div(k, deep); }
    int64_t steps() const { return k_steps() * blocks_m() * ceil_div(n, block_n); }
    Block block_at(int64_t step) const {
        const int64_t k0 = step % k_steps() * deep, p0 = step / k_steps() % blocks_m() * block_p,
                      n0 = step / k_steps() / blocks_m() * block_n;
        return {p0, n0, k0, std::min(block_p, panels_m - p0), std::min(block_n, n - n0), std::min(deep, k - k0)};
    }

    void run(const Run &r) const override {
        const int64_t steps = this->steps();
        char *const scratch = r.workspace, *const sums = scratch + bytes_a * r.threads,
                    *const panels = sums + bytes_sums;
        Least least[2];
        for (int64_t step = -1; step < steps; ++step) {
            const int next = static_cast<int>((step + 1) & 1), now = 1 - next; // the first is packed into 0
            // This block is multiplied, and then the next one's B packed.
            const Block block = block_at(std::max<int64_t>(step, 0)), then = block_at(std::min(step + 1, steps - 1));
            const Tasks tasks = step < 0 ? Tasks{0, 1} : tasks_of(block, r.threads);
            const int64_t packing = step + 1 < steps ? pack_tasks(then) : 0;
            least[next].forget();
            Shares shares(tasks.m * tasks.n, r.threads);
            std::atomic<int64_t> next_pack{0};
            parallel_for(r.threads, r.threads, [&](int64_t share, int slot) {
                PackedRows rows;
                shares.work(share, [&](int64_t t) {
                    multiply(block, tasks, t, r, rows, scratch + slot * bytes_a, panels + now * bytes_b,
                             least[now].exponent(), sums);
                });
                for (int64_t t; (t = next_pack.fetch_add(1, std::memory_order_relaxed)) < packing;)
                    least[next].meet(pack(then, t, r, panels + next * bytes_b));
            });
        }
    }

    static constexpr int64_t kPackRows = 32, kPackPanels = 2;
    int64_t pack_runs() const { return runs_are_rows() ? kPackRows : kPackPanels * nr; }
    int64_t pack_tasks(const Block &block) const { return ceil_div(runs(block.n, block.k), pack_runs()); }
    int pack(const Block &block, int64_t t, const Run &r, char *panels) const {
        const int64_t from = t * pack_runs(), to = std::min(from + pack_runs(), runs(block.n, block.k));
        return pack_b(panels, at_b(r.b, block.k0, block.n0), block.n, block.k, from, to);
    }

    /** Into how many tasks a block is cut: by panels of A, then by panels of B. */
    struct Tasks {
        int64_t m, n;
    };
    int64_t task_panels() const { return kTaskRows / mr; } // of A; at most
    Tasks tasks_of(const Block &block, int threads) const {
        const int64_t tasks_m =
            std::max(ceil_div(block.panels, task_panels()), std::min<int64_t>(block.panels, threads));
        return {tasks_m, ceil_div(ceil_div(block.n, nr), std::max<int64_t>(kTaskCols / nr, 1))};
    }

    /** What the products of panels p0..p1 of A and one of B bring nearer: the next panel of B, which sums and the packing of A have
     *  driven out of the second-level cache; after the last one, as many rows of A, to be packed. */
    GemmFetch fetch_next(const Block &block, const Run &r, const char *panels_b, int64_t j, int64_t p0,
                         int64_t p1) const {
        const int64_t depth = units(block.k), steps = (p1 - p0) * (depth / kGemmStepsTogether);
        if (j < ceil_div(block.n, nr)) {
            const int64_t bytes = nr * depth * kernel.acc_size;
            return fetch_runs(panels_b + j * panel_b(depth), bytes, bytes, 1, steps);
        }
        const int64_t rows = row_of(std::min(p1 + p1 - p0, block.p0 + block.panels)) - row_of(p1);
        const char *const from = at_a(r.a, row_of(p1), block.k0);
        if (a.col == 1) return fetch_runs(from, block.k * size, a.row * size, rows, steps);
        if (a.row == 1) return fetch_runs(from, rows * size, a.col * size, rows == 0 ? 0 : block.k, steps);
        return {};
    }

    /** The rows of A that a thread has packed last. */
    struct PackedRows {
        int64_t task = -1;
        int least = kLeastOfNothing;
    };

    void multiply(const Block &block, Tasks tasks, int64_t t, const Run &r, PackedRows &rows, char *scratch,
                  const char *panels_b, int least_b, char *sums) const {
        const bool first = block.k0 == 0, last = block.k0 + block.k == k;
        const int64_t depth = units(block.k), panels_n = ceil_div(block.n, nr);
        const int64_t tm = t / tasks.n, tn = t % tasks.n;
        const int64_t p0 = block.p0 + block.panels * tm / tasks.m, p1 = block.p0 + block.panels * (tm + 1) / tasks.m;
        const int64_t j0 = panels_n * tn / tasks.n, j1 = panels_n * (tn + 1) / tasks.n;
        char *const tile = scratch, *const packed = scratch + tile_bytes();
        if (rows.task != tm) {
            rows.task = tm;
            rows.least = pack_a(packed, r.a, p0, p1, block.k0, block.k);
        }
        const GemmMultiply *const multiply = kernel.multiply[may_flush(rows.least, least_b) ? kExact : kFast];
        for (int64_t j = j0; j < j1; ++j) {
            GemmFetch fetch = fetch_next(block, r, panels_b, j + 1, p0, p1);
            for (int64_t p = p0; p < p1; ++p) {
                char *const waiting = sums + ((p - block.p0) * panels_n + j) * tile_bytes();
                const int64_t rows_p = height(p);
                const char *panel_a = packed + bytes_before(p, depth) - bytes_before(p0, depth),
                           *panel = panels_b + j * panel_b(depth), *sum = first ? nullptr : waiting;
                for (int64_t left = depth; left > 0; left -= kGemmBlockUnits) {
                    const bool leaves = left <= kGemmBlockUnits && !last;
                    multiply[rows_p](std::min(left, kGemmBlockUnits), panel_a, panel, sum, leaves ? waiting : tile,
                                     &fetch);
                    panel_a += rows_p * kGemmBlockUnits * kernel.acc_size;
                    panel += nr * kGemmBlockUnits * kernel.acc_size;
                    sum = tile;
                }
                if (last)
                    kernel.store(at_c(r.c, row_of(p), block.n0 + j * nr), c.row, c.col, tile, nr, height(p),
                                 std::min(nr, block.n - j * nr), r.alpha, r.beta);
            }
        }
        if (last)
            finish(r.c, r.d, row_of(p0), block.n0 + j0 * nr, row_of(p1) - row_of(p0),
                   std::min(j1 * nr, block.n) - j0 * nr);
    }
};

/* ---- in place ---------------------------------------------------------------------------------------------------------- */

struct InPlace final : Way {
    bool by_rows;           // which dimension of B is contiguous
    bool packs_a;           // it must be converted
    bool streams;           // by long runs of a few of its rows
    bool shares_k;          // threads have K blocks each, so that they too read B in its own order
    bool fetches;           // B of the tasks that follow, which comes from far away
    int64_t step;           // rows of B that are multiplied before the next ones
    int64_t task_m, task_n; // rows and columns of C in a task
    int64_t tasks_m, tasks_n;
    int64_t ld;                     // of sums
    int64_t bytes_a, bytes_blocks;  // shared: packed A; the sums of each K block
    int64_t bytes_sums, bytes_part; // all sums and those of a K block, a thread
    bool at_once;                   // one task and one step, that need no memory
    GemmInPlace common{};           // what the kernels are told in every call

    /** The rows of a task, in groups as equal as can be. */
    struct Groups {
        int count, low, taller; // so many of them have a row more than `low`
    };
    Groups whole; // of task_m rows

    static bool applies(const Gemm &g) {
        if (g.b.col != 1 || g.n == 1) return g.b.row == 1 && g.m <= g.kernel.columns_rows && a_fits(g);
        if (may_stream(g)) return a_fits(g);
        // Elements are converted at each use, by each group of rows: worth it where packing costs more.
        const bool packs = converts(g) && g.can_pack_rows() && !g.b_is_in_memory();
        const int64_t few = packs ? g.kernel.in_place_rows : kInPlaceFewRows;
        const int64_t few_of_short = packs ? kInPlaceShortOfRows : kInPlaceShort;
        if (g.m <= few || (converts(g) && std::max(g.m, g.k) <= few_of_short))
            return a_fits(g) && !(far_b(g) && crowded(g));
        if (far_b(g)) return false;
        const bool far = std::abs(g.b.row) * g.size >= kInPlaceFarRows && g.m >= kInPlaceManyRows;
        return !converts(g) && g.a.col == 1 && !far;
    }
    /** Is there more of B than the second-level cache keeps beside all else? */
    static bool far_b(const Gemm &g) {
        int64_t near = g.kernel.has_small_l2 ? kInPlaceNearBSmallL2 : kInPlaceNearB;
        // For more rows packing wins from there on.
        if (g.m <= kInPlaceFewRows) near = std::clamp(second_level_cache() / 2, near, kInPlaceMostNearB);
        return g.n > near / g.size / g.k;
    }
    static bool crowded(const Gemm &g) {
        return g.kernel.has_small_l2 && g.k > g.block_k && g.b.row * g.size % kInPlaceCrowdedEvery == 0;
    }
    static bool may_stream(const Gemm &g) {
        if (g.m > kStreamRows || g.kernel.streams[kFast][g.m] == nullptr) return false;
        return far_b(g) && (crowded(g) || g.m <= kStreamRowsUncrowded);
    }
    static bool converts(const Gemm &g) { return g.size != g.kernel.acc_size; }
    /** May A be packed as a whole? K alone can be as long as 0 strides allow. */
    static bool a_fits(const Gemm &g) { return !converts(g) || g.k <= kFewRowsOfA / std::max<int64_t>(g.m, 1); }

    InPlace(const Gemm &gemm, int threads) : Way(gemm), by_rows(b.col == 1 && n > 1), packs_a(converts(gemm)) {
        constexpr int64_t kEach = 4; // tasks for a thread, so that all end at about the same time
        task_m = std::min(m, kInPlaceTaskRows);
        streams = by_rows && may_stream(*this);
        const bool short_steps = by_rows && !streams && m <= kInPlaceFewRows && far_b(*this);
        const int64_t near = by_rows ? kRowsNearB : kernel.has_small_l2 ? kColumnsNearBSmallL2 : kColumnsNearB;
        fetches = !short_steps && n > near / size / k;
        const bool gemv = !by_rows && m == 1;
        step = short_steps           ? kInPlaceShortStep
               : by_rows && !streams ? std::min(kInPlaceStep, block_k)
               : gemv                ? k
                                     : block_k;
        const bool one_group = m <= kernel.in_place_rows; // has no use for B in the cache once it is multiplied
        int64_t run = short_steps && !kernel.has_small_l2                 ? kInPlaceShortRun
                      : m > kInPlaceFewRows || (short_steps && one_group) ? kInPlaceRun
                                                                          : kInPlaceFewRowsRun;
        run /= size;
        shares_k = streams && threads > 1 && k_blocks() >= threads && // and few: K may be as long as 0 strides allow
                   k_blocks() <= kStreamMostSums / acc_bytes(m * (n + nr));
        if (streams) { // equal shares, as many for each thread
            const int64_t sharers = shares_k ? 1 : threads, round = sharers * kStreamRun / kernel.acc_size;
            run = ceil_div(n, sharers * std::max<int64_t>((n + round / 2) / round, 1));
            while (shares_k && k_blocks() * ceil_div(n, run) < kStreamTasks * threads && run * size > kStreamLeastRun)
                run = ceil_div(run, 2);
        }
        task_n = std::min(by_rows ? round_up(run, nr)
                          : gemv  ? std::max(nr, kGemvColumns)
                                  : nr,
                          round_up(ceil_div(n, shares_k ? 1 : threads), nr));
        while (threads > 1 && task_m > 32 && ceil_div(m, task_m) * ceil_div(n, task_n) < threads * kEach) task_m -= 8;
        tasks_m = ceil_div(m, task_m);
        tasks_n = ceil_div(n, task_n);
        bytes_a = packs_a ? acc_bytes(k_blocks() * kGemmBlockUnits * m) : 0;
        // Rows of a power of 2 would meet in one set of the first-level cache.
        ld = (shares_k ? round_up(n, nr) : task_n) + (streams ? kLine / kernel.acc_size : 0);
        bytes_blocks = shares_k ? k_blocks() * acc_bytes(m * ld) : 0;
        bytes_sums =
            !shares_k && (k > std::max(step, block_k) || c.col != 1 || may_repeat()) ? acc_bytes(task_m * ld) : 0;
        bytes_part = !shares_k && (streams || step < std::min(k, block_k)) ? acc_bytes(task_m * ld) : 0;
        at_once = tasks_m * tasks_n == 1 && k <= step && bytes_a + bytes_blocks + bytes_sums + bytes_part == 0;
        common.kc = k;
        common.a_row = packs_a ? 1 : a.row;
        common.a_unit = packs_a ? m : a.col;
        common.b_stride = by_rows ? b.row : b.col;
        common.n = n;
        common.ld = ld;
        common.begins = common.ends = true;
        common.c_row = c.row;
        whole = groups_of(task_m);
    }
    int64_t workspace(int threads) const override {
        return bytes_a + bytes_blocks + (bytes_sums + bytes_part) * threads;
    }
    /** Are there two kinds of kernels, so that a task may be multiplied once more? */
    bool may_repeat() const { return kernel.unit_k > 1; }

    void run(const Run &r) const override {
        if (at_once) return run_at_once(r);
        Least least_a;
        if (packs_a) // [k block][unit][row]
            parallel_for(k_blocks(), m * k < 64 * 1024 ? 1 : r.threads, [&](int64_t block, int) {
                const int64_t k0 = block * block_k;
                least_a.meet(kernel.pack(r.workspace + block * kGemmBlockUnits * m * kernel.acc_size, 0,
                                         at_a(r.a, 0, k0), a.row, a.col, m, m, std::min(block_k, k - k0)));
            });
        if (shares_k) return run_k_blocks(r, least_a.exponent());
        parallel_for(tasks_m * tasks_n, r.threads, [&](int64_t t, int slot) {
            const int64_t i0 = tasks_m == 1 ? 0 : t % tasks_m * task_m,
                          j0 = tasks_m == 1 ? t * task_n : t / tasks_m * task_n;
            const Task task{i0, j0, std::min(task_m, m - i0), std::min(task_n, n - j0),
                            r.workspace + bytes_a + bytes_blocks + slot * (bytes_sums + bytes_part)};
            // C is written by the kernels, but only once if it is read: else at the end, from the sums.
            const bool to_c = c.col == 1 && (r.beta == 0 || !may_repeat());
            const int least_b = multiply(r, task, kFast, to_c);
            // B has not been read before, so that it is known only now.
            if (may_flush(least_a.exponent(), least_b)) multiply(r, task, kExact, to_c);
            if (!to_c) kernel.store(at_c(r.c, i0, j0), c.row, c.col, task.sums, ld, task.m, task.n, r.alpha, r.beta);
            finish(r.c, r.d, i0, j0, task.m, task.n);
        });
    }

    /** The sums of each K block on their own, then those of all in their order. */
    void run_k_blocks(const Run &r, int least_a) const {
        const int64_t bytes_block = acc_bytes(m * ld);
        char *const blocks = r.workspace + bytes_a;
        parallel_for(k_blocks() * tasks_n, r.threads, [&](int64_t t, int) {
            const int64_t k0 = t / tasks_n * block_k, j0 = t % tasks_n * task_n;
            GemmInPlace g = common;
            g.kc = std::min(block_k, k - k0);
            g.a = a_of(r, 0, k0);
            g.b = at_b(r.b, k0, j0);
            g.n = std::min(task_n, n - j0);
            g.part = g.sums = blocks + t / tasks_n * bytes_block + j0 * kernel.acc_size;
            if (may_flush(least_a, kernel.streams[kFast][m](g))) kernel.streams[kExact][m](g);
        });
        constexpr int64_t kColumns = 2048, kEnough = 1 << 20; // bytes: worth several threads
        const BinaryRows add = kernels().binary[kBinaryAdd][kernel.acc_size == 8 ? INFINI_DTYPE_F64 : INFINI_DTYPE_F32];
        parallel_for(ceil_div(n, kColumns), bytes_blocks < kEnough ? 1 : r.threads, [&](int64_t t, int) {
            const int64_t j0 = t * kColumns, cols = std::min(kColumns, n - j0);
            const auto sums = [&](int64_t block) {
                return TileOperand{blocks + block * bytes_block + j0 * kernel.acc_size, ld, 1};
            };
            for (int64_t block = 1; block < k_blocks(); ++block) add(sums(0), sums(0), sums(block), m, cols);
            kernel.store(at_c(r.c, 0, j0), c.row, c.col, sums(0).p, ld, m, cols, r.alpha, r.beta);
            finish(r.c, r.d, 0, j0, m, cols);
        });
    }

    /** A from row i and element k0 on, as the kernels take it. */
    const char *a_of(const Run &r, int64_t i, int64_t k0) const {
        return packs_a ? r.workspace + (k0 / kernel.unit_k * m + i) * kernel.acc_size : at_a(r.a, i, k0);
    }

    std::string describe() const override {
        return std::string(streams ? "streamed by " : "in place by ") + (by_rows ? "rows" : "columns") + " of B" +
               (shares_k ? ", K blocks shared" : "") + (step < block_k ? ", " + text(step) + " at a time" : "") +
               (packs_a ? ", A packed" : "") + ", tasks " + text(task_m) + " x " + text(task_n);
    }

    /** Rows i0.., columns j0.. of C. */
    struct Task {
        int64_t i0, j0, m, n;
        char *sums;
    };

    /** A small product takes about as long as the general way to it. */
    void run_at_once(const Run &r) const {
        const GemmInPlaceKernel *const kernels = by_rows ? kernel.rows[kFast] : kernel.columns[kFast];
        GemmInPlace g = common;
        g.alpha = r.alpha;
        g.beta = r.beta;
        g.fetch = r.fetch;
        g.a = r.a;
        g.b = g.ahead = r.b;
        g.c = r.c;
        for (int group = 0; group < whole.count; ++group) {
            const int rows = whole.low + (group < whole.taller);
            kernels[rows](g);
            g.a = static_cast<const char *>(g.a) + rows * a.row * size;
            g.c = static_cast<char *>(g.c) + rows * c.row * size;
        }
        finish(r.c, r.d, 0, 0, m, n);
    }

    Groups groups_of(int64_t rows) const {
        // A task has few rows, and dividing large numbers takes longer.
        const int count = streams ? 1 : static_cast<int>(rows + kernel.in_place_rows - 1) / kernel.in_place_rows;
        return {count, static_cast<int>(rows) / count, static_cast<int>(rows) % count};
    }

    /** What the kernels fetch while they multiply a group of rows. */
    void fetch_ahead(const Run &r, const Task &t, int64_t k0, int64_t group, int64_t groups, GemmInPlace &g) const {
        g.ahead = g.b;
        g.ahead_every = 0;
        if (!by_rows) {
            g.ahead_every = fetches;
            g.ahead =
                k0 + step < k ? at_b(r.b, k0 + step, t.j0) : at_b(r.b, 0, std::min(t.j0 + r.threads * task_n, n - 1));
            return;
        }
        if (streams) return;
        if (m > kInPlaceFewRows) { // the columns beside, which the other rows find in the cache
            if (group > 0) return;
            g.ahead = at_b(r.b, k0, t.j0 + 2 * nr);
            g.ahead_every = 1;
        } else if (k0 + step < k) { // a share of the rows that follow, so that memory is kept busy all the time
            const int64_t rows = std::min(step, k - k0 - step); // more would push out what is used again
            g.ahead = at_b(r.b, k0 + step + rows * group / groups, t.j0);
            g.ahead_every = groups * ceil_div(g.kc, rows);
        } else if (const int64_t next = t.j0 + r.threads * task_n; fetches && next < n) { // the next task's, probably
            g.ahead = at_b(r.b, std::min(step, k) * group / groups, next);
            g.ahead_every = groups;
        }
    }

    int multiply(const Run &r, const Task &t, int exactness, bool to_c) const {
        const GemmInPlaceKernel *const kernels = streams   ? kernel.streams[exactness]
                                                 : by_rows ? kernel.rows[exactness]
                                                           : kernel.columns[exactness];
        int least = kLeastOfNothing;
        const auto [groups, low, taller] = t.m == task_m ? whole : groups_of(t.m);
        for (int64_t k0 = 0; k0 < k; k0 += step) {
            const bool last = k0 + step >= k;
            GemmInPlace g = common;
            g.kc = std::min(step, k - k0);
            g.b = at_b(r.b, k0, t.j0);
            g.n = t.n;
            g.add = k0 >= block_k;
            g.begins = k0 % block_k == 0;
            g.ends = last || (k0 + step) % block_k == 0;
            g.alpha = r.alpha;
            g.beta = r.beta;
            g.fetch = r.fetch;
            int64_t i = 0;
            for (int group = 0; group < groups; ++group) {
                const int rows = low + (group < taller);
                fetch_ahead(r, t, k0, group, groups, g);
                g.a = a_of(r, t.i0 + i, k0);
                const int64_t sums = i * ld * kernel.acc_size;
                g.sums = bytes_sums == 0 ? nullptr : t.sums + sums;
                g.part = bytes_part == 0 ? nullptr : t.sums + bytes_sums + sums;
                g.c = last && to_c ? at_c(r.c, t.i0 + i, t.j0) : nullptr;
                least = std::min(least, kernels[rows](g));
                i += rows;
            }
        }
        return least;
    }
};

/* ---- columns: few rows -------------------------------------------------------------------------------------------------- */

struct Columns final : Way {
    int64_t task_n;                       // columns of C in a task
    int64_t tasks_m, tasks_n;             // by panels of A, by columns
    bool packs_rows;                      // the first product of a panel of B does, from where its rows lie
    bool ahead;                           // else: two K blocks of B, and not only one
    int64_t bytes_a, bytes_b, bytes_sums; // packed A, shared; B and sums, a thread

    /** Columns of a B whose rows are contiguous in one task; 0 where there are too many rows of A. */
    static int64_t run_of(const Gemm &g) {
        const int64_t rows = g.acc_bytes(kGemmBlockUnits), cache = second_level_cache();
        if (g.m <= kColumnsA / rows) return kColumnsRun / g.size;
        if (!brings_k_blocks(g) || cache < kColumnsL2 || g.n < kColumnsMany) return 0;
        if (g.k > kColumnsManyRowsA / g.kernel.acc_size / g.m) return 0;
        return g.m <= cache / 4 / rows       ? kColumnsRun / g.kernel.acc_size
               : g.m <= cache * 3 / 8 / rows ? kColumnsRun / 2 / g.kernel.acc_size
                                             : 0;
    }
    /** Does one K block of B after the other come from memory? */
    static bool brings_k_blocks(const Gemm &g) { return g.k_blocks() > 1 && g.b_is_in_memory(); }
    /** An A that may be packed as a whole, too; K alone can be as long as 0 strides allow. */
    static bool applies(const Gemm &g) { return run_of(g) > 0 && g.k <= kFewRowsOfA / g.m; }

    Columns(const Gemm &gemm, int threads)
        : Way(gemm), packs_rows(gemm.can_pack_rows()), ahead(!packs_rows && brings_k_blocks(gemm)) {
        constexpr int64_t kEach = 4; // tasks for a thread, so that all end at about the same time
        task_n = b.col == 1 ? run_of(gemm) : kColumnsPanels * nr;
        task_n = round_up(std::min(task_n, ceil_div(n, threads == 1 ? 1 : threads * kEach)), nr);
        tasks_n = ceil_div(n, task_n);
        tasks_m = std::min(panels_m, ceil_div(threads, tasks_n)); // each of which packs B for itself
        bytes_a = acc_bytes(m * k_blocks() * kGemmBlockUnits);
        bytes_b = panel_b(units(std::min(k, block_k))) * (packs_rows ? 1 : task_n / nr * (ahead ? 2 : 1));
        // They wait here for the next K block; those of the last one are stored at once.
        bytes_sums = tile_bytes() * (k_blocks() > 1 ? ceil_div(panels_m, tasks_m) * (task_n / nr) : 1);
    }
    int64_t bytes_of_thread() const { return bytes_b + bytes_sums; }
    int64_t workspace(int threads) const override { return bytes_a + bytes_of_thread() * threads; }

    void run(const Run &r) const override {
        constexpr int64_t kPackPanels = 4; // of A, so that all threads pack even where K is one block
        const int64_t parts = ceil_div(panels_m, kPackPanels);
        Least least_a;
        parallel_for(k_blocks() * parts, m * k < 16 * 1024 ? 1 : r.threads, [&](int64_t t, int) {
            const int64_t k0 = t / parts * block_k, kc = std::min(block_k, k - k0);
            const int64_t p = t % parts * kPackPanels;
            least_a.meet(pack_a(block_a(r, k0) + bytes_before(p, units(kc)), r.a, p,
                                std::min(p + kPackPanels, panels_m), k0, kc));
        });
        parallel_for(tasks_m * tasks_n, r.threads, [&](int64_t t, int slot) {
            char *const scratch = r.workspace + bytes_a + slot * bytes_of_thread();
            const int64_t j0 = t / tasks_m * task_n, tm = t % tasks_m;
            const Task task{panels_m * tm / tasks_m, panels_m * (tm + 1) / tasks_m, j0, std::min(task_n, n - j0)};
            if (packs_rows)
                multiply_rows(r, task, scratch, scratch + bytes_sums);
            else
                multiply(r, task, least_a.exponent(), scratch, scratch + bytes_sums);
            finish(r.c, r.d, row_of(task.p0), j0, row_of(task.p1) - row_of(task.p0), task.n);
        });
    }

    std::string describe() const override {
        const char *const b_packed = packs_rows ? "B packed by rows, " : ahead ? "B packed ahead, " : "";
        return std::string("columns, A packed, ") + b_packed + text(tasks_m) + " x " + text(tasks_n) + " tasks of " +
               text(task_n) + " columns, tiles " + text(mr) + " x " + text(nr);
    }

    /** [k block][panel][unit][row] */
    char *block_a(const Run &r, int64_t k0) const { return r.workspace + k0 / kernel.unit_k * m * kernel.acc_size; }

    /** Panels p0..p1 of A, columns j0.. of C. */
    struct Task {
        int64_t p0, p1, j0, n;
    };

    /** A K block of B in a task. */
    struct BlockB {
        const char *from;
        char *panels;
        int64_t k, packed; // rows; runs
        int least;
    };
    /** Packs its runs up to `end`, or a few less. */
    void pack(const Task &t, BlockB &block, int64_t end) const {
        const int64_t together = runs_are_rows() ? kernel.unit_k : nr, all = runs(t.n, block.k);
        if (end < all) end -= end % together;
        if (end <= block.packed) return;
        block.least = std::min(block.least, pack_b(block.panels, block.from, t.n, block.k, block.packed, end));
        block.packed = end;
    }

    void store(const Run &r, const Task &t, int64_t p, int64_t j, const char *sums) const {
        kernel.store(at_c(r.c, row_of(p), t.j0 + j), c.row, c.col, sums, nr, height(p), std::min(nr, t.n - j), r.alpha,
                     r.beta);
    }

    /** Each panel of B is packed as the first of A is multiplied with it, while what it takes for the next one is fetched. */
    void multiply_rows(const Run &r, const Task &t, char *sums, char *panel) const {
        const GemmMultiply *const multiply = kernel.multiply[kFast];
        for (int64_t k0 = 0; k0 < k; k0 += block_k) {
            const bool last = k0 + block_k >= k;
            const int64_t kc = std::min(block_k, k - k0), depth = units(kc);
            char *tile = sums;
            for (int64_t j = 0; j < t.n; j += nr) {
                const char *const from = at_b(r.b, k0, t.j0 + j);
                const bool whole = t.n - j >= nr;
                if (!whole) pack_b(panel, from, t.n - j, kc, 0, kc);
                GemmFetch fetch = j + nr < t.n ? fetch_panel(r, t, k0, j + nr) : fetch_panel(r, t, k0 + block_k, 0);
                for (int64_t p = t.p0; p < t.p1; ++p) {
                    const char *const panel_a = block_a(r, k0) + bytes_before(p, depth);
                    const char *const in = k0 > 0 ? tile : nullptr;
                    if (whole && p == t.p0)
                        kernel.multiply_pack[height(p)](depth, panel_a, from, b.row, panel, in, tile, &fetch);
                    else
                        multiply[height(p)](depth, panel_a, panel, in, tile, &fetch);
                    if (last) store(r, t, p, j, tile);
                    if (k_blocks() > 1) tile += tile_bytes();
                }
            }
        }
    }
    /** Rows k0.. of a panel's columns. The first cache line of a row that does not begin with one was fetched with the panel before. */
    GemmFetch fetch_panel(const Run &r, const Task &t, int64_t k0, int64_t j) const {
        const int64_t steps = (t.p1 - t.p0) * (kGemmBlockUnits / kGemmStepsTogether), runs = std::min(block_k, k - k0);
        if (runs <= 0) return {};
        const int64_t run = std::min(nr, t.n - j) * size;
        const char *const at = at_b(r.b, k0, t.j0 + j) + kLine - 1;
        return {at, at + run, run, b.row * size, runs, run, std::max<int64_t>(steps / runs, 1), 1};
    }

    void multiply(const Run &r, const Task &t, int least_a, char *sums, char *panels_b) const {
        const auto block_b = [&](int64_t k0) {
            char *const panels = panels_b + (ahead ? k0 / block_k % 2 * (bytes_b / 2) : 0);
            return BlockB{at_b(r.b, k0, t.j0), panels, std::min(block_k, k - k0), 0, kLeastOfNothing};
        };
        BlockB now = block_b(0);
        pack(t, now, runs(t.n, now.k));
        for (int64_t k0 = 0; k0 < k; k0 += block_k) {
            const bool last = k0 + block_k >= k;
            // What is asked for of the next block during one product is there, and packed, after the one that follows.
            BlockB next = last ? BlockB{} : block_b(k0 + block_k);
            GemmFetch fetch = last ? GemmFetch{} : fetch_b(next.from, t.n, next.k, t.p1 - t.p0);
            const int64_t depth = units(now.k);
            const GemmMultiply *const multiply = kernel.multiply[may_flush(least_a, now.least) ? kExact : kFast];
            char *tile = sums;
            for (int64_t j = 0; j < t.n; j += nr)
                for (int64_t p = t.p0; p < t.p1; ++p) {
                    const int64_t asked_for = ahead ? runs(t.n, next.k) - fetch.left : 0;
                    multiply[height(p)](depth, block_a(r, k0) + bytes_before(p, depth),
                                        now.panels + j / nr * panel_b(depth), k0 > 0 ? tile : nullptr, tile,
                                        ahead ? &fetch : nullptr);
                    if (last)
                        store(r, t, p, j, tile);
                    else
                        pack(t, next, asked_for);
                    if (k_blocks() > 1) tile += tile_bytes();
                }
            if (!last) pack(t, next, runs(t.n, next.k));
            now = next;
        }
    }
};

/* ---- the plan --------------------------------------------------------------------------------------------------------- */

struct GemmPlan final : CpuPlan {
    GemmPlan(const Gemm &gemm, size_t *workspace_size) : g(gemm) {
        if (g.k == 0) return; // nothing but scale()
        const double loads = static_cast<double>(g.k) * static_cast<double>(g.n);
        const int threads = worth_threads((g.flops() + kFlopsOfLoad * loads) * static_cast<double>(g.batch));
        // Small items are worth a thread each, not several threads one after the other.
        by_item = g.batch > 1 && g.flops() < 16 * kFlopsPerThread;
        slots = by_item ? static_cast<int>(std::min<int64_t>(g.batch, threads)) : 1;
        threads_of_item = by_item ? 1 : threads;
        if (InPlace::applies(g))
            way = std::make_unique<InPlace>(g, threads_of_item);
        else if (Columns::applies(g))
            way = std::make_unique<Columns>(g, threads_of_item);
        else
            way = std::make_unique<Blocked>(g);
        if (by_item) plan_items();
        bytes = way->workspace(threads_of_item);
        *workspace_size = bytes == 0 ? 0 : static_cast<size_t>(slots * bytes + kLine);
        description = text(g.batch) + " x (" + text(g.m) + " x " + text(g.k) + ") @ (" + text(g.k) + " x " + text(g.n) +
                      ")" + (g.exchanged ? " of C^T" : "") + ": " + way->describe() + ", " + text(threads) +
                      (by_item ? " thread(s), an item each" : " thread(s)");
    }

    /** How threads share the items, each of which is one thread's. */
    void plan_items() {
        constexpr int64_t kEach = 4; // tasks for a thread
        items_together = std::clamp<int64_t>(static_cast<int64_t>(kItemsFlops / std::max(g.flops(), 1.0)), 1,
                                             ceil_div(g.batch, kEach * slots));
        const auto bytes = [&](int64_t rows, int64_t cols) {
            return static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(g.size);
        };
        const double all = static_cast<double>(g.batch) * (bytes(g.m, g.k) + bytes(g.k, g.n) + bytes(g.m, g.n));
        fetches_items = g.flops() >= kFetchItemFlops && all > static_cast<double>(second_level_cache()) / 2 * slots;
    }

    void run(const InfiniCall &call) const override {
        char *const pc = static_cast<char *>(call.operands[0]);
        const bool plain = g.epilogue.kernel == nullptr;
        char *const pd = plain ? nullptr : static_cast<char *>(call.operands[3]);
        const float beta = plain ? call.beta : 0; // a graph may have been given one for an operator without it
        if (g.k == 0 || call.alpha == 0) return scale(pc, pd, beta);
        // A and B stand in the order of the problem: exchanged where the plan exchanged them.
        const char *const pa = static_cast<const char *>(call.operands[1]);
        const char *const pb = static_cast<const char *>(call.operands[2]);
        char *const workspace = reinterpret_cast<char *>(
            round_up(static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.workspace)), kLine));
        const Run first{pc,  g.exchanged ? pb : pa, g.exchanged ? pa : pb, pd, workspace, threads_of_item, call.alpha,
                        beta};
        if (g.batch == 1) return way->run(first);
        const auto item = [&](int64_t i, int64_t then, int slot) {
            const auto at = [&](auto *p, int64_t item, const Matrix &x) { return p + item * x.batch * g.size; };
            Run r = first;
            r.c = at(first.c, i, g.c);
            r.a = at(first.a, i, g.a);
            r.b = at(first.b, i, g.b);
            r.d = at(first.d, i, g.d);
            r.workspace += slot * bytes;
            GemmFetch parts[3];
            if (then < g.batch &&
                g.fetch_item(at(first.a, then, g.a), at(first.b, then, g.b), at(first.c, then, g.c), parts) > 0)
                r.fetch = parts;
            way->run(r);
        };
        if (!by_item) {
            for (int64_t i = 0; i < g.batch; ++i) item(i, g.batch, 0);
            return;
        }
        // Each thread begins with the same items in every call: what its caches hold of them is still there.
        Shares shares(ceil_div(g.batch, items_together), slots);
        parallel_for(slots, slots, [&](int64_t share, int slot) {
            shares.work(share, [&](int64_t t) {
                const int64_t begin = t * items_together, end = std::min(begin + items_together, g.batch);
                for (int64_t i = begin; i < end; ++i) item(i, fetches_items ? i + 1 : g.batch, slot);
            });
        });
    }

    /** C = beta * C, and what follows: the store of sums that are all 0. */
    void scale(char *pc, char *pd, float beta) const {
        if (beta == 1) return;
        alignas(kLine) static const char zeros[4096] = {};
        const int64_t columns = static_cast<int64_t>(sizeof zeros) / g.kernel.acc_size;
        parallel_for(g.batch * g.m, worth_threads(4.0 * static_cast<double>(g.batch * g.m) * static_cast<double>(g.n)),
                     [&](int64_t t, int) {
                         char *const c = pc + t / g.m * g.c.batch * g.size;
                         for (int64_t j = 0; j < g.n; j += columns)
                             g.kernel.store(g.at_c(c, t % g.m, j), g.c.row, g.c.col, zeros, 0, 1,
                                            std::min(columns, g.n - j), 0.0f, beta);
                         g.finish(c, pd + t / g.m * g.d.batch * g.size, t % g.m, 0, 1, g.n);
                     });
    }

    Gemm g;
    bool by_item = false;       // threads share the items of the batch, and not one item
    bool fetches_items = false; // the next one while one is multiplied, since all are more than the caches hold
    int64_t items_together = 1; // in a task
    int slots = 1, threads_of_item = 1;
    std::unique_ptr<const Way> way; // null where K is 0
    int64_t bytes = 0;              // of the workspace, an item
};

} // namespace

std::unique_ptr<CpuPlan> plan_gemm(const InfiniProblem &problem, size_t *workspace_size) {
    return std::make_unique<GemmPlan>(Gemm(problem, {}), workspace_size);
}

#define INFINI_EPILOGUE_PLANNER(ID, name, Name, Op)                                              \
    std::unique_ptr<CpuPlan> plan_##name(const InfiniProblem &problem, size_t *workspace_size) { \
        const Epilogue then(kBinary##Op, problem.operands[0].dtype);                             \
        return std::make_unique<GemmPlan>(Gemm(problem, then), workspace_size);                  \
    }
INFINI_GEMM_EPILOGUE_LIST(INFINI_EPILOGUE_PLANNER)

} // namespace infini
