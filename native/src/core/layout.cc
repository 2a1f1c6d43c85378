#include "core/layout.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <numeric>

#include "core/dtype.h"

namespace infini {

namespace {

__extension__ typedef __int128 Wide; // sums of two byte extents need one bit more than int64_t has

void write_list(char *text, size_t size, const int64_t *values, int n) {
    size_t used = 1;
    text[0] = '(';
    for (int i = 0; i < n; ++i) {
        const char *after = i + 1 < n ? ", " : n == 1 ? "," : "";
        used += static_cast<size_t>(std::snprintf(text + used, size - used, "%" PRId64 "%s", values[i], after));
    }
    std::snprintf(text + used, size - used, ")");
}

} // namespace

ShapeText::ShapeText(const InfiniOperand &operand) { write_list(text, sizeof text, operand.shape, operand.ndim); }
StridesText::StridesText(const InfiniOperand &operand) { write_list(text, sizeof text, operand.stride, operand.ndim); }

int64_t element_count(const InfiniOperand &operand) {
    int64_t n = 1;
    for (int d = 0; d < operand.ndim; ++d) n *= operand.shape[d];
    return n;
}

infiniStatus_t make_operand(InfiniOperand *operand, const char *who, size_t ndim, const size_t *shape,
                            const ptrdiff_t *strides, infiniDtype_t dtype) {
    if (!dtype_known(dtype))
        return fail(INFINI_STATUS_BAD_TENSOR_DTYPE, "%s: dtype %d is not an element type", who, dtype);
    if (ndim > INFINI_MAX_DIMS)
        return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: rank %zu, at most %d is possible", who, ndim, INFINI_MAX_DIMS);
    if (ndim > 0 && shape == nullptr)
        return fail(INFINI_STATUS_NULL_POINTER, "%s: shape is NULL, rank is %zu", who, ndim);

    const int64_t size = kDtypes[dtype].size;
    *operand = {};
    operand->dtype = dtype;
    operand->ndim = static_cast<int32_t>(ndim);
    int64_t count = 1; // of the non-zero sizes: a later zero must not hide an overflow
    bool empty = false;
    for (size_t d = 0; d < ndim; ++d) {
        const auto n = static_cast<int64_t>(shape[d]);
        if (n < 0 || (n > 0 && __builtin_mul_overflow(count, n, &count)))
            return fail(INFINI_STATUS_BAD_TENSOR_SHAPE,
                        "%s: size %zu of dimension %zu is too large: the number of elements overflows", who, shape[d],
                        d);
        operand->shape[d] = n;
        empty = empty || n == 0;
    }
    if (strides == nullptr) {
        int64_t bytes;
        if (__builtin_mul_overflow(count, size, &bytes))
            return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: %" PRId64 " elements of %" PRId64 " bytes overflow", who,
                        count, size);
        int64_t stride = 1;
        for (int d = operand->ndim - 1; d >= 0; --d) {
            operand->stride[d] = operand->shape[d] > 1 ? stride : 0;
            stride *= std::max<int64_t>(operand->shape[d], 1);
        }
        return INFINI_STATUS_SUCCESS;
    }
    // The bytes from the lowest to the highest element must be countable; where nothing is read, strides mean nothing.
    int64_t lo = 0, hi = 0;
    for (int d = 0; d < operand->ndim; ++d) {
        const int64_t steps = operand->shape[d] - 1;
        if (empty || steps == 0) continue; // stride stays 0
        operand->stride[d] = strides[d];
        int64_t span, bytes;
        int64_t &end = strides[d] < 0 ? lo : hi;
        if (__builtin_mul_overflow(steps, static_cast<int64_t>(strides[d]), &span) ||
            __builtin_add_overflow(end, span, &end) || __builtin_sub_overflow(hi, lo, &bytes) ||
            __builtin_add_overflow(bytes, 1, &bytes) || __builtin_mul_overflow(bytes, size, &bytes))
            return fail(INFINI_STATUS_BAD_TENSOR_STRIDES,
                        "%s: stride %td of dimension %d (size %" PRId64
                        ") puts elements further apart than memory is long",
                        who, strides[d], d, operand->shape[d]);
    }
    return INFINI_STATUS_SUCCESS;
}

