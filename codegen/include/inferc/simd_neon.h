// f32x16 as four NEON registers. Included by simd.h only. The bits are those of simd_avx2.h; only
// dot_bf16 rounds as the instruction of Arm does.
#pragma once

namespace inferc {
inline namespace INFERC_ISA {

struct f32x16 {
    float32x4_t q0, q1, q2, q3;
};
struct i32x16 {
    uint32x4_t q0, q1, q2, q3;
};

// `f` of each of the four registers of a; of a and b; of a, b and c.
#define INFERC_A(f) {f(a.q0), f(a.q1), f(a.q2), f(a.q3)}
#define INFERC_AB(f) {f(a.q0, b.q0), f(a.q1, b.q1), f(a.q2, b.q2), f(a.q3, b.q3)}
#define INFERC_ABC(f) \
    {f(a.q0, b.q0, c.q0), f(a.q1, b.q1, c.q1), f(a.q2, b.q2, c.q2), f(a.q3, b.q3, c.q3)}

INFERC_INLINE f32x16 splat(float x) {
    const float32x4_t q = vdupq_n_f32(x);
    return {q, q, q, q};
}
INFERC_INLINE i32x16 splat_i(int32_t x) {
    const uint32x4_t q = vdupq_n_u32(uint32_t(x));
    return {q, q, q, q};
}
INFERC_INLINE f32x16 load(const float *p) {
    return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
INFERC_INLINE void store(float *p, f32x16 a) {
    vst1q_f32(p, a.q0);
    vst1q_f32(p + 4, a.q1);
    vst1q_f32(p + 8, a.q2);
    vst1q_f32(p + 12, a.q3);
}
// By bytes: numbers of other types may start anywhere.
INFERC_INLINE uint32x4_t load_quad(const uint8_t *p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
INFERC_INLINE i32x16 load_i(const void *p) {
    const uint8_t *b = (const uint8_t *)p;
    return {load_quad(b), load_quad(b + 16), load_quad(b + 32), load_quad(b + 48)};
}
INFERC_INLINE void store_i(void *p, i32x16 a) {
    uint8_t *b = (uint8_t *)p;
    vst1q_u8(b, vreinterpretq_u8_u32(a.q0));
    vst1q_u8(b + 16, vreinterpretq_u8_u32(a.q1));
    vst1q_u8(b + 32, vreinterpretq_u8_u32(a.q2));
    vst1q_u8(b + 48, vreinterpretq_u8_u32(a.q3));
}

// min and max return b if either is NaN.
INFERC_INLINE float32x4_t min_quad(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
INFERC_INLINE float32x4_t max_quad(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
INFERC_INLINE float32x4_t fma_quad(float32x4_t a, float32x4_t b, float32x4_t c) {
    return vfmaq_f32(c, a, b);
}
INFERC_INLINE uint32x4_t sub_bytes_quad(uint32x4_t a, uint32x4_t b) {
    return vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(a), vreinterpretq_u8_u32(b)));
}
INFERC_INLINE uint32x4_t less_quad(uint32x4_t a, uint32x4_t b) {
    return vcltq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b));
}
INFERC_INLINE float32x4_t to_f32_quad(uint32x4_t a) {
    return vcvtq_f32_s32(vreinterpretq_s32_u32(a));
}
INFERC_INLINE uint32x4_t round_quad(float32x4_t a) {  // to nearest, ties to even
    return vreinterpretq_u32_s32(vcvtnq_s32_f32(a));
}

INFERC_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return INFERC_AB(vaddq_f32); }
INFERC_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return INFERC_AB(vsubq_f32); }
INFERC_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return INFERC_AB(vmulq_f32); }
INFERC_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return INFERC_AB(vdivq_f32); }
INFERC_INLINE f32x16 operator-(f32x16 a) { return INFERC_A(vnegq_f32); }
INFERC_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return INFERC_ABC(fma_quad); }
INFERC_INLINE f32x16 min(f32x16 a, f32x16 b) { return INFERC_AB(min_quad); }
INFERC_INLINE f32x16 max(f32x16 a, f32x16 b) { return INFERC_AB(max_quad); }
INFERC_INLINE f32x16 abs(f32x16 a) { return INFERC_A(vabsq_f32); }
INFERC_INLINE f32x16 sqrt(f32x16 a) { return INFERC_A(vsqrtq_f32); }

