/** infinirt.h: the runtime contract: which devices there are, their memory, streams, events and captured graphs.
 *
 *  INTRODUCTION
 *  Each thread has a current device, CPU:0 at first, that infinirtSetDevice() changes. Memory, streams and events
 *  belong to the device that was current when they were made, and are to be used and released while a device of that
 *  family is current. On the CPU everything is synchronous: a stream is an object without a queue, an event is
 *  complete as soon as it is recorded.
 *
 *      #include "infiniop.h" // of libinfiniop.so: for the message
 *      infinirtSetDevice(INFINI_DEVICE_CPU, 0);
 *      void *x;
 *      if (infinirtMalloc(&x, 1 << 20) != INFINI_STATUS_SUCCESS) puts(infiniopGetLastErrorMessage());
 *      infinirtFree(x);
 *
 *  RULES FOR EVERY FUNCTION
 *  - Sizes are in bytes. Pointers to results are host pointers, written only on SUCCESS unless said otherwise.
 *  - A NULL result pointer gives NULL_POINTER, an unknown device type DEVICE_TYPE_NOT_SUPPORTED, an unknown value of
 *    any other enum BAD_PARAM, a handle that was destroyed or is of another kind BAD_PARAM.
 *  - A NULL stream is the device's default stream. Destroy and free functions accept NULL. A call that has nothing to do
 *    (size 0, or NULL to free) succeeds without a look at its stream.
 *  - A failed call changes nothing. Every function may be called from any thread; one stream, event or graph must not
 *    be destroyed while another thread uses it.
 *  - Nothing prints and nothing aborts. Calls reach the backend of the current device; what that backend cannot do
 *    answers NOT_IMPLEMENTED. INTERNAL_ERROR means memory or the driver failed. */
#ifndef INFINIRT_H
#define INFINIRT_H

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *infinirtStream_t;
typedef void *infinirtEvent_t;
typedef void *infinirtGraph_t;
typedef void *infinirtGraphNode_t;
typedef void *infinirtGraphExec_t;

/* ---- devices ------------------------------------------------------------------------------------------------- */

/** Prepares the library. Optional and repeatable: every other call does it on demand. */
INFINI_API infiniStatus_t infinirtInit(void);

/** Writes the number of devices of every family to counts[0 .. INFINI_DEVICE_TYPE_COUNT-1]. May load backends. */
INFINI_API infiniStatus_t infinirtGetAllDeviceCount(int *counts);

/** Writes the number of devices of one family: 0 where there is no backend, no driver or no device. */
INFINI_API infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int *count);

/** Makes (device, device_id) this thread's current device.
 *  DEVICE_TYPE_NOT_SUPPORTED: no backend for this family; the message says why. DEVICE_NOT_FOUND: id out of range.
 *  On failure the current device stays what it was. */
INFINI_API infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);

/** The same for calls of this library alone: the vendor's runtime is not told, so that other code of this thread goes on with the
 *  device that it had there. For a few calls, after which the device of before is brought back by this function, too. */
INFINI_API infiniStatus_t infinirtUseDevice(infiniDevice_t device, int device_id);

/** Writes this thread's current device. Either pointer may be NULL, but not both. */
INFINI_API infiniStatus_t infinirtGetDevice(infiniDevice_t *device, int *device_id);

/** Writes the free and the total memory of a device, in bytes. For the CPU: what the system or the control group
 *  would still give this process. */
INFINI_API infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int device_id, size_t *free_bytes, size_t *total_bytes);

/** One reading of a device's load. Only the fields named in valid_fields (bit 0: memory, bit 1: compute utilisation,
 *  bit 2: memory bandwidth utilisation, bit 3: kernel time ratio, bit 4: communication) mean anything. */
typedef struct {
    infiniDevice_t device_type;
    int device_id;
    uint64_t valid_fields;
    uint64_t estimated_fields;
    size_t free_bytes;
    size_t total_bytes;
    size_t used_bytes;
    size_t reserved_bytes;
    float compute_utilization;
    float memory_bandwidth_utilization;
    float kernel_time_ratio;
    float communication_time_ratio;
    uint64_t communication_bytes;
} infinirtDeviceResourceSnapshot_t;

/** Always NOT_IMPLEMENTED in this version (after the checks every function makes). */
INFINI_API infiniStatus_t infinirtGetDeviceResourceSnapshot(infiniDevice_t device, int device_id, infinirtDeviceResourceSnapshot_t *snapshot);

/** Waits until all work of the current device is done. */
INFINI_API infiniStatus_t infinirtDeviceSynchronize(void);

/* ---- streams ------------------------------------------------------------------------------------------------- */

INFINI_API infiniStatus_t infinirtStreamCreate(infinirtStream_t *stream);
INFINI_API infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream);

/** Waits until the work queued on `stream` is done. */
INFINI_API infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream);

/** Work queued on `stream` from now on waits for the last recording of `event`. */
INFINI_API infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event);

/* ---- events -------------------------------------------------------------------------------------------------- */

enum {
    INFINIRT_EVENT_COMPLETE = 0,
    INFINIRT_EVENT_NOT_READY = 1
};
typedef int infinirtEventStatus_t;

