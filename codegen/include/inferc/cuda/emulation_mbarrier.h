// Barriers in shared memory that count threads and bytes, and the bulk copies that bring the bytes.
#pragma once

namespace inferc::emulation {

// What is kept in the 8 bytes of an mbarrier. A phase ends when nothing is pending and no bytes are
// outstanding.
struct Mbarrier {
    uint32_t pending : 12, expected : 12;  // arrivals: still due, and of each phase
    uint32_t phase : 1, mark : 7;
    int32_t bytes;
};
constexpr uint32_t kMbarrierMark = 0x5b;
static_assert(sizeof(Mbarrier) == sizeof(uint64_t));

inline Mbarrier read_mbarrier(const uint64_t *at, const char *what, Site site) {
    Mbarrier found;
    if (uintptr_t(at) % 8 != 0) fail(site, "%s: the mbarrier is not 8-byte aligned", what);
    memcpy(&found, at, sizeof found);
    if (found.mark != kMbarrierMark)
        fail(site, "%s before mbarrier_init is seen by this thread", what);
    return found;
}

// Stores `changed`, in its next phase if it is through with this one.
inline void write_mbarrier(uint64_t *at, Mbarrier changed) {
    if (changed.pending == 0 && changed.bytes == 0) {
        changed.pending = changed.expected;
        changed.phase ^= 1;
        // Who waits for another looks again.
        for (uint32_t i = 0; i * kWarpLanes < block.count; i++) {
            Warp &warp = block.warps[i];
            make_ready(warp, warp.at_mbarriers);
            warp.at_mbarriers = 0;
        }
    }
    memcpy(at, &changed, sizeof changed);
}

inline void init_mbarrier(uint64_t *at, uint32_t count, Site site) {
    if (count < 1 || count > 4095) fail(site, "mbarrier_init with a count of %u", count);
    if (uintptr_t(at) % 8 != 0) fail(site, "mbarrier_init: not 8-byte aligned");
    Mbarrier made = {count, count, 0, kMbarrierMark, 0};
    memcpy(at, &made, sizeof made);
    if (block.unfenced == kMostUnfenced) fail(site, "mbarrier_init: too many mbarriers");
    block.unfenced_mbarriers[block.unfenced++] = {at, block.current->thread.x};
}

// Makes what this thread initialised known to bulk copies.
inline void fence_mbarriers() {
    int32_t kept = 0;
    for (int32_t i = 0; i < block.unfenced; i++) {
        UnfencedMbarrier unfenced = block.unfenced_mbarriers[i];
        if (unfenced.thread != block.current->thread.x) block.unfenced_mbarriers[kept++] = unfenced;
    }
    block.unfenced = kept;
}

inline void arrive_at_mbarrier(uint64_t *at, uint32_t bytes, const char *what, Site site) {
    Mbarrier found = read_mbarrier(at, what, site);
    if (found.pending == 0) fail(site, "%s: more arrivals than the mbarrier's count", what);
    found.pending--;
    found.bytes += int32_t(bytes);
    write_mbarrier(at, found);
}

// Until the phase of that parity has ended: the present one, or the one before it.
inline void wait_for_mbarrier(uint64_t *at, uint32_t parity, Site site) {
    const char *what = "mbarrier_wait";
    Fiber &me = *block.current;
    if (parity > 1) fail(site, "mbarrier_wait for parity %u", parity);
    while (read_mbarrier(at, what, site).phase == parity) {
        me.mbarrier = at;
        me.warp->at_mbarriers |= 1u << me.position;
        sleep(me, what, site);
        me.mbarrier = nullptr;
    }
}

inline void land(const BulkCopy &copy) {
    memcpy(copy.to, copy.from, copy.bytes);
    copy_to_async_view(copy.to, copy.bytes);
    Mbarrier counted;
    memcpy(&counted, copy.mbarrier, sizeof counted);
    counted.bytes -= int32_t(copy.bytes);
    write_mbarrier(copy.mbarrier, counted);
}

// In an eager order it lands at once, else when no thread can run and one waits for it.
inline void issue_bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *mbarrier,
                            Site site) {
    const char *what = "bulk_copy";
    if ((uintptr_t(to) | uintptr_t(from) | bytes) % 16 != 0)
        fail(site, "bulk_copy of addresses or bytes that are no multiples of 16");
    read_mbarrier(mbarrier, what, site);
    for (int32_t i = 0; i < block.unfenced; i++)
        if (block.unfenced_mbarriers[i].mbarrier == mbarrier)
            fail(site, "bulk_copy to an mbarrier that thread %u has not fenced",
                 block.unfenced_mbarriers[i].thread);
    if (bytes == 0) return;
    if (block.order & kEager) return land({to, from, bytes, mbarrier});
    if (block.bulk_copies == kMostBulkCopies) fail(site, "bulk_copy: too many are under way");
    block.bulk[block.bulk_copies++] = {to, from, bytes, mbarrier};
}

inline bool is_waited_for(const uint64_t *mbarrier) {
    for (uint32_t i = 0; i < block.count; i++)
        if (block.fibers[i].mbarrier == mbarrier) return true;
    return false;
}

inline bool land_a_bulk_copy() {
    for (int32_t i = 0; i < block.bulk_copies; i++) {
        BulkCopy copy = block.bulk[i];
        if (!is_waited_for(copy.mbarrier)) continue;
        block.bulk_copies--;
        for (int32_t j = i; j < block.bulk_copies; j++) block.bulk[j] = block.bulk[j + 1];
        land(copy);
        return true;
    }
    return false;
}

}  // namespace inferc::emulation
