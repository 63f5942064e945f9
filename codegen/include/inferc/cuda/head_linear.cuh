// y[row][head] = x[row][head] times the transpose of the head's own packed matrix [n, k], and what
// stands behind the product in each head.
#pragma once

#include "inferc/cuda/gemm_decode.cuh"
#include "inferc/cuda/kv_append.cuh"
#include "inferc/cuda/step.h"

namespace inferc {

// Rows of heads: head h of row r is at data + r * stride + h * head_stride.
template <int stride, int head_stride>
struct HeadRows {
    static constexpr int kStride = stride, kHeadStride = head_stride;
};

struct HeadLinearArgs {
    const float *x;
    const uint8_t *w;  // by head: n16 [n, k]
    float *y;
    int32_t rows;
    const float *beside;      // `width` numbers a head that stand behind the product
    const float *cos, *sin;  // [rows][rotary_dim / 2]
};

// Tiles of 8 rows of a block where there are many rows.
template <class Shape>
constexpr int kHeadTiles = Shape::x_terms == 3 ? 2 : 4;

constexpr int kBesideThreads = 128;

#if INFERC_DEVICE_CODE

template <int stride>
struct HeadStore {
    float *y;  // of the head in the first row
    INFERC_INLINE void operator()(int row, int col, float value) const {
        y[int64_t(row) * stride + col] = value;
    }
};

// Grid: {DecodePlan<Shape>::blocks, tiles of 8 T rows, heads}. A multiple of 4 of `offset` and the
// strides means that rows can be read 16 bytes at a time.
template <class Shape, class X, class Y, bool aligned, int T>
INFERC_INLINE void head_linear(const HeadLinearArgs &a) {
    const int head = int(blockIdx.z), first = int(blockIdx.y) * 8 * T;
    const int64_t lane_row = first + int(threadIdx.x) % 32 / 4;
    const StridedTokens<X::kStride, aligned> rows = {a.x + lane_row * X::kStride +
                                                     int64_t(head) * X::kHeadStride};
    const HeadStore<Y::kStride> keep = {a.y + int64_t(head) * Y::kHeadStride};
    gemm_decode_tiles<Shape, T>(a.w + head * (Shape::tiles * Shape::tile_bytes),
                                int(blockIdx.x) * DecodePlan<Shape>::R, rows, first,
                                a.rows, keep);
}

// Copies `width` numbers a head behind its product of n; the first `rotary_dim` of them turned.
template <class B, class Y, int heads, int n, int width, int rotary_dim, Pairing pairing>
INFERC_INLINE void copy_beside(const HeadLinearArgs &a) {
    constexpr int half = rotary_dim / 2, items = width - half;  // a pair, or one number
    const int64_t number = int64_t(blockIdx.x) * kBesideThreads + threadIdx.x;
    const int item = int(number % items), head = int(number / items % heads);
    const int64_t row = number / (int64_t(items) * heads);
    if (row >= a.rows) return;
    const float *x = a.beside + row * B::kStride + head * B::kHeadStride;
    float *y = a.y + row * Y::kStride + head * Y::kHeadStride + n;
    if (item >= half) {
        y[half + item] = x[half + item];
        return;
    }
    constexpr bool apart = pairing == Pairing::half;
    const int first = apart ? item : 2 * item, second = apart ? item + half : 2 * item + 1;
    const float c = a.cos[row * half + item], s = a.sin[row * half + item];
    y[first] = x[first] * c - x[second] * s;
    y[second] = x[second] * c + x[first] * s;
}

#endif

#if INFERC_HOST_CODE

template <class Shape, int heads, int T>
void launch_head_linear(const Step &step, int32_t kernel, const HeadLinearArgs &a) {
    const Grid grid = {uint32_t(DecodePlan<Shape>::blocks), uint32_t(ceil_div(a.rows, 8 * T)),
                       uint32_t(heads)};
    step.launch(kernel, grid, DecodePlan<Shape>::threads, DecodeMemory<Shape, T>::bytes, a);
}

#endif

}  // namespace inferc
