/* The operators through the public interface against plain loops, without Python: what a cross-compiled library is tested
 * with, and a backend: test_operators [--plugin PATH] [--device TYPE] [--every N], on the CPU and with all cases if nothing is said.
 * Values are small integers, so that sums and products are exact in every type and equality can be asked for; where
 * results are rounded, the nearest value is looked up in a table of all values. */
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "infini_backend.h"
#include "infiniop.h"

namespace {

using Shape = std::vector<size_t>;
using Strides = std::vector<ptrdiff_t>;

std::mt19937 rng(20251121);
int pick(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); }

infiniopHandle_t handle = nullptr;
infiniDevice_t device = INFINI_DEVICE_CPU;
int every = 1; // of that many products one is run, and eight times as many of the other cases, which cost less

bool skipped(bool product = false) {
    static int case_number = 0;
    return case_number++ % (product ? every : (every + 7) / 8) != 0;
}

/** What the library says about a call that had to succeed. */
bool ok(infiniStatus_t status) {
    if (status != INFINI_STATUS_SUCCESS) std::fprintf(stderr, "%s\n", infiniopGetLastErrorMessage());
    return status == INFINI_STATUS_SUCCESS;
}

/* ---- element types: bits to value and back, by their definition ------------------------------------------------------ */

struct HalfFormat {
    int exponent_bits, fraction_bits;
};
constexpr HalfFormat kF16{5, 10}, kBF16{8, 7};

/** The value of a pattern; one with the largest exponent is taken for the next power of two, for rounding up to it. */
double defined_value(HalfFormat format, uint32_t bits) {
    const int fraction = static_cast<int>(bits & ((1u << format.fraction_bits) - 1));
    const int exponent = static_cast<int>(bits >> format.fraction_bits & ((1u << format.exponent_bits) - 1));
    const int bias = (1 << (format.exponent_bits - 1)) - 1, one = 1 << format.fraction_bits;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias - format.fraction_bits)
                                           : std::ldexp(one + fraction, exponent - bias - format.fraction_bits);
    return bits & 0x8000u ? -magnitude : magnitude;
}

