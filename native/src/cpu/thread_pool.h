/* One pool of worker threads per process, shared by every calling thread.
 *
 * A loop is cut into tasks; which thread runs a task is open, what a task computes is not, so results do not depend on the
 * number of threads. Workers are started when a loop first needs them, look out for another for 50 microseconds and then sleep.
 * A child of fork() has no workers and starts its own. */
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace infini {

constexpr int kMaxThreads = 1024; // of a loop

/** Threads that a loop started by this thread may use, itself included. */
int num_threads();
/** Why as many, in a few words. Lives until this thread asks again. */
const char *num_threads_reason(); // nullptr: out of memory
/** The most that num_threads() has reason to become: plans reserve scratch for as many. */
int thread_capacity();
/** The process's number; 0 goes back to the default. */
void set_num_threads(int n);
/** This thread's number; 0 goes back to the process's. */
void set_num_threads_local(int n);

/** While it lives, this thread's loops are `brief`, or not: so short that a thread that sleeps would be awake when they are over, and
 *  waking it costs half of their time. They are shared with threads that are still awake, and wake others only where one follows the
 *  other closely. */
class Brief {
public:
    explicit Brief(bool brief);
    ~Brief();
    Brief(const Brief &) = delete;
    Brief &operator=(const Brief &) = delete;

private:
    const bool before_;
};

/** Runs task(context, t, slot) for every t < n_tasks on at most max_threads threads, the caller among them, and returns
 *  when all are done. `slot` < max_threads tells threads apart that run at the same time. Tasks must not throw. A loop
 *  within a task runs on that task's thread alone. */
void run_tasks(int64_t n_tasks, int max_threads, void (*task)(void *context, int64_t t, int slot), void *context);

template <class Task>
void parallel_for(int64_t n_tasks, int max_threads, Task &&task) {
    using Body = std::remove_reference_t<Task>;
    run_tasks(
        n_tasks, max_threads, [](void *context, int64_t t, int slot) { (*static_cast<Body *>(context))(t, slot); },
        const_cast<void *>(static_cast<const void *>(std::addressof(task))));
}

/** Tasks 0..n_tasks in as many shares as there are threads, but at most 64: neighbours stay together until a thread has done its own and helps
 *  the others. work(slot, task) is for a loop of as many tasks as threads, each of them a thread with a slot: the caller's is always
 *  the same, and so, of two threads, are both shares; what a thread has in its caches may still be there in the next call. */
class Shares {
public:
    Shares(int64_t n_tasks, int threads) : n_tasks_(n_tasks), n_(std::min(threads, kMost)) {
        for (int64_t i = 0; i < n_; ++i) next_[i].at.store(begin(i), std::memory_order_relaxed);
    }
    /** The next task of the thread's own share, or of another; -1 if none is left. */
    int64_t take(int64_t slot) {
        for (int64_t i = 0; i < n_; ++i) {
            const int64_t from = (slot + i) % n_;
            if (next_[from].at.load(std::memory_order_relaxed) >= begin(from + 1)) continue;
            const int64_t t = next_[from].at.fetch_add(1, std::memory_order_relaxed);
            if (t < begin(from + 1)) return t;
        }
        return -1;
    }
    template <class Task>
    void work(int64_t slot, Task &&task) {
        for (int64_t t; (t = take(slot)) >= 0;) task(t);
    }

private:
    static constexpr int kMost = 64;
    int64_t begin(int64_t share) const { return n_tasks_ * share / n_; }

    const int64_t n_tasks_, n_;
    struct alignas(64) {
        std::atomic<int64_t> at;
    } next_[kMost];
};

/** As parallel_for(), but in shares. */
template <class Task>
void parallel_divided(int64_t n_tasks, int max_threads, Task &&task) {
    const int threads = static_cast<int>(std::min<int64_t>(max_threads, n_tasks));
    Shares shares(n_tasks, threads);
    parallel_for(threads, threads, [&](int64_t, int slot) { shares.work(slot, [&](int64_t t) { task(t, slot); }); });
}

} // namespace infini
