// Kernels over rows: embedding, rotary table, norms, gather, argmax. A row's result depends on the
// row only.
#pragma once

#include <math.h>

#include "weights_groups.h"
#include "weights_k.h"

namespace inferc {
inline namespace INFERC_ISA {

// ---- embedding
// ----------------------------------------------------------------------------------------

// out[t] = table[ids[t]] * scale, table row-major. Bytes: tokens * width * (sizeof(T) + 4).
template <class T>
INFERC_NOINLINE void embedding_rows(const T *table, int64_t table_stride, const int32_t *ids,
                                    int64_t tokens, int64_t width, float scale, float *out,
                                    int64_t out_stride, int worker, int workers) {
    Range mine = share(tokens, worker, workers);
    for (int64_t t = mine.begin; t < mine.end; t++) {
        const T *from = table + int64_t(ids[t]) * table_stride;
        float *to = out + t * out_stride;
        int64_t i = 0;
        for (; i + 16 <= width; i += 16) store(to + i, load(from + i) * splat(scale));
        for (; i < width; i++) to[i] = to_float(from[i]) * scale;
    }
}

// Four elements of one lane of a record, less scale and minimum.
template <class W>
INFERC_INLINE void quad_of_lane(OneLane one, const uint8_t *record, int g, int v, float *out) {
    if constexpr (W::integers) {
        uint32_t quad = signed_quad<W>(one, record, g, v);
        for (int i = 0; i < 4; i++) out[i] = float(int8_t(quad >> (8 * i)));
    } else {
        W::quad_values(one, record, g, v, out);
        for (int i = 0; i < 4; i++) out[i] = out[i] * W::values_factor;
    }
}

// One lane of a tile, dequantised as the format defines it: scale * integer, then + minimum.
template <class W>
INFERC_INLINE void tile_row(const uint8_t *tile, int lane, int64_t k, float scale, float *out) {
    if constexpr (!W::blocks) {
        for (int64_t i = 0; i < k; i++)
            out[i] = W::value(tile + i / 2 * W::step_bytes, lane, int(i % 2)) * scale;
    } else {
        const OneLane one = {lane};
        constexpr int kGroups = W::block / W::group;
        const float *end = out + k;
        for (int64_t b = 0; b < ceil_div(k, W::block); b++, tile += W::record_bytes) {
            float d[kGroups], m[kGroups];
            W::scales(one, tile, d, m);
            for (int g = 0; g < kGroups; g++)
                for (int v = 0; v < W::group / 4; v++) {
                    float values[4];
                    quad_of_lane<W>(one, tile, g, v, values);
                    for (int i = 0; i < 4; i++) {
                        float value = d[g] * values[i];
                        if constexpr (W::has_min) value = value + m[g];
                        if (out < end) *out++ = value * scale;
                    }
                }
        }
    }
}

// The same from a packed (n16) table. Bytes: whole tiles are touched, 16 * row bytes a token at
// most.
template <class W>
INFERC_NOINLINE void embedding_n16(const void *packed, const int32_t *ids, int64_t tokens,
                                   int64_t k, float scale, float *out, int64_t out_stride,
                                   int worker, int workers) {
    Range mine = share(tokens, worker, workers);
    for (int64_t t = mine.begin; t < mine.end; t++) {
        const uint8_t *tile = (const uint8_t *)packed + int64_t(ids[t]) / 16 * tile_bytes<W>(k);
        tile_row<W>(tile, int(ids[t] % 16), k, scale, out + t * out_stride);
    }
}

// ---- rotary table
// -------------------------------------------------------------------------------------

// sin and cos of a float angle of any size below 2^40, to half a unit of float and a little: the
// angle is reduced in double by pi/2 in two parts, then short polynomials on [-pi/4, pi/4].
INFERC_INLINE void sin_cos(float angle, float *sine, float *cosine) {
    double x = angle;
    double n = nearbyint(x * 0.63661977236758134308);
    double r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050650619224932e-11;
    double z = r * r;
    double s =
        r + r * z *
                (-1.66666666666666324348e-01 +
                 z * (8.33333333332248946124e-03 +
                      z * (-1.98412698298579493134e-04 +
                           z * (2.75573137070700676789e-06 + z * -2.50507602534068634195e-08))));
    double c = 1.0 - 0.5 * z +
               z * z *
                   (4.16666666666666019037e-02 +
                    z * (-1.38888888888741095749e-03 +
                         z * (2.48015872894767294178e-05 + z * -2.75573143513906633035e-07)));
    int64_t quadrant = int64_t(n) & 3;
    double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sine = float(quadrant & 2 ? -a : a);
    *cosine = float(quadrant == 1 || quadrant == 2 ? -b : b);
}

// cos, sin [tokens][half] of position * inv_freq, that product rounded to float as frameworks do;
// both times `scale` (attention factor of yarn and longrope). Bytes: 8 * tokens * half written.
INFERC_NOINLINE void rope_table(const int32_t *positions, int64_t tokens, const float *inv_freq,
                                int64_t half, float scale, float *cos, float *sin, int worker,
                                int workers) {
    Range mine = share(tokens, worker, workers);
    for (int64_t t = mine.begin; t < mine.end; t++)
        for (int64_t i = 0; i < half; i++) {
            float s, c;
            sin_cos(float(positions[t]) * inv_freq[i], &s, &c);
            cos[t * half + i] = c * scale;
            sin[t * half + i] = s * scale;
        }
}

// ---- norms
// --------------------------------------------------------------------------------------------

// Four chains in a fixed order, so that the sum depends on the width only.
struct SumOfSquares {
    float shift;
    INFERC_INLINE f32x16 operator()(f32x16 acc, f32x16 x) const {
        f32x16 d = x - splat(shift);
        return fma(d, d, acc);
    }
};
struct Sum {
    INFERC_INLINE f32x16 operator()(f32x16 acc, f32x16 x) const { return acc + x; }
};

template <class Step>
INFERC_INLINE float reduce_row(const float *x, int64_t width, const Step &step, float tail_filler) {
    f32x16 acc[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 64 <= width; i += 64)
        for (int j = 0; j < 4; j++) acc[j] = step(acc[j], load(x + i + 16 * j));
    for (int j = 0; i < width; i += 16, j++) {
        float rest[16];
        int64_t count = min_of(16, width - i);
        for (int l = 0; l < 16; l++) rest[l] = l < count ? x[i + l] : tail_filler;
        acc[j] = step(acc[j], load(rest));
    }
    return reduce_add((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// y = (x - mean) * factor * w + b; w and b may be null.
INFERC_INLINE void scale_row(const float *x, float mean, float factor, const float *w,
                             const float *b, float *y, int64_t width) {
    for (int64_t i = 0; i < width; i += 16) {
        int lanes = int(min_of(16, width - i));
        f32x16 v = (load(x + i, lanes) - splat(mean)) * splat(factor);
        if (w) v = v * load(w + i, lanes);
        if (b) v = v + load(b + i, lanes);
        store(y + i, v, lanes);
    }
}

INFERC_INLINE float rms_factor(const float *x, int64_t width, float eps) {
    return 1.0f / sqrtf(reduce_row(x, width, SumOfSquares{0.0f}, 0.0f) / float(width) + eps);
}

// y = x / rms(x) * w. w may be null; y may be x. Bytes: 8 * rows * width + 4 * width.
INFERC_NOINLINE void rms_norm(const float *x, int64_t x_stride, const float *w, float eps, float *y,
                              int64_t y_stride, int64_t rows, int64_t width, int worker,
                              int workers) {
    Range mine = share(rows, worker, workers);
    for (int64_t r = mine.begin; r < mine.end; r++) {
        const float *row = x + r * x_stride;
        scale_row(row, 0.0f, rms_factor(row, width, eps), w, nullptr, y + r * y_stride, width);
    }
}

// y = (x - mean) / sqrt(variance + eps) * w + b. w, b may be null; y may be x. Bytes as rms_norm.
INFERC_NOINLINE void layer_norm(const float *x, int64_t x_stride, const float *w, const float *b,
                                float eps, float *y, int64_t y_stride, int64_t rows, int64_t width,
                                int worker, int workers) {
    Range mine = share(rows, worker, workers);
    for (int64_t r = mine.begin; r < mine.end; r++) {
        const float *row = x + r * x_stride;
        float mean = reduce_row(row, width, Sum{}, 0.0f) / float(width);
        float variance = reduce_row(row, width, SumOfSquares{mean}, mean) / float(width);
        scale_row(row, mean, 1.0f / sqrtf(variance + eps), w, b, y + r * y_stride, width);
    }
}

// ---- gather, argmax
// -----------------------------------------------------------------------------------

// y[i] = x[rows[i]]. Bytes: 8 * count * width.
INFERC_NOINLINE void gather_rows(const float *x, int64_t x_stride, const int32_t *rows,
                                 int64_t count, int64_t width, float *y, int64_t y_stride,
                                 int worker, int workers) {
    Range mine = share(count, worker, workers);
    for (int64_t i = mine.begin; i < mine.end; i++)
        memcpy(y + i * y_stride, x + int64_t(rows[i]) * x_stride, size_t(width) * sizeof(float));
}

// y[i][j] = x[i][columns[j]]. A row is cut among workers where there are fewer rows than workers.
// Bytes: 8 * rows * count + 4 * count.
INFERC_NOINLINE void take_columns(const float *x, int64_t width, const int32_t *columns,
                                  int64_t count, int64_t rows, float *y, int worker, int workers) {
    int64_t parts = rows < workers ? (count + 1023) / 1024 : 1;
    int64_t step = (count + parts - 1) / parts;
    Range mine = share(rows * parts, worker, workers);
    for (int64_t item = mine.begin; item < mine.end; item++) {
        const float *from = x + item / parts * width;
        float *to = y + item / parts * count;
        int64_t begin = item % parts * step;
        int64_t end = begin + step < count ? begin + step : count;
        for (int64_t j = begin; j < end; j++) to[j] = from[columns[j]];
    }
}

// Index of the first largest element of each row; NaN counts as smallest. Bytes: 4 * rows * width.
INFERC_NOINLINE void argmax_rows(const float *x, int64_t x_stride, int64_t rows, int64_t width,
                                 int32_t *out, int worker, int workers) {
    Range mine = share(rows, worker, workers);
    for (int64_t r = mine.begin; r < mine.end; r++) {
        const float *row = x + r * x_stride;
        f32x16 best = splat(-__builtin_inff());
        int64_t i = 0;
        for (; i + 16 <= width; i += 16) best = max(load(row + i), best);
        float largest = reduce_max(best);
        for (; i < width; i++) largest = row[i] > largest ? row[i] : largest;
        int64_t at = 0;
        while (at < width && row[at] != largest) at++;
        out[r] = int32_t(at < width ? at : 0);
    }
}

}  // namespace INFERC_ISA
}  // namespace inferc
