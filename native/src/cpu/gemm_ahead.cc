/* gemm ahead: columns of C for each thread, as in gemm_columns.cc, but with two K blocks of B: the products of one pack the next,
 * some of it each time that they begin a few steps. So B is read before it is wanted, rows in long runs and in the order in which
 * they lie in memory, columns a few at a time, whether or not they meet in a few sets of the caches; and the time that takes is
 * hidden behind multiply-adds. A task's last K block is followed by the first one of the thread's next task. */
#include <cstring>

#include "cpu/gemm_whole_a.h"
#include "cpu/thread_pool.h"

namespace infini::gemm {

namespace {

/* Panels of B in a task, or about so many. Two are all that a piece of rows needs, and leave half of the second-level cache free:
 * of two threads whose data fill it, all that they do takes half as long again at times. More, where two pieces are packed at a
 * time; where each task reads an A that fills as much; or where rows of B come from memory and meet in a few sets of the
 * first-level cache: they are fetched no further ahead than these hold, which must be bytes enough. */
constexpr int64_t kTaskPanels = 2, kTaskPanelsTwice = 4, kTaskPanelsMost = 8, kLargeA = 512 * 1024; // bytes, packed
constexpr int64_t kFetch = 8192, kFetchRowsMeet = 8; // ahead of what is packed: bytes of a task's rows of B, or rows
constexpr int64_t kNear = 16 << 20;                  // bytes of B, of which most come from the last-level cache

/* Where it pays, measured on Zen 5: bytes of B from which on, in rows so long, K blocks so many, it is not faster in place; rows of
 * A of which the products take longer than packing does; and up to which packing beforehand takes longer. F64, whose rows of B are
 * more bytes for as many products, only in panels of A that are nearly full. */
constexpr int64_t kLeastB = 1 << 20, kLeastRow = 1024, kLeastBlocks = 2; // elements of a row
constexpr int64_t kPairsRows = 11, kPairsRowsMeet = 10, kPairsMostRows = 384;
constexpr int64_t kRows = 17, kRowsF16 = 15, kMostRows = 36, kMostMissing = 1;
constexpr int64_t kColumnsRows = 17, kColumnsMostRows = 72, kColumnsMostRowsFar = 24;
constexpr int64_t kColumnsRowsF16 = 32, kColumnsMostRowsF16 = 96, kColumnsMostRowsFarF16 = 48;
constexpr int64_t kColumnsPairsRows = 20, kColumnsPairsMostRowsFar = 64;
/* On a Zen 4 pairs alone: of others, products take as long as reading B. */
constexpr int64_t kPairsRowsZen4 = 10, kPairsRowsFarZen4 = 18, kPairsMostRowsZen4 = 192;

/** A K block of a task's panels of B. Its rows are packed as units; of these, in all of its panels or but the last ones, some are
 *  `free`: a panel's columns can be read as a whole. */
struct Block {
    const char *from;     // row k0, column `begin`
    char *panels;         // [panel][unit][nr], kernels' ahead_panel() apart
    int64_t begin, count; // the first column, which may be one that there is not, and panels
    int64_t k0, k;        // rows
    int64_t free_from, free_to, free_panels;
    int least = kLeastOfNothing;
};

struct Ahead final : WholeA {
    bool by_columns; // of B, which are contiguous
    bool joined;     // the rows of B follow each other in memory, so panels may reach into those before and behind
    bool twice;      // rows of B, as much of them each time
    bool meet;       // do rows of B in a few sets of the first-level cache?
    int64_t task_panels;
    int64_t tasks;               // by about so many panels of B
    int64_t panel;               // bytes
    int64_t bytes_b, bytes_sums; // a thread; of one K block

