/* The NVIDIA backend's runtime table. A stream is a cudaStream_t, an event a cudaEvent_t and so on: programs may mix calls to CUDA
 * with calls to this library. A stream may therefore be anybody's; what else is used or destroyed here was made here, and anything
 * else is refused. */
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>

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
LiveSet &device_memory = *new LiveSet("allocation on a device");
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

infiniStatus_t device_count(int *count) {
    return guard("cuda", [&] { return check("counting devices", cudaGetDeviceCount(count)); });
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

constexpr int kMaxDevices = 64;

/** The pool that a device's memory comes from: one of this library, so that what it keeps is its own to keep. */
struct Pool {
    cudaMemPool_t pool = nullptr;  // NULL where the device has none: memory comes from cudaMalloc
    cudaStream_t stream = nullptr; // where allocations without a stream are made; nothing is ever queued behind them
};

class Pools {
public:
    /** The pool of the current device. */
    infiniStatus_t of(int device_id, Pool *pool) {
        if (device_id >= kMaxDevices)
            return fail(INFINI_STATUS_DEVICE_NOT_FOUND, "cuda: device %d; %d are supported", device_id, kMaxDevices);
        const std::lock_guard<ForkMutex> lock(mutex_);
        if (!made_[device_id]) {
            if (const infiniStatus_t status = make(device_id, &pools_[device_id])) return status;
            made_[device_id] = true;
        }
        *pool = pools_[device_id];
        return INFINI_STATUS_SUCCESS;
    }
    /** The same if it was made already. */
    cudaMemPool_t made(int device_id) {
        const std::lock_guard<ForkMutex> lock(mutex_);
        return device_id < kMaxDevices && made_[device_id] ? pools_[device_id].pool : nullptr;
    }

private:
    static infiniStatus_t make(int device_id, Pool *made) {
        int supported = 0;
        if (const infiniStatus_t status =
                check("asking for memory pools",
                      cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device_id)))
            return status;
        if (supported == 0) return INFINI_STATUS_SUCCESS;
        Pool pool;
        cudaMemPoolProps properties{};
        properties.allocType = cudaMemAllocationTypePinned;
        properties.handleTypes = cudaMemHandleTypeNone;
        properties.location.type = cudaMemLocationTypeDevice;
        properties.location.id = device_id;
        if (const infiniStatus_t status = check("making a memory pool", cudaMemPoolCreate(&pool.pool, &properties)))
            return status;
        // What is free stays with the process up to a part of the device's memory, or each synchronisation would give it back and
        // each allocation ask for it anew.
        size_t free_bytes, total_bytes;
        infiniStatus_t status = check("asking for the size of the memory", cudaMemGetInfo(&free_bytes, &total_bytes));
        if (status == INFINI_STATUS_SUCCESS) {
            uint64_t keep = total_bytes / 8;
            status = check("setting up a memory pool",
                           cudaMemPoolSetAttribute(pool.pool, cudaMemPoolAttrReleaseThreshold, &keep));
        }
        if (status == INFINI_STATUS_SUCCESS)
            status = check("making a stream", cudaStreamCreateWithFlags(&pool.stream, cudaStreamNonBlocking));
        if (status != INFINI_STATUS_SUCCESS) {
            cudaMemPoolDestroy(pool.pool);
            return status;
        }
        *made = pool;
        return INFINI_STATUS_SUCCESS;
    }

    ForkMutex mutex_;
    bool made_[kMaxDevices] = {};
    Pool pools_[kMaxDevices];
};
Pools &pools = *new Pools;

/** What the device has free, and what this library's pool would give without asking the device. */
infiniStatus_t mem_info(int device_id, size_t *free_bytes, size_t *total_bytes) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        size_t device_free, device_total;
        if (const infiniStatus_t status = check("infinirtGetMemInfo", cudaMemGetInfo(&device_free, &device_total)))
            return status;
        if (cudaMemPool_t pool = pools.made(device_id)) {
            uint64_t reserved = 0, used = 0;
            if (const infiniStatus_t status = check(
                    "infinirtGetMemInfo", cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved)))
                return status;
            if (const infiniStatus_t status =
                    check("infinirtGetMemInfo", cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used)))
                return status;
            device_free += reserved - std::min(used, reserved);
        }
        *free_bytes = device_free;
        *total_bytes = device_total;
        return INFINI_STATUS_SUCCESS;
    });
}

/** Memory that work queued on `stream` may use; what the pool keeps without need is given back before it fails. */
infiniStatus_t allocate(const char *what, const Pool &pool, void **ptr, size_t size, cudaStream_t stream) {
    cudaError_t error = cudaErrorMemoryAllocation;
    for (int attempt = 0; attempt < 2 && error == cudaErrorMemoryAllocation; ++attempt) {
        if (attempt > 0 && (pool.pool == nullptr || cudaMemPoolTrimTo(pool.pool, 0) != cudaSuccess)) break;
        error = pool.pool != nullptr ? cudaMallocFromPoolAsync(ptr, size, pool.pool, stream) : cudaMalloc(ptr, size);
        if (error != cudaSuccess) cudaGetLastError();
    }
    if (error != cudaSuccess) {
        *ptr = nullptr;
        char sentence[96];
        std::snprintf(sentence, sizeof sentence, "%s: %zu bytes cannot be had", what, size);
        return check(sentence, error);
    }
    void *const made = *ptr;
    *ptr = nullptr;
    const infiniStatus_t status = remember(device_memory, made, [&] { cudaFree(made); });
    *ptr = made;
    return status;
}

infiniStatus_t malloc_device(int device_id, void **ptr, size_t size) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        Pool pool;
        if (const infiniStatus_t status = pools.of(device_id, &pool)) return status;
        if (const infiniStatus_t status = allocate("infinirtMalloc", pool, ptr, size, pool.stream)) return status;
        if (pool.pool == nullptr) return INFINI_STATUS_SUCCESS;
        return check("infinirtMalloc", cudaStreamSynchronize(pool.stream)); // usable on any stream, at once
    });
}

infiniStatus_t malloc_async(int device_id, void **ptr, size_t size, infinirtStream_t stream) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        Pool pool;
        if (const infiniStatus_t status = pools.of(device_id, &pool)) return status;
        return allocate("infinirtMallocAsync", pool, ptr, size, as_stream(stream));
    });
}

/** cudaFree waits for whatever may still use the memory, of a pool or not. */
infiniStatus_t free_device(int device_id, void *ptr) {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = device_memory.remove("infinirtFree", ptr)) return status;
        return check("infinirtFree", cudaFree(ptr));
    });
}

infiniStatus_t free_async(int device_id, void *ptr, infinirtStream_t stream) {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    return on_device(device_id, [&]() -> infiniStatus_t {
        Pool pool;
        if (const infiniStatus_t status = pools.of(device_id, &pool)) return status;
        if (const infiniStatus_t status = device_memory.remove("infinirtFreeAsync", ptr)) return status;
        return check("infinirtFreeAsync", pool.pool != nullptr ? cudaFreeAsync(ptr, as_stream(stream)) : cudaFree(ptr));
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

/** cudaMemcpy may return before a copy between two places of the device is done. */
infiniStatus_t memcpy_sync(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind) {
    return on_device(device_id, [&]() -> infiniStatus_t {
        if (const infiniStatus_t status = check("infinirtMemcpy", cudaMemcpy(dst, src, size, kKinds[kind])))
            return status;
        if (kind != INFINIRT_MEMCPY_D2D) return INFINI_STATUS_SUCCESS;
        return check("infinirtMemcpy", cudaStreamSynchronize(cudaStreamLegacy));
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
