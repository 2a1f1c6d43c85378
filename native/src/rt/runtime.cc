/* The infinirt functions: check what every backend would have to check, then call the current device's backend. */
#include <atomic>

#include "core/status.h"
#include "core/thread_local.h"
#include "rt/registry.h"

using namespace infini;

namespace {

struct Current {
    infiniDevice_t device = INFINI_DEVICE_CPU;
    int id = 0;
};
INFINI_THREAD_LOCAL Current current;

/** Calls one entry of the current device's runtime table. */
template <class... Params, class... Args>
infiniStatus_t call(const char *function, infiniStatus_t (*InfiniRuntimeTable::*entry)(int, Params...), Args... args) {
    const InfiniBackend *backend = find_backend(current.device);
    if (backend == nullptr) return fail_no_backend(function, current.device);
    const auto implementation = backend->runtime->*entry;
    if (implementation == nullptr)
        return fail(INFINI_STATUS_NOT_IMPLEMENTED, "%s: the %s backend does not offer it", function, backend->name);
    return implementation(current.id, args...);
}

infiniStatus_t null_argument(const char *function, const char *argument) {
    return fail(INFINI_STATUS_NULL_POINTER, "%s: %s is NULL", function, argument);
}

/** Is (device, id) a device of this machine? */
infiniStatus_t check_device(const char *function, infiniDevice_t device, int id) {
    if (!device_known(device))
        return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "%s: %d is not a device type", function, device);
    const InfiniBackend *backend = find_backend(device);
    if (backend == nullptr) return fail_no_backend(function, device);
    int count = 0;
    if (backend->runtime->device_count(&count) != INFINI_STATUS_SUCCESS) {
        // It may have failed without a word, and must not get another's.
        infinirtSetLastError(INFINI_STATUS_SUCCESS, "");
        const infiniStatus_t status = backend->runtime->device_count(&count);
        const char *const said = infinirtGetLastErrorMessage();
        if (status != INFINI_STATUS_SUCCESS)
            return fail(INFINI_STATUS_DEVICE_NOT_FOUND, "%s: there is no %s:%d: %s", function, device_name(device), id,
                        *said != '\0' ? said : status_name(status));
    }
    if (id < 0 || id >= count)
        return fail(INFINI_STATUS_DEVICE_NOT_FOUND, "%s: there is no %s:%d, this machine has %d of them", function,
                    device_name(device), id, count);
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t check_copy(const char *function, const void *dst, const void *src, size_t size,
                          infinirtMemcpyKind_t kind) {
    if (kind < INFINIRT_MEMCPY_H2H || kind > INFINIRT_MEMCPY_D2D)
        return fail(INFINI_STATUS_BAD_PARAM, "%s: %d is not a kind of copy", function, kind);
    if (size == 0) return INFINI_STATUS_SUCCESS;
    if (dst == nullptr) return null_argument(function, "dst");
    if (src == nullptr) return null_argument(function, "src");
    return INFINI_STATUS_SUCCESS;
}

} // namespace

