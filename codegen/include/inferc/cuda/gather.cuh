// Rows by number.
#pragma once

#include "inferc/cuda/dependent.cuh"

namespace inferc {

constexpr int kGatherThreads = 128;

struct GatherArgs {
    const float *x;         // [.., width]
    const int32_t *indices; // [rows]
    float *y;               // [rows, width]
    int32_t width;
};

#if INFERC_DEVICE_CODE
// A block a row.
INFERC_INLINE void gather_rows(const GatherArgs &args) {
    begin_dependent();
    const float *from = args.x + int64_t(args.indices[blockIdx.x]) * args.width;
    float *to = args.y + int64_t(blockIdx.x) * args.width;
    if (args.width % 4 == 0) {  // then rows begin at multiples of 16 bytes
        const float4 *fours = reinterpret_cast<const float4 *>(from);
        for (int32_t i = threadIdx.x; i < args.width / 4; i += kGatherThreads)
            reinterpret_cast<float4 *>(to)[i] = fours[i];
        return;
    }
    for (int32_t i = threadIdx.x; i < args.width; i += kGatherThreads) to[i] = from[i];
}
#endif

}  // namespace inferc
