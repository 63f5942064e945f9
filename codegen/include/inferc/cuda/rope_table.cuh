// Cosines and sines of positions.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/math.cuh"

namespace inferc {

constexpr int kRopeTableThreads = 128;

struct RopeTableArgs {
    const int32_t *positions;  // [tokens]
    float *cos, *sin;          // [tokens, half]
    int64_t tokens;
};

// Of position * inv_freq, that product rounded to float as frameworks do; both times `scale`
// (attention factor of yarn and longrope). A thread an angle.
template <int half>
INFERC_INLINE void rope_table(const RopeTableArgs &args, const float (&inv_freq)[half], float scale) {
    begin_dependent();
    const int64_t at = int64_t(blockIdx.x) * kRopeTableThreads + threadIdx.x;
    if (at >= args.tokens * half) return;
    float sine, cosine;
    sin_cos(float(args.positions[at / half]) * inv_freq[at % half], &sine, &cosine);
    args.cos[at] = cosine * scale;
    args.sin[at] = sine * scale;
}

}  // namespace inferc
