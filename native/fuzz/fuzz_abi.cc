/* Fuzzes the C interface: bytes are read as a sequence of calls on a pool of objects, live, destroyed and of other kinds. The
 * model says of each call whether it is refused and with what, and of each run what it writes. A refused call leaves all memory
 * and results as they were and says why; an accepted one writes what it must and nothing else.
 *
 * Operands lie in arenas between pages that cannot be touched, at one end or the other, so that a kernel without
 * instrumentation is caught too. Every byte string is a program: a fuzzer's mutations and cuts of one are others. */
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "infini_backend.h"
#include "infinirt.h"
#include "model.h"

using namespace model;

namespace {

#define EXPECT(condition, ...)                                                         \
    do {                                                                               \
        if (!(condition)) {                                                            \
            std::fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                       \
            std::fprintf(stderr, __VA_ARGS__);                                         \
            std::fprintf(stderr, "\nlast error: %s\n", infiniopGetLastErrorMessage()); \
            std::abort();                                                              \
        }                                                                              \
    } while (0)

/* ---- bytes ----------------------------------------------------------------------------------------------------------- */

class Bytes {
public:
    Bytes(const uint8_t *data, size_t size) : at_(data), end_(data + size) {}
    bool empty() const { return at_ == end_; }
    uint8_t byte() { return empty() ? 0 : *at_++; }
    int8_t signed_byte() { return static_cast<int8_t>(byte()); }
    int below(int n) { return byte() % n; }
    /** True for one byte in `n`, never once the bytes have come to an end. */
    bool one_in(int n) { return byte() % n == n - 1; }

private:
    const uint8_t *at_, *end_;
};

constexpr size_t kSmallSizes[] = {1,  2,  3,  0,  4,  5,  7,   8,   9,   15,  16,  17,  31,  32,  33,   40,
                                  48, 63, 64, 65, 96, 97, 100, 127, 128, 129, 255, 256, 257, 300, 1000, 1025};
constexpr size_t kHugeSizes[] = {
    size_t{1} << 31, (size_t{1} << 32) - 1, size_t{1} << 32, size_t{1} << 61, size_t{1} << 62,
    SIZE_MAX / 2,    SIZE_MAX / 2 + 1,      SIZE_MAX / 3,    SIZE_MAX - 1,    SIZE_MAX};

size_t any_size(Bytes &in) {
    const uint8_t b = in.byte();
    if (b < 128) return kSmallSizes[b % std::size(kSmallSizes)];
    return b < 224 ? b % 8 : kHugeSizes[b % std::size(kHugeSizes)];
}
ptrdiff_t any_stride(Bytes &in) {
    const uint8_t b = in.byte();
    if (b < 200) return in.signed_byte();
    const auto huge = static_cast<ptrdiff_t>(kHugeSizes[b % std::size(kHugeSizes)]);
    return b < 228 ? huge : static_cast<ptrdiff_t>(0 - static_cast<size_t>(huge));
}
int any_dtype(Bytes &in) {
    constexpr int kOften[] = {INFINI_DTYPE_F32, INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F64};
    const uint8_t b = in.byte();
    return b < 160 ? kOften[b % 4] : b < 250 ? b % 20 : b % 2 == 0 ? -b : 20 + b;
}

Layout any_layout(Bytes &in) {
    Layout layout;
    layout.dtype = any_dtype(in);
    const uint8_t rank = in.byte();
    layout.ndim = rank < 192 ? rank % 5 : rank < 250 ? rank % (kMostDims + 2) : rank < 253 ? size_t{1} << 32 : SIZE_MAX;
    layout.row_major = in.one_in(3);
    for (size_t d = 0; d < std::min(layout.ndim, kMostDims + 1); ++d) {
        layout.shape[d] = any_size(in);
        layout.strides[d] = any_stride(in);
    }
    return layout;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

constexpr size_t kArena = 16 * 1024, kPage = 4096, kWorkspace = 4 << 20;
constexpr int kArenas = kMostOperands;

struct Arenas {
    Arenas() {
        const size_t total = kArenas * (kArena + kPage) + kPage + kWorkspace + kPage;
        void *const all = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED) std::abort();
        auto *at = static_cast<unsigned char *>(all) + kPage;
        for (unsigned char *&one : arena) {
            one = at;
            at += kArena + kPage;
        }
        workspace_end = at + kWorkspace;
        bool ok = mprotect(at, kWorkspace, PROT_READ | PROT_WRITE) == 0;
        for (unsigned char *one : arena) ok = ok && mprotect(one, kArena, PROT_READ | PROT_WRITE) == 0;
        if (!ok) std::abort();
    }
    /** Are all bytes from p + low to p + high in one arena? */
    bool hold(const unsigned char *p, int64_t low, int64_t high) const {
        for (const unsigned char *one : arena) {
            const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(one));
            if (at + low >= 0 && at + high <= static_cast<int64_t>(kArena)) return true;
        }
        return false;
    }
    unsigned char *arena[kArenas];
    unsigned char *workspace_end;
};
Arenas &arenas() {
    static Arenas all;
    return all;
}

/** What all arenas hold. */
class Snapshot {
public:
    Snapshot() {
        if (!spare().empty()) {
            bytes_ = std::move(spare().back());
            spare().pop_back();
        }
        bytes_.resize(kArenas * kArena);
        for (int i = 0; i < kArenas; ++i) std::memcpy(&bytes_[i * kArena], arenas().arena[i], kArena);
    }
    ~Snapshot() { spare().push_back(std::move(bytes_)); }
    Snapshot(const Snapshot &) = delete;
    void restore() const {
        for (int i = 0; i < kArenas; ++i) std::memcpy(arenas().arena[i], &bytes_[i * kArena], kArena);
    }
    bool unchanged() const {
        for (int i = 0; i < kArenas; ++i)
            if (std::memcmp(arenas().arena[i], &bytes_[i * kArena], kArena) != 0) return false;
        return true;
    }
    /** Takes `n` bytes of an arena as they are now. */
    void accept(const unsigned char *p, size_t n) {
        for (int i = 0; i < kArenas; ++i)
            if (p >= arenas().arena[i] && p < arenas().arena[i] + kArena)
                std::memcpy(&bytes_[i * kArena + static_cast<size_t>(p - arenas().arena[i])], p, n);
    }

private:
    /** Memory of earlier ones: most of the time of a run would else go into making it. */
    static std::vector<std::vector<unsigned char>> &spare() {
        static std::vector<std::vector<unsigned char>> all;
        return all;
    }
    std::vector<unsigned char> bytes_;
};

/* ---- objects --------------------------------------------------------------------------------------------------------- */

struct Call { // of an operator
    void *pointers[kMostOperands] = {};
    size_t n_pointers = 0;
    void *workspace = nullptr;
    size_t workspace_size = 0;
    float alpha = 1, beta = 0;
};

