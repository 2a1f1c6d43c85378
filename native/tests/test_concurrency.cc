/* The C interface from many threads whose calls overlap, which a Python program's rarely do: for ThreadSanitizer and
 * AddressSanitizer to watch. Every result is compared with what one thread computed before, alone: the number of threads
 * changes no bit.
 *
 *      test_concurrency <shared object of fake_backend.c> <one for METAX whose probe fails> */
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "infini_backend.h"
#include "infiniop.h"

namespace {

constexpr int kThreads = 8;
using Bytes = std::vector<unsigned char>;
using Descriptor = InfiniopDescriptor *;

/** Says what the library says about a call that had to succeed. */
bool ok(infiniStatus_t status) {
    if (status != INFINI_STATUS_SUCCESS) std::fprintf(stderr, "%s\n", infiniopGetLastErrorMessage());
    return status == INFINI_STATUS_SUCCESS;
}

/** Calls body(i) in kThreads threads that start together. */
template <class Body>
void together(Body &&body) {
    std::atomic<int> waiting{kThreads};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i] {
            --waiting;
            while (waiting > 0) std::this_thread::yield();
            body(i);
        });
    for (std::thread &thread : threads) thread.join();
}

/* ---- problems -------------------------------------------------------------------------------------------------------- */

/** x: the operands, outputs first. */
using Run = infiniStatus_t (*)(Descriptor desc, void *workspace, size_t size, void *const *x, void *stream);

struct Op {
    const char *name;
    size_t n_outputs;
    Run run;
    infiniStatus_t (*destroy)(Descriptor);
};

constexpr Op kGemm{"gemm", 1,
                   [](Descriptor desc, void *workspace, size_t size, void *const *x, void *stream) {
                       return infiniopGemm(desc, workspace, size, x[0], x[1], x[2], 1, 0, stream);
                   },
                   infiniopDestroyGemmDescriptor};
constexpr Op kGemmAdd{"gemm_add", 1,
                      [](Descriptor desc, void *workspace, size_t size, void *const *x, void *stream) {
                          return infiniopGemmAdd(desc, workspace, size, x[0], x[1], x[2], x[3], 1, stream);
                      },
                      infiniopDestroyGemmAddDescriptor};
constexpr Op kGemmMul{"gemm_mul", 1,
                      [](Descriptor desc, void *workspace, size_t size, void *const *x, void *stream) {
                          return infiniopGemmMul(desc, workspace, size, x[0], x[1], x[2], x[3], 1, stream);
                      },
                      infiniopDestroyGemmMulDescriptor};
constexpr Op kAdd{"add", 1,
                  [](Descriptor desc, void *workspace, size_t size, void *const *x, void *stream) {
                      return infiniopAdd(desc, workspace, size, x[0], x[1], x[2], stream);
                  },
                  infiniopDestroyAddDescriptor};
constexpr Op kMul{"mul", 1,
                  [](Descriptor desc, void *workspace, size_t size, void *const *x, void *stream) {
                      return infiniopMul(desc, workspace, size, x[0], x[1], x[2], stream);
                  },
                  infiniopDestroyMulDescriptor};
constexpr Op kNorm{"add_rms_norm", 2,
                   [](Descriptor desc, void *workspace, size_t size, void *const *x, void *stream) {
                       return infiniopAddRMSNorm(desc, workspace, size, x[0], x[1], x[2], x[3], x[4], stream);
                   },
                   infiniopDestroyAddRMSNormDescriptor};
constexpr Op kRearrange{"rearrange", 1,
                        [](Descriptor desc, void *, size_t, void *const *x, void *stream) {
                            return infiniopRearrange(desc, x[0], x[1], stream);
                        },
                        infiniopDestroyRearrangeDescriptor};

struct Layout {
    std::vector<int64_t> shape;
    bool transposed = false; // compact, the last two dimensions exchanged
};

struct Problem {
    const Op &op;
    infiniDtype_t dtype; // F32, F16 or BF16
    std::vector<Layout> operands;

