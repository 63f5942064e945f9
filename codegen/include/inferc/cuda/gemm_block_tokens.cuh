// Activations of a block of gemm_block.cuh: from rows anywhere to operands of the matrix
// instruction in shared memory.
#pragma once

#include "inferc/cuda/gemm_decode.cuh"

namespace inferc {

constexpr int kBlockRingBytes = 80 * 1024;  // with what else a block has, below 99 KB

// Units of 32 k that share a scale, and whether steps of 16 k do not.
template <class W>
INFERC_BOTH constexpr int folded_units() {
    return one_scale<W>() ? record_k<W>() / 32 : 1;
}
template <class W>
INFERC_BOTH constexpr bool has_halves() {
    return group_k<W>() == 16;
}

// T at most: totals, sums of a part of k, and of a group if they last, have to fit into registers.
template <class Shape>
INFERC_BOTH constexpr int most_block_tiles() {
    typedef typename Shape::W W;
    if (Shape::x_terms == 3 || Shape::F::terms > 1 || record_k<W>() == 256) return 4;
    if (folded_units<W>() > 1) return 5;
    return Shape::F::scaled ? 6 : 7;
}

template <class Shape, int T>
struct BlockPlan {
    typedef typename Shape::W W;
    typedef DecodePlan<Shape> Chunks;
    static constexpr int R = 2;  // tiles of a warp: both of a pair, or two
    // A stage is half a chunk, if it can be.
    static constexpr int stage_records = ceil_div(Chunks::chunk_records, 2);
    static constexpr int stage_units = stage_records * Chunks::record_units;
    static constexpr int tile_bytes = stage_records * Chunks::record;  // of a stage
    static constexpr int stage_bytes = R * tile_bytes;
    static constexpr int warps = 8 * 2 * stage_bytes > kBlockRingBytes ? 4 : 8;
    static constexpr int stages = max_of(2, min_of(6, kBlockRingBytes / (warps * stage_bytes)));
    static constexpr int threads = 32 * warps;
    static constexpr int tiles = R * warps;  // of a block
    static constexpr int blocks = ceil_div(Shape::tiles, tiles);
    // Sums of x that go with a unit.
    static constexpr int sums = !has_minimum<W>() ? 0 : has_halves<W>() ? 2 : 1;
    static constexpr int token_words = 2 * 32 * 2 * Shape::x_terms;  // of 8 tokens, 32 k
    static constexpr int buffer_bytes = T * (4 * token_words + sums * 32 * 16);
    static constexpr int bytes = warps * stages * stage_bytes + 2 * buffer_bytes;
};

#if INFERC_DEVICE_CODE

// A warp's tiles of 8 tokens (tile `warp + i * warps` of the block) from memory to operands in
// shared memory. Buffer: words [tile][step][term][lane][2], then sums of x [tile][..][lane][4].
template <class Shape, int T, bool aligned>
struct BlockTokens {
    typedef BlockPlan<Shape, T> Plan;
    typedef typename Shape::W W;
    static constexpr int kEach = ceil_div(T, Plan::warps), terms = Shape::x_terms;
    const float *row[kEach];  // of the lane's token, at its first k; nullptr: there is none
    RawTokens<1> raw[kEach];
    static constexpr int kSums = max_of(1, Plan::sums);
    float x_sum[kEach][kSums][4];

    INFERC_INLINE void load(int k, int lane) {
        INFERC_EACH_OF for (int i = 0; i < kEach; i++) {
            const StridedTokens<0, aligned> one = {row[i]};
            load_tokens<Shape>(one, k, k, row[i] == nullptr ? 0 : 8, lane, raw[i]);
        }
    }
    // Unit `u` of a record.
    INFERC_INLINE void store(uint32_t *buffer, int u, int warp, int lane) {
        INFERC_EACH_OF for (int i = 0; i < kEach; i++) {
            const int tile = warp + i * Plan::warps;
            if (tile >= T) continue;
            TokenFragments<1, terms> b;
            token_fragments<Shape>(raw[i], lane, b);
            INFERC_EACH_OF for (int step = 0; step < 2; step++)
                INFERC_EACH_OF for (int term = 0; term < terms; term++) {
                    uint32_t *at = buffer + (((tile * 2 + step) * terms + term) * 32 + lane) * 2;
                    *reinterpret_cast<uint2 *>(at) =
                        make_uint2(b.of[0][step][term][0], b.of[0][step][term][1]);
                }
            float *sums = reinterpret_cast<float *>(buffer + T * Plan::token_words);
            if constexpr (Plan::sums > 0) store_sums(sums, tile, u, lane, b, x_sum[i]);
        }
    }
    static INFERC_INLINE void store_sums(float *sums, int tile, int u, int lane,
                                         const TokenFragments<1, terms> &b,
                                         float (&x_sum)[kSums][4]) {
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            float(&x)[4] = x_sum[step % kSums];
            if (has_halves<W>() || (step == 0 && u % folded_units<W>() == 0))
                x[0] = x[1] = x[2] = x[3] = 0.0f;
            sum_tokens(x, b.of[0][step]);
        }
        INFERC_EACH_OF for (int s = 0; s < Plan::sums; s++)
            *reinterpret_cast<float4 *>(sums + ((tile * Plan::sums + s) * 32 + lane) * 4) =
                make_float4(x_sum[s][0], x_sum[s][1], x_sum[s][2], x_sum[s][3]);
    }
};

// Operands of tile j, and its sums of x, from a buffer of BlockTokens.
template <class Shape, int T>
INFERC_INLINE void read_tokens(const uint32_t *buffer, int j, int lane,
                               TokenFragments<1, Shape::x_terms> &b, float (&x_sum)[2][4]) {
    typedef BlockPlan<Shape, T> Plan;
    constexpr int terms = Shape::x_terms;
    INFERC_EACH_OF for (int step = 0; step < 2; step++)
        INFERC_EACH_OF for (int term = 0; term < terms; term++) {
            const uint2 word = *reinterpret_cast<const uint2 *>(
                buffer + (((j * 2 + step) * terms + term) * 32 + lane) * 2);
            b.of[0][step][term][0] = word.x, b.of[0][step][term][1] = word.y;
        }
    const float *sums = reinterpret_cast<const float *>(buffer + T * Plan::token_words);
    INFERC_EACH_OF for (int s = 0; s < Plan::sums; s++) {
        const float4 four =
            *reinterpret_cast<const float4 *>(sums + ((j * Plan::sums + s) * 32 + lane) * 4);
        x_sum[s][0] = four.x, x_sum[s][1] = four.y, x_sum[s][2] = four.z, x_sum[s][3] = four.w;
    }
}

#endif

}  // namespace inferc
