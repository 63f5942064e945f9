// The functions that CUDA has built in, as far as kernels use them.
#pragma once

namespace inferc::emulation {

template <class T>
struct Shuffled {
    T value;
    int from;  // lane
    T result;
};

template <class T>
inline T shuffle(uint32_t mask, T value, int from, const char *what, Site site) {
    Shuffled<T> operand = {value, from, value};
    warp_operation(mask, operand, what, site, [=](Warp &warp, uint32_t lanes) {
        for (int lane = 0; lane < kWarpLanes; lane++) {
            if (!(lanes >> lane & 1)) continue;
            auto &mine = *static_cast<Shuffled<T> *>(warp.operands[lane]);
            if (!(lanes >> mine.from & 1))
                fail(site, "lane %d reads lane %d, which takes no part in %s", lane, mine.from,
                     what);
            mine.result = static_cast<Shuffled<T> *>(warp.operands[mine.from])->value;
        }
    });
    return operand.result;
}

// The lane at `offset` in the caller's segment of `width` lanes.
inline int segment_lane(int offset, int width) {
    return (block.current->lane & ~(width - 1)) | (offset & (width - 1));
}

struct Voted {
    bool vote;
    uint32_t result;
};

inline uint32_t ballot(uint32_t mask, bool vote, const char *what, Site site) {
    Voted operand = {vote, 0};
    warp_operation(mask, operand, what, site, [](Warp &warp, uint32_t lanes) {
        uint32_t votes = 0;
        for (int lane = 0; lane < kWarpLanes; lane++)
            if (lanes >> lane & 1)
                votes |= uint32_t(static_cast<Voted *>(warp.operands[lane])->vote) << lane;
        for (int lane = 0; lane < kWarpLanes; lane++)
            if (lanes >> lane & 1) static_cast<Voted *>(warp.operands[lane])->result = votes;
    });
    return operand.result;
}

}  // namespace inferc::emulation

// Function names are those of CUDA; the last argument is where the call is.
inline void __syncthreads(INFERC_SITE_FIRST) {
    ::inferc::emulation::arrive_at_barrier(0, 0, true, "__syncthreads", site);
}
inline void __syncwarp(uint32_t mask = 0xffffffffu INFERC_SITE) {
    int nothing = 0;
    ::inferc::emulation::warp_operation(mask, nothing, "__syncwarp", site,
                                        [](::inferc::emulation::Warp &, uint32_t) {});
}
template <class T>
inline T __shfl_sync(uint32_t mask, T value, int lane, int width = 32 INFERC_SITE) {
    using namespace ::inferc::emulation;
    return shuffle(mask, value, segment_lane(lane, width), "__shfl_sync", site);
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32 INFERC_SITE) {
    using namespace ::inferc::emulation;
    int lane = block.current->lane, from = lane ^ bits;
    // A lane of a later segment is not reached; the value stays.
    bool reached = from / width <= lane / width;
    return shuffle(mask, value, reached ? from : lane, "__shfl_xor_sync", site);
}
template <class T>
inline T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32 INFERC_SITE) {
    using namespace ::inferc::emulation;
    int lane = block.current->lane;
    int from = lane % width + int(by) < width ? lane + int(by) : lane;
    return shuffle(mask, value, from, "__shfl_down_sync", site);
}
template <class T>
inline T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32 INFERC_SITE) {
    using namespace ::inferc::emulation;
    int lane = block.current->lane;
    int from = lane % width >= int(by) ? lane - int(by) : lane;
    return shuffle(mask, value, from, "__shfl_up_sync", site);
}
inline uint32_t __ballot_sync(uint32_t mask, int vote INFERC_SITE) {
    return ::inferc::emulation::ballot(mask, vote != 0, "__ballot_sync", site);
}
inline int __any_sync(uint32_t mask, int vote INFERC_SITE) {
    return ::inferc::emulation::ballot(mask, vote != 0, "__any_sync", site) != 0;
}
inline int __all_sync(uint32_t mask, int vote INFERC_SITE) {
    return ::inferc::emulation::ballot(mask, vote == 0, "__all_sync", site) == 0;
}
inline uint32_t __activemask() { return ::inferc::emulation::block.current->warp->live; }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { ::inferc::emulation::yield(); }

// Only one thread runs at a time: atomics are plain.
template <class T>
inline T atomicAdd(T *address, T value) {
    T old = *address;
    *address = T(old + value);
    return old;
}
template <class T>
inline T atomicMax(T *address, T value) {
    T old = *address;
    if (value > old) *address = value;
    return old;
}
template <class T>
inline T atomicMin(T *address, T value) {
    T old = *address;
    if (value < old) *address = value;
    return old;
}
template <class T>
inline T atomicExch(T *address, T value) {
    T old = *address;
    *address = value;
    return old;
}
template <class T>
inline T atomicCAS(T *address, T expected, T value) {
    T old = *address;
    if (old == expected) *address = value;
    return old;
}
template <class T>
inline T atomicOr(T *address, T value) {
    T old = *address;
    *address = T(old | value);
    return old;
}

template <class T>
inline T __ldg(const T *address) {
    return *address;
}
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(uint32_t(bits)); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline uint32_t __brev(uint32_t bits) {
    uint32_t out = 0;
    for (int i = 0; i < 32; i++) out |= (bits >> i & 1) << (31 - i);
    return out;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    return uint64_t(static_cast<unsigned __int128>(a) * b >> 64);
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, int by) {
    return uint32_t((uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, int by) {
    return uint32_t((uint64_t(high) << 32 | low) >> (by & 31));
}
// Byte i of the result is byte (selector >> 4i & 7) of the eight of `low` and `high`; bit 3 of a
// selector spreads that byte's sign instead.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
    uint64_t bytes = uint64_t(high) << 32 | low;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t chosen = selector >> 4 * i;
        uint32_t byte = uint32_t(bytes >> 8 * (chosen & 7)) & 0xff;
        out |= (chosen & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
    }
    return out;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(uint32_t(bits)); }
inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline int __float_as_int(float value) { return int(__float_as_uint(value)); }
inline int __float2int_rn(float value) { return int(rintf(value)); }
inline int __float2int_rd(float value) { return int(floorf(value)); }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
