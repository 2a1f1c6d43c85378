/* The NVIDIA backend's runtime table. A stream is a cudaStream_t, an event a cudaEvent_t and so on: programs may mix calls to CUDA
 * with calls to this library. A stream may therefore be anybody's; what else is used or destroyed here was made here, and anything
 * else is refused. */
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/fork_mutex.h"
#include "cuda/cuda_backend.h"
#include "cuda/error.h"

namespace infini::cuda {

namespace {

/* ---- what was made here -------------------------------------------------------------------------------------------- */

/** The live handles of one kind. */
class LiveSet {
public:
    explicit LiveSet(const char *kind) : kind_(kind) {}

    void add(void *handle) {
        const std::lock_guard<ForkMutex> lock(mutex_);
        live_.insert(handle);
    }
    /** Takes a handle out, so that of two threads that destroy it at once one succeeds. */
    infiniStatus_t remove(const char *what, void *handle) {
        const std::lock_guard<ForkMutex> lock(mutex_);
        return live_.erase(handle) == 1 ? INFINI_STATUS_SUCCESS : refuse(what, handle);
    }
    infiniStatus_t need(const char *what, void *handle) const {
        const std::lock_guard<ForkMutex> lock(mutex_);
        return live_.count(handle) == 1 ? INFINI_STATUS_SUCCESS : refuse(what, handle);
    }

private:
    infiniStatus_t refuse(const char *what, void *handle) const {
        return fail(INFINI_STATUS_BAD_PARAM, "cuda: %s: %p is not a live %s of this library", what, handle, kind_);
    }
    const char *kind_;
    mutable ForkMutex mutex_;
    std::set<void *> live_;
};

LiveSet &streams = *new LiveSet("stream"); // never destroyed: used until the process is gone
LiveSet &events = *new LiveSet("event");
LiveSet &graphs = *new LiveSet("graph");
LiveSet &graph_execs = *new LiveSet("launchable graph");
LiveSet &host_memory = *new LiveSet("allocation of pinned memory");

cudaStream_t as_stream(infinirtStream_t stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(infinirtEvent_t event) { return static_cast<cudaEvent_t>(event); }

/** A handle that was just made: remembered, or given back where there is no memory for that. */
template <class Destroy>
infiniStatus_t remember(LiveSet &set, void *handle, Destroy destroy) {
    try {
        set.add(handle);
        return INFINI_STATUS_SUCCESS;
    } catch (...) {
        destroy();
        throw;
    }
}

/* ---- devices ------------------------------------------------------------------------------------------------------- */

/** What the probe found: a forked child, where CUDA would say that there are none, is told by the calls that follow why it cannot
 *  use them. */
infiniStatus_t device_count(int *count) {
    *count = probed_devices();
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t set_device(int device_id) {
    return guard("cuda", [&]() -> infiniStatus_t {
        {
            const DeviceGuard usable(device_id);
            if (usable.status() != INFINI_STATUS_SUCCESS) return usable.status();
        }
        return check("infinirtSetDevice", cudaSetDevice(device_id));
    });
}

infiniStatus_t device_synchronize(int device_id) {
    return on_device(device_id, [] { return check("infinirtDeviceSynchronize", cudaDeviceSynchronize()); });
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/** What this thread does meanwhile is no part of a capture that anybody makes, and does not spoil it. */
class OutsideOfCaptures {
public:
    OutsideOfCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~OutsideOfCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    OutsideOfCaptures(const OutsideOfCaptures &) = delete;
    OutsideOfCaptures &operator=(const OutsideOfCaptures &) = delete;

private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/** The memory of one device: a pool of this library, so that what it keeps is its own to keep.
 *
 *  Nobody says which streams may still use what is given to infinirtFree, so it must wait for the device; to do that for each would
 *  stop the device time and again. It is kept, and when it is much, or memory is short, the device is waited for once, and all of it
 *  goes back to the pool. */
class DeviceMemory {
public:
    /** With the device current. */
    infiniStatus_t allocate(const char *what, void **ptr, size_t size) {
        const OutsideOfCaptures outside;
        if (const infiniStatus_t status = prepare()) return status;
        if (const infiniStatus_t status = take(what, ptr, size, stream_)) return status;
        if (pool_ == nullptr) return INFINI_STATUS_SUCCESS;
        const cudaError_t error = cudaStreamSynchronize(stream_); // usable on any stream, at once
        if (error != cudaSuccess) {
            release_async(what, *ptr, stream_);
            *ptr = nullptr;
        }
        return check(what, error);
    }
    /** For work that is queued on `stream` from now on. */
    infiniStatus_t allocate_async(const char *what, void **ptr, size_t size, cudaStream_t stream) {
        if (const infiniStatus_t status = prepare()) return status;
        return take(what, ptr, size, stream);
    }

    infiniStatus_t release(const char *what, void *ptr) {
        bool much;
        {
            const std::lock_guard<ForkMutex> lock(mutex_);
            const auto found = live_.find(ptr);
            if (found == live_.end()) return refuse(what, ptr); // another thread was faster
            if (pool_ != nullptr) released_.push_back(ptr);     // may throw, and has changed nothing then
            released_bytes_ += found->second;
            live_.erase(found);
            much = released_bytes_ >= kept_bytes_ || released_.size() >= kMostReleased;
        }
        if (pool_ == nullptr) return check(what, cudaFree(ptr)); // which waits
        if (much) reclaim();                                     // or later
        return INFINI_STATUS_SUCCESS;
    }
    infiniStatus_t release_async(const char *what, void *ptr, cudaStream_t stream) {
        {
            const std::lock_guard<ForkMutex> lock(mutex_);
            if (live_.erase(ptr) == 0) return refuse(what, ptr);
        }
        return check(what, pool_ != nullptr ? cudaFreeAsync(ptr, stream) : cudaFree(ptr));
    }

    bool owns(void *ptr) {
        const std::lock_guard<ForkMutex> lock(mutex_);
        return live_.count(ptr) == 1;
    }

    static infiniStatus_t refuse(const char *what, void *ptr) {
        return fail(INFINI_STATUS_BAD_PARAM, "cuda: %s: %p is not live memory of a device", what, ptr);
    }

    /** What could be had without asking the device for more. */
    infiniStatus_t spare(const char *what, size_t *bytes) {
        const std::lock_guard<ForkMutex> lock(mutex_);
        *bytes = 0;
        if (pool_ == nullptr) return INFINI_STATUS_SUCCESS;
        uint64_t reserved = 0, used = 0;
        if (const infiniStatus_t status =
                check(what, cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved)))
            return status;
        if (const infiniStatus_t status =
                check(what, cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used)))
            return status;
        *bytes = reserved - std::min(used, reserved) + released_bytes_;
        return INFINI_STATUS_SUCCESS;
    }

private:
    static constexpr size_t kMostReleased = 4096; // allocations

    /** The pool, the first time. */
    infiniStatus_t prepare() {
        const std::lock_guard<ForkMutex> lock(mutex_);
        if (prepared_) return INFINI_STATUS_SUCCESS;
        int device = 0, supported = 0;
        size_t free_bytes, total_bytes;
        if (const infiniStatus_t status = check("asking for the current device", cudaGetDevice(&device))) return status;
        if (const infiniStatus_t status = check(
                "asking for memory pools", cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device)))
            return status;
        if (supported != 0) {
            if (const infiniStatus_t status =
                    check("asking for the size of the memory", cudaMemGetInfo(&free_bytes, &total_bytes)))
                return status;
            cudaMemPoolProps properties{};
            properties.allocType = cudaMemAllocationTypePinned;
            properties.handleTypes = cudaMemHandleTypeNone;
            properties.location.type = cudaMemLocationTypeDevice;
            properties.location.id = device;
            cudaMemPool_t pool;
            cudaStream_t stream = nullptr;
            if (const infiniStatus_t status = check("making a memory pool", cudaMemPoolCreate(&pool, &properties)))
                return status;
            // Or each synchronisation would give what is free back to the device, and the next allocation ask for it anew.
            uint64_t keep = total_bytes / 8;
            infiniStatus_t status = check("setting up a memory pool",
                                          cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
            if (status == INFINI_STATUS_SUCCESS)
                status = check("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            if (status != INFINI_STATUS_SUCCESS) {
                cudaMemPoolDestroy(pool);
                return status;
            }
            pool_ = pool;
            stream_ = stream;
            kept_bytes_ = total_bytes / 16;
        }
        prepared_ = true;
        return INFINI_STATUS_SUCCESS;
    }

    infiniStatus_t take(const char *what, void **ptr, size_t size, cudaStream_t stream) {
        const auto ask = [&](void **made) {
            const cudaError_t error =
                pool_ != nullptr ? cudaMallocFromPoolAsync(made, size, pool_, stream) : cudaMalloc(made, size);
            if (error != cudaSuccess) cudaGetLastError();
            return error;
        };
        void *made = nullptr;
        cudaError_t error = ask(&made);
        if (error == cudaErrorMemoryAllocation && pool_ != nullptr) {
            const OutsideOfCaptures outside;
            if (const infiniStatus_t status = check("waiting for the device to reuse memory", reclaim())) return status;
            if (const infiniStatus_t status = check(what, cudaMemPoolTrimTo(pool_, 0))) return status;
            error = ask(&made);
        }
        if (error != cudaSuccess) {
            char sentence[96];
            std::snprintf(sentence, sizeof sentence, "%s: %zu bytes cannot be had", what, size);
            return check(sentence, error);
        }
        try {
            const std::lock_guard<ForkMutex> lock(mutex_);
            live_[made] = size;
        } catch (...) {
            cudaFree(made); // nothing uses it yet
            throw;
        }
        *ptr = made;
        return INFINI_STATUS_SUCCESS;
    }

    /** Waits for the device and gives all that was released back to the pool. Nothing of it if the device cannot be waited for, as
     *  while a stream of it is being captured: it may be in use. */
    cudaError_t reclaim() {
        const OutsideOfCaptures outside;
        std::vector<void *> released;
        size_t bytes;
        {
            const std::lock_guard<ForkMutex> lock(mutex_);
            released.swap(released_);
            bytes = std::exchange(released_bytes_, 0);
        }
        cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaSuccess) {
            cudaGetLastError();
            const std::lock_guard<ForkMutex> lock(mutex_);
            if (released_.empty()) released_.swap(released); // which needs no memory
            released_.insert(released_.end(), released.begin(), released.end());
            released_bytes_ += bytes;
            return error;
        }
        for (void *ptr : released)
            if (const cudaError_t freed = cudaFreeAsync(ptr, stream_); error == cudaSuccess) error = freed;
        const cudaError_t done = cudaStreamSynchronize(stream_);
        if (error == cudaSuccess) error = done;
        if (error != cudaSuccess) cudaGetLastError();
        return error;
    }

    ForkMutex mutex_;
    bool prepared_ = false;
    cudaMemPool_t pool_ = nullptr;  // NULL where the device has none: memory comes from cudaMalloc
    cudaStream_t stream_ = nullptr; // for what has no stream of its own; nothing else is ever queued on it
    size_t kept_bytes_ = 0;
    std::map<void *, size_t> live_;
    std::vector<void *> released_;
    size_t released_bytes_ = 0;
};

constexpr int kMaxDevices = 64;
DeviceMemory *const memories = new DeviceMemory[kMaxDevices]; // never destroyed

/** Calls `body` with the memory of a device, which is current meanwhile. */
template <class Body>
infiniStatus_t with_memory(int device_id, const Body &body) {
    if (device_id >= kMaxDevices)
        return fail(INFINI_STATUS_DEVICE_NOT_FOUND, "cuda: device %d; %d are supported", device_id, kMaxDevices);
    return on_device(device_id, [&] { return body(memories[device_id]); });
}

/** What the device has free, and what this library would give without asking the device. */
infiniStatus_t mem_info(int device_id, size_t *free_bytes, size_t *total_bytes) {
    return with_memory(device_id, [&](DeviceMemory &memory) -> infiniStatus_t {
        size_t device_free, device_total, spare;
        if (const infiniStatus_t status = memory.spare("infinirtGetMemInfo", &spare)) return status;
        if (const infiniStatus_t status = check("infinirtGetMemInfo", cudaMemGetInfo(&device_free, &device_total)))
            return status;
        *free_bytes = device_free + spare;
        *total_bytes = device_total;
        return INFINI_STATUS_SUCCESS;
    });
}

infiniStatus_t malloc_device(int device_id, void **ptr, size_t size) {
    return with_memory(device_id, [&](DeviceMemory &memory) { return memory.allocate("infinirtMalloc", ptr, size); });
}
infiniStatus_t malloc_async(int device_id, void **ptr, size_t size, infinirtStream_t stream) {
    return with_memory(device_id, [&](DeviceMemory &memory) {
        return memory.allocate_async("infinirtMallocAsync", ptr, size, as_stream(stream));
    });
}
/** Memory may be released while another device of the family is current than the one it is of. */
template <class Body>
infiniStatus_t with_owner(const char *what, void *ptr, const Body &body) {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    for (int device = 0; device < kMaxDevices; ++device)
        if (memories[device].owns(ptr)) return with_memory(device, body);
    return DeviceMemory::refuse(what, ptr);
}
infiniStatus_t free_device(int, void *ptr) {
    return with_owner("infinirtFree", ptr, [&](DeviceMemory &memory) { return memory.release("infinirtFree", ptr); });
}
infiniStatus_t free_async(int, void *ptr, infinirtStream_t stream) {
    return with_owner("infinirtFreeAsync", ptr, [&](DeviceMemory &memory) {
        return memory.release_async("infinirtFreeAsync", ptr, as_stream(stream));
    });
}

infiniStatus_t malloc_host(int device_id, void **ptr, size_t size) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        void *made = nullptr;
        char sentence[96];
        std::snprintf(sentence, sizeof sentence, "infinirtMallocHost: %zu bytes cannot be had", size);
        if (const infiniStatus_t status = check(sentence, cudaHostAlloc(&made, size, cudaHostAllocPortable)))
            return status;
        const infiniStatus_t status = remember(host_memory, made, [&] { cudaFreeHost(made); });
        *ptr = made;
        return status;
    });
}