#define NOT_NULL(argument) \
    if (argument == nullptr) return null_argument(fn, #argument)

using T = InfiniRuntimeTable;

extern "C" {

INFINI_EXPORT(infinirtInit, (void), { return INFINI_STATUS_SUCCESS; })

INFINI_EXPORT(infinirtGetAllDeviceCount, (int *counts), {
    NOT_NULL(counts);
    for (int d = 0; d < INFINI_DEVICE_TYPE_COUNT; ++d) counts[d] = device_count(d);
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infinirtGetDeviceCount, (infiniDevice_t device, int *count), {
    NOT_NULL(count);
    if (!device_known(device))
        return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "%s: %d is not a device type", fn, device);
    *count = device_count(device);
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infinirtSetDevice, (infiniDevice_t device, int device_id), {
    if (const infiniStatus_t status = check_device(fn, device, device_id)) return status;
    const auto set_device = find_backend(device)->runtime->set_device;
    if (set_device != nullptr)
        if (const infiniStatus_t status = set_device(device_id)) return status;
    current = {device, device_id};
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infinirtUseDevice, (infiniDevice_t device, int device_id), {
    if (const infiniStatus_t status = check_device(fn, device, device_id)) return status;
    current = {device, device_id};
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infinirtGetDevice, (infiniDevice_t * device, int *device_id), {
    if (device == nullptr && device_id == nullptr) return null_argument(fn, "both device and device_id");
    if (device != nullptr) *device = current.device;
    if (device_id != nullptr) *device_id = current.id;
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infinirtGetMemInfo, (infiniDevice_t device, int device_id, size_t *free_bytes, size_t *total_bytes), {
    NOT_NULL(free_bytes);
    NOT_NULL(total_bytes);
    if (const infiniStatus_t status = check_device(fn, device, device_id)) return status;
    return find_backend(device)->runtime->mem_info(device_id, free_bytes, total_bytes);
})

INFINI_EXPORT(infinirtGetDeviceResourceSnapshot,
              (infiniDevice_t device, int device_id, infinirtDeviceResourceSnapshot_t *snapshot), {
                  NOT_NULL(snapshot);
                  if (const infiniStatus_t status = check_device(fn, device, device_id)) return status;
                  return fail(INFINI_STATUS_NOT_IMPLEMENTED, "%s: no backend offers it", fn);
              })

INFINI_EXPORT(infinirtDeviceSynchronize, (void), { return call(fn, &T::device_synchronize); })

INFINI_EXPORT(infinirtStreamCreate, (infinirtStream_t * stream), {
    NOT_NULL(stream);
    return call(fn, &T::stream_create, stream);
})
INFINI_EXPORT(infinirtStreamDestroy, (infinirtStream_t stream), {
    if (stream == nullptr) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::stream_destroy, stream);
})
INFINI_EXPORT(infinirtStreamSynchronize, (infinirtStream_t stream),
              { return call(fn, &T::stream_synchronize, stream); })
INFINI_EXPORT(infinirtStreamWaitEvent, (infinirtStream_t stream, infinirtEvent_t event), {
    NOT_NULL(event);
    return call(fn, &T::stream_wait_event, stream, event);
})

INFINI_EXPORT(infinirtEventCreate, (infinirtEvent_t * event), {
    NOT_NULL(event);
    return call(fn, &T::event_create, event, uint32_t{INFINIRT_EVENT_DEFAULT});
})
INFINI_EXPORT(infinirtEventCreateWithFlags, (infinirtEvent_t * event, uint32_t flags), {
    NOT_NULL(event);
    if ((flags & ~uint32_t{INFINIRT_EVENT_DISABLE_TIMING | INFINIRT_EVENT_BLOCKING_SYNC}) != 0)
        return fail(INFINI_STATUS_BAD_PARAM, "%s: 0x%x has bits that are no event flag", fn, flags);
    return call(fn, &T::event_create, event, flags);
})
INFINI_EXPORT(infinirtEventRecord, (infinirtEvent_t event, infinirtStream_t stream), {
    NOT_NULL(event);
    return call(fn, &T::event_record, event, stream);
})
INFINI_EXPORT(infinirtEventQuery, (infinirtEvent_t event, infinirtEventStatus_t *status), {
    NOT_NULL(event);
    NOT_NULL(status);
    return call(fn, &T::event_query, event, status);
})
INFINI_EXPORT(infinirtEventSynchronize, (infinirtEvent_t event), {
    NOT_NULL(event);
    return call(fn, &T::event_synchronize, event);
})
INFINI_EXPORT(infinirtEventDestroy, (infinirtEvent_t event), {
    if (event == nullptr) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::event_destroy, event);
})
INFINI_EXPORT(infinirtEventElapsedTime, (float *ms, infinirtEvent_t start, infinirtEvent_t end), {
    NOT_NULL(ms);
    NOT_NULL(start);
    NOT_NULL(end);
    return call(fn, &T::event_elapsed_time, ms, start, end);
})

/* An allocation of no bytes is NULL on every device, so that it can be freed like any other. */
INFINI_EXPORT(infinirtMalloc, (void **ptr, size_t size), {
    NOT_NULL(ptr);
    *ptr = nullptr;
    if (size == 0) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::malloc_device, ptr, size);
})
INFINI_EXPORT(infinirtMallocHost, (void **ptr, size_t size), {
    NOT_NULL(ptr);
    *ptr = nullptr;
    if (size == 0) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::malloc_host, ptr, size);
})
INFINI_EXPORT(infinirtFree, (void *ptr), {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::free_device, ptr);
})
INFINI_EXPORT(infinirtFreeHost, (void *ptr), {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::free_host, ptr);
})
INFINI_EXPORT(infinirtMallocAsync, (void **ptr, size_t size, infinirtStream_t stream), {
    NOT_NULL(ptr);
    *ptr = nullptr;
    if (size == 0) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::malloc_async, ptr, size, stream);
})
INFINI_EXPORT(infinirtFreeAsync, (void *ptr, infinirtStream_t stream), {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::free_async, ptr, stream);
})

