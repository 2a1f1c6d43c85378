/* gemm's products with a B that is read where it lies, by all of what a plan may ask of their kernels, which it asks for by what it
 * knows of the CPU: the same bits, whatever that is, as those of one row and one column, or of one row and all of B's, at a time. B
 * ends where memory does, with NaN between its rows or columns. With --every N one problem in so many. */
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu/isa.h"
#include "elements.h"

using namespace infini;

namespace {

constexpr int64_t kLd = 160;    // of sums
constexpr char kUntouched = 77; // their bytes before

struct Problem {
    int dtype, exactness, rows;
    Kind kind;
    bool by_rows, meet; // rows of B, or columns, which meet in one set of the first-level cache
    int64_t k, n;
};

/** A and B of a problem, A packed for its rows, and what its sums are to be. */
struct Operands {
    const GemmKernel &kernel;
    const int64_t size, acc, step; // bytes of an element, of a sum, and from a row of B, or a column, to the next
    const Guarded memory;
    char *b;
    std::vector<char> a, row, needed;
    GemmInPlace g{};
    int least = kLeastOfNothing; // met in B

    explicit Operands(const Problem &p)
        : kernel(kernels().gemm[p.dtype]), size(kDtypes[p.dtype].size), acc(kernel.acc_size), step(step_of(p)),
          memory(static_cast<size_t>(bytes_of(p))), b(memory.last(static_cast<size_t>(bytes_of(p)))) {
        for (int64_t i = 0; i < outer(p); ++i)
            for (int64_t j = 0; j < inner(p); ++j) put_element(b + i * step + j * size, p.dtype, p.kind);
        std::vector<char> elements(static_cast<size_t>(p.rows * p.k * size));
        for (int64_t i = 0; i < p.rows * p.k; ++i)
            put_element(&elements[static_cast<size_t>(i * size)], p.dtype, p.kind);
        a.resize(static_cast<size_t>((std::max<int64_t>(p.k, kernel.block_units) + 64) * p.rows * acc));
        row.resize(static_cast<size_t>((p.k + 64) * acc));
        needed.resize(static_cast<size_t>(p.rows * kLd * acc), kUntouched);
        pack(p, elements.data());
        g.kc = p.k;
        g.b_stride = step / size;
        g.begins = g.ends = true;
        g.alpha = 1;
        g.a_row = g.a_unit = 1;
        g.ld = kLd;
        for (int r = 0; r < p.rows; ++r) {
            const GemmPack one = p.by_rows ? kernel.pack_rows : kernel.pack;
            one(row.data(), 0, &elements[static_cast<size_t>(r * p.k * size)], p.k, 1, 1, 1, p.k);
            need(p, r);
        }
        g.a = a.data();
        g.a_unit = p.rows;
        g.n = p.n;
        g.b = g.ahead = b;
    }
    static int64_t outer(const Problem &p) { return p.by_rows ? p.k : p.n; }
    static int64_t inner(const Problem &p) { return p.by_rows ? p.n : p.k; }
    static int64_t step_of(const Problem &p) {
        const int64_t size = kDtypes[p.dtype].size, bytes = inner(p) * size;
        return p.meet ? (bytes + 2047) / 2048 * 2048 : bytes + 3 * size;
    }
    static int64_t bytes_of(const Problem &p) { return (outer(p) - 1) * step_of(p) + inner(p) * kDtypes[p.dtype].size; }
    /** In groups of rows where there are as many as are multiplied in steps. */
    void pack(const Problem &p, const char *elements) {
        const GemmPack pack = p.by_rows ? kernel.pack_rows : kernel.pack;
        const int group = p.by_rows ? steps_first(p.rows) : p.rows;
        for (int i = 0; i < p.rows; i += group) {
            const int64_t rows = std::min(group, p.rows - i);
            pack(&a[static_cast<size_t>(kernel.block_units * i * acc)], 0, elements + i * p.k * size, p.k, 1, rows,
                 rows, p.k);
        }
    }
    /** Of one row of A: all columns one after the other, or all at once. */
    void need(const Problem &p, int r) {
        g.a = row.data();
        for (int64_t j = 0; j < p.n; j += g.n) {
            g.n = p.by_rows ? p.n : 1;
            g.b = g.ahead = b + j * step;
            g.sums = &needed[static_cast<size_t>((r * kLd + j) * acc)];
            const auto kernels = p.by_rows ? kernel.rows : kernel.columns;
            least = std::min(least, kernels[p.exactness][1](g));
        }
    }

