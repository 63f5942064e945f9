// Weights of tokens, and how many tokens of what weight a row has.
#pragma once

#include "inferc/cuda/sampling.cuh"

namespace inferc {

INFERC_INLINE void add_to(uint64_t *sum, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long *>(sum), (unsigned long long)(value));
}

// The distribution of one row.
struct Weights {
    double largest, temperature;

    // Below this all weights are 0 as integers: the last bin, without a division.
    INFERC_INLINE double floor() const {
        return largest - temperature * (double(kBins) / kBinsPerUnit) * (1.0 + 1e-9);
    }
    // How far below the largest, at least 0.
    INFERC_INLINE double depth(double value) const { return (largest - value) / temperature; }
    // The weights of a bin are at most e^(-bin / 64); in the last one all are 0 as integers.
    static INFERC_INLINE int bin(double depth) {
        const double at = depth * kBinsPerUnit;
        return at < kBins - 1 ? int(at) : kBins - 1;
    }
    static INFERC_INLINE double weight(double depth) { return ::exp(-depth); }
    static INFERC_INLINE uint64_t mass(double depth) {
        return bin(depth) == kBins - 1 ? 0 : uint64_t(weight(depth) * kWholeWeight + 0.5);
    }
};

INFERC_INLINE Weights weights_of(const Sampling &s, int64_t row) {
    return {s.rows[row].largest, s.parameters[row].temperature};
}

struct Sum {
    template <class T>
    INFERC_INLINE T operator()(T a, T b) const {
        return a + b;
    }
};

// Tokens by bin, of rows that are limited.
INFERC_INLINE void count_bins(const Sampling &s, int64_t row, int begin, int end) {
    __shared__ uint32_t counts[kBins];
    __shared__ uint64_t masses[kBins];
    for (int i = threadIdx.x; i < kBins; i += kSampleThreads) counts[i] = 0, masses[i] = 0;
    __syncthreads();
    const LogitRow logits = logit_row(s, row);
    const Weights weights = weights_of(s, row);
    const double lowest = weights.floor();
    uint32_t tail = 0;
    logits.each<kSampleThreads>(begin, end, [&](int, uint32_t own) {
        const double value = logits.value_of(own);
        if (value < lowest) {
            tail++;
            return;
        }
        const double depth = weights.depth(value);
        atomicAdd(&counts[Weights::bin(depth)], 1u);
        add_to(&masses[Weights::bin(depth)], Weights::mass(depth));
    });
    atomicAdd(&counts[kBins - 1], tail);
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kSampleThreads) {
        if (counts[i] == 0) continue;
        atomicAdd(&s.counts[row * kBins + i], counts[i]);
        add_to(&s.masses[row * kBins + i], masses[i]);
    }
}

// What a part adds to the sum under the logarithm of logprobs.
INFERC_INLINE void sum_raw(const Sampling &s, int64_t row, int part, int begin, int end) {
    const LogitRow logits = logit_row(s, row);
    const double largest = s.rows[row].raw_largest;
    double sum = 0.0;
    logits.each<kSampleThreads>(begin, end, [&](int, uint32_t own) {
        sum += ::exp(logits.raw_of(own) - largest);
    });
    sum = block_join<kSampleThreads>(sum, Sum());
    if (threadIdx.x == 0) s.part_states[row * s.parts + part].raw_sum = sum;
}

INFERC_INLINE void sample_weigh(const Sampling &s) {
    const int64_t row = blockIdx.x / s.parts;
    const int part = int(blockIdx.x % s.parts);
    const int begin = part * kPartColumns, end = min_of(begin + kPartColumns, s.columns);
    if (wants_logprobs(s.parameters[row])) sum_raw(s, row, part, begin, end);
    if (is_limited(s.parameters[row])) count_bins(s, row, begin, end);
}

}  // namespace inferc
