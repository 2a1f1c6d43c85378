/** infiniop.h: the operator contract: gemm, add, mul, add_rms_norm, rearrange on strided tensors, and gemm
 *  followed by add or mul in one.
 *
 *  INTRODUCTION
 *  An operator is used in four steps. Everything that can fail because of shapes, element types, strides or the device
 *  fails in step 1; step 3 only gets pointers.
 *
 *      1. describe   infiniopCreateTensorDescriptor() for each operand, then infiniopCreate<Op>Descriptor()
 *      2. ask        infiniopGet<Op>WorkspaceSize(), and provide that much memory of the device
 *      3. run        infiniop<Op>(), any number of times, on any memory laid out as described
 *      4. destroy    infiniopDestroy<Op>Descriptor()
 *
 *  An operator descriptor owes nothing to the handle and the tensor descriptors it was made from: those may be destroyed
 *  right after step 1, and everything may be destroyed in any order. native/examples/gemm.c is a complete program.
 *
 *  UNITS AND POINTERS
 *  - Shapes and strides count ELEMENTS; extents and workspace sizes count bytes. Strides are signed.
 *  - Operand pointers name the element with index (0, ..., 0), in memory of the descriptor's device (host memory for the
 *    CPU), aligned to the element type (complex ones to their parts) and no more. An operand without elements may be NULL.
 *  - The workspace needs no alignment, belongs to the call while it runs, and may be NULL when the size asked for is 0.
 *    Of the memory given, as many bytes as were asked for are used; one that is an operand's as well is BAD_PARAM.
 *
 *  LAYOUTS
 *  - Sizes may be 0; inputs may have stride 0 (broadcast) or negative strides. A dimension of size 1 may have any stride, and
 *    so may all dimensions of an operand without elements.
 *  - An output whose elements overlap each other is BAD_TENSOR_STRIDES at create.
 *  - At run an output may be exactly the same memory and layout as an input where the operator says so. Any other byte
 *    shared between an output and another operand is BAD_PARAM, before anything is written. The test is exact: interleaved
 *    views that share no byte are legal. (A search that exceeds its budget on contrived strides counts as an overlap.)
 *
 *  THREADS
 *  Descriptors do not change after create: any number of threads may run one at once, each with its own workspace.
 *  Destroying something while another thread uses it is the caller's error. CPU calls are synchronous and ignore
 *  `stream`; calls on other devices are queued on `stream` (NULL: the default stream), never allocate or synchronise and
 *  can be captured. The result does not depend on the number of threads. A call on the CPU takes less than 96 KiB of its
 *  thread's stack, is not interrupted by signals or by pthread_cancel(), and may be made in the child of fork(), whatever
 *  other threads of the parent were doing. Its worker threads take no signals but those for faults of their own, such as
 *  SIGSEGV, and may run on the CPUs of the thread that starts them and of the process's first.
 *
 *  FLOATING POINT
 *  Rounding is to nearest even and subnormal numbers count, whatever the calling thread has set: rounding mode, FTZ, DAZ or
 *  traps. After any call its floating-point environment is as it was, exception flags included.
 *
 *  STATUS
 *  Every function returns SUCCESS or, having changed and written nothing:
 *    NULL_POINTER            a required pointer is NULL
 *    BAD_PARAM               a destroyed or wrong-kind object, a misaligned pointer, an overlap
 *    BAD_TENSOR_DTYPE / _SHAPE / _STRIDES    at create; SHAPE and STRIDES also when sizes or extents overflow
 *    INSUFFICIENT_WORKSPACE  at run
 *    DEVICE_TYPE_NOT_SUPPORTED, NOT_IMPLEMENTED    the handle's device cannot run this operator
 *    INTERNAL_ERROR          out of memory, or the device failed
 *  Destroy functions accept NULL. No call crashes on a bad argument, prints, or lets an exception through. */
#ifndef INFINIOP_H
#define INFINIOP_H

#include "infinicore.h"

/** Number of this interface. A library with another number must not be used with this header. */
#define INFINIOP_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the library ---------------------------------------------------------------------------------------------- */

/** Writes the interface number (INFINIOP_ABI_VERSION of the build) and a static version string such as "0.1.0".
 *  Either pointer may be NULL, but not both. */
INFINI_API infiniStatus_t infiniopGetVersion(int *abi_version, const char **version);

/** This thread's sentence about its last failed call, "" if there was none. Never NULL; valid until this thread's next
 *  failing call. A succeeding call does not clear it. */
INFINI_API const char *infiniopGetLastErrorMessage(void);

