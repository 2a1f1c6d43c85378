/* add_rms_norm on NVIDIA devices: residual_out = A + B; y = residual_out * rsqrt(mean(residual_out^2) + epsilon) * weight.
 *
 *  It is bound by memory: a and b are read once, y and residual_out written once. A row of up to 32 KiB stays in the registers of the
 *  threads that read it, as the rounded residual; a longer one, or one that is not of whole aligned 16 bytes, is read again from
 *  residual_out, where the same thread has just written it. A weight of few
 *  bytes is loaded before the threads wait for each other's sums. */
#include <algorithm>

#include "core/dtype.h"
#include "cuda/chunks.h"
#include "cuda/cuda_plan.h"
#include "cuda/fast_div.h"
#include "cuda/launch.h"
#include "cuda/map_plan.h"
#include "cuda/unit_math.h"

namespace infini::cuda {

namespace {

enum { kY, kResidual, kA, kB, kWeight, kOperands = kWeight };
constexpr int kOuter = INFINI_MAX_DIMS - 1;

template <class T, class W>
struct NormParams {
    T *base[kOperands];
    const W *weight;
    int64_t rows, row_length;
    int outer; // dimensions of rows, innermost first
    FastDiv<uint64_t> size[kOuter];
    int64_t stride[kOperands][kOuter];
    double epsilon;
};

/** Threads that share a row: a warp, of which a block has several, or a block. */
template <int kRowThreads>
struct RowTeam {
    static constexpr int kThreads = kRowThreads > kWarp ? kRowThreads : 256;
    static constexpr int kRowsPerBlock = kThreads / kRowThreads;
    static constexpr int kWarps = kRowThreads / kWarp;

    /** The sum over the team, the same in each thread. */
    template <class A, class Ctx>
    static INFINI_DEVICE A sum(Ctx &ctx, A x) {
        x = warp_sum(ctx, x);
        if (kWarps == 1) return x;
        A *const partial = ctx.template shared<A>();
        if (ctx.thread() % kWarp == 0) partial[ctx.thread() / kWarp] = x;
        ctx.sync();
        A total = partial[0];
        for (int warp = 1; warp < kWarps; ++warp) total += partial[warp];
        return total;
    }
    /** Where the operands of the team's row begin; false, of all threads of a warp, if there is no such row. */
    template <class T, class W, class Ctx>
    static INFINI_DEVICE bool find_row(Ctx &ctx, const NormParams<T, W> &p, T *(&at)[kOperands]) {
        const int64_t row = static_cast<int64_t>(ctx.block()) * kRowsPerBlock + ctx.thread() / kRowThreads;
        if (row >= p.rows) return false;
        INFINI_UNROLL
        for (int i = 0; i < kOperands; ++i) at[i] = p.base[i];
        add_row(static_cast<uint64_t>(row), p.outer, p.size, p.stride, at);
        return true;
    }

