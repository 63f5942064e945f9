// Attention on tensor cores, m16n8k16 with float32 sums, for pages of bf16 or f16. Queries and the
// shares of keys are rounded to the type of the pages, all else is float32. See attention.cuh and
// attention_tiles.cuh.
#pragma once

#include "inferc/cuda/attention_tiles.cuh"

namespace inferc {

#if INFERC_DEVICE_CODE

// One warp's part of a tile. In matrix fragments a lane has two rows, lane / 4 and 8 more, and of
// every 8 columns two, from lane % 4 * 2.
template <class Tiling>
struct TileWarp {
    using Shape = typename Tiling::Shape;
    using Element = typename Tiling::Element;
    using Memory = TileMemory<Tiling>;
    static constexpr int keys = Memory::keys, pitch = Memory::pitch;
    static constexpr int key_blocks = keys / 8;
    static constexpr int group_blocks = (key_blocks + 3) / 4;  // of a key group, whose sum is apart
    static constexpr int groups = 4 / Tiling::key_warps;
    static constexpr int own_blocks = group_blocks * groups;
    static constexpr bool shared_keys = Tiling::key_warps > 1;

    const AttentionArgs<Shape> &args;
    Memory memory;
    int lane, row_warp, key_warp;
    int32_t position[2], first[2];  // of a row: its token's, and the first key it sees
    float slope[2];

    float score[own_blocks][4];
    float out[Tiling::own_v_pairs][2][4];
    float maximum[2], sum[groups][2];    // of the partition; sums of this lane's keys
    float total_maximum[2], total_sum[2];  // of the partitions before it

    INFERC_INLINE TileWarp(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                           Element *shared)
        : args(args), memory{shared}, lane(int(threadIdx.x & 31)),
          row_warp(int(threadIdx.x / 32) / Tiling::key_warps),
          key_warp(int(threadIdx.x / 32) % Tiling::key_warps) {
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            const int row = min_of(row_of(h), int(tile.rows) - 1);
            position[h] = args.positions[token_of<Shape>(tile, row)];
            first[h] = first_visible<Shape>(position[h]);
            slope[h] = 0.0f;
            if (Shape::sloped) slope[h] = args.slopes[head_of<Shape>(tile, int(blockIdx.y), row)];
        }
    }

    INFERC_INLINE int row_of(int half) const { return row_warp * 16 + lane / 4 + half * 8; }

    // Whether this warp's key block or pair of value blocks exists.
    INFERC_INLINE bool has_keys(int n) const {
        return (Tiling::key_warps * own_blocks == key_blocks) ||
               key_warp * own_blocks + n < key_blocks;
    }
    INFERC_INLINE bool has_values(int p) const {
        return (Tiling::key_warps * Tiling::own_v_pairs == Tiling::v_pairs) ||
               key_warp * Tiling::own_v_pairs + p < Tiling::v_pairs;
    }

