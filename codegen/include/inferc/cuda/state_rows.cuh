// What the recurrent kernels share: the tokens of a sequence, its state, and rows that a block
// brings to shared memory ahead of their use.
//
// A state lies in a pool `[slot][..]`. A block has a sequence and some columns of its state; it
// takes the tokens one after another, so what is computed for a token does not depend on how its
// sequence was cut into steps. A sequence whose first position is 0 begins with zeros.
#pragma once

#include "inferc/cuda/math.cuh"

namespace inferc {

constexpr int kStateThreads = 128;

// Rows of an operand: row t begins at data + t * stride.
struct InputRows {
    const float *data;
    int64_t stride;

    INFERC_INLINE const float *row(int64_t t) const { return data + t * stride; }
};

struct StateArgs {
    float *pool;
    const int32_t *positions;        // [T]
    const int32_t *sequence_starts;  // [R+1]
    const int32_t *state_slots;      // [R]
    int32_t tokens, sequences;
    InputRows in[5];
    const float *weights[2];
    float *out;
};

// How the N values of a column of a state are spread over kParts groups of neighbouring lanes.
template <int N>
struct ColumnShape {
    static constexpr int kParts = N > 256 ? 16 : N > 128 ? 8 : 4;
    static constexpr int kWarpColumns = 32 / kParts;
    static constexpr int kColumns = kStateThreads / kParts;  // columns of a block
    static constexpr int kQuads = ceil_div(N, 4 * kParts);
    static constexpr int kValues = 4 * kQuads;  // values of a thread
    static constexpr int kPadded = 4 * kParts * kQuads;

    static INFERC_BOTH constexpr int blocks(int columns) { return ceil_div(columns, kColumns); }
};

// Tokens brought to shared memory at once: about 8 KB of them.
INFERC_BOTH constexpr int staged_tokens(int elements) {
    return elements <= 256 ? 8 : elements <= 512 ? 4 : elements <= 1024 ? 2 : 1;
}

// Rows [begin, end) of a sequence and its state.
struct SequenceTask {
    int begin, end;
    float *state;
    bool fresh;
};

INFERC_INLINE SequenceTask sequence_task(const StateArgs &a, int r, int64_t state_elements) {
    SequenceTask task = {a.sequence_starts[r], a.sequence_starts[r + 1], nullptr, false};
    if (task.begin == task.end) return task;
    task.state = a.pool + a.state_slots[r] * state_elements;
    task.fresh = a.positions[task.begin] == 0;
    return task;
}

// A part of the rows of an operand in shared memory, `kTile` tokens of `kWidth` elements each. The
// tokens that follow are fetched into registers while the block computes.
template <int kTile, int kWidth>
struct StagedRows {
    static constexpr int kElements = kTile * kWidth;
    static constexpr int kEach = ceil_div(kElements, kStateThreads);
    float held[kEach];

    // Elements `offset + i` of tokens from t on; zeros from element `valid` and token `end` on.
    INFERC_INLINE void fetch(const InputRows &rows, int64_t offset, int valid, int t, int end) {
        INFERC_UNROLL
        for (int i = 0; i < kEach; i++) {
            const int at = int(threadIdx.x) + i * kStateThreads;
            const int token = t + at / kWidth, element = at % kWidth;
            const bool inside = at < kElements && token < end && element < valid;
            held[i] = inside ? rows.row(token)[offset + element] : 0.0f;
        }
    }
    INFERC_INLINE void put(float *shared) const {
        INFERC_UNROLL
        for (int i = 0; i < kEach; i++) {
            const int at = int(threadIdx.x) + i * kStateThreads;
            if (at < kElements) shared[at] = held[i];
        }
    }
};

// fetch(first token), put(), and step(token, its place in shared memory) over the tokens of a
// sequence, `kTile` at a time. All threads of the block take part.
template <int kTile, class Fetch, class Put, class Step>
INFERC_INLINE void for_staged_tokens(const SequenceTask &task, const Fetch &fetch, const Put &put,
                                     const Step &step) {
    fetch(task.begin);
    for (int t = task.begin; t < task.end; t += kTile) {
        put();
        __syncthreads();
        if (t + kTile < task.end) fetch(t + kTile);
        const int count = min_of(kTile, task.end - t);
        INFERC_UNROLL_BY_2 for (int i = 0; i < count; i++) step(t + i, i);
        __syncthreads();
    }
}

// Value 4 i + j of a thread is row 4 * (kParts * i + part) + j of its column, so that the quads
// that the lanes of a warp read lie side by side.
template <int N>
struct ColumnSplit : ColumnShape<N> {
    typedef ColumnShape<N> Shape;
    using Shape::kColumns, Shape::kParts, Shape::kQuads, Shape::kValues, Shape::kWarpColumns;

    int part, column;  // of this thread; the column within the block's

    INFERC_INLINE ColumnSplit()
        : part(int(threadIdx.x) % 32 / kWarpColumns),
          column(int(threadIdx.x) / 32 * kWarpColumns + int(threadIdx.x) % kWarpColumns) {}

    INFERC_INLINE int quad_row(int i) const { return 4 * (kParts * i + part); }

    // h[row] = from[row * stride]; zeros behind N or if there is no such column.
    INFERC_INLINE void load(const float *from, int64_t stride, bool present,
                            float (&h)[kValues]) const {
        INFERC_UNROLL
        for (int v = 0; v < kValues; v++) {
            const int n = quad_row(v / 4) + v % 4;
            h[v] = present && n < N ? from[n * stride] : 0.0f;
        }
    }
    INFERC_INLINE void store(float *to, int64_t stride, bool present,
                             const float (&h)[kValues]) const {
        INFERC_UNROLL
        for (int v = 0; v < kValues; v++) {
            const int n = quad_row(v / 4) + v % 4;
            if (present && n < N) to[n * stride] = h[v];
        }
    }

    // Rows of a staged operand that belong to this thread.
    INFERC_INLINE void take(const float *shared, float (&x)[kValues]) const {
        INFERC_UNROLL
        for (int i = 0; i < kQuads; i++) {
            const float4 quad = *reinterpret_cast<const float4 *>(shared + quad_row(i));
            x[4 * i] = quad.x, x[4 * i + 1] = quad.y, x[4 * i + 2] = quad.z, x[4 * i + 3] = quad.w;
        }
    }

    // Sum over the parts of a column, the same in all of them.
    static INFERC_INLINE float sum(float x) {
        INFERC_UNROLL
        for (int step = kWarpColumns; step < 32; step *= 2)
            x += __shfl_xor_sync(0xffffffffu, x, step);
        return x;
    }
};

}  // namespace inferc
