// Logits to tokens: what all sampling kernels share, and the first of them.
//
// A row is cut into parts of kPartColumns. A launch whose grid is parts * rows gives a block to each
// part, one whose grid is rows a block to each row:
//
//   edit    rows    biased and penalised logits, in float64, go to a list
//   scan    parts   the largest logit
//   settle  rows    of all parts; greedy rows are done
//   weigh   parts   weights by how far below the largest; normaliser of logprobs   (sampling_weights)
//   limit   rows    the last token that top_k and top_p leave                      (sampling_limit)
//   mass    parts   the weight of what is left                                     (sampling_draw)
//   draw    rows    a token; logprobs
//
// A weight is an integer, 2^44 for the most likely token: sums of weights do not depend on their
// order, so neither threads nor parts decide what is drawn.
#pragma once

#include "inferc/cuda/platform.cuh"
#include "inferc/cuda/sampling.h"

namespace inferc {

constexpr int kPartColumns = 4096, kSampleThreads = 256;
constexpr int kMostParts = (1 << 21) / kPartColumns;
constexpr int kBins = 2048, kBinsPerUnit = 64;  // of the logarithm of a weight
constexpr double kWholeWeight = 17592186044416.0;  // 2^44

struct RowState {
    double largest;          // after edits
    double raw_largest;      // before
    double last_value;       // what is drawn from ends with this value, and of equal ones
    int32_t last_id;         // with this id
    int32_t best;            // id of the largest
};
struct PartState {
    double largest, raw_largest;
    double raw_sum;          // of exp(raw - raw_largest of the row)
    uint64_t mass;
    int32_t best, has_nan;
};
struct EditedLogit {
    double value;
    float raw;
};

struct Sampling {
    float *logits;
    int64_t stride;
    int32_t columns, parts;
    const int32_t *holes;
    int32_t hole_count, top_stride;
    const inferc_sample_row *parameters;
    const inferc_logit_edit *edits;
    inferc_sampled *sampled;
    inferc_token_logprob *top;
    RowState *rows;
    PartState *part_states;  // [rows, parts]
    uint32_t *counts;        // [rows, kBins]
    uint64_t *masses;        // [rows, kBins]
    EditedLogit *edited;     // beside `edits`
};

// An edited logit in its row: no number, but the place in the list. No arithmetic makes these bits.
constexpr uint32_t kEditTag = 0xffa00000u, kEditMask = 0x001fffffu;
INFERC_INLINE bool is_edit(uint32_t bits) { return (bits & ~kEditMask) == kEditTag; }

// Not contracted: the same roundings as on the CPU.
#if defined(__CUDACC__)
INFERC_INLINE double rounded_product(double a, double b) { return __dmul_rn(a, b); }
#else
INFERC_INLINE double rounded_product(double a, double b) { return a * b; }
#endif

// One row of logits.
struct LogitRow {
    const uint32_t *bits;
    const EditedLogit *edited;

    INFERC_INLINE double value_of(uint32_t own) const {
        return is_edit(own) ? edited[own & kEditMask].value : double(bits_to_float(own));
    }
    INFERC_INLINE double raw_of(uint32_t own) const {
        return double(is_edit(own) ? edited[own & kEditMask].raw : bits_to_float(own));
    }
    INFERC_INLINE double value(int column) const { return value_of(bits[column]); }
    INFERC_INLINE double raw(int column) const { return raw_of(bits[column]); }

    // Calls `take(column, bits)` for a thread's share of some columns. Several are read at once:
    // a thread that waited for each would wait most of the time.
    template <int threads, int batch = 8, class Take>
    INFERC_INLINE void each(int begin, int end, const Take &take) const {
        for (int first = begin + int(threadIdx.x); first < end; first += batch * threads) {
            uint32_t own[batch];
            INFERC_UNROLL for (int i = 0; i < batch; i++)
                own[i] = first + i * threads < end ? bits[first + i * threads] : 0;
            INFERC_UNROLL for (int i = 0; i < batch; i++)
                if (first + i * threads < end) take(first + i * threads, own[i]);
        }
    }
};

INFERC_INLINE LogitRow logit_row(const Sampling &s, int64_t row) {
    return {reinterpret_cast<const uint32_t *>(s.logits + row * s.stride),
            s.edited + s.parameters[row].first_edit};
}

// Over a block, halves joined with halves; every thread gets it.
template <int threads, class T, class Join>
INFERC_INLINE T block_join(T value, const Join &join) {
    __shared__ T items[threads];
    items[threadIdx.x] = value;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (int(threadIdx.x) < half)
            items[threadIdx.x] = join(items[threadIdx.x], items[threadIdx.x + half]);
        __syncthreads();
    }
    value = items[0];
    __syncthreads();
    return value;
}

