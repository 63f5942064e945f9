// Attention in float32 without tensor cores: for float32 pages, and for head sizes that matrix
// instructions do not fit. See attention.cuh for what it computes.
#pragma once

#include "inferc/cuda/attention.cuh"

namespace inferc {

// Four warps; a key tile has a key a lane. Queries, shares and outputs are in shared memory.
struct PlainTile {
    static constexpr int rows = 16;
    static constexpr int keys = 32;
    static constexpr int threads = 128;
    static constexpr int warps = threads / 32;
    static constexpr int warp_rows = rows / warps;
};

template <class Shape_>
struct AttentionPlain : PlainTile {
    using Shape = Shape_;
    static constexpr uint32_t shared_bytes(int) {
        return 4u * (rows * (Shape::k_dim + Shape::v_dim + keys) + 2 * rows);
    }
};

#if INFERC_DEVICE_CODE

template <class Shape>
struct PlainMemory {
    float *q;       // [rows][k_dim]
    float *out;     // [rows][v_dim] of the partition
    float *shares;  // [rows][keys]
    float *factor, *next_factor;  // [rows]

    INFERC_INLINE explicit PlainMemory(float *base) {
        q = base;
        out = q + PlainTile::rows * Shape::k_dim;
        shares = out + PlainTile::rows * Shape::v_dim;
        factor = shares + PlainTile::rows * PlainTile::keys;
        next_factor = factor + PlainTile::rows;
    }
};

// Softmax state of the rows of a warp, the same in all lanes.
struct PlainStates {
    float maximum[PlainTile::warp_rows], sum[PlainTile::warp_rows];

    INFERC_INLINE void reset() {
        INFERC_UNROLL
        for (int i = 0; i < PlainTile::warp_rows; i++)
            maximum[i] = minus_infinity(), sum[i] = 0.0f;
    }
};

template <class Shape>
INFERC_INLINE int64_t plain_page(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                                 int32_t key) {
    const int32_t page =
        args.block_tables[int64_t(tile.sequence) * args.table_stride + key / Shape::page_tokens];
    return int64_t(page) * Shape::kv_heads + blockIdx.y;
}

// acc[i] = q[i] . k of this lane's key; 0 for keys outside of the range, whose pages are not read.
template <class Shape>
INFERC_INLINE void plain_products(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                                  const KeyRange &keys, int32_t key, const float *q,
                                  float (&acc)[PlainTile::warp_rows]) {
    INFERC_UNROLL
    for (int i = 0; i < PlainTile::warp_rows; i++) acc[i] = 0.0f;
    if (key < keys.begin || key >= keys.end) return;
    using Page = typename Shape::Element;
    const int64_t page = plain_page(args, tile, key);
    const Page *head = args.k_pool + page * head_elements<Page>(Shape::k_dim, Shape::page_tokens);
    const Page *k = head + key % Shape::page_tokens;
    for (int d = 0; d < Shape::k_dim; d++) {
        const float value = to_float(k[d * Shape::page_tokens]);
        INFERC_UNROLL
        for (int i = 0; i < PlainTile::warp_rows; i++)
            acc[i] = fmaf(q[i * Shape::k_dim + d], value, acc[i]);
    }
    if constexpr (kScaled<Page>) {
        const float *scales = token_scales(head, Shape::k_dim, Shape::page_tokens);
        INFERC_UNROLL
        for (int i = 0; i < PlainTile::warp_rows; i++) acc[i] *= scales[key % Shape::page_tokens];
    }
}

// Scores, maxima and shares of one key tile.
template <class Shape>
INFERC_INLINE void plain_softmax(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                                 const KeyRange &keys, int32_t base, PlainStates &states,
                                 const PlainMemory<Shape> &memory) {
    constexpr float unit = score_unit<Shape>();
    const int lane = int(threadIdx.x & 31);
    const int first = int(threadIdx.x / 32) * PlainTile::warp_rows;
    const int32_t key = base + lane;
    float product[PlainTile::warp_rows];
    plain_products(args, tile, keys, key, memory.q + first * Shape::k_dim, product);
    INFERC_UNROLL
    for (int i = 0; i < PlainTile::warp_rows; i++) {
        const int row = min_of(first + i, int(tile.rows) - 1);
        const int32_t position = args.positions[token_of<Shape>(tile, row)];
        const float slope =
            Shape::sloped ? args.slopes[head_of<Shape>(tile, int(blockIdx.y), row)] : 0.0f;
        const float score = finish_score<Shape>(product[i], slope, key - position);
        const bool seen = key <= position && key >= first_visible<Shape>(position);
        const float u = seen ? score : minus_infinity();
        const float largest = fmaxf(states.maximum[i], warp_max(u));
        const float shift = finite_or_zero(largest);
        const float factor = fast_exp2((states.maximum[i] - shift) * unit);
        const float share = fast_exp2(fmaf(u, unit, -(shift * unit)));
        states.sum[i] = fmaf(states.sum[i], factor, warp_sum(share));
        states.maximum[i] = largest;
        memory.shares[(first + i) * PlainTile::keys + lane] = share;
        if (lane == 0) memory.factor[first + i] = factor;
    }
}

// out = out * factor + shares . v; a thread has some columns of all rows.
template <class Shape>
INFERC_INLINE void plain_mix(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                             const KeyRange &keys, int32_t base, const PlainMemory<Shape> &memory) {
    using Page = typename Shape::Element;
    constexpr int rows = PlainTile::rows, dim = Shape::v_in_k ? Shape::k_dim : Shape::v_dim;
    const int32_t begin = max_of(keys.begin, base), end = min_of(keys.end, base + PlainTile::keys);
    for (int e = int(threadIdx.x); e < Shape::v_dim; e += PlainTile::threads) {
        float acc[rows];
        INFERC_UNROLL
        for (int r = 0; r < rows; r++) acc[r] = memory.out[r * Shape::v_dim + e] * memory.factor[r];
        for (int32_t key = begin; key < end; key++) {
            const int at = key % Shape::page_tokens;
            const Page *head = (Shape::v_in_k ? args.k_pool : args.v_pool) +
                               plain_page(args, tile, key) *
                                   head_elements<Page>(dim, Shape::page_tokens);
            float value = to_float(head[Shape::v_in_k ? e * Shape::page_tokens + at
                                                      : at * Shape::v_dim + e]);
            if constexpr (kScaled<Page>) value *= token_scales(head, dim, Shape::page_tokens)[at];
            INFERC_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r] = fmaf(memory.shares[r * PlainTile::keys + key - base], value, acc[r]);
        }
        INFERC_UNROLL
        for (int r = 0; r < rows; r++) memory.out[r * Shape::v_dim + e] = acc[r];
    }
}

