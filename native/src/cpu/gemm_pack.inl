/* Packing an operand of a matrix product into panels. */

/** How much of a block of N rows and as many units there is. */
enum class Piece { kWhole, kFewRows, kPart };

/** N rows of src that are contiguous in k, `rows` of which there are, transposed in registers: `left` elements of k, as `depth`
 *  units to lanes of a panel. Stores are of whole vectors up to to[room], for masked ones are slow. kFewRows: all of k, and no lane
 *  without a row; what is in the lanes behind the panel is written again. */
template <class T, Piece P>
INFINI_INLINE void pack_block(typename Units<T>::Sums::Scalar *to, int64_t width, const T *src, int64_t stride,
                              int64_t rows, int64_t left, int64_t depth, int64_t lanes, int64_t room,
                              typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    // With AVX2 these are more streams than the hardware follows; CPUs with AVX-512 and a large second-level cache do without.
    constexpr int64_t kAhead = 1024 / sizeof(T);
    V x[N];
    const T *from = src;
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        if (P != Piece::kFewRows) from = src + i * stride;
        if (kSmallL2) __builtin_prefetch(from + kAhead, 0, 2);
        x[i] = P != Piece::kPart || i < rows
                   ? U::along_k(from, P == Piece::kPart ? left : int64_t{N} * U::kDepth, least)
                   : zero(V{});
        if (P == Piece::kFewRows && i + 1 < rows) from += stride; // else the last one again
    }
    transpose(x);
    if (P != Piece::kPart) {
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) store(to + i * width, x[i]);
    } else {
        for (int64_t i = 0, at = 0; i < depth; ++i, at += width)
            at + N <= room ? store(to + at, x[i]) : store_n(to + at, x[i], lanes);
    }
}
template <class T>
INFINI_CALLED void pack_part(typename Units<T>::Sums::Scalar *to, int64_t width, const T *src, int64_t stride,
                             int64_t rows, int64_t left, int64_t depth, int64_t lanes, int64_t room,
                             typename Units<T>::Least &least) {
    pack_block<T, Piece::kPart>(to, width, src, stride, rows, left, depth, lanes, room, least);
}

/** One panel from rows of src that are contiguous in k. What is written too much is written again, in ascending k and descending w. */
template <class T>
INFINI_INLINE void pack_transposed(typename Units<T>::Unit *panel_, const T *src, int64_t stride_w, int64_t valid,
                                   int64_t width, int64_t kc, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    constexpr int N = V::N;
    constexpr int64_t kBlock = int64_t{N} * U::kDepth;                  // elements of k
    auto *const panel = reinterpret_cast<typename V::Scalar *>(panel_); // bits are moved, whatever they are
    const int64_t end = (kc + U::kDepth - 1) / U::kDepth * width;
    for (int64_t w = (width - 1) / N * N; w >= 0; w -= N) {
        const int64_t rows = valid - w, lanes = width - w < N ? width - w : N;
        for (int64_t k = 0; k < kc; k += kBlock) {
            // Else there would be a pointer to each of the rows, in memory.
            const T *from = opaque(src + w * stride_w + k);
            const int64_t stride = opaque(stride_w), step = opaque(width), left = kc - k;
            const int64_t at = k / U::kDepth * width + w, room = end - at;
            const bool whole = left >= kBlock && (N - 1) * width + N <= room;
            if (whole && rows >= N)
                pack_block<T, Piece::kWhole>(panel + at, step, from, stride, N, kBlock, N, lanes, room, least);
            else if (whole && rows >= lanes)
                pack_block<T, Piece::kFewRows>(panel + at, step, from, stride, rows, kBlock, N, lanes, room, least);
            else
                pack_part(panel + at, step, from, stride, rows, left,
                          left < kBlock ? (left + U::kDepth - 1) / U::kDepth : N, lanes, room, least);
        }
    }
}

