/* What the NVIDIA backend's tests stand on: the engine that runs kernels on the CPU finds what it is there to find, division by
 * multiplication is exact, and plans of maps cover every element once. */
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "core/layout.h"
#include "cuda/fast_div.h"
#include "cuda/map_plan.h"
#include "engine.h"

using namespace infini;
using namespace infini::cuda;

namespace {

std::mt19937_64 rng(20261123);
int64_t pick(int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); }

/* ---- the engine ------------------------------------------------------------------------------------------------------ */

struct Rows {
    const float *in;
    float *out;
    int n;
};

/** Each thread hands its number to the thread of the other end by way of shared memory, twice. */
template <bool kFirst, bool kSecond>
void mirror(HostCtx &ctx, const void *params) {
    const Rows &p = *static_cast<const Rows *>(params);
    float *const shared = ctx.shared<float>();
    for (int round = 0; round < 2; ++round) {
        shared[ctx.thread()] = p.in[ctx.thread()] + static_cast<float>(round);
        if (kFirst) ctx.sync();
        p.out[round * p.n + ctx.thread()] = shared[p.n - 1 - ctx.thread()];
        if (kSecond) ctx.sync(); // or the next round overwrites what others have still to read
    }
}

/** Right answers of `mirror`, or not? */
template <bool kFirst, bool kSecond>
bool mirrors(const char *policy, uint64_t seed) {
    constexpr int n = 96;
    std::vector<float> in(n), out(2 * n);
    for (int i = 0; i < n; ++i) in[static_cast<size_t>(i)] = static_cast<float>(i);
    const Rows p{in.data(), out.data(), n};
    CHECK(set_schedule(policy, seed));
    CHECK(run_kernel({mirror<kFirst, kSecond>, sizeof p}, &p, 1, n, n * sizeof(float)).empty());
    for (int round = 0; round < 2; ++round)
        for (int i = 0; i < n; ++i)
            if (out[static_cast<size_t>(round * n + i)] != static_cast<float>(n - 1 - i + round)) return false;
    return true;
}

/** Sums of warps, and lanes that stay away from them. */
void sums(HostCtx &ctx, const void *params) {
    const Rows &p = *static_cast<const Rows *>(params);
    p.out[ctx.thread()] = warp_sum(ctx, p.in[ctx.thread()]);
}
void half_a_warp(HostCtx &ctx, const void *params) {
    if (ctx.thread() % kWarp < kWarp / 2) sums(ctx, params);
}
void two_places(HostCtx &ctx, const void *) {
    if (ctx.thread() % 2 == 0)
        ctx.sync();
    else
        ctx.sync();
}
void one_warp_alone(HostCtx &ctx, const void *) {
    if (ctx.thread() < kWarp) ctx.sync();
}
void crossed(HostCtx &ctx, const void *) {
    if (ctx.thread() == 0)
        ctx.sync();
    else
        ctx.sync_warp();
}
void misaligned(HostCtx &ctx, const void *params) { ctx.load<16>(static_cast<const Rows *>(params)->in + 1); }

/** Each thread has 16 bytes copied, which another one writes out; twice, to the same place. */
enum Mistake { kNone, kNoCommit, kNoWait, kNoBarrier, kNoSecondBarrier, kNeverWaited };
template <Mistake M>
void copied(HostCtx &ctx, const void *params) {
    const Rows &p = *static_cast<const Rows *>(params);
    float *const shared = ctx.shared<float>();
    const int own = 4 * ctx.thread(), other = p.n - 4 - own;
    for (int round = 0; round < 2; ++round) {
        ctx.copy_async(shared + own, p.in + 4 * round + own);
        if (M != kNoCommit) ctx.commit_copies();
        if (M == kNoWait || M == kNeverWaited) ctx.commit_copies();
        if (M == kNoWait || M == kNeverWaited)
            ctx.wait_copies<2>();
        else
            ctx.wait_copies<0>();
        if (M != kNoBarrier) ctx.sync();
        memcpy(p.out + round * p.n + other, shared + other, 16);
        if (M != kNoSecondBarrier) ctx.sync();
    }
    if (M != kNeverWaited) {
        ctx.commit_copies();
        ctx.wait_copies<0>();
    }
}

