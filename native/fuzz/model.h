/* What infiniop.h and infinirt.h say about a call, said again without a line of the library: which calls are refused and with
 * what status, and what an operator computes. Sizes are small or the arithmetic is 128 bits wide, sets of bytes are written
 * out, loops are naive. */
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "infiniop.h"

namespace model {

__extension__ typedef __int128 Wide;

/** The statuses that a call may return. Which of several faults is reported is left open. */
class Verdict {
public:
    void refuse(infiniStatus_t status) {
        may_refuse(status);
        success_ = false;
    }
    void may_refuse(infiniStatus_t status) { refusals_ |= 1u << status; }
    bool accepts() const { return success_; }
    bool agrees(infiniStatus_t status) const {
        return status == INFINI_STATUS_SUCCESS ? success_ : status > 0 && status < 32 && (refusals_ >> status & 1) != 0;
    }

private:
    uint32_t refusals_ = 0;
    bool success_ = true;
};

/* ---- element types --------------------------------------------------------------------------------------------------- */

bool is_dtype(int64_t dtype);
bool is_float(int dtype);
bool is_integer(int dtype);
size_t size_of(int dtype);
size_t alignment_of(int dtype);

/** The value of a floating-point element. */
double value_of(int dtype, const unsigned char *element);
/** Writes the number nearest to `value`, ties to even. */
void put_nearest(int dtype, unsigned char *element, double value);

/* ---- layouts --------------------------------------------------------------------------------------------------------- */

constexpr size_t kMostDims = 16;

/** A layout as a caller gives it: anything. Strides count elements. */
struct Layout {
    int dtype = INFINI_DTYPE_F32;
    size_t ndim = 0;
    size_t shape[kMostDims + 1] = {};
    ptrdiff_t strides[kMostDims + 1] = {};
    bool row_major = false; // strides is NULL
};

/** A layout that was taken: of dimensions without a step the stride is 0. */
struct Operand {
    int dtype = 0;
    int ndim = 0;
    int64_t shape[kMostDims] = {};
    int64_t stride[kMostDims] = {};

    int64_t count() const;
    /** Bytes from the pointer to the first byte of the lowest element, and to the end of the highest. */
    int64_t low() const, high() const;
    /** Where each element lies, in bytes from the pointer, in row-major order. */
    std::vector<int64_t> offsets() const;
};

void check_layout(const Layout &layout, Verdict &verdict);
Operand taken(const Layout &layout);

/* ---- operators ------------------------------------------------------------------------------------------------------- */

enum Op { kGemm, kAdd, kMul, kAddRMSNorm, kRearrange, kGemmAdd, kGemmMul, kOps };
constexpr int kMostOperands = 5;

struct OpRow {
    const char *name; // as infiniopCreateDescriptor takes it
    int n_outputs, n_operands;
    bool output_may_be_a_or_b;
    bool takes_workspace;
};
extern const OpRow kRows[kOps];

struct Problem {
    Op op = kGemm;
    Operand operands[kMostOperands];
    float epsilon = 0;

    const OpRow &row() const { return kRows[op]; }
    /** Multiplications, or elements of the other operators. */
    Wide work() const;
};

void check_problem(const Problem &problem, Verdict &verdict);

/** Reads the numbers that infiniopCreateDescriptor takes. What cannot be read is refused; of the rest, what it holds. */
void read_layouts(const int64_t *numbers, size_t n, Problem &problem, Verdict &verdict);

/** Whether a run with these pointers is legal. Extents of all operands are small. */
void check_pointers(const Problem &problem, void *const *pointers, Verdict &verdict);

/* ---- results --------------------------------------------------------------------------------------------------------- */

/** One element of an output. */
struct Element {
    enum Kind {
        kExact, // these bits; any NaN where they are one
        kEqual, // the same with either zero
        kNear,  // `value`, within `bound`
        kAny
    };
    unsigned char *address;
    int dtype;
    Kind kind;
    unsigned char bits[16];
    double value, bound;
};

/** What a legal run writes. Inputs are read now, so that this is called before the run. */
std::vector<Element> results(const Problem &problem, void *const *pointers, float alpha, float beta);

bool matches(const Element &wanted);

} // namespace model
