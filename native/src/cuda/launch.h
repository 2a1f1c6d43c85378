/* Starting kernels. A kernel is a struct:
 *
 *      struct Kernel {
 *          static constexpr int kThreads = 256;             // of a block
 *          static constexpr int kBlocks = 2;                // (opt) that a multiprocessor holds: bounds the registers of a thread
 *          struct Params { ... };                           // passed by value, at most 4 KiB, pointers to device memory
 *          template <class Ctx>
 *          static INFINI_DEVICE void run(Ctx &ctx, const Params &p);
 *      };
 *
 *  Whatever may take a lock or allocate (loading its code, a larger share of shared memory) is done by prepare() when a problem is
 *  planned, so that launch() may be captured. */
#pragma once
#include <cuda_runtime_api.h>

#include <type_traits>

#include "cuda/cuda_backend.h"
#include "cuda/error.h"
#include "cuda/map_plan.h"

#ifdef __CUDACC__
#include "cuda/cuda_ctx.h"
#else
#include "engine.h" // of tests/cuda
#endif

namespace infini::cuda {

#ifdef __CUDACC__
template <class Kernel, class = void>
constexpr int kBlocksOf = 1;
template <class Kernel>
constexpr int kBlocksOf<Kernel, std::void_t<decltype(Kernel::kBlocks)>> = Kernel::kBlocks;

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, kBlocksOf<Kernel>)
    kernel_entry(const __grid_constant__ typename Kernel::Params params) {
    CudaCtx ctx;
    ctx.begin();
    Kernel::run(ctx, params);
}
template <class Kernel>
const void *kernel_address() {
    return reinterpret_cast<const void *>(&kernel_entry<Kernel>);
}
#else
template <class Kernel>
void kernel_entry(HostCtx &ctx, const void *params) {
    Kernel::run(ctx, *static_cast<const typename Kernel::Params *>(params));
}
template <class Kernel>
const void *kernel_address() {
    static constexpr HostKernel kernel = {kernel_entry<Kernel>, sizeof(typename Kernel::Params)};
    return &kernel;
}
#endif

constexpr size_t kPlainSharedBytes = 48 << 10; // what a block may have without asking

/** What a launch is to keep busy. */
inline infiniStatus_t count_multiprocessors(int device_id, int *count) {
    return check("asking for the number of multiprocessors",
                 cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device_id));
}

/** Makes a kernel ready to be launched on the current device with up to that much shared memory. */
template <class Kernel>
infiniStatus_t prepare(size_t shared_bytes = 0) {
    static_assert(sizeof(typename Kernel::Params) <= 4096, "the parameters of a kernel");
    cudaFuncAttributes loaded;
    if (const infiniStatus_t status =
            check("loading a kernel", cudaFuncGetAttributes(&loaded, kernel_address<Kernel>())))
        return status;
    if (shared_bytes <= kPlainSharedBytes) return INFINI_STATUS_SUCCESS;
    return check("asking for shared memory",
                 cudaFuncSetAttribute(kernel_address<Kernel>(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)));
}

/** Queues one run of a prepared kernel on a stream. Where devices can, its blocks are placed as soon as there is room for them beside
 *  those of the kernel before it, for which they wait then: between small kernels that is most of the time. */
template <class Kernel>
infiniStatus_t launch(int64_t blocks, const typename Kernel::Params &params, void *stream, size_t shared_bytes = 0) {
    if (blocks < 1 || blocks > kMaxBlocks)
        return fail(INFINI_STATUS_INTERNAL_ERROR, "cuda: %lld blocks", static_cast<long long>(blocks));
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(Kernel::kThreads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = kernels_begin_early() ? 1 : 0;
    void *arguments[] = {const_cast<typename Kernel::Params *>(&params)};
    return check("launching a kernel", cudaLaunchKernelExC(&config, kernel_address<Kernel>(), arguments));
}

} // namespace infini::cuda
