#include "cuda/error.h"

#include <pthread.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace infini {

namespace {
std::atomic<const InfiniBackendHost *> host{nullptr};
}

/* The plugin's own: the libraries' keeps sentences in libinfinirt, which a plugin does not link. */
infiniStatus_t fail(infiniStatus_t status, const char *format, ...) {
    char message[1024];
    va_list args;
    va_start(args, format);
    std::vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return host.load(std::memory_order_acquire)->fail(status, message);
}

namespace cuda {

namespace {

std::atomic<bool> forked{false};

infiniStatus_t status_of(cudaError_t error) {
    switch (error) {
    case cudaErrorInvalidDevice: return INFINI_STATUS_DEVICE_NOT_FOUND;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorDevicesUnavailable: return INFINI_STATUS_DEVICE_NOT_INITIALIZED;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion: return INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED;
    case cudaErrorNotSupported: return INFINI_STATUS_NOT_IMPLEMENTED;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorIllegalState: return INFINI_STATUS_BAD_PARAM;
    default: return INFINI_STATUS_INTERNAL_ERROR;
    }
}

} // namespace

void set_host(const InfiniBackendHost *offered) { host.store(offered, std::memory_order_release); }

infiniStatus_t check(const char *what, cudaError_t error) {
    if (error == cudaSuccess) return INFINI_STATUS_SUCCESS;
    cudaGetLastError(); // or the next one who asks would be told of this failure
    return fail(status_of(error), "cuda: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

DeviceGuard::DeviceGuard(int device_id) {
    if (forked.load(std::memory_order_relaxed)) {
        status_ =
            fail(INFINI_STATUS_DEVICE_NOT_INITIALIZED,
                 "cuda: this process was forked from one that uses CUDA, which cannot be used here; start it with "
                 "exec (Python: multiprocessing's \"spawn\")");
        return;
    }
    int current;
    status_ = check("asking for the current device", cudaGetDevice(&current));
    if (status_ != INFINI_STATUS_SUCCESS || current == device_id) return;
    status_ = check("choosing a device", cudaSetDevice(device_id));
    if (status_ == INFINI_STATUS_SUCCESS) before_ = current;
}

DeviceGuard::~DeviceGuard() {
    if (before_ >= 0) cudaSetDevice(before_);
}

void refuse_forked_children() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    static_cast<void>(registered);
}

} // namespace cuda
} // namespace infini