std::vector<double> defined_values(HalfFormat format) {
    std::vector<double> values(65536);
    for (uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = defined_value(format, bits);
    return values;
}

double value_of(HalfFormat format, uint32_t bits) {
    static const std::vector<double> f16 = defined_values(kF16), bf16 = defined_values(kBF16);
    return (format.fraction_bits == kF16.fraction_bits ? f16 : bf16)[bits];
}

/** The pattern nearest to a finite value, ties to even: a search, because magnitudes grow with their patterns. */
uint16_t nearest(HalfFormat format, double value) {
    const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.fraction_bits;
    const double magnitude = std::fabs(value);
    uint32_t below = 0, above = infinity;
    if (magnitude >= value_of(format, infinity)) below = infinity;
    while (above - below > 1 && below < above) {
        const uint32_t middle = (below + above) / 2;
        (value_of(format, middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - value_of(format, below), up = value_of(format, above) - magnitude;
    const uint32_t bits = down < up || (down == up && below % 2 == 0) ? below : above;
    return static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000u : 0u));
}

size_t size_of(infiniDtype_t dtype) {
    switch (dtype) {
    case INFINI_DTYPE_I8: return 1;
    case INFINI_DTYPE_F16:
    case INFINI_DTYPE_BF16:
    case INFINI_DTYPE_U16: return 2;
    case INFINI_DTYPE_F32: return 4;
    case INFINI_DTYPE_F64:
    case INFINI_DTYPE_C64:
    case INFINI_DTYPE_I64: return 8;
    default: return 16; // C128
    }
}

template <class T>
double read_as(const unsigned char *p) {
    T x;
    std::memcpy(&x, p, sizeof x);
    return static_cast<double>(x);
}
void write_half(unsigned char *p, HalfFormat format, double value) {
    const uint16_t bits = nearest(format, value);
    std::memcpy(p, &bits, sizeof bits);
}
template <class T, class Wide = double> // integers wrap around by way of a wider type
void write_as(unsigned char *p, double value) {
    const T x = static_cast<T>(static_cast<Wide>(value));
    std::memcpy(p, &x, sizeof x);
}

double read(infiniDtype_t dtype, const unsigned char *p) {
    uint16_t bits;
    std::memcpy(&bits, p, dtype == INFINI_DTYPE_I8 ? 0 : sizeof bits);
    switch (dtype) {
    case INFINI_DTYPE_F16: return value_of(kF16, bits);
    case INFINI_DTYPE_BF16: return value_of(kBF16, bits);
    case INFINI_DTYPE_F32: return read_as<float>(p);
    case INFINI_DTYPE_F64: return read_as<double>(p);
    case INFINI_DTYPE_I8: return read_as<int8_t>(p);
    case INFINI_DTYPE_U16: return read_as<uint16_t>(p);
    default: return read_as<int64_t>(p);
    }
}

void write(infiniDtype_t dtype, unsigned char *p, double value) {
    switch (dtype) {
    case INFINI_DTYPE_F16: write_half(p, kF16, value); break;
    case INFINI_DTYPE_BF16: write_half(p, kBF16, value); break;
    case INFINI_DTYPE_F32: write_as<float>(p, value); break;
    case INFINI_DTYPE_F64: write_as<double>(p, value); break;
    case INFINI_DTYPE_I8: write_as<int8_t, int64_t>(p, value); break;
    case INFINI_DTYPE_U16: write_as<uint16_t, int64_t>(p, value); break;
    default: write_as<int64_t>(p, value); break;
    }
}

/* ---- operands -------------------------------------------------------------------------------------------------------- */

enum Layout { kCompact, kPadded, kTransposed, kReversed, kBroadcast, kColumn, kEverySecond };
constexpr Layout kInputs[] = {kCompact, kPadded, kTransposed, kReversed, kBroadcast};
constexpr Layout kOutputs[] = {kCompact, kPadded, kTransposed, kReversed};

/** A strided array in memory that is filled with a pattern, so that a write between the elements shows. */
struct Operand {
    infiniDtype_t dtype;
    Shape shape;
    Strides strides;
    ptrdiff_t first = 0, skew; // elements, bytes
    std::vector<unsigned char> memory;
    void *on_device = nullptr;
    infiniopTensorDescriptor_t descriptor = nullptr;

    Operand(infiniDtype_t type, Shape sizes, Layout layout, ptrdiff_t skew_bytes = 0)
        : dtype(type), shape(sizes), strides(sizes.size()), skew(skew_bytes) {
        ptrdiff_t stride = layout == kEverySecond ? 2 : 1;
        for (size_t i = 0; i < shape.size(); ++i) { // from the last dimension on, from the first on where transposed
            const size_t d = layout == kTransposed ? i : shape.size() - 1 - i;
            const bool constant = (layout == kBroadcast && d == 0) || (layout == kColumn && d == shape.size() - 1);
            strides[d] = constant ? 0 : layout == kReversed ? -stride : stride;
            if (strides[d] < 0) first += stride * (static_cast<ptrdiff_t>(shape[d]) - 1);
            stride *= static_cast<ptrdiff_t>(shape[d]) + (layout == kPadded ? 3 : 0);
        }
        memory.assign(static_cast<size_t>(stride) * size_of(dtype) + static_cast<size_t>(skew), 0xa5);
        CHECK(ok(infiniopCreateTensorDescriptor(&descriptor, shape.size(), shape.data(), strides.data(), dtype)));
    }
    Operand(const Operand &) = delete;
    ~Operand() {
        infiniopDestroyTensorDescriptor(descriptor);
        infinirtFree(on_device);
    }

    size_t count() const {
        size_t n = 1;
        for (size_t size : shape) n *= size;
        return n;
    }
    /** Where the element lies that is number `i` in row-major order. */
    ptrdiff_t offset(size_t i) const {
        ptrdiff_t at = first;
        for (size_t d = shape.size(); d-- > 0; i /= shape[d]) at += strides[d] * static_cast<ptrdiff_t>(i % shape[d]);
        return skew + at * static_cast<ptrdiff_t>(size_of(dtype));
    }
    double get(size_t i) const { return read(dtype, memory.data() + offset(i)); }
    void set(size_t i, double value) { write(dtype, memory.data() + offset(i), value); }
    /** The first element, in the memory of the device that operators run on, which has what `memory` has now. */
    void *data() {
        void *base = memory.data();
        if (device != INFINI_DEVICE_CPU) {
            if (on_device == nullptr) CHECK(ok(infinirtMalloc(&on_device, memory.size())));
            CHECK(ok(infinirtMemcpy(on_device, memory.data(), memory.size(), INFINIRT_MEMCPY_H2D)));
            base = on_device;
        }
        return static_cast<unsigned char *>(base) + skew + first * static_cast<ptrdiff_t>(size_of(dtype));
    }
    /** After a run that wrote to data(). */
    bool fetch() {
        return device == INFINI_DEVICE_CPU ||
               ok(infinirtMemcpy(memory.data(), on_device, memory.size(), INFINIRT_MEMCPY_D2H));
    }

    Operand &fill(int limit) {
        for (size_t i = 0; i < count(); ++i) set(i, pick(-limit, limit));
        return *this;
    }
    std::vector<double> values() const {
        std::vector<double> all(count());
        for (size_t i = 0; i < all.size(); ++i) all[i] = get(i);
        return all;
    }
    /** The memory after `wanted` was written to the elements and nothing else. */
    std::vector<unsigned char> memory_with(const std::vector<double> &wanted) const {
        std::vector<unsigned char> after = memory;
        for (size_t i = 0; i < wanted.size(); ++i) write(dtype, after.data() + offset(i), wanted[i]);
        return after;
    }
};

/** Memory of the device for one run. */
struct Workspace {
    void *data = nullptr;
    explicit Workspace(size_t size) { CHECK(ok(infinirtMalloc(&data, size))); }
    Workspace(const Workspace &) = delete;
    ~Workspace() { infinirtFree(data); }
};

/* ---- gemm ------------------------------------------------------------------------------------------------------------ */

/** Computes C = alpha * A @ B + beta * C. */
bool run_gemm(Operand &c, Operand &a, Operand &b, float alpha, float beta) {
    infiniopGemmDescriptor_t desc = nullptr;
    size_t size = 0;
    bool done = ok(infiniopCreateGemmDescriptor(handle, &desc, c.descriptor, a.descriptor, b.descriptor)) &&
                ok(infiniopGetGemmWorkspaceSize(desc, &size));
    const Workspace workspace(size);
    done = done && ok(infiniopGemm(desc, workspace.data, size, c.data(), a.data(), b.data(), alpha, beta, nullptr));
    return ok(infiniopDestroyGemmDescriptor(desc)) && done && c.fetch();
}

void test_gemm_of(infiniDtype_t dtype, size_t m, size_t n, size_t k, Layout layout_c, Layout layout_a,
                  Layout layout_b) {
    const int limit = dtype == INFINI_DTYPE_BF16 ? 1 : 3; // sums stay exact: below 2^8 in BF16, 2^11 in F16
    Operand a(dtype, {m, k}, layout_a), b(dtype, {k, n}, layout_b), c(dtype, {m, n}, layout_c);
    const std::vector<double> x = a.fill(limit).values(), y = b.fill(limit).values();
    std::vector<double> product(m * n);
    for (size_t i = 0; i < m; ++i)
        for (size_t p = 0; p < k; ++p)
            for (size_t j = 0; j < n; ++j) product[i * n + j] += x[i * k + p] * y[p * n + j];
    for (size_t i = 0; i < m * n; ++i) c.set(i, INFINITY); // not read where beta is 0, or NaNs would come of it
    const std::vector<unsigned char> first = c.memory_with(product);
    CHECK(run_gemm(c, a, b, 1, 0) && c.memory == first);
    const std::vector<double> before = c.fill(limit).values();
    for (size_t i = 0; i < m * n; ++i) product[i] = 2 * product[i] - before[i];
    const std::vector<unsigned char> second = c.memory_with(product);
    CHECK(run_gemm(c, a, b, 2, -1) && c.memory == second);
}

void test_gemm() {
    constexpr size_t kSizes[][3] = {{1, 1, 1},   {2, 3, 4},  {5, 7, 9},   {17, 19, 33},
                                    {1, 40, 51}, {33, 1, 8}, {40, 37, 50}};
    for (infiniDtype_t dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64})
        for (const auto &size : kSizes)
            for (Layout c : kOutputs)
                for (Layout a : kInputs)
                    for (Layout b : kInputs)
                        if (!skipped(true)) test_gemm_of(dtype, size[0], size[1], size[2], c, a, b);
}

/* ---- gemm_add, gemm_mul ---------------------------------------------------------------------------------------------- */

enum Elementwise { kAdd, kMul };

/** Computes Y = (alpha * A @ B) op D. */
bool run_epilogue(Elementwise op, Operand &y, Operand &a, Operand &b, Operand &d, float alpha) {
    infiniopGemmAddDescriptor_t desc = nullptr;
    size_t size = 0;
    const auto create = op == kAdd ? infiniopCreateGemmAddDescriptor : infiniopCreateGemmMulDescriptor;
    const auto ask = op == kAdd ? infiniopGetGemmAddWorkspaceSize : infiniopGetGemmMulWorkspaceSize;
    const auto run = op == kAdd ? infiniopGemmAdd : infiniopGemmMul;
    const auto destroy = op == kAdd ? infiniopDestroyGemmAddDescriptor : infiniopDestroyGemmMulDescriptor;
    bool done =
        ok(create(handle, &desc, y.descriptor, a.descriptor, b.descriptor, d.descriptor)) && ok(ask(desc, &size));
    const Workspace workspace(size);
    done = done && ok(run(desc, workspace.data, size, y.data(), a.data(), b.data(), d.data(), alpha, nullptr));
    return ok(destroy(desc)) && done && y.fetch();
}

bool run_elementwise(Elementwise op, Operand &c, Operand &a, Operand &b);

/** The bits of gemm followed by add or mul, for values that round in both. */
void test_epilogue() {
    constexpr size_t kSizes[][3] = {{1, 1, 1},  {5, 7, 9},    {17, 19, 33},   {1, 40, 51},
                                    {33, 1, 8}, {200, 3, 20}, {70, 150, 300}, {4, 5, 0}};
    const auto fill = [](Operand &x) {
        for (size_t i = 0; i < x.count(); ++i) x.set(i, pick(-1000, 1000) / 777.0);
    };
    for (infiniDtype_t dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64})
        for (const auto &[m, n, k] : kSizes) {
            Operand a(dtype, {m, k}, kCompact), b(dtype, {k, n}, m % 2 == 0 ? kTransposed : kPadded);
            fill(a);
            fill(b);
            for (Layout layout_y : kOutputs) { // on which the order of a sum may depend
                Operand product(dtype, {m, n}, layout_y);
                bool computed = false;
                for (Layout layout_d : kInputs) {
                    if (skipped(true)) continue;
                    CHECK(computed || run_gemm(product, a, b, -2.5f, 0));
                    computed = true;
                    Operand d(dtype, {m, n}, layout_d);
                    fill(d);
                    for (Elementwise op : {kAdd, kMul}) {
                        Operand y(dtype, {m, n}, layout_y), wanted(dtype, {m, n}, layout_y);
                        CHECK(run_elementwise(op, wanted, product, d));
                        CHECK(run_epilogue(op, y, a, b, d, -2.5f) && y.memory == wanted.memory);
                    }
                }
            }
        }
}

