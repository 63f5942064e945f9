// Attention, KV append, key append, row kernels, vector functions and the pool behind plain C functions, for
// the tests.
#include "attention.h"
#include "k_append.h"
#include "kv_append.h"
#include "pool.h"
#include "rows.h"
#include "vmath.h"

using namespace inferc;

namespace {

struct AttentionCall {
    const AttentionArgs *args;
    int kv;
    Pool *pool;
};

void attention_worker(void *arg, int worker, int workers) {
    const AttentionCall &call = *(const AttentionCall *)arg;
    const AttentionArgs &a = *call.args;
    if (call.kv == 0) attention_decode<float>(a, worker, workers);
    if (call.kv == 1) attention_prefill<bf16>(a, worker, workers);
    if (call.kv == 2) attention_prefill<f16>(a, worker, workers);
    if (call.kv == 3) attention_prefill<i8>(a, worker, workers);
    if (attention_is_split(a, workers)) {
        pool_barrier(call.pool);
        attention_merge(a, worker, workers);
    }
}

struct Count {
    Pool *pool;
    int64_t rounds, *seen, *errors;
};

void count_worker(void *arg, int worker, int workers) {
    const Count &c = *(const Count *)arg;
    for (int64_t i = 1; i <= c.rounds; i++) {
        c.seen[16 * worker] = i;
        pool_barrier(c.pool);
        for (int w = 0; w < workers; w++) c.errors[16 * worker] += c.seen[16 * w] != i;
        pool_barrier(c.pool);
    }
}

}  // namespace

extern "C" {

void *pool_new(int threads) { return pool_create(threads); }
void pool_free(void *pool) { pool_destroy((Pool *)pool); }
void pool_count(void *pool, int64_t rounds, int64_t *seen, int64_t *errors) {
    Count c = {(Pool *)pool, rounds, seen, errors};
    pool_run(c.pool, count_worker, &c);
}

int attention(void *pool, const AttentionArgs *args, int kv) {
    AttentionCall call = {args, kv, (Pool *)pool};
    pool_run(call.pool, attention_worker, &call);
    return attention_is_split(*args, pool_workers(call.pool));
}
int64_t attention_scratch(int heads, int kv_heads, int k_dim, int v_dim, int64_t context,
                          int workers, int v_in_k) {
    return int64_t(
        attention_scratch_bytes(heads, kv_heads, k_dim, v_dim, context, workers, v_in_k != 0));
}

void append(const KvAppendArgs *a, int kv, int worker, int workers) {
    if (kv == 0) kv_append<float>(*a, worker, workers);
    if (kv == 1) kv_append<bf16>(*a, worker, workers);
    if (kv == 2) kv_append<f16>(*a, worker, workers);
    if (kv == 3) kv_append<i8>(*a, worker, workers);
}

void append_keys(const KeyAppendArgs *a, int kv, int worker, int workers) {
    if (kv == 0) k_append<float>(*a, worker, workers);
    if (kv == 1) k_append<bf16>(*a, worker, workers);
    if (kv == 2) k_append<f16>(*a, worker, workers);
    if (kv == 3) k_append<i8>(*a, worker, workers);
}

void rope(const int32_t *positions, int64_t tokens, const float *inv_freq, int64_t half,
          float scale, float *cos, float *sin, int worker, int workers) {
    rope_table(positions, tokens, inv_freq, half, scale, cos, sin, worker, workers);
}
void rms(const float *x, int64_t xs, const float *w, float eps, float *y, int64_t ys, int64_t rows,
         int64_t width, int worker, int workers) {
    rms_norm(x, xs, w, eps, y, ys, rows, width, worker, workers);
}
void layer(const float *x, int64_t xs, const float *w, const float *b, float eps, float *y,
           int64_t ys, int64_t rows, int64_t width, int worker, int workers) {
    layer_norm(x, xs, w, b, eps, y, ys, rows, width, worker, workers);
}
void gather(const float *x, int64_t xs, const int32_t *rows, int64_t count, int64_t width, float *y,
            int64_t ys, int worker, int workers) {
    gather_rows(x, xs, rows, count, width, y, ys, worker, workers);
}
void argmax(const float *x, int64_t xs, int64_t rows, int64_t width, int32_t *out, int worker,
            int workers) {
    argmax_rows(x, xs, rows, width, out, worker, workers);
}
void dense_rows(int kind, const void *table, int64_t stride, const int32_t *ids, int64_t tokens,
                int64_t width, float scale, float *out, int64_t out_stride, int worker,
                int workers) {
    if (kind == 0)
        embedding_rows((const float *)table, stride, ids, tokens, width, scale, out, out_stride,
                       worker, workers);
    if (kind == 1)
        embedding_rows((const bf16 *)table, stride, ids, tokens, width, scale, out, out_stride,
                       worker, workers);
    if (kind == 2)
        embedding_rows((const f16 *)table, stride, ids, tokens, width, scale, out, out_stride,
                       worker, workers);
}

void convert_all(const float *x, int64_t count, uint16_t *as_bf16, uint16_t *as_f16,
                 float *from_f16) {
    for (int64_t i = 0; i < count; i += 16) {
        store((bf16 *)as_bf16 + i, load(x + i));
        store((f16 *)as_f16 + i, load(x + i));
        store(from_f16 + i, load((const f16 *)as_f16 + i));
    }
}
void convert_each(const float *x, int64_t count, uint16_t *as_bf16, uint16_t *as_f16,
                  float *from_f16) {
    for (int64_t i = 0; i < count; i++) {
        convert(x[i], (bf16 *)as_bf16 + i);
        convert(x[i], (f16 *)as_f16 + i);
        from_f16[i] = to_float(((const f16 *)as_f16)[i]);
    }
}

#define UNARY(name, expression)                                  \
    void unary_##name(const float *p, int64_t count, float *y) { \
        for (int64_t i = 0; i < count; i += 16) {                \
            f32x16 x = load(p + i);                              \
            store(y + i, expression);                            \
        }                                                        \
    }
UNARY(exp, exp(x))
UNARY(log, log(x))
UNARY(tanh, tanh(x))
UNARY(sigmoid, sigmoid(x))
UNARY(erf, erf(x))
UNARY(silu, silu(x))
UNARY(gelu_erf, gelu_erf(x))
UNARY(gelu_tanh, gelu_tanh(x))
UNARY(relu, relu(x))
}
