// The last token that top_k and top_p leave, tokens being in order of value, then of id.
//
// Bins say in which bin it is; the tokens of that bin are sorted. Where there are too many (equal
// logits), digits of their place in the order narrow them down first.
#pragma once

#include "inferc/cuda/sampling_weights.cuh"

namespace inferc {

constexpr int kLimitThreads = 512, kCandidates = 512;
constexpr int kDigitBits = 11;  // as many digits as bins
constexpr int kBinsOfThread = kBins / kLimitThreads;

// A token in the order: ascending by key, then by id.
struct Place {
    uint64_t key;
    uint32_t id;
    INFERC_INLINE bool operator<(Place b) const {
        return key < b.key || (key == b.key && id < b.id);
    }
};
INFERC_INLINE Place place_of(double value, int id) {
    union {
        double number;
        uint64_t bits;
    } both;
    both.number = value + 0.0;  // minus zero is equal to zero
    const uint64_t top = 1ull << 63;
    const uint64_t ascending = both.bits & top ? ~both.bits : both.bits | top;
    return {~ascending, uint32_t(id)};
}

// Places with the same leading digits.
struct Prefix {
    Place mask, value;
    INFERC_INLINE bool holds(Place place) const {
        return (place.key & mask.key) == value.key && (place.id & mask.id) == value.id;
    }
};
// Six digits of the key, three of the id.
INFERC_INLINE uint32_t digit_of(Place place, int level) {
    if (level < 5) return uint32_t(place.key >> (64 - kDigitBits * (level + 1))) & (kBins - 1);
    if (level == 5) return uint32_t(place.key) & 511u;
    if (level < 8) return place.id >> (32 - kDigitBits * (level - 5)) & (kBins - 1);
    return place.id & 1023u;
}
INFERC_INLINE Place digit_place(uint32_t digit, int level) {
    if (level < 5) return {uint64_t(digit) << (64 - kDigitBits * (level + 1)), 0};
    if (level == 5) return {digit, 0};
    if (level < 8) return {0, digit << (32 - kDigitBits * (level - 5))};
    return {0, digit};
}

// The sum over tokens in order at which to stop: so many tokens, or so much weight.
struct Until {
    bool by_mass;
    uint32_t tokens;
    double mass;
    INFERC_INLINE bool reached(uint32_t tokens_so_far, uint64_t mass_so_far) const {
        return by_mass ? double(mass_so_far) >= mass : tokens_so_far >= tokens;
    }
};

// Where it is reached: a bin, and the sums ahead of it.
struct Crossing {
    int bin;
    uint32_t tokens, inside;
    uint64_t mass;
};

struct LimitMemory {
    uint32_t counts[kBins];
    uint64_t masses[kBins];
    Place candidates[kCandidates];
    uint32_t token_sums[kLimitThreads];
    uint64_t mass_sums[kLimitThreads];
    Crossing crossing;
    uint32_t used;
    Place last;
    uint64_t last_mass;
};

// The bin of `counts` and `masses` in which the sum is reached; every thread gets it.
INFERC_INLINE Crossing find_crossing(LimitMemory &memory, const uint32_t *counts,
                                     const uint64_t *masses, Crossing ahead, Until until) {
    const int thread = threadIdx.x, first = kBinsOfThread * thread;
    uint32_t tokens = 0;
    uint64_t mass = 0;
    for (int i = 0; i < kBinsOfThread; i++) tokens += counts[first + i], mass += masses[first + i];
    memory.token_sums[thread] = tokens, memory.mass_sums[thread] = mass;
    if (thread == 0) memory.crossing = {kBins - 1, 0, 0, 0};  // where there are no numbers
    __syncthreads();
    for (int step = 1; step < kLimitThreads; step *= 2) {
        const uint32_t more = thread >= step ? memory.token_sums[thread - step] : 0;
        const uint64_t more_mass = thread >= step ? memory.mass_sums[thread - step] : 0;
        __syncthreads();
        memory.token_sums[thread] += more, memory.mass_sums[thread] += more_mass;
        __syncthreads();
    }
    tokens = ahead.tokens + memory.token_sums[thread] - tokens;
    mass = ahead.mass + memory.mass_sums[thread] - mass;
    const uint32_t after = ahead.tokens + memory.token_sums[thread];
    if (!until.reached(tokens, mass) &&
        until.reached(after, ahead.mass + memory.mass_sums[thread])) {
        int bin = first;
        while (!until.reached(tokens + counts[bin], mass + masses[bin]))
            tokens += counts[bin], mass += masses[bin], bin++;
        memory.crossing = {bin, tokens, counts[bin], mass};
    }
    __syncthreads();
    const Crossing out = memory.crossing;
    __syncthreads();
    return out;
}

// Calls `take(place, depth)` for the tokens of a bin of weights.
template <class Take>
INFERC_INLINE void each_in_bin(const Sampling &s, int64_t row, int bin, const Take &take) {
    const LogitRow logits = logit_row(s, row);
    const Weights weights = weights_of(s, row);
    const double below = weights.temperature * (bin + 1.0) / kBinsPerUnit;
    const double above = weights.temperature * double(bin) / kBinsPerUnit;
    // A little wider than the bin: what is outside needs no division.
    const double slack = 1e-9 * (below + (weights.largest < 0.0 ? -weights.largest : weights.largest));
    const double low = weights.largest - below - slack, high = weights.largest - above + slack;
    logits.each<kLimitThreads, 4>(0, s.columns, [&](int column, uint32_t own) {
        const double value = logits.value_of(own);
        if (value < low || value > high) return;
        const double depth = weights.depth(value);
        if (Weights::bin(depth) == bin) take(place_of(value, column), depth);
    });
}

// Ascending; `count` is a power of two.
INFERC_INLINE void sort_candidates(Place *candidates, int count) {
    for (int run = 2; run <= count; run *= 2)
        for (int step = run / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < count; i += kLimitThreads) {
                const int other = i ^ step;
                if (other < i) continue;
                const Place a = candidates[i], b = candidates[other];
                const bool ascending = (i & run) == 0;
                if (ascending ? b < a : a < b) candidates[i] = b, candidates[other] = a;
            }
            __syncthreads();
        }
}

