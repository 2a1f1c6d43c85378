/* cublasLt on the CPU, for what the NVIDIA backend uses of it, beside fake_cudart.cc: products are computed in the order of their
 * stream. Numbers and rules are those of cublasLt's documentation, written down here once more: what does not keep to them is
 * refused, and the name of the status says why. An algorithm needs all that it was promised when it was asked for, and spoils
 * its whole workspace.
 *
 *  The environment chooses what there is, as name=number, separated by commas, in INFINI_FAKE_CUBLASLT:
 *    version (120900 is 12.9), create, heuristic, matmul (the status they answer), results (0: no algorithm), least (bytes of
 *    alignment without which there is none), workspace (bytes that an algorithm wants; -1: all that is offered) */
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device.h"

namespace {

using infini::cuda::bf16;
using infini::cuda::f16;
using infini::cuda::round_to;
using infini::cuda::widen;

enum { kOk = 0, kInvalid = 7, kNotSupported = 15 };
enum { kF32 = 0, kF64 = 1, kF16 = 2, kBf16 = 14 };
enum { k32F = 68, k64F = 70, k32FTf32 = 77 };

struct Desc {
    int compute, scale;
    int32_t op[2] = {0, 0};
};
struct Layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch = 1;
    int64_t stride = 0;

    int64_t size() const { return type == kF64 ? 8 : type == kF32 ? 4 : 2; }
    int64_t bytes() const {
        return ((batch - 1) * stride + (static_cast<int64_t>(cols) - 1) * ld + static_cast<int64_t>(rows)) * size();
    }
    bool operator==(const Layout &o) const {
        return type == o.type && rows == o.rows && cols == o.cols && ld == o.ld && batch == o.batch &&
               stride == o.stride;
    }
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t reductions = 7, alignment[4] = {256, 256, 256, 256};
};
struct Handle {
    int device;
};

/** What an algorithm is for; it is found again by the number in its opaque words. */
struct Plan {
    Desc desc;
    Layout layout[4];
    uint32_t alignment[4];
    uint64_t workspace;
    bool rounds; // partial sums to the type of the output
};
struct Algo {
    uint64_t data[8];
};
struct Result {
    Algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

std::atomic<int64_t> alive{0}, products{0}, handles{0};
thread_local std::string complaint;

int refuse(const std::string &why) {
    complaint = why;
    return kInvalid;
}

int setting(const char *name, int otherwise) {
    const char *text = std::getenv("INFINI_FAKE_CUBLASLT");
    const std::string all = std::string(",") + (text != nullptr ? text : "");
    const size_t at = all.find(std::string(",") + name + "=");
    return at == std::string::npos ? otherwise : std::atoi(all.c_str() + at + std::strlen(name) + 2);
}

/* ---- the fake runtime ---------------------------------------------------------------------------------------------- */

/** A function that the plugin with fake_cudart.cc exports, whatever its file's name is. */
void *of_cudart(const char *name) {
    struct Search {
        const char *name;
        void *found;
    } search = {name, nullptr};
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *data) {
            auto *one = static_cast<Search *>(data);
            if (info->dlpi_name == nullptr || *info->dlpi_name == '\0') return 0;
            void *const library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
            if (library == nullptr) return 0;
            one->found = dlsym(library, one->name);
            dlclose(library);
            return one->found != nullptr ? 1 : 0;
        },
        &search);
    if (search.found == nullptr) {
        std::fprintf(stderr, "fake cublasLt: no library of this process has %s\n", name);
        std::abort();
    }
    return search.found;
}

template <class F>
F *runtime(const char *name) {
    static F *const found = reinterpret_cast<F *>(of_cudart(name));
    return found;
}
int current_device() { return runtime<int()>("fakeCudartDevice")(); }
bool on_device(const void *p, int64_t bytes) {
    return runtime<int(const void *, size_t)>("fakeCudartHolds")(p, static_cast<size_t>(bytes)) != 0;
}

/* ---- products ------------------------------------------------------------------------------------------------------ */

struct Work {
    Plan plan;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_size;
    double alpha, beta;
};

/** With 10 bits of fraction. */
float tf32(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000) & ~uint32_t{0x1fff};
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

