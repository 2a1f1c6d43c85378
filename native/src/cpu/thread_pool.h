/* One pool of worker threads per process, shared by every calling thread.
 *
 * A loop is cut into tasks; which thread runs a task is open, what a task computes is not, so results do not depend on the
 * number of threads. Workers are started when a loop first needs them, look out for another for 50 microseconds and then sleep.
 * A child of fork() has no workers and starts its own. */
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace infini {

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

} // namespace infini