infiniStatus_t free_host(int device_id, void *ptr) {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = host_memory.remove("infinirtFreeHost", ptr)) return status;
        return check("infinirtFreeHost", cudaFreeHost(ptr));
    });
}

constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                     cudaMemcpyDeviceToDevice};

/** cudaMemcpy may return before a copy to the device is done: of what it has copied aside of memory that is not pinned, too. Other
 *  streams do not wait for that. */
infiniStatus_t memcpy_sync(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = check("infinirtMemcpy", cudaMemcpy(dst, src, size, kKinds[kind])))
            return status;
        const bool done = kind == INFINIRT_MEMCPY_D2H || kind == INFINIRT_MEMCPY_H2H;
        return done ? INFINI_STATUS_SUCCESS : check("infinirtMemcpy", cudaStreamSynchronize(cudaStreamLegacy));
    });
}

infiniStatus_t memcpy_async(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind,
                            infinirtStream_t stream) {
    return on_device(device_id, [&] {
        return check("infinirtMemcpyAsync", cudaMemcpyAsync(dst, src, size, kKinds[kind], as_stream(stream)));
    });
}

infiniStatus_t memset_sync(int device_id, void *ptr, int value, size_t size) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = check("infinirtMemset", cudaMemset(ptr, value, size))) return status;
        return check("infinirtMemset", cudaStreamSynchronize(cudaStreamLegacy));
    });
}