INFERC_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return INFERC_AB(vandq_u32); }
INFERC_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return INFERC_AB(vorrq_u32); }
INFERC_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return INFERC_AB(veorq_u32); }
INFERC_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return INFERC_AB(vaddq_u32); }
INFERC_INLINE i32x16 operator>>(i32x16 a, int n) {
    return {a.q0 >> n, a.q1 >> n, a.q2 >> n, a.q3 >> n};
}
INFERC_INLINE i32x16 operator<<(i32x16 a, int n) {
    return {a.q0 << n, a.q1 << n, a.q2 << n, a.q3 << n};
}
INFERC_INLINE i32x16 sub_bytes(i32x16 a, i32x16 b) { return INFERC_AB(sub_bytes_quad); }
// Lanes 2 3 0 1 of every four.
INFERC_INLINE uint32x4_t swap_pairs_quad(uint32x4_t a) { return vextq_u32(a, a, 2); }
INFERC_INLINE i32x16 swap_pairs(i32x16 a) { return INFERC_A(swap_pairs_quad); }

// Masks are all ones or all zeros in each lane.
INFERC_INLINE i32x16 lanes_lt(f32x16 a, f32x16 b) { return INFERC_AB(vcltq_f32); }
INFERC_INLINE i32x16 lanes_lt(i32x16 a, i32x16 b) { return INFERC_AB(less_quad); }
INFERC_INLINE f32x16 choose_lanes(i32x16 a, f32x16 b, f32x16 c) { return INFERC_ABC(vbslq_f32); }
INFERC_INLINE i32x16 choose_lanes(i32x16 a, i32x16 b, i32x16 c) { return INFERC_ABC(vbslq_u32); }
INFERC_INLINE f32x16 select_lt(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
    return choose_lanes(lanes_lt(a, b), yes, no);
}
INFERC_INLINE i32x16 select_i_lt(i32x16 a, i32x16 b, i32x16 yes, i32x16 no) {
    return choose_lanes(lanes_lt(a, b), yes, no);
}

INFERC_INLINE f32x16 bitcast_f(i32x16 a) { return INFERC_A(vreinterpretq_f32_u32); }
INFERC_INLINE i32x16 bitcast_i(f32x16 a) { return INFERC_A(vreinterpretq_u32_f32); }
INFERC_INLINE f32x16 to_f32(i32x16 a) { return INFERC_A(to_f32_quad); }
INFERC_INLINE i32x16 round_to_int(f32x16 a) { return INFERC_A(round_quad); }

// Byte `i` of each lane moved to bits 24..31, zeros below.
template <int i>
INFERC_INLINE i32x16 byte_to_top(i32x16 a) {
    return i == 0 ? a << 24 : (a << (24 - 8 * i)) & splat_i(int32_t(0xff000000u));
}

// table[bits from .. from + 3 of each lane], table[byte] of bytes below 16.
template <int from>
INFERC_INLINE float32x4_t look_up_quad(const uint8x16x4_t &table, uint32x4_t words) {
    const uint32x4_t number = vandq_u32(from == 0 ? words : words >> from, vdupq_n_u32(15));
    // The four bytes of entry n stand at 4 n .. 4 n + 3.
    const uint32x4_t bytes = number * 0x04040404u + 0x03020100u;
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)));
}
template <int from>
INFERC_INLINE f32x16 look_up_floats(f32x16 table, i32x16 words) {
    const uint8x16x4_t all = {{vreinterpretq_u8_f32(table.q0), vreinterpretq_u8_f32(table.q1),
                               vreinterpretq_u8_f32(table.q2), vreinterpretq_u8_f32(table.q3)}};
    return {look_up_quad<from>(all, words.q0), look_up_quad<from>(all, words.q1),
            look_up_quad<from>(all, words.q2), look_up_quad<from>(all, words.q3)};
}
INFERC_INLINE uint32x4_t look_up_bytes_quad(uint8x16_t table, uint32x4_t bytes) {
    return vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(bytes)));
}
INFERC_INLINE i32x16 look_up_bytes(const uint8_t *table, i32x16 bytes) {
    const uint8x16_t all = vld1q_u8(table);
    return {look_up_bytes_quad(all, bytes.q0), look_up_bytes_quad(all, bytes.q1),
            look_up_bytes_quad(all, bytes.q2), look_up_bytes_quad(all, bytes.q3)};
}

