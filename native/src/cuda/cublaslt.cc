/* cublasLt's matrices are columns of contiguous elements, `ld` apart, and each of the two that are multiplied may be taken transposed.
 * So a row-major C is computed as C^T = B^T A^T. What has no such form (no unit stride, a negative or zero one beside it, columns
 * that overlap) is copied to one that has, in the workspace. */
#include "cuda/cublaslt.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "core/dtype.h"
#include "core/layout.h"
#include "core/own_file.h"
#include "cuda/cublaslt_api.h"
#include "cuda/error.h"
#include "cuda/gemm.h"

namespace infini::cuda {

namespace {

constexpr size_t kOldestVersion = 120000; // 12.0
constexpr int64_t kMost = INT32_MAX;      // rows, columns and what lies between two: more is not supported everywhere
constexpr int64_t kAlignment = 16;        // bytes, of what the widest loads need
constexpr int64_t kRegion = 256;          // bytes that parts of the workspace are aligned to

/* ---- the library --------------------------------------------------------------------------------------------------- */

/** The value of an environment variable that is set and not empty, else NULL. */
const char *variable(const char *name) {
    const char *value = secure_getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

std::string version_text(size_t version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
}

constexpr const char *kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
/** Where the wheels have them, in site-packages. */
constexpr const char *kWheels[] = {"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"};

constexpr char kHere = 0;
const OwnFile own_file(&kHere);

/** site-packages, if this plugin is <site-packages>/infiniop_py/_lib/libinfini_cuda.so. */
std::string site_packages() {
    std::string path = own_file.path;
    for (int i = 0; i < 3 && !path.empty(); ++i) path.erase(path.find_last_of('/'));
    return path;
}

/** Locks are plain ones: a child of fork() does not get here (see DeviceGuard). */
class Library {
public:
    /** The functions; or NULL, and why in reason(). */
    const lt::Functions *functions() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!searched_) {
            search();
            searched_ = true;
        }
        return loaded_ ? &functions_ : nullptr;
    }
    /** Of the search; neither changes once functions() has returned. */
    const std::string &reason() const { return reason_; }
    const std::string &version() const { return version_; }

    /** The handle of the current device. */
    lt::Status handle(int device_id, lt::Handle *handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        lt::Handle &known = handles_[device_id];
        const lt::Status status = known != nullptr ? lt::kSuccess : functions_.create(&known);
        if (status != lt::kSuccess) known = nullptr;
        *handle = known;
        return status;
    }

private:
    void search() {
        if (const char *named = variable("INFINIOP_CUBLASLT_PATH")) {
            if (*named == '/')
                open(named);
            else
                reason_ = std::string("INFINIOP_CUBLASLT_PATH is ") + named + ", needed an absolute path";
            return;
        }
        for (const char *name : kNames)
            if (open(name, RTLD_NOLOAD)) return;
        const std::string beside = site_packages();
        for (const char *wheel : kWheels)
            if (!beside.empty() && open_file(beside + "/" + wheel)) return;
        for (const char *name : kNames)
            if (open(name)) return;
        const char *home = variable("CUDA_HOME");
        for (const char *name : kNames)
            if (home != nullptr && *home == '/' && open_file(std::string(home) + "/lib64/" + name)) return;
        reason_ += " (pip install nvidia-cublas, or name the library in INFINIOP_CUBLASLT_PATH)";
    }

    bool open_file(const std::string &path) { return access(path.c_str(), F_OK) == 0 && open(path.c_str()); }

