/* gemm in place: B is multiplied where it lies, in tasks that need nothing of each other. F32 and F64 where the rows of B are
 * contiguous, those of A as well, or as reads_a() has it, and B stays in the second-level cache; every dtype where A has few
 * rows, or K is short, for which C is written in long runs. A is not packed either, but where it must be converted, if it is
 * not one row that gemm_dots.inl converts at each use, or where several rows of it are multiplied by columns of B with AVX-512
 * or there. Where there is more of B than the cache holds, few rows of A are multiplied by short blocks of K, and very few, or
 * up to 32 with AVX-512, by long runs of some of B's rows. Columns of B are multiplied over all of K (gemm_dots.inl,
 * gemm_lines.inl, gemm_twins.inl, gemv.inl). */
#include "cpu/gemm_way.h"
#include "cpu/thread_pool.h"
#include "cpu/tiles.h"

namespace infini::gemm {

namespace {

/* A task's K block of B fills half of a second-level cache of 1 MiB, A's part and the sums some more of it. */
constexpr int64_t kInPlaceRun = 2048; // bytes of a row of B in one task
constexpr int64_t kInPlaceStep = 256; // rows of B that are multiplied before the next ones
constexpr int64_t kInPlaceTaskRows = 96;
constexpr int64_t kInPlaceFarRows =
    16 * 1024;                            // bytes between rows of B: with each in pages of its own, packing pays from
constexpr int64_t kInPlaceManyRows = 512; // so many rows of A on, unless K is short
/* Bytes of a row of C in one task, if K is short: memory, and what is fetched of it before it is written, is faster at long runs.
 * B's share of the second-level cache. */
constexpr int64_t kInPlaceRunShortK = 8192, kInPlaceSharesShortK = 8;
constexpr int64_t kInPlaceFewRows = 32, kInPlaceFewRowsSmallL2 = 20; // of A
/* M and K of a product that is over before packing has paid; packing while rows of B are multiplied. */
constexpr int64_t kInPlaceShort = 128, kInPlaceShortOfRows = 64;
constexpr int64_t kInPlaceFewRowsRun =
    1024; // so that the next K block, on its way from memory, has room beside this one
/* Few rows of A are multiplied, of more of B than near_b() or this, with so many rows of it at a time, in longer runs: they have
 * room, those that follow beside them, and memory is faster at long runs. In a smaller cache (see GemmKernel) they have none
 * where rows of B meet in a few of its sets. */
constexpr int64_t kInPlaceMostNearB = 1024 * 1024;
constexpr int64_t kInPlaceShortStep = 32;
/* Of tiles, more rows of A take twice as many, since their sums come and go in each: if the rows of B are so near each other. */
constexpr int64_t kInPlaceFewOfTiles = 24, kInPlaceNearRows = 8 * 1024;
constexpr int64_t kInPlaceShortRun = 4096; // 2048 or 1024 in a smaller cache
/* Bytes of B up to which its columns need no fetching, and the first rows of a task. Columns that few shuffles transpose come fast
 * enough from the last-level cache, but are fetched where that costs little: they may well come from memory, and of 32 MiB that
 * others use, too, a core of a Zen 4 has 8 to 16, so that halves from there on take a quarter of the time if they are fetched, and
 * so does what is summed up along k. */
constexpr int64_t kColumnsNearB = 4 << 20, kColumnsNearBSmallL2 = 512 * 1024;
constexpr int64_t kColumnsNearHalves = 16 << 20, kColumnsNearHalvesZen = 8 << 20;
/* From which on they come from memory. With a small second-level cache they are fetched into that, early, in runs of so many
 * cache lines of a column, at least a K block's: memory is faster at long runs, but what is in use and what comes must have room
 * beside several rows of A and their sums. With a larger one, each line shortly before it is read: what comes early is in the way
 * of the processor's own fetching. Zen 4, with 1 MiB, and a Xeon, with 2, lose up to a fifth by each other's way; from its
 * last-level cache the Xeon takes K blocks. */
constexpr int64_t kColumnsFarB = 16 << 20;
constexpr int64_t kColumnsRunSmallL2 = 32, kColumnsRunOfOneRow = 128, kColumnsRun = 1;
constexpr int64_t kRowsNearB = 1024 * 1024;
constexpr int64_t kPackedColumns = 1536 * 1024; // bytes of B, times rows of A, from which on packing these pays
constexpr int64_t kInPlaceCrowdedEvery = 4096;
/* Bytes of B from which on more rows are streamed (gemm_steps), of a row of B that each thread has then, and from one row of B to
 * the next, up to which two groups of rows of A gain nothing. */
constexpr int64_t kStepsB = 4 << 20, kStepsLeastRun = 1024, kStepsNearRows = 8 * 1024;
/* Rows of B in a step: few, as memory delivers well in long runs; or more, since sums, which have no room in the first-level cache,
 * come and go in each, where B comes from the last-level cache, or so many rows of A (of halves fewer) are multiplied longer than
 * memory takes. Measured on Zen 4; of processors with a larger second-level cache, steps of one length alone were. */
constexpr int64_t kStep = 32, kStepFar = 24, kStepNear = 128, kStepManyHalves = 9, kStepMany = 28;
/* Streams with small second-level caches, such as Zen 3's and Zen 4's (512 KiB and 1 MiB; a Xeon's has 2 MiB): rows of sums are
 * longer unless B is taken in steps; threads have columns of their own, not K blocks, if their share of a row of B has so many
 * bytes (where K blocks took up to twice as long on Zen 4, as columns did on a Xeon); and see GemmInPlace::stream_ahead: what the
 * processor fetches from memory on its own suffers from what comes too early, on Zen 4 from all that does not follow at once. */
constexpr int64_t kStreamRunSmallL2 = 32 * 1024, kStreamOwnColumns = 3 * 1024;
constexpr int64_t kStreamAheadSmallL2 = 384, kStreamAheadZen4 = 64, kStreamAhead = 768;
/* Zen 5 itself fetches eight rows of F32 or F64 best, as long as each instruction is one that loads or multiplies; halves take more
 * instructions, so that eight or sixteen rows are fetched 8 KiB ahead in all, or further where they meet in a set. */
constexpr int64_t kStreamAheadZen5 = 1536, kStreamAheadEightZen5 = 1024;
/* Zen 5 multiplies twice as much as Zen 4 while memory delivers the same, with a cache of that size. There steps lose up to half,
 * and packing B pays from fewer rows of A on, if it is transposed and needs no conversion, or its rows of pairs meet in few sets
 * of the first-level cache. */
constexpr int64_t kColumnsRowsZen5 = 20, kInPlacePairsZen5 = 19;
/* Columns by twin K blocks: rows of F16 for which they pay near, and of F32 for which they do not from memory. */
constexpr int64_t kTwinsRowsNear = 2, kTwinsRowsFar = 4;
constexpr int64_t kStreamRun = 16 * 1024;     // bytes of a row of sums
constexpr int64_t kStreamLeastRun = 2048;     // bytes of a row of B, where tasks are shorter for their number's sake:
constexpr int64_t kStreamMostSums = 16 << 20; // bytes of those of all K blocks
constexpr int64_t kStreamTasks = 16; // for a thread, since one of two often falls behind with what comes from memory
constexpr int64_t kHeldRowsUncrowded = 4; // from more rows on, short steps are faster
/* Rows of units up to which each CPU with AVX-512 streams. Zen 5 does so with twice as many, so many bytes of a row of sums at a time
 * that B has room beside them in the first cache, into which it is fetched: what is fetched into the second takes the way from there
 * to the first twice. For shorter rows of B it does not pay, nor for threads to have less of one. */
constexpr int64_t kHeldUnits = 2, kHeldRun = 4096, kHeldLeastRow = 1024, kHeldOwnColumns = 2048;

/* Of k, whose square says for how many rows dot products are in place: the lanes of shorter sums take too long to be brought
 * together. Measured with F16 on Zen 4: up to some 64 rows of 1024, 256 of 2048, 512 of 4096. */
constexpr int64_t kDotsDeep = 128;

constexpr int64_t kTurned = 64; // columns of sums transposed at a time, if a cache line holds no more than one's rows

struct InPlace final : Way {
    bool by_rows;           // which dimension of B is contiguous
    bool packs_a;           // it must be converted, or that is what the kernel reads fastest
    bool twins;             // columns, by two K blocks at a time
    bool streams, in_steps; // by long runs of a few of its rows, with some of A in registers or with A packed
    bool shares_k;          // threads have K blocks each, so that they too read B in its own order
    bool fetches;           // B of the tasks that follow, which comes from far away
    int64_t step;           // rows of B that are multiplied before the next ones
    int64_t task_m, task_n; // rows and columns of C in a task
    int64_t tasks_m, tasks_n;
    int64_t ld; // of sums
    PackedA packed;
    int64_t bytes_blocks;           // the sums of each K block, shared
    int64_t bytes_sums, bytes_part; // all sums and those of a K block, a thread
    int64_t bytes_turned;           // sums that are transposed, a thread
    bool divided;  // each thread has neighbouring tasks: of a short K, for the lines of C that it has written before
    bool at_once;  // one task and one step, that need no memory
    bool by_lines; // columns are shared out where cache lines of B begin
    GemmInPlace common{}; // what the kernels are told in every call

