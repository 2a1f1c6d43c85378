/** fake_backend.c: a complete small backend plugin for the tests: two devices that own their memory.
 *
 *  It claims the slot FAKE_SLOT, links against nothing of this project, and lets the CPU backend do the arithmetic, which
 *  it reaches through the public functions of the libinfiniop.so beside the host library. What it adds is everything that
 *  goes wrong only with a second device:
 *
 *  - a device address is a host address with one high bit set, so that touching it on the host faults at once
 *  - each device has FAKE_MEMORY bytes; every block has guard bytes on both sides; copies, fills and operators accept only
 *    addresses inside live blocks of the device they run on
 *  - every operator with a workspace asks for FAKE_WORKSPACE bytes more than the CPU and writes all of them
 *  - fakeBackendGetCounts() says what is alive, so that a test can assert that nothing was leaked
 *
 *  Streams run everything at once, or with FAKE_LAZY as late as they may: see "queues". Operators on a stream that is being
 *  captured are recorded instead and run at each launch; anything else on such a stream is refused. In the slot of NVIDIA
 *  2 is a stream, too. The FAKE_ macros below make it misbehave:
 *      cc -std=c99 -shared -fPIC -DFAKE_PROBE=7 -I<include> fake_backend.c -o fake.so -ldl -lpthread */
#define _GNU_SOURCE /* dladdr */
#include "infini_backend.h"
#include "infiniop.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef FAKE_SLOT
#define FAKE_SLOT INFINI_DEVICE_QY
#endif
#ifndef FAKE_MEMORY
#define FAKE_MEMORY ((size_t)64 << 20) /* bytes per device */
#endif
#ifndef FAKE_WORKSPACE
#define FAKE_WORKSPACE 96 /* bytes */
#endif
#ifndef FAKE_LAZY
#define FAKE_LAZY 0 /* 1: what is queued runs when somebody waits for it */
#endif
/* What the plugin claims about itself. */
#ifndef FAKE_ABI
#define FAKE_ABI INFINI_BACKEND_ABI
#endif
#ifndef FAKE_STRUCT_SIZE
#define FAKE_STRUCT_SIZE sizeof(InfiniBackend)
#endif
#ifndef FAKE_NAME
#define FAKE_NAME "fake" /* NULL: an incomplete struct, as with the next */
#endif
#ifndef FAKE_VERSION
#define FAKE_VERSION "1.0"
#endif
#ifndef FAKE_RUNTIME_SIZE
#define FAKE_RUNTIME_SIZE sizeof(InfiniRuntimeTable)
#endif
#ifndef FAKE_OPS_SIZE
#define FAKE_OPS_SIZE sizeof(InfiniOpTable)
#endif
#ifndef FAKE_MEM_INFO
#define FAKE_MEM_INFO mem_info /* NULL: an incomplete table */
#endif
#ifndef FAKE_OP_RUN
#define FAKE_OP_RUN op_run /* NULL: an incomplete table */
#endif
#ifndef FAKE_CAPTURE
#define FAKE_CAPTURE 1 /* 0: capture is not offered */
#endif
#ifndef FAKE_ENTRY_NULL
#define FAKE_ENTRY_NULL 0 /* 1: "I cannot work with this host" */
#endif
#ifndef FAKE_ASKS
#define FAKE_ASKS 0 /* 1: its probe asks the host for its own device, and to load it once more */
#endif
#ifndef FAKE_FORKS
#define FAKE_FORKS 0 /* 1: its probe forks, as a driver does that starts a program */
#endif
/* What it answers, instead of doing it. */
#ifndef FAKE_PROBE
#define FAKE_PROBE INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_COUNT
#define FAKE_COUNT INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_SET_DEVICE
#define FAKE_SET_DEVICE INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_CREATE
#define FAKE_CREATE INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_RUN
#define FAKE_RUN INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_STREAM_CREATE
#define FAKE_STREAM_CREATE INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_STREAM_DESTROY
#define FAKE_STREAM_DESTROY INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_BEGIN_CAPTURE
#define FAKE_BEGIN_CAPTURE INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_END_CAPTURE
#define FAKE_END_CAPTURE INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_UNCAPTURABLE
#define FAKE_UNCAPTURABLE INFINI_OP_COUNT /* an operator that cannot be captured */
#endif
#ifndef FAKE_INSTANTIATE
#define FAKE_INSTANTIATE INFINI_STATUS_SUCCESS
#endif
#ifndef FAKE_LAUNCHES
#define FAKE_LAUNCHES INT64_MAX /* how many succeed, in all */
#endif
#ifndef FAKE_SILENT
#define FAKE_SILENT 0 /* 1: failures come without a sentence */
#endif

enum { kDevices = 2, kGuard = 64, kGuardByte = 0x5A, kFreshByte = 0xCD };

/** Set in every device address; no user-space address of the machines this runs on has it. */
static const uintptr_t kDeviceBit = (uintptr_t)1 << 62;

/** Everything that is alive, and how often things were done. Read it with fakeBackendGetCounts(). */
typedef struct FakeCounts {
    int64_t plans;
    int64_t blocks[kDevices];
    int64_t bytes[kDevices];
    int64_t host_blocks;
    int64_t streams;
    int64_t events;
    int64_t device_graphs;
    int64_t graph_execs;
    int64_t broken_guards; /* blocks whose guard bytes were overwritten, found when they were released */
    int64_t creates;
    int64_t runs[kDevices]; /* that computed something: not those that were recorded */
    int64_t captures;       /* that were ended and gave a graph */
    int64_t launches;
    int64_t waits;      /* of streams for events */
    int64_t host_waits; /* for a device, a stream or an event, and copies that wait */
} FakeCounts;

typedef enum { kBlock, kHostBlock, kStream, kEvent, kGraph, kGraphExec } ObjectKind;

struct Plan;

/** Calls of operators that were recorded. */
typedef struct Recording {
    struct RecordedCall {
        const struct Plan *plan;
        InfiniCall call; /* its operands are those below */
        void *operands[INFINI_MAX_OPERANDS];
    } *calls;
    size_t n;
} Recording;

/** One thing the plugin handed out. */
typedef struct Object {
    ObjectKind kind;
    int device_id;
    struct Queue *queue; /* streams: theirs; events: the one of the last mark */
    size_t mark;         /* events: how many steps of that queue come before it */
    unsigned char *host; /* blocks: first byte behind the front guard */
    size_t size;         /* blocks: bytes between the guards */
    uint32_t flags;      /* events */
    int recorded;        /* events */
    int capturing;       /* streams */
    Recording recording; /* capturing streams, graphs, graph execs */
    struct timespec time;
    struct Object *next;
} Object;

static const InfiniBackendHost *host_library;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Object *objects; /* guarded by mutex, as are the counts */
static FakeCounts counts;

INFINI_API void fakeBackendGetCounts(FakeCounts *result);
INFINI_API const InfiniBackend *infiniBackendGet(const InfiniBackendHost *host);

void fakeBackendGetCounts(FakeCounts *result) {
    pthread_mutex_lock(&mutex);
    *result = counts;
    pthread_mutex_unlock(&mutex);
}

