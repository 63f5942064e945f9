// Probes of the machine and instances of the kernels for kernels.py. Each function runs once on a
// pool.
#include "attention.h"
#include "epilogue.h"
#include "matmul.h"
#include "pool.h"

using namespace inferc;

namespace {

struct Job {
    Pool *pool;
    const void *data;
    int64_t count;
    float *sink;
};

void read_worker(void *arg, int worker, int workers) {
    const Job &job = *(const Job *)arg;
    Range mine = share(job.count / 4096, worker, workers);
    i32x16 sum[4] = {splat_i(0), splat_i(0), splat_i(0), splat_i(0)};
    // Four streams a worker: one may get half of what the memory gives.
    int64_t quarter = (mine.end - mine.begin) / 4 * 4096;
    const uint8_t *p = (const uint8_t *)job.data + mine.begin * 4096;
    for (int64_t i = 0; i < quarter; i += 64)
        for (int s = 0; s < 4; s++) {
            prefetch(p + s * quarter + i + 2048);
            sum[s] = sum[s] + load_i(p + s * quarter + i);
        }
    job.sink[16 * worker] = reduce_add(to_f32((sum[0] + sum[1]) + (sum[2] + sum[3])));
}

// Chains of one instruction between registers. kFlops: of one instruction.
#if defined(INFERC_AVX512)
#define PEAK(name, type, zero, instruction, flops)                                            \
    struct name {                                                                             \
        typedef type Acc;                                                                     \
        static constexpr int64_t kFlops = flops;                                              \
        static INFERC_INLINE Acc start() { return zero; }                                     \
        static INFERC_INLINE Acc step(Acc a) {                                                \
            asm volatile(instruction " %%zmm31, %%zmm30, %0" : "+v"(a) : : "xmm30", "xmm31"); \
            return a;                                                                         \
        }                                                                                     \
    };
PEAK(PeakF32, __m512, _mm512_setzero_ps(), "vfmadd231ps", 32)
#if defined(INFERC_DPBF16)
PEAK(PeakBf16, __m512, _mm512_setzero_ps(), "vdpbf16ps", 64)
#else
typedef PeakF32 PeakBf16;
#endif
#if defined(__AVX512VNNI__)
PEAK(PeakInt8, __m512i, _mm512_setzero_si512(), "vpdpbusd", 128)
#else
typedef PeakF32 PeakInt8;
#endif
#elif defined(INFERC_AVX2)
struct PeakF32 {
    typedef __m256 Acc;
    static constexpr int64_t kFlops = 16;
    static INFERC_INLINE Acc start() { return _mm256_setzero_ps(); }
    static INFERC_INLINE Acc step(Acc a) {
        asm volatile("vfmadd231ps %%ymm15, %%ymm14, %0" : "+x"(a) : : "xmm14", "xmm15");
        return a;
    }
};
typedef PeakF32 PeakBf16;
typedef PeakF32 PeakInt8;
#else
struct PeakF32 {
    typedef f32x16 Acc;
    static constexpr int64_t kFlops = 32;
    static INFERC_INLINE Acc start() { return zero(); }
    static INFERC_INLINE Acc step(Acc a) { return fma(a, splat(0.5f), splat(1.0f)); }
};
typedef PeakF32 PeakBf16;
typedef PeakF32 PeakInt8;
#endif

template <class Op>
void peak_worker(void *arg, int worker, int) {
    const Job &job = *(const Job *)arg;
    typename Op::Acc acc[12];
    INFERC_EACH(i, 12) acc[i] = Op::start();
    for (int64_t n = 0; n < job.count; n++) {
        INFERC_EACH(i, 12) acc[i] = Op::step(acc[i]);
    }
    float sum = 0;
    INFERC_EACH(i, 12) sum += float(((const uint8_t *)&acc[i])[0]);
    job.sink[16 * worker] = sum;
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
int64_t peak_flops(int kind) {
    const int64_t flops[3] = {PeakF32::kFlops, PeakBf16::kFlops, PeakInt8::kFlops};
    return 12 * flops[kind];
}
void run_nothing(void *pool) { pool_run((Pool *)pool, nothing, nullptr); }
void run_read(void *pool, const void *data, int64_t bytes, float *sink) {
    Job job = {(Pool *)pool, data, bytes, sink};
    pool_run(job.pool, read_worker, &job);
}
void run_peak(void *pool, int kind, int64_t rounds, float *sink) {
    Job job = {(Pool *)pool, nullptr, rounds, sink};
    if (kind == 0) pool_run(job.pool, peak_worker<PeakF32>, &job);
    if (kind == 1) pool_run(job.pool, peak_worker<PeakBf16>, &job);
    if (kind == 2) pool_run(job.pool, peak_worker<PeakInt8>, &job);
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
