/* fopen() and fdopen() that take their time, so that what reads a file at its first use is at it for long; or, where FAKE_ROOT
 * names a folder, that find files of /proc and /sys in it and nowhere else. To be preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    const char *root = getenv("FAKE_ROOT");
    if (root == NULL) {
        usleep(30 * 1000);
        return real(path, mode);
    }
    if (strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/sys/", 5) != 0) return real(path, mode);
    char elsewhere[4096];
    snprintf(elsewhere, sizeof elsewhere, "%s%s", root, path);
    return real(elsewhere, mode);
}

FILE *fdopen(int descriptor, const char *mode) {
    FILE *(*real)(int, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "fdopen");
    if (getenv("FAKE_ROOT") == NULL) usleep(100 * 1000);
    return real(descriptor, mode);
}
