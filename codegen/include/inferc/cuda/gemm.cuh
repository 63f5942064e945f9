// y[rows, n] = x[rows, k] times the transpose of a packed weight matrix [n, k], layout n16, results
// given to an epilogue; or two such matrices of layout n16_pair, joined by the epilogue. What the
// kernels of gemm_decode.cuh, gemm_block.cuh and gemm_wgmma.cuh share.
//
// Weights are the operand A of mma m16n8k16 (weights.cuh), tokens the columns of B. Activations are
// rounded to bf16 (x_terms 1) or taken apart into three bf16 whose sum they are (x_terms 3); the
// rest is exact products and sums in float32. Block formats: a sum of each group from zero, then
// total = fma(scale, sum, total), with minima also total = fma(minimum, sum of x in it, total).
#pragma once

#include "inferc/cuda/ptx.cuh"
#include "inferc/cuda/weights.cuh"

namespace inferc {

// A product as compiled: everything but the number of rows. `fast_`: many rows may have other bits
// than few.
template <class W_, int n, int k, bool pair, int x_terms_, bool fast_ = false>
struct GemmShape {
    typedef W_ W;
    typedef Format<W, x_terms_> F;
    static constexpr int kN = n, kK = k, x_terms = x_terms_;
    static constexpr bool kPair = pair, kFast = fast_;
    // Tiles of 16 rows; of a pair, gate and up take turns.
    static constexpr int tiles = ceil_div(n, 16) * (pair ? 2 : 1);
    static constexpr int64_t tile_bytes = packed_tile_bytes<W>(k);
    // k is walked in units of 32; what is missing in the last counts as zeros.
    static constexpr int units = ceil_div(k, 32);
    static constexpr int unit_bytes = kDense<W> ? record_bytes<W>() : 0;
    static constexpr bool whole_units = k % 32 == 0;
};

// Pointers are 16-byte aligned.
template <class Epilogue>
struct GemmArgs {
    const float *x;  // [rows, k]
    const uint8_t *w;
    uint8_t *image;  // of x, for gemm_wgmma.cuh
    int32_t rows;
    Epilogue epilogue;
};

// Raw x of 32 k for T tiles of 8 tokens, a lane's share: token lane / 4 of each tile, of both steps
// of 16 the k 4t .. 4t + 3.
template <int T>
struct RawTokens {
    float4 of[T][2];
};

// bf16 terms of the same as operands B.
template <int T, int terms>
struct TokenFragments {
    uint32_t of[T][2][terms][2];
};

#if INFERC_DEVICE_CODE

// Scale and minimum of a unit of 32 k, of both its steps where groups are of 16.
template <class W>
struct UnitScales {
    static constexpr int count = group_k<W>() == 16 ? 2 : 1;
    RowFloats scale[count], minimum[count];
};

// Of unit u of the record. Readers give all groups of a record: what is not asked for is not
// computed, and u need not be a constant.
template <class W>
INFERC_INLINE void unit_scales(const uint8_t *record, int u, int lane, UnitScales<W> &out) {
    constexpr int count = UnitScales<W>::count, groups = record_k<W>() / group_k<W>();
    INFERC_EACH_OF for (int v = 0; v < (one_scale<W>() ? 1 : groups / count); v++) {
        if (!one_scale<W>() && u != v) continue;
        RowFloats scale[groups], minimum[groups];
        W::scales(RowPair{lane / 4}, record, scale, minimum);
        INFERC_EACH_OF for (int i = 0; i < count; i++) {
            out.scale[i] = scale[count * v + i];
            if constexpr (W::has_min) out.minimum[i] = minimum[count * v + i];
        }
    }
}

// Where x of tokens is that are `stride` apart: of the lane's token of each tile. `aligned`: to 16
// bytes.
template <int64_t stride, bool aligned_ = true>
struct StridedTokens {
    static constexpr bool aligned = aligned_;
    const float *row;
    INFERC_INLINE const float *of(int j) const { return row + 8 * j * stride; }
    INFERC_INLINE void advance(int k) { row += k; }
};

// x[k .. k + 3] of the row whose x[k] is at `at`.
template <class Shape, bool aligned>
INFERC_INLINE float4 load_four(const float *at, int k) {
    constexpr int kK = Shape::kK;
    if constexpr (aligned && kK % 4 == 0) {
        if (!Shape::whole_units && k >= kK) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return *reinterpret_cast<const float4 *>(at);
    } else {
        float of[4];
        INFERC_EACH_OF for (int i = 0; i < 4; i++) of[i] = k + i < kK ? at[i] : 0.0f;
        return make_float4(of[0], of[1], of[2], of[3]);
    }
}

// The lane's share of 32 k from k on. x.of(j) + ahead: x[k + 4t] of its token of tile j; `tokens`:
// how many there are from the first of all tiles. What is no token stays as it is: zeros.
template <class Shape, int T, class Tokens>
INFERC_INLINE void load_tokens(const Tokens &x, int ahead, int k, int tokens, int lane,
                               RawTokens<T> &raw) {
    const int g = lane / 4, t = lane % 4;
    INFERC_EACH_OF for (int j = 0; j < T; j++)
        INFERC_EACH_OF for (int step = 0; step < 2; step++)
            if (8 * j + g < tokens)
                raw.of[j][step] = load_four<Shape, Tokens::aligned>(x.of(j) + ahead + 16 * step,
                                                                    k + 16 * step + 4 * t);
}

template <class Shape, int T>
INFERC_INLINE void token_fragments(const RawTokens<T> &raw, int lane,
                                   TokenFragments<T, Shape::x_terms> &b) {
    constexpr Order order = Shape::F::order;
    constexpr int terms = Shape::x_terms;
    INFERC_EACH_OF for (int j = 0; j < T; j++)
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            const float4 x = raw.of[j][step];
            uint32_t first[terms], second[terms];
            split_bf16(x.x, order == Order::kBytes ? x.z : x.y, first);
            split_bf16(order == Order::kBytes ? x.y : x.z, x.w, second);
            const bool swapped = order == Order::kPairs && lane % 2 == 1;
            INFERC_EACH_OF for (int i = 0; i < terms; i++) {
                b.of[j][step][i][0] = swapped ? second[i] : first[i];
                b.of[j][step][i][1] = swapped ? first[i] : second[i];
            }
        }
}

