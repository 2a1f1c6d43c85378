/* Layouts: extents, reduction to the fewest dimensions, and the exact overlap questions. */
#pragma once
#include <cstdint>

#include "core/status.h"

namespace infini {

/** First and one-past-last element an operand touches, relative to the pointer given at run. Equal when it has none. */
struct Extent {
    int64_t lo, hi;
};

/** Number of elements. The operand passed make_operand(), so this cannot overflow. */
int64_t element_count(const InfiniOperand &operand);

/** Fills `operand` from untrusted sizes and strides (NULL: row-major), or fails with SHAPE or STRIDES. */
infiniStatus_t make_operand(InfiniOperand *operand, const char *who, size_t ndim, const size_t *shape,
                            const ptrdiff_t *strides, infiniDtype_t dtype);

Extent extent_of(const InfiniOperand &operand);

/** Do two different elements of the operand share memory? */
bool overlaps_itself(const InfiniOperand &operand);

/** Do an operand at `p` and another at `q` share a byte? Exact, but for a search that exceeds its budget: then true. */
bool overlap(const InfiniOperand &x, const void *p, const InfiniOperand &y, const void *q);

bool same_layout(const InfiniOperand &x, const InfiniOperand &y);

/** Brings operands of one common shape to the fewest, longest dimensions: drops unit dimensions, makes the strides of
 *  operand 0 positive, sorts by them (largest first) and merges neighbours that are contiguous in every operand.
 *  The last `keep` dimensions stay as they are. No size is 0. */
void reduce_dims(InfiniOperand *operands, int n_operands, int keep = 0);

/** "(2, 3)" for a message. */
struct ShapeText {
    explicit ShapeText(const InfiniOperand &operand);
    char text[24 * INFINI_MAX_DIMS];
};
struct StridesText {
    explicit StridesText(const InfiniOperand &operand);
    char text[24 * INFINI_MAX_DIMS];
};

} // namespace infini