INFERC_INLINE uint16x8_t load_half_words(const void *p) {
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)p));
}
INFERC_INLINE i32x16 widen(uint16x8_t low, uint16x8_t high) {
    return {vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high)};
}
// 16 numbers of 16 bits, zero extended.
INFERC_INLINE i32x16 load_u16(const uint8_t *p) {
    return widen(load_half_words(p), load_half_words(p + 16));
}
// 16 bytes, zero extended.
INFERC_INLINE i32x16 load_bytes(const uint8_t *p) {
    const uint8x16_t bytes = vld1q_u8(p);
    return widen(vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
}

INFERC_INLINE f32x16 widen_f16(uint16x8_t low, uint16x8_t high) {
    const float16x8_t a = vreinterpretq_f16_u16(low), b = vreinterpretq_f16_u16(high);
    return {vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
            vcvt_high_f32_f16(b)};
}
// 16 bytes f8e4m3, divided by 256 (f8_to_float).
INFERC_INLINE uint16x8_t f8_to_f16(int8x8_t bytes) {
    const uint16x8_t wide = vreinterpretq_u16_s16(vmovl_s8(bytes));
    return vandq_u16(wide << 7, vdupq_n_u16(0xbfff));
}
INFERC_INLINE f32x16 load_f8_half(const uint8_t *p) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
    return widen_f16(f8_to_f16(vget_low_s8(bytes)), f8_to_f16(vget_high_s8(bytes)));
}
INFERC_INLINE void load_f8(const uint8_t *p, f32x16 *a, f32x16 *b) {
    *a = load_f8_half(p);
    *b = load_f8_half(p + 16);
}

INFERC_INLINE f32x16 load(const bf16 *p) { return bitcast_f(load_u16((const uint8_t *)p) << 16); }
INFERC_INLINE f32x16 load(const f16 *p) {
    return widen_f16(load_half_words(p), load_half_words(p + 8));
}
INFERC_INLINE void store(f16 *p, f32x16 a) {
    const float16x8_t low = vcvt_high_f16_f32(vcvt_f16_f32(a.q0), a.q1);
    const float16x8_t high = vcvt_high_f16_f32(vcvt_f16_f32(a.q2), a.q3);
    vst1q_u8((uint8_t *)p, vreinterpretq_u8_f16(low));
    vst1q_u8((uint8_t *)(p + 8), vreinterpretq_u8_f16(high));
}
INFERC_INLINE uint16x4_t narrow_bf16(float32x4_t a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a);
    const uint32x4_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, bits | 0x400000u), 16);
}
INFERC_INLINE void store(bf16 *p, f32x16 a) {
    const uint16x8_t low = vcombine_u16(narrow_bf16(a.q0), narrow_bf16(a.q1));
    const uint16x8_t high = vcombine_u16(narrow_bf16(a.q2), narrow_bf16(a.q3));
    vst1q_u8((uint8_t *)p, vreinterpretq_u8_u16(low));
    vst1q_u8((uint8_t *)(p + 8), vreinterpretq_u8_u16(high));
}