// Of the tokens of a bin that share `prefix`, the one at which the sum is reached: `memory.last`.
INFERC_INLINE void pick_candidate(LimitMemory &memory, const Sampling &s, int64_t row, int bin,
                                  const Prefix &prefix, Crossing ahead, Until until) {
    if (threadIdx.x == 0) memory.used = 0;
    int padded = 1;
    while (padded < int(ahead.inside)) padded *= 2;
    __syncthreads();
    for (int i = ahead.inside + threadIdx.x; i < padded; i += kLimitThreads)
        memory.candidates[i] = {~0ull, ~0u};
    each_in_bin(s, row, bin, [&](Place place, double) {
        if (prefix.holds(place)) memory.candidates[atomicAdd(&memory.used, 1u)] = place;
    });
    __syncthreads();
    sort_candidates(memory.candidates, padded);
    // The masses of bins are needed no more.
    const LogitRow logits = logit_row(s, row);
    const Weights weights = weights_of(s, row);
    for (int i = threadIdx.x; i < int(ahead.inside); i += kLimitThreads)
        memory.masses[i] = Weights::mass(weights.depth(logits.value(int(memory.candidates[i].id))));
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t tokens = ahead.tokens, i = 0;
        uint64_t mass = ahead.mass;
        while (!until.reached(++tokens, mass += memory.masses[i])) i++;
        memory.last = memory.candidates[i], memory.last_mass = mass;
    }
    __syncthreads();
}

// The token at which the sum over tokens in order is reached: `memory.last`. None in the last bin.
INFERC_INLINE void find_last(LimitMemory &memory, const Sampling &s, int64_t row, Until until) {
    Crossing at = find_crossing(memory, s.counts + row * kBins, s.masses + row * kBins, {}, until);
    const int bin = at.bin;
    if (bin == kBins - 1) {
        if (threadIdx.x == 0) memory.last = {~0ull, ~0u}, memory.last_mass = at.mass;
        __syncthreads();
        return;
    }
    Prefix prefix = {};
    for (int level = 0; at.inside > kCandidates; level++) {
        for (int i = threadIdx.x; i < kBins; i += kLimitThreads)
            memory.counts[i] = 0, memory.masses[i] = 0;
        __syncthreads();
        each_in_bin(s, row, bin, [&](Place place, double depth) {
            if (!prefix.holds(place)) return;
            atomicAdd(&memory.counts[digit_of(place, level)], 1u);
            add_to(&memory.masses[digit_of(place, level)], Weights::mass(depth));
        });
        __syncthreads();
        at = find_crossing(memory, memory.counts, memory.masses, at, until);
        const Place all = digit_place(level == 5 ? 511u : level == 8 ? 1023u : kBins - 1, level);
        const Place own = digit_place(uint32_t(at.bin), level);
        prefix.mask = {prefix.mask.key | all.key, prefix.mask.id | all.id};
        prefix.value = {prefix.value.key | own.key, prefix.value.id | own.id};
    }
    pick_candidate(memory, s, row, bin, prefix, at, until);
}

INFERC_INLINE void sample_limit(const Sampling &s) {
    const int64_t row = blockIdx.x;
    const inferc_sample_row &own = s.parameters[row];
    if (!is_limited(own) || s.sampled[row].status != INFERC_SAMPLED) return;
    __shared__ LimitMemory memory;
    uint64_t mass = 0;
    for (int i = threadIdx.x; i < kBins; i += kLimitThreads) mass += s.masses[row * kBins + i];
    mass = block_join<kLimitThreads>(mass, Sum());
    memory.last = {~0ull, ~0u};
    if (own.top_k > 0 && own.top_k < s.columns) {
        find_last(memory, s, row, {false, uint32_t(own.top_k), 0.0});
        mass = memory.last_mass;
    }
    __syncthreads();
    if (own.top_p < 1.0) find_last(memory, s, row, {true, 0, own.top_p * double(mass)});
    if (threadIdx.x != 0 || memory.last.id == ~0u) return;
    s.rows[row].last_id = int(memory.last.id);
    s.rows[row].last_value = logit_row(s, row).value(int(memory.last.id));
}

}  // namespace inferc
