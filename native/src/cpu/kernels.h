/* The kernels of one instruction set: a table of functions over rows and tiles. Each table is filled by one source file
 * that is compiled for its instruction set alone; this header is all those files share with the rest, so it has no inline
 * function and includes no library header with one: the linker keeps one copy of an inline function, and that copy must
 * not be one that only newer CPUs can run. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/binary_ops.h"
#include "infinicore.h"

namespace infini {

constexpr int kDtypeCount = INFINI_DTYPE_BF16 + 1;

/** c[i * stride_c] = a[i * stride_a] op b[i * stride_b] for i < n. c may be exactly a or b. */
using BinaryRow = void (*)(void *c, int64_t stride_c, const void *a, int64_t stride_a, const void *b, int64_t stride_b,
                           int64_t n);

/** One row of add_rms_norm; y, r, a, b, w: [n], unit stride. r or y may be exactly a or b. */
using NormRow = void (*)(void *y, void *r, const void *a, const void *b, const void *w, int64_t n, float epsilon);

/** dst[i * stride_dst] = src[i * stride_src] for i < n; strides in elements. */
using CopyRow = void (*)(void *dst, int64_t stride_dst, const void *src, int64_t stride_src, int64_t n);

/** Where lines start, in elements from the first: line i at i * step, or at table[i] if there is a table. */
struct LineOffsets {
    int64_t step;
    const int64_t *table;
};

/** dst[row(i) + j] = src[col(j) + i] for i < rows, j < cols: contiguous in j on one side and in i on the other, any offsets
 *  across; both have tables or neither. `stream`: past the caches. */
using TransposeTile = void (*)(void *dst, LineOffsets dst_rows, const void *src, LineOffsets src_cols, int64_t rows,
                               int64_t cols, bool stream);

/** Copies n bytes past the caches. */
using StreamRow = void (*)(void *dst, const void *src, int64_t n);

/** tile[rows][nr] (+)= A panel^T * B panel, each sum in order of k. */
using GemmMultiply = void (*)(int64_t kc, const void *a_panel, const void *b_panel, void *tile, bool accumulate);

constexpr int kGemmMaxRows = 12; // of any instruction set's tile

/** sums[r][j] (+)= sum over k < kc of a_panel[k][r] * b[k * stride_k + j], in order of k, for r < rows, j < n: the product with
 *  a B that is read where it lies, its rows contiguous, once. a_panel is acc[kc][rows], `partial` scratch like sums; both have
 *  rows of `ld` elements. */
using GemmStream = void (*)(int64_t kc, const void *a_panel, const void *b, int64_t stride_k, int64_t n, void *sums,
                            void *partial, int64_t ld, bool accumulate);

/** The parts of a blocked matrix product of one element type. "acc" is the type sums are kept in: float, or double for F64.
 *  Operands are packed into panels, acc[kc][width], width being at most mr for A and nr for B. */
struct GemmKernel {
    int mr, nr;      // most rows, and columns, of the register tile
    int stream_rows; // most rows of `stream`
    int acc_size;    // bytes
    /** Packs `count` rows (or columns) of depth kc into panels one after the other: panel[k][w] = src[w * stride_w + k * stride_k];
     *  the last panel is filled up with 0. */
    void (*pack)(void *panels, const void *src, int64_t stride_w, int64_t stride_k, int64_t count, int64_t width,
                 int64_t kc);
    GemmMultiply multiply[kGemmMaxRows + 1]; // by the rows of the A panel, 1 to mr
    GemmStream stream[kGemmMaxRows + 1];     // by the rows of the A panel, 1 to stream_rows
    /** c[i * row_stride + j * col_stride] = alpha * sums[i * ld + j] + beta * c[...] for i < m, j < n, rounded once. c is not read
     *  when beta is 0. */
    void (*store)(void *c, int64_t row_stride, int64_t col_stride, const void *sums, int64_t ld, int64_t m, int64_t n,
                  float alpha, float beta);
};

/** What the hardware can do at most, for benchmarks. Both return a number that depends on the work, so that it is done. */
struct CeilingKernels {
    double (*read)(const void *p, int64_t n_bytes); // a multiple of 64 bytes
    double (*fma_f32)(int64_t iterations);
    double (*fma_f64)(int64_t iterations);
    int64_t fma_f32_flops, fma_f64_flops; // of one iteration
};

struct KernelTable {
    const char *name;
    BinaryRow binary[kBinaryOpCount][kDtypeCount];  // by dtype; null where the operator does not take it
    NormRow add_rms_norm[kDtypeCount][kDtypeCount]; // by dtype of the tensors and of the weight
    CopyRow copy[5];                                // by log2 of the element size
    TransposeTile transpose[5];
    StreamRow stream_row;
    GemmKernel gemm[kDtypeCount];
    CeilingKernels ceilings;
};

extern const KernelTable kKernelsPortable;
#if defined(__x86_64__)
extern const KernelTable kKernelsAvx2;
extern const KernelTable kKernelsAvx512;
extern const KernelTable kKernelsAvx512Bf16;
#endif

} // namespace infini
