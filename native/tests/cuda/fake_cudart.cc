/* CUDA's runtime on the CPU, for what the NVIDIA backend uses of it.
 *
 *  Work on a stream is done when somebody waits for it and not before: what forgets to wait reads old data, every time. Device memory
 *  is the process's, of a limited size, filled with bytes of 0xFF; what lies in front of and behind an allocation is watched. Kernels
 *  are run by engine.h; what one does wrong comes out at the next wait as a failed launch whose text says what it was.
 *
 *  The environment chooses what there is, as name=number, separated by commas, in INFINI_FAKE_CUDA:
 *    devices, driver (12040 is 12.4; 0: none), capability (90), count_error (what cudaGetDeviceCount answers), memory (MiB), pools,
 *    greedy (1) and seed (the schedule of kernels), shared (KiB of a block at most) */
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;

struct Mark {
    bool done = true, recorded = false;
    Clock::time_point at;
};

} // namespace

struct FakeGraph {
    std::vector<Work> work;
};

struct FakeStream {
    int device = 0;
    std::deque<Work> queue;
    bool busy = false; // its first piece of work is being done
    FakeGraph *capture = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal; // of the capture
    std::thread::id thread;                                   // that began it
};

struct FakeEvent {
    bool timed = true;
    FakeStream *stream = nullptr;
    std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};

struct FakePool {
    int device;
    size_t used = 0, reserved = 0;
    uint64_t keep = 0;
};

namespace {

#if defined(__SANITIZE_ADDRESS__)
/** What is beside an allocation may not be read either. */
void set_readable(const char *begin, size_t size, bool readable) {
    readable ? __asan_unpoison_memory_region(begin, size) : __asan_poison_memory_region(begin, size);
}
#else
void set_readable(const char *, size_t, bool) {}
#endif

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xa5, kFresh = 0xff;

struct Allocation {
    size_t size;
    int device; // -1: pinned memory of the host
    FakePool *pool;
};

struct Runtime {
    std::recursive_mutex mutex;
    int devices = 2, driver = FAKE_CUDART_VERSION, capability = 90, count_error = 0, pools = 1, shared = 227 << 10;
    size_t memory = size_t{512} << 20;
    size_t taken[64] = {};
    FakeStream legacy[64];
    std::set<FakeStream *> streams;
    std::map<char *, Allocation> allocations;
    std::map<const void *, int> shared_limits;
    cudaError_t sticky = cudaSuccess;
    std::string fault; // what a kernel did