/** A panel of width 1: elements that are neighbours already. */
template <class T>
INFINI_INLINE void pack_row(typename Units<T>::Unit *panel, const T *src, int64_t kc, typename Units<T>::Least &least) {
    using U = Units<T>;
    using V = typename U::Sums;
    auto *const to = reinterpret_cast<typename V::Scalar *>(panel);
    constexpr int64_t kBlock = int64_t{V::N} * U::kDepth;
    int64_t k = 0;
    for (; k + kBlock <= kc; k += kBlock) store(to + k / U::kDepth, U::along_k(src + k, kBlock, least));
    if (k < kc) store_n(to + k / U::kDepth, U::along_k(src + k, kc - k, least), (kc - k + U::kDepth - 1) / U::kDepth);
}

/** to[i] = the unit of column i. Something may be written up to to[room]. */
template <class T>
INFINI_INLINE void pack_across(typename Units<T>::Unit *to, const T *from, const T *next_k, int64_t n, int64_t room,
                               typename Units<T>::Least &least) {
    using U = Units<T>;
    constexpr int N = U::Sums::N;
    int64_t i = 0;
    for (; i + 2 * N <= n; i += 2 * N) {
        typename U::Vector x[2];
        U::across(x, from + i, next_k == nullptr ? nullptr : next_k + i, least);
        store(to + i, x[0]);
        store(to + i + N, x[1]);
    }
    for (; i < n; i += N) {
        const int64_t count = n - i < N ? n - i : N;
        const auto x = U::across_n(from + i, next_k == nullptr ? nullptr : next_k + i, count, least);
        i + N <= room ? store(to + i, x) : store_n(to + i, x, count);
    }
}

/** Panels less than 2 * N wide, C vectors, of columns of src that are neighbours. Loads and stores are of whole vectors: what is
 *  written too much is written again, in ascending k; of the last panels, which others follow as well as precede, in descending k,
 *  as vectors end where they do. Returns how many columns were packed: not a panel that is not full, nor too few columns. */
template <class T, int C>
INFINI_INLINE int64_t pack_narrow(typename Units<T>::Unit *panels, int64_t panel_stride, const T *src, int64_t stride_k,
                                  int64_t count, int64_t width, int64_t kc, typename Units<T>::Least &least) {
    using U = Units<T>;
    constexpr int N = U::Sums::N;
    constexpr int64_t kTogether = 8; // panels: their runs of src are long, and their stores not too many streams
    if (count < C * N) return 0;
    const int64_t units = (kc + U::kDepth - 1) / U::kDepth, few = (C * N + width - 1) / width - 1; // units
    const int64_t forward = (count - C * N) / width + 1, all = count / width;
    const auto pack = [&](int64_t p, int64_t u, int64_t back, bool whole) INFINI_INLINE_LAMBDA {
        const T *const from = src + u * U::kDepth * stride_k + p * width - back;
        auto *const to = panels + p * panel_stride + u * width - back;
        typename U::Vector x[C];
        U::across(x, from, U::kDepth > 1 && (u + 1) * U::kDepth <= kc ? from + stride_k : nullptr, least);
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c)
            whole || width >= (c + 1) * N ? store(to + c * N, x[c]) : store_n(to + c * N, x[c], width - c * N);
    };
    for (int64_t p0 = 0; p0 < forward; p0 += kTogether) {
        const int64_t end = p0 + kTogether < forward ? p0 + kTogether : forward;
        for (int64_t u = 0; u < units; ++u)
            for (int64_t p = p0; p < end; ++p) pack(p, u, 0, u + few < units);
    }
    for (int64_t p = forward; p < all; ++p) {
        for (int64_t u = units; u-- > few;) pack(p, u, C * N - width, true);
        for (int64_t u = few < units ? few : units; u-- > 0;)
            pack_across(panels + p * panel_stride + u * width, src + u * U::kDepth * stride_k + p * width,
                        (u + 1) * U::kDepth <= kc ? src + (u * U::kDepth + 1) * stride_k + p * width : nullptr, width,
                        width, least);
    }
    return all * width;
}

