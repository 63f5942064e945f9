// Sixteen float lanes on every target: one zmm, two ymm, four NEON registers, or a compiler vector.
// Kernels are written once against this header; which file implements it follows from the
// compiler's feature macros.
//
// Nothing here needs the C++ library. Build with -ffp-contract=off: a fused multiply-add is written
// fma() where it is wanted, so that the order of roundings is the same in every instantiation.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INFERC_INLINE inline __attribute__((always_inline))
#define INFERC_NOINLINE inline __attribute__((noinline))
#if defined(__clang__)
#define INFERC_UNROLL _Pragma("clang loop unroll(full)")
#define INFERC_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define INFERC_UNROLL _Pragma("GCC unroll 16")
#define INFERC_UNROLL_4 _Pragma("GCC unroll 4")
#endif
// A loop with a constant count, unrolled so that arrays of vectors live in registers.
#define INFERC_EACH(i, count) INFERC_UNROLL for (int i = 0; i < (count); i++)

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define INFERC_AVX512 1
#define INFERC_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define INFERC_AVX2 1
#define INFERC_ISA avx2
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(__ARM_BIG_ENDIAN)
#define INFERC_NEON 1
#define INFERC_ISA neon
#else
#define INFERC_PORTABLE 1
#define INFERC_ISA portable
#endif
#if defined(INFERC_AVX512) || defined(INFERC_AVX2)
#include <immintrin.h>
#elif defined(INFERC_NEON)
#include <arm_neon.h>
#endif

namespace inferc {
// Objects of several targets may be linked into one library: each has its own copy of every
// template.
inline namespace INFERC_ISA {

constexpr int kLanes = 16;

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

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

INFERC_INLINE float to_float(float value) { return value; }
INFERC_INLINE float to_float(bf16 value) { return bits_to_float(uint32_t(value.bits) << 16); }

// Round to nearest even; a NaN keeps its payload's top bits and becomes quiet.
INFERC_INLINE bf16 to_bf16(float value) {
    uint32_t bits = float_to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded)};
}

#if defined(INFERC_PORTABLE) && !defined(__aarch64__)
INFERC_INLINE float to_float(f16 value) {
    uint32_t sign = uint32_t(value.bits & 0x8000u) << 16;
    uint32_t magnitude = value.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Rescaling by 2^112 moves the exponent bias and normalises subnormals in one exact product.
    return bits_to_float(sign | float_to_bits(bits_to_float(magnitude << 13) * 0x1p112f));
}

INFERC_INLINE f16 to_f16(float value) {
    uint32_t bits = float_to_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return {uint16_t(sign | 0x7e00u)};
    if (bits >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};
    if (bits <
        0x38800000u) {  // subnormal: adding 0.5 aligns the last bit, the adder rounds to even
        uint32_t aligned = float_to_bits(bits_to_float(bits) + 0.5f);
        return {uint16_t(sign | (aligned - 0x3f000000u))};
    }
    return {uint16_t(sign | ((bits - 0x38000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13))};
}
#elif defined(__aarch64__)
INFERC_INLINE float to_float(f16 value) {
    __fp16 half;
    memcpy(&half, &value, 2);
    return float(half);
}
INFERC_INLINE f16 to_f16(float value) {
    __fp16 half = __fp16(value);
    f16 out;
    memcpy(&out, &half, 2);
    return out;
}
#else
INFERC_INLINE float to_float(f16 value) { return _cvtsh_ss(value.bits); }
INFERC_INLINE f16 to_f16(float value) { return {uint16_t(_cvtss_sh(value, 0))}; }
#endif

// f8e4m3 divided by 256, without its NaN: the bits as those of a half, whose exponent has 8 more.
INFERC_INLINE float f8_to_float(uint8_t bits) {
    return to_float(f16{uint16_t(uint32_t(bits & 0x80u) << 8 | uint32_t(bits & 0x7fu) << 7)});
}

INFERC_INLINE void convert(float value, float *out) { *out = value; }
INFERC_INLINE void convert(float value, bf16 *out) { *out = to_bf16(value); }
INFERC_INLINE void convert(float value, f16 *out) { *out = to_f16(value); }

INFERC_INLINE void prefetch(const void *address) { __builtin_prefetch(address, 0, 3); }

// Into the second-level cache: needed later than the next few hundred instructions.
INFERC_INLINE void prefetch_far(const void *address) { __builtin_prefetch(address, 0, 2); }

INFERC_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
INFERC_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
INFERC_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INFERC_INLINE int64_t round_up(int64_t a, int64_t multiple) {
    return ceil_div(a, multiple) * multiple;
}

struct Range {
    int64_t begin, end;
};

// Share of `worker`: contiguous, sizes differ by one at most.
INFERC_INLINE Range share(int64_t count, int worker, int workers) {
    return {count * worker / workers, count * (worker + 1) / workers};
}

}  // namespace INFERC_ISA
}  // namespace inferc

#if defined(INFERC_AVX512)
#include "simd_avx512.h"
#elif defined(INFERC_AVX2)
#include "simd_avx2.h"
#elif defined(INFERC_NEON)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace inferc {
inline namespace INFERC_ISA {

INFERC_INLINE f32x16 &operator+=(f32x16 &a, f32x16 b) { return a = a + b; }
INFERC_INLINE f32x16 &operator*=(f32x16 &a, f32x16 b) { return a = a * b; }
INFERC_INLINE f32x16 zero() { return splat(0.0f); }
INFERC_INLINE f32x16 select_lt(f32x16 a, f32x16 b, float yes, float no) {
    return select_lt(a, b, splat(yes), splat(no));
}

// First `lanes` lanes from memory, the rest zero; and the reverse, touching nothing behind them.
template <class T>
INFERC_INLINE f32x16 load(const T *p, int lanes) {
    if (lanes >= kLanes) return load(p);
    T buffer[kLanes] = {};
    memcpy(buffer, p, size_t(lanes) * sizeof(T));
    return load(buffer);
}

template <class T>
INFERC_INLINE void store(T *p, f32x16 v, int lanes) {
    if (lanes >= kLanes) return store(p, v);
    T buffer[kLanes];
    store(buffer, v);
    memcpy(p, buffer, size_t(lanes) * sizeof(T));
}

}  // namespace INFERC_ISA
}  // namespace inferc
