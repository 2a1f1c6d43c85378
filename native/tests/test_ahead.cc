/* gemm's products that pack B for those which follow, on whatever CPU has the instructions: the same bits as those in blocks, which
 * are tested through the operator. B begins anywhere between cache lines, or has something between its rows, and neither before
 * its first element nor behind its last one anything can be read. */
#include <array>
#include <vector>

#include "check.h"
#include "cpu/gemm_way.h"
#include "elements.h"

using namespace infini;

namespace {

/** Where B begins; or that nothing can be read behind any of its rows. */
enum Place { kAligned, kBehindLine, kOneBehind, kAtEnd, kRowsApart, kPlaces };

struct Case {
    int dtype;
    int64_t m, k, n, gap; // gap: elements between rows of B
    Place place;
    Kind kind_a, kind_b;
    bool by_columns; // C
    bool transposed; // B
    bool adds;       // D
    int threads;
    int64_t
        late; // so many rows of B are ordinary, and A is 0 there: what the others are is known only when they are packed
};

std::vector<char> elements(int64_t count, int dtype, Kind kind) {
    const int64_t size = kDtypes[dtype].size;
    std::vector<char> x(static_cast<size_t>(count * size));
    for (int64_t i = 0; i < count; ++i) put_element(&x[static_cast<size_t>(i * size)], dtype, kind);
    return x;
}

InfiniOperand matrix(int dtype, int64_t rows, int64_t cols, int64_t row, int64_t col) {
    InfiniOperand x{};
    x.dtype = dtype;
    x.ndim = 3;
    x.shape[0] = 1;
    x.shape[1] = rows;
    x.shape[2] = cols;
    x.stride[1] = rows == 1 ? 0 : row;
    x.stride[2] = cols == 1 ? 0 : col;
    return x;
}

std::vector<char> product(const gemm::Way &way, const Case &p, const char *a, const char *b, const char *d,
                          std::vector<char> c) {
    const int64_t bytes = way.workspace(p.threads);
    // All ones are NaN: nothing may be multiplied that has not been packed.
    std::vector<char> workspace(static_cast<size_t>(bytes + kLine), static_cast<char>(0xff));
    char *const at = workspace.data() + elements_until_line(workspace.data(), 1);
    std::vector<char> added(d, d + c.size());
    way.run({c.data(), a, b, added.data(), at, p.threads, p.threads, 0.5f, p.by_columns ? -2.0f : 0.0f});
    return c;
}

void test_one(const Case &p) {
    const int64_t size = kDtypes[p.dtype].size, page = sysconf(_SC_PAGESIZE);
    const int64_t runs = p.transposed ? p.n : p.k, run = p.transposed ? p.k : p.n; // rows of B, or columns
    const int64_t step = p.place == kRowsApart ? (run * size + 2 * page - 1) / page * page / size : run + p.gap;
    const auto span = static_cast<size_t>(((runs - 1) * step + run) * size);
    const Guarded memory(span + 64);
    char *const b = p.place >= kAtEnd ? memory.last(span)
                                      : memory.start + (p.place == kBehindLine  ? 16
                                                        : p.place == kOneBehind ? size
                                                                                : 0);
    const int64_t row = p.transposed ? 1 : step, col = p.transposed ? step : 1;
    for (int64_t k = 0; k < p.k; ++k)
        for (int64_t j = 0; j < p.n; ++j)
            put_element(b + (k * row + j * col) * size, p.dtype, k < p.late ? kOrdinary : p.kind_b);
    if (p.place == kRowsApart)
        for (int64_t i = 0; i + 1 < runs; ++i)
            mprotect(b + (i * step + run) * size, static_cast<size_t>(page), PROT_NONE);
    std::vector<char> a = elements(p.m * p.k, p.dtype, p.kind_a);
    for (int64_t i = 0; i < p.m; ++i)
        std::memset(&a[static_cast<size_t>(i * p.k * size)], 0, static_cast<size_t>(std::min(p.late, p.k) * size));
    const std::vector<char> c = elements(p.m * p.n, p.dtype, kOrdinary), d = elements(p.m * p.n, p.dtype, kOrdinary);
    InfiniProblem problem{};
    problem.n_operands = 4;
    problem.operands[0] = p.by_columns ? matrix(p.dtype, p.m, p.n, 1, p.m) : matrix(p.dtype, p.m, p.n, p.n, 1);
    problem.operands[1] = matrix(p.dtype, p.m, p.k, p.k, 1);
    problem.operands[2] = matrix(p.dtype, p.k, p.n, row, col);
    problem.operands[3] = problem.operands[0];
    gemm::Gemm g(problem, p.adds ? gemm::Epilogue(kBinaryAdd, p.dtype) : gemm::Epilogue());
    if (g.exchanged) { // a tall C, whose rows would be columns
        std::swap(g.a, g.b);
        for (gemm::Matrix *x : {&g.c, &g.a, &g.b, &g.d}) std::swap(x->row, x->col);
        g.exchanged = false;
        g.set_size(p.m, p.n);
    }
    const auto way = gemm::ahead(g, p.threads, true);
    if (!CHECK(way != nullptr)) return;
    if (!CHECK(product(*way, p, a.data(), b, d.data(), c) ==
               product(*gemm::blocked(g, p.threads), p, a.data(), b, d.data(), c)))
        std::fprintf(
            stderr, "dtype %d, %d x %d x %d, B transposed %d, gap %d, place %d, kind %d, C by columns %d, %d threads\n",
            p.dtype, static_cast<int>(p.m), static_cast<int>(p.k), static_cast<int>(p.n), p.transposed,
            static_cast<int>(p.gap), p.place, p.kind_b, p.by_columns, p.threads);
}

} // namespace

