/** gemm.cc: C = 2 * A @ B + C from a C++ program: the handles have owners, errors are exceptions.
 *
 *      c++ -std=c++17 gemm.cc $(pkg-config --cflags --libs infiniop) -o gemm && ./gemm
 *
 *  The problem of gemm.c, which says more about the calls themselves. Exits with 0 when the result is the expected one. */
#include <infiniop.h>
#include <infinirt.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

/** Throws what the library says about a status that is not SUCCESS. */
void check(infiniStatus_t status) {
    if (status == INFINI_STATUS_SUCCESS) return;
    throw std::runtime_error(infiniopStatusString(status) + std::string(": ") + infiniopGetLastErrorMessage());
}

template <auto destroy>
struct Destroy {
    template <class T>
    void operator()(T *object) const {
        destroy(object);
    }
};
template <class Pointer, auto destroy>
using Owner = std::unique_ptr<std::remove_pointer_t<Pointer>, Destroy<destroy>>;

using Handle = Owner<infiniopHandle_t, infiniopDestroyHandle>;
using TensorDescriptor = Owner<infiniopTensorDescriptor_t, infiniopDestroyTensorDescriptor>;
using GemmDescriptor = Owner<infiniopGemmDescriptor_t, infiniopDestroyGemmDescriptor>;
using Memory = Owner<void *, infinirtFree>;

/** The owner of what create(&pointer) makes. */
template <class Owner, class Create>
Owner make(Create create) {
    typename Owner::pointer pointer = nullptr;
    check(create(&pointer));
    return Owner(pointer);
}

/** A matrix in someone's memory; strides are in elements. */
template <class T>
struct Matrix {
    T *data;
    size_t rows, columns;
    ptrdiff_t row_stride, column_stride;

    TensorDescriptor describe() const {
        static_assert(std::is_same_v<std::remove_const_t<T>, float>, "other types have other INFINI_DTYPE_ numbers");
        const size_t shape[] = {rows, columns};
        const ptrdiff_t strides[] = {row_stride, column_stride};
        return make<TensorDescriptor>([&](infiniopTensorDescriptor_t *desc) {
            return infiniopCreateTensorDescriptor(desc, 2, shape, strides, INFINI_DTYPE_F32);
        });
    }
};

/** C = alpha * A @ B + beta * C. A program that runs one layout many times keeps the descriptor and the workspace. */
void gemm(const Matrix<float> &c, const Matrix<const float> &a, const Matrix<const float> &b, float alpha, float beta) {
    const auto handle = make<Handle>(infiniopCreateHandle);
    const auto desc = make<GemmDescriptor>([&](infiniopGemmDescriptor_t *made) {
        return infiniopCreateGemmDescriptor(handle.get(), made, c.describe().get(), a.describe().get(),
                                            b.describe().get());
    });
    size_t size = 0;
    check(infiniopGetGemmWorkspaceSize(desc.get(), &size));
    const auto workspace = make<Memory>([&](void **pointer) { return infinirtMalloc(pointer, size); });
    check(infiniopGemm(desc.get(), workspace.get(), size, c.data, a.data, b.data, alpha, beta, nullptr));
}

} // namespace

int main() try {
    // Rows of A lie five elements apart; -9 is padding that must not be used. B is stored transposed.
    const std::vector<float> a = {1, 2, 3, -9, -9, 4, 5, 6, -9, -9};
    const std::vector<float> b = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1};
    std::vector<float> c = {100, 200, 300, 400, 500, 600, 700, 800};
    gemm({c.data(), 2, 4, 4, 1}, {a.data(), 2, 3, 5, 1}, {b.data(), 3, 4, 1, 3}, 2, 1);
    for (size_t i = 0; i < c.size(); ++i) std::printf("%6.1f%s", c[i], i % 4 < 3 ? " " : "\n");

    // What does not fit is an exception that says why.
    try {
        gemm({c.data(), 2, 4, 4, 1}, {a.data(), 2, 3, 5, 1}, {b.data(), 4, 3, 3, 1}, 1, 0);
        return 1;
    } catch (const std::runtime_error &error) {
        std::printf("%s\n", error.what());
    }
    return c == std::vector<float>{102, 204, 306, 412, 508, 610, 712, 830} ? 0 : 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
