/* The backend registry: the built-in CPU backend, and plugins found as infini_backend.h says. */
#include "rt/registry.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <string_view>

#include "core/fork_mutex.h"
#include "core/kept_message.h"
#include "core/own_file.h"
#include "core/thread_local.h"
#include "cpu/cpu_backend.h"

namespace infini {

namespace {

constexpr const char *kDeviceNames[INFINI_DEVICE_TYPE_COUNT] = {"CPU",   "NVIDIA",   "CAMBRICON", "ASCEND", "METAX",
                                                                "MOORE", "ILUVATAR", "KUNLUN",    "HYGON",  "QY"};
/** The <family> of libinfini_<family>.so. */
constexpr const char *kPluginNames[INFINI_DEVICE_TYPE_COUNT] = {"cpu",   "cuda",     "cambricon", "ascend", "metax",
                                                                "moore", "iluvatar", "kunlun",    "hygon",  "qy"};

struct Slot {
    std::atomic<const InfiniBackend *> backend{nullptr};
    void *library = nullptr; // the plugin's
    bool searched = false;
    std::atomic<const char *> path{""}; // strings live for ever: a new one replaces the pointer, never the text
    std::atomic<const char *> reason{""};
};

struct Registry {
    ForkMutex mutex;
    Slot slots[INFINI_DEVICE_TYPE_COUNT];
    bool environment_read = false;
    const char *environment_failures = "";
    std::set<std::string> texts;

    Registry() {
        slots[INFINI_DEVICE_CPU].backend = &kCpuBackend;
        slots[INFINI_DEVICE_CPU].path = "built-in";
    }
};

Registry &registry = *new Registry; // never destroyed: used until the process is gone

/** Held by the thread that opens plugins. A plugin that asks for devices meanwhile, in that thread, finds no more than is there
 *  already. */
class Loading {
public:
    Loading() : lock_(registry.mutex) { here_ = true; }
    ~Loading() { here_ = false; }
    static bool here() { return here_; }

private:
    const KeptMessage kept_; // what a plugin said of itself is told by who asked for it
    std::lock_guard<ForkMutex> lock_;
    static INFINI_THREAD_LOCAL bool here_;
};
INFINI_THREAD_LOCAL bool Loading::here_ = false;

/** The same text is kept once, or whoever tries a bad plugin again and again would fill the memory. This thread is Loading. */
const char *keep(std::string_view text) { return registry.texts.emplace(text).first->c_str(); }

infiniStatus_t host_fail(infiniStatus_t status, const char *message) {
    return infinirtSetLastError(status, message != nullptr ? message : "");
}
constexpr InfiniBackendHost kHost = {INFINI_BACKEND_ABI, sizeof(InfiniBackendHost), host_fail};

/** The first `required` entries of a function table are set. */
bool complete(const void *table, size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += sizeof(void *)) {
        void *entry;
        std::memcpy(&entry, static_cast<const char *>(table) + at, sizeof entry);
        if (entry == nullptr) return false;
    }
    return true;
}

std::string differs(const char *what, size_t got, size_t needed) {
    return std::string(what) + " is " + std::to_string(got) + ", needed " + std::to_string(needed);
}

/** What is wrong with a backend struct; "" for nothing. */
std::string defect(const InfiniBackend *b) {
    if (b == nullptr) return "its entry function returned NULL";
    if (b->abi != INFINI_BACKEND_ABI) return differs("its backend ABI", b->abi, INFINI_BACKEND_ABI);
    if (b->struct_size != sizeof(InfiniBackend))
        return differs("the size of its InfiniBackend", b->struct_size, sizeof(InfiniBackend));
    if (!device_known(b->device_type))
        return "it claims device type " + std::to_string(b->device_type) + ", which is none";
    if (b->name == nullptr || b->version == nullptr || b->probe == nullptr || b->runtime == nullptr ||
        b->ops == nullptr)
        return "its InfiniBackend is incomplete";
    if (b->runtime->struct_size != sizeof(InfiniRuntimeTable))
        return differs("the size of its InfiniRuntimeTable", b->runtime->struct_size, sizeof(InfiniRuntimeTable));
    if (b->ops->struct_size != sizeof(InfiniOpTable))
        return differs("the size of its InfiniOpTable", b->ops->struct_size, sizeof(InfiniOpTable));
    if (b->runtime->device_count == nullptr || !complete(b->runtime, offsetof(InfiniRuntimeTable, mem_info),
                                                         offsetof(InfiniRuntimeTable, stream_begin_capture)))
        return "its InfiniRuntimeTable is incomplete";
    if (b->ops->create == nullptr || b->ops->run == nullptr || b->ops->destroy == nullptr)
        return "its InfiniOpTable is incomplete";
    return "";
}

/* The libinfinirt.so that this is. */
constexpr char kHere = 0;
const OwnFile own_file(&kHere);

/** Its ELF header; nullptr if the system does not say. */
const ElfW(Ehdr) * own_header() {
    Dl_info info{};
    dladdr(&kHere, &info);
    return static_cast<const ElfW(Ehdr) *>(info.dli_fbase);
}

/** What is wrong with a file that should be a library; "" for nothing, or what dlopen says better. */
std::string file_defect(const char *path) {
    const std::string not_whole = "it is no shared library, or one that was cut short";
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not hang
    if (descriptor < 0) return "";
    struct stat about;
    const bool regular = fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode);
    const auto read = [&](auto &to, uint64_t at) {
        return pread(descriptor, &to, sizeof to, static_cast<off_t>(at)) == static_cast<ssize_t>(sizeof to);
    };
    // Opening one whose ELF header promises more segments than the file holds kills the process.
    ElfW(Ehdr) header;
    bool whole = regular && read(header, 0) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0;
    const auto *own = own_header();
    // The headers of another word length or byte order are others; dlopen looks at these before it looks at segments.
    const bool readable = whole && (own == nullptr || std::memcmp(header.e_ident, own->e_ident, EI_DATA + 1) == 0);
    const auto size = regular ? static_cast<uint64_t>(about.st_size) : 0;
    for (unsigned i = 0; whole && readable && i < header.e_phnum; ++i) {
        ElfW(Phdr) segment;
        whole = read(segment, header.e_phoff + i * sizeof segment) && segment.p_offset <= size &&
                segment.p_filesz <= size - segment.p_offset;
    }
    close(descriptor);
    if (!whole) return not_whole;
    // Of such a file dlopen says that it does not exist.
    if (own != nullptr && header.e_machine != own->e_machine)
        return differs("it is for another processor: its ELF machine", header.e_machine, own->e_machine);
    return "";
}

