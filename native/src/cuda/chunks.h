/* What kernels of rows, tiles and pieces do with chunks alike. */
#pragma once
#include "cuda/device.h"
#include "cuda/map_plan.h"

namespace infini::cuda {

INFINI_DEVICE int at_most(int n, int most) { return n < most ? n : most; }

/** Elements from the last multiple of 16 bytes on. */
template <class T>
INFINI_DEVICE int past_aligned(const T *p) {
    return static_cast<int>(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) % kVectorBytes / sizeof(T));
}

/** f of chunks. */
template <class Map, int N>
INFINI_DEVICE Chunk<typename Map::Element, N> apply(const Chunk<typename Map::Element, N> (&in)[Map::kInputs]) {
    Chunk<typename Map::Element, N> y;
    INFINI_UNROLL
    for (int u = 0; u < y.kUnits; ++u) {
        Unit<typename Map::Element> one[Map::kInputs];
        INFINI_UNROLL
        for (int i = 0; i < Map::kInputs; ++i) one[i] = in[i].unit[u];
        y.unit[u] = Map::apply(one);
    }
    return y;
}

/** N elements, 16 bytes that need not be aligned, of a line that goes on for N - 1 before them and for N behind; N - 1, if they are not
 *  aligned. */
template <class T, int N, class Ctx>
INFINI_DEVICE Chunk<T, N> read_inside(Ctx &ctx, const T *from) {
    const auto before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % kVectorBytes);
    // Not made of the address as a number, in which nvcc does not see that it is one of global memory.
    const auto *const chunk =
        reinterpret_cast<const Word<kVectorBytes> *>(reinterpret_cast<const char *>(from) - before);
    const auto first = bits_as<Chunk<T, N>>(ctx.template load<kVectorBytes>(chunk));
    const auto second = bits_as<Chunk<T, N>>(ctx.template load<kVectorBytes>(chunk + 1));
    return part_of(first, second, before);
}
/** N elements, `step` apart, of a line that has those from `begin` on and before `end`; the others are 0. */
template <class T, int N, class Ctx>
INFINI_DEVICE Chunk<T, N> read_anywhere(Ctx &ctx, const T *from, int64_t step, int begin, int end) {
    if (step == 1 && begin <= 1 - N && end >= 2 * N) return read_inside<T, N>(ctx, from);
    return load_elements<T, N>(ctx, from, step, end, begin);
}

/** Of N elements side by side, 16 bytes, those from `begin` on and before `end`, where a line begins and ends; the others are 0.
 *  `beside`: nobody writes what is next to them. */
template <class T, int N, class Ctx>
INFINI_DEVICE Chunk<T, N> read_part(Ctx &ctx, const T *from, int begin, int end, bool beside = true) {
    if (begin <= 0 && end >= N && past_aligned(from) == 0) return load_chunk<T, N>(ctx, from);
    if (beside && begin <= 1 - N && end >= 2 * N - 1) return read_inside<T, N>(ctx, from);
    return load_elements<T, N>(ctx, from, 1, end, begin);
}

} // namespace infini::cuda
