// f32x16 as a compiler vector: any target of GCC or Clang, Arm included. Included by simd.h only.
#pragma once

#include <math.h>

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are never passed by value: all is inlined
#endif

namespace inferc {
inline namespace INFERC_ISA {

typedef float vector_f32 __attribute__((vector_size(64)));
typedef int32_t vector_i32 __attribute__((vector_size(64)));
typedef uint32_t vector_u32 __attribute__((vector_size(64)));
typedef int8_t vector_i8 __attribute__((vector_size(64)));

struct f32x16 {
    vector_f32 v;
};
struct i32x16 {
    vector_i32 v;
};

INFERC_INLINE f32x16 splat(float x) { return {x - vector_f32{}}; }
INFERC_INLINE i32x16 splat_i(int32_t x) { return {x - vector_i32{}}; }
INFERC_INLINE f32x16 load(const float *p) {
    f32x16 a;
    memcpy(&a, p, 64);
    return a;
}
INFERC_INLINE void store(float *p, f32x16 a) { memcpy(p, &a, 64); }
INFERC_INLINE i32x16 load_i(const void *p) {
    i32x16 a;
    memcpy(&a, p, 64);
    return a;
}
INFERC_INLINE void store_i(void *p, i32x16 a) { memcpy(p, &a, 64); }

INFERC_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {a.v + b.v}; }
INFERC_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {a.v - b.v}; }
INFERC_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {a.v * b.v}; }
INFERC_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {a.v / b.v}; }
INFERC_INLINE f32x16 operator-(f32x16 a) { return {-a.v}; }
// Fused only where the machine fuses: a library call a lane would be far too slow.
INFERC_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FP_FAST_FMAF) || defined(__aarch64__)
    f32x16 r;
    INFERC_EACH(i, kLanes) r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return r;
#else
    return {a.v * b.v + c.v};
#endif
}
// min and max return b if either is NaN.
INFERC_INLINE f32x16 min(f32x16 a, f32x16 b) { return {a.v < b.v ? a.v : b.v}; }
INFERC_INLINE f32x16 max(f32x16 a, f32x16 b) { return {a.v > b.v ? a.v : b.v}; }
INFERC_INLINE f32x16 abs(f32x16 a) { return {(vector_f32)((vector_i32)a.v & 0x7fffffff)}; }
INFERC_INLINE f32x16 sqrt(f32x16 a) {
    INFERC_EACH(i, kLanes) a.v[i] = __builtin_sqrtf(a.v[i]);
    return a;
}
INFERC_INLINE f32x16 select_lt(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
    return {a.v < b.v ? yes.v : no.v};
}

INFERC_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {a.v & b.v}; }
INFERC_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {a.v | b.v}; }
INFERC_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return {a.v ^ b.v}; }
INFERC_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return {(vector_i32)((vector_u32)a.v + (vector_u32)b.v)};
}
INFERC_INLINE i32x16 operator>>(i32x16 a, int n) { return {(vector_i32)((vector_u32)a.v >> n)}; }
INFERC_INLINE i32x16 operator<<(i32x16 a, int n) { return {(vector_i32)((vector_u32)a.v << n)}; }
INFERC_INLINE i32x16 sub_bytes(i32x16 a, i32x16 b) {
    return {(vector_i32)((vector_i8)a.v - (vector_i8)b.v)};
}
// Lanes 2 3 0 1 of every four.
INFERC_INLINE i32x16 swap_pairs(i32x16 a) {
    return {__builtin_shufflevector(a.v, a.v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12,
                                    13)};
}
INFERC_INLINE i32x16 select_i_lt(i32x16 a, i32x16 b, i32x16 yes, i32x16 no) {
    return {a.v < b.v ? yes.v : no.v};
}

INFERC_INLINE f32x16 bitcast_f(i32x16 a) { return {(vector_f32)a.v}; }
INFERC_INLINE i32x16 bitcast_i(f32x16 a) { return {(vector_i32)a.v}; }
INFERC_INLINE f32x16 to_f32(i32x16 a) { return {__builtin_convertvector(a.v, vector_f32)}; }
// To nearest even for |a| < 2^22: the sum with 1.5 * 2^23 rounds, and holds the integer in its low
// bits.
INFERC_INLINE i32x16 round_to_int(f32x16 a) {
    vector_f32 shifted = a.v + 12582912.0f;
    return {(vector_i32)shifted - 0x4b400000};
}

// Byte `i` of each lane moved to bits 24..31, zeros below.
template <int i>
INFERC_INLINE i32x16 byte_to_top(i32x16 a) {
    return {(vector_i32)(((vector_u32)a.v >> (8 * i)) << 24)};
}