    int64_t itemsize() const { return dtype == INFINI_DTYPE_F32 ? 4 : 2; }
    size_t bytes(size_t i) const {
        int64_t n = itemsize();
        for (int64_t size : operands[i].shape) n *= size;
        return static_cast<size_t>(n);
    }
    /** As infiniopCreateDescriptor() takes them. */
    std::vector<int64_t> layouts() const {
        std::vector<int64_t> numbers;
        for (const Layout &x : operands) {
            const size_t rank = x.shape.size();
            std::vector<int64_t> order(x.shape), strides(rank);
            if (x.transposed) std::swap(order[rank - 2], order[rank - 1]);
            int64_t stride = itemsize();
            for (size_t d = rank; d-- > 0; stride *= order[d]) strides[d] = stride;
            if (x.transposed) std::swap(strides[rank - 2], strides[rank - 1]);
            numbers.insert(numbers.end(), {dtype, static_cast<int64_t>(rank)});
            numbers.insert(numbers.end(), x.shape.begin(), x.shape.end());
            numbers.insert(numbers.end(), strides.begin(), strides.end());
        }
        return numbers;
    }
    /** Numbers from 1 to 2. */
    Bytes input(size_t i) const {
        Bytes data(bytes(i));
        for (size_t at = 0; at < data.size(); at += static_cast<size_t>(itemsize())) {
            const uint32_t r = static_cast<uint32_t>(at * 2654435761u) >> 16;
            const uint32_t f32 = 0x3f800000u | r << 7;
            const auto half =
                static_cast<uint16_t>(dtype == INFINI_DTYPE_F16 ? 0x3c00u | r % 0x400 : 0x3f80u | r % 0x80);
            if (dtype == INFINI_DTYPE_F32)
                std::memcpy(&data[at], &f32, 4);
            else
                std::memcpy(&data[at], &half, 2);
        }
        return data;
    }
};

/** Every operator and every way to compute a product, of sizes that two threads share. */
const std::vector<Problem> &problems() {
    static const std::vector<Problem> all = {
        {kGemm, INFINI_DTYPE_BF16, {{{72, 56}}, {{72, 280}}, {{280, 56}}}},
        {kGemm, INFINI_DTYPE_F32, {{{66, 60}}, {{66, 270}}, {{270, 60}}}},
        {kGemm, INFINI_DTYPE_F16, {{{3, 600}}, {{3, 600}}, {{600, 600}, true}}},
        {kGemm, INFINI_DTYPE_F32, {{{24, 190}}, {{24, 260}}, {{260, 190}, true}}},
        {kGemm, INFINI_DTYPE_F16, {{{6, 40, 48}}, {{6, 40, 96}}, {{6, 96, 48}}}}, // items are shared
        {kGemmAdd, INFINI_DTYPE_F32, {{{66, 60}}, {{66, 270}}, {{270, 60}, true}, {{66, 60}}}},
        {kGemmMul, INFINI_DTYPE_BF16, {{{40, 104}}, {{40, 257}}, {{257, 104}}, {{40, 104}, true}}},
        {kAdd, INFINI_DTYPE_F32, {{{210, 230}}, {{210, 230}}, {{210, 230}, true}}},
        {kMul, INFINI_DTYPE_F16, {{{410, 230}}, {{410, 230}}, {{410, 230}}}},
        {kNorm, INFINI_DTYPE_F32, {{{90, 400}}, {{90, 400}}, {{90, 400}}, {{90, 400}}, {{400}}}},
        {kNorm,
         INFINI_DTYPE_BF16,
         {{{1, 70000}}, {{1, 70000}}, {{1, 70000}}, {{1, 70000}}, {{70000}}}}, // a row is shared
        {kRearrange, INFINI_DTYPE_F32, {{{260, 270}}, {{260, 270}, true}}},
    };
    return all;
}

