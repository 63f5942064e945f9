// What threads do together: operations of a warp and barriers of a block. The last thread to arrive
// does the work for all and goes on; the others sleep until then.
#pragma once

namespace inferc::emulation {

// Lanes that take part in an operation of a warp have one mask, and are at one place: on the device
// the operation is one instruction.
inline void check_agreement(const Warp &warp, uint32_t lanes, const Fiber &me, const char *what,
                            Site site) {
    for (int lane = 0; lane < kWarpLanes; lane++) {
        if (!(lanes >> lane & 1) || lane == me.lane) continue;
        const Fiber &other = warp.fibers[warp.position_of[lane]];
        if (warp.mask[lane] != warp.mask[me.lane])
            fail(site, "warp divergence: in %s lane %d has mask %08x, lane %d has mask %08x", what,
                 int(me.lane), warp.mask[me.lane], lane, warp.mask[lane]);
        if (other.what != what || other.site.line != site.line)
            fail(site, "warp divergence: lane %d is in %s at %s:%d, this one in %s", lane,
                 other.what, other.site.file, other.site.line, what);
    }
}

// Waits for all lanes of `mask`; the last to arrive calls `combine(warp, lanes)`, which finds in
// warp.operands what each lane brought, and puts there what each lane gets.
template <class Operand, class Combine>
inline void warp_operation(uint32_t mask, Operand &operand, const char *what, Site site,
                           Combine combine) {
    Fiber &me = *block.current;
    Warp &warp = *me.warp;
    if (!(mask >> me.lane & 1))
        fail(site, "lane %d calls %s with mask %08x, which leaves it out", int(me.lane), what,
             mask);
    if (mask & ~warp.live)
        fail(site, "warp divergence: lanes %08x, which %s waits for, have returned",
             mask & ~warp.live, what);
    warp.operands[me.lane] = &operand;
    warp.mask[me.lane] = mask;
    warp.arrived |= 1u << me.lane;
    if ((warp.arrived & mask) != mask) {
        warp.asleep |= 1u << me.position;
        sleep(me, what, site);
        return;
    }
    check_agreement(warp, mask, me, what, site);
    combine(warp, mask);
    warp.arrived &= ~mask;
    uint32_t woken = warp.asleep;
    if (warp.arrived != 0) {  // other lanes are in an operation of their own
        woken = 0;
        for (int lane = 0; lane < kWarpLanes; lane++)
            if (mask >> lane & 1) woken |= warp.asleep & 1u << warp.position_of[lane];
    }
    warp.asleep &= ~woken;
    make_ready(warp, woken);
}

// An operation that the device has for whole warps only.
template <class Operand, class Combine>
inline void whole_warp_operation(Operand &operand, const char *what, Site site, Combine combine) {
    warp_operation(~0u, operand, what, site, combine);
}

// ---- block barriers

// Whole warps come to a barrier: it counts warps on the device.
inline void check_whole_warps(int id, Site site) {
    for (uint32_t i = 0; i * kWarpLanes < block.count; i++) {
        const Warp &warp = block.warps[i];
        if (warp.at_barrier[id] == 0) continue;
        uint32_t came = 0;
        for (int lane = 0; lane < kWarpLanes; lane++)
            came |= (warp.at_barrier[id] >> warp.position_of[lane] & 1) << lane;
        if (came != warp.lanes)
            fail(site, "barrier under divergence: of lanes %08x of warp %u only %08x come to it",
                 warp.lanes, warp.fibers[0].thread.x / kWarpLanes, came);
    }
}

inline void release_barrier(int id) {
    block.barriers[id].arrived = 0;
    for (uint32_t i = 0; i * kWarpLanes < block.count; i++) {
        Warp &warp = block.warps[i];
        make_ready(warp, warp.at_barrier[id]);
        warp.at_barrier[id] = 0;
    }
}

// Counts a thread at barrier `id`, which opens when `expected` have come; `waits`: this one stays
// until then.
inline void arrive_at_barrier(int id, uint32_t expected, bool waits, const char *what, Site site) {
    Fiber &me = *block.current;
    if (id < 0 || id >= kBarriers || expected % kWarpLanes != 0)
        fail(site, "%s: no barrier %d of %u threads", what, id, expected);
    Barrier &barrier = block.barriers[id];
    if (barrier.arrived == 0) {
        barrier.site = site;
        barrier.expected = expected;
    }
    if (id == 0 && !(barrier.site == site))
        fail(site, "barrier under divergence: other threads of the block are in %s at %s:%d", what,
             barrier.site.file, barrier.site.line);
    if (id != 0 && barrier.expected != expected)
        fail(site, "barrier %d is expected by %u threads, but by %u at %s:%d", id, expected,
             barrier.expected, barrier.site.file, barrier.site.line);
    me.warp->at_barrier[id] |= waits ? 1u << me.position : 0;
    if (++barrier.arrived >= (id == 0 ? block.live : expected)) {
        if (id == 0) check_whole_warps(id, site);
        release_barrier(id);
    } else if (waits) {
        sleep(me, what, site);
    }
}

// A thread that returns may be the last that the block waits for; its warp may not wait for it.
inline void leave_warp_and_barriers(Fiber &me) {
    Warp &warp = *me.warp;
    for (int lane = 0; lane < kWarpLanes && warp.arrived != 0; lane++) {
        const Fiber &other = warp.fibers[warp.position_of[lane]];
        if ((warp.arrived >> lane & 1) && (warp.mask[lane] >> me.lane & 1))
            fail(other.site, "warp divergence: lane %d has returned, lane %d waits for it in %s",
                 int(me.lane), lane, other.what);
    }
    warp.live &= ~(1u << me.lane);
    block.live--;
    const Barrier &barrier = block.barriers[0];
    if (block.live > 0 && barrier.arrived == block.live) {
        check_whole_warps(0, barrier.site);
        release_barrier(0);
    }
}

}  // namespace inferc::emulation
