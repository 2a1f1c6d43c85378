/* A mutex that is free in the child after fork(), with the data it protects in order: fork() waits for it. */
#pragma once
#include <pthread.h>

#include <atomic>
#include <mutex>

namespace infini {

/** A thread that holds one may fork itself, as code of others does that it calls meanwhile (a driver that starts a program): it goes
 *  on to hold it, in the child, too. Only if another thread forks at the same time may the two wait for each other. */
class ForkMutex {
public:
    ForkMutex();
    void lock() {
        mutex_.lock();
        owner_.store(pthread_self(), std::memory_order_relaxed);
    }
    void unlock() {
        owner_.store(pthread_t{}, std::memory_order_relaxed);
        mutex_.unlock();
    }

private:
    static void before_fork();
    static void after_fork();

    std::mutex mutex_;
    std::atomic<pthread_t> owner_{}; // the same in a forked child
    bool for_fork_ = false;          // was it locked for fork()?
    ForkMutex *next_;                // mutexes are made once, in static objects, and never destroyed
    static ForkMutex *all_;
};

} // namespace infini
