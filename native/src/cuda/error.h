/* Failing in the plugin, and the device that a call acts on. */
#pragma once
#include <cuda_runtime_api.h>

#include "core/status.h"

namespace infini::cuda {

/** Where fail() of core/status.h leaves its sentences: the host's. */
void set_host(const InfiniBackendHost *host);

/** SUCCESS, or the status and the sentence of a call into CUDA that failed; what failed is named first. */
infiniStatus_t check(const char *what, cudaError_t error);

/** Makes a device current in CUDA and the caller's current again at its end; both cost nothing where they are the same. */
class DeviceGuard {
public:
    explicit DeviceGuard(int device_id);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard &) = delete;
    DeviceGuard &operator=(const DeviceGuard &) = delete;

    infiniStatus_t status() const { return status_; }

private:
    int before_ = -1; // -1: nothing to put back
    infiniStatus_t status_;
};

/** Does `body` with a device current. */
template <class Body>
infiniStatus_t on_device(int device_id, Body &&body) {
    return guard("cuda", [&]() -> infiniStatus_t {
        const DeviceGuard current(device_id);
        return current.status() != INFINI_STATUS_SUCCESS ? current.status() : body();
    });
}

/** From here on a child process made by fork() is refused: CUDA cannot be used there. */
void refuse_forked_children();

} // namespace infini::cuda
