// Attention of many rows on sm_90 by wgmma, for pages of bf16, where prefill may have bits of its
// own (KernelOptions.fast_prefill): attention_mma.cuh computes the same with the bits of decode.
//
// A block has two groups of four warps, of 64 query rows each: operand A, in registers. A tile of
// 64 keys is copied to one of four stages, in the layout of a B whose columns are contiguous (see
// shared_descriptor): keys as rows of a dim, values as rows of a key, 128 bytes wide and swizzled,
// whatever the pages' size. While a tile's scores become shares, the products with the values of
// the tile before are under way. Shares are operand A again, rounded to bf16; their sums are not
// rounded.
#pragma once

#include "inferc/cuda/attention_wgmma_tiles.cuh"

namespace inferc {

#if INFERC_DEVICE_CODE && INFERC_SM == 90

// A warp's 16 rows. A lane has rows lane / 4 and 8 more (`h`), and of every 8 columns two, from
// lane % 4 * 2.
template <class Tiling>
struct WgmmaWarp {
    using Shape = typename Tiling::Shape;
    using Args = AttentionArgs<Shape>;
    static constexpr int k_steps = Shape::k_dim / 16;

    int first_row, lane;
    int32_t position[2], first[2];
    int32_t whole_begin, whole_end;  // keys that all rows of the block see
    float slope[2];
    float maximum[2], sum[2];  // of this lane's columns
    uint32_t q[k_steps][4];
    float out[Shape::v_dim / 2];

    INFERC_INLINE int row_of(int h) const { return first_row + lane / 4 + h * 8; }

    INFERC_INLINE WgmmaWarp(const Args &args, const AttentionTile &tile)
        : first_row(int(threadIdx.x) / 32 * 16), lane(int(threadIdx.x & 31)) {
        const int32_t last = args.positions[token_of<Shape>(tile, tile.rows - 1)];
        whole_begin = first_visible<Shape>(last);
        whole_end = args.positions[token_of<Shape>(tile, 0)] + 1;
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            const int row = min_of(row_of(h), int(tile.rows) - 1);
            const int32_t token = token_of<Shape>(tile, row);
            const int32_t head = head_of<Shape>(tile, int(blockIdx.y), row);
            position[h] = args.positions[token];
            first[h] = first_visible<Shape>(position[h]);
            slope[h] = Shape::sloped ? args.slopes[Shape::sloped ? head : 0] : 0.0f;
            maximum[h] = minus_infinity(), sum[h] = 0.0f;
            const float *from =
                args.q + (int64_t(token) * Shape::heads + head) * Shape::k_dim + lane % 4 * 2;
            INFERC_UNROLL
            for (int i = 0; i < k_steps * 2; i++) {
                const float2 x = *reinterpret_cast<const float2 *>(from + i * 8);
                q[i / 2][i % 2 * 2 + h] = pack_bf16(x.x, x.y);
            }
        }
        INFERC_UNROLL
        for (int i = 0; i < Shape::v_dim / 2; i++) out[i] = 0.0f;
    }

    // Begins score = q . k.
    INFERC_INLINE void multiply_keys(float (&score)[kWgmmaKeys / 2], const uint8_t *stage) {
        INFERC_UNROLL
        for (int i = 0; i < kWgmmaKeys / 2; i++) score[i] = 0.0f;
        ptx::wgmma_fence();
        INFERC_UNROLL
        for (int step = 0; step < k_steps; step++)
            ptx::wgmma_bf16_turned<kWgmmaKeys>(
                score, q[step],
                ptx::shared_descriptor(stage + step * 16 * kWgmmaRow, 16, 8 * kWgmmaRow,
                                       ptx::Swizzle::bytes128));
        ptx::wgmma_commit();
    }

