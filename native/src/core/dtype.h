/* The one table of element types. */
#pragma once
#include <cstdint>

#include "infinicore.h"

namespace infini {

struct DtypeInfo {
    const char *name;
    int size;      // bytes
    int alignment; // bytes; a complex number is aligned like its parts
};

constexpr DtypeInfo kDtypes[] = {
    {"INVALID", 0, 1}, {"BYTE", 1, 1}, {"BOOL", 1, 1}, {"I8", 1, 1},  {"I16", 2, 2},   {"I32", 4, 4},  {"I64", 8, 8},
    {"U8", 1, 1},      {"U16", 2, 2},  {"U32", 4, 4},  {"U64", 8, 8}, {"F8", 1, 1},    {"F16", 2, 2},  {"F32", 4, 4},
    {"F64", 8, 8},     {"C16", 2, 1},  {"C32", 4, 2},  {"C64", 8, 4}, {"C128", 16, 8}, {"BF16", 2, 2},
};
static_assert(sizeof kDtypes / sizeof *kDtypes == INFINI_DTYPE_BF16 + 1, "one row per dtype");

inline bool dtype_known(int dtype) { return dtype > INFINI_DTYPE_INVALID && dtype <= INFINI_DTYPE_BF16; }

using DtypeSet = uint32_t; // bit d: dtype d is in the set
constexpr DtypeSet dtype_bit(int dtype) { return DtypeSet{1} << dtype; }

constexpr DtypeSet kFloatDtypes = dtype_bit(INFINI_DTYPE_F16) | dtype_bit(INFINI_DTYPE_BF16) |
                                  dtype_bit(INFINI_DTYPE_F32) | dtype_bit(INFINI_DTYPE_F64);
constexpr DtypeSet kIntDtypes = dtype_bit(INFINI_DTYPE_I8) | dtype_bit(INFINI_DTYPE_I16) | dtype_bit(INFINI_DTYPE_I32) |
                                dtype_bit(INFINI_DTYPE_I64) | dtype_bit(INFINI_DTYPE_U8) | dtype_bit(INFINI_DTYPE_U16) |
                                dtype_bit(INFINI_DTYPE_U32) | dtype_bit(INFINI_DTYPE_U64);
constexpr DtypeSet kHalfDtypes = dtype_bit(INFINI_DTYPE_F16) | dtype_bit(INFINI_DTYPE_BF16);

} // namespace infini
