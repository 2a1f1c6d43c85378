/* gemm on the CPU: one set of parts (see GemmKernel), six ways to put them together, and the choice of one when a problem is planned.
 *
 *  ahead     as columns, with B packed by the products of the K block before: ten rows to some hundreds (gemm_ahead.cc);
 *  kept B    B, packed, stays in the first-level cache: few columns and a short K, in tiles more columns (gemm_kept_b.cc);
 *  in place  B is multiplied where it lies: few rows of A, small problems, a short K, and a B that stays in the second-level
 *            cache (gemm_in_place.cc);
 *  copied B  a B that is small, or of a short K, is copied, and multiplied in place, if nothing in it is contiguous, or its
 *            columns are and A has many rows, or its rows push each other out of a small first-level cache; and one that is small
 *            or narrow where elements are multiplied in pairs, which rows of A are made of, or those of a short transposed one
 *            (gemm_copied_b.cc);
 *  columns   A is packed as a whole, and threads share the columns of C: up to some hundred rows (gemm_columns.cc);
 *  blocked   A and B are packed block by block: all else (gemm_blocked.cc).
 *
 *  Whatever the way, an element of C is the sum over k in ascending order (of units of k, see GemmKernel), one partial sum for
 *  each kGemmBlockUnits of them; where an instruction set has kernels for it, a long sum along rows of A and columns of B that
 *  are both contiguous has an order of its own (gemm_dots.inl). So the order depends on K, and on how A and B lie: a row of C
 *  has the same bits whatever M, N, the batch or the number of threads are. Products in tiles (gemm_amx.inl) add on to one sum
 *  for all of K, in an order of their own, which is that of their other kernels as well. An epilogue is applied by each task to
 *  its part of C as soon as all of K is in it, and while it is in the cache. */
#include <algorithm>

#include "cpu/caches.h"
#include "cpu/cpu_plan.h"
#include "cpu/gemm_way.h"
#include "cpu/thread_pool.h"

namespace infini {

namespace gemm {

namespace {

constexpr double kFlopsPerThread = 1 << 19; // fewer are done before a second thread has begun,
constexpr double kFlopsToWake = 1 << 24;    // or was awake to begin
constexpr double kTilesPace = 8;            // so many times as much is done in tiles in that time
constexpr double kFlopsOfLoad = 8;          // that take as long as an element of B to come from the second-level cache
constexpr double kItemsFlops = 1 << 19;     // of items that a thread takes at a time: where that is often, threads wait
constexpr double kFetchItemFlops = 2 * 48 * 48 * 48;   // for less, fetching the next item costs more than it saves,
constexpr int64_t kReadRows = 16, kReadRowsHalves = 4; // or for so few rows of A: rows of B are read in their own order

/** How many threads so much work is worth, whatever their number is when it is run. */
int worth_threads(double flops) {
    return static_cast<int>(std::clamp(flops / kFlopsPerThread, 1.0, static_cast<double>(thread_capacity())));
}

struct GemmPlan final : CpuPlan {
    GemmPlan(const Gemm &gemm, size_t *workspace_size) : g(gemm) {
        if (g.k == 0) return; // nothing but scale()
        const double loads = static_cast<double>(g.k) * static_cast<double>(g.n);
        const double pace = g.kernel.in_tiles ? kTilesPace : 1;
        const double flops = (g.flops() / pace + kFlopsOfLoad * loads) * static_cast<double>(g.batch);
        const int threads = worth_threads(flops);
        brief = flops < kFlopsToWake;
        // Small items are worth a thread each, not several threads one after the other.
        by_item = g.batch > 1 && g.flops() < kFlopsToWake;
        slots = by_item ? static_cast<int>(std::min<int64_t>(g.batch, threads)) : 1;
        threads_of_item = by_item ? 1 : threads;
        way = ahead(g, threads_of_item);
        for (const auto plan : {kept_b, in_place, copied_b, columns, blocked})
            if (way == nullptr) way = plan(g, threads_of_item);
        if (by_item) plan_items();
        bytes = way->workspace(threads_of_item);
        *workspace_size = bytes == 0 ? 0 : static_cast<size_t>(slots * bytes + kLine);
        description = text(g.batch) + " x (" + text(g.m) + " x " + text(g.k) + ") @ (" + text(g.k) + " x " + text(g.n) +
                      ")" + (g.exchanged ? " of C^T" : "") + ": " + way->describe() +
                      (g.dots ? ", k lane by lane" : "") + ", " + text(threads) +
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
        const double cache = static_cast<double>(second_level_cache()), item = all / static_cast<double>(g.batch);
        const bool reads = g.b.col == 1 && g.m <= (g.converts() ? kReadRowsHalves : kReadRows);
        fetches_items = !reads && g.flops() >= kFetchItemFlops && all > cache / 2 * slots && item <= cache * 3 / 4;
    }

