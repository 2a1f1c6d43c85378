/* The thread pool: every task once, slots apart, several callers at once, nesting, and the child of fork(). */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/thread_pool.h"

using namespace infini;

namespace {

/** Runs a loop and checks that each task ran once and no slot was used by two threads at a time. */
bool loop_is_right(int64_t n_tasks, int max_threads) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(n_tasks));
    std::vector<std::atomic<int>> in_slot(static_cast<size_t>(max_threads));
    std::atomic<bool> shared{false};
    parallel_for(n_tasks, max_threads, [&](int64_t t, int slot) {
        if (in_slot[static_cast<size_t>(slot)].fetch_add(1) != 0) shared = true;
        ++runs[static_cast<size_t>(t)];
        for (volatile int spin = 0; spin < 200;) spin = spin + 1;
        in_slot[static_cast<size_t>(slot)].fetch_sub(1);
    });
    for (const std::atomic<int> &count : runs)
        if (count != 1) return false;
    return !shared;
}

/** Do the tests run under an emulator (qemu's user mode)? */
bool emulated() { return std::getenv("INFINIOP_EMULATED") != nullptr; }

[[maybe_unused]] int threads_of_process() {
    int n = 0;
    if (FILE *file = std::fopen("/proc/self/status", "r")) {
        for (char line[256]; std::fgets(line, sizeof line, file) != nullptr;) std::sscanf(line, "Threads: %d", &n);
        std::fclose(file);
    }
    return n;
}

/** What workers are does not depend on the thread whose call starts them: this one may use one CPU, and new threads have small
 *  stacks. Comes first. */
void test_workers() {
    cpu_set_t whole;
    CHECK(sched_getaffinity(0, sizeof whole, &whole) == 0);
    std::thread pinned([&] {
        cpu_set_t one;
        CPU_ZERO(&one);
        for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
            if (CPU_ISSET(cpu, &whole)) CPU_SET(cpu, &one);
        CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
        set_num_threads(2);
        pthread_attr_t small, usual;
        pthread_attr_init(&small);
        pthread_getattr_default_np(&usual);
        const size_t least = static_cast<size_t>(sysconf(_SC_THREAD_STACK_MIN)), few = 32 << 10;
        CHECK(pthread_attr_setstacksize(&small, least > few ? least : few) == 0);
        if (!emulated()) CHECK(pthread_setattr_default_np(&small) == 0);
        const pthread_t caller = pthread_self();
        std::atomic<int> by_workers{0};
        for (int i = 0; i < 1000 && by_workers == 0; ++i)
            parallel_for(2, 2, [&](int64_t, int) {
                usleep(1000);
                if (pthread_equal(pthread_self(), caller) != 0) return;
                ++by_workers;
                cpu_set_t allowed;
                sigset_t blocked;
                pthread_attr_t own;
                size_t stack = 0;
                CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_EQUAL(&allowed, &whole));
                CHECK(pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0);
                for (const int theirs : {SIGINT, SIGTERM, SIGALRM}) CHECK(sigismember(&blocked, theirs) == 1);
                for (const int here : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) CHECK(sigismember(&blocked, here) == 0);
                CHECK(pthread_getattr_np(pthread_self(), &own) == 0 && pthread_attr_getstacksize(&own, &stack) == 0 &&
                      stack >= 256 << 10);
                pthread_attr_destroy(&own);
            });
        CHECK(by_workers > 0);
        pthread_setattr_default_np(&usual);
        pthread_attr_destroy(&small);
        pthread_attr_destroy(&usual);
    });
    pinned.join();
}

void test_loops() {
    for (int threads : {1, 2, 3, 8})
        for (int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
            set_num_threads(threads);
            CHECK(loop_is_right(tasks, threads));
            CHECK(loop_is_right(tasks, 3)); // fewer slots than threads
        }
}

using Clock = std::chrono::steady_clock;

/** Do two threads meet in a loop of two tasks, the first of which waits so long for the other? */
bool threads_meet(std::chrono::microseconds patience) {
    std::atomic<int> started{0};
    bool met = false;
    parallel_for(2, 2, [&](int64_t, int) {
        if (started.fetch_add(1) != 0) return;
        for (const auto end = Clock::now() + patience; !met && Clock::now() < end;) met = started == 2;
    });
    return met;
}

template <class Attempt>
bool succeeds_in_time(Attempt &&attempt) {
    for (const auto end = Clock::now() + std::chrono::seconds(20); Clock::now() < end;)
        if (attempt()) return true;
    return false;
}

/** Others take part where they are given time for it. */
void test_helpers() {
    set_num_threads(2);
    CHECK(succeeds_in_time([] { return threads_meet(std::chrono::milliseconds(20)); }));
}

