#include "cpu/caches.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace infini {

namespace {

/** From the kernel's description: in virtual machines CPUID, and sysconf with it, may tell of all caches of the host. */
double read_last_level_cache() {
    double bytes = 32 << 20;                  // if there is none
    for (int index = 0; index < 8; ++index) { // by level
        const std::string path = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size";
        if (FILE *file = std::fopen(path.c_str(), "r")) {
            double size;
            char unit = 0;
            if (std::fscanf(file, "%lf%c", &size, &unit) >= 1)
                bytes = size * (unit == 'K' ? 1024.0 : unit == 'M' ? 1024.0 * 1024.0 : 1.0);
            std::fclose(file);
        }
    }
    return bytes;
}

double read_least_to_stream() {
    if (const char *bytes = std::getenv("INFINIOP_STREAM_BYTES")) return std::strtod(bytes, nullptr);
    return read_last_level_cache() / 2;
}

} // namespace

bool worth_streaming(double bytes_written) {
    static const double least = read_least_to_stream();
    return bytes_written >= least;
}

} // namespace infini
