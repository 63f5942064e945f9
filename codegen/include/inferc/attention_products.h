// Products of attention.h: query rows that share a KV head, by the keys and values of one page.
//
// Rows are taken in groups that fit registers. A score is a chain over the head dimension, an output
// element a chain over the tokens of the page, whatever the group: bits depend on the row only.
#pragma once

#include "kv_page.h"

namespace inferc {
inline namespace INFERC_ISA {

constexpr int kMaxPageTokens = 64;
constexpr int kScoreStride = kMaxPageTokens;  // floats from one row's scores to the next

// Accumulators of a whole group, with what they are made of, fill the registers.
#if defined(INFERC_AVX512)
constexpr int kGroupRows = 8;
constexpr int score_vectors(int) { return 2; }
constexpr int out_vectors(int rows) { return rows == kGroupRows ? 2 : 4; }
#else
constexpr int kGroupRows = 6;
constexpr int score_vectors(int rows) { return rows > 2 ? 1 : 2; }
constexpr int out_vectors(int rows) { return rows > 2 ? 1 : 2; }
#endif

template <int N>
struct RowCount {
    static constexpr int value = N;
};

INFERC_INLINE int row_group(int left) {
    return left >= kGroupRows ? kGroupRows : (left >= 4 ? 4 : left);
}

template <class KV, int R, int N>
INFERC_INLINE void score_block(const KV *k, const KV *next, int64_t page_tokens, int64_t k_dim,
                               const float *q, float *s) {
    f32x16 acc[R][N];
    INFERC_EACH(r, R)
        INFERC_EACH(n, N) acc[r][n] = zero();
    for (int64_t d = 0; d < k_dim; d++, k += page_tokens, next += page_tokens, q += R) {
        f32x16 key[N];
        INFERC_EACH(n, N) prefetch_far(next + 16 * n);
        INFERC_EACH(n, N) key[n] = load(k + 16 * n);
        INFERC_EACH(r, R)
            INFERC_EACH(n, N) acc[r][n] = fma(splat(q[r]), key[n], acc[r][n]);
    }
    INFERC_EACH(r, R)
        INFERC_EACH(n, N) store(s + r * kScoreStride + 16 * n, acc[r][n]);
}

// s[R][kScoreStride] = q . k for the first `tokens` (a multiple of 16) of the page; q is [k_dim][R].
template <class KV, int R>
INFERC_NOINLINE void score_rows(const KV *k, const KV *next, int64_t page_tokens, int64_t tokens,
                                int64_t k_dim, const float *q, float *s) {
    constexpr int N = score_vectors(R);
    int64_t t = 0;
    for (; t + 16 * N <= tokens; t += 16 * N)
        score_block<KV, R, N>(k + t, next + t, page_tokens, k_dim, q, s + t);
    if constexpr (N > 1)
        for (; t < tokens; t += 16)
            score_block<KV, R, 1>(k + t, next + t, page_tokens, k_dim, q, s + t);
}

template <class KV, int R, int N>
INFERC_INLINE void mix_block(const KV *v, const KV *next, int64_t v_stride, int lanes,
                             int64_t tokens, const float *p, const float *factor, float *out,
                             int64_t out_stride) {
    f32x16 acc[R][N];
    INFERC_EACH(r, R)
        INFERC_EACH(n, N) acc[r][n] = load(out + r * out_stride + 16 * n) * splat(factor[r]);
    for (int64_t t = 0; t < tokens; t++, v += v_stride, next += v_stride, p++) {
        INFERC_EACH(n, N) prefetch_far(next + 16 * n);
        f32x16 value[N];
        INFERC_EACH(n, N) value[n] = N == 1 ? load(v, lanes) : load(v + 16 * n);
        INFERC_EACH(r, R)
            INFERC_EACH(n, N) acc[r][n] = fma(splat(p[r * kScoreStride]), value[n], acc[r][n]);
    }
    INFERC_EACH(r, R)
        INFERC_EACH(n, N) store(out + r * out_stride + 16 * n, acc[r][n]);
}

// out[R] = out * factor + p . v over the first `tokens` of the page.
template <class KV, int R>
INFERC_NOINLINE void mix_rows(const KV *v, const KV *next, int64_t v_dim, int64_t v_stride,
                              int64_t tokens, const float *p, const float *factor, float *out,
                              int64_t out_stride) {
    constexpr int N = out_vectors(R);
    int64_t e = 0;
    for (; e + 16 * N <= v_dim; e += 16 * N)
        mix_block<KV, R, N>(v + e, next + e, v_stride, 16, tokens, p, factor, out + e, out_stride);
    for (; e < v_dim; e += 16)
        mix_block<KV, R, 1>(v + e, next + e, v_stride, int(min_of(16, v_dim - e)), tokens, p,
                            factor, out + e, out_stride);
}

// Calls visit(first row, constant of the group's size) for each group of `rows`.
template <class Visit>
INFERC_INLINE void for_each_group(int rows, const Visit &visit) {
    for (int row = 0; row < rows;) {
        const int group = row_group(rows - row);
        if (group == kGroupRows) visit(row, RowCount<kGroupRows>{});
        if (group == 4) visit(row, RowCount<4>{});
        if (group == 3) visit(row, RowCount<3>{});
        if (group == 2) visit(row, RowCount<2>{});
        if (group == 1) visit(row, RowCount<1>{});
        row += group;
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
