/* The CPU as a device: heap memory, streams without a queue, events that are complete when recorded. */
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "core/control_group.h"
#include "core/fork_mutex.h"
#include "core/slab.h"
#include "core/status.h"
#include "cpu/copy_bytes.h"
#include "cpu/cpu_backend.h"

#ifndef INFINI_VERSION
#error "the build defines INFINI_VERSION"
#endif

namespace infini {

namespace {

constexpr size_t kAlignment = 64; // a cache line, and the widest vector

struct CpuStream {};

using Clock = std::chrono::steady_clock;

struct CpuEvent {
    bool timed = true;
    std::atomic<bool> recorded{false};   // by one thread, perhaps while another asks
    std::atomic<Clock::duration> at{{}}; // since the clock's epoch
};

/** Live allocations: freeing anything else is an error and not a corrupted heap. */
struct Allocations {
    ForkMutex mutex;
    std::set<void *> live;
};
Allocations &allocations = *new Allocations;

infiniStatus_t check_stream(const char *what, infinirtStream_t stream) {
    if (stream == nullptr || slab<CpuStream>.find(stream) != nullptr) return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_PARAM, "%s: stream %p is not a live CPU stream", what, stream);
}

infiniStatus_t find_event(const char *what, infinirtEvent_t event, CpuEvent **found, const char *name = "event") {
    *found = slab<CpuEvent>.find(event);
    if (*found != nullptr) return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_PARAM, "%s: %s %p is not a live CPU event", what, name, event);
}

infiniStatus_t device_count(int *count) {
    *count = 1;
    return INFINI_STATUS_SUCCESS;
}

/** The number behind a name in a file of such lines, or the one that a file begins with; or `otherwise` ("max", no such file). */
uint64_t read_number(const std::string &path, const char *name, uint64_t otherwise) {
    FILE *file = std::fopen(path.c_str(), "r");
    if (file == nullptr) return otherwise;
    const size_t length = std::strlen(name);
    uint64_t value = otherwise;
    for (char line[128]; std::fgets(line, sizeof line, file) != nullptr;) {
        if (std::strncmp(line, name, length) != 0) continue;
        if (std::sscanf(line + length, "%" SCNu64, &value) != 1) value = otherwise;
        break;
    }
    std::fclose(file);
    return value;
}

/** Where a control group says its limit, its use, and the part of it that is inactive files, which it gives up before it refuses
 *  memory: they are no less free than what the system itself counts as available. */
struct MemoryFiles {
    std::string limit, used, statistics;
    const char *of_files; // in the statistics
};

/** Of free and total bytes, what a control group leaves. */
void limit_memory(const MemoryFiles &group, uint64_t &available, uint64_t &total) {
    const uint64_t limit = read_number(group.limit, "", UINT64_MAX);
    const uint64_t used = read_number(group.used, "", 0);
    const uint64_t needed = used - std::min(used, read_number(group.statistics, group.of_files, 0));
    total = std::min(total, limit);
    available = std::min(available, limit - std::min(needed, limit));
}

