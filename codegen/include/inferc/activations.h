// Activation rows as the matmul kernels read them: R rows side by side, in 4-byte units along k.
//
// A unit is one float (MathF32), two bf16 (MathBf16 with the instruction), two int16 (MathInt16: k
// and k + 2), four int8 (MathInt8), or high or low bytes of four int16 in turn (MathInt16Bytes).
// Beside the units: sums of x over each weight group, for formats with a minimum or an offset; for
// integers the scale of each run of 32 and integer sums.
#pragma once

#include "weights.h"

namespace inferc {
inline namespace INFERC_ISA {

struct MathF32 {};   // float32 multiply-add
struct MathBf16 {};  // x rounded to bf16, products summed in float32, odd k before even k
struct MathInt8 {};  // x rounded to int8 by row and 32 k, integer sums by weight group
struct MathInt16 {};  // the same with 16 bits: x loses 2^-16 of the largest of its run at most
struct MathInt16Bytes {};  // the same numbers in bytes, x = 256 high + low; the same sums

template <class A, class B>
struct SameType {
    static constexpr bool value = false;
};
template <class A>
struct SameType<A, A> {
    static constexpr bool value = true;
};

// What activations are multiplied by, a power of two: what dense weights are divided by as read.
template <class W>
constexpr float x_factor() {
    if constexpr (W::blocks)
        return 1.0f;
    else
        return W::x_factor;
}

template <class T>
INFERC_INLINE T load_scalar(const uint8_t *p) {
    T x;
    memcpy(&x, p, sizeof(T));
    return x;
}

// Views into prepared rows; index [position][R].
struct Panel {
    const uint8_t *units;
    const float *scale;   // a 32 k (integers)
    const float *sum;     // a weight group
    const int32_t *isum;  // a weight group (integers)
};

#if defined(INFERC_DPBF16)
constexpr bool kPairedBf16 = true;
#else
constexpr bool kPairedBf16 = false;
#endif

template <class Math>
constexpr bool sums_integers() {
    return SameType<Math, MathInt8>::value || SameType<Math, MathInt16>::value ||
           SameType<Math, MathInt16Bytes>::value;
}

template <class Math>
constexpr int64_t units_of(int64_t k) {
    if (SameType<Math, MathInt8>::value) return k / 4;
    if (sums_integers<Math>()) return k / 2;
    if (SameType<Math, MathBf16>::value && kPairedBf16) return (k + 1) / 2;
    return k + k % 2;
}

// Bytes that R prepared rows need at most, whatever format and arithmetic; k is rounded up to 32 as
// some formats want.
constexpr int64_t prepared_bytes(int64_t rows, int64_t k) {
    const int64_t whole = (k + 31) / 32 * 32;
    return rows * (4 * (whole + 1) + whole / 8 + whole / 4 + whole / 4 + 4) + 64;
}

template <class W, class Math>
INFERC_INLINE Panel panel_at(const uint8_t *blob, int64_t rows, int64_t k, int64_t begin) {
    Panel p = {};
    p.units = blob + 4 * rows * units_of<Math>(begin);
    if constexpr (W::blocks) {
        const float *side = (const float *)(blob + 4 * rows * units_of<Math>(k));
        p.sum = side + rows * (begin / W::group);
        if constexpr (sums_integers<Math>()) {
            side += rows * (k / W::group);
            p.scale = side + rows * (begin / 32);
            p.isum = (const int32_t *)(side + rows * (k / 32)) + rows * (begin / W::group);
        }
    }
    return p;
}

// Sum of a group in a fixed order.
template <int kGroup>
INFERC_INLINE float group_sum(const float *x) {
    f32x16 s = load(x);
    if constexpr (kGroup == 32) s = s + load(x + 16);
    return reduce_add(s);
}

// k elements, times factors[element % 4], and zeros up to `units_end`.
INFERC_INLINE void prepare_row_f32(uint8_t *units, const float *x, int64_t rows, int64_t k,
                                   int64_t units_end, const float (&factors)[4]) {
    for (int64_t i = 0; i < k; i++) {
        float value = factors[i % 4] * x[i];
        memcpy(units + 4 * rows * i, &value, 4);
    }
    for (int64_t i = k; i < units_end; i++) memset(units + 4 * rows * i, 0, 4);
}

INFERC_INLINE void prepare_row_bf16(uint8_t *units, const float *x, int64_t rows, int64_t k) {
    for (int64_t i = 0; i < k; i += 2) {
        bf16 even = to_bf16(x[i]), odd = to_bf16(i + 1 < k ? x[i + 1] : 0.0f);
        if (kPairedBf16) {
            uint32_t both = uint32_t(even.bits) | uint32_t(odd.bits) << 16;
            memcpy(units + 2 * rows * i, &both, 4);
        } else {
            float pair[2] = {to_float(odd), to_float(even)};
            memcpy(units + 4 * rows * i, pair, 4);
            memcpy(units + 4 * rows * (i + 1), pair + 1, 4);
        }
    }
}

// The numbers of kBits bits in the lanes of q, two in a lane: elements 0 and 2 of every four in its
// first lane, 1 and 3 in its second.
template <int kBits>
INFERC_INLINE i32x16 paired(i32x16 q) {
    const i32x16 low = splat_i((1 << kBits) - 1);
    return (q & low) | (swap_pairs(q) & low) << 16;
}

// The low bytes of 16 numbers as four units.
INFERC_INLINE void store_bytes(uint8_t *units, i32x16 q, int64_t unit_stride) {
    uint64_t pairs[8];
    store_i(pairs, paired<8>(q));
    INFERC_EACH(i, 4) {
        uint32_t unit = uint32_t(pairs[2 * i] | pairs[2 * i] >> 24);
        memcpy(units + unit_stride * i, &unit, 4);
    }
}
INFERC_INLINE void store_units(MathInt8, uint8_t *units, i32x16 q, int64_t rows) {
    store_bytes(units, q, 4 * rows);
}
INFERC_INLINE void store_units(MathInt16Bytes, uint8_t *units, i32x16 q, int64_t rows) {
    store_bytes(units, (q + splat_i(128)) >> 8, 8 * rows);
    store_bytes(units + 4 * rows, q, 8 * rows);
}

// 16 numbers as eight units.
INFERC_INLINE void store_units(MathInt16, uint8_t *units, i32x16 q, int64_t rows) {
    uint32_t pairs[16];
    store_i(pairs, paired<16>(q));
    INFERC_EACH(i, 4) {
        memcpy(units + 8 * rows * i, pairs + 4 * i, 4);
        memcpy(units + 8 * rows * i + 4 * rows, pairs + 4 * i + 1, 4);
    }
}

// The largest number whose high and low bytes are both signed.
constexpr float kMostInt16 = 127 * 256 + 127;

// One run of 32: scale = max |x| / most, integers to nearest even; an all-zero run gives zeros, one
// with a NaN or an infinity a scale that is NaN. isum gets the integer sums of groups of kGroup:
// sums of 32 integers of 16 bits are exact in floats, in any order.
template <class Math, int kGroup>
INFERC_INLINE void prepare_run(uint8_t *units, const float *x, int64_t rows, float *scale,
                               int32_t *isum) {
    constexpr float kMost = SameType<Math, MathInt8>::value ? 127.0f : kMostInt16;
    f32x16 a = load(x), b = load(x + 16);
    float largest = reduce_max(max(abs(a), abs(b)));
    float poison = reduce_add(a * zero() + b * zero());
    f32x16 inverse = splat(largest > 0.0f ? kMost / largest : 0.0f);
    i32x16 low = round_to_int(a * inverse), high = round_to_int(b * inverse);
    *scale = largest / kMost + poison;
    store_units(Math{}, units, low, rows);
    store_units(Math{}, units + 4 * rows * units_of<Math>(16), high, rows);
    const auto sum = [&](f32x16 numbers) {
        return poison == 0.0f ? int32_t(reduce_add(numbers)) : 0;
    };
    if constexpr (kGroup == 32) {
        isum[0] = sum(to_f32(low) + to_f32(high));
    } else {
        isum[0] = sum(to_f32(low));
        isum[rows] = sum(to_f32(high));
    }
}

template <class W, class Math>
INFERC_INLINE void prepare_row_integers(uint8_t *blob, const float *x, int64_t rows, int64_t r,
                                        int64_t k, int64_t x_k) {
    Panel p = panel_at<W, Math>(blob, rows, k, 0);
    float *sum = (float *)p.sum + r, *scale = (float *)p.scale + r;
    int32_t *isum = (int32_t *)p.isum + r;
    constexpr int kGroups = 32 / W::group;
    for (int64_t i = 0; i < k; i += 32) {
        int64_t at = i / 32 * rows, group_at = i / W::group * rows;
        float tail[32];
        const float *run = x + i;
        if (i + 32 > x_k) {
            memset(tail, 0, sizeof tail);
            memcpy(tail, run, size_t(x_k - i) * 4);
            run = tail;
        }
        prepare_run<Math, W::group>(blob + 4 * (r + rows * units_of<Math>(i)), run, rows,
                                    scale + at, isum + group_at);
        for (int g = 0; g < kGroups; g++)
            sum[group_at + g * rows] = scale[at] * float(isum[group_at + g * rows]);
    }
}

// Fills `blob` with `rows` rows of x side by side; rows from `valid` on are zero. Rows of x have
// `x_k` elements, k is that padded as the weights are. kInPlace: for weights that are decoded in
// place (decodes_in_place()).
template <class W, class Math, bool kInPlace = false>
INFERC_INLINE void prepare_rows(uint8_t *blob, const float *x, int64_t stride, int64_t valid,
                                int64_t rows, int64_t k, int64_t x_k) {
    if (valid < rows) memset(blob, 0, size_t(prepared_bytes(rows, k) - 64));
    for (int64_t r = 0; r < valid; r++, x += stride) {
        if constexpr (sums_integers<Math>()) {
            prepare_row_integers<W, Math>(blob, x, rows, r, k, x_k);
            continue;
        } else if constexpr (SameType<Math, MathBf16>::value) {
            prepare_row_bf16(blob + 4 * r, x, rows, k);
        } else {
            constexpr float f = x_factor<W>(), step = kInPlace ? 0x1p8f : 1.0f;
            constexpr float factors[4] = {f * step * step * step, f * step * step, f * step, f};
            prepare_row_f32(blob + 4 * r, x, rows, x_k, units_of<Math>(k), factors);
        }
        if constexpr (W::blocks) {
            if constexpr (W::has_min) {
                float *sum = (float *)panel_at<W, Math>(blob, rows, k, 0).sum + r;
                for (int64_t g = 0; g < k / W::group; g++)
                    sum[g * rows] = group_sum<W::group>(x + g * W::group);
            }
        }
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
