// New keys to the pages of a cache whose values are the first components of its keys.
//
// A key is a row of `own` numbers, normed if there is a weight, and a row of `shared` numbers,
// turned if there are cosines: the latent of a token beside what all heads have in common.
#pragma once

#include "inferc/cuda/kv_append.cuh"

namespace inferc {

struct KeyAppendArgs {
    const float *own, *shared;  // rows [kv_heads * own_dim], [shared_dim]; shared: one head only
    int64_t own_stride, shared_stride;
    const float *own_norm;  // weight [own_dim] of an RMS norm, or nullptr
    float eps;
    const float *cos, *sin;  // [tokens][rotary_dim / 2], or nullptr
    int32_t rotary_dim;      // elements of `shared` that turn, from the first
    Pairing pairing;
    void *k_pool;          // [page][kv_head][own_dim + shared_dim][page_tokens], see kv_page.cuh
    const int32_t *slots;  // page * page_tokens + offset in the page
    int32_t tokens, kv_heads, own_dim, shared_dim, page_tokens;
};

#if INFERC_DEVICE_CODE

// Grid: key_blocks().
template <class KV>
INFERC_INLINE void k_append(const KeyAppendArgs &args) {
    INFERC_DYNAMIC_SHARED(typename Staged<KV>::Type, keys);
    begin_dependent();
    const int warp = int(threadIdx.x / 32), g = int(blockIdx.x) % args.kv_heads;
    const int32_t first = int32_t(blockIdx.x) / args.kv_heads * kAppendTokens;
    const int64_t token = first + warp;
    const int k_dim = args.own_dim + args.shared_dim, half = args.rotary_dim / 2;
    if (token < args.tokens) {
        auto *key = keys + warp * key_pitch<KV>(k_dim);
        turn_head(args.own + token * args.own_stride + g * args.own_dim, args.own_dim,
                  args.own_norm, args.eps, Rotation{nullptr, nullptr, 0, Pairing::half},
                  [&](int d, float x) { convert(x, key + d); });
        key += args.own_dim;
        const Rotation rotation = {args.cos + token * half, args.sin + token * half, half,
                                   args.pairing};
        if (args.shared_dim > 0)
            turn_head(args.shared + token * args.shared_stride, args.shared_dim, nullptr, 0.0f,
                      rotation, [&](int d, float x) { convert(x, key + d); });
        find_scale<KV>(keys, k_dim);
    }
    write_keys<KV>(keys, k_dim, static_cast<KV *>(args.k_pool), args.slots, first, args.tokens,
                   args.page_tokens, args.kv_heads, g);
}

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