/** The name of a status without prefix, "BAD_PARAM" for 3; "UNKNOWN_STATUS" for any other number. Never NULL. */
INFINI_API const char *infiniopStatusString(infiniStatus_t status);

/** Sets how many threads one CPU call may use, the caller included: for the process, or for calls of this thread only.
 *  n >= 1, or 0 to go back to the default: for a thread the process's number; for the process INFINIOP_NUM_THREADS,
 *  else OMP_NUM_THREADS, capped by the CPUs this process may use and by the quota of its control group (versions 1 and 2).
 *  More than 1024 are 1024. BAD_PARAM for n < 0. */
INFINI_API infiniStatus_t infiniopSetNumThreads(int n);
INFINI_API infiniStatus_t infiniopSetNumThreadsLocal(int n);

/** Writes how many threads a CPU call from this thread may use now. */
INFINI_API infiniStatus_t infiniopGetNumThreads(int *n);

/** Writes the static name of the instruction set the CPU kernels use: "portable", "avx2", "avx512", "avx512_bf16" or
 *  "amx_bf16": the fastest this CPU has (and Linux grants: tiles are asked for once), capped by the environment variable
 *  INFINIOP_MAX_ISA (one of these names in any case; "portable" for any other) as it was at the first use. "avx512_bf16" is
 *  used only where it is named on CPUs whose BF16 instructions are slow. */
INFINI_API infiniStatus_t infiniopGetCpuIsa(const char **name);

/** Write in a few words why infiniopGetNumThreads() and infiniopGetCpuIsa() answer this thread what they do, for bug reports:
 *  the wording may change. The text on threads lives until this thread asks again, the other one is static. */
INFINI_API infiniStatus_t infiniopGetNumThreadsReason(const char **text);
INFINI_API infiniStatus_t infiniopGetCpuIsaReason(const char **text);

/** What infiniopMeasureCpuCeiling can measure. */
enum {
    INFINIOP_CEILING_COPY = 0,    /* bytes/s read and written by copying an array: both sides count */
    INFINIOP_CEILING_READ = 1,    /* bytes/s read by adding up an array */
    INFINIOP_CEILING_FMA_F32 = 2, /* flop/s of fused (portable: separate) multiply-adds in registers; each counts as two */
    INFINIOP_CEILING_FMA_F64 = 3
};

/** Measures what this CPU can do at most, for benchmarks to compare with: the best of several tries, with the threads and the
 *  instruction set a call from this thread would use. Takes some tens of milliseconds.
 *  what   INFINIOP_CEILING_, else BAD_PARAM
 *  bytes  size of the array, at least 64 (INTERNAL_ERROR when it cannot be had); ignored for FMA
 *  rate   result, per second */
INFINI_API infiniStatus_t infiniopMeasureCpuCeiling(int what, size_t bytes, double *rate);

/* ---- handle --------------------------------------------------------------------------------------------------- */

/** A device to create operators on. The first eight bytes are public. */
struct InfiniopHandle {
    infiniDevice_t device;
    int device_id;
};
typedef struct InfiniopHandle *infiniopHandle_t;

/** Makes a handle for this thread's current device (infinirtSetDevice; CPU:0 at first). */
INFINI_API infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle);
INFINI_API infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);

/* ---- tensor descriptor ---------------------------------------------------------------------------------------- */

/** Shape, strides and element type of one operand; no memory. */
struct InfiniopTensorDescriptor;
typedef struct InfiniopTensorDescriptor *infiniopTensorDescriptor_t;

/** ndim     0 (one element) to 16, else BAD_TENSOR_SHAPE
 *  shape    ndim sizes in elements; may be NULL when ndim is 0; copied
 *  strides  ndim signed strides in elements, or NULL for row-major; copied
 *  dtype    any INFINI_DTYPE_ but INVALID, else BAD_TENSOR_DTYPE
 *  The product of the non-zero sizes (in bytes when strides is NULL), and the bytes from the lowest element to the highest,
 *  these two included, must fit in ptrdiff_t: else BAD_TENSOR_SHAPE and BAD_TENSOR_STRIDES. */
INFINI_API infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc, size_t ndim, const size_t *shape,
                                                         const ptrdiff_t *strides, infiniDtype_t dtype);
INFINI_API infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);

/* ---- operator descriptors, common part ------------------------------------------------------------------------ */

/** What every operator descriptor starts with. The first eight bytes are public. */
struct InfiniopDescriptor {
    infiniDevice_t device_type;
    int device_id;
};

INFINI_API infiniStatus_t infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor *desc, infiniDevice_t *device_type);
INFINI_API infiniStatus_t infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor *desc, int *device_id);

