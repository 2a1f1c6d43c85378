/* gemm by columns: so few rows of A that a K block of it stays in the second-level cache beside B's, or of dot products a lane's
 * part. A is packed as a whole, by each thread for itself, or once if there is much of it; threads share the columns of C, and
 * each packs the part of B that it needs: a panel whose rows are contiguous while the first rows of A are multiplied with it,
 * others at once, or where B comes from memory while the K block before is multiplied. Between the threads there is nothing to
 * wait for, and no line of B that one of them wrote and another reads. */
#include "cpu/gemm_whole_a.h"
#include "cpu/thread_pool.h"

namespace infini::gemm {

namespace {

constexpr int64_t kColumnsA = 256 * 1024; // bytes of a K block of packed A: a quarter of a second-level cache of 1 MiB,
constexpr int64_t kColumnsWide = 4;       // and 3/8 of it for so many columns of C a row, from rows of B
constexpr int64_t kColumnsRun = 1024;     // bytes of a row of B in one task where it is contiguous,
constexpr int64_t kColumnsPanels = 2; // else panels of B: what lies ahead in k is then in the cache when it is packed
constexpr int64_t kLinesPanels = 64;  // of B: so many that one more costs little
constexpr int64_t kPackRowsSmallL2 = 21; // of A, from which on the first ones' product packs B
/* For a B from memory more rows of A pay, if the second-level cache is as large as those that this was measured on, there are so many
 * columns, and packed A, which each task reads, has so few bytes. */
constexpr int64_t kColumnsL2 = 2 << 20, kColumnsMany = 1536, kColumnsManyRowsA = 12 << 20;

struct Columns final : WholeA {
    int64_t task_n;              // columns of C in a task
    int64_t tasks_m, tasks_n;    // by panels of A, by columns
    bool packs_rows;             // the first product of a panel of B does, from where its rows lie
    bool ahead;                  // else: two K blocks of B, and not only one
    bool by_lines;               // panels of B begin where cache lines of its rows do, if those begin alike
    int64_t bytes_b, bytes_sums; // a thread

    /** Columns of a B whose rows are contiguous in one task; 0 where there are too many rows of A. */
    static int64_t run_of(const Gemm &g) {
        const int64_t rows = g.acc_bytes(kGemmBlockUnits), cache = second_level_cache();
        const bool wide = cache < kColumnsL2 && g.b.col == 1 && g.n / kColumnsWide >= g.m;
        if (g.m <= (wide ? std::max(kColumnsA, cache * 3 / 8) : kColumnsA) / rows) return kColumnsRun / g.size;
        if (!brings_k_blocks(g) || cache < kColumnsL2 || g.n < kColumnsMany) return 0;
        if (g.k > kColumnsManyRowsA / g.kernel.acc_size / g.m) return 0;
        return g.m <= cache / 4 / rows       ? kColumnsRun / g.kernel.acc_size
               : g.m <= cache * 3 / 8 / rows ? kColumnsRun / 2 / g.kernel.acc_size
                                             : 0;
    }
    /** Does one K block of B after the other come from memory? */
    static bool brings_k_blocks(const Gemm &g) { return g.k_blocks() > 1 && g.b_is_in_memory(); }
    /** Is a panel's product longer than it takes to read the panel where it lies, a cache line of each row? In a small cache those
     *  that were fetched ahead push each other out. Halves that do not come from memory gain by being converted on the way. */
    static bool pays_to_pack_rows(const Gemm &g) {
        return g.can_pack_rows() &&
               (!g.kernel.has_small_l2 || g.m >= kPackRowsSmallL2 || (g.converts() && !g.b_is_in_memory()));
    }
    /** An A that may be packed as a whole, too; K alone can be as long as 0 strides allow. */
    static bool applies(const Gemm &g) { return run_of(g) > 0 && g.k <= kFewRowsOfA / g.m; }

