// Probes of the machine and instances of the kernels for kernels.py. Each function runs once on a
// pool.
#include "attention.h"
#include "epilogue.h"
#include "limits.h"
#include "matmul.h"
#include "pool.h"

using namespace inferc;

namespace {

// Operations that all workers together have done in dot products of bf16, or of floats where there
// are none.
double dot_bf16_by_all(Pool *pool, int64_t rounds) {
#if defined(INFERC_DPBF16)
    const auto worker = [](void *job, int, int) {
        f32x16 sums[kSums];
        INFERC_EACH(s, kSums) sums[s] = splat(float(s));
        const i32x16 x = splat_i(0x3f003f00);  // halves
        for (int64_t i = 0; i < *static_cast<const int64_t *>(job); i++)
            INFERC_EACH(s, kSums) sums[s] = dot_bf16(sums[s], bitcast_i(sums[s]), x);
        INFERC_EACH(s, kSums) keep(sums[s]);
    };
    pool_run(pool, worker, &rounds);
    return 2.0 * 2 * kLanes * kSums * double(rounds) * pool_workers(pool);
#else
    return multiply_by_all(pool, 32, rounds);
#endif
}

struct Product {
    const float *x;
    const void *w;
    int64_t rows, n, k;
    float *y;
    void *scratch;
};

template <class W, class Math>
void product_worker(void *arg, int worker, int workers) {
    const Product &p = *(const Product *)arg;
    matmul<W, Math>(p.x, p.k, p.w, p.rows, p.n, p.k, StoreRows{p.y, p.n}, p.scratch, worker,
                    workers);
}

struct Attention {
    Pool *pool;
    const AttentionArgs *args;
};

template <class KV>
void attention_worker(void *arg, int worker, int workers) {
    const Attention &job = *(const Attention *)arg;
    attention_decode<KV>(*job.args, worker, workers);
    if (attention_is_split(*job.args, workers)) {
        pool_barrier(job.pool);
        attention_merge(*job.args, worker, workers);
    }
}

void nothing(void *, int, int) {}

}  // namespace

extern "C" {

void *pool_new(int threads) { return pool_create(threads); }
void pool_free(void *pool) { pool_destroy((Pool *)pool); }
void run_nothing(void *pool) { pool_run((Pool *)pool, nothing, nullptr); }
uint64_t run_read(void *pool, const void *data, uint64_t bytes) {
    return read_by_all((Pool *)pool, data, bytes);
}
// bits: 32 for floats, 16 or 8 for integers, 0 for bf16.
double run_peak(void *pool, int32_t bits, int64_t rounds) {
    return bits == 0 ? dot_bf16_by_all((Pool *)pool, rounds)
                     : multiply_by_all((Pool *)pool, bits, rounds);
}
int64_t scratch_bytes(int64_t rows, int64_t k) { return int64_t(matmul_scratch_bytes(rows, k)); }
int64_t attention_scratch(int heads, int kv_heads, int k_dim, int v_dim, int64_t context,
                          int workers) {
    return int64_t(attention_scratch_bytes(heads, kv_heads, k_dim, v_dim, context, workers));
}
void run_attention(void *pool, const void *args, int kv) {
    Attention job = {(Pool *)pool, (const AttentionArgs *)args};
    pool_run(job.pool, kv == 0 ? attention_worker<float> : attention_worker<bf16>, &job);
}

#define PRODUCT(name, W, Math)                                                                     \
    void run_##name(void *pool, const float *x, const void *w, int64_t rows, int64_t n, int64_t k, \
                    float *y, void *scratch) {                                                     \
        Product p = {x, w, rows, n, k, y, scratch};                                                \
        pool_run((Pool *)pool, product_worker<W, Math>, &p);                                       \
    }
PRODUCT(f32_f32, F32, MathF32)
PRODUCT(f16_f32, F16, MathF32)
PRODUCT(bf16_f32, BF16, MathF32)
PRODUCT(bf16_bf16, BF16, MathBf16)
PRODUCT(q4_0_f32, Q4_0, MathF32)
PRODUCT(q4_1_f32, Q4_1, MathF32)
PRODUCT(q4_1_int8, Q4_1, MathInt8)
PRODUCT(q4_1_int16, Q4_1, MathInt16)
PRODUCT(q5_0_f32, Q5_0, MathF32)
PRODUCT(q8_0_f32, Q8_0, MathF32)
PRODUCT(q8_0_int8, Q8_0, MathInt8)
PRODUCT(q8_0_int16, Q8_0, MathInt16)
PRODUCT(q2_k_f32, Q2_K, MathF32)
PRODUCT(q3_k_f32, Q3_K, MathF32)
PRODUCT(q4_k_f32, Q4_K, MathF32)
PRODUCT(q4_k_int8, Q4_K, MathInt8)
PRODUCT(q4_k_int16, Q4_K, MathInt16)
PRODUCT(q5_k_f32, Q5_K, MathF32)
PRODUCT(q6_k_f32, Q6_K, MathF32)
PRODUCT(q6_k_int8, Q6_K, MathInt8)
PRODUCT(q6_k_int16, Q6_K, MathInt16)
PRODUCT(u4_g128_f32, U4_G128, MathF32)
PRODUCT(u4_g128_int8, U4_G128, MathInt8)
PRODUCT(u4_g128_int16, U4_G128, MathInt16)
PRODUCT(u4b_g32_f32, U4B_G32, MathF32)
PRODUCT(u8_g128_f32, U8_G128, MathF32)
PRODUCT(u8_g128_int8, U8_G128, MathInt8)
PRODUCT(u8_g128_int16, U8_G128, MathInt16)
PRODUCT(mxfp4_f32, MXFP4, MathF32)
PRODUCT(mxfp4_int8, MXFP4, MathInt8)
PRODUCT(mxfp4_int16, MXFP4, MathInt16)
PRODUCT(nf4_g64_f32, NF4_G64, MathF32)
PRODUCT(f8_g128_f32, F8_G128, MathF32)
PRODUCT(f8e4m3_f32, F8E4M3, MathF32)
PRODUCT(i8_f32, I8, MathF32)
PRODUCT(i8_int8, I8, MathInt8)
PRODUCT(i8_int16, I8, MathInt16)
}