    template <class A>
    static constexpr size_t shared_bytes() {
        return kWarps == 1 ? 0 : kWarps * sizeof(A);
    }
};

/** V elements, in loads of at most 16 bytes. */
template <int V, class T, class Ctx>
INFINI_DEVICE Chunk<T, V> read(Ctx &ctx, const T *from) {
    constexpr int kBytes = V * static_cast<int>(sizeof(T)), kPieces = kBytes > kVectorBytes ? kBytes / kVectorBytes : 1;
    constexpr int kEach = V / kPieces;
    Chunk<T, V> x;
    INFINI_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
        const auto part = load_chunk<T, kEach>(ctx, from + piece * kEach);
        INFINI_UNROLL
        for (int u = 0; u < part.kUnits; ++u) x.unit[piece * part.kUnits + u] = part.unit[u];
    }
    return x;
}

template <class T, int V>
INFINI_DEVICE Acc<T> element(const Chunk<T, V> &x, int e) {
    return widen(element_of<T>(x.unit[e / kPerUnit<T>], e % kPerUnit<T>));
}

/** a + b, rounded, and the sum of its squares added to `sum`. */
template <int V, class T>
INFINI_DEVICE Chunk<T, V> add_up(const Chunk<T, V> &a, const Chunk<T, V> &b, Acc<T> &sum) {
    Chunk<T, V> residual;
    INFINI_UNROLL
    for (int u = 0; u < residual.kUnits; ++u) residual.unit[u] = UnitsOf<AddOf, T>::apply(a.unit[u], b.unit[u]);
    INFINI_UNROLL
    for (int e = 0; e < V; ++e) {
        const Acc<T> r = element(residual, e);
        sum = fused(r, r, sum);
    }
    return residual;
}

template <int V, class T, class W>
INFINI_DEVICE Chunk<T, V> normalize(const Chunk<T, V> &residual, Acc<T> scale, const Chunk<W, V> &weight) {
    constexpr int kEach = V < kPerUnit<T> ? V : kPerUnit<T>;
    Chunk<T, V> y;
    INFINI_UNROLL
    for (int u = 0; u < y.kUnits; ++u) {
        Acc<T> x[kPerUnit<T>] = {};
        INFINI_UNROLL
        for (int i = 0; i < kEach; ++i) {
            const int e = u * kPerUnit<T> + i;
            x[i] = element(residual, e) * scale * static_cast<Acc<T>>(element(weight, e));
        }
        y.unit[u] = round_unit<T>(x);
    }
    return y;
}

template <class T, class W>
INFINI_DEVICE Acc<T> scale_of(const NormParams<T, W> &p, Acc<T> sum) {
    return reciprocal_sqrt(sum / static_cast<Acc<T>>(p.row_length) + static_cast<Acc<T>>(p.epsilon));
}

/** A row of at most kRowThreads * kVectors whole vectors, kept in registers. */
template <class T, class W, int kRowThreads, int kVectors>
struct KeptRow {
    using Team = RowTeam<kRowThreads>;
    using Params = NormParams<T, W>;
    static constexpr int kThreads = Team::kThreads, kRowsPerBlock = Team::kRowsPerBlock;
    static constexpr int V = kVectorBytes / static_cast<int>(sizeof(T));
    static constexpr int64_t kMostElements = int64_t{kRowThreads} * kVectors * V;
    static constexpr bool kEarlyWeight = kVectors * V * sizeof(W) <= 64; // bytes that registers have room for
    static constexpr size_t kSharedBytes = Team::template shared_bytes<Acc<T>>();

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        T *at[kOperands];
        if (!Team::find_row(ctx, p, at)) return;
        const int thread = ctx.thread() % kRowThreads;
        Chunk<T, V> residual[kVectors] = {}, b[kVectors] = {};
        Chunk<W, V> weight[kVectors];
        const auto start = [&](int v) { return static_cast<int64_t>(thread + v * kRowThreads) * V; };
        INFINI_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            if (start(v) >= p.row_length) continue; // zeros, which add nothing to the sum
            residual[v] = read<V>(ctx, at[kA] + start(v));
            b[v] = read<V>(ctx, at[kB] + start(v));
            if (kEarlyWeight) weight[v] = read<V>(ctx, p.weight + start(v));
        }
        Acc<T> sum = 0;
        INFINI_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            residual[v] = add_up<V, T>(residual[v], b[v], sum);
            if (start(v) < p.row_length) store_chunk<T, V>(ctx, at[kResidual] + start(v), residual[v]);
            INFINI_UNROLL
            for (int u = 0; u < residual[v].kUnits; ++u) forget_origin(residual[v].unit[u]);
        }
        const Acc<T> scale = scale_of(p, Team::sum(ctx, sum));
        INFINI_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            if (start(v) >= p.row_length) continue;
            if (!kEarlyWeight) weight[v] = read<V>(ctx, p.weight + start(v));
            store_chunk<T, V>(ctx, at[kY] + start(v), normalize<V, T, W>(residual[v], scale, weight[v]));
        }
    }
};

/** A row of any number of V elements, whose residual is read again. */
template <class T, class W, int kRowThreads, int kElements>
struct ReadRow {
    using Team = RowTeam<kRowThreads>;
    using Params = NormParams<T, W>;
    static constexpr int kThreads = Team::kThreads, kRowsPerBlock = Team::kRowsPerBlock;
    static constexpr int V = kElements;
    static constexpr size_t kSharedBytes = Team::template shared_bytes<Acc<T>>();

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        T *at[kOperands];
        if (!Team::find_row(ctx, p, at)) return;
        const int64_t first = static_cast<int64_t>(ctx.thread() % kRowThreads) * V, step = int64_t{kRowThreads} * V;
        Acc<T> sum = 0;
        for (int64_t start = first; start < p.row_length; start += step)
            store_chunk<T, V>(ctx, at[kResidual] + start,
                              add_up<V, T>(read<V>(ctx, at[kA] + start), read<V>(ctx, at[kB] + start), sum));
        const Acc<T> scale = scale_of(p, Team::sum(ctx, sum));
        for (int64_t start = first; start < p.row_length; start += step)
            store_chunk<T, V>(ctx, at[kY] + start,
                              normalize<V, T, W>(read<V>(ctx, static_cast<const T *>(at[kResidual]) + start), scale,
                                                 read<V>(ctx, p.weight + start)));
    }
};

