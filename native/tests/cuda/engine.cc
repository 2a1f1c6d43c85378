#include "engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define INFINI_THREAD_ENGINE 1
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#else
#define INFINI_THREAD_ENGINE 0
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace infini::cuda {

namespace {

std::atomic<bool> greedy{false};
std::atomic<uint64_t> first_seed{1};

/** splitmix64. */
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t below(uint64_t n) {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return (z ^ z >> 31) % n;
    }

private:
    uint64_t state_;
};

/** Shared memory of exactly that size, full of bytes that are a NaN in every floating type. */
unsigned char *poisoned(size_t size) {
    void *memory;
    if (posix_memalign(&memory, 16, size) != 0) std::abort();
    memset(memory, 0xff, size);
    return static_cast<unsigned char *>(memory);
}

/** A thread's copies that are on their way. */
struct Copies {
    struct Copy {
        void *to;
        const void *from;
        int group;
    };
    std::vector<Copy> begun; // in order
    int groups = 0;          // how many there were
};

} // namespace

bool set_schedule(const char *policy, uint64_t seed) {
    const std::string word = policy;
    if (word != "fair" && word != "greedy") return false;
    greedy = word == "greedy";
    first_seed = seed;
    return true;
}

/* ---- fibers -------------------------------------------------------------------------------------------------------- */

#if !INFINI_THREAD_ENGINE

namespace {

constexpr size_t kStackBytes = 256 << 10;

#if defined(__x86_64__)
/* Saves what a call must keep on this stack, and goes on where another stack was left. */
extern "C" void infini_fiber_switch(void **save, void *resume);
__asm__(".text\n.type infini_fiber_switch, @function\n"
        "infini_fiber_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size infini_fiber_switch, . - infini_fiber_switch\n");
#endif

/** A stack, and where its fiber stopped. */
struct Fiber {
    char *stack;
#if defined(__x86_64__)
    void *at = nullptr;
#else
    ucontext_t at;
#endif
    Fiber()
        : stack(static_cast<char *>(
              mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        if (stack == MAP_FAILED) std::abort();
    }
    ~Fiber() { munmap(stack, kStackBytes); }
    Fiber(const Fiber &) = delete;
    Fiber &operator=(const Fiber &) = delete;
};

thread_local std::vector<std::unique_ptr<Fiber>> spare; // stacks of threads that are done, warm

} // namespace

enum class State { kNew, kReady, kAtBarrier, kAtWarp, kDone };

/** One block being run: its threads' states, and the scheduler. */
class Block {
public:
    Block(const HostKernel &kernel, const void *params, uint32_t number, uint32_t blocks, int n, size_t shared,
          uint64_t seed)
        : number(number), blocks(blocks), slots(static_cast<size_t>(n) * HostCtx::kSlotBytes),
          copies(static_cast<size_t>(n)), kernel_(kernel), params_(params), random_(seed),
          threads_(static_cast<size_t>(n)), warps_(static_cast<size_t>((n + kWarp - 1) / kWarp)) {
        if (shared > 0) memory = poisoned(shared);
        const auto first = static_cast<int>(random_.below(static_cast<uint64_t>(n)));
        for (int i = 0; i < n; ++i) runnable_.push_back((first + i) % n);
    }
    ~Block() { std::free(memory); }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;

    std::string run() {
        for (;;) {
            const int next = choose();
            if (!fault.empty()) return fault;
            if (next < 0) return "";
            resume(next);
            if (!fault.empty()) return fault;
            settle(next);
        }
    }

    void wait(int thread, State where, int line) {
        Thread &t = threads_[static_cast<size_t>(thread)];
        t.state = where;
        t.line = line;
        leave(t, false);
    }

    void report(const std::string &what) {
        if (fault.empty()) fault = what;
    }

    std::string fault;
    uint32_t number, blocks;
    std::vector<unsigned char> slots;
    std::vector<Copies> copies;
    unsigned char *memory = nullptr;

private:
    struct Thread {
        State state = State::kNew;
        int line = 0;
        std::unique_ptr<Fiber> fiber;
        void *fake_stack = nullptr;
    };

    /** The next thread to run; -1 when all are done. */
    int choose() {
        if (runnable_.empty()) {
            if (done_ < size()) fault = "threads wait for others that never come";
            return -1;
        }
        if (!greedy) std::swap(runnable_[random_.below(runnable_.size())], runnable_.back());
        const int next = runnable_.back(); // the last to become so: one of the warp that has just run, if there is any
        runnable_.pop_back();
        return next;
    }

    /** Lets threads go on that waited for the one that has just stopped. */
    void settle(int stopped) {
        const int begin = stopped / kWarp * kWarp, end = std::min(begin + kWarp, size());
        Waiting &warp = warps_[static_cast<size_t>(stopped / kWarp)];
        switch (threads_[static_cast<size_t>(stopped)].state) {
        case State::kAtWarp: ++warp.waiting; break;
        case State::kAtBarrier: ++at_barrier_; break;
        case State::kDone:
            ++warp.done;
            ++done_;
            break;
        default: std::abort();
        }
        if (warp.waiting > 0 && warp.waiting + warp.done == end - begin) {
            release(begin, end, State::kAtWarp, warp.done, "a warp");
            warp.waiting = 0;
        }
        if (at_barrier_ > 0 && at_barrier_ + done_ == size()) {
            release(0, size(), State::kAtBarrier, done_, "a block");
            at_barrier_ = 0;
        }
    }

