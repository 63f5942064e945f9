// Recurrent ops: the tokens of a sequence in order, from the state that the last step left.
//
// A state lies in a pool `[slot][..]`. A task is a sequence and a block of channels, which is all that
// a worker shares out: what is computed for a token does not depend on how its sequence was cut into
// steps. A sequence whose first position is 0 begins with zeros.
#pragma once

#include "simd.h"
#include "vmath.h"

namespace inferc {
inline namespace INFERC_ISA {

struct SequenceStates {
    float *pool;
    const int32_t *positions;        // [T]
    const int32_t *sequence_starts;  // [R+1]
    const int32_t *state_slots;      // [R]
    int32_t sequences;
};

// Rows of an operand: row t begins at data + t * stride.
struct InputRows {
    const float *data;
    int64_t stride;

    const float *row(int64_t t) const { return data + t * stride; }
};

// One task: rows [begin, end) of a sequence, its state, and the block of channels.
struct StateTask {
    int64_t begin, end, block;
    float *state;
    bool fresh;
};

template <class Body>
INFERC_INLINE void for_each_task(const SequenceStates &s, int64_t blocks, int64_t state_elements,
                                 int worker, int workers, const Body &body) {
    const Range mine = share(s.sequences * blocks, worker, workers);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const int64_t r = i / blocks, begin = s.sequence_starts[r], end = s.sequence_starts[r + 1];
        if (begin == end) continue;
        float *state = s.pool + s.state_slots[r] * state_elements;
        body(StateTask{begin, end, i % blocks, state, s.positions[begin] == 0});
    }
}

enum class ConvActivation { none, silu };

// Convolution of each channel with its last K inputs. State [K-1][C], weights [K][C], bias [C] or null.
// Bytes: x read, y written, state read and written.
template <int64_t C, int K, ConvActivation activation>
INFERC_NOINLINE void causal_conv1d(const SequenceStates &s, const InputRows *in,
                                   const float *const *weights, float *out, int worker, int workers) {
    constexpr int kBefore = K - 1;
    const float *w = weights[0], *b = weights[1];
    for_each_task(s, ceil_div(C, kLanes), kBefore * C, worker, workers, [&](const StateTask &task) {
        const int64_t c = task.block * kLanes;
        const int lanes = int(min_of(kLanes, C - c));
        f32x16 taps[K], past[K];
        for (int k = 0; k < K; k++) taps[k] = load(w + k * C + c, lanes);
        for (int k = 0; k < kBefore; k++)
            past[k] = task.fresh ? zero() : load(task.state + k * C + c, lanes);
        const f32x16 bias = b == nullptr ? zero() : load(b + c, lanes);
        for (int64_t t = task.begin; t < task.end; t++) {
            past[kBefore] = load(in[0].row(t) + c, lanes);
            f32x16 y = bias;
            for (int k = 0; k < K; k++) y = fma(past[k], taps[k], y);
            if (activation == ConvActivation::silu) y = silu(y);
            store(out + t * C + c, y, lanes);
            for (int k = 0; k < kBefore; k++) past[k] = past[k + 1];
        }
        for (int k = 0; k < kBefore; k++) store(task.state + k * C + c, past[k], lanes);
    });
}

// In each channel: h = exp(dt a) h + dt x b, y = c h, with N values of h. State and a [N][C]; operands
// x, dt, b, c.
// Bytes: the operands read, y written, state read and written.
template <int64_t C, int N>
INFERC_NOINLINE void selective_scan(const SequenceStates &s, const InputRows *in,
                                    const float *const *weights, float *out, int worker,
                                    int workers) {
    const float *a = weights[0];
    for_each_task(s, ceil_div(C, kLanes), N * C, worker, workers, [&](const StateTask &task) {
        const int64_t c = task.block * kLanes;
        const int lanes = int(min_of(kLanes, C - c));
        f32x16 h[N];
        for (int n = 0; n < N; n++)
            h[n] = task.fresh ? zero() : load(task.state + n * C + c, lanes);
        for (int64_t t = task.begin; t < task.end; t++) {
            const f32x16 x = load(in[0].row(t) + c, lanes), dt = load(in[1].row(t) + c, lanes);
            const float *b = in[2].row(t), *read = in[3].row(t);
            const f32x16 dx = dt * x;
            f32x16 y = zero();
            for (int n = 0; n < N; n++) {
                h[n] = fma(exp(dt * load(a + n * C + c, lanes)), h[n], dx * splat(b[n]));
                y = fma(h[n], splat(read[n]), y);
            }
            store(out + t * C + c, y, lanes);
        }
        for (int n = 0; n < N; n++) store(task.state + n * C + c, h[n], lanes);
    });
}

// In each channel: h = gate h + x, y = h. State [C]; operands x, gate.
// Bytes: the operands read, y written, state read and written.
template <int64_t C>
INFERC_NOINLINE void linear_scan(const SequenceStates &s, const InputRows *in, const float *const *,
                                 float *out, int worker, int workers) {
    for_each_task(s, ceil_div(C, kLanes), C, worker, workers, [&](const StateTask &task) {
        const int64_t c = task.block * kLanes;
        const int lanes = int(min_of(kLanes, C - c));
        f32x16 h = task.fresh ? zero() : load(task.state + c, lanes);
        for (int64_t t = task.begin; t < task.end; t++) {
            h = fma(load(in[1].row(t) + c, lanes), h, load(in[0].row(t) + c, lanes));
            store(out + t * C + c, h, lanes);
        }
        store(task.state + c, h, lanes);
    });
}

constexpr int64_t ceil_div_constant(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The widest block of a head's P values that fills whole vectors, at most four.
constexpr int head_vectors(int64_t P) { return P % 64 == 0 ? 4 : P % 32 == 0 ? 2 : 1; }

// Values of an operand that a head has one or a few of, by the vector functions.
INFERC_INLINE float exp_one(float x) {
    float lanes[kLanes];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

// In each head of P values: h = exp(dt a) h + dt x b, y = c h. State [H][N][P], a [H]; operands x [H][P],
// dt [H], b and c [G][N]; H / G heads in a row share b and c.
// Bytes: the operands read, y written, state read and written, once a token beyond the caches.
template <int64_t H, int64_t P, int64_t G, int64_t N>
INFERC_NOINLINE void ssd_scan(const SequenceStates &s, const InputRows *in,
                              const float *const *weights, float *out, int worker, int workers) {
    constexpr int kVectors = head_vectors(P);
    constexpr int64_t kWidth = kVectors * kLanes, kBlocks = ceil_div_constant(P, kWidth);
    const float *a = weights[0];
    for_each_task(s, H * kBlocks, H * N * P, worker, workers, [&](const StateTask &task) {
        const int64_t head = task.block / kBlocks, p = task.block % kBlocks * kWidth;
        const int lanes = int(min_of(kLanes, P - p));
        float *state = task.state + head * N * P + p;
        if (task.fresh)
            for (int64_t n = 0; n < N; n++)
                INFERC_EACH(v, kVectors) store(state + n * P + v * kLanes, zero(), lanes);
        for (int64_t t = task.begin; t < task.end; t++) {
            const float dt = in[1].row(t)[head];
            const float *x = in[0].row(t) + head * P + p;
            const float *b = in[2].row(t) + head / (H / G) * N, *c = in[3].row(t) + head / (H / G) * N;
            const f32x16 decay = splat(exp_one(dt * a[head]));
            f32x16 dx[kVectors], y[kVectors];
            INFERC_EACH(v, kVectors) {
                dx[v] = splat(dt) * load(x + v * kLanes, lanes);
                y[v] = zero();
            }
            for (int64_t n = 0; n < N; n++)
                INFERC_EACH(v, kVectors) {
                    float *at = state + n * P + v * kLanes;
                    const f32x16 h = fma(decay, load(at, lanes), dx[v] * splat(b[n]));
                    store(at, h, lanes);
                    y[v] = fma(h, splat(c[n]), y[v]);
                }
            INFERC_EACH(v, kVectors) store(out + (t * H + head) * P + p + v * kLanes, y[v], lanes);
        }
    });
}

// In each head of V values and K keys: h = exp(g) h, h += beta k (v - k h), y = q h. State [H][K][V];
// operands q and k [G][K], v [H][V], g [H][M] (one decay a head, or one a key), beta [H]; H / G heads in a
// row share q and k.
// Bytes: the operands read, y written, state read and written, once a token beyond the caches.
template <int64_t H, int64_t G, int64_t K, int64_t V, int64_t M>
INFERC_NOINLINE void gated_delta_rule(const SequenceStates &s, const InputRows *in,
                                      const float *const *, float *out, int worker, int workers) {
    constexpr int kVectors = head_vectors(V);
    constexpr int64_t kWidth = kVectors * kLanes, kBlocks = ceil_div_constant(V, kWidth);
    for_each_task(s, H * kBlocks, H * K * V, worker, workers, [&](const StateTask &task) {
        const int64_t head = task.block / kBlocks, first = task.block % kBlocks * kWidth;
        const int lanes = int(min_of(kLanes, V - first));
        float *state = task.state + head * K * V + first;
        if (task.fresh)
            for (int64_t n = 0; n < K; n++)
                INFERC_EACH(v, kVectors) store(state + n * V + v * kLanes, zero(), lanes);
        for (int64_t t = task.begin; t < task.end; t++) {
            const float *q = in[0].row(t) + head / (H / G) * K, *k = in[1].row(t) + head / (H / G) * K;
            const float *value = in[2].row(t) + head * V + first, *g = in[3].row(t) + head * M;
            const f32x16 beta = splat(in[4].row(t)[head]);
            float decays[M + kLanes];
            for (int64_t m = 0; m < M; m += kLanes)
                store(decays + m, exp(load(g + m, int(min_of(kLanes, M - m)))));
            f32x16 known[kVectors], change[kVectors], y[kVectors];
            INFERC_EACH(v, kVectors) known[v] = y[v] = zero();
            for (int64_t n = 0; n < K; n++)
                INFERC_EACH(v, kVectors) {
                    float *at = state + n * V + v * kLanes;
                    const f32x16 h = splat(decays[M == 1 ? 0 : n]) * load(at, lanes);
                    store(at, h, lanes);
                    known[v] = fma(h, splat(k[n]), known[v]);
                }
            INFERC_EACH(v, kVectors)
            change[v] = beta * (load(value + v * kLanes, lanes) - known[v]);
            for (int64_t n = 0; n < K; n++)
                INFERC_EACH(v, kVectors) {
                    float *at = state + n * V + v * kLanes;
                    const f32x16 h = fma(splat(k[n]), change[v], load(at, lanes));
                    store(at, h, lanes);
                    y[v] = fma(h, splat(q[n]), y[v]);
                }
            INFERC_EACH(v, kVectors)
            store(out + (t * H + head) * V + first + v * kLanes, y[v], lanes);
        }
    });
}

}  // namespace INFERC_ISA
}  // namespace inferc
