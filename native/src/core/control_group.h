/* The control groups of this process, whose files say what it may use of the machine. */
#pragma once
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

namespace infini {

/** Where version 2 is mounted; of version 1 each controller is a folder in it. */
constexpr const char *kControlGroups = "/sys/fs/cgroup";

/** Calls f(folder) for the group of version 2 and for all above it: a limit of any of them is the process's. A container may see
 *  its own as the uppermost. */
template <class F>
void each_control_group(F &&f) {
    std::string group;
    if (const std::unique_ptr<FILE, int (*)(FILE *)> file{std::fopen("/proc/self/cgroup", "r"), std::fclose}) {
        char line[4096];
        while (std::fgets(line, sizeof line, file.get()) != nullptr)
            if (std::strncmp(line, "0::/", 4) == 0) group.assign(line + 3, std::strcspn(line + 3, "\n"));
    }
    f(std::string(kControlGroups));
    for (; group.size() > 1; group.erase(group.find_last_of('/'))) f(kControlGroups + group);
}

} // namespace infini
