// Causal attention over paged keys and values, for any ragged batch: what both ways of computing it
// (attention_mma.cuh on tensor cores, attention_plain.cuh in float32) have in common.
//
// A row is one query head of one token; the rows of a sequence and KV head lie one after another,
// token by token, and a tile is some rows in a row of them. A context is walked in key tiles, and
// cut into partitions at multiples of kPartitionTokens: a partition begins with an empty softmax,
// and partitions are joined in order of position. So it does not matter to a single bit whether one
// block walks them all or each is a block of its own and attention_merge() joins them, nor what
// else is in the tile or in the batch, nor how a prompt was cut into steps.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/kv_page.cuh"
#include "inferc/cuda/step.h"

namespace inferc {

// What a kernel file bakes in. `Shape` below is a struct with the members
//   Element                                  float, bf16, f16, f8e4m3 or i8: what pages hold
//   stored_unit                              what is read of a page, times this, is the number
//   heads, kv_heads, k_dim, v_dim, page_tokens
//   v_in_k                                   values are the first v_dim components of keys
//   scale, softcap (0: none)
//   window (0: none), chunk (0: none)        key j is visible to a query at p iff
//                                            p - window < j <= p and j / chunk == p / chunk
//   sloped                                   score += slope of the head * (j - p)
//   sinks                                    one more score of each query, without a value
//   partial_bytes                            scratch for partitions
template <class Shape>
struct AttentionArgs {
    const float *q;  // [tokens][heads * k_dim]
    float *out;      // [tokens][heads * v_dim]
    const typename Shape::Element *k_pool;  // [page][kv_head][k_dim][page_tokens]
    const typename Shape::Element *v_pool;  // [page][kv_head][page_tokens][v_dim]; not of v_in_k
    const int32_t *positions, *sequence_starts, *block_tables;
    const float *sinks;  // [heads]
    float *partials;     // [tokens][heads][partitions][partial_floats]; nullptr: not split
    int32_t sequences, table_stride, partitions;
    float slopes[Shape::sloped ? Shape::heads : 1];
};

template <class Shape>
struct AttentionSizes {
    static constexpr int group = Shape::heads / Shape::kv_heads;  // query heads of a KV head
    // A multiple of every key tile.
    static constexpr int partition_tokens = Shape::page_tokens == 48 ? 384 : 512;
    // Output, maximum, sum.
    static constexpr int partial_floats = (Shape::v_dim + 3) / 4 * 4 + 4;
};

constexpr int kMergeThreads = 128;
constexpr float kLog2E = 1.44269504088896340736f;

// Scores are kept as u with score * log2(e) = u * unit, unit > 0.
template <class Shape>
INFERC_BOTH constexpr float score_unit() {
    constexpr float scale = Shape::scale < 0.0f ? -Shape::scale : Shape::scale;
    return (Shape::softcap != 0.0f ? Shape::softcap : scale * Shape::stored_unit) * kLog2E;
}

#if INFERC_DEVICE_CODE

INFERC_INLINE float minus_infinity() { return bits_to_float(0xff800000u); }

// 2^x within 2 units in the last place; 0 below 2^-126.
INFERC_INLINE float fast_exp2(float x) {
#if INFERC_HOST_CODE
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// 1 / x within 1 unit in the last place, of what is neither tiny nor huge.
INFERC_INLINE float fast_reciprocal(float x) {
#if INFERC_HOST_CODE
    return 1.0f / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// ---- tiles of rows

struct AttentionTile {
    int32_t sequence;
    int32_t token;      // first token of the sequence in the batch
    int32_t row, rows;  // first row, counted from the sequence's first token, and their number
};

// Tile number `tile` of a KV head, all sequences' tiles counted through; false behind the last.
// Whole warps must call it.
template <class Shape>
INFERC_INLINE bool find_tile(const AttentionArgs<Shape> &args, int32_t tile, int32_t tile_rows,
                             AttentionTile &found) {
    constexpr int group = AttentionSizes<Shape>::group;
    const int lane = int(threadIdx.x & 31);
    for (int32_t base = 0; base < args.sequences; base += 32) {
        const int32_t r = base + lane;
        int32_t start = 0, rows = 0;
        if (r < args.sequences) {
            start = args.sequence_starts[r];
            rows = (args.sequence_starts[r + 1] - start) * group;
        }
        const int32_t count = (rows + tile_rows - 1) / tile_rows;
        int32_t through = count;  // tiles of this lane's sequence and those before it
        for (int d = 1; d < 32; d *= 2) {
            const int32_t other = __shfl_up_sync(kAllLanes, through, d);
            if (lane >= d) through += other;
        }
        const int32_t all = __shfl_sync(kAllLanes, through, 31);
        if (tile < all) {
            const int owner = __popc(__ballot_sync(kAllLanes, through <= tile));
            const int32_t first = __shfl_sync(kAllLanes, through - count, owner);
            found.sequence = base + owner;
            found.token = __shfl_sync(kAllLanes, start, owner);
            rows = __shfl_sync(kAllLanes, rows, owner);
            // The last tile, which sees most keys, is the first.
            found.row = ((rows - 1) / tile_rows - (tile - first)) * tile_rows;
            found.rows = min_of(tile_rows, rows - found.row);
            return true;
        }
        tile -= all;
    }
    return false;
}

template <class Shape>
INFERC_INLINE int32_t token_of(const AttentionTile &tile, int row) {
    return tile.token + (tile.row + row) / AttentionSizes<Shape>::group;
}

template <class Shape>
INFERC_INLINE int32_t head_of(const AttentionTile &tile, int kv_head, int row) {
    constexpr int group = AttentionSizes<Shape>::group;
    return kv_head * group + (tile.row + row) % group;
}

// ---- which keys

// First key that a query at `position` sees.
template <class Shape>
INFERC_INLINE int32_t first_visible(int32_t position) {
    int32_t first = 0;
    if (Shape::window > 0) first = max_of(first, position - Shape::window + 1);
    if (Shape::chunk > 0) first = max_of(first, position / max_of(Shape::chunk, 1) * Shape::chunk);
    return first;
}

// Keys that some row of a tile sees, [begin, end), begin on a page: no page outside is touched.
// With a split, those of partition number `part` among them.
struct KeyRange {
    int32_t begin, end;
};

template <class Shape>
INFERC_INLINE KeyRange key_range(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                                 int32_t part) {
    constexpr int32_t page = Shape::page_tokens;
    constexpr int32_t tokens = AttentionSizes<Shape>::partition_tokens;
    const int32_t first = args.positions[token_of<Shape>(tile, 0)];
    KeyRange keys;
    keys.begin = first_visible<Shape>(first) / page * page;
    keys.end = args.positions[token_of<Shape>(tile, tile.rows - 1)] + 1;
    if (args.partials != nullptr) {
        const int32_t partition = keys.begin / tokens + part;
        keys.begin = max_of(keys.begin, partition * tokens);
        keys.end = min_of(keys.end, (partition + 1) * tokens);
    }
    return keys;
}

// ---- softmax

INFERC_INLINE float finite_or_zero(float maximum) {
    return maximum == minus_infinity() ? 0.0f : maximum;
}

// The score in units of score_unit() of a product q . k.
template <class Shape>
INFERC_INLINE float finish_score(float product, float slope, int32_t distance) {
    float u = Shape::scale < 0.0f ? -product : product;
    if (Shape::softcap != 0.0f)
        u = tanhf(product * (Shape::scale * Shape::stored_unit /
                             (Shape::softcap != 0.0f ? Shape::softcap : 1.0f)));
    if (Shape::sloped) u = fmaf(slope * (kLog2E / score_unit<Shape>()), float(distance), u);
    return u;
}

// Factors that bring two softmax states to one maximum; (maximum, sum) becomes that of both. Sums
// of products are written as fmaf, so that every kernel rounds them alike.
template <class Shape>
INFERC_INLINE void join_states(float &maximum, float &sum, float next_maximum, float next_sum,
                               float &factor, float &next_factor) {
    const float largest = fmaxf(maximum, next_maximum), shift = finite_or_zero(largest);
    factor = fast_exp2((maximum - shift) * score_unit<Shape>());
    next_factor = fast_exp2((next_maximum - shift) * score_unit<Shape>());
    sum = fmaf(next_sum, next_factor, sum * factor);
    maximum = largest;
}

// What a row's output is multiplied by in the end.
template <class Shape>
INFERC_INLINE float final_factor(const AttentionArgs<Shape> &args, int32_t head, float maximum,
                                 float sum) {
    float factor = 1.0f, unused;
    if (Shape::sinks)
        join_states<Shape>(maximum, sum, args.sinks[head] * (kLog2E / score_unit<Shape>()), 1.0f,
                           factor, unused);
    return factor * Shape::stored_unit * fast_reciprocal(sum);
}

// ---- partitions

template <class Shape>
INFERC_INLINE float *partial_of(const AttentionArgs<Shape> &args, int32_t token, int32_t head,
                                int32_t partition) {
    // As many places as partitions that a tile can see: no two share one.
    const int64_t row = (int64_t(token) * Shape::heads + head) * args.partitions;
    return args.partials +
           (row + partition % args.partitions) * AttentionSizes<Shape>::partial_floats;
}

template <class Shape>
INFERC_INLINE void write_partial_state(float *partial, float maximum, float sum) {
    partial[AttentionSizes<Shape>::partial_floats - 2] = maximum;
    partial[AttentionSizes<Shape>::partial_floats - 1] = sum;
}

// Joins the partitions of a split run, in order of position. A block a row of `out`.
template <class Shape>
INFERC_INLINE void attention_merge(const AttentionArgs<Shape> &args) {
    using Sizes = AttentionSizes<Shape>;
    begin_dependent();
    const int32_t token = int32_t(blockIdx.x), head = int32_t(blockIdx.y);
    const int32_t position = args.positions[token];
    const int32_t first = first_visible<Shape>(position) / Sizes::partition_tokens;
    const int32_t last = position / Sizes::partition_tokens;
    float *out = args.out + (int64_t(token) * Shape::heads + head) * Shape::v_dim;
    for (int e = int(threadIdx.x); e < Shape::v_dim; e += kMergeThreads) {
        const float *partial = partial_of(args, token, head, first);
        float maximum = partial[Sizes::partial_floats - 2];
        float sum = partial[Sizes::partial_floats - 1], total = partial[e];
        for (int32_t p = first + 1; p <= last; p++) {
            partial = partial_of(args, token, head, p);
            float factor, next_factor;
            join_states<Shape>(maximum, sum, partial[Sizes::partial_floats - 2],
                               partial[Sizes::partial_floats - 1], factor, next_factor);
            total = fmaf(partial[e], next_factor, total * factor);
        }
        out[e] = total * final_factor(args, head, maximum, sum);
    }
}

#endif  // INFERC_DEVICE_CODE

#if INFERC_HOST_CODE

// Tiles of `tile_rows` rows of one KV head: an upper bound, as sequences are of any length.
template <class Shape>
inline int64_t attention_tiles(int64_t tokens, int64_t sequences, int64_t tile_rows) {
    constexpr int64_t group = AttentionSizes<Shape>::group;
    return min_of(tokens * ceil_div(group, tile_rows),
                  ceil_div(tokens * group, tile_rows) + sequences);
}

// Partitions that the rows of a tile can see.
template <class Shape>
inline int64_t attention_partitions(int64_t longest_context, int64_t tile_rows) {
    using Sizes = AttentionSizes<Shape>;
    int64_t seen = longest_context;
    if (Shape::window > 0) seen = min_of(seen, int64_t(Shape::window));
    if (Shape::chunk > 0) seen = min_of(seen, int64_t(Shape::chunk));
    seen += tile_rows / Sizes::group + Shape::page_tokens;  // other tokens; begins on a page
    return min_of(ceil_div(longest_context, int64_t(Sizes::partition_tokens)),
                  seen / Sizes::partition_tokens + 2);
}

struct AttentionGrid {
    Grid attend, merge;
    int32_t partitions;
};

// Blocks along the context are all partitions if the tiles alone leave multiprocessors idle and the
// partials have room, else one.
template <class Shape>
inline AttentionGrid attention_grid(const Step &step, int64_t tokens, int64_t tile_rows) {
    using Sizes = AttentionSizes<Shape>;
    const int64_t tiles = attention_tiles<Shape>(tokens, step.args->sequences, tile_rows);
    const int64_t partitions =
        attention_partitions<Shape>(step.cuda->longest_context, tile_rows);
    const int64_t bytes = tokens * Shape::heads * partitions * Sizes::partial_floats * 4;
    const bool idle = tiles * Shape::kv_heads < 4 * int64_t(step.cuda->multiprocessors);
    AttentionGrid grid;
    grid.partitions = idle && bytes <= Shape::partial_bytes ? int32_t(partitions) : 1;
    grid.attend = {uint32_t(tiles), uint32_t(Shape::kv_heads), uint32_t(grid.partitions)};
    grid.merge = {uint32_t(tokens), uint32_t(Shape::heads), 1};
    return grid;
}

#endif  // INFERC_HOST_CODE

}  // namespace inferc
