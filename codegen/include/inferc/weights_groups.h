// Readers of the formats of quantised Hugging Face checkpoints (ir/blocks_checkpoint.py): a scale,
// for some a zero point, and a run of codes. Readers are put together of these two.
//
// Record, 16 rows; `u16 [16]` is one number a row, `u32 [n][16]` n words a row:
//   u4_gG  u4b_gG  f16 (bf16) scale · u16 zero · per 32 k u32 word[4] as in q4_1
//   u8_gG  u8b_gG  f16 (bf16) scale · u16 zero · u32 word[G/4], byte i of word v is code 4v + i
//   less 128 mxfp4            u8 scale (e8m0) · u32 word[4] as in q4_0 nf4_g64 fp4_g64  f32 scale ·
//   per 32 k u32 word[4] as in q4_1 f8_g128          f32 scale · u8 [128][16], codes of all rows
//   for one k after another i8               u32 word[8], byte i of word v is element 4v + i; no
//   scale; K padded to 32
// Same bytes as stored.
#pragma once

#include "weights_legacy.h"

// NVRTC refuses an aligned static member ("alignment must also appear on definition").
#if defined(__CUDACC_RTC__)
#define INFERC_ALIGNED(bytes)
#else
#define INFERC_ALIGNED(bytes) alignas(bytes)
#endif

namespace inferc {
inline namespace INFERC_ISA {

// ---- scales

// Scale and zero point; the minimum of a group is scale * (what codes are stored less by - zero).
template <bool kBfloat>
struct AffineScale {
    static constexpr bool has_zero = true;
    static constexpr int64_t bytes = 64;
    template <class Lanes>
    static INFERC_INLINE typename Lanes::Float scale(Lanes lanes, const uint8_t *record) {
        if constexpr (kBfloat)
            return lanes.bhalf(record);
        else
            return lanes.half(record);
    }
};

struct FloatScale {
    static constexpr bool has_zero = false;
    static constexpr int64_t bytes = 64;
    template <class Lanes>
    static INFERC_INLINE typename Lanes::Float scale(Lanes lanes, const uint8_t *record) {
        return lanes.f32(record);
    }
};

// 2^(e - 128): half the scale, for codes of twice the value. The product of two normal powers, as
// the result may be subnormal. 255 stands for NaN: packing refuses it.
struct HalfPowerScale {
    static constexpr bool has_zero = false;
    static constexpr int64_t bytes = 16;
    template <class Lanes>
    static INFERC_INLINE typename Lanes::Float scale(Lanes lanes, const uint8_t *record) {
        auto e = lanes.u8(record);
        auto low = bitcast_f(((e >> 1) + lanes.splat(64)) << 23);
        auto high = bitcast_f((((e + lanes.splat(1)) >> 1) + lanes.splat(62)) << 23);
        return low * high;
    }
};

struct NoScale {
    static constexpr bool has_zero = false;
    static constexpr int64_t bytes = 0;
    template <class Lanes>
    static INFERC_INLINE typename Lanes::Float scale(Lanes lanes, const uint8_t *) {
        return to_f32(lanes.splat(1));
    }
};

// ---- codes of a group of 32, `at` its first byte

// Eight bits, signed: stored less by `kZeroOffset`.
template <int kZeroOffset>
struct Codes8 {
    static constexpr bool integers = true, values = false;
    static constexpr bool stored_signed = true, seven_bits = false;
    static constexpr int offset = 128, zero_offset = kZeroOffset;
    static constexpr int64_t group_bytes = 512;
    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *at, int v) {
        return lanes.u32(at + 64 * v);
    }
};

// Vectors of a table's floats for the nibbles of quad v.
template <class Lanes>
INFERC_INLINE void table_values(Lanes lanes, const float *table, const uint8_t *at, int v,
                                typename Lanes::Float *out) {
    auto words = lanes.u32(at + 64 * (v & 3));
    if (v >= 4) words = words >> 4;
    out[0] = lanes.template look_up<0>(table, words);
    out[1] = lanes.template look_up<8>(table, words);
    out[2] = lanes.template look_up<16>(table, words);
    out[3] = lanes.template look_up<24>(table, words);
}

#if defined(INFERC_AVX512)
constexpr bool kTablesAreFast = true;  // a register holds all of a table of floats
#else
constexpr bool kTablesAreFast = false;
#endif

// Four bits without a sign.
struct Codes4 {
    static constexpr bool integers = true, values = kTablesAreFast;
    static constexpr float values_factor = 1.0f;
    static constexpr bool stored_signed = false, seven_bits = true;
    static constexpr int offset = 0, zero_offset = 0, most = 15;
    static constexpr int64_t group_bytes = 256;
    INFERC_ALIGNED(64)
    static constexpr float of[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                     8, 9, 10, 11, 12, 13, 14, 15};
    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *at, int v) {
        return nibble_quad(lanes, at, v);
    }
    template <class Lanes>
    static INFERC_INLINE void quad_values(Lanes lanes, const uint8_t *at, int v,
                                          typename Lanes::Float *out) {
        table_values(lanes, of, at, v, out);
    }
};

// Four bits into a table of floats.
template <class Table>
struct TableCodes {
    static constexpr bool integers = false, values = true;
    static constexpr float values_factor = 1.0f;
    static constexpr int zero_offset = 0;
    static constexpr int64_t group_bytes = 256;
    template <class Lanes>
    static INFERC_INLINE void quad_values(Lanes lanes, const uint8_t *at, int v,
                                          typename Lanes::Float *out) {
        table_values(lanes, Table::of, at, v, out);
    }
};