/** A brief loop wakes nobody, unless it follows another one closely, or many have followed each other less closely. */
void test_brief() {
    using std::chrono::milliseconds;
    set_num_threads(2);
    CHECK(succeeds_in_time([] { return threads_meet(milliseconds(20)); })); // there is a worker
    {
        const Brief brief(true);
        CHECK(succeeds_in_time([] {
            std::this_thread::sleep_for(milliseconds(5)); // and it sleeps
            return !threads_meet(milliseconds(100));      // as if it were to wake
        }));
        CHECK(succeeds_in_time([] {
            std::this_thread::sleep_for(milliseconds(5));
            for (int i = 0; i < 100; ++i)
                if (threads_meet(std::chrono::microseconds(20))) return true;
            return false;
        }));
        CHECK(succeeds_in_time([] {
            std::this_thread::sleep_for(milliseconds(5));
            for (int i = 0; i < 100; ++i) {
                const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
                while (std::chrono::steady_clock::now() < until) continue;
                if (threads_meet(std::chrono::microseconds(20))) return true;
            }
            return false;
        }));
        {
            const Brief after(false);
            CHECK(succeeds_in_time([] {
                std::this_thread::sleep_for(milliseconds(5));
                return threads_meet(milliseconds(100));
            }));
        }
        CHECK(succeeds_in_time([] {
            std::this_thread::sleep_for(milliseconds(5));
            return !threads_meet(milliseconds(100));
        }));
    }
    std::this_thread::sleep_for(milliseconds(5));
    CHECK(succeeds_in_time([] { return threads_meet(milliseconds(100)); }));
}

void test_limits() {
    set_num_threads(4);
    CHECK(num_threads() == 4);
    set_num_threads_local(2);
    CHECK(num_threads() == 2);
    std::thread([] { CHECK(num_threads() == 4); }).join(); // local means this thread's
    set_num_threads_local(0);
    CHECK(num_threads() == 4 && thread_capacity() >= 4);
    set_num_threads(0);
    CHECK(num_threads() >= 1);
}

void test_callers() {
    set_num_threads(4);
    std::atomic<bool> right{true};
    std::vector<std::thread> callers;
    for (int c = 0; c < 8; ++c)
        callers.emplace_back([&] {
            for (int i = 0; i < 200; ++i)
                if (!loop_is_right(17, 4)) right = false;
        });
    for (std::thread &caller : callers) caller.join();
    CHECK(right);
#if !defined(__SANITIZE_THREAD__)                          // which adds a thread of its own, as an emulator does
    if (!emulated()) CHECK(threads_of_process() <= 1 + 7); // this one and the pool's: 8 was asked for in test_loops
#endif
}

void test_nesting() {
    set_num_threads(3);
    std::atomic<int> inner{0};
    parallel_for(5, 3, [&](int64_t, int) { parallel_for(7, 3, [&](int64_t, int slot) { inner += slot == 0; }); });
    CHECK(inner == 35);
}

[[maybe_unused]] int status_of_child(bool (*body)()) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(20); // a child that hangs is a failure, not a hung test
        _exit(body() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

void test_fork() {
    set_num_threads(4);
    CHECK(loop_is_right(64, 4));
    if (emulated()) {
        std::printf(
            "skipped: fork, because the emulator aborts in a child of a process with threads that starts one\n");
        return;
    }
#if !defined(__SANITIZE_THREAD__) // whose runtime does not follow a fork of a process with threads
    CHECK(status_of_child(
              [] { return loop_is_right(64, 4) && status_of_child([] { return loop_is_right(64, 4); }) == 0; }) == 0);
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) loop_is_right(64, 4);
    });
    bool all = true;
    for (int i = 0; i < 30; ++i) all = status_of_child([] { return loop_is_right(64, 4); }) == 0 && all;
    stop = true;
    busy.join();
    CHECK(all);
#endif
    CHECK(loop_is_right(64, 4));
}

/** Workers that sleep are kept off their waker's CPU where the kernel would put them there; they may run anywhere again. */
void test_affinity() {
    cpu_set_t whole;
    CHECK(sched_getaffinity(0, sizeof whole, &whole) == 0);
    std::atomic<int> bound{0};
    for (int i = 0; i < 40; ++i) {
        usleep(1000); // long enough for workers to fall asleep
        parallel_for(64, 4, [&](int64_t, int) {
            cpu_set_t allowed;
            if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !CPU_EQUAL(&allowed, &whole)) ++bound;
            for (volatile int spin = 0; spin < 2000;) spin = spin + 1;
        });
    }
    CHECK(bound == 0);
}

} // namespace

int main() {
    test_workers();
    test_loops();
    test_helpers();
    test_brief();
    test_limits();
    test_callers();
    test_nesting();
    test_affinity();
    test_fork();
    return check::summary();
}
