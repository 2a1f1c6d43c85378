/* What a thread has for itself, without a first use that can end the process.
 *
 * A plain thread_local of a library that was loaded at run time is allocated when a thread first touches it, and glibc ends the
 * process where there is no memory for it. Those of the initial-exec model lie in every thread from its start. The room for
 * them is scarce, a KiB for all libraries of a process: a few bytes only. */
#pragma once
#include <pthread.h>

#include <cstddef>
#include <cstdlib>

#if defined(__GLIBC__)
#define INFINI_THREAD_LOCAL thread_local __attribute__((tls_model("initial-exec")))
#else
#define INFINI_THREAD_LOCAL thread_local
#endif

namespace infini {

/** N bytes of each thread, had when it asks first and given back when it ends. */
template <size_t N>
class ThreadBuffer {
public:
    ThreadBuffer() : made_(pthread_key_create(&key_, std::free) == 0) {}

    /** What this thread has got already; nullptr if nothing. */
    char *find() const { return made_ ? static_cast<char *>(pthread_getspecific(key_)) : nullptr; }

    /** nullptr where there is no memory. All zeros at first. */
    char *get() const {
        if (char *const had = find()) return had;
        void *const p = made_ ? std::calloc(N, 1) : nullptr;
        if (p != nullptr && pthread_setspecific(key_, p) != 0) {
            std::free(p);
            return nullptr;
        }
        return static_cast<char *>(p);
    }

private:
    pthread_key_t key_;
    const bool made_; // there are 1024 keys in a process
};

} // namespace infini