infiniStatus_t memset_async(int device_id, void *ptr, int value, size_t size, infinirtStream_t stream) {
    return on_device(
        device_id, [&] { return check("infinirtMemsetAsync", cudaMemsetAsync(ptr, value, size, as_stream(stream))); });
}

/* ---- streams and events -------------------------------------------------------------------------------------------- */

/** Its work does not wait for that of the legacy default stream, nor the other way round. */
infiniStatus_t stream_create(int device_id, infinirtStream_t *stream) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        cudaStream_t made;
        if (const infiniStatus_t status =
                check("infinirtStreamCreate", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking)))
            return status;
        const infiniStatus_t status = remember(streams, made, [&] { cudaStreamDestroy(made); });
        *stream = made;
        return status;
    });
}

infiniStatus_t stream_destroy(int device_id, infinirtStream_t stream) {
    if (stream == nullptr) return INFINI_STATUS_SUCCESS;
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = streams.remove("infinirtStreamDestroy", stream)) return status;
        return check("infinirtStreamDestroy", cudaStreamDestroy(as_stream(stream)));
    });
}

infiniStatus_t stream_synchronize(int device_id, infinirtStream_t stream) {
    return on_device(device_id,
                     [&] { return check("infinirtStreamSynchronize", cudaStreamSynchronize(as_stream(stream))); });
}