/** Any number of threads gives the same bits, rounded ones too; with few rows, with more and with many. */
void test_threads() {
    for (infiniDtype_t dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64})
        for (size_t m : {20, 120, 530}) {
            Operand a(dtype, {m, 300}, kCompact), b(dtype, {300, 200}, kTransposed);
            for (Operand *x : {&a, &b})
                for (size_t i = 0; i < x->count(); ++i) x->set(i, pick(-1000, 1000) / 777.0);
            std::vector<unsigned char> alone;
            for (int threads : {1, 2, 3, 5}) {
                Operand c(dtype, {m, 200}, kCompact);
                CHECK(ok(infiniopSetNumThreads(threads)) && run_gemm(c, a, b, 0.5f, 0));
                if (threads == 1) alone = c.memory;
                CHECK(c.memory == alone);
            }
            CHECK(ok(infiniopSetNumThreads(0)));
        }
}

/* ---- add, mul -------------------------------------------------------------------------------------------------------- */

bool run_elementwise(Elementwise op, Operand &c, Operand &a, Operand &b) {
    infiniopAddDescriptor_t desc = nullptr;
    size_t size = 0;
    const auto create = op == kAdd ? infiniopCreateAddDescriptor : infiniopCreateMulDescriptor;
    const auto ask = op == kAdd ? infiniopGetAddWorkspaceSize : infiniopGetMulWorkspaceSize;
    const auto run = op == kAdd ? infiniopAdd : infiniopMul;
    const auto destroy = op == kAdd ? infiniopDestroyAddDescriptor : infiniopDestroyMulDescriptor;
    bool done = ok(create(handle, &desc, c.descriptor, a.descriptor, b.descriptor)) && ok(ask(desc, &size));
    const Workspace workspace(size);
    done = done && ok(run(desc, workspace.data, size, c.data(), a.data(), b.data(), nullptr));
    return ok(destroy(desc)) && done && c.fetch();
}