infiniStatus_t mem_info(int, size_t *free_bytes, size_t *total_bytes) {
    const std::string system = "/proc/meminfo";
    uint64_t total = read_number(system, "MemTotal:", 0), available = read_number(system, "MemAvailable:", 0);
    if (total == 0) return fail(INFINI_STATUS_INTERNAL_ERROR, "infinirtGetMemInfo: /proc/meminfo cannot be read");
    total *= 1024;
    available *= 1024;
    each_control_group([&](const std::string &group) {
        limit_memory({group + "/memory.max", group + "/memory.current", group + "/memory.stat", "inactive_file "},
                     available, total);
    });
    const std::string own = std::string(kControlGroups) + "/memory/memory."; // of version 1, as a container sees it
    limit_memory({own + "limit_in_bytes", own + "usage_in_bytes", own + "stat", "total_inactive_file "}, available,
                 total);
    *free_bytes = available;
    *total_bytes = total;
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t device_synchronize(int) { return INFINI_STATUS_SUCCESS; }

infiniStatus_t stream_create(int, infinirtStream_t *stream) {
    *stream = slab<CpuStream>.create();
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t stream_destroy(int, infinirtStream_t stream) {
    if (stream == nullptr) return INFINI_STATUS_SUCCESS;
    if (const infiniStatus_t status = check_stream("infinirtStreamDestroy", stream)) return status;
    const bool mine = slab<CpuStream>.destroy(static_cast<CpuStream *>(stream)); // or another thread's, by now
    return mine ? INFINI_STATUS_SUCCESS : check_stream("infinirtStreamDestroy", stream);
}
infiniStatus_t stream_synchronize(int, infinirtStream_t stream) {
    return check_stream("infinirtStreamSynchronize", stream);
}
infiniStatus_t stream_wait_event(int, infinirtStream_t stream, infinirtEvent_t event) {
    CpuEvent *found;
    if (const infiniStatus_t status = check_stream("infinirtStreamWaitEvent", stream)) return status;
    return find_event("infinirtStreamWaitEvent", event, &found);
}

infiniStatus_t event_create(int, infinirtEvent_t *event, uint32_t flags) {
    CpuEvent *made = slab<CpuEvent>.create();
    made->timed = (flags & INFINIRT_EVENT_DISABLE_TIMING) == 0;
    *event = made;
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t event_record(int, infinirtEvent_t event, infinirtStream_t stream) {
    CpuEvent *found;
    if (const infiniStatus_t status = find_event("infinirtEventRecord", event, &found)) return status;
    if (const infiniStatus_t status = check_stream("infinirtEventRecord", stream)) return status;
    found->at = Clock::now().time_since_epoch();
    found->recorded = true;
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t event_query(int, infinirtEvent_t event, infinirtEventStatus_t *state) {
    CpuEvent *found;
    if (const infiniStatus_t status = find_event("infinirtEventQuery", event, &found)) return status;
    *state = INFINIRT_EVENT_COMPLETE;
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t event_synchronize(int, infinirtEvent_t event) {
    CpuEvent *found;
    return find_event("infinirtEventSynchronize", event, &found);
}
infiniStatus_t event_destroy(int, infinirtEvent_t event) {
    if (event == nullptr) return INFINI_STATUS_SUCCESS;
    CpuEvent *found;
    if (const infiniStatus_t status = find_event("infinirtEventDestroy", event, &found)) return status;
    return slab<CpuEvent>.destroy(found) ? INFINI_STATUS_SUCCESS : find_event("infinirtEventDestroy", event, &found);
}
infiniStatus_t event_elapsed_time(int, float *ms, infinirtEvent_t start, infinirtEvent_t end) {
    CpuEvent *from, *to;
    if (const infiniStatus_t status = find_event("infinirtEventElapsedTime", start, &from, "start")) return status;
    if (const infiniStatus_t status = find_event("infinirtEventElapsedTime", end, &to, "end")) return status;
    for (const CpuEvent *event : {from, to}) {
        const char *which = event == from ? "start" : "end";
        if (!event->timed)
            return fail(INFINI_STATUS_BAD_PARAM, "infinirtEventElapsedTime: %s was created with DISABLE_TIMING", which);
        if (!event->recorded)
            return fail(INFINI_STATUS_BAD_PARAM, "infinirtEventElapsedTime: %s was never recorded", which);
    }
    *ms = std::chrono::duration<float, std::milli>(to->at.load() - from->at.load()).count();
    return INFINI_STATUS_SUCCESS;
}

/** Of as much memory the system gives each page at its first touch, which takes longer than most operators do with it: in huge pages,
 *  where it has such for who asks, half as long or less. As NumPy does. */
void ask_for_huge_pages([[maybe_unused]] void *memory, [[maybe_unused]] size_t size) {
#if defined(MADV_HUGEPAGE)
    constexpr size_t kLeast = size_t{4} << 20, kPage = 4096;
    if (size < kLeast) return;
    const size_t before = -reinterpret_cast<uintptr_t>(memory) % kPage; // a page that begins elsewhere is not all ours
    const int error = errno;
    madvise(static_cast<char *>(memory) + before, (size - before) / kPage * kPage, MADV_HUGEPAGE);
    errno = error; // a wish that may be refused
#endif
}

infiniStatus_t allocate(const char *what, void **ptr, size_t size) {
    // Rounding up to the alignment must not wrap; nothing near SIZE_MAX can be had anyway.
    void *memory = size <= SIZE_MAX - kAlignment
                       ? std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment)
                       : nullptr;
    if (memory == nullptr)
        return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: %zu bytes of CPU memory cannot be had", what, size);
    ask_for_huge_pages(memory, size);
    try {
        std::lock_guard<ForkMutex> lock(allocations.mutex);
        allocations.live.insert(memory);
    } catch (...) {
        std::free(memory);
        throw;
    }
    *ptr = memory;
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t release(const char *what, void *ptr) {
    if (ptr == nullptr) return INFINI_STATUS_SUCCESS;
    {
        std::lock_guard<ForkMutex> lock(allocations.mutex);
        if (allocations.live.erase(ptr) == 0)
            return fail(INFINI_STATUS_BAD_PARAM, "%s: %p is not live memory of infinirtMalloc on the CPU", what, ptr);
    }
    std::free(ptr);
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t malloc_device(int, void **ptr, size_t size) { return allocate("infinirtMalloc", ptr, size); }
infiniStatus_t malloc_host(int, void **ptr, size_t size) { return allocate("infinirtMallocHost", ptr, size); }
infiniStatus_t malloc_async(int, void **ptr, size_t size, infinirtStream_t stream) {
    if (const infiniStatus_t status = check_stream("infinirtMallocAsync", stream)) return status;
    return allocate("infinirtMallocAsync", ptr, size);
}
infiniStatus_t free_device(int, void *ptr) { return release("infinirtFree", ptr); }
infiniStatus_t free_host(int, void *ptr) { return release("infinirtFreeHost", ptr); }
infiniStatus_t free_async(int, void *ptr, infinirtStream_t stream) {
    if (const infiniStatus_t status = check_stream("infinirtFreeAsync", stream)) return status;
    return release("infinirtFreeAsync", ptr);
}

infiniStatus_t copy(int, void *dst, const void *src, size_t size, infinirtMemcpyKind_t) {
    copy_bytes(dst, src, size);
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t copy_async(int id, void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind,
                          infinirtStream_t stream) {
    if (const infiniStatus_t status = check_stream("infinirtMemcpyAsync", stream)) return status;
    return copy(id, dst, src, size, kind);
}
infiniStatus_t set(int, void *ptr, int value, size_t size) {
    std::memset(ptr, value, size);
    return INFINI_STATUS_SUCCESS;
}
infiniStatus_t set_async(int id, void *ptr, int value, size_t size, infinirtStream_t stream) {
    if (const infiniStatus_t status = check_stream("infinirtMemsetAsync", stream)) return status;
    return set(id, ptr, value, size);
}

infiniStatus_t probe(char *, size_t) { return INFINI_STATUS_SUCCESS; }

constexpr InfiniRuntimeTable make_runtime() {
    InfiniRuntimeTable t{};
    t.struct_size = sizeof t;
    t.device_count = device_count;
    t.mem_info = mem_info;
    t.device_synchronize = device_synchronize;
    t.stream_create = stream_create;
    t.stream_destroy = stream_destroy;
    t.stream_synchronize = stream_synchronize;
    t.stream_wait_event = stream_wait_event;
    t.event_create = event_create;
    t.event_record = event_record;
    t.event_query = event_query;
    t.event_synchronize = event_synchronize;
    t.event_destroy = event_destroy;
    t.event_elapsed_time = event_elapsed_time;
    t.malloc_device = malloc_device;
    t.malloc_host = malloc_host;
    t.free_device = free_device;
    t.free_host = free_host;
    t.malloc_async = malloc_async;
    t.free_async = free_async;
    t.memcpy_sync = copy;
    t.memcpy_async = copy_async;
    t.memset_sync = set;
    t.memset_async = set_async;
    return t;
}
constexpr InfiniRuntimeTable kRuntime = make_runtime();

} // namespace

const InfiniBackend kCpuBackend = {
    INFINI_BACKEND_ABI, sizeof(InfiniBackend), INFINI_DEVICE_CPU, "cpu", INFINI_VERSION, probe, &kRuntime, nullptr};

} // namespace infini
