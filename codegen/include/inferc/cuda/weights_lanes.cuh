// What the readers of weights_legacy.h, weights_k.h and weights_groups.h need on a GPU: a loader of
// two neighbouring rows of a tile of 16, those that a lane owns in a matrix product.
#pragma once

#include "inferc/cuda/platform.cuh"

#define INFERC_ISA rows_in_pairs
// Loops over what must live in registers: unrolled on a GPU. The emulation compiles faster without.
// INFERC_UNROLL_BY takes a constant of the function.
#if defined(__CUDACC__)
#define INFERC_EACH_OF INFERC_UNROLL
#define INFERC_PRAGMA(text) _Pragma(#text)
#define INFERC_UNROLL_BY(count) INFERC_PRAGMA(unroll count)
#else
#define INFERC_EACH_OF
#define INFERC_UNROLL_BY(count)
#endif
#include "inferc/weights_words.h"

namespace inferc {
inline namespace INFERC_ISA {

// A word, or a number, of each of the two rows.
struct RowWords {
    uint32_t low, high;
};
struct RowFloats {
    float low, high;
};

INFERC_INLINE RowWords operator&(RowWords a, RowWords b) {
    return {a.low & b.low, a.high & b.high};
}
INFERC_INLINE RowWords operator|(RowWords a, RowWords b) {
    return {a.low | b.low, a.high | b.high};
}
INFERC_INLINE RowWords operator^(RowWords a, RowWords b) {
    return {a.low ^ b.low, a.high ^ b.high};
}
INFERC_INLINE RowWords operator+(RowWords a, RowWords b) {
    return {a.low + b.low, a.high + b.high};
}
INFERC_INLINE RowWords operator<<(RowWords a, int bits) { return {a.low << bits, a.high << bits}; }
INFERC_INLINE RowWords operator>>(RowWords a, int bits) { return {a.low >> bits, a.high >> bits}; }
INFERC_INLINE RowFloats operator*(RowFloats a, RowFloats b) {
    return {a.low * b.low, a.high * b.high};
}
INFERC_INLINE RowFloats operator+(RowFloats a, RowFloats b) {
    return {a.low + b.low, a.high + b.high};
}
INFERC_INLINE RowFloats operator-(RowFloats a, RowFloats b) {
    return {a.low - b.low, a.high - b.high};
}
INFERC_INLINE RowFloats operator-(RowFloats a) { return {-a.low, -a.high}; }
INFERC_INLINE RowFloats to_f32(RowWords a) { return {to_f32(a.low), to_f32(a.high)}; }
INFERC_INLINE RowFloats bitcast_f(RowWords a) { return {bitcast_f(a.low), bitcast_f(a.high)}; }

// Rows 2 * pair and 2 * pair + 1.
struct RowPair {
    typedef RowFloats Float;
    typedef RowWords Int;
    int pair;
    INFERC_INLINE Int u32(const uint8_t *p) const {
        const uint2 both = *reinterpret_cast<const uint2 *>(p + 8 * pair);
        return {both.x, both.y};
    }
    INFERC_INLINE Int u16(const uint8_t *p) const {
        const uint32_t both = *reinterpret_cast<const uint32_t *>(p + 4 * pair);
        return {both & 0xffffu, both >> 16};
    }
    INFERC_INLINE Int u8(const uint8_t *p) const {
        const uint32_t both = *reinterpret_cast<const uint16_t *>(p + 2 * pair);
        return {both & 0xffu, both >> 8};
    }
    INFERC_INLINE Float f32(const uint8_t *p) const { return bitcast_f(u32(p)); }
    INFERC_INLINE Float half(const uint8_t *p) const {
        const Int both = u16(p);
        return {to_float(f16{uint16_t(both.low)}), to_float(f16{uint16_t(both.high)})};
    }
    INFERC_INLINE Float bhalf(const uint8_t *p) const { return bitcast_f(u16(p) << 16); }
    INFERC_INLINE Int splat(uint32_t x) const { return {x, x}; }
};

}  // namespace INFERC_ISA
}  // namespace inferc
