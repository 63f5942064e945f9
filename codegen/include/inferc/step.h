// What a generated kernel gets besides its operands, and what the generated step needs around them.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "inferc/pool.h"
#include "inferc/step_abi.h"

namespace inferc {

// One step as its kernels see it; the same on every worker.
struct Step {
    const inferc_step_args *args;
    Pool *pool;
    char *worker_scratch;        // workers * worker_scratch_bytes
    size_t worker_scratch_bytes;
    void *shared_scratch;
    size_t shared_scratch_bytes;

    char *scratch(int worker) const { return worker_scratch + size_t(worker) * worker_scratch_bytes; }

    // Base for a kernel that finds its part at `worker * bytes`: parts of one worker must coincide for
    // all kernels, since workers are not in step between barriers.
    char *scratch_base(int worker, size_t bytes) const { return scratch(worker) - size_t(worker) * bytes; }
};

// A kernel: `at` holds the addresses of its operands, then of its results.
using Kernel = void(const Step &, int64_t rows, void *const *at, int worker, int workers);

// Begin and end of each call on one worker, or nothing: what inferc_step_args.profile_ns asks for.
inline int64_t *profile_of(const inferc_step_args &args, int worker, int calls) {
    return args.profile_ns == nullptr ? nullptr : args.profile_ns + int64_t(worker) * calls * 2;
}

// Call number `call` of a step. Not inlined, as pool_barrier(): a step has hundreds of them, and
// compiling it takes half as long.
inline __attribute__((noinline)) void step_call(int64_t *profile_ns, int call, Kernel *kernel,
                                                const Step &step, int64_t rows, void *const *at,
                                                int worker, int workers) {
    if (profile_ns == nullptr) return kernel(step, rows, at, worker, workers);
    int64_t *const span_ns = profile_ns + 2 * call;
    span_ns[0] = pool_now_ns();
    kernel(step, rows, at, worker, workers);
    span_ns[1] = pool_now_ns();
}

struct ScratchSizes {
    size_t per_worker, shared;
};

inline size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }
inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }
inline bool is_aligned(const void *p) { return (uintptr_t(p) & 63) == 0; }

// What inferc_pool_create hands out: the workers and their scratch memory.
struct StepPool {
    Pool *pool;
    char *memory;
    ScratchSizes sizes;
};

inline StepPool *step_pool_create(const PoolOptions &options, ScratchSizes sizes) {
    sizes = {align64(sizes.per_worker), align64(sizes.shared)};
    StepPool *made = static_cast<StepPool *>(calloc(1, sizeof(StepPool)));
    if (made == nullptr) return nullptr;
    made->sizes = sizes;
    made->memory = static_cast<char *>(
        aligned_alloc(64, larger(64, size_t(options.threads) * sizes.per_worker + sizes.shared)));
    made->pool = made->memory == nullptr ? nullptr : pool_create(options);
    if (made->pool != nullptr) return made;
    free(made->memory);
    free(made);
    return nullptr;
}

inline void step_pool_destroy(StepPool *pool) {
    if (pool == nullptr) return;
    pool_destroy(pool->pool);
    free(pool->memory);
    free(pool);
}

inline Step step_begin(const StepPool *pool, const inferc_step_args *args) {
    size_t workers = size_t(pool_workers(pool->pool));
    return {args, pool->pool, pool->memory, pool->sizes.per_worker,
            pool->memory + workers * pool->sizes.per_worker, pool->sizes.shared};
}

}  // namespace inferc
