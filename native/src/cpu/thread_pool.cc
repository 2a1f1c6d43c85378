#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "core/control_group.h"
#include "core/lazy.h"
#include "core/thread_local.h"

namespace infini {

namespace {

constexpr std::chrono::microseconds kSpin{50}; // what a thread takes to wake where CPUs are virtual

/** How long a worker stays awake once loops follow each other that closely, as many in a row: those of a program between whose calls
 *  an interpreter makes views and small results, which one thread computes. */
constexpr std::chrono::microseconds kPatience{200};
constexpr int kFollowing = 8;

/* ---- how many threads ----------------------------------------------------------------------------------------------- */

void free_set(cpu_set_t *set) { CPU_FREE(set); }

/** The CPUs that this process may use, whichever its thread is that asks: those of that one and of the first. Calls use(size, set). */
template <class Use>
void with_affinity_mask(Use &&use) {
    for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) { // the kernel refuses a mask shorter than its own
        const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t *)> first(CPU_ALLOC(static_cast<size_t>(capacity)),
                                                                      free_set),
            own(CPU_ALLOC(static_cast<size_t>(capacity)), free_set);
        if (first == nullptr || own == nullptr) return;
        const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
        if (sched_getaffinity(0, size, own.get()) != 0) continue;
        if (sched_getaffinity(getpid(), size, first.get()) == 0) CPU_OR_S(size, own.get(), own.get(), first.get());
        return use(size, own.get());
    }
}

int cpus_in_affinity_mask() {
    int count = 1;
    with_affinity_mask([&](size_t size, const cpu_set_t *set) { count = std::max(CPU_COUNT_S(size, set), 1); });
    return count;
}

