/* Measuring what this CPU can do at most; see infiniopMeasureCpuCeiling. */
#pragma once
#include <cstddef>

#include "core/status.h"

namespace infini {

infiniStatus_t measure_cpu_ceiling(const char *function, int what, size_t bytes, double *rate);

} // namespace infini