// e2m1, doubled: integers.
struct E2M1Codes {
    static constexpr bool integers = true, values = kTablesAreFast;
    static constexpr float values_factor = 1.0f;
    static constexpr bool stored_signed = false, seven_bits = true;
    static constexpr int offset = 12, zero_offset = 0, most = 24;
    static constexpr int64_t group_bytes = 256;
    INFERC_ALIGNED(16)
    static constexpr uint8_t raised[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                           12, 11, 10, 9,  8,  6,  4,  0};
    INFERC_ALIGNED(64)
    static constexpr float of[16] = {0,   1,  2,  3,  4,  6,  8,  12,
                                     -0., -1, -2, -3, -4, -6, -8, -12};
    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *at, int v) {
        return lanes.look_up_bytes(raised, nibble_quad(lanes, at, v));
    }
    template <class Lanes>
    static INFERC_INLINE void quad_values(Lanes lanes, const uint8_t *at, int v,
                                          typename Lanes::Float *out) {
        table_values(lanes, of, at, v, out);
    }
};

// f8e4m3, bytes of all rows for one k after another.
struct Float8Codes {
    static constexpr bool integers = false, values = true;
    static constexpr float values_factor = 256.0f;
    static constexpr int zero_offset = 0;
    static constexpr int64_t group_bytes = 512;
    template <class Lanes>
    static INFERC_INLINE void quad_values(Lanes lanes, const uint8_t *at, int v,
                                          typename Lanes::Float *out) {
        lanes.f8_pair(at + 64 * v, out, out + 1);
        lanes.f8_pair(at + 64 * v + 32, out + 2, out + 3);
    }
};

// ---- formats

template <class Scale, class Codes, int kElements>
struct Grouped : Codes {
    static constexpr bool blocks = true, has_min = Scale::has_zero;
    static constexpr int block = kElements, group = 32;
    static constexpr int64_t record_bytes = Scale::bytes + kElements / 32 * Codes::group_bytes;

    template <class Lanes>
    static INFERC_INLINE void scales(Lanes lanes, const uint8_t *record,
                                     typename Lanes::Float *scale, typename Lanes::Float *minimum) {
        auto s = Scale::scale(lanes, record);
        for (int g = 0; g < kElements / 32; g++) scale[g] = s;
        if constexpr (has_min) {
            auto m = s * (to_f32(lanes.splat(Codes::zero_offset)) - to_f32(lanes.u16(record + 32)));
            for (int g = 0; g < kElements / 32; g++) minimum[g] = m;
        }
    }
    template <class Lanes>
    static INFERC_INLINE auto quad(Lanes lanes, const uint8_t *record, int g, int v) {
        return Codes::quad(lanes, record + Scale::bytes + g * Codes::group_bytes, v);
    }
    template <class Lanes>
    static INFERC_INLINE void quad_values(Lanes lanes, const uint8_t *record, int g, int v,
                                          typename Lanes::Float *out) {
        Codes::quad_values(lanes, record + Scale::bytes + g * Codes::group_bytes, v, out);
    }
};

struct NF4Table {
    INFERC_ALIGNED(64)
    static constexpr float of[16] = {-1.0f,
                                     -0.6961928009986877f,
                                     -0.5250730514526367f,
                                     -0.39491748809814453f,
                                     -0.28444138169288635f,
                                     -0.18477343022823334f,
                                     -0.09105003625154495f,
                                     0.0f,
                                     0.07958029955625534f,
                                     0.16093020141124725f,
                                     0.24611230194568634f,
                                     0.33791524171829224f,
                                     0.44070982933044434f,
                                     0.5626170039176941f,
                                     0.7229568362236023f,
                                     1.0f};
};
struct FP4Table {
    INFERC_ALIGNED(64)
    static constexpr float of[16] = {0.0f,       0.0625f / 12,  8.0f / 12,  12.0f / 12,
                                     4.0f / 12,  6.0f / 12,     2.0f / 12,  3.0f / 12,
                                     -0.0f,      -0.0625f / 12, -8.0f / 12, -12.0f / 12,
                                     -4.0f / 12, -6.0f / 12,    -2.0f / 12, -3.0f / 12};
};

struct U4_G32 : Grouped<AffineScale<false>, Codes4, 32> {};
struct U4_G64 : Grouped<AffineScale<false>, Codes4, 64> {};
struct U4_G128 : Grouped<AffineScale<false>, Codes4, 128> {};
struct U4B_G32 : Grouped<AffineScale<true>, Codes4, 32> {};
struct U4B_G64 : Grouped<AffineScale<true>, Codes4, 64> {};
struct U4B_G128 : Grouped<AffineScale<true>, Codes4, 128> {};
struct U8_G32 : Grouped<AffineScale<false>, Codes8<128>, 32> {};
struct U8_G64 : Grouped<AffineScale<false>, Codes8<128>, 64> {};
struct U8_G128 : Grouped<AffineScale<false>, Codes8<128>, 128> {};
struct U8B_G32 : Grouped<AffineScale<true>, Codes8<128>, 32> {};
struct U8B_G64 : Grouped<AffineScale<true>, Codes8<128>, 64> {};
struct U8B_G128 : Grouped<AffineScale<true>, Codes8<128>, 128> {};
struct F8_G128 : Grouped<FloatScale, Float8Codes, 128> {};
struct NF4_G64 : Grouped<FloatScale, TableCodes<NF4Table>, 64> {};
struct FP4_G64 : Grouped<FloatScale, TableCodes<FP4Table>, 64> {};
struct MXFP4 : Grouped<HalfPowerScale, E2M1Codes, 32> {};
struct I8 : Grouped<NoScale, Codes8<0>, 32> {};

}  // namespace INFERC_ISA
}  // namespace inferc
