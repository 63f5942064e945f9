// Readers of the K formats q2_k q3_k q4_k q5_k q6_k: 256 k a record, a scale for each group of 16
// or 32.
//
// Record, 16 rows; `f16 [16]` is one half a row, `u32 [n][16]` n words a row:
//   q2_k: f16 d, dmin; u32 scales[4] (byte of group g: scale below, min above); u32 low[16].
//   q3_k: f16 d; u32 scales[3] (12 bytes as in GGUF); u32 low[16]; u32 high[8] (two groups a word).
//   q4_k: f16 d, dmin; u32 scales[3] (12 bytes as in GGUF); of each group u32 word[4] as in q4_1.
//   q5_k: f16 d, dmin; u32 scales[3]; of each group u32 high_bits, word[4] as in q5_1.
//   q6_k: f16 d; u32 scales[4] (int8 of group g); of each group u32 word[3].
// Groups of 16, element 4v + i: low two bits at bit 8i + 2v of a word; q3_k's third bit at
// 8i + 4*(g & 1) + v of the word shared by two groups; q6_k: byte i of word v, the last four in the
// upper two bits of all words, from bits 4 and 5 down. Same number of bytes as stored in GGUF.
#pragma once

#include "weights_legacy.h"

namespace inferc {
inline namespace INFERC_ISA {

// q4_k and q5_k: eight 6-bit scales and minima in 12 bytes.
template <class Lanes>
INFERC_INLINE void six_bit_scales(Lanes lanes, const uint8_t *record, typename Lanes::Float *scale,
                                  typename Lanes::Float *minimum) {
    auto d = lanes.half(record), dmin = lanes.half(record + 32);
    auto a = lanes.u32(record + 64), b = lanes.u32(record + 128), c = lanes.u32(record + 192);
    const auto six = lanes.splat(0x3f3f3f3fu), four = lanes.splat(0x0f0f0f0fu);
    const auto top = lanes.splat(0x30303030u), byte = lanes.splat(0xffu);
    auto scale_low = a & six, min_low = b & six;
    auto scale_high = (c & four) | ((a >> 2) & top);
    auto min_high = ((c >> 4) & four) | ((b >> 2) & top);
    for (int g = 0; g < 4; g++) {
        scale[g] = d * to_f32(byte_of(scale_low, g, byte));
        scale[g + 4] = d * to_f32(byte_of(scale_high, g, byte));
        minimum[g] = -(dmin * to_f32(byte_of(min_low, g, byte)));
        minimum[g + 4] = -(dmin * to_f32(byte_of(min_high, g, byte)));
    }
}

template <bool kFifth>
struct KNibble {
    static constexpr bool blocks = true, integers = true, values = false;
    static constexpr int block = 256, group = 32;
    static constexpr bool has_min = true, stored_signed = false, seven_bits = true;
    static constexpr int offset = 0, most = kFifth ? 31 : 15;
    static constexpr int64_t group_bytes = kFifth ? 320 : 256;
    static constexpr int64_t record_bytes = 256 + 8 * group_bytes;

    template <class Lanes>
    static INFERC_INLINE void scales(Lanes lanes, const uint8_t *record,
                                     typename Lanes::Float *scale, typename Lanes::Float *minimum) {
        six_bit_scales(lanes, record, scale, minimum);
    }

    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *record, int g,
                                                  int v) {
        const uint8_t *at = record + 256 + g * group_bytes;
        if constexpr (!kFifth) return nibble_quad(lanes, at, v);
        return nibble_quad(lanes, at + 64, v) | fifth_bits(lanes, lanes.u32(at), v);
    }
};

struct Q4_K : KNibble<false> {};
struct Q5_K : KNibble<true> {};

struct Q2_K {
    static constexpr bool blocks = true, integers = true, values = false;
    static constexpr int block = 256, group = 16;
    static constexpr bool has_min = true, stored_signed = false, seven_bits = true;
    static constexpr int offset = 0, most = 3;
    static constexpr int64_t record_bytes = 64 + 4 * 64 + 16 * 64;

