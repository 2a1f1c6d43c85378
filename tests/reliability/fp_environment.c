/* What the calling thread's floating-point units are set to: the control and status register of SSE, the control and the
 * status word of the x87. */
#include <stdint.h>
#include <xmmintrin.h>

struct Environment {
    uint32_t mxcsr;
    uint16_t control, status;
};

void set_environment(const struct Environment *wanted) {
    __asm__ volatile("fnclex; fldcw %0" ::"m"(wanted->control));
    _mm_setcsr(wanted->mxcsr);
}

void get_environment(struct Environment *found) {
    found->mxcsr = _mm_getcsr();
    __asm__ volatile("fnstcw %0; fnstsw %1" : "=m"(found->control), "=m"(found->status));
}