struct Node { // of a graph
    std::shared_ptr<const Problem> problem;
    Call call;
};

enum Kind { kHandle, kTensor, kDescriptor, kGraph, kStream, kEvent, kMemory, kKinds };

struct Object {
    Kind kind;
    void *pointer;
    bool live = true;
    Operand operand{};                        // of a tensor descriptor
    std::shared_ptr<const Problem> problem{}; // of an operator descriptor
    size_t bytes = 0;                         // of memory; of a descriptor's workspace
    std::vector<Node> nodes{};                // of a graph
    bool timed = true, recorded = false;      // of an event
};

constexpr size_t kMostObjects = 48, kMostCalls = 48;

/* ---- the operators' own functions ------------------------------------------------------------------------------------ */

infiniStatus_t create(Op op, infiniopHandle_t handle, InfiniopDescriptor **desc, const infiniopTensorDescriptor_t *x,
                      float epsilon) {
    switch (op) {
    case kGemm: return infiniopCreateGemmDescriptor(handle, desc, x[0], x[1], x[2]);
    case kAdd: return infiniopCreateAddDescriptor(handle, desc, x[0], x[1], x[2]);
    case kMul: return infiniopCreateMulDescriptor(handle, desc, x[0], x[1], x[2]);
    case kGemmAdd: return infiniopCreateGemmAddDescriptor(handle, desc, x[0], x[1], x[2], x[3]);
    case kGemmMul: return infiniopCreateGemmMulDescriptor(handle, desc, x[0], x[1], x[2], x[3]);
    case kAddRMSNorm: return infiniopCreateAddRMSNormDescriptor(handle, desc, x[0], x[1], x[2], x[3], x[4], epsilon);
    default: return infiniopCreateRearrangeDescriptor(handle, desc, x[0], x[1]);
    }
}

infiniStatus_t run(Op op, InfiniopDescriptor *desc, const Call &c, void *stream) {
    void *const *x = c.pointers;
    switch (op) {
    case kGemm: return infiniopGemm(desc, c.workspace, c.workspace_size, x[0], x[1], x[2], c.alpha, c.beta, stream);
    case kAdd: return infiniopAdd(desc, c.workspace, c.workspace_size, x[0], x[1], x[2], stream);
    case kMul: return infiniopMul(desc, c.workspace, c.workspace_size, x[0], x[1], x[2], stream);
    case kGemmAdd: return infiniopGemmAdd(desc, c.workspace, c.workspace_size, x[0], x[1], x[2], x[3], c.alpha, stream);
    case kGemmMul: return infiniopGemmMul(desc, c.workspace, c.workspace_size, x[0], x[1], x[2], x[3], c.alpha, stream);
    case kAddRMSNorm:
        return infiniopAddRMSNorm(desc, c.workspace, c.workspace_size, x[0], x[1], x[2], x[3], x[4], stream);
    default: return infiniopRearrange(desc, x[0], x[1], stream);
    }
}

infiniStatus_t destroy(Op op, InfiniopDescriptor *desc) {
    switch (op) {
    case kGemm: return infiniopDestroyGemmDescriptor(desc);
    case kAdd: return infiniopDestroyAddDescriptor(desc);
    case kMul: return infiniopDestroyMulDescriptor(desc);
    case kGemmAdd: return infiniopDestroyGemmAddDescriptor(desc);
    case kGemmMul: return infiniopDestroyGemmMulDescriptor(desc);
    case kAddRMSNorm: return infiniopDestroyAddRMSNormDescriptor(desc);
    default: return infiniopDestroyRearrangeDescriptor(desc);
    }
}

infiniStatus_t workspace_size(Op op, InfiniopDescriptor *desc, size_t *size) {
    switch (op) {
    case kGemm: return infiniopGetGemmWorkspaceSize(desc, size);
    case kAdd: return infiniopGetAddWorkspaceSize(desc, size);
    case kMul: return infiniopGetMulWorkspaceSize(desc, size);
    case kGemmAdd: return infiniopGetGemmAddWorkspaceSize(desc, size);
    case kGemmMul: return infiniopGetGemmMulWorkspaceSize(desc, size);
    default: return infiniopGetAddRMSNormWorkspaceSize(desc, size);
    }
}

/* ---- one program ----------------------------------------------------------------------------------------------------- */

class Program {
public:
    explicit Program(Bytes bytes) : in(bytes) {
        objects.reserve(kMostObjects + 1); // pointers to them stay
    }

    void run() {
        create_handle(false);
        for (size_t i = 0; i < kMostCalls && !in.empty(); ++i) step();
        for (Object &object : objects)
            if (object.live) destroy_object(object.kind, object.pointer, object.problem ? object.problem->op : kGemm);
        infiniopSetNumThreads(0);
        infiniopSetNumThreadsLocal(0);
    }

private:
    void step();

    /** Makes a call and holds it to a verdict; whether it succeeded. */
    template <class Function>
    bool call(const char *what, const Verdict &verdict, Function &&function) {
        infinirtSetLastError(INFINI_STATUS_SUCCESS, "");
        const infiniStatus_t status = function();
        EXPECT(verdict.agrees(status), "%s answers %d, %s", what, status, infiniopStatusString(status));
        const bool said = *infiniopGetLastErrorMessage() != '\0';
        EXPECT(said == (status != INFINI_STATUS_SUCCESS), "%s answers %d %s message", what, status,
               said ? "with a" : "without a");
        return status == INFINI_STATUS_SUCCESS;
    }

    /** A call that writes a result, or nothing; a NULL result now and then. */
    template <class T, class Function>
    bool call_for(const char *what, Verdict verdict, T &result, Function &&function) {
        const T before = result;
        const bool null = in.one_in(32);
        if (null) verdict.refuse(INFINI_STATUS_NULL_POINTER);
        const bool done = call(what, verdict, [&] { return function(null ? nullptr : &result); });
        EXPECT(done || std::memcmp(&result, &before, sizeof result) == 0, "%s was refused and wrote its result", what);
        return done;
    }

    Object *find(Kind kind, const void *pointer) {
        for (Object &object : objects)
            if (object.live && object.kind == kind && object.pointer == pointer) return &object;
        return nullptr;
    }

    /** A pointer for an argument: mostly a live object of this kind. */
    void *pick(Kind kind) {
        const uint8_t b = in.byte();
        if (b >= 240) {
            static uint64_t nothing[8];
            void *const first = objects.front().pointer; // the handle
            void *const odd[] = {nullptr, reinterpret_cast<void *>(uintptr_t{1}), reinterpret_cast<void *>(UINTPTR_MAX),
                                 nothing, static_cast<char *>(first) + 1,         static_cast<char *>(first) + 8};
            return odd[b % std::size(odd)];
        }
        if (b >= 208) return objects[b % objects.size()].pointer;
        size_t n = 0;
        for (const Object &object : objects) n += object.live && object.kind == kind;
        if (n == 0) return nullptr;
        size_t skip = b % n;
        for (auto object = objects.rbegin();; ++object) // the latest first
            if (object->live && object->kind == kind && skip-- == 0) return object->pointer;
    }

