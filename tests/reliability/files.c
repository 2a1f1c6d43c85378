/* fopen() and fdopen() that take their time, so that what reads a file at its first use is at it for long; or, where FAKE_ROOT
 * names a folder, that find files of /proc and /sys in it and nowhere else. A dlopen() of the library that PLUGIN names which
 * lasts until the process forks. And a kernel whose masks of processors have MASK_BYTES. To be preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
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

static atomic_int forks;

pid_t fork(void) {
    pid_t (*real)(void);
    *(void **)&real = dlsym(RTLD_NEXT, "fork");
    atomic_fetch_add(&forks, 1);
    return real();
}

void *dlopen(const char *path, int flags) {
    void *(*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    const char *plugin = getenv("PLUGIN");
    if (plugin != NULL && path != NULL && strcmp(path, plugin) == 0) {
        for (int ms = 0; ms < 10000 && atomic_load(&forks) == 0; ++ms) usleep(1000);
        usleep(10 * 1000); /* in which fork() has come to what it waits for */
    }
    return real(path, flags);
}

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    int (*real)(pid_t, size_t, cpu_set_t *);
    *(void **)&real = dlsym(RTLD_NEXT, "sched_getaffinity");
    const char *bytes = getenv("MASK_BYTES");
    if (bytes == NULL || size >= strtoul(bytes, NULL, 10)) return real(process, size, set);
    errno = EINVAL;
    return -1;
}
