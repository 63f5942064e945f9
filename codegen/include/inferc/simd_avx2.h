// f32x16 as two ymm registers. Included by simd.h only.
#pragma once

namespace inferc {
inline namespace INFERC_ISA {

struct f32x16 {
    __m256 lo, hi;
};
struct i32x16 {
    __m256i lo, hi;
};

INFERC_INLINE f32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INFERC_INLINE i32x16 splat_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INFERC_INLINE f32x16 load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INFERC_INLINE void store(float *p, f32x16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
INFERC_INLINE i32x16 load_i(const void *p) {
    const __m256i *q = (const __m256i *)p;
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
INFERC_INLINE void store_i(void *p, i32x16 a) {
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)p + 1, a.hi);
}

#define INFERC_BOTH(type, name, args, low, high) \
    INFERC_INLINE type name args { return {low, high}; }
INFERC_BOTH(f32x16, operator+, (f32x16 a, f32x16 b), _mm256_add_ps(a.lo, b.lo),
            _mm256_add_ps(a.hi, b.hi))
INFERC_BOTH(f32x16, operator-, (f32x16 a, f32x16 b), _mm256_sub_ps(a.lo, b.lo),
            _mm256_sub_ps(a.hi, b.hi))
INFERC_BOTH(f32x16, operator*, (f32x16 a, f32x16 b), _mm256_mul_ps(a.lo, b.lo),
            _mm256_mul_ps(a.hi, b.hi))
INFERC_BOTH(f32x16, operator/, (f32x16 a, f32x16 b), _mm256_div_ps(a.lo, b.lo),
            _mm256_div_ps(a.hi, b.hi))
INFERC_BOTH(f32x16, operator-, (f32x16 a), _mm256_xor_ps(a.lo, _mm256_set1_ps(-0.0f)),
            _mm256_xor_ps(a.hi, _mm256_set1_ps(-0.0f)))
INFERC_BOTH(f32x16, fma, (f32x16 a, f32x16 b, f32x16 c), _mm256_fmadd_ps(a.lo, b.lo, c.lo),
            _mm256_fmadd_ps(a.hi, b.hi, c.hi))
// min and max return b if either is NaN.
INFERC_BOTH(f32x16, min, (f32x16 a, f32x16 b), _mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi))
INFERC_BOTH(f32x16, max, (f32x16 a, f32x16 b), _mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi))
INFERC_BOTH(f32x16, abs, (f32x16 a), _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.lo),
            _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.hi))
INFERC_BOTH(f32x16, sqrt, (f32x16 a), _mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi))
INFERC_BOTH(f32x16, select_lt, (f32x16 a, f32x16 b, f32x16 yes, f32x16 no),
            _mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)))

INFERC_BOTH(i32x16, operator&, (i32x16 a, i32x16 b), _mm256_and_si256(a.lo, b.lo),
            _mm256_and_si256(a.hi, b.hi))
INFERC_BOTH(i32x16, operator|, (i32x16 a, i32x16 b), _mm256_or_si256(a.lo, b.lo),
            _mm256_or_si256(a.hi, b.hi))
INFERC_BOTH(i32x16, operator^, (i32x16 a, i32x16 b), _mm256_xor_si256(a.lo, b.lo),
            _mm256_xor_si256(a.hi, b.hi))
INFERC_BOTH(i32x16, operator+, (i32x16 a, i32x16 b), _mm256_add_epi32(a.lo, b.lo),
            _mm256_add_epi32(a.hi, b.hi))
INFERC_BOTH(i32x16, operator>>, (i32x16 a, int n), _mm256_srli_epi32(a.lo, n),
            _mm256_srli_epi32(a.hi, n))
INFERC_BOTH(i32x16, operator<<, (i32x16 a, int n), _mm256_slli_epi32(a.lo, n),
            _mm256_slli_epi32(a.hi, n))
INFERC_BOTH(i32x16, sub_bytes, (i32x16 a, i32x16 b), _mm256_sub_epi8(a.lo, b.lo),
            _mm256_sub_epi8(a.hi, b.hi))
// Lanes 2 3 0 1 of every four.
INFERC_BOTH(i32x16, swap_pairs, (i32x16 a), _mm256_shuffle_epi32(a.lo, 0x4e),
            _mm256_shuffle_epi32(a.hi, 0x4e))
INFERC_BOTH(i32x16, select_i_lt, (i32x16 a, i32x16 b, i32x16 yes, i32x16 no),
            _mm256_blendv_epi8(no.lo, yes.lo, _mm256_cmpgt_epi32(b.lo, a.lo)),
            _mm256_blendv_epi8(no.hi, yes.hi, _mm256_cmpgt_epi32(b.hi, a.hi)))

INFERC_BOTH(f32x16, bitcast_f, (i32x16 a), _mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi))
INFERC_BOTH(i32x16, bitcast_i, (f32x16 a), _mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi))
INFERC_BOTH(f32x16, to_f32, (i32x16 a), _mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi))
INFERC_BOTH(i32x16, round_to_int, (f32x16 a), _mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi))

// Byte `i` of each lane moved to bits 24..31, zeros below.
template <int i>
INFERC_INLINE i32x16 byte_to_top(i32x16 a) {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, -1, i, -1, -1, -1, 4 + i, -1, -1, -1, 8 + i, -1, -1, -1, 12 + i));
    return {_mm256_shuffle_epi8(a.lo, order), _mm256_shuffle_epi8(a.hi, order)};
}

