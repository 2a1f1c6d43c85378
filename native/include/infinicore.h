/** infinicore.h: the numbers every other header uses: status codes, device types, element types.
 *
 *  Every value is pinned: it is part of the binary interface and is never reused for anything else.
 *  The types are plain ints, so that a value this library does not know is an error and not undefined behaviour. */
#ifndef INFINICORE_H
#define INFINICORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define INFINI_API __attribute__((visibility("default")))
#else
#define INFINI_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status -------------------------------------------------------------------------------------------------- */

/** What every function of this interface returns. After anything but SUCCESS, infiniopGetLastErrorMessage() gives
 *  this thread's sentence about it: which call, which operand, what it got and what it needed. */
typedef int infiniStatus_t;

enum {
    INFINI_STATUS_SUCCESS = 0,
    INFINI_STATUS_INTERNAL_ERROR = 1,                    /* out of memory, or a fault of the library or the system */
    INFINI_STATUS_NOT_IMPLEMENTED = 2,                   /* a legal request that this device has no code for */
    INFINI_STATUS_BAD_PARAM = 3,                         /* a value out of its set, or a destroyed or wrong-kind handle */
    INFINI_STATUS_NULL_POINTER = 4,                      /* NULL where a pointer is required */
    INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,         /* no such device type, or no backend for it here */
    INFINI_STATUS_DEVICE_NOT_FOUND = 6,                  /* device id out of range */
    INFINI_STATUS_DEVICE_NOT_INITIALIZED = 7,            /* the backend is there but could not start */
    INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8, /* the device is older or newer than the backend's code */
    INFINI_STATUS_BAD_TENSOR_DTYPE = 10,                 /* element type unknown, or not one the operator takes */
    INFINI_STATUS_BAD_TENSOR_SHAPE = 11,                 /* rank or sizes do not fit, or a product overflows */
    INFINI_STATUS_BAD_TENSOR_STRIDES = 12,               /* strides the operator cannot take, or an extent overflows */
    INFINI_STATUS_INSUFFICIENT_WORKSPACE = 13            /* workspace_size below what the descriptor asked for */
};

/* ---- devices ------------------------------------------------------------------------------------------------- */

/** A family of devices. A family without a backend on this machine has 0 devices; that is not an error. */
typedef int infiniDevice_t;

enum {
    INFINI_DEVICE_CPU = 0,
    INFINI_DEVICE_NVIDIA = 1,
    INFINI_DEVICE_CAMBRICON = 2,
    INFINI_DEVICE_ASCEND = 3,
    INFINI_DEVICE_METAX = 4,
    INFINI_DEVICE_MOORE = 5,
    INFINI_DEVICE_ILUVATAR = 6,
    INFINI_DEVICE_KUNLUN = 7,
    INFINI_DEVICE_HYGON = 8,
    INFINI_DEVICE_QY = 9,
    INFINI_DEVICE_TYPE_COUNT = 10
};

/* ---- element types ------------------------------------------------------------------------------------------- */

/** Type of one element. C16..C128 are complex numbers of that many bits in all. */
typedef int infiniDtype_t;

enum {
    INFINI_DTYPE_INVALID = 0,
    INFINI_DTYPE_BYTE = 1,  /* 1 byte of unspecified meaning */
    INFINI_DTYPE_BOOL = 2,  /* 1 byte, 0 or 1 */
    INFINI_DTYPE_I8 = 3,
    INFINI_DTYPE_I16 = 4,
    INFINI_DTYPE_I32 = 5,
    INFINI_DTYPE_I64 = 6,
    INFINI_DTYPE_U8 = 7,
    INFINI_DTYPE_U16 = 8,
    INFINI_DTYPE_U32 = 9,
    INFINI_DTYPE_U64 = 10,
    INFINI_DTYPE_F8 = 11,   /* 1 byte; moved by rearrange, never computed with */
    INFINI_DTYPE_F16 = 12,  /* IEEE 754 binary16 */
    INFINI_DTYPE_F32 = 13,
    INFINI_DTYPE_F64 = 14,
    INFINI_DTYPE_C16 = 15,  /* 2 bytes */
    INFINI_DTYPE_C32 = 16,  /* 4 bytes */
    INFINI_DTYPE_C64 = 17,  /* 8 bytes */
    INFINI_DTYPE_C128 = 18, /* 16 bytes */
    INFINI_DTYPE_BF16 = 19  /* bfloat16: the upper half of a binary32 */
};

#ifdef __cplusplus
}
#endif

#endif