/** Right answers of `copied`, or not? */
template <Mistake M>
bool copies(const char *policy, uint64_t seed) {
    constexpr int n = 4 * 96;
    alignas(16) float in[n + 4];
    float out[2 * n];
    for (int i = 0; i < n + 4; ++i) in[i] = 1.5f + static_cast<float>(i);
    const Rows p{in, out, n};
    CHECK(set_schedule(policy, seed));
    const std::string fault = run_kernel({copied<M>, sizeof p}, &p, 1, n / 4, n * sizeof(float));
    CHECK(fault == (M == kNeverWaited ? "block 0: copies that nobody waited for" : ""));
    bool right = fault.empty();
    for (int i = 0; i < 2 * n; ++i) right = right && out[i] == in[i % n + i / n * 4];
    return right;
}
void misaligned_copy(HostCtx &ctx, const void *params) {
    ctx.copy_async(ctx.shared<float>(), static_cast<const Rows *>(params)->in + 2);
}

void test_engine() {
    for (const char *policy : {"fair", "greedy"}) {
        bool first_found = false, second_found = false;
        for (uint64_t seed = 1; seed <= 8; ++seed) {
            CHECK((mirrors<true, true>(policy, seed)));
            first_found |= !mirrors<false, true>(policy, seed);
            second_found |= !mirrors<true, false>(policy, seed);
        }
        CHECK(first_found && second_found);
        first_found = second_found = false;
        for (uint64_t seed = 1; seed <= 8; ++seed) {
            CHECK(copies<kNone>(policy, seed));
            CHECK(!copies<kNoCommit>(policy, seed));
            CHECK(!copies<kNoWait>(policy, seed));
            CHECK(!copies<kNeverWaited>(policy, seed));
            first_found |= !copies<kNoBarrier>(policy, seed);
            second_found |= !copies<kNoSecondBarrier>(policy, seed);
        }
        CHECK(first_found && second_found);
    }
    CHECK(!set_schedule("eager", 1));

    alignas(16) float in[64], out[64];
    for (int i = 0; i < 64; ++i) in[i] = static_cast<float>(i);
    const Rows p{in, out, 64};
    const auto fault = [&](void (*body)(HostCtx &, const void *)) {
        return run_kernel({body, sizeof p}, &p, 1, 64, 16);
    };
    const auto found = [&](void (*body)(HostCtx &, const void *), const char *word) {
        return fault(body).find(word) != std::string::npos;
    };
    CHECK(fault(sums).empty());
    for (int i = 0; i < 64; ++i) CHECK(out[i] == (i < 32 ? 496.0f : 1520.0f));
    CHECK(found(half_a_warp, "threads of a warp are done while others wait"));
    CHECK(found(two_places, "different lines"));
    CHECK(found(one_warp_alone, "threads of a block are done while others wait"));
    CHECK(found(crossed, "threads wait for others that never come"));
    CHECK(found(misaligned, "misaligned load of 16 bytes"));
    CHECK(found(misaligned_copy, "misaligned copy from of 16 bytes"));
}

/* ---- division -------------------------------------------------------------------------------------------------------- */

template <class U>
void test_division() {
    constexpr U most = (U{1} << (8 * sizeof(U) - 1)) - 1;
    std::vector<U> numbers;
    for (U i = 0; i < 40; ++i) numbers.push_back(i), numbers.push_back(most - i);
    for (size_t shift = 0; shift + 1 < 8 * sizeof(U); ++shift)
        for (U near = 0; near < 3; ++near) numbers.push_back(std::min<U>(most, (U{1} << shift) - 1 + near));
    for (int i = 0; i < 200; ++i) numbers.push_back(static_cast<U>(rng()) >> (1 + rng() % (8 * sizeof(U) - 1)));
    bool right = true;
    for (U divisor : numbers) {
        if (divisor == 0) continue;
        const FastDiv<U> by(divisor);
        for (U n : numbers) right = right && by.divide(n) == n / divisor;
        const U multiple =
            most / divisor * divisor; // where a magic number that is too small, or too large, shows first
        right =
            right && by.divide(multiple) == multiple / divisor && by.divide(multiple - 1) == (multiple - 1) / divisor;
    }
    CHECK(right);
}

/* ---- plans of maps --------------------------------------------------------------------------------------------------- */

using Offsets = std::vector<std::vector<int64_t>>; // of elements, for each operand