    Object *need(Kind kind, const void *pointer, Verdict &verdict) {
        Object *const found = find(kind, pointer);
        if (found == nullptr) verdict.refuse(pointer == nullptr ? INFINI_STATUS_NULL_POINTER : INFINI_STATUS_BAD_PARAM);
        return found;
    }

    bool full() const { return objects.size() >= kMostObjects; }
    Object &keep(Kind kind, void *pointer) {
        EXPECT(pointer != nullptr && find(kind, pointer) == nullptr, "a new object is NULL or one there is already");
        objects.push_back({kind, pointer});
        return objects.back();
    }

    void create_handle(bool may_fail);
    bool create_tensor(const Layout &layout, infiniopTensorDescriptor_t *tensor);
    void create_problem();
    void create_from_tensors(Op op, infiniopHandle_t handle, const infiniopTensorDescriptor_t *tensors, float epsilon);
    void create_from_numbers(Op op, infiniopHandle_t handle, const int64_t *numbers, size_t n, float epsilon);
    void kept_descriptor(InfiniopDescriptor *desc, const Problem &problem);
    void destroy_object(Kind kind, void *pointer, Op op);
    void ask();
    void run_operator();
    bool place(const Object &descriptor, Call &call);
    void fill(const Problem &problem, const Call &call);
    void append();
    void run_graph();
    void memory();
    void streams_and_events();
    void devices();
    float scalar() {
        constexpr float kScalars[] = {1, 0, -1, 2, 0.5f, -0.25f, 3, NAN, INFINITY, -0.0f};
        return kScalars[in.below(std::size(kScalars))];
    }

    Bytes in;
    std::vector<Object> objects;
};

void Program::create_handle(bool may_fail) {
    infiniopHandle_t handle = nullptr;
    const auto make = [&](infiniopHandle_t *out) { return infiniopCreateHandle(out); };
    const bool done =
        may_fail ? call_for("CreateHandle", {}, handle, make) : call("CreateHandle", {}, [&] { return make(&handle); });
    if (!done) return;
    keep(kHandle, handle);
    EXPECT(handle->device == INFINI_DEVICE_CPU && handle->device_id == 0, "a handle's public fields");
}

bool Program::create_tensor(const Layout &layout, infiniopTensorDescriptor_t *tensor) {
    Verdict verdict;
    check_layout(layout, verdict);
    // On the heap and no longer than the rank, or than there can be.
    const size_t n = std::min(layout.ndim, kMostDims + 1);
    const std::vector<size_t> shape(layout.shape, layout.shape + n);
    const std::vector<ptrdiff_t> strides(layout.strides, layout.strides + n);
    const bool no_shape = in.one_in(64);
    if (no_shape && layout.ndim > 0) verdict.refuse(INFINI_STATUS_NULL_POINTER);
    infiniopTensorDescriptor_t made = nullptr;
    if (!call_for("CreateTensorDescriptor", verdict, made, [&](infiniopTensorDescriptor_t *out) {
            return infiniopCreateTensorDescriptor(out, layout.ndim, no_shape ? nullptr : shape.data(),
                                                  layout.row_major ? nullptr : strides.data(), layout.dtype);
        }))
        return false;
    keep(kTensor, made).operand = taken(layout);
    *tensor = made;
    return true;
}

/** A layout of such a shape. */
Layout layout_of(Bytes &in, int dtype, size_t ndim, const size_t *shape) {
    Layout layout;
    layout.dtype = dtype;
    layout.ndim = ndim;
    std::copy(shape, shape + ndim, layout.shape);
    const uint8_t mode = in.byte();
    layout.row_major = mode % 8 == 0;
    // Dimensions from the innermost on, which is the last one, or the first, or one in between.
    const size_t turn = mode % 8 == 2 && ndim > 0 ? in.byte() % ndim : 0;
    size_t stride = 1;
    for (size_t i = 0; i < ndim; ++i) {
        const size_t d = mode % 8 == 1 ? i : (2 * ndim - 1 - i - turn) % ndim;
        layout.strides[d] = static_cast<ptrdiff_t>(stride);
        if (__builtin_mul_overflow(stride, std::max<size_t>(shape[d], 1), &stride)) stride = 1;
        if (mode % 8 == 3 && i == 0) stride += in.byte() % 24; // rows with gaps
    }
    const uint8_t mask = mode % 8 == 4 || mode % 8 == 5 ? in.byte() : 0;
    for (size_t d = 0; d < ndim; ++d) {
        if ((mask >> d % 8 & 1) != 0) layout.strides[d] = mode % 8 == 4 ? -layout.strides[d] : 0;
        if (mode % 8 == 6) layout.strides[d] = in.signed_byte();
        if (mode == 7) layout.strides[d] = any_stride(in);
    }
    return layout;
}