static infiniStatus_t fail(infiniStatus_t status, const char *message) {
    return FAKE_SILENT ? status : host_library->fail(status, message);
}

static void count(int64_t *what) {
    pthread_mutex_lock(&mutex);
    *what += 1;
    pthread_mutex_unlock(&mutex);
}

/* ---- objects; the functions of this section are called with the mutex held ----------------------------------------- */

static Object *push_object(ObjectKind kind, int device_id) {
    Object *object = calloc(1, sizeof *object);
    if (!object) return NULL;
    object->kind = kind;
    object->device_id = device_id;
    object->next = objects;
    objects = object;
    return object;
}

/** The link that points to a live object, or to a block by its first byte; NULL when there is none. */
static Object **find_object(ObjectKind kind, const void *key) {
    for (Object **link = &objects; *link; link = &(*link)->next) {
        const void *own = kind == kBlock || kind == kHostBlock ? (const void *)(*link)->host : (const void *)*link;
        if ((*link)->kind == kind && own == key) return link;
    }
    return NULL;
}

static void pop_object(Object **link) {
    Object *object = *link;
    *link = object->next;
    free(object->recording.calls);
    free(object);
}

/** The host address behind [ptr, ptr + size) when those bytes lie in one live block of the device, else NULL. */
static unsigned char *host_address(int device_id, const void *ptr, size_t size) {
    if (!((uintptr_t)ptr & kDeviceBit)) return NULL;
    const uintptr_t at = (uintptr_t)ptr ^ kDeviceBit;
    for (Object *object = objects; object; object = object->next) {
        const uintptr_t first = (uintptr_t)object->host;
        if (object->kind != kBlock || object->device_id != device_id) continue;
        if (at >= first && at - first <= object->size && size <= object->size - (at - first))
            return (unsigned char *)at;
    }
    return NULL;
}

/* ---- queues ---------------------------------------------------------------------------------------------------------
 *  With FAKE_LAZY a stream is a list of steps that nobody has run yet. Waiting for a stream or an event runs that stream's up
 *  to there, and what its waits ask of others. Where all of a device must be done, as for memory to be released, the streams
 *  whose next step was queued last come first: what should have waited for another stream runs before it, and is found to be
 *  wrong. */

typedef struct Queue Queue;
typedef struct Step {
    enum { kRunStep, kCopyStep, kFillStep, kWaitStep } kind;
    int64_t number; /* in the order in which all were queued */
    struct RecordedCall call;
    void *dst;
    const void *src;
    size_t size;
    int what; /* kind of a copy, value of a fill */
    Queue *awaited;
    size_t until;
} Step;

struct Queue {
    int device_id;
    Step *steps;
    size_t n, done;
    Queue *next;
};

static pthread_mutex_t queue_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* taken before the other one */
static Queue *queues;                                                        /* never released */
static Queue *default_queues[kDevices][2];                                   /* of streams NULL and 2 */
static int64_t steps_queued;
static infiniStatus_t step_failure;

static infiniStatus_t run_step(int device_id, Step *step);

static int is_default_stream(infinirtStream_t stream) {
    return !stream || (FAKE_SLOT == INFINI_DEVICE_NVIDIA && stream == (infinirtStream_t)2);
}

/** The queue of a live stream; NULL without FAKE_LAZY, or when out of memory. */
static Queue *queue_of(int device_id, infinirtStream_t stream) {
    if (!FAKE_LAZY) return NULL;
    pthread_mutex_lock(&queue_mutex);
    Queue **place = is_default_stream(stream) ? &default_queues[device_id][stream != NULL] : &((Object *)stream)->queue;
    if (!*place && (*place = calloc(1, sizeof **place)) != NULL) {
        (*place)->device_id = device_id;
        (*place)->next = queues;
        queues = *place;
    }
    pthread_mutex_unlock(&queue_mutex);
    return *place;
}

static infiniStatus_t enqueue(int device_id, infinirtStream_t stream, Step step) {
    pthread_mutex_lock(&queue_mutex);
    Queue *queue = queue_of(device_id, stream);
    Step *grown = queue ? realloc(queue->steps, (queue->n + 1) * sizeof *grown) : NULL;
    if (grown) {
        queue->steps = grown;
        step.number = steps_queued++;
        grown[queue->n++] = step;
    }
    pthread_mutex_unlock(&queue_mutex);
    return grown ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of host memory for a step");
}

/** Runs the first `until` steps. Called with the queue mutex held, as is the next. */
static void run_until(Queue *queue, size_t until) {
    while (queue && queue->done < until) {
        Step *step = &queue->steps[queue->done];
        if (step->kind == kWaitStep) run_until(step->awaited, step->until);
        const infiniStatus_t status =
            step->kind == kWaitStep ? INFINI_STATUS_SUCCESS : run_step(queue->device_id, step);
        if (status != INFINI_STATUS_SUCCESS) step_failure = status;
        queue->done += 1;
    }
}

static void run_device(int device_id) {
    for (;;) {
        Queue *last = NULL;
        for (Queue *queue = queues; queue; queue = queue->next)
            if (queue->device_id == device_id && queue->done < queue->n &&
                (!last || queue->steps[queue->done].number > last->steps[last->done].number))
                last = queue;
        if (!last) return;
        run_until(last, last->n);
    }
}

/** The host waits: for the first `until` steps of a queue, or for a device where there is no queue. */
static infiniStatus_t wait_on_host(int device_id, Queue *queue, size_t until) {
    count(&counts.host_waits);
    pthread_mutex_lock(&queue_mutex);
    if (queue)
        run_until(queue, until);
    else
        run_device(device_id);
    const infiniStatus_t status = step_failure;
    step_failure = INFINI_STATUS_SUCCESS;
    pthread_mutex_unlock(&queue_mutex);
    return status;
}

/* ---- devices ------------------------------------------------------------------------------------------------------- */

static infiniStatus_t device_count(int *count) {
    *count = kDevices;
    return FAKE_COUNT == INFINI_STATUS_SUCCESS ? FAKE_COUNT
                                               : fail(FAKE_COUNT, "fake: the driver does not count devices");
}

static infiniStatus_t set_device(int device_id) {
    (void)device_id;
    if (FAKE_SET_DEVICE != INFINI_STATUS_SUCCESS) return fail(FAKE_SET_DEVICE, "fake: the device does not start");
    return INFINI_STATUS_SUCCESS;
}

