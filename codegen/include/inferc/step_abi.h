// The C interface of a generated step library. Plain C, so that any language can call it.
//
// A step runs the model over T new tokens of R sequences: it writes their keys and values to the page
// pools and logits for L of the rows. The two step functions give the same bits for the same token.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INFERC_ABI_VERSION 1
#define INFERC_EXPORT __attribute__((visibility("default")))

// What a step function returns.
enum {
    INFERC_OK = 0,
    INFERC_TOO_MANY_TOKENS = 1,     // tokens outside 1 .. the artifact's limits.step_tokens
    INFERC_TOO_MANY_SEQUENCES = 2,  // sequences outside 1 .. limits.sequences
    INFERC_TOO_MANY_LOGITS = 3,     // logit_rows outside 0 .. tokens
    INFERC_TABLE_TOO_WIDE = 4,      // table_stride outside 1 .. pages of limits.context_tokens
    INFERC_NOT_DECODE = 5,          // inferc_step_decode with tokens != sequences
    INFERC_MISALIGNED = 6,          // arena, a weight or a cache pool is not 64-byte aligned
};

typedef struct inferc_step_args {
    int32_t tokens;                   // T: rows of this step
    int32_t sequences;                // R
    int32_t logit_rows;               // L
    int32_t table_stride;             // columns of block_tables
    const int32_t *ids;               // [T]
    const int32_t *positions;         // [T] absolute position of each token
    const int32_t *slots;             // [T] page * page_tokens + offset where K and V of the token go
    const int32_t *sequence_starts;   // [R+1] rows of sequence r are [starts[r], starts[r+1])
    const int32_t *context_lengths;   // [R] tokens in the cache after this step, new ones included
    const int32_t *block_tables;      // [R, table_stride] page ids in order of position
    const int32_t *logit_indices;     // [L] rows for which logits are wanted
    void *const *weights;             // a pointer a packed weight, in manifest order, 64-byte aligned
    void *const *caches;              // caches[2c] = K pool, caches[2c+1] = V pool, 64-byte aligned
    void *arena;                      // manifest memory.arena_bytes, 64-byte aligned
    float *logits;                    // [L, vocab]
} inferc_step_args;

// A pool of persistent workers (the caller is one of them) with their scratch memory. NULL on failure.
INFERC_EXPORT void *inferc_pool_create(int32_t threads);
INFERC_EXPORT void inferc_pool_destroy(void *pool);
// Scratch memory a pool of that many threads allocates.
INFERC_EXPORT uint64_t inferc_scratch_bytes(int32_t threads);

INFERC_EXPORT int32_t inferc_step_prefill(void *pool, const inferc_step_args *);  // any ragged batch
INFERC_EXPORT int32_t inferc_step_decode(void *pool, const inferc_step_args *);  // one token a sequence
INFERC_EXPORT int32_t inferc_abi_version(void);

#ifdef __cplusplus
}
#endif
