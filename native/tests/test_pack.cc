/* gemm's packing against its definition: every width, depth, number and layout, in exact numbers, with guards behind each panel.
 * The operators' tests see the products alone, where what is written too much may be written again before it is read. */
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "core/dtype.h"
#include "cpu/isa.h"

using namespace infini;

namespace {

constexpr char kGuard = 0x5a;
constexpr int64_t kGuards = 16; // units behind each panel

/** A number of which every dtype has each bit. */
double value(int64_t w, int64_t k) { return static_cast<double>((w * 37 + k * 11) % 251 - 125); }

template <class To, class From>
To bits_of(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint16_t bf16_of(double x) { return static_cast<uint16_t>(bits_of<uint32_t>(static_cast<float>(x)) >> 16); }
uint16_t f16_of(double x) { // of a whole number below 2048
    if (x == 0) return 0;
    const uint32_t single = bits_of<uint32_t>(static_cast<float>(x));
    return static_cast<uint16_t>((single >> 16 & 0x8000) | (((single >> 23 & 0xff) - 112) << 10) |
                                 (single >> 13 & 0x3ff));
}

void put(char *at, int dtype, double x) {
    const auto store = [&](auto bits) { std::memcpy(at, &bits, sizeof bits); };
    if (dtype == INFINI_DTYPE_F64) return store(x);
    if (dtype == INFINI_DTYPE_F32) return store(static_cast<float>(x));
    store(dtype == INFINI_DTYPE_F16 ? f16_of(x) : bf16_of(x));
}

struct Layout {
    int64_t w, k; // strides, in elements
};

enum Form { kPack, kPackRows };

void test_form(Form form, int dtype, int64_t width, int64_t kc, int64_t count, Layout stride) {
    const GemmKernel &kernel = kernels().gemm[dtype];
    const int64_t size = kDtypes[dtype].size, unit = kernel.acc_size;
    const int64_t least = (kc + kernel.unit_k - 1) / kernel.unit_k, group = kernel.unit_group;
    const int64_t units = (least + group - 1) / group * group, panels = (count + width - 1) / width;
    const int64_t together = form == kPackRows ? group : 1;
    const int64_t panel = (units * width + kGuards) * unit;
    std::vector<char> from(static_cast<size_t>(((count - 1) * stride.w + (kc - 1) * stride.k + 1) * size), kGuard);
    for (int64_t w = 0; w < count; ++w)
        for (int64_t k = 0; k < kc; ++k)
            put(&from[static_cast<size_t>((w * stride.w + k * stride.k) * size)], dtype, value(w, k));
    std::vector<char> packed(static_cast<size_t>(panels * panel), kGuard), expected = packed;
    for (int64_t p = 0; p < panels; ++p)
        for (int64_t u = 0; u < units; ++u)
            for (int64_t i = 0; i < width; ++i) {
                const int64_t w = p * width + i, k = u * kernel.unit_k;
                const int64_t place = (u / together * width + i) * together + u % together;
                char *at = &expected[static_cast<size_t>(p * panel + place * unit)];
                const auto element = [&](int64_t of_k) { return w < count && of_k < kc ? value(w, of_k) : 0.0; };
                if (kernel.unit_k == 1)
                    put(at, unit == 8 ? INFINI_DTYPE_F64 : INFINI_DTYPE_F32, element(k));
                else
                    for (int64_t d = 0; d < kernel.unit_k; ++d) put(at + d * size, dtype, element(k + d));
            }
    const GemmPack pack = form == kPackRows ? kernel.pack_rows : kernel.pack;
    pack(packed.data(), panel / unit, from.data(), stride.w, stride.k, count, width, kc);
    if (!CHECK(packed == expected))
        std::fprintf(stderr, "form %d, dtype %d, width %d, depth %d, %d of them, strides %d %d\n", form, dtype,
                     static_cast<int>(width), static_cast<int>(kc), static_cast<int>(count), static_cast<int>(stride.w),
                     static_cast<int>(stride.k));
}

void test_one(int dtype, int64_t width, int64_t kc, int64_t count, Layout stride) {
    const GemmKernel &kernel = kernels().gemm[dtype];
    test_form(kPack, dtype, width, kc, count, stride);
    if (kernel.pack_rows != kernel.pack) test_form(kPackRows, dtype, width, kc, count, stride);
}

} // namespace

int main() {
    for (int dtype : {INFINI_DTYPE_F16, INFINI_DTYPE_BF16, INFINI_DTYPE_F32, INFINI_DTYPE_F64}) {
        const GemmKernel &kernel = kernels().gemm[dtype];
        // Panels of A, those of B, and the one panel, of any width, of an A that is multiplied where B lies.
        for (int64_t width = 1; width <= 40; ++width)
            for (int64_t kc : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65})
                for (int64_t count :
                     {int64_t{1}, width - 1, width, width + 1, 2 * width, 2 * width + 3, 9 * width, 17 * width + 1}) {
                    const bool one_panel = width > kernel.mr && width != kernel.nr;
                    if (count < 1 || (one_panel && count > width)) continue;
                    for (Layout stride : {Layout{kc + 3, 1}, Layout{1, count + 5}, Layout{2, 2 * count + 1}})
                        test_one(dtype, width, kc, count, stride);
                }
        // Long rows of B, which are packed a strip at a time.
        const int64_t nr = kernel.nr, longest = 4096 / kDtypes[dtype].size;
        for (int64_t kc : {1, 2, 3, 33})
            for (int64_t count : {longest / 2 - 1, longest / 2, longest / 2 + nr + 1, longest - nr, longest + nr + 3})
                test_one(dtype, nr, kc, count, {1, count + 5});
    }
    return check::summary();
}
