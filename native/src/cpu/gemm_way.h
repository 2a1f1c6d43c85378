/* What the ways to compute a product on the CPU share: the problem in the form that suits them, what a run is given, and how
 * threads divide tasks. gemm.cc says which ways there are, and chooses. */
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "core/dtype.h"
#include "core/status.h"
#include "cpu/caches.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace infini::gemm {

constexpr int64_t kFarB = 12 << 20; // bytes of B from which on it comes from memory, and is streamed or packed ahead
constexpr int64_t kFewRowsOfA = 1 << 22; // elements of A up to which it is packed as a whole
/* K of which C takes longer to write than the product, unless C stays in a cache; of halves, whose B is converted for each few rows. */
constexpr int64_t kShortK = 64, kShortKHalves = 32;
/* Of a B in tiles that is kept: most of K, and bytes as packed (gemm_kept_b.cc). */
constexpr int64_t kKeptK = 128, kKeptB = 32 * 1024;
constexpr int64_t kFewColumnsOfA = 128; // of a transposed one up to which small caches take them as they are

/** Is the processor's own second-level cache as small as Zen 3's and Zen 4's (512 KiB and 1 MiB; a Xeon's has 2 MiB)?
 *  GemmKernel::has_small_l2 tells what its kernels were written for. */
inline bool small_l2() { return second_level_cache() <= 1 << 20; }
/** And does it compute vectors of 64 bytes as a whole? */
inline bool is_zen5() { return small_l2() && kernels().whole_lines; }

