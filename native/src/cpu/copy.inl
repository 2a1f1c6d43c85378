/* Rows and tiles of rearrange, for elements of 1, 2, 4, 8 and 16 bytes. Elements need not be aligned to their size: a
 * complex number is aligned to its parts only. */

template <class T>
INFINI_INLINE T read(const T *p) {
    T x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
template <class T>
INFINI_INLINE void write(T *p, T x) { __builtin_memcpy(p, &x, sizeof x); }

template <class T>
void copy_row(void *dst_, int64_t stride_dst, const void *src_, int64_t stride_src, int64_t n) {
    T *dst = static_cast<T *>(dst_);
    const T *src = static_cast<const T *>(src_);
    for (int64_t i = 0; i < n; ++i) write(dst + i * stride_dst, read(src + i * stride_src));
}

/** In blocks whose cache lines are all used while they are near. */
template <class T>
void transpose_tile(void *dst_, int64_t stride_dst, const void *src_, int64_t stride_src, int64_t rows, int64_t cols) {
    T *dst = static_cast<T *>(dst_);
    const T *src = static_cast<const T *>(src_);
    constexpr int64_t kBlock = 64 / sizeof(T);
    for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
        const int64_t i1 = i0 + kBlock < rows ? i0 + kBlock : rows;
        for (int64_t j0 = 0; j0 < cols; j0 += kBlock) {
            const int64_t j1 = j0 + kBlock < cols ? j0 + kBlock : cols;
            for (int64_t i = i0; i < i1; ++i)
                for (int64_t j = j0; j < j1; ++j) write(dst + i * stride_dst + j, read(src + j * stride_src + i));
        }
    }
}

constexpr void fill_copy(KernelTable &t) {
    t.copy[0] = copy_row<uint8_t>;
    t.copy[1] = copy_row<uint16_t>;
    t.copy[2] = copy_row<uint32_t>;
    t.copy[3] = copy_row<uint64_t>;
    t.copy[4] = copy_row<u128>;
    t.transpose[0] = transpose_tile<uint8_t>;
    t.transpose[1] = transpose_tile<uint16_t>;
    t.transpose[2] = transpose_tile<uint32_t>;
    t.transpose[3] = transpose_tile<uint64_t>;
    t.transpose[4] = transpose_tile<u128>;
}