struct Outcome {
    infiniStatus_t status;
    std::string reason;
};

/** Opens one plugin and puts it into its slot. This thread is Loading. */
Outcome load(const char *path) {
    if (path[0] != '/') return {INFINI_STATUS_BAD_PARAM, std::string(path) + ": the path of a plugin must be absolute"};
    if (const std::string what = file_defect(path); !what.empty())
        return {INFINI_STATUS_BAD_PARAM, std::string(path) + ": " + what};
    std::unique_ptr<void, int (*)(void *)> opened(dlopen(path, RTLD_NOW | RTLD_LOCAL), dlclose);
    if (opened == nullptr) {
        const char *why = dlerror();
        return {INFINI_STATUS_BAD_PARAM, std::string(why != nullptr ? why : path)};
    }
    for (const Slot &slot : registry.slots) // once more: its entry is not called while other threads use it
        if (slot.library == opened.get()) return {INFINI_STATUS_SUCCESS, ""};
    const auto refuse = [&](infiniStatus_t status, const std::string &why) {
        return Outcome{status, std::string(path) + ": " + why};
    };
    const auto get = reinterpret_cast<InfiniBackendGetFn>(dlsym(opened.get(), INFINI_BACKEND_ENTRY));
    if (get == nullptr) return refuse(INFINI_STATUS_BAD_PARAM, "it exports no " INFINI_BACKEND_ENTRY);
    const InfiniBackend *backend = get(&kHost);
    const std::string what = defect(backend);
    if (!what.empty()) {
        // The slot it meant can be named once the head of the struct is known to be right.
        const bool named =
            backend != nullptr && backend->abi == INFINI_BACKEND_ABI && device_known(backend->device_type);
        const infiniDevice_t device = named ? backend->device_type : INFINI_DEVICE_CPU;
        const Outcome outcome = refuse(INFINI_STATUS_BAD_PARAM, what);
        if (named && registry.slots[device].backend.load() == nullptr)
            registry.slots[device].reason = keep(outcome.reason);
        return outcome;
    }
    Slot &slot = registry.slots[backend->device_type];
    if (slot.backend.load() != nullptr)
        return refuse(INFINI_STATUS_BAD_PARAM, std::string("the slot of ") + device_name(backend->device_type) +
                                                   " is taken by " + slot.path.load());
    char why[512] = "";
    const infiniStatus_t status = backend->probe(why, sizeof why);
    why[sizeof why - 1] = '\0';
    if (status != INFINI_STATUS_SUCCESS) {
        const Outcome outcome = refuse(status, why[0] != '\0' ? why : status_name(status));
        slot.reason = keep(outcome.reason);
        return outcome;
    }
    slot.path = keep(path);
    slot.library = opened.release();
    slot.reason = "";
    slot.backend.store(backend, std::memory_order_release);
    return {INFINI_STATUS_SUCCESS, ""};
}