    void release(int begin, int end, State where, int done, const char *who) {
        int line = 0;
        bool same = true;
        for (int i = begin; i < end; ++i) {
            Thread &t = threads_[static_cast<size_t>(i)];
            if (t.state != where) continue;
            same = same && (line == 0 || t.line == line);
            line = t.line;
            t.state = State::kReady;
            runnable_.push_back(i);
        }
        if (done > 0)
            fault = std::string("divergent barrier: threads of ") + who + " are done while others wait in line " +
                    std::to_string(line);
        else if (!same)
            fault = std::string("divergent barrier: threads of ") + who + " wait in different lines";
    }

    int size() const { return static_cast<int>(threads_.size()); }

    void resume(int thread) {
        Thread &t = threads_[static_cast<size_t>(thread)];
        if (t.state == State::kNew) {
            if (spare.empty()) spare.push_back(std::make_unique<Fiber>());
            t.fiber = std::move(spare.back());
            spare.pop_back();
            begin(t);
        }
        current_ = thread;
        t.state = State::kReady;
#if defined(__SANITIZE_ADDRESS__)
        void *own_fake;
        __sanitizer_start_switch_fiber(&own_fake, t.fiber->stack, kStackBytes);
#endif
#if defined(__x86_64__)
        infini_fiber_switch(&scheduler_, t.fiber->at);
#else
        swapcontext(&scheduler_, &t.fiber->at);
#endif
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(own_fake, nullptr, nullptr);
#endif
        if (t.state == State::kDone) spare.push_back(std::move(t.fiber));
    }

    void begin(Thread &t) {
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(t.fiber->stack, kStackBytes); // of the frames that another thread left on it
#endif
#if defined(__x86_64__)
        auto **top = reinterpret_cast<void **>(t.fiber->stack + kStackBytes);
        *--top = nullptr; // where main() would return to; keeps the stack aligned as behind a call
        *--top = reinterpret_cast<void *>(&Block::main);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        t.fiber->at = top;
        entering = this;
#else
        getcontext(&t.fiber->at);
        t.fiber->at.uc_stack.ss_sp = t.fiber->stack;
        t.fiber->at.uc_stack.ss_size = kStackBytes;
        t.fiber->at.uc_link = nullptr;
        makecontext(&t.fiber->at, &Block::main, 0);
        entering = this;
#endif
    }

    static void main() {
        Block &block = *entering;
        block.arrived(nullptr);
        Thread &t = block.threads_[static_cast<size_t>(block.current_)];
        HostCtx ctx(block, block.current_);
        block.kernel_.body(ctx, block.params_);
        ctx.end();
        t.state = State::kDone;
        block.leave(t, true);
    }

    /** Back to the scheduler. */
    void leave(Thread &t, bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_start_switch_fiber(for_good ? nullptr : &t.fake_stack, scheduler_stack_, scheduler_stack_size_);
#else
        static_cast<void>(for_good);
#endif
#if defined(__x86_64__)
        infini_fiber_switch(&t.fiber->at, scheduler_);
#else
        swapcontext(&t.fiber->at, &scheduler_);
#endif
        arrived(t.fake_stack);
    }

    void arrived(void *fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_stack_size_);
#else
        static_cast<void>(fake_stack);
#endif
    }

    static thread_local Block *entering;

    const HostKernel &kernel_;
    const void *params_;
    Random random_;
    std::vector<Thread> threads_;
    struct Waiting {
        int waiting = 0, done = 0;
    };
    std::vector<Waiting> warps_;
    std::vector<int> runnable_;
    int at_barrier_ = 0, done_ = 0, current_ = 0;
#if defined(__x86_64__)
    void *scheduler_ = nullptr;
#else
    ucontext_t scheduler_;
#endif
    const void *scheduler_stack_ = nullptr;
    size_t scheduler_stack_size_ = 0;
};

thread_local Block *Block::entering = nullptr;

void HostCtx::sync(int line) { block_.wait(thread_, State::kAtBarrier, line); }
void HostCtx::sync_warp(int line) { block_.wait(thread_, State::kAtWarp, line); }

/* ---- threads ------------------------------------------------------------------------------------------------------- */

#else

namespace {

/** A barrier of n threads. One of <barrier> would need C++20. */
class Barrier {
public:
    explicit Barrier(int n) : n_(n) {}
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        const uint64_t round = round_;
        if (++arrived_ == n_) {
            arrived_ = 0;
            ++round_;
            all_.notify_all();
            return;
        }
        all_.wait(lock, [&] { return round_ != round; });
    }

private:
    std::mutex mutex_;
    std::condition_variable all_;
    int n_, arrived_ = 0;
    uint64_t round_ = 0;
};

