/* The kernels of one instruction set: a table of functions over rows and tiles. It is filled by source files that are compiled for
 * the instruction set alone; this header is all those files share with the rest, so it has no inline function and includes no
 * library header with one: the linker keeps one copy of an inline function, and that copy must not be one that only newer CPUs
 * can run. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/binary_ops.h"
#include "infinicore.h"

namespace infini {

constexpr int kDtypeCount = INFINI_DTYPE_BF16 + 1;

/** Elements [i * row + j * col], strides in elements. */
struct TileOperand {
    void *p;
    int64_t row, col;
};

/** c = a op b for i < rows, j < cols. c may be exactly a or b. Fast where columns are neighbours. */
using BinaryRows = void (*)(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t cols);

/** The same, where c is contiguous in j; a or b, or both, are contiguous in i, and are not c. `stream`: past the caches; neither
 *  operand is c then. */
using BinaryTile = void (*)(TileOperand c, TileOperand a, TileOperand b, int64_t rows, int64_t cols, bool stream);

constexpr int64_t kNormChunk = 8192; // most elements of a row that NormKernel::row_stream takes
constexpr int64_t kNormStreamBytes = 128;
constexpr int kNormRows = 8; // most rows that NormKernel::multiply takes

/** A row of add_rms_norm, or part of it, whose squares are summed up. */
struct NormRow {
    void *y;
    const void *r;
    double square_sum; // of the whole row
};

/** A cache line in which a streamed row has ended: it is written once the next row, which may begin in it, is known. */
struct OpenLine {
    alignas(64) char bytes[64];
    char *end = nullptr; // of the row; null: no line is open
};

/** add_rms_norm; y, r, a, b, w: [n], unit stride. r or y may be exactly a or b. */
struct NormKernel {
    /** r = a + b; returns the sum of the squares. */
    double (*add)(void *r, const void *a, const void *b, int64_t n);
    /** y of rows, or of the same part of each, of n_row elements. The addresses of y are the same modulo 64. */
    void (*multiply)(const NormRow *rows, int count, const void *w, int64_t n, int64_t n_row, float epsilon);
    /** Both for one row of kNormStreamBytes or more, past the caches; neither r nor y is a or b, and both are multiples of an
     *  element's size. Their open lines are for the next row; after the last one they are closed. */
    void (*row_stream)(void *y, void *r, const void *a, const void *b, const void *w, int64_t n, float epsilon,
                       OpenLine &y_line, OpenLine &r_line);
    /** Writes what there is of a line. */
    void (*close)(OpenLine &line);
};

/** dst = src for i < rows, j < cols: elements that are anywhere on either side. stream: past the caches, where there is a way to; then
 *  comes finish_streams(). */
using CopyElements = void (*)(TileOperand dst, TileOperand src, int64_t rows, int64_t cols, bool stream);

/** Rows of n > 0 bytes, each side's so many bytes apart. The two sides are the same memory, or have none in common. */
using CopyRows = void (*)(void *dst, int64_t dst_row, const void *src, int64_t src_row, int64_t n, int64_t rows);

/** Rows of n elements, of at most 16 bytes, that follow one another on either side: those of dst are src's in reverse. */
using ReverseRows = void (*)(void *dst, const void *src, int64_t n, int64_t rows);

/** Where lines start, in elements from the first: line i at i * step, or at table[i] if there is a table. */
struct LineOffsets {
    int64_t step;
    const int64_t *table;
};

/** dst[row(i) + j] = src[col(j) + i] for i < rows, j < cols: contiguous in j on one side and in i on the other, any offsets
 *  across; both have tables or neither. `stream`: past the caches. */
using TransposeTile = void (*)(void *dst, LineOffsets dst_rows, const void *src, LineOffsets src_cols, int64_t rows,
                               int64_t cols, bool stream);