template <class T>
void multiply(const Work &w) {
    using A = infini::cuda::Acc<T>;
    const Layout &la = w.plan.layout[0], &lb = w.plan.layout[1], &ld = w.plan.layout[3];
    const bool ta = w.plan.desc.op[0] == 1, tb = w.plan.desc.op[1] == 1;
    const auto m = static_cast<int64_t>(ld.rows), n = static_cast<int64_t>(ld.cols),
               k = static_cast<int64_t>(ta ? la.rows : la.cols);
    const auto input = [&](T x) {
        if constexpr (std::is_same_v<T, float>)
            if (w.plan.desc.compute == k32FTf32) return tf32(x);
        return widen(x);
    };
    for (int64_t item = 0; item < ld.batch; ++item) {
        const T *a = static_cast<const T *>(w.a) + item * la.stride,
                *b = static_cast<const T *>(w.b) + item * lb.stride,
                *c = static_cast<const T *>(w.c) + item * ld.stride;
        T *d = static_cast<T *>(w.d) + item * ld.stride;
        for (int64_t j = 0; j < n; ++j)
            for (int64_t i = 0; i < m; ++i) {
                A sum = 0, earlier = 0;
                for (int64_t l = 0; l < k; ++l) {
                    if (w.plan.rounds && l == k / 2) earlier = widen(round_to<T>(std::exchange(sum, A{0})));
                    sum += input(a[ta ? l + i * la.ld : i + l * la.ld]) * input(b[tb ? j + l * lb.ld : l + j * lb.ld]);
                }
                sum = w.plan.rounds ? earlier + widen(round_to<T>(sum)) : sum;
                A value = static_cast<A>(w.alpha) * sum;
                if (w.beta != 0) value += static_cast<A>(w.beta) * widen(c[i + j * ld.ld]);
                d[i + j * ld.ld] = round_to<T>(value);
            }
    }
}

void work(const void *bytes) {
    const Work &w = *static_cast<const Work *>(bytes);
    std::memset(w.workspace, 0xff, w.workspace_size);
    switch (w.plan.layout[0].type) {
    case kF16: multiply<f16>(w); break;
    case kBf16: multiply<bf16>(w); break;
    case kF32: multiply<float>(w); break;
    default: multiply<double>(w);
    }
}

/** What cublasLt would say of a problem. */
int look_at(const Desc &desc, const Layout *const *layout) {
    static const char *const names[] = {"A", "B", "C", "D"};
    for (int i = 0; i < 4; ++i) {
        const Layout &l = *layout[i];
        if (l.rows == 0 || l.cols == 0 || l.batch < 1) return refuse(std::string(names[i]) + " is empty");
        if (l.ld < static_cast<int64_t>(l.rows))
            return refuse(std::string("ld of ") + names[i] + " is less than its rows");
        if (l.rows > 0x7fffffff || l.cols > 0x7fffffff) return kNotSupported;
        if (l.type != layout[0]->type) return refuse("types differ");
        if (l.batch != layout[0]->batch) return refuse("batch counts differ");
        if (l.stride < 0) return refuse("a negative batch stride");
    }
    const int type = layout[0]->type;
    const bool types = type == kF64
                           ? desc.compute == k64F && desc.scale == kF64
                           : desc.scale == kF32 && (desc.compute == k32F || (desc.compute == k32FTf32 && type == kF32));
    if (!types) return kNotSupported;
    const auto rows = [&](int i) { return desc.op[i] == 1 ? layout[i]->cols : layout[i]->rows; };
    const auto cols = [&](int i) { return desc.op[i] == 1 ? layout[i]->rows : layout[i]->cols; };
    if (rows(0) != layout[3]->rows || cols(1) != layout[3]->cols || cols(0) != rows(1))
        return refuse("sizes do not fit together");
    if (!(*layout[2] == *layout[3])) return refuse("C and D differ");
    if (layout[3]->batch > 1 && layout[3]->stride == 0) return refuse("all items of D are one");
    return kOk;
}

/** Plans by the numbers of their algorithms, of all threads. */
class Plans {
public:
    uint64_t add(const Plan &plan) {
        const std::lock_guard<std::mutex> lock(mutex_);
        plans_.push_back(plan);
        return plans_.size();
    }
    bool find(uint64_t number, Plan *plan) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (number < 1 || number > plans_.size()) return false;
        *plan = plans_[number - 1];
        return true;
    }

private:
    std::mutex mutex_;
    std::vector<Plan> plans_;
};
Plans &plans = *new Plans;

template <class T>
int set(T *to, const void *value, size_t size) {
    if (size != sizeof(T))
        return refuse("an attribute of " + std::to_string(size) + " bytes, needed " + std::to_string(sizeof(T)));
    std::memcpy(to, value, size);
    return kOk;
}

} // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

/** Writes how many objects but handles are alive, how many products were queued and how many handles made. */
FAKE void fakeCublasLtGetCounts(int64_t *counts) {
    counts[0] = alive;
    counts[1] = products;
    counts[2] = handles;
}

FAKE size_t cublasLtGetVersion() { return static_cast<size_t>(setting("version", 130100)); }
FAKE const char *cublasLtGetStatusName(int status) {
    static thread_local std::string text;
    text = "status " + std::to_string(status);
    if (status == kInvalid) text += " (" + complaint + ")";
    return text.c_str();
}
FAKE int cublasLtCreate(Handle **handle) {
    if (const int status = setting("create", kOk)) return status;
    *handle = new Handle{current_device()};
    ++handles;
    return kOk;
}

