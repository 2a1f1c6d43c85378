/* The graph executor: a list of checked calls, run in order. */
#include <vector>

#include "op/descriptor.h"

using namespace infini;

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
        Plan *plan;
        std::vector<void *> operands;
        void *workspace;
        size_t workspace_size;
        float alpha, beta;
    };

    infiniDevice_t device;
    int device_id;
    std::vector<Node> nodes;
};

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
    InfiniopGraph *made = slab<InfiniopGraph>.create();
    made->device = device->device;
    made->device_id = device->device_id;
    *graph = made;
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
                  to->nodes.emplace_back(plan, workspace, workspace_size, operands, spec.n_operands, alpha, beta);
                  return INFINI_STATUS_SUCCESS;
              })

INFINI_EXPORT(infiniopGraphRun, (infiniopGraph_t graph, void *stream), {
    InfiniopGraph *found;
    if (const infiniStatus_t status = find_graph(fn, graph, &found)) return status;
    for (const InfiniopGraph::Node &node : found->nodes) {
        const InfiniCall call{node.workspace, node.workspace_size, node.operands.data(), node.alpha, node.beta, stream};
        if (const infiniStatus_t status = node.plan->run(call)) return status;
    }
    return INFINI_STATUS_SUCCESS;
})

INFINI_EXPORT(infiniopDestroyGraph, (infiniopGraph_t graph), {
    if (graph == nullptr) return INFINI_STATUS_SUCCESS;
    InfiniopGraph *found;
    if (const infiniStatus_t status = find_graph(fn, graph, &found)) return status;
    slab<InfiniopGraph>.destroy(found);
    return INFINI_STATUS_SUCCESS;
})

} // extern "C"
