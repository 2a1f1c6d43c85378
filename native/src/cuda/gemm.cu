/* gemm, gemm_add and gemm_mul on NVIDIA devices. Three implementations are asked in turn: gemv, cublaslt, and the tiled kernel, which
 * takes everything. The environment variable INFINIOP_CUDA_GEMM names those that may be used, "gemv,tiled" for instance, for tests
 * and comparisons; the tiled kernel always may. Programs that are AT_SECURE read no variable. */
#include "cuda/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/dtype.h"
#include "cuda/cublaslt.h"
#include "cuda/gemm_tile.h"
#include "cuda/gemv.h"
#include "cuda/launch.h"

namespace infini::cuda {

namespace {

enum { kC, kA, kB, kD };

/** A kernel as plans keep it. */
struct GemmKernel {
    infiniStatus_t (*prepare)();
    infiniStatus_t (*launch)(int64_t blocks, const GemmParams &params, void *stream);
    int tile_m, tile_n;
};
template <class Kernel>
GemmKernel kernel_of() {
    static_assert(Kernel::kSharedBytes <= (163 << 10), "a block has that much on each device since sm_80");
    return {[] { return prepare<Kernel>(Kernel::kSharedBytes); },
            [](int64_t blocks, const GemmParams &params, void *stream) {
                return launch<Kernel>(blocks, params, stream, Kernel::kSharedBytes);
            },
            Kernel::kTileRows, Kernel::kTileColumns};
}

int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

GemmInput input_of(const InfiniOperand &x, int w, int k) {
    GemmInput in{};
    in.batch = x.stride[0];
    in.w = x.stride[w];
    in.k = x.stride[k];
    // A dimension of size 1 has stride 0, and is not the one to read along.
    in.by_k = in.k == 1 || (in.w != 1 && magnitude(in.k) <= magnitude(in.w));
    return in;
}
GemmOutput output_of(const InfiniOperand &x, bool exchanged) {
    GemmOutput out{};
    out.batch = x.stride[0];
    out.row = x.stride[exchanged ? 2 : 1];
    out.col = x.stride[exchanged ? 1 : 2];
    return out;
}

/** A problem for our own kernels; `exchanged`: as C^T = B^T A^T. */
class GemmPlan final : public CudaPlan {
public:
    GemmPlan(const InfiniProblem &problem, bool exchange)
        : exchanged_(exchange), size_(kDtypes[problem.operands[kC].dtype].size) {
        const InfiniOperand *const x = problem.operands;
        const InfiniOperand &a = x[exchange ? kB : kA], &b = x[exchange ? kA : kB];
        const int rows = exchange ? 2 : 1, cols = exchange ? 1 : 2;
        params.m = x[kC].shape[rows];
        params.n = x[kC].shape[cols];
        params.k = x[kA].shape[2];
        params.a = input_of(a, rows, cols);
        params.b = input_of(b, cols, rows);
        params.c = output_of(x[kC], exchange);
        params.after = problem.op == INFINI_OP_GEMM_ADD   ? After::kAdd
                       : problem.op == INFINI_OP_GEMM_MUL ? After::kMul
                                                          : After::kNothing;
        if (params.after != After::kNothing) params.d = output_of(x[kD], exchange);
        batch = x[kC].shape[0];
        for (int i = 0; i < problem.n_operands; ++i) offset_[i] = x[i].offset * size_;
    }

    int64_t tiles(int tile_m, int tile_n) const { return batch * ceil(params.m, tile_m) * ceil(params.n, tile_n); }

    infiniStatus_t use(const GemmKernel &kernel) {
        kernel_ = kernel;
        params.tiles_m = ceil(params.m, kernel.tile_m);
        params.tiles_n = ceil(params.n, kernel.tile_n);
        params.tiles = tiles(kernel.tile_m, kernel.tile_n);
        if (exchanged_) description += ", of C^T";
        return kernel.prepare();
    }

    infiniStatus_t run(const InfiniCall &call) const override {
        GemmParams p = params;
        const bool plain = p.after == After::kNothing;
        p.alpha = call.alpha;
        p.beta = plain ? call.beta : 0; // a graph may have been given one for an operator without it
        if (p.k == 0 || p.alpha == 0) {
            if (plain && p.beta == 1) return INFINI_STATUS_SUCCESS; // C stays as it is, -0 too
            p.k = 0;
            p.alpha = 0; // an infinite one would make a NaN of an empty sum
        }
        const auto at = [&](int i) { return static_cast<char *>(call.operands[i]) + offset_[i]; };
        p.c.p = at(kC);
        p.a.p = at(exchanged_ ? kB : kA);
        p.b.p = at(exchanged_ ? kA : kB);
        if (!plain) p.d.p = at(kD);
        for (GemmInput *x : {&p.a, &p.b})
            x->packs = packs(x->p, x->batch, x->by_k ? x->w : x->k, x->by_k ? x->k : x->w);
        for (GemmOutput *x : {&p.c, &p.d}) x->packs = packs(x->p, x->batch, x->row, x->col);
        return kernel_.launch(p.tiles < kMaxBlocks ? p.tiles : kMaxBlocks, p, call.stream);
    }