/** Writes in a few words how the backend runs the problem, for logs and bug reports: the wording may change. "" where there is
 *  nothing to choose or the backend does not tell. The text lives as long as the descriptor. */
INFINI_API infiniStatus_t infiniopGetDescriptorPlan(const struct InfiniopDescriptor *desc, const char **text);

/* Two functions for language bindings, which pay for each call and for each argument as much as for all checks of an operator. */

/** Makes an operator's descriptor in one call, without tensor descriptors.
 *  workspace_size  gets what the operator's function for it would write
 *  op              "gemm", "add", "mul", "add_rms_norm", "rearrange", "gemm_add" or "gemm_mul", else BAD_PARAM
 *  layouts         n numbers: of each operand, in the order of the operator's create function, its dtype, its rank, its sizes
 *                  and as many strides, which count BYTES here and must be multiples of the element's size; copied
 *  epsilon         of add_rms_norm; ignored by the other operators
 *  BAD_PARAM also when the operands do not fill n numbers. Everything else is as in the operator's own function; messages
 *  begin with the operator's name. */
INFINI_API infiniStatus_t infiniopCreateDescriptor(infiniopHandle_t handle, struct InfiniopDescriptor **desc,
                                                   size_t *workspace_size, const char *op, const int64_t *layouts, size_t n,
                                                   float epsilon);

/** Runs an operator of three operands, add, mul or gemm (with alpha 1 and beta 0), with every check of its own function, but
 *  without a workspace, on the default stream. x0 is the output. BAD_PARAM for operators with another number of operands. */
INFINI_API infiniStatus_t infiniopRun3(const struct InfiniopDescriptor *desc, void *x0, const void *x1, const void *x2);

/* ---- gemm: C = alpha * A @ B + beta * C -------------------------------------------------------------------------
 *
 *  C is [M, N] or [batch, M, N], A [M, K] or [batch, M, K], B [K, N] or [batch, K, N]; ranks 2 and 3 may be mixed.
 *  C's batch is the largest; A's or B's batch of 1 (or rank 2) is used for every item. M, N, K and batch may be 0:
 *  K == 0 gives beta * C (0 for -0, unless beta is 1). F16, BF16, F32 or F64, the same for all three. Any strides,
 *  transposed operands included.
 *  Products are accumulated in F32 (F64 for F64), alpha and beta are applied in that type, and the result is rounded once,
 *  to nearest even. On the CPU the order of a sum depends on K, and if that is 512 or more on whether rows of A and columns
 *  of B are both contiguous, but not on M, N, the batch or the threads; on other devices it may depend on the shapes, the
 *  strides and the alignment of the operands as well, and is the same for the same ones. */
typedef struct InfiniopDescriptor *infiniopGemmDescriptor_t;

INFINI_API infiniStatus_t infiniopCreateGemmDescriptor(infiniopHandle_t handle, infiniopGemmDescriptor_t *desc,
                                                       infiniopTensorDescriptor_t c, infiniopTensorDescriptor_t a,
                                                       infiniopTensorDescriptor_t b);
INFINI_API infiniStatus_t infiniopGetGemmWorkspaceSize(infiniopGemmDescriptor_t desc, size_t *size);

/** c  in and out. Read only if beta != 0: with beta == 0 it may hold anything, NaN included. With alpha == 0 or K == 0,
 *     a and b are not read. Must not share a byte with a or b. */
INFINI_API infiniStatus_t infiniopGemm(infiniopGemmDescriptor_t desc, void *workspace, size_t workspace_size, void *c,
                                       const void *a, const void *b, float alpha, float beta, void *stream);
INFINI_API infiniStatus_t infiniopDestroyGemmDescriptor(infiniopGemmDescriptor_t desc);

/* ---- gemm_add, gemm_mul: Y = (alpha * A @ B) + D, Y = (alpha * A @ B) * D ----------------------------------------
 *
 *  gemm into Y followed by add or mul of Y and D, in one pass over Y: the same bits (of two NaNs it may be the other), as the
 *  product is rounded to its type before D comes in, also where K == 0 or alpha == 0 (a product of zeros, which is added to
 *  or multiplied all the same).
 *  y, a and b are what c, a and b are to gemm; d has y's shape and type and any strides: 0 for a D that repeats, such as one
 *  row, one column or one element for all. */
typedef struct InfiniopDescriptor *infiniopGemmAddDescriptor_t;
typedef struct InfiniopDescriptor *infiniopGemmMulDescriptor_t;

INFINI_API infiniStatus_t infiniopCreateGemmAddDescriptor(infiniopHandle_t handle, infiniopGemmAddDescriptor_t *desc,
                                                          infiniopTensorDescriptor_t y, infiniopTensorDescriptor_t a,
                                                          infiniopTensorDescriptor_t b, infiniopTensorDescriptor_t d);