std::vector<std::vector<Bytes>> results; // of each problem, by output: computed alone

/* ---- a problem on the current device --------------------------------------------------------------------------------- */

class Memory {
public:
    explicit Memory(size_t size) { CHECK(ok(infinirtMalloc(&p_, size))); }
    Memory(const Memory &) = delete;
    ~Memory() { CHECK(ok(infinirtFree(p_))); }
    void *get() const { return p_; }

private:
    void *p_ = nullptr;
};

/** Operands in memory of their own; the outputs hold anything. */
class Operands {
public:
    explicit Operands(const Problem &problem) : problem_(problem) {
        for (size_t i = 0; i < problem.operands.size(); ++i) {
            memory_.push_back(std::make_unique<Memory>(problem.bytes(i)));
            pointers_.push_back(memory_.back()->get());
            if (i < problem.op.n_outputs) {
                CHECK(ok(infinirtMemset(pointers_[i], 0xa5, problem.bytes(i))));
            } else {
                const Bytes data = problem.input(i);
                CHECK(ok(infinirtMemcpy(pointers_[i], data.data(), data.size(), INFINIRT_MEMCPY_H2D)));
            }
        }
    }
    void *const *pointers() const { return pointers_.data(); }
    size_t count() const { return pointers_.size(); }
    std::vector<Bytes> outputs() const {
        std::vector<Bytes> found;
        for (size_t i = 0; i < problem_.op.n_outputs; ++i) {
            found.emplace_back(problem_.bytes(i));
            CHECK(ok(infinirtMemcpy(found[i].data(), pointers_[i], found[i].size(), INFINIRT_MEMCPY_D2H)));
        }
        return found;
    }

private:
    const Problem &problem_;
    std::vector<std::unique_ptr<Memory>> memory_;
    std::vector<void *> pointers_;
};

struct Made {
    Descriptor desc = nullptr;
    size_t workspace_size = 0;
};

/** A descriptor, made with a handle that is gone by then. */
Made make(const Problem &problem) {
    Made made;
    infiniopHandle_t handle = nullptr;
    const std::vector<int64_t> layouts = problem.layouts();
    CHECK(ok(infiniopCreateHandle(&handle)));
    CHECK(ok(infiniopCreateDescriptor(handle, &made.desc, &made.workspace_size, problem.op.name, layouts.data(),
                                      layouts.size(), 1e-5f)));
    CHECK(ok(infiniopDestroyHandle(handle)));
    return made;
}

bool run(const Problem &problem, const Made &made, const Operands &operands, infinirtStream_t stream) {
    const Memory workspace(made.workspace_size);
    return ok(problem.op.run(made.desc, workspace.get(), made.workspace_size, operands.pointers(), stream)) &&
           ok(infinirtStreamSynchronize(stream));
}

/* ---- jobs: what threads do at the same time ---------------------------------------------------------------------------- */

std::string plugin, refused;
std::vector<Made> shared; // a descriptor of each problem, which all threads run

/** On the CPU, and on both devices of the plugin. */
void choose_device(int seed) {
    CHECK(ok(infinirtSetDevice(seed % 3 == 0 ? INFINI_DEVICE_CPU : INFINI_DEVICE_QY, seed % 3 == 2)));
}

class Stream {
public:
    Stream() { CHECK(ok(infinirtStreamCreate(&stream_))); }
    Stream(const Stream &) = delete;
    ~Stream() { CHECK(ok(infinirtStreamDestroy(stream_))); }
    infinirtStream_t get() const { return stream_; }

private:
    infinirtStream_t stream_ = nullptr;
};

void create_run_destroy(int seed) {
    choose_device(seed);
    const Stream stream;
    for (size_t i = 0; i < problems().size(); ++i) {
        const Problem &problem = problems()[i];
        const Made made = make(problem);
        const Operands operands(problem);
        CHECK(run(problem, made, operands, stream.get()) && operands.outputs() == results[i]);
        CHECK(ok(problem.op.destroy(made.desc)));
    }
}