INFINI_EXPORT(infinirtMemcpy, (void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind), {
    const infiniStatus_t status = check_copy(fn, dst, src, size, kind);
    if (status != INFINI_STATUS_SUCCESS || size == 0) return status;
    return call(fn, &T::memcpy_sync, dst, src, size, kind);
})
INFINI_EXPORT(infinirtMemcpyAsync,
              (void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind, infinirtStream_t stream), {
                  const infiniStatus_t status = check_copy(fn, dst, src, size, kind);
                  if (status != INFINI_STATUS_SUCCESS || size == 0) return status;
                  return call(fn, &T::memcpy_async, dst, src, size, kind, stream);
              })
INFINI_EXPORT(infinirtMemset, (void *ptr, int value, size_t size), {
    if (size == 0) return INFINI_STATUS_SUCCESS;
    NOT_NULL(ptr);
    return call(fn, &T::memset_sync, ptr, value, size);
})
INFINI_EXPORT(infinirtMemsetAsync, (void *ptr, int value, size_t size, infinirtStream_t stream), {
    if (size == 0) return INFINI_STATUS_SUCCESS;
    NOT_NULL(ptr);
    return call(fn, &T::memset_async, ptr, value, size, stream);
})

INFINI_EXPORT(infinirtStreamBeginCapture, (infinirtStream_t stream, infinirtStreamCaptureMode_t mode), {
    if (mode < INFINIRT_STREAM_CAPTURE_MODE_GLOBAL || mode > INFINIRT_STREAM_CAPTURE_MODE_RELAXED)
        return fail(INFINI_STATUS_BAD_PARAM, "%s: %d is not a capture mode", fn, mode);
    return call(fn, &T::stream_begin_capture, stream, mode);
})
INFINI_EXPORT(infinirtStreamEndCapture, (infinirtStream_t stream, infinirtGraph_t *graph), {
    NOT_NULL(graph);
    return call(fn, &T::stream_end_capture, stream, graph);
})
INFINI_EXPORT(infinirtGraphDestroy, (infinirtGraph_t graph), {
    if (graph == nullptr) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::graph_destroy, graph);
})
INFINI_EXPORT(infinirtGraphInstantiate,
              (infinirtGraphExec_t * exec, infinirtGraph_t graph, infinirtGraphNode_t *node, char *log,
               size_t log_size),
              {
                  NOT_NULL(exec);
                  NOT_NULL(graph);
                  if (log_size > 0) NOT_NULL(log);
                  // Whatever fails from here on.
                  if (log_size > 0) log[0] = '\0';
                  if (node != nullptr) *node = nullptr;
                  return call(fn, &T::graph_instantiate, exec, graph, node, log, log_size);
              })
INFINI_EXPORT(infinirtGraphExecDestroy, (infinirtGraphExec_t exec), {
    if (exec == nullptr) return INFINI_STATUS_SUCCESS;
    return call(fn, &T::graph_exec_destroy, exec);
})
/* Two spellings of one function. */
#define EXPORT_LAUNCH(function)                                                    \
    INFINI_EXPORT(function, (infinirtGraphExec_t exec, infinirtStream_t stream), { \
        NOT_NULL(exec);                                                            \
        return call(fn, &T::graph_launch, exec, stream);                           \
    })
EXPORT_LAUNCH(infinirtGraphLaunch)
EXPORT_LAUNCH(infinirtGraphLuanch)

} // extern "C"
