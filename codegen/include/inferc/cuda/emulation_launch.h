// Runs a grid: inferc_launch of cuda/step_abi.h, on the CPU.
#pragma once

namespace inferc {

// A kernel of a library; `run` is what INFERC_KERNEL(name, ..) defines as name_emulated.
struct EmulatedKernel {
    const char *name;
    void (*run)(const void *args);
};

namespace emulation {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kPageBytes = 4096, kMostArgBytes = 4096;
constexpr uint32_t kLaunchDependent = 1;  // INFERC_LAUNCH_DEPENDENT of step_abi.h

inline pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
inline int wanted_order = 0;
inline uint32_t stacks_made = 0;

// Dynamic shared memory that a block may have.
constexpr uint32_t most_shared_bytes(int sm) {
    return sm == 80 ? 163u << 10 : sm == 90 || sm == 100 ? 227u << 10 : 99u << 10;
}

// A kernel begins: a device launches no more threads than it was compiled for.
inline void check_threads(uint32_t most, const char *kernel, Site site = Site::here()) {
    if (block.count > most) fail(site, "%s is compiled for %u threads of a block", kernel, most);
}

// The first function of a fiber; never returns.
[[noreturn]] inline void fiber_main() {
    block.kernel(block.args);
    Fiber &me = *block.current;
    me.returned = true;
    make_unready(me);
    leave_warp_and_barriers(me);
    void *dropped;
    if (block.live == 0) inferc_switch_stack(&dropped, block.main_stack_pointer);
    Fiber *next = next_ready();
    switch_to(next);
    __builtin_unreachable();
}

// Stacks stay for later launches. Below each is a page that may not be touched.
inline bool make_stacks(uint32_t count) {
    for (; stacks_made < count; stacks_made++) {
        void *memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return false;
        mprotect(memory, kPageBytes, PROT_NONE);
        block.fibers[stacks_made].stack = static_cast<char *>(memory);
    }
    return true;
}

// Lays out a stack such that a switch to it enters fiber_main.
inline void fiber_begin(Fiber &fiber, uint32_t number) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber.stack + kPageBytes, kStackBytes - kPageBytes);
#endif
    // Stacks are a power of two apart: without a shift their tops would share a set of the cache.
    char *top = fiber.stack + kStackBytes - 64 - number % kWarpLanes * 192;
    char *frame = top - kFrameBytes;
    memset(frame, 0, kFrameBytes);
    void (*entry)() = fiber_main;
    memcpy(frame + kEntryOffset, &entry, sizeof entry);
    fiber.stack_pointer = frame;
}

// The permutation of `count` numbers that an order means, the same at each call.
inline void permute(uint8_t *out, uint32_t count, uint32_t seed) {
    for (uint32_t i = 0; i < count; i++)
        out[i] = uint8_t(block.order & kReversed ? count - 1 - i : i);
    if (!(block.order & kShuffled)) return;
    uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15u;
    for (uint32_t i = count - 1; i > 0; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint32_t other = uint32_t(state % (i + 1));
        uint8_t kept = out[i];
        out[i] = out[other], out[other] = kept;
    }
}

inline void block_begin(uint3 index) {
    block.index = index;
    block.live = block.count;
    block.ready = 0;
    memset(block.barriers, 0, sizeof block.barriers);
    uint32_t warps = (block.count + kWarpLanes - 1) / kWarpLanes;
    uint8_t warp_order[kMostWarps], lane_order[kWarpLanes];
    permute(warp_order, warps, 0);
    block.bulk_copies = 0, block.unfenced = 0;
    for (uint32_t i = 0; i < warps; i++) {
        ProductQueue &products = product_queues[i];
        products.count = 0, products.group = 0, products.issued = 0;
        block.position_of_warp[warp_order[i]] = uint8_t(i);
        Warp &warp = block.warps[i];
        warp = {};
        warp.index = i;
        warp.fibers = block.fibers + i * kWarpLanes;
        permute(lane_order, kWarpLanes, i + 1);
        for (uint32_t p = 0; p < kWarpLanes; p++) {
            Fiber &fiber = warp.fibers[p];
            uint32_t lane = lane_order[p], thread = warp_order[i] * kWarpLanes + lane;
            fiber.thread = {thread, 0, 0};
            fiber.warp = &warp;
            fiber.lane = uint8_t(lane), fiber.position = uint8_t(p);
            fiber.returned = false, fiber.registers_fenced = false, fiber.mbarrier = nullptr;
            fiber.what = nullptr;
            fiber.copies.count = 0, fiber.copies.group = 0;
            warp.position_of[lane] = uint8_t(p);
            fiber_begin(fiber, i * kWarpLanes + p);
        }
        warp.lanes = warp.live = warp.ready = ~0u;
        block.ready |= 1u << i;
    }
}

// What a block may not leave behind.
inline void block_end() {
    check_shared_memory();
    if (!block.failed && block.bulk_copies > 0)
        fail_block("%d bulk copies were not waited for by an mbarrier_wait", block.bulk_copies);
    for (uint32_t i = 0; i * kWarpLanes < block.count && !block.failed; i++) {
        const ProductQueue &queue = product_queues[block.position_of_warp[i]];
        const ProductQueue &first = product_queues[block.position_of_warp[i / 4 * 4]];
        if (queue.count > 0)
            fail_block("warp %u: %d wgmma are not covered by commit and wait", i, queue.count);
        else if (queue.issued != first.issued || (queue.issued > 0 && block.count % 128 != 0))
            fail_block("wgmma takes whole groups of four warps: warp %u issued %u, warp %u %u", i,
                       queue.issued, i / 4 * 4, first.issued);
    }
}

