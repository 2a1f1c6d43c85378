/* The context of a kernel body on a device. PTX and intrinsics of CUDA stand here and nowhere else. */
#pragma once
#include <type_traits>

#include "cuda/device.h"

namespace infini::cuda {

class CudaCtx {
public:
    /** The first thing that a kernel does. Its blocks may be placed while what was queued before it still runs (see launch()): here they
     *  wait until that is done and its memory can be seen. Then those of the next kernel may be placed. */
    INFINI_DEVICE void begin() {
#if __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.wait;" ::: "memory");
        asm volatile("griddepcontrol.launch_dependents;");
#endif
    }

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

    /** The value of a lane. All lanes call it. */
    template <class T>
    INFINI_DEVICE T shuffle(T x, int lane) {
        return __shfl_sync(0xffffffffu, x, lane);
    }

    /** Four matrices of 8 by 8 elements of 16 bits, from shared memory. Lane 8 * i + j names line j of matrix i, 16 bytes at a multiple
     *  of these. to[i] gets two neighbours of matrix i (of its transpose): row lane / 4, columns lane % 4 * 2 and the next. All lanes
     *  call it. */
    template <bool Transposed>
    INFINI_DEVICE void load_matrices(uint32_t (&to)[4], const void *line) {
        const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(line));
        if constexpr (Transposed)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                         : "r"(at)
                         : "memory");
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                         : "r"(at)
                         : "memory");
    }
    /** sums += a @ b, 16x16 by 16x8 elements of T, f16 or bf16, in tensor cores that keep sums in F32. With g = lane / 4 and
     *  t = lane % 4 * 2 a lane has of each, two neighbours at a time,
     *    a: row g (a[0], a[2]) or g + 8 (a[1], a[3]), columns t, t + 1 (a[0], a[1]) or 8 more (a[2], a[3])
     *    b: rows t, t + 1 (b[0]) or 8 more (b[1]), column g
     *    sums: row g (sums[0], sums[1]) or g + 8 (sums[2], sums[3]), columns t, t + 1
     *  (PTX ISA, "Matrix fragments for mma.m16n8k16"). All lanes call it. */
    template <class T>
    INFINI_DEVICE void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        if constexpr (std::is_same_v<T, bf16>)
            asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        else
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
                "%1, %2, %3};"
                : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }

    /** Begins to copy 16 bytes from global to shared memory, at multiples of 16. They are there for the thread once it has waited for the
     *  group they were committed in, for others after a barrier then; until that nobody reads or writes there. (The instruction can fill
     *  up with zeros what it does not copy, but compute-sanitizer takes all 16 for read.) */
    INFINI_DEVICE void copy_async(void *to, const void *from) {
        const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
        const auto global = __cvta_generic_to_global(from);
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
    }
    /** Makes a group, perhaps an empty one, of the copies that this thread has begun since the last one. */
    INFINI_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    /** Waits for all of this thread's groups but the last `Pending`. */
    template <int Pending>
    INFINI_DEVICE void wait_copies() {
        asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
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
