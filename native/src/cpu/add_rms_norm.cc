/* add_rms_norm on the CPU: one kernel call a row, rows shared among threads. */
#include "cpu/caches.h"
#include "cpu/cpu_plan.h"
#include "cpu/isa.h"
#include "cpu/row_loop.h"

namespace infini {

namespace {

enum { kY, kResidual, kA, kB, kWeight };

/** Parts of a long row that are summed up by themselves, then in order: a number that depends on n alone, so that the same
 *  inputs give the same bits, whoever computes the parts. */
constexpr int64_t kMostChunks = 256;

struct NormPlan final : CpuPlan {
    explicit NormPlan(const InfiniProblem &problem)
        : loop(problem.operands), epsilon(problem.epsilon),
          kernel(kernels().add_rms_norm[problem.operands[kY].dtype][problem.operands[kWeight].dtype]),
          size(kDtypes[problem.operands[kY].dtype].size), weight_size(kDtypes[problem.operands[kWeight].dtype].size),
          chunks(std::min((loop.n + kNormChunk - 1) / kNormChunk, kMostChunks)),
          stream(worth_streaming(2.0 * static_cast<double>(loop.rows) * static_cast<double>(loop.n * size),
                                 kStreamResults)) {}

    void run(const InfiniCall &call) const override {
        const auto operand = [&](const int64_t *at, int i) { return static_cast<char *>(call.operands[i]) + at[i]; };
        if (chunks > 1) {
            const auto row = [&](const int64_t *at, int64_t, int64_t) {
                long_row(operand(at, kY), operand(at, kResidual), operand(at, kA), operand(at, kB),
                         operand(at, kWeight));
            };
            return loop.rows < num_threads() ? loop.walk(0, loop.rows * loop.n, row) : loop.parallel_walk(loop.n, row);
        }
        const bool streamed = stream && elsewhere(call, kY) && elsewhere(call, kResidual);
        const auto row = streamed ? kernel.row_stream : kernel.row;
        loop.parallel_walk(loop.n, [&](const int64_t *at, int64_t, int64_t n) {
            row(operand(at, kY), operand(at, kResidual), operand(at, kA), operand(at, kB), operand(at, kWeight), n,
                epsilon);
        });
        if (streamed) finish_streams();
    }

    bool elsewhere(const InfiniCall &call, int i) const {
        const void *p = call.operands[i];
        return p != call.operands[kA] && p != call.operands[kB] &&
               reinterpret_cast<uintptr_t>(p) % static_cast<size_t>(size) == 0;
    }

    /** Chunks are shared among threads where there are too few rows for them; within a loop over rows one thread has all. */
    void long_row(char *y, char *r, const char *a, const char *b, const char *w) const {
        double sums[kMostChunks];
        const int threads = worth_threads(loop.bytes_per_row);
        const auto begin = [&](int64_t chunk) { return loop.n / 64 * chunk / chunks * 64; };
        const auto end = [&](int64_t chunk) { return chunk + 1 < chunks ? begin(chunk + 1) : loop.n; };
        parallel_for(chunks, threads, [&](int64_t chunk, int) {
            const int64_t at = begin(chunk) * size;
            sums[chunk] = kernel.add(r + at, a + at, b + at, end(chunk) - begin(chunk));
        });
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += sums[chunk];
        parallel_for(chunks, threads, [&](int64_t chunk, int) {
            const int64_t i = begin(chunk);
            kernel.multiply(y + i * size, r + i * size, w + i * weight_size, end(chunk) - i, sum, loop.n, epsilon);
        });
    }

    RowLoop<5> loop;
    float epsilon;
    NormKernel kernel;
    int64_t size, weight_size;
    int64_t chunks; // of a row
    bool stream;
};

} // namespace

std::unique_ptr<CpuPlan> plan_add_rms_norm(const InfiniProblem &problem, size_t *) {
    return std::make_unique<NormPlan>(problem);
}

} // namespace infini