int main(int argc, char **argv) {
    check::Every every(argc, argv);
    int turn = 0;
    for (int dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64}) {
        const GemmKernel &kernel = kernels().gemm[dtype];
        if (!CHECK(kernel.acc_size > 0)) continue;
        if (kernel.in_tiles) continue;
        const int64_t block = kernel.block_units * kernel.unit_k, nr = kernel.nr;
        const std::array<int64_t, 6> heights = {1, 7, 12, 13, 25, 40};
        for (bool transposed : {false, true}) {
            if (kernel.multiply_ahead[transposed][1] == nullptr) continue;
            for (int64_t k :
                 {int64_t{1}, int64_t{2}, int64_t{5}, block - 1, block, block + 1, 2 * block, 3 * block - 3}) {
                if (transposed && k == 1) continue; // which are rows
                for (int64_t n : {nr, nr + 1, 2 * nr - 1, 2 * nr, 3 * nr + 5, 8 * nr, 9 * nr, 17 * nr + 9, 33 * nr - 1})
                    for (int kind = kOrdinary; kind < kKinds; ++kind)
                        for (int place = kAligned; place < kPlaces; ++place, ++turn) {
                            if (every.skips()) continue;
                            test_one({dtype, heights[static_cast<size_t>(turn / 7 % 6)], k, n, turn % 4 == 0 ? 3 : 0,
                                      static_cast<Place>(place), turn % 2 == 0 ? kOrdinary : static_cast<Kind>(kind),
                                      static_cast<Kind>(kind), turn % 7 == 0, transposed, turn % 3 == 0, 1 + turn % 3,
                                      turn % 4 > 1 ? block : 0});
                        }
            }
            // More of A than leaves room for both K blocks of B, which is why tasks are longer.
            const int64_t rows = 300, k = 600 * 1024 / rows / kernel.acc_size * kernel.unit_k;
            for (int threads : {1, 3})
                for (int place = kAligned; place < kPlaces; ++place)
                    test_one({dtype, rows, k, 11 * nr + 5, 0, static_cast<Place>(place), kOrdinary, kOrdinary, false,
                              transposed, false, threads, 0});
        }
    }
    return check::summary();
}
