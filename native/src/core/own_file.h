/* Where the library is that this is compiled into. */
#pragma once
#include <dlfcn.h>

#include <climits>
#include <cstdlib>

namespace infini {

/** To be made when the library is loaded: its name may be relative to a folder that the process leaves. */
struct OwnFile {
    char path[PATH_MAX] = ""; // "" if the system does not say

    /** `here` is something of the library's own: of what it exports a program may have the address. */
    explicit OwnFile(const void *here) {
        Dl_info info;
        if (dladdr(here, &info) == 0 || info.dli_fname == nullptr || realpath(info.dli_fname, path) == nullptr)
            path[0] = '\0';
    }
};

} // namespace infini