    static bool possible(const Gemm &g) {
        return (g.b.col == 1 || g.b.row == 1) &&
               g.kernel.multiply_ahead[g.b.col == 1 ? kAheadOfRows : kAheadOfColumns][1] != nullptr &&
               !g.kernel.in_tiles && g.n >= g.nr && g.k <= kFewRowsOfA / std::max<int64_t>(g.m, 1);
    }
    static bool pays(const Gemm &g) {
        const bool pairs = g.kernel.unit_k > 1, zen4 = small_l2() && !is_zen5();
        if (!(zen4 ? pairs : is_zen5()) || g.n < kLeastB / g.size / g.k) return false;
        const auto within = [&](int64_t least, int64_t most) { return g.m >= least && g.m <= most; };
        if (g.b.col != 1) {
            const bool far = is_far(g);
            if (pairs && zen4) return within(kPairsRowsFarZen4, far ? kColumnsPairsMostRowsFar : kPairsMostRowsZen4);
            if (pairs) return within(kColumnsPairsRows, far ? kColumnsPairsMostRowsFar : kPairsMostRows);
            if (g.converts()) return within(kColumnsRowsF16, far ? kColumnsMostRowsFarF16 : kColumnsMostRowsF16);
            return within(kColumnsRows, far ? kColumnsMostRowsFar : kColumnsMostRows);
        }
        if (zen4) return within(is_far(g) ? kPairsRowsFarZen4 : kPairsRowsZen4, kPairsMostRowsZen4);
        if (pairs) return within(rows_meet(g.b.row * g.size) ? kPairsRowsMeet : kPairsRows, kPairsMostRows);
        if (g.n < kLeastRow || g.k_blocks() < kLeastBlocks || g.batch > 1) return false; // whose items begin anew
        if (g.size == sizeof(double) && g.panels_m * g.kernel.mr - g.m > kMostMissing) return false;
        return within(g.converts() ? kRowsF16 : kRows, kMostRows);
    }
    static bool is_far(const Gemm &g) { return g.b_exceeds(kNear); }

    Ahead(const Gemm &gemm, int threads)
        : WholeA(gemm, threads), by_columns(b.col != 1), joined(b.row == n && n >= 2 * nr),
          twice(!by_columns && panels_m == 1 && kernel.multiply_ahead[kAheadTwiceOfRows][m] != nullptr),
          meet(!by_columns && rows_meet(b.row * size)), task_panels(panels_of_task()),
          panel(ahead_panel(nr, kernel.acc_size) * kernel.acc_size) {
        const int64_t all = ceil_div(n, nr), about = std::max<int64_t>((all + task_panels / 2) / task_panels, 1);
        tasks = std::min(round_up(about, threads), all);
        const int64_t most =
            round_up(ceil_div(all + 1, tasks), 2); // with columns before the first cache line, and pairs
        bytes_b = panel * most;
        bytes_sums = tile_bytes() * panels_m * most;
    }
    int64_t panels_of_task() const {
        if (twice) return kTaskPanelsTwice;
        return packed.bytes > kLargeA || (meet && is_far(*this)) ? kTaskPanelsMost : kTaskPanels;
    }
    int64_t bytes_of_thread() const { return 2 * bytes_b + bytes_sums; }
    int64_t workspace(int threads) const override { return packed.of_all(threads) + bytes_of_thread() * threads; }
    std::string describe() const override {
        return "columns, A packed, B packed by the products before, " + text(tasks) + " tasks, tiles " + text(mr) +
               " x " + text(nr) + (packed.own ? ", A by each thread" : "");
    }