/** Offsets of all elements, as a plan walks them. */
Offsets walk(const MapLayout &plan, int n) {
    Offsets walked;
    for (int64_t i = 0; i < plan.x * plan.far_x * plan.y * plan.far_y * plan.rows(); ++i) {
        std::vector<int64_t> at;
        for (int o = 0; o < n; ++o) {
            int64_t rest = i, offset = plan.offset[o];
            offset += rest % plan.x * plan.along[o], rest /= plan.x;
            offset += rest % plan.far_x * plan.far_along[o], rest /= plan.far_x;
            offset += rest % plan.y * plan.across[o], rest /= plan.y;
            offset += rest % plan.far_y * plan.far_across[o], rest /= plan.far_y;
            for (int d = 0; d < plan.outer; ++d)
                offset += rest % plan.size[d] * plan.stride[o][d], rest /= plan.size[d];
            at.push_back(offset);
        }
        walked.push_back(at);
    }
    return walked;
}

/** Parts are small enough, not needlessly many, begin where vectors do, and together are the plan. */
void test_parts(const MapLayout &plan, int n, const Offsets &whole, int64_t most) {
    Offsets together;
    int64_t count = 0;
    CHECK(for_each_part(
              plan,
              [&](const MapLayout &part) {
                  const Offsets one = walk(part, n);
                  together.insert(together.end(), one.begin(), one.end());
                  ++count;
                  CHECK(!one.empty() && static_cast<int64_t>(one.size()) <= most);
                  if (plan.outer == 0 && plan.along[0] == 1)
                      CHECK((part.offset[0] - plan.offset[0]) % kVectorBytes == 0);
                  return INFINI_STATUS_SUCCESS;
              },
              most) == INFINI_STATUS_SUCCESS);
    std::sort(together.begin(), together.end());
    CHECK(together == whole);
    CHECK(count <= 1 + 4 * static_cast<int64_t>(whole.size()) / most);
}

/** What a plan walks, against the operands' own offsets. */
void test_plan(const InfiniOperand *operands, int n, int size) {
    const MapLayout plan = plan_map(operands, n, size);
    Offsets walked = walk(plan, n), wanted;
    const auto count = static_cast<int64_t>(walked.size());
    CHECK(count == element_count(operands[0]));
    for (int64_t i = 0; i < count; ++i) {
        std::vector<int64_t> at;
        for (int o = 0; o < n; ++o) {
            int64_t rest = i, offset = operands[o].offset;
            for (int d = operands[o].ndim - 1; d >= 0; --d) {
                offset += rest % operands[o].shape[d] * operands[o].stride[d];
                rest /= operands[o].shape[d];
            }
            at.push_back(offset);
        }
        wanted.push_back(at);
    }
    std::sort(walked.begin(), walked.end());
    std::sort(wanted.begin(), wanted.end());
    CHECK(walked == wanted);
    if (!plan.tile) test_parts(plan, n, walked, pick(33, 200));
    CHECK(!plan.tile || tile_blocks(plan, tile_side(size)) <= kMaxBlocks);
    CHECK(plan.tile || !plan.split());
    for (int o = 0; o < n; ++o) {
        if (plan.vectors && !plan.tile) CHECK(plan.along[o] == 1 || (plan.along[o] == 0 && o > 0));
        if (plan.tile && plan.through[o]) CHECK(plan.across[o] == 1);
        if (plan.split()) { // lines go on where they end
            CHECK(n == 2 && plan.through[1]);
            CHECK(o > 0 || plan.far_x == 1 || plan.far_along[o] == plan.x);
            CHECK(o == 0 || plan.far_y == 1 || plan.far_across[o] == plan.y);
        }
        // Every run begins at a multiple of the alignment, and not always at one of twice that.
        const int alignment = alignment_of(plan, o, nullptr);
        bool all = true, twice = alignment < kVectorBytes;
        const auto look = [&](int64_t stride) {
            all = all && stride * size % alignment == 0;
            twice = twice && stride * size % (2 * alignment) == 0;
        };
        for (int d = 0; d < plan.outer; ++d) look(plan.stride[o][d]);
        if (plan.tile) look(plan.through[o] ? plan.along[o] : plan.across[o]);
        if (plan.tile) look(plan.through[o] ? plan.far_along[o] : plan.far_across[o]);
        CHECK(all && !twice);
        CHECK(alignment_of(plan, o, reinterpret_cast<void *>(uintptr_t{2})) == std::min(alignment, 2));
    }
}

