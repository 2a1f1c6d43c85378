/* The caches of this machine, and when results are better written past them: a store that does so need not fetch the line first. */
#pragma once
#include <algorithm>
#include <cstdint>

namespace infini {

constexpr int64_t kLine = 64; // bytes of a cache line

/** Elements of so many bytes from p to where a cache line begins; 0 where it does not begin with one. */
inline int64_t elements_until_line(const void *p, int64_t size) {
    const int64_t bytes = -reinterpret_cast<intptr_t>(p) & (kLine - 1);
    return bytes % size == 0 ? bytes / size : 0;
}

/** A dimension of n in strips of at most `step`; before the second one begins, `head` more, so that it begins at a cache line. */
struct Strips {
    int64_t n, step, head;
    int64_t count() const { return n == 0 ? 0 : std::max<int64_t>((n - head - 1) / step + 1, 1); }
    int64_t begin(int64_t i) const { return i == 0 ? 0 : head + i * step; }
    int64_t size(int64_t i) const { return std::min(head + (i + 1) * step, n) - begin(i); }
    int64_t head_of(int64_t i) const { return i == 0 ? std::min(head, n) : 0; }
};

/** Bytes of a CPU's second-level cache. The environment variable INFINIOP_L2_BYTES, read once, sets another number. */
int64_t second_level_cache();

/* Shares of the last-level cache, or of what counts of a large one, that a result, none of it read before, has to reach. Below it
 * what was written is likely to be found there again. */
constexpr double kStreamResults = 1. / 2; // of operators that compute
constexpr double kStreamCopies = 3. / 8;  // of those that move or transpose: with what is read, more than this

/** Is a result of so many bytes better streamed? The environment variable INFINIOP_STREAM_BYTES, read once, sets a number of bytes
 *  in place of all shares. */
bool worth_streaming(double bytes_written, double share);

/** Makes what this thread has streamed visible in order, after its last loop. Workers need no such call: they end a loop with a
 *  locked instruction, which waits for these writes too. */
void finish_streams();

} // namespace infini
