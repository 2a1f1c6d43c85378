/* The kernels of gemm with fewer blocks than tiles, as where a batch has more tiles than a launch may have blocks: each block takes
 * several, one after the other, in the same shared memory. What one block does is tested on whole problems, in Python. */
#include <string>
#include <vector>

#include "check.h"
#include "cuda/gemm_tile.h"
#include "cuda/gemv.h"
#include "cuda/launch.h"

using namespace infini::cuda;

namespace {

constexpr int64_t kBatch = 5, kN = 152; // more columns than a tile of any kernel, and rows of whole packs

/** Small integers: F32 holds every sum of their products. */
int value(int64_t i) { return static_cast<int>(i * 7 % 5) - 2; }

template <class Kernel, class T>
void run(int64_t m, int64_t depth, bool b_by_k) {
    std::vector<T> a(static_cast<size_t>(kBatch * m * depth)), b(static_cast<size_t>(kBatch * depth * kN)),
        c(static_cast<size_t>(kBatch * m * kN), round_to<T>(99));
    for (size_t i = 0; i < a.size(); ++i) a[i] = round_to<T>(static_cast<Acc<T>>(value(static_cast<int64_t>(i))));
    for (size_t i = 0; i < b.size(); ++i) b[i] = round_to<T>(static_cast<Acc<T>>(value(static_cast<int64_t>(i) / 3)));

    GemmParams p{};
    p.a = {a.data(), m * depth, depth, 1, true, true};
    p.b = b_by_k ? GemmInput{b.data(), depth * kN, depth, 1, true, true}
                 : GemmInput{b.data(), depth * kN, 1, kN, false, true};
    p.c = {c.data(), m * kN, kN, 1, true};
    p.m = m;
    p.n = kN;
    p.k = depth;
    p.alpha = 1;
    p.tiles_m = (m + Kernel::kTileRows - 1) / Kernel::kTileRows;
    p.tiles_n = (kN + Kernel::kTileColumns - 1) / Kernel::kTileColumns;
    p.tiles = kBatch * p.tiles_m * p.tiles_n;
    CHECK(p.tiles >= kBatch);
    const auto *kernel = static_cast<const HostKernel *>(kernel_address<Kernel>());
    CHECK(run_kernel(*kernel, &p, 2, Kernel::kThreads, Kernel::kSharedBytes) == "");

    bool right = true;
    for (int64_t item = 0; item < kBatch; ++item)
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < kN; ++j) {
                int sum = 0;
                for (int64_t k = 0; k < depth; ++k)
                    sum += value(item * m * depth + i * depth + k) *
                           value((item * depth * kN + (b_by_k ? j * depth + k : k * kN + j)) / 3);
                right = right && widen(c[static_cast<size_t>((item * m + i) * kN + j)]) ==
                                     widen(round_to<T>(static_cast<Acc<T>>(sum)));
            }
    CHECK(right);
}

/** K: threads ask for several chunks at a time, one is left for some of them and none for others. */
template <class T>
void run_gemv() {
    run<GemvAlongK<T, 4, 8>, T>(3, 72, true);
    run<GemvAlongK<T, 1, 128>, T>(1, 1480, true);
    run<GemvAlongN<T, 4>, T>(4, 1480, false);
}

} // namespace

int main() {
    for (const char *policy : {"fair", "greedy"}) {
        CHECK(set_schedule(policy, 1));
        run<MmaTile<f16, 128, 128, 2, 4>, f16>(40, 72, true);
        run<MmaTile<bf16, 64, 64, 2, 2>, bf16>(40, 72, false);
        run<PlainTile<float, 128, 128, 8, 8>, float>(40, 72, true);
        run<PlainTile<double, 32, 32, 4, 2>, double>(40, 72, false);
        run_gemv<f16>();
        run_gemv<double>();
    }
    return check::summary();
}
