// What one warp of tensor-core attention does with a key tile that is in shared memory.
#pragma once

#include "inferc/cuda/attention_tiles.cuh"

namespace inferc {

#if INFERC_DEVICE_CODE

// One warp's part of a tile. In matrix fragments a lane has two rows of 16, lane / 4 and 8 more
// (`h` below), and of every 8 columns two, from lane % 4 * 2.
template <class Tiling>
struct TileWarp {
    using Shape = typename Tiling::Shape;
    using Element = typename Tiling::Element;
    using Memory = TileMemory<Tiling>;
    static constexpr int keys = Memory::keys, pitch = Memory::pitch;
    static constexpr int row_tiles = Tiling::row_tiles, v_pairs = Tiling::own_v_pairs;
    static constexpr int key_blocks = keys / 8;
    static constexpr int own_blocks = ceil_div(key_blocks, Tiling::key_warps);
    static constexpr bool shared_keys = Tiling::key_warps > 1;

    const AttentionArgs<Shape> &args;
    Memory memory;
    int lane, row_warp, key_warp;
    int32_t position[row_tiles][2], first[row_tiles][2];  // of a row's token; what it sees first
    float slope[row_tiles][2];

    float score[row_tiles][own_blocks][4];
    float out[row_tiles][v_pairs][2][4];  // of the partition
    float sum[row_tiles][4];              // of its shares: columns are equal
    float maximum[row_tiles][2];
    float totals[shared_keys ? row_tiles * 4 : 1];  // see total()

    INFERC_INLINE TileWarp(const AttentionArgs<Shape> &args, const AttentionTile &tile,
                           Element *shared)
        : args(args), memory{shared}, lane(int(threadIdx.x & 31)),
          row_warp(int(threadIdx.x / 32) / Tiling::key_warps),
          key_warp(int(threadIdx.x / 32) % Tiling::key_warps) {
        INFERC_UNROLL
        for (int m = 0; m < row_tiles; m++)
            INFERC_UNROLL
            for (int h = 0; h < 2; h++) {
                const int row = min_of(row_of(m, h), int(tile.rows) - 1);
                position[m][h] = args.positions[token_of<Shape>(tile, row)];
                first[m][h] = first_visible<Shape>(position[m][h]);
                slope[m][h] = 0.0f;
                if (Shape::sloped)
                    slope[m][h] = args.slopes[head_of<Shape>(tile, int(blockIdx.y), row)];
            }
    }

    INFERC_INLINE int first_row(int m) const { return (row_warp * row_tiles + m) * 16; }
    INFERC_INLINE int row_of(int m, int h) const { return first_row(m) + lane / 4 + h * 8; }

    // Whether this warp's key block or pair of value blocks exists.
    INFERC_INLINE bool has_keys(int n) const {
        return Tiling::key_warps * own_blocks == key_blocks ||
               key_warp * own_blocks + n < key_blocks;
    }
    INFERC_INLINE bool has_values(int p) const {
        return Tiling::key_warps * v_pairs == Tiling::v_pairs ||
               key_warp * v_pairs + p < Tiling::v_pairs;
    }

    // Behind all keys that this warp's rows see.
    INFERC_INLINE int32_t seen_end(const AttentionTile &tile) const {
        const int last = min_of(first_row(row_tiles), int(tile.rows)) - 1;
        return last < first_row(0) ? 0 : args.positions[token_of<Shape>(tile, last)] + 1;
    }

    INFERC_INLINE void reset() {
        INFERC_UNROLL
        for (int m = 0; m < row_tiles; m++) {
            INFERC_UNROLL
            for (int p = 0; p < v_pairs; p++)
                INFERC_UNROLL
                for (int i = 0; i < 8; i++) out[m][p][i / 4][i % 4] = 0.0f;
            INFERC_UNROLL
            for (int i = 0; i < 4; i++) sum[m][i] = 0.0f;
            maximum[m][0] = maximum[m][1] = minus_infinity();
        }
    }

    // 16 rows x 16 columns at `from` as operand A.
    INFERC_INLINE void load_a(uint32_t (&a)[4], const Element *from, int row_pitch) const {
        ptx::ldmatrix_x4(a, from + (lane & 15) * row_pitch + (lane >> 4) * 8);
    }

    // ---- scores

