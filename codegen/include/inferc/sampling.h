// The most likely token of each row of logits, found by all workers behind the head's product: each
// over the columns that it has just written, or nearly, while they are in its cache.
#pragma once

#include "inferc/matmul.h"
#include "inferc/step.h"

namespace inferc {
inline namespace INFERC_ISA {

constexpr int32_t kGreedyNan = -1, kGreedyEmpty = -2;
constexpr int64_t kGreedyBlock = 1024;

// Of some columns of a row: the largest logit and its lowest id, or kGreedyNan, or kGreedyEmpty.
struct Greedy {
    float logit;
    int32_t id;
};

// Integers in the order of the floats, NaN at both ends: their maximum needs no order of evaluation,
// so that compilers vectorise it. Its own inverse.
INFERC_INLINE int32_t in_order(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

INFERC_INLINE Greedy greedy_of(const float *row, int64_t begin, int64_t end) {
    constexpr int32_t kInfinity = 0x7f800000;
    Greedy best = {0, kGreedyEmpty};
    for (int64_t block = begin; block < end; block += kGreedyBlock) {
        const int64_t stop = min_of(block + kGreedyBlock, end);
        int32_t low = INT32_MAX, high = INT32_MIN;
        for (int64_t i = block; i < stop; i++) {
            const int32_t key = in_order(int32_t(float_to_bits(row[i])));
            low = key < low ? key : low;
            high = key > high ? key : high;
        }
        if (high > kInfinity || low < in_order(int32_t(0xff800000))) return {0, kGreedyNan};
        const float logit = bits_to_float(uint32_t(in_order(high)));
        if (best.id == kGreedyEmpty || logit > best.logit) best = {logit, int32_t(block)};
    }
    // As floats: zeros of both signs are equal.
    while (best.id != kGreedyEmpty && row[best.id] != best.logit) best.id++;
    return best;
}

// a.greedy_ids of all rows. Takes 8 bytes of each worker's scratch a row; begins and ends work of
// its own, so it may follow any kernel.
inline void greedy_ids(const Step &step, int64_t vocab, int worker, int workers) {
    const inferc_step_args &a = *step.args;
    const Range tiles = share(ceil_div(int64_t(a.greedy_end), 16), worker, workers);
    const int64_t end = min_of(16 * tiles.end, int64_t(a.greedy_end));
    Greedy *found = reinterpret_cast<Greedy *>(step.scratch(worker));
    pool_barrier(step.pool);
    for (int64_t row = 0; row < a.logit_rows; row++)
        found[row] = greedy_of(a.logits + row * vocab, 16 * tiles.begin, end);
    pool_barrier(step.pool);
    if (worker != 0) return;
    for (int64_t row = 0; row < a.logit_rows; row++) {
        Greedy best = {0, kGreedyEmpty};
        for (int other = 0; other < workers && best.id != kGreedyNan; other++) {
            const Greedy &part = reinterpret_cast<const Greedy *>(step.scratch(other))[row];
            if (part.id == kGreedyEmpty) continue;
            if (part.id == kGreedyNan || best.id == kGreedyEmpty || part.logit > best.logit)
                best = part;
        }
        a.greedy_ids[row] = best.id;
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
