// A token of what is left of a row, by the random number of its place; logarithms of probabilities.
#pragma once

#include "inferc/cuda/sampling_weights.cuh"

namespace inferc {

INFERC_INLINE uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDACC__)
    return __umul64hi(a, b);
#else
    return uint64_t((unsigned __int128)(a) * b >> 64);
#endif
}

// The first number of Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011), as numpy's generator gives it: that counts up before it computes.
INFERC_INLINE uint64_t philox(uint64_t counter, uint64_t key0, uint64_t key1) {
    const uint64_t factor0 = 0xd2e7470ee14c6c93ull, factor1 = 0xca5a826395121157ull;
    uint64_t c[4] = {counter + 1, counter + 1 == 0 ? 1ull : 0ull, 0, 0};
    for (int round = 0; round < 10; round++) {
        const uint64_t high0 = high_product(factor0, c[0]), low0 = factor0 * c[0];
        const uint64_t high1 = high_product(factor1, c[2]), low1 = factor1 * c[2];
        c[0] = high1 ^ c[1] ^ key0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ key1;
        c[3] = low0;
        key0 += 0x9e3779b97f4a7c15ull, key1 += 0xbb67ae8584caa73bull;
    }
    return c[0];
}

// The distribution of a row behind its limits.
struct Left {
    Weights weights;
    RowState state;
    double min_p;

    INFERC_INLINE uint64_t mass(double value, int id) const {
        if (value < state.last_value || (value == state.last_value && id > state.last_id)) return 0;
        if (value < weights.floor()) return 0;
        const double depth = weights.depth(value);
        return Weights::weight(depth) >= min_p ? Weights::mass(depth) : 0;
    }
};
INFERC_INLINE Left left_of(const Sampling &s, int64_t row) {
    return {weights_of(s, row), s.rows[row], s.parameters[row].min_p};
}

INFERC_INLINE void sample_mass(const Sampling &s) {
    const int64_t row = blockIdx.x / s.parts;
    if (!is_drawn(s.parameters[row])) return;
    const int part = int(blockIdx.x % s.parts);
    const int begin = part * kPartColumns, end = min_of(begin + kPartColumns, s.columns);
    const LogitRow logits = logit_row(s, row);
    const Left left = left_of(s, row);
    uint64_t mass = 0;
    logits.each<kSampleThreads>(begin, end, [&](int column, uint32_t own) {
        mass += left.mass(logits.value_of(own), column);
    });
    mass = block_join<kSampleThreads>(mass, Sum());
    if (threadIdx.x == 0) s.part_states[row * s.parts + part].mass = mass;
}

// Inclusive sums over the threads of a block.
INFERC_INLINE uint64_t running_sum(uint64_t value) {
    __shared__ uint64_t sums[kSampleThreads];
    const int thread = threadIdx.x;
    sums[thread] = value;
    __syncthreads();
    for (int step = 1; step < kSampleThreads; step *= 2) {
        const uint64_t more = thread >= step ? sums[thread - step] : 0;
        __syncthreads();
        sums[thread] += more;
        __syncthreads();
    }
    value = sums[thread];
    __syncthreads();
    return value;
}

// The first token, in order of ids, at which the sum of weights exceeds a share of the whole.
INFERC_INLINE void draw_token(const Sampling &s, int64_t row, int32_t *token) {
    const inferc_sample_row &own = s.parameters[row];
    const PartState *parts = s.part_states + row * s.parts;
    __shared__ int chosen;
    __shared__ uint64_t ahead, target;
    if (threadIdx.x == 0) {
        uint64_t total = 0;
        for (int i = 0; i < s.parts; i++) total += parts[i].mass;
        // 53 bits are used. A sum exceeds the exact product if it exceeds that rounded down.
        const uint64_t random = philox(own.position, own.seed, own.sample) >> 11 << 11;
        target = high_product(random, total);
        ahead = 0, chosen = 0;
        while (chosen + 1 < s.parts && ahead + parts[chosen].mass <= target)
            ahead += parts[chosen++].mass;
    }
    __syncthreads();
    constexpr int kEach = kPartColumns / kSampleThreads;
    const int begin = chosen * kPartColumns + int(threadIdx.x) * kEach;
    const int end = min_of(begin + kEach, s.columns);
    const LogitRow logits = logit_row(s, row);
    const Left left = left_of(s, row);
    uint64_t mass = 0;
    for (int i = begin; i < end; i++) mass += left.mass(logits.value(i), i);
    const uint64_t after = ahead + running_sum(mass);
    uint64_t sum = after - mass;
    if (sum > target || after <= target) return;
    for (int i = begin; i < end; i++) {
        sum += left.mass(logits.value(i), i);
        if (sum <= target) continue;
        *token = i;
        return;
    }
}

