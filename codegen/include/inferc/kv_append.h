// Behind the q, k, v projections: per-head RMS norm, rotary embedding, q to its buffer, k and v to
// the pages.
#pragma once

#include "kv_page.h"
#include "rows.h"

namespace inferc {
inline namespace INFERC_ISA {

// half: element i turns with i + R/2. interleaved: element 2i turns with 2i + 1.
enum class Pairing { half, interleaved };

struct KvAppendArgs {
    const float *q, *k, *v;  // rows [heads * k_dim], [kv_heads * k_dim], [kv_heads * v_dim]
    int64_t q_stride, k_stride, v_stride;
    float *q_out;  // [tokens][heads * k_dim], may be q itself; nullptr: q stays as it is
    int64_t q_out_stride;
    void *k_pool;          // [page][kv_head][k_dim][page_tokens], see kv_page.h
    void *v_pool;          // [page][kv_head][page_tokens][v_dim]
    const int32_t *slots;  // page * page_tokens + offset in the page
    int32_t tokens, heads, kv_heads, k_dim, v_dim, page_tokens;
    int32_t rotary_dim;  // elements of a head that turn, from the first; 0: no rope
    Pairing pairing;
    const float *cos, *sin;        // [tokens][rotary_dim / 2]
    const float *q_norm, *k_norm;  // weights [k_dim] of a norm before the rope, or nullptr
    float eps;
};

INFERC_INLINE void rope_half(float *x, const float *cos, const float *sin, int64_t half) {
    int64_t i = 0;
    for (; i + 16 <= half; i += 16) {
        f32x16 a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
    }
}

INFERC_INLINE void rope_interleaved(float *x, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

// Norm and rope of one head of token t, into `to` (may be `from`).
INFERC_INLINE void turn_head(const KvAppendArgs &a, const float *from, const float *norm, int64_t t,
                             float *to) {
    if (norm)
        scale_row(from, 0.0f, rms_factor(from, a.k_dim, a.eps), norm, nullptr, to, a.k_dim);
    else if (to != from)
        memcpy(to, from, size_t(a.k_dim) * sizeof(float));
    const int64_t half = a.rotary_dim / 2;
    if (half == 0) return;
    if (a.pairing == Pairing::half)
        rope_half(to, a.cos + t * half, a.sin + t * half, half);
    else
        rope_interleaved(to, a.cos + t * half, a.sin + t * half, half);
}

constexpr int kMaxHeadDim = 1024;

template <class KV>
INFERC_INLINE void append_head(const KvAppendArgs &a, int64_t t, int64_t g) {
    float k[kMaxHeadDim];
    turn_head(a, a.k + t * a.k_stride + g * a.k_dim, a.k_norm, t, k);
    int64_t page = a.slots[t] / a.page_tokens, offset = a.slots[t] % a.page_tokens;
    const int64_t head = page * a.kv_heads + g;
    store_key(k, a.k_dim, (KV *)a.k_pool + head * head_elements<KV>(a.k_dim, a.page_tokens),
              a.page_tokens, offset);
    store_value(a.v + t * a.v_stride + g * a.v_dim, a.v_dim,
                (KV *)a.v_pool + head * head_elements<KV>(a.v_dim, a.page_tokens), a.page_tokens,
                offset);
}

// Split by (token, head); k_dim up to 1024. A barrier must follow before the pages are read.
// Bytes: q, k, v read, q_out written, pages written once; cos and sin read.
template <class KV>
INFERC_NOINLINE void kv_append(const KvAppendArgs &a, int worker, int workers) {
    const int64_t q_heads = a.q_out ? a.heads : 0, heads = q_heads + a.kv_heads;
    Range mine = share(a.tokens * heads, worker, workers);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        int64_t t = i / heads, h = i % heads;
        if (h < q_heads)
            turn_head(a, a.q + t * a.q_stride + h * a.k_dim, a.q_norm, t,
                      a.q_out + t * a.q_out_stride + h * a.k_dim);
        else
            append_head<KV>(a, t, h - q_heads);
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
