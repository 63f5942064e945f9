// Packed weight formats as the kernels read them. A reader is a struct of static functions over one
// tile of 16 matrix rows ("n16"); lane r of a vector belongs to row r of the tile.
//
// Dense readers (F32, BF16, F16, F8E4M3): a tile is a run of steps of 2 k each. What they give is
// the value divided by `x_factor`, a power of two; activations are multiplied by it instead.
// Block readers (weights_legacy.h, weights_k.h, weights_groups.h): a tile is a run of records of
// `block` k each; a record holds block/group groups, each with one scale (and one minimum) a row.
// `integers`: its integers come as quads: one int32 lane holds the bytes of 4 consecutive k of one
// row; `most` is the largest of unsigned ones that have seven bits. value = scale * integer +
// minimum. `values`: it gives floats, 4 vectors for 4 consecutive k.
// value = scale * values_factor * float.
//
// Readers are written over a loader: AllLanes gives vectors, OneLane the same for a single row,
// RowPair (cuda/weights_lanes.cuh) for two.
#pragma once

#include "simd.h"
#include "weights_words.h"

namespace inferc {
inline namespace INFERC_ISA {

struct AllLanes {
    typedef f32x16 Float;
    typedef i32x16 Int;
    INFERC_INLINE Int u32(const uint8_t *p) const { return load_i(p); }
    INFERC_INLINE Int u16(const uint8_t *p) const { return load_u16(p); }
    INFERC_INLINE Int u8(const uint8_t *p) const { return load_bytes(p); }
    INFERC_INLINE Float f32(const uint8_t *p) const { return load((const float *)p); }
    INFERC_INLINE Float half(const uint8_t *p) const { return load((const f16 *)p); }
    INFERC_INLINE Float bhalf(const uint8_t *p) const { return load((const bf16 *)p); }
    // f8e4m3 / 256 of 16 rows at p and of the next 16.
    INFERC_INLINE void f8_pair(const uint8_t *p, Float *a, Float *b) const { load_f8(p, a, b); }
    // table[bits from, from + 4 of each lane]
    template <int from>
    INFERC_INLINE Float look_up(const float *table, Int words) const {
        return look_up_floats<from>(load(table), words);
    }
    // table[byte] of each byte, all below 16.
    INFERC_INLINE Int look_up_bytes(const uint8_t *table, Int bytes) const {
        return inferc::look_up_bytes(table, bytes);
    }
    INFERC_INLINE Int splat(uint32_t x) const { return splat_i(int32_t(x)); }
};

struct OneLane {
    typedef float Float;
    typedef uint32_t Int;
    int lane;
    INFERC_INLINE Int u32(const uint8_t *p) const {
        uint32_t x;
        memcpy(&x, p + 4 * lane, 4);
        return x;
    }
    INFERC_INLINE Int u16(const uint8_t *p) const {
        return p[2 * lane] | uint32_t(p[2 * lane + 1]) << 8;
    }
    INFERC_INLINE Int u8(const uint8_t *p) const { return p[lane]; }
    INFERC_INLINE Float f32(const uint8_t *p) const { return bits_to_float(u32(p)); }
    INFERC_INLINE Float half(const uint8_t *p) const { return to_float(f16{uint16_t(u16(p))}); }
    INFERC_INLINE Float bhalf(const uint8_t *p) const { return to_float(bf16{uint16_t(u16(p))}); }
    INFERC_INLINE void f8_pair(const uint8_t *p, Float *a, Float *b) const {
        *a = f8_to_float(p[lane]);
        *b = f8_to_float(p[16 + lane]);
    }
    template <int from>
    INFERC_INLINE Float look_up(const float *table, Int words) const {
        return table[(words >> from) & 15];
    }
    INFERC_INLINE Int look_up_bytes(const uint8_t *table, Int bytes) const {
        uint32_t out = 0;
        for (int i = 0; i < 4; i++) out |= uint32_t(table[(bytes >> (8 * i)) & 15]) << (8 * i);
        return out;
    }
    INFERC_INLINE Int splat(uint32_t x) const { return x; }
};

// Bytes of `a`, each below 128, minus `b`.
INFERC_INLINE uint32_t sub_bytes(uint32_t a, uint32_t b) {
    return ((a | 0x80808080u) - b) ^ 0x80808080u;
}

constexpr uint32_t repeat_byte(uint32_t byte) { return byte * 0x01010101u; }

// ---- dense
// ---------------------------------------------------------------------------------------

struct F32 {
    static constexpr bool blocks = false, has_min = false;
    static constexpr float x_factor = 1.0f;
    static constexpr int64_t step_bytes = 2 * 16 * 4;
    // k and k + 1 of all rows.
    static INFERC_INLINE void pair(const uint8_t *p, f32x16 *even, f32x16 *odd) {
        *even = load((const float *)p);
        *odd = load((const float *)p + 16);
    }
    static INFERC_INLINE float value(const uint8_t *p, int lane, int odd) {
        return ((const float *)p)[16 * odd + lane];
    }
};

struct F16 {
    static constexpr bool blocks = false, has_min = false;
    static constexpr float x_factor = 1.0f;
    static constexpr int64_t step_bytes = 2 * 16 * 2;
    static INFERC_INLINE void pair(const uint8_t *p, f32x16 *even, f32x16 *odd) {
        *even = load((const f16 *)p);
        *odd = load((const f16 *)p + 16);
    }
    static INFERC_INLINE float value(const uint8_t *p, int lane, int odd) {
        return to_float(((const f16 *)p)[16 * odd + lane]);
    }
};

// Even and odd k of a row side by side, as dot-product instructions want them.
struct BF16 {
    static constexpr bool blocks = false, has_min = false;
    static constexpr float x_factor = 1.0f;
    static constexpr int64_t step_bytes = 2 * 16 * 2;
    static INFERC_INLINE void pair(const uint8_t *p, f32x16 *even, f32x16 *odd) {
        i32x16 both = load_i(p);
        *even = bitcast_f(both << 16);
        *odd = bitcast_f(both & splat_i(int32_t(0xffff0000u)));
    }
    static INFERC_INLINE float value(const uint8_t *p, int lane, int odd) {
        return to_float(((const bf16 *)p)[2 * lane + odd]);
    }
};

// A step is a byte of every row for even k, then for odd k. 0x7f and 0xff, that stand for NaN, are
// read as numbers: packing refuses them.
struct F8E4M3 {
    static constexpr bool blocks = false, has_min = false;
    static constexpr float x_factor = 256.0f;
    static constexpr int64_t step_bytes = 2 * 16;
    static INFERC_INLINE void pair(const uint8_t *p, f32x16 *even, f32x16 *odd) {
        load_f8(p, even, odd);
    }
    static INFERC_INLINE float value(const uint8_t *p, int lane, int odd) {
        return 256.0f * f8_to_float(p[16 * odd + lane]);
    }
};

// Elements of a row as packed: a row of bytes (I8) ends with zeros up to a whole record.
template <class W>
INFERC_INLINE int64_t padded_k(int64_t k) {
    if constexpr (W::blocks)
        return round_up(k, W::block);
    else
        return k;
}

// Bytes of one tile.
template <class W>
INFERC_INLINE int64_t tile_bytes(int64_t k) {
    if constexpr (W::blocks)
        return ceil_div(k, W::block) * W::record_bytes;
    else
        return ceil_div(k, 2) * W::step_bytes;
}

// Quads as unsigned bytes (stored value + offset), or as signed bytes (stored value).
template <class W, class Lanes>
INFERC_INLINE typename Lanes::Int unsigned_quad(Lanes lanes, const uint8_t *record, int group,
                                                int v) {
    auto q = W::quad(lanes, record, group, v);
    if constexpr (W::stored_signed) q = q ^ lanes.splat(0x80808080u);
    return q;
}

template <class W, class Lanes>
INFERC_INLINE typename Lanes::Int signed_quad(Lanes lanes, const uint8_t *record, int group,
                                              int v) {
    auto q = W::quad(lanes, record, group, v);
    if constexpr (W::offset != 0 && !W::stored_signed)
        q = sub_bytes(q, lanes.splat(repeat_byte(W::offset)));
    return q;
}

}  // namespace INFERC_ISA
}  // namespace inferc
