// Mixture of experts: every row goes through the few experts that it chose, weighted.
//
// Launches, one after another: lists of rows by expert (experts_lists.cuh); the first product(s) of
// all experts over the rows gathered; the second; the sum of a row's results in the order of its
// choices. A block takes some columns of an expert and a part of its entries; a block whose part
// does not exist ends at once, so grids depend on counts that the host knows. Weights of experts
// that nobody chose are not touched. What a row gets depends on that row only.
#pragma once

#include "inferc/cuda/experts_lists.cuh"
#include "inferc/cuda/gemm_decode.cuh"
#include "inferc/cuda/math.cuh"
#include "inferc/cuda/step.h"

namespace inferc {

constexpr int kSumThreads = 128;

// Sizes of a mixture: of all experts, of the choices of a row, of a row, between the products.
template <int experts, int chosen, int hidden, int inner>
struct Mixture {
    static constexpr int kExperts = experts, kChosen = chosen, kHidden = hidden, kInner = inner;
};

struct ExpertsArgs {
    ExpertLists lists;
    const float *x;        // [rows, hidden]
    const float *weights;  // [rows, chosen]
    float *out;            // [rows, hidden]
    const uint8_t *up, *down;  // by expert: n16_pair (gate and up) or n16 [inner, hidden]; n16
    const float *gate_bias, *up_bias, *down_bias;  // [experts, inner or hidden], or nullptr
    float *between;                                // [pairs, inner]: an entry a row
    float *results;                                // [pairs, hidden]
};

// Tiles of 8 entries of a part where experts have many: as registers allow.
template <class Up, class Down>
constexpr int kWideTiles = Up::x_terms == 3 || Down::x_terms == 3 ||
                                   record_k<typename Up::W>() == 256 ||
                                   record_k<typename Down::W>() == 256
                               ? 2
                               : 4;

// Rows of x that the tokens of a lane are, in tiles of 8.
template <int T>
struct GatheredTokens {
    static constexpr bool aligned = true;
    const float *row[T];
    INFERC_INLINE const float *of(int j) const { return row[j]; }
    INFERC_INLINE void advance(int k) {
        INFERC_EACH_OF for (int j = 0; j < T; j++) row[j] += k;
    }
};

// h = Gate(gate + gate_bias, up + up_bias) of an entry; without a gate it gets up twice.
template <class M, class Gate, bool biased, bool gated>
struct ExpertGate {
    float *h;
    const float *gate_bias, *up_bias;  // of the expert
    INFERC_INLINE void operator()(int entry, int col, float gate, float up) const {
        if constexpr (biased) {
            if constexpr (gated) gate += gate_bias[col];
            up += up_bias[col];
        }
        h[int64_t(entry) * M::kInner + col] = Gate::apply(gated ? gate : up, up);
    }
    INFERC_INLINE void operator()(int entry, int col, float up) const {
        (*this)(entry, col, up, up);
    }
};

template <class M, bool biased>
struct ExpertStore {
    float *y;
    const float *bias;  // of the expert
    INFERC_INLINE void operator()(int entry, int col, float value) const {
        if constexpr (biased) value += bias[col];
        y[int64_t(entry) * M::kHidden + col] = value;
    }
};

// First product(s). Grid: {DecodePlan<Shape>::blocks, parts of 8 T entries}.
template <class Shape, class M, class Gate, bool biased, int T>
INFERC_INLINE void experts_up(const ExpertsArgs &a) {
    const int4 part = a.lists.parts[blockIdx.y];
    const int expert = part.x, first = part.y, count = part.z;
    if (expert < 0) return;
    GatheredTokens<T> rows;
    INFERC_UNROLL for (int j = 0; j < T; j++) {
        const int i = min_of(8 * j + int(threadIdx.x) % 32 / 4, count - 1);
        rows.row[j] = a.x + int64_t(a.lists.entries[first + i] / M::kChosen) * M::kHidden;
    }
    const int64_t bias = int64_t(expert) * M::kInner;
    const ExpertGate<M, Gate, biased, Shape::kPair> gate = {
        a.between + int64_t(first) * M::kInner, biased ? a.gate_bias + bias : nullptr,
        biased ? a.up_bias + bias : nullptr};
    const uint8_t *w = a.up + expert * (Shape::tiles * Shape::tile_bytes);
    gemm_decode_tiles<Shape, T>(w, int(blockIdx.x) * DecodePlan<Shape>::R, rows, 0, count, gate);
}

// Second product. Grid: {DecodePlan<Shape>::blocks, parts of 8 T entries}.
template <class Shape, class M, bool biased, int T>
INFERC_INLINE void experts_down(const ExpertsArgs &a) {
    const int4 part = a.lists.parts[blockIdx.y];
    const int expert = part.x, first = part.y, count = part.z;
    if (expert < 0) return;
    GatheredTokens<T> rows;
    INFERC_UNROLL for (int j = 0; j < T; j++) {
        const int i = min_of(8 * j + int(threadIdx.x) % 32 / 4, count - 1);
        rows.row[j] = a.between + int64_t(first + i) * M::kInner;
    }
    const ExpertStore<M, biased> keep = {
        a.results + int64_t(first) * M::kHidden,
        biased ? a.down_bias + int64_t(expert) * M::kHidden : nullptr};
    const uint8_t *w = a.down + expert * (Shape::tiles * Shape::tile_bytes);
    gemm_decode_tiles<Shape, T>(w, int(blockIdx.x) * DecodePlan<Shape>::R, rows, 0, count, keep);
}

// out = sum over the choices of a row, in their order.
template <class M>
INFERC_INLINE void experts_sum(const ExpertsArgs &a) {
    const int row = int(blockIdx.x), col = int(blockIdx.y) * kSumThreads + int(threadIdx.x);
    if (col >= M::kHidden) return;
    float y[M::kChosen], weight[M::kChosen];
    INFERC_UNROLL
    for (int j = 0; j < M::kChosen; j++) {
        const int pair = row * M::kChosen + j, place = a.lists.places[pair];
        weight[j] = place < 0 ? 0.0f : a.weights[pair];
        y[j] = place < 0 ? 0.0f : a.results[int64_t(place) * M::kHidden + col];
    }
    float total = 0.0f;
    INFERC_UNROLL
    for (int j = 0; j < M::kChosen; j++) total = fma(weight[j], y[j], total);
    a.out[int64_t(row) * M::kHidden + col] = total;
}

#if INFERC_HOST_CODE

// Where the parts of the working memory lie; codegen/kernels_cuda/experts.py counts the same bytes.
template <class M>
void place_experts_scratch(ExpertsArgs &a, void *scratch) {
    char *at = static_cast<char *>(scratch);
    const auto take = [&](int64_t elements) {
        char *here = at;
        at += round_up(4 * elements, int64_t(256));
        return here;
    };
    const int64_t pairs = a.lists.pairs;
    a.lists.parts = reinterpret_cast<int4 *>(take(4 * pairs));
    a.lists.counts = reinterpret_cast<int32_t *>(
        take(int64_t(expert_chunks(a.lists.pairs)) * M::kExperts));
    a.lists.entries = reinterpret_cast<int32_t *>(take(pairs));
    a.lists.places = reinterpret_cast<int32_t *>(take(pairs));
    a.between = reinterpret_cast<float *>(take(pairs * M::kInner));
    a.results = reinterpret_cast<float *>(take(pairs * M::kHidden));
}

// Whether experts get so many entries that parts should have more than 8: with fewer, the weights
// of an expert would be read again and again.
template <class M>
bool has_wide_parts(const ExpertsArgs &a) {
    return a.lists.pairs > 6 * M::kExperts;
}

template <class M>
Grid sum_grid(int64_t rows) {
    return {uint32_t(rows), uint32_t(ceil_div(M::kHidden, kSumThreads))};
}

// One product of all experts, 8 T entries a block.
template <class Shape, class M, int T>
void launch_experts(const Step &step, int32_t kernel, const ExpertsArgs &a) {
    const Grid grid = {uint32_t(DecodePlan<Shape>::blocks),
                       uint32_t(most_parts(M::kExperts, 8 * T, a.lists.pairs))};
    step.launch(kernel, grid, DecodePlan<Shape>::threads, DecodeMemory<Shape, T>::bytes, a);
}

#endif

}  // namespace inferc