// ---- edit

INFERC_INLINE double edited_value(double value, const inferc_logit_edit &edit,
                                  const inferc_sample_row &row) {
    value = value + edit.bias;
    if (edit.seen) {
        const double penalty = row.repetition_penalty;
        value = value > 0.0 ? value / penalty : rounded_product(value, penalty);
    }
    if (edit.count)
        value = value - (row.presence_penalty + rounded_product(row.frequency_penalty, edit.count));
    return value;
}

INFERC_INLINE void sample_edit(const Sampling &s) {
    const int64_t row = blockIdx.x;
    const inferc_sample_row &own = s.parameters[row];
    float *logits = s.logits + row * s.stride;
    for (int i = threadIdx.x; i < s.hole_count; i += kSampleThreads)
        logits[s.holes[i]] = -INFINITY;
    __syncthreads();
    for (int i = threadIdx.x; i < own.edits; i += kSampleThreads) {
        const inferc_logit_edit &edit = s.edits[own.first_edit + i];
        if (edit.token >= s.columns) continue;
        const float raw = logits[edit.token];
        s.edited[own.first_edit + i] = {edited_value(raw, edit, own), raw};
        reinterpret_cast<uint32_t *>(logits)[edit.token] = kEditTag | uint32_t(i);
    }
}

// ---- scan, settle

struct Largest {
    double value, raw;
    int32_t id, has_nan;
};
struct JoinLargest {
    INFERC_INLINE Largest operator()(Largest a, Largest b) const {
        // An id below zero stands for none.
        const bool second = a.id < 0 || (b.id >= 0 && (b.value > a.value || (b.value == a.value &&
                                                                             b.id < a.id)));
        Largest out = second ? b : a;
        out.raw = a.raw > b.raw ? a.raw : b.raw;
        out.has_nan = a.has_nan | b.has_nan;
        return out;
    }
};

INFERC_INLINE void sample_scan(const Sampling &s) {
    const int64_t row = blockIdx.x / s.parts;
    const int part = int(blockIdx.x % s.parts);
    const LogitRow logits = logit_row(s, row);
    const int begin = part * kPartColumns, end = min_of(begin + kPartColumns, s.columns);
    Largest best = {0.0, double(-INFINITY), -1, 0};
    logits.each<kSampleThreads>(begin, end, [&](int column, uint32_t own) {
        const double value = logits.value_of(own), raw = logits.raw_of(own);
        best.has_nan |= value != value || raw != raw;
        if (best.id < 0 || value > best.value) best.value = value, best.id = column;
        if (raw > best.raw) best.raw = raw;
    });
    best = block_join<kSampleThreads>(best, JoinLargest());
    if (threadIdx.x == 0)
        s.part_states[row * s.parts + part] = {best.value, best.raw, 0.0, 0, best.id, best.has_nan};
}

INFERC_INLINE void sample_settle(const Sampling &s) {
    const int64_t row = blockIdx.x;
    Largest best = {0.0, double(-INFINITY), -1, 0};
    for (int i = threadIdx.x; i < s.parts; i += kSampleThreads) {
        const PartState &part = s.part_states[row * s.parts + i];
        best = JoinLargest()(best, {part.largest, part.raw_largest, part.best, part.has_nan});
    }
    best = block_join<kSampleThreads>(best, JoinLargest());
    for (int i = threadIdx.x; i < kBins; i += kSampleThreads)
        s.counts[row * kBins + i] = 0, s.masses[row * kBins + i] = 0;
    if (threadIdx.x != 0) return;
    s.rows[row] = {best.value, best.raw, double(-INFINITY), 0x7fffffff, best.id};
    s.sampled[row] = {best.id, best.has_nan ? INFERC_LOGITS_ARE_NAN : INFERC_SAMPLED, 0.0};
}

// What the kernels behind these are for.
INFERC_BOTH bool is_drawn(const inferc_sample_row &row) { return row.temperature > 0.0; }
INFERC_BOTH bool is_limited(const inferc_sample_row &row) {
    return is_drawn(row) && (row.top_k > 0 || row.top_p < 1.0);
}
INFERC_BOTH bool wants_logprobs(const inferc_sample_row &row) { return row.logprobs >= 0; }

}  // namespace inferc