/** Where memory ends, it is read once more: what has been loaded then stays so. */
void load_from_environment() {
    const char *list = secure_getenv("INFINIOP_BACKEND_PATH"); // a setuid program must not load what its caller names
    std::string failures;
    for (const char *p = list != nullptr ? list : ""; *p != '\0';) {
        const size_t n = std::strcspn(p, ":");
        if (n > 0) {
            const Outcome outcome = load(std::string(p, n).c_str());
            if (outcome.status != INFINI_STATUS_SUCCESS) failures += "; " + outcome.reason;
        }
        p += n + (p[n] == ':');
    }
    registry.environment_failures = keep(failures);
    registry.environment_read = true;
}

/** "<folder>/" of this library, or "". */
std::string library_folder() {
    const std::string path = own_file.path;
    return path.substr(0, path.find_last_of('/') + 1);
}

void search(infiniDevice_t device) {
    if (Loading::here()) return;
    const Loading loading;
    if (!registry.environment_read) load_from_environment();
    Slot &slot = registry.slots[device];
    if (slot.searched || slot.backend.load() != nullptr) return;
    const std::string folder = library_folder(), path = folder + "libinfini_" + kPluginNames[device] + ".so";
    Outcome outcome{INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, ""};
    if (folder.empty()) {
        outcome.reason = "the folder of libinfinirt.so, where " + path + " would be, is not known";
    } else if (access(path.c_str(), F_OK) == 0) {
        outcome = load(path.c_str());
        if (slot.backend.load() != nullptr) return;
        if (outcome.status == INFINI_STATUS_SUCCESS) outcome.reason = path + ": it fills another slot";
    } else {
        outcome.reason = "there is no " + path;
    }
    if (*slot.reason.load() == '\0') slot.reason = keep(outcome.reason + registry.environment_failures);
    slot.searched = true; // now: where memory ends before, it is searched once more
}

} // namespace

const char *device_name(infiniDevice_t device) { return kDeviceNames[device]; }

const InfiniBackend *find_backend(infiniDevice_t device) {
    Slot &slot = registry.slots[device];
    const InfiniBackend *backend = slot.backend.load(std::memory_order_acquire);
    if (backend != nullptr) return backend;
    search(device);
    return slot.backend.load(std::memory_order_acquire);
}

infiniStatus_t fail_no_backend(const char *function, infiniDevice_t device) {
    const char *const reason = registry.slots[device].reason;
    return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "%s: no backend for %s: %s", function, device_name(device),
                *reason != '\0' ? reason : "it is being loaded");
}

int device_count(infiniDevice_t device) {
    const KeptMessage kept;
    const InfiniBackend *backend = find_backend(device);
    int count = 0;
    if (backend == nullptr || backend->runtime->device_count(&count) != INFINI_STATUS_SUCCESS || count < 0) return 0;
    return count;
}

} // namespace infini

using namespace infini;

extern "C" {

INFINI_EXPORT(infinirtLoadBackend, (const char *path), {
    if (path == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: path is NULL", fn);
    if (Loading::here())
        return fail(INFINI_STATUS_BAD_PARAM, "%s: %s: this thread is loading a plugin already", fn, path);
    const Outcome outcome = [&] {
        const Loading loading;
        return load(path);
    }();
    if (outcome.status == INFINI_STATUS_SUCCESS) return outcome.status;
    return fail(outcome.status, "%s: %s", fn, outcome.reason.c_str());
})

INFINI_EXPORT(infinirtIgnoreBackendPath, (void), {
    std::unique_lock<ForkMutex> lock(registry.mutex, std::defer_lock);
    if (!Loading::here()) lock.lock(); // or this thread has it
    registry.environment_read = true;
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infinirtGetBackendInfo, (infiniDevice_t device, InfiniBackendInfo *info), {
    if (info == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: info is NULL", fn);
    if (!device_known(device))
        return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "%s: %d is not a device type", fn, device);
    const InfiniBackend *backend = find_backend(device);
    const Slot &slot = registry.slots[device];
    if (backend != nullptr)
        *info = {true, backend->name, backend->version, slot.path, slot.reason};
    else
        *info = {false, "", "", "", slot.reason};
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infinirtGetBackend, (infiniDevice_t device, const InfiniBackend **backend), {
    if (backend == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: backend is NULL", fn);
    if (!device_known(device))
        return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "%s: %d is not a device type", fn, device);
    const InfiniBackend *found = find_backend(device);
    if (found == nullptr) return fail_no_backend(fn, device);
    *backend = found;
    return INFINI_STATUS_SUCCESS;
})

} // extern "C"
