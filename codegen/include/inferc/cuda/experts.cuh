// Mixture of experts: every row goes through the few experts that it chose, weighted.
//
// Launches, one after another: lists of rows by expert (experts_lists.cuh); the first product(s) of
// all experts over the rows gathered; the second; the sum of a row's results in the order of its
// choices. A block takes some columns of an expert and a part of its entries; a block whose part
// does not exist ends at once, so grids depend on counts that the host knows. Weights of experts
// that nobody chose are not touched. What a row gets depends on that row only.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/experts_lists.cuh"
#include "inferc/cuda/gemm_block.cuh"
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

// Entries of a part: few and some are read as decode reads its rows (gemm_decode.cuh), many go
// through the blocks of gemm_block.cuh. The bits are the same.
enum class PartSize { few, some, many };

// How parts of a size go through both products.
template <PartSize size_, class Up, class Down>
struct ExpertParts {
    static constexpr PartSize size = size_;
    // Tiles of 8 entries, as registers allow.
    static constexpr int T =
        size == PartSize::few    ? 1
        : size == PartSize::some ? min_of(DecodePlan<Up>::wide, DecodePlan<Down>::wide)
                                 : min_of(most_block_tiles<Up>(), most_block_tiles<Down>());
    static constexpr int entries = 8 * T;
    static constexpr bool many = size == PartSize::many;
    template <class Shape>
    static constexpr int threads =
        many ? BlockPlan<Shape, T>::threads : DecodePlan<Shape>::threads;
    // Blocks a multiprocessor that registers are to allow.
    template <class Shape>
    static constexpr int resident = size == PartSize::few ? DecodePlan<Shape>::resident : 1;
    // Blocks of a part, and their shared memory.
    template <class Shape>
    static constexpr int blocks = many ? BlockPlan<Shape, T>::blocks : DecodePlan<Shape>::blocks;
    template <class Shape>
    static constexpr int bytes = many ? BlockPlan<Shape, T>::bytes : DecodeMemory<Shape, T>::bytes;
};

#if INFERC_DEVICE_CODE

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

// The product of a block for `count` entries from `first` on, rows(entry) where each is.
template <class Parts, class Shape, class Rows, class Epilogue>
INFERC_INLINE void expert_product(const uint8_t *w, int count, const Rows &rows,
                                  const Epilogue &epilogue) {
    constexpr int T = Parts::T;
    if constexpr (Parts::many) {
        gemm_block_tiles<Shape, T, true>(w, int(blockIdx.x), rows, 0, count, epilogue);
    } else {
        GatheredTokens<T> tokens;
        INFERC_EACH_OF for (int j = 0; j < T; j++)
            tokens.row[j] = rows(min_of(8 * j + int(threadIdx.x) % 32 / 4, count - 1));
        const int tile = int(blockIdx.x) * DecodePlan<Shape>::R;
        gemm_decode_tiles<Shape, T>(w, tile, tokens, 0, count, epilogue);
    }
}

// First product(s). Grid: {blocks of the product, parts}.
template <class Shape, class M, class Gate, bool biased, class Parts>
INFERC_INLINE void experts_up(const ExpertsArgs &a) {
    const int4 part = expert_part<M::kExperts>(a.lists, int(blockIdx.y));
    const int expert = part.x, first = part.y;
    if (expert < 0) return;
    const int64_t bias = int64_t(expert) * M::kInner;
    const ExpertGate<M, Gate, biased, Shape::kPair> gate = {
        a.between + int64_t(first) * M::kInner, biased ? a.gate_bias + bias : nullptr,
        biased ? a.up_bias + bias : nullptr};
    const auto rows = [&](int entry) {
        return a.x + int64_t(expert_entry(a.lists, first + entry) / M::kChosen) * M::kHidden;
    };
    const uint8_t *w = a.up + expert * (Shape::tiles * Shape::tile_bytes);
    expert_product<Parts, Shape>(w, part.z, rows, gate);
}

// Second product. Grid: {blocks of the product, parts}.
template <class Shape, class M, bool biased, class Parts>
INFERC_INLINE void experts_down(const ExpertsArgs &a) {
    const int4 part = expert_part<M::kExperts>(a.lists, int(blockIdx.y));
    const int expert = part.x, first = part.y;
    if (expert < 0) return;
    const ExpertStore<M, biased> keep = {
        a.results + int64_t(first) * M::kHidden,
        biased ? a.down_bias + int64_t(expert) * M::kHidden : nullptr};
    const auto rows = [&](int entry) { return a.between + int64_t(first + entry) * M::kInner; };
    const uint8_t *w = a.down + expert * (Shape::tiles * Shape::tile_bytes);
    expert_product<Parts, Shape>(w, part.z, rows, keep);
}

// out = sum over the choices of a row, in their order.
template <class M>
INFERC_INLINE void experts_sum(const ExpertsArgs &a) {
    const int row = int(blockIdx.x), col = int(blockIdx.y) * kSumThreads + int(threadIdx.x);
    if (col >= M::kHidden) return;
    float y[M::kChosen], weight[M::kChosen];
    INFERC_UNROLL
    for (int j = 0; j < M::kChosen; j++) {
        const int pair = row * M::kChosen + j, place = expert_place<M::kExperts>(a.lists, pair);
        weight[j] = place < 0 ? 0.0f : a.weights[pair];
        y[j] = place < 0 ? 0.0f : a.results[int64_t(place) * M::kHidden + col];
    }
    float total = 0.0f;
    INFERC_UNROLL
    for (int j = 0; j < M::kChosen; j++) total = fma(weight[j], y[j], total);
    a.out[int64_t(row) * M::kHidden + col] = total;
}

#endif

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

// Parts as large as experts have entries, on average: with small ones the weights of an expert
// would be read again and again.
template <class M>
PartSize part_size(int pairs) {
    if (!has_expert_lists(pairs)) return PartSize::few;
    if (pairs <= 6 * M::kExperts) return PartSize::few;
    return pairs <= 24 * M::kExperts ? PartSize::some : PartSize::many;
}

template <class M>
Grid sum_grid(int64_t rows) {
    return {uint32_t(rows), uint32_t(ceil_div(M::kHidden, kSumThreads))};
}

// One product of all experts.
template <class Parts, class Shape, class M>
void launch_experts(const Step &step, int32_t kernel, const ExpertsArgs &a) {
    const int pairs = a.lists.pairs;
    const int parts =
        has_expert_lists(pairs) ? most_parts(M::kExperts, Parts::entries, pairs) : pairs;
    const Grid grid = {uint32_t(Parts::template blocks<Shape>), uint32_t(parts)};
    step.launch(kernel, grid, Parts::template threads<Shape>, Parts::template bytes<Shape>, a, 1,
                INFERC_LAUNCH_DEPENDENT);
}

#endif

}  // namespace inferc
