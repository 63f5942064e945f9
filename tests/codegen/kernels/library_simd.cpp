// Every function of the vector type once, for the tests: results of 64 bytes, one behind the other.
#include "vmath.h"

using namespace inferc;

namespace {

struct Results {
    uint8_t *at;
    void add(f32x16 value) { add_i(bitcast_i(value)); }
    void add_i(i32x16 value) {
        store_i(at, value);
        at += 64;
    }
};

// `bits` are any words, `bytes` and `nibbles` are words of bytes below 128 and below 16.
void integers(Results &out, const uint8_t *bits, const uint8_t *more) {
    const i32x16 a = load_i(bits), b = load_i(more), low = splat_i(0x7f7f7f7f);
    out.add_i(a & b);
    out.add_i(a | b);
    out.add_i(a ^ b);
    out.add_i(a + b);
    out.add_i(a >> 5);
    out.add_i(a << 11);
    out.add_i(sub_bytes(a, b));
    out.add_i(select_i_lt(a, b, b, a));
    out.add_i(byte_to_top<0>(a));
    out.add_i(byte_to_top<1>(a));
    out.add_i(byte_to_top<2>(a));
    out.add_i(byte_to_top<3>(a));
    out.add_i(look_up_bytes(more, a & splat_i(0x0f0f0f0f)));
    out.add_i(load_u16(bits));
    out.add_i(load_bytes(bits));
    out.add(to_f32(a));
    out.add_i(dot_bytes<false>(a, b, a));
    out.add_i(dot_bytes<false>(a, splat_i(-1), splat_i(int32_t(0x80808080u))));
    out.add_i(dot_bytes<true>(a, b & low, a));
}

void floats(Results &out, const float *x, const float *y, const uint8_t *bits) {
    const f32x16 a = load(x), b = load(y);
    out.add(a + b);
    out.add(a - b);
    out.add(a * b);
    out.add(a / b);
    out.add(-a);
    out.add(fma(a, b, a));
    out.add(min(a, b));
    out.add(max(a, b));
    out.add(abs(a));
    out.add(sqrt(abs(a)));
    out.add(select_lt(a, b, b, a));
    out.add_i(round_to_int(a * splat(1000.5f)));
    out.add(look_up_floats<0>(a, load_i(bits)));
    out.add(look_up_floats<24>(a, load_i(bits)));
    out.add(splat(reduce_add(a)));
    out.add(splat(reduce_max(a)));
    out.add(exp(a));
    out.add(log(abs(a)));
    out.add(tanh(a));
    out.add(erf(a));
}

// What is stored in 16 and 8 bits; every bit pattern that `bits` holds, NaN too.
void narrow(Results &out, const uint8_t *bits) {
    f32x16 a, b;
    load_f8(bits, &a, &b);
    out.add(a);
    out.add(b);
    out.add(load((const bf16 *)bits));
    bf16 short_floats[32] = {};
    store(short_floats, load((const float *)bits));
    out.add_i(load_i(short_floats));
    f16 halves[32] = {};
    store(halves, to_f32(load_i(bits)) * splat(0x1p-16f));
    out.add_i(load_i(halves));
    out.add(load(halves));
}

}  // namespace

extern "C" int64_t simd_all(const uint8_t *bits, const float *x, int64_t cases, uint8_t *out) {
    Results results = {out};
    for (int64_t i = 0; i + 1 < cases; i++) {
        integers(results, bits + 64 * i, bits + 64 * (i + 1));
        floats(results, x + 16 * i, x + 16 * (i + 1), bits + 64 * i);
        narrow(results, bits + 64 * i);
    }
    return results.at - out;
}