    void run(const Run &r) const override {
        Least least_a;
        pack_shared(r, least_a);
        // Panels begin where cache lines do, if those of all rows begin alike.
        const int64_t head = joined && b.row * size % kLine == 0 ? elements_until_line(r.b, size) : 0;
        const int64_t origin = head > 0 ? head - nr : 0, all = ceil_div(n - origin, nr);
        const int threads = static_cast<int>(std::min<int64_t>(r.threads, tasks));
        Shares shares(tasks, b_is_in_memory() ? 1 : threads);
        parallel_for(threads, threads, [&](int64_t, int slot) {
            char *const sums = r.workspace + packed.of_all(r.threads) + slot * bytes_of_thread();
            char *panels = sums + bytes_sums, *other = panels + bytes_b;
            const auto block = [&](int64_t t, int64_t k0) {
                std::swap(panels, other);
                const int64_t first = all * t / tasks;
                return block_of(r.b, panels, origin + first * nr, all * (t + 1) / tasks - first, k0);
            };
            int64_t t = shares.take(slot);
            if (t < 0) return;
            const int least = pack_own(r, slot, least_a);
            const Run own = packed.of(r, slot);
            Block now = block(t, 0);
            pack(now, 0, now.free_from);
            for (int64_t then; t >= 0; t = then) {
                then = shares.take(slot);
                for (int64_t k0 = 0; k0 < k; k0 += block_k) {
                    const bool last = k0 + block_k >= k;
                    Block next = !last ? block(t, k0 + block_k) : then >= 0 ? block(then, 0) : Block{};
                    multiply(own, now, next, may_flush(least, now.least), sums);
                    if (last) {
                        const int64_t j = std::max<int64_t>(now.begin, 0);
                        finish(r.c, r.d, 0, j, m, now.begin + columns(now) - j);
                    }
                    now = next;
                }
            }
        });
    }

    Block block_of(const char *pb, char *panels, int64_t begin, int64_t count, int64_t k0) const {
        Block block{at_b(pb, k0, begin), panels, begin, count, k0, std::min(block_k, k - k0), 0, 0, 0};
        if (by_columns) {
            const int64_t piece = piece_units();
            block.free_panels = columns(block) / nr;
            block.free_to = block.k / kernel.unit_k / piece * piece;
            return block;
        }
        block.free_panels = joined ? round_up(count, 2) : columns(block) / nr / 2 * 2;
        // Before B's first row there is none, nor behind its last one.
        const bool before = k0 == 0 && begin < 0;
        const bool behind = k0 + block.k == k && begin + block.free_panels * nr > n;
        block.free_from = before;
        block.free_to = std::max<int64_t>(block.k / kernel.unit_k - behind, block.free_from);
        return block;
    }
    /** Of a column. */
    int64_t piece_units() const { return kAheadBytes / (size * kernel.unit_k); }
    /** To the end of its last panel, or of B. */
    int64_t columns(const Block &block) const { return std::min(block.count * nr, n - block.begin); }

    /** What products have not packed: of free panels from `first` on, the free units from `unit` on, and all others. */
    void pack(Block &block, int64_t first, int64_t unit) const {
        const int64_t all = units(block.k);
        pack(block, first, block.free_panels * nr, unit, block.free_to);
        pack(block, block.free_panels, columns(block), 0, all);
        if (block.free_from > 0) pack_edge(block, 0);
        for (int64_t edge = block.free_to; edge < all; ++edge) pack_edge(block, edge);
    }
    /** Panels from `first` on, up to column `end` of the block, and of these some units. */
    void pack(Block &block, int64_t first, int64_t end, int64_t unit, int64_t until) const {
        const int64_t k0 = unit * kernel.unit_k, kc = std::min(until * kernel.unit_k, block.k) - k0;
        if (first * nr >= end || kc <= 0) return;
        const int least =
            kernel.pack(block.panels + first * panel + unit * nr * kernel.acc_size, panel / kernel.acc_size,
                        at_b(block.from, k0, first * nr), b.col, b.row, end - first * nr, nr, kc);
        block.least = std::min(block.least, least);
    }
    /** A unit of which nothing is read but what there is. */
    void pack_edge(Block &block, int64_t unit) const {
        if (block.begin < 0) { // the first panel's columns are its last ones
            constexpr int64_t kMost = 32;
            alignas(kLine) char columns[kMost * sizeof(double)];
            const int64_t k0 = unit * kernel.unit_k, skip = -block.begin, cols = std::min(nr - skip, n);
            const int least = kernel.pack(columns, 0, at_b(block.from, k0, skip), b.col, b.row, cols, nr,
                                          std::min<int64_t>(kernel.unit_k, block.k - k0));
            block.least = std::min(block.least, least);
            std::memcpy(block.panels + (unit * nr + skip) * kernel.acc_size, columns,
                        static_cast<size_t>(cols * kernel.acc_size));
        }
        pack(block, block.begin < 0, columns(block), unit, unit + 1);
    }

