// Attention on tensor cores, m16n8k16 with float32 sums, for pages of bf16 or f16. Queries and the
// shares of keys are rounded to the type of the pages, all else is float32; a row's shares are
// summed as they are rounded. See attention.cuh, attention_tiles.cuh and attention_warp.cuh.
#pragma once

#include "inferc/cuda/attention_warp.cuh"

namespace inferc {

#if INFERC_DEVICE_CODE

// Begins the copies of the first tiles, and waits for the kernels ahead. These write queries and
// the keys of new tokens. What lies before was written by other steps, as were the inputs that are
// read until here: that need not wait.
template <class Tiling>
INFERC_INLINE void begin_tiles(const AttentionArgs<typename Tiling::Shape> &args,
                               const AttentionTile &tile, const KeyRange &range, int32_t base,
                               const TileMemory<Tiling> &memory) {
    constexpr int32_t keys = TileMemory<Tiling>::keys;
    const int32_t settled = args.positions[tile.token];
    bool waited = false;
    for (int s = 0; s < TileMemory<Tiling>::stages - 1; s++, base += keys) {
        if (!waited && base + keys > settled) begin_dependent(), waited = true;
        if (base < range.end) load_tile<Tiling>(args, tile, range, base, memory, s);
        ptx::cp_async_commit();
    }
    if (!waited) begin_dependent();
}

// Grid: tiles, KV heads, partitions.
template <class Tiling>
INFERC_INLINE void attend_mma(const AttentionArgs<typename Tiling::Shape> &args) {
    using Shape = typename Tiling::Shape;
    using Warp = TileWarp<Tiling>;
    constexpr int32_t keys = Warp::keys, stages = TileMemory<Tiling>::stages;
    constexpr int32_t partition_tokens = AttentionSizes<Shape>::partition_tokens;
    static_assert(partition_tokens % keys == 0, "partitions are whole tiles");
    INFERC_DYNAMIC_SHARED(typename Tiling::Element, shared);
    AttentionTile tile;
    if (!find_tile(args, int32_t(blockIdx.x), Tiling::rows, tile)) return;
    const KeyRange range = key_range(args, tile, int32_t(blockIdx.z));
    if (range.begin >= range.end) return;
    Warp warp(args, tile, shared);
    int32_t base = range.begin / keys * keys;
    begin_tiles<Tiling>(args, tile, range, base, warp.memory);
    load_queries<Tiling>(args, tile, warp.memory.q());
    warp.reset();
    const int32_t behind = Tiling::key_warps > 1 ? range.end : warp.seen_end(tile);
    bool is_first = true;
    for (int stage = 0; base < range.end; base += keys, stage = (stage + 1) % stages) {
        ptx::cp_async_wait<stages - 2>();
        __syncthreads();
        const int32_t ahead = base + (stages - 1) * keys;
        if (ahead < range.end)
            load_tile<Tiling>(args, tile, range, ahead, warp.memory, (stage + stages - 1) % stages);
        ptx::cp_async_commit();
        if constexpr (Tiling::is_converted)
            convert_tile<Tiling>(warp.memory, stage, base, range.end);
        if (Shape::v_in_k && base + keys > range.end) {
            clear_behind<Tiling>(base, range.end, warp.memory.k(stage));
            __syncthreads();
        }
        if (base < behind) {
            warp.multiply_keys(stage);
            warp.share(base);
            warp.mix_values(stage);
        }
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