    INFERC_INLINE void reset() {
        INFERC_UNROLL
        for (int p = 0; p < Tiling::own_v_pairs; p++)
            INFERC_UNROLL
            for (int i = 0; i < 8; i++) out[p][i / 4][i % 4] = 0.0f;
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            maximum[h] = minus_infinity();
            INFERC_UNROLL
            for (int g = 0; g < groups; g++) sum[g][h] = 0.0f;
        }
    }

    // 16 rows x 16 columns at `from` as operand A.
    INFERC_INLINE void load_a(uint32_t (&a)[4], const Element *from, int row_pitch) const {
        ptx::ldmatrix_x4(a, from + (lane & 15) * row_pitch + (lane >> 4) * 8);
    }

    // ---- scores

    INFERC_INLINE void multiply_keys(int stage) {
        const Element *q = memory.q() + row_warp * 16 * Tiling::q_pitch;
        const Element *k = memory.k(stage) + key_warp * own_blocks * 8;
        INFERC_UNROLL
        for (int n = 0; n < own_blocks; n++)
            INFERC_UNROLL
            for (int i = 0; i < 4; i++) score[n][i] = 0.0f;
        INFERC_UNROLL
        for (int d = 0; d < Shape::k_dim; d += 16) {
            uint32_t a[4];
            load_a(a, q + d, Tiling::q_pitch);
            const Element *rows = k + (d + (lane & 15)) * pitch;
            if constexpr (own_blocks % 2 == 0) {
                INFERC_UNROLL
                for (int n = 0; n < own_blocks; n += 2) {
                    if (!has_keys(n)) continue;
                    uint32_t b[4];
                    ptx::ldmatrix_x4_trans(b, rows + n * 8 + (lane >> 4) * 8);
                    mma(score[n], a, b[0], b[1], Element{});
                    mma(score[n + 1], a, b[2], b[3], Element{});
                }
            } else {
                INFERC_UNROLL
                for (int n = 0; n < own_blocks; n++) {
                    if (!has_keys(n)) continue;
                    uint32_t b[2];
                    ptx::ldmatrix_x2_trans(b, rows + n * 8);
                    mma(score[n], a, b[0], b[1], Element{});
                }
            }
        }
    }

    // Products to scores, hidden keys to -inf; and the largest of this warp's keys.
    INFERC_INLINE void mask(int32_t base, float (&largest)[2]) {
        largest[0] = largest[1] = minus_infinity();
        INFERC_UNROLL
        for (int n = 0; n < own_blocks; n++)
            INFERC_UNROLL
            for (int i = 0; i < 4; i++) {
                const int h = i / 2;
                const int32_t key = base + (key_warp * own_blocks + n) * 8 + lane % 4 * 2 + i % 2;
                const bool seen = has_keys(n) && key <= position[h] && key >= first[h];
                const float u = finish_score<Shape>(score[n][i], slope[h], key - position[h]);
                score[n][i] = seen ? u : minus_infinity();
                largest[h] = fmaxf(largest[h], score[n][i]);
            }
        INFERC_UNROLL
        for (int h = 0; h < 2; h++)
            INFERC_UNROLL
            for (int step = 1; step < 4; step *= 2)
                largest[h] = fmaxf(largest[h], __shfl_xor_sync(kAllLanes, largest[h], step));
    }

    // The largest over all key warps of the rows.
    INFERC_INLINE void exchange_largest(float (&largest)[2]) {
        float *told = memory.exchange();
        INFERC_UNROLL
        for (int h = 0; h < 2; h++)
            if (lane % 4 == 0) told[key_warp * Tiling::rows + row_of(h)] = largest[h];
        __syncthreads();
        INFERC_UNROLL
        for (int h = 0; h < 2; h++)
            INFERC_UNROLL
            for (int w = 0; w < Tiling::key_warps; w++)
                largest[h] = fmaxf(largest[h], told[w * Tiling::rows + row_of(h)]);
    }

    // Scores to shares; the softmax state to that with this tile.
    INFERC_INLINE void share(int32_t base) {
        constexpr float unit = score_unit<Shape>();
        float largest[2];
        mask(base, largest);
        if constexpr (shared_keys) exchange_largest(largest);
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            largest[h] = fmaxf(largest[h], maximum[h]);
            const float shift = finite_or_zero(largest[h]), scaled = shift * unit;
            const float factor = fast_exp2((maximum[h] - shift) * unit);
            maximum[h] = largest[h];
            INFERC_UNROLL
            for (int g = 0; g < groups; g++) {
                float added = 0.0f;
                INFERC_UNROLL
                for (int n = g * group_blocks; n < (g + 1) * group_blocks; n++)
                    INFERC_UNROLL
                    for (int i = 2 * h; i < 2 * h + 2; i++) {
                        score[n][i] = fast_exp2(fmaf(score[n][i], unit, -scaled));
                        added += score[n][i];
                    }
                sum[g][h] = fmaf(sum[g][h], factor, added);
            }
            INFERC_UNROLL
            for (int p = 0; p < Tiling::own_v_pairs; p++)
                INFERC_UNROLL
                for (int i = 0; i < 4; i++) out[p][i / 2][2 * h + i % 2] *= factor;
        }
        if constexpr (shared_keys) exchange_shares();
    }

    INFERC_INLINE void exchange_shares() {
        INFERC_UNROLL
        for (int n = 0; n < own_blocks; n++) {
            if (!has_keys(n)) continue;
            INFERC_UNROLL
            for (int h = 0; h < 2; h++) {
                const int column = (key_warp * own_blocks + n) * 8 + lane % 4 * 2;
                *reinterpret_cast<uint32_t *>(memory.shares() + row_of(h) * pitch + column) =
                    pack(score[n][2 * h], score[n][2 * h + 1], Element{});
            }
        }
        __syncthreads();
    }

    // ---- values

    INFERC_INLINE void load_shares(uint32_t (&a)[4], int step) const {
        if constexpr (shared_keys) {
            load_a(a, memory.shares() + row_warp * 16 * pitch + step * 16, pitch);
        } else {
            INFERC_UNROLL
            for (int i = 0; i < 4; i++) {
                const float(&s)[4] = score[2 * step + i / 2];
                a[i] = pack(s[i % 2 * 2], s[i % 2 * 2 + 1], Element{});
            }
        }
    }

    INFERC_INLINE void mix_values(int stage) {
        const int column = key_warp * Tiling::own_v_pairs * 16;
        INFERC_UNROLL
        for (int step = 0; step < keys / 16; step++) {
            uint32_t a[4];
            load_shares(a, step);
            INFERC_UNROLL
            for (int p = 0; p < Tiling::own_v_pairs; p++) {
                if (!has_values(p)) continue;
                const int e = column + p * 16;
                uint32_t b[4];
                if constexpr (Shape::v_in_k) {
                    const int row = e + (lane & 7) + (lane >> 4) * 8;
                    ptx::ldmatrix_x4(b, memory.k(stage) + row * pitch + step * 16 +
                                            (lane >> 3 & 1) * 8);
                } else {
                    const int row = step * 16 + (lane & 15);
                    ptx::ldmatrix_x4_trans(b, memory.v(stage) + row * Tiling::v_pitch + e +
                                                  (lane >> 4) * 8);
                }
                mma(out[p][0], a, b[0], b[1], Element{});
                mma(out[p][1], a, b[2], b[3], Element{});
            }
        }
    }

    // ---- partitions

    // The partition's sum of a row: over a quad's lanes, then over the key groups in order.
    INFERC_INLINE void sum_up(float (&whole)[2]) {
        INFERC_UNROLL
        for (int h = 0; h < 2; h++)
            INFERC_UNROLL
            for (int g = 0; g < groups; g++)
                INFERC_UNROLL
                for (int step = 1; step < 4; step *= 2)
                    sum[g][h] += __shfl_xor_sync(kAllLanes, sum[g][h], step);
        if constexpr (shared_keys) {
            float *told = memory.exchange();
            static_assert(groups == 1, "a group a key warp");
            INFERC_UNROLL
            for (int h = 0; h < 2; h++)
                if (lane % 4 == 0) told[key_warp * Tiling::rows + row_of(h)] = sum[0][h];
            __syncthreads();
            INFERC_UNROLL
            for (int h = 0; h < 2; h++) {
                whole[h] = told[row_of(h)];
                for (int w = 1; w < Tiling::key_warps; w++)
                    whole[h] += told[w * Tiling::rows + row_of(h)];
            }
        } else {
            INFERC_UNROLL
            for (int h = 0; h < 2; h++) {
                whole[h] = sum[0][h];
                INFERC_UNROLL
                for (int g = 1; g < groups; g++) whole[h] += sum[g][h];
            }
        }
    }

    // Joins the partition with what `args.out` holds of those before it, or leaves it as a partial.
    INFERC_INLINE void fold(const AttentionTile &tile, int32_t partition, bool is_first,
                            bool is_last) {
        float whole[2];
        sum_up(whole);
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            const int row = row_of(h);
            if (row >= tile.rows) continue;
            const int32_t token = token_of<Shape>(tile, row);
            const int32_t head = head_of<Shape>(tile, int(blockIdx.y), row);
            float factor = 0.0f, next_factor = 1.0f, end_factor = 1.0f;
            float *to = args.out + (int64_t(token) * Shape::heads + head) * Shape::v_dim;
            if (args.partials != nullptr) {
                to = partial_of(args, token, head, partition);
                if (lane % 4 == 0 && key_warp == 0)
                    write_partial_state<Shape>(to, maximum[h], whole[h]);
            } else {
                if (is_first)
                    total_maximum[h] = maximum[h], total_sum[h] = whole[h];
                else
                    join_states<Shape>(total_maximum[h], total_sum[h], maximum[h], whole[h], factor,
                                       next_factor);
                if (is_last)
                    end_factor = final_factor(args, head, total_maximum[h], total_sum[h]);
            }
            write_row(to + lane % 4 * 2, h, is_first || args.partials != nullptr, factor,
                      next_factor, end_factor);
        }
    }

    INFERC_INLINE void write_row(float *to, int h, bool is_first, float factor, float next_factor,
                                 float end_factor) {
        INFERC_UNROLL
        for (int p = 0; p < Tiling::own_v_pairs; p++) {
            if (!has_values(p)) continue;
            INFERC_UNROLL
            for (int b = 0; b < 2; b++) {
                auto *place = reinterpret_cast<float2 *>(
                    to + (key_warp * Tiling::own_v_pairs + p) * 16 + b * 8);
                float2 x = {out[p][b][2 * h], out[p][b][2 * h + 1]};
                if (!is_first) {
                    const float2 before = *place;
                    x.x = fmaf(x.x, next_factor, before.x * factor);
                    x.y = fmaf(x.y, next_factor, before.y * factor);
                }
                *place = {x.x * end_factor, x.y * end_factor};
            }
        }
    }
};