void run_shared_descriptors(int) {
    CHECK(ok(infinirtSetDevice(INFINI_DEVICE_CPU, 0)));
    for (size_t i = 0; i < problems().size(); ++i) {
        const Operands operands(problems()[i]);
        CHECK(run(problems()[i], shared[i], operands, nullptr) && operands.outputs() == results[i]);
    }
}

void run_graph(int seed) {
    choose_device(seed);
    const Stream stream;
    infiniopHandle_t handle = nullptr;
    infiniopGraph_t graph = nullptr;
    CHECK(ok(infiniopCreateHandle(&handle)) && ok(infiniopCreateGraph(handle, &graph)));
    std::vector<std::unique_ptr<Operands>> operands;
    std::vector<std::unique_ptr<Memory>> workspaces;
    for (const Problem &problem : problems()) {
        const Made made = make(problem);
        operands.push_back(std::make_unique<Operands>(problem));
        workspaces.push_back(std::make_unique<Memory>(made.workspace_size));
        CHECK(ok(infiniopGraphAppend(graph, made.desc, workspaces.back()->get(), made.workspace_size,
                                     operands.back()->pointers(), operands.back()->count(), 1, 0)));
        CHECK(ok(problem.op.destroy(made.desc))); // the graph keeps what it needs
    }
    for (int run = 0; run < 2; ++run) // on the plugin's devices, the first one captures
        CHECK(ok(infiniopGraphRun(graph, stream.get())) && ok(infinirtStreamSynchronize(stream.get())));
    for (size_t i = 0; i < operands.size(); ++i) CHECK(operands[i]->outputs() == results[i]);
    CHECK(ok(infiniopDestroyGraph(graph)) && ok(infiniopDestroyHandle(handle)));
}

void use_streams_and_events(int seed) {
    choose_device(seed);
    for (int i = 0; i < 50; ++i) {
        const Stream stream, other;
        infinirtEvent_t start = nullptr, end = nullptr;
        infinirtEventStatus_t status = INFINIRT_EVENT_NOT_READY;
        float ms = -1;
        unsigned char bytes[64];
        void *memory = nullptr;
        CHECK(ok(infinirtEventCreate(&start)) && ok(infinirtEventCreateWithFlags(&end, INFINIRT_EVENT_BLOCKING_SYNC)));
        CHECK(ok(infinirtEventRecord(start, stream.get())) && ok(infinirtMallocAsync(&memory, 64, stream.get())));
        CHECK(ok(infinirtMemsetAsync(memory, seed, 64, stream.get())));
        CHECK(ok(infinirtMemcpyAsync(bytes, memory, 64, INFINIRT_MEMCPY_D2H, stream.get())));
        CHECK(ok(infinirtEventRecord(end, stream.get())) && ok(infinirtStreamWaitEvent(other.get(), end)));
        CHECK(ok(infinirtEventSynchronize(end)) && ok(infinirtEventQuery(end, &status)));
        CHECK(status == INFINIRT_EVENT_COMPLETE && bytes[63] == static_cast<unsigned char>(seed));
        CHECK(ok(infinirtEventElapsedTime(&ms, start, end)) && ms >= 0);
        CHECK(ok(infinirtFreeAsync(memory, stream.get())) && ok(infinirtDeviceSynchronize()));
        CHECK(ok(infinirtEventDestroy(start)) && ok(infinirtEventDestroy(end)));
    }
}

infinirtEvent_t marks[2]; // of the CPU, recorded before any thread began

/** One thread records what others ask about. */
void share_events(int seed) {
    CHECK(ok(infinirtSetDevice(INFINI_DEVICE_CPU, 0)));
    for (int i = 0; i < 200; ++i) {
        float ms;
        CHECK(ok(infinirtEventRecord(marks[(seed + i) % 2], nullptr)));
        CHECK(ok(infinirtEventElapsedTime(&ms, marks[0], marks[1])));
    }
}

