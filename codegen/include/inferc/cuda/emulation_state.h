// The state of an emulation: one block runs at a time, and this is it.
//
// Threads are kept by position: the order in which the scheduler prefers them, which is a
// permutation of the warps and of the lanes of each warp. A set of positions of a warp is a 32-bit
// mask.
#pragma once

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
    bool operator==(const Site &other) const {
        return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
    }
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

// A bulk copy which has not landed; its bytes are counted at an mbarrier.
struct BulkCopy {
    void *to;
    const void *from;
    uint32_t bytes;
    uint64_t *mbarrier;
};
constexpr int kMostBulkCopies = 4096;

// An mbarrier between mbarrier_init and fence_mbarrier_init of the same thread.
struct UnfencedMbarrier {
    const uint64_t *mbarrier;
    uint32_t thread;
};
constexpr int kMostUnfenced = 256;

struct Warp;
struct Fiber {
    void *stack_pointer;
    uint3 thread;
    Warp *warp;
    uint8_t lane, position;  // in the warp
    bool returned;
    bool registers_fenced;  // wgmma_fence since the last wgmma_wait
    Site site;              // where it waits, and for what
    const char *what;
    const uint64_t *mbarrier;  // or null
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
    uint32_t at_mbarriers;            // positions that wait at any
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
    bool running;     // a fiber runs
    bool waited_for_grid;  // grid_dependency_wait was called
    bool failed;      // message says why
    uint3 index, threads, grid;
    void *main_stack_pointer;
    void (*kernel)(const void *args);
    const void *args;
    uint64_t switches;
    Barrier barriers[kBarriers];
    int32_t unfenced;  // mbarriers without fence_mbarrier_init
    UnfencedMbarrier unfenced_mbarriers[kMostUnfenced];
    int32_t bulk_copies;
    BulkCopy bulk[kMostBulkCopies];  // in order of issue
    Warp warps[kMostWarps];
    uint8_t position_of_warp[kMostWarps];
    Fiber fibers[kMostThreads];
};

// What the kernel ahead has written; it appears in memory where a kernel first waits for it.
struct Withheld {
    void *to;
    const void *from;
    uint64_t bytes;
};

inline Block block;
inline const Withheld *withheld;
inline int withheld_count;

inline void release_withheld() {
    for (int i = 0; i < withheld_count; i++)
        memcpy(withheld[i].to, withheld[i].from, withheld[i].bytes);
    withheld_count = 0;
}

inline char message[kMessageBytes];
inline int message_begin;  // behind the kernel's name

}  // namespace inferc::emulation