/** Pieces of what a plan walks, and what they stage. */
PiecesPlan test_pieces(const InfiniOperand *operands, int n, int size) {
    const PiecesPlan plan = plan_pieces(operands, n, size, 2);
    if (!plan.worth) return plan;
    const MapLayout &layout = plan.layout;
    Offsets walked = walk(layout, n), wanted = walk(plan_map(operands, n, size), n);
    std::sort(walked.begin(), walked.end());
    std::sort(wanted.begin(), wanted.end());
    CHECK(walked == wanted);
    CHECK(layout.along[0] == 1 && plan.width <= layout.x && plan.height <= layout.y);
    CHECK(plan.run() * size >= 64 && plan.shared_bytes <= 48 << 10 && plan.shared_bytes % kVectorBytes == 0);
    if (plan.wrapped) CHECK(plan.width == layout.x && (plan.height == 1 || layout.across[0] == layout.x));
    size_t staged = 0;
    for (int o = 1; o < n; ++o) {
        const int64_t along = layout.along[o], across = layout.across[o];
        switch (plan.how[o]) {
        case Access::kElements: break;
        case Access::kRun: CHECK(along == 1 && (!plan.wrapped || across == layout.x)); break;
        case Access::kConstant: CHECK(along == 0 && !plan.wrapped); break;
        case Access::kStaged: {
            CHECK(plan.shared_at[o] >= staged && plan.shared_at[o] % kVectorBytes == 0);
            int64_t last = 0, places = 0; // of the piece's elements in shared memory; of what is brought
            if (plan.lines[o]) {
                CHECK(across == 1 && plan.line[o] == plan.height && plan.pitch[o] % (kVectorBytes / size) == 0);
                last = (plan.width - 1) * plan.pitch[o] + plan.height - 1;
                places = plan.width * plan.pitch[o];
            } else {
                last = (plan.width - 1) * along + (plan.height - 1) * across;
                places = plan.line[o];
                CHECK(along > 0 && across >= 0);
            }
            CHECK(last < places);
            const int64_t chunk = kVectorBytes / size,
                          whole = (places + chunk - 1) / chunk * chunk; // chunks are written
            staged = plan.shared_at[o] +
                     (place_in_pieces(static_cast<uint32_t>(whole - 1), static_cast<uint32_t>(size)) + size_t{1}) *
                         static_cast<size_t>(size);
            CHECK(staged <= plan.shared_bytes);
        }
        }
    }
    return plan;
}

void test_plans() {
    int tiles = 0, splits = 0, pieces = 0, lines = 0, ranges = 0;
    for (int round = 0; round < 1500; ++round) {
        const int n = static_cast<int>(pick(2, 3)), size = 1 << pick(0, 4), ndim = static_cast<int>(pick(0, 4));
        InfiniOperand operands[3] = {};
        for (int o = 0; o < n; ++o) {
            InfiniOperand &x = operands[o];
            x.ndim = ndim;
            x.offset = pick(0, 3);
            int order[4] = {0, 1, 2, 3};
            std::shuffle(order, order + ndim, rng);
            for (int d = 0; d < ndim; ++d)
                x.shape[d] = o > 0 ? operands[0].shape[d] : (d < 2 && pick(0, 2) > 0) ? pick(20, 70) : pick(1, 3);
            int64_t stride = 1;
            for (int i = ndim - 1; i >= 0; --i) {
                const int d = order[i];
                x.stride[d] = o > 0 && pick(0, 5) == 0 ? 0 : pick(0, 6) == 0 ? -stride : stride;
                stride *= x.shape[d] + (pick(0, 4) == 0 ? pick(1, 4) : 0);
            }
        }
        reduce_dims(operands, n);
        test_plan(operands, n, size);
        tiles += plan_map(operands, n, size).tile;
        splits += plan_map(operands, n, size).split();
        if (size > 4) continue;
        const PiecesPlan plan = test_pieces(operands, n, size);
        pieces += plan.worth;
        for (int o = 1; plan.worth && o < n; ++o) (plan.lines[o] ? lines : ranges) += plan.how[o] == Access::kStaged;
    }
    CHECK(tiles > 40 && splits > 4 && pieces > 100 && lines > 4 && ranges > 4); // the rounds had them
}

} // namespace

namespace infini { // of the layouts, which fail with it when they are made, not when they are reduced
infiniStatus_t fail(infiniStatus_t status, const char *, ...) { return status; }
} // namespace infini

int main() {
    test_engine();
    test_division<uint32_t>();
    test_division<uint64_t>();
    test_plans();
    return check::summary();
}
