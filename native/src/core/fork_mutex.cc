#include "core/fork_mutex.h"

namespace infini {

ForkMutex *ForkMutex::all_ = nullptr;

namespace {
std::mutex &list_mutex() {
    static std::mutex &mutex = *new std::mutex;
    return mutex;
}
} // namespace

ForkMutex::ForkMutex() {
    std::lock_guard<std::mutex> lock(list_mutex());
    if (all_ == nullptr) pthread_atfork(before_fork, after_fork, after_fork);
    next_ = all_;
    all_ = this;
}

void ForkMutex::before_fork() {
    list_mutex().lock();
    for (ForkMutex *m = all_; m != nullptr; m = m->next_) {
        if (m->owner_.load(std::memory_order_relaxed) == pthread_self()) continue;
        m->lock();
        m->for_fork_ = true;
    }
}

void ForkMutex::after_fork() {
    for (ForkMutex *m = all_; m != nullptr; m = m->next_) {
        if (!m->for_fork_) continue;
        m->for_fork_ = false;
        m->unlock();
    }
    list_mutex().unlock();
}

} // namespace infini
