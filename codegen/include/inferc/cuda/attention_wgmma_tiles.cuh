// The tiles of keys and values of attention_wgmma.cuh: their layout and their copies.
#pragma once

#include "inferc/cuda/attention_mma.cuh"

namespace inferc {

constexpr int kWgmmaKeys = 64, kWgmmaRow = 128;  // keys of a tile; bytes of a row

template <class Shape_>
struct WgmmaTiling {
    using Shape = Shape_;
    static_assert(Shape::k_dim % 64 == 0 && Shape::v_dim % 64 == 0 && !Shape::v_in_k, "whole rows");
    static_assert(kWgmmaKeys % Shape::page_tokens == 0, "a tile is whole pages");
    static constexpr int rows = 128, threads = 256;
    // The values of one and the keys of the next are multiplied, and two are filled.
    static constexpr int stages = 4;
    static constexpr int k_bytes = Shape::k_dim * kWgmmaRow;
    // 64 values of each key, then the next 64.
    static constexpr int v_part = kWgmmaKeys * kWgmmaRow, v_bytes = Shape::v_dim / 64 * v_part;
    static constexpr int stage_bytes = k_bytes + v_bytes;
    static constexpr int bytes = stages * stage_bytes;
};

#if INFERC_DEVICE_CODE && INFERC_SM == 90

// Begins the copy of the keys and values at positions [base, base + 64) to a stage. What no row may
// touch, pages outside of `range` and values behind its end, becomes 0; keys behind its end stay as
// they are and must be masked.
template <class Tiling>
INFERC_INLINE void load_wgmma_tile(const AttentionArgs<typename Tiling::Shape> &args,
                                   const AttentionTile &tile, const KeyRange &range, int32_t base,
                                   uint8_t *stage) {
    using Shape = typename Tiling::Shape;
    constexpr int page_tokens = Shape::page_tokens, units = kWgmmaRow / 16;
    const int32_t *table = args.block_tables + int64_t(tile.sequence) * args.table_stride;
    const auto page_of = [&](int32_t key, bool is_touched) {
        const int32_t page = is_touched ? table[key / page_tokens] : 0;
        return int64_t(page) * Shape::kv_heads + int64_t(blockIdx.y);
    };
    const int thread = int(threadIdx.x), unit = thread % units;
    {
        const int32_t key = base + unit * 8;  // the first of this thread's eight
        const bool any = key >= range.begin && key / page_tokens * page_tokens < range.end;
        const int d = thread / units;
        const bf16 *k = args.k_pool + page_of(key, any) * Shape::k_dim * page_tokens +
                        d * page_tokens + key % page_tokens;
        uint8_t *to = stage + d * kWgmmaRow + (unit ^ d % 8) * 16;
        constexpr int step = Tiling::threads / units;  // dims
        INFERC_UNROLL
        for (int i = 0; i < Shape::k_dim / step; i++)
            ptx::cp_async16(to + i * step * kWgmmaRow, k + i * step * page_tokens, any);
    }
    // A thread has keys of one page.
    constexpr int row_units = Shape::v_dim / 8, keys = kWgmmaKeys * row_units / Tiling::threads;
    const int at = thread / row_units * keys, e = thread % row_units;
    const int32_t key = base + at;
    const bool any = key + keys > range.begin && key < range.end;
    const bf16 *v =
        args.v_pool + (page_of(key, any) * page_tokens + key % page_tokens) * Shape::v_dim + e * 8;
    uint8_t *values = stage + Tiling::k_bytes + e / units * Tiling::v_part;
    INFERC_UNROLL
    for (int i = 0; i < keys; i++)
        ptx::cp_async16(values + (at + i) * kWgmmaRow + ((unit ^ at % 8) ^ i) * 16,
                        v + i * Shape::v_dim, any && key + i < range.end);
}

#endif

}  // namespace inferc
