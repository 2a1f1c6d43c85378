/* backend_template.c: a complete backend plugin to start one's own from: read it from top to bottom, then replace it piece by
 * piece.
 *
 *      eval "cc -std=c99 -O2 -shared -fPIC -fvisibility=hidden $(python -m infiniop_py config --cflags) \
 *            backend_template.c -o libtemplate.so -lm -lpthread"
 *      python -m infiniop_py conformance ./libtemplate.so
 *
 * The contract is infini_backend.h, and infinirt.h and infiniop.h say what each call means. The plugin needs these headers and
 * nothing else of the project: it links against no library of it, and is loaded by infinirtLoadBackend(path), by
 * INFINIOP_BACKEND_PATH=/its/path, or when it lies as libinfini_<family>.so beside libinfinirt.so.
 *
 * THE DEVICE here is the host itself: its memory is host memory, and its operators are plain loops over strided elements.
 * "SDK:" marks what a real device has calls for.
 *
 *   1. Choose the slot of your family, TEMPLATE_SLOT, and its name.
 *   2. Replace sections 1 to 4: devices, memory, streams, events. Run `conformance ... -k rule` until no rule fails.
 *   3. Replace section 5 operator by operator: what has no kernel yet answers NOT_IMPLEMENTED with a sentence, which counts as
 *      refused and not as failed. Run `conformance ... --op add --quick`, then without --quick.
 *   4. Capture, section 6, comes last. Without it set its six entries to NULL: graphs then run call by call.
 *
 * WHAT IS EASY TO GET WRONG
 *   - Every function gets the device id. It acts on that device and on no other, whichever the thread made current, and leaves
 *     the thread's current device as it was. SDK: a guard that sets the device and puts the old one back.
 *   - run may be called by many threads at once with one plan. A plan is not written after create.
 *   - run queues work on call->stream and returns. It never allocates and never waits.
 *   - Operands may have any strides, negative ones and, of inputs, 0. Pointers are aligned to an element and no more.
 *   - What beta, alpha or K exclude is not read: it may be NaN.
 *   - Failures return a status and give host->fail a sentence. Nothing is printed, nothing aborts. */
#define _POSIX_C_SOURCE 200112L
#include "infini_backend.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef TEMPLATE_SLOT
#define TEMPLATE_SLOT INFINI_DEVICE_QY
#endif

enum { kDevices = 2, kAlignment = 64 };
static const size_t kMemory = (size_t)1 << 30; /* bytes of each device */

static const InfiniBackendHost *host;

static infiniStatus_t out_of_memory(const char *what) { return host->fail(INFINI_STATUS_INTERNAL_ERROR, what); }

/* ---- 1. devices ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static size_t used[kDevices]; /* bytes, guarded by the mutex */

static infiniStatus_t device_count(int *count) {
    *count = kDevices;
    return INFINI_STATUS_SUCCESS;
}