/* Not used when FAKE_MEM_INFO is NULL. */
static infiniStatus_t mem_info(int device_id, size_t *free_bytes, size_t *total_bytes) __attribute__((unused));
static infiniStatus_t mem_info(int device_id, size_t *free_bytes, size_t *total_bytes) {
    pthread_mutex_lock(&mutex);
    *free_bytes = FAKE_MEMORY - (size_t)counts.bytes[device_id];
    *total_bytes = FAKE_MEMORY;
    pthread_mutex_unlock(&mutex);
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t device_synchronize(int device_id) { return wait_on_host(device_id, NULL, 0); }

/* ---- streams and events -------------------------------------------------------------------------------------------- */

static infiniStatus_t stream_create(int device_id, infinirtStream_t *stream) {
    if (FAKE_STREAM_CREATE != INFINI_STATUS_SUCCESS) return fail(FAKE_STREAM_CREATE, "fake: no more streams");
    pthread_mutex_lock(&mutex);
    Object *object = push_object(kStream, device_id);
    counts.streams += object != NULL;
    pthread_mutex_unlock(&mutex);
    if (!object) return fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of host memory for a stream");
    *stream = object;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t stream_destroy(int device_id, infinirtStream_t stream) {
    (void)device_id;
    if (!stream) return INFINI_STATUS_SUCCESS;
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kStream, stream);
    const int capturing = link && (*link)->capturing;
    if (link && !capturing) {
        pop_object(link);
        counts.streams -= 1;
    }
    pthread_mutex_unlock(&mutex);
    if (capturing) return fail(INFINI_STATUS_BAD_PARAM, "fake: the stream is being captured");
    if (!link) return fail(INFINI_STATUS_BAD_PARAM, "fake: not a live stream");
    if (FAKE_STREAM_DESTROY != INFINI_STATUS_SUCCESS) return fail(FAKE_STREAM_DESTROY, "fake: the stream went badly");
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t check_stream(infinirtStream_t stream) {
    if (is_default_stream(stream)) return INFINI_STATUS_SUCCESS;
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kStream, stream);
    const int capturing = link && (*link)->capturing;
    pthread_mutex_unlock(&mutex);
    if (capturing) return fail(INFINI_STATUS_BAD_PARAM, "fake: only operators can be captured");
    return link ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_BAD_PARAM, "fake: not a live stream");
}

static infiniStatus_t check_event(infinirtEvent_t event) {
    pthread_mutex_lock(&mutex);
    const int live = find_object(kEvent, event) != NULL;
    pthread_mutex_unlock(&mutex);
    return live ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_BAD_PARAM, "fake: not a live event");
}

static infiniStatus_t stream_synchronize(int device_id, infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    if (status != INFINI_STATUS_SUCCESS) return status;
    Queue *queue = queue_of(device_id, stream);
    return wait_on_host(device_id, queue, queue ? queue->n : 0);
}

static infiniStatus_t stream_wait_event(int device_id, infinirtStream_t stream, infinirtEvent_t event) {
    infiniStatus_t status = check_stream(stream);
    if (status == INFINI_STATUS_SUCCESS) status = check_event(event);
    if (status != INFINI_STATUS_SUCCESS) return status;
    count(&counts.waits);
    const Object *const mark = event;
    return FAKE_LAZY
               ? enqueue(device_id, stream, (Step){.kind = kWaitStep, .awaited = mark->queue, .until = mark->mark})
               : INFINI_STATUS_SUCCESS;
}

static infiniStatus_t event_create(int device_id, infinirtEvent_t *event, uint32_t flags) {
    pthread_mutex_lock(&mutex);
    Object *object = push_object(kEvent, device_id);
    if (object) object->flags = flags;
    counts.events += object != NULL;
    pthread_mutex_unlock(&mutex);
    if (!object) return fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of host memory for an event");
    *event = object;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t event_record(int device_id, infinirtEvent_t event, infinirtStream_t stream) {
    infiniStatus_t status = check_stream(stream);
    if (status != INFINI_STATUS_SUCCESS) return status;
    status = check_event(event);
    if (status != INFINI_STATUS_SUCCESS) return status;
    Queue *queue = queue_of(device_id, stream);
    pthread_mutex_lock(&mutex);
    Object *object = event;
    const int own = object->device_id == device_id;
    if (own) {
        object->recorded = 1;
        object->queue = queue;
        object->mark = queue ? queue->n : 0;
        clock_gettime(CLOCK_MONOTONIC, &object->time);
    }
    pthread_mutex_unlock(&mutex);
    return own ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_BAD_PARAM, "fake: the event is of another device");
}

static infiniStatus_t event_query(int device_id, infinirtEvent_t event, infinirtEventStatus_t *status) {
    (void)device_id;
    const infiniStatus_t checked = check_event(event);
    if (checked != INFINI_STATUS_SUCCESS) return checked;
    pthread_mutex_lock(&mutex);
    const Object *const mark = event;
    const int done = !mark->queue || mark->queue->done >= mark->mark;
    pthread_mutex_unlock(&mutex);
    *status = done ? INFINIRT_EVENT_COMPLETE : INFINIRT_EVENT_NOT_READY;
    return checked;
}

static infiniStatus_t event_synchronize(int device_id, infinirtEvent_t event) {
    const infiniStatus_t status = check_event(event);
    if (status != INFINI_STATUS_SUCCESS) return status;
    const Object *const mark = event;
    if (FAKE_LAZY && !mark->queue) return INFINI_STATUS_SUCCESS; /* nothing was recorded */
    return wait_on_host(device_id, mark->queue, mark->mark);
}

static infiniStatus_t event_destroy(int device_id, infinirtEvent_t event) {
    (void)device_id;
    if (!event) return INFINI_STATUS_SUCCESS;
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kEvent, event);
    if (link) pop_object(link);
    counts.events -= link != NULL;
    pthread_mutex_unlock(&mutex);
    return link ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_BAD_PARAM, "fake: not a live event");
}

static infiniStatus_t event_elapsed_time(int device_id, float *ms, infinirtEvent_t start, infinirtEvent_t end) {
    (void)device_id;
    infiniStatus_t status = check_event(start);
    if (status == INFINI_STATUS_SUCCESS) status = check_event(end);
    if (status != INFINI_STATUS_SUCCESS) return status;
    const Object *from = start, *to = end;
    if (!from->recorded || !to->recorded) return fail(INFINI_STATUS_BAD_PARAM, "fake: an event was never recorded");
    if ((from->flags | to->flags) & INFINIRT_EVENT_DISABLE_TIMING)
        return fail(INFINI_STATUS_BAD_PARAM, "fake: an event was created with DISABLE_TIMING");
    *ms = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                  (double)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return INFINI_STATUS_SUCCESS;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/** Allocates a guarded block. Device blocks are filled, so that nothing can rely on zeros. */
static infiniStatus_t new_block(ObjectKind kind, int device_id, void **ptr, size_t size) {
    *ptr = NULL;
    if (size == 0) return INFINI_STATUS_SUCCESS;
    pthread_mutex_lock(&mutex);
    const int fits = kind == kHostBlock || size <= FAKE_MEMORY - (size_t)counts.bytes[device_id];
    void *memory = NULL;
    Object *object = NULL;
    if (fits && size <= SIZE_MAX - 2 * kGuard && posix_memalign(&memory, 64, size + 2 * kGuard) == 0) {
        object = push_object(kind, device_id);
        if (!object) free(memory);
    }
    if (object) {
        object->host = (unsigned char *)memory + kGuard;
        object->size = size;
        memset(memory, kGuardByte, kGuard);
        memset(object->host, kFreshByte, size);
        memset(object->host + size, kGuardByte, kGuard);
        if (kind == kBlock) {
            counts.blocks[device_id] += 1;
            counts.bytes[device_id] += (int64_t)size;
            *ptr = (void *)((uintptr_t)object->host | kDeviceBit);
        } else {
            counts.host_blocks += 1;
            *ptr = object->host;
        }
    }
    pthread_mutex_unlock(&mutex);
    return object ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of memory");
}

static infiniStatus_t release_block(ObjectKind kind, void *ptr) {
    if (!ptr) return INFINI_STATUS_SUCCESS;
    if (kind == kBlock && !((uintptr_t)ptr & kDeviceBit))
        return fail(INFINI_STATUS_BAD_PARAM, "fake: not an address of a fake device");
    if (FAKE_LAZY) { /* what is queued may use it */
        pthread_mutex_lock(&queue_mutex);
        for (int device_id = 0; device_id < kDevices; ++device_id) run_device(device_id);
        pthread_mutex_unlock(&queue_mutex);
    }
    void *first = (void *)(kind == kBlock ? (uintptr_t)ptr ^ kDeviceBit : (uintptr_t)ptr);
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kind, first);
    if (link) {
        const Object *object = *link;
        int broken = 0;
        for (size_t i = 0; i < kGuard; ++i)
            broken |= object->host[object->size + i] != kGuardByte || (object->host - kGuard)[i] != kGuardByte;
        counts.broken_guards += broken;
        if (kind == kBlock) {
            counts.blocks[object->device_id] -= 1;
            counts.bytes[object->device_id] -= (int64_t)object->size;
        } else {
            counts.host_blocks -= 1;
        }
        free(object->host - kGuard);
        pop_object(link);
    }
    pthread_mutex_unlock(&mutex);
    return link ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_BAD_PARAM, "fake: not the start of a live allocation");
}

