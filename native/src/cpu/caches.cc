#include "cpu/caches.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/lazy.h"

namespace infini {

namespace {

/** Larger ones are shared by so many CPUs that no program has them to itself. In a virtual machine that is told of 260 MiB, results of
 *  16 MiB were written 1.4 to 2 times as fast past the caches. */
constexpr double kMostOfLastLevel = 32 << 20;

/** If nothing else is known. */
constexpr double kSecondLevel = 512 << 10;

/** Bytes. */
struct Sizes {
    double second, last;
};

/** The number an environment variable is; less than 0 if it is none. */
double bytes_in(const char *variable) {
    const char *const text = secure_getenv(variable);
    if (text == nullptr) return -1;
    char *end;
    const double bytes = std::strtod(text, &end);
    return end != text && *end == '\0' && bytes >= 0 ? bytes : -1; // which "nan" and "16M" are not
}

/** From the kernel's description: in virtual machines CPUID, and sysconf with it, may tell of all caches of the host. */
Sizes read_sizes() {
    Sizes sizes{kSecondLevel, kMostOfLastLevel};
    for (int index = 0; index < 8; ++index) { // by level
        const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
        const auto read = [&](const char *name, double &number) {
            char unit = 0;
            FILE *const file = std::fopen((folder + name).c_str(), "r");
            if (file == nullptr) return false;
            const bool found = std::fscanf(file, "%lf%c", &number, &unit) >= 1;
            number *= unit == 'K' ? 1024.0 : unit == 'M' ? 1024.0 * 1024.0 : 1.0;
            std::fclose(file);
            return found;
        };
        double level, size;
        if (!read("/level", level) || !read("/size", size)) continue;
        if (level == 2) sizes.second = size;
        sizes.last = size;
    }
    sizes.last = std::min(sizes.last, kMostOfLastLevel);
    if (const double given = bytes_in("INFINIOP_L2_BYTES"); given >= 0) sizes.second = given;
    return sizes;
}

struct Least {
    bool given; // in place of all shares of the last-level cache
    double bytes;
};

Least read_least() {
    if (const double given = bytes_in("INFINIOP_STREAM_BYTES"); given >= 0) return {true, given};
    return {false, read_sizes().last};
}
Lazy<Least> least_to_stream{read_least};
Lazy<Sizes> cache_sizes{read_sizes};

} // namespace

int64_t second_level_cache() { return static_cast<int64_t>(std::clamp(cache_sizes.get().second, 0.0, 1e12)); }

bool worth_streaming(double bytes_written, double share) {
    const Least &least = least_to_stream.get();
    return bytes_written >= (least.given ? least.bytes : share * least.bytes);
}

void finish_streams() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

} // namespace infini
