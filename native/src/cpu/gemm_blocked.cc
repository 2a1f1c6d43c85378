/* gemm in blocks: C is cut into blocks, K into as many K blocks as fit. B is packed into panels of the register tile's width, converted
 * to the type sums are kept in on the way, while the threads are still busy with the block before; each task packs its own rows
 * of A into its thread's second-level cache. From one K block to the next, a tile's sums stay in the first-level cache. Unless A
 * is tall, each thread packs the columns of B that it multiplies: lines that one core writes and another has read come slowly. For the
 * same reason each packs all of a B of few columns and one block. */
#include "cpu/caches.h"
#include "cpu/gemm_way.h"
#include "cpu/thread_pool.h"

namespace infini::gemm {

namespace {

constexpr int64_t kBlockM = 4096;  // C of one block: 16 MiB of sums, which wait where K is long
constexpr int64_t kBlockN = 1024;  // packed B: 1 MiB a K block
constexpr int64_t kTaskRows = 168; // of C in one task, at most: its packed rows of A stay in the second-level cache
constexpr int64_t kParts = 3;      // of that cache; into one go a task's rows, and as many K blocks of them as fit
/* Longer K blocks, of which one lane after the other is multiplied: B leaves more of the cache to A. */
constexpr int64_t kBlockNOfDots = 512, kPartsOfDots = 2;
constexpr int64_t kTaskCols = 256; // small enough that all threads end at about the same time
/* Columns that only one thread packs and reads: so many at least, for each thread with its own packs all rows of A, and of these
 * so many, summed up over the threads, are less than what it saves. */
constexpr int64_t kGroupCols = 128, kGroupRows = 4096;

struct Blocked final : Way {
    int64_t block_p, block_n, deep; // panels of A; columns, a multiple of the tile's; elements of K, whole K blocks
    int64_t task_panels;            // of A, in a task, at most
    bool own_b;                     // each thread packs all of B for itself
    // Of the workspace: A of each thread; B, shared, twice where a block follows, or each thread's; sums.
    int64_t bytes_a, bytes_b, bytes_sums;

    Blocked(const Gemm &gemm, int threads) : Way(gemm) {
        block_p = std::min(panels_m, ceil_div(kBlockM, mr));
        block_n = std::min(round_up(n, nr), round_up(dots ? kBlockNOfDots : kBlockN, nr));
        const int64_t bytes_row = kernel.block_units * kernel.acc_size;                            // in a K block
        const int64_t fit = second_level_cache() / kParts * (dots ? kPartsOfDots : 1) / bytes_row; // rows
        task_panels = std::max<int64_t>(std::min(fit, kTaskRows) / mr, 1);
        const int64_t most = dots ? 1 : std::max<int64_t>(fit / kTaskRows, 1);
        deep = ceil_div(k_blocks(), ceil_div(k_blocks(), most)) * block_k;
        const int64_t depth = units(std::min(k, deep));
        bytes_a = acc_bytes(std::min(block_p, task_panels) * mr * depth) + tiles_together() * tile_bytes();
        bytes_b = block_n / nr * panel_b(depth);
        // They wait here for the next K blocks.
        bytes_sums = k_steps() > 1 ? block_p * ceil_div(block_n, nr) * tile_bytes() : 0;
        own_b = in_one_step() && tasks_of(block_at(0), threads).groups == 1 && n <= kTaskCols &&
                packs_for_itself(n * k, threads);
    }
    std::string describe() const override {
        return "blocked " + text(block_p * mr) + " x " + text(block_n) + " x " + text(std::min(k, deep)) + ", tiles " +
               text(mr) + " x " + text(nr) + (own_b ? ", B by each thread" : "");
    }
    int64_t workspace(int threads) const override {
        return bytes_a * threads + bytes_b * (own_b ? threads : in_one_step() ? 1 : 2) + bytes_sums;
    }

    /** `panels` panels of A from p0 on, columns n0.. of C and the part k0.. of the sums. */
    struct Block {
        int64_t p0, n0, k0, panels, n, k;
    };

    int64_t blocks_m() const { return ceil_div(panels_m, block_p); }
    int64_t k_steps() const { return ceil_div(k, deep); }
    int64_t steps() const { return k_steps() * blocks_m() * ceil_div(n, block_n); }
    /** Also where there are more of them than there are numbers. */
    bool in_one_step() const { return k_steps() == 1 && blocks_m() == 1 && n <= block_n; }
    Block block_at(int64_t step) const {
        const int64_t k0 = step % k_steps() * deep, p0 = step / k_steps() % blocks_m() * block_p,
                      n0 = step / k_steps() / blocks_m() * block_n;
        return {p0, n0, k0, std::min(block_p, panels_m - p0), std::min(block_n, n - n0), std::min(deep, k - k0)};
    }

