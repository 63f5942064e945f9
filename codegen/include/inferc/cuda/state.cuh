// Recurrent ops: the tokens of a sequence in order, from the state that the last step left. One
// function for prefill and decode; the grid is (blocks of columns, sequences).
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/state_conv.cuh"
#include "inferc/cuda/state_rows.cuh"
#include "inferc/cuda/step.h"

namespace inferc {

// In each channel: h = gate h + x, y = h. State [C]; operands x, gate.
// Bytes: the operands read, y written, state read and written.
template <int C>
INFERC_INLINE void linear_scan(const StateArgs &a) {
    constexpr int kTile = 16;
    const int c = int(blockIdx.x * kStateThreads + threadIdx.x);
    const SequenceTask task = sequence_task(a, int(blockIdx.y), C);
    if (task.begin == task.end || c >= C) return;
    float h = task.fresh ? 0.0f : task.state[c];
    for (int t = task.begin; t < task.end; t += kTile) {
        float x[kTile], gate[kTile];
        INFERC_UNROLL
        for (int i = 0; i < kTile; i++) {
            const int token = min_of(t + i, task.end - 1);
            x[i] = a.in[0].row(token)[c], gate[i] = a.in[1].row(token)[c];
        }
        INFERC_UNROLL
        for (int i = 0; i < kTile; i++) {
            if (t + i >= task.end) break;
            h = fma(gate[i], h, x[i]);
            a.out[int64_t(t + i) * C + c] = h;
        }
    }
    task.state[c] = h;
}

// In each channel: h = exp(dt a) h + dt x b, y = c h, with N values of h. State and a [N][C];
// operands x, dt, b, c.
// Bytes: the operands read, y written, state read and written; b and c once a block.
template <int C, int N>
INFERC_INLINE void selective_scan(const StateArgs &a) {
    typedef ColumnSplit<N> Split;
    constexpr int kColumns = Split::kColumns, kPadded = Split::kPadded;
    constexpr int kTile = staged_tokens(2 * kPadded + 2 * kColumns);
    alignas(16) __shared__ float x[kTile * kColumns], dt[kTile * kColumns];
    alignas(16) __shared__ float b[kTile * kPadded], read[kTile * kPadded];
    const SequenceTask task = sequence_task(a, int(blockIdx.y), int64_t(N) * C);
    if (task.begin == task.end) return;
    const Split split;
    const int first = int(blockIdx.x) * kColumns, c = first + split.column;
    float h[Split::kValues], rate[Split::kValues];
    split.load(task.state + c, C, c < C && !task.fresh, h);
    split.load(a.weights[0] + c, C, c < C, rate);
    StagedRows<kTile, kColumns> next_x, next_dt;
    StagedRows<kTile, kPadded> next_b, next_read;
    const auto fetch = [&](int t) {
        next_x.fetch(a.in[0], first, C - first, t, task.end);
        next_dt.fetch(a.in[1], first, C - first, t, task.end);
        next_b.fetch(a.in[2], 0, N, t, task.end);
        next_read.fetch(a.in[3], 0, N, t, task.end);
    };
    const auto put = [&] { next_x.put(x), next_dt.put(dt), next_b.put(b), next_read.put(read); };
    for_staged_tokens<kTile>(task, fetch, put, [&](int t, int i) {
        const float step = dt[i * kColumns + split.column];
        const float dx = step * x[i * kColumns + split.column];
        float in[Split::kValues], out[Split::kValues], y = 0.0f;
        split.take(b + i * kPadded, in);
        split.take(read + i * kPadded, out);
        INFERC_UNROLL
        for (int v = 0; v < Split::kValues; v++) {
            h[v] = fma(exp(step * rate[v]), h[v], dx * in[v]);
            y = fma(h[v], out[v], y);
        }
        y = Split::sum(y);
        if (split.part == 0 && c < C) a.out[int64_t(t) * C + c] = y;
    });
    split.store(task.state + c, C, c < C, h);
}

// In each head of P values: h = exp(dt a) h + dt x b, y = c h. State [H][N][P], a [H]; operands
// x [H][P], dt [H], b and c [G][N]; H / G heads in a row share b and c.
// Bytes: the operands read, y written, state read and written; b and c once a block.
template <int H, int P, int G, int N>
INFERC_INLINE void ssd_scan(const StateArgs &a) {
    typedef ColumnSplit<N> Split;
    constexpr int kColumns = Split::kColumns, kPadded = Split::kPadded;
    constexpr int kBlocks = Split::blocks(P);
    constexpr int kTile = staged_tokens(2 * kPadded + kColumns + 1);
    alignas(16) __shared__ float x[kTile * kColumns], dt[kTile];
    alignas(16) __shared__ float b[kTile * kPadded], read[kTile * kPadded];
    const SequenceTask task = sequence_task(a, int(blockIdx.y), int64_t(H) * N * P);
    if (task.begin == task.end) return;
    const Split split;
    const int head = int(blockIdx.x) / kBlocks, group = head / (H / G);
    const int first = int(blockIdx.x) % kBlocks * kColumns, p = first + split.column;
    const float rate = a.weights[0][head];
    float *state = task.state + int64_t(head) * N * P + p;
    float h[Split::kValues];
    split.load(state, P, p < P && !task.fresh, h);
    StagedRows<kTile, kColumns> next_x;
    StagedRows<kTile, 1> next_dt;
    StagedRows<kTile, kPadded> next_b, next_read;
    const auto fetch = [&](int t) {
        next_x.fetch(a.in[0], head * P + first, P - first, t, task.end);
        next_dt.fetch(a.in[1], head, 1, t, task.end);
        next_b.fetch(a.in[2], group * N, N, t, task.end);
        next_read.fetch(a.in[3], group * N, N, t, task.end);
    };
    const auto put = [&] { next_x.put(x), next_dt.put(dt), next_b.put(b), next_read.put(read); };
    for_staged_tokens<kTile>(task, fetch, put, [&](int t, int i) {
        const float decay = exp(dt[i] * rate), dx = dt[i] * x[i * kColumns + split.column];
        float in[Split::kValues], out[Split::kValues], y = 0.0f;
        split.take(b + i * kPadded, in);
        split.take(read + i * kPadded, out);
        INFERC_UNROLL
        for (int v = 0; v < Split::kValues; v++) {
            h[v] = fma(decay, h[v], dx * in[v]);
            y = fma(h[v], out[v], y);
        }
        y = Split::sum(y);
        if (split.part == 0 && p < P) a.out[(int64_t(t) * H + head) * P + p] = y;
    });
    split.store(state, P, p < P, h);
}

// In each head of V values and K keys: h = exp(g) h, h += beta k (v - k h), y = q h. State
// [H][K][V]; operands q and k [G][K], v [H][V], g [H][M] (one decay a head, or one a key), beta
// [H]; H / G heads in a row share q and k.
// Bytes: the operands read, y written, state read and written; q, k and g once a block.
template <int H, int G, int K, int V, int M>
INFERC_INLINE void gated_delta_rule(const StateArgs &a) {
    typedef ColumnSplit<K> Split;
    constexpr int kColumns = Split::kColumns, kPadded = Split::kPadded;
    constexpr int kBlocks = Split::blocks(V), kDecays = M == 1 ? 1 : kPadded;
    constexpr int kTile = staged_tokens(2 * kPadded + kColumns + kDecays + 1);
    alignas(16) __shared__ float query[kTile * kPadded], key[kTile * kPadded];
    alignas(16) __shared__ float value[kTile * kColumns], decay[kTile * kDecays], beta[kTile];
    const SequenceTask task = sequence_task(a, int(blockIdx.y), int64_t(H) * K * V);
    if (task.begin == task.end) return;
    const Split split;
    const int head = int(blockIdx.x) / kBlocks, group = head / (H / G);
    const int first = int(blockIdx.x) % kBlocks * kColumns, c = first + split.column;
    float *state = task.state + int64_t(head) * K * V + c;
    float h[Split::kValues];
    split.load(state, V, c < V && !task.fresh, h);
    StagedRows<kTile, kPadded> next_query, next_key;
    StagedRows<kTile, kColumns> next_value;
    StagedRows<kTile, kDecays> next_decay;
    StagedRows<kTile, 1> next_beta;
    const auto fetch = [&](int t) {
        next_query.fetch(a.in[0], group * K, K, t, task.end);
        next_key.fetch(a.in[1], group * K, K, t, task.end);
        next_value.fetch(a.in[2], head * V + first, V - first, t, task.end);
        next_decay.fetch(a.in[3], head * M, M, t, task.end);
        next_beta.fetch(a.in[4], head, 1, t, task.end);
    };
    const auto put = [&] {
        INFERC_UNROLL
        for (float &g : next_decay.held) g = exp(g);
        next_query.put(query), next_key.put(key), next_value.put(value);
        next_decay.put(decay), next_beta.put(beta);
    };
    for_staged_tokens<kTile>(task, fetch, put, [&](int t, int i) {
        float k[Split::kValues], q[Split::kValues], factor[Split::kValues], known = 0.0f, y = 0.0f;
        split.take(key + i * kPadded, k);
        if constexpr (M > 1) split.take(decay + i * kDecays, factor);
        INFERC_UNROLL
        for (int v = 0; v < Split::kValues; v++) {
            h[v] = (M == 1 ? decay[i * kDecays] : factor[v]) * h[v];
            known = fma(h[v], k[v], known);
        }
        const float change = beta[i] * (value[i * kColumns + split.column] - Split::sum(known));
        split.take(query + i * kPadded, q);
        INFERC_UNROLL
        for (int v = 0; v < Split::kValues; v++) {
            h[v] = fma(k[v], change, h[v]);
            y = fma(h[v], q[v], y);
        }
        y = Split::sum(y);
        if (split.part == 0 && c < V) a.out[(int64_t(t) * H + head) * V + c] = y;
    });
    split.store(state, V, c < V, h);
}

#if INFERC_HOST_CODE

template <int C>
Grid linear_scan_grid(const StateArgs &a) {
    return {uint32_t(ceil_div(C, kStateThreads)), uint32_t(a.sequences)};
}
template <int C, int N>
Grid selective_scan_grid(const StateArgs &a) {
    return {uint32_t(ColumnShape<N>::blocks(C)), uint32_t(a.sequences)};
}
template <int H, int P, int G, int N>
Grid ssd_scan_grid(const StateArgs &a) {
    return {uint32_t(H * ColumnShape<N>::blocks(P)), uint32_t(a.sequences)};
}
template <int H, int G, int K, int V, int M>
Grid gated_delta_rule_grid(const StateArgs &a) {
    return {uint32_t(H * ColumnShape<K>::blocks(V)), uint32_t(a.sequences)};
}

#endif

}  // namespace inferc
