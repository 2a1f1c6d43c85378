/** gemm.c: C = 2 * A @ B + C from a plain C program, with the four steps that every operator has.
 *
 *      cc -std=c99 gemm.c $(pkg-config --cflags --libs infiniop) -o gemm && ./gemm
 *
 *  A is [2, 3] inside wider rows, B is stored transposed, C is compact: strides say so, nothing is copied.
 *  Exits with 0 when the result is the expected one. */
#include <infiniop.h>
#include <infinirt.h>

#include <stdio.h>

enum { M = 2, N = 4, K = 3, A_ROW = 5 };

/** Prints what failed and why; every call of the library can be wrapped in it. */
static int failed(const char *call, infiniStatus_t status) {
    if (status == INFINI_STATUS_SUCCESS) return 0;
    fprintf(stderr, "%s: %s: %s\n", call, infiniopStatusString(status), infiniopGetLastErrorMessage());
    return 1;
}
#define FAILED(call) failed(#call, call)

int main(void) {
    /* Rows of A are A_ROW elements apart; the elements marked -9 are padding that the operator must not use. */
    static const float a[M * A_ROW] = {1, 2, 3, -9, -9, /* row 0 */
                                       4, 5, 6, -9, -9 /* row 1 */};
    /* B[k][n] lies at b[n * K + k]: the transpose of a compact [N, K] array. */
    static const float b[N * K] = {1, 0, 0, /* column 0 */
                                   0, 1, 0, /* column 1 */
                                   0, 0, 1, /* column 2 */
                                   1, 1, 1 /* column 3 */};
    float c[M * N] = {100, 200, 300, 400, 500, 600, 700, 800};
    static const float expected[M * N] = {102, 204, 306, 412, 508, 610, 712, 830};

    /* Sizes and strides are in elements. NULL strides mean row-major. */
    const size_t shape_a[2] = {M, K}, shape_b[2] = {K, N}, shape_c[2] = {M, N};
    const ptrdiff_t strides_a[2] = {A_ROW, 1}, strides_b[2] = {1, K};

    infiniopHandle_t handle = NULL;
    infiniopTensorDescriptor_t desc_a = NULL, desc_b = NULL, desc_c = NULL;
    infiniopGemmDescriptor_t gemm = NULL;
    void *workspace = NULL;
    size_t workspace_size = 0;
    int wrong = 1; /* until the result was checked */

    /* 1. Describe the problem to the device. Shapes, types and strides are checked here, and only here. */
    if (FAILED(infinirtSetDevice(INFINI_DEVICE_CPU, 0))) goto end;
    if (FAILED(infiniopCreateHandle(&handle))) goto end;
    if (FAILED(infiniopCreateTensorDescriptor(&desc_a, 2, shape_a, strides_a, INFINI_DTYPE_F32))) goto end;
    if (FAILED(infiniopCreateTensorDescriptor(&desc_b, 2, shape_b, strides_b, INFINI_DTYPE_F32))) goto end;
    if (FAILED(infiniopCreateTensorDescriptor(&desc_c, 2, shape_c, NULL, INFINI_DTYPE_F32))) goto end;
    if (FAILED(infiniopCreateGemmDescriptor(handle, &gemm, desc_c, desc_a, desc_b))) goto end;

    /* 2. Ask how much workspace a run needs, and get it. A size of 0 gives a NULL pointer, which is then right. */
    if (FAILED(infiniopGetGemmWorkspaceSize(gemm, &workspace_size))) goto end;
    if (FAILED(infinirtMalloc(&workspace, workspace_size))) goto end;

    /* 3. Run, here once; with the same layouts any number of times and on any memory. */
    if (FAILED(infiniopGemm(gemm, workspace, workspace_size, c, a, b, 2.0f, 1.0f, NULL))) goto end;

    wrong = 0;
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; ++j) {
            printf("%6.1f%s", c[i * N + j], j + 1 < N ? " " : "\n");
            wrong |= c[i * N + j] != expected[i * N + j]; /* small integers: exact */
        }
    }
    if (wrong) fprintf(stderr, "gemm: not the expected result\n");

end: /* 4. Destroy, in any order; NULL is accepted. */
    infinirtFree(workspace);
    infiniopDestroyGemmDescriptor(gemm);
    infiniopDestroyTensorDescriptor(desc_c);
    infiniopDestroyTensorDescriptor(desc_b);
    infiniopDestroyTensorDescriptor(desc_a);
    infiniopDestroyHandle(handle);
    return wrong;
}
