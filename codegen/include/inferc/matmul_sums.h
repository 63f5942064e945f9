// How the kernels of matmul*.h decode weights, multiply and sum, by arithmetic.
#pragma once

#include "activations.h"
#include "weights_groups.h"
#include "weights_k.h"

namespace inferc {
inline namespace INFERC_ISA {

template <class W>
constexpr bool gives_values() {
    if constexpr (W::blocks)
        return W::values;
    else
        return false;
}

// Weights of blocks over what decode gives: an integer in the top byte converts to 2^24 times its
// value, exactly; the scale takes it back.
template <class W>
constexpr float decoded_factor() {
    if constexpr (gives_values<W>())
        return W::values_factor;
    else
        return 0x1p-24f;
}

// AVX2: unsigned bytes of a quad need not be moved to the top to be 2^24 times their value as
// floats: byte i is taken where it stands, 2^8i times its value, and x gets the rest. Products are
// the same numbers. Masks go to any port, shuffles only to two.
template <class W, class Math>
constexpr bool decodes_in_place() {
#if defined(INFERC_AVX2)
    if constexpr (W::blocks && SameType<Math, MathF32>::value && !gives_values<W>())
        return W::seven_bits && W::offset == 0;
#endif
    return false;
}

// A run is what is decoded at once: two k of dense weights, a quad of block weights.
// `vectors` of a run meet as many 4-byte activation units.
template <class W, class Math>
struct Operand {
    typedef f32x16 Vector;
    typedef f32x16 Acc;
    static constexpr int vectors = W::blocks ? 4 : 2;

    static constexpr float scale_factor = decoded_factor<W>();

    static INFERC_INLINE void decode(const uint8_t *at, int group, int v, Vector *out) {
        if constexpr (gives_values<W>()) {
            W::quad_values(AllLanes{}, at, group, v, out);
        } else if constexpr (W::blocks) {
            i32x16 q = signed_quad<W>(AllLanes{}, at, group, v);
            out[0] = to_f32(byte_to_top<0>(q));
            out[1] = to_f32(byte_to_top<1>(q));
            out[2] = to_f32(byte_to_top<2>(q));
            out[3] = to_f32(byte_to_top<3>(q));
        } else if constexpr (SameType<Math, MathBf16>::value) {
            W::pair(at, out + 1, out);  // odd k first, as the instruction does it
        } else {
            W::pair(at, out, out + 1);
        }
    }
    // The vectors of decode(), byte i times 2^(8i - 24).
    static INFERC_INLINE void decode_in_place(const uint8_t *at, int group, int v, Vector *out) {
        i32x16 q = unsigned_quad<W>(AllLanes{}, at, group, v);
        INFERC_EACH(i, 4) out[i] = to_f32(q & splat_i(0xff << (8 * i)));
    }
    static INFERC_INLINE Acc start(const Panel &, int64_t) { return zero(); }
    static INFERC_INLINE Acc multiply(Acc acc, Vector w, const uint8_t *unit) {
        return fma(splat(load_scalar<float>(unit)), w, acc);
    }
    static INFERC_INLINE f32x16 fold(f32x16 total, f32x16 scale, Acc acc, const Panel &, int64_t) {
        return fma(scale, acc, total);
    }
};

#if defined(INFERC_DPBF16)
template <>
struct Operand<BF16, MathBf16> {
    typedef i32x16 Vector;
    typedef f32x16 Acc;
    static constexpr int vectors = 1;
    static INFERC_INLINE void decode(const uint8_t *at, int, int, Vector *out) {
        *out = load_i(at);
    }
    static INFERC_INLINE Acc start(const Panel &, int64_t) { return zero(); }
    static INFERC_INLINE Acc multiply(Acc acc, Vector w, const uint8_t *unit) {
        return dot_bf16(acc, w, splat_i(load_scalar<int32_t>(unit)));
    }
};
#endif

#if defined(INFERC_SHORT_SUMS)
constexpr bool kShortSums = true;
#else
constexpr bool kShortSums = false;
#endif

// What arithmetics of integers share. kSigned: bytes of weights are taken as signed.
template <class W, bool kSigned>
struct IntegerOperand {
    typedef i32x16 Vector;
    typedef i32x16 Acc;
    static constexpr float scale_factor = 1.0f;
    static constexpr bool is_signed = kSigned;

    static INFERC_INLINE i32x16 quad(const uint8_t *at, int group, int v) {
        if constexpr (is_signed)
            return signed_quad<W>(AllLanes{}, at, group, v);
        else
            return unsigned_quad<W>(AllLanes{}, at, group, v);
    }
    // The offset of unsigned weights times the sum of x is taken off in advance.
    static INFERC_INLINE Acc start(const Panel &a, int64_t at) {
        return splat_i(W::offset == 0 || is_signed ? 0 : -W::offset * a.isum[at]);
    }
    static INFERC_INLINE f32x16 fold(f32x16 total, f32x16 scale, Acc acc, const Panel &a,
                                     int64_t at) {
        return fma(scale * splat(a.scale[at]), to_f32(acc), total);
    }
};

// Eight bits stay signed where products are summed by pairs.
template <class W>
struct Operand<W, MathInt8> : IntegerOperand<W, kShortSums && !W::seven_bits> {
    typedef IntegerOperand<W, kShortSums && !W::seven_bits> Base;
    using typename Base::Acc;
    using typename Base::Vector;
    static constexpr int vectors = 1;
    static INFERC_INLINE void decode(const uint8_t *at, int group, int v, Vector *out) {
        *out = Base::quad(at, group, v);
    }
#if !defined(INFERC_SHORT_SUMS)
    static INFERC_INLINE Acc multiply(Acc acc, Vector w, const uint8_t *unit) {
        return dot_bytes<W::seven_bits>(acc, w, splat_i(load_scalar<int32_t>(unit)));
    }
#endif
};

template <class W>
struct Operand<W, MathInt16> : IntegerOperand<W, !W::seven_bits> {
    typedef IntegerOperand<W, !W::seven_bits> Base;
    using typename Base::Acc;
    using typename Base::Vector;
    using Base::is_signed;
    static constexpr int vectors = 2;
    static INFERC_INLINE void decode(const uint8_t *at, int group, int v, Vector *out) {
        i32x16 q = Base::quad(at, group, v);
        out[0] = even_bytes<is_signed>(q);
        out[1] = odd_bytes<is_signed>(q);
    }
    // No sum is too large: 255 * 32639 * 32 < 2^31.
    static INFERC_INLINE Acc multiply(Acc acc, Vector w, const uint8_t *unit) {
        return dot_shorts(acc, w, splat_i(load_scalar<int32_t>(unit)));
    }
};

// Bytes of weights meet the high bytes of x, then the low ones: less to decode.
template <class W>
struct Operand<W, MathInt16Bytes> : IntegerOperand<W, false> {
    typedef IntegerOperand<W, false> Base;
    using typename Base::Acc;
    using typename Base::Vector;
    static constexpr int vectors = 2;
    static INFERC_INLINE void decode(const uint8_t *at, int group, int v, Vector *out) {
        out[0] = out[1] = Base::quad(at, group, v);
    }
};

template <class W, class Math>
INFERC_INLINE f32x16 finish_group(f32x16 total, f32x16 scale, const f32x16 *minimum,
                                  typename Operand<W, Math>::Acc acc, const Panel &a,
                                  int64_t scale_at, int64_t sum_at) {
    total = Operand<W, Math>::fold(total, scale, acc, a, scale_at);
    if constexpr (W::has_min) total = fma(*minimum, splat(a.sum[sum_at]), total);
    return total;
}

// The sums of R rows by C tiles over a group, or over all k of dense weights. Unit by unit, a unit
// being one vector of each tile times R activation units.
template <class W, class Math, int R, int C>
struct Sums {
    typedef Operand<W, Math> Op;
    typename Op::Acc acc[R][C];

    INFERC_INLINE void start(const Panel &a, int64_t at) {
        INFERC_EACH(r, R)
            INFERC_EACH(c, C) acc[r][c] = Op::start(a, at + r);
    }
    INFERC_INLINE void add(int, int c, typename Op::Vector w, const uint8_t *unit) {
        INFERC_EACH(r, R) acc[r][c] = Op::multiply(acc[r][c], w, unit + 4 * r);
    }
    // The same for all tiles.
    INFERC_INLINE void add_all(int, const typename Op::Vector *w, const uint8_t *unit) {
        INFERC_EACH(r, R)
            INFERC_EACH(c, C) acc[r][c] = Op::multiply(acc[r][c], w[c], unit + 4 * r);
    }
};

// The arithmetic of a single row, whose sums are the same numbers.
template <class W, class Math>
struct OneRow {
    typedef Math Type;
};

#if defined(INFERC_SHORT_SUMS)
// Products of weights and bytes of x up to `most_x` that surely fit into 16 bits, by pairs.
template <class W>
constexpr int units_in_16_bits(int most_x) {
    if constexpr (W::seven_bits)
        return 32767 / (2 * most_x * W::most);
    else
        return 1;
}

// MathInt16 as MathInt16Bytes, where runs in 16 bits are long enough to be worth it.
template <class W, bool kLong>
struct OneRowOfShorts {
    typedef MathInt16 Type;
};
template <class W>
struct OneRowOfShorts<W, true> {
    typedef MathInt16Bytes Type;
};
template <class W>
struct OneRow<W, MathInt16> : OneRowOfShorts<W, (units_in_16_bits<W>(128) >= 4)> {};

// Products of bytes are summed in 16 bits for as many units as surely fit. `u` counts the units of
// the group, and must be a constant when all is inlined.
template <class W, int R, int C>
struct Sums<W, MathInt8, R, C> {
    typedef Operand<W, MathInt8> Op;
    static constexpr int kRun = units_in_16_bits<W>(127);
    static constexpr int kUnits = W::group / 4;
    i32x16 acc[R][C], run[R][C], first[C];

    INFERC_INLINE void start(const Panel &a, int64_t at) {
        INFERC_EACH(r, R)
            INFERC_EACH(c, C) acc[r][c] = Op::start(a, at + r);
    }
    INFERC_INLINE void add_to(i32x16 *sum, i32x16 *part, int u, i32x16 w, i32x16 x) {
        i32x16 product;
        if constexpr (Op::is_signed)
            product = signed_products(w, x);
        else
            product = unsigned_products(w, x);
        *part = u % kRun == 0 ? product : add_shorts(*part, product);
        keep_chain(part);
        if (u % kRun != kRun - 1 && u != kUnits - 1) return;
        *sum = *sum + pairs_of_shorts<1>(*part);
        keep_chain(sum);
    }
    INFERC_INLINE void add(int u, int c, i32x16 w, const uint8_t *unit) {
        INFERC_EACH(r, R)
            add_to(&acc[r][c], &run[r][c], u, w, splat_i(load_scalar<int32_t>(unit + 4 * r)));
    }
    INFERC_INLINE void add_all(int u, const i32x16 *w, const uint8_t *unit) {
        if constexpr (kRun == 2) return add_both(u, w, unit);
        INFERC_EACH(r, R) {
            const i32x16 x = splat_i(load_scalar<int32_t>(unit + 4 * r));
            INFERC_EACH(c, C) add_to(&acc[r][c], &run[r][c], u, w[c], x);
        }
    }
    // Runs of two: weights wait for their second unit instead of the sums of all rows.
    INFERC_INLINE void add_both(int u, const i32x16 *w, const uint8_t *unit) {
        if (u % 2 == 0) {
            INFERC_EACH(c, C) first[c] = w[c];
            return;
        }
        INFERC_EACH(r, R) {
            const i32x16 x0 = splat_i(load_scalar<int32_t>(unit - 4 * R + 4 * r));
            const i32x16 x1 = splat_i(load_scalar<int32_t>(unit + 4 * r));
            INFERC_EACH(c, C) {
                add_to(&acc[r][c], &run[r][c], u - 1, first[c], x0);
                add_to(&acc[r][c], &run[r][c], u, w[c], x1);
            }
        }
    }
};

template <class W, int C>
struct Sums<W, MathInt16Bytes, 1, C> {
    typedef Operand<W, MathInt16Bytes> Op;
    static constexpr int kRun = units_in_16_bits<W>(128), kUnits = W::group / 4;
    i32x16 acc[1][C], run[2][C];  // of high and of low bytes

    INFERC_INLINE void start(const Panel &a, int64_t at) {
        INFERC_EACH(c, C) acc[0][c] = Op::start(a, at);
    }
    INFERC_INLINE void add(int u, int c, i32x16 w, const uint8_t *unit) {
        i32x16 *part = &run[u % 2][c];
        const i32x16 product = unsigned_products(w, splat_i(load_scalar<int32_t>(unit)));
        const int i = u / 2;
        *part = i % kRun == 0 ? product : add_shorts(*part, product);
        keep_chain(part);
        if (i % kRun != kRun - 1 && i != kUnits - 1) return;
        acc[0][c] = acc[0][c] + (u % 2 ? pairs_of_shorts<1>(*part) : pairs_of_shorts<256>(*part));
        keep_chain(&acc[0][c]);
    }
};
#endif


INFERC_INLINE void store_vector(uint8_t *p, f32x16 v) { store((float *)p, v); }
INFERC_INLINE void store_vector(uint8_t *p, i32x16 v) { store_i(p, v); }
INFERC_INLINE void load_vector(const uint8_t *p, f32x16 *v) { *v = load((const float *)p); }
INFERC_INLINE void load_vector(const uint8_t *p, i32x16 *v) { *v = load_i(p); }

}  // namespace INFERC_ISA
}  // namespace inferc