inline int64_t ceil_div(int64_t x, int64_t y) { return x / y + (x % y != 0); }
inline int64_t round_up(int64_t x, int64_t y) { return ceil_div(x, y) * y; }
/** The first of from..to that costs the least; `from` where there are no others. */
template <class Cost>
int64_t cheapest(int64_t from, int64_t to, Cost &&cost) {
    int64_t best = from;
    for (int64_t i = from + 1; i <= to; ++i)
        if (cost(i) < cost(best)) best = i;
    return best;
}
inline std::string text(int64_t x) { return std::to_string(x); }

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
    int64_t size;     // bytes of an element of A and B
    int64_t c_size;   // and of C, which differ where A and B are taken as pairs
    int64_t a_size;   // and of what rows of A are some apart, which pairs may begin anywhere in
    bool odd = false; // is a row's last pair but one element?
    int64_t block_k;  // elements in a K block
    int64_t batch, m, n, k;
    Matrix c, a, b, d; // d: of the epilogue, if there is one
    Epilogue epilogue;
    int64_t mr, nr;                // the register tile
    int64_t panels_m, low, taller; // panels of A; the rows of one; how many, the first ones, have a row more
    bool dots;                     // are kernels those of KernelTable::gemm_dots?
    bool exchanged;                // a is the problem's B^T and b its A^T

    Gemm(const InfiniProblem &problem, const Epilogue &then) : d{}, epilogue(then) {
        const InfiniOperand &dc = problem.operands[0], &da = problem.operands[1], &db = problem.operands[2];
        const GemmKernel &of_dots = kernels().gemm_dots[dc.dtype];
        dots = of_dots.in_place_rows != 0 && da.shape[2] >= of_dots.least_k && da.stride[2] == 1 && db.stride[1] == 1;
        kernel = dots ? of_dots : kernels().gemm[dc.dtype];
        size = c_size = a_size = kDtypes[dc.dtype].size;
        block_k = kernel.block_units * kernel.unit_k;
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
        nr = kernel.nr;
        // Sums are stored in rows, so a column-major C is computed as C^T = B^T A^T, unless it has few rows; so is one with few
        // columns, since the ways for few rows then apply. Where rows of A need not be packed, or B is, or few columns of A are, of
        // halves or with AVX2, that is worth it if vectors would be mostly empty; panels of halves, which are of two, more than a
        // quarter.
        constexpr int64_t kFewColumns = 64;
        const bool column_major = m > 1 && n > 1 && c.col != 1 && std::abs(c.row) < std::abs(c.col);
        const bool takes_a = reads_a() || ((kernel.has_small_l2 || converts()) && a.row == 1 && k <= kFewColumnsOfA);
        const bool in_rows =
            !dots && c.col == 1 && takes_a && b_is_small() && (b.col == 1 || (converts() ? b.row == 1 : may_copy_b()));
        const bool few = n <= kFewColumns,
                   empty = few && (converts() ? 4 * n <= 3 * round_up(n, has_pairs() && a.col == 1 ? nr / 2 : nr)
                                              : few_in_panel());
        // Along k, columns that are too few for a kernel would be summed up one by one, and rows be packed for them.
        constexpr int64_t kFewAlongK = 8;
        const int64_t times = dots && n < kFewAlongK ? 1 : 4;
        exchanged = (column_major && !stays_in_rows()) || (few && m > times * n && (!in_rows || empty) && !keeps_b());
        if (exchanged) {
            std::swap(m, n);
            std::swap(a, b);
            for (Matrix *x : {&a, &b, &c, &d}) std::swap(x->row, x->col);
        }
        set_size(m, n);
    }

    /** As few panels of A as can be, and as equal: no row is computed that does not exist. */
    void set_size(int64_t rows, int64_t cols) {
        m = rows;
        n = cols;
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
    /** Is there more of B than so many bytes? Of that of all items: their turns are so far apart that caches hold the last ones' alone. */
    bool b_exceeds(int64_t bytes) const { return (b.batch == 0 ? n : batch * n) > bytes / size / k; }
    bool b_is_in_memory() const { return b_exceeds(kFarB); }
    /** See kShortK. Of pairs no such product was measured; tiles are as fast unless C has room in no cache. */
    bool is_short() const {
        const bool pays = kernel.unit_k == 1 || (kernel.in_tiles && n > 4 * second_level_cache() / size / m);
        return !dots && (converts() ? pays && k <= kShortKHalves : k <= kShortK);
    }
    /** Does all of B stay in the first-level cache, packed, and are there rows of A enough for that? (gemm_kept_b.cc) */
    bool keeps_b() const {
        // Of fewer columns vectors are so empty that A is better transposed; where B is to be read as it is, more rows pay sooner.
        constexpr int64_t kKOfColumn = 12, kKOfColumnHalves = 6, kRowsInPlace = 128, kRowsOfTiles = 32;
        if (dots || c.col != 1 || n < 2) return false;
        if (kernel.in_tiles)
            return (a.col == 1 || a.row == 1) && k <= kKeptK && m >= kRowsOfTiles &&
                   n <= kKeptB / kernel.acc_size / units(k) / nr * nr;
        return kernel.narrow[0] != nullptr && a.col == 1 && n <= nr &&
               k <= std::min(kNarrowK, (converts() ? kKOfColumnHalves : kKOfColumn) * n) &&
               m >= (converts() || few_in_panel() ? kNarrowRows : kRowsInPlace);
    }
    /** Would vectors of columns be mostly empty? */
    bool few_in_panel() const { return 16 * n <= 5 * nr; }
    /** Are elements not of the type that sums are kept in? */
    bool converts() const { return size != kernel.acc_size; }
    /** Bytes of a B that stays in the second-level cache beside many rows of A; more of one, of which rows a power of 2 apart would have
     *  no room there, is packed for them. */
    int64_t near_b() const { return (kernel.has_small_l2 ? 256 : 768) * 1024; }
    bool b_is_small() const {
        return static_cast<double>(n) * static_cast<double>(k) <= static_cast<double>(near_b() / size);
    }
    /** May many rows of A be read where they lie, or packed in little time? Those of a transposed A, if it has few columns, or elements
     *  that need no packing are near each other: the cache lines that some rows are in are read again for the next ones. */
    bool reads_a() const {
        constexpr int64_t kFew = 64, kNear = 2048; // bytes
        if (a.col == 1 || a.row != 1 || c.col != 1) return a.col == 1;
        if (kernel.has_small_l2) return k <= kFewColumnsOfA && !push_out(k, a.col * size);
        return k <= kFew || (!converts() && std::abs(a.col) <= kNear / size);
    }
    /** Do so many cache lines, so many bytes apart, push each other out of a first-level cache of 32 KiB? */
    static bool push_out(int64_t lines, int64_t bytes) {
        constexpr int64_t kSets = 64, kWays = 8;
        int64_t sets = 1; // that they come to lie in
        while (sets < kSets && bytes % (kLine * kSets / sets) != 0) sets *= 2;
        return bytes != 0 && lines > sets * kWays;
    }
    /** Is B small, of rows that are not contiguous, nor columns, but for so many rows of A that those are worth being transposed?
     *  (gemm_copied_b.cc) */
    bool may_copy_b() const {
        constexpr int64_t kRows = 17;
        if (b.col == 1) return may_copy_rows();
        if (converts()) return is_short() && !has_pairs() && b.row == 1 && m >= kRows && n > 1;
        return !dots && (b.row != 1 || m >= kRows) && reads_a() && n > 1 && (b_is_small() || is_short());
    }
    /** The same for contiguous rows that push each other out of a small first-level cache. */
    bool may_copy_rows() const {
        constexpr int64_t kRows = 48;
        return !dots && kernel.has_small_l2 && !converts() && b.col == 1 && m >= kRows && n >= nr && reads_a() &&
               b_is_small() && push_out(std::min(k, block_k), b.row * size);
    }
    /** The same for a copy in pairs, where A has such, which then need no packing: that pays with columns of B, which are transposed
     *  either way, for fewer rows of A than with its rows, and soonest where panels would be half empty. Longer rows or columns of B
     *  are copied if they are few. */
    bool may_copy_pairs() const {
        // An A whose columns are contiguous is turned, which takes as long as packing it unless K is short, but not too short for that.
        constexpr int64_t kTurnedRows = 96, kLeastTurnedK = 8, kMostTurnedK = 128;
        if (a.col != 1 && (k < kLeastTurnedK || k > kMostTurnedK || m < kTurnedRows)) return false;
        constexpr int64_t kRows = 48, kRowsTurned = 24, kRowsHalfPanel = 12, kRowsShort = 8,
                          kShort = 32;                  // measured on Zen 4
        constexpr int64_t kFew = 256, kMostB = 2 << 20; // bytes of few rows or columns
        const bool turns = b.row == 1;
        const int64_t least = turns && k <= kShort ? kRowsShort
                              : 2 * n <= nr        ? kRowsHalfPanel
                              : turns              ? kRowsTurned
                                                   : kRows;
        const int64_t cols = std::max(n, nr / 2), fewer = std::min(cols, k), longer = std::max(cols, k); // of the copy
        const bool fits =
            longer <= (fewer <= kFew ? kMostB : near_b()) / size / fewer && k <= near_b() / size / (nr / 2);
        return has_pairs() && m >= least && n > 1 && fits;
    }
    /** Are elements of A that are neighbours in k, as pairs, what kernels take? They are of a transposed A that is turned. */
    bool has_pairs() const {
        return kernel.unit_k == 2 && kernels().gemm_pairs[kFast].in_place_rows != 0 && (a.col == 1 || a.row == 1);
    }
    /** The same product of pairs, but for the strides of B, and of an A that is turned. */
    Gemm of_pairs(int exactness) const {
        Gemm pairs = *this;
        pairs.kernel = kernels().gemm_pairs[exactness];
        pairs.size = pairs.kernel.acc_size;
        pairs.block_k = pairs.kernel.block_units;
        pairs.k = ceil_div(k, 2);
        pairs.odd = k % 2 != 0;
        return pairs;
    }
    /** Is C, column-major, of so few rows and so many products that it costs less to store their sums across than to do without the
     *  ways for few rows? */
    bool stays_in_rows() const {
        constexpr int64_t kFewRows = 32, kDeep = 4;
        const int64_t few_by_columns = (kernel.packs_for_columns ? 32 : 16) / size; // measured
        return c.row == 1 && m <= n && k >= kDeep * m && m <= (b.col == 1 ? kFewRows : b.row == 1 ? few_by_columns : 0);
    }
    /** Has B rows that a product may pack on its way? */
    bool can_pack_rows() const { return b.col == 1 && n >= nr && kernel.multiply_pack[1] != nullptr; }
    /** B lies in memory as runs: rows where those are contiguous (or nothing is), else columns; both may be, where it overlaps. */
    bool runs_are_rows() const { return !dots && (b.col == 1 || b.row != 1); }
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
            return kernel.pack_rows(panels + bytes_before(from, depth) - bytes_before(p0, depth), height(from) * depth,
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
    /** Of a panel. */
    int64_t units(int64_t depth) const {
        if (dots) return kernel.lanes * dots_step(depth, kernel.lanes);
        return round_up(ceil_div(depth, kernel.unit_k), kernel.unit_group);
    }
    /** Units of a panel whose products are summed up on their own: a K block, or a lane's part of one. */
    struct Part {
        int64_t at, units;
    };
    int64_t parts(int64_t depth) const { return dots ? kernel.lanes : ceil_div(units(depth), kernel.block_units); }
    Part part_of(int64_t depth, int64_t i) const {
        if (dots) return {i * dots_step(depth, kernel.lanes), ceil_div(std::max<int64_t>(depth - i, 0), kernel.lanes)};
        const int64_t at = i * kernel.block_units;
        return {at, std::min<int64_t>(units(depth) - at, kernel.block_units)};
    }
    double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
    int64_t k_blocks() const { return ceil_div(k, block_k); }
    /** Elements of k that are summed up on their own. */
    int64_t sum_k() const { return kernel.in_tiles ? k : block_k; }
    const char *at_a(const char *pa, int64_t i, int64_t l) const { return pa + i * a.row * a_size + l * a.col * size; }
    const char *at_b(const char *pb, int64_t l, int64_t j) const { return pb + (l * b.row + j * b.col) * size; }
    char *at_c(char *pc, int64_t i, int64_t j) const { return pc + (i * c.row + j * c.col) * c_size; }

    /** Has what lies in rows i0.., columns j0.. of C brought nearer: else whoever stores a tile's sums there waits for each line.
     *  Always inlined: the compiler drops calls of a function that does nothing but fetch. */
    [[gnu::always_inline]] void fetch_c(const char *pc, int64_t i0, int64_t j0, int64_t rows, int64_t cols) const {
        if (c.col != 1 || c_size != kernel.acc_size) return; // rows of halves are so short that they gain nothing
        for (int64_t i = i0; i < i0 + rows; ++i) {
            const char *const row = pc + (i * c.row + j0) * c_size, *const end = row + cols * c_size;
            for (const char *p = row; p < end; p += kLine) __builtin_prefetch(p);
            __builtin_prefetch(end - 1);
        }
    }

    /** Rows i0.., columns j0.. of C hold the product: what follows it, once. */
    void finish(char *pc, char *pd, int64_t i0, int64_t j0, int64_t rows, int64_t cols) const {
        if (epilogue.kernel == nullptr) return;
        epilogue.run({at_c(pc, i0, j0), c.row, c.col}, {pd + (i0 * d.row + j0 * d.col) * c_size, d.row, d.col}, rows,
                     cols);
    }
};

/** Does B come from Zen 5's last-level cache of 32 MiB, which then holds most of it? */
inline bool is_near_zen5(const Gemm &g) {
    constexpr int64_t kNear = 40 << 20;
    return is_zen5() && !g.b_exceeds(kNear);
}

/** While it lives, this thread may call kernel.multiply for panels of the product. */
struct Multiplies {
    explicit Multiplies(const Gemm &g) : end_(g.kernel.end) {
        if (g.kernel.begin != nullptr) g.kernel.begin(static_cast<int>(g.mr));
    }
    ~Multiplies() {
        if (end_ != nullptr) end_();
    }
    Multiplies(const Multiplies &) = delete;
    Multiplies &operator=(const Multiplies &) = delete;

private:
    void (*end_)();
};

/** Sums that go to C: where they are in tiles, once the next product has begun, for whoever reads them waits until it is done. */
struct LateStore {
    LateStore(const Gemm &gemm, float alpha_, float beta_) : g(gemm), alpha(alpha_), beta(beta_) {}

    /** At least so many tiles of sums there must be, for products to use by turns. */
    static int64_t tiles(const Gemm &gemm) { return gemm.kernel.in_tiles ? 2 : 1; }

    /** Before a product that leaves its sums there. */
    void make_room(const char *where) {
        if (where == sums) store();
    }
    /** After one that has: rows and columns of the tile. */
    void put(char *to, const char *from, int64_t its_rows, int64_t its_cols) {
        store();
        c = to, sums = from, rows = its_rows, cols = its_cols;
        if (!g.kernel.in_tiles) store();
    }
    void store() {
        if (sums != nullptr) g.kernel.store(c, g.c.row, g.c.col, sums, g.nr, rows, cols, alpha, beta);
        sums = nullptr;
    }

private:
    const Gemm &g;
    const float alpha, beta;
    char *c = nullptr;
    const char *sums = nullptr; // null: none wait
    int64_t rows = 0, cols = 0;
};

/** One item's operands and what a run may use for it. */
struct Run {
    char *c;
    const char *a, *b;
    char *d; // only read; null without an epilogue
    char *workspace;
    int threads; // that the plan has room for
    int active;  // and that are there for this call
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
inline bool may_flush(int least_a, int least_b) { return least_a < 1 || least_b < 1 || least_a + least_b < 142; }

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

/** Is an operand of so few elements that each thread packs all of it for itself? Lines that another core has written come so slowly that
 *  this takes less time than a part of it, and the wait for the others'. */
inline bool packs_for_itself(int64_t elements, int threads) {
    constexpr int64_t kPackedTwice = 1 << 18; // at most, measured with two threads
    return threads > 1 && (threads - 1) * elements <= kPackedTwice;
}

/** Where packed A lies: shared, or a copy for each thread, one behind the other. */
struct PackedA {
    int64_t bytes = 0; // of one
    bool own = false;

    int64_t of_all(int threads) const { return bytes * (own ? threads : 1); }
    /** A run that finds the thread's A where its workspace begins. */
    Run of(const Run &r, int slot) const {
        Run its = r;
        if (own) its.workspace += slot * bytes;
        return its;
    }
};

/** At least so many elements, as an odd number of cache lines: rows so far apart meet in no set of a cache before all are in use. */
inline int64_t odd_lines(int64_t elements, int64_t size) {
    const int64_t line = kLine / size;
    return (ceil_div(elements, line) | 1) * line;
}

/** Tasks, and before its first one what each thread does for itself: task(t, slot, prepare(slot)). If they are
 *  `divided`, each thread begins with the same ones in every call, of which its caches may still hold something; else all threads
 *  go on side by side, as memory and rows that they share want it. */
template <class Prepare, class Task>
void parallel_prepared(int64_t tasks, int threads, bool divided, Prepare &&prepare, Task &&task) {
    struct {
        bool is_prepared;
        int prepared;
    } of_slot[kMaxThreads];
    threads = std::min(threads, kMaxThreads);
    for (int slot = 0; slot < threads; ++slot)
        of_slot[slot].is_prepared = false; // all would take longer than a small product
    const auto run = [&](int64_t t, int slot) {
        auto &own = of_slot[slot];
        if (!own.is_prepared) own = {true, prepare(slot)};
        task(t, slot, own.prepared);
    };
    if (!divided || threads == 1) return parallel_for(tasks, threads, run);
    parallel_divided(tasks, threads, run);
}

/** The way named, for an item that so many threads compute; null where it does not pay, or `anyway` where it is not possible. Best
 *  first. */
std::unique_ptr<const Way> ahead(const Gemm &gemm, int threads, bool anyway = false);
std::unique_ptr<const Way> kept_b(const Gemm &gemm, int threads);
std::unique_ptr<const Way> in_place(const Gemm &gemm, int threads);
std::unique_ptr<const Way> copied_b(const Gemm &gemm, int threads);
std::unique_ptr<const Way> columns(const Gemm &gemm, int threads);
std::unique_ptr<const Way> blocked(const Gemm &gemm, int threads); // always pays

} // namespace infini::gemm