void test_sum_of(Operand &c, Operand &a, Operand &b) {
    std::vector<double> wanted = a.fill(9).values();
    const std::vector<double> other = b.fill(9).values();
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += other[i];
    const std::vector<unsigned char> after = c.memory_with(wanted);
    CHECK(run_elementwise(kAdd, c, a, b) && c.memory == after);
}

void test_elementwise() {
    constexpr infiniDtype_t kDtypes[] = {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64,
                                         INFINI_DTYPE_I8,  INFINI_DTYPE_I64,  INFINI_DTYPE_U16};
    const Shape shapes[] = {{1}, {77}, {7, 19}, {33, 65}, {3, 5, 33}};
    for (infiniDtype_t dtype : kDtypes)
        for (const Shape &shape : shapes)
            for (Layout layout_c : kOutputs)
                for (Layout layout_a : kInputs)
                    for (Layout layout_b : kInputs)
                        for (Elementwise op : {kAdd, kMul}) {
                            if (skipped()) continue;
                            Operand a(dtype, shape, layout_a), b(dtype, shape, layout_b), c(dtype, shape, layout_c);
                            std::vector<double> wanted = a.fill(7).values();
                            const std::vector<double> other = b.fill(7).values();
                            for (size_t i = 0; i < wanted.size(); ++i)
                                wanted[i] = op == kAdd ? wanted[i] + other[i] : wanted[i] * other[i];
                            const std::vector<unsigned char> after = c.memory_with(wanted);
                            CHECK(run_elementwise(op, c, a, b) && c.memory == after);
                        }
}

