// Readers of q4_0 q4_1 q5_0 q5_1 q8_0: 32 k a record, one scale a row.
//
// Record, 16 rows: f16 scale[16] · f16 min[16] (q4_1, q5_1) · u32 high_bits[16] (q5_x; bit 8i + v
// of a row's word is the fifth bit of its element 4v + i) · quants. Quants of 4 and 5 bits: u32
// word[4][16]; byte i of word v has element 4v + i below, 16 + 4v + i above. Quants of 8 bits: u32
// word[8][16]; byte i of word v is element 4v + i. Same bytes as stored in GGUF, so a record is 16
// times a block.
#pragma once

#if defined(INFERC_DEVICE_CODE)
#include "inferc/cuda/weights_lanes.cuh"
#else
#include "weights.h"
#endif

namespace inferc {
inline namespace INFERC_ISA {

// Quad v (elements 4v .. 4v+3) of the 32 nibbles in four words a row.
template <class Lanes>
INFERC_INLINE typename Lanes::Int nibble_quad(Lanes lanes, const uint8_t *words, int v) {
    auto word = lanes.u32(words + 64 * (v & 3));
    return (v < 4 ? word : word >> 4) & lanes.splat(0x0f0f0f0fu);
}

// Fifth bits of quad v, at bit 4 of each byte.
template <class Int, class Lanes>
INFERC_INLINE Int fifth_bits(Lanes lanes, Int bits, int v) {
    return shift_bits(bits, v, 4) & lanes.splat(0x10101010u);
}

template <bool kMin, bool kFifth>
struct Legacy4 {
    static constexpr bool blocks = true, integers = true, values = false;
    static constexpr int block = 32, group = 32;
    static constexpr bool has_min = kMin, stored_signed = false, seven_bits = true;
    static constexpr int offset = kMin ? 0 : (kFifth ? 16 : 8), most = kFifth ? 31 : 15;
    static constexpr int64_t bits_at = kMin ? 64 : 32;
    static constexpr int64_t quants_at = bits_at + (kFifth ? 64 : 0);
    static constexpr int64_t record_bytes = quants_at + 256;

    template <class Lanes>
    static INFERC_INLINE void scales(Lanes lanes, const uint8_t *record,
                                     typename Lanes::Float *scale, typename Lanes::Float *minimum) {
        scale[0] = lanes.half(record);
        if constexpr (kMin) minimum[0] = lanes.half(record + 32);
    }

    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *record, int, int v) {
        auto q = nibble_quad(lanes, record + quants_at, v);
        if constexpr (kFifth) q = q | fifth_bits(lanes, lanes.u32(record + bits_at), v);
        return q;
    }
};

struct Q4_0 : Legacy4<false, false> {};
struct Q4_1 : Legacy4<true, false> {};
struct Q5_0 : Legacy4<false, true> {};
struct Q5_1 : Legacy4<true, true> {};

struct Q8_0 {
    static constexpr bool blocks = true, integers = true, values = false;
    static constexpr int block = 32, group = 32;
    static constexpr bool has_min = false, stored_signed = true, seven_bits = false;
    static constexpr int offset = 128;
    static constexpr int64_t record_bytes = 32 + 512;

    template <class Lanes>
    static INFERC_INLINE void scales(Lanes lanes, const uint8_t *record,
                                     typename Lanes::Float *scale, typename Lanes::Float *) {
        scale[0] = lanes.half(record);
    }

    template <class Lanes>
    static INFERC_INLINE typename Lanes::Int quad(Lanes lanes, const uint8_t *record, int, int v) {
        return lanes.u32(record + 32 + 64 * v);
    }
};

}  // namespace INFERC_ISA
}  // namespace inferc
