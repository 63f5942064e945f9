// How tensor-core attention cuts its work, and the moves between memory and registers.
//
// A block is RowWarps x KeyWarps warps. A row warp has 16 query rows. The key warps of the same
// rows share a key tile's products (each has some keys) and then its weighted sum (each has some
// columns of v): a row's sums are made in the same order whatever their number.
#pragma once

#include "inferc/cuda/attention.cuh"

namespace inferc {

// Most shared memory of a block.
INFERC_BOTH constexpr int attention_shared_limit(int sm) {
    return (sm == 86 || sm == 89 || sm >= 120 ? 99 : sm == 80 ? 163 : 227) * 1024;
}

// Keys of a tile, the same in both phases.
template <class Shape>
INFERC_BOTH constexpr int attention_keys(int sm);

// What pages of a type are multiplied as. f8e4m3 becomes f16, exactly, as 1/256 of its value:
// `Shape::stored_unit` makes up for that. i8 becomes bf16, exactly: scales of keys are multiplied
// with scores, those of values with shares.
template <class Page>
struct Multiplied {
    using Type = Page;
};
template <>
struct Multiplied<f8e4m3> {
    using Type = f16;
};
template <>
struct Multiplied<i8> {
    using Type = bf16;
};

// RowWarps x KeyWarps warps; a warp has RowTiles x 16 rows.
template <class Shape_, int RowWarps, int RowTiles, int KeyWarps>
struct AttentionTiling {
    using Shape = Shape_;
    using Page = typename Shape::Element;
    using Element = typename Multiplied<Page>::Type;
    static_assert(Shape::k_dim % 16 == 0 && Shape::v_dim % 16 == 0, "whole matrix instructions");

    static constexpr int row_tiles = RowTiles, key_warps = KeyWarps;
    static constexpr int rows = 16 * RowWarps * RowTiles, threads = 32 * RowWarps * KeyWarps;
    // Pages are copied as they are, and each tile is then turned into what is multiplied.
    static constexpr bool is_converted = sizeof(Page) != sizeof(Element);
    static constexpr bool is_scaled = kScaled<Page>;
    static constexpr int v_pairs = Shape::v_dim / 16;
    static constexpr int own_v_pairs = (v_pairs + KeyWarps - 1) / KeyWarps;

    // Rows in shared memory, in elements: an odd number of 16-byte chunks, so that the eight rows
    // of a matrix lie in different banks. Rows of keys and of shares have tile_pitch().
    static constexpr int q_pitch = Shape::k_dim + 8;
    static constexpr int v_pitch = Shape::v_dim + 8;
    INFERC_BOTH static constexpr int tile_pitch(int keys) { return keys + 8; }