infiniStatus_t stream_wait_event(int device_id, infinirtStream_t stream, infinirtEvent_t event) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = events.need("infinirtStreamWaitEvent", event)) return status;
        return check("infinirtStreamWaitEvent", cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
    });
}

infiniStatus_t event_create(int device_id, infinirtEvent_t *event, uint32_t flags) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        const unsigned own = ((flags & INFINIRT_EVENT_DISABLE_TIMING) != 0 ? cudaEventDisableTiming : 0u) |
                             ((flags & INFINIRT_EVENT_BLOCKING_SYNC) != 0 ? cudaEventBlockingSync : 0u);
        cudaEvent_t made;
        if (const infiniStatus_t status = check("infinirtEventCreate", cudaEventCreateWithFlags(&made, own)))
            return status;
        const infiniStatus_t status = remember(events, made, [&] { cudaEventDestroy(made); });
        *event = made;
        return status;
    });
}

infiniStatus_t event_record(int device_id, infinirtEvent_t event, infinirtStream_t stream) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = events.need("infinirtEventRecord", event)) return status;
        return check("infinirtEventRecord", cudaEventRecord(as_event(event), as_stream(stream)));
    });
}

infiniStatus_t event_query(int device_id, infinirtEvent_t event, infinirtEventStatus_t *state) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = events.need("infinirtEventQuery", event)) return status;
        const cudaError_t error = cudaEventQuery(as_event(event));
        if (error == cudaErrorNotReady) {
            cudaGetLastError();
            *state = INFINIRT_EVENT_NOT_READY;
            return INFINI_STATUS_SUCCESS;
        }
        if (const infiniStatus_t status = check("infinirtEventQuery", error)) return status;
        *state = INFINIRT_EVENT_COMPLETE;
        return INFINI_STATUS_SUCCESS;
    });
}

