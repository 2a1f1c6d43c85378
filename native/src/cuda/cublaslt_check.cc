/* Compares cublaslt_api.h with cublasLt's own header where there is one; no code comes of it. */
#include <cuda_runtime_api.h>

#if defined(__has_include) && !defined(FAKE_CUDART_VERSION) // a fake runtime's header does not go with it
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <cstddef>

#include <type_traits>

#include "cuda/cublaslt_api.h"

namespace infini::cuda::lt {

#define SAME(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs)
SAME(kSuccess, CUBLAS_STATUS_SUCCESS);
SAME(kNotInitialized, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(kAllocFailed, CUBLAS_STATUS_ALLOC_FAILED);
SAME(kInvalidValue, CUBLAS_STATUS_INVALID_VALUE);
SAME(kArchMismatch, CUBLAS_STATUS_ARCH_MISMATCH);
SAME(kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(kF32, CUDA_R_32F);
SAME(kF64, CUDA_R_64F);
SAME(kF16, CUDA_R_16F);
SAME(kBf16, CUDA_R_16BF);
SAME(kCompute32F, CUBLAS_COMPUTE_32F);
SAME(kCompute64F, CUBLAS_COMPUTE_64F);
SAME(kCompute32FFastTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(kOpN, CUBLAS_OP_N);
SAME(kOpT, CUBLAS_OP_T);
SAME(kLayoutBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SAME(kLayoutBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SAME(kDescTransA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(kDescTransB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(kPreferenceMaxWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(kPreferenceReductionScheme, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(kPreferenceAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(kPreferenceAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(kPreferenceAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(kPreferenceAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(kReductionNone, CUBLASLT_REDUCTION_SCHEME_NONE);
SAME(kReductionInPlace, CUBLASLT_REDUCTION_SCHEME_INPLACE);
SAME(kReductionComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(kReductionOutputType, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);

SAME(sizeof(Algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(HeuristicResult), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(HeuristicResult, workspace_size), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(HeuristicResult, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
SAME(offsetof(HeuristicResult, waves), offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
SAME(offsetof(HeuristicResult, reserved), offsetof(cublasLtMatmulHeuristicResult_t, reserved));
#undef SAME

/** Is a parameter or a result passed alike? Enumerations are ints, objects pointers; what is a number must be the same number. */
template <class Ours, class Theirs>
constexpr bool passed_alike() {
    if constexpr (std::is_enum_v<Theirs>)
        return std::is_enum_v<Ours> && sizeof(Ours) == sizeof(Theirs);
    else if constexpr (std::is_pointer_v<Theirs>)
        return std::is_pointer_v<Ours>;
    else
        return std::is_same_v<Ours, Theirs>;
}
template <class Ours, class Theirs>
struct Alike;
template <class R, class... P, class S, class... Q>
struct Alike<R(P...), S(Q...)> {
    static constexpr bool value() {
        if constexpr (sizeof...(P) != sizeof...(Q))
            return false;
        else
            return passed_alike<R, S>() && (passed_alike<P, Q>() && ...);
    }
};
#define SAME(member, name, Result, parameters) \
    static_assert(Alike<Result parameters, decltype(::name)>::value(), #name);
INFINI_CUBLASLT_LIST(SAME)
#undef SAME

} // namespace infini::cuda::lt
#endif
#endif
