/* The few lines a C++ test needs: CHECK counts and reports, the closing line sums up; where all cases would take minutes, one in so
 * many. */
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

/** Of a program's cases one in so many, `--every N` being all there is on its command line; without it all of them. */
class Every {
public:
    Every(int n, char **arguments)
        : every_(n == 3 && std::strcmp(arguments[1], "--every") == 0 ? std::atol(arguments[2]) : 1) {}
    bool skips() { return case_++ % every_ != 0; }

private:
    long every_, case_ = 0;
};
} // namespace check

#define CHECK(condition) check::that((condition), #condition, __FILE__, __LINE__)