static infiniStatus_t malloc_device(int device_id, void **ptr, size_t size) {
    return new_block(kBlock, device_id, ptr, size);
}

static infiniStatus_t malloc_host(int device_id, void **ptr, size_t size) {
    return new_block(kHostBlock, device_id, ptr, size);
}

/** Memory may be released while either device is current, so the address alone decides. */
static infiniStatus_t free_device(int device_id, void *ptr) {
    (void)device_id;
    return release_block(kBlock, ptr);
}

static infiniStatus_t free_host(int device_id, void *ptr) {
    (void)device_id;
    return release_block(kHostBlock, ptr);
}

static infiniStatus_t malloc_async(int device_id, void **ptr, size_t size, infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    return status == INFINI_STATUS_SUCCESS ? malloc_device(device_id, ptr, size) : status;
}

static infiniStatus_t free_async(int device_id, void *ptr, infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    return status == INFINI_STATUS_SUCCESS ? free_device(device_id, ptr) : status;
}

static infiniStatus_t copy(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind) {
    if (size == 0) return INFINI_STATUS_SUCCESS;
    const int to_device = kind == INFINIRT_MEMCPY_H2D || kind == INFINIRT_MEMCPY_D2D;
    const int from_device = kind == INFINIRT_MEMCPY_D2H || kind == INFINIRT_MEMCPY_D2D;
    if ((!to_device && ((uintptr_t)dst & kDeviceBit)) || (!from_device && ((uintptr_t)src & kDeviceBit)))
        return fail(INFINI_STATUS_BAD_PARAM, "fake: a device address on the host side of a copy");
    pthread_mutex_lock(&mutex);
    if (to_device) dst = host_address(device_id, dst, size);
    if (from_device) src = host_address(device_id, src, size);
    if (dst && src) memmove(dst, src, size);
    pthread_mutex_unlock(&mutex);
    if (dst && src) return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_PARAM, "fake: copy outside the live memory of the current device");
}

/** In the order of the default stream, as CUDA has it. */
static infiniStatus_t memcpy_sync(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind) {
    const infiniStatus_t status = stream_synchronize(device_id, NULL);
    return status == INFINI_STATUS_SUCCESS ? copy(device_id, dst, src, size, kind) : status;
}

static infiniStatus_t memcpy_async(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind,
                                   infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    if (status != INFINI_STATUS_SUCCESS) return status;
    const Step step = {.kind = kCopyStep, .dst = dst, .src = src, .size = size, .what = kind};
    return FAKE_LAZY ? enqueue(device_id, stream, step) : copy(device_id, dst, src, size, kind);
}

static infiniStatus_t fill(int device_id, void *ptr, int value, size_t size) {
    if (size == 0) return INFINI_STATUS_SUCCESS;
    pthread_mutex_lock(&mutex);
    unsigned char *host = host_address(device_id, ptr, size);
    if (host) memset(host, value, size);
    pthread_mutex_unlock(&mutex);
    return host ? INFINI_STATUS_SUCCESS
                : fail(INFINI_STATUS_BAD_PARAM, "fake: fill outside the live memory of the current device");
}

static infiniStatus_t memset_async(int device_id, void *ptr, int value, size_t size, infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    if (status != INFINI_STATUS_SUCCESS) return status;
    const Step step = {.kind = kFillStep, .dst = ptr, .size = size, .what = value};
    return FAKE_LAZY ? enqueue(device_id, stream, step) : fill(device_id, ptr, value, size);
}

static infiniStatus_t memset_sync(int device_id, void *ptr, int value, size_t size) {
    return memset_async(device_id, ptr, value, size, NULL); /* CUDA's does not wait for it */
}

/* ---- operators: a plan is a CPU descriptor and where its operands lie ------------------------------------------------ */

