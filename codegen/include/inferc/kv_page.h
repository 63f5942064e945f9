// What a KV head has of a page: its elements, K as [dim][token], V as [token][dim]. Behind those of
// i8, a float for each token, by which its elements are multiplied; K and V have each their own.
// `CacheType` in ir/types.py and `pool_sizes` in runtime/executors/kv_pools.py count these bytes,
// and pages of the CUDA target (cuda/kv_page.cuh) are the same.
#pragma once

#include <math.h>

#include "simd.h"

namespace inferc {
inline namespace INFERC_ISA {

struct i8 {  // an integer of -127 to 127, of which a scale elsewhere makes a number
    int8_t bits;
};

template <class KV>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<i8> = true;

// Elements from one head to the next.
template <class KV>
constexpr int64_t head_elements(int64_t dim, int64_t page_tokens) {
    return (dim + (kScaled<KV> ? int64_t(sizeof(float) / sizeof(KV)) : 0)) * page_tokens;
}

// Of the tokens of a head in a page; nullptr: its elements have no scale.
template <class KV>
INFERC_INLINE const float *token_scales(const KV *head, int64_t dim, int64_t page_tokens) {
    return kScaled<KV> ? (const float *)(head + dim * page_tokens) : nullptr;
}

#if defined(INFERC_AVX512)
INFERC_INLINE f32x16 load(const i8 *p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)))};
}
#elif defined(INFERC_AVX2)
INFERC_INLINE f32x16 load(const i8 *p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))))};
}
#else
INFERC_INLINE f32x16 load(const i8 *p) {
    float values[kLanes];
    for (int i = 0; i < kLanes; i++) values[i] = float(p[i].bits);
    return load(values);
}
#endif

// What makes 127 of the largest of `n` numbers. No number if one of them is none, or infinite: bits
// of floats without their sign are in the floats' order, NaN the largest.
INFERC_INLINE float scale_of(const float *x, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t magnitude = float_to_bits(x[i]) & 0x7fffffffu;
        most = magnitude > most ? magnitude : most;
    }
    return bits_to_float(most) / 127.0f;
}

// Rounds to nearest even; a NaN becomes one of the integers.
INFERC_INLINE i8 to_i8(float value) {
    value = value > -127.0f ? value : -127.0f;
    return {int8_t(int(rintf(value < 127.0f ? value : 127.0f)))};
}

// x[n] to elements `step` apart, of which the first is token `at` of a head in a page.
template <class KV>
INFERC_INLINE void store_token(const float *x, int64_t n, KV *head, int64_t page_tokens,
                               int64_t at, int64_t first, int64_t step) {
    KV *to = head + first;
    if constexpr (kScaled<KV>) {
        const float scale = scale_of(x, n);
        ((float *)token_scales(head, n, page_tokens))[at] = scale;
        for (int64_t i = 0; i < n; i++)
            to[i * step] = to_i8(scale > 0.0f ? x[i] / scale : 0.0f);
    } else {
        for (int64_t i = 0; i < n; i++) convert(x[i], to + i * step);
    }
}

// Token `at` of a page: a key lies across it, a value along it.
template <class KV>
INFERC_INLINE void store_key(const float *k, int64_t k_dim, KV *head, int64_t page_tokens,
                             int64_t at) {
    store_token(k, k_dim, head, page_tokens, at, at, page_tokens);
}
template <class KV>
INFERC_INLINE void store_value(const float *v, int64_t v_dim, KV *head, int64_t page_tokens,
                               int64_t at) {
    store_token(v, v_dim, head, page_tokens, at, at * v_dim, 1);
}

}  // namespace INFERC_ISA
}  // namespace inferc