    /** The rows of a task, in groups as equal as can be. */
    struct Groups {
        int count, low, taller; // so many of them have a row more than `low`
    };
    Groups whole; // of task_m rows

    static bool applies(const Gemm &g) {
        if (has_twins(g)) return true;
        if (g.dots) return g.m <= g.kernel.in_place_rows && is_deep(g) && finds_a(g) && packs_few(g);
        if (g.b.col != 1 || g.n == 1)
            return g.b.row == 1 && (g.m <= g.kernel.in_place_rows || packs_for_columns(g)) && a_fits(g);
        if (holds(g) || has_steps(g)) return a_fits(g);
        // Elements are converted at each use, by each group of rows: worth it where packing costs more.
        const bool packs = g.kernel.in_tiles || (g.converts() && g.can_pack_rows() && !g.b_is_in_memory());
        const int64_t few = packs ? g.kernel.in_place_rows : kInPlaceFewRows;
        const int64_t few_of_short = packs ? kInPlaceShortOfRows : kInPlaceShort;
        if (is_zen5() && g.kernel.unit_k > 1 && g.m > kInPlacePairsZen5 && rows_meet(g.b.row * g.size)) return false;
        if (g.m <= few || (g.converts() && (g.is_short() || std::max(g.m, g.k) <= few_of_short)))
            return a_fits(g) && !(far_b(g) && crowded(g));
        if (far_b(g) && !g.is_short()) return false;
        const bool far = std::abs(g.b.row) * g.size >= kInPlaceFarRows && g.m >= kInPlaceManyRows && !g.is_short();
        return !g.converts() && g.reads_a() && !far;
    }
    /** Is there more of B than the second-level cache keeps beside all else? */
    static bool far_b(const Gemm &g) {
        int64_t near = g.near_b();
        // For more rows packing wins from there on.
        if (g.m <= kInPlaceFewRows) near = std::clamp(second_level_cache() / 2, near, kInPlaceMostNearB);
        return g.n > near / g.size / g.k;
    }
    /** Has a small cache no room for B beside so many rows of A, or its sets none for the rows of B? */
    static bool crowded(const Gemm &g) {
        return g.kernel.has_small_l2 && g.k > g.block_k &&
               (g.m > kInPlaceFewRowsSmallL2 || g.b.row * g.size % kInPlaceCrowdedEvery == 0);
    }
    /** The same of the items of a batch in all, each of which is long enough to be streamed. Not of pairs, which were not measured. */
    static bool far_items(const Gemm &g) {
        constexpr int64_t kLongItem = 128 * 1024; // bytes
        return g.kernel.unit_k == 1 && g.batch > 1 && g.b_exceeds(second_level_cache()) &&
               g.n >= kLongItem / g.size / g.k;
    }
    static bool holds(const Gemm &g) {
        if (g.m > kHeldRows || g.kernel.streams[kFast][g.m] == nullptr || !(far_b(g) || far_items(g))) return false;
        if (!g.kernel.has_small_l2 && g.m > kHeldUnits * g.kernel.unit_k)
            return is_zen5() && g.n >= kHeldLeastRow / g.size;
        return crowded(g) || g.m <= kHeldRowsUncrowded;
    }
    static bool has_steps(const Gemm &g) {
        return g.m <= kStepsRows && g.kernel.steps[g.m] != nullptr && g.b_exceeds(kStepsB) &&
               g.k <= kFewRowsOfA / g.m && groups_find_b(g) && !is_zen5();
    }
    void set_step() {
        const bool near = !common.far_b, many = m >= (near || size == 2 ? kStepManyHalves : kStepMany);
        common.step = !small_l2() ? kStep : many ? block_k : near ? kStepNear : kStepFar;
        common.step_far = common.step == kStepFar || rows_meet(std::abs(b.row) * size);
    }
    /** Columns that meet in one set of the first-level cache, of as many K blocks as are taken at a time, and so many that packing
     *  A pays. From memory it is no faster for few rows of F32, and from caches for more of F16, which are converted as long as
     *  before. On a Zen 4 it is faster for one row of pairs from caches alone. */
    static bool has_twins(const Gemm &g) {
        constexpr int64_t kColumns = 128, kColumnsOfOneRow = 32, kNearZen4 = 8 << 20; // bytes of B
        if (g.b.row != 1 || g.b.col == 1 || g.m > kTwinsRows || g.kernel.twins[kFast][g.m] == nullptr) return false;
        if (!rows_meet(g.b.col * g.size) || g.k > kFewRowsOfA / g.m) return false;
        if (!small_l2()) return false;
        if (!is_zen5() && (g.m > 1 || g.kernel.unit_k == 1 || g.b_exceeds(kNearZen4))) return false;
        if (g.k < (g.m <= kTwinsFewRows ? 4 : 2) * g.block_k || g.n < (g.m == 1 ? kColumnsOfOneRow : kColumns))
            return false;
        if (g.kernel.unit_k > 1) return true;
        return g.converts() ? g.m <= kTwinsRowsNear || g.b_exceeds(kColumnsFarB)
                            : g.m > kTwinsRowsFar || is_near_zen5(g);
    }
    static bool packs_for_columns(const Gemm &g) {
        const int64_t most = g.kernel.unit_k > 1 || !small_l2() ? g.kernel.columns_rows // measured
                             : is_zen5() && !g.converts()       ? kColumnsRowsZen5
                                                                : kInPlaceFewRows;
        if (!g.kernel.packs_for_columns || g.m == 1 || g.m > most || g.k > kFewRowsOfA / g.m) return false;
        return g.m > g.kernel.in_place_rows || g.n > kPackedColumns / g.size / g.m / g.k;
    }
    /** Does a second group of rows find what the first has read of B? Rows of B that are near each other do as well in short steps,
     *  but less well than in long ones, and these less well than halves that are packed. */
    static bool groups_find_b(const Gemm &g) {
        const int64_t row = std::abs(g.b.row) * g.size;
        if (g.m <= kStepsGroup || (row > kStepsNearRows && !rows_meet(row))) return true;
        return small_l2() && g.m >= kStepMany && (!g.converts() || g.b_is_in_memory());
    }
    /** May A be packed as a whole? K alone can be as long as 0 strides allow. */
    static bool a_fits(const Gemm &g) { return !g.converts() || g.k <= kFewRowsOfA / std::max<int64_t>(g.m, 1); }
    static bool is_deep(const Gemm &g) {
        const double deep = static_cast<double>(g.k / kDotsDeep); // K can be as long as 0 strides allow
        return static_cast<double>(g.m) <= deep * deep;
    }
    /** May dot products be in several groups of rows? Each is read again for every few columns of B. */
    static bool finds_a(const Gemm &g) {
        return g.m <= g.kernel.columns_rows || g.k <= second_level_cache() / g.kernel.acc_size / g.kernel.columns_rows;
    }
    /** And may these rows be packed as a whole? See a_fits(); half as much: all of it is read for every few columns. */
    static bool packs_few(const Gemm &g) { return g.m == 1 || g.k <= kFewRowsOfA / 2 / g.m; }