INFINI_API infiniStatus_t infiniopGetGemmAddWorkspaceSize(infiniopGemmAddDescriptor_t desc, size_t *size);

/** y  out. May hold anything before; must not share a byte with a, b or d. With alpha == 0 or K == 0, a and b are not read. */
INFINI_API infiniStatus_t infiniopGemmAdd(infiniopGemmAddDescriptor_t desc, void *workspace, size_t workspace_size, void *y,
                                          const void *a, const void *b, const void *d, float alpha, void *stream);
INFINI_API infiniStatus_t infiniopDestroyGemmAddDescriptor(infiniopGemmAddDescriptor_t desc);

INFINI_API infiniStatus_t infiniopCreateGemmMulDescriptor(infiniopHandle_t handle, infiniopGemmMulDescriptor_t *desc,
                                                          infiniopTensorDescriptor_t y, infiniopTensorDescriptor_t a,
                                                          infiniopTensorDescriptor_t b, infiniopTensorDescriptor_t d);
INFINI_API infiniStatus_t infiniopGetGemmMulWorkspaceSize(infiniopGemmMulDescriptor_t desc, size_t *size);
INFINI_API infiniStatus_t infiniopGemmMul(infiniopGemmMulDescriptor_t desc, void *workspace, size_t workspace_size, void *y,
                                          const void *a, const void *b, const void *d, float alpha, void *stream);
INFINI_API infiniStatus_t infiniopDestroyGemmMulDescriptor(infiniopGemmMulDescriptor_t desc);

/* ---- add, mul: C = A + B, C = A * B, element by element ---------------------------------------------------------
 *
 *  Equal shapes of rank 0 to 16; broadcast an input with stride 0. F16, BF16, F32, F64, I8..I64, U8..U64, the same for all
 *  three. Floating results are correctly rounded (nearest even), integers wrap around. c may be exactly a, b or both. */
typedef struct InfiniopDescriptor *infiniopAddDescriptor_t;
typedef struct InfiniopDescriptor *infiniopMulDescriptor_t;

INFINI_API infiniStatus_t infiniopCreateAddDescriptor(infiniopHandle_t handle, infiniopAddDescriptor_t *desc,
                                                      infiniopTensorDescriptor_t c, infiniopTensorDescriptor_t a,
                                                      infiniopTensorDescriptor_t b);
INFINI_API infiniStatus_t infiniopGetAddWorkspaceSize(infiniopAddDescriptor_t desc, size_t *size);
INFINI_API infiniStatus_t infiniopAdd(infiniopAddDescriptor_t desc, void *workspace, size_t workspace_size, void *c,
                                      const void *a, const void *b, void *stream);
INFINI_API infiniStatus_t infiniopDestroyAddDescriptor(infiniopAddDescriptor_t desc);

INFINI_API infiniStatus_t infiniopCreateMulDescriptor(infiniopHandle_t handle, infiniopMulDescriptor_t *desc,
                                                      infiniopTensorDescriptor_t c, infiniopTensorDescriptor_t a,
                                                      infiniopTensorDescriptor_t b);
INFINI_API infiniStatus_t infiniopGetMulWorkspaceSize(infiniopMulDescriptor_t desc, size_t *size);
INFINI_API infiniStatus_t infiniopMul(infiniopMulDescriptor_t desc, void *workspace, size_t workspace_size, void *c,
                                      const void *a, const void *b, void *stream);
INFINI_API infiniStatus_t infiniopDestroyMulDescriptor(infiniopMulDescriptor_t desc);

/* ---- add_rms_norm: residual_out = A + B; y = residual_out * rsqrt(mean(residual_out^2) + epsilon) * weight -------
 *
 *  y, residual_out, a, b have equal shapes [..., D] of rank 1 to 8; weight is [D]; the mean is over the last dimension
 *  (RMSNorm: Zhang and Sennrich, 2019). F16, BF16, F32, F64, the same for the first four; weight has that type too, or
 *  F16, BF16 or F32 when it is F16 or BF16. Any outer strides; the last stride must be 1 unless D is 1.
 *  residual_out is rounded to its type first, and y is computed from the rounded values, in F32 (F64 for F64), and rounded
 *  once: the two results are those of add and a norm run after each other. epsilon may be any float. A sum of squares beyond
 *  F32's (F64's) largest number is infinite and makes y 0, squares below its smallest one are 0; an infinite residual makes
 *  its own y NaN and the others of its row 0.
 *  residual_out or y may be exactly a or b; they must not share a byte with each other or with weight. */