/** Sums and products of all kinds of halves are the nearest ones: subnormal, overflowing and tied ones too. */
void test_rounding() {
    for (infiniDtype_t dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16}) {
        const HalfFormat format = dtype == INFINI_DTYPE_F16 ? kF16 : kBF16;
        const int infinity = ((1 << format.exponent_bits) - 1) << format.fraction_bits;
        const size_t n = 20000;
        Operand a(dtype, {n}, kCompact), b(dtype, {n}, kCompact), c(dtype, {n}, kCompact);
        for (size_t i = 0; i < n; ++i) {
            const int x = pick(0, infinity - 1);
            // Half of the pairs are of like size, so that their sums round.
            const int y = i % 2 == 0 ? pick(0, infinity - 1) : std::min(infinity - 1, x / 2 + pick(0, infinity / 2));
            const uint16_t pair[2] = {static_cast<uint16_t>(x | pick(0, 1) << 15),
                                      static_cast<uint16_t>(y | pick(0, 1) << 15)};
            std::memcpy(a.memory.data() + 2 * i, &pair[0], 2);
            std::memcpy(b.memory.data() + 2 * i, &pair[1], 2);
        }
        for (Elementwise op : {kAdd, kMul}) {
            CHECK(run_elementwise(op, c, a, b));
            size_t wrong = 0, subnormal = 0, infinite = 0;
            for (size_t i = 0; i < n; ++i) {
                const double exact = op == kAdd ? a.get(i) + b.get(i) : a.get(i) * b.get(i);
                uint16_t got;
                std::memcpy(&got, c.memory.data() + 2 * i, 2);
                wrong += got != nearest(format, exact);
                subnormal += (got & 0x7fff) != 0 && (got & 0x7fff) < 1 << format.fraction_bits;
                infinite += (got & 0x7fff) == infinity;
            }
            CHECK(wrong == 0);
            CHECK(op == kAdd || (subnormal > 50 && infinite > 50)); // the data had them
        }
    }
}