    InPlace(const Gemm &gemm, int threads)
        : Way(gemm), by_rows(b.col == 1 && n > 1 && !dots), packs_a(dots ? m > 1 : gemm.converts()),
          twins(has_twins(gemm)) {
        constexpr int64_t kEach = 4; // tasks for a thread, so that all end at about the same time
        task_m = dots ? m : std::min(m, kInPlaceTaskRows);
        // Narrower columns are faster in short steps.
        in_steps = by_rows && has_steps(*this) && n >= kStepsLeastRun / size * threads;
        streams = by_rows && (in_steps || holds(*this));
        packs_a |= in_steps || twins || (!by_rows && packs_for_columns(*this));
        const bool short_steps = by_rows && !streams && m <= kInPlaceFewRows && far_b(*this);
        const bool gemv = !by_rows && m == 1, two_sums = gemv && size == sizeof(float); // see sum_columns()
        const int64_t near = by_rows                                     ? kRowsNearB
                             : dots && m > 1                             ? second_level_cache() / 2
                             : kernel.has_small_l2 && !two_sums && !dots ? kColumnsNearBSmallL2
                             : converts() || dots ? (small_l2() ? kColumnsNearHalvesZen : kColumnsNearHalves)
                                                  : kColumnsNearB;
        fetches = !short_steps && b_exceeds(near);
        const bool longer = kernel.in_tiles && m > kInPlaceFewOfTiles && std::abs(b.row) * size <= kInPlaceNearRows;
        step = short_steps           ? (longer ? 2 : 1) * kInPlaceShortStep
               : by_rows && !streams ? std::min(kInPlaceStep, block_k)
               : by_rows             ? block_k
                                     : k;
        const bool one_group = m <= kernel.in_place_rows; // has no use for B in the cache once it is multiplied
        int64_t run = short_steps && !kernel.has_small_l2                 ? kInPlaceShortRun
                      : m > kInPlaceFewRows || (short_steps && one_group) ? kInPlaceRun
                                                                          : kInPlaceFewRowsRun;
        if (by_rows && !short_steps && is_short())
            run = std::max(run, std::min(kInPlaceRunShortK, second_level_cache() / kInPlaceSharesShortK / k));
        run /= size;
        if (short_steps) run = equal_share(threads, run);
        const bool short_sums = streams && !in_steps && m > kHeldUnits && is_zen5();
        const bool own = short_sums && (kernel.unit_k == 1 || n >= kHeldOwnColumns / size * threads);
        shares_k = streams && !in_steps && !own && !kernel.in_tiles && threads > 1 &&
                   (!small_l2() || n < kStreamOwnColumns / size * threads) &&
                   k_blocks() >= threads && // and few: K may be as long as 0 strides allow
                   k_blocks() <= kStreamMostSums / acc_bytes(m * (n + nr));
        if (streams) { // equal shares, as many for each thread
            const int64_t most = short_sums ? kHeldRun : small_l2() && !in_steps ? kStreamRunSmallL2 : kStreamRun;
            run = equal_share(shares_k ? 1 : threads, most / kernel.acc_size);
            while (shares_k && k_blocks() * ceil_div(n, run) < kStreamTasks * threads && run * size > kStreamLeastRun)
                run = ceil_div(run, 2);
        }
        task_n =
            std::min(by_rows ? round_up(run, nr)
                     : gemv  ? std::max(nr, kGemvColumns)
                     : dots  ? kernel.lanes
                             : nr,
                     round_up(ceil_div(n, shares_k || shares_rows(threads) ? 1 : threads), dots ? kernel.lanes : nr));
        while (!dots && threads > 1 && task_m > 32 && ceil_div(m, task_m) * ceil_div(n, task_n) < threads * kEach)
            task_m -= 8;
        tasks_m = ceil_div(m, task_m);
        tasks_n = ceil_div(n, task_n);
        packed.bytes = !packs_a ? 0
                       : dots   ? acc_bytes(m * vectors_k())
                                : acc_bytes(packed_blocks() * blocks_packed() * kernel.block_units * m);
        packed.own = packs_a && !shares_k && packs_for_itself(m * k, threads);
        divided = by_rows ? is_short() : is_zen5() || !b_is_in_memory();
        // Rows of a power of 2 would meet in one set of the first-level cache.
        ld = (shares_k ? round_up(n, nr) : task_n) + (streams ? kLine / kernel.acc_size : 0);
        by_lines =
            streams && (!converts() || kernel.unit_k > 1) && b.row * size % kLine == 0 && !b_exceeds(kColumnsFarB);
        if (by_lines)
            ld += kLine / size + kLine / kernel.acc_size; // the columns before the first line, and those that align
        bytes_blocks = shares_k ? k_blocks() * acc_bytes(m * ld) : 0;
        bytes_sums =
            !shares_k && (k > std::max(step, sum_k()) || c.col != 1 || may_repeat()) ? acc_bytes(task_m * ld) : 0;
        bytes_part = !shares_k && (streams || step < std::min(k, sum_k())) ? acc_bytes(task_m * ld) : 0;
        const bool turns = !shares_k && c.row == 1 && c.col != 1 && task_m * kernel.acc_size >= kLine;
        bytes_turned = turns ? acc_bytes(kTurned * odd_lines(task_m, kernel.acc_size)) : 0;
        at_once = tasks_m * tasks_n == 1 && k <= step && packed.bytes + bytes_blocks + bytes_sums + bytes_part == 0;
        common.kc = k;
        common.odd = odd;
        common.a_row = packs_a ? 1 : a.row;
        common.a_unit = packs_a ? m : a.col;
        common.b_stride = by_rows ? b.row : b.col;
        common.n = n;
        common.far_b = b_exceeds(kColumnsFarB);
        common.stream_ahead = stream_ahead();
        common.stream_near = common.chains_bind = is_zen5();
        set_step();
        common.ld = ld;
        common.begins = common.ends = true;
        common.c_row = c.row;
        whole = groups_of(task_m);
    }
    /** Are there rows enough for threads that each read all of a small B? Columns of the same rows of C are in lines, and in pages, that
     *  several of them write, which costs more than reading that saves. */
    bool shares_rows(int threads) const {
        constexpr int64_t kSmallB = 128 * 1024, kTasks = 4; // bytes; for a thread
        return by_rows && n <= kSmallB / size / k && ceil_div(m, task_m) >= kTasks * threads;
    }
    /** See GemmInPlace. */
    int64_t stream_ahead() const {
        if (!small_l2() || !common.far_b) return kStreamAhead;
        if (!is_zen5()) return kernel.has_small_l2 ? kStreamAheadSmallL2 : kStreamAheadZen4;
        if (m > kHeldUnits || (size == 2 && rows_meet(b.row * size))) return kStreamAheadZen5;
        return size == 2 ? kStreamAheadEightZen5 / kernel.unit_k : 0;
    }
    /** Columns of a task: about so many, of which each thread has as many tasks. */
    int64_t equal_share(int threads, int64_t columns) const {
        const int64_t round = threads * columns;
        return ceil_div(n, threads * std::max<int64_t>((n + round / 2) / round, 1));
    }
    int64_t bytes_of_thread() const { return bytes_sums + bytes_part + bytes_turned; }
    int64_t workspace(int threads) const override {
        return packed.of_all(threads) + bytes_blocks + bytes_of_thread() * threads;
    }
    /** Are there two kinds of kernels, so that a task may be multiplied once more? */
    bool may_repeat() const { return kernel.unit_k > 1; }