    INFERC_BOTH static constexpr int stage_elements(int keys) {
        return Shape::k_dim * tile_pitch(keys) + (Shape::v_in_k ? 0 : keys * v_pitch);
    }
    INFERC_BOTH static constexpr int elements(int keys, int stages) {
        return rows * q_pitch + (is_converted ? 1 : stages) * stage_elements(keys) +
               (KeyWarps > 1 ? rows * tile_pitch(keys) * (is_scaled ? 2 : 1) : 0);
    }
    INFERC_BOTH static constexpr int exchange_floats() {
        return KeyWarps > 1 ? KeyWarps * rows : rows * 8;
    }
    INFERC_BOTH static constexpr int copied_elements(int keys) {  // of a stage, if converted
        return is_converted ? keys * (Shape::k_dim + (Shape::v_in_k ? 0 : Shape::v_dim)) +
                                  4 * scales(keys)
                            : 0;
    }
    INFERC_BOTH static constexpr int scales(int keys) {  // of the keys, then of the values
        return is_scaled ? keys * (Shape::v_in_k ? 1 : 2) : 0;
    }
    INFERC_BOTH static constexpr int bytes(int keys, int stages) {
        return 2 * elements(keys, stages) + 4 * exchange_floats() +
               stages * copied_elements(keys) + 4 * scales(keys);
    }
    // Tiles in shared memory. Decode has little to do for each: what counts is how many are under
    // way, with room for a second block.
    INFERC_BOTH static constexpr int stages(int sm) {
        int most = KeyWarps > 1 ? 4 : 2;
        while (most > 2 && 2 * bytes(attention_keys<Shape>(sm), most) > attention_shared_limit(sm))
            most--;
        return most;
    }
    INFERC_BOTH static constexpr uint32_t shared_bytes(int sm) {
        return uint32_t(bytes(attention_keys<Shape>(sm), stages(sm)));
    }
};

// In prefill every warp has rows of its own, two tiles of them while the registers last: whatever
// is read from shared memory then serves 32 rows. In decode a row tile is one token's heads.
template <class Shape>
using PrefillTiling = AttentionTiling<Shape, (Shape::v_dim <= 256 ? 4 : 2),
                                      (Shape::v_dim <= 128 ? 2 : 1), (Shape::v_dim <= 256 ? 1 : 4)>;
template <class Shape>
using DecodeTiling = AttentionTiling<Shape, (AttentionSizes<Shape>::group > 16 ? 2 : 1), 1, 4>;

// As many as leave room for other blocks, and fit.
template <class Shape>
INFERC_BOTH constexpr int attention_keys(int sm) {
    const int dims = Shape::k_dim + (Shape::v_in_k ? 0 : Shape::v_dim);
    int keys = Shape::page_tokens == 48 ? (dims <= 256 ? 48 : 16) : (dims <= 128 ? 64 : 32);
    while (keys > 16 && (PrefillTiling<Shape>::bytes(keys, 2) > attention_shared_limit(sm) ||
                         DecodeTiling<Shape>::bytes(keys, 2) > attention_shared_limit(sm)))
        keys = keys == 48 ? 16 : keys / 2;
    return keys;
}

#if INFERC_DEVICE_CODE

template <class Tiling>
struct TileMemory {
    using Element = typename Tiling::Element;
    using Page = typename Tiling::Page;
    using Shape = typename Tiling::Shape;
    static constexpr int keys = attention_keys<typename Tiling::Shape>(INFERC_SM);
    static constexpr int stages = Tiling::stages(INFERC_SM);
    static constexpr int pitch = Tiling::tile_pitch(keys);

    Element *base;

    INFERC_INLINE Element *q() const { return base; }  // [rows][q_pitch]
    // [k_dim][pitch] of a stage, and [keys][v_pitch]
    INFERC_INLINE Element *k(int stage) const {
        const int at = Tiling::is_converted ? 0 : stage;
        return base + Tiling::rows * Tiling::q_pitch + at * Tiling::stage_elements(keys);
    }
    INFERC_INLINE Element *v(int stage) const { return k(stage) + Shape::k_dim * pitch; }
    // What a stage's pages are copied to: the same, or [k_dim][keys] and [keys][v_dim]
    INFERC_INLINE Page *k_copied(int stage) const {
        if constexpr (Tiling::is_converted)
            return reinterpret_cast<Page *>(exchange() + Tiling::exchange_floats()) +
                   stage * Tiling::copied_elements(keys);
        else
            return k(stage);
    }
    INFERC_INLINE Page *v_copied(int stage) const {
        return k_copied(stage) + Shape::k_dim * k_copied_pitch;
    }
    static constexpr int k_copied_pitch = Tiling::is_converted ? keys : pitch;
    static constexpr int v_copied_pitch = Tiling::is_converted ? Shape::v_dim : Tiling::v_pitch;

    // Scales as copied, and, behind all stages, those in use; `keys` of either kind.
    INFERC_INLINE float *scales_copied(int stage) const {
        return reinterpret_cast<float *>(k_copied(stage + 1)) - Tiling::scales(keys);
    }
    INFERC_INLINE float *k_scales() const { return reinterpret_cast<float *>(k_copied(stages)); }
    INFERC_INLINE float *v_scales() const { return k_scales() + (Shape::v_in_k ? 0 : keys); }

    INFERC_INLINE Element *shares() const {  // [rows][pitch], and again by the values' scales
        return k(0) + (Tiling::is_converted ? 1 : stages) * Tiling::stage_elements(keys);
    }
    INFERC_INLINE Element *scaled_shares() const { return shares() + Tiling::rows * pitch; }
    // [key_warps][rows], of key warps that tell each other
    INFERC_INLINE float *exchange() const {
        return reinterpret_cast<float *>(base + Tiling::elements(keys, stages));
    }
    // [row_tiles * 4][threads], of a key warp that is alone
    INFERC_INLINE float *totals() const { return exchange(); }
};

INFERC_INLINE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16) {
    const uint32_t b[2] = {b0, b1};
    ptx::mma_bf16(d, a, b);
}
INFERC_INLINE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, f16) {
    const uint32_t b[2] = {b0, b1};
    ptx::mma_f16(d, a, b);
}
INFERC_INLINE uint32_t pack(float low, float high, bf16) { return pack_bf16(low, high); }
INFERC_INLINE uint32_t pack(float low, float high, f16) { return pack_f16(low, high); }

