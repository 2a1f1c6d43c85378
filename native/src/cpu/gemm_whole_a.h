/* Ways that pack A as a whole: each thread for itself, or all of them once if there is much of it. */
#pragma once
#include "cpu/gemm_way.h"

namespace infini::gemm {

struct WholeA : Way {
    PackedA packed;

    WholeA(const Gemm &gemm, int threads)
        : Way(gemm),
          packed{acc_bytes(m * (k / block_k * units(block_k) + units(k % block_k))), packs_for_itself(m * k, threads)} {
    }

    /** [k block][panel][unit][row] */
    char *block_a(const Run &r, int64_t k0) const {
        return r.workspace + k0 / block_k * units(block_k) * m * kernel.acc_size;
    }

    /** What threads pack together, before the first task; with the least exponent of it. */
    void pack_shared(const Run &r, Least &least) const {
        constexpr int64_t kPackPanels = 4; // of A, so that all threads pack even where K is one block
        const int64_t parts = ceil_div(panels_m, kPackPanels);
        if (packed.own) return;
        parallel_for(k_blocks() * parts, m * k < 16 * 1024 ? 1 : r.threads, [&](int64_t t, int) {
            const int64_t k0 = t / parts * block_k, p = t % parts * kPackPanels;
            least.meet(pack_blocks(r, p, std::min(p + kPackPanels, panels_m), k0, std::min(k0 + block_k, k)));
        });
    }
    /** What a thread packs for itself; returns the least exponent of A. */
    int pack_own(const Run &r, int slot, const Least &shared) const {
        return packed.own ? pack_blocks(packed.of(r, slot), 0, panels_m, 0, k) : shared.exponent();
    }

private:
    /** Panels p0..p1 of A, K blocks k0..k1. Returns the least exponent. */
    int pack_blocks(const Run &r, int64_t p0, int64_t p1, int64_t k0, int64_t k1) const {
        int least = kLeastOfNothing;
        for (; k0 < k1; k0 += block_k) {
            const int64_t kc = std::min(block_k, k - k0);
            least = std::min(least, pack_a(block_a(r, k0) + bytes_before(p0, units(kc)), r.a, p0, p1, k0, kc));
        }
        return least;
    }
};

} // namespace infini::gemm