    void run(const Run &r) const override {
        if (at_once) return run_at_once(r);
        Least least_a;
        if (packs_a && !packed.own)
            parallel_for(packed_blocks(), m * k < 64 * 1024 ? 1 : r.threads,
                         [&](int64_t block, int) { least_a.meet(pack_block(r, block)); });
        if (shares_k) return run_k_blocks(r, least_a.exponent());
        const Strips columns = columns_of(r.b);
        parallel_prepared(
            tasks_m * columns.count(), r.threads, divided,
            [&](int slot) {
                if (!packed.own) return least_a.exponent();
                int least = kLeastOfNothing;
                for (int64_t block = 0; block < packed_blocks(); ++block)
                    least = std::min(least, pack_block(packed.of(r, slot), block));
                return least;
            },
            [&](int64_t t, int slot, int least) {
                char *const sums = r.workspace + packed.of_all(r.threads) + bytes_blocks + slot * bytes_of_thread();
                run_task(packed.of(r, slot), columns, t, least, sums);
            });
    }

    /** K blocks that are packed as one, and how many of those there are. */
    int64_t blocks_packed() const { return twins ? 2 : 1; }
    int64_t packed_blocks() const { return dots ? whole.count : ceil_div(k_blocks(), blocks_packed()); }
    /** Elements of a row of A as gemm_dots has several. */
    int64_t vectors_k() const { return round_up(k, kernel.lanes); }
    /** [k block][unit][row], or in each K block of those that are streamed in steps, the panels of two groups, or twins; of dot
     *  products a group. Returns the least exponent. */
    int pack_block(const Run &r, int64_t block) const {
        if (dots) {
            const int64_t i = block * whole.low + std::min<int64_t>(block, whole.taller);
            kernel.pack_vectors(r.workspace + i * vectors_k() * kernel.acc_size, at_a(r.a, i, 0), a.row,
                                whole.low + (block < whole.taller), k);
            return kLeastOfNothing;
        }
        const int64_t most = blocks_packed() * block_k, k0 = block * most, kc = std::min(most, k - k0);
        if (twins)
            return kernel.pack_twins(r.workspace + 2 * block * kernel.block_units * m * kernel.acc_size,
                                     at_a(r.a, 0, k0), a.row, a.col, m, kc);
        const int64_t group = in_steps ? steps_first(static_cast<int>(m)) : m;
        int least = kLeastOfNothing;
        for (int64_t i = 0; i < m; i += group) {
            const int64_t rows = std::min(group, m - i);
            char *const to = r.workspace + kernel.block_units * (block * m + i) * kernel.acc_size;
            const GemmPack pack = by_rows ? kernel.pack_rows : kernel.pack;
            least = std::min(least, pack(to, 0, at_a(r.a, i, k0), a.row, a.col, rows, rows, kc));
        }
        return least;
    }