/** Copies n bytes past the caches. After kernels that write there comes finish_streams(). Where stream_joins, a cache line that dst
 *  begins in is filled up with what lies before `before`, unless that is null; one that dst ends in left alone, unless this is the
 *  `last` row that writes there. */
using StreamRow = void (*)(void *dst, const void *src, int64_t n, const void *before, bool last);

/** Memory that is wanted soon, in runs of equal length. A product fetches it into the second-level cache, so many bytes whenever it
 *  has multiplied for so many of its steps: kGemmStepsTogether units of packed panels, or one where B is in place. */
struct GemmFetch {
    const char *at, *end;            // the rest of a run
    int64_t run, stride;             // bytes: of one, and from the beginning of one to that of the next
    int64_t left;                    // runs
    int64_t bytes;                   // at a time
    int64_t every, wait;             // wait: steps of the kernel until it goes on; 0: it does not
    const GemmFetch *then = nullptr; // when there is no run left
};

/** out[rows][nr] = A panel^T * B panel, each sum in order of k; plus in[rows][nr] where `in` is not null. */
using GemmMultiply = void (*)(int64_t units, const void *a_panel, const void *b_panel, const void *in, void *out,
                              GemmFetch *fetch); // null: nothing to fetch

/** The same of nr columns of B where they lie, contiguous in rows that are b_stride apart, which are packed on the way. */
using GemmMultiplyPack = void (*)(int64_t units, const void *a_panel, const void *b, int64_t b_stride, void *b_panel,
                                  const void *in, void *out, GemmFetch *fetch);

constexpr int64_t kAheadColumns = 8, kAheadBytes = 32; // columns in a piece, and bytes of each
/** Rows or columns of B that a product packs for those that follow, by pieces: of rows, the units of two panels' nr columns; of
 *  columns, some of a few of these. Distances in elements of B. */
struct GemmAhead {
    const void *from;       // the next piece
    void *to;               // [panel][unit][nr], panels being ahead_panel() units apart
    int64_t stride;         // from a row to the next, or a column
    int64_t fetch;          // to what is fetched meanwhile
    int64_t pieces, in_row; // of a row, or of so few columns, and so many of them are left;
    int64_t left;           // rows of units, or so few columns
    int least;              // exponent met, see GemmKernel
};
enum { kAheadOfRows, kAheadOfColumns, kAheadTwiceOfRows };
/** Rows of A from which on packing two pieces each time is faster, measured with pairs of BF16. */
constexpr int kAheadTwiceRows = 10;
using GemmMultiplyAhead = void (*)(int64_t units, const void *a_panel, const void *b_panel, const void *in, void *out,
                                   GemmAhead &next);

constexpr int64_t kGemmBlockUnits = 256; // of k, in a K block (see GemmKernel): it decides the order of sums
/** Units from one lane's to the next one's, in a panel of such a K block: odd, for powers of 2 would meet in one set of the
 *  first-level cache. */
constexpr int64_t dots_step(int64_t kc, int64_t lanes) { return ((kc + lanes - 1) / lanes) | 1; }
constexpr int kGemmStepsTogether = 4; // of the register kernel, after which it may fetch something
constexpr int64_t kGemvColumns = 32;  // of B that a gemv multiplies at a time
constexpr int kHeldRows = 6;          // most of A of which registers hold some elements while B is streamed,
constexpr int kStepsRows = 32;        // and most for which B is streamed in steps,
constexpr int kStepsGroup = 16;       // so many at once
constexpr int kGemmMaxRows = 32;      // of any instruction set's tile,
constexpr int kColumnsMaxRows = 32;   // and of its kernels that read columns of B where they lie
constexpr int kTwinsRows = 16;        // and of those that do so by twin K blocks,
constexpr int kTwinsExactRows = 4;    // where products must be exact, which is seldom,
constexpr int kTwinsFewRows = 4;      // and of those that take two pairs of such at a time
/** Units from one panel that is packed ahead to the next: a cache line more than there are, for powers of 2 would meet in
 *  one set of the first-level cache. */
