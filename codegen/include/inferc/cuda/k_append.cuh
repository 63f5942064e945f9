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
    void *k_pool;          // [page][kv_head][own_dim + shared_dim][page_tokens]
    const int32_t *slots;  // page * page_tokens + offset in the page
    int32_t tokens, kv_heads, own_dim, shared_dim, page_tokens;
};

#if INFERC_DEVICE_CODE

// A warp a (token, head).
template <class KV>
INFERC_INLINE void k_append(const KeyAppendArgs &args) {
    const int64_t item = int64_t(blockIdx.x) * kAppendWarps + threadIdx.x / 32;
    const int64_t token = item / args.kv_heads, g = item % args.kv_heads;
    if (token >= args.tokens) return;
    const int64_t k_dim = args.own_dim + args.shared_dim, pt = args.page_tokens;
    const int64_t slot = args.slots[token];
    const int64_t head = slot / pt * args.kv_heads + g;
    KV *to = static_cast<KV *>(args.k_pool) + head * k_dim * pt + slot % pt;
    turn_head(args.own + token * args.own_stride + g * args.own_dim, args.own_dim, args.own_norm,
              args.eps, Rotation{nullptr, nullptr, 0, Pairing::half},
              [&](int d, float x) { convert(x, to + d * pt); });
    if (args.shared_dim == 0) return;
    const int half = args.rotary_dim / 2;
    KV *behind = to + args.own_dim * pt;
    turn_head(args.shared + token * args.shared_stride, args.shared_dim, nullptr, 0.0f,
              Rotation{args.cos + token * half, args.sin + token * half, half, args.pairing},
              [&](int d, float x) { convert(x, behind + d * pt); });
}

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
