// y[row][head] = x[row][head] times the transpose of the head's own packed matrix [n, k].
//
// Work is split over (head, tile of 16 columns), so the weights are read once; each result keeps
// the order of matmul.h, whatever rows and columns are computed together.
#pragma once

#include "kv_append.h"
#include "matmul.h"
#include "transpose.h"

namespace inferc {
inline namespace INFERC_ISA {

struct HeadLinearArgs {
    const float *x;  // head h of row r is at x + r * x_stride + h * x_head_stride
    int64_t x_stride, x_head_stride;
    const void *w;  // by head: n16 [n, k]
    float *y;
    int64_t y_stride, y_head_stride;
    int64_t rows, heads, n, k;
};

struct HeadStore {
    float *y;
    int64_t stride;
    INFERC_INLINE void operator()(int64_t row, int64_t col, int lanes, f32x16 acc) const {
        store(y + row * stride + col, acc, lanes);
    }
};

// scratch: matmul_scratch_bytes(rows, k) of this worker. Flops: 2 n k a row and head. Bytes: the
// weights once, x and y once.
template <class W, class Math>
INFERC_INLINE void head_linear(const HeadLinearArgs &a, void *scratch, int worker, int workers) {
    const int64_t tiles = ceil_div(a.n, 16), stride = tile_bytes<W>(a.k);
    const Range mine = share(a.heads * tiles, worker, workers);
    for (int64_t at = mine.begin; at < mine.end;) {
        const int64_t head = at / tiles, begin = at % tiles;
        const int64_t end = min_of(tiles, begin + mine.end - at), col = 16 * begin;
        const uint8_t *w = (const uint8_t *)a.w + at * stride;
        const HeadStore keep = {a.y + head * a.y_head_stride + col, a.y_stride};
        matmul<W, Math>(a.x + head * a.x_head_stride, a.x_stride, w, a.rows,
                        min_of(16 * end, a.n) - col, a.k, keep, scratch, 0, 1);
        at += end - begin;
    }
}

// ---- matrices stored the other way, [k, n] by head, in blocks along n
// --------------------------------

// The panel's 16 rows as rows of numbers, [16][kPanelK], of the first `n` columns.
template <class W>
INFERC_INLINE void rows_of_panel(const WeightPanel *panel, int64_t n, float *rows) {
    static_assert(W::blocks && W::group % 16 == 0, "sixteen numbers have one scale");
    typedef Operand<W, MathF32> Op;
    constexpr int C = kTileColumns;
    for (int64_t at = 0; at < n; at += 16) {
        const int64_t group = at / W::group * C * 16;
        const f32x16 scale = load(panel->scale + group);
        f32x16 block[16];
        INFERC_EACH(i, 16) {
            load_vector(panel->vectors + 64 * ((at + i) * C), &block[i]);
            if constexpr (W::has_min)
                block[i] = fma(block[i], scale, load(panel->minimum + group));
            else
                block[i] = block[i] * scale;
        }
        static_assert(Op::vectors == 4, "a vector of the panel is one column");
        transpose16(block);
        INFERC_EACH(i, 16) store(rows + i * kPanelK + at, block[i]);
    }
}

// y[R][n] (+)= x[R][count] times rows[count][n].
template <int R>
INFERC_INLINE void add_rows(const HeadLinearArgs &a, const float *x, const float *rows,
                            int64_t count, int64_t n, bool first, float *y) {
    for (int64_t col = 0; col < n; col += 16) {
        f32x16 acc[R];
        INFERC_EACH(r, R) acc[r] = first ? zero() : load(y + r * a.y_stride + col);
        for (int64_t d = 0; d < count; d++) {
            const f32x16 w = load(rows + d * kPanelK + col);
            INFERC_EACH(r, R) acc[r] = fma(splat(x[r * a.x_stride + d]), w, acc[r]);
        }
        INFERC_EACH(r, R) store(y + r * a.y_stride + col, acc[r]);
    }
}

// y[row][head] = x[row][head] times the head's own matrix, packed as n16 [k, n] in blocks of W: as
// it is stored, for blocks cannot be turned. Decoded once for all rows; a result is a chain over
// k. Work is split over (head, kPanelK columns). Scratch and flops as head_linear().
template <class W>
INFERC_INLINE void head_linear_turned(const HeadLinearArgs &a, void *scratch, int worker,
                                      int workers) {
    const MatmulScratch s = matmul_scratch(scratch, a.rows, a.k, 0);
    static_assert(16 * kPanelK <= 112 * kChunkTiles * 16, "decoded rows take the place of results");
    const int64_t parts = ceil_div(a.n, kPanelK), tiles = ceil_div(a.k, 16);
    const Range mine = share(a.heads * parts, worker, workers);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const int64_t head = i / parts, begin = i % parts * kPanelK;
        const int64_t n = min_of(kPanelK, a.n - begin);
        for (int64_t tile = 0; tile < tiles; tile++) {
            const uint8_t *w = (const uint8_t *)a.w + (head * tiles + tile) * tile_bytes<W>(a.n);
            decode_tile<W, MathF32>(w + tile_bytes<W>(begin), n, 0, s.panel);
            rows_of_panel<W>(s.panel, n, s.out);
            const int64_t count = min_of(16, a.k - 16 * tile);
            const float *x = a.x + head * a.x_head_stride + 16 * tile;
            float *y = a.y + head * a.y_head_stride + begin;
            int64_t r = 0;
            for (; r + 4 <= a.rows; r += 4)
                add_rows<4>(a, x + r * a.x_stride, s.out, count, n, tile == 0, y + r * a.y_stride);
            for (; r < a.rows; r++)
                add_rows<1>(a, x + r * a.x_stride, s.out, count, n, tile == 0, y + r * a.y_stride);
        }
    }
}

// What stands behind the product in each head of y: `width` numbers, the first of them turned.
struct HeadBeside {
    const float *x;
    int64_t x_stride, x_head_stride, width;
    int64_t rotary_dim;  // 0: nothing turns
    Pairing pairing;
    const float *cos, *sin;  // [rows][rotary_dim / 2]
};

INFERC_INLINE void copy_beside(const HeadLinearArgs &a, const HeadBeside &b, int worker,
                               int workers) {
    const Range mine = share(a.rows * a.heads, worker, workers);
    const int64_t half = b.rotary_dim / 2;
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const int64_t row = i / a.heads, head = i % a.heads;
        float *y = a.y + row * a.y_stride + head * a.y_head_stride + a.n;
        memcpy(y, b.x + row * b.x_stride + head * b.x_head_stride, size_t(b.width) * 4);
        if (half == 0) continue;
        if (b.pairing == Pairing::half)
            rope_half(y, b.cos + row * half, b.sin + row * half, half);
        else
            rope_interleaved(y, b.cos + row * half, b.sin + row * half, half);
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