    void run(const Run &r) const override {
        const int64_t steps = this->steps();
        char *const scratch = r.workspace, *const sums = scratch + bytes_a * r.threads,
                    *const panels = sums + bytes_sums;
        if (own_b) {
            const Block all = block_at(0);
            const Tasks tasks = tasks_of(all, r.threads);
            parallel_prepared(
                tasks.all(), r.threads, true,
                [&](int slot) { return pack_b(panels + slot * bytes_b, r.b, n, k, 0, runs(n, k)); },
                [&](int64_t t, int slot, int least_b) {
                    PackedRows rows;
                    Least least_a;
                    multiply(all, tasks, t, r, rows, scratch + slot * bytes_a, panels + slot * bytes_b, least_b,
                             least_a, sums);
                });
            return;
        }
        Least least[2], least_a;
        for (int64_t step = -1; step < steps; ++step) {
            const int next = static_cast<int>((step + 1) & 1), now = 1 - next; // the first is packed into 0
            // This block is multiplied, and then the next one's B packed.
            const Block block = block_at(std::max<int64_t>(step, 0)), then = block_at(std::min(step + 1, steps - 1));
            const Tasks tasks = step < 0 ? Tasks{} : tasks_of(block, r.threads);
            const Tasks packing = step + 1 < steps ? pack_tasks(then, r.threads) : Tasks{};
            least[next].forget(); // but where sums are added on to, those of the K blocks before
            if (kernel.in_tiles) least[next].meet(least[now].exponent());
            Shares shares(tasks.all(), r.threads), packs(packing.all(), r.threads);
            parallel_for(r.threads, r.threads, [&](int64_t, int slot) {
                PackedRows rows;
                shares.work(slot, [&](int64_t t) {
                    multiply(block, tasks, t, r, rows, scratch + slot * bytes_a, panels + now * bytes_b,
                             least[now].exponent(), least_a, sums);
                });
                packs.work(slot,
                           [&](int64_t t) { least[next].meet(pack(then, packing, t, r, panels + next * bytes_b)); });
            });
        }
    }

    /** A block's tasks: groups of its panels of B, each cut along k, or by panels of A, and then by panels of B. */
    struct Tasks {
        int64_t groups = 0, parts = 0, cols = 0;
        int64_t all() const { return groups * parts * cols; }
    };
    int64_t groups_of(const Block &block, int threads) const {
        const int64_t most = std::min(kGroupRows / (block.panels * mr), block.n / kGroupCols);
        return std::clamp<int64_t>(most, 1, threads);
    }
    /** Panels j0..j1 of a block: part i of so many. */
    struct Panels {
        int64_t j0, j1;
    };
    Panels panels_of(const Block &block, int64_t i, int64_t parts) const {
        const int64_t panels_n = ceil_div(block.n, nr);
        return {panels_n * i / parts, panels_n * (i + 1) / parts};
    }

    static constexpr int64_t kPackRows = 32, kPackPanels = 2;
    int64_t pack_runs() const { return runs_are_rows() ? kPackRows : kPackPanels * nr; }
    Tasks pack_tasks(const Block &block, int threads) const {
        const int64_t groups = groups_of(block, threads), cols = ceil_div(ceil_div(block.n, nr), groups) * nr;
        return {groups, ceil_div(runs(cols, block.k), pack_runs()), 1};
    }
    int pack(const Block &block, Tasks tasks, int64_t t, const Run &r, char *panels) const {
        const auto [j0, j1] = panels_of(block, t / tasks.parts, tasks.groups);
        const int64_t cols = std::min(j1 * nr, block.n) - j0 * nr, all = runs(cols, block.k);
        const int64_t from = t % tasks.parts * pack_runs(), to = std::min(from + pack_runs(), all);
        if (from >= to) return kLeastOfNothing; // of a group with a panel less than others
        return pack_b(panels + j0 * panel_b(units(block.k)), at_b(r.b, block.k0, block.n0 + j0 * nr), cols, block.k,
                      from, to);
    }

    /** Of those, so many are multiplied with a K block of a panel of B before the next one is. */
    int64_t panels_together() const { return kernel.in_tiles || dots ? task_panels : 1; }
    int64_t tiles_together() const { return std::max(panels_together(), LateStore::tiles(*this)); }
    Tasks tasks_of(const Block &block, int threads) const {
        constexpr int64_t kMany = 8; // for a thread: of fewer, all threads have as many
        const int64_t groups = groups_of(block, threads);
        const int64_t cols = ceil_div(ceil_div(block.n, nr * groups), std::max<int64_t>(kTaskCols / nr, 1));
        Tasks tasks{groups, ceil_div(block.panels, task_panels), cols};
        while (tasks.all() % threads != 0 && tasks.all() < kMany * threads && tasks.parts < block.panels) ++tasks.parts;
        return tasks;
    }

