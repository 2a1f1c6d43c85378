/* Kernel bodies on the CPU: a block's threads are fibers in one thread, or threads where ThreadSanitizer is to see what a missing
 * barrier would race on (see engine.cc).
 *
 *  A seeded schedule decides which thread runs on where several could. Threads run until they wait for others, so an order that a
 *  device would choose at its leisure is forced: a fair schedule takes any thread that can run, a greedy one lets a warp run ahead as
 *  far as it can. What is found: threads that wait for others who are done or wait elsewhere (divergent barriers, deadlocks), loads
 *  and stores of packs at other addresses than multiples of their size, copies that nobody waits for, and, through results, reads
 *  of shared memory that nobody wrote (each block finds it full of NaNs) or to which a copy is on its way. Its size is exact for
 *  AddressSanitizer. */
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/device.h"

namespace infini::cuda {

class Block;

class HostCtx {
public:
    HostCtx(Block &owner, int thread) : block_(owner), thread_(thread) {}

    int thread() const { return thread_; }
    uint32_t block() const;
    uint32_t blocks() const;

    void sync(int line = __builtin_LINE());
    void sync_warp(int line = __builtin_LINE());

    template <class T>
    T shuffle_xor(T x, int mask, int line = __builtin_LINE()) {
        return bits_as<T>(exchange(bits_as<Word<sizeof(T)>>(x), thread_ ^ mask, line));
    }

    template <class T>
    T shuffle(T x, int lane, int line = __builtin_LINE()) {
        return bits_as<T>(exchange(bits_as<Word<sizeof(T)>>(x), thread_ / kWarp * kWarp + lane, line));
    }

    template <class T>
    T *shared() {
        return static_cast<T *>(shared_bytes());
    }

    template <int Bytes>
    Word<Bytes> load(const void *p) {
        need_aligned(p, Bytes, "load");
        Word<Bytes> x;
        memcpy(&x, p, Bytes);
        return x;
    }
    template <class W>
    void store(void *p, const W &x) {
        need_aligned(p, sizeof(W), "store");
        memcpy(p, &x, sizeof x);
    }

    /** CudaCtx's. Until its group is waited for the place holds NaNs: so who reads there too early finds them, and so does who had
     *  still to read what was there before. Global memory is read last, then. */
    void copy_async(void *to, const void *from);
    void commit_copies();
    template <int Pending>
    void wait_copies() {
        wait_but(Pending);
    }

    /** All lanes of the warp give `mine`; afterwards each may read all of them, until the next call. For what a warp does
     *  together. `all` gets 32 values in lane order. */
    template <class T>
    void gather(const T &mine, T *all, int line = __builtin_LINE()) {
        static_assert(sizeof(T) <= kSlotBytes, "what a lane can give");
        memcpy(slot(thread_), &mine, sizeof mine);
        sync_warp(line);
        for (int lane = 0; lane < kWarp; ++lane) memcpy(&all[lane], slot((thread_ & ~(kWarp - 1)) + lane), sizeof(T));
        sync_warp(line);
    }

    /** CudaCtx's, as its comment says it. */
    template <bool Transposed>
    void load_matrices(uint32_t (&to)[4], const void *line, int from = __builtin_LINE()) {
        need_aligned(line, 16, "load of matrices");
        const void *lines[kWarp];
        gather(line, lines, from);
        const int lane = thread_ % kWarp;
        for (int matrix = 0; matrix < 4; ++matrix) {
            uint16_t two[2];
            for (int i = 0; i < 2; ++i) {
                const int row = lane / 4, col = lane % 4 * 2 + i;
                const auto *at = static_cast<const char *>(lines[8 * matrix + (Transposed ? col : row)]);
                memcpy(&two[i], at + 2 * (Transposed ? row : col), 2);
            }
            memcpy(&to[matrix], two, 4);
        }
        sync_warp(from); // what a lane writes after it, no other lane may have read
    }
    /** CudaCtx's, products added one after the other. */
    template <class T>
    void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
        struct Share { // widened by the lane that has it, not by those that multiply it
            float a[4][2], b[2][2];
        } mine;
        for (int i = 0; i < 4; ++i) widen_pair<T>(mine.a[i], a[i]);
        for (int i = 0; i < 2; ++i) widen_pair<T>(mine.b[i], b[i]);
        memcpy(slot(thread_), &mine, sizeof mine);
        sync_warp(line);
        const int first = thread_ / kWarp * kWarp, g = thread_ % kWarp / 4, t = thread_ % 4 * 2;
        // This lane's rows of a and columns of b, of each of which four lanes have four elements.
        float x[2][16], y[2][16];
        for (int quarter = 0; quarter < 4; ++quarter) {
            const auto of = [&](int lane) { return static_cast<const Share *>(slot(first + lane * 4 + quarter)); };
            const Share &rows = *of(g), *columns[] = {of(t), of(t + 1)};
            for (int half = 0; half < 2; ++half)
                for (int i = 0; i < 2; ++i) {
                    memcpy(&x[i][half * 8 + quarter * 2], rows.a[half * 2 + i], sizeof rows.a[0]);
                    memcpy(&y[i][half * 8 + quarter * 2], columns[i]->b[half], sizeof rows.b[0]);
                }
        }
        sync_warp(line);
        for (int i = 0; i < 4; ++i) {
            const float *const row = x[i / 2], *const column = y[i % 2];
            float sum = sums[i];
            for (int k = 0; k < 16; ++k) sum = fused(row[k], column[k], sum);
            sums[i] = sum;
        }
    }

private:
    static constexpr size_t kSlotBytes = 128;
    friend class Block;

    template <class T>
    static void widen_pair(float (&to)[2], uint32_t pair) {
        T two[2];
        memcpy(two, &pair, sizeof two);
        for (int i = 0; i < 2; ++i) to[i] = widen(two[i]);
    }

    template <class W>
    W exchange(W mine, int from, int line) {
        memcpy(slot(thread_), &mine, sizeof mine);
        sync_warp(line);
        W other;
        memcpy(&other, slot(from), sizeof other);
        sync_warp(line);
        return other;
    }
    void wait_but(int pending);
    void end(); // of the kernel
    void *slot(int thread) const;
    void *shared_bytes() const;
    void need_aligned(const void *p, size_t size, const char *what) const;

    Block &block_;
    int thread_;
};

/** What kernel_address() points to. */
struct HostKernel {
    void (*body)(HostCtx &, const void *params);
    size_t params_size;
};

/** Runs all blocks of a launch, one after the other. Returns "", or what the kernel did that no kernel may. Any thread. */
std::string run_kernel(const HostKernel &kernel, const void *params, uint32_t blocks, int threads, size_t shared_bytes);

/** Chooses the schedule of the kernels run from now on: "fair" or "greedy", and a seed. False for another word. */
bool set_schedule(const char *policy, uint64_t seed);

} // namespace infini::cuda