    /** Task t, with bytes_of_thread() for sums. */
    void run_task(const Run &r, const Strips &columns, int64_t t, int least_a, char *sums) const {
        const int64_t i0 = tasks_m == 1 ? 0 : t % tasks_m * task_m;
        const int64_t tn = tasks_m == 1 ? t : t / tasks_m, j0 = columns.begin(tn), cols = columns.size(tn);
        const Task task{i0, j0, std::min(task_m, m - i0), cols, columns.head_of(tn), sums};
        // C is written by the kernels, but only once if it is read: else at the end, from the sums.
        const bool to_c = c.col == 1 && (r.beta == 0 || !may_repeat());
        const int least_b = multiply(r, task, kFast, to_c);
        // B has not been read before, so that it is known only now.
        if (may_flush(least_a, least_b)) multiply(r, task, kExact, to_c);
        if (!to_c) store(r, task);
        finish(r.c, r.d, i0, j0, task.m, task.n);
    }

    /** Those of the tasks. */
    Strips columns_of(const char *pb) const { return {n, task_n, by_lines ? elements_until_line(pb, size) : 0}; }
    /** Elements between a cache line and sums, of which those behind the head then begin at one. */
    int64_t before_sums(int64_t head) const {
        const int64_t line = kLine / kernel.acc_size;
        return (line - head % line) % line;
    }

