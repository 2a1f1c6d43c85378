/* What is registered with torch from C++. Schemas, what results look like, and what computes on other devices than the CPU
 * come from Python (_library.py), which has this compiled where torch is. */
#include "autocast.h"
#include "autograd.h"
#include "composite.h"
#include "cpu.h"

#include <torch/library.h>

namespace {

using namespace infiniop::torch_ops;
using infiniop::kAdd;
using infiniop::kMul;

} // namespace

TORCH_LIBRARY_IMPL(infiniop, CPU, m) {
    m.impl("gemm", TORCH_FN(gemm_on_cpu));
    m.impl("gemm_", TORCH_FN(gemm_into_on_cpu));
    m.impl("add", TORCH_FN((elementwise_on_cpu<Add, kAdd>)));
    m.impl("add_", TORCH_FN((elementwise_into_on_cpu<AddInto, kAdd>)));
    m.impl("mul", TORCH_FN((elementwise_on_cpu<Mul, kMul>)));
    m.impl("mul_", TORCH_FN((elementwise_into_on_cpu<MulInto, kMul>)));
    m.impl("add_rms_norm", TORCH_FN(add_rms_norm_on_cpu));
    m.impl("add_rms_norm_", TORCH_FN(add_rms_norm_into_on_cpu));
    m.impl("rearrange", TORCH_FN(rearrange_on_cpu));
    m.impl("rearrange_", TORCH_FN(rearrange_into_on_cpu));
}

TORCH_LIBRARY_IMPL(infiniop, CompositeImplicitAutograd, m) { m.impl("linear", TORCH_FN(linear)); }

TORCH_LIBRARY_IMPL(infiniop, Autograd, m) {
    m.impl("gemm", TORCH_FN(gemm_recorded));
    m.impl("add", TORCH_FN(add_recorded));
    m.impl("mul", TORCH_FN(mul_recorded));
    m.impl("add_rms_norm", TORCH_FN(add_rms_norm_recorded));
    m.impl("rearrange", TORCH_FN(rearrange_recorded));
    m.impl("gemm_", TORCH_FN((Written<GemmInto>::unrecorded<gemm_into_on_cpu>)));
    m.impl("add_", TORCH_FN((Written<AddInto>::unrecorded<(elementwise_into_on_cpu<AddInto, kAdd>)>)));
    m.impl("mul_", TORCH_FN((Written<MulInto>::unrecorded<(elementwise_into_on_cpu<MulInto, kMul>)>)));
    m.impl("add_rms_norm_", TORCH_FN((Written<AddRMSNormInto>::unrecorded<add_rms_norm_into_on_cpu>)));
    m.impl("rearrange_", TORCH_FN((Written<RearrangeInto>::unrecorded<rearrange_into_on_cpu>)));
}

template <at::DeviceType device>
void register_autocast(torch::Library &m) {
    m.impl("gemm", TORCH_FN(gemm_converted<device>));
    m.impl("add", TORCH_FN((elementwise_converted<device, Add>)));
    m.impl("mul", TORCH_FN((elementwise_converted<device, Mul>)));
    m.impl("add_rms_norm", TORCH_FN(add_rms_norm_converted<device>));
}

TORCH_LIBRARY_IMPL(infiniop, AutocastCPU, m) { register_autocast<at::kCPU>(m); }
TORCH_LIBRARY_IMPL(infiniop, AutocastCUDA, m) { register_autocast<at::kCUDA>(m); }

/** Does the calling thread record calls from now on? */
extern "C" INFINI_API void infiniop_torch_record(bool on) { records = on; }

/** An operator has got an implementation for the CPU in Python. */
extern "C" INFINI_API void infiniop_torch_ask_python(const char *name) {
    for (int op = 0; op < infiniop::kOperatorCount; ++op)
        if (std::strcmp(infiniop::kOperators[op].name, name) == 0) is_implemented[op] = true;
}