inline void run_block(uint3 index) {
    block_begin(index);
    shared_memory_begin();
    block.current = block.fibers;
    block.running = true;
    inferc_switch_stack(&block.main_stack_pointer, block.current->stack_pointer);
    block.running = false;
    if (!block.failed) block_end();
}

// Not nothing: why a device would not launch this.
template <class Config>
inline const char *launch_refusal(const Config &config, uint64_t args_bytes) {
    uint64_t blocks = uint64_t(config.grid[0]) * config.grid[1] * config.grid[2];
    if (blocks == 0) return "the grid is empty";
    if (config.grid[1] > 65535 || config.grid[2] > 65535) return "grid y or z is above 65535";
    if (config.threads == 0 || config.threads > kMostThreads)
        return "a block has 1 to 1024 threads";
    if (config.threads % kWarpLanes != 0) return "a block has whole warps of 32 threads";
    if (config.shared_bytes > most_shared_bytes(INFERC_SM)) return "too much shared memory";
    if (args_bytes > kMostArgBytes) return "more than 4096 bytes of arguments";
    if (config.cluster > 1) return "clusters are not emulated";
    if (!make_stacks(config.threads)) return "no memory for stacks";
    return nullptr;
}

template <class Config>
inline bool run_grid(const EmulatedKernel &kernel, const Config &config, const void *args,
                     uint64_t args_bytes) {
    int at = 0;
    write_message(at, "kernel %s: ", kernel.name);
    message_begin = at;
    const char *refusal = launch_refusal(config, args_bytes);
    if (refusal != nullptr) {
        write_message(at, "%s (grid %u x %u x %u, %u threads, %u bytes of shared memory)", refusal,
                      config.grid[0], config.grid[1], config.grid[2], config.threads,
                      config.shared_bytes);
        return false;
    }
    block.order = wanted_order;
    block.kernel = kernel.run;
    block.args = args;
    block.failed = false, block.waited_for_grid = false;
    block.count = config.threads;
    block.threads = {config.threads, 1, 1};
    block.grid = {config.grid[0], config.grid[1], config.grid[2]};
    shared_memory.used = config.shared_bytes;
    fill_static_shared();
#if !defined(__SANITIZE_ADDRESS__)  // its own handler says more
    SignalState before;
    catch_signals(before);
#endif
    uint64_t blocks = uint64_t(config.grid[0]) * config.grid[1] * config.grid[2];
    for (uint64_t i = 0; i < blocks && !block.failed; i++) {
        uint64_t number = block.order & kReversed ? blocks - 1 - i : i;
        run_block({uint32_t(number % config.grid[0]),
                   uint32_t(number / config.grid[0] % config.grid[1]),
                   uint32_t(number / config.grid[0] / config.grid[1])});
    }
#if !defined(__SANITIZE_ADDRESS__)
    release_signals(before);
#endif
    release_withheld();
    if (!block.failed && (config.flags & kLaunchDependent) && !block.waited_for_grid)
        fail_block("launched to begin before others have ended, but calls no grid_dependency_wait");
    if (!block.failed) message[0] = 0;
    return !block.failed;
}

}  // namespace emulation

// An inferc_launch: `context` is the array of the library's kernels. 0, or 1 and
// inferc_emulation_error() says why; what the kernel wrote until then stays.
template <class Config>
int32_t emulation_launch(void *context, int32_t kernel, const Config *config, const void *args,
                         uint64_t args_bytes) {
    const EmulatedKernel *kernels = static_cast<const EmulatedKernel *>(context);
    pthread_mutex_lock(&emulation::launching);
    bool done = emulation::run_grid(kernels[kernel], *config, args, args_bytes);
    pthread_mutex_unlock(&emulation::launching);
    return done ? 0 : 1;
}

}  // namespace inferc

#define INFERC_EMULATION_EXPORT extern "C" inline __attribute__((used, visibility("default")))
// The order of later launches: a sum of 1 (eager copies), 2 (greedy), 4 (reversed), 8 (shuffled).
INFERC_EMULATION_EXPORT void inferc_emulation_order(int order) {
    ::inferc::emulation::wanted_order = order;
}
// The next launch finds what `regions` replace, and they only from where it first waits on.
INFERC_EMULATION_EXPORT void inferc_emulation_withhold(const void *regions, int count) {
    ::inferc::emulation::withheld = static_cast<const ::inferc::emulation::Withheld *>(regions);
    ::inferc::emulation::withheld_count = count;
}
// What went wrong in the last launch; empty after one that succeeded.
INFERC_EMULATION_EXPORT const char *inferc_emulation_error() {
    return ::inferc::emulation::message;
}
// Switches between threads so far.
INFERC_EMULATION_EXPORT uint64_t inferc_emulation_switches() {
    return ::inferc::emulation::block.switches;
}
#undef INFERC_EMULATION_EXPORT
