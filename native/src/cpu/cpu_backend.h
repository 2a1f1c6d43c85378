/* The built-in CPU backend. Its two tables live in different libraries: the runtime in libinfinirt, the operators in
 * libinfiniop, which therefore does not look for them in kCpuBackend.ops (NULL) but takes kCpuOps. */
#pragma once
#include "infini_backend.h"

namespace infini {

extern const InfiniBackend kCpuBackend;
extern const InfiniOpTable kCpuOps;

} // namespace infini
