// Causal convolution along a sequence. A token needs the inputs before it only, so the tokens of a
// sequence are cut into chunks that blocks take in any order; the first chunk, which is the only
// one that reads the state, writes it.
#pragma once

#include "inferc/cuda/parts.cuh"
#include "inferc/cuda/state_rows.cuh"
#include "inferc/cuda/step.h"

namespace inferc {

enum class ConvActivation { none, silu };

constexpr int kConvTokens = 32;  // of a chunk

// Convolution of each channel with its last K inputs. State [K-1][C], weights [K][C], bias [C] or
// null.
// Bytes: x read, y written, state read and written; K - 1 rows of x again for each chunk.
template <int C, int K, ConvActivation activation>
INFERC_INLINE void causal_conv1d(const StateArgs &a) {
    constexpr int kBefore = K - 1, kTile = 8;
    static_assert(kBefore <= kConvTokens, "only the first chunk reads the state");
    const auto tokens = [&](int r) { return a.sequence_starts[r + 1] - a.sequence_starts[r]; };
    const Part chunk = find_part(a.sequences, kConvTokens, int(blockIdx.y), tokens);
    const int c = int(blockIdx.x * kStateThreads + threadIdx.x);
    if (chunk.group < 0 || c >= C) return;
    const SequenceTask task = sequence_task(a, chunk.group, int64_t(kBefore) * C);
    const int begin = task.begin + chunk.index * kConvTokens;
    const int end = min_of(begin + kConvTokens, task.end);
    // The input at row t, which may lie before this step.
    const auto input = [&](int t) {
        if (t >= task.begin) return a.in[0].row(t)[c];
        return task.fresh ? 0.0f : task.state[int64_t(t - task.begin + kBefore) * C + c];
    };
    float taps[K], x[kBefore + kTile];
    INFERC_UNROLL
    for (int k = 0; k < K; k++) taps[k] = a.weights[0][k * C + c];
    INFERC_UNROLL
    for (int k = 0; k < kBefore; k++) x[k] = input(begin - kBefore + k);
    const float bias = a.weights[1] == nullptr ? 0.0f : a.weights[1][c];
    for (int t = begin; t < end; t += kTile) {
        INFERC_UNROLL
        for (int i = 0; i < kTile; i++) x[kBefore + i] = a.in[0].row(min_of(t + i, end - 1))[c];
        INFERC_UNROLL
        for (int i = 0; i < kTile; i++) {
            if (t + i >= end) break;
            float y = bias;
            INFERC_UNROLL
            for (int k = 0; k < K; k++) y = fma(x[i + k], taps[k], y);
            if (activation == ConvActivation::silu) y = silu(y);
            a.out[int64_t(t + i) * C + c] = y;
        }
        INFERC_UNROLL
        for (int k = 0; k < kBefore; k++) x[k] = x[kTile + k];
    }
    if (chunk.index != 0) return;
    // In this order an element is read before it is written.
    for (int k = 0; k < kBefore; k++)
        task.state[int64_t(k) * C + c] = input(task.end - kBefore + k);
}

#if INFERC_HOST_CODE

template <int C, int K, ConvActivation activation>
Grid causal_conv1d_grid(const StateArgs &a) {
    return {uint32_t(ceil_div(C, kStateThreads)),
            uint32_t(most_parts(a.sequences, kConvTokens, a.tokens))};
}

#endif

}  // namespace inferc