constexpr int64_t ahead_panel(int64_t nr, int64_t unit_size) { return nr * kGemmBlockUnits + 64 / unit_size; }
/** See GemmNarrow; and elements of K at most. */
constexpr int64_t kNarrowRows = 12, kNarrowK = 64;
/** Of so many rows, those that are multiplied first. */
constexpr int steps_first(int rows) { return rows > kStepsGroup ? (rows + 1) / 2 : rows; }
/** Do rows so many bytes apart meet in one or two sets of the first-level cache? */
constexpr bool rows_meet(int64_t bytes) { return bytes % 2048 == 0; }

/** GemmInPlace::ahead_every: each line of a column, shortly before it is read, or by gemm_dots 2 KiB before. */
constexpr int64_t kAheadNear = -1;

/** A few rows of A times kc rows of a B that is read where it lies, in order of k. Strides in elements, those of A in units but for
 *  rows of pairs. */
struct GemmInPlace {
    int64_t kc;
    const void *a; // a[r * a_row + u * a_unit], already of the type sums are kept in; of gemm_dots one row as it is, or
    int64_t a_row,
        a_unit;    // several as GemmPackVectors has them, and these are of no use; of pairs, a_row is in elements
    bool odd;      // is the last unit a pair of which A has the first element alone?
    const void *b; // see GemmKernel
    int64_t b_stride;
    int64_t n;  // columns
    void *sums; // of the K blocks before, if there are any: [rows][ld], whole vectors
    int64_t ld; // of sums
    bool add;   // sums hold something
    void *part; // like sums, of this K block: up to here where it does not end, and from before where it does not begin
    bool begins, ends;
    const void *ahead;    // of B, to be fetched meanwhile: by the kernels of `rows` a row in so many steps, by those of
    int64_t ahead_every;  // `columns` as much as they multiply, in runs of so many cache lines; nothing if 0
    bool chains_bind;     // of a gemv: do sums wait for each other longer than for B, or for columns that meet?
    bool far_b;           // does B come from memory? Then its columns are fetched earlier, if not kAheadNear
    int64_t head;         // columns that `streams` and `steps` multiply apart: the others begin at cache lines of B
    GemmFetch *fetch;     // by the kernels of `rows`, in place of `ahead`; or null
    int64_t stream_ahead; // bytes of each row of B that `streams` fetch beyond what they multiply, for one row or two,
    bool stream_near;     // or for more? Then into the first-level cache, too, of no more rows than have room there
    int64_t step;         // rows of B that `steps` takes at a time,
    bool step_far; // and do these come from memory, or meet in the first-level cache? Then they are fetched earlier
    void *c;       // where the result goes, its columns contiguous; null: to sums
    int64_t c_row;
    float alpha, beta; // of c
};
/** Returns the least exponent met in B, see GemmKernel. */
using GemmInPlaceKernel = int (*)(const GemmInPlace &);

/** c = alpha * rows of A, which are contiguous in k, times a packed B of few columns and a short K (gemm_kept_b.cc): all of the type
 *  sums are kept in. Strides in elements. */
struct GemmNarrow {
    const void *a;
    int64_t a_row;
    const void *b; // [k][whole vectors]
    int64_t m, k;  // a multiple of kNarrowRows
    void *c;       // rows of whole vectors, written one after the other
    int64_t c_row;
    float alpha;
};
using GemmNarrowKernel = void (*)(const GemmNarrow &);

/** Packs `count` rows (or columns) of depth kc into panels that are panel_stride units apart: element k of row w is
 *  src[w * stride_w + k * stride_k]; the last panel is filled up with 0. Returns the least exponent, see GemmKernel. */
using GemmPack = int (*)(void *panels, int64_t panel_stride, const void *src, int64_t stride_w, int64_t stride_k,
                         int64_t count, int64_t width, int64_t kc);

/** Packs `rows` rows of two K blocks of A, or of a k that ends in them what there is: [unit][row][block]. Returns the least
 *  exponent. */