infiniStatus_t event_synchronize(int device_id, infinirtEvent_t event) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = events.need("infinirtEventSynchronize", event)) return status;
        return check("infinirtEventSynchronize", cudaEventSynchronize(as_event(event)));
    });
}

infiniStatus_t event_destroy(int device_id, infinirtEvent_t event) {
    if (event == nullptr) return INFINI_STATUS_SUCCESS;
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = events.remove("infinirtEventDestroy", event)) return status;
        return check("infinirtEventDestroy", cudaEventDestroy(as_event(event)));
    });
}

infiniStatus_t event_elapsed_time(int device_id, float *ms, infinirtEvent_t start, infinirtEvent_t end) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = events.need("infinirtEventElapsedTime", start)) return status;
        if (const infiniStatus_t status = events.need("infinirtEventElapsedTime", end)) return status;
        return check("infinirtEventElapsedTime", cudaEventElapsedTime(ms, as_event(start), as_event(end)));
    });
}

/* ---- capture ------------------------------------------------------------------------------------------------------- */

static_assert(cudaStreamCaptureModeGlobal == static_cast<int>(INFINIRT_STREAM_CAPTURE_MODE_GLOBAL) &&
                  cudaStreamCaptureModeThreadLocal == static_cast<int>(INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL) &&
                  cudaStreamCaptureModeRelaxed == static_cast<int>(INFINIRT_STREAM_CAPTURE_MODE_RELAXED),
              "capture modes have CUDA's numbers");

