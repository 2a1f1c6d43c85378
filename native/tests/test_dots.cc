/* gemm's products of rows and columns that are contiguous in k: sums by their definition, in the order of gemm_dots.inl, by the
 * kernels that read B where it lies and, for packed panels, lane by lane. The same bits, even of zeros, for any number of rows and
 * columns; of halves, those of the same numbers in F32. Operands end where memory does; panels are followed by guards. */
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/isa.h"
#include "elements.h"

using namespace infini;

namespace {

constexpr char kUntouched = 0x5a;
constexpr int64_t kLd = 64; // of sums

/** The value of an element, which F32 has, or F64 of an element of its own. */
double value(const char *at, int dtype) {
    double wide;
    float single;
    uint32_t bits = 0;
    std::memcpy(&bits, at, kDtypes[dtype].size == 2 ? 2 : 4);
    if (dtype == INFINI_DTYPE_F64) {
        std::memcpy(&wide, at, 8);
        return wide;
    }
    if (dtype == INFINI_DTYPE_F16) {
        const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
        const double size = std::ldexp(exponent == 0 ? mantissa : 1024 + mantissa, exponent == 0 ? -24 : exponent - 25);
        return (bits & 0x8000) != 0 ? -size : size;
    }
    if (dtype == INFINI_DTYPE_BF16) bits <<= 16;
    std::memcpy(&single, &bits, 4);
    return single;
}

/** What a row and a column of values make. */
template <class Acc>
Acc sum_of(const std::vector<Acc> &a, const std::vector<Acc> &b, const GemmKernel &kernel) {
    const int64_t k = static_cast<int64_t>(a.size()), block = kernel.block_units, lanes = kernel.lanes;
    Acc total = 0;
    for (int64_t k0 = 0; k0 < k; k0 += block)
        for (int64_t lane = 0; lane < lanes; ++lane) {
            Acc sum = 0;
            for (int64_t l = k0 + lane; l < std::min(k, k0 + block); l += lanes)
                sum = std::fma(a[static_cast<size_t>(l)], b[static_cast<size_t>(l)], sum);
            total = k0 + lane == 0 ? sum : total + sum;
        }
    return total;
}

/** So many runs of k elements, side by side but for a gap of NaN. */
struct Runs {
    const int64_t size, step, count, k;
    const Guarded memory;
    char *first;

    Runs(int dtype, Kind kind, int64_t runs, int64_t elements)
        : size(kDtypes[dtype].size), step(elements + 3), count(runs), k(elements), memory(static_cast<size_t>(bytes())),
          first(memory.last(static_cast<size_t>(bytes()))) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t l = 0; l < k; ++l) put_element(first + (i * step + l) * size, dtype, kind);
    }
    int64_t bytes() const { return ((count - 1) * step + k) * size; }
    template <class Acc>
    std::vector<Acc> values(int dtype, int64_t i) const {
        std::vector<Acc> all;
        for (int64_t l = 0; l < k; ++l) all.push_back(static_cast<Acc>(value(first + (i * step + l) * size, dtype)));
        return all;
    }
};

struct Problem {
    int dtype;
    Kind kind;
    int64_t rows, n, k;
    void report(const char *how) const {
        std::fprintf(stderr, "%s: dtype %d, kind %d, %d rows, %d columns, k %d\n", how, dtype, kind,
                     static_cast<int>(rows), static_cast<int>(n), static_cast<int>(k));
    }
};

void test_in_place(const Problem &p, const Runs &a, const Runs &b, const std::vector<char> &needed) {
    const GemmKernel &kernel = kernels().gemm_dots[p.dtype];
    std::vector<char> sums(needed.size(), kUntouched);
    GemmInPlace g{};
    std::vector<char> packed(static_cast<size_t>(p.rows * (p.k + kernel.lanes) * kernel.acc_size), kUntouched);
    kernel.pack_vectors(packed.data(), a.first, a.step, p.rows, p.k);
    g.kc = p.k;
    g.a = p.rows == 1 ? a.first : packed.data();
    g.b = b.first;
    g.b_stride = b.step;
    g.n = p.n;
    g.ahead_every = p.n % 2 == 0 ? kAheadNear : 0;
    g.sums = sums.data();
    g.ld = kLd;
    g.begins = g.ends = true;
    g.alpha = 1;
    kernel.columns[kFast][p.rows](g);
    if (!CHECK(sums == needed)) p.report("in place");
}

