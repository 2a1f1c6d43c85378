/* A mutex that is free in the child after fork(), with the data it protects in order: fork() waits for it. */
#pragma once
#include <mutex>

namespace infini {

class ForkMutex {
public:
    ForkMutex();
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

private:
    static void before_fork();
    static void after_fork();
    std::mutex mutex_;
    ForkMutex *next_; // mutexes are made once, in static objects, and never destroyed
    static ForkMutex *all_;
};

} // namespace infini
