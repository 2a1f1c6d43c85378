/* gemm with a copy of B: one that is small, or of a short K, whose rows are not contiguous, or push each other out of a small
 * first-level cache, is copied in strips of columns, each of which is multiplied in place, by rows (gemm_in_place.cc): that
 * needs no packed A. Contiguous columns are transposed, for many rows of A; fewer are multiplied as they are. Where elements
 * are multiplied in pairs (GemmKernel), the copy is of pairs, whatever B is like, and for fewer rows: A's lie in memory, or a
 * transposed one of short columns is turned. Each thread copies what it multiplies, since lines that one core has written come
 * slowly to another. */
#include <cstdlib>

#include "cpu/gemm_way.h"
#include "cpu/thread_pool.h"
#include "cpu/tiles.h"

namespace infini::gemm {

namespace {

constexpr int64_t kStrips = 4;     // of a second-level cache: in one is a strip's copy
constexpr int64_t kStripCols = 64; // at least, since each strip reads all of A; a vector of few rows for many threads
constexpr int64_t kTaskRows = 96;  // of A, at least, where many are shared out: each thread copies for itself
/* Of A, whose products with pairs take as long as their copy; where rows are few, a task has as many at least. */
constexpr int64_t kCopyRows = 10;

struct CopiedB final : Way {
    int64_t task_m, task_n;         // of C: a task
    int64_t parts, strips;          // tasks: by rows, by columns
    int64_t ld, bytes_b, bytes_way; // a thread: units from row to row of the copy; it, and what its products need
    int64_t ld_a = 0, bytes_a = 0;  // the same of a transposed A's rows, which are turned: for pairs alone
    /** By exactness, and by whether a task has fewer rows, and fewer columns; null where none has. */
    std::unique_ptr<const Way> ways[2][2][2];

    bool applies = true; // is the copy small enough for these?

    CopiedB(const Gemm &gemm, int threads) : Way(gemm), bytes_way(0) {
        constexpr int64_t kEach = 4; // tasks for a thread, so that all end at about the same time
        const int64_t column = kernel.acc_size * units(k), whole = near_b() / column / (nr / 2) * (nr / 2);
        const int64_t least = has_pairs() ? std::min(kStripCols, whole) : kStripCols;
        const int64_t fits = std::max(second_level_cache() / kStrips / column / nr * nr, least);
        if (has_pairs() && m < kTaskRows * threads) {
            strips = strips_of_few_rows(threads, ceil_div(n, fits));
            task_n = columns_of(strips);
            task_m = std::min(rows_of_few(threads, strips), turns_a() ? kTaskRows : m);
        } else {
            task_n = columns_of(std::max(ceil_div(n, fits), std::min<int64_t>(threads, n / kStripCols)));
            const int64_t wanted = turns_a() ? m : threads == 1 ? 1 : ceil_div(threads * kEach, ceil_div(n, task_n));
            task_m = round_up(ceil_div(m, std::min(wanted, ceil_div(m, kTaskRows))), kernel.in_place_rows);
        }
        strips = ceil_div(n, task_n);
        parts = ceil_div(m, task_m);
        ld = odd_lines(std::min(n, task_n), kernel.acc_size);
        bytes_b = acc_bytes(units(k) * ld);
        if (turns_a()) {
            ld_a = odd_lines(k, size);
            bytes_a = std::min(m, task_m) * ld_a * size;
        }
        for (const bool fewer_rows : {false, true})
            for (const bool fewer_cols : {false, true}) {
                const int64_t rows = fewer_rows ? m - (parts - 1) * task_m : std::min(m, task_m),
                              cols = fewer_cols ? n - (strips - 1) * task_n : std::min(n, task_n);
                if ((fewer_rows && rows >= std::min(m, task_m)) || (fewer_cols && cols >= std::min(n, task_n)))
                    continue;
                for (int exactness = kFast; exactness < (has_pairs() ? 2 : 1); ++exactness) {
                    Gemm part = has_pairs() ? gemm.of_pairs(exactness) : gemm;
                    part.b = {0, ld, 1};
                    if (turns_a()) part.a = {0, ld_a, 1};
                    part.set_size(rows, cols);
                    auto &way = ways[exactness][fewer_rows][fewer_cols];
                    way = in_place(part, 1);
                    applies = applies && way != nullptr;
                    if (way != nullptr) bytes_way = std::max(bytes_way, way->workspace(1));
                }
            }
    }
    bool turns_a() const { return has_pairs() && a.col != 1; }
    /** Of so many strips, or fewer: in whole vectors, as so narrow ones may differ by a third if they are whole tiles, and such that
     *  the last strip is not a single column, which has no rows to be multiplied by. */
    int64_t columns_of(int64_t count) const {
        int64_t cols = round_up(ceil_div(n, count), nr / 2);
        while (n % cols == 1) cols += nr / 2;
        return cols;
    }
    /** Rows of a task, if so many strips leave others to share their rows. */
    int64_t rows_of_few(int threads, int64_t count) const {
        return std::min(std::max(ceil_div(m, std::max<int64_t>(threads / count, 1)), kCopyRows), m);
    }
    /** At least so many, and as leaves a thread the least to copy and multiply. */
    int64_t strips_of_few_rows(int threads, int64_t least) const {
        if (turns_a()) return least; // each strip would turn all of A
        if (least > threads) return round_up(least, threads);
        return cheapest(least, std::min<int64_t>(threads, n / (nr / 2)),
                        [&](int64_t count) { return columns_of(count) * (kCopyRows + rows_of_few(threads, count)); });
    }
    int sharers(int threads) const { return static_cast<int>(std::min<int64_t>(threads, parts * strips)); }
    int64_t bytes_of_thread() const { return bytes_a + bytes_b + bytes_way; }
    int64_t workspace(int threads) const override { return bytes_of_thread() * sharers(threads); }
    std::string describe() const override {
        return std::string(turns_a()     ? "B copied in pairs, A turned, "
                           : has_pairs() ? "B copied in pairs, "
                           : b.row == 1  ? "B transposed, "
                                         : "B copied, ") +
               text(parts) + " x " + text(strips) + " tasks " + ways[kFast][0][0]->describe();
    }