    GemmParams params{};
    int64_t batch;

private:
    static int64_t ceil(int64_t n, int tile) { return n / tile + (n % tile != 0); }

    /** Are lines of that stride contiguous and aligned to 16 bytes? */
    bool packs(const void *p, int64_t stride_batch, int64_t stride_line, int64_t stride) const {
        const auto bytes = [&](int64_t n) { return static_cast<uintptr_t>(n * size_); };
        return stride == 1 && (reinterpret_cast<uintptr_t>(p) | bytes(stride_batch) | bytes(stride_line)) % 16 == 0;
    }

    bool exchanged_;
    int64_t size_, offset_[INFINI_MAX_OPERANDS] = {};
    GemmKernel kernel_{};
};

/** visit(element) with a value of an operand's type. */
template <class Visit>
auto by_element(int dtype, Visit &&visit) {
    switch (dtype) {
    case INFINI_DTYPE_F16: return visit(f16{});
    case INFINI_DTYPE_BF16: return visit(bf16{});
    case INFINI_DTYPE_F32: return visit(float{});
    default: return visit(double{});
    }
}

/* ---- tiles --------------------------------------------------------------------------------------------------------- */

/** A kernel, how many of its blocks a multiprocessor holds, and in per cent what these take for an element of C, next to those of the
 *  largest tile. */
struct TileSize {
    GemmKernel kernel;
    int64_t blocks, cost;
};
struct TileSizes {
    TileSize size[3]; // the largest first
    const char *how;
};
template <class Tile>
TileSize size_of(int64_t cost) {
    return {kernel_of<Tile>(), Tile::kBlocks, cost};
}

template <class T>
TileSizes tile_sizes(T) {
    return {{size_of<MmaTile<T, 128, 128, 2, 2, 32, 4>>(100), size_of<MmaTile<T, 64, 64, 2, 2, 64, 3>>(120)}, "mma"};
}
TileSizes tile_sizes(float) {
    return {{size_of<PlainTile<float, 128, 128, 8, 8>>(100), size_of<PlainTile<float, 64, 64, 8, 4>>(130)}, "fma"};
}
TileSizes tile_sizes(double) {
    return {{size_of<PlainTile<double, 128, 64, 8, 8>>(100), size_of<PlainTile<double, 64, 64, 8, 4>>(130),
             size_of<PlainTile<double, 32, 32, 4, 2>>(180)},
            "fma"};
}

/** The one whose tiles the multiprocessors have done first: the one with most of them counts. With fewer blocks than it holds it has
 *  less to do while they wait; as if half of those that are missing were there. */
const GemmKernel &choose(const TileSizes &sizes, const GemmPlan &plan, int processors) {
    const TileSize *best = nullptr;
    double least = 0; // as integers, products of these could be too large
    for (const TileSize &size : sizes.size) {
        if (size.cost == 0) break;
        const int64_t tiles = plan.tiles(size.kernel.tile_m, size.kernel.tile_n);
        const int64_t most = tiles / processors + (tiles % processors != 0);
        const double time = static_cast<double>(most + std::max(most, size.blocks)) *
                            static_cast<double>(size.kernel.tile_m * size.kernel.tile_n * size.cost);
        if (best == nullptr || time < least) best = &size, least = time;
    }
    return best->kernel;
}

/* ---- a few rows ---------------------------------------------------------------------------------------------------- */

constexpr int64_t kGemvRows = 4;
constexpr int64_t kLongestSum = int64_t{1} << 30; // of which 32 bits can count some more
constexpr int64_t kLeastMatrix = 4096;            // bytes of B that are worth a block, where there are many
constexpr int64_t kShortColumn = 1024;            // bytes along K: up to here eight threads take 8 chunks each

template <class T, int Rows>
GemmKernel gemv_kernel(const GemmParams &p) {
    if (p.b.by_k && p.k * static_cast<int64_t>(sizeof(T)) <= kShortColumn) return kernel_of<GemvAlongK<T, Rows, 8>>();
    if constexpr (sizeof(T) == 2)
        return p.b.by_k ? kernel_of<GemvMma<T, true>>() : kernel_of<GemvMma<T, false>>();
    else
        return p.b.by_k ? kernel_of<GemvAlongK<T, Rows, 128>>() : kernel_of<GemvAlongN<T, Rows>>();
}

infiniStatus_t plan_gemv(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *) {
    for (const bool exchange : {false, true}) {
        auto made = std::make_unique<GemmPlan>(problem, exchange);
        const GemmParams &p = made->params;
        if (p.m > kGemvRows || p.k > kLongestSum || (p.b.k != 1 && p.b.w != 1)) continue;
        const int64_t size = kDtypes[problem.operands[kC].dtype].size;
        if (made->batch > 1 && p.k * size <= (kLeastMatrix - 1) / std::max<int64_t>(p.n, 1)) continue;
        if (size >= 4 && p.m > 1 && p.a.k != 1) continue; // its rows would be read by elements
        made->description = p.b.by_k ? "gemv, B read along k" : "gemv, B read along n";
        if (exchange) made->description = p.b.by_k ? "gemv, A read along k" : "gemv, A read along m";
        const GemmKernel kernel = by_element(problem.operands[kC].dtype, [&](auto element) {
            using T = decltype(element);
            return p.m == 1 ? gemv_kernel<T, 1>(p) : gemv_kernel<T, kGemvRows>(p);
        });
        if (const infiniStatus_t status = made->use(kernel)) return status;
        *plan = std::move(made);
        return INFINI_STATUS_SUCCESS;
    }
    return INFINI_STATUS_NOT_IMPLEMENTED;
}

/* ---- choosing ------------------------------------------------------------------------------------------------------ */

struct Implementation {
    const char *name;
    infiniStatus_t (*plan)(const InfiniProblem &, std::unique_ptr<CudaPlan> *, size_t *);
};
constexpr Implementation kImplementations[] = {{"gemv", plan_gemv}, {"cublaslt", plan_cublaslt}, {"tiled", plan_tiled}};

/** Writes which of them the environment allows. */
infiniStatus_t allowed(bool (&may)[std::size(kImplementations)]) {
    const char *rest = secure_getenv("INFINIOP_CUDA_GEMM");
    for (size_t i = 0; i < std::size(may); ++i) may[i] = rest == nullptr || kImplementations[i].plan == plan_tiled;
    while (rest != nullptr) {
        const size_t length = std::strcspn(rest, ",");
        bool known = false;
        for (size_t i = 0; i < std::size(may); ++i)
            if (std::strlen(kImplementations[i].name) == length &&
                std::strncmp(kImplementations[i].name, rest, length) == 0)
                known = may[i] = true;
        if (!known)
            return fail(INFINI_STATUS_BAD_PARAM,
                        "cuda: INFINIOP_CUDA_GEMM names \"%.*s\", which is none of gemv, cublaslt and tiled",
                        static_cast<int>(length), rest);
        rest = rest[length] == ',' ? rest + length + 1 : nullptr;
    }
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t plan_product(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *workspace_size) {
    bool may[std::size(kImplementations)];
    if (const infiniStatus_t status = allowed(may)) return status;
    infiniStatus_t status = INFINI_STATUS_NOT_IMPLEMENTED;
    for (size_t i = 0; i < std::size(may) && status == INFINI_STATUS_NOT_IMPLEMENTED; ++i)
        if (may[i]) status = kImplementations[i].plan(problem, plan, workspace_size);
    return status;
}

} // namespace

infiniStatus_t plan_tiled(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *) {
    const InfiniOperand &c = problem.operands[kC];
    // C is written along what is contiguous in it.
    auto made = std::make_unique<GemmPlan>(problem, c.stride[1] == 1 && c.stride[2] != 1);
    int processors;
    if (const infiniStatus_t status = count_multiprocessors(problem.device_id, &processors)) return status;
    const TileSizes sizes = by_element(c.dtype, [](auto element) { return tile_sizes(element); });
    const GemmKernel &kernel = choose(sizes, *made, processors);
    made->description =
        "tiled " + std::to_string(kernel.tile_m) + "x" + std::to_string(kernel.tile_n) + " " + sizes.how;
    if (const infiniStatus_t status = made->use(kernel)) return status;
    *plan = std::move(made);
    return INFINI_STATUS_SUCCESS;
}

#define INFINI_PRODUCT_PLANNER(name)                                                          \
    infiniStatus_t plan_##name(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, \
                               size_t *workspace_size) {                                      \
        return plan_product(problem, plan, workspace_size);                                   \
    }
INFINI_PRODUCT_PLANNER(gemm)
INFINI_PRODUCT_PLANNER(gemm_add)
INFINI_PRODUCT_PLANNER(gemm_mul)

} // namespace infini::cuda