/** Layouts that belong together, but for a mutation at times. */
void Program::create_problem() {
    const auto op = static_cast<Op>(in.below(kOps));
    const OpRow &row = kRows[op];
    const int dtype = any_dtype(in);
    size_t shapes[kMostOperands][kMostDims + 1] = {}, ranks[kMostOperands];
    const auto size = [&] { return kSmallSizes[in.below(std::size(kSmallSizes))]; };
    if (op == kGemm || op == kGemmAdd || op == kGemmMul) {
        const size_t m = size(), n = size(), k = size(), batch = in.byte() % 4;
        const size_t sides[4][2] = {{m, n}, {m, k}, {k, n}, {m, n}};
        const uint8_t kinds = in.byte();
        for (int i = 0; i < row.n_operands; ++i) {
            const int kind = kinds >> (2 * (i % 3)) & 3; // of the batch: none, one, or that of c
            ranks[i] = batch == 1 && kind == 0 ? 2 : 3;
            if (i == 1 || i == 2) ranks[i] = kind == 0 ? 2 : 3;
            size_t *at = shapes[i];
            if (ranks[i] == 3) *at++ = (i == 1 || i == 2) && kind == 1 ? 1 : batch;
            std::copy(sides[i], sides[i] + 2, at);
        }
    } else {
        const uint8_t b = in.byte();
        const size_t rank = b < 200 ? b % 5 : b % (kMostDims + 2);
        for (size_t d = 0; d < rank; ++d) shapes[0][d] = rank > 4 ? 1 + in.byte() % 3 : size();
        for (int i = 0; i < row.n_operands; ++i) {
            ranks[i] = rank;
            std::copy(shapes[0], shapes[0] + rank, shapes[i]);
        }
        if (op == kAddRMSNorm) {
            ranks[4] = 1;
            shapes[4][0] = rank > 0 ? shapes[0][rank - 1] : 1;
        }
    }
    Layout layouts[kMostOperands];
    const int odd = in.one_in(8) ? in.below(row.n_operands) : -1;
    for (int i = 0; i < row.n_operands; ++i) {
        const int what = i == odd ? in.below(4) : -1;
        if (what == 0) ranks[i] = in.byte() % 4;
        if (what == 1) shapes[i][in.below(3)] = any_size(in);
        layouts[i] = layout_of(in, what == 2 || (op == kAddRMSNorm && i == 4 && in.one_in(2)) ? any_dtype(in) : dtype,
                               ranks[i], shapes[i]);
    }
    constexpr float kEpsilons[] = {1e-5f, 0.125f, 0, 1e-12f, -1, NAN, INFINITY};
    const float epsilon = kEpsilons[in.below(std::size(kEpsilons))];
    auto *const handle = static_cast<infiniopHandle_t>(pick(kHandle));
    if (in.one_in(2)) {
        infiniopTensorDescriptor_t tensors[kMostOperands] = {};
        for (int i = 0; i < row.n_operands; ++i)
            if (full() || !create_tensor(layouts[i], &tensors[i])) return;
        if (!full()) create_from_tensors(op, handle, tensors, epsilon);
    } else {
        std::vector<int64_t> numbers;
        for (int i = 0; i < row.n_operands; ++i) {
            const Layout &layout = layouts[i];
            const size_t itemsize = is_dtype(layout.dtype) ? size_of(layout.dtype) : 1;
            numbers.push_back(layout.dtype);
            numbers.push_back(static_cast<int64_t>(layout.ndim));
            for (size_t d = 0; d < layout.ndim; ++d) numbers.push_back(static_cast<int64_t>(layout.shape[d]));
            size_t stride = itemsize;
            std::vector<int64_t> strides(layout.ndim);
            for (size_t d = layout.ndim; d-- > 0; stride *= std::max<size_t>(layout.shape[d], 1))
                strides[d] =
                    static_cast<int64_t>(layout.row_major ? stride : static_cast<size_t>(layout.strides[d]) * itemsize);
            numbers.insert(numbers.end(), strides.begin(), strides.end());
        }
        if (in.one_in(8)) {
            const size_t at = in.byte() % numbers.size();
            const int what = in.below(4);
            if (what == 0) numbers.resize(at);
            if (what == 1) numbers.push_back(in.signed_byte());
            if (what == 2) numbers[at] = in.signed_byte();
            if (what == 3) numbers[at] = static_cast<int64_t>(any_size(in));
        }
        create_from_numbers(op, handle, numbers.data(), numbers.size(), epsilon);
    }
}

void Program::create_from_tensors(Op op, infiniopHandle_t handle, const infiniopTensorDescriptor_t *tensors,
                                  float epsilon) {
    Problem problem;
    problem.op = op;
    problem.epsilon = epsilon;
    Verdict verdict;
    need(kHandle, handle, verdict);
    bool known = true;
    for (int i = 0; i < problem.row().n_operands; ++i) {
        const Object *const tensor = need(kTensor, tensors[i], verdict);
        known = known && tensor != nullptr;
        if (tensor != nullptr) problem.operands[i] = tensor->operand;
    }
    if (known) check_problem(problem, verdict);
    InfiniopDescriptor *desc = nullptr;
    if (call_for(problem.row().name, verdict, desc,
                 [&](InfiniopDescriptor **out) { return create(op, handle, out, tensors, epsilon); }))
        kept_descriptor(desc, problem);
}

void Program::create_from_numbers(Op op, infiniopHandle_t handle, const int64_t *numbers, size_t n, float epsilon) {
    Problem problem;
    problem.op = op;
    problem.epsilon = epsilon;
    Verdict verdict;
    read_layouts(numbers, n, problem, verdict);
    if (verdict.accepts()) check_problem(problem, verdict);
    need(kHandle, handle, verdict);
    const std::unique_ptr<int64_t[]> exact(new int64_t[n]); // no longer than it is
    std::copy(numbers, numbers + n, exact.get());
    const int null = in.one_in(32) ? in.below(3) : -1;
    if (null >= 0) verdict.refuse(INFINI_STATUS_NULL_POINTER);
    const char *name = problem.row().name;
    if (in.one_in(64)) {
        name = in.one_in(2) ? "" : "gemm_";
        verdict.refuse(INFINI_STATUS_BAD_PARAM);
    }
    InfiniopDescriptor *desc = nullptr;
    size_t size = 12345;
    const bool done = call_for("CreateDescriptor", verdict, desc, [&](InfiniopDescriptor **out) {
        return infiniopCreateDescriptor(handle, out, null == 0 ? nullptr : &size, null == 1 ? nullptr : name,
                                        null == 2 ? nullptr : exact.get(), n, epsilon);
    });
    if (done) {
        kept_descriptor(desc, problem);
        EXPECT(objects.back().bytes == size, "two sizes of one workspace");
    } else {
        EXPECT(size == 12345, "a refused CreateDescriptor wrote the workspace size");
    }
}

void Program::kept_descriptor(InfiniopDescriptor *desc, const Problem &problem) {
    Object &object = keep(kDescriptor, desc);
    object.problem = std::make_shared<const Problem>(problem);
    size_t size = 0;
    if (problem.row().takes_workspace)
        EXPECT(workspace_size(problem.op, desc, &size) == INFINI_STATUS_SUCCESS,
               "no workspace size of a new descriptor");
    object.bytes = size;
    EXPECT(desc->device_type == INFINI_DEVICE_CPU && desc->device_id == 0, "a descriptor's public fields");
}

void Program::destroy_object(Kind kind, void *pointer, Op op) {
    Verdict verdict;
    Object *const object = pointer == nullptr ? nullptr : need(kind, pointer, verdict);
    if (object != nullptr && kind == kDescriptor && object->problem->op != op) verdict.refuse(INFINI_STATUS_BAD_PARAM);
    const bool done = call("a destroy function", verdict, [&] {
        switch (kind) {
        case kHandle: return infiniopDestroyHandle(static_cast<infiniopHandle_t>(pointer));
        case kTensor: return infiniopDestroyTensorDescriptor(static_cast<infiniopTensorDescriptor_t>(pointer));
        case kDescriptor: return destroy(op, static_cast<InfiniopDescriptor *>(pointer));
        case kGraph: return infiniopDestroyGraph(static_cast<infiniopGraph_t>(pointer));
        case kStream: return infinirtStreamDestroy(pointer);
        case kEvent: return infinirtEventDestroy(pointer);
        default: return infinirtFree(pointer);
        }
    });
    if (done && object != nullptr) {
        object->live = false;
        object->nodes.clear();
    }
}

