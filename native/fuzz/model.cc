#include "model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

namespace model {

namespace {

constexpr Wide kMost = INT64_MAX;

/* Outputs come first. Of gemm and its relatives: c or y, a, b, d. */
enum { kC, kA, kB, kD };
enum { kY, kResidual, kNormA, kNormB, kWeight };

struct Half {
    int exponent_bits, fraction_bits;
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
};
constexpr Half kF16{5, 10}, kBF16{8, 7};

/** value * 2^n, for n of a normal double's exponent. */
double times_power(double value, int n) {
    const uint64_t bits = static_cast<uint64_t>(1023 + n) << 52;
    double power;
    std::memcpy(&power, &bits, sizeof power);
    return value * power;
}

double half_value(Half half, uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fff, fraction = bits & ((1u << half.fraction_bits) - 1);
    const int exponent = static_cast<int>(magnitude >> half.fraction_bits);
    double value;
    if (magnitude >= half.infinity())
        value = magnitude == half.infinity() ? INFINITY : NAN;
    else if (exponent == 0)
        value = times_power(fraction, 1 - half.bias() - half.fraction_bits);
    else
        value = times_power(fraction + (1u << half.fraction_bits), exponent - half.bias() - half.fraction_bits);
    return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t nearest_half(Half half, double value) {
    const auto sign = static_cast<uint32_t>(std::signbit(value) ? 0x8000 : 0);
    if (std::isnan(value)) return static_cast<uint16_t>(half.infinity() | 1u << (half.fraction_bits - 1));
    if (std::isinf(value)) return static_cast<uint16_t>(sign | half.infinity());
    if (value == 0) return static_cast<uint16_t>(sign);
    const int exponent = std::max(std::ilogb(value), 1 - half.bias());
    // In units of the last place; rounding may carry into the exponent, which the sum below lets it do.
    const auto units =
        static_cast<uint32_t>(std::nearbyint(times_power(std::fabs(value), half.fraction_bits - exponent)));
    const int biased = exponent + half.bias() - 1; // that of a number whose leading bit is among the units
    const uint32_t bits = (static_cast<uint32_t>(std::min(biased, 1 << 12)) << half.fraction_bits) + units;
    return static_cast<uint16_t>(sign | std::min(bits, half.infinity()));
}

template <class T>
T read(const unsigned char *element) {
    T value;
    std::memcpy(&value, element, sizeof value);
    return value;
}
template <class T>
void put(unsigned char *element, T value) {
    std::memcpy(element, &value, sizeof value);
}

uint64_t read_integer(int dtype, const unsigned char *element) {
    uint64_t value = 0; // little-endian; the upper bytes do not matter to sums and products that wrap around
    std::memcpy(&value, element, size_of(dtype));
    return value;
}

} // namespace

/* ---- element types --------------------------------------------------------------------------------------------------- */

bool is_dtype(int64_t dtype) { return dtype >= INFINI_DTYPE_BYTE && dtype <= INFINI_DTYPE_BF16; }
bool is_float(int dtype) {
    return dtype == INFINI_DTYPE_F16 || dtype == INFINI_DTYPE_BF16 || dtype == INFINI_DTYPE_F32 ||
           dtype == INFINI_DTYPE_F64;
}
bool is_integer(int dtype) { return dtype >= INFINI_DTYPE_I8 && dtype <= INFINI_DTYPE_U64; }

size_t size_of(int dtype) {
    constexpr size_t kSizes[] = {0, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 16, 2};
    return kSizes[dtype];
}
size_t alignment_of(int dtype) {
    const bool complex = dtype >= INFINI_DTYPE_C16 && dtype <= INFINI_DTYPE_C128;
    return complex ? size_of(dtype) / 2 : size_of(dtype);
}

double value_of(int dtype, const unsigned char *element) {
    switch (dtype) {
    case INFINI_DTYPE_F16: return half_value(kF16, read<uint16_t>(element));
    case INFINI_DTYPE_BF16: return half_value(kBF16, read<uint16_t>(element));
    case INFINI_DTYPE_F32: return static_cast<double>(read<float>(element));
    default: return read<double>(element);
    }
}

void put_nearest(int dtype, unsigned char *element, double value) {
    switch (dtype) {
    case INFINI_DTYPE_F16: return put(element, nearest_half(kF16, value));
    case INFINI_DTYPE_BF16: return put(element, nearest_half(kBF16, value));
    case INFINI_DTYPE_F32: return put(element, static_cast<float>(value));
    default: return put(element, value);
    }
}

/* ---- layouts --------------------------------------------------------------------------------------------------------- */

int64_t Operand::count() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
}

int64_t Operand::low() const {
    int64_t sum = 0;
    for (int d = 0; d < ndim; ++d)
        if (stride[d] < 0) sum += (shape[d] - 1) * stride[d];
    return count() == 0 ? 0 : sum * static_cast<int64_t>(size_of(dtype));
}

int64_t Operand::high() const {
    int64_t sum = 1;
    for (int d = 0; d < ndim; ++d)
        if (stride[d] > 0) sum += (shape[d] - 1) * stride[d];
    return count() == 0 ? 0 : sum * static_cast<int64_t>(size_of(dtype));
}

std::vector<int64_t> Operand::offsets() const {
    std::vector<int64_t> all(static_cast<size_t>(count()), 0);
    const auto size = static_cast<int64_t>(size_of(dtype));
    size_t repeat = 1; // elements for which an index stays the same
    for (int d = ndim - 1; d >= 0; --d) {
        const auto n = static_cast<size_t>(shape[d]);
        for (size_t i = 0, index = 0; i < all.size(); i += repeat, index = index + 1 == n ? 0 : index + 1)
            for (size_t k = 0; k < repeat; ++k) all[i + k] += static_cast<int64_t>(index) * stride[d] * size;
        repeat *= n;
    }
    return all;
}

void check_layout(const Layout &layout, Verdict &verdict) {
    if (!is_dtype(layout.dtype)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
    if (layout.ndim > kMostDims) return verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    const Wide size = is_dtype(layout.dtype) ? static_cast<Wide>(size_of(layout.dtype)) : 1;
    Wide count = 1;
    bool empty = false;
    for (size_t d = 0; d < layout.ndim; ++d) {
        empty = empty || layout.shape[d] == 0;
        if (layout.shape[d] != 0 && count <= kMost) count *= static_cast<Wide>(layout.shape[d]);
        if (static_cast<Wide>(layout.shape[d]) > kMost) count = kMost + 1; // also behind a product that is too large
    }
    if (count > kMost || (layout.row_major && count * size > kMost))
        return verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    if (layout.row_major || empty) return;
    Wide distance = 0; // between the first and the last element
    for (size_t d = 0; d < layout.ndim && distance <= kMost; ++d) {
        const Wide stride = layout.strides[d], steps = static_cast<Wide>(layout.shape[d]) - 1;
        distance += steps * (stride < 0 ? -stride : stride);
    }
    if (distance > kMost || distance * size > kMost)
        verdict.refuse(INFINI_STATUS_BAD_TENSOR_STRIDES);
    else if ((distance + 1) * size > kMost)
        verdict.may_refuse(INFINI_STATUS_BAD_TENSOR_STRIDES); // the last element's own bytes
}

Operand taken(const Layout &layout) {
    Operand operand;
    operand.dtype = layout.dtype;
    operand.ndim = static_cast<int>(layout.ndim);
    int64_t stride = 1;
    for (size_t d = 0; d < layout.ndim; ++d) operand.shape[d] = static_cast<int64_t>(layout.shape[d]);
    const bool empty = operand.count() == 0;
    for (size_t d = layout.ndim; d-- > 0;) {
        if (operand.shape[d] > 1 && !empty) operand.stride[d] = layout.row_major ? stride : layout.strides[d];
        stride *= std::max<int64_t>(operand.shape[d], 1);
    }
    return operand;
}

/* ---- operators ------------------------------------------------------------------------------------------------------- */

const OpRow kRows[kOps] = {
    {"gemm", 1, 3, false, true},        {"add", 1, 3, true, true},         {"mul", 1, 3, true, true},
    {"add_rms_norm", 2, 5, true, true}, {"rearrange", 1, 2, false, false}, {"gemm_add", 1, 4, false, true},
    {"gemm_mul", 1, 4, false, true},
};

namespace {

bool is_gemm(Op op) { return op == kGemm || op == kGemmAdd || op == kGemmMul; }
bool same_shape(const Operand &x, const Operand &y) {
    return x.ndim == y.ndim && std::equal(x.shape, x.shape + x.ndim, y.shape);
}
/** Does every index name the same byte? */
bool same_layout(const Operand &x, const Operand &y) {
    return x.dtype == y.dtype && same_shape(x, y) && std::equal(x.stride, x.stride + x.ndim, y.stride);
}

enum Answer { kNo, kYes, kUnknown };

/** Do elements of an operand share memory? Written out where there are few of them. */
Answer overlaps_itself(const Operand &x) {
    if (x.count() <= 1) return kNo;
    for (int d = 0; d < x.ndim; ++d)
        if (x.shape[d] > 1 && x.stride[d] == 0) return kYes;
    if (x.count() <= 4096) {
        std::vector<int64_t> all = x.offsets();
        std::sort(all.begin(), all.end());
        return std::adjacent_find(all.begin(), all.end()) != all.end() ? kYes : kNo;
    }
    // Each stride beyond all that the smaller ones reach: apart. Anything else is a search.
    std::vector<std::pair<Wide, Wide>> dims;
    for (int d = 0; d < x.ndim; ++d)
        if (x.shape[d] > 1)
            dims.push_back({x.stride[d] < 0 ? -static_cast<Wide>(x.stride[d]) : x.stride[d], x.shape[d] - 1});
    std::sort(dims.begin(), dims.end());
    Wide reach = 0;
    for (const auto &[stride, steps] : dims) {
        if (stride <= reach) return kUnknown;
        reach += stride * steps;
    }
    return kNo;
}

int64_t from_end(const Operand &x, int back) { return x.shape[x.ndim - back]; }
int64_t batch_of(const Operand &x) { return x.ndim == 3 ? x.shape[0] : 1; }

void check_gemm(const Problem &problem, Verdict &verdict) {
    const Operand &c = problem.operands[kC], &a = problem.operands[kA], &b = problem.operands[kB];
    if (!is_float(c.dtype)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
    for (int i = kA; i < problem.row().n_operands; ++i)
        if (problem.operands[i].dtype != c.dtype) verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
    for (const Operand *x : {&c, &a, &b})
        if (x->ndim != 2 && x->ndim != 3) return verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    if (from_end(a, 1) != from_end(b, 2) || from_end(c, 2) != from_end(a, 2) || from_end(c, 1) != from_end(b, 1))
        verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    for (const Operand *x : {&a, &b})
        if (batch_of(*x) != 1 && batch_of(*x) != batch_of(c)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    if (problem.op != kGemm && !same_shape(problem.operands[kD], c)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
}

void check_norm(const Problem &problem, Verdict &verdict) {
    const Operand &y = problem.operands[kY], &weight = problem.operands[kWeight];
    if (!is_float(y.dtype)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
    for (int i : {kResidual, kNormA, kNormB}) {
        if (problem.operands[i].dtype != y.dtype) verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
        if (!same_shape(problem.operands[i], y)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    }
    const auto is_half = [](int dtype) { return dtype == INFINI_DTYPE_F16 || dtype == INFINI_DTYPE_BF16; };
    const bool fits =
        is_half(y.dtype) ? is_half(weight.dtype) || weight.dtype == INFINI_DTYPE_F32 : weight.dtype == y.dtype;
    if (!fits) verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
    if (y.ndim < 1 || y.ndim > 8 || weight.ndim != 1) return verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    if (weight.shape[0] != from_end(y, 1)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
    for (int i = 0; i < problem.row().n_operands; ++i) {
        const Operand &x = problem.operands[i];
        if (x.ndim > 0 && from_end(x, 1) > 1 && x.count() > 0 && x.stride[x.ndim - 1] != 1)
            verdict.refuse(INFINI_STATUS_BAD_TENSOR_STRIDES);
    }
}

} // namespace

Wide Problem::work() const {
    return static_cast<Wide>(operands[0].count()) * (is_gemm(op) ? std::max<int64_t>(from_end(operands[kA], 1), 1) : 1);
}

void check_problem(const Problem &problem, Verdict &verdict) {
    const OpRow &row = problem.row();
    if (is_gemm(problem.op)) {
        check_gemm(problem, verdict);
    } else if (problem.op == kAddRMSNorm) {
        check_norm(problem, verdict);
    } else {
        const Operand &first = problem.operands[0];
        if (problem.op != kRearrange && !is_float(first.dtype) && !is_integer(first.dtype))
            verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
        for (int i = 1; i < row.n_operands; ++i) {
            if (problem.operands[i].dtype != first.dtype) verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
            if (!same_shape(problem.operands[i], first)) verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
        }
    }
    for (int o = 0; o < row.n_outputs; ++o) {
        const Answer overlaps = overlaps_itself(problem.operands[o]);
        if (overlaps == kYes) verdict.refuse(INFINI_STATUS_BAD_TENSOR_STRIDES);
        if (overlaps == kUnknown) verdict.may_refuse(INFINI_STATUS_BAD_TENSOR_STRIDES);
    }
}

void read_layouts(const int64_t *numbers, size_t n, Problem &problem, Verdict &verdict) {
    size_t at = 0;
    for (int i = 0; i < problem.row().n_operands; ++i) {
        if (n - at < 2) return verdict.refuse(INFINI_STATUS_BAD_PARAM);
        const int64_t dtype = numbers[at], ndim = numbers[at + 1];
        at += 2;
        if (!is_dtype(dtype)) return verdict.refuse(INFINI_STATUS_BAD_TENSOR_DTYPE);
        if (ndim < 0 || ndim > static_cast<int64_t>(kMostDims)) return verdict.refuse(INFINI_STATUS_BAD_TENSOR_SHAPE);
        Layout layout;
        layout.dtype = static_cast<int>(dtype);
        layout.ndim = static_cast<size_t>(ndim);
        if ((n - at) / 2 < layout.ndim) return verdict.refuse(INFINI_STATUS_BAD_PARAM);
        const auto size = static_cast<int64_t>(size_of(layout.dtype));
        bool empty = false, divides = true;
        for (size_t d = 0; d < layout.ndim; ++d) {
            const int64_t bytes = numbers[at + layout.ndim + d];
            layout.shape[d] = static_cast<size_t>(numbers[at + d]);
            layout.strides[d] = bytes / size;
            empty = empty || layout.shape[d] == 0;
            divides = divides && (layout.shape[d] == 1 || bytes % size == 0);
        }
        at += 2 * layout.ndim;
        if (!divides && !empty) verdict.refuse(INFINI_STATUS_BAD_TENSOR_STRIDES);
        check_layout(layout, verdict);
        if (!verdict.accepts()) return; // nothing is known of what follows
        problem.operands[i] = taken(layout);
    }
    if (at != n) verdict.refuse(INFINI_STATUS_BAD_PARAM);
}

namespace {

/** Do an operand at p and another at q share a byte? */
bool share(const Operand &x, const void *p, const Operand &y, const void *q) {
    const int64_t shift =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(q) - reinterpret_cast<uintptr_t>(p)) - x.low();
    if (x.count() == 0 || y.count() == 0 || shift + y.low() >= x.high() - x.low() || shift + y.high() <= 0)
        return false;
    std::vector<bool> taken(static_cast<size_t>(x.high() - x.low()));
    for (int64_t offset : x.offsets())
        for (size_t k = 0; k < size_of(x.dtype); ++k) taken[static_cast<size_t>(offset - x.low()) + k] = true;
    for (int64_t offset : y.offsets())
        for (size_t k = 0; k < size_of(y.dtype); ++k) {
            const int64_t byte = shift + offset + static_cast<int64_t>(k);
            if (byte >= 0 && byte < static_cast<int64_t>(taken.size()) && taken[static_cast<size_t>(byte)]) return true;
        }
    return false;
}

} // namespace

void check_pointers(const Problem &problem, void *const *pointers, Verdict &verdict) {
    const OpRow &row = problem.row();
    bool null = false;
    for (int i = 0; i < row.n_operands; ++i) {
        const Operand &x = problem.operands[i];
        const bool aligned = reinterpret_cast<uintptr_t>(pointers[i]) % alignment_of(x.dtype) == 0;
        if (x.count() == 0) {
            if (!aligned) verdict.may_refuse(INFINI_STATUS_BAD_PARAM);
            continue;
        }
        null = null || pointers[i] == nullptr;
        if (pointers[i] == nullptr) verdict.refuse(INFINI_STATUS_NULL_POINTER);
        if (!aligned) verdict.refuse(INFINI_STATUS_BAD_PARAM);
    }
    if (null) return;
    for (int o = 0; o < row.n_outputs; ++o)
        for (int i = 0; i < row.n_operands; ++i) {
            if (i == o) continue;
            const bool may_be = row.output_may_be_a_or_b && (i == row.n_outputs || i == row.n_outputs + 1);
            const Operand &output = problem.operands[o], &other = problem.operands[i];
            if (may_be && pointers[o] == pointers[i] && same_layout(output, other)) continue;
            if (share(output, pointers[o], other, pointers[i])) verdict.refuse(INFINI_STATUS_BAD_PARAM);
        }
}

/* ---- results --------------------------------------------------------------------------------------------------------- */

namespace {

/** The elements of an operand in memory, in row-major order. */
struct Elements {
    Elements(const Operand &operand, void *pointer)
        : dtype(operand.dtype), base(static_cast<unsigned char *>(pointer)), offsets(operand.offsets()) {}
    unsigned char *address(size_t i) const { return base + offsets[i]; }
    double value(size_t i) const { return value_of(dtype, address(i)); }
    /** Small integers, of which sums of products are exact? */
    bool small() const {
        for (size_t i = 0; i < offsets.size(); ++i) {
            const double x = value(i);
            if (!(std::fabs(x) <= 16) || x != std::nearbyint(x)) return false;
        }
        return true;
    }
    Element wanted(size_t i, double value, Element::Kind kind) const {
        Element element{address(i), dtype, kind, {}, value, 0};
        put_nearest(dtype, element.bits, value);
        return element;
    }

    int dtype;
    unsigned char *base;
    std::vector<int64_t> offsets;
};

double rounded(int dtype, double value) {
    unsigned char bits[16];
    put_nearest(dtype, bits, value);
    return value_of(dtype, bits);
}

/** a op b, rounded once: in float where a double would round twice. */
void put_binary(Op op, int dtype, unsigned char *out, const unsigned char *a, const unsigned char *b) {
    const bool sum = op == kAdd;
    if (is_integer(dtype)) {
        const uint64_t x = read_integer(dtype, a), y = read_integer(dtype, b), z = sum ? x + y : x * y;
        std::memcpy(out, &z, size_of(dtype));
    } else if (dtype == INFINI_DTYPE_F32) {
        const float x = read<float>(a), y = read<float>(b);
        put(out, sum ? x + y : x * y);
    } else {
        const double x = value_of(dtype, a), y = value_of(dtype, b);
        put_nearest(dtype, out, sum ? x + y : x * y);
    }
}

void elementwise(const Problem &problem, const std::vector<Elements> &x, std::vector<Element> &out) {
    for (size_t i = 0; i < x[0].offsets.size(); ++i) {
        Element element{x[0].address(i), x[0].dtype, Element::kExact, {}, 0, 0};
        if (problem.op == kRearrange)
            std::memcpy(element.bits, x[1].address(i), size_of(element.dtype));
        else
            put_binary(problem.op, element.dtype, element.bits, x[1].address(i), x[2].address(i));
        out.push_back(element);
    }
}

void gemm(const Problem &problem, const std::vector<Elements> &x, float alpha, float beta, std::vector<Element> &out) {
    const Operand &c = problem.operands[kC], &a = problem.operands[kA], &b = problem.operands[kB];
    const auto rows = static_cast<size_t>(from_end(c, 2)), cols = static_cast<size_t>(from_end(c, 1));
    const auto depth = static_cast<size_t>(from_end(a, 1)), batch = static_cast<size_t>(batch_of(c));
    const bool product = alpha != 0 && depth > 0, plain = problem.op == kGemm;
    const bool exact = (!product || (x[kA].small() && x[kB].small())) && (!plain || beta == 0 || x[kC].small()) &&
                       (plain || x[kD].small());
    for (size_t item = 0; item < batch; ++item)
        for (size_t i = 0; i < rows; ++i)
            for (size_t j = 0; j < cols; ++j) {
                const size_t at = (item * rows + i) * cols + j;
                double sum = 0;
                for (size_t k = 0; product && exact && k < depth; ++k)
                    sum += x[kA].value(((batch_of(a) == 1 ? 0 : item) * rows + i) * depth + k) *
                           x[kB].value(((batch_of(b) == 1 ? 0 : item) * depth + k) * cols + j);
                if (product) sum *= static_cast<double>(alpha);
                if (plain && beta != 0) sum += static_cast<double>(beta) * x[kC].value(at);
                if (!plain) {
                    sum = rounded(c.dtype, sum);
                    sum = problem.op == kGemmAdd ? sum + x[kD].value(at) : sum * x[kD].value(at);
                }
                out.push_back(x[kC].wanted(at, sum, exact ? Element::kEqual : Element::kAny));
            }
}

void norm(const Problem &problem, const std::vector<Elements> &x, std::vector<Element> &out) {
    const int dtype = problem.operands[kY].dtype;
    const size_t count = x[kY].offsets.size(), width = x[kWeight].offsets.size();
    const bool exact = x[kNormA].small() && x[kNormB].small() && x[kWeight].small();
    const double unit = dtype == INFINI_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
    const double store = dtype == INFINI_DTYPE_F16 ? 0x1p-11 : dtype == INFINI_DTYPE_BF16 ? 0x1p-8 : unit;
    const double least = dtype == INFINI_DTYPE_F16   ? 0x1p-24
                         : dtype == INFINI_DTYPE_F64 ? DBL_MIN
                                                     : static_cast<double>(FLT_MIN);
    std::vector<double> sums(count);
    for (size_t i = 0; i < count; ++i) {
        Element element{x[kResidual].address(i), dtype, Element::kExact, {}, 0, 0};
        put_binary(kAdd, dtype, element.bits, x[kNormA].address(i), x[kNormB].address(i));
        sums[i] = value_of(dtype, element.bits);
        out.push_back(element);
    }
    for (size_t row = 0; row < count; row += width) {
        double squares = 0;
        for (size_t i = row; i < row + width; ++i) squares += sums[i] * sums[i];
        const double mean = squares / static_cast<double>(width), under = mean + static_cast<double>(problem.epsilon);
        const bool cancels = std::fabs(under) < mean / 2;
        for (size_t i = row; i < row + width; ++i) {
            const double value = sums[i] / std::sqrt(under) * x[kWeight].value(i - row);
            // Ten roundings at most after the sum, whose cancellation by epsilon may double them, and the store.
            Element element = x[kY].wanted(i, value, exact && !cancels ? Element::kNear : Element::kAny);
            element.bound = std::fabs(value) * (10 * unit + store) * (1 + 0x1p-6) + least;
            if (under == 0) element.kind = Element::kAny; // infinity, or not a number
            out.push_back(element);
        }
    }
}

} // namespace

std::vector<Element> results(const Problem &problem, void *const *pointers, float alpha, float beta) {
    std::vector<Elements> x;
    for (int i = 0; i < problem.row().n_operands; ++i) x.emplace_back(problem.operands[i], pointers[i]);
    std::vector<Element> out;
    if (is_gemm(problem.op))
        gemm(problem, x, alpha, beta, out);
    else if (problem.op == kAddRMSNorm)
        norm(problem, x, out);
    else
        elementwise(problem, x, out);
    return out;
}

bool matches(const Element &wanted) {
    if (wanted.kind == Element::kAny || std::memcmp(wanted.address, wanted.bits, size_of(wanted.dtype)) == 0)
        return true;
    if (!is_float(wanted.dtype)) return false;
    const double got = value_of(wanted.dtype, wanted.address), bits = value_of(wanted.dtype, wanted.bits);
    if (wanted.kind == Element::kNear && !std::isnan(wanted.value))
        return std::isinf(wanted.value) ? got == wanted.value : std::fabs(got - wanted.value) <= wanted.bound;
    return (std::isnan(got) && std::isnan(bits)) || (wanted.kind == Element::kEqual && got == 0 && bits == 0);
}

} // namespace model
