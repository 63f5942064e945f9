// Elementary functions on f32x16. Within about two units in the last place (erf: six); NaN goes
// through.
#pragma once

#include "simd.h"

namespace inferc {
inline namespace INFERC_ISA {

// 2^n for integer n in [-126, 127].
INFERC_INLINE f32x16 power_of_two(i32x16 n) { return bitcast_f((n + splat_i(127)) << 23); }

// exp(x) = 2^n exp(r), |r| <= ln2 / 2. exp(0) is 1 exactly, exp(-inf) is 0.
INFERC_INLINE f32x16 exp(f32x16 x) {
    x = max(splat(-104.0f), min(splat(89.0f), x));
    i32x16 n = round_to_int(x * splat(1.44269504f));
    f32x16 k = to_f32(n);
    f32x16 r = fma(k, splat(-0.693359375f), x);
    r = fma(k, splat(2.12194440e-4f), r);
    f32x16 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + splat(1.0f);
    // 2^n in two factors: n reaches from -150 (rounds to zero) to 128 (overflows) at the ends.
    const i32x16 bias = splat_i(512);
    i32x16 half = ((n + bias) >> 1) + splat_i(-256);
    i32x16 rest = n + (half ^ splat_i(-1)) + splat_i(1);
    return p * power_of_two(half) * power_of_two(rest);
}

// Natural logarithm of x > 0; 0 gives -inf, negative x NaN.
INFERC_INLINE f32x16 log(f32x16 x) {
    f32x16 tiny = select_lt(x, splat(1.17549435e-38f), 8388608.0f, 1.0f);  // lifts subnormals
    i32x16 bits = bitcast_i(x * tiny) + splat_i(0x3f800000 - 0x3f3504f3);
    i32x16 exponent = (bits >> 23) + splat_i(-127);
    f32x16 m = bitcast_f((bits & splat_i(0x007fffff)) + splat_i(0x3f3504f3)) - splat(1.0f);
    f32x16 e = to_f32(exponent) - select_lt(splat(1.0f), tiny, 23.0f, 0.0f);
    f32x16 p = splat(7.0376836292e-2f);
    p = fma(p, m, splat(-1.1514610310e-1f));
    p = fma(p, m, splat(1.1676998740e-1f));
    p = fma(p, m, splat(-1.2420140846e-1f));
    p = fma(p, m, splat(1.4249322787e-1f));
    p = fma(p, m, splat(-1.6668057665e-1f));
    p = fma(p, m, splat(2.0000714765e-1f));
    p = fma(p, m, splat(-2.4999993993e-1f));
    p = fma(p, m, splat(3.3333331174e-1f));
    f32x16 m2 = m * m;
    f32x16 y = fma(p * m2, m, e * splat(-2.12194440e-4f));
    y = fma(m2, splat(-0.5f), y) + m;
    y = fma(e, splat(0.693359375f), y);
    const float inf = __builtin_inff(), nan = __builtin_nanf("");
    y = select_lt(x, splat(inf), y, x);  // +inf and NaN stay
    y = select_lt(x, splat(0.0f), splat(nan), y);
    return select_lt(abs(x), splat(1e-45f), splat(-inf), y);
}

INFERC_INLINE f32x16 copy_sign(f32x16 magnitude, f32x16 sign) {
    const i32x16 top = splat_i(int32_t(0x80000000u));
    return bitcast_f(bitcast_i(magnitude) | (bitcast_i(sign) & top));
}

INFERC_INLINE f32x16 tanh(f32x16 x) {
    f32x16 a = abs(x), s = x * x;
    f32x16 large = splat(1.0f) - splat(2.0f) / (exp(a + a) + splat(1.0f));
    f32x16 p = splat(-5.70498872745e-3f);
    p = fma(p, s, splat(2.06390887954e-2f));
    p = fma(p, s, splat(-5.37397155531e-2f));
    p = fma(p, s, splat(1.33314422036e-1f));
    p = fma(p, s, splat(-3.33332819422e-1f));
    f32x16 small = fma(p * s, x, x);
    return select_lt(a, splat(0.625f), small, copy_sign(large, x));
}

INFERC_INLINE f32x16 sigmoid(f32x16 x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }

INFERC_INLINE f32x16 silu(f32x16 x) { return x / (splat(1.0f) + exp(-x)); }

// log(1 + e^x), accurate where it is tiny: log(1 + u) = 2 artanh(u / (2 + u)), u at most 1.
INFERC_INLINE f32x16 softplus(f32x16 x) {
    f32x16 u = exp(-abs(x));
    f32x16 s = u / (splat(2.0f) + u), square = s * s;
    f32x16 p = splat(1.0f / 17);
    for (int n = 15; n > 0; n -= 2) p = fma(p, square, splat(1.0f / float(n)));
    return max(x, splat(0.0f)) + splat(2.0f) * s * p;
}

// Rational minimax approximation on [-4, 4], +-1 beyond.
INFERC_INLINE f32x16 erf(f32x16 x) {
    x = max(splat(-4.0f), min(splat(4.0f), x));
    f32x16 s = x * x;
    f32x16 p = splat(-2.72614225801306e-10f);
    p = fma(p, s, splat(2.77068142495902e-08f));
    p = fma(p, s, splat(-2.10102402082508e-06f));
    p = fma(p, s, splat(-5.69250639462346e-05f));
    p = fma(p, s, splat(-7.34990630326855e-04f));
    p = fma(p, s, splat(-2.95459980854025e-03f));
    p = fma(p, s, splat(-1.60960333262415e-02f));
    f32x16 q = splat(-1.45660718464996e-05f);
    q = fma(q, s, splat(-2.13374055278905e-04f));
    q = fma(q, s, splat(-1.68282697438203e-03f));
    q = fma(q, s, splat(-7.37332916720468e-03f));
    q = fma(q, s, splat(-1.42647390514189e-02f));
    return max(splat(-1.0f), min(splat(1.0f), x * p / q));
}

INFERC_INLINE f32x16 relu(f32x16 x) { return max(splat(0.0f), x); }

INFERC_INLINE f32x16 gelu_erf(f32x16 x) {
    return splat(0.5f) * x * (splat(1.0f) + erf(x * splat(0.707106781f)));
}

INFERC_INLINE f32x16 gelu_tanh(f32x16 x) {
    f32x16 inner = splat(0.797884561f) * fma(splat(0.044715f) * (x * x), x, x);
    return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
}

INFERC_INLINE f32x16 softcap(f32x16 x, float cap) { return splat(cap) * tanh(x / splat(cap)); }

}  // namespace INFERC_ISA
}  // namespace inferc