// ---- logarithms of probabilities

struct RawLogit {
    double value;
    int32_t id;  // below zero: none
};
struct JoinRaw {
    INFERC_INLINE RawLogit operator()(RawLogit a, RawLogit b) const {
        const bool second =
            a.id < 0 || (b.id >= 0 && (b.value > a.value || (b.value == a.value && b.id < a.id)));
        return second ? b : a;
    }
};

// The largest of a part behind `last` in the order of values, then of ids.
INFERC_INLINE RawLogit next_of_part(const LogitRow &logits, int part, int columns, RawLogit last) {
    const int begin = part * kPartColumns, end = min_of(begin + kPartColumns, columns);
    RawLogit best = {0.0, -1};
    logits.each<kSampleThreads>(begin, end, [&](int column, uint32_t own) {
        const double value = logits.raw_of(own);
        const bool before = value > last.value || (value == last.value && column <= last.id);
        if (last.id >= 0 && before) return;
        if (best.id < 0 || value > best.value) best = {value, column};
    });
    return block_join<kSampleThreads>(best, JoinRaw());
}

INFERC_INLINE void write_logprobs(const Sampling &s, int64_t row, double normaliser) {
    __shared__ RawLogit best[kMostParts];
    const LogitRow logits = logit_row(s, row);
    for (int part = 0; part < s.parts; part++) {
        const RawLogit own = next_of_part(logits, part, s.columns, {0.0, -1});
        if (threadIdx.x == 0) best[part] = own;
    }
    __syncthreads();
    const int wanted = min_of(s.parameters[row].logprobs, s.columns);
    for (int n = 0; n < wanted; n++) {
        RawLogit next = {0.0, -1};
        for (int i = threadIdx.x; i < s.parts; i += kSampleThreads) next = JoinRaw()(next, best[i]);
        next = block_join<kSampleThreads>(next, JoinRaw());
        if (threadIdx.x == 0) s.top[row * s.top_stride + n] = {next.id, 0, next.value - normaliser};
        const int part = next.id / kPartColumns;
        const RawLogit after = next_of_part(logits, part, s.columns, next);
        if (threadIdx.x == 0) best[part] = after;
        __syncthreads();
    }
}

INFERC_INLINE void sample_draw(const Sampling &s) {
    const int64_t row = blockIdx.x;
    if (s.sampled[row].status != INFERC_SAMPLED) return;
    const inferc_sample_row &own = s.parameters[row];
    __shared__ int32_t token;
    if (threadIdx.x == 0) token = s.rows[row].best;
    __syncthreads();
    if (is_drawn(own)) draw_token(s, row, &token);
    __syncthreads();
    double logprob = 0.0;
    if (wants_logprobs(own)) {
        double sum = 0.0;
        for (int i = 0; i < s.parts; i++) sum += s.part_states[row * s.parts + i].raw_sum;
        const double normaliser = s.rows[row].raw_largest + ::log(sum);
        logprob = logit_row(s, row).raw(token) - normaliser;
        if (own.logprobs > 0 && s.top != nullptr) write_logprobs(s, row, normaliser);
    }
    if (threadIdx.x == 0) s.sampled[row] = {token, INFERC_SAMPLED, logprob};
}

}  // namespace inferc
