// What a machine can do at best, measured by the workers and in the instruction sets of a step: the
// limits that its kernels are set against.
#pragma once

#include "inferc/pool.h"
#include "inferc/simd.h"

namespace inferc {

struct ReadJob {
    const float *data;
    int64_t floats;
};

// Where measured loops leave their sums, so that no compiler drops them.
inline void keep(f32x16 value) {
    float out[kLanes];
    store(out, value);
    volatile float sink = out[0];
    (void)sink;
}

// Each worker reads its part once, in four streams.
inline void read_worker(void *job, int worker, int workers) {
    const ReadJob &all = *static_cast<const ReadJob *>(job);
    const int64_t stream = all.floats / workers / (4 * kLanes) * kLanes;
    const float *p = all.data + worker * 4 * stream;
    f32x16 sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    for (int64_t i = 0; i < stream; i += kLanes)
        INFERC_EACH(s, 4) sums[s] = sums[s] + load(p + s * stream + i);
    keep((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

#if defined(INFERC_AVX512)
constexpr int kSums = 10;  // enough to hide the latency of two units, and all in registers
#else
constexpr int kSums = 5;
#endif

// 2 * kLanes * kSums flops a round and worker.
inline void multiply_add_worker(void *job, int, int) {
    const int64_t rounds = *static_cast<const int64_t *>(job);
    f32x16 sums[kSums];
    INFERC_EACH(s, kSums) sums[s] = splat(float(s));
    const f32x16 factor = splat(0.5f), term = splat(1.0f);
    for (int64_t i = 0; i < rounds; i++) INFERC_EACH(s, kSums) sums[s] = fma(sums[s], factor, term);
    INFERC_EACH(s, kSums) keep(sums[s]);
}

// The same of integers; `add(sum, x)` has the sum itself as the weights, so that no product can be
// taken out of the loop.
template <class Add>
INFERC_INLINE void multiply_add_integers(void *job, const Add &add) {
    const int64_t rounds = *static_cast<const int64_t *>(job);
    i32x16 sums[kSums];
    INFERC_EACH(s, kSums) sums[s] = splat_i(s + 1);
    const i32x16 x = splat_i(rounds < 0);  // zeros, which no compiler knows
    for (int64_t i = 0; i < rounds; i++) INFERC_EACH(s, kSums) sums[s] = add(sums[s], x);
    INFERC_EACH(s, kSums) keep(to_f32(sums[s]));
}

// 2 * 2 * kLanes * kSums operations a round and worker.
inline void multiply_add_shorts_worker(void *job, int, int) {
    multiply_add_integers(job, [](i32x16 sum, i32x16 x) { return dot_shorts(sum, sum, x); });
}

// 2 * 4 * kLanes * kSums.
inline void multiply_add_bytes_worker(void *job, int, int) {
    multiply_add_integers(job, [](i32x16 sum, i32x16 x) {
#if defined(INFERC_SHORT_SUMS)
        return add_shorts(sum, unsigned_products(sum, x));
#else
        return dot_bytes<true>(sum, sum, x);
#endif
    });
}

// Bytes that all workers together have read.
inline uint64_t read_by_all(Pool *workers, const void *data, uint64_t bytes) {
    ReadJob job = {static_cast<const float *>(data), int64_t(bytes / sizeof(float))};
    pool_run(workers, read_worker, &job);
    const uint64_t line = 4 * kLanes * uint64_t(pool_workers(workers));
    return uint64_t(job.floats) / line * line * sizeof(float);
}

// Operations that all workers together have done: on floats (32 bits), or on integers of 8 or 16.
inline double multiply_by_all(Pool *workers, int32_t bits, int64_t rounds) {
    pool_run(workers,
             bits == 8    ? multiply_add_bytes_worker
             : bits == 16 ? multiply_add_shorts_worker
                          : multiply_add_worker,
             &rounds);
    return 2.0 * (32 / bits) * kLanes * kSums * double(rounds) * pool_workers(workers);
}

}  // namespace inferc
