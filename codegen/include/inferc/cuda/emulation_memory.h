// Dynamic shared memory, and copies to it that land later than they are issued.
#pragma once

namespace inferc::emulation {

constexpr uint32_t kGuardBytes = 1024, kMostSharedBytes = 227 << 10;

// Ahead of and behind the bytes in use is a pattern that is looked at after each block.
struct SharedMemory {
    unsigned char front[kGuardBytes];
    unsigned char bytes[kMostSharedBytes + kGuardBytes];
    uint32_t used;
};
alignas(1024) inline SharedMemory shared_memory;

// Dynamic shared memory as wgmma sees it: what bulk copies brought, and what ordinary stores left
// when a thread last called fence_async_shared. (On the device a fence is for stores of its own
// thread.)
inline unsigned char async_view[kMostSharedBytes];
inline void fence_async_view() { memcpy(async_view, shared_memory.bytes, shared_memory.used); }
inline void copy_to_async_view(const void *from, size_t bytes) {
    int64_t offset = static_cast<const unsigned char *>(from) - shared_memory.bytes;
    if (offset >= 0 && offset + int64_t(bytes) <= int64_t(shared_memory.used))
        memcpy(async_view + offset, from, bytes);
}

constexpr unsigned char kGuard = 0xa5;
constexpr unsigned char kGarbage = 0xff;  // NaN in every format of a float, -1 as an integer

inline void shared_memory_begin() {
#if defined(__SANITIZE_ADDRESS__)  // an access of the guards is reported where it is made
    __asan_unpoison_memory_region(&shared_memory, sizeof shared_memory);
#endif
    memset(shared_memory.bytes, kGarbage, shared_memory.used);
#if INFERC_SM == 90
    memset(async_view, kGarbage, shared_memory.used);
#endif
    memset(shared_memory.bytes + shared_memory.used, kGuard, kGuardBytes);
    memset(shared_memory.front, kGuard, kGuardBytes);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(shared_memory.bytes + shared_memory.used, kGuardBytes);
    __asan_poison_memory_region(shared_memory.front, kGuardBytes);
#endif
}

// Looks for a byte that was written outside of dynamic shared memory.
inline void check_shared_memory() {
#if defined(__SANITIZE_ADDRESS__)
    return;
#endif
    const unsigned char *behind = shared_memory.bytes + shared_memory.used;
    for (int i = 0; i < int(kGuardBytes); i++) {
        if (behind[i] == kGuard && shared_memory.front[i] == kGuard) continue;
        int offset = behind[i] != kGuard ? int(shared_memory.used) + i : i - int(kGuardBytes);
        fail_block("written beyond dynamic shared memory: byte %d of %u", offset,
                   shared_memory.used);
        return;
    }
}

// cp.async: its own thread waits for it.
inline void issue_copy(void *to, const void *from, uint32_t bytes) {
    static const uint4 zeros[8] = {};
    if (from == nullptr) from = zeros;
    if (block.order & kEager) {
        memcpy(to, from, bytes);
        return;
    }
    CopyQueue &queue = block.current->copies;
    if (queue.count == queue.capacity) {
        queue.capacity = queue.capacity == 0 ? 16 : 2 * queue.capacity;
        queue.copies = static_cast<Copy *>(realloc(queue.copies, sizeof(Copy) * queue.capacity));
    }
    queue.copies[queue.count++] = {to, from, bytes, queue.group};
}

// Lands the copies of all groups but the `pending` last committed.
inline void wait_for_copies(uint32_t pending) {
    CopyQueue &queue = block.current->copies;
    int32_t kept = 0;
    for (int32_t i = 0; i < queue.count; i++) {
        const Copy &copy = queue.copies[i];
        if (copy.group + pending < queue.group) memcpy(copy.to, copy.from, copy.bytes);
        else queue.copies[kept++] = copy;
    }
    queue.count = kept;
}

}  // namespace inferc::emulation
