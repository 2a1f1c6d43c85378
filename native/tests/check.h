/* The few lines a C++ test needs: CHECK counts and reports, the closing line sums up. */
#pragma once
#include <atomic>
#include <cstdio>

namespace check {
inline std::atomic<long> passed{0}, failed{0}; // by any thread
inline bool that(bool ok, const char *what, const char *file, int line) {
    ok ? ++passed : ++failed;
    if (!ok && failed <= 20) std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
    return ok;
}
inline int summary() {
    std::printf("%ld passed, %ld failed\n", passed.load(), failed.load());
    return failed == 0 && passed > 0 ? 0 : 1;
}
} // namespace check

#define CHECK(condition) check::that((condition), #condition, __FILE__, __LINE__)
