/* A value made when it is first asked for, which fork() waits for: a static in a function, half made by another thread as the
 * process forks, stays locked in the child for ever. */
#pragma once
#include <atomic>
#include <mutex>
#include <new>
#include <type_traits>

#include "core/fork_mutex.h"

namespace infini {

template <class T>
class Lazy {
public:
    explicit Lazy(T (*make)()) : make_(make) {}

    /** What `make` throws leaves it to be made by the next who asks. It must ask for no other Lazy, nor lock a ForkMutex: fork()
     *  takes all of them, in an order of its own. */
    const T &get() {
        if (!made_.load(std::memory_order_acquire)) {
            std::lock_guard<ForkMutex> lock(mutex_);
            if (!made_.load(std::memory_order_relaxed)) {
                new (storage_) T(make_());
                made_.store(true, std::memory_order_release);
            }
        }
        return *std::launder(reinterpret_cast<const T *>(storage_));
    }

private:
    static_assert(std::is_trivially_destructible_v<T>, "it is used until the process is gone");
    T (*const make_)();
    ForkMutex mutex_;
    std::atomic<bool> made_{false};
    alignas(T) unsigned char storage_[sizeof(T)];
};

} // namespace infini
