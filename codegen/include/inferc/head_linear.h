// y[row][head] = x[row][head] times the transpose of the head's own packed matrix [n, k].
//
// Work is split over (head, tile of 16 columns), so the weights are read once; each result keeps
// the order of matmul.h, whatever rows and columns are computed together.
#pragma once

#include "matmul.h"

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

// Copies `width` numbers of every row and head.
INFERC_INLINE void copy_heads(const float *x, int64_t x_stride, int64_t x_head_stride, float *y,
                              int64_t y_stride, int64_t y_head_stride, int64_t rows, int64_t heads,
                              int64_t width, int worker, int workers) {
    const Range mine = share(rows * heads, worker, workers);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const int64_t row = i / heads, head = i % heads;
        memcpy(y + row * y_stride + head * y_head_stride, x + row * x_stride + head * x_head_stride,
               size_t(width) * 4);
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
