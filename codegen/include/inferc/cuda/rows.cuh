// What generated row kernels are made of: selection within a row, and rows in registers.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/math.cuh"

namespace inferc {

template <class T>
INFERC_INLINE T lesser_of(T a, T b) {
    return b < a ? b : a;
}
template <class T>
INFERC_INLINE T greater_of(T a, T b) {
    return a < b ? b : a;
}

// Four elements at a multiple of 16 bytes.
INFERC_INLINE void load_four(const float *from, float (&to)[4]) {
    const float4 four = *reinterpret_cast<const float4 *>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
INFERC_INLINE void store_four(float *to, const float (&from)[4]) {
    const float4 four = {from[0], from[1], from[2], from[3]};
    *reinterpret_cast<float4 *>(to) = four;
}

// Between loops of the threads that share a row.
template <int threads>
INFERC_INLINE void row_barrier() {
    if constexpr (threads == 32)
        __syncwarp();
    else
        __syncthreads();
}

// The k largest of x[n] in descending order, found by one warp; of equal ones the first comes
// first. Indices are always within the row, also where elements are no numbers: they rank below all
// others.
template <class T>
INFERC_INLINE void topk_row(const T *x, int n, int k, T *values, int64_t *indices) {
    const int lane = threadIdx.x % 32;
    int last = -1;
    T last_value = {};
    for (int j = 0; j < k; j++) {
        int best = -1;
        T value = {};
        for (int i = lane; i < n; i += 32) {
            const T own = x[i];
            const bool after = last < 0 || own < last_value || (own == last_value && i > last);
            if (after && own == own && (best < 0 || value < own)) best = i, value = own;
        }
        INFERC_UNROLL for (int step = 16; step > 0; step /= 2) {
            const int other = __shfl_xor_sync(kAllLanes, best, step);
            const T theirs = __shfl_xor_sync(kAllLanes, value, step);
            const bool before = value < theirs || (value == theirs && other < best);
            if (other >= 0 && (best < 0 || before)) best = other, value = theirs;
        }
        if (best < 0) best = j, value = x[j];
        if (lane == 0) values[j] = value, indices[j] = best;
        last = best, last_value = value;
    }
}

// Of the threads that share a row: a warp, or a block.
template <int threads>
INFERC_INLINE float row_sum(float value) {
    if constexpr (threads == 32)
        return warp_sum(value);
    else
        return block_sum<threads>(value);
}
template <int threads>
INFERC_INLINE float row_max(float value) {
    if constexpr (threads == 32)
        return warp_max(value);
    else
        return block_max<threads>(value);
}

// A thread's share of a row whose width is a multiple of four and whose address is one of 16 bytes:
// runs of four columns, `stride` columns apart from `first` on.
template <int items, int width, int stride>
struct RowShare {
    static constexpr int kValues = 4 * items;
    int first;

    INFERC_INLINE int column(int value) const { return first + value / 4 * stride + value % 4; }
    INFERC_INLINE bool has(int value) const {
        return width % stride == 0 && items * stride <= width ? true : column(value) < width;
    }
    // Values beyond the row are zero.
    INFERC_INLINE void load(const float *row, float (&values)[kValues]) const {
        INFERC_UNROLL for (int i = 0; i < items; i++) {
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (has(4 * i)) four = *reinterpret_cast<const float4 *>(row + column(4 * i));
            values[4 * i] = four.x, values[4 * i + 1] = four.y;
            values[4 * i + 2] = four.z, values[4 * i + 3] = four.w;
        }
    }
    INFERC_INLINE void store(float *row, const float (&values)[kValues]) const {
        INFERC_UNROLL for (int i = 0; i < items; i++) {
            if (!has(4 * i)) continue;
            const float4 four = {values[4 * i], values[4 * i + 1], values[4 * i + 2],
                                 values[4 * i + 3]};
            *reinterpret_cast<float4 *>(row + column(4 * i)) = four;
        }
    }
};

}  // namespace inferc
