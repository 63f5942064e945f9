// f32x16 as one zmm register. Included by simd.h only.
#pragma once

namespace inferc {
inline namespace INFERC_ISA {

struct f32x16 {
    __m512 v;
};
struct i32x16 {
    __m512i v;
};

INFERC_INLINE f32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
INFERC_INLINE i32x16 splat_i(int32_t x) { return {_mm512_set1_epi32(x)}; }
INFERC_INLINE f32x16 load(const float *p) { return {_mm512_loadu_ps(p)}; }
INFERC_INLINE void store(float *p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
INFERC_INLINE i32x16 load_i(const void *p) { return {_mm512_loadu_si512(p)}; }
INFERC_INLINE void store_i(void *p, i32x16 a) { _mm512_storeu_si512(p, a.v); }

INFERC_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
INFERC_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
INFERC_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
INFERC_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
INFERC_INLINE f32x16 operator-(f32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
INFERC_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// min and max return b if either is NaN.
INFERC_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
INFERC_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
INFERC_INLINE f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
INFERC_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
INFERC_INLINE f32x16 select_lt(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}

INFERC_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
INFERC_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
INFERC_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
INFERC_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
INFERC_INLINE i32x16 operator>>(i32x16 a, int n) { return {_mm512_srli_epi32(a.v, unsigned(n))}; }
INFERC_INLINE i32x16 operator<<(i32x16 a, int n) { return {_mm512_slli_epi32(a.v, unsigned(n))}; }
INFERC_INLINE i32x16 sub_bytes(i32x16 a, i32x16 b) { return {_mm512_sub_epi8(a.v, b.v)}; }
// Lanes 2 3 0 1 of every four.
INFERC_INLINE i32x16 swap_pairs(i32x16 a) { return {_mm512_shuffle_epi32(a.v, _MM_PERM_BADC)}; }
INFERC_INLINE i32x16 select_i_lt(i32x16 a, i32x16 b, i32x16 yes, i32x16 no) {
    return {_mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a.v, b.v), no.v, yes.v)};
}

INFERC_INLINE f32x16 bitcast_f(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
INFERC_INLINE i32x16 bitcast_i(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
INFERC_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
INFERC_INLINE i32x16 round_to_int(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }

// Byte `i` of each lane moved to bits 24..31, zeros below.
template <int i>
INFERC_INLINE i32x16 byte_to_top(i32x16 a) {
    const __m128i lane =
        _mm_setr_epi8(-1, -1, -1, i, -1, -1, -1, 4 + i, -1, -1, -1, 8 + i, -1, -1, -1, 12 + i);
    return {_mm512_shuffle_epi8(a.v, _mm512_broadcast_i32x4(lane))};
}

// table[bits from .. from + 3 of each lane], table[byte] of bytes below 16.
template <int from>
INFERC_INLINE f32x16 look_up_floats(f32x16 table, i32x16 words) {
    return {_mm512_permutexvar_ps((words >> from).v, table.v)};
}
INFERC_INLINE i32x16 look_up_bytes(const uint8_t *table, i32x16 bytes) {
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return {_mm512_shuffle_epi8(all, bytes.v)};
}

// 16 numbers of 16 bits, zero extended.
INFERC_INLINE i32x16 load_u16(const uint8_t *p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p))};
}
// 16 bytes, zero extended.
INFERC_INLINE i32x16 load_bytes(const uint8_t *p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))};
}
// 32 bytes f8e4m3, divided by 256 (f8_to_float).
INFERC_INLINE void load_f8(const uint8_t *p, f32x16 *a, f32x16 *b) {
    __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
    __m512i halves =
        _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(int16_t(0xbfff)));
    *a = {_mm512_cvtph_ps(_mm512_castsi512_si256(halves))};
    *b = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
}

INFERC_INLINE f32x16 load(const bf16 *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
INFERC_INLINE f32x16 load(const f16 *p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))};
}
INFERC_INLINE void store(f16 *p, f32x16 a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
INFERC_INLINE void store(bf16 *p, f32x16 a) {
    __m512i bits = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    sum = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}

INFERC_INLINE float reduce_add(f32x16 a) {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}
INFERC_INLINE float reduce_max(f32x16 a) { return _mm512_reduce_max_ps(a.v); }

// Bytes 0 and 2 (1 and 3) of each lane as two numbers of 16 bits.
template <bool kSigned>
INFERC_INLINE i32x16 even_bytes(i32x16 a) {
    if constexpr (!kSigned) return a & splat_i(0x00ff00ff);
    return {_mm512_srai_epi16(_mm512_slli_epi16(a.v, 8), 8)};
}
template <bool kSigned>
INFERC_INLINE i32x16 odd_bytes(i32x16 a) {
    if constexpr (kSigned) return {_mm512_srai_epi16(a.v, 8)};
    return {_mm512_srli_epi16(a.v, 8)};
}

// Two products of signed numbers of 16 bits added to each lane.
INFERC_INLINE i32x16 dot_shorts(i32x16 acc, i32x16 w, i32x16 x) {
#if defined(__AVX512VNNI__)
    return {_mm512_dpwssd_epi32(acc.v, w.v, x.v)};
#else
    return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(w.v, x.v))};
#endif
}

// Four products of unsigned bytes `w` and signed bytes `x` added to each lane, exact.
template <bool kSevenBits>
INFERC_INLINE i32x16 dot_bytes(i32x16 acc, i32x16 w, i32x16 x) {
#if defined(__AVX512VNNI__)
    return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)};
#else
    const __m512i ones = _mm512_set1_epi16(1);
    if (kSevenBits) {
        __m512i pairs = _mm512_maddubs_epi16(w.v, x.v);
        return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(pairs, ones))};
    }
    // 255 * 127 * 2 does not fit 16 bits: the top bit of w goes apart.
    const __m512i low = _mm512_set1_epi8(0x7f);
    __m512i a = _mm512_maddubs_epi16(_mm512_and_si512(w.v, low), x.v);
    __m512i b = _mm512_maddubs_epi16(_mm512_andnot_si512(low, w.v), x.v);
    __m512i sum = _mm512_add_epi32(_mm512_madd_epi16(a, ones), _mm512_madd_epi16(b, ones));
    return {_mm512_add_epi32(acc.v, sum)};
#endif
}

#if defined(__AVX512BF16__)
#define INFERC_DPBF16 1
INFERC_INLINE f32x16 dot_bf16(f32x16 acc, i32x16 w, i32x16 x) {
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)w.v, (__m512bh)x.v)};
}
#endif

}  // namespace INFERC_ISA
}  // namespace inferc