    /** Loads a library and takes it if it is one; else adds why not to the reason. */
    bool open(const char *path, int flags = 0) {
        void *const library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | flags);
        if (library == nullptr) {
            const char *why = dlerror();
            return flags == 0 && refuse(why != nullptr ? why : path);
        }
        lt::Functions found;
#define INFINI_CUBLASLT_FIND(member, name, Result, parameters)                      \
    found.member = reinterpret_cast<decltype(found.member)>(dlsym(library, #name)); \
    if (found.member == nullptr) return refuse(std::string(path) + ": it has no " #name);
        INFINI_CUBLASLT_LIST(INFINI_CUBLASLT_FIND)
#undef INFINI_CUBLASLT_FIND
        const size_t version = found.version();
        if (version < kOldestVersion)
            return refuse(std::string(path) + ": it is version " + version_text(version) + ", needed " +
                          version_text(kOldestVersion) + " or later");
        functions_ = found;
        version_ = version_text(version);
        loaded_ = true;
        return true;
    }
    bool refuse(const std::string &why) {
        reason_ += (reason_.empty() ? "" : "; ") + why;
        return false;
    }

    std::mutex mutex_;
    bool searched_ = false, loaded_ = false;
    std::string reason_, version_;
    lt::Functions functions_{};
    std::map<int, lt::Handle> handles_;
};

Library &library() {
    static Library &one = *new Library; // never destroyed: used until the process is gone
    return one;
}

/** For the planner: another implementation may take the problem. */
infiniStatus_t decline(const std::string &why) {
    return fail(INFINI_STATUS_NOT_IMPLEMENTED, "cuda: gemm by cublasLt: %s", why.c_str());
}
infiniStatus_t decline(const lt::Functions &functions, const char *what, lt::Status status) {
    return decline(std::string(what) + ": " + functions.status_name(status));
}

infiniStatus_t status_of(lt::Status status) {
    switch (status) {
    case lt::kSuccess: return INFINI_STATUS_SUCCESS;
    case lt::kNotInitialized: return INFINI_STATUS_DEVICE_NOT_INITIALIZED;
    case lt::kArchMismatch: return INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED;
    case lt::kNotSupported: return INFINI_STATUS_NOT_IMPLEMENTED;
    default: return INFINI_STATUS_INTERNAL_ERROR;
    }
}

/* ---- matrices ------------------------------------------------------------------------------------------------------ */

/** A batch of matrices; strides and the offset in elements. */
struct Matrix {
    int64_t batch, rows, cols;
    int64_t offset, batch_stride, row_stride, col_stride;

    Matrix transposed() const { return {batch, cols, rows, offset, batch_stride, col_stride, row_stride}; }
};

Matrix matrix_of(const InfiniOperand &x) {
    return {x.shape[0], x.shape[1], x.shape[2], x.offset, x.stride[0], x.stride[1], x.stride[2]};
}
InfiniOperand operand_of(const Matrix &x, int32_t dtype) {
    InfiniOperand operand{};
    operand.dtype = dtype;
    operand.ndim = 3;
    operand.offset = x.offset;
    const int64_t shape[] = {x.batch, x.rows, x.cols}, stride[] = {x.batch_stride, x.row_stride, x.col_stride};
    for (int d = 0; d < 3; ++d) {
        operand.shape[d] = shape[d];
        operand.stride[d] = shape[d] == 1 ? 0 : stride[d];
    }
    return operand;
}

/** Columns of `rows` contiguous elements, `ld` apart. */
struct Columns {
    int64_t rows, cols, ld;
};

/** Writes how a matrix lies in memory in columns, if it does. */
bool in_columns(const Matrix &x, Columns *columns) {
    if (x.rows > 1 && x.row_stride != 1) return false;
    *columns = {x.rows, x.cols, x.cols > 1 ? x.col_stride : x.rows};
    return columns->ld >= x.rows && columns->ld <= kMost;
}

/** Can one of the two that are multiplied lie where it is, and is it then transposed? Of two ways that with the longer columns. */
bool as_input(const Matrix &x, Columns *columns, bool *transposed) {
    if (x.batch > 1 && x.batch_stride < 0) return false;
    *transposed = x.rows == 1;
    if (in_columns(*transposed ? x.transposed() : x, columns)) return true;
    *transposed = !*transposed;
    return in_columns(*transposed ? x.transposed() : x, columns);
}
bool as_output(const Matrix &x, Columns *columns) {
    return (x.batch == 1 || x.batch_stride > 0) && in_columns(x, columns);
}

/** C = A B for each item of a batch. */
struct Product {
    Matrix c, a, b;

    /** Should it be computed as C^T = B^T A^T? */
    bool exchanged() const {
        Columns columns;
        const bool by_columns = as_output(c, &columns), by_rows = as_output(c.transposed(), &columns);
        if (by_columns && by_rows) return c.cols > 1; // of two ways that with the longer columns
        if (by_columns || by_rows) return by_rows;
        return std::abs(c.col_stride) <= std::abs(c.row_stride);
    }
    Product exchange() const { return {c.transposed(), b.transposed(), a.transposed()}; }

    /** One B for all items: where their rows are rows of one taller product, that one. */
    Product taller() const {
        Product all = *this;
        if (c.batch == 1 || b.batch_stride != 0 || c.rows * c.batch > kMost) return all;
        for (Matrix *x : {&all.c, &all.a}) {
            if (x->rows == 1)
                x->row_stride = x->batch_stride;
            else if (x->batch_stride != x->rows * x->row_stride)
                return *this;
            x->rows *= x->batch;
        }
        for (Matrix *x : {&all.c, &all.a, &all.b}) {
            x->batch = 1;
            x->batch_stride = 0;
        }
        Columns columns;
        bool transposed;
        const bool in_place = as_input(all.a, &columns, &transposed) &&
                              (as_output(all.c, &columns) || as_output(all.c.transposed(), &columns));
        return in_place ? all : *this;
    }
};

/** The same elements in columns without gaps between items, each column at a multiple of kAlignment. False where they would take
 *  more than memory has. */
bool pack(const Matrix &x, int64_t size, bool by_columns, Matrix *made, int64_t *bytes) {
    const int64_t length = by_columns ? x.rows : x.cols, others = by_columns ? x.cols : x.rows;
    const int64_t unit = kAlignment / size, ld = (length + unit - 1) / unit * unit;
    const int64_t batch = x.batch_stride == 0 ? 1 : x.batch;
    int64_t item, all;
    if (__builtin_mul_overflow(ld, others, &item) || __builtin_mul_overflow(item, batch, &all) ||
        __builtin_mul_overflow(all, size, bytes) || *bytes > INT64_MAX / 8)
        return false;
    *made = {batch, x.rows, x.cols, 0, batch == 1 ? 0 : item, by_columns ? 1 : ld, by_columns ? ld : 1};
    return true;
}

/** Are the columns of an input nearer to be contiguous than its rows? */
bool nearer_by_columns(const Matrix &x) {
    const auto distance = [](int64_t stride) { return stride == 0 ? INT64_MAX : std::abs(stride); };
    return distance(x.row_stride) <= distance(x.col_stride);
}

/** The largest power of two, at most kAlignment, that divides the bytes between the columns and between the items. */
uint32_t step_alignment(const Columns &columns, const Matrix &x, int64_t size) {
    int64_t alignment = kAlignment;
    for (const int64_t step : {columns.cols > 1 ? columns.ld : 0, x.batch > 1 ? x.batch_stride : 0})
        while (step * size % alignment != 0) alignment /= 2;
    return static_cast<uint32_t>(alignment);
}

/* ---- parts --------------------------------------------------------------------------------------------------------- */

/** Plans an elementwise operator on operands that are not reduced yet. */
infiniStatus_t plan_part(InfiniOp op, int device_id, std::initializer_list<InfiniOperand> operands,
                         std::unique_ptr<CudaPlan> *plan) {
    InfiniProblem problem{};
    problem.struct_size = sizeof problem;
    problem.op = op;
    problem.device_id = device_id;
    for (const InfiniOperand &operand : operands) problem.operands[problem.n_operands++] = operand;
    reduce_dims(problem.operands, problem.n_operands);
    size_t workspace = 0;
    const auto planner = op == INFINI_OP_REARRANGE ? plan_rearrange : op == INFINI_OP_ADD ? plan_add : plan_mul;
    if (const infiniStatus_t status = planner(problem, plan, &workspace)) return status;
    return workspace == 0 ? INFINI_STATUS_SUCCESS
                          : fail(INFINI_STATUS_INTERNAL_ERROR, "cuda: a part of gemm wants a workspace");
}

infiniStatus_t run_part(const CudaPlan &plan, std::initializer_list<const void *> operands, void *stream) {
    return plan.run({nullptr, 0, const_cast<void *const *>(operands.begin()), 1, 0, stream});
}

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

struct Types {
    int32_t dtype;
    lt::DataType data, scale;
    lt::ComputeType compute;
};
constexpr Types kTypes[] = {
    {INFINI_DTYPE_F16, lt::kF16, lt::kF32, lt::kCompute32F},
    {INFINI_DTYPE_BF16, lt::kBf16, lt::kF32, lt::kCompute32F},
    {INFINI_DTYPE_F32, lt::kF32, lt::kF32, lt::kCompute32F},
    {INFINI_DTYPE_F64, lt::kF64, lt::kF64, lt::kCompute64F},
};

bool opted_in(const char *name) {
    const char *value = variable(name);
    return value != nullptr && std::strcmp(value, "1") == 0;
}

/** An object of the library that is destroyed with its owner. */
template <class T>
using Owned = std::unique_ptr<T, lt::Status (*)(T *)>;

class CublasLtPlan final : public CudaPlan {
public:
    infiniStatus_t make(const InfiniProblem &problem, size_t *workspace_size);
    infiniStatus_t run(const InfiniCall &call) const override;

private:
    enum { kC, kA, kB, kD };                    // operands of the call
    enum { kResult, kFirst, kSecond, kPlaces }; // cublasLt's: its first one is A, or B^T

    struct Place {
        int operand = kC;
        int64_t offset = 0; // bytes: from the operand's pointer, or of a copy from the start of the workspace
        std::unique_ptr<CudaPlan> copy;  // into the workspace; null: it is used where it lies
        uint32_t alignment = kAlignment; // bytes, that the fast algorithm is promised
        Owned<lt::MatrixLayoutObject> layout{nullptr, nullptr};

        char *at(const InfiniCall &call, char *workspace) const {
            return (copy != nullptr ? workspace : static_cast<char *>(call.operands[operand])) + offset;
        }
        infiniStatus_t fill(const InfiniCall &call, char *workspace) const {
            return copy == nullptr ? INFINI_STATUS_SUCCESS
                                   : run_part(*copy, {at(call, workspace), call.operands[operand]}, call.stream);
        }
    };
    struct Algorithm {
        bool found = false;
        lt::Algo algo{};
        uint32_t alignment[kPlaces] = {}; // bytes

        bool takes(char *const *pointers) const {
            bool aligned = found;
            for (int i = 0; i < kPlaces; ++i)
                aligned = aligned && reinterpret_cast<uintptr_t>(pointers[i]) % alignment[i] == 0;
            return aligned;
        }
    };

    infiniStatus_t place(int i, int operand, const Matrix &lies, Matrix *used);
    infiniStatus_t find_algorithm(Algorithm *algorithm);
    infiniStatus_t plan_parts(const InfiniProblem &problem, const Product &product, const Matrix &used, bool exchanged);

    const lt::Functions *functions_ = nullptr;
    lt::Handle handle_ = nullptr;
    Types types_{};
    int64_t size_ = 0; // bytes of an element
    bool epilogue_ = false;
    Owned<lt::MatmulDescObject> desc_{nullptr, nullptr};
    Place places_[kPlaces];
    Algorithm fast_, any_;            // for pointers that are aligned as promised, and for all
    std::unique_ptr<CudaPlan> after_; // what follows the product: copies C from the workspace, or is the epilogue
    std::unique_ptr<CudaPlan> tiled_; // the whole problem without cublasLt
    int64_t copies_bytes_ = 0;        // of the workspace; what algorithms use comes behind
    size_t scratch_bytes_ = 0;
};

infiniStatus_t CublasLtPlan::make(const InfiniProblem &problem, size_t *workspace_size) {
    const InfiniOperand *const x = problem.operands;
    if (x[kA].shape[2] == 0) return decline("K is 0");
    for (const Types &row : kTypes)
        if (row.dtype == x[kC].dtype) types_ = row;
    size_ = kDtypes[types_.dtype].size;
    if (types_.dtype == INFINI_DTYPE_F32 && opted_in("INFINIOP_CUDA_TF32")) types_.compute = lt::kCompute32FFastTf32;
    epilogue_ = problem.op != INFINI_OP_GEMM;
    device_id = problem.device_id;

    const Product given = Product{matrix_of(x[kC]), matrix_of(x[kA]), matrix_of(x[kB])}.taller();
    for (const int64_t extent : {given.c.batch, given.c.rows, given.c.cols, given.a.cols})
        if (extent > kMost)
            return decline("a size of " + std::to_string(extent) + ", at most " + std::to_string(kMost) +
                           " is possible");
    const bool exchanged = given.exchanged();
    const Product product = exchanged ? given.exchange() : given;

    functions_ = library().functions();
    if (functions_ == nullptr) return decline(library().reason());
    if (const lt::Status status = library().handle(device_id, &handle_))
        return decline(*functions_, "cublasLtCreate", status);
    lt::MatmulDesc desc;
    if (const lt::Status status = functions_->desc_create(&desc, types_.compute, types_.scale))
        return decline(*functions_, "cublasLtMatmulDescCreate", status);
    desc_ = {desc, functions_->desc_destroy};

    description = "cublasLt " + library().version() + ", " + (exchanged ? "C^T = B^T A^T" : "C = A B");
    Matrix used, ignored;
    if (const infiniStatus_t status = place(kResult, kC, product.c, &used)) return status;
    if (const infiniStatus_t status = place(kFirst, exchanged ? kB : kA, product.a, &ignored)) return status;
    if (const infiniStatus_t status = place(kSecond, exchanged ? kA : kB, product.b, &ignored)) return status;

    for (int i = 0; i < kPlaces; ++i) {
        fast_.alignment[i] = places_[i].alignment;
        any_.alignment[i] = static_cast<uint32_t>(size_);
    }
    if (const infiniStatus_t status = find_algorithm(&fast_)) return status;
    if (!fast_.found) return decline("it has no algorithm for these layouts");
    if (const infiniStatus_t status = find_algorithm(&any_)) return status;
    if (!any_.found) description += "; tiled, if a pointer is not aligned";

    if (const infiniStatus_t status = plan_parts(problem, product, used, exchanged)) return status;
    const size_t bytes = static_cast<size_t>(copies_bytes_) + scratch_bytes_;
    *workspace_size = bytes > 0 ? bytes + kRegion - 1 : 0; // it may begin anywhere
    return INFINI_STATUS_SUCCESS;
}

/** Decides where one of the three is used, and tells cublasLt. */
infiniStatus_t CublasLtPlan::place(int i, int operand, const Matrix &lies, Matrix *used) {
    Place &p = places_[i];
    p.operand = operand;
    *used = lies;
    Columns columns;
    bool transposed = false;
    const auto fits = [&] {
        return i == kResult ? as_output(*used, &columns) : as_input(*used, &columns, &transposed);
    };
    p.offset = lies.offset * size_;
    if (!fits()) {
        int64_t bytes;
        if (!pack(lies, size_, i == kResult || nearer_by_columns(lies), used, &bytes) || !fits())
            return decline("a copy of an operand would be too large");
        Matrix source = lies;
        source.batch = used->batch;
        if (const infiniStatus_t status =
                plan_part(INFINI_OP_REARRANGE, device_id,
                          {operand_of(*used, types_.dtype), operand_of(source, types_.dtype)}, &p.copy))
            return status;
        p.offset = copies_bytes_;
        copies_bytes_ += (bytes + kRegion - 1) / kRegion * kRegion;
        description += std::string(", ") + "cab"[operand] + " copied";
    }
    p.alignment = step_alignment(columns, *used, size_);

    lt::MatrixLayout layout;
    if (const lt::Status status = functions_->layout_create(&layout, types_.data, static_cast<uint64_t>(columns.rows),
                                                            static_cast<uint64_t>(columns.cols), columns.ld))
        return decline(*functions_, "cublasLtMatrixLayoutCreate", status);
    p.layout = {layout, functions_->layout_destroy};
    const auto batch = static_cast<int32_t>(lies.batch);
    for (const lt::Status status :
         {functions_->layout_set(layout, lt::kLayoutBatchCount, &batch, sizeof batch),
          functions_->layout_set(layout, lt::kLayoutBatchStride, &used->batch_stride, sizeof(int64_t))})
        if (status != lt::kSuccess) return decline(*functions_, "cublasLtMatrixLayoutSetAttribute", status);
    if (i == kResult) return INFINI_STATUS_SUCCESS;
    const int32_t op = transposed ? lt::kOpT : lt::kOpN;
    if (const lt::Status status =
            functions_->desc_set(desc_.get(), i == kFirst ? lt::kDescTransA : lt::kDescTransB, &op, sizeof op))
        return decline(*functions_, "cublasLtMatmulDescSetAttribute", status);
    description += std::string(i == kFirst ? ", " : "") + (transposed ? "T" : "N");
    return INFINI_STATUS_SUCCESS;
}

/** Asks for an algorithm that takes pointers of its alignment; it may be that there is none. */
infiniStatus_t CublasLtPlan::find_algorithm(Algorithm *algorithm) {
    int major = 0;
    if (const infiniStatus_t status =
            check("asking for the compute capability",
                  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_id)))
        return status;
    const uint64_t workspace = uint64_t{major >= 9 ? 32u : 4u} << 20;
    const bool rounds = size_ == 2 && opted_in("INFINIOP_CUDA_SPLIT_K_LOW_PRECISION");
    const uint32_t reductions = lt::kReductionNone | lt::kReductionComputeType |
                                (rounds ? lt::kReductionInPlace | lt::kReductionOutputType : 0);

    lt::Preference made;
    if (const lt::Status status = functions_->preference_create(&made))
        return decline(*functions_, "cublasLtMatmulPreferenceCreate", status);
    const Owned<lt::PreferenceObject> preference{made, functions_->preference_destroy};
    const struct {
        lt::PreferenceAttribute attribute;
        const void *value;
        size_t size;
    } wishes[] = {
        {lt::kPreferenceMaxWorkspace, &workspace, sizeof workspace},
        {lt::kPreferenceReductionScheme, &reductions, sizeof reductions},
        {lt::kPreferenceAlignmentA, &algorithm->alignment[kFirst], sizeof(uint32_t)},
        {lt::kPreferenceAlignmentB, &algorithm->alignment[kSecond], sizeof(uint32_t)},
        {lt::kPreferenceAlignmentC, &algorithm->alignment[kResult], sizeof(uint32_t)},
        {lt::kPreferenceAlignmentD, &algorithm->alignment[kResult], sizeof(uint32_t)},
    };
    for (const auto &wish : wishes)
        if (const lt::Status status = functions_->preference_set(made, wish.attribute, wish.value, wish.size))
            return decline(*functions_, "cublasLtMatmulPreferenceSetAttribute", status);

    lt::HeuristicResult best{};
    int count = 0;
    const lt::MatrixLayout c = places_[kResult].layout.get();
    const lt::Status status = functions_->heuristic(handle_, desc_.get(), places_[kFirst].layout.get(),
                                                    places_[kSecond].layout.get(), c, c, made, 1, &best, &count);
    if (status == lt::kNotSupported) return INFINI_STATUS_SUCCESS;
    if (status != lt::kSuccess) return decline(*functions_, "cublasLtMatmulAlgoGetHeuristic", status);
    if (count < 1 || best.state != lt::kSuccess || best.workspace_size > workspace) return INFINI_STATUS_SUCCESS;
    algorithm->found = true;
    algorithm->algo = best.algo;
    if (best.workspace_size > scratch_bytes_) scratch_bytes_ = best.workspace_size;
    return INFINI_STATUS_SUCCESS;
}

/** Plans what goes before and after the product, and what stands in for it. */
infiniStatus_t CublasLtPlan::plan_parts(const InfiniProblem &problem, const Product &product, const Matrix &used,
                                        bool exchanged) {
    const InfiniOperand *const x = problem.operands;
    const bool copied = places_[kResult].copy != nullptr;
    infiniStatus_t status = INFINI_STATUS_SUCCESS;
    if (epilogue_) // in place, or from the copy: then no rows of several items were put together
        status = plan_part(
            problem.op == INFINI_OP_GEMM_ADD ? INFINI_OP_ADD : INFINI_OP_MUL, device_id,
            {x[kC], copied ? operand_of(exchanged ? used.transposed() : used, types_.dtype) : x[kC], x[kD]}, &after_);
    else if (copied)
        status = plan_part(INFINI_OP_REARRANGE, device_id,
                           {operand_of(product.c, types_.dtype), operand_of(used, types_.dtype)}, &after_);
    if (status != INFINI_STATUS_SUCCESS) return status;
    size_t workspace = 0;
    status = plan_tiled(problem, &tiled_, &workspace);
    if (status != INFINI_STATUS_SUCCESS || workspace == 0) return status;
    return fail(INFINI_STATUS_INTERNAL_ERROR, "cuda: the tiled kernel wants a workspace as a part of gemm");
}

infiniStatus_t CublasLtPlan::run(const InfiniCall &call) const {
    char *const workspace =
        reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(call.workspace) + kRegion - 1) & ~uintptr_t{kRegion - 1});
    char *pointers[kPlaces];
    for (int i = 0; i < kPlaces; ++i) pointers[i] = places_[i].at(call, workspace);
    const Algorithm *const algorithm = fast_.takes(pointers) ? &fast_ : any_.takes(pointers) ? &any_ : nullptr;
    // With alpha == 0, A and B are not to be read, which cublasLt does not promise.
    if (call.alpha == 0 || algorithm == nullptr) return tiled_->run(call);