using GemmPackTwins = int (*)(void *to, const void *a, int64_t a_row, int64_t a_col, int64_t rows, int64_t k);

/** Packs rows of A that are contiguous in k for `columns` of gemm_dots: vectors, [vector][row], of the type sums are kept in, or of
 *  F16 with AVX2 as they are. The last ones are filled up with -0. */
using GemmPackVectors = void (*)(void *to, const void *a, int64_t a_row, int64_t rows, int64_t k);

/** The parts of a matrix product of one element type. "acc" is the type sums are kept in: float, or double for F64. Operands are
 *  packed into panels, unit[depth of the panel][width], width being at most mr for A and nr for B. A unit is one element of
 *  the type acc, or `unit_k` neighbours in k of the operands' own type, for instructions that sum these up on their own.
 *
 *  Such instructions may flush subnormal numbers to 0. So whoever reads an operand for the first time finds the least
 *  exponent in it, kLeastOfNothing if there is none or nobody needs to know, and where may_flush() says so, the kernels of
 *  [kExact] are used, whose results are the same bits but for what would have been flushed. */
struct GemmKernel {
    int mr, nr;             // most rows, and columns, of the register tile
    int in_place_rows;      // most rows of the kernels that read B where it lies,
    int columns_rows;       // and of those for its columns
    int acc_size;           // bytes, and those of a unit
    int unit_k;             // elements
    bool packs_for_columns; // are these faster with packed A?
    bool has_small_l2;      // is 512 KiB all that may be expected of the second-level cache? Else 1 MiB
    int unit_group;         // panels hold a multiple of so many units of k, the last ones 0
    int block_units;        // in a K block; at most kGemmBlockUnits, but of gemm_dots
    int lanes;              // of gemm_dots: parts that a K block falls into; of no use to others,
    int least_k;            // nor is this: of less, a lane's part would be too short
    /** Are products computed by instructions for whole tiles (gemm_amx.inl)? They take a fraction of the time; the sum of a K
     *  block is added on to, and not summed up for itself, so that its length decides nothing; and panels of A and of B are to
     *  be in the first-level cache, where tiles are loaded from, the sums of a task in the second. */
    bool in_tiles;
    GemmPack pack;
    GemmPack pack_rows; // the same for an A that rows of B are multiplied by: [group][row][unit of the group]
    /** Around a thread's calls of `multiply`, for panels of at most so many rows; or null. */
    void (*begin)(int rows);
    void (*end)();
    GemmMultiply multiply[2][kGemmMaxRows + 1];       // by exactness and the rows of the A panel, 1 to mr
    GemmMultiplyPack multiply_pack[kGemmMaxRows + 1]; // null where products need the least exponent of B
    /** As multiply[kFast], while rows of B are packed, or columns; or twice as much of rows each time, by panels that are all of
     *  A's rows, kAheadTwiceRows or more. Null where there are none. */
    GemmMultiplyAhead multiply_ahead[3][kGemmMaxRows + 1];
    GemmNarrowKernel narrow[2];                  // of one vector of columns, and of two; null where there are none
    GemmInPlaceKernel rows[2][kGemmMaxRows + 1]; // b[k * b_stride + j]
    /** The same for a B from memory, whole K blocks; null for rows that it does not pay for. */
    GemmInPlaceKernel streams[2][kHeldRows + 1];
    /** The same for packed A: in each K block the panel of steps_first() rows, then that of the others. */
    GemmInPlaceKernel steps[kStepsRows + 1];
    GemmInPlaceKernel columns[2][kColumnsMaxRows + 1]; // b[j * b_stride + k], of any number of K blocks
    /** The same for two K blocks or more, with A packed by pack_twins, and for eight columns or more, not all of which need be this
     *  task's. [kExact] has kTwinsExactRows. Null where there are none. */
    GemmInPlaceKernel twins[2][kTwinsRows + 1];
    GemmPackTwins pack_twins;
    GemmPackVectors pack_vectors; // of gemm_dots
    /** The least exponent of m rows that are contiguous in k; null where nobody needs it. */
    int (*least)(const void *a, int64_t row_stride, int64_t m, int64_t k);
    /** c[i * row_stride + j * col_stride] = alpha * sums[i * ld + j] + beta * c[...] for i < m, j < n, rounded once. c is not read
     *  when beta is 0. */
    void (*store)(void *c, int64_t row_stride, int64_t col_stride, const void *sums, int64_t ld, int64_t m, int64_t n,
                  float alpha, float beta);
};
enum { kFast, kExact };
constexpr int kLeastOfNothing = 1 << 20;