    // Begins out += shares . v.
    INFERC_INLINE void mix_values(const uint32_t (&share)[kWgmmaKeys / 16][4],
                                  const uint8_t *stage) {
        ptx::wgmma_fence();
        INFERC_UNROLL
        for (int step = 0; step < kWgmmaKeys / 16; step++)
            ptx::wgmma_bf16_turned<Shape::v_dim>(
                out, share[step],
                ptx::shared_descriptor(stage + Tiling::k_bytes + step * 16 * kWgmmaRow,
                                       Tiling::v_part, 8 * kWgmmaRow, ptx::Swizzle::bytes128));
        ptx::wgmma_commit();
    }

    // Products to scores, hidden keys to -inf.
    INFERC_INLINE void finish_scores(float (&score)[kWgmmaKeys / 2], int32_t base) const {
        const auto key_of = [&](int i) { return base + i / 4 * 8 + i % 2 + lane % 4 * 2; };
        INFERC_UNROLL
        for (int i = 0; i < kWgmmaKeys / 2; i++) {
            const int h = i / 2 % 2;
            score[i] = finish_score<Shape>(score[i], slope[h], key_of(i) - position[h]);
        }
        if (base >= whole_begin && base + kWgmmaKeys <= whole_end) return;
        INFERC_UNROLL
        for (int i = 0; i < kWgmmaKeys / 2; i++) {
            const int h = i / 2 % 2;
            if (key_of(i) > position[h] || key_of(i) < first[h]) score[i] = minus_infinity();
        }
    }

    // Products to shares, and the softmax state to that with this tile; what `out` has to be
    // multiplied by.
    INFERC_INLINE void share(float (&score)[kWgmmaKeys / 2], int32_t base, float (&factor)[2]) {
        constexpr float unit = score_unit<Shape>();
        finish_scores(score, base);
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            float largest = maximum[h];
            INFERC_UNROLL
            for (int i = 0; i < kWgmmaKeys / 4; i++)
                largest = fmaxf(largest, score[i / 2 * 4 + 2 * h + i % 2]);
            INFERC_UNROLL
            for (int step = 1; step < 4; step *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
            const float shift = finite_or_zero(largest), scaled = shift * unit;
            factor[h] = fast_exp2((maximum[h] - shift) * unit);
            maximum[h] = largest;
            sum[h] *= factor[h];
            INFERC_UNROLL
            for (int i = 0; i < kWgmmaKeys / 4; i++) {
                float &s = score[i / 2 * 4 + 2 * h + i % 2];
                s = fast_exp2(fmaf(s, unit, -scaled));
                sum[h] += s;
            }
        }
    }

    INFERC_INLINE void rescale(const float (&factor)[2]) {
        INFERC_UNROLL
        for (int i = 0; i < Shape::v_dim / 2; i++) out[i] *= factor[i / 2 % 2];
    }

    INFERC_INLINE void write(const Args &args, const AttentionTile &tile) {
        INFERC_UNROLL
        for (int h = 0; h < 2; h++) {
            float whole = sum[h];
            INFERC_UNROLL
            for (int step = 1; step < 4; step *= 2)
                whole += __shfl_xor_sync(kAllLanes, whole, step);
            if (row_of(h) >= tile.rows) continue;
            const int32_t token = token_of<Shape>(tile, row_of(h));
            const int32_t head = head_of<Shape>(tile, int(blockIdx.y), row_of(h));
            const float factor = final_factor(args, head, maximum[h], whole);
            float *to =
                args.out + (int64_t(token) * Shape::heads + head) * Shape::v_dim + lane % 4 * 2;
            INFERC_UNROLL
            for (int i = 0; i < Shape::v_dim / 8; i++)
                *reinterpret_cast<float2 *>(to + i * 8) = {out[i * 4 + 2 * h] * factor,
                                                           out[i * 4 + 2 * h + 1] * factor};
        }
    }
};

INFERC_INLINE void pack_shares(const float (&score)[kWgmmaKeys / 2],
                               uint32_t (&share)[kWgmmaKeys / 16][4]) {
    INFERC_UNROLL
    for (int i = 0; i < kWgmmaKeys / 4; i++)
        share[i / 4][i % 4] = pack_bf16(score[2 * i], score[2 * i + 1]);
}

