/* A step library for CUDA with the real interface and the toy model of toy_step.c, in two kernels.
 * Kernels are functions here: what emulation makes of generated ones. */
#include <stdint.h>
#include <string.h>

typedef struct { uint32_t grid[3], threads, shared_bytes, cluster, flags; } config;
typedef int32_t launch_function(void *, int32_t, const config *, const void *, uint64_t);
typedef struct {
  launch_function *launch;
  void *launch_context, *scratch;
  int32_t sm, multiprocessors, longest_context;
} cuda_context;

typedef struct {
  int32_t tokens, sequences, logit_rows, table_stride;
  const int32_t *ids, *positions, *slots, *sequence_starts, *context_lengths, *block_tables,
      *logit_indices;
  void *const *weights;
  void *const *caches;
  void *arena;
  float *logits;
  const int32_t *state_slots;
  void *const *states;
} step_args;

enum { PAGE_TOKENS = 4, VOCAB = 259 };

static uint32_t mix(uint32_t h, uint32_t x) { return (h ^ x) * 2654435761u + (h >> 13); }

typedef struct {
  int32_t sequences, table_stride;
  const int32_t *ids, *positions, *slots, *starts, *contexts, *tables;
  const uint8_t *weight;
  float *k, *v;
  int32_t *checksums, *scratch;
} walk_args;

typedef struct {
  const int32_t *checksums, *scratch, *indices;
  float *logits;
} logits_args;

static void walk(const config *c, const walk_args *a) {
  for (uint32_t r = 0; r < c->grid[0]; ++r)
    for (int32_t t = a->starts[r]; t < a->starts[r + 1]; ++t) a->k[a->slots[t]] = (float)a->ids[t];
  for (uint32_t r = 0; r < c->grid[0]; ++r) {
    const int32_t *table = a->tables + (int64_t)r * a->table_stride;
    for (int32_t t = a->starts[r]; t < a->starts[r + 1]; ++t) {
      uint32_t h = 7;
      if (a->positions[t] != a->contexts[r] - (a->starts[r + 1] - t)) h = 0;
      for (int32_t p = 0; p <= a->positions[t]; ++p)
        h = mix(h, (uint32_t)a->k[table[p / PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS] +
                       a->weight[p % 16]);
      a->v[a->slots[t]] = (float)(h % 65536u);
      a->checksums[t] = (int32_t)h;
    }
  }
  a->scratch[0] = 77;
}

static void logits(const config *c, const logits_args *a) {
  for (uint32_t l = 0; l < c->grid[0]; ++l)
    for (int32_t i = 0; i < VOCAB; ++i)
      a->logits[(int64_t)l * VOCAB + i] =
          (float)(mix((uint32_t)a->checksums[a->indices[l]], (uint32_t)i) % 4096u) / 256.0f +
          (a->scratch[0] == 77 ? 0.0f : 1.0f);
}

static int32_t run(void *context, int32_t kernel, const config *c, const void *args, uint64_t bytes) {
  (void)context;
  if (kernel == 0 && bytes == sizeof(walk_args)) return walk(c, args), 0;
  if (kernel == 1 && bytes == sizeof(logits_args)) return logits(c, args), 0;
  return 1;
}

const uint64_t toy_args_bytes[] = {sizeof(walk_args), sizeof(logits_args)};
launch_function *inferc_emulation_launch(void) { return run; }
const void *inferc_emulated_kernels(void) { return 0; }

static int32_t step(const cuda_context *cuda, const step_args *a) {
  if (cuda->longest_context < 1 || cuda->sm != 80) return 8;
  walk_args w;
  memset(&w, 0, sizeof w);
  w.sequences = a->sequences, w.table_stride = a->table_stride, w.ids = a->ids;
  w.positions = a->positions, w.slots = a->slots, w.starts = a->sequence_starts;
  w.contexts = a->context_lengths, w.tables = a->block_tables, w.weight = a->weights[0];
  w.k = a->caches[0], w.v = a->caches[1], w.checksums = a->arena, w.scratch = cuda->scratch;
  config c = {{(uint32_t)a->sequences, 1, 1}, 1, 0, 1, 0};
  if (cuda->launch(cuda->launch_context, 0, &c, &w, sizeof w)) return 7;
  if (a->logit_rows == 0) return 0;
  logits_args l;
  memset(&l, 0, sizeof l);
  l.checksums = a->arena, l.scratch = cuda->scratch, l.indices = a->logit_indices;
  l.logits = a->logits;
  c.grid[0] = (uint32_t)a->logit_rows;
  return cuda->launch(cuda->launch_context, 1, &c, &l, sizeof l) ? 7 : 0;
}

int32_t inferc_cuda_prefill(const cuda_context *cuda, const step_args *a) { return step(cuda, a); }
int32_t inferc_cuda_decode(const cuda_context *cuda, const step_args *a) {
  return a->tokens != a->sequences ? 5 : step(cuda, a);
}
int32_t inferc_cuda_abi_version(void) { return 1; }
int32_t inferc_cuda_kernel_count(void) { return 2; }
const char *inferc_cuda_kernel_name(int32_t k) { return k ? "toy_logits" : "toy_walk"; }
const char *inferc_cuda_unit_name(int32_t k) { return k ? "toy_logits" : "toy_walk"; }
uint64_t inferc_cuda_scratch_bytes(void) { return 4; }