Extent extent_of(const InfiniOperand &operand) {
    Extent e{operand.offset, operand.offset + 1};
    for (int d = 0; d < operand.ndim; ++d) {
        if (operand.shape[d] == 0) return {0, 0};
        const int64_t span = (operand.shape[d] - 1) * operand.stride[d];
        (span < 0 ? e.lo : e.hi) += span;
    }
    return e;
}

/* ---- overlap -------------------------------------------------------------------------------------------------------
 * Both questions are whether a bounded linear equation sum(a_i * x_i) = b, 0 <= x_i <= u_i, has a solution. It is searched
 * for from the largest coefficient down; what the smaller terms can reach leaves few values for the larger ones. */
namespace {

constexpr int kSearchBudget = 1 << 16; // steps, well under a millisecond

struct Equation {
    struct Term {
        int64_t a;
        Wide u;
    };
    Term terms[2 * INFINI_MAX_DIMS + 2];
    Wide reach[2 * INFINI_MAX_DIMS + 3];     // reach[i]: largest value of terms i.. together
    int64_t common[2 * INFINI_MAX_DIMS + 3]; // common[i]: greatest common divisor of the coefficients i..
    int n = 0;
    int budget = kSearchBudget;

    void add(int64_t a, Wide u) {
        if (a == 0 || u == 0) return;
        for (int i = 0; i < n; ++i)
            if (terms[i].a == a) {
                terms[i].u += u;
                return;
            }
        terms[n++] = {a, u};
    }
    void prepare() {
        std::sort(terms, terms + n, [](const Term &x, const Term &y) { return x.a > y.a; });
        reach[n] = 0;
        common[n] = 0;
        for (int i = n - 1; i >= 0; --i) {
            reach[i] = reach[i + 1] + static_cast<Wide>(terms[i].a) * terms[i].u;
            common[i] = std::gcd(common[i + 1], terms[i].a);
        }
    }
    /** Can terms i.. reach b? An exhausted budget answers yes. */
    bool solvable(int i, Wide b) {
        if (b == 0) return true;
        if (i == n || b < 0 || b > reach[i] || b % common[i] != 0) return false;
        const Wide a = terms[i].a;
        const Wide least = b > reach[i + 1] ? (b - reach[i + 1] + a - 1) / a : 0;
        const Wide most = std::min<Wide>(b / a, terms[i].u);
        for (Wide x = most; x >= least; --x) {
            if (--budget < 0) return true;
            if (solvable(i + 1, b - a * x)) return true;
        }
        return false;
    }
};

} // namespace

bool overlaps_itself(const InfiniOperand &operand) {
    // Two indices name one element when sum(stride_d * k_d) = 0 for differences |k_d| < shape_d, not all 0. The first
    // non-zero one, in order of falling strides, may be taken positive; the others are shifted to start at 0.
    struct Dim {
        int64_t stride, steps;
    } dims[INFINI_MAX_DIMS];
    if (element_count(operand) == 0) return false;
    int n = 0;
    for (int d = 0; d < operand.ndim; ++d) {
        if (operand.shape[d] == 1) continue;
        if (operand.stride[d] == 0) return true;
        dims[n++] = {std::abs(operand.stride[d]), operand.shape[d] - 1};
    }
    std::sort(dims, dims + n, [](const Dim &x, const Dim &y) { return x.stride > y.stride; });
    for (int first = 0; first < n; ++first) {
        Equation rest;
        Wide shift = 0;
        for (int d = first + 1; d < n; ++d) {
            rest.add(dims[d].stride, static_cast<Wide>(dims[d].steps) * 2);
            shift += static_cast<Wide>(dims[d].stride) * dims[d].steps;
        }
        rest.prepare();
        for (int64_t k = 1; k <= dims[first].steps; ++k) {
            const Wide b = shift - static_cast<Wide>(dims[first].stride) * k;
            if (b < 0) break;
            if (--rest.budget < 0 || rest.solvable(0, b)) return true;
        }
    }
    return false;
}