// ptxas would move what does not read `out` behind the wait for it, but no store to shared memory.
// This one does not happen: `sums`, of powers, are never negative.
INFERC_INLINE void finish_before_wait(float sums, void *shared) {
#if !INFERC_HOST_CODE
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.f32 p, %1, 0f00000000;\n"
        "@p st.volatile.shared.f32 [%0], %1;\n}\n" ::"r"(ptx::shared_address(shared)),
        "f"(sums)
        : "memory");
#endif
}

// Grid: tiles, KV heads. Nothing is under way where the loop closes: with the products of the
// values left to the next round, and a second set of scores, ptxas serialises all (C7514).
template <class Tiling>
INFERC_INLINE void attend_wgmma_tiles(const AttentionArgs<typename Tiling::Shape> &args) {
    constexpr int32_t keys = kWgmmaKeys;
    INFERC_DYNAMIC_SHARED(uint8_t, shared);
    begin_dependent();
    AttentionTile tile;
    if (!find_tile(args, int32_t(blockIdx.x), Tiling::rows, tile)) return;
    const KeyRange range = key_range(args, tile, 0);
    int32_t base = range.begin / keys * keys;
    const auto stage_of = [&](int32_t at) {
        return shared + at / keys % Tiling::stages * Tiling::stage_bytes;
    };
    const auto fetch = [&](int32_t at) {
        if (at < range.end) load_wgmma_tile<Tiling>(args, tile, range, at, stage_of(at));
        ptx::cp_async_commit();
    };
    // All tiles but the last have come, for all threads and for wgmma.
    const auto arrive = [&] {
        ptx::cp_async_wait<1>();
        ptx::fence_async_shared();
        __syncthreads();
    };
    fetch(base), fetch(base + keys);
    WgmmaWarp<Tiling> warp(args, tile);
    float score[keys / 2], factor[2];
    uint32_t share[keys / 16][4];
    arrive();
    warp.multiply_keys(score, stage_of(base));
    fetch(base + 2 * keys);
    ptx::wgmma_wait<0>();
    warp.share(score, base, factor);
    pack_shares(score, share);
    INFERC_NO_UNROLL
    for (; base + keys < range.end; base += keys) {
        arrive();
        warp.multiply_keys(score, stage_of(base + keys));
        warp.mix_values(share, stage_of(base));
        fetch(base + 3 * keys);
        ptx::wgmma_wait<1>();
        warp.share(score, base + keys, factor);
        finish_before_wait(warp.sum[0] + warp.sum[1], shared);
        ptx::wgmma_wait<0>();
        warp.rescale(factor);
        pack_shares(score, share);
    }
    warp.mix_values(share, stage_of(base));
    ptx::wgmma_wait<0>();
    warp.write(args, tile);
}

#endif

#if INFERC_DEVICE_CODE

template <class Tiling>
INFERC_INLINE void attend_wgmma(const AttentionArgs<typename Tiling::Shape> &args) {
#if INFERC_SM == 90
    attend_wgmma_tiles<Tiling>(args);
#endif
}

#endif

#if INFERC_HOST_CODE

// Launches it where it is worth it: one block a multiprocessor. Fewer go through attend_mma, which
// may split contexts.
template <class Shape>
inline bool launch_wgmma_attention(const Step &step, int32_t kernel, int64_t tokens,
                                   const AttentionArgs<Shape> &args) {
    using Tiling = WgmmaTiling<Shape>;
    const int64_t tiles = attention_tiles<Shape>(tokens, step.args->sequences, Tiling::rows);
    if (step.cuda->sm != 90 || tiles * Shape::kv_heads < step.cuda->multiprocessors) return false;
    step.launch(kernel, {uint32_t(tiles), uint32_t(Shape::kv_heads), 1}, Tiling::threads,
                Tiling::bytes, args, 1, INFERC_LAUNCH_DEPENDENT);
    return true;
}

#endif

}  // namespace inferc