    void test(const Problem &p, GemmInPlaceKernel multiply, const char *how) {
        std::vector<char> sums(needed.size(), kUntouched), part(needed.size() + 64);
        g.sums = sums.data();
        g.part = part.data();
        const int met = multiply(g);
        if (!CHECK(met == least && sums == needed))
            std::fprintf(stderr,
                         "%s: dtype %d, kind %d, exactness %d, %d rows, k %d, n %d, meet %d, ahead %d, chains %d, far "
                         "%d, head %d, stream ahead %d, near %d, step %d, far %d\n",
                         how, p.dtype, p.kind, p.exactness, p.rows, static_cast<int>(p.k), static_cast<int>(p.n),
                         p.meet, static_cast<int>(g.ahead_every), g.chains_bind, g.far_b, static_cast<int>(g.head),
                         static_cast<int>(g.stream_ahead), g.stream_near, static_cast<int>(g.step), g.step_far);
    }
};

void test_columns(Problem p) {
    Operands operands(p);
    GemmInPlace &g = operands.g;
    for (int64_t ahead : {int64_t{0}, kAheadNear, int64_t{1}, int64_t{32}})
        for (bool far : {false, true})
            for (bool chains : {false, true}) {
                g.ahead_every = ahead;
                g.far_b = far;
                g.chains_bind = chains;
                operands.test(p, operands.kernel.columns[p.exactness][p.rows], "columns");
            }
}

void test_streams(Problem p) {
    Operands operands(p);
    GemmInPlace &g = operands.g;
    for (int64_t ahead : {0, 64, 384, 1536})
        for (bool near : {false, true})
            for (int64_t head : {0, 3}) {
                g.stream_ahead = ahead;
                g.stream_near = near;
                g.head = std::min(head, p.n);
                operands.test(p, operands.kernel.streams[p.exactness][p.rows], "streams");
            }
}

void test_steps(Problem p) {
    Operands operands(p);
    GemmInPlace &g = operands.g;
    operands.least = kLeastOfNothing;
    for (int64_t step : {24, 32, 128, 256})
        for (bool far : {false, true})
            for (int64_t head : {0, 5}) {
                g.step = step;
                g.step_far = far;
                g.head = std::min(head, p.n);
                operands.test(p, operands.kernel.steps[p.rows], "steps");
            }
}

} // namespace

int main(int argc, char **argv) {
    check::Every every(argc, argv);
    for (int dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64}) {
        const GemmKernel &kernel = kernels().gemm[dtype];
        if (kernel.in_tiles) continue; // these have kernels of their own, which the tests of the operator reach
        const int64_t block = kernel.block_units * kernel.unit_k;
        for (int exactness : {kFast, kExact})
            for (int kind = kOrdinary; kind < (exactness == kFast && kernel.unit_k > 1 ? kSubnormal : kKinds); ++kind)
                for (bool meet : {false, true}) {
                    Problem p{dtype, exactness, 1, static_cast<Kind>(kind), false, meet, 0, 0};
                    for (p.rows = 1; p.rows <= kernel.columns_rows; ++p.rows)
                        for (int64_t k : {block / 2 + 1, 2 * block + 33})
                            for (int64_t n = 1; n <= 40; n += p.rows == 1 && kind == kOrdinary ? 1 : 13) {
                                p.k = k;
                                p.n = n;
                                if (!every.skips()) test_columns(p);
                            }
                    p.by_rows = true;
                    for (p.rows = 1; p.rows <= kStepsRows; ++p.rows)
                        for (int64_t k : {block - 1, block})
                            for (int64_t n : {1, 33, 151}) {
                                p.k = k;
                                p.n = n;
                                if (every.skips()) continue;
                                if (p.rows <= kHeldRows && kernel.streams[exactness][p.rows] != nullptr)
                                    test_streams(p);
                                if (kernel.steps[p.rows] != nullptr && exactness == kFast) test_steps(p);
                            }
                }
    }
    return check::summary();
}
