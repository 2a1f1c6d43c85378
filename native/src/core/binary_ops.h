/* The binary elementwise operators: X(ID, name, Name), ID as in INFINI_OP_LIST, Name as in the exported functions. A relative of
 * add is a row here and in INFINI_OP_LIST, its arithmetic in cpu/binary.inl, and its prototypes in infiniop.h. */
#pragma once

#define INFINI_BINARY_LIST(X) \
    X(ADD, add, Add)          \
    X(MUL, mul, Mul)

/* gemm with one of them as its epilogue: X(ID, name, Name, Op), the first three as above, Op the Name of the operator that follows
 * the product. A row here is one in INFINI_OP_LIST, too, and prototypes in infiniop.h. */
#define INFINI_GEMM_EPILOGUE_LIST(X)    \
    X(GEMM_ADD, gemm_add, GemmAdd, Add) \
    X(GEMM_MUL, gemm_mul, GemmMul, Mul)

namespace infini {

enum BinaryOp {
#define INFINI_BINARY_ENUM(ID, name, Name) kBinary##Name,
    INFINI_BINARY_LIST(INFINI_BINARY_ENUM)
#undef INFINI_BINARY_ENUM
        kBinaryOpCount
};

} // namespace infini