/** A message is the thread's own, whatever fails elsewhere. */
void fail(int seed) {
    const auto said = [](infiniStatus_t status, infiniStatus_t wanted, const std::string &what) {
        return status == wanted && std::strstr(infiniopGetLastErrorMessage(), what.c_str()) != nullptr;
    };
    for (int i = 0; i < 200; ++i) {
        const int id = 1000 * (seed + 1) + i;
        const std::string number = std::to_string(id), path = "/nonexistent/" + number + ".so";
        CHECK(said(infinirtSetDevice(INFINI_DEVICE_CPU, id), INFINI_STATUS_DEVICE_NOT_FOUND, number));
        CHECK(said(infinirtLoadBackend(path.c_str()), INFINI_STATUS_BAD_PARAM, number));
        infiniopTensorDescriptor_t tensor = nullptr;
        CHECK(said(infiniopCreateTensorDescriptor(&tensor, 0, nullptr, nullptr, id), INFINI_STATUS_BAD_TENSOR_DTYPE,
                   number));
    }
}

void set_numbers_of_threads(int seed) {
    for (int i = 0; i < 100; ++i) {
        int n = 0;
        const char *text = nullptr;
        CHECK(ok(infiniopSetNumThreads((seed + i) % 6)) && ok(infiniopGetNumThreads(&n)) && n >= 1);
        CHECK(ok(infiniopSetNumThreadsLocal(3)) && ok(infiniopGetNumThreads(&n)) && n == 3);
        CHECK(ok(infiniopGetNumThreadsReason(&text)) && std::strstr(text, "this thread") != nullptr);
        CHECK(ok(infiniopSetNumThreadsLocal(0)));
    }
}