/** Flags of infinirtEventCreateWithFlags; may be combined. */
enum {
    INFINIRT_EVENT_DEFAULT = 0,
    INFINIRT_EVENT_DISABLE_TIMING = 1, /* cheaper; refused by infinirtEventElapsedTime */
    INFINIRT_EVENT_BLOCKING_SYNC = 2   /* waiting sleeps instead of spinning */
};

INFINI_API infiniStatus_t infinirtEventCreate(infinirtEvent_t *event);

/** BAD_PARAM for bits that are no flag. */
INFINI_API infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t *event, uint32_t flags);

/** Marks this point of `stream`. Recording again replaces the earlier mark. */
INFINI_API infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream);

/** COMPLETE when the work before the mark is done, or when nothing was recorded yet. */
INFINI_API infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t *status);
INFINI_API infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event);
INFINI_API infiniStatus_t infinirtEventDestroy(infinirtEvent_t event);

/** Writes the time between two recorded, complete events in milliseconds.
 *  BAD_PARAM when one was never recorded or was created with DISABLE_TIMING. */
INFINI_API infiniStatus_t infinirtEventElapsedTime(float *ms, infinirtEvent_t start, infinirtEvent_t end);

/* ---- memory -------------------------------------------------------------------------------------------------- */

enum {
    INFINIRT_MEMCPY_H2H = 0,
    INFINIRT_MEMCPY_H2D = 1,
    INFINIRT_MEMCPY_D2H = 2,
    INFINIRT_MEMCPY_D2D = 3
};
typedef int infinirtMemcpyKind_t;

/** Allocates `size` bytes on the current device, at least 64-byte aligned, contents undefined.
 *  *ptr is NULL for size 0 (SUCCESS) and on failure (INTERNAL_ERROR when there is no memory). */
INFINI_API infiniStatus_t infinirtMalloc(void **ptr, size_t size);

/** The same in host memory that the current device copies from and to fastest. */
INFINI_API infiniStatus_t infinirtMallocHost(void **ptr, size_t size);

/** Releases memory of infinirtMalloc. On the CPU a pointer that is not a live allocation is refused with BAD_PARAM. */
INFINI_API infiniStatus_t infinirtFree(void *ptr);

/** Releases memory of infinirtMallocHost. */
INFINI_API infiniStatus_t infinirtFreeHost(void *ptr);

/** Copies `size` bytes and waits. `kind` says where each side lives: H host, D the current device.
 *  dst and src may be NULL only when size is 0; on the CPU they may overlap. */
INFINI_API infiniStatus_t infinirtMemcpy(void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind);

/** The same, queued on `stream`; both sides must stay alive and unchanged until it is done. */
INFINI_API infiniStatus_t infinirtMemcpyAsync(void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind, infinirtStream_t stream);

/** Allocation and release in stream order: usable by work queued on `stream` after the call. Memory of
 *  infinirtMallocAsync may be released by infinirtFree once the stream is synchronised, and the other way round. */
INFINI_API infiniStatus_t infinirtMallocAsync(void **ptr, size_t size, infinirtStream_t stream);
INFINI_API infiniStatus_t infinirtFreeAsync(void *ptr, infinirtStream_t stream);

/** Sets `size` bytes of device memory to the low byte of `value`. ptr may be NULL only when size is 0. */
INFINI_API infiniStatus_t infinirtMemset(void *ptr, int value, size_t size);
INFINI_API infiniStatus_t infinirtMemsetAsync(void *ptr, int value, size_t size, infinirtStream_t stream);

/* ---- capture and device graphs --------------------------------------------------------------------------------
 *  Backends without capture (the CPU is one) answer NOT_IMPLEMENTED to all of these; operators can be replayed in one
 *  call on every device with the graph executor of infiniop.h. */

enum {
    INFINIRT_STREAM_CAPTURE_MODE_GLOBAL = 0,
    INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    INFINIRT_STREAM_CAPTURE_MODE_RELAXED = 2
};
typedef int infinirtStreamCaptureMode_t;

/** From here to infinirtStreamEndCapture work on `stream` is recorded and not run. */
INFINI_API infiniStatus_t infinirtStreamBeginCapture(infinirtStream_t stream, infinirtStreamCaptureMode_t mode);
INFINI_API infiniStatus_t infinirtStreamEndCapture(infinirtStream_t stream, infinirtGraph_t *graph);
INFINI_API infiniStatus_t infinirtGraphDestroy(infinirtGraph_t graph);

/** Makes a graph launchable. On failure `node` (may be NULL) gets the node at fault and `log` (may be NULL when
 *  log_size is 0) a NUL-terminated text of at most log_size bytes. */
INFINI_API infiniStatus_t infinirtGraphInstantiate(infinirtGraphExec_t *exec, infinirtGraph_t graph, infinirtGraphNode_t *node, char *log, size_t log_size);

/** Runs that are queued still take place. */
INFINI_API infiniStatus_t infinirtGraphExecDestroy(infinirtGraphExec_t exec);

/** Queues one run of the graph on `stream`. The first spelling is the one the interface was published with. */
INFINI_API infiniStatus_t infinirtGraphLuanch(infinirtGraphExec_t exec, infinirtStream_t stream);
INFINI_API infiniStatus_t infinirtGraphLaunch(infinirtGraphExec_t exec, infinirtStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
