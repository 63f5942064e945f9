// Cosines and sines of positions.
#pragma once

#include "inferc/cuda/dependent.cuh"

namespace inferc {

constexpr int kRopeTableThreads = 128;

struct RopeTableArgs {
    const int32_t *positions;  // [tokens]
    float *cos, *sin;          // [tokens, half]
    int64_t tokens;
};

// sin and cos of a float angle of any size below 2^40, to half a unit of float and a little: the
// angle is reduced in double by pi/2 in two parts, then short polynomials on [-pi/4, pi/4].
INFERC_INLINE void sin_cos(float angle, float *sine, float *cosine) {
    const double x = angle;
    const double n = nearbyint(x * 0.63661977236758134308);
    double r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050650619224932e-11;
    const double z = r * r;
    const double s =
        r + r * z *
                (-1.66666666666666324348e-01 +
                 z * (8.33333333332248946124e-03 +
                      z * (-1.98412698298579493134e-04 +
                           z * (2.75573137070700676789e-06 + z * -2.50507602534068634195e-08))));
    const double c = 1.0 - 0.5 * z +
                     z * z *
                         (4.16666666666666019037e-02 +
                          z * (-1.38888888888741095749e-03 +
                               z * (2.48015872894767294178e-05 + z * -2.75573143513906633035e-07)));
    const int quadrant = int(int64_t(n) & 3);
    const double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sine = float(quadrant & 2 ? -a : a);
    *cosine = float(quadrant == 1 || quadrant == 2 ? -b : b);
}

// Of position * inv_freq, that product rounded to float as frameworks do; both times `scale`
// (attention factor of yarn and longrope). A thread an angle.
template <int half>
INFERC_INLINE void rope_table(const RopeTableArgs &args, const float (&inv_freq)[half], float scale) {
    begin_dependent();
    const int64_t at = int64_t(blockIdx.x) * kRopeTableThreads + threadIdx.x;
    if (at >= args.tokens * half) return;
    float sine, cosine;
    sin_cos(float(args.positions[at / half]) * inv_freq[at % half], &sine, &cosine);
    args.cos[at] = cosine * scale;
    args.sin[at] = sine * scale;
}

}  // namespace inferc