template <class T>
int gemm_pack(void *panels_, int64_t panel_stride, const void *src_, int64_t stride_w, int64_t stride_k, int64_t count,
              int64_t width, int64_t kc) {
    using U = Units<T>;
    auto *panels = static_cast<typename U::Unit *>(panels_);
    const T *src = static_cast<const T *>(src_);
    typename U::Least least;
    if (stride_k == 1 && width == 1) {
        for (int64_t w = 0; w < count; ++w) pack_row(panels + w * panel_stride, src + w * stride_w, kc, least);
        return least.exponent();
    }
    if (stride_k == 1 && stride_w != 1) {
        for (int64_t w = 0; w < count; w += width)
            pack_transposed(panels + w / width * panel_stride, src + w * stride_w, stride_w,
                            count - w < width ? count - w : width, width, kc, least);
        return least.exponent();
    }
    if (stride_w == 1 && width < 2 * U::Sums::N) {
        const int64_t done = width <= U::Sums::N
                                 ? pack_narrow<T, 1>(panels, panel_stride, src, stride_k, count, width, kc, least)
                                 : pack_narrow<T, 2>(panels, panel_stride, src, stride_k, count, width, kc, least);
        panels += done / width * panel_stride;
        src += done;
        count -= done;
    }
    // A row of src at a time, over all panels: memory is read in its own order. Of short rows the hardware sees too late that
    // others follow. Long ones would write to more pages at a time than its first-level TLB holds, so they are cut; not those
    // that are read in pairs, of which there are half as many. (A single row may have any stride.)
    constexpr int64_t kLine = 64 / sizeof(T), kShort = 2048 / sizeof(T), kStrip = 512 / sizeof(T), kRowsAhead = 32;
    constexpr int kWide = 2 * U::Sums::N; // of a panel of B, and of no other
    const bool wide = stride_w == 1 && width == kWide, cut = wide && U::kDepth == 1 && count >= kShort;
    const bool fetch = (count < kShort || cut) && kc > 1;
    const int64_t strip = cut ? kStrip : count;
    const T *const ahead = src + (cut ? 1 : kRowsAhead) * stride_k;
    for (int64_t w0 = 0; w0 < count; w0 += strip) {
        const int64_t end = w0 + strip < count ? w0 + strip : count;
        for (int64_t k = 0; k < kc; k += U::kDepth) {
            const T *from = src + k * stride_k, *next_k = k + 1 < kc ? from + stride_k : nullptr;
            auto *to = panels + w0 / width * panel_stride + k / U::kDepth * width;
            const auto next = [&](int64_t at) { return next_k == nullptr ? nullptr : next_k + at; };
            int64_t w = w0;
            if (wide)
                for (; w + kWide <= end; w += kWide, to += panel_stride) {
                    typename U::Vector x[2];
                    U::across(x, from + w, next(w), least);
                    store(to, x[0]);
                    store(to + kWide / 2, x[1]);
                    if (fetch)
#pragma GCC unroll 2
                        for (int64_t d = 0; d < U::kDepth; ++d)
#pragma GCC unroll 4
                            for (int64_t at = 0; at < kWide; at += kLine)
                                __builtin_prefetch(ahead + (k + d) * stride_k + w + at, 0, 2);
                }
            for (; w < end; w += width, to += panel_stride) {
                const int64_t valid = end - w < width ? end - w : width;
                if (stride_w == 1)
                    pack_across(to, from + w, next(w), valid, (kc - k + U::kDepth - 1) / U::kDepth * width,
                                least); // written later
                else
                    for (int64_t i = 0; i < valid; ++i)
                        to[i] = U::one(from + (w + i) * stride_w, next((w + i) * stride_w), least);
                for (int64_t i = valid; i < width; ++i) to[i] = {};
            }
        }
    }
    return least.exponent();
}