/* ---- add_rms_norm ---------------------------------------------------------------------------------------------------- */

void test_norm() {
    const Shape shapes[] = {{3, 1}, {5, 64}, {1, 100}, {4, 1023}, {2, 3, 40}, {2, 1501}, {3, 4096}, {1, 40000}};
    for (infiniDtype_t dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64})
        for (const Shape &shape : shapes)
            for (Layout layout : {kCompact, kPadded}) {
                if (skipped()) continue;
                const size_t d = shape.back();
                Operand y(dtype, shape, kCompact), residual(dtype, shape, layout), a(dtype, shape, layout),
                    b(dtype, shape, kCompact), weight(dtype, {d}, kCompact);
                std::vector<double> sum = a.fill(7).values();
                const std::vector<double> other = b.fill(7).values(), scale = weight.fill(7).values();
                for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
                const std::vector<unsigned char> after = residual.memory_with(sum);
                const float epsilon = 0.125f;
                infiniopAddRMSNormDescriptor_t desc = nullptr;
                size_t size = 0;
                CHECK(ok(infiniopCreateAddRMSNormDescriptor(handle, &desc, y.descriptor, residual.descriptor,
                                                            a.descriptor, b.descriptor, weight.descriptor, epsilon)));
                CHECK(ok(infiniopGetAddRMSNormWorkspaceSize(desc, &size)));
                const Workspace workspace(size);
                CHECK(ok(infiniopAddRMSNorm(desc, workspace.data, size, y.data(), residual.data(), a.data(), b.data(),
                                            weight.data(), nullptr)));
                CHECK(y.fetch() && residual.fetch());
                CHECK(ok(infiniopDestroyAddRMSNormDescriptor(desc)));
                CHECK(residual.memory == after);
                // The squares and their sum are exact; a division, a sum, a root, a reciprocal and two products round.
                const double unit = dtype == INFINI_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
                const double store = dtype == INFINI_DTYPE_F16 ? 0x1p-11 : dtype == INFINI_DTYPE_BF16 ? 0x1p-8 : unit;
                for (size_t row = 0; row < sum.size() / d; ++row) {
                    double squares = 0;
                    for (size_t i = 0; i < d; ++i) squares += sum[row * d + i] * sum[row * d + i];
                    const double root = std::sqrt(squares / static_cast<double>(d) + epsilon);
                    for (size_t i = row * d; i < (row + 1) * d; ++i) {
                        const double exact = sum[i] / root * scale[i % d];
                        CHECK(std::fabs(y.get(i) - exact) <= std::fabs(exact) * (6 * unit + store) * (1 + 0x1p-6));
                    }
                }
            }
}

