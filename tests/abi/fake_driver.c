/* A libcuda.so.1 that starts as badly as it is told to: FAKE_DRIVER_VERSION is what it says its version is, FAKE_DRIVER_INIT what
 * cuInit answers. It is never asked for more. Built by test_cuda_plugin.py. */
#include <stdlib.h>
#include <string.h>

static int number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

int cuDriverGetVersion(int *version) {
    *version = number("FAKE_DRIVER_VERSION");
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    return number("FAKE_DRIVER_INIT");
}

static int refuse(void) { return 3; }

int cuGetProcAddress_v2(const char *symbol, void **address, int version, unsigned long long flags, int *status) {
    void (*found)(void) = (void (*)(void))refuse;
    (void)version;
    (void)flags;
    if (strcmp(symbol, "cuDriverGetVersion") == 0) found = (void (*)(void))cuDriverGetVersion;
    if (strcmp(symbol, "cuInit") == 0) found = (void (*)(void))cuInit;
    if (strcmp(symbol, "cuGetProcAddress") == 0) found = (void (*)(void))cuGetProcAddress_v2;
    memcpy(address, &found, sizeof *address);
    if (status) *status = 0;
    return 0;
}

int cuGetProcAddress(const char *symbol, void **address, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(symbol, address, version, flags, NULL);
}

int cuGetExportTable(const void **table, const void *id) {
    (void)id;
    *table = NULL;
    return 3;
}