/** The functions of the CPU side, X(return type, name, parameters), resolved at the first create. */
#define CPU_FUNCTIONS(X)                                                                                               \
    X(infinirtGetDevice, (infiniDevice_t *, int *))                                                                    \
    X(infinirtSetDevice, (infiniDevice_t, int))                                                                        \
    X(infiniopCreateHandle, (infiniopHandle_t *))                                                                      \
    X(infiniopDestroyHandle, (infiniopHandle_t))                                                                       \
    X(infiniopCreateTensorDescriptor,                                                                                  \
      (infiniopTensorDescriptor_t *, size_t, const size_t *, const ptrdiff_t *, infiniDtype_t))                        \
    X(infiniopDestroyTensorDescriptor, (infiniopTensorDescriptor_t))                                                   \
    X(infiniopCreateGemmDescriptor, (infiniopHandle_t, infiniopGemmDescriptor_t *, infiniopTensorDescriptor_t,         \
                                     infiniopTensorDescriptor_t, infiniopTensorDescriptor_t))                          \
    X(infiniopGetGemmWorkspaceSize, (infiniopGemmDescriptor_t, size_t *))                                              \
    X(infiniopGemm,                                                                                                    \
      (infiniopGemmDescriptor_t, void *, size_t, void *, const void *, const void *, float, float, void *))            \
    X(infiniopDestroyGemmDescriptor, (infiniopGemmDescriptor_t))                                                       \
    X(infiniopCreateAddDescriptor, (infiniopHandle_t, infiniopAddDescriptor_t *, infiniopTensorDescriptor_t,           \
                                    infiniopTensorDescriptor_t, infiniopTensorDescriptor_t))                           \
    X(infiniopGetAddWorkspaceSize, (infiniopAddDescriptor_t, size_t *))                                                \
    X(infiniopAdd, (infiniopAddDescriptor_t, void *, size_t, void *, const void *, const void *, void *))              \
    X(infiniopDestroyAddDescriptor, (infiniopAddDescriptor_t))                                                         \
    X(infiniopCreateMulDescriptor, (infiniopHandle_t, infiniopMulDescriptor_t *, infiniopTensorDescriptor_t,           \
                                    infiniopTensorDescriptor_t, infiniopTensorDescriptor_t))                           \
    X(infiniopGetMulWorkspaceSize, (infiniopMulDescriptor_t, size_t *))                                                \
    X(infiniopMul, (infiniopMulDescriptor_t, void *, size_t, void *, const void *, const void *, void *))              \
    X(infiniopDestroyMulDescriptor, (infiniopMulDescriptor_t))                                                         \
    X(infiniopCreateAddRMSNormDescriptor,                                                                              \
      (infiniopHandle_t, infiniopAddRMSNormDescriptor_t *, infiniopTensorDescriptor_t, infiniopTensorDescriptor_t,     \
       infiniopTensorDescriptor_t, infiniopTensorDescriptor_t, infiniopTensorDescriptor_t, float))                     \
    X(infiniopGetAddRMSNormWorkspaceSize, (infiniopAddRMSNormDescriptor_t, size_t *))                                  \
    X(infiniopAddRMSNorm, (infiniopAddRMSNormDescriptor_t, void *, size_t, void *, void *, const void *, const void *, \
                           const void *, void *))                                                                      \
    X(infiniopDestroyAddRMSNormDescriptor, (infiniopAddRMSNormDescriptor_t))                                           \
    X(infiniopCreateRearrangeDescriptor,                                                                               \
      (infiniopHandle_t, infiniopRearrangeDescriptor_t *, infiniopTensorDescriptor_t, infiniopTensorDescriptor_t))     \
    X(infiniopRearrange, (infiniopRearrangeDescriptor_t, void *, const void *, void *))                                \
    X(infiniopDestroyRearrangeDescriptor, (infiniopRearrangeDescriptor_t))                                             \
    EPILOGUE_FUNCTIONS(X, GemmAdd)                                                                                     \
    EPILOGUE_FUNCTIONS(X, GemmMul)