    template <class Lanes>
    static INFERC_INLINE void scales(Lanes lanes, const uint8_t *record,
                                     typename Lanes::Float *scale, typename Lanes::Float *minimum) {
        auto d = lanes.half(record), dmin = lanes.half(record + 32);
        const auto four = lanes.splat(0xfu);
        for (int g = 0; g < 16; g++) {
            auto both = lanes.u32(record + 64 + 64 * (g / 4)) >> (8 * (g % 4));
            scale[g] = d * to_f32(both & four);
            minimum[g] = -(dmin * to_f32((both >> 4) & four));
        }
    }

    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *record, int g,
                                                  int v) {
        auto low = lanes.u32(record + 320 + 64 * g);
        return (low >> (2 * v)) & lanes.splat(0x03030303u);
    }
};

struct Q3_K {
    static constexpr bool blocks = true, integers = true, values = false;
    static constexpr int block = 256, group = 16;
    static constexpr bool has_min = false, stored_signed = false, seven_bits = true;
    static constexpr int offset = 4, most = 7;
    static constexpr int64_t low_at = 32 + 3 * 64, high_at = low_at + 16 * 64;
    static constexpr int64_t record_bytes = high_at + 8 * 64;

    template <class Lanes>
    static INFERC_INLINE void scales(Lanes lanes, const uint8_t *record,
                                     typename Lanes::Float *scale, typename Lanes::Float *) {
        auto d = lanes.half(record);
        auto a = lanes.u32(record + 32), b = lanes.u32(record + 96), c = lanes.u32(record + 160);
        const auto four = lanes.splat(0x0f0f0f0fu), top = lanes.splat(0x30303030u);
        const auto bias = lanes.splat(32), byte = lanes.splat(0xffu);
        typename Lanes::Int sixes[4] = {
            (a & four) | ((c << 4) & top), (b & four) | ((c << 2) & top),
            ((a >> 4) & four) | (c & top), ((b >> 4) & four) | ((c >> 2) & top)};
        for (int g = 0; g < 16; g++)
            scale[g] = d * (to_f32(byte_of(sixes[g / 4], g % 4, byte)) - to_f32(bias));
    }

    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *record, int g,
                                                  int v) {
        auto low = lanes.u32(record + low_at + 64 * g) >> (2 * v);
        auto high = lanes.u32(record + high_at + 64 * (g / 2));
        high = shift_bits(high, 4 * (g & 1) + v, 2) & lanes.splat(0x04040404u);
        return (low & lanes.splat(0x03030303u)) | high;
    }
};

struct Q6_K {
    static constexpr bool blocks = true, integers = true, values = false;
    static constexpr int block = 256, group = 16;
    static constexpr bool has_min = false, stored_signed = false, seven_bits = true;
    static constexpr int offset = 32, most = 63;
    static constexpr int64_t quants_at = 32 + 4 * 64;
    static constexpr int64_t record_bytes = quants_at + 16 * 192;

    template <class Lanes>
    static INFERC_INLINE void scales(Lanes lanes, const uint8_t *record,
                                     typename Lanes::Float *scale, typename Lanes::Float *) {
        auto d = lanes.half(record);
        const auto byte = lanes.splat(0xffu), sign = lanes.splat(0x80u);
        for (int g = 0; g < 16; g++) {
            auto s = byte_of(lanes.u32(record + 32 + 64 * (g / 4)), g % 4, byte) ^ sign;
            scale[g] = d * (to_f32(s) - to_f32(sign));
        }
    }

    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *record, int g,
                                                  int v) {
        const uint8_t *at = record + quants_at + 192 * g;
        if (v < 3) return lanes.u32(at + 64 * v) & lanes.splat(0x3f3f3f3fu);
        return ((lanes.u32(at) >> 2) & lanes.splat(0x30303030u)) |
               ((lanes.u32(at + 64) >> 4) & lanes.splat(0x0c0c0c0cu)) |
               ((lanes.u32(at + 128) >> 6) & lanes.splat(0x03030303u));
    }
};

}  // namespace INFERC_ISA
}  // namespace inferc
