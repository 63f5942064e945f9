// Inner loops of attention.h: query rows that share a KV head, against one page.
//
// A row is one query head of one token. Order of operations for a row, whatever shares the tile
// with it: scores are chains over the head dimension; a page updates (maximum, sum, output) of the
// running partition; partitions of absolute positions are combined in order. The soft-max has base 2: scores are multiplied by log2(e).
//
// A partition holds whole pages: kPartitionTokens, or 144 where a page has 48.
#pragma once

#include "attention_products.h"
#include "transpose.h"
#include "vmath.h"

namespace inferc {
inline namespace INFERC_ISA {

constexpr int kPartitionTokens = 128;
constexpr int kTileQueryRows = 48;  // rows that walk the pages together
constexpr float kLog2E = 1.44269504088896340736f;

INFERC_INLINE int64_t partition_tokens(int64_t page_tokens) {
    return round_up(kPartitionTokens, page_tokens);
}

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
    float softcap;                     // times log2(e); 0: none
    int64_t window;                    // 0: none
    int64_t chunk;                     // 0: none
    int64_t position[kTileQueryRows];  // of the row's token
    float slope[kTileQueryRows];       // of the row's head: score += slope * (key - query position)
    bool sloped;                       // false: no slopes
    const float *q;                    // groups of rows side by side, see row_group()
    float *scores;                     // [row][kScoreStride]
    float *values;  // of the page, turned, where they lie in its keys: [page_tokens][values_stride]
    SoftmaxState part, total;
};

// Addresses of one KV head in a page.
template <class KV>
struct Page {
    const KV *k, *v;
};

// 2^x for x <= 0: 0 below 2^-126.5, so that 2^-inf is 0; 2^0 is 1 exactly. NaN goes through.
INFERC_INLINE f32x16 exp2_negative(f32x16 x) {
    x = max(splat(-127.0f), x);
    const i32x16 n = round_to_int(x);
    const f32x16 r = x - to_f32(n);
    f32x16 p = splat(1.535336188319500e-4f);
    p = fma(p, r, splat(1.339887440266574e-3f));
    p = fma(p, r, splat(9.618437357674640e-3f));
    p = fma(p, r, splat(5.550332471162809e-2f));
    p = fma(p, r, splat(2.402264791363012e-1f));
    p = fma(p, r, splat(6.931472028550421e-1f));
    return fma(p, r, splat(1.0f)) * power_of_two(n);
}

INFERC_INLINE float finite_or_zero(float maximum) {
    return maximum == -__builtin_inff() ? 0.0f : maximum;
}
INFERC_INLINE f32x16 finite_or_zero(f32x16 maximum) {
    return select_lt(splat(-__builtin_inff()), maximum, maximum, zero());
}

// First key position that a query at `position` sees.
INFERC_INLINE int64_t first_visible(int64_t position, int64_t window, int64_t chunk) {
    int64_t first = window > 0 ? max_of(0, position - window + 1) : 0;
    return chunk > 0 ? max_of(first, position / chunk * chunk) : first;
}

// Scores of one row to N vectors of keys: capped, sloped, hidden keys at -inf.
// Token t of the page is visible iff low < t <= high.
template <int N>
INFERC_INLINE void finish_scores(const QueryTile &tile, int row, int64_t low, int64_t high,
                                 const float *k_scales, f32x16 (&x)[N]) {
    const float lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const f32x16 lane = load(lane_numbers), hidden = splat(-__builtin_inff());
    if (k_scales) INFERC_EACH(n, N) x[n] *= load(k_scales + 16 * n);
    if (tile.softcap != 0.0f) INFERC_EACH(n, N) x[n] = splat(tile.softcap) * tanh(x[n]);
    if (tile.sloped)
        INFERC_EACH(n, N)
            x[n] = fma(splat(tile.slope[row]), lane + splat(float(16 * n) - float(high)), x[n]);
    if (low < 0 && high >= 16 * N - 1) return;
    const float first = float(max_of(low, -1)), last = float(min_of(high, 16 * N));
    INFERC_EACH(n, N) {
        x[n] = select_lt(splat(first - float(16 * n)), lane, x[n], hidden);
        x[n] = select_lt(splat(last - float(16 * n)), lane, hidden, x[n]);
    }
}

// Scores of one row to the first 16 * N tokens of a page become shares, 2^(score - maximum), times
// the scales of the values. `maximum` is that of the partition so far; returns the shares' sum.
template <int N>
INFERC_INLINE float share_row(const QueryTile &tile, int row, int64_t low, int64_t high,
                              const float *k_scales, const float *v_scales, float *maximum) {
    float *s = tile.scores + row * kScoreStride;
    f32x16 x[N];
    INFERC_EACH(n, N) x[n] = load(s + 16 * n);
    finish_scores(tile, row, low, high, k_scales, x);
    f32x16 largest = x[0];
    for (int n = 1; n < N; n++) largest = max(largest, x[n]);
    const float found = reduce_max(largest);
    *maximum = *maximum > found ? *maximum : found;
    const f32x16 shift = splat(finite_or_zero(*maximum));
    f32x16 sum = zero();
    INFERC_EACH(n, N) {
        x[n] = exp2_negative(x[n] - shift);
        sum = sum + x[n];
        if (v_scales) x[n] *= load(v_scales + 16 * n);
        store(s + 16 * n, x[n]);
    }
    return reduce_add(sum);
}

// share_row() of all rows; the state of the partition but for its output, by which factor[] must be
// multiplied.
template <int N>
INFERC_NOINLINE void share_rows(QueryTile &tile, int64_t base, const float *k_scales,
                                const float *v_scales, float *factor) {
    SoftmaxState &part = tile.part;
    float before[kTileQueryRows], sum[kTileQueryRows];
    for (int row = 0; row < tile.rows; row++) {
        const int64_t high = tile.position[row] - base;
        const int64_t low = first_visible(tile.position[row], tile.window, tile.chunk) - base - 1;
        before[row] = part.maximum[row];
        sum[row] =
            share_row<N>(tile, row, low, high, k_scales, v_scales, &part.maximum[row]);
    }
    const int stop = int(round_up(tile.rows, 16));
    for (int row = tile.rows; row < stop; row++) before[row] = sum[row] = 0.0f;
    for (int row = 0; row < stop; row += 16) {
        const f32x16 shift = finite_or_zero(load(part.maximum + row));
        const f32x16 scaled = exp2_negative(load(before + row) - shift);
        store(factor + row, scaled);
        store(part.sum + row, load(part.sum + row) * scaled + load(sum + row));
    }
}

template <class KV>
INFERC_INLINE void page_scores(const QueryTile &tile, const KV *k, const KV *next, int64_t tokens) {
    for_each_group(tile.rows, [&](int row, auto group) {
        score_rows<KV, group.value>(k, next, tile.page_tokens, tokens, tile.k_dim,
                                    tile.q + row * tile.k_dim, tile.scores + row * kScoreStride);
        next = k;  // one prefetch will do
    });
}

template <class KV>
INFERC_INLINE void page_mix(const QueryTile &tile, const KV *v, const KV *next, int64_t v_stride,
                            int64_t tokens, const float *factor) {
    for_each_group(tile.rows, [&](int row, auto group) {
        mix_rows<KV, group.value>(v, next, tile.v_dim, v_stride, tokens,
                                  tile.scores + row * kScoreStride, factor + row,
                                  tile.part.out + row * tile.out_stride, tile.out_stride);
        next = v;
    });
}

// One page whose first token is at absolute position `base`; `next` is fetched meanwhile.
template <class KV>
INFERC_INLINE void attend_page(QueryTile &tile, Page<KV> page, Page<KV> next, int64_t base) {
    const int64_t last = tile.position[tile.rows - 1] - base;
    const int64_t tokens = min_of(last + 1, tile.page_tokens), padded = round_up(tokens, 16);
    page_scores(tile, page.k, next.k, padded);
    const float *k_scales = token_scales(page.k, tile.k_dim, tile.page_tokens);
    const float *v_scales =
        tile.values ? k_scales : token_scales(page.v, tile.v_dim, tile.page_tokens);
    alignas(64) float factor[kTileQueryRows];
    if (padded == 16) share_rows<1>(tile, base, k_scales, v_scales, factor);
    if (padded == 32) share_rows<2>(tile, base, k_scales, v_scales, factor);
    if (padded == 48) share_rows<3>(tile, base, k_scales, v_scales, factor);
    if (padded == 64) share_rows<4>(tile, base, k_scales, v_scales, factor);
    if (tile.values) {
        const int64_t stride = values_stride(tile.v_dim);
        transpose_rows(page.k, tile.v_dim, tile.page_tokens, tile.values, stride);
        page_mix<float>(tile, tile.values, tile.values, stride, tokens, factor);
    } else {
        page_mix(tile, page.v, next.v, tile.v_dim, tokens, factor);
    }
}

INFERC_INLINE void reset(SoftmaxState &state, int rows, int64_t stride) {
    for (int r = 0; r < kTileQueryRows; r++)
        state.maximum[r] = -__builtin_inff(), state.sum[r] = 0.0f;
    memset(state.out, 0, size_t(rows * stride) * 4);
}

// The states of `rows` rows joined with those of the next partition; both outputs have `stride`.
INFERC_INLINE void combine_rows(SoftmaxState &total, const SoftmaxState &next, int rows,
                                int64_t stride) {
    for (int first = 0; first < rows; first += 16) {
        const f32x16 a = load(total.maximum + first), b = load(next.maximum + first);
        const f32x16 largest = max(a, b), shift = finite_or_zero(largest);
        const f32x16 old_factor = exp2_negative(a - shift), new_factor = exp2_negative(b - shift);
        store(total.maximum + first, largest);
        store(total.sum + first,
              load(total.sum + first) * old_factor + load(next.sum + first) * new_factor);
        float x[16], y[16];
        store(x, old_factor), store(y, new_factor);
        for (int row = first; row < rows && row < first + 16; row++)
            for (int64_t e = row * stride; e < (row + 1) * stride; e += 16)
                store(total.out + e, fma(load(next.out + e), splat(y[row - first]),
                                         load(total.out + e) * splat(x[row - first])));
    }
}

// The row's output: out / sum. A sink is one more score of its head, without a value.
INFERC_INLINE void finish_row(float maximum, float sum, const float *out, const float *sink,
                              float *to, int64_t width) {
    f32x16 factor = splat(1.0f);
    if (sink) {
        const float score = *sink * kLog2E, largest = maximum > score ? maximum : score;
        float both[16] = {maximum - largest, score - largest};
        store(both, exp2_negative(load(both)));
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
