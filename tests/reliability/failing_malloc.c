/* The allocator of glibc that fails where a test says so: preloaded into the process under test (LD_PRELOAD).
 *
 * Only the calls that fault_call() makes are watched, and only in their thread: Python's own allocations are as ever. */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define THREAD static __thread __attribute__((tls_model("initial-exec")))
#define PUBLIC __attribute__((visibility("default")))

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/** What fault_call() found. */
struct Fault {
    int64_t status; /* what the function returned */
    long asked;     /* allocations it asked for */
    long failed;    /* of these, the ones that it did not get */
    long held;      /* blocks it got and did not give back, less those it gave back and had before */
};

THREAD int watched;
THREAD long fail_at; /* the first allocation that fails, from 0; -1: none */
THREAD int for_good; /* and all after it */
THREAD struct Fault found;

static int fails(void) {
    if (!watched) return 0;
    const long n = found.asked++;
    if (fail_at < 0 || n < fail_at || (n > fail_at && !for_good)) return 0;
    ++found.failed;
    errno = ENOMEM;
    return 1;
}

static void *got(void *p) {
    if (watched && p != NULL) ++found.held;
    return p;
}

PUBLIC void *malloc(size_t size) { return fails() ? NULL : got(__libc_malloc(size)); }
PUBLIC void *calloc(size_t n, size_t size) { return fails() ? NULL : got(__libc_calloc(n, size)); }
PUBLIC void *memalign(size_t alignment, size_t size) { return fails() ? NULL : got(__libc_memalign(alignment, size)); }
PUBLIC void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

PUBLIC int posix_memalign(void **p, size_t alignment, size_t size) {
    void *const memory = memalign(alignment, size);
    if (memory == NULL) return ENOMEM;
    *p = memory;
    return 0;
}

PUBLIC void free(void *p) {
    if (watched && p != NULL) --found.held;
    __libc_free(p);
}

PUBLIC void *realloc(void *p, size_t size) {
    if (fails()) return NULL;
    void *const moved = __libc_realloc(p, size);
    if (watched && p == NULL && moved != NULL) ++found.held;
    return moved;
}

/** A call of a function of the C interface: integers and pointers in their order, and floats in theirs. On the processors
 *  this runs on the two go by different registers, so that one type of function serves for all. */
struct Call {
    int64_t (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        float, float);
    uint64_t i[10];
    float f[2];
    long fail_at;
    int for_good;
    struct Fault found;
};

PUBLIC void fault_call(struct Call *c) {
    fail_at = c->fail_at;
    for_good = c->for_good;
    found = (struct Fault){0};
    const uint64_t *const i = c->i;
    watched = 1;
    const int64_t status = c->function(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], c->f[0], c->f[1]);
    watched = 0;
    c->found = found;
    c->found.status = status;
}

static void *in_thread(void *call) {
    fault_call(call);
    return NULL;
}

/** The same in a thread that has called nothing before. Returns 0, or errno's value. */
PUBLIC int fault_call_in_new_thread(struct Call *call) {
    pthread_t thread;
    const int error = pthread_create(&thread, NULL, in_thread, call);
    return error != 0 ? error : pthread_join(thread, NULL);
}
