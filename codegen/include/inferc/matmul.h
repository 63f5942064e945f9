// y[rows, n] = x[rows, k] times the transpose of a packed weight matrix [n, k], results given to an
// epilogue. Signatures: matmul() and matmul_gated() at the end.
//
// Up to kDirectRows rows: weights are decoded in registers and used at once (decode steps, bound by
// the bytes of the weights). More: panels of up to kPanelRows rows are prepared once in scratch;
// for each pair of tiles a panel of weights is decoded once and used by all of them, or, where
// decoding is cheap beside the products or rows are few, tiles of rows decode for themselves: they
// multiply while weights arrive, a panel only when it is complete. Work is split by columns, for
// many rows also by rows; neither changes a result.
#pragma once

#include "matmul_panels.h"

namespace inferc {
inline namespace INFERC_ISA {

// Rows prepared at once: few for a long k, so that they stay in the second-level cache.
INFERC_INLINE int64_t panel_rows(int64_t k) { return (k <= 4096 ? 112 : 56); }

constexpr int64_t kNearRowBytes = 12 << 10, kNearWeightBytes = 128 << 10;

// Scratch of one worker; `workers` times this is what the caller provides. Grows with rows and k.
INFERC_INLINE size_t matmul_scratch_bytes(int64_t rows, int64_t k) {
    int64_t prepared = min_of(round_up(rows, 8) + 14, panel_rows(k) + 14);
    int64_t chunk = 112 * kChunkTiles * 16 * 4;
    int64_t panel = int64_t(kPanelK) * 2 * 64 + 2 * (kPanelK / 16 * 2 * 64);
    return size_t(round_up(prepared_bytes(prepared, k) + 28 * 128, 64) + chunk + panel);
}

struct MatmulScratch {
    WeightPanel *panel;
    float *out;
    uint8_t *rows;
};

INFERC_INLINE MatmulScratch matmul_scratch(void *scratch, int64_t rows, int64_t k, int worker) {
    uint8_t *mine = (uint8_t *)scratch + size_t(worker) * matmul_scratch_bytes(rows, k);
    MatmulScratch s;
    s.panel = (WeightPanel *)mine;
    s.out = (float *)(mine + sizeof(WeightPanel));
    s.rows = mine + sizeof(WeightPanel) + 112 * kChunkTiles * 16 * 4;
    return s;
}

struct MatmulShare {
    Range rows, units;
};

// What preparing a row costs, in tiles of columns that it could be multiplied with instead.
constexpr int64_t kPrepareTiles = 2;

// Rows are split where each worker gets enough of them to reuse what it decodes, else columns, for
// which every worker prepares all rows.
INFERC_INLINE MatmulShare matmul_share(int64_t rows, int64_t units, int64_t unit_tiles, int worker,
                                       int workers) {
    const auto cost = [&](int by_rows) {
        int64_t tiles = ceil_div(units, workers / by_rows) * unit_tiles;
        return ceil_div(rows, by_rows) * (tiles + kPrepareTiles);
    };
    int best = 1;
    for (int by_rows = 2; by_rows <= workers && rows / by_rows >= 64; by_rows++)
        if (workers % by_rows == 0 && cost(by_rows) < cost(best)) best = by_rows;
    int columns = workers / best;
    return {share(rows, worker / columns, best), share(units, worker % columns, columns)};
}

struct MatmulJob {
    const float *x;            // first row of the share
    int64_t x_stride, x_k, k;  // elements of a row of x; the same as packed
    const uint8_t *w;
    Range tiles;
    int64_t unit;  // tiles that stay together
};

// C runs of tiles, equally long and far apart, at the same time; returns the first tile behind them.
// A processor fetches ahead in each of them: from one run a core got two thirds of what memory gives.
template <class W, class Math, int R, int C, class Emit>
INFERC_INLINE int64_t matmul_streams(const MatmulJob &job, const Panel &a, float *out, int64_t row,
                                     int64_t valid, Range tiles, const Emit &emit) {
    const int64_t stride = tile_bytes<W>(job.k);
    const int64_t run = (tiles.end - tiles.begin) / (C * job.unit) * job.unit;
    for (int64_t tile = 0; tile < run; tile += kChunkTiles) {
        const int count = int(min_of(kChunkTiles, run - tile));
        const uint8_t *w = job.w + (tiles.begin + tile) * stride;
        for (int t = 0; t < count; t++)
            direct_kernel<W, Math, R, C>(a, w + t * stride, run * stride, job.k, out + 16 * t);
        INFERC_EACH(c, C)
            emit(row, valid, tiles.begin + c * run + tile, count, out + c * R * kChunkTiles * 16,
                 kChunkTiles * 16);
    }
    return tiles.begin + C * run;
}

// Rows [row, row + valid) by direct kernels of R rows.
template <class W, class Math, int R, class Emit>
INFERC_INLINE void matmul_direct(const MatmulJob &job, const MatmulScratch &s, int64_t row,
                                 int64_t valid, const Emit &emit) {
    const float *x = job.x + row * job.x_stride;
    Panel a = panel_at<W, Math>(s.rows, R, job.k, 0);
    constexpr bool kAsIs = R == 1 && SameType<Math, MathF32>::value && x_factor<W>() == 1.0f &&
                           !(W::blocks && W::has_min) && !decodes_in_place<W, Math>();
    if (kAsIs && job.k % 2 == 0 && job.k == job.x_k)
        a.units = (const uint8_t *)x;
    else
        prepare_rows<W, Math, decodes_in_place<W, Math>()>(s.rows, x, job.x_stride, valid, R,
                                                           job.k, job.x_k);
    constexpr int C = direct_columns<Math>(R);
    const int64_t left = matmul_streams<W, Math, R, C>(job, a, s.out, row, valid, job.tiles, emit);
    if constexpr (C > 1)
        matmul_streams<W, Math, R, 1>(job, a, s.out, row, valid, {left, job.tiles.end}, emit);
}

INFERC_INLINE int64_t row_tile_bytes(int rows, int64_t k) {
    return round_up(prepared_bytes(rows, k), 64);
}

// Rows [row, row + valid) prepared as tiles of R; their number.
template <class W, class Math, int R, bool kInPlace = false>
INFERC_INLINE int64_t prepare_row_tiles(const MatmulJob &job, const MatmulScratch &s, int64_t row,
                                        int64_t valid) {
    const int64_t row_tiles = ceil_div(valid, R);
    for (int64_t i = 0; i < row_tiles; i++)
        prepare_rows<W, Math, kInPlace>(
            s.rows + i * row_tile_bytes(R, job.k), job.x + (row + i * R) * job.x_stride, job.x_stride,
            min_of(R, valid - i * R), R, job.k, job.x_k);
    return row_tiles;
}

// Rows [row, row + valid) as tiles of R that decode for themselves: as many of them at once as stay
// in the first-level cache, over weights that stay in the second.
template <class W, class Math, int R, class Emit>
INFERC_INLINE void matmul_often(const MatmulJob &job, const MatmulScratch &s, int64_t row,
                                int64_t valid, const Emit &emit) {
    const int64_t stride = tile_bytes<W>(job.k), end = job.tiles.end;
    const int64_t row_tiles =
        prepare_row_tiles<W, Math, R, decodes_in_place<W, Math>()>(job, s, row, valid);
    const int64_t near = max_of(1, kNearRowBytes / (4 * R * units_of<Math>(job.k)));
    const int64_t block = kChunkTiles * max_of(1, kNearWeightBytes / (kChunkTiles * stride));
    const auto run = [&](int64_t first, int64_t tile) {
        const int64_t count = min_of(kChunkTiles, end - tile);
        const int64_t behind = min_of(first + near, row_tiles);
        for (int64_t t = 0; t < count; t++)
            for (int64_t i = first; i < behind; i++)
                direct_kernel<W, Math, R, 1>(
                    panel_at<W, Math>(s.rows + i * row_tile_bytes(R, job.k), R, job.k, 0),
                    job.w + (tile + t) * stride, stride, job.k,
                    s.out + ((i - first) * R * kChunkTiles + t) * 16);
        emit(row + first * R, min_of(valid, behind * R) - first * R, tile, int(count), s.out,
             kChunkTiles * 16);
    };
    for (int64_t begin = job.tiles.begin; begin < end; begin += block)
        for (int64_t first = 0; first < row_tiles; first += near)
            for (int64_t tile = begin; tile < min_of(begin + block, end); tile += kChunkTiles)
                run(first, tile);
}

// Rows [row, row + valid) as tiles of R over decoded panels.
template <class W, class Math, int R, class Emit>
INFERC_INLINE void matmul_panels(const MatmulJob &job, const MatmulScratch &s, int64_t row,
                                 int64_t valid, const Emit &emit) {
    constexpr int C = kTileColumns;
    const int64_t blob = row_tile_bytes(R, job.k), stride = tile_bytes<W>(job.k);
    const int64_t row_tiles = prepare_row_tiles<W, Math, R>(job, s, row, valid);
    for (int64_t tile = job.tiles.begin; tile < job.tiles.end; tile += kPairTiles) {
        int count = int(min_of(kPairTiles, job.tiles.end - tile));
        memset(s.out, 0, size_t(row_tiles * R * kPairTiles) * 64);
        for (int t = 0; t < count; t += C)
            for (int64_t begin = 0; begin < job.k; begin += kPanelK) {
                int64_t k = min_of(kPanelK, job.k - begin);
                const uint8_t *w = job.w + (tile + t) * stride + tile_bytes<W>(begin);
                for (int c = 0; c < C && t + c < count; c++)
                    decode_tile<W, Math>(w + c * stride, k, c, s.panel);
                for (int64_t i = 0; i < row_tiles; i++)
                    panel_kernel<W, Math, R>(panel_at<W, Math>(s.rows + i * blob, R, job.k, begin),
                                             s.panel, k, s.out + (i * R * kPairTiles + t) * 16);
            }
        emit(row, valid, tile, count, s.out, kPairTiles * 16);
    }
}

template <class W, class Math, class Emit>
INFERC_INLINE void matmul_few(const MatmulJob &job, const MatmulScratch &s, int64_t row,
                              int64_t valid, const Emit &emit) {
    if (valid == 1)
        return matmul_direct<W, typename OneRow<W, Math>::Type, 1>(job, s, row, valid, emit);
    if (valid == 2) return matmul_direct<W, Math, 2>(job, s, row, valid, emit);
    if (valid <= 4) return matmul_direct<W, Math, 4>(job, s, row, valid, emit);
    if constexpr (kDirectRows > 4) matmul_direct<W, Math, 8>(job, s, row, valid, emit);
}

template <class W, class Math, int R, class Emit>
INFERC_INLINE void matmul_tiles(const MatmulJob &job, const MatmulScratch &s, int64_t row,
                                int64_t valid, const Emit &emit) {
    if constexpr (decodes_often<W, Math>())
        matmul_often<W, Math, R>(job, s, row, valid, emit);
    else
        matmul_panels<W, Math, R>(job, s, row, valid, emit);
}

template <class W, class Math, class Emit>
INFERC_INLINE void matmul_many(const MatmulJob &job, const MatmulScratch &s, int64_t row,
                               int64_t valid, int tile_rows, const Emit &emit) {
    static_assert(kTileRows <= 14 && kTileRows % 2 == 0, "the cases below");
    constexpr int R = tile_rows_most<Math>(), kLeast = tile_rows_least<Math>();
    if (tile_rows == R) return matmul_tiles<W, Math, R>(job, s, row, valid, emit);
    if constexpr (R - 2 >= kLeast)
        if (tile_rows == R - 2) return matmul_tiles<W, Math, R - 2>(job, s, row, valid, emit);
    if constexpr (R - 4 >= kLeast)
        if (tile_rows == R - 4) return matmul_tiles<W, Math, R - 4>(job, s, row, valid, emit);
    if constexpr (R - 6 >= kLeast)
        if (tile_rows == R - 6) return matmul_tiles<W, Math, R - 6>(job, s, row, valid, emit);
}

// `units` column units of kUnit tiles each; emit(row, rows, tile, tiles, values, row stride of
// values).
template <class W, class Math, int kUnit, class Emit>
INFERC_INLINE void run_matmul(const float *x, int64_t x_stride, const void *w, int64_t rows,
                              int64_t units, int64_t k, const Emit &emit, void *scratch, int worker,
                              int workers) {
    MatmulScratch s = matmul_scratch(scratch, rows, k, worker);
    MatmulShare mine = matmul_share(rows, units, kUnit, worker, workers);
    MatmulJob job = {x,
                     x_stride,
                     k,
                     padded_k<W>(k),
                     (const uint8_t *)w,
                     {mine.units.begin * kUnit, mine.units.end * kUnit},
                     kUnit};
    if (job.tiles.begin == job.tiles.end) return;
    for (int64_t row = mine.rows.begin; row < mine.rows.end;) {
        int64_t left = mine.rows.end - row;
        if (left <= kDirectRows) {
            matmul_few<W, Math>(job, s, row, left, emit);
            return;
        }
        if constexpr (kTwiceRows > kDirectRows)
            if (left <= kTwiceRows) {
                matmul_often<W, Math, kDirectRows>(job, s, row, left, emit);
                return;
            }
        // Equal register tiles rather than full ones and a rest.
        constexpr int kMost = tile_rows_most<Math>();
        int64_t even = ceil_div(left, ceil_div(left, kMost));
        int tile_rows = int(max_of(round_up(even, 2), tile_rows_least<Math>()));
        int64_t valid = min_of(left, panel_rows(k) / kMost * tile_rows);
        matmul_many<W, Math>(job, s, row, valid, tile_rows, emit);
        row += valid;
    }
}

// y = x wT. W: a reader of weights*.h; Math: MathF32 (any W), MathBf16 (BF16), MathInt8 and
// MathInt16 (blocks of integers). epilogue(row, col, lanes, acc): columns [col, col + lanes) of a row; lanes is 16 but
// at the end of n. Flops 2 * rows * n * k. Bytes: the packed weights, 4 * rows * k of x, and what
// the epilogue touches.
template <class W, class Math, class Epilogue>
INFERC_NOINLINE void matmul(const float *x, int64_t x_stride, const void *w, int64_t rows,
                            int64_t n, int64_t k, const Epilogue &epilogue, void *scratch,
                            int worker, int workers) {
    auto emit = [&](int64_t row, int64_t count, int64_t tile, int tiles, const float *values,
                    int64_t stride) {
        for (int64_t r = 0; r < count; r++)
            for (int t = 0; t < tiles; t++) {
                int64_t col = (tile + t) * 16;
                epilogue(row + r, col, int(min_of(16, n - col)),
                         load(values + r * stride + 16 * t));
            }
    };
    run_matmul<W, Math, 1>(x, x_stride, w, rows, ceil_div(n, 16), k, emit, scratch, worker,
                           workers);
}

// Both matrices [n, k] of a gated pair, layout n16_pair: epilogue(row, col, lanes, gate, up).
// Flops 4 * rows * n * k. Bytes as above.
template <class W, class Math, class Epilogue>
INFERC_NOINLINE void matmul_gated(const float *x, int64_t x_stride, const void *w, int64_t rows,
                                  int64_t n, int64_t k, const Epilogue &epilogue, void *scratch,
                                  int worker, int workers) {
    auto emit = [&](int64_t row, int64_t count, int64_t tile, int tiles, const float *values,
                    int64_t stride) {
        for (int64_t r = 0; r < count; r++)
            for (int t = 0; t < tiles; t += 2) {
                int64_t col = (tile + t) * 8;
                const float *at = values + r * stride + 16 * t;
                epilogue(row + r, col, int(min_of(16, n - col)), load(at), load(at + 16));
            }
    };
    run_matmul<W, Math, 2>(x, x_stride, w, rows, ceil_div(n, 16), k, emit, scratch, worker,
                           workers);
}

}  // namespace INFERC_ISA
}  // namespace inferc
