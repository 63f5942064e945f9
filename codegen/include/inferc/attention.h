// Causal attention over paged keys and values, for any ragged batch: attention_decode(),
// attention_prefill(), and attention_merge() when attention_is_split().
//
// Work items are (sequence, KV head, tile of query rows); the pages of an item are walked once for
// all its rows. Where workers cannot share few items evenly, items are single partitions of a
// context and merged behind a barrier. A row's result depends on its context only.
#pragma once

#include "attention_core.h"

namespace inferc {
inline namespace INFERC_ISA {

struct AttentionArgs {
    const float *q;  // [tokens][heads * k_dim]
    int64_t q_stride;
    float *out;  // [tokens][heads * v_dim]
    int64_t out_stride;
    const void *k_pool;  // [page][kv_head][k_dim][page_tokens], see kv_page.h
    const void *v_pool;  // [page][kv_head][page_tokens][v_dim]; nullptr: the first v_dim of a key
    const int32_t *positions, *sequence_starts, *context_lengths, *block_tables;
    int32_t tokens, sequences, table_stride;
    int32_t heads, kv_heads, k_dim, v_dim;
    int32_t page_tokens;  // 16, 32 or 64
    float scale;
    float softcap;   // 0: none
    int32_t window;  // key j is visible to a query at p iff p - window < j <= p; 0: all j <= p
    int32_t chunk;   // and iff j / chunk == p / chunk; 0: no chunks
    const float *slopes;  // [heads]: score += slope * (j - p); nullptr: none
    const float *sinks;   // [heads]: one more score of each query, without a value; nullptr: none
    void *scratch;
    int64_t scratch_bytes;
};

// ---- scratch
// ------------------------------------------------------------------------------------------

INFERC_INLINE int64_t attention_worker_bytes(int64_t k_dim, int64_t v_dim, bool v_in_k) {
    int64_t floats = kTileQueryRows * (k_dim + kScoreStride + 2 * round_up(v_dim, 16));
    if (v_in_k) floats += kMaxPageTokens * values_stride(v_dim);
    return round_up(floats * 4, 64);
}

// A partition's result of one row: output, maximum, sum.
INFERC_INLINE int64_t attention_partial_floats(int64_t v_dim) { return round_up(v_dim, 16) + 16; }

// For all workers together.
INFERC_INLINE size_t attention_scratch_bytes(int heads, int kv_heads, int k_dim, int v_dim,
                                             int64_t context_tokens, int workers,
                                             bool v_in_k = false) {
    int64_t partials = 0;
    if (workers > 1 && context_tokens > kPartitionTokens)
        partials =
            4 * workers * int64_t(heads / kv_heads) * ceil_div(context_tokens, kPartitionTokens);
    return size_t(workers * attention_worker_bytes(k_dim, v_dim, v_in_k) +
                  partials * attention_partial_floats(v_dim) * 4);
}

INFERC_INLINE int64_t attention_worker_bytes(const AttentionArgs &a) {
    return attention_worker_bytes(a.k_dim, a.v_dim, a.v_pool == nullptr);
}

// ---- items
// --------------------------------------------------------------------------------------------

struct AttentionPlan {
    int group;           // query heads of a KV head
    int head_rows;       // of them in one tile
    int head_chunks;     // tiles a group needs
    int tile_tokens;     // tokens in one tile
    int64_t partitions;  // of the longest context; 0: not split
};

struct AttentionItem {
    int sequence, kv_head, head, heads;  // query heads [head, head + heads)
    int64_t token, tokens;               // rows of the batch
    int64_t begin, end;                  // key positions, begin on a page
};

// First key position on a page that a query at `position` sees.
INFERC_INLINE int64_t first_page_token(const AttentionArgs &a, int64_t position) {
    return first_visible(position, a.window, a.chunk) / a.page_tokens * a.page_tokens;
}

INFERC_INLINE int64_t partition_end(const AttentionArgs &a, int64_t position) {
    const int64_t tokens = partition_tokens(a.page_tokens);
    return (position / tokens + 1) * tokens;
}

// Calls visit(item) for every item, in an order that keeps items of one KV head together.
template <class Visit>
INFERC_INLINE void for_each_item(const AttentionArgs &a, const AttentionPlan &plan,
                                 const Visit &visit) {
    for (int r = 0; r < a.sequences; r++)
        for (int chunk = 0; chunk < a.kv_heads * plan.head_chunks; chunk++) {
            AttentionItem item;
            item.sequence = r;
            item.kv_head = chunk / plan.head_chunks;
            int first = chunk % plan.head_chunks * plan.head_rows;
            item.head = item.kv_head * plan.group + first;
            item.heads = int(min_of(plan.head_rows, plan.group - first));
            int64_t stop = a.sequence_starts[r + 1];
            for (item.token = a.sequence_starts[r]; item.token < stop;
                 item.token += plan.tile_tokens) {
                item.tokens = min_of(plan.tile_tokens, stop - item.token);
                item.begin = first_page_token(a, a.positions[item.token]);
                item.end = int64_t(a.positions[item.token + item.tokens - 1]) + 1;
                if (plan.partitions == 0) {
                    visit(item);
                    continue;
                }
                int64_t end = item.end;
                for (int64_t begin = item.begin; begin < end; begin = item.end) {
                    item.begin = begin;
                    item.end = min_of(end, partition_end(a, begin));
                    visit(item);
                }
            }
        }
}

INFERC_INLINE int64_t item_cost(const AttentionItem &item) {
    return (item.end - item.begin) * (item.tokens * item.heads + 2) + 64;
}

// Whether no worker would get a tenth more than its share of the cost.
INFERC_INLINE bool shared_evenly(const AttentionArgs &a, const AttentionPlan &plan, int workers) {
    int64_t total = 0, most = 0, load = 0, before = 0, owner = 0;
    for_each_item(a, plan, [&](const AttentionItem &item) { total += item_cost(item); });
    for_each_item(a, plan, [&](const AttentionItem &item) {
        const int64_t cost = item_cost(item), taker = (before + cost / 2) * workers / total;
        load = taker == owner ? load + cost : cost;
        most = max_of(most, load);
        owner = taker, before += cost;
    });
    return most * workers * 10 <= total * 11;
}

INFERC_INLINE AttentionPlan attention_plan(const AttentionArgs &a, int workers) {
    AttentionPlan plan;
    plan.group = a.heads / a.kv_heads;
    plan.head_rows = int(min_of(plan.group, kTileQueryRows));
    plan.head_chunks = int(ceil_div(plan.group, plan.head_rows));
    plan.tile_tokens = kTileQueryRows / plan.head_rows;
    plan.partitions = 0;
    if (workers < 2 || a.tokens != a.sequences || int64_t(a.sequences) * a.kv_heads > 4 * workers)
        return plan;
    int64_t longest = 0;
    for (int r = 0; r < a.sequences; r++) longest = max_of(longest, a.context_lengths[r]);
    int64_t partitions = ceil_div(longest, partition_tokens(a.page_tokens));
    int64_t need = workers * attention_worker_bytes(a) +
                   a.sequences * a.heads * partitions * attention_partial_floats(a.v_dim) * 4;
    if (partitions > 1 && need <= a.scratch_bytes && !shared_evenly(a, plan, workers))
        plan.partitions = partitions;
    return plan;
}

// True if attention_merge() must follow behind a barrier; the same on every worker.
INFERC_INLINE bool attention_is_split(const AttentionArgs &a, int workers) {
    return attention_plan(a, workers).partitions > 0;
}

INFERC_INLINE float *attention_partial(const AttentionArgs &a, const AttentionPlan &plan,
                                       int workers, int64_t token, int64_t head,
                                       int64_t partition) {
    float *base =
        (float *)((uint8_t *)a.scratch + workers * attention_worker_bytes(a));
    return base + ((token * a.heads + head) * plan.partitions + partition) *
                      attention_partial_floats(a.v_dim);
}

// ---- one item
// -----------------------------------------------------------------------------------------

INFERC_INLINE void load_queries(const AttentionArgs &a, const AttentionItem &item, QueryTile &tile,
                                float *q) {
    int rows = 0;
    for (int64_t t = item.token; t < item.token + item.tokens; t++)
        for (int h = 0; h < item.heads; h++, rows++) {
            tile.position[rows] = a.positions[t];
            tile.slope[rows] = a.slopes ? a.slopes[item.head + h] * kLog2E : 0.0f;
        }
    const float unit = a.softcap != 0.0f ? a.scale / a.softcap : a.scale * kLog2E;
    tile.rows = rows;
    tile.q = q;
    for (int row = 0; row < rows;) {
        int group = row_group(rows - row);
        for (int r = 0; r < group; r++) {
            int64_t t = item.token + (row + r) / item.heads, h = item.head + (row + r) % item.heads;
            const float *from = a.q + t * a.q_stride + h * a.k_dim;
            for (int64_t d = 0; d < a.k_dim; d++) q[d * group + r] = from[d] * unit;
        }
        q += group * a.k_dim;
        row += group;
    }
}

INFERC_INLINE QueryTile query_tile(const AttentionArgs &a, const AttentionItem &item, int worker) {
    QueryTile tile;
    float *mine =
        (float *)((uint8_t *)a.scratch + worker * attention_worker_bytes(a));
    tile.k_dim = a.k_dim, tile.v_dim = a.v_dim, tile.out_stride = round_up(a.v_dim, 16);
    tile.page_tokens = a.page_tokens;
    tile.softcap = a.softcap * kLog2E;
    tile.window = a.window, tile.chunk = a.chunk, tile.sloped = a.slopes != nullptr;
    load_queries(a, item, tile, mine);
    tile.scores = mine + kTileQueryRows * tile.k_dim;
    tile.part.out = tile.scores + kTileQueryRows * kScoreStride;
    tile.total.out = tile.part.out + kTileQueryRows * tile.out_stride;
    tile.values = a.v_pool ? nullptr : tile.total.out + kTileQueryRows * tile.out_stride;
    return tile;
}

template <class KV>
INFERC_INLINE Page<KV> page_at(const AttentionArgs &a, const AttentionItem &item, int64_t base) {
    const int32_t *table = a.block_tables + int64_t(item.sequence) * a.table_stride;
    int64_t head = int64_t(table[base / a.page_tokens]) * a.kv_heads + item.kv_head;
    const KV *v = (const KV *)a.v_pool;
    return {(const KV *)a.k_pool + head * head_elements<KV>(a.k_dim, a.page_tokens),
            v ? v + head * head_elements<KV>(a.v_dim, a.page_tokens) : nullptr};
}

// Walks the pages of one partition, key positions [begin, end); behind the item's last page comes
// the first of `following`.
template <class KV>
INFERC_INLINE void attend_partition(const AttentionArgs &a, const AttentionItem &item,
                                    const AttentionItem &following, QueryTile &tile, int64_t begin,
                                    int64_t end) {
    reset(tile.part, tile.rows, tile.out_stride);
    Page<KV> page = page_at<KV>(a, item, begin);
    for (int64_t base = begin; base < end; base += a.page_tokens) {
        const int64_t after = base + a.page_tokens;
        const Page<KV> next = after < item.end ? page_at<KV>(a, item, after)
                                               : page_at<KV>(a, following, following.begin);
        attend_page(tile, page, next, base);
        page = next;
    }
}

INFERC_INLINE const float *sink_of(const AttentionArgs &a, int64_t head) {
    return a.sinks ? a.sinks + head : nullptr;
}

INFERC_INLINE void write_rows(const AttentionArgs &a, const AttentionItem &item,
                              const QueryTile &tile) {
    for (int row = 0; row < tile.rows; row++) {
        int64_t t = item.token + row / item.heads, h = item.head + row % item.heads;
        finish_row(tile.total.maximum[row], tile.total.sum[row],
                   tile.total.out + row * tile.out_stride, sink_of(a, h),
                   a.out + t * a.out_stride + h * a.v_dim, a.v_dim);
    }
}

// The state of a partition, for attention_merge().
INFERC_INLINE void leave_partial(const AttentionArgs &a, const AttentionPlan &plan,
                                 const AttentionItem &item, const QueryTile &tile, int workers) {
    for (int row = 0; row < tile.rows; row++) {
        int64_t t = item.token + row / item.heads, h = item.head + row % item.heads;
        float *to = attention_partial(a, plan, workers, t, h, item.begin / partition_tokens(a.page_tokens));
        memcpy(to, tile.part.out + row * tile.out_stride, size_t(tile.out_stride) * 4);
        to[tile.out_stride] = tile.part.maximum[row];
        to[tile.out_stride + 1] = tile.part.sum[row];
    }
}

template <class KV>
INFERC_NOINLINE void attend_item(const AttentionArgs &a, const AttentionPlan &plan,
                                 const AttentionItem &item, const AttentionItem &following,
                                 int worker, int workers) {
    QueryTile tile = query_tile(a, item, worker);
    if (plan.partitions > 0) {
        attend_partition<KV>(a, item, following, tile, item.begin, item.end);
        leave_partial(a, plan, item, tile, workers);
        return;
    }
    reset(tile.total, tile.rows, tile.out_stride);
    for (int64_t begin = item.begin; begin < item.end;) {
        int64_t end = min_of(item.end, partition_end(a, begin));
        attend_partition<KV>(a, item, following, tile, begin, end);
        combine_rows(tile.total, tile.part, tile.rows, tile.out_stride);
        begin = end;
    }
    write_rows(a, item, tile);
}

// ---- all items
// ----------------------------------------------------------------------------------------

// Each worker takes the items whose middle falls into its share of the total cost. An item begins
// when the next is known, to fetch that one's first page in time.
template <class KV>
INFERC_INLINE void run_attention(const AttentionArgs &a, int worker, int workers) {
    AttentionPlan plan = attention_plan(a, workers);
    int64_t total = 0, before = 0;
    AttentionItem held;
    bool holds = false;
    for_each_item(a, plan, [&](const AttentionItem &item) { total += item_cost(item); });
    for_each_item(a, plan, [&](const AttentionItem &item) {
        int64_t cost = item_cost(item), middle = before + cost / 2;
        before += cost;
        if (middle * workers / total != worker) return;
        if (holds) attend_item<KV>(a, plan, held, item, worker, workers);
        held = item, holds = true;
    });
    if (holds) attend_item<KV>(a, plan, held, held, worker, workers);
}

// One new token a sequence or any ragged batch: same code, same bits.
// Flops: 2 (k_dim + v_dim) a query head and visible key. Bytes: K and V of the visible pages once a
// tile of query rows (once a sequence and KV head when decoding), q and out once.
template <class KV>
INFERC_NOINLINE void attention_decode(const AttentionArgs &a, int worker, int workers) {
    run_attention<KV>(a, worker, workers);
}

template <class KV>
INFERC_NOINLINE void attention_prefill(const AttentionArgs &a, int worker, int workers) {
    run_attention<KV>(a, worker, workers);
}

// Joins the partitions of a split run, in order of position.
INFERC_NOINLINE void attention_merge(const AttentionArgs &a, int worker, int workers) {
    AttentionPlan plan = attention_plan(a, workers);
    if (plan.partitions == 0) return;
    const int64_t width = round_up(a.v_dim, 16);
    SoftmaxState total, part;
    total.out = (float *)((uint8_t *)a.scratch + worker * attention_worker_bytes(a));
    Range mine = share(int64_t(a.tokens) * a.heads, worker, workers);
    for (int64_t row = mine.begin; row < mine.end; row++) {
        int64_t token = row / a.heads, head = row % a.heads, position = a.positions[token];
        reset(total, 1, width);
        const int64_t tokens = partition_tokens(a.page_tokens);
        for (int64_t p = first_page_token(a, position) / tokens; p <= position / tokens; p++) {
            part.out = attention_partial(a, plan, workers, token, head, p);
            part.maximum[0] = part.out[width], part.sum[0] = part.out[width + 1];
            combine_rows(total, part, 1, width);
        }
        finish_row(total.maximum[0], total.sum[0], total.out, sink_of(a, head),
                   a.out + token * a.out_stride + head * a.v_dim, a.v_dim);
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
