/* The graph executor: a list of checked calls, run in order. A device that can capture is given the list once, at the first
 * run, and launches it as a whole from then on. */
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "core/kept_message.h"
#include "core/lazy.h"
#include "op/descriptor.h"

using namespace infini;

namespace {

/** Several steps in a row, and why the first that failed did. Allocates nothing: no step is left out for lack of memory. */
class Attempt {
public:
    /** Makes a step; did it succeed? */
    template <class Step>
    bool operator()(const char *what, Step &&step) {
        infinirtSetLastError(INFINI_STATUS_SUCCESS, ""); // a step that fails without a word must not get another's
        const infiniStatus_t status = step();
        if (status == INFINI_STATUS_SUCCESS) return true;
        if (ok()) {
            const char *said = infinirtGetLastErrorMessage();
            std::snprintf(why_, sizeof why_, "%s: %s", what, *said != '\0' ? said : status_name(status));
        }
        return false;
    }
    bool ok() const { return why_[0] == '\0'; }
    const char *why() const { return why_; }

private:
    char why_[kMessage] = "";
};

bool offers_capture(const InfiniRuntimeTable &table) {
    return table.stream_begin_capture != nullptr && table.stream_end_capture != nullptr &&
           table.graph_destroy != nullptr && table.graph_instantiate != nullptr &&
           table.graph_exec_destroy != nullptr && table.graph_launch != nullptr;
}

Lazy<bool> capture_switched_off{[] {
    const char *off = secure_getenv("INFINIOP_NO_CAPTURE");
    return off != nullptr && *off != '\0';
}};

} // namespace

struct InfiniopGraph {
    struct Node {
        Node(Plan *shared_plan, void *ws, size_t ws_size, void *const *pointers, int n, float a, float b)
            : plan(shared_plan), operands(pointers, pointers + n), workspace(ws), workspace_size(ws_size), alpha(a),
              beta(b) {
            plan->retain();
        }
        Node(Node &&other) noexcept
            : plan(other.plan), operands(std::move(other.operands)), workspace(other.workspace),
              workspace_size(other.workspace_size), alpha(other.alpha), beta(other.beta) {
            other.plan = nullptr;
        }
        ~Node() {
            if (plan != nullptr) plan->release();
        }
        infiniStatus_t run(void *stream) const {
            return plan->run({workspace, workspace_size, operands.data(), alpha, beta, stream});
        }
        Plan *plan;
        std::vector<void *> operands;
        void *workspace;
        size_t workspace_size;
        float alpha, beta;
    };

    InfiniopGraph(const Handle &handle, const InfiniRuntimeTable &table)
        : device(handle.device), device_id(handle.device_id), runtime(table),
          captures(offers_capture(table) && !capture_switched_off.get()) {}
    ~InfiniopGraph() { drop_capture(); }

    void append(Node &&node);
    infiniStatus_t run(void *stream);
    const char *describe();

    const infiniDevice_t device;
    const int device_id;

private:
    infiniStatus_t run_calls(void *stream) const;
    infiniStatus_t first_run(void *stream);
    void capture(Attempt &attempt);
    void drop_capture();

    const InfiniRuntimeTable &runtime; // acts on the device it is given, whichever is this thread's current one
    const bool captures;               // false: the members after `nodes` are not used
    std::vector<Node> nodes;

    enum class Replay { kUndecided, kCaptured, kOpByOp };
    std::mutex mutex; // of what follows; also held for a launch, which device graphs do not allow two of at once
    Replay replay = Replay::kUndecided;
    infinirtGraph_t device_graph = nullptr;
    infinirtGraphExec_t exec = nullptr;
    std::string text; // once it is decided
};

void InfiniopGraph::append(Node &&node) {
    std::lock_guard<std::mutex> lock(mutex);
    if (replay == Replay::kCaptured) {
        drop_capture();
        replay = Replay::kUndecided;
    }
    nodes.push_back(std::move(node));
}

infiniStatus_t InfiniopGraph::run_calls(void *stream) const {
    for (const Node &node : nodes)
        if (const infiniStatus_t status = node.run(stream)) return status;
    return INFINI_STATUS_SUCCESS;
}

infiniStatus_t InfiniopGraph::run(void *stream) {
    if (!captures) return run_calls(stream);
    std::unique_lock<std::mutex> lock(mutex);
    if (replay == Replay::kUndecided) return first_run(stream);
    if (replay == Replay::kCaptured) return runtime.graph_launch(device_id, exec, stream);
    lock.unlock();
    return run_calls(stream);
}

infiniStatus_t InfiniopGraph::first_run(void *stream) {
    // Before anything is captured: what may throw must leave nothing behind.
    text = "captured, " + std::to_string(nodes.size()) + " calls";
    Attempt attempt;
    {
        const KeptMessage kept;
        capture(attempt);
        if (attempt.ok()) attempt("first launch", [&] { return runtime.graph_launch(device_id, exec, stream); });
        if (attempt.ok()) {
            replay = Replay::kCaptured;
            return INFINI_STATUS_SUCCESS;
        }
        drop_capture();
    }
    text = std::string("capture failed, op by op: ") + attempt.why();
    // Nothing ran yet, also when it was the launch that failed. A stream or a device that refuses the calls as well says
    // nothing about capture, which the next run tries again.
    if (const infiniStatus_t status = run_calls(stream)) return status;
    replay = Replay::kOpByOp;
    return INFINI_STATUS_SUCCESS;
}