    /** Products of a K block, added to a task's tiles, or stored if it is the last one; and the next K block, packed. */
    void multiply(const Run &r, const Block &now, Block &next, bool exact, char *tile) const {
        GemmAhead ahead{};
        if (!exact && next.free_panels > 0) {
            ahead.from = at_b(next.from, next.free_from * kernel.unit_k, 0);
            ahead.to = next.panels + next.free_from * nr * kernel.acc_size;
            if (by_columns) {
                ahead.stride = b.col;
                ahead.fetch = kAheadColumns * b.col; // those that are packed next
                ahead.pieces = next.free_to / piece_units();
                ahead.left = ahead.pieces == 0 ? 0 : next.free_panels * (nr / kAheadColumns);
            } else {
                ahead.stride = b.row;
                ahead.fetch = (meet ? kFetchRowsMeet : kFetch / (task_panels * nr * size)) * b.row;
                ahead.pieces = next.free_panels / 2;
                ahead.left = next.free_to - next.free_from;
            }
            ahead.in_row = ahead.pieces;
            ahead.least = kLeastOfNothing;
        }
        const int64_t depth = units(now.k);
        const bool first = now.k0 == 0, last = now.k0 + block_k >= k;
        const GemmMultiply *const multiply = kernel.multiply[exact ? kExact : kFast];
        const int kind = by_columns ? kAheadOfColumns : twice ? kAheadTwiceOfRows : kAheadOfRows;
        for (int64_t q = 0; q < now.count; ++q) {
            const char *const panel_b = now.panels + q * panel;
            const int64_t skip = q == 0 ? std::max<int64_t>(-now.begin, 0) : 0;
            const int64_t j = now.begin + q * nr + skip, cols = std::min(nr - skip, n - j);
            for (int64_t p = 0; p < panels_m; ++p, tile += tile_bytes()) {
                const int64_t rows = height(p);
                const char *const panel_a = block_a(r, now.k0) + bytes_before(p, depth);
                const char *const in = first ? nullptr : tile;
                if (last) fetch_c(r.c, row_of(p), j, rows, cols);
                if (ahead.left > 0)
                    kernel.multiply_ahead[kind][rows](depth, panel_a, panel_b, in, tile, ahead);
                else
                    multiply[rows](depth, panel_a, panel_b, in, tile, nullptr);
                if (last)
                    kernel.store(at_c(r.c, row_of(p), j), c.row, c.col, tile + skip * kernel.acc_size, nr, rows, cols,
                                 r.alpha, r.beta);
            }
        }
        if (next.count == 0) return;
        if (ahead.pieces > 0) next.least = ahead.least;
        const int64_t begun = ceil_div(ahead.left, nr / kAheadColumns); // panels of which some are left
        if (ahead.pieces == 0)
            pack(next, 0, next.free_from);
        else if (by_columns)
            pack(next, next.free_panels - begun, next.free_from);
        else
            pack(next, 0, next.free_to - ahead.left);
    }
};

} // namespace

std::unique_ptr<const Way> ahead(const Gemm &gemm, int threads, bool anyway) {
    if (!Ahead::possible(gemm) || !(anyway || Ahead::pays(gemm))) return nullptr;
    return std::make_unique<Ahead>(gemm, threads);
}

} // namespace infini::gemm