typedef struct InfiniopDescriptor *infiniopAddRMSNormDescriptor_t;

INFINI_API infiniStatus_t infiniopCreateAddRMSNormDescriptor(infiniopHandle_t handle, infiniopAddRMSNormDescriptor_t *desc,
                                                             infiniopTensorDescriptor_t y,
                                                             infiniopTensorDescriptor_t residual_out,
                                                             infiniopTensorDescriptor_t a, infiniopTensorDescriptor_t b,
                                                             infiniopTensorDescriptor_t weight, float epsilon);
INFINI_API infiniStatus_t infiniopGetAddRMSNormWorkspaceSize(infiniopAddRMSNormDescriptor_t desc, size_t *size);
INFINI_API infiniStatus_t infiniopAddRMSNorm(infiniopAddRMSNormDescriptor_t desc, void *workspace, size_t workspace_size,
                                             void *y, void *residual_out, const void *a, const void *b, const void *weight,
                                             void *stream);
INFINI_API infiniStatus_t infiniopDestroyAddRMSNormDescriptor(infiniopAddRMSNormDescriptor_t desc);

/* ---- rearrange: y[i] = x[i] for every index i ------------------------------------------------------------------
 *
 *  Equal shapes of rank 0 to 16, equal types of any kind; bits are moved unchanged. y must not share a byte with x. */
typedef struct InfiniopDescriptor *infiniopRearrangeDescriptor_t;

INFINI_API infiniStatus_t infiniopCreateRearrangeDescriptor(infiniopHandle_t handle, infiniopRearrangeDescriptor_t *desc,
                                                            infiniopTensorDescriptor_t y, infiniopTensorDescriptor_t x);
INFINI_API infiniStatus_t infiniopRearrange(infiniopRearrangeDescriptor_t desc, void *y, const void *x, void *stream);
INFINI_API infiniStatus_t infiniopDestroyRearrangeDescriptor(infiniopRearrangeDescriptor_t desc);

/* ---- graph executor: N prepared calls in one --------------------------------------------------------------------
 *
 *  A graph is a list of operator calls with their pointers, run in the order they were appended. It keeps what it needs
 *  of the descriptors, which may be destroyed; the memory behind the pointers must stay valid while the graph is run.
 *  Appending makes every check of the operator's own run function, so that a run makes none.
 *
 *  On a device with capture (the CPU has none) the first run after an append captures all calls into a device graph, on a
 *  stream of its own, without running any; that run and all later ones launch it on their stream. Where that fails, the
 *  calls run one by one from then on, with the same results; infiniopGraphDescribe() says why. With the environment variable
 *  INFINIOP_NO_CAPTURE set to anything but "" when the process first makes a graph, nothing is captured. The first run may
 *  allocate; to capture runs in a capture of your own, make it before. */
struct InfiniopGraph;
typedef struct InfiniopGraph *infiniopGraph_t;

/** Makes an empty graph for the handle's device. */
INFINI_API infiniStatus_t infiniopCreateGraph(infiniopHandle_t handle, infiniopGraph_t *graph);

/** Appends one call.
 *  operands     n_operands pointers in the order of the operator's create function (gemm: c, a, b); copied
 *  alpha, beta  for gemm, alpha for gemm_add and gemm_mul, too; else ignored
 *  BAD_PARAM also when n_operands is not the operator's, or the descriptor is of another device than the graph.
 *  A workspace may be shared by all calls of one graph. */
INFINI_API infiniStatus_t infiniopGraphAppend(infiniopGraph_t graph, const struct InfiniopDescriptor *desc, void *workspace,
                                              size_t workspace_size, void *const *operands, size_t n_operands, float alpha,
                                              float beta);

/** Runs all calls; stops at the first that fails and returns its status, or that of the launch. Not by two threads at once on
 *  one graph whose calls share a workspace or an output, and not while another thread appends to it. */
INFINI_API infiniStatus_t infiniopGraphRun(infiniopGraph_t graph, void *stream);

/** Writes how the graph runs. The text lives until the next append, run or destruction of the graph, and begins with
 *    "captured, "          and the number of calls: they are launched as one
 *    "capture failed, "    and why; the calls run one by one
 *    "op by op: "          on a device without capture, or where INFINIOP_NO_CAPTURE is set
 *    "not decided "        before the first run after an append, on a device with capture */
INFINI_API infiniStatus_t infiniopGraphDescribe(infiniopGraph_t graph, const char **text);

/** Runs that are queued on a device still take place. */
INFINI_API infiniStatus_t infiniopDestroyGraph(infiniopGraph_t graph);

#ifdef __cplusplus
}
#endif

#endif
