/* What the library says about itself. */
#include "core/status.h"
#include "cpu/ceilings.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "op/descriptor.h"

using namespace infini;

extern "C" {

INFINI_EXPORT(infiniopGetVersion, (int *abi_version, const char **version), {
    if (abi_version == nullptr && version == nullptr)
        return fail(INFINI_STATUS_NULL_POINTER, "%s: both abi_version and version are NULL", fn);
    if (abi_version != nullptr) *abi_version = INFINIOP_ABI_VERSION;
    if (version != nullptr) *version = INFINI_VERSION;
    return INFINI_STATUS_SUCCESS;
})

const char *infiniopGetLastErrorMessage(void) { return infinirtGetLastErrorMessage(); }

const char *infiniopStatusString(infiniStatus_t status) { return status_name(status); }

INFINI_EXPORT(infiniopSetNumThreads, (int n), {
    if (n < 0) return fail(INFINI_STATUS_BAD_PARAM, "%s: n is %d, needed at least 1, or 0 for the default", fn, n);
    set_num_threads(n);
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopSetNumThreadsLocal, (int n), {
    if (n < 0)
        return fail(INFINI_STATUS_BAD_PARAM, "%s: n is %d, needed at least 1, or 0 for the process's number", fn, n);
    set_num_threads_local(n);
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopGetNumThreads, (int *n), {
    if (n == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: n is NULL", fn);
    *n = num_threads();
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopGetCpuIsa, (const char **name), {
    if (name == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: name is NULL", fn);
    *name = isa_name();
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopGetNumThreadsReason, (const char **text), {
    if (text == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: text is NULL", fn);
    const char *const reason = num_threads_reason();
    if (reason == nullptr) return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: out of memory", fn);
    *text = reason;
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopGetCpuIsaReason, (const char **text), {
    if (text == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: text is NULL", fn);
    *text = isa_reason();
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopMeasureCpuCeiling, (int what, size_t bytes, double *rate), {
    if (rate == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: rate is NULL", fn);
    return measure_cpu_ceiling(fn, what, bytes, rate);
})

} // extern "C"
