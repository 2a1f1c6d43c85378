/* The context of a kernel body on a device. PTX and intrinsics of CUDA stand here and nowhere else. */
#pragma once
#include "cuda/device.h"

namespace infini::cuda {

class CudaCtx {
public:
    INFINI_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
    INFINI_DEVICE uint32_t block() const { return blockIdx.x; }
    INFINI_DEVICE uint32_t blocks() const { return gridDim.x; }

    /** Waits for all threads of the block; all of them call it. */
    INFINI_DEVICE void sync() { __syncthreads(); }
    /** Waits for all threads of the warp; all of them call it. */
    INFINI_DEVICE void sync_warp() { __syncwarp(); }
    /** The value of the lane whose number differs in the bits of `mask`. All lanes call it. */
    template <class T>
    INFINI_DEVICE T shuffle_xor(T x, int mask) {
        return __shfl_xor_sync(0xffffffffu, x, mask);
    }

    /** The block's shared memory: as many bytes as the launch asked for, 16-byte aligned. */
    template <class T>
    INFINI_DEVICE T *shared() {
        extern __shared__ __align__(16) unsigned char memory[];
        return reinterpret_cast<T *>(memory);
    }

    /** Reads or writes global memory at a multiple of the size. */
    template <int Bytes>
    INFINI_DEVICE Word<Bytes> load(const void *p) {
        if constexpr (Bytes == 16) {
            const uint4 x = *static_cast<const uint4 *>(p);
            return {{x.x, x.y, x.z, x.w}};
        } else {
            return *static_cast<const Word<Bytes> *>(p);
        }
    }
    template <class W>
    INFINI_DEVICE void store(void *p, const W &x) {
        if constexpr (sizeof(W) == 16)
            *static_cast<uint4 *>(p) = make_uint4(x.part[0], x.part[1], x.part[2], x.part[3]);
        else
            *static_cast<W *>(p) = x;
    }
};

} // namespace infini::cuda