/** Threads that are there for good: to start them anew for each block would take most of the time. */
class Crew {
public:
    /** The one of n threads, for one caller at a time. */
    static Crew &of(int n) {
        static std::mutex &mutex = *new std::mutex;
        static std::map<int, Crew *> &crews = *new std::map<int, Crew *>;
        const std::lock_guard<std::mutex> lock(mutex);
        Crew *&crew = crews[n];
        if (crew == nullptr) crew = new Crew(n);
        return *crew;
    }
    void run(const std::function<void(int)> &body) {
        const std::lock_guard<std::mutex> lock(mutex_);
        body_ = &body;
        begin_.wait();
        end_.wait();
    }

private:
    explicit Crew(int n) : begin_(n + 1), end_(n + 1) {
        for (int i = 0; i < n; ++i)
            std::thread([this, i] {
                for (;;) {
                    begin_.wait();
                    (*body_)(i);
                    end_.wait();
                }
            }).detach();
    }
    std::mutex mutex_;
    Barrier begin_, end_;
    const std::function<void(int)> *body_ = nullptr;
};

} // namespace

class Block {
public:
    Block(const HostKernel &kernel, const void *params, uint32_t number, uint32_t blocks, int n, size_t shared,
          uint64_t)
        : number(number), blocks(blocks), slots(static_cast<size_t>(n) * HostCtx::kSlotBytes),
          copies(static_cast<size_t>(n)), kernel_(kernel), params_(params), n_(n), whole_(n) {
        for (int warp = 0; warp < n; warp += kWarp)
            warps_.push_back(std::make_unique<Barrier>(n - warp < kWarp ? n - warp : kWarp));
        if (shared > 0) memory = poisoned(shared);
    }
    ~Block() { std::free(memory); }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;

    std::string run() {
        Crew::of(n_).run([this](int i) {
            HostCtx ctx(*this, i);
            kernel_.body(ctx, params_);
            ctx.end();
        });
        return fault;
    }
    void wait_all() { whole_.wait(); }
    void wait_warp(int thread) { warps_[static_cast<size_t>(thread / kWarp)]->wait(); }

    void report(const std::string &what) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (fault.empty()) fault = what;
    }

    std::string fault;
    uint32_t number, blocks;
    std::vector<unsigned char> slots;
    std::vector<Copies> copies;
    unsigned char *memory = nullptr;

private:
    std::mutex mutex_;
    const HostKernel &kernel_;
    const void *params_;
    int n_;
    Barrier whole_;
    std::vector<std::unique_ptr<Barrier>> warps_;
};

void HostCtx::sync(int) { block_.wait_all(); }
void HostCtx::sync_warp(int) { block_.wait_warp(thread_); }

#endif

/* ---- both ---------------------------------------------------------------------------------------------------------- */

uint32_t HostCtx::block() const { return block_.number; }
uint32_t HostCtx::blocks() const { return block_.blocks; }
void *HostCtx::slot(int thread) const { return &block_.slots[static_cast<size_t>(thread) * kSlotBytes]; }
void *HostCtx::shared_bytes() const { return block_.memory; }

void HostCtx::need_aligned(const void *p, size_t size, const char *what) const {
    if (reinterpret_cast<uintptr_t>(p) % size != 0)
        block_.report(std::string("misaligned ") + what + " of " + std::to_string(size) + " bytes");
}

void HostCtx::copy_async(void *to, const void *from) {
    need_aligned(to, 16, "copy to");
    need_aligned(from, 16, "copy from");
    Copies &copies = block_.copies[static_cast<size_t>(thread_)];
    copies.begun.push_back({to, from, copies.groups});
    memset(to, 0xff, 16);
}

void HostCtx::commit_copies() { ++block_.copies[static_cast<size_t>(thread_)].groups; }

void HostCtx::wait_but(int pending) {
    Copies &copies = block_.copies[static_cast<size_t>(thread_)];
    auto it = copies.begun.begin();
    for (; it != copies.begun.end() && it->group < copies.groups - pending; ++it) memcpy(it->to, it->from, 16);
    copies.begun.erase(copies.begun.begin(), it);
}

void HostCtx::end() {
    if (!block_.copies[static_cast<size_t>(thread_)].begun.empty()) block_.report("copies that nobody waited for");
}

std::string run_kernel(const HostKernel &kernel, const void *params, uint32_t blocks, int threads,
                       size_t shared_bytes) {
    const uint64_t seed = first_seed;
    for (uint32_t i = 0; i < blocks; ++i) {
        const uint32_t number = seed % 2 == 0 ? i : blocks - 1 - i; // no block may wait for another
        Block block(kernel, params, number, blocks, threads, shared_bytes, seed + number);
        const std::string fault = block.run();
        if (!fault.empty()) return "block " + std::to_string(number) + ": " + fault;
    }
    return "";
}

} // namespace infini::cuda
