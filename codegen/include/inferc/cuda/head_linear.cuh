// y[row][head] = x[row][head] times the transpose of the head's own packed matrix [n, k], and what
// stands behind the product in each head.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/gemm_block.cuh"
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

// Rows of a launch: few and some go through gemm_decode.cuh, many through gemm_block.cuh. The bits
// are the same.
enum class HeadRowCount { few, some, many };

INFERC_BOTH constexpr HeadRowCount head_row_count(int64_t rows) {
    return rows <= 8 ? HeadRowCount::few : rows <= 32 ? HeadRowCount::some : HeadRowCount::many;
}

// How a product by head is launched for a count of rows: T tiles of 8 rows a block.
template <class Shape, HeadRowCount count>
struct HeadPlan {
    static constexpr bool many = count == HeadRowCount::many;
    // Rows and columns of heads take registers of their own beside the sums of a block.
    static constexpr int T = count == HeadRowCount::few ? 1
                             : !many                    ? DecodePlan<Shape>::wide
                             : most_block_tiles<Shape>() > 4 ? most_block_tiles<Shape>() - 2
                                                             : most_block_tiles<Shape>();
    static constexpr int threads =
        many ? BlockPlan<Shape, T>::threads : DecodePlan<Shape>::threads;
    static constexpr int resident =
        count == HeadRowCount::few ? DecodePlan<Shape>::resident : 1;
    static constexpr int blocks = many ? BlockPlan<Shape, T>::blocks : DecodePlan<Shape>::blocks;
    static constexpr int bytes = many ? BlockPlan<Shape, T>::bytes : DecodeMemory<Shape, T>::bytes;
};

constexpr int kBesideThreads = 128;

#if INFERC_DEVICE_CODE

template <int stride>
struct HeadStore {
    float *y;  // of the head in the first row
    INFERC_INLINE void operator()(int row, int col, float value) const {
        y[int64_t(row) * stride + col] = value;
    }
};

// Grid: {Plan::blocks, blocks of 8 T rows, heads}; Plan: a HeadPlan of Shape. `aligned`: rows of
// heads begin at multiples of 16 bytes.
template <class Plan, class Shape, class X, class Y, bool aligned>
INFERC_INLINE void head_linear(const HeadLinearArgs &a) {
    const int head = int(blockIdx.z), first = int(blockIdx.y) * 8 * Plan::T;
    const float *x = a.x + int64_t(head) * X::kHeadStride;
    const uint8_t *w = a.w + head * (Shape::tiles * Shape::tile_bytes);
    const HeadStore<Y::kStride> keep = {a.y + int64_t(first) * Y::kStride +
                                        int64_t(head) * Y::kHeadStride};
    const int count = min_of(8 * Plan::T, a.rows - first);
    if constexpr (Plan::many) {
        begin_dependent();
        const auto rows = [&](int row) { return x + int64_t(first + row) * X::kStride; };
        gemm_block_tiles<Shape, Plan::T, aligned>(w, int(blockIdx.x), rows, 0, count, keep);
    } else {
        const int64_t row = first + int(threadIdx.x) % 32 / 4;
        const StridedTokens<X::kStride, aligned> rows = {x + row * X::kStride};
        gemm_decode_tiles<Shape, Plan::T>(w, int(blockIdx.x) * DecodePlan<Shape>::R, rows, 0, count,
                                          keep);
    }
}

// Copies `width` numbers a head behind its product of n; the first `rotary_dim` of them turned.
template <class B, class Y, int heads, int n, int width, int rotary_dim, Pairing pairing>
INFERC_INLINE void copy_beside(const HeadLinearArgs &a) {
    begin_dependent();
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

template <class Plan, int heads>
void launch_head_linear(const Step &step, int32_t kernel, const HeadLinearArgs &a) {
    const Grid grid = {uint32_t(Plan::blocks), uint32_t(ceil_div(a.rows, 8 * Plan::T)),
                       uint32_t(heads)};
    step.launch(kernel, grid, Plan::threads, Plan::bytes, a, 1, INFERC_LAUNCH_DEPENDENT);
}

#endif

}  // namespace inferc