    INFERC_INLINE void multiply_keys(int stage) {
        const Element *q = memory.q() + first_row(0) * Tiling::q_pitch;
        const Element *k = memory.k(stage) + key_warp * own_blocks * 8 + (lane & 15) * pitch;
        INFERC_UNROLL
        for (int i = 0; i < row_tiles * own_blocks * 4; i++)
            score[i / 4 / own_blocks][i / 4 % own_blocks][i % 4] = 0.0f;
        if constexpr (shared_keys) {
            INFERC_UNROLL
            for (int d = 0; d < Shape::k_dim; d += 16) multiply_step(q + d, k + d * pitch);
        } else {  // more loads ahead than these would cost registers that `out` needs
            INFERC_UNROLL_BY_2
            for (int d = 0; d < Shape::k_dim; d += 16) multiply_step(q + d, k + d * pitch);
        }
        if constexpr (Tiling::is_scaled) scale_products();
    }

    // Scales of this lane's two columns of a block of eight. Volatile, as loads ahead of their use
    // would cost registers that `out` needs.
    INFERC_INLINE float2 scales_at(const float *scales, int block) const {
        const volatile float *at = scales + block * 8 + lane % 4 * 2;
        return {at[0], at[1]};
    }

    INFERC_INLINE void scale_products() {
        INFERC_UNROLL
        for (int n = 0; n < own_blocks; n++) {
            if (!has_keys(n)) continue;
            const float2 scale = scales_at(memory.k_scales(), key_warp * own_blocks + n);
            INFERC_UNROLL
            for (int i = 0; i < row_tiles * 4; i++)
                score[i / 4][n][i % 4] *= i % 2 ? scale.y : scale.x;
        }
    }

    // 16 dims: q [rows][q_pitch], k [16][pitch] at this lane's row.
    INFERC_INLINE void multiply_step(const Element *q, const Element *k) {
        uint32_t a[row_tiles][4];
        INFERC_UNROLL
        for (int m = 0; m < row_tiles; m++)
            load_a(a[m], q + m * 16 * Tiling::q_pitch, Tiling::q_pitch);
        constexpr int together = own_blocks % 2 == 0 ? 2 : 1;
        INFERC_UNROLL
        for (int n = 0; n < own_blocks; n += together) {
            if (!has_keys(n)) continue;
            uint32_t b[2 * together];
            if constexpr (together == 2)
                ptx::ldmatrix_x4_trans(b, k + n * 8 + (lane >> 4) * 8);
            else
                ptx::ldmatrix_x2_trans(b, k + n * 8);
            INFERC_UNROLL
            for (int i = 0; i < row_tiles * together; i++)
                mma(score[i / together][n + i % together], a[i / together], b[i % together * 2],
                    b[i % together * 2 + 1], Element{});
        }
    }

    // Products to scores, hidden keys to -inf; and the largest of this warp's keys.
    INFERC_INLINE void mask(int32_t base, int m, float (&largest)[2]) {
        const int32_t begin = base + key_warp * own_blocks * 8 + lane % 4 * 2;
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            largest[h] = minus_infinity();
            // Most tiles are seen whole.
            const bool some = Tiling::key_warps * own_blocks != key_blocks || base < first[m][h] ||
                              base + keys - 1 > position[m][h];
            INFERC_UNROLL
            for (int i = 0; i < own_blocks * 2; i++) {
                float &s = score[m][i / 2][2 * h + i % 2];
                const int32_t key = begin + i / 2 * 8 + i % 2;
                s = finish_score<Shape>(s, slope[m][h], key - position[m][h]);
                if (some && !(has_keys(i / 2) && key <= position[m][h] && key >= first[m][h]))
                    s = minus_infinity();
                largest[h] = fmaxf(largest[h], s);
            }
            INFERC_UNROLL
            for (int step = 1; step < 4; step *= 2)
                largest[h] = fmaxf(largest[h], __shfl_xor_sync(kAllLanes, largest[h], step));
        }
    }

    // The largest over all key warps of the rows.
    INFERC_INLINE void exchange_largest(float (&largest)[row_tiles][2]) {
        float *told = memory.exchange();
        INFERC_UNROLL
        for (int i = 0; i < row_tiles * 2; i++)
            if (lane % 4 == 0)
                told[key_warp * Tiling::rows + row_of(i / 2, i % 2)] = largest[i / 2][i % 2];
        __syncthreads();
        INFERC_UNROLL
        for (int i = 0; i < row_tiles * 2; i++)
            INFERC_UNROLL
            for (int w = 0; w < Tiling::key_warps; w++)
                largest[i / 2][i % 2] = fmaxf(largest[i / 2][i % 2],
                                              told[w * Tiling::rows + row_of(i / 2, i % 2)]);
    }

