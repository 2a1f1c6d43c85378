/* This thread's last error message: a fixed buffer, so that reporting "out of memory" needs no memory. */
#include <cstdio>

#include "infini_backend.h"

namespace {
thread_local char last_error[1024] = "";
}

extern "C" {

infiniStatus_t infinirtSetLastError(infiniStatus_t status, const char *message) {
    std::snprintf(last_error, sizeof last_error, "%s", message != nullptr ? message : "");
    return status;
}

const char *infinirtGetLastErrorMessage(void) { return last_error; }

} // extern "C"
