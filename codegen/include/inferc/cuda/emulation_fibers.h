// Which thread runs: fibers, their order, and how a launch ends with a message.
#pragma once

namespace inferc::emulation {

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

// The same, between blocks.
template <class... Values>
inline void fail_block(const char *format, Values... values) {
    int at = message_begin;
    write_message(at, "block (%u, %u, %u): ", block.index.x, block.index.y, block.index.z);
    write_message(at, format, values...);
    block.failed = true;
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

inline void switch_to(Fiber *next) {
    void **from = &block.current->stack_pointer;
    block.current = next;
    block.switches++;
    inferc_switch_stack(from, next->stack_pointer);
}

// The bits of `set` above `bit`.
inline uint32_t above(uint32_t set, uint32_t bit) {
    return uint32_t(uint64_t(set) & (~uint64_t(0) << (bit + 1)));
}

inline bool land_a_bulk_copy();  // that a thread waits for; false if there is none

// The next thread that can run, after the one that runs now.
inline Fiber *next_in_turn() {
    const Fiber &last = *block.current;
    uint32_t warps = block.ready;
    uint32_t later = above(last.warp->ready, last.position);
    if (later != 0) return last.warp->fibers + __builtin_ctz(later);
    uint32_t later_warps = above(warps, last.warp->index);
    if (later_warps != 0) warps = later_warps;
    Warp &warp = block.warps[__builtin_ctz(warps)];
    return warp.fibers + __builtin_ctz(warp.ready);
}

// The thread that runs next: in greedy order the first that can, else the next that can.
inline Fiber *next_ready() {
    while (block.ready == 0)
        if (!land_a_bulk_copy()) fail_deadlock();
    if (!(block.order & kGreedy)) return next_in_turn();
    Warp &warp = block.warps[__builtin_ctz(block.ready)];
    return warp.fibers + __builtin_ctz(warp.ready);
}

// Until another thread makes this one ready.
inline void sleep(Fiber &me, const char *what, Site site) {
    me.what = what;
    me.site = site;
    make_unready(me);
    switch_to(next_ready());
}

// Lets another thread run, if one can.
inline void yield() {
    Fiber *next = next_in_turn();
    if (next != block.current) switch_to(next);
}

}  // namespace inferc::emulation
