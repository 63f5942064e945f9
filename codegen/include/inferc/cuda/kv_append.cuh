// Behind the q, k, v projections: per-head RMS norm, rotary embedding, q to its buffer, k and v to
// the pages.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/kv_page.cuh"

namespace inferc {

// half: element i turns with i + R/2. interleaved: element 2i turns with 2i + 1.
enum class Pairing { half, interleaved };

struct KvAppendArgs {
    const float *q, *k, *v;  // rows [heads * k_dim], [kv_heads * k_dim], [kv_heads * v_dim]
    int64_t q_stride, k_stride, v_stride;
    float *q_out;          // [tokens][heads * k_dim], may be q itself; nullptr: q stays as it is
    void *k_pool;          // [page][kv_head][k_dim][page_tokens], see kv_page.cuh
    void *v_pool;          // [page][kv_head][page_tokens][v_dim]
    const int32_t *slots;  // page * page_tokens + offset in the page
    int32_t tokens, heads, kv_heads, k_dim, v_dim, page_tokens;
    int32_t rotary_dim;  // elements of a head that turn, from the first; 0: no rope
    Pairing pairing;
    const float *cos, *sin;        // [tokens][rotary_dim / 2]
    const float *q_norm, *k_norm;  // weights [k_dim] of a norm before the rope, or nullptr
    float eps;
};

// A block is sixteen warps: of a query head of a token each, or of one KV head of a token each.
// Keys lie across a page, so those of sixteen tokens meet in shared memory and are then written
// together: a page's neighbouring tokens share a sector of 32 bytes.
constexpr int kAppendThreads = 512;
constexpr int kAppendTokens = kAppendThreads / 32;

// What a key is in shared memory: as it will be stored, or not yet divided by its scale.
template <class KV>
struct Staged {
    using Type = KV;
};
template <>
struct Staged<i8> {
    using Type = float;
};

// Rows of keys in shared memory: an odd number of 32-bit words. The scales lie behind them.
template <class KV>
INFERC_BOTH constexpr int key_pitch(int k_dim) {
    constexpr int word = int(4 / sizeof(typename Staged<KV>::Type));
    return round_up(k_dim, word * 2) + word;
}
template <class KV>
INFERC_BOTH constexpr uint32_t append_shared_bytes(int k_dim) {
    const int row_bytes = key_pitch<KV>(k_dim) * int(sizeof(typename Staged<KV>::Type));
    return uint32_t(kAppendTokens * (row_bytes + (kScaled<KV> ? 4 : 0)));
}

INFERC_BOTH int64_t query_blocks(const KvAppendArgs &args) {
    return args.q_out ? ceil_div(int64_t(args.tokens) * args.heads, int64_t(kAppendTokens)) : 0;
}
INFERC_BOTH int64_t key_blocks(int64_t tokens, int64_t kv_heads) {
    return ceil_div(tokens, int64_t(kAppendTokens)) * kv_heads;
}

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

// Where a head of a token lies in the pool: (page * kv_heads + g), and the offset in the page.
struct AppendPlace {
    int64_t head, offset;
};

INFERC_INLINE AppendPlace place_of(int32_t slot, int32_t page_tokens, int32_t kv_heads, int g) {
    return {int64_t(slot / page_tokens) * kv_heads + g, slot % page_tokens};
}

// What makes 127 of the largest of `n` numbers; whole warps call it. No number if one of them is
// none, or infinite: bits of floats without their sign are in the floats' order, NaN the largest.
INFERC_INLINE float scale_of(const float *x, int n) {
    int32_t most = 0;
    for (int i = int(threadIdx.x & 31); i < n; i += 32)
        most = max_of(most, int32_t(float_to_bits(x[i]) & 0x7fffffffu));
    for (int step = 16; step > 0; step /= 2)
        most = max_of(most, __shfl_xor_sync(kAllLanes, most, step));
    return bits_to_float(uint32_t(most)) / 127.0f;
}

// `scale` is not looked at by what has none.
INFERC_INLINE void store_scaled(float x, float scale, i8 *to) {
    *to = to_i8(scale > 0.0f ? x / scale : 0.0f);
}
template <class KV>
INFERC_INLINE void store_scaled(KV x, float, KV *to) {
    *to = x;
}

// Of a warp's own key in shared memory, behind all keys there.
template <class KV>
INFERC_INLINE float *staged_scales(typename Staged<KV>::Type *keys, int k_dim) {
    return reinterpret_cast<float *>(keys + kAppendTokens * key_pitch<KV>(k_dim));
}
template <class KV>
INFERC_INLINE void find_scale(typename Staged<KV>::Type *keys, int k_dim) {
    if constexpr (kScaled<KV>) {
        const int warp = int(threadIdx.x / 32);
        __syncwarp();
        const float scale = scale_of(keys + warp * key_pitch<KV>(k_dim), k_dim);
        if ((threadIdx.x & 31) == 0) staged_scales<KV>(keys, k_dim)[warp] = scale;
    }
}

// Keys of the tokens from `first` on, [kAppendTokens][key_pitch] in shared memory, to their pages.
template <class KV>
INFERC_INLINE void write_keys(typename Staged<KV>::Type *keys, int k_dim, KV *pool,
                              const int32_t *slots, int32_t first, int32_t tokens,
                              int32_t page_tokens, int32_t kv_heads, int g) {
    __syncthreads();
    const int at = int(threadIdx.x) % kAppendTokens;
    if (first + at >= tokens) return;
    const AppendPlace place = place_of(slots[first + at], page_tokens, kv_heads, g);
    KV *head = pool + place.head * head_elements<KV>(k_dim, page_tokens);
    float scale = 1.0f;
    if constexpr (kScaled<KV>) {
        scale = staged_scales<KV>(keys, k_dim)[at];
        if (int(threadIdx.x) < kAppendTokens)
            token_scales(head, k_dim, page_tokens)[place.offset] = scale;
    }
    KV *to = head + place.offset;
    for (int d = int(threadIdx.x) / kAppendTokens; d < k_dim; d += kAppendThreads / kAppendTokens)
        store_scaled(keys[at * key_pitch<KV>(k_dim) + d], scale, to + int64_t(d) * page_tokens);
}

// One value by one warp.
template <class KV>
INFERC_INLINE void write_value(const float *v, int v_dim, KV *pool, const AppendPlace &place,
                               int32_t page_tokens) {
    const int lane = int(threadIdx.x & 31);
    KV *head = pool + place.head * head_elements<KV>(v_dim, page_tokens);
    KV *to = head + place.offset * v_dim;
    if constexpr (kScaled<KV>) {
        const float scale = scale_of(v, v_dim);
        if (lane == 0) token_scales(head, v_dim, page_tokens)[place.offset] = scale;
        for (int e = lane; e < v_dim; e += 32) store_scaled(v[e], scale, to + e);
    } else {
        for (int e = lane; e < v_dim; e += 32) convert(v[e], to + e);
    }
}

INFERC_INLINE Rotation rotation_of(const KvAppendArgs &args, int64_t token) {
    const int half = args.rotary_dim / 2;
    return {args.cos + token * half, args.sin + token * half, half, args.pairing};
}

INFERC_INLINE void append_query(const KvAppendArgs &args, int64_t item) {
    const int64_t token = item / args.heads, h = item % args.heads;
    if (token >= args.tokens) return;
    float *to = args.q_out + item * args.k_dim;
    turn_head(args.q + token * args.q_stride + h * args.k_dim, args.k_dim, args.q_norm, args.eps,
              rotation_of(args, token), [&](int d, float x) { to[d] = x; });
}

template <class KV>
INFERC_INLINE void append_keys(const KvAppendArgs &args, int32_t first, int g) {
    INFERC_DYNAMIC_SHARED(typename Staged<KV>::Type, keys);
    const int warp = int(threadIdx.x / 32);
    const int64_t token = first + warp;
    if (token < args.tokens) {
        auto *key = keys + warp * key_pitch<KV>(args.k_dim);
        turn_head(args.k + token * args.k_stride + g * args.k_dim, args.k_dim, args.k_norm,
                  args.eps, rotation_of(args, token), [&](int d, float x) { convert(x, key + d); });
        const AppendPlace place = place_of(args.slots[token], args.page_tokens, args.kv_heads, g);
        write_value(args.v + token * args.v_stride + g * args.v_dim, args.v_dim,
                    static_cast<KV *>(args.v_pool), place, args.page_tokens);
        find_scale<KV>(keys, args.k_dim);
    }
    write_keys<KV>(keys, args.k_dim, static_cast<KV *>(args.k_pool), args.slots, first, args.tokens,
                   args.page_tokens, args.kv_heads, g);
}

// Grid: query_blocks(), then key_blocks().
template <class KV>
INFERC_INLINE void kv_append(const KvAppendArgs &args) {
    begin_dependent();
    const int64_t block = int64_t(blockIdx.x) - query_blocks(args);
    if (block < 0)
        append_query(args, int64_t(blockIdx.x) * kAppendTokens + threadIdx.x / 32);
    else
        append_keys<KV>(args, int32_t(block / args.kv_heads) * kAppendTokens,
                        int(block % args.kv_heads));
}

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
