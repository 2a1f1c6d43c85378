/* The test backend, each of whose entries can be made to answer a status without doing anything. */
#define infiniBackendGet fake_backend_get
#include "fake_backend.c"
#undef infiniBackendGet

INFINI_API const InfiniBackend *infiniBackendGet(const InfiniBackendHost *host);
/** Lets the entry at an offset of a table (0: InfiniRuntimeTable, 1: InfiniOpTable) answer `status`, until it is restored. */
INFINI_API void failingPluginFail(int table, size_t offset, int status);
INFINI_API void failingPluginRestore(void);

static InfiniBackend own;
static InfiniRuntimeTable own_runtime;
static InfiniOpTable own_ops;
static int answer;

/* The caller's arguments stay in their registers. */
static int entry_that_fails(void) { return answer; }

void failingPluginRestore(void) {
    own_runtime = runtime_table;
    own_ops = op_table;
}

void failingPluginFail(int table, size_t offset, int status) {
    int (*const entry)(void) = entry_that_fails;
    answer = status;
    memcpy((char *)(table == 0 ? (void *)&own_runtime : (void *)&own_ops) + offset, &entry, sizeof entry);
}

const InfiniBackend *infiniBackendGet(const InfiniBackendHost *host) {
    own = *fake_backend_get(host);
    failingPluginRestore();
    own.runtime = &own_runtime;
    own.ops = &own_ops;
    return &own;
}