    const float beta = epilogue_ || call.beta == 0 ? 0.0f : call.beta;
    for (const int i : {kResult, kFirst, kSecond})
        if (i != kResult || beta != 0)
            if (const infiniStatus_t status = places_[i].fill(call, workspace)) return status;

    const double wide[] = {call.alpha, beta};
    const float narrow[] = {call.alpha, beta};
    const bool is_wide = types_.scale == lt::kF64;
    const void *const factors[] = {is_wide ? static_cast<const void *>(&wide[0]) : &narrow[0],
                                   is_wide ? static_cast<const void *>(&wide[1]) : &narrow[1]};
    const lt::MatrixLayout c = places_[kResult].layout.get();
    const lt::Status multiplied = functions_->matmul(
        handle_, desc_.get(), factors[0], pointers[kFirst], places_[kFirst].layout.get(), pointers[kSecond],
        places_[kSecond].layout.get(), factors[1], pointers[kResult], c, pointers[kResult], c, &algorithm->algo,
        scratch_bytes_ > 0 ? workspace + copies_bytes_ : nullptr, scratch_bytes_,
        static_cast<cudaStream_t>(call.stream));
    if (multiplied != lt::kSuccess)
        return fail(status_of(multiplied), "cuda: cublasLtMatmul: %s", functions_->status_name(multiplied));

    if (after_ == nullptr) return INFINI_STATUS_SUCCESS;
    if (epilogue_)
        return run_part(*after_,
                        {call.operands[kC], places_[kResult].copy != nullptr ? pointers[kResult] : call.operands[kC],
                         call.operands[kD]},
                        call.stream);
    return run_part(*after_, {call.operands[kC], pointers[kResult]}, call.stream);
}

} // namespace

infiniStatus_t plan_cublaslt(const InfiniProblem &problem, std::unique_ptr<CudaPlan> *plan, size_t *workspace_size) {
    auto made = std::make_unique<CublasLtPlan>();
    if (const infiniStatus_t status = made->make(problem, workspace_size)) return status;
    *plan = std::move(made);
    return INFINI_STATUS_SUCCESS;
}

} // namespace infini::cuda