// table[bits from .. from + 3 of each lane], table[byte] of bytes below 16.
template <int from>
INFERC_INLINE __m256 look_up_half(f32x16 table, __m256i words) {
    __m256i index = from == 0 ? words : _mm256_srli_epi32(words, from);
    __m256 low = _mm256_permutevar8x32_ps(table.lo, index);
    __m256 high = _mm256_permutevar8x32_ps(table.hi, index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(words, 28 - from)));
}
template <int from>
INFERC_INLINE f32x16 look_up_floats(f32x16 table, i32x16 words) {
    return {look_up_half<from>(table, words.lo), look_up_half<from>(table, words.hi)};
}
INFERC_INLINE i32x16 look_up_bytes(const uint8_t *table, i32x16 bytes) {
    __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return {_mm256_shuffle_epi8(all, bytes.lo), _mm256_shuffle_epi8(all, bytes.hi)};
}

// 16 numbers of 16 bits, zero extended.
INFERC_INLINE i32x16 load_u16(const uint8_t *p) {
    const __m128i *q = (const __m128i *)p;
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
// 16 bytes, zero extended.
INFERC_INLINE i32x16 load_bytes(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
// 16 bytes f8e4m3, divided by 256 (f8_to_float).
INFERC_INLINE f32x16 load_f8_half(const uint8_t *p) {
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i halves =
        _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(int16_t(0xbfff)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
INFERC_INLINE void load_f8(const uint8_t *p, f32x16 *a, f32x16 *b) {
    *a = load_f8_half(p);
    *b = load_f8_half(p + 16);
}

INFERC_INLINE __m256 widen_bf16(const bf16 *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INFERC_INLINE f32x16 load(const bf16 *p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
INFERC_INLINE f32x16 load(const f16 *p) {
    const __m128i *q = (const __m128i *)p;
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
INFERC_INLINE void store(f16 *p, f32x16 a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
INFERC_INLINE __m256i narrow_bf16(__m256 a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
}
INFERC_INLINE void store(bf16 *p, f32x16 a) {
    __m256i both = _mm256_packus_epi32(narrow_bf16(a.lo), narrow_bf16(a.hi));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8));
}

INFERC_INLINE float reduce_add(f32x16 a) {
    __m256 half = _mm256_add_ps(a.lo, a.hi);
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}
INFERC_INLINE float reduce_max(f32x16 a) {
    __m256 half = _mm256_max_ps(a.lo, a.hi);
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}

// Bytes 0 and 2 (1 and 3) of each lane as two numbers of 16 bits.
template <bool kSigned>
INFERC_INLINE i32x16 even_bytes(i32x16 a) {
    if constexpr (!kSigned) return a & splat_i(0x00ff00ff);
    return {_mm256_srai_epi16(_mm256_slli_epi16(a.lo, 8), 8),
            _mm256_srai_epi16(_mm256_slli_epi16(a.hi, 8), 8)};
}
template <bool kSigned>
INFERC_INLINE i32x16 odd_bytes(i32x16 a) {
    if constexpr (kSigned) return {_mm256_srai_epi16(a.lo, 8), _mm256_srai_epi16(a.hi, 8)};
    return {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)};
}

// Sums of integers stay chains: GCC makes them trees otherwise, whose leaves need more registers
// than there are.
INFERC_INLINE void keep_chain(i32x16 *a) { asm("" : "+x"(a->lo), "+x"(a->hi)); }

// Two products of signed numbers of 16 bits added to each lane.
#if defined(__AVXVNNI__)
INFERC_BOTH(i32x16, dot_shorts, (i32x16 acc, i32x16 w, i32x16 x),
            _mm256_dpwssd_avx_epi32(acc.lo, w.lo, x.lo),
            _mm256_dpwssd_avx_epi32(acc.hi, w.hi, x.hi))
#else
INFERC_INLINE i32x16 dot_shorts(i32x16 acc, i32x16 w, i32x16 x) {
    acc = {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.lo, x.lo)),
           _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.hi, x.hi))};
    keep_chain(&acc);
    return acc;
}
#endif

#if defined(__AVXVNNI__)
// Four products of unsigned bytes `w` and signed bytes `x` added to each lane, exact.
template <bool kSevenBits>
INFERC_INLINE i32x16 dot_bytes(i32x16 acc, i32x16 w, i32x16 x) {
    return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, x.lo),
            _mm256_dpbusd_avx_epi32(acc.hi, w.hi, x.hi)};
}
#else
#define INFERC_SHORT_SUMS 1
// Sums of two neighbouring products of bytes of `w` and signed bytes of `x`, none of them -128:
// 16 bits each, which must hold them. Signed `w` may be anything.
INFERC_BOTH(i32x16, unsigned_products, (i32x16 w, i32x16 x), _mm256_maddubs_epi16(w.lo, x.lo),
            _mm256_maddubs_epi16(w.hi, x.hi))
INFERC_BOTH(i32x16, signed_products, (i32x16 w, i32x16 x),
            _mm256_maddubs_epi16(_mm256_abs_epi8(w.lo), _mm256_sign_epi8(x.lo, w.lo)),
            _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi), _mm256_sign_epi8(x.hi, w.hi)))
INFERC_BOTH(i32x16, add_shorts, (i32x16 a, i32x16 b), _mm256_add_epi16(a.lo, b.lo),
            _mm256_add_epi16(a.hi, b.hi))
// `times` the sum of the two numbers of 16 bits in each lane.
template <int16_t times>
INFERC_BOTH(i32x16, pairs_of_shorts, (i32x16 a),
            _mm256_madd_epi16(a.lo, _mm256_set1_epi16(times)),
            _mm256_madd_epi16(a.hi, _mm256_set1_epi16(times)))
#endif

#undef INFERC_BOTH

}  // namespace INFERC_ISA
}  // namespace inferc
