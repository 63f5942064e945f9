// Fibers, their order, and block barriers.
//
// Threads are kept by position: the order in which the scheduler prefers them, which is a permutation
// of the warps and of the lanes of each warp. A set of positions of a warp is a 32-bit mask.
#pragma once

struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

namespace inferc::emulation {

constexpr int kWarpLanes = 32, kMostWarps = 32, kMostThreads = kWarpLanes * kMostWarps;
constexpr int kBarriers = 16;
constexpr int kMessageBytes = 4096;

// Bits of an order.
constexpr int kEager = 1;     // copies land when they are issued, not when they are waited for;
                              // matrix operands are read when waited for, not when issued
constexpr int kGreedy = 2;    // the first thread that can run does, not the next after the last
constexpr int kReversed = 4;  // threads and blocks from the last to the first
constexpr int kShuffled = 8;  // warps, and lanes of each warp, in an arbitrary but fixed order

// A place in the source: the caller's, where it is a default argument.
struct Site {
    const char *file;
    int line;
    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    bool operator==(const Site &other) const { return line == other.line && file == other.file; }
};

// An asynchronous copy of a thread which has not landed; `group` counts its commits.
struct Copy {
    void *to;
    const void *from;
    uint32_t bytes;
    uint32_t group;
};
struct CopyQueue {
    Copy *copies;
    int32_t count, capacity;
    uint32_t group;
};

enum class Wait : uint8_t { nothing, barrier, warp, mbarrier };

struct Warp;
struct Fiber {
    void *stack_pointer;
    uint3 thread;
    Warp *warp;
    uint8_t lane, position;  // in the warp
    Wait wait;
    bool returned;
    Site site;  // where it waits
    const char *what;
    CopyQueue copies;
    char *stack;
};

struct Warp {
    uint32_t lanes;    // lanes it began with
    uint32_t live;     // lanes that have not returned
    uint32_t ready;    // positions that can run
    uint32_t asleep;   // positions in a warp operation
    uint32_t arrived;  // lanes in a warp operation
    uint32_t index;    // position among the warps
    uint32_t mask[kWarpLanes];       // of each lane in a warp operation
    void *operands[kWarpLanes];      // and what it brought, on its stack
    uint8_t position_of[kWarpLanes];  // of each lane
    uint32_t at_barrier[kBarriers];   // positions that wait there
    Fiber *fibers;                    // 32, by position
};

struct Barrier {
    uint32_t arrived;
    uint32_t expected;
    Site site;
};

struct Block {
    Fiber *current;
    uint32_t ready;  // warps with a ready position
    uint32_t count, live;
    int order;
    bool failed;
    uint3 index, threads, grid;
    void *main_stack_pointer;
    void (*kernel)(const void *args);
    const void *args;
    uint64_t switches;
    Barrier barriers[kBarriers];
    Warp warps[kMostWarps];
    Fiber fibers[kMostThreads];
};

inline Block block;
inline char message[kMessageBytes];
inline int message_begin;  // behind the kernel's name

extern "C" void inferc_switch_stack(void **from, void *to);

// Saves what a callee must keep, changes stacks, restores. A fiber's first switch enters the address
// left on its stack by fiber_begin.
#if !defined(INFERC_EMULATION)
#elif defined(__x86_64__)
constexpr size_t kSavedBytes = 6 * 8, kEntryOffset = 6 * 8, kFrameBytes = kSavedBytes + 2 * 8;
asm(R"(
.text
.weak inferc_switch_stack
.hidden inferc_switch_stack
.type inferc_switch_stack,@function
inferc_switch_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp,(%rdi)
    mov %rsi,%rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size inferc_switch_stack,.-inferc_switch_stack
)");
#elif defined(__aarch64__)
constexpr size_t kSavedBytes = 160, kEntryOffset = 88, kFrameBytes = kSavedBytes;
asm(R"(
.text
.weak inferc_switch_stack
.hidden inferc_switch_stack
.type inferc_switch_stack,%function
inferc_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size inferc_switch_stack,.-inferc_switch_stack
)");
#else
#error "emulation needs a switch of stacks for this processor"
#endif

inline void switch_to(Fiber *next) {
    void **from = &block.current->stack_pointer;
    block.current = next;
    block.switches++;
    inferc_switch_stack(from, next->stack_pointer);
}

// Ends the launch from within a fiber: the block's fibers are left where they are.
[[noreturn]] inline void abandon() {
    block.failed = true;
    void *dropped;
    inferc_switch_stack(&dropped, block.main_stack_pointer);
    __builtin_unreachable();
}

template <class... Values>
inline void write_message(int &at, const char *format, Values... values) {
    if (at >= kMessageBytes - 1) return;
    int written = snprintf(message + at, size_t(kMessageBytes - at), format, values...);
    at = at + written < kMessageBytes ? at + written : kMessageBytes - 1;
}

inline int begin_message() {
    int at = message_begin;
    write_message(at, "block (%u, %u, %u), thread %u: ", block.index.x, block.index.y,
                  block.index.z, block.current->thread.x);
    return at;
}

template <class... Values>
[[noreturn]] inline void fail(Site site, const char *format, Values... values) {
    int at = begin_message();
    write_message(at, format, values...);
    write_message(at, " at %s:%d", site.file, site.line);
    abandon();
}

// Nothing can run: says where the threads are, a line for each place.
[[noreturn]] inline void fail_deadlock() {
    int at = message_begin;
    write_message(at, "block (%u, %u, %u): deadlock, what these threads wait for never happens",
                  block.index.x, block.index.y, block.index.z);
    bool told[kMostThreads] = {};
    uint32_t returned = 0;
    for (uint32_t i = 0; i < block.count; i++) {
        const Fiber &first = block.fibers[i];
        returned += first.returned;
        if (told[i] || first.returned) continue;
        uint32_t waiting = 0, lowest = first.thread.x;
        for (uint32_t j = i; j < block.count; j++) {
            const Fiber &other = block.fibers[j];
            if (other.returned || other.what != first.what || !(other.site == first.site)) continue;
            told[j] = true;
            waiting++;
            lowest = other.thread.x < lowest ? other.thread.x : lowest;
        }
        write_message(at, "\n  %u threads from thread %u: %s at %s:%d", waiting, lowest, first.what,
                      first.site.file, first.site.line);
    }
    if (returned > 0) write_message(at, "\n  %u threads have returned", returned);
    abandon();
}

inline void make_ready(Warp &warp, uint32_t positions) {
    warp.ready |= positions;
    if (warp.ready != 0) block.ready |= 1u << warp.index;
}

inline void make_unready(Fiber &fiber) {
    Warp &warp = *fiber.warp;
    warp.ready &= ~(1u << fiber.position);
    if (warp.ready == 0) block.ready &= ~(1u << warp.index);
}

// The bits of `set` above `bit`.
inline uint32_t above(uint32_t set, uint32_t bit) {
    return uint32_t(uint64_t(set) & (~uint64_t(0) << (bit + 1)));
}

// The thread that runs next: in greedy order the first that can, else the next that can.
inline Fiber *next_ready() {
    const Fiber &last = *block.current;
    uint32_t warps = block.ready;
    if (!(block.order & kGreedy)) {
        uint32_t later = above(last.warp->ready, last.position);
        if (later != 0) return last.warp->fibers + __builtin_ctz(later);
        uint32_t later_warps = above(warps, last.warp->index);
        if (later_warps != 0) warps = later_warps;
    }
    if (warps == 0) fail_deadlock();
    Warp &warp = block.warps[__builtin_ctz(warps)];
    return warp.fibers + __builtin_ctz(warp.ready);
}

// Until another thread makes this one ready.
inline void sleep(Fiber &me, Wait wait, const char *what, Site site) {
    me.wait = wait;
    me.what = what;
    me.site = site;
    make_unready(me);
    switch_to(next_ready());
    me.wait = Wait::nothing;
}

// Lets another thread run, if one can.
inline void yield() {
    Fiber *next = next_ready();
    if (next != block.current) switch_to(next);
}

}  // namespace inferc::emulation
