// What a KV head has of a page: its elements, K as [dim][token], V as [token][dim]. Behind those of
// i8, a float for each token, by which its elements are multiplied; K and V have each their own.
// `CacheType` in ir/types.py and `pool_sizes` in runtime/executors/kv_pools.py count these bytes.
#pragma once

#include "inferc/cuda/platform.cuh"

namespace inferc {

template <class KV>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<i8> = true;

// Elements from one head to the next.
template <class KV>
INFERC_BOTH constexpr int64_t head_elements(int dim, int page_tokens) {
    return int64_t(dim + (kScaled<KV> ? int(sizeof(float) / sizeof(KV)) : 0)) * page_tokens;
}

// Of a head that is scaled: of its tokens in the page.
template <class KV>
INFERC_BOTH const float *token_scales(const KV *head, int dim, int page_tokens) {
    return reinterpret_cast<const float *>(head + int64_t(dim) * page_tokens);
}
template <class KV>
INFERC_BOTH float *token_scales(KV *head, int dim, int page_tokens) {
    return reinterpret_cast<float *>(head + int64_t(dim) * page_tokens);
}

}  // namespace inferc
