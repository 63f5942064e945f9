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
// What dot_bytes() gives. Where kernels sum in 16 bits there is none: it is made of their sums, which
// want x above -128.
template <bool kSevenBits>
i32x16 quads(i32x16 acc, i32x16 w, i32x16 x) {
#if defined(INFERC_SHORT_SUMS)
    if (kSevenBits) return acc + pairs_of_shorts<1>(unsigned_products(w, x));
    const i32x16 less_128 = w ^ splat_i(int32_t(0x80808080u));
    const i32x16 sum_of_x = pairs_of_shorts<1>(unsigned_products(splat_i(0x01010101), x));
    return acc + pairs_of_shorts<1>(signed_products(less_128, x)) + (sum_of_x << 7);
#else
    return dot_bytes<kSevenBits>(acc, w, x);
#endif
}

void integers(Results &out, const uint8_t *bits, const uint8_t *more) {
    const i32x16 a = load_i(bits), b = load_i(more), low = splat_i(0x7f7f7f7f);
    out.add_i(a & b);
    out.add_i(a | b);
    out.add_i(a ^ b);
    out.add_i(a + b);
    out.add_i(a >> 5);
    out.add_i(a << 11);
    out.add_i(sub_bytes(a, b));
    out.add_i(swap_pairs(a));
    out.add_i(select_i_lt(a, b, b, a));
    out.add_i(byte_to_top<0>(a));
    out.add_i(byte_to_top<1>(a));
    out.add_i(byte_to_top<2>(a));
    out.add_i(byte_to_top<3>(a));
    out.add_i(look_up_bytes(more, a & splat_i(0x0f0f0f0f)));
    out.add_i(load_u16(bits));
    out.add_i(load_bytes(bits));
    out.add(to_f32(a));
    const i32x16 x = sub_bytes(a & low, splat_i(0x3f3f3f3f));
    out.add_i(quads<false>(a, b, x));
    out.add_i(quads<false>(a, splat_i(-1), splat_i(int32_t(0x81818181u))));
    out.add_i(quads<true>(a, b & low, x));
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