/* ---- rearrange ------------------------------------------------------------------------------------------------------- */

/** What lies in x is in y afterwards, bit by bit, and nothing else is. */
void test_rearrange_of(Operand &y, Operand &x) {
    for (unsigned char &byte : x.memory) byte = static_cast<unsigned char>(pick(0, 255)); // NaNs too
    std::vector<unsigned char> after = y.memory;
    for (size_t i = 0; i < x.count(); ++i)
        std::memcpy(after.data() + y.offset(i), x.memory.data() + x.offset(i), size_of(y.dtype));
    infiniopRearrangeDescriptor_t desc = nullptr;
    CHECK(ok(infiniopCreateRearrangeDescriptor(handle, &desc, y.descriptor, x.descriptor)));
    CHECK(ok(infiniopRearrange(desc, y.data(), x.data(), nullptr)) && y.fetch());
    CHECK(ok(infiniopDestroyRearrangeDescriptor(desc)));
    CHECK(y.memory == after);
}

void test_rearrange() {
    const Shape shapes[] = {{1}, {130}, {7, 19}, {66, 70}, {3, 5, 33}, {2, 3, 4, 5}};
    for (infiniDtype_t dtype :
         {INFINI_DTYPE_I8, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_I64, INFINI_DTYPE_C128})
        for (const Shape &shape : shapes)
            for (Layout layout_y : kOutputs)
                for (Layout layout_x : kInputs) {
                    if (skipped()) continue;
                    // A complex number is aligned like its parts.
                    const ptrdiff_t skew = dtype == INFINI_DTYPE_C128 ? 8 * pick(0, 1) : 0;
                    Operand y(dtype, shape, layout_y, skew), x(dtype, shape, layout_x, 8 * pick(0, 1) * (skew != 0));
                    test_rearrange_of(y, x);
                }
}

/** Transposes of many tiles of a device, at its edges and within, aligned and not; with sides of one dimension and of two. */
void test_transposes() {
    const std::vector<Shape> shapes{{395, 403}, {512, 520}, {70, 96}, {6, 5, 9, 7, 10}, {16, 18, 2, 14, 19}};
    const auto with_pages = [&](infiniDtype_t dtype) { // rows that begin at the same place of a page
        std::vector<Shape> all = shapes;
        all.push_back({150, 4096 / size_of(dtype)});
        return all;
    };
    for (infiniDtype_t dtype :
         {INFINI_DTYPE_I8, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_I64, INFINI_DTYPE_C64, INFINI_DTYPE_C128})
        for (const Shape &shape : with_pages(dtype)) {
            const auto step = static_cast<ptrdiff_t>(size_of(dtype) /
                                                     (dtype == INFINI_DTYPE_C64 || dtype == INFINI_DTYPE_C128 ? 2 : 1));
            for (ptrdiff_t skew_y : {ptrdiff_t{0}, step, 3 * step})
                for (ptrdiff_t skew_x : {ptrdiff_t{0}, step, 2 * step}) {
                    if (skipped()) continue;
                    Operand y(dtype, shape, kCompact, skew_y), x(dtype, shape, kTransposed, skew_x);
                    test_rearrange_of(y, x);
                }
        }
    for (infiniDtype_t dtype : {INFINI_DTYPE_I8, INFINI_DTYPE_F16, INFINI_DTYPE_F32, INFINI_DTYPE_F64})
        for (const Shape &shape : {shapes[0], shapes[1], shapes[2]})
            for (Layout layout_b : kInputs) {
                if (skipped()) continue;
                Operand c(dtype, shape, kCompact), a(dtype, shape, kTransposed), b(dtype, shape, layout_b);
                test_sum_of(c, a, b);
            }
}

