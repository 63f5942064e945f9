/* A step library with the real interface and a toy model, to test the executor against.
 * K pages hold the token ids, V pages a running checksum; logits follow from a walk over the pages
 * that block_tables name, so that every argument of the step matters. */
#include <stdint.h>
#include <stdlib.h>

typedef struct inferc_step_args {
  int32_t tokens, sequences, logit_rows, table_stride;
  const int32_t *ids, *positions, *slots, *sequence_starts, *context_lengths, *block_tables,
      *logit_indices;
  void *const *weights;
  void *const *caches;
  void *arena;
  float *logits;
  const int32_t *state_slots;
  void *const *states;
  int64_t *profile_ns;
  int32_t *greedy_ids, greedy_end;
} inferc_step_args;

#ifndef TOY_ABI
#define TOY_ABI 1 /* that of the first libraries: the fields behind `logits` are not read */
#endif

enum { PAGE_TOKENS = 4, VOCAB = 259 };

int32_t inferc_abi_version(void) { return TOY_ABI; }
/* Tests count the pools that nobody has ended. */
int32_t toy_live_pools = 0;

void *inferc_pool_create(int32_t threads) {
    if (threads <= 0) return NULL;
    toy_live_pools++;
    return malloc(4);
}

void inferc_pool_destroy(void *pool) {
    toy_live_pools--;
    free(pool);
}

static uint32_t mix(uint32_t h, uint32_t x) { return (h ^ x) * 2654435761u + (h >> 13); }

static int32_t step(const inferc_step_args *a, int decode) {
  float *k = a->caches[0], *v = a->caches[1];
  const uint8_t *weight = a->weights[0];
  int32_t *checksums = a->arena;
  if (decode && a->sequences != a->tokens) return 2;
  if (((uintptr_t)a->arena | (uintptr_t)k | (uintptr_t)v | (uintptr_t)weight) % 64) return 3;
  for (int32_t t = 0; t < a->tokens; ++t) k[a->slots[t]] = (float)a->ids[t];
  for (int32_t r = 0; r < a->sequences; ++r) {
    const int32_t *table = a->block_tables + (int64_t)r * a->table_stride;
    int32_t first = a->sequence_starts[r], end = a->sequence_starts[r + 1];
    for (int32_t t = first; t < end; ++t) {
      if (a->positions[t] != a->context_lengths[r] - (end - t)) return 4;
      uint32_t h = 7;
      for (int32_t p = 0; p <= a->positions[t]; ++p)
        h = mix(h, (uint32_t)k[table[p / PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS] + weight[p % 16]);
      v[a->slots[t]] = (float)(h % 65536u);
      checksums[t] = (int32_t)h;
    }
  }
  for (int32_t l = 0; l < a->logit_rows; ++l)
    for (int32_t i = 0; i < VOCAB; ++i)
      a->logits[(int64_t)l * VOCAB + i] =
          (float)(mix((uint32_t)checksums[a->logit_indices[l]], (uint32_t)i) % 4096u) / 256.0f;
  if (TOY_ABI >= 4 && a->greedy_ids != NULL)
    for (int32_t l = 0; l < a->logit_rows; ++l) {
      const float *row = a->logits + (int64_t)l * VOCAB;
      int32_t best = 0;
      for (int32_t i = 1; i < a->greedy_end; ++i)
        if (row[i] > row[best]) best = i;
      a->greedy_ids[l] = best;
    }
  return 0;
}

int32_t inferc_step_prefill(void *pool, const inferc_step_args *a) { return pool ? step(a, 0) : 1; }
int32_t inferc_step_decode(void *pool, const inferc_step_args *a) { return pool ? step(a, 1) : 1; }

#if TOY_ABI >= 3
uint64_t inferc_read_bytes(void *pool, const void *data, uint64_t bytes) {
    return pool != NULL && data != NULL ? bytes : 0;
}
double inferc_multiply_add(void *pool, int64_t rounds) { return pool != NULL ? (double)rounds : 0; }
/* Looked up when a library is loaded; no test that loads this one calls them. */
void inferc_step_calls(void) { abort(); }
void inferc_pool_create_with(void) { abort(); }
void inferc_pool_defaults(void) { abort(); }
#endif
