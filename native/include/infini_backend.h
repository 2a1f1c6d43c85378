/** infini_backend.h: the backend plugin contract: one struct of function pointers is one device family.
 *
 *  A plugin is a shared object that exports one C function, infiniBackendGet, and links against nothing of this project.
 *  The built-in CPU backend fills the same structs. native/examples/backend_template is a plugin to start from, and
 *  `python -m infiniop_py conformance PLUGIN.so` holds one to what is said here, as far as a caller can tell.
 *
 *  HOW PLUGINS ARE FOUND, in this order, when a device family other than the CPU is first asked for:
 *    1. infinirtLoadBackend(path), any time before
 *    2. the files named in INFINIOP_BACKEND_PATH (absolute, separated by ':'; see infinirtIgnoreBackendPath)
 *    3. libinfini_<family>.so in the folder of libinfinirt.so: cuda for NVIDIA, else the family's name in lower case
 *  The first plugin that passes takes the slot. It is checked: entry symbol, ABI number, struct sizes, a free slot that is
 *  not the CPU's, complete tables, probe. A plugin that fails leaves its reason for infinirtGetBackendInfo and is no error
 *  of the process; one that passed is never unloaded. While a thread loads a plugin, what the plugin asks the host for in that
 *  thread is answered from the slots that are filled already.
 *
 *  WHO CHECKS WHAT
 *  Arguments are checked before a backend sees them: pointers that must not be NULL are not, device ids are in range,
 *  problems are legal, operands are aligned, outputs overlap nothing they must not. A backend only says what *it* cannot
 *  do, with NOT_IMPLEMENTED and a sentence given to host->fail. It must not throw, print or abort. */
#ifndef INFINI_BACKEND_H
#define INFINI_BACKEND_H

#include "infinirt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INFINI_BACKEND_ABI 1
#define INFINI_MAX_DIMS 16
#define INFINI_MAX_OPERANDS 8

/** The operators: X(ID, name). A new operator is a new row at the end. */
#define INFINI_OP_LIST(X)         \
    X(GEMM, gemm)                 \
    X(ADD, add)                   \
    X(MUL, mul)                   \
    X(ADD_RMS_NORM, add_rms_norm) \
    X(REARRANGE, rearrange)       \
    X(GEMM_ADD, gemm_add)         \
    X(GEMM_MUL, gemm_mul)

typedef enum {
#define INFINI_OP_ENUM(ID, name) INFINI_OP_##ID,
    INFINI_OP_LIST(INFINI_OP_ENUM)
#undef INFINI_OP_ENUM
    INFINI_OP_COUNT
} InfiniOp;

/** One operand as a backend sees it. Element (i0, ..., in) lies `offset + sum(i_d * stride[d])` elements behind the pointer
 *  given to run. Size-1 dimensions have stride 0. */
typedef struct InfiniOperand {
    int32_t dtype;
    int32_t ndim;
    int64_t offset;
    int64_t shape[INFINI_MAX_DIMS];
    int64_t stride[INFINI_MAX_DIMS];
} InfiniOperand;

/** One legal problem, reduced to its simplest equal form. Operands stand in the order of the create function.
 *
 *  add, mul, rearrange   all operands have one common shape; unit dimensions are dropped, dimensions that are contiguous in
 *                        every operand merged, the output's strides positive and falling (the last dimension is the
 *                        innermost). Rank 0 is one element.
 *  gemm                  c [batch, M, N], a [batch, M, K], b [batch, K, N], all of offset 0; a broadcast batch has stride 0
 *  gemm_add, gemm_mul    y, a, b as gemm's c, a, b; d has y's shape
 *  add_rms_norm          y, residual_out, a, b [outer..., D]; weight has the same shape, with stride 0 in the outer
 *                        dimensions, which are reduced as above. The last stride is 1 (0 when D is 1).
 *  A problem whose outputs have no element never reaches a backend. */
typedef struct InfiniProblem {
    uint32_t struct_size;
    int32_t op; /* InfiniOp */
    int32_t device_id;
    int32_t n_operands;
    InfiniOperand operands[INFINI_MAX_OPERANDS];
    float epsilon; /* add_rms_norm */
} InfiniProblem;