    /** What the products of panels p0..p1 of A and one of B bring nearer: the next panel of B, which sums and the packing of A have
     *  driven out of the second-level cache; after the group's last one, as many rows of A, to be packed. */
    GemmFetch fetch_next(const Block &block, const Run &r, const char *panels_b, int64_t j, int64_t end, int64_t p0,
                         int64_t p1) const {
        const int64_t depth = units(block.k), steps = (p1 - p0) * (depth / kGemmStepsTogether);
        if (j < end) {
            // Small caches are of CPUs that fetch a panel from end to end on their own, and counting steps costs them 3 %.
            if (kernel.has_small_l2) return {};
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
        int64_t part = -1;
        int least = kLeastOfNothing;
    };

    void multiply(const Block &block, Tasks tasks, int64_t t, const Run &r, PackedRows &rows, char *scratch,
                  const char *panels_b, int least_b, Least &least_of_all, char *sums) const {
        const bool first = block.k0 == 0, last = block.k0 + block.k == k;
        const int64_t depth = units(block.k), panels_n = ceil_div(block.n, nr);
        const int64_t group = t / (tasks.parts * tasks.cols), part = t / tasks.cols % tasks.parts;
        const int64_t p0 = block.p0 + block.panels * part / tasks.parts,
                      p1 = block.p0 + block.panels * (part + 1) / tasks.parts;
        const auto [j0, j1] = panels_of(block, group * tasks.cols + t % tasks.cols, tasks.groups * tasks.cols);
        const int64_t group_end = panels_of(block, group, tasks.groups).j1;
        char *const tiles = scratch, *const packed = scratch + tiles_together() * tile_bytes();
        if (rows.part != part) {
            rows.part = part;
            rows.least = pack_a(packed, r.a, p0, p1, block.k0, block.k);
            if (kernel.in_tiles) least_of_all.meet(rows.least);
        }
        const int least_a = kernel.in_tiles ? least_of_all.exponent() : rows.least;
        const GemmMultiply *const multiply = kernel.multiply[may_flush(least_a, least_b) ? kExact : kFast];
        const Multiplies begun(*this);
        LateStore late(*this, r.alpha, r.beta);
        for (int64_t j = j0; j < j1; ++j) {
            GemmFetch fetch = fetch_next(block, r, panels_b, j + 1, group_end, p0, p1);
            const int64_t cols = std::min(nr, block.n - j * nr);
            for (int64_t first_p = p0, end; first_p < p1; first_p = end) {
                end = std::min(first_p + panels_together(), p1);
                for (int64_t i = 0, parts = this->parts(block.k); i < parts; ++i)
                    for (int64_t p = first_p; p < end; ++p) {
                        const auto [unit, many] = part_of(block.k, i);
                        const int64_t turn = kernel.in_tiles && end - first_p == 1 ? j % 2 : 0;
                        char *const tile = tiles + (p - first_p + turn) * tile_bytes();
                        char *const waiting = sums + ((p - block.p0) * panels_n + j) * tile_bytes();
                        const int64_t rows_p = height(p);
                        const bool begins = i == 0, ends = i + 1 == parts;
                        const char *const panel_a = packed + bytes_before(p, depth) - bytes_before(p0, depth);
                        const char *const panel = panels_b + j * panel_b(depth);
                        late.make_room(tile);
                        if (begins && last) fetch_c(r.c, row_of(p), block.n0 + j * nr, rows_p, cols);
                        multiply[rows_p](many, panel_a + rows_p * unit * kernel.acc_size,
                                         panel + nr * unit * kernel.acc_size,
                                         !begins ? tile
                                         : first ? nullptr
                                                 : waiting,
                                         ends && !last ? waiting : tile, fetch.left == 0 ? nullptr : &fetch);
                        if (ends && last) late.put(at_c(r.c, row_of(p), block.n0 + j * nr), tile, rows_p, cols);
                    }
            }
        }
        late.store();
        if (last)
            finish(r.c, r.d, row_of(p0), block.n0 + j0 * nr, row_of(p1) - row_of(p0),
                   std::min(j1 * nr, block.n) - j0 * nr);
    }
};

} // namespace

std::unique_ptr<const Way> blocked(const Gemm &gemm, int threads) { return std::make_unique<Blocked>(gemm, threads); }

} // namespace infini::gemm
