/* The C interface of a generated step library.
 * Version 2 added state_slots and states, version 3 profile_ns, greedy_ids and greedy_end, and the
 * functions marked so; from version 4 on greedy_ids are found. New fields stand at the end: a
 * library of version n reads those of 1 to n, so a caller may not ask an older library for what
 * only newer fields say. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INFERC_ABI_VERSION 5
#define INFERC_EXPORT __attribute__((visibility("default")))

typedef struct inferc_step_args {
    int32_t tokens;           /* T: rows of this step */
    int32_t sequences;        /* R */
    int32_t logit_rows;       /* L */
    int32_t table_stride;     /* columns of block_tables */
    const int32_t *ids;       /* [T] */
    const int32_t *positions; /* [T] absolute position of each token */
    const int32_t *slots; /* [T] page * page_tokens + offset in the page for the token's K and V */
    const int32_t *sequence_starts; /* [R+1] rows of sequence r are [starts[r], starts[r+1]) */
    const int32_t *context_lengths; /* [R] tokens in the cache after this step, new ones included */
    const int32_t *block_tables;    /* [R, table_stride] page ids in order of position */
    const int32_t *logit_indices;   /* [L] rows for which logits are wanted */
    void *const *weights; /* one pointer a packed weight, in manifest order, 64-byte aligned */
    void *const
        *caches;   /* cache c: caches[2c] is its K pool, caches[2c+1] its V pool, 64-byte aligned */
    void *arena;   /* 64-byte aligned, memory.arena_bytes of the manifest */
    float *logits; /* [L, vocab] */
    const int32_t *state_slots; /* [R] slot of each sequence in the pools of recurrent states */
    void *const *states; /* one pool a state, in manifest order, 64-byte aligned; a sequence whose
                            first position in this step is 0 begins with zeros */
    int64_t *profile_ns;  /* [workers][inferc_step_calls][2] begin and end of each call on each
                             worker, by CLOCK_MONOTONIC; NULL: not wanted */
    int32_t *greedy_ids;  /* [L] lowest id of the largest logit among ids below greedy_end,
                             -1 if one of these is NaN; NULL: not wanted */
    int32_t greedy_end;   /* 1 .. vocab; read if greedy_ids is there */
} inferc_step_args;

/* Results of a step. Arguments beyond the limits of the manifest are the caller's error. */
enum {
    INFERC_OK = 0,
    INFERC_TOO_MANY_TOKENS = 1,    /* tokens outside 1 .. limits.step_tokens */
    INFERC_TOO_MANY_SEQUENCES = 2, /* sequences outside 1 .. limits.sequences */
    INFERC_TOO_MANY_LOGITS = 3,    /* logit_rows outside 0 .. tokens */
    INFERC_TABLE_TOO_WIDE = 4,     /* table_stride outside 1 .. pages of limits.context_tokens */
    INFERC_NOT_DECODE = 5,         /* inferc_step_decode with tokens != sequences */
    INFERC_MISALIGNED = 6,         /* arena, a weight, a cache or a state pool is not 64-byte aligned */
    INFERC_NOT_SUPPORTED = 9       /* something is wanted that this library cannot do */
};

/* How the workers of a pool wait, and where they run. None of it changes results. */
typedef struct inferc_pool_options {
    int32_t threads; /* workers; the caller of a step is one of them */
    int32_t spin_us; /* how long a worker waits busily before it sleeps */
    int32_t pinned;  /* 1: each worker stays on a processor of its own, the caller during a step */
} inferc_pool_options;

/* Persistent workers (the caller is one of them) and their scratch memory; NULL on failure. */
INFERC_EXPORT void *inferc_pool_create(int32_t threads); /* with the options of inferc_pool_defaults */
INFERC_EXPORT void *inferc_pool_create_with(const inferc_pool_options *options);      /* version 3 */
INFERC_EXPORT void inferc_pool_defaults(int32_t threads, inferc_pool_options *options); /* version 3 */
INFERC_EXPORT void inferc_pool_destroy(void *pool);
/* Bytes of scratch memory that a pool of so many threads allocates. */
INFERC_EXPORT uint64_t inferc_scratch_bytes(int32_t threads);

INFERC_EXPORT int32_t inferc_step_prefill(void *pool,
                                          const inferc_step_args *args); /* any ragged batch */
INFERC_EXPORT int32_t inferc_step_decode(void *pool,
                                         const inferc_step_args *args); /* R == T, one token each */
INFERC_EXPORT int32_t inferc_step_calls(int32_t decode); /* kernel calls of a phase; version 3 */
/* Limits of the machine, for a caller with a clock; version 3. All return what was done. */
INFERC_EXPORT uint64_t inferc_read_bytes(void *pool, const void *data, uint64_t bytes); /* bytes read */
INFERC_EXPORT double inferc_multiply_add(void *pool, int64_t rounds); /* float32 flops on all workers */
/* Integer products and sums, two operations a product, of activations of 8 or 16 bits with bytes or
   shorts of weights, as fast as the instruction set has them; 0 for other bits; version 5. */
INFERC_EXPORT double inferc_multiply_add_integers(void *pool, int32_t bits, int64_t rounds);
INFERC_EXPORT int32_t inferc_abi_version(void);          /* INFERC_ABI_VERSION */

#ifdef __cplusplus
}
#endif