    Columns(const Gemm &gemm, int threads)
        : WholeA(gemm, threads), packs_rows(pays_to_pack_rows(gemm)),
          ahead(!packs_rows && !dots && brings_k_blocks(gemm)) {
        constexpr int64_t kEach = 4; // tasks for a thread, so that all end at about the same time
        task_n = b.col == 1 && !dots ? run_of(gemm) : (dots ? 1 : kColumnsPanels) * nr;
        task_n = round_up(std::min(task_n, ceil_div(n, threads == 1 ? 1 : threads * kEach)), nr);
        // Columns of the thread that has most of them; shorter runs are worth it only if these are clearly less.
        const auto most = [&](int64_t cols) {
            const int64_t tasks = ceil_div(n, cols), rounds = ceil_div(tasks, threads);
            return static_cast<double>((rounds - 1) * cols + (tasks % threads == 1 ? n - (tasks - 1) * cols : cols));
        };
        for (int64_t fewer = task_n - nr; threads > 1 && fewer > 0; fewer -= nr)
            if (16 * most(fewer) <= 15 * most(task_n)) task_n = fewer;
        tasks_n = ceil_div(n, task_n);
        tasks_m = row_shares(threads);
        by_lines = packs_rows && b.row * size % kLine == 0 && n >= kLinesPanels * nr;
        bytes_b = panel_b(units(std::min(k, block_k))) * (packs_rows ? 1 : task_n / nr * (ahead ? 2 : 1));
        // They wait here for the next K block; those of the last one are stored at once.
        const int64_t panels_b = task_n / nr + (by_lines ? ceil_div(kLine / size, nr) : 0);
        const bool wait = k_blocks() > 1 || dots;
        bytes_sums = tile_bytes() * (wait ? ceil_div(panels_m, tasks_m) * panels_b : LateStore::tiles(*this));
    }
    /** Shares of A's panels, each of which packs B for itself: as many as leave the thread that has most of them the least to do. */
    int64_t row_shares(int threads) const {
        constexpr int64_t kPackRows = 10; // of A, whose products take as long as packing B
        return cheapest(1, std::min<int64_t>(panels_m, threads), [&](int64_t shares) {
            return ceil_div(tasks_n * shares, threads) * (ceil_div(panels_m, shares) * mr + kPackRows);
        });
    }
    int64_t bytes_of_thread() const { return bytes_b + bytes_sums; }
    int64_t workspace(int threads) const override { return packed.of_all(threads) + bytes_of_thread() * threads; }

    void run(const Run &r) const override {
        Least least_a;
        pack_shared(r, least_a);
        const Strips columns{n, task_n, by_lines ? elements_until_line(r.b, size) : 0};
        parallel_prepared(
            tasks_m * columns.count(), r.threads, !b_is_in_memory(),
            [&](int slot) { return pack_own(r, slot, least_a); },
            [&](int64_t t, int slot, int least) {
                char *const scratch = r.workspace + packed.of_all(r.threads) + slot * bytes_of_thread();
                multiply(packed.of(r, slot), columns, t, least, scratch);
            });
    }

    /** Task t, with bytes_of_thread() of scratch. */
    void multiply(const Run &r, const Strips &columns, int64_t t, int least_a, char *scratch) const {
        const int64_t tn = t / tasks_m, tm = t % tasks_m, j0 = columns.begin(tn), cols = columns.size(tn);
        const Task task{panels_m * tm / tasks_m, panels_m * (tm + 1) / tasks_m, j0, cols, columns.head_of(tn)};
        if (packs_rows)
            multiply_rows(r, task, scratch, scratch + bytes_sums);
        else
            multiply(r, task, least_a, scratch, scratch + bytes_sums);
        finish(r.c, r.d, row_of(task.p0), j0, row_of(task.p1) - row_of(task.p0), cols);
    }

    std::string describe() const override {
        const char *const b_packed = packs_rows ? "B packed by rows, " : ahead ? "B packed ahead, " : "";
        return std::string("columns, A packed, ") + b_packed + text(tasks_m) + " x " + text(tasks_n) + " tasks of " +
               text(task_n) + " columns, tiles " + text(mr) + " x " + text(nr) +
               (packed.own ? ", A by each thread" : "");
    }

    /** Panels p0..p1 of A, columns j0.. of C, of which the head has a panel of B of its own. */
    struct Task {
        int64_t p0, p1, j0, n, head;
        /** Columns of the panel that begins with column j. */
        int64_t panel(int64_t j, int64_t nr) const { return std::min(nr, (j < head ? head : n) - j); }
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
        const int64_t together = runs_are_rows() ? kernel.unit_k * kernel.unit_group : nr, all = runs(t.n, block.k);
        if (end < all) end -= end % together;
        if (end <= block.packed) return;
        block.least = std::min(block.least, pack_b(block.panels, block.from, t.n, block.k, block.packed, end));
        block.packed = end;
    }

    [[gnu::always_inline]] void fetch_c(const Run &r, const Task &t, int64_t p, int64_t j) const {
        Gemm::fetch_c(r.c, row_of(p), t.j0 + j, height(p), t.panel(j, nr));
    }
    void store(const Run &r, const Task &t, int64_t p, int64_t j, const char *sums) const {
        kernel.store(at_c(r.c, row_of(p), t.j0 + j), c.row, c.col, sums, nr, height(p), t.panel(j, nr), r.alpha,
                     r.beta);
    }

