// Panel kernels of matmul.h: many rows share a panel of decoded weights. The order of operations is
// that of matmul_core.h.
#pragma once

#include "matmul_core.h"

namespace inferc {
inline namespace INFERC_ISA {

// Decoded weights of C tiles over up to kPanelK k.
struct WeightPanel {
    alignas(64) uint8_t vectors[kPanelK * kTileColumns * 64];
    alignas(64) float scale[kPanelK / 16 * kTileColumns * 16];
    alignas(64) float minimum[kPanelK / 16 * kTileColumns * 16];
};

template <class W, class Math>
INFERC_INLINE void decode_tile_dense(const uint8_t *tile, int64_t k, int c, WeightPanel *panel) {
    typedef Operand<W, Math> Op;
    constexpr int C = kTileColumns;
    for (int64_t step = 0; step < ceil_div(k, 2); step++) {
        typename Op::Vector w[Op::vectors];
        Op::decode(tile + step * W::step_bytes, 0, 0, w);
        for (int v = 0; v < Op::vectors; v++)
            store_vector(panel->vectors + 64 * ((step * Op::vectors + v) * C + c), w[v]);
    }
}

template <class W, class Math>
INFERC_INLINE void decode_tile_blocks(const uint8_t *tile, int64_t k, int c, WeightPanel *panel) {
    typedef Operand<W, Math> Op;
    constexpr int C = kTileColumns, kGroups = W::block / W::group;
    uint8_t *to = panel->vectors + 64 * c;
    for (int64_t b = 0; b < k / W::block; b++, tile += W::record_bytes) {
        f32x16 scale[kGroups], minimum[kGroups];
        W::scales(AllLanes{}, tile, scale, minimum);
        for (int g = 0; g < kGroups; g++) {
            int64_t at = 16 * ((b * kGroups + g) * C + c);
            store(panel->scale + at, scale[g] * splat(Op::scale_factor));
            if constexpr (W::has_min) store(panel->minimum + at, minimum[g]);
            INFERC_EACH(v, W::group / 4) {
                typename Op::Vector w[Op::vectors];
                Op::decode(tile, g, v, w);
                INFERC_UNROLL
                for (int i = 0; i < Op::vectors; i++, to += 64 * C) store_vector(to, w[i]);
            }
        }
    }
}

// k elements from the start of `tile`, as column c of the panel.
template <class W, class Math>
INFERC_NOINLINE void decode_tile(const uint8_t *tile, int64_t k, int c, WeightPanel *panel) {
    if constexpr (W::blocks)
        decode_tile_blocks<W, Math>(tile, k, c, panel);
    else
        decode_tile_dense<W, Math>(tile, k, c, panel);
}

// Integers fully unrolled, as their sums want; floats four times, for the sake of the size.
template <class W, class Math, int R>
INFERC_INLINE void panel_group(Sums<W, Math, R, kTileColumns> &sums, const uint8_t *w,
                               const uint8_t *units, int64_t count) {
    typedef Operand<W, Math> Op;
    constexpr int C = kTileColumns;
    const auto add = [&](int64_t u) {
        typename Op::Vector v[C];
        INFERC_EACH(c, C) load_vector(w + 64 * (u * C + c), &v[c]);
        sums.add_all(int(u), v, units + 4 * u * R);
    };
    if constexpr (sums_integers<Math>()) {
        INFERC_EACH(u, W::group / 4 * Op::vectors) add(u);
    } else {
        INFERC_UNROLL_4 for (int64_t u = 0; u < count; u++) add(u);
    }
}

// total[R][kPairTiles * 16] (columns 0 .. 16C - 1) += rows of `a` (positioned at the panel's first
// k) times the panel.
template <class W, class Math, int R>
INFERC_INLINE void panel_dense(const Panel &a, const WeightPanel *panel, int64_t k, float *total) {
    constexpr int C = kTileColumns;
    Sums<W, Math, R, C> sums;
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) sums.acc[r][c] = load(total + 16 * (r * kPairTiles + c));
    panel_group(sums, panel->vectors, a.units, ceil_div(k, 2) * Operand<W, Math>::vectors);
    INFERC_EACH(r, R)
        INFERC_EACH(c, C) store(total + 16 * (r * kPairTiles + c), sums.acc[r][c]);
}

template <class W, class Math, int R>
INFERC_INLINE void panel_blocks(const Panel &a, const WeightPanel *panel, int64_t k, float *total) {
    constexpr int C = kTileColumns, kUnits = W::group / 4 * Operand<W, Math>::vectors;
    f32x16 kept[R][C];
    const auto load_totals = [&] {
        INFERC_EACH(r, R)
            INFERC_EACH(c, C) kept[r][c] = load(total + 16 * (r * kPairTiles + c));
    };
    const auto store_totals = [&] {
        INFERC_EACH(r, R)
            INFERC_EACH(c, C) store(total + 16 * (r * kPairTiles + c), kept[r][c]);
    };
    if (totals_stay<Math>()) load_totals();
    for (int64_t g = 0; g < k / W::group; g++) {
        Sums<W, Math, R, C> sums;
        sums.start(a, g * R);
        panel_group(sums, panel->vectors + g * kUnits * C * 64, a.units + g * kUnits * R * 4,
                    kUnits);
        if (!totals_stay<Math>()) load_totals();
        INFERC_EACH(c, C) {
            f32x16 scale = load(panel->scale + 16 * (g * C + c));
            f32x16 minimum = load(panel->minimum + 16 * (g * C + c));
            INFERC_EACH(r, R)
                kept[r][c] = finish_group<W, Math>(kept[r][c], scale, &minimum, sums.acc[r][c], a,
                                                   g * W::group / 32 * R + r, g * R + r);
        }
        if (!totals_stay<Math>()) store_totals();
    }
    if (totals_stay<Math>()) store_totals();
}

template <class W, class Math, int R>
INFERC_NOINLINE void panel_kernel(const Panel &a, const WeightPanel *panel, int64_t k,
                                  float *total) {
    if constexpr (W::blocks)
        panel_blocks<W, Math, R>(a, panel, k, total);
    else
        panel_dense<W, Math, R>(a, panel, k, total);
}

}  // namespace INFERC_ISA
}  // namespace inferc
