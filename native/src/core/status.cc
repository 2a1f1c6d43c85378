#include "core/status.h"

#include <cstdarg>
#include <cstdio>

namespace infini {

infiniStatus_t fail(infiniStatus_t status, const char *format, ...) {
    char message[1024];
    va_list args;
    va_start(args, format);
    std::vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return infinirtSetLastError(status, message);
}

const char *status_name(infiniStatus_t status) {
    switch (status) {
    case INFINI_STATUS_SUCCESS: return "SUCCESS";
    case INFINI_STATUS_INTERNAL_ERROR: return "INTERNAL_ERROR";
    case INFINI_STATUS_NOT_IMPLEMENTED: return "NOT_IMPLEMENTED";
    case INFINI_STATUS_BAD_PARAM: return "BAD_PARAM";
    case INFINI_STATUS_NULL_POINTER: return "NULL_POINTER";
    case INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED: return "DEVICE_TYPE_NOT_SUPPORTED";
    case INFINI_STATUS_DEVICE_NOT_FOUND: return "DEVICE_NOT_FOUND";
    case INFINI_STATUS_DEVICE_NOT_INITIALIZED: return "DEVICE_NOT_INITIALIZED";
    case INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED: return "DEVICE_ARCHITECTURE_NOT_SUPPORTED";
    case INFINI_STATUS_BAD_TENSOR_DTYPE: return "BAD_TENSOR_DTYPE";
    case INFINI_STATUS_BAD_TENSOR_SHAPE: return "BAD_TENSOR_SHAPE";
    case INFINI_STATUS_BAD_TENSOR_STRIDES: return "BAD_TENSOR_STRIDES";
    case INFINI_STATUS_INSUFFICIENT_WORKSPACE: return "INSUFFICIENT_WORKSPACE";
    }
    return "UNKNOWN_STATUS";
}

} // namespace infini