void ask_about_backends(int) {
    for (int i = 0; i < 10; ++i) {
        int counts[INFINI_DEVICE_TYPE_COUNT];
        const InfiniBackend *backend = nullptr;
        InfiniBackendInfo info;
        CHECK(ok(infinirtLoadBackend(plugin.c_str())));                                      // once more: the same file
        CHECK(infinirtLoadBackend(refused.c_str()) == INFINI_STATUS_DEVICE_NOT_INITIALIZED); // and why, again
        CHECK(ok(infinirtGetAllDeviceCount(counts)));
        CHECK(counts[INFINI_DEVICE_CPU] == 1 && counts[INFINI_DEVICE_NVIDIA] == 0 && counts[INFINI_DEVICE_QY] == 2);
        CHECK(ok(infinirtGetBackendInfo(INFINI_DEVICE_QY, &info)) && info.available && plugin == info.path);
        CHECK(ok(infinirtGetBackendInfo(INFINI_DEVICE_METAX, &info)) && !info.available && *info.reason != '\0');
        CHECK(infinirtGetBackend(INFINI_DEVICE_ASCEND, &backend) == INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
        size_t free_bytes = 1, total_bytes = 0;
        CHECK(ok(infinirtGetMemInfo(INFINI_DEVICE_QY, i % 2, &free_bytes, &total_bytes)) && free_bytes <= total_bytes);
    }
}

void ask_about_the_library(int) {
    for (int i = 0; i < 50; ++i) {
        const char *text = nullptr;
        CHECK(ok(infiniopGetVersion(nullptr, &text)) && *text != '\0');
        CHECK(ok(infiniopGetCpuIsa(&text)) && ok(infiniopGetCpuIsaReason(&text)) && *text != '\0');
        CHECK(std::strcmp(infiniopStatusString(INFINI_STATUS_BAD_PARAM), "BAD_PARAM") == 0);
        const Descriptor desc = shared[static_cast<size_t>(i) % shared.size()].desc;
        infiniDevice_t device = INFINI_DEVICE_TYPE_COUNT;
        CHECK(ok(infiniopGetDescriptorPlan(desc, &text)) && ok(infiniopGetDescriptorDeviceType(desc, &device)));
        CHECK(device == INFINI_DEVICE_CPU);
    }
}

using Job = void (*)(int seed);
constexpr Job kJobs[] = {create_run_destroy,
                         run_shared_descriptors,
                         run_graph,
                         use_streams_and_events,
                         share_events,
                         fail,
                         run_shared_descriptors,
                         run_graph,
                         create_run_destroy,
                         set_numbers_of_threads,
                         ask_about_backends,
                         ask_about_the_library};
constexpr int kJobCount = sizeof kJobs / sizeof *kJobs;

/** Nothing the plugin handed out is left, and no guard byte was overwritten. */
bool plugin_has_all_back() {
    int64_t counts[64] = {}; // FakeCounts begins with what is alive and what is broken: 11 numbers
    void *const library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto get =
        reinterpret_cast<void (*)(int64_t *)>(library != nullptr ? dlsym(library, "fakeBackendGetCounts") : nullptr);
    if (get == nullptr) return false;
    get(counts);
    dlclose(library);
    return std::all_of(counts, counts + 11, [](int64_t n) { return n == 0; });
}

/** A thread may be cancelled at any time, and goes between two calls. */
void cancel() {
    for (int i = 0; i < 20; ++i) {
        static std::atomic<bool> computes;
        computes = false;
        pthread_t thread;
        CHECK(pthread_create(
                  &thread, nullptr,
                  [](void *) -> void * {
                      size_t free_bytes, total_bytes;
                      const Problem &problem = problems().front();
                      const Operands operands(problem);
                      for (;; pthread_testcancel()) {
                          CHECK(ok(infinirtGetMemInfo(INFINI_DEVICE_CPU, 0, &free_bytes, &total_bytes)));
                          CHECK(run(problem, shared.front(), operands, nullptr));
                          computes = true;
                      }
                  },
                  nullptr) == 0);
        while (!computes) std::this_thread::yield();
        void *result = nullptr;
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    plugin = argv[1];
    refused = argv[2];

    // The very first calls find a registry, slabs and defaults that are not there yet.
    together([](int i) {
        int n = 0;
        const char *text = nullptr;
        if (i % 2 == 0) CHECK(ok(infinirtLoadBackend(plugin.c_str())));
        CHECK(ok(infinirtGetDeviceCount(INFINI_DEVICE_NVIDIA, &n)) && n == 0);
        CHECK(ok(infiniopGetNumThreads(&n)) && ok(infiniopGetCpuIsa(&text)));
        CHECK(infinirtSetDevice(INFINI_DEVICE_CPU, 1) == INFINI_STATUS_DEVICE_NOT_FOUND);
        const Made made = make(problems()[static_cast<size_t>(i)]);
        CHECK(ok(problems()[static_cast<size_t>(i)].op.destroy(made.desc)));
    });

    CHECK(ok(infiniopSetNumThreads(1)));
    for (const Problem &problem : problems()) {
        shared.push_back(make(problem));
        const Operands operands(problem);
        CHECK(run(problem, shared.back(), operands, nullptr));
        results.push_back(operands.outputs());
    }
    CHECK(ok(infiniopSetNumThreads(4)));
    for (infinirtEvent_t &mark : marks) CHECK(ok(infinirtEventCreate(&mark)) && ok(infinirtEventRecord(mark, nullptr)));

    std::atomic<int> inside{0}, most{0}; // jobs at the same time
    together([&](int i) {
        for (int round = 0; round < 2 * kJobCount; ++round) {
            const int now = ++inside;
            for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
            }
            kJobs[(i * 3 + round) % kJobCount](i + round);
            --inside;
        }
    });
    CHECK(most > 1);
    cancel();

    for (size_t i = 0; i < shared.size(); ++i) CHECK(ok(problems()[i].op.destroy(shared[i].desc)));
    for (infinirtEvent_t mark : marks) CHECK(ok(infinirtEventDestroy(mark)));
    CHECK(plugin_has_all_back());
    return check::summary();
}
