// y[row][head] = x[row][head] times the transpose of the head's own packed matrix [n, k].
//
// Work is split over (head, tile of 16 columns), so the weights are read once; each result keeps
// the order of matmul.h, whatever rows and columns are computed together.
#pragma once

#include "kv_append.h"
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
