#include "cpu/isa.h"

#include <strings.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/lazy.h"

namespace infini {

namespace {

#if defined(__x86_64__)

/** Registers the operating system saves on a context switch: what CPUID offers may be used only if these are among them. */
uint64_t saved_state() {
    uint32_t eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return uint64_t{edx} << 32 | eax;
}

bool all(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

[[maybe_unused]] bool cpu_has_avx2() {
    uint32_t eax, ebx, ecx, edx;
    constexpr uint64_t kYmm = 0x6;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
    if (!all(ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C) || !all(saved_state(), kYmm)) return false;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && all(ebx, bit_AVX2);
}

[[maybe_unused]] bool cpu_has_avx512() {
    uint32_t eax, ebx, ecx, edx;
    constexpr uint64_t kZmmAndMasks = 0xe6;
    if (!cpu_has_avx2() || !all(saved_state(), kZmmAndMasks)) return false;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           all(ebx, bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL);
}

[[maybe_unused]] bool cpu_has_avx512_bf16() {
    uint32_t eax, ebx, ecx, edx;
    return cpu_has_avx512() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && all(eax, bit_AVX512BF16);
}

[[maybe_unused]] bool cpu_has_amx_bf16() {
    uint32_t eax, ebx, ecx, edx;
    constexpr uint64_t kTiles = 0x60000;
    constexpr uint32_t kAmxBf16 = 1 << 22, kAmxTile = 1 << 24;
    return cpu_has_avx512_bf16() && all(saved_state(), kTiles) && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           all(edx, kAmxBf16 | kAmxTile);
}

/** Linux saves tiles, which take 8 KiB, for processes that have asked for it: all their threads, and their children. Not for
 *  one with a stack for signals that would have no room for them. */
[[maybe_unused]] bool grants_tiles() {
    constexpr long kRequest = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

[[maybe_unused]] bool is_amd() {
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx;
}

/** Zen 4 computes vectors of 64 bytes in halves, and loads and stores them in its caches no faster than two of 32. */
[[maybe_unused]] bool avx512_is_halved() {
    uint32_t eax, ebx, ecx, edx;
    constexpr uint32_t kFamily = 0x0ff00f00, kZen4 = 0x00a00f00; // and Zen 3, which has none
    return is_amd() && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (eax & kFamily) == kZen4;
}

/** Intel's from Sapphire Rapids on take four times as long for an instruction that multiplies pairs as for an FMA, and leave large
 *  products to AMX: BF16 converted to F32 is twice as fast there. Cooper Lake's and AMD's instructions are as fast as FMAs. */
[[maybe_unused]] bool avx512_bf16_is_slow() {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx) || ebx != signature_INTEL_ebx) return false;
    constexpr uint32_t kFamilyAndModel = 0x0fff0ff0, kCooperLake = 0x00050650;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (eax & kFamilyAndModel) != kCooperLake;
}

#endif

struct Isa {
    const char *name;
    void (*fill)(KernelTable &) = nullptr; // null where the build has not got it
    bool (*available)() = nullptr;
    void (*add_bf16)(KernelTable &) = nullptr; // instead of what is there
    bool (*slow)() = nullptr;                  // on this CPU slower than the next: chosen only where it is named
    bool (*granted)() = nullptr;               // asks the operating system, where that has to be
};

bool always() { return true; }

#define INFINI_ADD_PART(part) add_##part(t);
void fill_portable(KernelTable &t) {
    using namespace portable;
    INFINI_KERNEL_PARTS(INFINI_ADD_PART)
}
#if defined(INFINI_WITH_AVX2)
void fill_avx2(KernelTable &t) {
    using namespace avx2;
    INFINI_KERNEL_PARTS(INFINI_ADD_PART)
}
#endif
#if defined(INFINI_WITH_AVX512)
void fill_avx512(KernelTable &t) {
    using namespace avx512;
    INFINI_KERNEL_PARTS(INFINI_ADD_PART)
}
#endif
#undef INFINI_ADD_PART

/** Best first; the portable kernels run everywhere and end the list. */
constexpr Isa kIsas[] = {
    {"amx_bf16",
#if defined(INFINI_WITH_AMX_BF16)
     fill_avx512, cpu_has_amx_bf16, amx_bf16::add_bf16, nullptr, grants_tiles
#endif
    },
    {"avx512_bf16",
#if defined(INFINI_WITH_AVX512_BF16)
     fill_avx512, cpu_has_avx512_bf16, avx512_bf16::add_bf16, avx512_bf16_is_slow
#endif
    },
    {"avx512",
#if defined(INFINI_WITH_AVX512)
     fill_avx512, cpu_has_avx512
#endif
    },
    {"avx2",
#if defined(INFINI_WITH_AVX2)
     fill_avx2, cpu_has_avx2
#endif
    },
    {"portable", fill_portable, always},
};

/** Rows of add and mul that convert nothing. */
[[maybe_unused]] void take_rows(KernelTable &to, const KernelTable &from) {
    for (int op = 0; op < kBinaryOpCount; ++op)
        for (int type = 0; type < kDtypeCount; ++type) {
            if (type == INFINI_DTYPE_F16 || type == INFINI_DTYPE_BF16) continue;
            to.binary[op][type] = from.binary[op][type];
            to.binary_stream[op][type] = from.binary_stream[op][type];
        }
}

struct Choice {
    const char *name;
    KernelTable table;
    char reason[160];
};

Choice choose() {
    const char *most = secure_getenv("INFINIOP_MAX_ISA");
    const bool capped = most != nullptr && *most != '\0';
    const Isa *best = nullptr, *chosen = nullptr, *refused = nullptr;
    bool reached = !capped, known = false;
    for (const Isa &isa : kIsas) {
        const bool named = capped && strcasecmp(most, isa.name) == 0;
        known = known || named;
        reached = reached || named;
        if (isa.fill == nullptr || !isa.available()) continue;
        const bool slow = isa.slow != nullptr && isa.slow();
        if (!slow && best == nullptr) best = &isa;
        if (chosen != nullptr || !(named || (reached && !slow))) continue;
        if (isa.granted == nullptr || isa.granted())
            chosen = &isa;
        else
            refused = &isa;
    }
    // also where the variable names none of them: whoever set it wants less, not more
    if (chosen == nullptr) chosen = std::end(kIsas) - 1;
    Choice choice{chosen->name, {}, {}};
    chosen->fill(choice.table);
#if defined(INFINI_WITH_AVX512)
    if (chosen->fill == fill_avx512) {
        choice.table.whole_lines = !avx512_is_halved();
        // Whoever names an instruction set gets its own kernels. Zen 5's conversions are measured, Intel's are not; of products of
        // F16 along k those of Zen 4 alone.
        if (!capped && choice.table.whole_lines) {
            choice.table.gemm_dots[INFINI_DTYPE_F16] = {};
            if (is_amd()) avx512::add_wide_f16(choice.table);
        }
#if defined(INFINI_WITH_AVX2)
        if (!capped && !choice.table.whole_lines) {
            static KernelTable of_avx2; // larger than some stacks
            avx2::add_elementwise(of_avx2);
            take_rows(choice.table, of_avx2);
        }
#endif
    }
#endif
    if (chosen->add_bf16 != nullptr) chosen->add_bf16(choice.table);
    if (refused != nullptr)
        std::snprintf(choice.reason, sizeof choice.reason,
                      "the system does not save the registers of %s for this process", refused->name);
    else if (chosen == best)
        std::snprintf(choice.reason, sizeof choice.reason, "the best of this CPU");
    else if (chosen < best)
        std::snprintf(choice.reason, sizeof choice.reason, "named by INFINIOP_MAX_ISA; %s is faster on this CPU",
                      best->name);
    else
        std::snprintf(choice.reason, sizeof choice.reason, "capped by INFINIOP_MAX_ISA=%.40s%s; this CPU has %s", most,
                      known ? "" : ", which is no name of an instruction set", best->name);
    return choice;
}

Lazy<Choice> choice{choose};

} // namespace

const KernelTable &kernels() { return choice.get().table; }
const char *isa_name() { return choice.get().name; }
const char *isa_reason() { return choice.get().reason; }

} // namespace infini
