// Instances of the matmul and embedding kernels behind plain C functions, for the tests.
#include "epilogue.h"
#include "matmul.h"
#include "rows.h"

using namespace inferc;

namespace {

template <class W, class Math>
void call(const float *x, int64_t x_stride, const void *w, int64_t rows, int64_t n, int64_t k,
          float *y, int64_t y_stride, int gated, void *scratch, int worker, int workers) {
    if (gated)
        matmul_gated<W, Math>(x, x_stride, w, rows, n, k, Glu<ActSilu>{y, y_stride}, scratch,
                              worker, workers);
    else
        matmul<W, Math>(x, x_stride, w, rows, n, k, StoreRows{y, y_stride}, scratch, worker,
                        workers);
}

}  // namespace

#define DENSE(name, W)                                                                             \
    extern "C" void matmul_##name##_f32(const float *x, int64_t xs, const void *w, int64_t rows,   \
                                        int64_t n, int64_t k, float *y, int64_t ys, int gated,     \
                                        void *scratch, int worker, int workers) {                  \
        call<W, MathF32>(x, xs, w, rows, n, k, y, ys, gated, scratch, worker, workers);            \
    }                                                                                              \
    extern "C" void embedding_##name(const void *w, const int32_t *ids, int64_t tokens, int64_t k, \
                                     float scale, float *out, int64_t stride, int worker,          \
                                     int workers) {                                                \
        embedding_n16<W>(w, ids, tokens, k, scale, out, stride, worker, workers);                  \
    }
#define BLOCKS(name, W)                                                                           \
    DENSE(name, W)                                                                                \
    extern "C" void matmul_##name##_int8(const float *x, int64_t xs, const void *w, int64_t rows, \
                                         int64_t n, int64_t k, float *y, int64_t ys, int gated,   \
                                         void *scratch, int worker, int workers) {                \
        call<W, MathInt8>(x, xs, w, rows, n, k, y, ys, gated, scratch, worker, workers);          \
    }

#if defined(PART_dense)
DENSE(f32, F32)
DENSE(f16, F16)
DENSE(bf16, BF16)
extern "C" void matmul_bf16_bf16(const float *x, int64_t xs, const void *w, int64_t rows, int64_t n,
                                 int64_t k, float *y, int64_t ys, int gated, void *scratch,
                                 int worker, int workers) {
    call<BF16, MathBf16>(x, xs, w, rows, n, k, y, ys, gated, scratch, worker, workers);
}
extern "C" int64_t scratch_bytes(int64_t rows, int64_t k) {
    return int64_t(matmul_scratch_bytes(rows, k));
}
#elif defined(PART_legacy)
BLOCKS(q4_0, Q4_0)
BLOCKS(q4_1, Q4_1)
BLOCKS(q5_0, Q5_0)
BLOCKS(q5_1, Q5_1)
BLOCKS(q8_0, Q8_0)
#elif defined(PART_some)
BLOCKS(q4_1, Q4_1)
BLOCKS(q5_0, Q5_0)
BLOCKS(q8_0, Q8_0)
BLOCKS(q3_k, Q3_K)
BLOCKS(q6_k, Q6_K)
#elif defined(PART_k)
BLOCKS(q2_k, Q2_K)
BLOCKS(q3_k, Q3_K)
BLOCKS(q4_k, Q4_K)
BLOCKS(q5_k, Q5_K)
BLOCKS(q6_k, Q6_K)
#endif