// Joins the partition with what `args.out` holds of those before it, or leaves it as a partial.
template <class Shape>
INFERC_INLINE void plain_fold(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                              int32_t partition, bool first, bool last, const PlainStates &part,
                              PlainStates &total, const PlainMemory<Shape> &memory) {
    const int warp_first = int(threadIdx.x / 32) * PlainTile::warp_rows;
    INFERC_UNROLL
    for (int i = 0; i < PlainTile::warp_rows; i++) {
        const int row = warp_first + i;
        if (row >= tile.rows) continue;
        const int32_t token = token_of<Shape>(tile, row);
        const int32_t head = head_of<Shape>(tile, int(blockIdx.y), row);
        if (args.partials != nullptr) {
            float *to = partial_of(args, token, head, partition);
            for (int e = int(threadIdx.x & 31); e < Shape::v_dim; e += 32)
                to[e] = memory.out[row * Shape::v_dim + e];
            if ((threadIdx.x & 31) == 0)
                write_partial_state<Shape>(to, part.maximum[i], part.sum[i]);
            continue;
        }
        float factor = 0.0f, next_factor = 1.0f, end_factor = 1.0f;
        if (first)
            total.maximum[i] = part.maximum[i], total.sum[i] = part.sum[i];
        else
            join_states<Shape>(total.maximum[i], total.sum[i], part.maximum[i], part.sum[i], factor,
                               next_factor);
        if (last) end_factor = final_factor(args, head, total.maximum[i], total.sum[i]);
        float *to = args.out + (int64_t(token) * Shape::heads + head) * Shape::v_dim;
        for (int e = int(threadIdx.x & 31); e < Shape::v_dim; e += 32) {
            const float next = memory.out[row * Shape::v_dim + e];
            to[e] = (first ? next : fmaf(next, next_factor, to[e] * factor)) * end_factor;
        }
    }
}

// Grid: tiles, KV heads, partitions.
template <class Tiling>
INFERC_INLINE void attend_plain(const AttentionArgs<typename Tiling::Shape> &args) {
    using Shape = typename Tiling::Shape;
    using Sizes = AttentionSizes<Shape>;
    INFERC_DYNAMIC_SHARED(float, shared);
    const PlainMemory<Shape> memory(shared);
    begin_dependent();
    AttentionTile tile;
    if (!find_tile(args, int32_t(blockIdx.x), PlainTile::rows, tile)) return;
    const KeyRange keys = key_range(args, tile, int32_t(blockIdx.z));
    if (keys.begin >= keys.end) return;
    for (int i = int(threadIdx.x); i < PlainTile::rows * Shape::k_dim; i += PlainTile::threads) {
        const int row = i / Shape::k_dim, d = i % Shape::k_dim;
        const int64_t token = token_of<Shape>(tile, row);
        const int64_t head = head_of<Shape>(tile, int(blockIdx.y), row);
        const float *q = args.q + (token * Shape::heads + head) * Shape::k_dim;
        memory.q[i] = row < tile.rows ? q[d] : 0.0f;
    }
    PlainStates part, total;
    bool first = true;
    int32_t base = keys.begin / PlainTile::keys * PlainTile::keys;
    while (base < keys.end) {
        const int32_t partition = base / Sizes::partition_tokens;
        const int32_t end = min_of(keys.end, (partition + 1) * Sizes::partition_tokens);
        part.reset();
        for (int i = int(threadIdx.x); i < PlainTile::rows * Shape::v_dim; i += PlainTile::threads)
            memory.out[i] = 0.0f;
        for (; base < end; base += PlainTile::keys) {
            __syncthreads();
            plain_softmax(args, tile, keys, base, part, memory);
            __syncthreads();
            plain_mix(args, tile, keys, base, memory);
        }
        __syncthreads();
        plain_fold(args, tile, partition, first, end == keys.end, part, total, memory);
        first = false;
        __syncthreads();
    }
}

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