bool overlap(const InfiniOperand &x, const void *p, const InfiniOperand &y, const void *q) {
    const Extent ex = extent_of(x), ey = extent_of(y);
    if (ex.lo == ex.hi || ey.lo == ey.hi) return false;
    const int64_t size_x = kDtypes[x.dtype].size, size_y = kDtypes[y.dtype].size;
    const Wide lo_x = static_cast<Wide>(reinterpret_cast<uintptr_t>(p)) + static_cast<Wide>(ex.lo) * size_x;
    const Wide lo_y = static_cast<Wide>(reinterpret_cast<uintptr_t>(q)) + static_cast<Wide>(ey.lo) * size_y;
    const Wide hi_x = lo_x + static_cast<Wide>(ex.hi - ex.lo) * size_x;
    const Wide hi_y = lo_y + static_cast<Wide>(ey.hi - ey.lo) * size_y;
    if (hi_x <= lo_y || hi_y <= lo_x) return false;
    // lo_x + sum(|sx| i) + e = lo_y + sum(|sy| j) + f; with j = last - j' every coefficient is positive.
    Equation equation;
    for (int d = 0; d < x.ndim; ++d) equation.add(std::abs(x.stride[d]) * size_x, x.shape[d] - 1);
    for (int d = 0; d < y.ndim; ++d) equation.add(std::abs(y.stride[d]) * size_y, y.shape[d] - 1);
    equation.add(1, size_x - 1);
    equation.add(1, size_y - 1);
    equation.prepare();
    return equation.solvable(0, hi_y - 1 - lo_x);
}

bool same_layout(const InfiniOperand &x, const InfiniOperand &y) {
    return x.dtype == y.dtype && x.ndim == y.ndim && x.offset == y.offset &&
           std::equal(x.shape, x.shape + x.ndim, y.shape) && std::equal(x.stride, x.stride + x.ndim, y.stride);
}

/* ---- reduction ------------------------------------------------------------------------------------------------------ */

void reduce_dims(InfiniOperand *operands, int n_operands, int keep) {
    InfiniOperand &lead = operands[0];
    const int loops = lead.ndim - keep;
    int order[INFINI_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < loops; ++d)
        if (lead.shape[d] != 1) order[n++] = d;
    for (int i = 0; i < n; ++i) {
        const int d = order[i];
        if (lead.stride[d] >= 0) continue;
        for (int o = 0; o < n_operands; ++o) {
            operands[o].offset += (operands[o].shape[d] - 1) * operands[o].stride[d];
            operands[o].stride[d] = -operands[o].stride[d];
        }
    }
    std::stable_sort(order, order + n, [&](int x, int y) { return lead.stride[x] > lead.stride[y]; });
    const auto mergeable = [&](int outer, int inner) {
        for (int o = 0; o < n_operands; ++o)
            if (static_cast<Wide>(operands[o].stride[outer]) !=
                static_cast<Wide>(operands[o].stride[inner]) * operands[o].shape[inner])
                return false;
        return true;
    };
    // In `order`, a merged dimension lives on in the slot of its inner one.
    int kept = 0;
    for (int i = 0; i < n; ++i) {
        if (kept > 0 && mergeable(order[kept - 1], order[i])) {
            for (int o = 0; o < n_operands; ++o) operands[o].shape[order[i]] *= operands[o].shape[order[kept - 1]];
            order[kept - 1] = order[i];
        } else {
            order[kept++] = order[i];
        }
    }
    for (int o = 0; o < n_operands; ++o) {
        const InfiniOperand old = operands[o];
        InfiniOperand &now = operands[o];
        now.ndim = kept + keep;
        for (int d = 0; d < now.ndim; ++d) {
            const int from = d < kept ? order[d] : loops + d - kept;
            now.shape[d] = old.shape[from];
            now.stride[d] = old.stride[from];
        }
    }
}

} // namespace infini