// Query rows of a tile, rounded; rows behind its last are 0.
template <class Tiling>
INFERC_INLINE void load_queries(const AttentionArgs<typename Tiling::Shape> &args,
                                const AttentionTile &tile, typename Tiling::Element *to) {
    using Shape = typename Tiling::Shape;
    constexpr int chunks = Shape::k_dim / 4;
    INFERC_NO_UNROLL
    for (int i = int(threadIdx.x); i < Tiling::rows * chunks; i += Tiling::threads) {
        const int row = i / chunks, d = i % chunks * 4;
        uint2 packed = {0, 0};
        if (row < tile.rows) {
            const int64_t token = token_of<Shape>(tile, row);
            const int64_t head = head_of<Shape>(tile, int(blockIdx.y), row);
            const float4 x = *reinterpret_cast<const float4 *>(
                args.q + (token * Shape::heads + head) * Shape::k_dim + d);
            packed.x = pack(x.x, x.y, typename Tiling::Element{});
            packed.y = pack(x.z, x.w, typename Tiling::Element{});
        }
        *reinterpret_cast<uint2 *>(to + row * Tiling::q_pitch + d) = packed;
    }
}

// Begins the copy of the keys and values at positions [base, base + keys). What no row may touch,
// pages outside of `range` and values behind its end, becomes 0; keys behind its end stay as they
// are and must be masked.
template <class Tiling>
INFERC_INLINE void load_tile(const AttentionArgs<typename Tiling::Shape> &args,
                             const AttentionTile &tile, const KeyRange &range, int32_t base,
                             const TileMemory<Tiling> &memory, int stage) {
    using Shape = typename Tiling::Shape;
    using Memory = TileMemory<Tiling>;
    constexpr int keys = Memory::keys, page_tokens = Shape::page_tokens;
    constexpr int width = 16 / int(sizeof(typename Shape::Element)), chunks = keys / width;
    static_assert(keys <= page_tokens || Tiling::threads % chunks == 0, "a page a thread");
    const int32_t *table = args.block_tables + int64_t(tile.sequence) * args.table_stride;
    const auto page_of = [&](int32_t key) {
        return int64_t(table[key / page_tokens]) * Shape::kv_heads + int64_t(blockIdx.y);
    };
    const auto touched = [&](int32_t key) {
        return key >= range.begin && key / page_tokens * page_tokens < range.end;
    };
    // Of the one page of this tile, or of the one of this thread's keys.
    const int32_t own = keys <= page_tokens ? base : base + int(threadIdx.x) % chunks * width;
    const bool any = touched(own);
    const int64_t page = any ? page_of(own) : 0;

    using Page = typename Shape::Element;
    const auto *k = args.k_pool + page * head_elements<Page>(Shape::k_dim, page_tokens);
    const auto load_scales = [&](const Page *pool, int dim, float *to) {
        for (int i = int(threadIdx.x); i < keys / 4; i += Tiling::threads) {
            const int32_t key = base + i * 4;
            const bool valid = touched(key) && key < range.end;
            const int64_t its_page = keys <= page_tokens ? page : valid ? page_of(key) : 0;
            const Page *head = pool + its_page * head_elements<Page>(dim, page_tokens);
            ptx::cp_async16(to + i * 4, token_scales(head, dim, page_tokens) + key % page_tokens,
                            valid);
        }
    };
    if constexpr (Tiling::is_scaled)
        load_scales(args.k_pool, Shape::k_dim, memory.scales_copied(stage));
    INFERC_NO_UNROLL
    for (int i = int(threadIdx.x); i < Shape::k_dim * chunks; i += Tiling::threads) {
        const int d = i / chunks, at = i % chunks * width;
        ptx::cp_async16(memory.k_copied(stage) + d * Memory::k_copied_pitch + at,
                        k + d * page_tokens + (base + at) % page_tokens, any);
    }
    if (Shape::v_in_k) return;
    if constexpr (Tiling::is_scaled)
        load_scales(args.v_pool, Shape::v_dim, memory.scales_copied(stage) + keys);
    constexpr int v_chunks = Shape::v_dim / width;
    INFERC_NO_UNROLL
    for (int i = int(threadIdx.x); i < keys * v_chunks; i += Tiling::threads) {
        const int at = i / v_chunks, e = i % v_chunks * width;
        const int32_t key = base + at;
        const bool valid = touched(key) && key < range.end;
        const int64_t its_page = keys <= page_tokens ? page : valid ? page_of(key) : 0;
        const auto *v = args.v_pool +
                        its_page * head_elements<Page>(Shape::v_dim, page_tokens) +
                        key % page_tokens * Shape::v_dim;
        ptx::cp_async16(memory.v_copied(stage) + at * Memory::v_copied_pitch + e, v + e, valid);
    }
}

