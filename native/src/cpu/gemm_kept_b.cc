/* gemm of a B so small that it stays, packed, in the first-level cache, beside some rows of A and their sums. In tiles that is so of a
 * K up to 128; of vectors, of which a row of C is one or two, up to 64, and rows of A are multiplied where they lie, unless they
 * must be converted. Each task packs B for itself, which takes less time than to wait for who does, or to ask for memory. */
#include "cpu/gemm_way.h"
#include "cpu/thread_pool.h"

namespace infini::gemm {

namespace {

struct KeptB final : Way {
    int64_t lanes; // of the vectors, or tiles, that hold a row of sums
    int64_t tasks; // of neighbouring rows

    KeptB(const Gemm &gemm, int threads) : Way(gemm), lanes(round_up(n, kernel.in_tiles ? nr : nr / 2)) {
        // Tasks for a thread, so that all end at about the same time, of so many rows; of fewer where threads had nothing to do.
        constexpr int64_t kEach = 4, kRows = 384, kLeastRows = 96;
        const int64_t few = std::min<int64_t>(threads, std::max<int64_t>(m / kLeastRows, 1));
        tasks = std::clamp<int64_t>(m / kRows, few, std::max(few, threads == 1 ? 1 : threads * kEach));
    }
    int64_t workspace(int) const override { return 0; }
    std::string describe() const override {
        return "B kept, " + text(tasks) + " tasks, tiles " + text(kernel.in_tiles ? mr : kNarrowRows) + " x " +
               text(std::min(lanes, nr));
    }

    void run(const Run &r) const override {
        if (tasks == 1) return run_task(r, 0, m); // which takes about as long as to ask who does it
        parallel_divided(tasks, r.threads, [&](int64_t t, int) { run_task(r, m * t / tasks, m * (t + 1) / tasks); });
    }
    /** Of a task. Those before `whole` are written as whole vectors: what comes behind each is written later. */
    struct Rows {
        int64_t begin, end, whole;
    };
    void run_task(const Run &r, int64_t i0, int64_t i1) const {
        const bool follow = c.row == n && r.beta == 0 && (!kernel.in_tiles || n <= nr); // each other
        const Rows rows{i0, i1, follow ? i1 - (lanes - 1) / n : i0};
        kernel.in_tiles ? by_tiles(r, rows) : by_vectors(r, rows);
        finish(r.c, r.d, i0, 0, i1 - i0, n);
    }

    void by_vectors(const Run &r, Rows rows) const {
        constexpr int64_t kPacked = 4096; // bytes of A, and of sums: of kNarrowRows at least
        static_assert(kNarrowRows * std::max<int64_t>(kNarrowK * sizeof(float), 2 * kLine) <= kPacked);
        alignas(kLine) char b_packed[kNarrowK * 2 * kLine], a_packed[kPacked], sums[kPacked];
        kernel.pack(b_packed, 0, r.b, b.col, b.row, n, lanes, k);
        const GemmNarrowKernel narrow = kernel.narrow[2 * lanes / nr - 1];
        int64_t i = rows.begin;
        if (!converts() && rows.whole - i >= kNarrowRows) {
            const int64_t count = (rows.whole - i) / kNarrowRows * kNarrowRows;
            narrow({at_a(r.a, i, 0), a.row, b_packed, count, k, at_c(r.c, i, 0), c.row, r.alpha});
            i += count;
        }
        const int64_t sums_of_row = lanes * kernel.acc_size, all = rows.end - rows.begin;
        const int64_t room = std::min(converts() ? kPacked / kernel.acc_size / k : all, kPacked / sums_of_row),
                      most = std::min(room, all) / kNarrowRows * kNarrowRows;
        for (int64_t end; i < rows.end; i = end) {
            const int64_t count = std::min(round_up(rows.end - i, kNarrowRows), most);
            end = std::min(i + count, rows.end);
            const int64_t first = end - count; // rows before i have been multiplied before
            GemmNarrow some{at_a(r.a, first, 0), a.row, b_packed, count, k, sums, lanes, 1};
            if (converts()) {
                if (a.row == k)
                    kernel.pack(a_packed, 0, some.a, 0, 1, 1, 1, count * k);
                else
                    kernel.pack(a_packed, k, some.a, a.row, 1, count, 1, k);
                some.a = a_packed;
                some.a_row = k;
            }
            narrow(some);
            kernel.store(at_c(r.c, i, 0), c.row, 1, sums + (i - first) * sums_of_row, lanes, end - i,
                         end <= rows.whole ? lanes : n, r.alpha, r.beta);
        }
    }

    void by_tiles(const Run &r, Rows rows) const {
        constexpr int64_t kRows = 32; // and columns of the tiles
        alignas(kLine) char b_packed[kKeptB], a_packed[kRows * kKeptK * 2], sums[2][kRows * kRows * sizeof(float)];
        const int64_t depth = units(k), panel = depth * nr * kernel.acc_size;
        const int least_b = kernel.pack(b_packed, depth * nr, r.b, b.col, b.row, n, nr, k);
        const Multiplies begun(*this);
        LateStore late(*this, r.alpha, r.beta);
        int turn = 0;
        for (int64_t i = rows.begin, end; i < rows.end; i = end) {
            end = std::min(i + mr, rows.end);
            const int64_t first = end - mr; // rows before i have been multiplied before
            const int least_a = kernel.pack_rows(a_packed, 0, at_a(r.a, first, 0), a.row, a.col, mr, mr, k);
            const GemmMultiply multiply = kernel.multiply[may_flush(least_a, least_b) ? kExact : kFast][mr];
            for (int64_t j = 0; j < n; j += nr, turn ^= 1) {
                late.make_room(sums[turn]);
                multiply(depth, a_packed, b_packed + j / nr * panel, nullptr, sums[turn], nullptr);
                late.put(at_c(r.c, i, j), sums[turn] + (i - first) * nr * kernel.acc_size, end - i,
                         end <= rows.whole ? nr : std::min(nr, n - j));
            }
        }
        late.store();
    }
};

} // namespace

std::unique_ptr<const Way> kept_b(const Gemm &gemm, int threads) {
    if (!gemm.keeps_b()) return nullptr;
    return std::make_unique<KeptB>(gemm, threads);
}

} // namespace infini::gemm