/** What the hardware can do at most, for benchmarks. Both return a number that depends on the work, so that it is done. */
struct CeilingKernels {
    double (*read)(const void *p, int64_t n_bytes); // a multiple of 64 bytes
    double (*fma_f32)(int64_t iterations);
    double (*fma_f64)(int64_t iterations);
    int64_t fma_f32_flops, fma_f64_flops; // of one iteration
};

struct KernelTable {
    BinaryRows binary[kBinaryOpCount][kDtypeCount]; // by dtype; null where the operator does not take it
    BinaryRows binary_stream[kBinaryOpCount]
                            [kDtypeCount]; // c past the caches; c is not a or b, and aligned to its elements
    BinaryTile binary_tile[kBinaryOpCount][kDtypeCount];
    NormKernel add_rms_norm[kDtypeCount][kDtypeCount]; // by dtype of the tensors and of the weight
    CopyElements copy[5];                              // by log2 of the element size
    CopyRows copy_rows;
    ReverseRows reverse_rows[4]; // by log2 of the element size
    TransposeTile transpose[5];
    StreamRow stream_row;
    bool stream_joins;
    GemmKernel gemm[kDtypeCount];
    /** By exactness, products of BF16 whose units are the elements of A and B, pairs that lie in memory as such, the last of a row
     *  perhaps but one of BF16; C is of BF16. Of kernels only rows[kFast]; where there are none, in_place_rows is 0. */
    GemmKernel gemm_pairs[2];
    /** Products of rows of A and columns of B that are contiguous in k, least_k or more of it, in an order of their own
     *  (gemm_dots.inl): packed panels are multiplied lane by lane, and `columns` of B where they lie have the sums of all lanes
     *  at once. Other kernels there are not; where an instruction set has none at all, in_place_rows is 0. */
    GemmKernel gemm_dots[kDtypeCount];
    CeilingKernels ceilings;
    bool whole_lines; // are vectors as long as a cache line, and does this CPU compute them as a whole?
};

/* Each part of a table is kernels/<part>.cc, a file that the build compiles for one instruction set after another, with INFINI_ISA
 * for its name. isa.cc puts together what the CPU has, in this order: gemm_halves takes some of what gemm_f32 has added. */
#define INFINI_KERNEL_PARTS(X) X(elementwise) X(norm) X(gemm_f64) X(gemm_f32) X(gemm_halves)
#define INFINI_DECLARE_PART(part) void add_##part(KernelTable &t);
namespace portable {
INFINI_KERNEL_PARTS(INFINI_DECLARE_PART)
}
#if defined(__x86_64__)
namespace avx2 {
INFINI_KERNEL_PARTS(INFINI_DECLARE_PART)
}
namespace avx512 {
INFINI_KERNEL_PARTS(INFINI_DECLARE_PART)
void add_wide_f16(KernelTable &t); // add, mul and add_rms_norm, where vectors of 64 bytes are converted as fast
} // namespace avx512
/* In place of what avx512 has for BF16. */
namespace avx512_bf16 {
void add_bf16(KernelTable &t);
}
namespace amx_bf16 {
void add_bf16(KernelTable &t); // products alone
}
#endif
#undef INFINI_DECLARE_PART

} // namespace infini
