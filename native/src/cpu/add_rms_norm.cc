/* add_rms_norm on the CPU: sums row by row, then y of several rows at once, so that these share the weights. Rows are shared
 * among threads. */
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
          group_rows(problem.operands[kY].dtype == INFINI_DTYPE_F16 ? 2 : kNormRows),
          stream(loop.n * size >= kNormStreamBytes &&
                 worth_streaming(2.0 * static_cast<double>(loop.rows) * static_cast<double>(loop.n * size),
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
        if (stream && elsewhere(call, kY) && elsewhere(call, kResidual)) {
            loop.parallel_pieces(loop.n, [&](int64_t begin, int64_t end) {
                OpenLine y_line, r_line;
                loop.walk(begin, end, [&](const int64_t *at, int64_t, int64_t n) {
                    kernel.row_stream(operand(at, kY), operand(at, kResidual), operand(at, kA), operand(at, kB),
                                      operand(at, kWeight), n, epsilon, y_line, r_line);
                });
                kernel.close(y_line);
                kernel.close(r_line);
            });
            return finish_streams();
        }
        loop.parallel_pieces(loop.n, [&](int64_t begin, int64_t end) {
            NormRow group[kNormRows];
            int count = 0;
            const auto multiply = [&] {
                kernel.multiply(group, count, operand(loop.offset, kWeight), loop.n, loop.n, epsilon);
                count = 0;
            };
            loop.walk(begin, end, [&](const int64_t *at, int64_t, int64_t n) {
                char *const y = operand(at, kY), *const r = operand(at, kResidual);
                if (count == group_rows || (count > 0 && !alike(y, group[0].y))) multiply();
                group[count++] = {y, r, kernel.add(r, operand(at, kA), operand(at, kB), n)};
            });
            multiply();
        });
    }

    static bool alike(const void *p, const void *q) {
        return (reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(q)) % 64 == 0;
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
        const Brief brief(loop.bytes_per_row < kBytesToWake);
        const auto begin = [&](int64_t chunk) { return loop.n / 64 * chunk / chunks * 64; };
        const auto end = [&](int64_t chunk) { return chunk + 1 < chunks ? begin(chunk + 1) : loop.n; };
        parallel_divided(chunks, threads, [&](int64_t chunk, int) {
            const int64_t at = begin(chunk) * size;
            sums[chunk] = kernel.add(r + at, a + at, b + at, end(chunk) - begin(chunk));
        });
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += sums[chunk];
        parallel_divided(chunks, threads, [&](int64_t chunk, int) {
            const int64_t i = begin(chunk);
            const NormRow part = {y + i * size, r + i * size, sum};
            kernel.multiply(&part, 1, w + i * weight_size, end(chunk) - i, loop.n, epsilon);
        });
    }

    RowLoop<5> loop;
    float epsilon;
    NormKernel kernel;
    int64_t size, weight_size;
    int64_t chunks; // of a row
    int group_rows; // F16 is bound by conversions: more rows leave the first-level cache for nothing
    bool stream;
};

} // namespace

std::unique_ptr<CpuPlan> plan_add_rms_norm(const InfiniProblem &problem, size_t *) {
    return std::make_unique<NormPlan>(problem);
}

} // namespace infini
