// Mixture of experts: every row goes through the few experts that it chose, weighted.
//
// Rows are sorted by expert without moving them: each worker makes the same lists for itself. Then
// three parts with barriers between them: experts_up() gathers the rows of an expert and applies
// its first product(s), experts_down() the second, experts_sum() adds the results of a row in the
// order of its choices. Work is handed out as tiles of columns of the experts that rows chose, by
// cost; the weights of other experts are not touched. A result depends on its own row only: the
// products keep the order of matmul.h, whatever rows and columns are computed together.
#pragma once

#include "matmul.h"

namespace inferc {
inline namespace INFERC_ISA {

constexpr int64_t kExpertRows = 112;    // rows of an expert gathered at once
constexpr int64_t kExpertTileCost = 8;  // cost of reading a tile of weights, in rows of arithmetic

struct ExpertsArgs {
    const float *x;          // [rows, hidden]
    const int64_t *indices;  // [rows, chosen]; outside 0 .. experts - 1: nothing is chosen
    const float *weights;    // [rows, chosen]
    float *out;              // [rows, hidden]
    const void *up, *down;   // by expert: n16_pair (gate and up) or n16 [inner, hidden]; n16
    const float *gate_bias, *up_bias, *down_bias;  // [experts, inner or hidden], or nullptr
    int64_t rows, chosen, experts, hidden, inner;
    char *scratch;           // experts_scratch_bytes() of this worker
    void *shared;            // experts_shared_bytes()
};

// Entries, that are pairs of a row and a choice, in order of experts, then of rows.
struct ExpertLists {
    int32_t *starts;   // [experts + 1]: entries of an expert
    int32_t *entries;  // [rows * chosen]: row * chosen + choice
    int32_t *places;   // [rows * chosen]: where a pair stands among the entries; -1 if nowhere
};

INFERC_INLINE size_t expert_lists_bytes(int64_t rows, int64_t chosen, int64_t experts) {
    return size_t(round_up(4 * (experts + 1 + 2 * rows * chosen), 64));
}

// Of one worker. Grows with the rows.
INFERC_INLINE size_t experts_scratch_bytes(int64_t rows, int64_t chosen, int64_t experts,
                                           int64_t hidden, int64_t inner) {
    return expert_lists_bytes(rows, chosen, experts) + size_t(kExpertRows * hidden * 4) +
           matmul_scratch_bytes(kExpertRows, max_of(hidden, inner));
}

// Of all workers together.
INFERC_INLINE size_t experts_shared_bytes(int64_t rows, int64_t chosen, int64_t hidden,
                                          int64_t inner) {
    return size_t(round_up(4 * rows * chosen * inner, 64) + 4 * rows * chosen * hidden);
}

INFERC_INLINE ExpertLists expert_lists(const ExpertsArgs &a) {
    int32_t *memory = (int32_t *)a.scratch;
    const int64_t pairs = a.rows * a.chosen;
    ExpertLists lists = {memory, memory + a.experts + 1, memory + a.experts + 1 + pairs};
    const auto valid = [&](int64_t expert) { return expert >= 0 && expert < a.experts; };
    for (int64_t e = 0; e <= a.experts; e++) lists.starts[e] = 0;
    for (int64_t p = 0; p < pairs; p++)
        if (valid(a.indices[p])) lists.starts[a.indices[p] + 1]++;
    for (int64_t e = 0; e < a.experts; e++) lists.starts[e + 1] += lists.starts[e];
    for (int64_t p = 0; p < pairs; p++) {
        lists.places[p] = -1;
        if (!valid(a.indices[p])) continue;
        lists.places[p] = lists.starts[a.indices[p]]++;
        lists.entries[lists.places[p]] = int32_t(p);
    }
    for (int64_t e = a.experts; e > 0; e--) lists.starts[e] = lists.starts[e - 1];
    lists.starts[0] = 0;
    return lists;
}

// run(expert, first tile, tile behind the last) for the share of a worker; `tiles` an expert.
template <class Run>
INFERC_INLINE void for_expert_tiles(const ExpertsArgs &a, const ExpertLists &lists, int64_t tiles,
                                    int worker, int workers, const Run &run) {
    const auto cost = [&](int64_t e) {
        const int64_t rows = lists.starts[e + 1] - lists.starts[e];
        return rows == 0 ? 0 : rows + kExpertTileCost;
    };
    int64_t total = 0;
    for (int64_t e = 0; e < a.experts; e++) total += cost(e) * tiles;
    const int64_t low = total * worker / workers, high = total * (worker + 1) / workers;
    int64_t base = 0;
    for (int64_t e = 0; e < a.experts && base < high; base += cost(e) * tiles, e++) {
        if (cost(e) == 0) continue;
        const int64_t begin = ceil_div(max_of(low - base, 0), cost(e));
        const int64_t end = min_of(ceil_div(high - base, cost(e)), tiles);
        if (begin < end) run(e, begin, end);
    }
}

INFERC_INLINE float *expert_inner(const ExpertsArgs &a) { return (float *)a.shared; }
INFERC_INLINE float *expert_results(const ExpertsArgs &a) {
    return (float *)((char *)a.shared + round_up(4 * a.rows * a.chosen * a.inner, 64));
}

// h = Gate(gate + gate_bias, up + up_bias), at the columns from `col` on.
template <class Gate, bool kBiased>
struct ExpertGate {
    float *h;
    int64_t stride;
    const float *gate_bias, *up_bias;
    INFERC_INLINE void operator()(int64_t row, int64_t col, int lanes, f32x16 gate,
                                  f32x16 up) const {
        if constexpr (kBiased) {
            gate = gate + load(gate_bias + col, lanes);
            up = up + load(up_bias + col, lanes);
        }
        store(h + row * stride + col, Gate::apply(gate, up), lanes);
    }
    INFERC_INLINE void operator()(int64_t row, int64_t col, int lanes, f32x16 up) const {
        if constexpr (kBiased) up = up + load(up_bias + col, lanes);
        store(h + row * stride + col, Gate::apply(up, up), lanes);
    }
};

template <bool kBiased>
struct ExpertStore {
    float *y;
    int64_t stride;
    const float *bias;
    INFERC_INLINE void operator()(int64_t row, int64_t col, int lanes, f32x16 acc) const {
        if constexpr (kBiased) acc = acc + load(bias + col, lanes);
        store(y + row * stride + col, acc, lanes);
    }
};

// The rows of entries [first, first + count), one below the other; a single one where it stands.
INFERC_INLINE const float *expert_rows(const ExpertsArgs &a, const ExpertLists &lists,
                                       int64_t first, int64_t count, float *gathered) {
    const auto row = [&](int64_t i) {
        return a.x + lists.entries[first + i] / a.chosen * a.hidden;
    };
    if (count == 1) return row(0);
    for (int64_t i = 0; i < count; i++)
        memcpy(gathered + i * a.hidden, row(i), size_t(a.hidden) * 4);
    return gathered;
}

// First product(s) of all experts. Gate::apply(gate, up); without a gate it gets up twice.
template <class W, class Math, class Gate, bool kGated, bool kBiased>
INFERC_INLINE void experts_up(const ExpertsArgs &a, const ExpertLists &lists, int worker,
                              int workers) {
    char *after = a.scratch + expert_lists_bytes(a.rows, a.chosen, a.experts);
    float *gathered = (float *)after;
    void *scratch = after + kExpertRows * a.hidden * 4;
    const int64_t tiles = ceil_div(a.inner, 16), stride = tile_bytes<W>(a.hidden) * (kGated ? 2 : 1);
    for_expert_tiles(a, lists, tiles, worker, workers, [&](int64_t e, int64_t begin, int64_t end) {
        const uint8_t *w = (const uint8_t *)a.up + (e * tiles + begin) * stride;
        const int64_t col = 16 * begin, n = min_of(16 * end, a.inner) - col;
        const int64_t bias = e * a.inner + col;
        for (int64_t first = lists.starts[e]; first < lists.starts[e + 1]; first += kExpertRows) {
            const int64_t count = min_of(kExpertRows, lists.starts[e + 1] - first);
            const float *x = expert_rows(a, lists, first, count, gathered);
            const ExpertGate<Gate, kBiased> gate = {expert_inner(a) + first * a.inner + col, a.inner,
                                                    kBiased && kGated ? a.gate_bias + bias : nullptr,
                                                    kBiased ? a.up_bias + bias : nullptr};
            if constexpr (kGated)
                matmul_gated<W, Math>(x, a.hidden, w, count, n, a.hidden, gate, scratch, 0, 1);
            else
                matmul<W, Math>(x, a.hidden, w, count, n, a.hidden, gate, scratch, 0, 1);
        }
    });
}

// Second product of all experts, after a barrier.
template <class W, class Math, bool kBiased>
INFERC_INLINE void experts_down(const ExpertsArgs &a, const ExpertLists &lists, int worker,
                                int workers) {
    void *scratch =
        a.scratch + expert_lists_bytes(a.rows, a.chosen, a.experts) + kExpertRows * a.hidden * 4;
    const int64_t tiles = ceil_div(a.hidden, 16), stride = tile_bytes<W>(a.inner);
    for_expert_tiles(a, lists, tiles, worker, workers, [&](int64_t e, int64_t begin, int64_t end) {
        const uint8_t *w = (const uint8_t *)a.down + (e * tiles + begin) * stride;
        const int64_t col = 16 * begin, n = min_of(16 * end, a.hidden) - col;
        const int64_t first = lists.starts[e], count = lists.starts[e + 1] - first;
        const ExpertStore<kBiased> keep = {expert_results(a) + first * a.hidden + col, a.hidden,
                                           kBiased ? a.down_bias + e * a.hidden + col : nullptr};
        matmul<W, Math>(expert_inner(a) + first * a.inner, a.inner, w, count, n, a.inner, keep,
                        scratch, 0, 1);
    });
}

// out = sum over the choices of a row, in their order, after a barrier.
INFERC_INLINE void experts_sum(const ExpertsArgs &a, const ExpertLists &lists, int worker,
                               int workers) {
    const Range mine = share(a.rows, worker, workers);
    const float *results = expert_results(a);
    for (int64_t row = mine.begin; row < mine.end; row++)
        for (int64_t col = 0; col < a.hidden; col += kLanes) {
            const int lanes = int(min_of(kLanes, a.hidden - col));
            f32x16 total = zero();
            for (int64_t j = row * a.chosen; j < (row + 1) * a.chosen; j++) {
                if (lists.places[j] < 0) continue;
                const f32x16 y = load(results + lists.places[j] * a.hidden + col, lanes);
                total = fma(splat(a.weights[j]), y, total);
            }
            store(a.out + row * a.hidden + col, total, lanes);
        }
}

}  // namespace INFERC_ISA
}  // namespace inferc
