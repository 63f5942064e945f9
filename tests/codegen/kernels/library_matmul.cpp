// Instances of the matmul and embedding kernels behind plain C functions, for the tests.
#include "epilogue.h"
#include "head_linear.h"
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
// Formats of the same codes differ in their scales only, which is no matter of the arithmetic.
#define SHORTS(name, W)                                                                          \
    extern "C" void matmul_##name##_int16(                                                       \
        const float *x, int64_t xs, const void *w, int64_t rows, int64_t n, int64_t k, float *y, \
        int64_t ys, int gated, void *scratch, int worker, int workers) {                         \
        call<W, MathInt16>(x, xs, w, rows, n, k, y, ys, gated, scratch, worker, workers);        \
    }

#define HEADS(name, W, Math)                                                                      \
    extern "C" void heads_##name(const HeadLinearArgs *a, void *scratch, int worker, int workers) { \
        head_linear<W, Math>(*a, scratch, worker, workers);                                       \
    }

#define TURNED(name, W)                                                               \
    extern "C" void turned_##name(const HeadLinearArgs *a, void *scratch, int worker, \
                                  int workers) {                                      \
        head_linear_turned<W>(*a, scratch, worker, workers);                          \
    }

#if defined(PART_dense)
HEADS(f32, F32, MathF32)
HEADS(bf16, BF16, MathBf16)
DENSE(f32, F32)
DENSE(f16, F16)
DENSE(bf16, BF16)
DENSE(f8e4m3, F8E4M3)
BLOCKS(i8, I8)
SHORTS(i8, I8)
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
SHORTS(q4_1, Q4_1)
TURNED(q4_1, Q4_1)
BLOCKS(q5_0, Q5_0)
SHORTS(q5_0, Q5_0)
BLOCKS(q5_1, Q5_1)
BLOCKS(q8_0, Q8_0)
SHORTS(q8_0, Q8_0)
TURNED(q8_0, Q8_0)
HEADS(q8_0, Q8_0, MathF32)
#elif defined(PART_four)
BLOCKS(u4_g32, U4_G32)
BLOCKS(u4_g64, U4_G64)
BLOCKS(u4_g128, U4_G128)
BLOCKS(u4b_g32, U4B_G32)
BLOCKS(u4b_g64, U4B_G64)
SHORTS(u4b_g64, U4B_G64)
BLOCKS(u4b_g128, U4B_G128)
#elif defined(PART_eight)
BLOCKS(u8_g32, U8_G32)
BLOCKS(u8_g64, U8_G64)
BLOCKS(u8_g128, U8_G128)
SHORTS(u8_g128, U8_G128)
BLOCKS(u8b_g32, U8B_G32)
BLOCKS(u8b_g64, U8B_G64)
BLOCKS(u8b_g128, U8B_G128)
#elif defined(PART_codes)
DENSE(f8_g128, F8_G128)
TURNED(f8_g128, F8_G128)
DENSE(nf4_g64, NF4_G64)
DENSE(fp4_g64, FP4_G64)
BLOCKS(mxfp4, MXFP4)
SHORTS(mxfp4, MXFP4)
TURNED(mxfp4, MXFP4)
#elif defined(PART_some)
BLOCKS(u4b_g64, U4B_G64)
SHORTS(u4b_g64, U4B_G64)
BLOCKS(u8_g128, U8_G128)
SHORTS(u8_g128, U8_G128)
DENSE(f8_g128, F8_G128)
TURNED(f8_g128, F8_G128)
DENSE(nf4_g64, NF4_G64)
BLOCKS(mxfp4, MXFP4)
SHORTS(mxfp4, MXFP4)
TURNED(mxfp4, MXFP4)
BLOCKS(q4_1, Q4_1)
SHORTS(q4_1, Q4_1)
TURNED(q4_1, Q4_1)
BLOCKS(q5_0, Q5_0)
SHORTS(q5_0, Q5_0)
BLOCKS(q8_0, Q8_0)
SHORTS(q8_0, Q8_0)
TURNED(q8_0, Q8_0)
HEADS(q8_0, Q8_0, MathF32)
BLOCKS(q3_k, Q3_K)
SHORTS(q3_k, Q3_K)
BLOCKS(q6_k, Q6_K)
SHORTS(q6_k, Q6_K)
TURNED(q6_k, Q6_K)
#elif defined(PART_k)
BLOCKS(q2_k, Q2_K)
BLOCKS(q3_k, Q3_K)
SHORTS(q3_k, Q3_K)
BLOCKS(q4_k, Q4_K)
SHORTS(q4_k, Q4_K)
BLOCKS(q5_k, Q5_K)
BLOCKS(q6_k, Q6_K)
SHORTS(q6_k, Q6_K)
TURNED(q6_k, Q6_K)
#endif