    /** The sums of each K block on their own, then those of all in their order. */
    void run_k_blocks(const Run &r, int least_a) const {
        const int64_t bytes_block = acc_bytes(m * ld);
        const Strips columns = columns_of(r.b);
        const int64_t strips = columns.count();
        char *const blocks = r.workspace + packed.bytes + before_sums(columns.head) * kernel.acc_size;
        parallel_for(k_blocks() * strips, r.threads, [&](int64_t t, int) {
            const int64_t k0 = t / strips * block_k, tn = t % strips, j0 = columns.begin(tn);
            GemmInPlace g = common;
            g.kc = std::min(block_k, k - k0);
            g.a = a_of(r, 0, k0);
            g.b = at_b(r.b, k0, j0);
            g.n = columns.size(tn);
            g.head = columns.head_of(tn);
            g.part = g.sums = blocks + t / strips * bytes_block + j0 * kernel.acc_size;
            if (may_flush(least_a, kernel.streams[kFast][m](g))) kernel.streams[kExact][m](g);
        });
        constexpr int64_t kColumns = 2048, kEnough = 1 << 20; // bytes: worth several threads
        const BinaryRows add = kernels().binary[kBinaryAdd][kernel.acc_size == 8 ? INFINI_DTYPE_F64 : INFINI_DTYPE_F32];
        parallel_for(ceil_div(n, kColumns), bytes_blocks < kEnough ? 1 : r.threads, [&](int64_t t, int) {
            const int64_t j0 = t * kColumns, cols = std::min(kColumns, n - j0);
            const auto sums = [&](int64_t block) {
                return TileOperand{blocks + block * bytes_block + j0 * kernel.acc_size, ld, 1};
            };
            for (int64_t block = 1; block < k_blocks(); ++block) add(sums(0), sums(0), sums(block), m, cols);
            kernel.store(at_c(r.c, 0, j0), c.row, c.col, sums(0).p, ld, m, cols, r.alpha, r.beta);
            finish(r.c, r.d, 0, j0, m, cols);
        });
    }

