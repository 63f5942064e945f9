// The inner loops of matmul.h: tiles of 16 matrix rows times a handful of activation rows.
//
// The one rule: the float operations that make an output element depend on k only. Dense weights:
// one chain of multiply-adds over k. Block weights: a chain inside each group, from zero, then
// total = fma(scale, chain, total) and, with minima, total = fma(minimum, sum of x in the group,
// total). Every kernel below keeps that order, whatever its number of rows and columns.
#pragma once

#include "matmul_sums.h"

namespace inferc {
inline namespace INFERC_ISA {

#if defined(INFERC_AVX512)
constexpr int kDirectRows = 8;  // most rows for which weights are decoded in registers
constexpr int kTwiceRows = 8;   // most for which they are decoded again by each kDirectRows of them
constexpr int kTileRows = 14, kTileRowsMin = 8;  // rows of a register tile over a decoded panel
constexpr int kTileColumns = 2;
#elif defined(INFERC_AVX2)
constexpr int kDirectRows = 4;
constexpr int kTwiceRows = 8;
constexpr int kTileRows = 6, kTileRowsMin = 4;
constexpr int kTileColumns = 1;
#else
constexpr int kDirectRows = 4;
constexpr int kTwiceRows = 4;
constexpr int kTileRows = 4, kTileRowsMin = 4;
constexpr int kTileColumns = 1;
#endif

// Integer sums are turned to floats every few instructions: their totals stay in registers, beside
// fewer of them.
template <class Math>
constexpr bool totals_stay() {
#if defined(INFERC_AVX512)
    return sums_integers<Math>();
#else
    return false;
#endif
}

// AVX2 without dot products: decoding nibbles and bytes to integers costs no more than what a panel
// costs: each tile of rows decodes for itself.
template <class W, class Math>
constexpr bool decodes_often() {
    if constexpr (!kShortSums || !sums_integers<Math>())
        return false;
    else if constexpr (SameType<Math, MathInt8>::value || !W::seven_bits)
        return true;
    else
        return W::most <= 15;
}

template <class Math>
constexpr int tile_rows_most() {
    if (totals_stay<Math>()) return 6;
    return kShortSums && sums_integers<Math>() ? 4 : kTileRows;
}

template <class Math>
constexpr int tile_rows_least() {
    return totals_stay<Math>() ? 4 : kTileRowsMin;
}

// Tiles a direct kernel walks at once, each in a stream of its own (see matmul_streams()).
template <class Math>
constexpr int direct_columns(int rows) {
#if defined(INFERC_AVX512)
    return rows <= 2 ? 4 : 2;
#elif defined(INFERC_AVX2)
    return rows == 1 ? 4 : rows == 2 ? 2 : 1;
#else
    return rows == 1 ? 2 : 1;
#endif
}

constexpr int kChunkTiles = 4;  // tiles whose results wait for the epilogue together
constexpr int kPairTiles = 2;   // the same over decoded panels
constexpr int kPanelK = 256;    // k of a decoded weight panel: 32 KiB for two tiles in f32
constexpr int kPrefetchBytes = 2048;

// Part `part` of `parts` of what C streams need soon after kBytes of each. A few lines at a time: a
// machine has few buffers for lines under way, and waits when they are taken. For that reason not at
// all where streams are many: then the processor itself looks ahead far enough.
template <int C, int64_t kBytes>
INFERC_INLINE void prefetch_part(const uint8_t *at, int64_t stride, int part, int parts) {
    if constexpr (C < 4) {
        constexpr int kLines = (kBytes + 63) / 64;
        for (int line = part * kLines / parts; line < (part + 1) * kLines / parts; line++)
            INFERC_EACH(c, C) prefetch(at + c * stride + kPrefetchBytes + 64 * line);
    }
}

// ---- direct kernels: few rows, weights decoded in registers and used at once
// --------------------------

template <class W, class Math, int R, int C>
INFERC_INLINE void direct_dense(const Panel &a, const uint8_t *tile, int64_t stride, int64_t k,
                                float *out) {
    typedef Operand<W, Math> Op;
    Sums<W, Math, R, C> sums;
    sums.start(a, 0);
    const uint8_t *units = a.units;
    for (int64_t step = 0; step < ceil_div(k, 2); step++) {
        const uint8_t *at = tile + step * W::step_bytes;
        prefetch_part<C, W::step_bytes>(at, stride, 0, 1);
        typename Op::Vector w[Op::vectors][C];
        INFERC_EACH(c, C) {
            typename Op::Vector decoded[Op::vectors];
            Op::decode(at + c * stride, 0, 0, decoded);
            INFERC_EACH(v, Op::vectors) w[v][c] = decoded[v];
        }
        INFERC_EACH(v, Op::vectors) sums.add_all(v, w[v], units + 4 * v * R);
        units += 4 * Op::vectors * R;
    }
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) store(out + (c * R + r) * kChunkTiles * 16, sums.acc[r][c]);
}

template <class W, class Math, int R, int C>
INFERC_INLINE void direct_group(Sums<W, Math, R, C> &sums, const uint8_t *record, int64_t stride,
                                int g, const uint8_t *units, const uint8_t *part) {
    typedef Operand<W, Math> Op;
    constexpr int kVectors = Op::vectors;
    INFERC_EACH(v, W::group / 4) {
        prefetch_part<C, W::record_bytes * W::group / W::block>(part, stride, v, W::group / 4);
        typename Op::Vector w[kVectors][C];
        INFERC_EACH(c, C) {
            typename Op::Vector decoded[kVectors];
            if constexpr (decodes_in_place<W, Math>())
                Op::decode_in_place(record + c * stride, g, v, decoded);
            else
                Op::decode(record + c * stride, g, v, decoded);
            INFERC_EACH(i, kVectors) w[i][c] = decoded[i];
            // One row: what is decoded is used up before more is.
            if constexpr (R == 1)
                INFERC_EACH(i, kVectors)
                    sums.add(v * kVectors + i, c, w[i][c], units + 4 * (v * kVectors + i));
        }
        if constexpr (R > 1)
            INFERC_EACH(i, kVectors)
                sums.add_all(v * kVectors + i, w[i], units + 4 * (v * kVectors + i) * R);
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
            Sums<W, Math, R, C> sums;
            sums.start(a, group * R);
            direct_group<W, Math, R, C>(sums, record, stride, g, units,
                                        record + g * (W::record_bytes / kGroups));
            units += W::group / 4 * Op::vectors * 4 * R;
            INFERC_EACH(c, C) {
                f32x16 s = scale[c][g] * splat(Op::scale_factor);
                INFERC_EACH(r, R)
                    total[r][c] =
                        finish_group<W, Math>(total[r][c], s, &minimum[c][g], sums.acc[r][c], a,
                                              group * W::group / 32 * R + r, group * R + r);
            }
        }
    }
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) store(out + (c * R + r) * kChunkTiles * 16, total[r][c]);
}

// out[C][R][kChunkTiles * 16], the first 16 of each, from C tiles at distance `stride`.
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
