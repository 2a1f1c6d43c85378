/* gemm's products of columns by twin K blocks, on whatever CPU has the instructions: the same bits as those of one row by the
 * kernel that is tested through the operator. Columns meet in one set of the first-level cache, have NaN between them, and end
 * where memory does. */
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "check.h"
#include "cpu/isa.h"
#include "elements.h"

using namespace infini;

namespace {

struct Problem {
    int dtype;
    int64_t rows, k;
    bool at_end; // of memory; else columns begin where cache lines do
};

void test_one(const Problem &p, Kind kind, int exactness) {
    const GemmKernel &kernel = kernels().gemm[p.dtype];
    constexpr int64_t kColumns = 23;
    const int64_t size = kDtypes[p.dtype].size, step = (p.k * size + 2047) / 2048 * 2048;
    const auto span = static_cast<size_t>((kColumns - 1) * step + p.k * size);
    const Guarded memory(span + 64);
    char *const b = p.at_end ? memory.last(span) : memory.start;
    for (int64_t j = 0; j < kColumns; ++j)
        for (int64_t k = 0; k < p.k; ++k) put_element(b + j * step + k * size, p.dtype, kind);
    const int64_t most = kTwinsRows + 3, block = kernel.block_units * kernel.unit_k;
    std::vector<char> a(static_cast<size_t>(most * p.k * size));
    for (int64_t i = 0; i < most * p.k; ++i) put_element(&a[static_cast<size_t>(i * size)], p.dtype, kind);
    std::vector<char> transposed(a.size()); // [k][row]
    for (int64_t i = 0; i < most; ++i)
        for (int64_t k = 0; k < p.k; ++k)
            std::memcpy(&transposed[static_cast<size_t>((k * most + i) * size)],
                        &a[static_cast<size_t>((i * p.k + k) * size)], static_cast<size_t>(size));

    const int64_t blocks = (p.k + block - 1) / block, units = blocks * kernel.block_units;
    std::vector<float> needed(static_cast<size_t>(most * 64)), row(static_cast<size_t>(units + 64));
    GemmInPlace g{};
    g.kc = p.k;
    g.b_stride = step / size;
    g.begins = g.ends = true;
    g.alpha = 1;
    g.a_row = g.a_unit = 1;
    g.ld = 64;
    g.n = kColumns;
    g.b = g.ahead = b;
    std::vector<int> least_a(static_cast<size_t>(most));
    int least_b = 0;
    for (int64_t i = 0; i < most; ++i) {
        least_a[static_cast<size_t>(i)] =
            kernel.pack(row.data(), 0, &a[static_cast<size_t>(i * p.k * size)], p.k, 1, 1, 1, p.k);
        g.a = row.data();
        g.sums = &needed[static_cast<size_t>(i * 64)];
        least_b = kernel.columns[exactness][1](g);
    }
    // All rows of a packed A, or the last ones; all columns, or the last ones of a task, or those of a task that has too few.
    for (int64_t before : {0, 3}) {
        const int64_t rows = p.rows + before, region = 2 * kernel.block_units * rows;
        std::vector<float> packed(static_cast<size_t>((blocks + 1) / 2 * region), -1.0f), of_columns = packed;
        int least = kLeastOfNothing;
        for (int64_t twin = 0; 2 * twin < blocks; ++twin) {
            const int64_t k0 = 2 * twin * block, kc = p.k - k0 < 2 * block ? p.k - k0 : 2 * block;
            least = std::min(least, kernel.pack_twins(&packed[static_cast<size_t>(twin * region)],
                                                      &a[static_cast<size_t>(k0 * size)], p.k, 1, rows, kc));
            kernel.pack_twins(&of_columns[static_cast<size_t>(twin * region)],
                              &transposed[static_cast<size_t>(k0 * most * size)], 1, most, rows, kc);
        }
        CHECK(std::memcmp(packed.data(), of_columns.data(), packed.size() * sizeof(float)) == 0);
        CHECK(least == *std::min_element(least_a.begin(), least_a.begin() + rows));
        g.a = &packed[static_cast<size_t>(2 * before)];
        g.a_unit = rows;
        for (const auto &[first, n] : {std::pair<int64_t, int64_t>{0, 23}, {7, 16}, {2, 8}, {9, 9}, {20, 3}, {8, 1}}) {
            g.b = b + first * step;
            g.n = n;
            std::vector<float> sums(static_cast<size_t>(p.rows * 64), 77.0f);
            g.sums = sums.data();
            const int met = kernel.twins[exactness][p.rows](g);
            bool same = n < kColumns || met == least_b;
            for (int64_t r = 0; r < p.rows; ++r)
                for (int64_t j = 0; j < 64; ++j) {
                    const float got = sums[static_cast<size_t>(r * 64 + j)];
                    const float want = j < n ? needed[static_cast<size_t>((before + r) * 64 + first + j)] : 77.0f;
                    same = same && std::memcmp(&got, &want, sizeof got) == 0;
                }
            if (!CHECK(same))
                std::fprintf(stderr, "dtype %d, kind %d, exactness %d, %d rows behind %d, k %d, columns %d of %d\n",
                             p.dtype, kind, exactness, static_cast<int>(p.rows), static_cast<int>(before),
                             static_cast<int>(p.k), static_cast<int>(n), static_cast<int>(first));
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    check::Every every(argc, argv);
    for (int dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32}) {
        const GemmKernel &kernel = kernels().gemm[dtype];
        if (!CHECK((kernel.pack_twins == nullptr) == (kernel.twins[kFast][1] == nullptr))) continue;
        const int64_t block = kernel.block_units * kernel.unit_k;
        for (int exactness : {kFast, kExact})
            for (int64_t rows = 1; rows <= kTwinsRows; ++rows) {
                if (kernel.twins[exactness][rows] == nullptr) continue;
                for (int64_t k : {2 * block, 2 * block + 1, 3 * block - 7, 3 * block + 2, 4 * block - 1, 4 * block,
                                  4 * block + 17, 6 * block + 31, 7 * block + 32, 9 * block - 33})
                    for (bool at_end : {false, true})
                        for (int kind = kOrdinary;
                             kind < (exactness == kFast && kernel.unit_k > 1 ? kSubnormal : kKinds); ++kind)
                            if (!every.skips()) test_one({dtype, rows, k, at_end}, static_cast<Kind>(kind), exactness);
            }
    }
    return check::summary();
}