// table[bits from .. from + 3 of each lane], table[byte] of bytes below 16.
template <int from>
INFERC_INLINE f32x16 look_up_floats(f32x16 table, i32x16 words) {
    float values[kLanes];
    memcpy(values, &table, 64);
    f32x16 a;
    for (int i = 0; i < kLanes; i++) a.v[i] = values[(uint32_t(words.v[i]) >> from) & 15];
    return a;
}
INFERC_INLINE i32x16 look_up_bytes(const uint8_t *table, i32x16 bytes) {
    uint8_t all[64];
    memcpy(all, &bytes, 64);
    for (int i = 0; i < 64; i++) all[i] = table[all[i] & 15];
    memcpy(&bytes, all, 64);
    return bytes;
}

// 16 numbers of 16 bits, zero extended.
INFERC_INLINE i32x16 load_u16(const uint8_t *p) {
    uint16_t values[kLanes];
    memcpy(values, p, 32);
    i32x16 a;
    for (int i = 0; i < kLanes; i++) a.v[i] = values[i];
    return a;
}
// 16 bytes, zero extended.
INFERC_INLINE i32x16 load_bytes(const uint8_t *p) {
    i32x16 a;
    for (int i = 0; i < kLanes; i++) a.v[i] = p[i];
    return a;
}
// 32 bytes f8e4m3, divided by 256 (f8_to_float).
INFERC_INLINE f32x16 load_f8_half(const uint8_t *p) {
    vector_i32 bits = load_bytes(p).v;
    vector_i32 sign = (vector_i32)((vector_u32)(bits & 0x80) << 24);
    return {(vector_f32)(sign | (bits & 0x7f) << 20) * 0x1p112f};
}
INFERC_INLINE void load_f8(const uint8_t *p, f32x16 *a, f32x16 *b) {
    *a = load_f8_half(p);
    *b = load_f8_half(p + 16);
}

INFERC_INLINE f32x16 load(const bf16 *p) {
    f32x16 a;
    INFERC_EACH(i, kLanes) a.v[i] = to_float(p[i]);
    return a;
}
INFERC_INLINE f32x16 load(const f16 *p) {
    f32x16 a;
    for (int i = 0; i < kLanes; i++) a.v[i] = to_float(p[i]);
    return a;
}
INFERC_INLINE void store(bf16 *p, f32x16 a) {
    for (int i = 0; i < kLanes; i++) p[i] = to_bf16(a.v[i]);
}
INFERC_INLINE void store(f16 *p, f32x16 a) {
    for (int i = 0; i < kLanes; i++) p[i] = to_f16(a.v[i]);
}

INFERC_INLINE float reduce_add(f32x16 a) {
    float s[kLanes];
    store(s, a);
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) s[i] = s[i] + s[i + step];
    return s[0];
}
INFERC_INLINE float reduce_max(f32x16 a) {
    float s = a.v[0];
    for (int i = 1; i < kLanes; i++) s = s > a.v[i] ? s : a.v[i];
    return s;
}

// Bytes 0 and 2 (1 and 3) of each lane as two numbers of 16 bits.
template <bool kSigned>
INFERC_INLINE i32x16 even_bytes(i32x16 a) {
    if constexpr (!kSigned) return a & splat_i(0x00ff00ff);
    vector_i32 high = (vector_i32)((vector_u32)a.v << 8) >> 24;
    vector_i32 low = (vector_i32)((vector_u32)a.v << 24) >> 24;
    return {(vector_i32)((vector_u32)high << 16) | (low & 0xffff)};
}
template <bool kSigned>
INFERC_INLINE i32x16 odd_bytes(i32x16 a) {
    return even_bytes<kSigned>(a >> 8);
}

// Two products of signed numbers of 16 bits added to each lane.
INFERC_INLINE i32x16 dot_shorts(i32x16 acc, i32x16 w, i32x16 x) {
    const auto low = [](i32x16 a) { return (vector_i32)((vector_u32)a.v << 16) >> 16; };
    return {acc.v + low(w) * low(x) + (w.v >> 16) * (x.v >> 16)};
}

// Four products of unsigned bytes `w` and signed bytes `x` added to each lane, exact.
template <bool kSevenBits>
INFERC_INLINE i32x16 dot_bytes(i32x16 acc, i32x16 w, i32x16 x) {
    INFERC_EACH(i, 4) {
        vector_i32 a = (vector_i32)((vector_u32)w.v >> (8 * i)) & 0xff;
        vector_i32 b = ((vector_i32)((vector_u32)x.v << (24 - 8 * i))) >> 24;
        acc.v += a * b;
    }
    return acc;
}

}  // namespace INFERC_ISA
}  // namespace inferc
