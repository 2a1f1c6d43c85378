/* Failing: every error leaves through fail(), which keeps the sentence for the calling thread. */
#pragma once
#include <pthread.h>

#include <exception>
#include <new>

#include "core/fp_environment.h"
#include "infini_backend.h"

namespace infini {

/** Keeps the formatted sentence as this thread's last error and returns `status`. Allocates nothing. */
__attribute__((format(printf, 2, 3))) infiniStatus_t fail(infiniStatus_t status, const char *format, ...);

/** Name of a status without prefix. */
const char *status_name(infiniStatus_t status);

/** Whoever cancels a thread waits for a call of it to end: unwound from the middle of one, it would end the process. */
class Uncancelled {
public:
    Uncancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
    Uncancelled(const Uncancelled &) = delete;

private:
    int before_;
};

/** Body of every exported function: neither exceptions nor the floating-point environment cross the C boundary. */
template <class Body>
infiniStatus_t guard(const char *function, Body &&body) noexcept {
    const Uncancelled uncancelled;
    const FpEnvironment defaults; // sizes and numbers of threads are computed in double, too
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: out of memory", function);
    } catch (const std::exception &e) {
        return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: %s", function, e.what());
    } catch (...) {
        return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: unknown exception", function);
    }
}

} // namespace infini

/** Defines an exported function. In its body, the statements given last, `fn` is the function's name. */
#define INFINI_EXPORT(function, parameters, ...)                           \
    infiniStatus_t function parameters {                                   \
        static constexpr const char *fn = #function;                       \
        return infini::guard(fn, [&]() -> infiniStatus_t { __VA_ARGS__ }); \
    }
