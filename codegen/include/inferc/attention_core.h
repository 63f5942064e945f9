// Inner loops of attention.h: query rows that share a KV head, against one page.
//
// A row is one query head of one token. Order of operations for a row, whatever shares the tile
// with it: scores are chains over the head dimension; a page updates (maximum, sum, output) of the
// running partition; partitions of kPartitionTokens absolute positions are combined in order of
// position.
#pragma once

#include "transpose.h"
#include "vmath.h"

namespace inferc {
inline namespace INFERC_ISA {

constexpr int kPartitionTokens = 256;
constexpr int kTileQueryRows = 32;  // rows that walk the pages together
constexpr int kMaxPageTokens = 64;

// Of values turned out of keys. No power of two, so that their rows do not meet in the cache.
INFERC_INLINE int64_t values_stride(int64_t v_dim) { return round_up(v_dim, 16) + 16; }

// Softmax state of the rows of a tile; outputs are [row][stride].
struct SoftmaxState {
    float maximum[kTileQueryRows];
    float sum[kTileQueryRows];
    float *out;
};

struct QueryTile {
    int rows;
    int64_t k_dim, v_dim, out_stride, page_tokens;
    float scale, softcap;
    int64_t window;                    // 0: none
    int64_t chunk;                     // 0: none
    int64_t position[kTileQueryRows];  // of the row's token
    float slope[kTileQueryRows];       // of the row's head: score += slope * (key - query position)
    bool sloped;                       // false: no slopes
    const float *q;                    // groups of rows side by side, see row_group()
    float *scores;                     // [row][page_tokens]
    float *values;  // of the page, turned, where they lie in its keys: [page_tokens][values_stride]
    SoftmaxState part, total;
};

// Rows are taken in groups that fit registers: 8, then 4, then what is left.
INFERC_INLINE int row_group(int left) { return left >= 8 ? 8 : (left >= 4 ? 4 : left); }

#if defined(INFERC_AVX512)
constexpr int kScoreVectors = 2;
constexpr int out_vectors(int rows) { return rows == 8 ? 2 : 4; }
#else
constexpr int kScoreVectors = 1;
constexpr int out_vectors(int rows) { return rows >= 4 ? 1 : 2; }
#endif

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
        INFERC_EACH(n, N) store(s + r * page_tokens + 16 * n, acc[r][n]);
}

// s[R][page_tokens] = q . k for all tokens of the page; q is [k_dim][R].
template <class KV, int R>
INFERC_NOINLINE void score_rows(const KV *k, const KV *next, int64_t page_tokens, int64_t k_dim,
                                const float *q, float *s) {
    int64_t t = 0;
    for (; t + 16 * kScoreVectors <= page_tokens; t += 16 * kScoreVectors)
        score_block<KV, R, kScoreVectors>(k + t, next + t, page_tokens, k_dim, q, s + t);
    if constexpr (kScoreVectors > 1)
        for (; t < page_tokens; t += 16)
            score_block<KV, R, 1>(k + t, next + t, page_tokens, k_dim, q, s + t);
}

template <class KV, int R, int N>
INFERC_INLINE void mix_block(const KV *v, const KV *next, int64_t v_stride, int lanes,
                             int64_t tokens, const float *p, int64_t page_tokens,
                             const float *factor, float *out, int64_t out_stride) {
    f32x16 acc[R][N];
    INFERC_EACH(r, R)
        INFERC_EACH(n, N) acc[r][n] = load(out + r * out_stride + 16 * n) * splat(factor[r]);
    for (int64_t t = 0; t < tokens; t++, v += v_stride, next += v_stride) {
        INFERC_EACH(n, N) prefetch_far(next + 16 * n);
        f32x16 value[N];
        INFERC_EACH(n, N) value[n] = N == 1 ? load(v, lanes) : load(v + 16 * n);
        INFERC_EACH(r, R)
            INFERC_EACH(n, N) acc[r][n] = fma(splat(p[r * page_tokens + t]), value[n], acc[r][n]);
    }
    INFERC_EACH(r, R)
        INFERC_EACH(n, N) store(out + r * out_stride + 16 * n, acc[r][n]);
}

// out[R] = out * factor + p . v over the first `tokens` of the page.
template <class KV, int R>
INFERC_NOINLINE void mix_rows(const KV *v, const KV *next, int64_t v_dim, int64_t v_stride,
                              int64_t tokens, const float *p, int64_t page_tokens,
                              const float *factor, float *out, int64_t out_stride) {
    constexpr int N = out_vectors(R);
    int64_t e = 0;
    for (; e + 16 * N <= v_dim; e += 16 * N)
        mix_block<KV, R, N>(v + e, next + e, v_stride, 16, tokens, p, page_tokens, factor, out + e,
                            out_stride);
    for (; e < v_dim; e += 16)
        mix_block<KV, R, 1>(v + e, next + e, v_stride, int(min_of(16, v_dim - e)), tokens, p,
                            page_tokens, factor, out + e, out_stride);
}

template <class KV>
INFERC_INLINE void page_scores(const QueryTile &tile, const KV *k, const KV *next) {
    const float *q = tile.q;
    float *s = tile.scores;
    for (int row = 0; row < tile.rows;) {
        int group = row_group(tile.rows - row);
        if (group == 8) score_rows<KV, 8>(k, next, tile.page_tokens, tile.k_dim, q, s);
        if (group == 4) score_rows<KV, 4>(k, next, tile.page_tokens, tile.k_dim, q, s);
        if (group == 3) score_rows<KV, 3>(k, next, tile.page_tokens, tile.k_dim, q, s);
        if (group == 2) score_rows<KV, 2>(k, next, tile.page_tokens, tile.k_dim, q, s);
        if (group == 1) score_rows<KV, 1>(k, next, tile.page_tokens, tile.k_dim, q, s);
        next = k;  // one prefetch will do
        row += group;
        q += group * tile.k_dim;
        s += group * tile.page_tokens;
    }
}

template <class KV>
INFERC_INLINE void page_mix(const QueryTile &tile, const KV *v, const KV *next, int64_t v_stride,
                            int64_t tokens, const float *factor) {
    const int64_t stride = tile.out_stride, pt = tile.page_tokens, width = tile.v_dim;
    for (int row = 0; row < tile.rows;) {
        int group = row_group(tile.rows - row);
        const float *p = tile.scores + row * pt, *f = factor + row;
        float *out = tile.part.out + row * stride;
        if (group == 8) mix_rows<KV, 8>(v, next, width, v_stride, tokens, p, pt, f, out, stride);
        if (group == 4) mix_rows<KV, 4>(v, next, width, v_stride, tokens, p, pt, f, out, stride);
        if (group == 3) mix_rows<KV, 3>(v, next, width, v_stride, tokens, p, pt, f, out, stride);
        if (group == 2) mix_rows<KV, 2>(v, next, width, v_stride, tokens, p, pt, f, out, stride);
        if (group == 1) mix_rows<KV, 1>(v, next, width, v_stride, tokens, p, pt, f, out, stride);
        next = v;
        row += group;
    }
}

INFERC_INLINE float finite_or_zero(float maximum) {
    return maximum == -__builtin_inff() ? 0.0f : maximum;
}

// First key position that a query at `position` sees.
INFERC_INLINE int64_t first_visible(int64_t position, int64_t window, int64_t chunk) {
    int64_t first = window > 0 ? max_of(0, position - window + 1) : 0;
    return chunk > 0 ? max_of(first, position / chunk * chunk) : first;
}

// Scores of one row: scaled, capped, sloped, hidden keys at -inf. Returns the largest.
// Token t of the page is visible iff low < t <= high.
INFERC_INLINE float finish_scores(const QueryTile &tile, int row, int64_t low, int64_t high) {
    float *s = tile.scores + row * tile.page_tokens;
    const bool whole = low < 0 && high >= tile.page_tokens - 1;
    const float first = float(max_of(low, -1)), last = float(min_of(high, tile.page_tokens));
    const f32x16 hidden = splat(-__builtin_inff());
    const float lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    f32x16 largest = hidden;
    for (int64_t t = 0; t < tile.page_tokens; t += 16) {
        f32x16 x = load(s + t) * splat(tile.scale);
        if (tile.softcap != 0.0f) x = softcap(x, tile.softcap);
        f32x16 at = load(lane_numbers) + splat(float(t));
        if (tile.sloped) x = fma(splat(tile.slope[row]), at - splat(float(high)), x);
        if (!whole) {
            x = select_lt(splat(first), at, x, hidden);
            x = select_lt(splat(last), at, hidden, x);
        }
        store(s + t, x);
        largest = max(largest, x);
    }
    return reduce_max(largest);
}

// Addresses of one KV head in a page.
template <class KV>
struct Page {
    const KV *k, *v;
};

// One page whose first token is at absolute position `base`; `next` is fetched meanwhile.
template <class KV>
INFERC_INLINE void attend_page(QueryTile &tile, Page<KV> page, Page<KV> next, int64_t base) {
    page_scores(tile, page.k, next.k);
    SoftmaxState &part = tile.part;
    float old_maximum[kTileQueryRows], factor[kTileQueryRows];
    int64_t visible = 0;
    for (int row = 0; row < tile.rows; row++) {
        int64_t high = tile.position[row] - base;
        int64_t low = first_visible(tile.position[row], tile.window, tile.chunk) - base - 1;
        float *s = tile.scores + row * tile.page_tokens;
        float largest = finish_scores(tile, row, low, high);
        largest = part.maximum[row] > largest ? part.maximum[row] : largest;
        float shift = finite_or_zero(largest);
        old_maximum[row] = part.maximum[row] - shift;
        part.maximum[row] = largest;
        f32x16 sum = zero();
        for (int64_t t = 0; t < tile.page_tokens; t += 16) {
            f32x16 p = exp(load(s + t) - splat(shift));
            store(s + t, p);
            sum = sum + p;
        }
        factor[row] = reduce_add(sum);  // for now the page's sum
        visible = max_of(visible, min_of(high + 1, tile.page_tokens));
    }
    for (int row = tile.rows; row < int(round_up(tile.rows, 16)); row++) old_maximum[row] = 0.0f;
    for (int row = 0; row < tile.rows; row += 16) {
        float scaled[16];
        store(scaled, exp(load(old_maximum + row)));
        for (int i = row; i < row + 16 && i < tile.rows; i++) {
            part.sum[i] = part.sum[i] * scaled[i - row] + factor[i];
            factor[i] = scaled[i - row];
        }
    }
    if (tile.values) {
        const int64_t stride = values_stride(tile.v_dim);
        transpose_rows(page.k, tile.v_dim, tile.page_tokens, tile.values, stride);
        page_mix<float>(tile, tile.values, tile.values, stride, visible, factor);
    } else {
        page_mix(tile, page.v, next.v, tile.v_dim, visible, factor);
    }
}

// (maximum, sum, out) of a row joined with those of the next partition.
INFERC_INLINE void combine_row(float *maximum, float *sum, float *out, float next_maximum,
                               float next_sum, const float *next_out, int64_t width) {
    float largest = *maximum > next_maximum ? *maximum : next_maximum;
    float shift = finite_or_zero(largest);
    float both[16] = {*maximum - shift, next_maximum - shift};
    store(both, exp(load(both)));
    for (int64_t e = 0; e < width; e += 16)
        store(out + e, fma(load(next_out + e), splat(both[1]), load(out + e) * splat(both[0])));
    *sum = *sum * both[0] + next_sum * both[1];
    *maximum = largest;
}

// The row's output: out / sum. A sink is one more score of its head, without a value.
INFERC_INLINE void finish_row(float maximum, float sum, const float *out, const float *sink,
                              float *to, int64_t width) {
    f32x16 factor = splat(1.0f);
    if (sink) {
        float largest = maximum > *sink ? maximum : *sink;
        float both[16] = {maximum - largest, *sink - largest};
        store(both, exp(load(both)));
        factor = splat(both[0]);
        sum = sum * both[0] + both[1];
    }
    for (int64_t e = 0; e < width; e += 16) {
        f32x16 x = load(out + e);
        if (sink) x = x * factor;
        store(to + e, x / splat(sum), int(min_of(16, width - e)));
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
