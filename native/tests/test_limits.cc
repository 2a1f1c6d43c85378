/* Products whose sizes are near the limits are planned or refused: nothing overflows, which a build with sanitizers would tell. They
 * cost nothing, since operands of 0 strides are as long as one likes, and are never run. */
#include <cstdint>
#include <random>

#include "check.h"
#include "infiniop.h"

namespace {

std::mt19937_64 rng(20261130);
uint64_t pick(uint64_t count) { return rng() % count; }

/** Near a power of 2, or one of a few. */
int64_t pick_size() {
    static constexpr int64_t kUsual[] = {1, 2, 3, 15, 16, 17, 64, 255, 256, 257, 4096};
    if (pick(3) == 0) return kUsual[pick(11)];
    const int64_t size = int64_t{1} << pick(62);
    return size + (size > 1 ? static_cast<int64_t>(pick(3)) - 1 : 0);
}

struct Shape {
    size_t ndim;
    size_t sizes[3];
};

/** Row-major, a matrix transposed perhaps, or repeated along some dimensions. */
infiniopTensorDescriptor_t make(const Shape &shape, infiniDtype_t dtype, bool output) {
    ptrdiff_t strides[3];
    uint64_t step = 1; // wraps: what is too large is refused
    const bool transposed = pick(3) == 0;
    for (size_t i = 0; i < shape.ndim; ++i) {
        size_t d = shape.ndim - 1 - i;
        if (transposed && i < 2) d = shape.ndim - 2 + i;
        strides[d] = static_cast<ptrdiff_t>(step);
        step *= shape.sizes[d];
    }
    for (size_t d = 0; !output && d < shape.ndim; ++d)
        if (pick(2) == 0) strides[d] = 0;
    infiniopTensorDescriptor_t made = nullptr;
    infiniopCreateTensorDescriptor(&made, shape.ndim, shape.sizes, strides, dtype);
    return made;
}

} // namespace

int main() {
    infiniopHandle_t handle;
    CHECK(infiniopCreateHandle(&handle) == INFINI_STATUS_SUCCESS);
    constexpr infiniDtype_t kDtypes[] = {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64};
    long planned = 0;
    for (int i = 0; i < 20000; ++i) {
        const infiniDtype_t dtype = kDtypes[pick(4)];
        const size_t batch = static_cast<size_t>(pick(2) == 0 ? 1 : pick_size()), m = static_cast<size_t>(pick_size()),
                     n = static_cast<size_t>(pick_size()), k = static_cast<size_t>(pick_size());
        infiniopTensorDescriptor_t c = make({3, {batch, m, n}}, dtype, true),
                                   a = make({3, {batch, m, k}}, dtype, false),
                                   b = make({3, {batch, k, n}}, dtype, false);
        infiniopGemmDescriptor_t gemm = nullptr;
        if (c != nullptr && a != nullptr && b != nullptr &&
            infiniopCreateGemmDescriptor(handle, &gemm, c, a, b) == INFINI_STATUS_SUCCESS) {
            size_t size;
            CHECK(infiniopGetGemmWorkspaceSize(gemm, &size) == INFINI_STATUS_SUCCESS);
            ++planned;
        }
        infiniopDestroyGemmDescriptor(gemm);
        for (infiniopTensorDescriptor_t x : {c, a, b}) infiniopDestroyTensorDescriptor(x);
    }
    CHECK(planned > 1000);
    infiniopDestroyHandle(handle);
    return check::summary();
}