    /** Each panel of B is packed as the first of A is multiplied with it, while what it takes for the next one is fetched. */
    void multiply_rows(const Run &r, const Task &t, char *sums, char *panel) const {
        const GemmMultiply *const multiply = kernel.multiply[kFast];
        for (int64_t k0 = 0; k0 < k; k0 += block_k) {
            const bool last = k0 + block_k >= k;
            const int64_t kc = std::min(block_k, k - k0), depth = units(kc);
            char *tile = sums;
            for (int64_t j = 0, cols; j < t.n; j += cols) {
                cols = t.panel(j, nr);
                const char *const from = at_b(r.b, k0, t.j0 + j);
                const bool whole = cols == nr;
                if (!whole) pack_b(panel, from, cols, kc, 0, kc);
                GemmFetch fetch = j + cols < t.n ? fetch_panel(r, t, k0, j + cols) : fetch_panel(r, t, k0 + block_k, 0);
                for (int64_t p = t.p0; p < t.p1; ++p) {
                    const char *const panel_a = block_a(r, k0) + bytes_before(p, depth);
                    const char *const in = k0 > 0 ? tile : nullptr;
                    if (last) fetch_c(r, t, p, j);
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
    /** Rows k0.. of a panel's columns. The first cache line of a row that does not begin with one was fetched with the panel before,
     *  if there is one. */
    GemmFetch fetch_panel(const Run &r, const Task &t, int64_t k0, int64_t j) const {
        const int64_t steps = (t.p1 - t.p0) * (kernel.block_units / kGemmStepsTogether),
                      runs = std::min(block_k, k - k0);
        if (runs <= 0) return {};
        const int64_t run = t.panel(j, nr) * size;
        const char *const at = at_b(r.b, k0, t.j0 + j) + (j < t.head ? 0 : kLine - 1);
        return {at, at + run, run, b.row * size, runs, run, std::max<int64_t>(steps / runs, 1), 1};
    }

    void multiply(const Run &r, const Task &t, int least_a, char *sums, char *panels_b) const {
        const auto block_b = [&](int64_t k0) {
            char *const panels = panels_b + (ahead ? k0 / block_k % 2 * (bytes_b / 2) : 0);
            return BlockB{at_b(r.b, k0, t.j0), panels, std::min(block_k, k - k0), 0, kLeastOfNothing};
        };
        BlockB now = block_b(0);
        pack(t, now, runs(t.n, now.k));
        int least_b = kLeastOfNothing;
        const Multiplies begun(*this);
        LateStore late(*this, r.alpha, r.beta);
        for (int64_t k0 = 0; k0 < k; k0 += block_k) {
            const bool last = k0 + block_k >= k;
            // What is asked for of the next block during one product is there, and packed, after the one that follows.
            BlockB next = last ? BlockB{} : block_b(k0 + block_k);
            GemmFetch fetch = last ? GemmFetch{} : fetch_b(next.from, t.n, next.k, t.p1 - t.p0);
            const int64_t depth = units(now.k);
            least_b = std::min(least_b, now.least); // of all there is in the sums
            const GemmMultiply *const multiply = kernel.multiply[may_flush(least_a, least_b) ? kExact : kFast];
            char *tile = sums;
            for (int64_t j = 0; j < t.n; j += nr) {
                const char *const panel = now.panels + j / nr * panel_b(depth);
                char *const tiles = tile;
                for (int64_t i = 0, parts = this->parts(now.k); i < parts; ++i) {
                    const bool ends = last && i + 1 == parts;
                    const auto [unit, many] = part_of(now.k, i);
                    tile = tiles;
                    for (int64_t p = t.p0; p < t.p1; ++p) {
                        if (ends) fetch_c(r, t, p, j);
                        const int64_t asked_for = ahead ? runs(t.n, next.k) - fetch.left : 0;
                        late.make_room(tile);
                        multiply[height(p)](
                            many, block_a(r, k0) + bytes_before(p, depth) + unit * height(p) * kernel.acc_size,
                            panel + unit * nr * kernel.acc_size, k0 > 0 || i > 0 ? tile : nullptr, tile,
                            ahead ? &fetch : nullptr);
                        if (ends)
                            late.put(at_c(r.c, row_of(p), t.j0 + j), tile, height(p), t.panel(j, nr));
                        else
                            pack(t, next, asked_for);
                        if (k_blocks() > 1 || parts > 1)
                            tile += tile_bytes();
                        else if (kernel.in_tiles)
                            tile = tile == sums ? sums + tile_bytes() : sums;
                    }
                }
            }
            if (!last) pack(t, next, runs(t.n, next.k));
            now = next;
        }
        late.store();
    }
};

} // namespace

std::unique_ptr<const Way> columns(const Gemm &gemm, int threads) {
    if (!Columns::applies(gemm)) return nullptr;
    return std::make_unique<Columns>(gemm, threads);
}

} // namespace infini::gemm
