// Sums and maxima over a warp or a block, in an order that depends on nothing but the shape.
#pragma once

namespace inferc {

constexpr uint32_t kAllLanes = 0xffffffffu;

// Of all 32 lanes; every lane gets it.
INFERC_INLINE float warp_sum(float value INFERC_SITE) {
    INFERC_UNROLL for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(kAllLanes, value, step, 32 INFERC_PASS_SITE);
    return value;
}
INFERC_INLINE float warp_max(float value INFERC_SITE) {
    INFERC_UNROLL for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step, 32 INFERC_PASS_SITE));
    return value;
}

// Of `threads` threads, a whole block; every thread gets it. Ends with a barrier, so that calls may
// follow one another.
template <int threads>
INFERC_INLINE float block_sum(float value INFERC_SITE) {
    static_assert(threads % 32 == 0 && threads <= 1024, "whole warps of one block");
    __shared__ float parts[threads / 32];
    value = warp_sum(value INFERC_PASS_SITE);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads(INFERC_SITE_ONLY);
    value = warp_sum(threadIdx.x % 32 < threads / 32 ? parts[threadIdx.x % 32] : 0.0f
                     INFERC_PASS_SITE);
    __syncthreads(INFERC_SITE_ONLY);
    return value;
}
template <int threads>
INFERC_INLINE float block_max(float value INFERC_SITE) {
    static_assert(threads % 32 == 0 && threads <= 1024, "whole warps of one block");
    __shared__ float parts[threads / 32];
    value = warp_max(value INFERC_PASS_SITE);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads(INFERC_SITE_ONLY);
    value = warp_max(threadIdx.x % 32 < threads / 32 ? parts[threadIdx.x % 32] : -INFINITY
                     INFERC_PASS_SITE);
    __syncthreads(INFERC_SITE_ONLY);
    return value;
}

}  // namespace inferc