    Runtime() {
        int greedy = 0, seed = 1, mebibytes = 512;
        const std::map<std::string, int *> settings = {
            {"devices", &devices},         {"driver", &driver},    {"capability", &capability},
            {"count_error", &count_error}, {"memory", &mebibytes}, {"pools", &pools},
            {"greedy", &greedy},           {"seed", &seed},        {"shared", &shared},
        };
        const char *text = std::getenv("INFINI_FAKE_CUDA");
        for (std::string rest = text != nullptr ? text : ""; !rest.empty();) {
            const std::string one = rest.substr(0, rest.find(','));
            rest.erase(0, one.size() + 1);
            const auto known = settings.find(one.substr(0, one.find('=')));
            if (known == settings.end() || one.find('=') == std::string::npos) {
                std::fprintf(stderr, "INFINI_FAKE_CUDA: %s is not known\n", one.c_str());
                std::abort();
            }
            *known->second = std::atoi(one.c_str() + one.find('=') + 1);
        }
        memory = static_cast<size_t>(mebibytes) << 20;
        // A real cublasLt, where there is one, would take streams of this runtime for its own.
        setenv("INFINIOP_CUBLASLT_PATH", "/dev/null", 0);
        infini::cuda::set_schedule(greedy != 0 ? "greedy" : "fair", static_cast<uint64_t>(seed));
        for (int i = 0; i < 64; ++i) legacy[i].device = i;
    }
};
void need_all_whole();

Runtime &runtime() {
    static Runtime &one = *[] {
        std::atexit(need_all_whole);
        return new Runtime;
    }();
    return one;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t failed(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

/** The stream behind a handle; NULL and the legacy one are the current device's. */
FakeStream *find(cudaStream_t stream) {
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        return &runtime().legacy[current_device];
    return runtime().streams.count(stream) == 1 ? stream : nullptr;
}

/** Does work until `done`, or until there is none. */
template <class Done>
void drain(FakeStream *stream, Done done) {
    while (!done() && !stream->queue.empty() && !stream->busy) {
        const Work work = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->busy = true;
        work();
        stream->busy = false;
    }
}
void drain(FakeStream *stream) {
    drain(stream, [] { return false; });
}
void drain_device(int device) {
    drain(&runtime().legacy[device]);
    for (FakeStream *stream : std::set<FakeStream *>(runtime().streams))
        if (stream->device == device) drain(stream);
}

/** Queues work, or records it where the stream is being captured. */
cudaError_t queue(cudaStream_t handle, Work work) {
    FakeStream *stream = find(handle);
    if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
    if (runtime().sticky != cudaSuccess) return failed(runtime().sticky);
    if (stream->capture != nullptr)
        stream->capture->work.push_back(std::move(work));
    else
        stream->queue.push_back(std::move(work));
    return cudaSuccess;
}

thread_local cudaStreamCaptureMode own_mode = cudaStreamCaptureModeGlobal;

/** May this thread not do what a capture could want to know of, because of one that goes on? */
bool forbidden() {
    if (own_mode == cudaStreamCaptureModeRelaxed) return false;
    for (const FakeStream *stream : runtime().streams) {
        if (stream->capture == nullptr || stream->mode == cudaStreamCaptureModeRelaxed) continue;
        if (stream->thread == std::this_thread::get_id()) return true;
        if (stream->mode == cudaStreamCaptureModeGlobal && own_mode == cudaStreamCaptureModeGlobal) return true;
    }
    return false;
}

/** What calls that wait answer. */
cudaError_t waited() { return failed(runtime().sticky); }

/** Refuses addresses that are no memory of a device, or not all of it. */
bool inside(const void *p, size_t size, int device = -1) {
    const char *at = static_cast<const char *>(p);
    auto next = runtime().allocations.upper_bound(const_cast<char *>(at));
    if (next == runtime().allocations.begin()) return false;
    const auto &[base, allocation] = *--next;
    return allocation.device >= 0 && (device < 0 || allocation.device == device) && at + size <= base + allocation.size;
}

void *allocate(size_t size, int device, FakePool *pool) {
    Runtime &r = runtime();
    if (device >= 0 && (size > r.memory || r.taken[device] + size > r.memory)) return nullptr;
    void *memory;
    if (posix_memalign(&memory, 256, size + 2 * kGuardBytes) != 0) return nullptr;
    char *base = static_cast<char *>(memory) + kGuardBytes;
    std::memset(memory, kGuard, size + 2 * kGuardBytes);
    std::memset(base, kFresh, size);
    if (device >= 0) r.taken[device] += size;
    if (pool != nullptr) {
        pool->used += size;
        pool->reserved += size;
    }
    r.allocations[base] = {size, device, pool};
    set_readable(base - kGuardBytes, kGuardBytes, false);
    set_readable(base + size, kGuardBytes, false);
    return base;
}

/** A watched byte that was written ends the process. */
void need_whole(const char *base, const Allocation &allocation) {
    for (size_t i = 0; i < kGuardBytes; ++i)
        if (static_cast<unsigned char>(base[-1 - static_cast<ptrdiff_t>(i)]) != kGuard ||
            static_cast<unsigned char>(base[allocation.size + i]) != kGuard) {
            std::fprintf(stderr, "a byte beside an allocation of %zu bytes was written\n", allocation.size);
            std::abort();
        }
}

/** Of what is never given back, at the end of the process. */
void need_all_whole() {
    for (const auto &[base, allocation] : runtime().allocations) {
        set_readable(base - kGuardBytes, allocation.size + 2 * kGuardBytes, true);
        need_whole(base, allocation);
    }
}

/** Gives memory back. */
void release(char *base) {
    Runtime &r = runtime();
    const Allocation allocation = r.allocations.at(base);
    set_readable(base - kGuardBytes, allocation.size + 2 * kGuardBytes, true);
    need_whole(base, allocation);
    if (allocation.device >= 0) r.taken[allocation.device] -= allocation.size;
    if (allocation.pool != nullptr) {
        allocation.pool->used -= allocation.size;
        allocation.pool->reserved -= allocation.size;
    }
    r.allocations.erase(base);
    std::memset(base, kGuard, allocation.size);
    std::free(base - kGuardBytes);
}

} // namespace

cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = runtime().sticky;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    static thread_local std::string text;
    const Lock lock(runtime().mutex);
    text = error == cudaErrorLaunchFailure ? "a kernel failed: " + runtime().fault : "CUDA says no";
    return text.c_str();
}
const char *cudaGetErrorName(cudaError_t error) {
    static thread_local std::string text;
    text = "fake error " + std::to_string(static_cast<int>(error));
    return text.c_str();
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = runtime().driver;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = FAKE_CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    if (runtime().count_error != 0) return failed(static_cast<cudaError_t>(runtime().count_error));
    *count = runtime().devices;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= runtime().devices) return failed(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (device < 0 || device >= runtime().devices) return failed(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = runtime().capability / 10; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = runtime().capability % 10; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = runtime().shared; return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported: *value = runtime().pools; return cudaSuccess;
    }
    return failed(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() {
    const Lock lock(runtime().mutex);
    // Refused in any mode while a stream of the device is being captured.
    for (const FakeStream *stream : runtime().streams)
        if (stream->capture != nullptr && stream->device == current_device)
            return failed(cudaErrorStreamCaptureUnsupported);
    if (forbidden()) return failed(cudaErrorStreamCaptureUnsupported);
    drain_device(current_device);
    return waited();
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    const Lock lock(runtime().mutex);
    *total_bytes = runtime().memory;
    *free_bytes = runtime().memory - runtime().taken[current_device];
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    const Lock lock(runtime().mutex);
    *stream = new FakeStream;
    (*stream)->device = current_device;
    runtime().streams.insert(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const Lock lock(runtime().mutex);
    if (runtime().streams.count(stream) == 0) return failed(cudaErrorInvalidResourceHandle);
    drain(stream);
    runtime().streams.erase(stream);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    const Lock lock(runtime().mutex);
    FakeStream *stream = find(handle);
    if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
    if (stream->capture != nullptr || forbidden()) return failed(cudaErrorStreamCaptureUnsupported);
    drain(stream);
    return waited();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const Lock lock(runtime().mutex);
    const std::shared_ptr<Mark> mark = event->mark;
    FakeStream *source = event->stream;
    if (source == nullptr) return cudaSuccess;
    return queue(stream, [mark, source] {
        if (!mark->done) drain(source, [&] { return mark->done; });
    });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new FakeEvent;
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    const Lock lock(runtime().mutex);
    auto mark = std::make_shared<Mark>();
    mark->done = false;
    mark->recorded = true;
    const cudaError_t error = queue(handle, [mark] {
        mark->done = true;
        mark->at = Clock::now();
    });
    if (error != cudaSuccess) return error;
    event->mark = mark;
    event->stream = find(handle);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    const Lock lock(runtime().mutex);
    if (event->mark->done) return waited();
    bool once = false; // time passes with each question
    drain(event->stream, [&] { return std::exchange(once, true); });
    return failed(event->mark->done ? runtime().sticky : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const Lock lock(runtime().mutex);
    if (!event->mark->done) drain(event->stream, [&] { return event->mark->done; });
    return waited();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const Lock lock(runtime().mutex);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    const Lock lock(runtime().mutex);
    for (const FakeEvent *event : {start, end})
        if (!event->timed || !event->mark->recorded) return failed(cudaErrorInvalidResourceHandle);
    for (const FakeEvent *event : {start, end})
        if (!event->mark->done) return failed(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(end->mark->at - start->mark->at).count();
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **ptr, size_t size) {
    const Lock lock(runtime().mutex);
    if (forbidden()) return failed(cudaErrorStreamCaptureUnsupported);
    void *made = allocate(size, current_device, nullptr);
    if (made == nullptr) return failed(cudaErrorMemoryAllocation);
    *ptr = made;
    return cudaSuccess;
}
cudaError_t cudaFree(void *ptr) {
    const Lock lock(runtime().mutex);
    if (ptr == nullptr) return cudaSuccess;
    char *base = static_cast<char *>(ptr);
    if (runtime().allocations.count(base) == 0 || runtime().allocations[base].device < 0)
        return failed(cudaErrorInvalidValue);
    if (forbidden()) return failed(cudaErrorStreamCaptureUnsupported);
    if (runtime().allocations[base].pool == nullptr)
        drain_device(runtime().allocations[base].device); // as CUDA: not for a pool's
    release(base);
    return waited();
}
cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
    const Lock lock(runtime().mutex);
    if (find(stream) == nullptr) return failed(cudaErrorInvalidResourceHandle);
    void *made = allocate(size, pool->device, pool);
    if (made == nullptr) return failed(cudaErrorMemoryAllocation);
    *ptr = made;
    return cudaSuccess;
}
cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream) {
    const Lock lock(runtime().mutex);
    char *base = static_cast<char *>(ptr);
    if (runtime().allocations.count(base) == 0 || runtime().allocations[base].pool == nullptr)
        return failed(cudaErrorInvalidValue);
    return queue(stream, [base] { release(base); });
}
cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned) {
    const Lock lock(runtime().mutex);
    if (size > runtime().memory) return failed(cudaErrorMemoryAllocation);
    *ptr = allocate(size, -1, nullptr);
    return *ptr != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *ptr) {
    const Lock lock(runtime().mutex);
    char *base = static_cast<char *>(ptr);
    if (runtime().allocations.count(base) == 0 || runtime().allocations[base].device != -1)
        return failed(cudaErrorInvalidValue);
    release(base);
    return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *properties) {
    *pool = new FakePool{properties->location.id};
    return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    delete pool;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value) {
    if (attribute != cudaMemPoolAttrReleaseThreshold) return failed(cudaErrorInvalidValue);
    pool->keep = *static_cast<uint64_t *>(value);
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value) {
    const Lock lock(runtime().mutex);
    *static_cast<uint64_t *>(value) = attribute == cudaMemPoolAttrUsedMemCurrent ? pool->used : pool->reserved;
    return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

namespace {

cudaError_t copy(void *dst, const void *src, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if ((to_device && !inside(dst, size)) || (from_device && !inside(src, size))) return failed(cudaErrorInvalidValue);
    return queue(stream, [=] { std::memcpy(dst, src, size); });
}

} // namespace

cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, cudaMemcpyKind kind) {
    const Lock lock(runtime().mutex);
    // As CUDA: it waits neither for what it copies between two places of a device nor for what it brings there from aside.
    if (kind == cudaMemcpyHostToDevice && inside(dst, size)) {
        const auto *bytes = static_cast<const char *>(src);
        return queue(nullptr, [dst, aside = std::vector<char>(bytes, bytes + size)] {
            std::memcpy(dst, aside.data(), aside.size());
        });
    }
    const cudaError_t error = copy(dst, src, size, kind, nullptr);
    if (error != cudaSuccess) return error;
    if (kind != cudaMemcpyDeviceToDevice) drain(find(nullptr));
    return waited();
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
    const Lock lock(runtime().mutex);
    return copy(dst, src, size, kind, stream);
}
cudaError_t cudaMemset(void *ptr, int value, size_t size) {
    const Lock lock(runtime().mutex);
    return cudaMemsetAsync(ptr, value, size, nullptr);
}
cudaError_t cudaMemsetAsync(void *ptr, int value, size_t size, cudaStream_t stream) {
    const Lock lock(runtime().mutex);
    if (!inside(ptr, size)) return failed(cudaErrorInvalidValue);
    return queue(stream, [=] { std::memset(ptr, value, size); });
}

/* ---- kernels ---- */

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    attributes->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute, int value) {
    const Lock lock(runtime().mutex);
    if (value > runtime().shared) return failed(cudaErrorInvalidValue);
    runtime().shared_limits[function] = value;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    const Lock lock(runtime().mutex);
    const auto *kernel = static_cast<const infini::cuda::HostKernel *>(function);
    const auto limit = runtime().shared_limits.find(function);
    const size_t most = limit != runtime().shared_limits.end() ? static_cast<size_t>(limit->second) : size_t{48} << 10;
    const unsigned threads = config->blockDim.x;
    if (config->gridDim.x == 0 || config->gridDim.x > 0x7fffffff || config->gridDim.y != 1 || config->gridDim.z != 1 ||
        threads == 0 || threads > 1024 || threads % 32 != 0 || config->dynamicSmemBytes > most ||
        kernel->params_size > 4096)
        return failed(cudaErrorInvalidValue);
    FakeStream *stream = find(config->stream);
    if (stream == nullptr || stream->device != current_device) return failed(cudaErrorInvalidResourceHandle);
    const auto *bytes = static_cast<const char *>(arguments[0]);
    std::vector<char> params(bytes, bytes + kernel->params_size); // by value
    const unsigned blocks = config->gridDim.x;
    const size_t shared = config->dynamicSmemBytes;
    return queue(config->stream, [=] {
        const std::string fault =
            infini::cuda::run_kernel(*kernel, params.data(), blocks, static_cast<int>(threads), shared);
        if (fault.empty()) return;
        runtime().fault = fault;
        runtime().sticky = cudaErrorLaunchFailure;
    });
}

/* ---- capture ---- */

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    std::swap(*mode, own_mode);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    const Lock lock(runtime().mutex);
    if (handle == nullptr || handle == cudaStreamLegacy) return failed(cudaErrorStreamCaptureUnsupported);
    FakeStream *stream = find(handle);
    if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
    if (stream->capture != nullptr) return failed(cudaErrorIllegalState);
    stream->capture = new FakeGraph;
    stream->mode = mode;
    stream->thread = std::this_thread::get_id();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    const Lock lock(runtime().mutex);
    FakeStream *stream = find(handle);
    if (stream == nullptr || stream->capture == nullptr) return failed(cudaErrorIllegalState);
    *graph = stream->capture;
    stream->capture = nullptr;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    const Lock lock(runtime().mutex);
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph, cudaGraphInstantiateParams *) {
    const Lock lock(runtime().mutex);
    *exec = new FakeGraph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    const Lock lock(runtime().mutex);
    FakeGraph *gone = exec; // runs that are queued keep their own copy
    delete gone;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    const Lock lock(runtime().mutex);
    return queue(stream, [work = exec->work] {
        for (const Work &one : work) one();
    });
}

/* ---- for other fakes, which find these among the libraries of the process ---- */

#define FOR_FAKES extern "C" __attribute__((visibility("default")))

FOR_FAKES int fakeCudartDevice() { return current_device; }

/** Does memory of the current device hold all of this? */
FOR_FAKES int fakeCudartHolds(const void *p, size_t size) {
    const Lock lock(runtime().mutex);
    return inside(p, size, current_device);
}

/** Queues work like a kernel: its parameters are copied. */
FOR_FAKES int fakeCudartQueue(void *stream, void (*work)(const void *), const void *bytes, size_t size) {
    const Lock lock(runtime().mutex);
    const auto *first = static_cast<const char *>(bytes);
    const std::vector<char> params(first, first + size);
    return queue(static_cast<cudaStream_t>(stream), [work, params] { work(params.data()); });
}