/** One panel of A, and one of B. */
void test_packed(const Problem &p, const Runs &a, const Runs &b, const std::vector<char> &needed) {
    const GemmKernel &kernel = kernels().gemm_dots[p.dtype];
    const int64_t acc = kernel.acc_size, lanes = kernel.lanes, block = kernel.block_units;
    std::vector<char> tile(static_cast<size_t>(p.rows * kernel.nr * acc));
    for (int64_t k0 = 0; k0 < p.k; k0 += block) {
        const int64_t kc = std::min(block, p.k - k0), step = dots_step(kc, lanes), guards = 16;
        const auto packed = [&](const Runs &x, int64_t width) {
            const int64_t bytes = lanes * step * width * acc;
            std::vector<char> panel(static_cast<size_t>(bytes + guards), kUntouched);
            kernel.pack(panel.data(), 0, x.first + k0 * x.size, x.step, 1, x.count, width, kc);
            for (int64_t i = 0; i < guards; ++i)
                if (!CHECK(panel[static_cast<size_t>(bytes + i)] == kUntouched)) p.report("behind a panel");
            return panel;
        };
        const std::vector<char> of_a = packed(a, p.rows), of_b = packed(b, kernel.nr);
        for (int64_t lane = 0; lane < lanes; ++lane)
            kernel.multiply[kFast][p.rows](kc > lane ? (kc - lane + lanes - 1) / lanes : 0,
                                           &of_a[static_cast<size_t>(lane * step * p.rows * acc)],
                                           &of_b[static_cast<size_t>(lane * step * kernel.nr * acc)],
                                           k0 + lane == 0 ? nullptr : tile.data(), tile.data(), nullptr);
    }
    std::vector<char> sums(needed.size(), kUntouched);
    for (int64_t r = 0; r < p.rows; ++r)
        std::memcpy(&sums[static_cast<size_t>(r * kLd * acc)], &tile[static_cast<size_t>(r * kernel.nr * acc)],
                    static_cast<size_t>(p.n * acc));
    if (!CHECK(sums == needed)) p.report("packed");
}

template <class Acc>
void test(const Problem &p) {
    const GemmKernel &kernel = kernels().gemm_dots[p.dtype];
    const Runs a(p.dtype, p.kind, p.rows, p.k), b(p.dtype, p.kind, p.n, p.k);
    std::vector<char> needed(static_cast<size_t>(p.rows * kLd) * sizeof(Acc), kUntouched);
    for (int64_t r = 0; r < p.rows; ++r) {
        const auto row = a.values<Acc>(p.dtype, r);
        for (int64_t j = 0; j < p.n; ++j) {
            const Acc sum = sum_of(row, b.values<Acc>(p.dtype, j), kernel);
            std::memcpy(&needed[static_cast<size_t>(r * kLd + j) * sizeof(Acc)], &sum, sizeof(Acc));
        }
    }
    if (p.rows <= kernel.columns_rows) test_in_place(p, a, b, needed);
    if (p.n <= kernel.nr) test_packed(p, a, b, needed);
}

} // namespace

int main(int argc, char **argv) {
    check::Every every(argc, argv);
    const std::string isa = isa_name();
    int dtypes = 0;
    for (int dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64}) {
        const GemmKernel &kernel = kernels().gemm_dots[dtype];
        if (kernel.in_place_rows == 0) continue;
        ++dtypes;
        for (Kind kind : {kOrdinary, kTiny, kLeast})
            for (int64_t rows = 1; rows <= std::max(kernel.mr, kernel.columns_rows); ++rows)
                for (int64_t k : {512, 519, 2047, 2048, 2051, 4101, 4627})
                    for (int64_t n : {1, 2, 5, 8, 15, 16, 19}) {
                        if (every.skips()) continue;
                        const Problem p{dtype, kind, rows, n, k};
                        dtype == INFINI_DTYPE_F64 ? test<double>(p) : test<float>(p);
                    }
    }
    // With AVX-512 F16 alone has them: where the instruction set is named, on any CPU.
    CHECK(dtypes == (isa == "avx2" ? 4 : isa == "portable" ? 0 : 1) || std::getenv("INFINIOP_MAX_ISA") == nullptr);
    return check::summary();
}