/* A thread made this device current. SDK: set its device, where calls of the thread besides this library's are to follow. */
static infiniStatus_t set_device(int device_id) {
    (void)device_id;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t mem_info(int device_id, size_t *free_bytes, size_t *total_bytes) {
    pthread_mutex_lock(&mutex);
    *free_bytes = kMemory - used[device_id];
    pthread_mutex_unlock(&mutex);
    *total_bytes = kMemory;
    return INFINI_STATUS_SUCCESS;
}

/* SDK: wait for all streams of the device. Here everything is done when a call returns. */
static infiniStatus_t device_synchronize(int device_id) {
    (void)device_id;
    return INFINI_STATUS_SUCCESS;
}

/* ---- 2. memory ------------------------------------------------------------------------------------------------------ */

/** Stands before each block of device memory, which may be freed while another device of the family is current. */
typedef struct Block {
    size_t size;
    int device_id;
} Block;

static infiniStatus_t malloc_device(int device_id, void **ptr, size_t size) {
    void *memory = NULL;
    pthread_mutex_lock(&mutex);
    const int fits = size <= kMemory - used[device_id];
    if (fits && posix_memalign(&memory, kAlignment, kAlignment + size) == 0) used[device_id] += size;
    pthread_mutex_unlock(&mutex);
    if (!memory) return out_of_memory("template: out of device memory");
    Block *block = memory;
    block->size = size;
    block->device_id = device_id;
    *ptr = (char *)memory + kAlignment;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t free_device(int device_id, void *ptr) {
    (void)device_id;
    if (!ptr) return INFINI_STATUS_SUCCESS;
    Block *block = (Block *)((char *)ptr - kAlignment);
    pthread_mutex_lock(&mutex);
    used[block->device_id] -= block->size;
    pthread_mutex_unlock(&mutex);
    free(block);
    return INFINI_STATUS_SUCCESS;
}

/* SDK: page-locked memory. */
static infiniStatus_t malloc_host(int device_id, void **ptr, size_t size) {
    (void)device_id;
    void *memory = NULL;
    if (posix_memalign(&memory, kAlignment, size) != 0) return out_of_memory("template: out of host memory");
    *ptr = memory;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t free_host(int device_id, void *ptr) {
    (void)device_id;
    free(ptr);
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t memcpy_sync(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind) {
    (void)device_id;
    (void)kind; /* SDK: H2H 0, H2D 1, D2H 2, D2D 3 */
    memmove(dst, src, size);
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t memset_sync(int device_id, void *ptr, int value, size_t size) {
    (void)device_id;
    memset(ptr, value, size); /* to the low byte of value */
    return INFINI_STATUS_SUCCESS;
}

/* ---- 3. streams: NULL is the default stream of the device ------------------------------------------------------------- */

/** Operator calls, as section 6 records them. */
typedef struct Recording {
    struct RecordedCall *calls;
    size_t n;
} Recording;

typedef struct Stream {
    int capturing;
    Recording recording;
} Stream;

static infiniStatus_t stream_create(int device_id, infinirtStream_t *stream) {
    (void)device_id;
    Stream *made = calloc(1, sizeof *made);
    if (!made) return out_of_memory("template: out of host memory for a stream");
    *stream = made;
    return INFINI_STATUS_SUCCESS;
}

/** The stream, when it is being captured. */
static Stream *capturing(infinirtStream_t stream) {
    Stream *one = stream;
    return one && one->capturing ? one : NULL;
}

/** This template records operators alone. SDK: a driver records copies and fills as well, and needs no such check. */
static infiniStatus_t check_stream(infinirtStream_t stream) {
    if (!capturing(stream)) return INFINI_STATUS_SUCCESS;
    return host->fail(INFINI_STATUS_NOT_IMPLEMENTED, "template: only operators can be captured");
}

static infiniStatus_t stream_destroy(int device_id, infinirtStream_t stream) {
    (void)device_id;
    const infiniStatus_t status = check_stream(stream);
    if (status == INFINI_STATUS_SUCCESS) free(stream);
    return status;
}

/* SDK: wait for what was queued. */
static infiniStatus_t stream_synchronize(int device_id, infinirtStream_t stream) {
    (void)device_id;
    return check_stream(stream);
}

/* SDK: what is queued on the stream from now on waits for the event's last recording. */
static infiniStatus_t stream_wait_event(int device_id, infinirtStream_t stream, infinirtEvent_t event) {
    (void)device_id;
    (void)event;
    return check_stream(stream);
}

/* SDK: each of these queues its work on the stream and returns. Here a stream does at once what it is given. */
static infiniStatus_t malloc_async(int device_id, void **ptr, size_t size, infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    return status == INFINI_STATUS_SUCCESS ? malloc_device(device_id, ptr, size) : status;
}

static infiniStatus_t free_async(int device_id, void *ptr, infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    return status == INFINI_STATUS_SUCCESS ? free_device(device_id, ptr) : status;
}

static infiniStatus_t memcpy_async(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind,
                                   infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    return status == INFINI_STATUS_SUCCESS ? memcpy_sync(device_id, dst, src, size, kind) : status;
}

static infiniStatus_t memset_async(int device_id, void *ptr, int value, size_t size, infinirtStream_t stream) {
    const infiniStatus_t status = check_stream(stream);
    return status == INFINI_STATUS_SUCCESS ? memset_sync(device_id, ptr, value, size) : status;
}

/* ---- 4. events ------------------------------------------------------------------------------------------------------ */

typedef struct Event {
    uint32_t flags;
    int recorded;
    struct timespec time;
} Event;

static infiniStatus_t event_create(int device_id, infinirtEvent_t *event, uint32_t flags) {
    (void)device_id;
    Event *made = calloc(1, sizeof *made);
    if (!made) return out_of_memory("template: out of host memory for an event");
    made->flags = flags;
    *event = made;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t event_record(int device_id, infinirtEvent_t event, infinirtStream_t stream) {
    (void)device_id;
    const infiniStatus_t status = check_stream(stream);
    if (status != INFINI_STATUS_SUCCESS) return status;
    Event *own = event;
    own->recorded = 1;
    clock_gettime(CLOCK_MONOTONIC, &own->time);
    return INFINI_STATUS_SUCCESS;
}

/* SDK: NOT_READY until the work before the mark is done; COMPLETE, too, when nothing was recorded yet. */
static infiniStatus_t event_query(int device_id, infinirtEvent_t event, infinirtEventStatus_t *status) {
    (void)device_id;
    (void)event;
    *status = INFINIRT_EVENT_COMPLETE;
    return INFINI_STATUS_SUCCESS;
}

/* SDK: wait for the mark. */
static infiniStatus_t event_synchronize(int device_id, infinirtEvent_t event) {
    (void)device_id;
    (void)event;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t event_destroy(int device_id, infinirtEvent_t event) {
    (void)device_id;
    free(event);
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t event_elapsed_time(int device_id, float *ms, infinirtEvent_t start, infinirtEvent_t end) {
    (void)device_id;
    const Event *from = start, *to = end;
    if (!from->recorded || !to->recorded)
        return host->fail(INFINI_STATUS_BAD_PARAM, "template: an event was never recorded");
    if ((from->flags | to->flags) & INFINIRT_EVENT_DISABLE_TIMING)
        return host->fail(INFINI_STATUS_BAD_PARAM, "template: an event was created with DISABLE_TIMING");
    *ms = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                  (double)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return INFINI_STATUS_SUCCESS;
}

/* ---- 5. operators ---------------------------------------------------------------------------------------------------
 *
 * create gets a legal problem in its simplest form, see InfiniProblem, and chooses how to run it: SDK: kernels, launch sizes,
 * a library's algorithm, how much workspace. run gets pointers. Of the problem everything is known at create but the addresses
 * of the operands, which are aligned to an element, and alpha and beta. */

/** Bytes of an element; a table in the order of the types' numbers. */
static size_t size_of(int32_t dtype) {
    static const size_t sizes[] = {0, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 16, 2};
    return sizes[dtype];
}

static int is_float(int32_t dtype) {
    return dtype == INFINI_DTYPE_F16 || dtype == INFINI_DTYPE_BF16 || dtype == INFINI_DTYPE_F32 ||
           dtype == INFINI_DTYPE_F64;
}

/** How many elements: of the outer dimensions alone, or of all. */
static int64_t count(const InfiniOperand *x, int ndim) {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= x->shape[d];
    return n;
}

/** Where the i-th element of the first ndim dimensions is, in row-major order, counted in elements from the pointer that run
 *  gets. */
static int64_t place(const InfiniOperand *x, int ndim, int64_t i) {
    int64_t at = x->offset;
    for (int d = ndim - 1; d >= 0; --d) {
        at += i % x->shape[d] * x->stride[d];
        i /= x->shape[d];
    }
    return at;
}

static float from_f16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                       : exponent == 0 ? ldexpf((float)fraction, -24)
                                       : ldexpf((float)(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

/** Rounds once, to nearest even; a carry out of the fraction counts up the exponent. */
static uint16_t to_f16(float x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;
    if (isnan(x)) return sign | 0x7E00;
    x = fabsf(x);
    if (x >= 65520.0f) return sign | 0x7C00;                              /* half a unit beyond the largest number */
    if (x < ldexpf(1, -14)) return sign | (uint16_t)rintf(ldexpf(x, 24)); /* subnormal, or 0 */
    frexpf(x, &exponent);
    return (uint16_t)(sign + ((exponent + 13) << 10) + (int)rintf(ldexpf(x, 11 - exponent)));
}

static float from_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

static uint16_t to_bf16(float x) {
    uint32_t wide;
    memcpy(&wide, &x, sizeof wide);
    if (isnan(x)) return (uint16_t)(wide >> 16 | 0x40);
    return (uint16_t)((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
}

/** Element number `at` of floating memory; a double holds every one exactly. */
static double load(int32_t dtype, const void *x, int64_t at) {
    switch (dtype) {
    case INFINI_DTYPE_F16: return from_f16(((const uint16_t *)x)[at]);
    case INFINI_DTYPE_BF16: return from_bf16(((const uint16_t *)x)[at]);
    case INFINI_DTYPE_F32: return ((const float *)x)[at];
    default: return ((const double *)x)[at];
    }
}

/** Stores what was computed in the type that round_to() names, rounding once. */
static void store(int32_t dtype, void *x, int64_t at, double value) {
    switch (dtype) {
    case INFINI_DTYPE_F16: ((uint16_t *)x)[at] = to_f16((float)value); break;
    case INFINI_DTYPE_BF16: ((uint16_t *)x)[at] = to_bf16((float)value); break;
    case INFINI_DTYPE_F32: ((float *)x)[at] = (float)value; break;
    default: ((double *)x)[at] = value;
    }
}

/** One step of the arithmetic that operators promise: F64 for F64, F32 for all others. A sum, product, quotient or root of F32
 *  numbers that is computed in F64 and rounded to F32 is what F32 arithmetic gives. SDK: compute in F32 and F64. */
static double round_to(int32_t dtype, double x) { return dtype == INFINI_DTYPE_F64 ? x : (double)(float)x; }

/** Integers of any size and sign: sums and products wrap around alike. */
static uint64_t load_bits(size_t size, const void *x, int64_t at) {
    switch (size) {
    case 1: return ((const uint8_t *)x)[at];
    case 2: return ((const uint16_t *)x)[at];
    case 4: return ((const uint32_t *)x)[at];
    default: return ((const uint64_t *)x)[at];
    }
}

static void store_bits(size_t size, void *x, int64_t at, uint64_t value) {
    switch (size) {
    case 1: ((uint8_t *)x)[at] = (uint8_t)value; break;
    case 2: ((uint16_t *)x)[at] = (uint16_t)value; break;
    case 4: ((uint32_t *)x)[at] = (uint32_t)value; break;
    default: ((uint64_t *)x)[at] = value;
    }
}

/** c[c_at] = a[a_at] + b[b_at], or times. c may be a or b. */
static void binary(int32_t dtype, int multiply, void *c, int64_t c_at, const void *a, int64_t a_at, const void *b,
                   int64_t b_at) {
    if (is_float(dtype)) {
        const double x = load(dtype, a, a_at), y = load(dtype, b, b_at);
        store(dtype, c, c_at, round_to(dtype, multiply ? x * y : x + y));
    } else {
        const size_t size = size_of(dtype);
        const uint64_t x = load_bits(size, a, a_at), y = load_bits(size, b, b_at);
        store_bits(size, c, c_at, multiply ? x * y : x + y);
    }
}

/** add, mul: c, a, b. */
static void run_elementwise(const InfiniProblem *p, const InfiniCall *call) {
    const InfiniOperand *c = &p->operands[0], *a = &p->operands[1], *b = &p->operands[2];
    for (int64_t i = 0; i < count(c, c->ndim); ++i)
        binary(c->dtype, p->op == INFINI_OP_MUL, call->operands[0], place(c, c->ndim, i), call->operands[1],
               place(a, a->ndim, i), call->operands[2], place(b, b->ndim, i));
}

/** rearrange: y, x. */
static void run_rearrange(const InfiniProblem *p, const InfiniCall *call) {
    const InfiniOperand *y = &p->operands[0], *x = &p->operands[1];
    const int64_t size = (int64_t)size_of(y->dtype);
    for (int64_t i = 0; i < count(y, y->ndim); ++i)
        memcpy((char *)call->operands[0] + place(y, y->ndim, i) * size,
               (const char *)call->operands[1] + place(x, x->ndim, i) * size, (size_t)size);
}

/** add_rms_norm: y, residual_out, a, b, weight. y or residual_out may be a or b, so that y follows when all of a row was
 *  read. */
static void run_add_rms_norm(const InfiniProblem *p, const InfiniCall *call) {
    const InfiniOperand *y = &p->operands[0], *r = &p->operands[1], *a = &p->operands[2], *b = &p->operands[3],
                        *w = &p->operands[4];
    const int32_t dtype = y->dtype;
    const int last = y->ndim - 1;
    const int64_t depth = y->shape[last];
    for (int64_t row = 0; row < count(y, last); ++row) {
        const int64_t y0 = place(y, last, row), r0 = place(r, last, row), a0 = place(a, last, row),
                      b0 = place(b, last, row), w0 = place(w, last, row);
        double sum = 0;
        for (int64_t i = 0; i < depth; ++i) {
            const int64_t at = r0 + i * r->stride[last];
            binary(dtype, 0, call->operands[1], at, call->operands[2], a0 + i * a->stride[last], call->operands[3],
                   b0 + i * b->stride[last]);
            const double x = load(dtype, call->operands[1], at); /* the rounded sum, not the exact one */
            sum = round_to(dtype, sum + round_to(dtype, x * x));
        }
        const double mean = round_to(dtype, round_to(dtype, sum / (double)depth) + (double)p->epsilon);
        const double scale = round_to(dtype, 1 / round_to(dtype, sqrt(mean)));
        for (int64_t i = 0; i < depth; ++i) {
            const double x = load(dtype, call->operands[1], r0 + i * r->stride[last]);
            const double weight = load(w->dtype, call->operands[4], w0 + i * w->stride[last]);
            store(dtype, call->operands[0], y0 + i * y->stride[last],
                  round_to(dtype, round_to(dtype, x * scale) * weight));
        }
    }
}

/** gemm: c, a, b; gemm_add, gemm_mul: y, a, b, d, where the product is rounded to its type before d comes in. */
static void run_gemm(const InfiniProblem *p, const InfiniCall *call) {
    const InfiniOperand *c = &p->operands[0], *a = &p->operands[1], *b = &p->operands[2], *d = &p->operands[3];
    const int32_t dtype = c->dtype;
    const int64_t n = c->shape[2], depth = a->shape[2];
    const int reads_c = p->op == INFINI_OP_GEMM && call->beta != 0;
    for (int64_t i = 0; i < count(c, 3); ++i) {
        const int64_t batch = i / n / c->shape[1], row = i / n % c->shape[1], column = i % n, c_at = place(c, 3, i);
        const int64_t a0 = a->offset + batch * a->stride[0] + row * a->stride[1],
                      b0 = b->offset + batch * b->stride[0] + column * b->stride[2];
        double sum = 0;
        if (call->alpha != 0) /* else a and b are not read */
            for (int64_t k = 0; k < depth; ++k) {
                const double x = load(dtype, call->operands[1], a0 + k * a->stride[2]);
                const double y = load(dtype, call->operands[2], b0 + k * b->stride[1]);
                sum = round_to(dtype, sum + round_to(dtype, x * y));
            }
        if (call->alpha != 0 && depth != 0) sum = round_to(dtype, (double)call->alpha * sum);
        if (reads_c)
            sum = round_to(dtype, sum + round_to(dtype, (double)call->beta * load(dtype, call->operands[0], c_at)));
        store(dtype, call->operands[0], c_at, sum);
        if (p->op != INFINI_OP_GEMM)
            binary(dtype, p->op == INFINI_OP_GEMM_MUL, call->operands[0], c_at, call->operands[0], c_at,
                   call->operands[3], place(d, 3, i));
    }
}

/** By the numbers of the operators. A NULL here would be an operator that is refused. */
static void (*const kernels[INFINI_OP_COUNT])(const InfiniProblem *, const InfiniCall *) = {
    [INFINI_OP_GEMM] = run_gemm,           [INFINI_OP_ADD] = run_elementwise,
    [INFINI_OP_MUL] = run_elementwise,     [INFINI_OP_ADD_RMS_NORM] = run_add_rms_norm,
    [INFINI_OP_REARRANGE] = run_rearrange, [INFINI_OP_GEMM_ADD] = run_gemm,
    [INFINI_OP_GEMM_MUL] = run_gemm,
};

/** A plan: here a copy of the problem, which may not be kept. SDK: what run needs, ready to be launched, and the device. */
static infiniStatus_t op_create(const InfiniProblem *problem, void **plan, size_t *workspace_size) {
    if (problem->op < 0 || problem->op >= INFINI_OP_COUNT || !kernels[problem->op]) /* a newer host has more */
        return host->fail(INFINI_STATUS_NOT_IMPLEMENTED, "template: there is no kernel for this operator");
    InfiniProblem *made = malloc(sizeof *made);
    if (!made) return out_of_memory("template: out of host memory for a plan");
    *made = *problem;
    *plan = made;
    *workspace_size = 0; /* bytes of device memory that run gets in call->workspace, at any alignment */
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t compute(const InfiniProblem *plan, const InfiniCall *call) {
    kernels[plan->op](plan, call);
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t record(Recording *to, const InfiniProblem *plan, const InfiniCall *call);

/* SDK: launch on call->stream, and ask for the launch's error. */
static infiniStatus_t op_run(const void *plan, const InfiniCall *call) {
    Stream *stream = capturing(call->stream);
    return stream ? record(&stream->recording, plan, call) : compute(plan, call);
}

static void op_destroy(void *plan) { free(plan); }

/* (opt) For logs. */
static const char *op_describe(const void *plan) {
    (void)plan;
    return "plain loops";
}

/* ---- 6. capture (opt) -----------------------------------------------------------------------------------------------
 *
 * SDK: six calls of the driver, whose streams record what is launched on them. Here op_run writes calls down. A graph holds
 * what a stream recorded; an executable one is a copy, which may outlive it. Plans and memory live as long as both. */

struct RecordedCall {
    const InfiniProblem *plan;
    InfiniCall call; /* without operands, which are those below */
    void *operands[INFINI_MAX_OPERANDS];
};

static infiniStatus_t record(Recording *to, const InfiniProblem *plan, const InfiniCall *call) {
    struct RecordedCall *calls = realloc(to->calls, (to->n + 1) * sizeof *calls);
    if (!calls) return out_of_memory("template: out of host memory for a recording");
    to->calls = calls;
    calls[to->n].plan = plan;
    calls[to->n].call = *call;
    memcpy(calls[to->n].operands, call->operands, (size_t)plan->n_operands * sizeof(void *));
    to->n += 1;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t stream_begin_capture(int device_id, infinirtStream_t stream, infinirtStreamCaptureMode_t mode) {
    (void)device_id;
    (void)mode;
    Stream *own = stream;
    if (!own || own->capturing)
        return host->fail(INFINI_STATUS_BAD_PARAM,
                          "template: the default stream, or one that is captured, cannot be captured");
    own->capturing = 1;
    return INFINI_STATUS_SUCCESS;
}

static infiniStatus_t release(Recording *recording) {
    if (recording) free(recording->calls);
    free(recording);
    return INFINI_STATUS_SUCCESS;
}

/** Moves a stream's recording to a graph. Whatever comes of it, the capture is over. */
static infiniStatus_t stream_end_capture(int device_id, infinirtStream_t stream, infinirtGraph_t *graph) {
    (void)device_id;
    Stream *own = capturing(stream);
    if (!own) return host->fail(INFINI_STATUS_BAD_PARAM, "template: the stream is not being captured");
    Recording *made = malloc(sizeof *made);
    if (made)
        *made = own->recording;
    else
        free(own->recording.calls);
    memset(own, 0, sizeof *own);
    *graph = made;
    return made ? INFINI_STATUS_SUCCESS : out_of_memory("template: out of host memory for a graph");
}

static infiniStatus_t graph_destroy(int device_id, infinirtGraph_t graph) {
    (void)device_id;
    return release(graph);
}

static infiniStatus_t graph_instantiate(int device_id, infinirtGraphExec_t *exec, infinirtGraph_t graph,
                                        infinirtGraphNode_t *node, char *log, size_t log_size) {
    (void)device_id;
    (void)node; /* SDK: the node at fault, and a text about it in log */
    (void)log;
    (void)log_size;
    const Recording *from = graph;
    Recording *made = calloc(1, sizeof *made);
    infiniStatus_t status = made ? INFINI_STATUS_SUCCESS : out_of_memory("template: out of host memory for a graph");
    for (size_t i = 0; status == INFINI_STATUS_SUCCESS && i < from->n; ++i) {
        InfiniCall call = from->calls[i].call;
        call.operands = from->calls[i].operands;
        status = record(made, from->calls[i].plan, &call);
    }
    if (status == INFINI_STATUS_SUCCESS)
        *exec = made;
    else
        release(made);
    return status;
}

static infiniStatus_t graph_exec_destroy(int device_id, infinirtGraphExec_t exec) {
    (void)device_id;
    return release(exec);
}

static infiniStatus_t graph_launch(int device_id, infinirtGraphExec_t exec, infinirtStream_t stream) {
    (void)device_id;
    const Recording *own = exec;
    infiniStatus_t status = check_stream(stream);
    for (size_t i = 0; status == INFINI_STATUS_SUCCESS && i < own->n; ++i) {
        InfiniCall call = own->calls[i].call;
        call.operands = own->calls[i].operands;
        call.stream = stream;
        status = compute(own->calls[i].plan, &call);
    }
    return status;
}

/* ---- 7. the plugin -------------------------------------------------------------------------------------------------- */

/* SDK: is there a driver, is it new enough? Otherwise a status and snprintf(reason, size, "..."), which `python -m infiniop_py
 * info` shows. A driver without devices is SUCCESS and a count of 0. */
static infiniStatus_t probe(char *reason, size_t size) {
    (void)reason;
    (void)size;
    return INFINI_STATUS_SUCCESS;
}

static const InfiniRuntimeTable runtime_table = {
    .struct_size = sizeof(InfiniRuntimeTable),
    .device_count = device_count,
    .set_device = set_device,
    .mem_info = mem_info,
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
    .stream_begin_capture = stream_begin_capture,
    .stream_end_capture = stream_end_capture,
    .graph_destroy = graph_destroy,
    .graph_instantiate = graph_instantiate,
    .graph_exec_destroy = graph_exec_destroy,
    .graph_launch = graph_launch,
};

static const InfiniOpTable op_table = {
    .struct_size = sizeof(InfiniOpTable),
    .create = op_create,
    .run = op_run,
    .destroy = op_destroy,
    .describe = op_describe,
};

static const InfiniBackend backend = {
    .abi = INFINI_BACKEND_ABI,
    .struct_size = sizeof(InfiniBackend),
    .device_type = TEMPLATE_SLOT,
    .name = "template",
    .version = "1.0",
    .probe = probe,
    .runtime = &runtime_table,
    .ops = &op_table,
};

INFINI_API const InfiniBackend *infiniBackendGet(const InfiniBackendHost *given); /* the one symbol a plugin exports */

const InfiniBackend *infiniBackendGet(const InfiniBackendHost *given) {
    host = given;
    return &backend;
}
