/* Runs a graph in a thread with a stack of a given size. */
#include <pthread.h>
#include <stddef.h>

struct run {
    int (*graph_run)(void *graph, void *stream);
    void *graph;
    int status;
};

static void *body(void *started) {
    struct run *run = started;
    run->status = run->graph_run(run->graph, NULL);
    return NULL;
}

/* The status of the run, or -1 where there is no such thread. */
int run_on_small_stack(int (*graph_run)(void *graph, void *stream), void *graph, size_t size) {
    struct run run = {graph_run, graph, -1};
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0) return -1;
    if (pthread_attr_setstacksize(&attributes, size) == 0 && pthread_create(&thread, &attributes, body, &run) == 0)
        pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    return run.status;
}