/** The functions that only tell something. */
void Program::ask() {
    auto *const desc = static_cast<InfiniopDescriptor *>(pick(kDescriptor));
    Verdict verdict;
    const Object *const object = need(kDescriptor, desc, verdict);
    infiniDevice_t device = -7;
    int id = -7;
    const char *text = nullptr;
    size_t size = 12345;
    switch (in.below(5)) {
    case 0:
        if (call_for("GetDescriptorDeviceType", verdict, device,
                     [&](infiniDevice_t *out) { return infiniopGetDescriptorDeviceType(desc, out); }))
            EXPECT(device == INFINI_DEVICE_CPU, "another device");
        return;
    case 1:
        if (call_for("GetDescriptorDeviceId", verdict, id,
                     [&](int *out) { return infiniopGetDescriptorDeviceId(desc, out); }))
            EXPECT(id == 0, "another device");
        return;
    case 2:
        if (call_for("GetDescriptorPlan", verdict, text,
                     [&](const char **out) { return infiniopGetDescriptorPlan(desc, out); }))
            EXPECT(std::strlen(text) < 1000, "no text");
        return;
    default: {
        const Op op = object != nullptr && !in.one_in(8) ? object->problem->op : static_cast<Op>(in.below(kOps));
        if (op == kRearrange) return;
        if (object != nullptr && object->problem->op != op) verdict.refuse(INFINI_STATUS_BAD_PARAM);
        if (call_for("a workspace size", verdict, size, [&](size_t *out) { return workspace_size(op, desc, out); }))
            EXPECT(size == object->bytes, "another workspace size");
    }
    }
}

/* ---- runs ------------------------------------------------------------------------------------------------------------ */

bool is_small(const Problem &problem) {
    for (int i = 0; i < problem.row().n_operands; ++i) {
        const Operand &x = problem.operands[i];
        if (x.count() > 4096 || static_cast<Wide>(x.high()) - x.low() > static_cast<Wide>(kArena)) return false;
    }
    return problem.work() <= 1 << 15;
}

/** Is an element of an operand among the bytes of the workspace? */
bool is_on_an_operand(const Object &descriptor, const Call &call) {
    const auto *const workspace = static_cast<const unsigned char *>(call.workspace);
    if (descriptor.bytes == 0 || !arenas().hold(workspace, 0, static_cast<int64_t>(descriptor.bytes))) return false;
    for (size_t i = 0; i < call.n_pointers; ++i) {
        const Operand &x = descriptor.problem->operands[i];
        if (call.pointers[i] == nullptr) continue;
        const auto size = static_cast<int64_t>(size_of(x.dtype));
        for (const int64_t offset : x.offsets()) {
            const unsigned char *const element = static_cast<unsigned char *>(call.pointers[i]) + offset;
            if (element < workspace + descriptor.bytes && workspace < element + size) return true;
        }
    }
    return false;
}

/** Chooses the arguments of a run; false for problems that are too large. */
bool Program::place(const Object &descriptor, Call &call) {
    const Problem &problem = *descriptor.problem;
    call.n_pointers = static_cast<size_t>(problem.row().n_operands);
    call.alpha = scalar();
    call.beta = scalar();
    const size_t needed = descriptor.bytes;
    if (!is_small(problem) || needed > kWorkspace) return false;
    const uint8_t mode = in.byte();
    call.workspace_size = needed;
    call.workspace = needed == 0 && mode % 2 == 0 ? nullptr : arenas().workspace_end - needed;
    if (mode >= 240) call.workspace_size -= std::min<size_t>(needed, 1 + mode % 4);
    if (mode >= 228 && mode < 240) call.workspace = nullptr;
    if (mode < 16) call.workspace = arenas().workspace_end - std::min(kWorkspace, call.workspace_size += mode);
    for (int i = 0; i < problem.row().n_operands; ++i) {
        const Operand &x = problem.operands[i];
        unsigned char *const arena = arenas().arena[i];
        const uint8_t b = in.byte();
        unsigned char *const own = b % 2 == 0 ? arena + kArena - x.high() : arena - x.low();
        unsigned char *p = own;
        if (b >= 160 && b < 208 && i > 0) p = static_cast<unsigned char *>(call.pointers[b % i]);
        if (b >= 208 && b < 240 && i > 0 && call.pointers[b % i] != nullptr)
            p = static_cast<unsigned char *>(call.pointers[b % i]) +
                static_cast<ptrdiff_t>(size_of(x.dtype)) * in.signed_byte();
        if (b >= 240 && b < 250) p = own + (b % 2 == 0 ? -1 : 1) * (1 + b % 5);
        if (b >= 250) p = nullptr;
        call.pointers[i] = p == nullptr || arenas().hold(p, x.low(), x.high()) ? p : own;
    }
    if (mode >= 16 && mode < 32 && needed > 0) { // where an operand is, or next to it: a legal run would write there
        const int i = mode % problem.row().n_operands;
        auto *const elements = static_cast<unsigned char *>(call.pointers[i]);
        void *const elsewhere = call.workspace;
        if (elements != nullptr) call.workspace = elements + problem.operands[i].low() + in.signed_byte();
        const bool held = arenas().hold(static_cast<unsigned char *>(call.workspace), 0, static_cast<int64_t>(needed));
        if (!held || !is_on_an_operand(descriptor, call)) call.workspace = elsewhere;
    }
    return true;
}

/** Small integers, of which sums of products are exact in every type; any bits where the operator is exact for all. */
void Program::fill(const Problem &problem, const Call &call) {
    const bool any_bits = (problem.op == kAdd || problem.op == kMul || problem.op == kRearrange) && in.one_in(2);
    uint32_t state = in.byte() + 1u;
    const auto next = [&] { return state = state * 1664525u + 1013904223u, state >> 16; };
    const auto put = [&](const Operand &x, unsigned char *p) {
        if (any_bits || !is_float(x.dtype)) {
            for (unsigned char *q = p + x.low(); q < p + x.high(); ++q) *q = static_cast<unsigned char>(next());
            return;
        }
        unsigned char numbers[8][8];
        for (int k = 0; k < 8; ++k) put_nearest(x.dtype, numbers[k], k - 4);
        const auto size = static_cast<int64_t>(size_of(x.dtype));
        for (int64_t at = x.low(); at + size <= x.high(); at += size)
            std::memcpy(p + at, numbers[next() % 8], static_cast<size_t>(size));
    };
    for (size_t i = 0; i < call.n_pointers; ++i)
        if (call.pointers[i] != nullptr) put(problem.operands[i], static_cast<unsigned char *>(call.pointers[i]));
    // What must not be read is not a number.
    const auto hide = [&](int i) {
        const Operand &x = problem.operands[i];
        if (call.pointers[i] != nullptr)
            std::memset(static_cast<unsigned char *>(call.pointers[i]) + x.low(), 0xff,
                        static_cast<size_t>(x.high() - x.low()));
    };
    if (problem.op == kGemm && call.beta == 0) hide(0);
    if ((problem.op == kGemm || problem.op == kGemmAdd || problem.op == kGemmMul) && call.alpha == 0) {
        hide(1);
        hide(2);
    }
}

