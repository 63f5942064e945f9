// Elementary functions on one float, under the names that `vmath.h` has for sixteen: what
// codegen/expressions.py prints serves both. Within about two units in the last place; NaN goes
// through, except where `max` and `min` drop it as they do on the CPU.
//
// CUDA and libm declare functions of the same names at global scope. A function body (or a namespace)
// that uses these begins with INFERC_USE_MATH, which makes them the ones meant.
#pragma once

#include "inferc/cuda/platform.cuh"

#if !INFERC_DEVICE_CODE || defined(INFERC_EMULATION)
#include <math.h>
#endif

namespace inferc {

INFERC_INLINE float splat(float x) { return x; }
INFERC_INLINE float load(const float *p) { return *p; }
INFERC_INLINE float load(const float *p, int) { return *p; }
INFERC_INLINE void store(float *p, float x) { *p = x; }
INFERC_INLINE void store(float *p, float x, int) { *p = x; }

// The second operand where either is NaN.
INFERC_INLINE float max(float a, float b) { return a > b ? a : b; }
INFERC_INLINE float min(float a, float b) { return a < b ? a : b; }
INFERC_INLINE float select_lt(float a, float b, float yes, float no) { return a < b ? yes : no; }

INFERC_INLINE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
INFERC_INLINE float abs(float x) { return ::fabsf(x); }
INFERC_INLINE float sqrt(float x) { return ::sqrtf(x); }
INFERC_INLINE float exp(float x) { return ::expf(x); }
INFERC_INLINE float log(float x) { return ::logf(x); }
INFERC_INLINE float floor(float x) { return ::floorf(x); }
INFERC_INLINE float pow(float x, float y) { return ::powf(x, y); }
INFERC_INLINE float tanh(float x) { return ::tanhf(x); }
INFERC_INLINE float erf(float x) { return ::erff(x); }
INFERC_INLINE float copy_sign(float magnitude, float sign) { return ::copysignf(magnitude, sign); }

// sin and cos of an angle of any size below 2^40, to half a unit of float and a little: the angle is
// reduced in double by pi/2 in two parts, then short polynomials on [-pi/4, pi/4]. CUDA's own keep
// an array in local memory for large angles.
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
INFERC_INLINE float sin(float x) {
    float sine, cosine;
    sin_cos(x, &sine, &cosine);
    return sine;
}
INFERC_INLINE float cos(float x) {
    float sine, cosine;
    sin_cos(x, &sine, &cosine);
    return cosine;
}

// e^-x may be infinite: the quotient is then 0, as it should be.
INFERC_INLINE float sigmoid(float x) { return 1.0f / (1.0f + ::expf(-x)); }
INFERC_INLINE float silu(float x) { return x / (1.0f + ::expf(-x)); }
INFERC_INLINE float relu(float x) { return max(0.0f, x); }

// log(1 + e^x), accurate where it is tiny and without overflow where x is large.
INFERC_INLINE float softplus(float x) { return max(x, 0.0f) + ::log1pf(::expf(-::fabsf(x))); }

INFERC_INLINE float gelu_erf(float x) { return 0.5f * x * (1.0f + ::erff(x * 0.707106781f)); }
INFERC_INLINE float gelu_tanh(float x) {
    const float inner = 0.797884561f * ::fmaf(0.044715f * (x * x), x, x);
    return 0.5f * x * (1.0f + ::tanhf(inner));
}
INFERC_INLINE float softcap(float x, float cap) { return cap * ::tanhf(x / cap); }

}  // namespace inferc

#define INFERC_USE_MATH                                                                           \
    using ::inferc::splat, ::inferc::load, ::inferc::store, ::inferc::max, ::inferc::min,          \
        ::inferc::select_lt, ::inferc::fma, ::inferc::abs, ::inferc::sqrt, ::inferc::exp,          \
        ::inferc::log, ::inferc::sin, ::inferc::cos, ::inferc::floor, ::inferc::pow,               \
        ::inferc::tanh, ::inferc::erf, ::inferc::copy_sign, ::inferc::sigmoid, ::inferc::silu,     \
        ::inferc::relu, ::inferc::softplus, ::inferc::gelu_erf, ::inferc::gelu_tanh,               \
        ::inferc::softcap
