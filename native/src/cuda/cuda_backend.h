/* The two tables of the NVIDIA backend, and what its probe found. */
#pragma once
#include "infini_backend.h"

namespace infini::cuda {

extern const InfiniRuntimeTable kCudaRuntime;
extern const InfiniOpTable kCudaOps;

/** How many devices there were when the backend was asked whether it can work here. */
int probed_devices();
/** Can all of them place a kernel's blocks before those of the one before it are done? */
bool kernels_begin_early();

} // namespace infini::cuda