FAKE int cublasLtMatmulDescCreate(Desc **desc, int compute, int scale) {
    *desc = new Desc{compute, scale};
    ++alive;
    return kOk;
}
FAKE int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t size) {
    if (attribute != 3 && attribute != 4) return refuse("an attribute of a product");
    return set(&desc->op[attribute - 3], value, size);
}
FAKE int cublasLtMatmulDescDestroy(Desc *desc) {
    delete desc;
    --alive;
    return kOk;
}

FAKE int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *layout = new Layout{type, rows, cols, ld};
    ++alive;
    return kOk;
}
FAKE int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size) {
    if (attribute == 5) return set(&layout->batch, value, size);
    if (attribute == 6) return set(&layout->stride, value, size);
    return refuse("an attribute of a layout");
}
FAKE int cublasLtMatrixLayoutDestroy(Layout *layout) {
    delete layout;
    --alive;
    return kOk;
}

FAKE int cublasLtMatmulPreferenceCreate(Preference **preference) {
    *preference = new Preference;
    ++alive;
    return kOk;
}
FAKE int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t size) {
    if (attribute == 1) return set(&preference->workspace, value, size);
    if (attribute == 3) return set(&preference->reductions, value, size);
    if (attribute >= 5 && attribute <= 8) return set(&preference->alignment[attribute - 5], value, size);
    return refuse("an attribute of a preference");
}
FAKE int cublasLtMatmulPreferenceDestroy(Preference *preference) {
    delete preference;
    --alive;
    return kOk;
}

FAKE int cublasLtMatmulAlgoGetHeuristic(Handle *handle, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d,
                                        Preference *preference, int wanted, Result *results, int *count) {
    const Layout *const layouts[] = {a, b, c, d};
    *count = 0;
    if (const int status = setting("heuristic", kOk)) return status;
    if (wanted < 1 || handle->device != current_device()) return refuse("a handle of another device");
    if (const int status = look_at(*desc, layouts)) return status;
    const int asked = setting("workspace", 1000);
    const uint64_t workspace = asked < 0 ? preference->workspace : static_cast<uint64_t>(asked);
    if (setting("results", 1) == 0 || workspace > preference->workspace) return kOk;
    Plan plan{*desc, {*a, *b, *c, *d}, {}, workspace, (preference->reductions & 5) != 0};
    for (int i = 0; i < 4; ++i) {
        plan.alignment[i] = preference->alignment[i];
        if (plan.alignment[i] < static_cast<uint32_t>(setting("least", 0))) return kOk;
    }
    results[0] = {};
    results[0].algo.data[0] = plans.add(plan);
    results[0].workspace = workspace;
    *count = 1;
    return kOk;
}

FAKE int cublasLtMatmul(Handle *handle, Desc *desc, const void *alpha, const void *a, Layout *la, const void *b,
                        Layout *lb, const void *beta, const void *c, Layout *lc, void *d, Layout *ld, const Algo *algo,
                        void *workspace, size_t workspace_size, void *stream) {
    const Layout *const layouts[] = {la, lb, lc, ld};
    const void *const pointers[] = {a, b, c, d};
    if (const int status = setting("matmul", kOk)) return status;
    if (handle->device != current_device()) return refuse("a handle of another device");
    if (const int status = look_at(*desc, layouts)) return status;
    Plan plan;
    if (!plans.find(algo->data[0], &plan)) return refuse("no algorithm");
    bool same = desc->compute == plan.desc.compute && std::memcmp(desc->op, plan.desc.op, sizeof desc->op) == 0;
    for (int i = 0; i < 4; ++i) same = same && *layouts[i] == plan.layout[i];
    if (!same) return refuse("an algorithm of another problem");
    if (c != d) return refuse("C is not D");
    for (int i = 0; i < 4; ++i) {
        const Layout &l = *layouts[i];
        for (int64_t item = 0; item < l.batch; ++item)
            for (int64_t col = 0; col < static_cast<int64_t>(l.cols); ++col) {
                const auto at = reinterpret_cast<uintptr_t>(pointers[i]) +
                                static_cast<uintptr_t>((item * l.stride + col * l.ld) * l.size());
                if (at % plan.alignment[i] != 0) return refuse("less aligned than the algorithm was promised");
            }
        if (!on_device(pointers[i], l.bytes())) return refuse("an operand is not in the device's memory");
    }
    if (workspace_size < plan.workspace || reinterpret_cast<uintptr_t>(workspace) % 16 != 0 ||
        (workspace_size > 0 && !on_device(workspace, static_cast<int64_t>(workspace_size))))
        return refuse("the workspace");
    const auto factor = [&](const void *p) {
        return desc->scale == kF64 ? *static_cast<const double *>(p)
                                   : static_cast<double>(*static_cast<const float *>(p));
    };
    const Work all = {plan, a, b, c, d, workspace, workspace_size, factor(alpha), factor(beta)};
    ++products;
    using Queue = int(void *, void (*)(const void *), const void *, size_t);
    return runtime<Queue>("fakeCudartQueue")(stream, work, &all, sizeof all);
}
