/* The layout planner against brute force: extents, reduction and both overlap questions on small random layouts, where every
 * element can be listed; and the sizes at which arithmetic would overflow. The strips that a dimension is shared out in. */
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "core/dtype.h"
#include "core/layout.h"
#include "cpu/caches.h"

using namespace infini;

namespace {

std::mt19937 rng(20240607);
int64_t pick(int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); }

InfiniOperand random_operand(int rank, int64_t max_size, int64_t max_stride, int dtype) {
    InfiniOperand x{};
    x.dtype = dtype;
    x.ndim = rank;
    for (int d = 0; d < rank; ++d) {
        x.shape[d] = pick(1, max_size);
        x.stride[d] = x.shape[d] > 1 ? pick(-max_stride, max_stride) : 0;
    }
    return x;
}

/** Element offsets in row-major index order. */
std::vector<int64_t> offsets(const InfiniOperand &x) {
    std::vector<int64_t> all{x.offset};
    for (int d = 0; d < x.ndim; ++d) {
        std::vector<int64_t> next;
        for (int64_t base : all)
            for (int64_t i = 0; i < x.shape[d]; ++i) next.push_back(base + i * x.stride[d]);
        all = next;
    }
    return all;
}

void test_self_overlap() {
    int overlapping = 0;
    for (int round = 0; round < 20000; ++round) {
        const InfiniOperand x = random_operand(static_cast<int>(pick(0, 4)), 4, 13, INFINI_DTYPE_F32);
        std::vector<int64_t> all = offsets(x);
        std::sort(all.begin(), all.end());
        const bool expected = std::adjacent_find(all.begin(), all.end()) != all.end();
        overlapping += expected;
        CHECK(overlaps_itself(x) == expected);
    }
    CHECK(overlapping > 2000 && overlapping < 18000); // both answers were asked for
    InfiniOperand none = random_operand(2, 3, 1, INFINI_DTYPE_F32);
    none.shape[0] = 2;
    none.shape[1] = none.stride[0] = none.stride[1] = 0;
    CHECK(!overlaps_itself(none)); // no element, whatever the strides
}

void test_overlap() {
    std::vector<char> memory(4096);
    int overlapping = 0;
    for (int round = 0; round < 20000; ++round) {
        const int dtypes[] = {INFINI_DTYPE_I8, INFINI_DTYPE_F16, INFINI_DTYPE_F32, INFINI_DTYPE_C128};
        const InfiniOperand x = random_operand(static_cast<int>(pick(0, 3)), 4, 11, dtypes[pick(0, 3)]);
        const InfiniOperand y = random_operand(static_cast<int>(pick(0, 3)), 4, 11, dtypes[pick(0, 3)]);
        const int64_t at_x = 2048, at_y = 2048 + pick(-200, 200);
        std::set<int64_t> bytes;
        for (int64_t o : offsets(x))
            for (int b = 0; b < kDtypes[x.dtype].size; ++b) bytes.insert(at_x + o * kDtypes[x.dtype].size + b);
        bool expected = false;
        for (int64_t o : offsets(y))
            for (int b = 0; b < kDtypes[y.dtype].size; ++b)
                expected = expected || bytes.count(at_y + o * kDtypes[y.dtype].size + b) > 0;
        overlapping += expected;
        CHECK(overlap(x, memory.data() + at_x, y, memory.data() + at_y) == expected);
        CHECK(overlap(y, memory.data() + at_y, x, memory.data() + at_x) == expected);
    }
    CHECK(overlapping > 2000 && overlapping < 18000);
}

/** Reduction keeps which element of operand 0 meets which of the others, in as few dimensions as possible. */
void test_reduce() {
    for (int round = 0; round < 20000; ++round) {
        const int rank = static_cast<int>(pick(0, 5)), keep = rank > 0 && pick(0, 3) == 0 ? 1 : 0;
        InfiniOperand x[3];
        x[0] = random_operand(rank, 3, 1, INFINI_DTYPE_F32);
        // A contiguous output in a random order of dimensions, some reversed; a view that often is as regular.
        int order[5] = {0, 1, 2, 3, 4};
        std::shuffle(order, order + rank, rng);
        for (int o = 0; o < 3; ++o) {
            if (o > 0) x[o] = x[0];
            int64_t stride = 1;
            for (int i = 0; i < rank; ++i) {
                const int d = order[i];
                x[o].stride[d] = x[o].shape[d] == 1 ? 0 : stride * (pick(0, 4) == 0 ? -1 : 1);
                if (o > 0 && pick(0, 5) == 0) x[o].stride[d] = 0;
                stride = stride * x[o].shape[d] + (pick(0, 3) == 0 ? 2 : 0);
            }
        }
        std::vector<std::vector<int64_t>> before, after;
        const auto list = [&](std::vector<std::vector<int64_t>> &rows) {
            std::vector<int64_t> all[3] = {offsets(x[0]), offsets(x[1]), offsets(x[2])};
            for (size_t i = 0; i < all[0].size(); ++i) rows.push_back({all[0][i], all[1][i], all[2][i]});
            std::sort(rows.begin(), rows.end());
        };
        list(before);
        reduce_dims(x, 3, keep);
        list(after);
        CHECK(before == after);
        for (int o = 1; o < 3; ++o)
            CHECK(x[o].ndim == x[0].ndim && std::equal(x[0].shape, x[0].shape + x[0].ndim, x[o].shape));
        for (int d = 0; d + keep < x[0].ndim; ++d) {
            CHECK(x[0].shape[d] > 1 && x[0].stride[d] > 0);
            if (d == 0) continue;
            CHECK(x[0].stride[d - 1] > x[0].stride[d]);
            bool mergeable = true;
            for (const InfiniOperand &o : x) mergeable = mergeable && o.stride[d - 1] == o.stride[d] * o.shape[d];
            CHECK(!mergeable);
        }
    }
}