    // Scores to shares; the softmax state to that with this tile.
    INFERC_INLINE void share(int32_t base) {
        constexpr float unit = score_unit<Shape>();
        float largest[row_tiles][2];
        INFERC_UNROLL
        for (int m = 0; m < row_tiles; m++) mask(base, m, largest[m]);
        if constexpr (shared_keys) exchange_largest(largest);
        INFERC_UNROLL
        for (int m = 0; m < row_tiles; m++)
            INFERC_UNROLL
            for (int h = 0; h < 2; h++) {
                const float now = fmaxf(largest[m][h], maximum[m][h]), shift = finite_or_zero(now);
                const float factor = fast_exp2((maximum[m][h] - shift) * unit);
                const float scaled = shift * unit;
                maximum[m][h] = now;
                INFERC_UNROLL
                for (int i = 0; i < own_blocks * 2; i++) {
                    float &s = score[m][i / 2][2 * h + i % 2];
                    s = fast_exp2(fmaf(s, unit, -scaled));
                }
                INFERC_UNROLL
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    sum[m][i] *= factor;
                    INFERC_UNROLL
                    for (int p = 0; p < v_pairs; p++) out[m][p][0][i] *= factor;
                    INFERC_UNROLL
                    for (int p = 0; p < v_pairs; p++) out[m][p][1][i] *= factor;
                }
            }
        if constexpr (shared_keys) exchange_shares();
    }

    INFERC_INLINE void exchange_shares() {
        INFERC_UNROLL
        for (int i = 0; i < row_tiles * own_blocks * 2; i++) {
            const int m = i / 2 / own_blocks, n = i / 2 % own_blocks, h = i % 2;
            if (!has_keys(n)) continue;
            const int column = (key_warp * own_blocks + n) * 8 + lane % 4 * 2;
            *reinterpret_cast<uint32_t *>(memory.shares() + row_of(m, h) * pitch + column) =
                pack(score[m][n][2 * h], score[m][n][2 * h + 1], Element{});
            if constexpr (Tiling::is_scaled) {
                const float2 scale = scales_at(memory.v_scales(), key_warp * own_blocks + n);
                *reinterpret_cast<uint32_t *>(memory.scaled_shares() + row_of(m, h) * pitch +
                                              column) =
                    pack(score[m][n][2 * h] * scale.x, score[m][n][2 * h + 1] * scale.y, Element{});
            }
        }
        __syncthreads();
    }

    // ---- values

    // Shares of 16 keys; `scaled`: by the scales of their values.
    template <bool scaled>
    INFERC_INLINE void load_shares(uint32_t (&a)[4], int m, int step) const {
        if constexpr (shared_keys) {
            const Element *from = scaled ? memory.scaled_shares() : memory.shares();
            load_a(a, from + first_row(m) * pitch + step * 16, pitch);
        } else if constexpr (scaled) {
            INFERC_UNROLL
            for (int i = 0; i < 4; i++) {
                const float(&s)[4] = score[m][2 * step + i / 2];
                const float2 scale = scales_at(memory.v_scales(), 2 * step + i / 2);
                a[i] = pack(s[i % 2 * 2] * scale.x, s[i % 2 * 2 + 1] * scale.y, Element{});
            }
        } else {
            INFERC_UNROLL
            for (int i = 0; i < 4; i++) {
                const float(&s)[4] = score[m][2 * step + i / 2];
                a[i] = pack(s[i % 2 * 2], s[i % 2 * 2 + 1], Element{});
            }
        }
    }

    // 16 values x 16 columns as two operands B, b[0..1] and b[2..3].
    INFERC_INLINE void load_values(uint32_t (&b)[4], int stage, int step, int e) const {
        if constexpr (Shape::v_in_k) {
            const int row = e + (lane & 7) + (lane >> 4) * 8;
            ptx::ldmatrix_x4(b, memory.k(stage) + row * pitch + step * 16 + (lane >> 3 & 1) * 8);
        } else {
            const int row = step * 16 + (lane & 15);
            const Element *v = memory.v(stage) + row * Tiling::v_pitch;
            ptx::ldmatrix_x4_trans(b, v + e + (lane >> 4) * 8);
        }
    }

    INFERC_INLINE void mix_values(int stage) {
        const uint32_t ones = pack(1.0f, 1.0f, Element{});
        INFERC_UNROLL
        for (int step = 0; step < keys / 16; step++) {
            uint32_t a[row_tiles][4];
            INFERC_UNROLL
            for (int m = 0; m < row_tiles; m++) {
                load_shares<false>(a[m], m, step);
                mma(sum[m], a[m], ones, ones, Element{});
                if constexpr (Tiling::is_scaled) load_shares<true>(a[m], m, step);
            }
            INFERC_UNROLL
            for (int p = 0; p < v_pairs; p++) {
                if (!has_values(p)) continue;
                uint32_t b[4];
                load_values(b, stage, step, (key_warp * v_pairs + p) * 16);
                INFERC_UNROLL
                for (int m = 0; m < row_tiles; m++) {
                    mma(out[m][p][0], a[m], b[0], b[1], Element{});
                    mma(out[m][p][1], a[m], b[2], b[3], Element{});
                }
            }
        }
    }

    // ---- partitions

    // Maximum (i = 0) and sum (1) of a row's partitions before this one: seldom used, so where
    // registers are short it is in shared memory, seen by this lane only.
    INFERC_INLINE float &total(int m, int h, int i) {
        const int at = (m * 2 + h) * 2 + i;
        if constexpr (shared_keys)
            return totals[at];
        else
            return memory.totals()[at * Tiling::threads + int(threadIdx.x)];
    }

    // Joins the partition with what `args.out` holds of those before it, or leaves it as a partial.
    INFERC_INLINE void fold(const AttentionTile &tile, int32_t partition, bool is_first,
                            bool is_last) {
        INFERC_UNROLL
        for (int m = 0; m < row_tiles; m++)
            INFERC_UNROLL
            for (int h = 0; h < 2; h++)
                if (row_of(m, h) < tile.rows) fold_row(tile, m, h, partition, is_first, is_last);
    }

    INFERC_INLINE void fold_row(const AttentionTile &tile, int m, int h, int32_t partition,
                                bool is_first, bool is_last) {
        const int32_t token = token_of<Shape>(tile, row_of(m, h));
        const int32_t head = head_of<Shape>(tile, int(blockIdx.y), row_of(m, h));
        if (args.partials != nullptr) {
            float *to = partial_of(args, token, head, partition);
            if (lane % 4 == 0 && key_warp == 0)
                write_partial_state<Shape>(to, maximum[m][h], sum[m][2 * h]);
            write_row(to, m, h, true, 0.0f, 1.0f, 1.0f);
            return;
        }
        float most = maximum[m][h], whole = sum[m][2 * h];
        float factor = 0.0f, next_factor = 1.0f, end_factor = 1.0f;
        if (!is_first) {
            most = total(m, h, 0), whole = total(m, h, 1);
            join_states<Shape>(most, whole, maximum[m][h], sum[m][2 * h], factor, next_factor);
        }
        if (is_last) end_factor = final_factor(args, head, most, whole);
        total(m, h, 0) = most, total(m, h, 1) = whole;
        write_row(args.out + (int64_t(token) * Shape::heads + head) * Shape::v_dim, m, h, is_first,
                  factor, next_factor, end_factor);
    }

    INFERC_INLINE void write_row(float *to, int m, int h, bool is_first, float factor,
                                 float next_factor, float end_factor) {
        INFERC_UNROLL
        for (int i = 0; i < v_pairs * 2; i++) {
            if (!has_values(i / 2)) continue;
            const float(&now)[4] = out[m][i / 2][i % 2];
            const int column = (key_warp * v_pairs + i / 2) * 16 + i % 2 * 8 + lane % 4 * 2;
            float2 x = {now[2 * h], now[2 * h + 1]};
            if (!is_first) {
                const float2 before = *reinterpret_cast<const float2 *>(to + column);
                x.x = fmaf(x.x, next_factor, before.x * factor);
                x.y = fmaf(x.y, next_factor, before.y * factor);
            }
            *reinterpret_cast<float2 *>(to + column) = {x.x * end_factor, x.y * end_factor};
        }
    }
};

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