/** A row that begins anywhere: in chunks of y that begin at a multiple of 16 bytes. Its residual is read again by who has written it. */
template <class T, class W, int kRowThreads>
struct AnywhereRow {
    using Team = RowTeam<kRowThreads>;
    using Params = NormParams<T, W>;
    static constexpr int kThreads = Team::kThreads, kRowsPerBlock = Team::kRowsPerBlock;
    static constexpr int V = kVectorBytes / static_cast<int>(sizeof(T));
    static constexpr size_t kSharedBytes = Team::template shared_bytes<Acc<T>>();

    template <class Ctx>
    static INFINI_DEVICE void run(Ctx &ctx, const Params &p) {
        T *at[kOperands];
        if (!Team::find_row(ctx, p, at)) return;
        const int64_t first = int64_t{ctx.thread() % kRowThreads} * V - past_aligned(at[kY]),
                      step = int64_t{kRowThreads} * V;
        const auto input = [&](int i, int64_t start) {
            const bool written = at[i] == at[kY] || at[i] == at[kResidual]; // beside what is read, too, by others
            return part<V, T>(ctx, at[i], start, p.row_length, !written);
        };
        Acc<T> sum = 0;
        for (int64_t start = first; start < p.row_length; start += step)
            put(ctx, at[kResidual], start, p.row_length, add_up<V, T>(input(kA, start), input(kB, start), sum));
        const Acc<T> scale = scale_of(p, Team::sum(ctx, sum));
        for (int64_t start = first; start < p.row_length; start += step)
            put(ctx, at[kY], start, p.row_length,
                normalize<V, T, W>(part<V, T>(ctx, at[kResidual], start, p.row_length, false), scale,
                                   part<V, W>(ctx, p.weight, start, p.row_length, true)));
    }

private:
    /** N elements of a line of so many from `start` on, and 0 for those that it does not have; beside: what is next to them may be read. */
    template <int N, class E, class Ctx>
    static INFINI_DEVICE Chunk<E, N> part(Ctx &ctx, const E *line, int64_t start, int64_t length, bool beside) {
        constexpr int kEach =
            N * static_cast<int>(sizeof(E)) > kVectorBytes ? kVectorBytes / static_cast<int>(sizeof(E)) : N;
        Chunk<E, N> x;
        INFINI_UNROLL
        for (int from = 0; from < N; from += kEach) {
            const int64_t first = start + from;
            const auto piece = read_part<E, kEach>(ctx, line + first, few(-first), few(length - first), beside);
            INFINI_UNROLL
            for (int u = 0; u < piece.kUnits; ++u) x.unit[from / kEach * piece.kUnits + u] = piece.unit[u];
        }
        return x;
    }
    template <class Ctx>
    static INFINI_DEVICE void put(Ctx &ctx, T *line, int64_t start, int64_t length, const Chunk<T, V> &x) {
        if (start >= 0 && start + V <= length && past_aligned(line + start) == 0)
            store_chunk<T, V>(ctx, line + start, x);
        else
            store_elements<T, V>(ctx, line + start, x, few(length - start), few(-start));
    }
    /** As a number of elements, of which none counts that is two chunks away. */
    static INFINI_DEVICE int few(int64_t n) {
        constexpr int64_t most = 2 * kVectorBytes;
        return static_cast<int>(n > most ? most : n < -most ? -most : n);
    }
};