void test_make_operand() {
    InfiniOperand x;
    const auto make = [&](std::vector<size_t> shape, std::vector<ptrdiff_t> strides, int dtype) {
        return make_operand(&x, "test", shape.size(), shape.data(), strides.empty() ? nullptr : strides.data(), dtype);
    };
    const size_t big = size_t{1} << 62;
    CHECK(make({2, 3}, {}, INFINI_DTYPE_F32) == INFINI_STATUS_SUCCESS && x.stride[0] == 3 && x.stride[1] == 1);
    CHECK(make({2, 1}, {7, 99}, INFINI_DTYPE_F32) == INFINI_STATUS_SUCCESS && x.stride[0] == 7 && x.stride[1] == 0);
    CHECK(make({big, 4}, {}, INFINI_DTYPE_I8) == INFINI_STATUS_BAD_TENSOR_SHAPE);
    CHECK(make({big, 4}, {0, 0}, INFINI_DTYPE_I8) == INFINI_STATUS_BAD_TENSOR_SHAPE); // hidden behind stride 0
    CHECK(make({0, big, 4}, {}, INFINI_DTYPE_I8) == INFINI_STATUS_BAD_TENSOR_SHAPE);  // hidden behind size 0
    CHECK(make({big, 1}, {}, INFINI_DTYPE_I8) == INFINI_STATUS_SUCCESS);
    CHECK(make({big}, {}, INFINI_DTYPE_F32) == INFINI_STATUS_BAD_TENSOR_SHAPE); // the bytes overflow
    CHECK(make({big}, {0}, INFINI_DTYPE_F32) == INFINI_STATUS_SUCCESS);
    CHECK(make({SIZE_MAX}, {}, INFINI_DTYPE_I8) == INFINI_STATUS_BAD_TENSOR_SHAPE);
    CHECK(make({2}, {PTRDIFF_MAX}, INFINI_DTYPE_I8) == INFINI_STATUS_BAD_TENSOR_STRIDES);
    CHECK(make({2}, {PTRDIFF_MAX / 4}, INFINI_DTYPE_F32) == INFINI_STATUS_BAD_TENSOR_STRIDES);
    CHECK(make({2}, {PTRDIFF_MAX / 4 - 1}, INFINI_DTYPE_F32) == INFINI_STATUS_SUCCESS);
    CHECK(make({2}, {PTRDIFF_MIN}, INFINI_DTYPE_I8) == INFINI_STATUS_BAD_TENSOR_STRIDES);
    CHECK(make({2, 2}, {PTRDIFF_MAX / 2, PTRDIFF_MIN / 2}, INFINI_DTYPE_I8) == INFINI_STATUS_BAD_TENSOR_STRIDES);
    CHECK(make({2, 0}, {PTRDIFF_MIN, 5}, INFINI_DTYPE_I8) == INFINI_STATUS_SUCCESS); // nothing is read
    CHECK(make({1}, {PTRDIFF_MIN}, INFINI_DTYPE_I8) == INFINI_STATUS_SUCCESS);
}

/** Views whose overlap takes a search, and one beyond its budget. */
void test_search() {
    std::vector<float> memory(1 << 16);
    InfiniOperand x{};
    x.dtype = INFINI_DTYPE_F32;
    x.ndim = 2;
    x.shape[0] = x.shape[1] = 100;
    x.stride[0] = 200;
    x.stride[1] = 2; // every second column of a 100 x 200 array
    CHECK(!overlap(x, &memory[0], x, &memory[1]));
    CHECK(overlap(x, &memory[0], x, &memory[2]));
    CHECK(!overlap(x, &memory[0], x, &memory[201]));
    // Longer than memory in elements, in steps of a byte: sums of sizes need more than 64 bits.
    InfiniOperand huge{};
    huge.dtype = INFINI_DTYPE_BYTE;
    huge.ndim = 1;
    huge.shape[0] = INT64_MAX;
    huge.stride[0] = 1;
    CHECK(overlap(huge, reinterpret_cast<const void *>(16), huge, reinterpret_cast<const void *>(32)));
    InfiniOperand hard{};
    hard.dtype = INFINI_DTYPE_I8;
    hard.ndim = 11;
    for (int d = 0; d < hard.ndim; ++d) {
        hard.shape[d] = 40;
        hard.stride[d] = 1000003 + 2 * 7919 * d * d + 2 * d;
    }
    const InfiniOperand copy = hard;
    overlaps_itself(hard); // returns, whatever it says
    CHECK(same_layout(hard, copy));
}

/** One after the other to the last element, none empty, each but the first beginning whole steps behind the head. */
void test_strips() {
    for (int64_t n = 0; n < 200; ++n)
        for (const int64_t step : {16, 32, 64})
            for (int64_t head = 0; head < 64; ++head) {
                const Strips strips{n, step, head};
                int64_t at = 0;
                for (int64_t i = 0; i < strips.count(); ++i) {
                    CHECK(strips.begin(i) == at && strips.size(i) > 0);
                    CHECK(i == 0 || (at - head) % step == 0);
                    CHECK(strips.head_of(i) <= strips.size(i) && (i == 0 || strips.head_of(i) == 0));
                    at += strips.size(i);
                }
                CHECK(at == n);
            }
}

} // namespace

int main() {
    test_self_overlap();
    test_overlap();
    test_reduce();
    test_make_operand();
    test_search();
    test_strips();
    return check::summary();
}
