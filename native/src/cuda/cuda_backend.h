/* The two tables of the NVIDIA backend. */
#pragma once
#include "infini_backend.h"

namespace infini::cuda {

extern const InfiniRuntimeTable kCudaRuntime;
extern const InfiniOpTable kCudaOps;

/** How many devices there were when the backend was asked whether it can work here. */
int probed_devices();

} // namespace infini::cuda
