// Ready-made epilogues of matmul() and matmul_gated(). A generated kernel writes its own where it
// fuses more.
#pragma once

#include "vmath.h"

namespace inferc {
inline namespace INFERC_ISA {

struct StoreRows {
    float *y;
    int64_t stride;
    INFERC_INLINE void operator()(int64_t row, int64_t col, int lanes, f32x16 acc) const {
        store(y + row * stride + col, acc, lanes);
    }
};

// y = residual + product; y may be the residual.
struct AddRows {
    float *y;
    int64_t stride;
    const float *residual;
    int64_t residual_stride;
    INFERC_INLINE void operator()(int64_t row, int64_t col, int lanes, f32x16 acc) const {
        f32x16 r = load(residual + row * residual_stride + col, lanes);
        store(y + row * stride + col, r + acc, lanes);
    }
};

struct ActSilu {
    static INFERC_INLINE f32x16 apply(f32x16 x) { return silu(x); }
};
struct ActGeluTanh {
    static INFERC_INLINE f32x16 apply(f32x16 x) { return gelu_tanh(x); }
};
struct ActGeluErf {
    static INFERC_INLINE f32x16 apply(f32x16 x) { return gelu_erf(x); }
};
struct ActRelu {
    static INFERC_INLINE f32x16 apply(f32x16 x) { return relu(x); }
};

// y = act(gate) * up.
template <class Act>
struct Glu {
    float *y;
    int64_t stride;
    INFERC_INLINE void operator()(int64_t row, int64_t col, int lanes, f32x16 gate,
                                  f32x16 up) const {
        store(y + row * stride + col, Act::apply(gate) * up, lanes);
    }
};

}  // namespace INFERC_ISA
}  // namespace inferc
