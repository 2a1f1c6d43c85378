/* What an operator is on the CPU: a function that plans a problem, found in src/cpu/<op>.cc. */
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"

namespace infini {

/** A planned problem. */
struct CpuPlan {
    virtual ~CpuPlan() = default;
    /** Any number of threads may run one plan. */
    virtual void run(const InfiniCall &call) const = 0;

    std::string description; // how, in a few words
};

#define INFINI_CPU_PLANNER(ID, name) \
    std::unique_ptr<CpuPlan> plan_##name(const InfiniProblem &problem, size_t *workspace_size);
INFINI_OP_LIST(INFINI_CPU_PLANNER)
#undef INFINI_CPU_PLANNER

} // namespace infini