/** What a device cuts into pieces: sides too short for tiles, lines that begin anywhere, elements that are not side by side. */
void test_pieces() {
    const Shape shapes[] = {{700, 3}, {3, 700}, {15, 410}, {410, 15}, {2, 9, 300}, {5, 1003}, {4, 40, 49}, {3, 9001}};
    for (infiniDtype_t dtype : {INFINI_DTYPE_I8, INFINI_DTYPE_F16, INFINI_DTYPE_F32})
        for (const Shape &shape : shapes)
            for (Layout layout_a : {kCompact, kTransposed, kEverySecond}) {
                const auto step = static_cast<ptrdiff_t>(size_of(dtype));
                for (Layout layout_c : {kCompact, kPadded}) {
                    if (skipped()) continue;
                    Operand y(dtype, shape, layout_c, step * pick(0, 3)), x(dtype, shape, layout_a, step * pick(0, 3));
                    test_rearrange_of(y, x);
                }
                for (Layout layout_b : {kCompact, kPadded, kTransposed, kBroadcast, kColumn, kEverySecond}) {
                    if (skipped()) continue;
                    Operand c(dtype, shape, pick(0, 1) == 0 ? kCompact : kPadded, step * pick(0, 3));
                    Operand a(dtype, shape, layout_a, step * pick(0, 3)), b(dtype, shape, layout_b, step * pick(0, 3));
                    test_sum_of(c, a, b);
                }
            }
}

/* ---- the caller's floating-point environment ------------------------------------------------------------------------- */

/** Rounding is to nearest whatever the caller has set, and the caller's mode and flags are afterwards what they were. */
void test_environment() {
    Operand a(INFINI_DTYPE_F32, {9}, kCompact), b(INFINI_DTYPE_F32, {9}, kCompact), c(INFINI_DTYPE_F32, {9}, kCompact);
    for (size_t i = 0; i < 9; ++i) {
        a.set(i, 1);
        b.set(i, 0x1p-30);
    }
    const std::vector<unsigned char> nearest_sum = c.memory_with(std::vector<double>(9, 1.0));
    for (int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST}) {
        std::fesetround(mode);
        std::feclearexcept(FE_ALL_EXCEPT);
        const bool done = run_elementwise(kAdd, c, a, b); // inexact
        const int mode_after = std::fegetround(), flags_after = std::fetestexcept(FE_ALL_EXCEPT);
        std::fesetround(FE_TONEAREST);
        CHECK(done && c.memory == nearest_sum);
        CHECK(mode_after == mode);
        CHECK(flags_after == 0);
    }
    std::feraiseexcept(FE_DIVBYZERO); // a flag that was there stays
    CHECK(run_elementwise(kAdd, c, a, b));
    CHECK(std::fetestexcept(FE_ALL_EXCEPT) == FE_DIVBYZERO);
    std::feclearexcept(FE_ALL_EXCEPT);
}

} // namespace

int main(int n, char **arguments) {
    const char *isa = nullptr;
    for (int i = 1; i + 1 < n; i += 2) {
        const char *const value = arguments[i + 1];
        if (std::strcmp(arguments[i], "--plugin") == 0) CHECK(ok(infinirtLoadBackend(value)));
        if (std::strcmp(arguments[i], "--device") == 0) device = std::atoi(value);
        if (std::strcmp(arguments[i], "--every") == 0) every = std::atoi(value);
    }
    CHECK(ok(infinirtSetDevice(device, 0)));
    CHECK(ok(infiniopCreateHandle(&handle)) && ok(infiniopGetCpuIsa(&isa)));
    if (check::failed > 0) return check::summary();
    std::printf("device type %d, instruction set %s\n", device, isa);
    test_gemm();
    test_epilogue();
    test_elementwise();
    test_rounding();
    test_norm();
    test_rearrange();
    test_transposes();
    test_pieces();
    if (device == INFINI_DEVICE_CPU) {
        test_threads();
        test_environment();
    }
    CHECK(ok(infiniopDestroyHandle(handle)));
    return check::summary();
}