#define EPILOGUE_FUNCTIONS(X, Name)                                                                                    \
    X(infiniopCreate##Name##Descriptor,                                                                                \
      (infiniopHandle_t, infiniop##Name##Descriptor_t *, infiniopTensorDescriptor_t, infiniopTensorDescriptor_t,       \
       infiniopTensorDescriptor_t, infiniopTensorDescriptor_t))                                                        \
    X(infiniopGet##Name##WorkspaceSize, (infiniop##Name##Descriptor_t, size_t *))                                      \
    X(infiniop##Name,                                                                                                  \
      (infiniop##Name##Descriptor_t, void *, size_t, void *, const void *, const void *, const void *, float, void *)) \
    X(infiniopDestroy##Name##Descriptor, (infiniop##Name##Descriptor_t))

static struct {
#define FIELD(name, parameters) infiniStatus_t(*name) parameters;
    CPU_FUNCTIONS(FIELD)
#undef FIELD
} cpu;
static int cpu_resolved;
static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;

/** Finds libinfiniop.so in the folder of the library that owns the host's functions. */
static void resolve_cpu(void) {
    Dl_info info;
    void *address;
    memcpy(&address, &host_library->fail, sizeof address); /* C99 has no cast from a function to void * */
    if (!dladdr(address, &info) || !info.dli_fname) return;
    char path[4096];
    const char *slash = strrchr(info.dli_fname, '/');
    const int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
    if (snprintf(path, sizeof path, "%.*slibinfiniop.so", folder, info.dli_fname) >= (int)sizeof path) return;
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return;
    int found = 1;
#define RESOLVE(name, parameters)    \
    address = dlsym(library, #name); \
    found &= address != NULL;        \
    memcpy(&cpu.name, &address, sizeof address);
    CPU_FUNCTIONS(RESOLVE)
#undef RESOLVE
    cpu_resolved = found;
}

typedef struct Plan {
    InfiniOp op;
    int device_id;
    int n_operands;
    int queued, destroyed; /* with FAKE_LAZY: steps that will run it; guarded by the queue mutex */
    struct InfiniopDescriptor *desc;
    size_t inner_workspace; /* bytes that the CPU descriptor wants */
    size_t workspace;       /* bytes in all; 0 for rearrange, whose public interface has no workspace */
    struct {
        int64_t first;  /* bytes from the pointer given to run to element (0, ..., 0) */
        int64_t lowest; /* bytes from the pointer given to run to the lowest byte used */
        size_t bytes;   /* from the lowest to the highest byte used; 0: no element, the pointer is not looked at */
    } at[INFINI_MAX_OPERANDS];
} Plan;

static int64_t dtype_size(int32_t dtype) {
    static const int64_t sizes[] = {0, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 16, 2};
    return dtype > 0 && dtype <= INFINI_DTYPE_BF16 ? sizes[dtype] : 0;
}

static void place(Plan *plan, int i, const InfiniOperand *operand) {
    const int64_t item = dtype_size(operand->dtype);
    int64_t lowest = operand->offset, highest = operand->offset;
    int empty = 0;
    for (int d = 0; d < operand->ndim; ++d) {
        const int64_t reach = (operand->shape[d] - 1) * operand->stride[d];
        empty |= operand->shape[d] == 0;
        if (reach < 0)
            lowest += reach;
        else
            highest += reach;
    }
    plan->at[i].first = operand->offset * item;
    plan->at[i].lowest = lowest * item;
    plan->at[i].bytes = empty ? 0 : (size_t)((highest - lowest + 1) * item);
}

/** Describes one operand to the CPU side; `last_only` for a weight, which the public interface wants as a vector. */
static infiniStatus_t describe(infiniopTensorDescriptor_t *desc, const InfiniOperand *operand, int last_only) {
    size_t shape[INFINI_MAX_DIMS];
    ptrdiff_t strides[INFINI_MAX_DIMS];
    const int skipped = last_only ? operand->ndim - 1 : 0;
    for (int d = skipped; d < operand->ndim; ++d) {
        shape[d - skipped] = (size_t)operand->shape[d];
        strides[d - skipped] = (ptrdiff_t)operand->stride[d];
    }
    return cpu.infiniopCreateTensorDescriptor(desc, (size_t)(operand->ndim - skipped), shape, strides, operand->dtype);
}

static infiniStatus_t create_cpu_descriptor(Plan *plan, infiniopHandle_t handle, infiniopTensorDescriptor_t *t,
                                            float epsilon) {
    switch (plan->op) {
    case INFINI_OP_GEMM: return cpu.infiniopCreateGemmDescriptor(handle, &plan->desc, t[0], t[1], t[2]);
    case INFINI_OP_ADD: return cpu.infiniopCreateAddDescriptor(handle, &plan->desc, t[0], t[1], t[2]);
    case INFINI_OP_MUL: return cpu.infiniopCreateMulDescriptor(handle, &plan->desc, t[0], t[1], t[2]);
    case INFINI_OP_ADD_RMS_NORM:
        return cpu.infiniopCreateAddRMSNormDescriptor(handle, &plan->desc, t[0], t[1], t[2], t[3], t[4], epsilon);
    case INFINI_OP_REARRANGE: return cpu.infiniopCreateRearrangeDescriptor(handle, &plan->desc, t[0], t[1]);
    case INFINI_OP_GEMM_ADD: return cpu.infiniopCreateGemmAddDescriptor(handle, &plan->desc, t[0], t[1], t[2], t[3]);
    case INFINI_OP_GEMM_MUL: return cpu.infiniopCreateGemmMulDescriptor(handle, &plan->desc, t[0], t[1], t[2], t[3]);
    default: return fail(INFINI_STATUS_NOT_IMPLEMENTED, "fake: no such operator");
    }
}

static infiniStatus_t cpu_workspace_size(Plan *plan) {
    switch (plan->op) {
    case INFINI_OP_GEMM: return cpu.infiniopGetGemmWorkspaceSize(plan->desc, &plan->inner_workspace);
    case INFINI_OP_ADD: return cpu.infiniopGetAddWorkspaceSize(plan->desc, &plan->inner_workspace);
    case INFINI_OP_MUL: return cpu.infiniopGetMulWorkspaceSize(plan->desc, &plan->inner_workspace);
    case INFINI_OP_ADD_RMS_NORM: return cpu.infiniopGetAddRMSNormWorkspaceSize(plan->desc, &plan->inner_workspace);
    case INFINI_OP_GEMM_ADD: return cpu.infiniopGetGemmAddWorkspaceSize(plan->desc, &plan->inner_workspace);
    case INFINI_OP_GEMM_MUL: return cpu.infiniopGetGemmMulWorkspaceSize(plan->desc, &plan->inner_workspace);
    default: return INFINI_STATUS_SUCCESS;
    }
}

static void destroy_cpu_descriptor(const Plan *plan) {
    switch (plan->op) {
    case INFINI_OP_GEMM: cpu.infiniopDestroyGemmDescriptor(plan->desc); break;
    case INFINI_OP_ADD: cpu.infiniopDestroyAddDescriptor(plan->desc); break;
    case INFINI_OP_MUL: cpu.infiniopDestroyMulDescriptor(plan->desc); break;
    case INFINI_OP_ADD_RMS_NORM: cpu.infiniopDestroyAddRMSNormDescriptor(plan->desc); break;
    case INFINI_OP_REARRANGE: cpu.infiniopDestroyRearrangeDescriptor(plan->desc); break;
    case INFINI_OP_GEMM_ADD: cpu.infiniopDestroyGemmAddDescriptor(plan->desc); break;
    case INFINI_OP_GEMM_MUL: cpu.infiniopDestroyGemmMulDescriptor(plan->desc); break;
    default: break;
    }
}

/** A CPU handle, whatever device the calling thread has current. */
static infiniStatus_t create_cpu_handle(infiniopHandle_t *handle) {
    infiniDevice_t device;
    int device_id;
    infiniStatus_t status = cpu.infinirtGetDevice(&device, &device_id);
    if (status == INFINI_STATUS_SUCCESS) status = cpu.infinirtSetDevice(INFINI_DEVICE_CPU, 0);
    if (status != INFINI_STATUS_SUCCESS) return status;
    status = cpu.infiniopCreateHandle(handle);
    const infiniStatus_t restored = cpu.infinirtSetDevice(device, device_id);
    return status == INFINI_STATUS_SUCCESS ? restored : status;
}

static infiniStatus_t op_create(const InfiniProblem *problem, void **result, size_t *workspace_size) {
    if (FAKE_CREATE != INFINI_STATUS_SUCCESS) { /* after it has written what nobody may take for a plan */
        *result = (void *)1;
        *workspace_size = 1;
        return fail(FAKE_CREATE, "fake: this device has no code for it");
    }
    pthread_once(&cpu_once, resolve_cpu);
    if (!cpu_resolved) return fail(INFINI_STATUS_INTERNAL_ERROR, "fake: no libinfiniop.so beside the host library");
    Plan *plan = calloc(1, sizeof *plan);
    if (!plan) return fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of host memory for a plan");
    plan->op = (InfiniOp)problem->op;
    plan->device_id = problem->device_id;
    plan->n_operands = problem->n_operands;

    infiniopHandle_t handle = NULL;
    infiniopTensorDescriptor_t tensors[INFINI_MAX_OPERANDS] = {NULL};
    infiniStatus_t status = create_cpu_handle(&handle);
    for (int i = 0; i < plan->n_operands && status == INFINI_STATUS_SUCCESS; ++i) {
        const InfiniOperand *operand = &problem->operands[i];
        place(plan, i, operand);
        status = describe(&tensors[i], operand, plan->op == INFINI_OP_ADD_RMS_NORM && i == 4);
    }
    if (status == INFINI_STATUS_SUCCESS) status = create_cpu_descriptor(plan, handle, tensors, problem->epsilon);
    if (status == INFINI_STATUS_SUCCESS) status = cpu_workspace_size(plan);
    plan->workspace = plan->op == INFINI_OP_REARRANGE ? 0 : plan->inner_workspace + FAKE_WORKSPACE;
    for (int i = 0; i < plan->n_operands; ++i) cpu.infiniopDestroyTensorDescriptor(tensors[i]);
    cpu.infiniopDestroyHandle(handle);
    if (status != INFINI_STATUS_SUCCESS) {
        destroy_cpu_descriptor(plan);
        free(plan);
        return status;
    }
    pthread_mutex_lock(&mutex);
    counts.plans += 1;
    counts.creates += 1;
    pthread_mutex_unlock(&mutex);
    *result = plan;
    *workspace_size = plan->workspace;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t compute(const Plan *plan, const InfiniCall *call) {
    if (FAKE_RUN != INFINI_STATUS_SUCCESS) return fail(FAKE_RUN, "fake: the run fails");
    unsigned char *p[INFINI_MAX_OPERANDS] = {NULL};
    unsigned char *workspace = NULL;
    int inside = 1;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < plan->n_operands; ++i) {
        if (plan->at[i].bytes == 0) continue;
        const char *lowest = (const char *)call->operands[i] + plan->at[i].lowest;
        unsigned char *host = host_address(plan->device_id, lowest, plan->at[i].bytes);
        inside &= host != NULL;
        if (host) p[i] = host - plan->at[i].lowest + plan->at[i].first;
    }
    if (plan->workspace) {
        workspace = host_address(plan->device_id, call->workspace, plan->workspace);
        inside &= workspace != NULL && call->workspace_size >= plan->workspace;
    }
    counts.runs[plan->device_id] += inside;
    pthread_mutex_unlock(&mutex);
    if (!inside)
        return fail(INFINI_STATUS_BAD_PARAM, "fake: an operand lies outside the live memory of the plan's device");

    if (workspace) memset(workspace, kFreshByte, plan->workspace);
    struct InfiniopDescriptor *desc = plan->desc;
    const size_t inner = plan->inner_workspace;
    switch (plan->op) {
    case INFINI_OP_GEMM:
        return cpu.infiniopGemm(desc, workspace, inner, p[0], p[1], p[2], call->alpha, call->beta, NULL);
    case INFINI_OP_ADD: return cpu.infiniopAdd(desc, workspace, inner, p[0], p[1], p[2], NULL);
    case INFINI_OP_MUL: return cpu.infiniopMul(desc, workspace, inner, p[0], p[1], p[2], NULL);
    case INFINI_OP_ADD_RMS_NORM:
        return cpu.infiniopAddRMSNorm(desc, workspace, inner, p[0], p[1], p[2], p[3], p[4], NULL);
    case INFINI_OP_REARRANGE: return cpu.infiniopRearrange(desc, p[0], p[1], NULL);
    case INFINI_OP_GEMM_ADD:
        return cpu.infiniopGemmAdd(desc, workspace, inner, p[0], p[1], p[2], p[3], call->alpha, NULL);
    case INFINI_OP_GEMM_MUL:
        return cpu.infiniopGemmMul(desc, workspace, inner, p[0], p[1], p[2], p[3], call->alpha, NULL);
    default: return fail(INFINI_STATUS_NOT_IMPLEMENTED, "fake: no such operator");
    }
}

static void release_plan(Plan *plan) {
    destroy_cpu_descriptor(plan);
    free(plan);
}

/** Runs a call on a stream that is not being captured. */
static infiniStatus_t submit(const Plan *plan, const InfiniCall *call) {
    if (!FAKE_LAZY) return compute(plan, call);
    Step step = {.kind = kRunStep, .call = {.plan = plan, .call = *call}};
    memcpy(step.call.operands, call->operands, (size_t)plan->n_operands * sizeof(void *));
    pthread_mutex_lock(&queue_mutex);
    ((Plan *)(uintptr_t)plan)->queued += 1;
    const infiniStatus_t status = enqueue(plan->device_id, call->stream, step);
    pthread_mutex_unlock(&queue_mutex);
    return status;
}

static infiniStatus_t run_step(int device_id, Step *step) {
    if (step->kind == kCopyStep) return copy(device_id, step->dst, step->src, step->size, step->what);
    if (step->kind == kFillStep) return fill(device_id, step->dst, step->what, step->size);
    Plan *plan = (Plan *)(uintptr_t)step->call.plan;
    step->call.call.operands = step->call.operands; /* the steps may have moved */
    const infiniStatus_t status = compute(plan, &step->call.call);
    if (--plan->queued == 0 && plan->destroyed) release_plan(plan);
    return status;
}

/** Adds calls to a recording. Called with the mutex held; false: out of memory. */
static int record(Recording *to, const struct RecordedCall *calls, size_t n) {
    if (n == 0) return 1;
    struct RecordedCall *grown = realloc(to->calls, (to->n + n) * sizeof *grown);
    if (!grown) return 0;
    memcpy(grown + to->n, calls, n * sizeof *grown);
    to->calls = grown;
    to->n += n;
    for (size_t i = 0; i < to->n; ++i) grown[i].call.operands = grown[i].operands; /* they moved */
    return 1;
}

/** The stream, if it is one of this device that is being captured. Called with the mutex held. */
static Object *capturing_stream(int device_id, infinirtStream_t stream) {
    Object **link = find_object(kStream, stream);
    return link && (*link)->capturing && (*link)->device_id == device_id ? *link : NULL;
}

/* Not used when FAKE_OP_RUN is NULL. */
static infiniStatus_t op_run(const void *opaque, const InfiniCall *call) __attribute__((unused));
static infiniStatus_t op_run(const void *opaque, const InfiniCall *call) {
    const Plan *plan = opaque;
    pthread_mutex_lock(&mutex);
    Object *capturing = capturing_stream(plan->device_id, call->stream);
    int recorded = 0;
    if (capturing && plan->op != FAKE_UNCAPTURABLE) {
        struct RecordedCall one = {.plan = plan, .call = *call};
        memcpy(one.operands, call->operands, (size_t)plan->n_operands * sizeof(void *));
        recorded = record(&capturing->recording, &one, 1);
    }
    pthread_mutex_unlock(&mutex);
    if (capturing)
        return recorded ? INFINI_STATUS_SUCCESS
                        : fail(INFINI_STATUS_NOT_IMPLEMENTED, "fake: this operator cannot be captured");
    const infiniStatus_t status = check_stream(call->stream);
    return status == INFINI_STATUS_SUCCESS ? submit(plan, call) : status;
}

static void op_destroy(void *opaque) {
    Plan *plan = opaque;
    pthread_mutex_lock(&queue_mutex);
    plan->destroyed = 1;
    const int idle = plan->queued == 0;
    pthread_mutex_unlock(&queue_mutex);
    if (idle) release_plan(plan);
    pthread_mutex_lock(&mutex);
    counts.plans -= 1;
    pthread_mutex_unlock(&mutex);
}

/* ---- capture; not used when FAKE_CAPTURE is 0 ----------------------------------------------------------------------- */

#define MAYBE_UNUSED __attribute__((unused))

MAYBE_UNUSED static infiniStatus_t stream_begin_capture(int device_id, infinirtStream_t stream,
                                                        infinirtStreamCaptureMode_t mode) {
    (void)mode;
    if (FAKE_BEGIN_CAPTURE != INFINI_STATUS_SUCCESS) return fail(FAKE_BEGIN_CAPTURE, "fake: no capture today");
    const struct timespec while_others_come = {.tv_nsec = 1000 * 1000}; /* to the same graph, which must wait */
    nanosleep(&while_others_come, NULL);
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kStream, stream); /* none for NULL: a default stream cannot be captured */
    const int can = link && (*link)->device_id == device_id && !(*link)->capturing;
    if (can) (*link)->capturing = 1;
    pthread_mutex_unlock(&mutex);
    return can ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_BAD_PARAM, "fake: this stream cannot be captured");
}

/** Makes a graph or a graph exec of some calls. Called with the mutex held; NULL: out of memory. */
static Object *push_recording(ObjectKind kind, int device_id, const Recording *calls) {
    Object *object = push_object(kind, device_id);
    if (object && !record(&object->recording, calls->calls, calls->n)) {
        pop_object(&objects); /* where it was pushed */
        object = NULL;
    }
    *(kind == kGraph ? &counts.device_graphs : &counts.graph_execs) += object != NULL;
    return object;
}

MAYBE_UNUSED static infiniStatus_t stream_end_capture(int device_id, infinirtStream_t stream, infinirtGraph_t *graph) {
    pthread_mutex_lock(&mutex);
    Object *own = capturing_stream(device_id, stream);
    Object *made = NULL;
    if (own) {
        own->capturing = 0; /* also when it fails */
        if (FAKE_END_CAPTURE == INFINI_STATUS_SUCCESS) made = push_recording(kGraph, device_id, &own->recording);
        free(own->recording.calls);
        own->recording = (Recording){NULL, 0};
    }
    counts.captures += made != NULL;
    pthread_mutex_unlock(&mutex);
    if (!own) return fail(INFINI_STATUS_BAD_PARAM, "fake: this stream is not being captured");
    if (FAKE_END_CAPTURE != INFINI_STATUS_SUCCESS) return fail(FAKE_END_CAPTURE, "fake: the capture came to nothing");
    if (!made) return fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of host memory for a graph");
    *graph = made;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t release_recording(ObjectKind kind, int device_id, void *object) {
    if (!object) return INFINI_STATUS_SUCCESS;
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kind, object);
    const int own = link && (*link)->device_id == device_id;
    if (own) {
        pop_object(link);
        *(kind == kGraph ? &counts.device_graphs : &counts.graph_execs) -= 1;
    }
    pthread_mutex_unlock(&mutex);
    return own ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_BAD_PARAM, "fake: not a live graph of this device");
}

MAYBE_UNUSED static infiniStatus_t graph_destroy(int device_id, infinirtGraph_t graph) {
    return release_recording(kGraph, device_id, graph);
}

MAYBE_UNUSED static infiniStatus_t graph_exec_destroy(int device_id, infinirtGraphExec_t exec) {
    return release_recording(kGraphExec, device_id, exec);
}

MAYBE_UNUSED static infiniStatus_t graph_instantiate(int device_id, infinirtGraphExec_t *exec, infinirtGraph_t graph,
                                                     infinirtGraphNode_t *node, char *log, size_t log_size) {
    (void)node;
    if (FAKE_INSTANTIATE != INFINI_STATUS_SUCCESS) {
        if (log_size > 0) snprintf(log, log_size, "node 0 is at fault");
        return fail(FAKE_INSTANTIATE, "fake: the graph cannot be launched");
    }
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kGraph, graph);
    const int own = link && (*link)->device_id == device_id;
    Object *made = own ? push_recording(kGraphExec, device_id, &(*link)->recording) : NULL;
    pthread_mutex_unlock(&mutex);
    if (!own) return fail(INFINI_STATUS_BAD_PARAM, "fake: not a live graph of this device");
    if (!made) return fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of host memory for a graph");
    *exec = made;
    return INFINI_STATUS_SUCCESS;
}

MAYBE_UNUSED static infiniStatus_t graph_launch(int device_id, infinirtGraphExec_t exec, infinirtStream_t stream) {
    pthread_mutex_lock(&mutex);
    Object **link = find_object(kGraphExec, exec);
    const Object *own = link && (*link)->device_id == device_id ? *link : NULL;
    Object *capturing = own ? capturing_stream(device_id, stream) : NULL;
    const int works = own && counts.launches < FAKE_LAUNCHES;
    const int recorded = works && capturing && record(&capturing->recording, own->recording.calls, own->recording.n);
    counts.launches += works && !capturing;
    pthread_mutex_unlock(&mutex);
    if (!own) return fail(INFINI_STATUS_BAD_PARAM, "fake: not a live graph of this device");
    if (!works) return fail(INFINI_STATUS_INTERNAL_ERROR, "fake: no launch today");
    if (capturing)
        return recorded ? INFINI_STATUS_SUCCESS : fail(INFINI_STATUS_INTERNAL_ERROR, "fake: out of host memory");
    infiniStatus_t status = check_stream(stream);
    for (size_t i = 0; i < own->recording.n && status == INFINI_STATUS_SUCCESS; ++i) {
        InfiniCall call = own->recording.calls[i].call;
        call.stream = stream;
        status = submit(own->recording.calls[i].plan, &call);
    }
    return status;
}

/* ---- the plugin ------------------------------------------------------------------------------------------------------ */

/* A host that is loading this plugin cannot offer it yet. */
static int host_waits_for_the_probe(void) {
    Dl_info info, own;
    infiniStatus_t (*load)(const char *), (*set)(infiniDevice_t, int), (*ignore)(void);
    void *address, *library;
    memcpy(&address, &host_library->fail, sizeof address);
    if (!dladdr(address, &info) || !dladdr(&counts, &own)) return 0;
    library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    address = dlsym(library, "infinirtLoadBackend");
    memcpy(&load, &address, sizeof load);
    address = dlsym(library, "infinirtSetDevice");
    memcpy(&set, &address, sizeof set);
    address = dlsym(library, "infinirtIgnoreBackendPath");
    memcpy(&ignore, &address, sizeof ignore);
    return ignore() == INFINI_STATUS_SUCCESS && load(own.dli_fname) == INFINI_STATUS_BAD_PARAM &&
           set(FAKE_SLOT, 0) == INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED;
}

/* The child, too, goes on as the thread that loads. */
static int forks(void) {
    int status = 1;
    const pid_t child = fork();
    if (child == 0) _exit(!host_waits_for_the_probe());
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static infiniStatus_t probe(char *reason, size_t size) {
    if (FAKE_FORKS && !forks()) return INFINI_STATUS_INTERNAL_ERROR;
    if (FAKE_ASKS && !host_waits_for_the_probe()) return INFINI_STATUS_INTERNAL_ERROR;
    if (FAKE_PROBE != INFINI_STATUS_SUCCESS) snprintf(reason, size, "fake: no device answers");
    return FAKE_PROBE;
}

static const InfiniRuntimeTable runtime_table = {
    .struct_size = FAKE_RUNTIME_SIZE,
    .device_count = device_count,
    .set_device = set_device,
    .mem_info = FAKE_MEM_INFO,
    .device_synchronize = device_synchronize,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_destroy = event_destroy,
    .event_elapsed_time = event_elapsed_time,
    .malloc_device = malloc_device,
    .malloc_host = malloc_host,
    .free_device = free_device,
    .free_host = free_host,
    .malloc_async = malloc_async,
    .free_async = free_async,
    .memcpy_sync = memcpy_sync,
    .memcpy_async = memcpy_async,
    .memset_sync = memset_sync,
    .memset_async = memset_async,
#if FAKE_CAPTURE
    .stream_begin_capture = stream_begin_capture,
    .stream_end_capture = stream_end_capture,
    .graph_destroy = graph_destroy,
    .graph_instantiate = graph_instantiate,
    .graph_exec_destroy = graph_exec_destroy,
    .graph_launch = graph_launch,
#endif
};

/** Does not tell. */
static const char *op_describe(const void *plan) {
    (void)plan;
    return NULL;
}

static const InfiniOpTable op_table = {
    .struct_size = FAKE_OPS_SIZE,
    .create = op_create,
    .run = FAKE_OP_RUN,
    .destroy = op_destroy,
    .describe = op_describe,
};

static const InfiniBackend backend = {
    .abi = FAKE_ABI,
    .struct_size = FAKE_STRUCT_SIZE,
    .device_type = FAKE_SLOT,
    .name = FAKE_NAME,
    .version = FAKE_VERSION,
    .probe = probe,
    .runtime = &runtime_table,
    .ops = &op_table,
};

const InfiniBackend *infiniBackendGet(const InfiniBackendHost *host) {
    if (FAKE_ENTRY_NULL) return NULL;
    host_library = host;
    return &backend;
}
