/* What the tests of products in C++ multiply: elements of several kinds, in memory that begins and ends where no page can be
 * read. */
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace infini {

/** What the elements are: of about 1; so small that products are 0, of either sign; subnormal, here and there; and as small as
 *  those, or little more. */
enum Kind { kOrdinary, kTiny, kSubnormal, kLeast, kKinds };

inline uint64_t random_bits() {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 32 | state << 32;
}

inline void put_element(char *at, int dtype, Kind kind) {
    const uint64_t random = random_bits();
    const int64_t size = kDtypes[dtype].size;
    const bool half = dtype == INFINI_DTYPE_F16;
    const int mantissa = size == 8 ? 52 : size == 4 ? 23 : half ? 10 : 7;
    const uint32_t one = size == 8 ? 1023 : half ? 15 : 127, least = half ? 1 : one / 6;
    uint64_t exponent = (kind == kTiny ? least : one - 4) + random % 8;
    if (kind == kSubnormal && random / 8 % 16 == 0) exponent = 0;
    if (kind == kLeast) exponent = random % 4;
    const uint64_t sign = (random >> 31 & 1) << (8 * size - 1);
    const uint64_t bits = sign | exponent << mantissa | (random >> 8 & ((uint64_t{1} << mantissa) - 1));
    std::memcpy(at, &bits, static_cast<size_t>(size)); // little endian
}

/** Memory between inaccessible pages, full of NaN. */
struct Guarded {
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), size;
    char *start;

    explicit Guarded(size_t bytes) : size((bytes + page - 1) / page * page) {
        start =
            static_cast<char *>(mmap(nullptr, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) + page;
        mprotect(start, size, PROT_READ | PROT_WRITE);
        std::memset(start, 0xff, size);
    }
    ~Guarded() { munmap(start - page, size + 2 * page); }
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;
    char *last(size_t bytes) const { return start + size - bytes; }
};

} // namespace infini
