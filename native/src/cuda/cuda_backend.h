/* The two tables of the NVIDIA backend. */
#pragma once
#include "infini_backend.h"

namespace infini::cuda {

extern const InfiniRuntimeTable kCudaRuntime;
extern const InfiniOpTable kCudaOps;

} // namespace infini::cuda