/** CPUs that "quota period" or "max period" in a file allow, or infinity. */
double quota_in(const std::string &path) {
    double quota = INFINITY, period;
    if (FILE *file = std::fopen(path.c_str(), "r")) {
        if (std::fscanf(file, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
            quota /= period;
        else
            quota = INFINITY;
        std::fclose(file);
    }
    return quota;
}

/** The number in a file, or `otherwise`. */
double number_in_file(const char *path, double otherwise) {
    double number = otherwise;
    if (FILE *file = std::fopen(path, "r")) {
        if (std::fscanf(file, "%lf", &number) != 1) number = otherwise;
        std::fclose(file);
    }
    return number;
}

/** The smallest quota of this process's control group and those above it; of version 1 the one a container sees as its own. */
double cgroup_quota() {
    double quota = INFINITY;
    each_control_group([&](const std::string &group) { quota = std::min(quota, quota_in(group + "/cpu.max")); });
    const std::string own = std::string(kControlGroups) + "/cpu/cpu.cfs";
    const double used = number_in_file((own + "_quota_us").c_str(), -1),
                 period = number_in_file((own + "_period_us").c_str(), -1);
    if (used > 0 && period > 0) quota = std::min(quota, used / period);
    return quota;
}

/** The number an environment variable begins with, if a space or a comma ends it, as in OpenMP's lists for nested levels; else 0. */
int number_in(const char *variable) {
    const char *text = secure_getenv(variable);
    if (text == nullptr) return 0;
    char *end;
    const long n = std::strtol(text, &end, 10);
    return std::strchr(", \t\n", *end) != nullptr ? static_cast<int>(std::clamp<long>(n, 0, kMaxThreads)) : 0;
}

/** Where the default number of threads comes from. */
struct DefaultThreads {
    int n;
    int cpus;             // in the affinity mask
    double quota;         // CPUs; infinity: none
    const char *variable; // the one that asks for `wanted` threads, or NULL
    int wanted;
};

DefaultThreads read_default_threads() {
    DefaultThreads d{1, cpus_in_affinity_mask(), cgroup_quota(), nullptr, 0};
    d.n = std::clamp(static_cast<int>(std::min<double>(d.cpus, std::ceil(d.quota))), 1, kMaxThreads);
    for (const char *variable : {"INFINIOP_NUM_THREADS", "OMP_NUM_THREADS"}) {
        d.wanted = number_in(variable);
        if (d.wanted == 0) continue;
        d.variable = variable;
        d.n = std::min(d.n, d.wanted);
        break;
    }
    return d;
}

Lazy<DefaultThreads> default_threads{read_default_threads};

int default_num_threads() { return default_threads.get().n; }

/** Keeps `format` in the rest of a buffer of which `used` bytes are taken. */
template <size_t N, class... Arguments>
size_t append(char (&text)[N], size_t used, const char *format, Arguments... arguments) {
    const int length = std::snprintf(text + used, N - used, format, arguments...);
    return std::min(N - 1, used + static_cast<size_t>(std::max(0, length)));
}

const ThreadBuffer<256> kept_reason; // what num_threads_reason() said last

std::atomic<int> process_threads{0};       // 0: the default
INFINI_THREAD_LOCAL int local_threads = 0; // 0: the process's

int process_num_threads() {
    const int n = process_threads.load(std::memory_order_relaxed);
    return n > 0 ? n : default_num_threads();
}

/* ---- the pool ------------------------------------------------------------------------------------------------------- */

INFINI_THREAD_LOCAL bool in_task = false, is_brief = false;

/** Waits for a condition that is about to come true, by default as long as it would take to sleep and wake. */
template <class Condition>
void spin_until(Condition &&condition, std::chrono::microseconds most = kSpin) {
    constexpr int kBetweenTimes = 64; // the time takes as long to tell as some of them
    std::chrono::steady_clock::time_point end;
    for (int i = 0; !condition(); ++i) {
        if (i % kBetweenTimes == kBetweenTimes - 1) {
            const auto now = std::chrono::steady_clock::now();
            if (i < kBetweenTimes)
                end = now + most;
            else if (now >= end)
                return;
        }
#if defined(__SSE__)
        _mm_pause();
#else
        std::this_thread::yield();
#endif
    }
}

/** A loop in progress; lives on its caller's stack. */
struct Loop {
    int64_t n_tasks;
    void (*task)(void *context, int64_t t, int slot);
    void *context;
    std::atomic<int64_t> next{0};
    int open_slots;             // workers that may still join; guarded by the pool's mutex, as is the next
    int next_slot = 1;          // the caller has slot 0
    int cpu = -1;               // the caller's, as it woke workers
    std::atomic<int> joined{0}; // workers inside; changed under the mutex
    Loop *older = nullptr;

    void work(int slot) {
        in_task = true;
        for (int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) task(context, t, slot);
        in_task = false;
    }
};

class Pool {
public:
    void run(Loop &loop, int threads) {
        int helpers, helpers_to_wake;
        bool makes_do; // with the workers that are awake, unless a loop before has just done so
        {
            std::lock_guard<std::mutex> lock(mutex_);
            const auto now = std::chrono::steady_clock::now();
            following_ = now - ended_ < kPatience ? std::min(following_ + 1, kFollowing) : 0;
            patient_.store(following_ == kFollowing, std::memory_order_relaxed);
            ++computing_;
            // Threads that compute for others are taken: a second caller must not oversubscribe the CPUs.
            helpers = std::max(0, std::min<int>(threads - 1, std::max(threads, process_num_threads()) - computing_));
            const bool too_few = workers_ - sleeping_ < helpers; // are awake
            makes_do = is_brief && too_few && now - made_do_ >= stays_awake();
            const bool wakes = !is_brief || (too_few && !makes_do);
            helpers = wakes ? start_workers(helpers) : std::min(helpers, workers_);
            loop.open_slots = helpers;
            if (helpers > 0) {
                loop.older = newest_;
                newest_ = &loop;
                open_slots_.fetch_add(helpers, std::memory_order_release);
            }
            helpers_to_wake = wakes ? std::min(helpers, sleeping_) : 0;
            if (helpers_to_wake > 0) {
                loop.cpu = sched_getcpu();
                if (crowded_) keep_off(loop.cpu);
            }
        }
        for (int i = 0; i < helpers_to_wake; ++i) wake_.notify_one();
        loop.work(0);
        spin_until([&] { return loop.joined.load(std::memory_order_acquire) == 0; });
        std::unique_lock<std::mutex> lock(mutex_);
        if (helpers > 0) {
            for (Loop **link = &newest_; *link != nullptr; link = &(*link)->older) {
                if (*link != &loop) continue;
                *link = loop.older;
                break;
            }
            open_slots_.fetch_sub(loop.open_slots, std::memory_order_relaxed);
            done_.wait(lock, [&] { return loop.joined == 0; });
        }
        --computing_;
        ended_ = std::chrono::steady_clock::now();
        if (makes_do) made_do_ = ended_;
    }

    static Pool *instance();

private:
    struct Worker {
        Pool *pool = nullptr;
        pthread_t thread{};
        bool sleeps = false;
        int kept_off = -1; // a CPU that it must not wake on
    };

    /** A kernel may wake a worker on its waker's CPU though others are idle, and part the two only after tens of milliseconds. So
     *  once that was seen, sleeping workers are told to wake elsewhere; afterwards they may run anywhere again. */
    void keep_off(int cpu) {
        for (int i = 0; i < workers_; ++i) {
            Worker &worker = each_[i];
            cpu_set_t allowed;
            if (!worker.sleeps || worker.kept_off >= 0) continue;
            if (pthread_getaffinity_np(worker.thread, sizeof allowed, &allowed) != 0) continue;
            if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed) || CPU_COUNT(&allowed) < 2) continue;
            CPU_CLR(cpu, &allowed);
            if (pthread_setaffinity_np(worker.thread, sizeof allowed, &allowed) == 0) worker.kept_off = cpu;
        }
    }
    static void allow_again(int cpu) {
        cpu_set_t allowed;
        if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) != 0) return;
        CPU_SET(cpu, &allowed);
        pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
    }

    /** Stacks do not depend on the default of the process, which may be small. */
    struct Attributes {
        pthread_attr_t of_workers;

        Attributes() {
            constexpr size_t kLeastStack = 256 << 10; // of which a call takes less than 96
            pthread_attr_init(&of_workers);
            size_t stack = 0;
            if (pthread_attr_getstacksize(&of_workers, &stack) == 0 && stack < kLeastStack)
                pthread_attr_setstacksize(&of_workers, kLeastStack);
        }
        ~Attributes() { pthread_attr_destroy(&of_workers); }
    };

    /** Makes sure that `wanted` workers are there; returns how many of them are, should the system refuse more. */
    int start_workers(int wanted) {
        for (; workers_ < wanted; ++workers_) {
            // Signals belong to the program's own threads, but for those that say what a thread itself did.
            sigset_t others, before;
            sigfillset(&others);
            for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&others, own);
            pthread_sigmask(SIG_SETMASK, &others, &before);
            Worker &worker = each_[workers_];
            worker.pool = this;
            const Attributes attributes;
            const int error = pthread_create(
                &worker.thread, &attributes.of_workers,
                [](void *started) -> void * {
                    Worker *self = static_cast<Worker *>(started);
                    // Where the system refuses that, a worker stays where it is.
                    with_affinity_mask([](size_t size, const cpu_set_t *set) { sched_setaffinity(0, size, set); });
                    self->pool->serve(*self);
                    return nullptr;
                },
                &worker);
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            if (error != 0) break;
            pthread_detach(worker.thread);
        }
        return std::min(wanted, workers_);
    }

    std::chrono::microseconds stays_awake() const {
        return patient_.load(std::memory_order_relaxed) ? kPatience : kSpin;
    }

    Loop *joinable() {
        for (Loop *loop = newest_; loop != nullptr; loop = loop->older)
            if (loop->open_slots > 0) return loop;
        return nullptr;
    }

    [[noreturn]] void serve(Worker &self) {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            // Calls often follow each other closely; a thread that is still awake joins ten times faster.
            lock.unlock();
            spin_until([&] { return open_slots_.load(std::memory_order_acquire) > 0; }, stays_awake());
            lock.lock();
            Loop *loop = joinable();
            if (loop == nullptr) {
                ++sleeping_;
                self.sleeps = true;
                wake_.wait(lock, [&] { return (loop = joinable()) != nullptr; });
                self.sleeps = false;
                --sleeping_;
                crowded_ = crowded_ || (loop->cpu >= 0 && loop->cpu == sched_getcpu());
            }
            const int kept_off = std::exchange(self.kept_off, -1);
            --loop->open_slots;
            open_slots_.fetch_sub(1, std::memory_order_relaxed);
            ++loop->joined;
            ++computing_;
            const int slot = loop->next_slot++;
            lock.unlock();
            if (kept_off >= 0) allow_again(kept_off);
            loop->work(slot);
            lock.lock();
            --computing_;
            if (--loop->joined == 0) done_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    Worker each_[kMaxThreads]; // the first workers_ of them; guarded by the mutex, as is all below
    bool crowded_ = false;     // has a worker woken on its waker's CPU?
    Loop *newest_ = nullptr;
    std::atomic<int> open_slots_{0};                  // of all loops; changed under the mutex
    std::chrono::steady_clock::time_point made_do_{}; // when the last loop ended that made do,
    std::chrono::steady_clock::time_point ended_{};   // and the last one at all
    int following_ = 0;                // loops that began so soon after the one before, counted to kFollowing
    std::atomic<bool> patient_{false}; // are they as many as workers stay awake for?
    int workers_ = 0;
    int sleeping_ = 0;
    int computing_ = 0; // threads inside a loop, callers and workers
};

