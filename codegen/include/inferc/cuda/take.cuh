// Columns by number, the same of each row.
#pragma once

#include "inferc/cuda/dependent.cuh"

namespace inferc {

constexpr int kTakeThreads = 256;

struct TakeArgs {
    const float *x;          // [rows, width]
    const int32_t *columns;  // [count]
    float *y;                // [rows, count]
};

// A thread an element. Rows are a few kilobytes, so that reads out of order hit the first cache.
template <int width, int count>
INFERC_INLINE void take_columns(const TakeArgs &args) {
    begin_dependent();
    constexpr int kParts = ceil_div(count, kTakeThreads);
    const int64_t row = blockIdx.x / kParts;
    const int column = int(blockIdx.x % kParts * kTakeThreads + threadIdx.x);
    if (column < count) args.y[row * count + column] = args.x[row * width + args.columns[column]];
}

}  // namespace inferc
