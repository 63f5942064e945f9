// Number formats: what they are, and conversions that give the same bits in every build.
#pragma once

namespace inferc {

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct f8e4m3 {  // 1 sign, 4 exponent (bias 7), 3 mantissa; 0x7f is NaN, there is no infinity
    uint8_t bits;
};
struct i8 {  // an integer of -127 to 127, of which a scale elsewhere makes a number
    int8_t bits;
};

template <class T>
INFERC_BOTH constexpr T min_of(T a, T b) {
    return a < b ? a : b;
}
template <class T>
INFERC_BOTH constexpr T max_of(T a, T b) {
    return a > b ? a : b;
}
template <class T>
INFERC_BOTH constexpr T ceil_div(T count, T each) {
    return (count + each - 1) / each;
}
template <class T>
INFERC_BOTH constexpr T round_up(T count, T multiple) {
    return ceil_div(count, multiple) * multiple;
}

#if defined(__CUDACC__)
INFERC_INLINE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
INFERC_INLINE uint32_t float_to_bits(float value) { return __float_as_uint(value); }
#else
INFERC_INLINE float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
INFERC_INLINE uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
#endif

INFERC_INLINE float to_float(float value) { return value; }
INFERC_INLINE float to_float(bf16 value) { return bits_to_float(uint32_t(value.bits) << 16); }

// Two bf16 in a word, the first in its low half.
INFERC_INLINE float low_bf16(uint32_t pair) { return bits_to_float(pair << 16); }
INFERC_INLINE float high_bf16(uint32_t pair) { return bits_to_float(pair & 0xffff0000u); }

// Conversions round to nearest even; a NaN becomes the device's NaN, 0x7fff.
#if defined(__CUDACC__)
INFERC_INLINE float to_float(f16 value) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(value.bits));
    return out;
}
INFERC_INLINE bf16 to_bf16(float value) {
    bf16 out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
    return out;
}
INFERC_INLINE f16 to_f16(float value) {
    f16 out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
    return out;
}
INFERC_INLINE uint32_t pack_bf16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
INFERC_INLINE uint32_t pack_f16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
#else
INFERC_INLINE float to_float(f16 value) {
    uint32_t sign = uint32_t(value.bits & 0x8000u) << 16;
    uint32_t magnitude = value.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Rescaling by 2^112 moves the exponent bias and normalises subnormals in one exact product.
    return bits_to_float(sign | float_to_bits(bits_to_float(magnitude << 13) * 0x1p112f));
}
INFERC_INLINE bf16 to_bf16(float value) {
    uint32_t bits = float_to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded)};
}
INFERC_INLINE f16 to_f16(float value) {
    uint32_t bits = float_to_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return {0x7fffu};
    if (bits >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};
    if (bits < 0x38800000u) {  // subnormal: adding 0.5 aligns the last bit, the adder rounds
        uint32_t aligned = float_to_bits(bits_to_float(bits) + 0.5f);
        return {uint16_t(sign | (aligned - 0x3f000000u))};
    }
    return {uint16_t(sign | ((bits - 0x38000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13))};
}
INFERC_INLINE uint32_t pack_bf16(float low, float high) {
    return uint32_t(to_bf16(low).bits) | uint32_t(to_bf16(high).bits) << 16;
}
INFERC_INLINE uint32_t pack_f16(float low, float high) {
    return uint32_t(to_f16(low).bits) | uint32_t(to_f16(high).bits) << 16;
}
#endif

// f8e4m3 divided by 256, without its NaN: the bits as those of a half, whose exponent has 8 more.
INFERC_INLINE float f8_to_float(uint8_t bits) {
    return to_float(f16{uint16_t(uint32_t(bits & 0x80u) << 8 | uint32_t(bits & 0x7fu) << 7)});
}
INFERC_INLINE float to_float(f8e4m3 value) {
    if ((value.bits & 0x7fu) == 0x7fu) return bits_to_float(0x7fffffffu);
    return f8_to_float(value.bits) * 256.0f;
}

// Rounds to nearest even; beyond 448 it gives 448, for a NaN 0x7f: cvt.rn.satfinite.e4m3x2.f32.
INFERC_INLINE f8e4m3 to_f8e4m3(float value) {
    uint32_t bits = float_to_bits(value);
    uint32_t sign = (bits >> 24) & 0x80u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return {0x7f};
    if (bits >= 0x43e00000u) return {uint8_t(sign | 0x7eu)};  // 448
    if (bits < 0x3c800000u) {  // below 2^-6: adding 2^14 leaves units of 2^-9 in the last bits
        uint32_t units = float_to_bits(bits_to_float(bits) + 16384.0f) - 0x46800000u;
        return {uint8_t(sign | units)};
    }
    return {uint8_t(sign | ((bits - 0x3c000000u + 0x7ffffu + ((bits >> 20) & 1u)) >> 20))};
}

INFERC_INLINE float to_float(i8 value) { return float(value.bits); }
// Rounds to nearest even, into -127 to 127; a NaN becomes one of them.
INFERC_INLINE i8 to_i8(float value) {
    return {int8_t(int(rintf(fminf(fmaxf(value, -127.0f), 127.0f))))};
}

INFERC_INLINE void convert(float value, float *out) { *out = value; }
INFERC_INLINE void convert(float value, bf16 *out) { *out = to_bf16(value); }
INFERC_INLINE void convert(float value, f16 *out) { *out = to_f16(value); }
INFERC_INLINE void convert(float value, f8e4m3 *out) { *out = to_f8e4m3(value); }

}  // namespace inferc