void check_call(const Object &descriptor, const Call &call, Verdict &verdict) {
    check_pointers(*descriptor.problem, call.pointers, verdict);
    if (call.workspace_size < descriptor.bytes) verdict.refuse(INFINI_STATUS_INSUFFICIENT_WORKSPACE);
    if (call.workspace == nullptr && descriptor.bytes > 0) verdict.refuse(INFINI_STATUS_NULL_POINTER);
    if (is_on_an_operand(descriptor, call)) verdict.refuse(INFINI_STATUS_BAD_PARAM);
}

void Program::run_operator() {
    auto *const desc = static_cast<InfiniopDescriptor *>(pick(kDescriptor));
    Verdict verdict;
    const Object *const object = need(kDescriptor, desc, verdict);
    Call c;
    const bool odd = in.one_in(16), three = in.one_in(8);
    const Op op = object != nullptr && !odd ? object->problem->op : static_cast<Op>(in.below(kOps));
    const bool fits = object != nullptr && place(*object, c);
    if (object != nullptr && !fits) {
        // No memory for it; but NULL is refused whatever the size.
        bool elements = false;
        for (int i = 0; i < object->problem->row().n_operands; ++i)
            elements = elements || object->problem->operands[i].count() > 0;
        if (!elements) return;
        c.workspace_size = object->bytes;
        verdict.refuse(INFINI_STATUS_NULL_POINTER);
    }
    void *const stream = in.one_in(4) ? pick(kStream) : nullptr; // ignored
    if (three) {
        c.workspace = nullptr;
        c.workspace_size = 0;
        c.alpha = 1;
        c.beta = 0;
    }
    if (fits) {
        fill(*object->problem, c);
        check_call(*object, c, verdict);
    }
    if (object != nullptr && three && object->problem->row().n_operands != 3) verdict.refuse(INFINI_STATUS_BAD_PARAM);
    if (object != nullptr && !fits && three && object->bytes > 0) verdict.refuse(INFINI_STATUS_INSUFFICIENT_WORKSPACE);
    if (object != nullptr && !three && object->problem->op != op) verdict.refuse(INFINI_STATUS_BAD_PARAM);
    Snapshot snapshot;
    std::vector<Element> wanted;
    if (fits && verdict.accepts()) wanted = results(*object->problem, c.pointers, c.alpha, c.beta);
    const char *const name = object != nullptr ? object->problem->row().name : "no descriptor";
    const bool done = call(name, verdict, [&] {
        return three ? infiniopRun3(desc, c.pointers[0], c.pointers[1], c.pointers[2]) : ::run(op, desc, c, stream);
    });
    if (done)
        for (const Element &element : wanted) {
            EXPECT(matches(element), "%s: element %zu of dtype %d is not %g", name,
                   static_cast<size_t>(&element - wanted.data()), element.dtype, element.value);
            snapshot.accept(element.address, size_of(element.dtype));
        }
    EXPECT(snapshot.unchanged(), "%s: bytes changed that are no element of an output, or by a refused call", name);
}

void Program::append() {
    auto *const graph = static_cast<infiniopGraph_t>(pick(kGraph));
    auto *const desc = static_cast<InfiniopDescriptor *>(pick(kDescriptor));
    Verdict verdict;
    Object *const to = need(kGraph, graph, verdict), *const object = need(kDescriptor, desc, verdict);
    Call c;
    if (object != nullptr && !place(*object, c)) return;
    if (object != nullptr) check_call(*object, c, verdict);
    const bool null = in.one_in(32);
    if (null) verdict.refuse(INFINI_STATUS_NULL_POINTER);
    size_t n = c.n_pointers;
    if (in.one_in(32)) {
        n = in.byte();
        if (n != c.n_pointers) verdict.refuse(INFINI_STATUS_BAD_PARAM);
    }
    if (to != nullptr && to->nodes.size() >= 6) return;
    const Snapshot snapshot;
    const std::vector<void *> pointers(c.pointers, c.pointers + c.n_pointers);
    if (call("GraphAppend", verdict, [&] {
            return infiniopGraphAppend(graph, desc, c.workspace, c.workspace_size, null ? nullptr : pointers.data(), n,
                                       c.alpha, c.beta);
        }))
        to->nodes.push_back({object->problem, c});
    EXPECT(snapshot.unchanged(), "GraphAppend wrote to memory");
}

/** A graph's run and its calls one after another, by descriptors made anew, leave the same bits. */
void Program::run_graph() {
    auto *const graph = static_cast<infiniopGraph_t>(pick(kGraph));
    Verdict verdict;
    const Object *const object = need(kGraph, graph, verdict);
    if (in.one_in(4)) {
        const char *text = nullptr;
        if (call_for("GraphDescribe", verdict, text,
                     [&](const char **out) { return infiniopGraphDescribe(graph, out); }))
            EXPECT(std::strncmp(text, "op by op: ", 10) == 0, "a CPU graph is %s", text);
    }
    void *const stream = in.one_in(4) ? pick(kStream) : nullptr;
    const Snapshot before;
    if (object != nullptr)
        for (const Node &node : object->nodes) {
            std::vector<infiniopTensorDescriptor_t> tensors;
            for (int i = 0; i < node.problem->row().n_operands; ++i) {
                const Operand &x = node.problem->operands[i];
                const std::vector<size_t> shape(x.shape, x.shape + x.ndim);
                const std::vector<ptrdiff_t> strides(x.stride, x.stride + x.ndim);
                tensors.emplace_back();
                EXPECT(infiniopCreateTensorDescriptor(&tensors.back(), shape.size(), shape.data(), strides.data(),
                                                      x.dtype) == INFINI_STATUS_SUCCESS,
                       "a layout that was taken before");
            }
            InfiniopDescriptor *desc = nullptr;
            infiniopHandle_t own = nullptr;
            EXPECT(infiniopCreateHandle(&own) == INFINI_STATUS_SUCCESS &&
                       create(node.problem->op, own, &desc, tensors.data(), node.problem->epsilon) ==
                           INFINI_STATUS_SUCCESS &&
                       infiniopDestroyHandle(own) == INFINI_STATUS_SUCCESS,
                   "a problem that was taken before");
            for (infiniopTensorDescriptor_t tensor : tensors) infiniopDestroyTensorDescriptor(tensor);
            EXPECT(::run(node.problem->op, desc, node.call, nullptr) == INFINI_STATUS_SUCCESS,
                   "a call that was taken before");
            EXPECT(destroy(node.problem->op, desc) == INFINI_STATUS_SUCCESS, "a live descriptor");
        }
    const Snapshot one_by_one;
    before.restore();
    call("GraphRun", verdict, [&] { return infiniopGraphRun(graph, stream); });
    EXPECT(one_by_one.unchanged(), "a graph and its calls one by one leave different bits");
}

