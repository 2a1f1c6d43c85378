/* The kernels of gemm with fewer blocks than tiles, as where a batch has more tiles than a launch may have blocks: each block takes
 * several, one after the other, in the same shared memory. What one block does is tested on whole problems, in Python. */
#include <cmath>
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

/** `gap`: elements after each line of A and of B, which are NaN. Lines of whole packs begin at multiples of 16 bytes, others anywhere. */
template <class Kernel, class T>
void run(int64_t m, int64_t depth, bool b_by_k, int64_t n = kN, int64_t gap = 0, bool a_by_k = true) {
    constexpr int64_t kPack = 16 / sizeof(T);
    const int64_t in_a = (a_by_k ? depth : m) + gap, lines_a = a_by_k ? m : depth;
    const int64_t in_b = (b_by_k ? depth : n) + gap, lines_b = b_by_k ? n : depth;
    const bool packs_a = in_a % kPack == 0, packs_b = in_b % kPack == 0;
    const T nothing = round_to<T>(static_cast<Acc<T>>(NAN));
    const int64_t first_a = packs_a ? 0 : 1, first_b = packs_b ? 0 : 1;
    std::vector<T> a(static_cast<size_t>(first_a + kBatch * lines_a * in_a), nothing),
        b(static_cast<size_t>(first_b + kBatch * lines_b * in_b), nothing),
        c(static_cast<size_t>(kBatch * m * n), nothing);
    T *const from_a = a.data() + first_a, *const from_b = b.data() + first_b;
    const auto at_a = [&](int64_t item, int64_t i, int64_t k) {
        return a_by_k ? (item * m + i) * in_a + k : (item * depth + k) * in_a + i;
    };
    const auto at_b = [&](int64_t item, int64_t k, int64_t j) {
        return b_by_k ? (item * n + j) * in_b + k : (item * depth + k) * in_b + j;
    };
    for (int64_t item = 0; item < kBatch; ++item)
        for (int64_t k = 0; k < depth; ++k) {
            for (int64_t i = 0; i < m; ++i)
                from_a[at_a(item, i, k)] = round_to<T>(static_cast<Acc<T>>(value(at_a(item, i, k))));
            for (int64_t j = 0; j < n; ++j)
                from_b[at_b(item, k, j)] = round_to<T>(static_cast<Acc<T>>(value(at_b(item, k, j) / 3)));
        }

    GemmParams p{};
    p.a = a_by_k ? GemmInput{from_a, m * in_a, in_a, 1, true, packs_a}
                 : GemmInput{from_a, depth * in_a, 1, in_a, false, packs_a};
    p.b = b_by_k ? GemmInput{from_b, n * in_b, in_b, 1, true, packs_b}
                 : GemmInput{from_b, depth * in_b, 1, in_b, false, packs_b};
    p.c = {c.data(), m * n, n, 1, n % kPack == 0};
    p.m = m;
    p.n = n;
    p.k = depth;
    p.alpha = 1;
    p.tiles_m = (m + Kernel::kTileRows - 1) / Kernel::kTileRows;
    p.tiles_n = (n + Kernel::kTileColumns - 1) / Kernel::kTileColumns;
    p.tiles = kBatch * p.tiles_m * p.tiles_n;
    CHECK(p.tiles >= kBatch);
    const auto *kernel = static_cast<const HostKernel *>(kernel_address<Kernel>());
    CHECK(run_kernel(*kernel, &p, 2, Kernel::kThreads, Kernel::kSharedBytes) == "");

    bool right = true;
    for (int64_t item = 0; item < kBatch; ++item)
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
                int sum = 0;
                for (int64_t k = 0; k < depth; ++k) sum += value(at_a(item, i, k)) * value(at_b(item, k, j) / 3);
                right = right && widen(c[static_cast<size_t>((item * m + i) * n + j)]) ==
                                     widen(round_to<T>(static_cast<Acc<T>>(sum)));
            }
    CHECK(right);
}

/** K: threads ask for several chunks at a time, one is left for some of them and none for others. */
template <class T>
void run_gemv() {
    run<GemvAlongK<T, 1, 128>, T>(1, 1480, true);
    run<GemvAlongN<T, 4>, T>(4, 1480, false);
}
/** N and K: more than one tile and than what a block asks for at a time, or less; with whole packs, a part of one (`gap`), and none. */
template <class T>
void run_gemv_mma() {
    run<GemvMma<T, true>, T>(1, 1480, true);
    run<GemvMma<T, false>, T>(1, 1480, false);
    for (int64_t m = 1; m <= 4; ++m)
        for (const int64_t n : {5, 8, 37, 40}) {
            for (const int64_t k : {13, 1024, 1053, 1064}) run<GemvMma<T, true>, T>(m, k, true, n, k % 8 == 0 ? 0 : 3);
            for (const int64_t k : {13, 512, 573, 581, 584})
                run<GemvMma<T, false>, T>(m, k, false, n, n % 8 == 0 ? 0 : 3);
        }
    for (const int64_t k : {1030, 1151}) run<GemvMma<T, true>, T>(3, k, true, 20, 1);
    for (const int64_t k : {575, 584}) run<GemvMma<T, false>, T>(3, k, false, k == 575 ? 39 : 40, 1);
}

/** All layouts, and K of more slices than there are stages, of fewer, and of none; with whole packs, a part of one, and none. */
template <class Tile, class T>
void run_mma() {
    for (const bool a_by_k : {false, true})
        for (const bool b_by_k : {false, true}) {
            run<Tile, T>(40, 72, b_by_k, kN, 0, a_by_k);
            run<Tile, T>(37, 301, b_by_k, 149, 3, a_by_k);
        }
    run<Tile, T>(45, 16 * 13 - 3, true, 277, 3, true);
    run<Tile, T>(45, 13, false, 277, 3, false);
    run<Tile, T>(9, 8 * 13 + 1, true, 137, 0, false);
    run<Tile, T>(9, 0, true, 137, 0, false);
}

} // namespace

int main(int argc, char **argv) { // the schedules to try, both if none is named
    std::vector<const char *> schedules(argv + 1, argv + argc);
    if (schedules.empty()) schedules = {"fair", "greedy"};
    for (const char *schedule : schedules) {
        CHECK(set_schedule(schedule, 1));
        run_mma<MmaTile<bf16, 64, 64, 2, 2, 64, 3>, bf16>();
        run<PlainTile<double, 128, 64, 8, 8>, double>(40, 72, true);
        run<PlainTile<float, 128, 128, 8, 8>, float>(40, 72, true);
        run<PlainTile<double, 32, 32, 4, 2>, double>(40, 72, false);
        run<GemvAlongK<f16, 4, 8>, f16>(3, 72, true);
        run_gemv_mma<f16>();
        run_gemv_mma<bf16>();
        run_gemv<float>();
        run_gemv<double>();
    }
    // The same body as the smaller tile's, at four times its price: under one schedule alone.
    run_mma<MmaTile<f16, 128, 128, 2, 2, 32, 4>, f16>();
    return check::summary();
}