void InfiniopGraph::capture(Attempt &attempt) {
    // A stream of its own: a default stream cannot be captured, and the caller's may have work of others in it.
    infinirtStream_t own = nullptr;
    if (!attempt("creating a stream", [&] { return runtime.stream_create(device_id, &own); })) return;
    // THREAD_LOCAL: other threads may do meanwhile what no capture can record, such as allocating; this one may not, because
    // a replay would leave it out.
    if (attempt("beginning the capture", [&] {
            return runtime.stream_begin_capture(device_id, own, INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        })) {
        for (size_t i = 0; i < nodes.size() && attempt.ok(); ++i) {
            char what[64];
            std::snprintf(what, sizeof what, "call %zu, %s", i + 1, nodes[i].plan->spec().name);
            attempt(what, [&] { return nodes[i].run(own); });
        }
        // Whatever came of the calls: the stream would go on recording.
        if (!attempt("ending the capture", [&] { return runtime.stream_end_capture(device_id, own, &device_graph); }))
            device_graph = nullptr;
    }
    attempt("destroying the stream", [&] { return runtime.stream_destroy(device_id, own); });
    if (!attempt.ok()) return;
    if (!attempt("instantiating", [&] {
            char log[512] = "";
            const infiniStatus_t status =
                runtime.graph_instantiate(device_id, &exec, device_graph, nullptr, log, sizeof log);
            if (status == INFINI_STATUS_SUCCESS || log[0] == '\0') return status;
            return fail(status, "%s (%s)", infinirtGetLastErrorMessage(), log);
        }))
        exec = nullptr;
}

/** What cannot be given back is the device's loss: whoever destroys a graph has no other way to do it. */
void InfiniopGraph::drop_capture() {
    if (exec == nullptr && device_graph == nullptr) return;
    const KeptMessage kept;
    if (exec != nullptr) runtime.graph_exec_destroy(device_id, exec);
    if (device_graph != nullptr) runtime.graph_destroy(device_id, device_graph);
    exec = nullptr;
    device_graph = nullptr;
}

const char *InfiniopGraph::describe() {
    if (!captures)
        return offers_capture(runtime) ? "op by op: INFINIOP_NO_CAPTURE is set" : "op by op: the device has no capture";
    std::lock_guard<std::mutex> lock(mutex);
    return replay == Replay::kUndecided ? "not decided before the first run" : text.c_str();
}

namespace {

infiniStatus_t find_graph(const char *function, infiniopGraph_t graph, InfiniopGraph **found) {
    *found = nullptr;
    if (graph == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: graph is NULL", function);
    *found = slab<InfiniopGraph>.find(graph);
    if (*found != nullptr) return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_PARAM, "%s: graph %p was destroyed or is no such object", function,
                static_cast<void *>(graph));
}

} // namespace

extern "C" {

INFINI_EXPORT(infiniopCreateGraph, (infiniopHandle_t handle, infiniopGraph_t *graph), {
    if (graph == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: graph is NULL", fn);
    Handle *device;
    if (const infiniStatus_t status = find_handle(fn, handle, &device)) return status;
    const InfiniBackend *backend;
    if (const infiniStatus_t status = infinirtGetBackend(device->device, &backend)) return status;
    *graph = slab<InfiniopGraph>.create(*device, *backend->runtime);
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopGraphAppend,
              (infiniopGraph_t graph, const struct InfiniopDescriptor *desc, void *workspace, size_t workspace_size,
               void *const *operands, size_t n_operands, float alpha, float beta),
              {
                  InfiniopGraph *to;
                  Descriptor *found;
                  if (const infiniStatus_t status = find_graph(fn, graph, &to)) return status;
                  if (const infiniStatus_t status = find_descriptor(fn, nullptr, desc, &found)) return status;
                  if (operands == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: operands is NULL", fn);
                  Plan *plan = found->plan;
                  const OpSpec &spec = plan->spec();
                  if (n_operands != static_cast<size_t>(spec.n_operands))
                      return fail(INFINI_STATUS_BAD_PARAM, "%s: %zu operands, %s has %d", fn, n_operands, spec.name,
                                  spec.n_operands);
                  if (plan->device_type() != to->device || plan->device_id() != to->device_id)
                      return fail(INFINI_STATUS_BAD_PARAM,
                                  "%s: the descriptor of %s is for device %d:%d, the graph for %d:%d", fn, spec.name,
                                  plan->device_type(), plan->device_id(), to->device, to->device_id);
                  const InfiniCall call{workspace, workspace_size, operands, alpha, beta, nullptr};
                  if (const infiniStatus_t status = plan->check_call(call)) return status;
                  to->append({plan, workspace, workspace_size, operands, spec.n_operands, alpha, beta});
                  return INFINI_STATUS_SUCCESS;
              })

INFINI_EXPORT(infiniopGraphRun, (infiniopGraph_t graph, void *stream), {
    InfiniopGraph *found;
    if (const infiniStatus_t status = find_graph(fn, graph, &found)) return status;
    return found->run(stream);
})

INFINI_EXPORT(infiniopGraphDescribe, (infiniopGraph_t graph, const char **text), {
    if (text == nullptr) return fail(INFINI_STATUS_NULL_POINTER, "%s: text is NULL", fn);
    InfiniopGraph *found;
    if (const infiniStatus_t status = find_graph(fn, graph, &found)) return status;
    *text = found->describe();
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopDestroyGraph, (infiniopGraph_t graph), {
    if (graph == nullptr) return INFINI_STATUS_SUCCESS;
    InfiniopGraph *found;
    if (const infiniStatus_t status = find_graph(fn, graph, &found)) return status;
    return slab<InfiniopGraph>.destroy(found) ? INFINI_STATUS_SUCCESS : find_graph(fn, graph, &found);
})

} // extern "C"
