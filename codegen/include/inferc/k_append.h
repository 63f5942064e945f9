// New keys to the pages of a cache whose values are the first components of its keys.
//
// A key is a row of `own` numbers, normed if there is a weight, and a row of `shared` numbers,
// turned if there are cosines: the latent of a token beside what all heads have in common.
#pragma once

#include "kv_append.h"

namespace inferc {
inline namespace INFERC_ISA {

struct KeyAppendArgs {
    const float *own, *shared;  // rows [kv_heads * own_dim], [shared_dim]; shared: one head only
    int64_t own_stride, shared_stride;
    const float *own_norm;  // weight [own_dim] of an RMS norm, or nullptr
    float eps;
    const float *cos, *sin;  // [tokens][rotary_dim / 2], or nullptr
    int32_t rotary_dim;      // elements of `shared` that turn, from the first
    Pairing pairing;
    void *k_pool;          // [page][kv_head][own_dim + shared_dim][page_tokens], see kv_page.h
    const int32_t *slots;  // page * page_tokens + offset in the page
    int32_t tokens, kv_heads, own_dim, shared_dim, page_tokens;
};

INFERC_INLINE void key_parts(const KeyAppendArgs &a, int64_t t, int64_t g, float *k) {
    const float *own = a.own + t * a.own_stride + g * a.own_dim;
    if (a.own_norm)
        scale_row(own, 0.0f, rms_factor(own, a.own_dim, a.eps), a.own_norm, nullptr, k, a.own_dim);
    else
        memcpy(k, own, size_t(a.own_dim) * 4);
    if (a.shared_dim == 0) return;
    float *turned = k + a.own_dim;
    memcpy(turned, a.shared + t * a.shared_stride, size_t(a.shared_dim) * 4);
    const int64_t half = a.rotary_dim / 2;
    if (half == 0) return;
    if (a.pairing == Pairing::half)
        rope_half(turned, a.cos + t * half, a.sin + t * half, half);
    else
        rope_interleaved(turned, a.cos + t * half, a.sin + t * half, half);
}

// Split by (token, head); own_dim + shared_dim up to 1024. A barrier must follow before the pages
// are read. Bytes: own and shared read, pages written once.
template <class KV>
INFERC_NOINLINE void k_append(const KeyAppendArgs &a, int worker, int workers) {
    const int64_t k_dim = a.own_dim + a.shared_dim;
    const Range mine = share(int64_t(a.tokens) * a.kv_heads, worker, workers);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const int64_t t = i / a.kv_heads, g = i % a.kv_heads;
        float k[kMaxHeadDim];
        key_parts(a, t, g, k);
        const int64_t page = a.slots[t] / a.page_tokens, offset = a.slots[t] % a.page_tokens;
        const int64_t head = page * a.kv_heads + g;
        store_key(k, k_dim, (KV *)a.k_pool + head * head_elements<KV>(k_dim, a.page_tokens),
                  a.page_tokens, offset);
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
