/* What the NVIDIA backend uses of cublasLt, declared here since its header may be missing where the backend is built, and the library
 * is only looked for at run time. Names, numbers and layouts are those of cublasLt 12 and 13; where the header is there,
 * cublaslt_check.cc compares them. */
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace infini::cuda::lt {

enum Status : int {
    kSuccess = 0,
    kNotInitialized = 1,
    kAllocFailed = 3,
    kInvalidValue = 7,
    kArchMismatch = 8,
    kNotSupported = 15,
};
enum DataType : int { kF32 = 0, kF64 = 1, kF16 = 2, kBf16 = 14 };
enum ComputeType : int { kCompute32F = 68, kCompute64F = 70, kCompute32FFastTf32 = 77 };
enum Operation : int32_t { kOpN = 0, kOpT = 1 };

enum LayoutAttribute : int { kLayoutBatchCount = 5 /* int32_t */, kLayoutBatchStride = 6 /* int64_t */ };
enum DescAttribute : int { kDescTransA = 3 /* int32_t */, kDescTransB = 4 /* int32_t */ };
enum PreferenceAttribute : int {
    kPreferenceMaxWorkspace = 1,    // uint64_t
    kPreferenceReductionScheme = 3, // uint32_t, a mask
    kPreferenceAlignmentA = 5,      // uint32_t, bytes
    kPreferenceAlignmentB = 6,
    kPreferenceAlignmentC = 7,
    kPreferenceAlignmentD = 8,
};
/** Where the partial sums of a split K are kept: in the output and its type, in the workspace and the type of the sums, or in the
 *  workspace and the output's type. */
enum ReductionScheme : uint32_t {
    kReductionNone = 0,
    kReductionInPlace = 1,
    kReductionComputeType = 2,
    kReductionOutputType = 4
};

using Handle = struct HandleObject *;
using MatmulDesc = struct MatmulDescObject *;
using MatrixLayout = struct MatrixLayoutObject *;
using Preference = struct PreferenceObject *;

struct Algo {
    uint64_t data[8];
};
struct HeuristicResult {
    Algo algo;
    size_t workspace_size;
    Status state;
    float waves;
    int reserved[4];
};

/** The functions: X(member, exported name, result, parameters). */
#define INFINI_CUBLASLT_LIST(X)                                                                                        \
    X(version, cublasLtGetVersion, size_t, ())                                                                         \
    X(status_name, cublasLtGetStatusName, const char *, (Status))                                                      \
    X(create, cublasLtCreate, Status, (Handle *))                                                                      \
    X(desc_create, cublasLtMatmulDescCreate, Status, (MatmulDesc *, ComputeType, DataType))                            \
    X(desc_set, cublasLtMatmulDescSetAttribute, Status, (MatmulDesc, DescAttribute, const void *, size_t))             \
    X(desc_destroy, cublasLtMatmulDescDestroy, Status, (MatmulDesc))                                                   \
    X(layout_create, cublasLtMatrixLayoutCreate, Status, (MatrixLayout *, DataType, uint64_t, uint64_t, int64_t))      \
    X(layout_set, cublasLtMatrixLayoutSetAttribute, Status, (MatrixLayout, LayoutAttribute, const void *, size_t))     \
    X(layout_destroy, cublasLtMatrixLayoutDestroy, Status, (MatrixLayout))                                             \
    X(preference_create, cublasLtMatmulPreferenceCreate, Status, (Preference *))                                       \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute, Status,                                                    \
      (Preference, PreferenceAttribute, const void *, size_t))                                                         \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy, Status, (Preference))                                       \
    X(heuristic, cublasLtMatmulAlgoGetHeuristic, Status,                                                               \
      (Handle, MatmulDesc, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout, Preference, int, HeuristicResult *, \
       int *))                                                                                                         \
    X(matmul, cublasLtMatmul, Status,                                                                                  \
      (Handle, MatmulDesc, const void *, const void *, MatrixLayout, const void *, MatrixLayout, const void *,         \
       const void *, MatrixLayout, void *, MatrixLayout, const Algo *, void *, size_t, cudaStream_t))

struct Functions {
#define INFINI_CUBLASLT_MEMBER(member, name, Result, parameters) Result(*member) parameters;
    INFINI_CUBLASLT_LIST(INFINI_CUBLASLT_MEMBER)
#undef INFINI_CUBLASLT_MEMBER
};

} // namespace infini::cuda::lt