/** The arguments of one run. */
typedef struct InfiniCall {
    void *workspace; /* any alignment; at least the size that create wrote, or NULL when that is 0 */
    size_t workspace_size;
    void *const *operands; /* n_operands pointers */
    float alpha, beta;     /* gemm; gemm_add and gemm_mul: alpha alone */
    void *stream;
} InfiniCall;

/** What a backend can do with operators. */
typedef struct InfiniOpTable {
    uint32_t struct_size;
    /** Plans a problem. Writes an opaque plan (not NULL) and the workspace it needs in bytes, 0 for rearrange, whose users have
     *  no way to give one; what it writes and then fails is not looked at. The problem may not be kept. */
    infiniStatus_t (*create)(const InfiniProblem *problem, void **plan, size_t *workspace_size);
    /** Runs a plan; from any thread, several at once. Never allocates; on devices only queues on call->stream. When that
     *  stream is being captured nothing runs, and what is recorded must be right at every launch while the plan lives; a plan
     *  that cannot promise this fails, and graphs run it without capture. */
    infiniStatus_t (*run)(const void *plan, const InfiniCall *call);
    void (*destroy)(void *plan); /* whichever device is current */
    /** (opt) In a few words how a plan runs its problem, for logs, or NULL. The text lives as long as the plan. */
    const char *(*describe)(const void *plan);
} InfiniOpTable;

/** What a backend can do with devices and memory; see infinirt.h for the meaning of each call. Every function takes the
 *  device id first, and acts on that device, which need not be the thread's current one; with NULL, free and destroy do
 *  nothing. Memory, streams and events may be of another device of the family. What free_device is given may still be used
 *  by work that is queued on any stream, and is not reused before that is done. (opt) entries may be NULL: NOT_IMPLEMENTED.
 *  Graphs are captured only where all six entries of capture are there. */
typedef struct InfiniRuntimeTable {
    uint32_t struct_size;
    infiniStatus_t (*device_count)(int *count);
    infiniStatus_t (*set_device)(int device_id); /* (opt, then: nothing to do) a thread made this device current */
    infiniStatus_t (*mem_info)(int device_id, size_t *free_bytes, size_t *total_bytes);
    infiniStatus_t (*device_synchronize)(int device_id);

    infiniStatus_t (*stream_create)(int device_id, infinirtStream_t *stream);
    infiniStatus_t (*stream_destroy)(int device_id, infinirtStream_t stream);
    infiniStatus_t (*stream_synchronize)(int device_id, infinirtStream_t stream);
    infiniStatus_t (*stream_wait_event)(int device_id, infinirtStream_t stream, infinirtEvent_t event);

    infiniStatus_t (*event_create)(int device_id, infinirtEvent_t *event, uint32_t flags);
    infiniStatus_t (*event_record)(int device_id, infinirtEvent_t event, infinirtStream_t stream);
    infiniStatus_t (*event_query)(int device_id, infinirtEvent_t event, infinirtEventStatus_t *status);
    infiniStatus_t (*event_synchronize)(int device_id, infinirtEvent_t event);
    infiniStatus_t (*event_destroy)(int device_id, infinirtEvent_t event);
    infiniStatus_t (*event_elapsed_time)(int device_id, float *ms, infinirtEvent_t start, infinirtEvent_t end);

    infiniStatus_t (*malloc_device)(int device_id, void **ptr, size_t size);
    infiniStatus_t (*malloc_host)(int device_id, void **ptr, size_t size);
    infiniStatus_t (*free_device)(int device_id, void *ptr);
    infiniStatus_t (*free_host)(int device_id, void *ptr);
    infiniStatus_t (*malloc_async)(int device_id, void **ptr, size_t size, infinirtStream_t stream);
    infiniStatus_t (*free_async)(int device_id, void *ptr, infinirtStream_t stream);
    infiniStatus_t (*memcpy_sync)(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind);
    infiniStatus_t (*memcpy_async)(int device_id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind, infinirtStream_t stream);
    infiniStatus_t (*memset_sync)(int device_id, void *ptr, int value, size_t size);
    infiniStatus_t (*memset_async)(int device_id, void *ptr, int value, size_t size, infinirtStream_t stream);

    infiniStatus_t (*stream_begin_capture)(int device_id, infinirtStream_t stream, infinirtStreamCaptureMode_t mode);          /* (opt) */
    infiniStatus_t (*stream_end_capture)(int device_id, infinirtStream_t stream, infinirtGraph_t *graph);                      /* (opt) */
    infiniStatus_t (*graph_destroy)(int device_id, infinirtGraph_t graph);                                                     /* (opt) */
    infiniStatus_t (*graph_instantiate)(int device_id, infinirtGraphExec_t *exec, infinirtGraph_t graph, infinirtGraphNode_t *node,
                                        char *log, size_t log_size);                                                           /* (opt) */
    infiniStatus_t (*graph_exec_destroy)(int device_id, infinirtGraphExec_t exec);                                             /* (opt) */
    infiniStatus_t (*graph_launch)(int device_id, infinirtGraphExec_t exec, infinirtStream_t stream);                          /* (opt) */
} InfiniRuntimeTable;