// Grid: tiles, KV heads, partitions.
template <class Tiling>
INFERC_INLINE void attend_mma(const AttentionArgs<typename Tiling::Shape> &args) {
    using Shape = typename Tiling::Shape;
    using Warp = TileWarp<Tiling>;
    constexpr int32_t keys = Warp::keys, stages = Tiling::stages;
    constexpr int32_t partition_tokens = AttentionSizes<Shape>::partition_tokens;
    static_assert(partition_tokens % keys == 0, "partitions are whole tiles");
    INFERC_DYNAMIC_SHARED(typename Tiling::Element, shared);
    AttentionTile tile;
    if (!find_tile(args, int32_t(blockIdx.x), Tiling::rows, tile)) return;
    const KeyRange range = key_range(args, tile, int32_t(blockIdx.z));
    if (range.begin >= range.end) return;
    Warp warp(args, tile, shared);
    int32_t base = range.begin / keys * keys;
    for (int s = 0; s < stages - 1; s++) {
        if (base + s * keys < range.end)
            load_tile<Tiling>(args, tile, range, base + s * keys, warp.memory, s);
        ptx::cp_async_commit();
    }
    load_queries<Tiling>(args, tile, warp.memory.q());
    warp.reset();
    bool is_first = true;
    for (int stage = 0; base < range.end; base += keys, stage = (stage + 1) % stages) {
        ptx::cp_async_wait<stages - 2>();
        __syncthreads();
        const int32_t ahead = base + (stages - 1) * keys;
        if (ahead < range.end)
            load_tile<Tiling>(args, tile, range, ahead, warp.memory, (stage + stages - 1) % stages);
        ptx::cp_async_commit();
        if (Shape::v_in_k && base + keys > range.end) {
            clear_behind<Tiling>(base, range.end, warp.memory.k(stage));
            __syncthreads();
        }
        warp.multiply_keys(stage);
        warp.share(base);
        warp.mix_values(stage);
        const bool is_last = base + keys >= range.end;
        if (is_last || (base + keys) % partition_tokens == 0) {
            warp.fold(tile, base / partition_tokens, is_first, is_last);
            warp.reset();
            is_first = false;
        }
    }
}

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
