/* The NVIDIA backend as a plugin: what the host asks first. */
#include "cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>

#include "cuda/error.h"

namespace infini::cuda {

namespace {

std::atomic<int> devices{0};
std::atomic<bool> begin_early{false};

constexpr int kOldestCapability = 80; // the oldest architecture that kernels are compiled for
constexpr int kEarlyCapability = 90;  // the oldest that has CudaCtx::begin()

/** "12.4" of CUDA's 12040. */
struct VersionText {
    explicit VersionText(int version) {
        std::snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    }
    char text[24];
};

infiniStatus_t probe(char *reason, size_t size) {
    int driver = 0, runtime = 0, count = 0;
    cudaRuntimeGetVersion(&runtime);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        cudaGetLastError();
        std::snprintf(reason, size, "no NVIDIA driver is installed");
        return INFINI_STATUS_DEVICE_NOT_INITIALIZED;
    }
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        cudaGetLastError();
        std::snprintf(reason, size, "the NVIDIA driver supports CUDA %s, needed %s or later", VersionText(driver).text,
                      VersionText(runtime).text);
        return INFINI_STATUS_DEVICE_NOT_INITIALIZED;
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        cudaGetLastError();
        std::snprintf(reason, size, "the NVIDIA driver (CUDA %s) sees no device; CUDA_VISIBLE_DEVICES may hide some",
                      VersionText(driver).text);
        return INFINI_STATUS_DEVICE_NOT_FOUND;
    }
    if (error != cudaSuccess) {
        cudaGetLastError();
        std::snprintf(reason, size, "the NVIDIA driver (CUDA %s) does not start: %s (%s)", VersionText(driver).text,
                      cudaGetErrorString(error), cudaGetErrorName(error));
        return INFINI_STATUS_DEVICE_NOT_INITIALIZED;
    }
    int newest = 0, oldest = INT_MAX;
    for (int device = 0; device < count; ++device) {
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        newest = std::max(newest, 10 * major + minor);
        oldest = std::min(oldest, 10 * major + minor);
    }
    if (newest < kOldestCapability) {
        std::snprintf(reason, size, "no device has compute capability %d.%d or later; the newest has %d.%d",
                      kOldestCapability / 10, kOldestCapability % 10, newest / 10, newest % 10);
        return INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED;
    }
    refuse_forked_children();
    begin_early = oldest >= kEarlyCapability;
    devices = count;
    return INFINI_STATUS_SUCCESS;
}

const InfiniBackend kBackend = {
    INFINI_BACKEND_ABI, sizeof(InfiniBackend), INFINI_DEVICE_NVIDIA, "cuda", INFINI_VERSION, probe, &kCudaRuntime,
    &kCudaOps};

} // namespace

int probed_devices() { return devices; }
bool kernels_begin_early() { return begin_early.load(std::memory_order_relaxed); }

} // namespace infini::cuda

extern "C" INFINI_API const InfiniBackend *infiniBackendGet(const InfiniBackendHost *host) {
    if (host->abi != INFINI_BACKEND_ABI) return nullptr;
    infini::cuda::set_host(host);
    return &infini::cuda::kBackend;
}