/* ---- the runtime ----------------------------------------------------------------------------------------------------- */

void Program::memory() {
    const int what = in.below(6);
    void *const stream = in.one_in(2) ? pick(kStream) : nullptr;
    Verdict async; // also of what the default stream never refuses
    if (stream != nullptr) need(kStream, stream, async);
    switch (what) {
    case 0: { // allocation
        const uint8_t b = in.byte();
        const size_t size = b < 240 ? b * size_t{16} : SIZE_MAX - b % 128;
        const int way = in.below(3);
        if (full()) return;
        Verdict verdict = way == 2 && size > 0 ? async : Verdict();
        if (b >= 240) verdict.refuse(INFINI_STATUS_INTERNAL_ERROR);
        void *pointer = &pointer;
        const bool done = call("Malloc", verdict, [&] {
            return way == 0   ? infinirtMalloc(&pointer, size)
                   : way == 1 ? infinirtMallocHost(&pointer, size)
                              : infinirtMallocAsync(&pointer, size, stream);
        });
        EXPECT((pointer == nullptr) == (!done || size == 0) && reinterpret_cast<uintptr_t>(pointer) % 64 == 0,
               "memory at %p", pointer);
        if (pointer == nullptr) return;
        std::memset(pointer, 0x5a, size);
        keep(kMemory, pointer).bytes = size;
        return;
    }
    case 1: { // release
        void *const pointer = pick(kMemory);
        const int way = in.below(3);
        Verdict verdict = way == 2 && pointer != nullptr ? async : Verdict();
        Object *const object = pointer == nullptr ? nullptr : need(kMemory, pointer, verdict);
        if (call("Free", verdict,
                 [&] {
                     return way == 0   ? infinirtFree(pointer)
                            : way == 1 ? infinirtFreeHost(pointer)
                                       : infinirtFreeAsync(pointer, stream);
                 }) &&
            object != nullptr)
            object->live = false;
        return;
    }
    case 2:
    case 3: { // copies
        void *const to = pick(kMemory), *const from = pick(kMemory);
        const Object *const dst = find(kMemory, to), *const src = find(kMemory, from);
        const int kind = in.one_in(8) ? in.signed_byte() : in.below(4);
        size_t size = in.byte();
        if ((to != nullptr && dst == nullptr) || (from != nullptr && src == nullptr))
            size = 0; // only callers know memory
        if (dst != nullptr) size = std::min(size, dst->bytes);
        if (src != nullptr) size = std::min(size, src->bytes);
        Verdict verdict = what == 3 && size > 0 ? async : Verdict();
        if (kind < 0 || kind > 3) verdict.refuse(INFINI_STATUS_BAD_PARAM);
        if (size > 0 && (to == nullptr || from == nullptr)) verdict.refuse(INFINI_STATUS_NULL_POINTER);
        std::vector<unsigned char> wanted;
        if (src != nullptr)
            wanted.assign(static_cast<unsigned char *>(from), static_cast<unsigned char *>(from) + size);
        const bool done = call("Memcpy", verdict, [&] {
            return what == 2 ? infinirtMemcpy(to, from, size, kind) : infinirtMemcpyAsync(to, from, size, kind, stream);
        });
        EXPECT(!done || size == 0 || std::memcmp(to, wanted.data(), size) == 0, "Memcpy did not copy");
        return;
    }
    default: { // fills
        void *const to = pick(kMemory);
        const Object *const dst = find(kMemory, to);
        const int value = in.signed_byte();
        size_t size = in.byte();
        if (to != nullptr && dst == nullptr) size = 0;
        if (dst != nullptr) size = std::min(size, dst->bytes);
        Verdict verdict = what == 5 && size > 0 ? async : Verdict();
        if (size > 0 && to == nullptr) verdict.refuse(INFINI_STATUS_NULL_POINTER);
        const bool done = call("Memset", verdict, [&] {
            return what == 4 ? infinirtMemset(to, value, size) : infinirtMemsetAsync(to, value, size, stream);
        });
        const auto *const bytes = static_cast<const unsigned char *>(to);
        EXPECT(!done || size == 0 ||
                   std::all_of(bytes, bytes + size,
                               [&](unsigned char b) { return b == static_cast<unsigned char>(value); }),
               "Memset did not fill");
    }
    }
}

void Program::streams_and_events() {
    const int what = in.below(10);
    Verdict verdict;
    if (what < 3) {
        if (full()) return;
        void *made = nullptr;
        const uint8_t flags = in.byte();
        if (what == 2 && flags > 3) verdict.refuse(INFINI_STATUS_BAD_PARAM);
        if (!call_for("Create", verdict, made, [&](void **out) {
                return what == 0   ? infinirtStreamCreate(out)
                       : what == 1 ? infinirtEventCreate(out)
                                   : infinirtEventCreateWithFlags(out, flags);
            }))
            return;
        keep(what == 0 ? kStream : kEvent, made).timed = what != 2 || (flags & INFINIRT_EVENT_DISABLE_TIMING) == 0;
        return;
    }
    void *const stream = in.one_in(3) ? nullptr : pick(kStream);
    if ((what == 3 || what == 4 || what == 5) && stream != nullptr) need(kStream, stream, verdict);
    if (what == 3) {
        call("StreamSynchronize", verdict, [&] { return infinirtStreamSynchronize(stream); });
        return;
    }
    void *const event = pick(kEvent);
    Object *const found = need(kEvent, event, verdict);
    switch (what) {
    case 4:
        if (call("EventRecord", verdict, [&] { return infinirtEventRecord(event, stream); })) found->recorded = true;
        return;
    case 5: call("StreamWaitEvent", verdict, [&] { return infinirtStreamWaitEvent(stream, event); }); return;
    case 6: {
        infinirtEventStatus_t status = -7;
        if (call_for("EventQuery", verdict, status,
                     [&](infinirtEventStatus_t *out) { return infinirtEventQuery(event, out); }))
            EXPECT(status == INFINIRT_EVENT_COMPLETE, "an event on the CPU waits");
        return;
    }
    case 7: call("EventSynchronize", verdict, [&] { return infinirtEventSynchronize(event); }); return;
    default: {
        void *const other = pick(kEvent);
        const Object *const second = need(kEvent, other, verdict);
        for (const Object *one : {static_cast<const Object *>(found), second})
            if (one != nullptr && (!one->timed || !one->recorded)) verdict.refuse(INFINI_STATUS_BAD_PARAM);
        float ms = -7;
        if (call_for("EventElapsedTime", verdict, ms,
                     [&](float *out) { return infinirtEventElapsedTime(out, event, other); }))
            EXPECT(std::isfinite(ms), "a time of %f", static_cast<double>(ms));
    }
    }
}

