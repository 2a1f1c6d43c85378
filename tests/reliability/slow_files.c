/* fopen() and fdopen() that take their time: what reads a file at its first use is then at it for long. To be preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    usleep(30 * 1000);
    return real(path, mode);
}

FILE *fdopen(int descriptor, const char *mode) {
    FILE *(*real)(int, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "fdopen");
    usleep(100 * 1000);
    return real(descriptor, mode);
}