/** The one of this process, once a loop has had work for two. In the child of fork() another takes its place: the workers are gone
 *  and the mutex may be held by one of them. Never destroyed: workers sleep in it until the process ends. */
std::atomic<Pool *> pool{nullptr};

void forget_pool() { pool.store(nullptr); }
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, forget_pool);

/** NULL where there is no memory for it. */
Pool *Pool::instance() {
    Pool *known = pool.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    Pool *const made = new (std::nothrow) Pool;
    if (made == nullptr || pool.compare_exchange_strong(known, made)) return made;
    delete made;
    return known;
}

} // namespace

int num_threads() { return local_threads > 0 ? local_threads : process_num_threads(); }
int thread_capacity() { return std::max(num_threads(), std::max(default_num_threads(), process_num_threads())); }
const char *num_threads_reason() {
    char text[256];
    const DefaultThreads &d = default_threads.get();
    const char *set = local_threads > 0 ? "this thread" : process_threads > 0 ? "this process" : nullptr;
    const bool asked_for = d.variable != nullptr && d.wanted == d.n;
    size_t used = 0;
    if (set != nullptr) used = append(text, used, "set for %s; the default is %d: ", set, d.n);
    if (asked_for) used = append(text, used, "%s=%d, ", d.variable, d.wanted);
    used = append(text, used, "%d CPU%s in the affinity mask, ", d.cpus, d.cpus == 1 ? "" : "s");
    if (std::isinf(d.quota))
        used = append(text, used, "%s", "no quota");
    else
        used = append(text, used, "control group quota of %.4g CPUs", d.quota);
    if (d.variable != nullptr && !asked_for) append(text, used, ", and %s=%d asks for more", d.variable, d.wanted);
    char *const answer = kept_reason.get();
    return answer == nullptr ? nullptr : std::strcpy(answer, text);
}
void set_num_threads(int n) { process_threads = std::min(n, kMaxThreads); }
void set_num_threads_local(int n) { local_threads = std::min(n, kMaxThreads); }

Brief::Brief(bool brief) : before_(std::exchange(is_brief, brief)) {}
Brief::~Brief() { is_brief = before_; }

void run_tasks(int64_t n_tasks, int max_threads, void (*task)(void *context, int64_t t, int slot), void *context) {
    const int threads = static_cast<int>(std::min<int64_t>({n_tasks, max_threads, num_threads()}));
    Pool *const others = threads > 1 && !in_task ? Pool::instance() : nullptr;
    if (others == nullptr) {
        for (int64_t t = 0; t < n_tasks; ++t) task(context, t, 0);
        return;
    }
    Loop loop;
    loop.n_tasks = n_tasks;
    loop.task = task;
    loop.context = context;
    others->run(loop, threads);
}

} // namespace infini