void Program::devices() {
    const int what = in.below(10), device = in.one_in(2) ? in.signed_byte() : in.below(11),
              id = in.one_in(2) ? in.signed_byte() : 0;
    Verdict verdict;
    if (device != INFINI_DEVICE_CPU)
        verdict.refuse(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
    else if (id != 0)
        verdict.refuse(INFINI_STATUS_DEVICE_NOT_FOUND);
    int number = -7;
    const char *text = nullptr;
    switch (what) {
    case 0:
        if (in.one_in(2))
            call("SetDevice", verdict, [&] { return infinirtSetDevice(device, id); });
        else
            call("UseDevice", verdict, [&] { return infinirtUseDevice(device, id); });
        break;
    case 1: {
        Verdict known;
        if (device < 0 || device >= INFINI_DEVICE_TYPE_COUNT) known.refuse(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
        if (call_for("GetDeviceCount", known, number, [&](int *out) { return infinirtGetDeviceCount(device, out); }))
            EXPECT(number == (device == INFINI_DEVICE_CPU ? 1 : 0), "%d devices", number);
        break;
    }
    case 2: {
        infinirtDeviceResourceSnapshot_t snapshot;
        if (verdict.accepts()) verdict.refuse(INFINI_STATUS_NOT_IMPLEMENTED);
        call("GetDeviceResourceSnapshot", verdict,
             [&] { return infinirtGetDeviceResourceSnapshot(device, id, &snapshot); });
        break;
    }
    case 3: {
        Verdict valid;
        if (id < 0) valid.refuse(INFINI_STATUS_BAD_PARAM);
        call("SetNumThreads", valid,
             [&] { return device % 2 == 0 ? infiniopSetNumThreads(id) : infiniopSetNumThreadsLocal(id); });
        break;
    }
    case 4:
        if (call_for("GetNumThreads", {}, number, [&](int *out) { return infiniopGetNumThreads(out); }))
            EXPECT(number >= 1, "%d threads", number);
        break;
    case 5:
        call_for("GetCpuIsa", {}, text, [&](const char **out) {
            return device % 3 == 0   ? infiniopGetCpuIsa(out)
                   : device % 3 == 1 ? infiniopGetCpuIsaReason(out)
                                     : infiniopGetNumThreadsReason(out);
        });
        break;
    case 6: {
        double rate = -7;
        Verdict bad;
        bad.refuse(INFINI_STATUS_BAD_PARAM); // what can be measured takes too long here
        call_for("MeasureCpuCeiling", bad, rate,
                 [&](double *out) { return infiniopMeasureCpuCeiling(id < 0 ? id : id + 4, 0, out); });
        break;
    }
    case 7: {
        Verdict none;
        none.refuse(INFINI_STATUS_NOT_IMPLEMENTED);
        if (device < 0 || device > 2) none.refuse(INFINI_STATUS_BAD_PARAM);
        call("StreamBeginCapture", none, [&] { return infinirtStreamBeginCapture(pick(kStream), device); });
        break;
    }
    case 8: {
        Verdict none;
        none.refuse(INFINI_STATUS_NOT_IMPLEMENTED);
        void *const graph = pick(kGraph), *out = nullptr;
        if (graph == nullptr) none.refuse(INFINI_STATUS_NULL_POINTER);
        char log[4];
        call("GraphInstantiate", none, [&] { return infinirtGraphInstantiate(&out, graph, nullptr, log, sizeof log); });
        call("GraphLaunch", none, [&] { return infinirtGraphLuanch(graph, nullptr); });
        break;
    }
    default: call("DeviceSynchronize", {}, [&] { return infinirtDeviceSynchronize(); });
    }
    int type = -7, current = -7;
    EXPECT(infinirtGetDevice(&type, &current) == INFINI_STATUS_SUCCESS && type == INFINI_DEVICE_CPU && current == 0,
           "another current device");
}

void Program::step() {
    const int what = in.below(20);
    if (what < 6) {
        if (!full()) create_problem();
    } else if (what < 12) {
        run_operator();
    } else if (what == 12) {
        append();
    } else if (what == 13) {
        run_graph();
    } else if (what == 14) {
        const auto kind = static_cast<Kind>(in.below(kKinds));
        void *const pointer = pick(kind);
        const Object *const object = find(kDescriptor, pointer);
        destroy_object(kind, pointer,
                       object != nullptr && !in.one_in(8) ? object->problem->op : static_cast<Op>(in.below(kOps)));
    } else if (what == 15) {
        if (full()) return;
        const uint8_t b = in.byte();
        if (b % 4 == 0) return create_handle(true);
        if (b % 4 < 3) {
            infiniopTensorDescriptor_t tensor;
            create_tensor(any_layout(in), &tensor);
            return;
        }
        auto *const handle = static_cast<infiniopHandle_t>(pick(kHandle));
        Verdict verdict;
        need(kHandle, handle, verdict);
        infiniopGraph_t graph = nullptr;
        if (call_for("CreateGraph", verdict, graph,
                     [&](infiniopGraph_t *out) { return infiniopCreateGraph(handle, out); }))
            keep(kGraph, graph);
    } else if (what == 16) {
        if (full()) return;
        const auto op = static_cast<Op>(in.below(kOps));
        if (in.one_in(3)) {
            std::vector<int64_t> numbers(in.byte() % 40);
            for (int64_t &number : numbers) number = in.one_in(8) ? static_cast<int64_t>(any_size(in)) : in.byte() % 20;
            return create_from_numbers(op, static_cast<infiniopHandle_t>(pick(kHandle)), numbers.data(), numbers.size(),
                                       1);
        }
        infiniopTensorDescriptor_t tensors[kMostOperands];
        for (auto &tensor : tensors) tensor = static_cast<infiniopTensorDescriptor_t>(pick(kTensor));
        create_from_tensors(op, static_cast<infiniopHandle_t>(pick(kHandle)), tensors, 1);
    } else if (what == 17) {
        in.one_in(2) ? ask() : devices();
    } else if (what == 18) {
        memory();
    } else {
        streams_and_events();
    }
}

} // namespace

/** Where AddressSanitizer is: memory that cannot be had is NULL. */
extern "C" __attribute__((visibility("default"))) const char *__asan_default_options() {
    return "allocator_may_return_null=1:print_suppressions=0";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Program(Bytes(data, size)).run();
    return 0;
}