// Behind the end of k a dense tile has other bytes: a fragment of zeros instead.
template <class Shape, int terms>
INFERC_INLINE void mask_fragment(int k, int lane, Fragment<terms> &a) {
    const int t = lane % 4, left = (Shape::kK + 1) / 2 * 2 - k - 4 * t;  // even
    INFERC_EACH_OF for (int half = 0; half < 2; half++) {
        const int place = Shape::F::order == Order::kPairs ? half ^ (t & 1) : half;
        if (2 * place < left) continue;
        INFERC_EACH_OF for (int i = 0; i < terms; i++) a[i][2 * half] = a[i][2 * half + 1] = 0;
    }
}

// sum += a b, all products of terms that count: the smallest first.
template <int w_terms, int x_terms>
INFERC_INLINE void multiply_terms(float (&sum)[4], const Fragment<w_terms> &a,
                                  const uint32_t (&b)[x_terms][2]) {
    INFERC_EACH_OF for (int size = 2; size >= 0; size--)
        INFERC_EACH_OF for (int i = 0; i < w_terms; i++)
            if (size - i >= 0 && size - i < x_terms) ptx::mma_bf16(sum, a[i], b[size - i]);
}

// Sums of x over 16 k for the tokens of a lane's columns: a product with ones.
template <int x_terms>
INFERC_INLINE void sum_tokens(float (&sum)[4], const uint32_t (&b)[x_terms][2]) {
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    INFERC_EACH_OF for (int i = x_terms - 1; i >= 0; i--) ptx::mma_bf16(sum, ones, b[i]);
}

// total += scale * sum, for rows low and high of a lane.
INFERC_INLINE void add_scaled(float (&total)[4], RowFloats scale, const float (&sum)[4]) {
    total[0] = fmaf(scale.low, sum[0], total[0]);
    total[1] = fmaf(scale.low, sum[1], total[1]);
    total[2] = fmaf(scale.high, sum[2], total[2]);
    total[3] = fmaf(scale.high, sum[3], total[3]);
}

#endif

}  // namespace inferc
