// The inner loops of matmul.h: tiles of 16 matrix rows times a handful of activation rows.
//
// The one rule: the float operations that make an output element depend on k only. Dense weights:
// one chain of multiply-adds over k. Block weights: a chain inside each group, from zero, then
// total = fma(scale, chain, total) and, with minima, total = fma(minimum, sum of x in the group,
// total). Every kernel below keeps that order, whatever its number of rows and columns.
#pragma once

#include "activations.h"
#include "weights_groups.h"
#include "weights_k.h"

namespace inferc {
inline namespace INFERC_ISA {

#if defined(INFERC_AVX512)
constexpr int kDirectRows = 8;  // most rows for which weights are decoded in registers
constexpr int kTileRows = 14, kTileRowsMin = 8;  // rows of a register tile over a decoded panel
constexpr int kTileColumns = 2;
#elif defined(INFERC_AVX2)
constexpr int kDirectRows = 4;
constexpr int kTileRows = 6, kTileRowsMin = 4;
constexpr int kTileColumns = 1;
#else
constexpr int kDirectRows = 4;
constexpr int kTileRows = 4, kTileRowsMin = 4;
constexpr int kTileColumns = 1;
#endif

// Integer sums are turned to floats every few instructions: their totals stay in registers, beside
// fewer of them.
template <class Math>
constexpr bool totals_stay() {
#if defined(INFERC_AVX512)
    return SameType<Math, MathInt8>::value;
#else
    return false;
#endif
}

template <class Math>
constexpr int tile_rows_most() {
    return totals_stay<Math>() ? 6 : kTileRows;
}

template <class Math>
constexpr int tile_rows_least() {
    return totals_stay<Math>() ? 4 : kTileRowsMin;
}

// Tiles a direct kernel walks at once: independent chains hide latency, several streams feed the
// prefetcher.
constexpr int direct_columns(int rows) {
#if defined(INFERC_AVX512)
    return rows <= 2 ? 4 : 2;
#elif defined(INFERC_AVX2)
    return rows == 1 ? 4 : 1;
#else
    return rows == 1 ? 2 : 1;
#endif
}

constexpr int kChunkTiles = 4;  // tiles whose results wait for the epilogue together
constexpr int kPairTiles = 2;   // the same over decoded panels
constexpr int kPanelK = 256;    // k of a decoded weight panel: 32 KiB for two tiles in f32
constexpr int kPrefetchBytes = 2048;

// ---- decoding and multiplying, by arithmetic
// --------------------------------------------------------

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

template <class W>
struct Operand<W, MathInt8> {
    typedef i32x16 Vector;
    typedef i32x16 Acc;
    static constexpr int vectors = 1;
    static constexpr float scale_factor = 1.0f;

    static INFERC_INLINE void decode(const uint8_t *at, int group, int v, Vector *out) {
        *out = unsigned_quad<W>(AllLanes{}, at, group, v);
    }
    // Weights are stored as unsigned; their offset times the sum of x is taken off in advance.
    static INFERC_INLINE Acc start(const Panel &a, int64_t at) {
        return splat_i(W::offset == 0 ? 0 : -W::offset * a.isum[at]);
    }
    static INFERC_INLINE Acc multiply(Acc acc, Vector w, const uint8_t *unit) {
        return dot_bytes<W::seven_bits>(acc, w, splat_i(load_scalar<int32_t>(unit)));
    }
    static INFERC_INLINE f32x16 fold(f32x16 total, f32x16 scale, Acc acc, const Panel &a,
                                     int64_t at) {
        return fma(scale * splat(a.scale[at]), to_f32(acc), total);
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

// What C neighbouring tiles need soon after `offset` bytes: behind the end of a tile goes its
// successor C tiles on, which the same stream reads next.
template <int C>
INFERC_INLINE const uint8_t *bytes_ahead(const uint8_t *tile, int64_t stride, int64_t offset) {
    offset += kPrefetchBytes;
    if (offset >= stride) offset += (C - 1) * stride;
    return tile + offset;
}

// Part `part` of `parts` of kBytes of C tiles. A few lines at a time: a machine has few buffers for
// lines under way, and waits when they are taken.
template <int C, int64_t kBytes>
INFERC_INLINE void prefetch_part(const uint8_t *ahead, int64_t stride, int part, int parts) {
    constexpr int kLines = (kBytes + 63) / 64;
    for (int line = part * kLines / parts; line < (part + 1) * kLines / parts; line++) {
        INFERC_EACH(c, C) prefetch(ahead + c * stride + 64 * line);
    }
}

INFERC_INLINE void store_vector(uint8_t *p, f32x16 v) { store((float *)p, v); }
INFERC_INLINE void store_vector(uint8_t *p, i32x16 v) { store_i(p, v); }
INFERC_INLINE void load_vector(const uint8_t *p, f32x16 *v) { *v = load((const float *)p); }
INFERC_INLINE void load_vector(const uint8_t *p, i32x16 *v) { *v = load_i(p); }

// ---- direct kernels: few rows, weights decoded in registers and used at once
// --------------------------

template <class W, class Math, int R, int C>
INFERC_INLINE void direct_dense(const Panel &a, const uint8_t *tile, int64_t stride, int64_t k,
                                float *out) {
    typedef Operand<W, Math> Op;
    typename Op::Acc acc[R][C];
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) acc[r][c] = zero();
    const uint8_t *units = a.units;
    for (int64_t step = 0; step < ceil_div(k, 2); step++) {
        const uint8_t *at = tile + step * W::step_bytes;
        prefetch_part<C, W::step_bytes>(bytes_ahead<C>(tile, stride, step * W::step_bytes), stride,
                                        0, 1);
        typename Op::Vector w[C][Op::vectors];
        INFERC_EACH(c, C) Op::decode(at + c * stride, 0, 0, w[c]);
        INFERC_EACH(v, Op::vectors) {
            INFERC_EACH(r, R)
                INFERC_EACH(c, C)
                    acc[r][c] = Op::multiply(acc[r][c], w[c][v], units + 4 * (v * R + r));
        }
        units += 4 * Op::vectors * R;
    }
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) store(out + r * kChunkTiles * 16 + 16 * c, acc[r][c]);
}

template <class W, class Math, int R, int C>
INFERC_INLINE void direct_group(typename Operand<W, Math>::Acc (&acc)[R][C], const uint8_t *record,
                                int64_t stride, int g, const uint8_t *units, const uint8_t *ahead) {
    typedef Operand<W, Math> Op;
    INFERC_EACH(v, W::group / 4) {
        prefetch_part<C, W::record_bytes * W::group / W::block>(ahead, stride, v, W::group / 4);
        if constexpr (R == 1) {
            // Tile by tile: what is decoded is used up before more is.
            INFERC_EACH(c, C) {
                typename Op::Vector w[Op::vectors];
                Op::decode(record + c * stride, g, v, w);
                INFERC_EACH(i, Op::vectors)
                    acc[0][c] = Op::multiply(acc[0][c], w[i], units + 4 * (v * Op::vectors + i));
            }
        } else {
            typename Op::Vector w[C][Op::vectors];
            INFERC_EACH(c, C) Op::decode(record + c * stride, g, v, w[c]);
            INFERC_EACH(i, Op::vectors) {
                const uint8_t *unit = units + 4 * (v * Op::vectors + i) * R;
                INFERC_EACH(r, R)
                    INFERC_EACH(c, C) acc[r][c] = Op::multiply(acc[r][c], w[c][i], unit + 4 * r);
            }
        }
    }
}

template <class W, class Math, int R, int C>
INFERC_INLINE void direct_blocks(const Panel &a, const uint8_t *tile, int64_t stride, int64_t k,
                                 float *out) {
    typedef Operand<W, Math> Op;
    constexpr int kGroups = W::block / W::group;
    f32x16 total[R][C];
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) total[r][c] = zero();
    const uint8_t *units = a.units;
    int64_t group = 0;
    for (int64_t b = 0; b < k / W::block; b++) {
        const uint8_t *record = tile + b * W::record_bytes;
        f32x16 scale[C][kGroups], minimum[C][kGroups];
        INFERC_EACH(c, C) W::scales(AllLanes{}, record + c * stride, scale[c], minimum[c]);
        for (int g = 0; g < kGroups; g++, group++) {
            int64_t offset = b * W::record_bytes + g * (W::record_bytes / kGroups);
            typename Op::Acc acc[R][C];
            INFERC_EACH(r, R)
                INFERC_EACH(c, C) acc[r][c] = Op::start(a, group * R + r);
            direct_group<W, Math, R, C>(acc, record, stride, g, units,
                                        bytes_ahead<C>(tile, stride, offset));
            units += W::group / 4 * Op::vectors * 4 * R;
            INFERC_EACH(c, C) {
                f32x16 s = scale[c][g] * splat(Op::scale_factor);
                INFERC_EACH(r, R)
                    total[r][c] =
                        finish_group<W, Math>(total[r][c], s, &minimum[c][g], acc[r][c], a,
                                              group * W::group / 32 * R + r, group * R + r);
            }
        }
    }
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) store(out + r * kChunkTiles * 16 + 16 * c, total[r][c]);
}

// out[R][kChunkTiles * 16], columns 0 .. 16C - 1, from C tiles at distance `stride`.
template <class W, class Math, int R, int C>
INFERC_NOINLINE void direct_kernel(const Panel &a, const uint8_t *tile, int64_t stride, int64_t k,
                                   float *out) {
    if constexpr (W::blocks)
        direct_blocks<W, Math, R, C>(a, tile, stride, k, out);
    else
        direct_dense<W, Math, R, C>(a, tile, stride, k, out);
}

}  // namespace INFERC_ISA
}  // namespace inferc