    void run(const InfiniCall &call) const override {
        char *const pc = static_cast<char *>(call.operands[0]);
        const bool plain = g.epilogue.kernel == nullptr;
        char *const pd = plain ? nullptr : static_cast<char *>(call.operands[3]);
        const float beta = plain ? call.beta : 0; // a graph may have been given one for an operator without it
        if (g.k == 0 || call.alpha == 0) return scale(pc, pd, beta);
        const Brief loops(brief);
        // A and B stand in the order of the problem: exchanged where the plan exchanged them.
        const char *pa = static_cast<const char *>(call.operands[1]), *pb = static_cast<const char *>(call.operands[2]);
        if (g.exchanged) std::swap(pa, pb);
        char *const workspace = reinterpret_cast<char *>(
            round_up(static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.workspace)), kLine));
        const int active = std::min(threads_of_item, num_threads());
        const Run first{pc, pa, pb, pd, workspace, threads_of_item, active, call.alpha, beta};
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
        parallel_divided(ceil_div(g.batch, items_together), slots, [&](int64_t t, int slot) {
            const int64_t begin = t * items_together, end = std::min(begin + items_together, g.batch);
            for (int64_t i = begin; i < end; ++i) item(i, fetches_items ? i + 1 : g.batch, slot);
        });
    }

    /** C = beta * C, and what follows: the store of sums that are all 0. */
    void scale(char *pc, char *pd, float beta) const {
        if (beta == 1) return;
        alignas(kLine) static const char zeros[4096] = {};
        Gemm rows = g; // of C, or its columns where these are nearer together
        if (std::abs(g.c.row) < std::abs(g.c.col)) {
            std::swap(rows.m, rows.n);
            for (Matrix *x : {&rows.c, &rows.d}) std::swap(x->row, x->col);
        }
        const int64_t m = rows.m, n = rows.n, columns = static_cast<int64_t>(sizeof zeros) / g.kernel.acc_size;
        parallel_for(g.batch * m, worth_threads(4.0 * static_cast<double>(g.batch * m) * static_cast<double>(n)),
                     [&](int64_t t, int) {
                         char *const c = pc + t / m * g.c.batch * g.size;
                         for (int64_t j = 0; j < n; j += columns)
                             g.kernel.store(rows.at_c(c, t % m, j), rows.c.row, rows.c.col, zeros, 0, 1,
                                            std::min(columns, n - j), 0.0f, beta);
                         rows.finish(c, pd + t / m * g.d.batch * g.size, t % m, 0, 1, n);
                     });
    }

    Gemm g;
    bool brief = false;         // see Brief
    bool by_item = false;       // threads share the items of the batch, and not one item
    bool fetches_items = false; // the next one, which the cache can hold beside all else, while one is multiplied
    int64_t items_together = 1; // in a task
    int slots = 1, threads_of_item = 1;
    std::unique_ptr<const Way> way; // null where K is 0
    int64_t bytes = 0;              // of the workspace, an item
};

} // namespace

} // namespace gemm

std::unique_ptr<CpuPlan> plan_gemm(const InfiniProblem &problem, size_t *workspace_size) {
    return std::make_unique<gemm::GemmPlan>(gemm::Gemm(problem, {}), workspace_size);
}

#define INFINI_EPILOGUE_PLANNER(ID, name, Name, Op)                                              \
    std::unique_ptr<CpuPlan> plan_##name(const InfiniProblem &problem, size_t *workspace_size) { \
        const gemm::Epilogue then(kBinary##Op, problem.operands[0].dtype);                       \
        return std::make_unique<gemm::GemmPlan>(gemm::Gemm(problem, then), workspace_size);      \
    }
INFINI_GEMM_EPILOGUE_LIST(INFINI_EPILOGUE_PLANNER)

} // namespace infini
