/* Which backend is in which slot, and why a slot is empty. */
#pragma once
#include "core/status.h"

namespace infini {

/** The backend of a known device type, or nullptr. Looks for plugins the first time a slot other than the CPU's is asked for. */
const InfiniBackend *find_backend(infiniDevice_t device);

/** Fails with the reason why a slot is empty. */
infiniStatus_t fail_no_backend(const char *function, infiniDevice_t device);

/** "CPU", "NVIDIA", ... for a known device type. */
const char *device_name(infiniDevice_t device);

inline bool device_known(infiniDevice_t device) { return device >= 0 && device < INFINI_DEVICE_TYPE_COUNT; }

/** Number of devices in a slot; 0 when there is no backend, or it cannot say. Leaves the last error message as it is. */
int device_count(infiniDevice_t device);

} // namespace infini