// Halves folded onto each other.
INFERC_INLINE float reduce_add(f32x16 a) {
    const float32x4_t quarter = (a.q0 + a.q2) + (a.q1 + a.q3);
    const float32x2_t pair = vget_low_f32(quarter) + vget_high_f32(quarter);
    return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
INFERC_INLINE float reduce_max(f32x16 a) {
    const float32x4_t quarter = max_quad(max_quad(a.q0, a.q2), max_quad(a.q1, a.q3));
    return vmaxnmvq_f32(quarter);
}

// Bytes 0 and 2 (1 and 3) of each lane as two numbers of 16 bits.
template <bool kSigned>
INFERC_INLINE uint32x4_t even_quad(uint32x4_t a) {
    if constexpr (!kSigned) return a & 0x00ff00ffu;
    return vreinterpretq_u32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_u32(a), 8), 8));
}
template <bool kSigned>
INFERC_INLINE uint32x4_t odd_quad(uint32x4_t a) {
    if constexpr (kSigned) return vreinterpretq_u32_s16(vshrq_n_s16(vreinterpretq_s16_u32(a), 8));
    return vreinterpretq_u32_u16(vshrq_n_u16(vreinterpretq_u16_u32(a), 8));
}
template <bool kSigned>
INFERC_INLINE i32x16 even_bytes(i32x16 a) {
    return INFERC_A(even_quad<kSigned>);
}
template <bool kSigned>
INFERC_INLINE i32x16 odd_bytes(i32x16 a) {
    return INFERC_A(odd_quad<kSigned>);
}

// Two products of signed numbers of 16 bits added to each lane.
INFERC_INLINE uint32x4_t dot_short_quad(uint32x4_t acc, uint32x4_t w, uint32x4_t x) {
    const int16x8_t a = vreinterpretq_s16_u32(w), b = vreinterpretq_s16_u32(x);
    const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    return acc + vreinterpretq_u32_s32(vpaddq_s32(low, vmull_high_s16(a, b)));
}
INFERC_INLINE i32x16 dot_shorts(i32x16 a, i32x16 b, i32x16 c) { return INFERC_ABC(dot_short_quad); }

// Four products of unsigned bytes `w` and signed bytes `x` added to each lane, exact.
template <bool kSevenBits>
INFERC_INLINE int32x4_t dot_quad(int32x4_t acc, uint8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusdotq_s32(acc, w, x);
#elif defined(__ARM_FEATURE_DOTPROD)
    if (kSevenBits) return vdotq_s32(acc, vreinterpretq_s8_u8(w), x);
    // The top bit of w is no sign: it goes apart.
    const int8x16_t low = vreinterpretq_s8_u8(w & 0x7f), top = vreinterpretq_s8_u8(w >> 7);
    return vdotq_s32(acc, low, x) + (vdotq_s32(vdupq_n_s32(0), top, x) << 7);
#else
    // A product fits 16 bits, the sum of two does not.
    const int16x8_t low_w = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(w)));
    const int16x8_t high_w = vreinterpretq_s16_u16(vmovl_high_u8(w));
    const int32x4_t low = vpaddlq_s16(low_w * vmovl_s8(vget_low_s8(x)));
    const int32x4_t high = vpaddlq_s16(high_w * vmovl_high_s8(x));
    return acc + vpaddq_s32(low, high);
#endif
}
template <bool kSevenBits>
INFERC_INLINE uint32x4_t dot_words(uint32x4_t acc, uint32x4_t w, uint32x4_t x) {
    return vreinterpretq_u32_s32(dot_quad<kSevenBits>(
        vreinterpretq_s32_u32(acc), vreinterpretq_u8_u32(w), vreinterpretq_s8_u32(x)));
}
template <bool kSevenBits>
INFERC_INLINE i32x16 dot_bytes(i32x16 a, i32x16 b, i32x16 c) {
    return INFERC_ABC(dot_words<kSevenBits>);
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define INFERC_DPBF16 1
INFERC_INLINE float32x4_t dot_bf16_quad(float32x4_t acc, uint32x4_t w, uint32x4_t x) {
    return vbfdotq_f32(acc, vreinterpretq_bf16_u32(w), vreinterpretq_bf16_u32(x));
}
INFERC_INLINE f32x16 dot_bf16(f32x16 a, i32x16 b, i32x16 c) { return INFERC_ABC(dot_bf16_quad); }
#endif

#undef INFERC_A
#undef INFERC_AB
#undef INFERC_ABC

}  // namespace INFERC_ISA
}  // namespace inferc