    /** A from row i and element k0 on, as the kernels take it. */
    const char *a_of(const Run &r, int64_t i, int64_t k0) const {
        if (dots && packs_a) return r.workspace + i * vectors_k() * kernel.acc_size;
        const int64_t together = by_rows ? kernel.unit_group : blocks_packed();
        return packs_a ? r.workspace + (k0 / kernel.unit_k * m + i * together) * kernel.acc_size : at_a(r.a, i, k0);
    }

    std::string describe() const override {
        return std::string(in_steps  ? "streamed in steps by "
                           : streams ? "streamed by "
                                     : "in place by ") +
               (by_rows ? "rows" : "columns") + " of B" + (twins ? ", twin K blocks" : "") +
               (shares_k ? ", K blocks shared" : "") +
               (step < std::min(k, block_k) ? ", " + text(step) + " at a time" : "") + (packs_a ? ", A packed" : "") +
               ", tasks " + text(task_m) + " x " + text(task_n) + (packed.own ? ", A by each thread" : "");
    }

    /** Rows i0.., columns j0.. of C. */
    struct Task {
        int64_t i0, j0, m, n, head; // head: of n, see GemmInPlace
        char *sums;
    };

    /** All sums of a task to C. */
    void store(const Run &r, const Task &t) const {
        char *const pc = at_c(r.c, t.i0, t.j0);
        if (bytes_turned == 0) return kernel.store(pc, c.row, c.col, t.sums, ld, t.m, t.n, r.alpha, r.beta);
        const TransposeTile transpose = kernels().transpose[log2_of(kernel.acc_size)];
        char *const turned = t.sums + bytes_sums + bytes_part;
        for (int64_t j = 0; j < t.n; j += kTurned) {
            const int64_t cols = std::min(kTurned, t.n - j), to = odd_lines(task_m, kernel.acc_size);
            transpose(turned, {to, nullptr}, t.sums + j * kernel.acc_size, {ld, nullptr}, cols, t.m, false);
            kernel.store(at_c(pc, 0, j), c.col, 1, turned, to, cols, t.m, r.alpha, r.beta);
        }
    }
    /** A small product takes about as long as the general way to it. */
    void run_at_once(const Run &r) const {
        const GemmInPlaceKernel *const kernels = by_rows ? kernel.rows[kFast] : kernel.columns[kFast];
        GemmInPlace g = common;
        g.alpha = r.alpha;
        g.beta = r.beta;
        g.fetch = r.fetch;
        g.a = r.a;
        g.b = g.ahead = r.b;
        g.c = r.c;
        for (int group = 0; group < whole.count; ++group) {
            const int rows = whole.low + (group < whole.taller);
            kernels[rows](g);
            g.a = static_cast<const char *>(g.a) + rows * a.row * a_size;
            g.c = static_cast<char *>(g.c) + rows * c.row * c_size;
        }
        finish(r.c, r.d, 0, 0, m, n);
    }