    /** Returns the least exponent, if anybody needs it. */
    int copy_strip(char *copy, const char *from, int64_t cols) const {
        if (has_pairs()) return kernel.pack(copy, 0, from, b.col, b.row, cols, ld, k);
        const int log_size = log2_of(size);
        // By rows or by columns, whichever reads what is nearer.
        const bool by_rows = std::abs(b.col) <= std::abs(b.row);
        void *const all = const_cast<char *>(from);
        if (b.row == 1)
            kernels().transpose[log_size](copy, {ld, nullptr}, from, {b.col, nullptr}, k, cols, false);
        else if (by_rows)
            kernels().copy[log_size]({copy, ld, 1}, {all, b.row, b.col}, k, cols, false);
        else
            kernels().copy[log_size]({copy, 1, ld}, {all, b.col, b.row}, cols, k, false);
        return kLeastOfNothing;
    }

    void run(const Run &r) const override {
        const int threads = sharers(r.threads);
        Shares shares(parts * strips, threads);
        parallel_for(threads, threads, [&](int64_t, int slot) {
            char *const turned = r.workspace + slot * bytes_of_thread(), *const copy = turned + bytes_a;
            int64_t copied = -1; // which strip
            int least_b = kLeastOfNothing;
            shares.work(slot, [&](int64_t t) {
                const int64_t strip = t / parts, i0 = t % parts * task_m, j0 = strip * task_n;
                const int64_t rows = std::min(task_m, m - i0), cols = std::min(task_n, n - j0);
                if (strip != copied) least_b = copy_strip(copy, at_b(r.b, 0, j0), cols);
                copied = strip;
                Run part = r;
                part.c = at_c(r.c, i0, j0);
                part.a = at_a(r.a, i0, 0);
                part.b = copy;
                part.d = r.d + (i0 * d.row + j0 * d.col) * c_size;
                part.workspace = copy + bytes_b;
                part.threads = 1;
                if (turns_a()) {
                    kernels().transpose[log2_of(size)](turned, {ld_a, nullptr}, part.a, {a.col, nullptr}, rows, k,
                                                       false);
                    part.a = turned;
                }
                const int64_t a_row = turns_a() ? ld_a : a.row;
                const int least_a = has_pairs() ? kernel.least(part.a, a_row, rows, k) : kLeastOfNothing;
                const int exactness = may_flush(least_a, least_b) ? kExact : kFast;
                ways[exactness][rows < std::min(m, task_m)][cols < std::min(n, task_n)]->run(part);
            });
        });
    }
};

} // namespace

std::unique_ptr<const Way> copied_b(const Gemm &gemm, int threads) {
    if (!gemm.may_copy_b() && !gemm.may_copy_pairs()) return nullptr;
    auto way = std::make_unique<CopiedB>(gemm, threads);
    if (!way->applies) return nullptr;
    return way;
}

} // namespace infini::gemm