// Four f8e4m3 as four f16 of 1/256 of their value, without its NaN: exponents have 8 less.
INFERC_INLINE uint2 f8_to_f16(uint32_t word) {
    const uint32_t low = __byte_perm(word, 0, 0x1404), high = __byte_perm(word, 0, 0x3424);
    return {(low & 0x80008000u) | (low & 0x7f007f00u) >> 1,
            (high & 0x80008000u) | (high & 0x7f007f00u) >> 1};
}

// Four i8 as four bf16: floats of 2^23 and more count by ones, and what is left of them has at most
// seven bits.
INFERC_INLINE uint2 i8_to_bf16(uint32_t word) {
    float x[4];
    word ^= 0x80808080u;
    INFERC_UNROLL
    for (int i = 0; i < 4; i++)
        x[i] = bits_to_float(__byte_perm(word, 0x4b000000u, 0x7440u + i)) - 8388736.0f;
    return {__byte_perm(float_to_bits(x[0]), float_to_bits(x[1]), 0x7632),
            __byte_perm(float_to_bits(x[2]), float_to_bits(x[3]), 0x7632)};
}

INFERC_INLINE uint2 widened(uint32_t word, f8e4m3) { return f8_to_f16(word); }
INFERC_INLINE uint2 widened(uint32_t word, i8) { return i8_to_bf16(word); }

// [rows][width] as copied to [rows][pitch] of what is multiplied.
template <class Tiling>
INFERC_INLINE void convert_rows(const typename Tiling::Page *from, typename Tiling::Element *to,
                                int rows, int width, int pitch) {
    const int chunks = width / 16;
    for (int i = int(threadIdx.x); i < rows * chunks; i += Tiling::threads) {
        const uint4 x = *reinterpret_cast<const uint4 *>(from + i * 16);
        const typename Tiling::Page page{};
        const uint2 a = widened(x.x, page), b = widened(x.y, page);
        const uint2 c = widened(x.z, page), d = widened(x.w, page);
        auto *place = reinterpret_cast<uint4 *>(to + i / chunks * pitch + i % chunks * 16);
        place[0] = {a.x, a.y, b.x, b.y};
        place[1] = {c.x, c.y, d.x, d.y};
    }
}

// Scales of what lies at `end` and behind it, as nobody wrote them, become 0.
template <class Tiling>
INFERC_INLINE void convert_tile(const TileMemory<Tiling> &memory, int stage, int32_t base,
                                int32_t end) {
    using Shape = typename Tiling::Shape;
    constexpr int keys = TileMemory<Tiling>::keys;
    if constexpr (Tiling::is_scaled)
        for (int i = int(threadIdx.x); i < Tiling::scales(keys); i += Tiling::threads)
            memory.k_scales()[i] = base + i % keys < end ? memory.scales_copied(stage)[i] : 0.0f;
    convert_rows<Tiling>(memory.k_copied(stage), memory.k(stage), Shape::k_dim, keys,
                         TileMemory<Tiling>::pitch);
    if (!Shape::v_in_k)
        convert_rows<Tiling>(memory.v_copied(stage), memory.v(stage), keys, Shape::v_dim,
                             Tiling::v_pitch);
    __syncthreads();
}

// Keys behind the end of a tile that serve as values too: whatever is there, times 0, must be 0.
template <class Tiling>
INFERC_INLINE void clear_behind(int32_t base, int32_t end, typename Tiling::Element *k) {
    constexpr int keys = TileMemory<Tiling>::keys;
    for (int i = int(threadIdx.x); i < Tiling::Shape::v_dim * keys; i += Tiling::threads)
        if (base + i % keys >= end) k[i / keys * TileMemory<Tiling>::pitch + i % keys].bits = 0;
}

#endif  // INFERC_DEVICE_CODE

}  // namespace inferc
