#include "cpu/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cpu/copy_bytes.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "infiniop.h"

namespace infini {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTries = 8;
constexpr auto kTryTime = std::chrono::milliseconds(4); // a try repeats its work for at least so long

/** The best rate of several tries; every call of work() does `amount` of whatever is counted. */
template <class Work>
double best_rate(double amount, Work &&work) {
    double best = 0;
    work(); // pages are touched, workers awake
    for (int i = 0; i < kTries; ++i) {
        const auto start = Clock::now();
        int64_t repeats = 0;
        do {
            work();
            ++repeats;
        } while (Clock::now() - start < kTryTime);
        best = std::max(best, amount * static_cast<double>(repeats) /
                                  std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
}

} // namespace

infiniStatus_t measure_cpu_ceiling(const char *function, int what, size_t bytes, double *rate) {
    const CeilingKernels &kernel = kernels().ceilings;
    const int threads = num_threads();
    if (what == INFINIOP_CEILING_FMA_F32 || what == INFINIOP_CEILING_FMA_F64) {
        constexpr int64_t kIterations = 1 << 14;
        const bool single = what == INFINIOP_CEILING_FMA_F32;
        *rate = best_rate(
            static_cast<double>((single ? kernel.fma_f32_flops : kernel.fma_f64_flops) * kIterations * threads), [&] {
                parallel_for(threads, threads, [&](int64_t, int) {
                    [[maybe_unused]] volatile double sink =
                        single ? kernel.fma_f32(kIterations) : kernel.fma_f64(kIterations);
                });
            });
        return INFINI_STATUS_SUCCESS;
    }
    if (what != INFINIOP_CEILING_COPY && what != INFINIOP_CEILING_READ)
        return fail(INFINI_STATUS_BAD_PARAM, "%s: %d is not a ceiling", function, what);
    if (bytes < 64) return fail(INFINI_STATUS_BAD_PARAM, "%s: bytes is %zu, needed at least 64", function, bytes);
    const bool copy = what == INFINIOP_CEILING_COPY;
    const auto allocate = [](size_t size) {
        return std::unique_ptr<char, decltype(&std::free)>(static_cast<char *>(std::malloc(size)), &std::free);
    };
    const auto from = allocate(bytes), to = allocate(copy ? bytes : 1);
    if (from == nullptr || to == nullptr)
        return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: arrays of %zu bytes cannot be had", function, bytes);
    std::memset(from.get(), 1, bytes); // pages must exist to be read
    const auto line = [&](int64_t part) {
        return bytes / 64 * static_cast<size_t>(part) / static_cast<size_t>(threads) * 64;
    };
    *rate = best_rate(static_cast<double>(line(threads)) * (copy ? 2 : 1), [&] {
        parallel_for(threads, threads, [&](int64_t t, int) {
            const size_t begin = line(t), count = line(t + 1) - begin;
            if (copy)
                copy_bytes(to.get() + begin, from.get() + begin, count);
            else [[maybe_unused]]
                volatile double sink = kernel.read(from.get() + begin, static_cast<int64_t>(count));
        });
    });
    return INFINI_STATUS_SUCCESS;
}

} // namespace infini