template <class T, class W>
class NormPlan final : public CudaPlan {
    static constexpr int V = kVectorBytes / static_cast<int>(sizeof(T));
    template <int kRowThreads, int kVectors>
    using Kept = KeptRow<T, W, kRowThreads, kVectors>;
    // Elements of 8 bytes are worth a load each.
    using Short = std::conditional_t<sizeof(T) == 8, ReadRow<T, W, kWarp, 1>, AnywhereRow<T, W, kWarp>>;
    using Long = std::conditional_t<sizeof(T) == 8, ReadRow<T, W, 512, 1>, AnywhereRow<T, W, 256>>;
    using LongVectors = ReadRow<T, W, 512, V>;
    static constexpr int64_t kShort = 1024; // elements that are not worth a block

public:
    explicit NormPlan(const InfiniProblem &problem) {
        const InfiniOperand &y = problem.operands[kY];
        params_.outer = y.ndim - 1;
        params_.row_length = y.shape[y.ndim - 1];
        params_.rows = 1;
        params_.epsilon = problem.epsilon;
        uint64_t steps = kVectorBytes;
        for (int d = 0; d < params_.outer; ++d) {
            const int from = params_.outer - 1 - d;
            params_.rows *= y.shape[from];
            params_.size[d] = FastDiv<uint64_t>(static_cast<uint64_t>(y.shape[from]));
            for (int i = 0; i < kOperands; ++i) {
                params_.stride[i][d] = problem.operands[i].stride[from];
                steps |= static_cast<uint64_t>(params_.stride[i][d]) * sizeof(T);
            }
        }
        aligned_steps_ = steps % kVectorBytes == 0 && params_.row_length % V == 0;
        for (int i = 0; i <= kWeight; ++i) offset_[i] = problem.operands[i].offset;
        const int64_t n = params_.row_length;
        description = !aligned_steps_ || n > Kept<512, 4>::kMostElements ? "a row read twice"
                      : n <= Kept<kWarp, 2>::kMostElements               ? "a row in a warp's registers"
                                                                         : "a row in a block's registers";
    }

    infiniStatus_t prepare_kernels() const {
        const auto one = [](auto kernel) { return prepare<decltype(kernel)>(decltype(kernel)::kSharedBytes); };
        const infiniStatus_t status = with_kernel(true, one);
        return status == INFINI_STATUS_SUCCESS ? with_kernel(false, one) : status;
    }

    infiniStatus_t run(const InfiniCall &call) const override {
        NormParams<T, W> p = params_;
        auto bits =
            reinterpret_cast<uintptr_t>(p.weight = static_cast<const W *>(call.operands[kWeight]) + offset_[kWeight]);
        for (int i = 0; i < kOperands; ++i)
            bits |= reinterpret_cast<uintptr_t>(p.base[i] = static_cast<T *>(call.operands[i]) + offset_[i]);
        return with_kernel(aligned_steps_ && bits % kVectorBytes == 0, [&](auto kernel) {
            using Kernel = decltype(kernel);
            return launch<Kernel>((p.rows + Kernel::kRowsPerBlock - 1) / Kernel::kRowsPerBlock, p, call.stream,
                                  Kernel::kSharedBytes);
        });
    }

private:
    /** Calls `body` with the kernel for rows of this length that are aligned vectors, or are not. */
    template <class Body>
    infiniStatus_t with_kernel(bool aligned, const Body &body) const {
        const int64_t n = params_.row_length;
        if (!aligned) return n <= kShort ? body(Short{}) : body(Long{});
        if (n <= Kept<kWarp, 1>::kMostElements) return body(Kept<kWarp, 1>{});
        if (n <= Kept<kWarp, 2>::kMostElements) return body(Kept<kWarp, 2>{});
        if (n <= Kept<128, 2>::kMostElements) return body(Kept<128, 2>{});
        if (n <= Kept<256, 2>::kMostElements) return body(Kept<256, 2>{});
        if (n <= Kept<256, 4>::kMostElements) return body(Kept<256, 4>{});
        if (n <= Kept<512, 4>::kMostElements) return body(Kept<512, 4>{});
        return body(LongVectors{});
    }

    NormParams<T, W> params_{};
    int64_t offset_[kWeight + 1];
    bool aligned_steps_;
};

template <class T, class W>
infiniStatus_t make(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan) {
    auto made = std::make_unique<NormPlan<T, W>>(problem);
    if (const infiniStatus_t status = made->prepare_kernels()) return status;
    *plan = std::move(made);
    return INFINI_STATUS_SUCCESS;
}

template <class T>
infiniStatus_t make_half(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan) {
    switch (problem.operands[kWeight].dtype) {
    case INFINI_DTYPE_F16: return make<T, f16>(problem, plan);
    case INFINI_DTYPE_BF16: return make<T, bf16>(problem, plan);
    default: return make<T, float>(problem, plan);
    }
}

} // namespace

infiniStatus_t plan_add_rms_norm(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *) {
    switch (problem.operands[kY].dtype) {
    case INFINI_DTYPE_F16: return make_half<f16>(problem, plan);
    case INFINI_DTYPE_BF16: return make_half<bf16>(problem, plan);
    case INFINI_DTYPE_F32: return make<float, float>(problem, plan);
    default: return make<double, double>(problem, plan);
    }
}

} // namespace infini::cuda