infiniStatus_t stream_begin_capture(int device_id, infinirtStream_t stream, infinirtStreamCaptureMode_t mode) {
    return on_device(device_id, [&] {
        return check("infinirtStreamBeginCapture",
                     cudaStreamBeginCapture(as_stream(stream), static_cast<cudaStreamCaptureMode>(mode)));
    });
}

infiniStatus_t stream_end_capture(int device_id, infinirtStream_t stream, infinirtGraph_t *graph) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        cudaGraph_t made = nullptr;
        if (const infiniStatus_t status =
                check("infinirtStreamEndCapture", cudaStreamEndCapture(as_stream(stream), &made)))
            return status;
        const infiniStatus_t status = remember(graphs, made, [&] { cudaGraphDestroy(made); });
        *graph = made;
        return status;
    });
}

infiniStatus_t graph_destroy(int device_id, infinirtGraph_t graph) {
    if (graph == nullptr) return INFINI_STATUS_SUCCESS;
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = graphs.remove("infinirtGraphDestroy", graph)) return status;
        return check("infinirtGraphDestroy", cudaGraphDestroy(static_cast<cudaGraph_t>(graph)));
    });
}

infiniStatus_t graph_instantiate(int device_id, infinirtGraphExec_t *exec, infinirtGraph_t graph,
                                 infinirtGraphNode_t *node, char *log, size_t log_size) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = graphs.need("infinirtGraphInstantiate", graph)) return status;
        cudaGraphExec_t made = nullptr;
        cudaGraphInstantiateParams params{};
        const cudaError_t error = cudaGraphInstantiateWithParams(&made, static_cast<cudaGraph_t>(graph), &params);
        if (error != cudaSuccess) {
            if (node != nullptr) *node = params.errNode_out;
            if (log_size > 0) std::snprintf(log, log_size, "%s", cudaGetErrorString(error));
            return check("infinirtGraphInstantiate", error);
        }
        const infiniStatus_t status = remember(graph_execs, made, [&] { cudaGraphExecDestroy(made); });
        *exec = made;
        return status;
    });
}

infiniStatus_t graph_exec_destroy(int device_id, infinirtGraphExec_t exec) {
    if (exec == nullptr) return INFINI_STATUS_SUCCESS;
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = graph_execs.remove("infinirtGraphExecDestroy", exec)) return status;
        return check("infinirtGraphExecDestroy", cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec)));
    });
}

infiniStatus_t graph_launch(int device_id, infinirtGraphExec_t exec, infinirtStream_t stream) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = graph_execs.need("infinirtGraphLaunch", exec)) return status;
        return check("infinirtGraphLaunch", cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec), as_stream(stream)));
    });
}

} // namespace

const InfiniRuntimeTable kCudaRuntime = {
    sizeof(InfiniRuntimeTable),
    device_count,
    set_device,
    mem_info,
    device_synchronize,
    stream_create,
    stream_destroy,
    stream_synchronize,
    stream_wait_event,
    event_create,
    event_record,
    event_query,
    event_synchronize,
    event_destroy,
    event_elapsed_time,
    malloc_device,
    malloc_host,
    free_device,
    free_host,
    malloc_async,
    free_async,
    memcpy_sync,
    memcpy_async,
    memset_sync,
    memset_async,
    stream_begin_capture,
    stream_end_capture,
    graph_destroy,
    graph_instantiate,
    graph_exec_destroy,
    graph_launch,
};

} // namespace infini::cuda