/** What the library offers to a backend. */
typedef struct InfiniBackendHost {
    uint32_t abi;
    uint32_t struct_size;
    /** Keeps `message` as this thread's last error message and returns `status`. */
    infiniStatus_t (*fail)(infiniStatus_t status, const char *message);
} InfiniBackendHost;

/** One device family. Everything it points to must live as long as the process. */
typedef struct InfiniBackend {
    uint32_t abi;         /* INFINI_BACKEND_ABI */
    uint32_t struct_size; /* sizeof(InfiniBackend) */
    infiniDevice_t device_type;
    const char *name;    /* "cuda" */
    const char *version; /* the backend's own */
    /** Can it work here? SUCCESS, or a status and up to `size` bytes of reason (NUL-terminated). Called once each time
     *  it is loaded. */
    infiniStatus_t (*probe)(char *reason, size_t size);
    const InfiniRuntimeTable *runtime;
    const InfiniOpTable *ops;
} InfiniBackend;

/** The one symbol a plugin exports. Returns NULL when it cannot work with this host. */
#define INFINI_BACKEND_ENTRY "infiniBackendGet"
typedef const InfiniBackend *(*InfiniBackendGetFn)(const InfiniBackendHost *host);

/* ---- asking about backends (in libinfinirt.so) ------------------------------------------------------------------ */

/** Loads a plugin from an absolute path. BAD_PARAM: not absolute, not a plugin, another ABI, or its slot is taken; the
 *  status of its probe otherwise. */
INFINI_API infiniStatus_t infinirtLoadBackend(const char *path);

/** Loads nothing that INFINIOP_BACKEND_PATH names from now on: for programs that do not trust their environment. In setuid
 *  processes, and whatever else is AT_SECURE, no variable is read at all. */
INFINI_API infiniStatus_t infinirtIgnoreBackendPath(void);

/** What is known about one slot. The strings are static or live as long as the process; never NULL, "" when not known. */
typedef struct InfiniBackendInfo {
    int available;       /* 1 when a backend is in the slot */
    const char *name;    /* "cpu", "cuda" */
    const char *version;
    const char *path;    /* of the plugin; "built-in" for the CPU */
    const char *reason;  /* why the slot is empty */
} InfiniBackendInfo;
INFINI_API infiniStatus_t infinirtGetBackendInfo(infiniDevice_t device, InfiniBackendInfo *info);

/** Writes the backend of a family; DEVICE_TYPE_NOT_SUPPORTED with the reason when the slot is empty. That of the CPU has no
 *  operators (`ops` is NULL): these are in libinfiniop.so itself. */
INFINI_API infiniStatus_t infinirtGetBackend(infiniDevice_t device, const InfiniBackend **backend);

/** The store behind infiniopGetLastErrorMessage(), here so that both libraries share it. `set` returns `status`. */
INFINI_API infiniStatus_t infinirtSetLastError(infiniStatus_t status, const char *message);
INFINI_API const char *infinirtGetLastErrorMessage(void);

#ifdef __cplusplus
}
#endif

#endif
