/* The floating-point environment that all code relies on: nearest even, no flushing of subnormals, no traps. What the caller has
 * set is put back, its exception flags included. */
#pragma once
#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace infini {

class FpEnvironment {
public:
#if defined(__SSE__)
    FpEnvironment() : saved_(_mm_getcsr()) {
        constexpr uint32_t kDefault = 0x1f80, kFlags = 0x3f;
        if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault); // setting takes as long as a small call's checks
    }
    ~FpEnvironment() {
        if (_mm_getcsr() != saved_) _mm_setcsr(saved_);
    }

private:
    uint32_t saved_;
#elif defined(__aarch64__)
    FpEnvironment() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(control_));
        __asm__ volatile("mrs %0, fpsr" : "=r"(flags_));
        __asm__ volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
    }
    ~FpEnvironment() {
        __asm__ volatile("msr fpcr, %0" ::"r"(control_));
        __asm__ volatile("msr fpsr, %0" ::"r"(flags_));
    }

private:
    uint64_t control_, flags_;
#else
    FpEnvironment() {}
    ~FpEnvironment() {}
#endif
public:
    FpEnvironment(const FpEnvironment &) = delete;
    FpEnvironment &operator=(const FpEnvironment &) = delete;
};

} // namespace infini
