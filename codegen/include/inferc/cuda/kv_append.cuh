// Behind the q, k, v projections: per-head RMS norm, rotary embedding, q to its buffer, k and v to
// the pages.
#pragma once

#include "inferc/cuda/platform.cuh"

namespace inferc {

// half: element i turns with i + R/2. interleaved: element 2i turns with 2i + 1.
enum class Pairing { half, interleaved };

struct KvAppendArgs {
    const float *q, *k, *v;  // rows [heads * k_dim], [kv_heads * k_dim], [kv_heads * v_dim]
    int64_t q_stride, k_stride, v_stride;
    float *q_out;          // [tokens][heads * k_dim], may be q itself; nullptr: q stays as it is
    void *k_pool;          // [page][kv_head][k_dim][page_tokens]
    void *v_pool;          // [page][kv_head][page_tokens][v_dim]
    const int32_t *slots;  // page * page_tokens + offset in the page
    int32_t tokens, heads, kv_heads, k_dim, v_dim, page_tokens;
    int32_t rotary_dim;  // elements of a head that turn, from the first; 0: no rope
    Pairing pairing;
    const float *cos, *sin;        // [tokens][rotary_dim / 2]
    const float *q_norm, *k_norm;  // weights [k_dim] of a norm before the rope, or nullptr
    float eps;
};

constexpr int kAppendThreads = 128;
constexpr int kAppendWarps = kAppendThreads / 32;

#if INFERC_DEVICE_CODE


// Factor of an RMS norm over `n` elements; whole warps call it.
INFERC_INLINE float rms_factor(const float *x, int n, float eps) {
    float sum = 0.0f;
    for (int i = int(threadIdx.x & 31); i < n; i += 32) sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(warp_sum(sum) / float(n) + eps);
}

// Cosines and sines of one token; no rope: half = 0.
struct Rotation {
    const float *cos, *sin;
    int half;
    Pairing pairing;
};

// One head by one warp: store(d, value of element d normed and turned) for all d < n. Elements that
// turn with each other are read and stored by the same lane, so that `store` may overwrite x.
template <class Store>
INFERC_INLINE void turn_head(const float *x, int n, const float *norm, float eps,
                             const Rotation &rotation, const Store &store) {
    const int lane = int(threadIdx.x & 31), half = rotation.half;
    const float factor = norm ? rms_factor(x, n, eps) : 1.0f;
    const auto value = [&](int d) { return norm ? x[d] * factor * norm[d] : x[d]; };
    for (int i = lane; i < half; i += 32) {
        const bool apart = rotation.pairing == Pairing::half;
        const int first = apart ? i : 2 * i, second = apart ? i + half : 2 * i + 1;
        const float a = value(first), b = value(second);
        const float c = rotation.cos[i], s = rotation.sin[i];
        store(first, a * c - b * s);
        store(second, b * c + a * s);
    }
    for (int d = 2 * half + lane; d < n; d += 32) store(d, value(d));
}

template <class KV>
INFERC_INLINE void append_head(const KvAppendArgs &args, int64_t token, int g,
                               const Rotation &rotation) {
    const int64_t slot = args.slots[token], pt = args.page_tokens;
    const int64_t head = slot / pt * args.kv_heads + g, offset = slot % pt;
    KV *to = static_cast<KV *>(args.k_pool) + head * args.k_dim * pt + offset;
    turn_head(args.k + token * args.k_stride + g * args.k_dim, args.k_dim, args.k_norm, args.eps,
              rotation, [&](int d, float x) { convert(x, to + d * pt); });
    const float *v = args.v + token * args.v_stride + g * args.v_dim;
    KV *row = static_cast<KV *>(args.v_pool) + (head * pt + offset) * args.v_dim;
    for (int e = int(threadIdx.x & 31); e < args.v_dim; e += 32) convert(v[e], row + e);
}

// A warp a (token, head), query heads before KV heads.
template <class KV>
INFERC_INLINE void kv_append(const KvAppendArgs &args) {
    const int q_heads = args.q_out ? args.heads : 0, heads = q_heads + args.kv_heads;
    const int64_t item = int64_t(blockIdx.x) * kAppendWarps + threadIdx.x / 32;
    const int64_t token = item / heads;
    if (token >= args.tokens) return;
    const int h = int(item % heads), half = args.rotary_dim / 2;
    const Rotation rotation = {args.cos + token * half, args.sin + token * half, half,
                               args.pairing};
    if (h >= q_heads) {
        append_head<KV>(args, token, h - q_heads, rotation);
        return;
    }
    float *to = args.q_out + (token * args.heads + h) * args.k_dim;
    turn_head(args.q + token * args.q_stride + h * args.k_dim, args.k_dim, args.q_norm, args.eps,
              rotation, [&](int d, float x) { to[d] = x; });
}

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