    Groups groups_of(int64_t rows, int exactness = kFast) const {
        // A task has few rows, and dividing large numbers takes longer.
        const int most = by_rows              ? kernel.in_place_rows
                         : !twins             ? kernel.columns_rows
                         : exactness == kFast ? kTwinsRows
                                              : kTwinsExactRows;
        const int count = streams ? 1 : (static_cast<int>(rows) + most - 1) / most;
        return {count, static_cast<int>(rows) / count, static_cast<int>(rows) % count};
    }

    /** What the kernels fetch while they multiply a group of rows. */
    void fetch_ahead(const Run &r, const Task &t, int64_t k0, int64_t group, int64_t groups, GemmInPlace &g) const {
        g.ahead = g.b;
        g.ahead_every = 0;
        if (dots) { // the groups that follow find in the cache what the first one has read
            g.ahead_every = fetches && group == 0 ? kAheadNear : 0;
            return;
        }
        if (!by_rows) {
            g.ahead_every = !fetches      ? 0
                            : !small_l2() ? common.far_b ? kAheadNear : kColumnsRun
                            : m == 1      ? (is_zen5() && converts() ? kColumnsRun : kColumnsRunOfOneRow)
                                          : kColumnsRunSmallL2;
            const int64_t next = t.j0 + (divided ? 1 : r.active) * task_n; // the thread's next task, probably
            g.ahead = k0 + step < k ? at_b(r.b, k0 + step, t.j0) : at_b(r.b, 0, std::min(next, n - 1));
            return;
        }
        if (streams) return;
        if (m > kInPlaceFewRows) { // the columns beside, which the other rows find in the cache
            if (group > 0) return;
            g.ahead = at_b(r.b, k0, t.j0 + 2 * nr);
            g.ahead_every = 1;
        } else if (k0 + step < k) { // a share of the rows that follow, so that memory is kept busy all the time
            const int64_t rows = std::min(step, k - k0 - step); // more would push out what is used again
            g.ahead = at_b(r.b, k0 + step + rows * group / groups, t.j0);
            g.ahead_every = groups * ceil_div(g.kc, rows);
        } else if (const int64_t next = t.j0 + r.active * task_n; fetches && next < n) { // the next task's, probably
            g.ahead = at_b(r.b, std::min(step, k) * group / groups, next);
            g.ahead_every = groups;
        }
    }

    int multiply(const Run &r, const Task &t, int exactness, bool to_c) const {
        const GemmInPlaceKernel *const kernels = in_steps  ? kernel.steps // no units that flush have them
                                                 : streams ? kernel.streams[exactness]
                                                 : by_rows ? kernel.rows[exactness]
                                                 : twins   ? kernel.twins[exactness]
                                                           : kernel.columns[exactness];
        int least = kLeastOfNothing;
        const auto [groups, low, taller] = t.m == task_m && exactness == kFast ? whole : groups_of(t.m, exactness);
        const int64_t shift = before_sums(t.head) * kernel.acc_size;
        for (int64_t k0 = 0; k0 < k; k0 += step) {
            const bool last = k0 + step >= k;
            GemmInPlace g = common;
            g.kc = std::min(step, k - k0);
            g.odd = odd && last;
            g.b = at_b(r.b, k0, t.j0);
            g.n = t.n;
            g.head = t.head;
            g.add = k0 >= sum_k();
            g.begins = k0 % sum_k() == 0;
            g.ends = last || (k0 + step) % sum_k() == 0;
            g.alpha = r.alpha;
            g.beta = r.beta;
            g.fetch = r.fetch;
            int64_t i = 0;
            for (int group = 0; group < groups; ++group) {
                const int rows = low + (group < taller);
                fetch_ahead(r, t, k0, group, groups, g);
                g.a = a_of(r, t.i0 + i, k0);
                const int64_t sums = i * ld * kernel.acc_size;
                g.sums = bytes_sums == 0 ? nullptr : t.sums + sums;
                g.part = bytes_part == 0 ? nullptr : t.sums + bytes_sums + sums + shift;
                g.c = last && to_c ? at_c(r.c, t.i0 + i, t.j0) : nullptr;
                least = std::min(least, kernels[rows](g));
                i += rows;
            }
        }
        return least;
    }
};

} // namespace

std::unique_ptr<const Way> in_place(const Gemm &gemm, int threads) {
    if (!InPlace::applies(gemm) || gemm.may_copy_pairs() || gemm.may_copy_rows()) return nullptr;
    return std::make_unique<InPlace>(gemm, threads);
}

} // namespace infini::gemm
