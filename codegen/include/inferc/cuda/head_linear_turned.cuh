// y[row][head] = x[row][head] times the head's own matrix, packed as n16 [k, n] in blocks along n:
// as it is stored, for blocks cannot be turned. A scale belongs to a few n of one k, so it cannot
// be taken out of a sum over k: weights are decoded to float32, and products are float32 too.
#pragma once

#include "inferc/cuda/head_linear.cuh"

namespace inferc {

constexpr int kTurnedThreads = 128, kTurnedColumns = 64, kTurnedTile = 16;

// How it is launched for a count of rows: R rows a block.
template <HeadRowCount count>
struct TurnedPlan {
    static constexpr int R = count == HeadRowCount::few ? 8 : count == HeadRowCount::some ? 32 : 64;
    static constexpr int threads = kTurnedThreads, resident = 1;
};

#if INFERC_DEVICE_CODE

// Eight weights of a tile, two rows by four columns: those that a thread decodes.
struct WeightPatch {
    float of[2][4];
};

// Rows 2 pair and 2 pair + 1 of a tile, columns `col` to col + 3, a multiple of 4.
template <class W>
INFERC_INLINE WeightPatch decode_patch(const uint8_t *tile, int pair, int col) {
    typedef Format<W, 3> F;
    constexpr int groups = W::block / W::group, terms = F::terms;
    const uint8_t *record = tile + col / W::block * W::record_bytes;
    const int inside = col % W::block, group = inside / W::group;
    RowFloats scale[groups], minimum[groups];
    W::scales(RowPair{pair}, record, scale, minimum);
    uint32_t a[terms][4];
    block_fragment<W>(record, group, inside % W::group / 4, pair, a);
    RowFloats s = scale[0], m = {0.0f, 0.0f};
    INFERC_UNROLL for (int g = 1; g < groups; g++) if (g == group) s = scale[g];
    if constexpr (W::has_min) {
        m = minimum[0];
        INFERC_UNROLL for (int g = 1; g < groups; g++) if (g == group) m = minimum[g];
    }
    WeightPatch patch;
    INFERC_UNROLL for (int i = 0; i < 4; i++) {
        constexpr bool bytes = F::order == Order::kBytes;
        const int word = bytes ? 2 * (i % 2) : 2 * (i / 2);
        const bool high = bytes ? i >= 2 : i % 2 == 1;
        float value[2] = {};
        INFERC_UNROLL for (int j = terms - 1; j >= 0; j--) {
            value[0] += high ? high_bf16(a[j][word]) : low_bf16(a[j][word]);
            value[1] += high ? high_bf16(a[j][word + 1]) : low_bf16(a[j][word + 1]);
        }
        patch.of[0][i] = fmaf(s.low, value[0], m.low);
        patch.of[1][i] = fmaf(s.high, value[1], m.high);
    }
    return patch;
}

// Grid: {blocks of kTurnedColumns, blocks of R rows, heads}. Each result is a chain over k.
template <class Plan, class W, class X, class Y, int n, int k>
INFERC_INLINE void head_linear_turned(const HeadLinearArgs &a) {
    begin_dependent();
    constexpr int R = Plan::R;
    constexpr int kEach = ceil_div(R * kTurnedTile, kTurnedThreads), kMine = R / 2;
    constexpr int tiles = ceil_div(k, kTurnedTile);
    alignas(16) __shared__ float weights[kTurnedTile][kTurnedColumns], x[R][kTurnedTile];
    const int thread = int(threadIdx.x), head = int(blockIdx.z), first = int(blockIdx.y) * R;
    const int begin = int(blockIdx.x) * kTurnedColumns;
    const int pair = thread % 8, quad = thread / 8;  // to decode
    const int col = thread % kTurnedColumns, mine = thread / kTurnedColumns * kMine;  // to sum
    const int64_t tile_bytes = packed_tile_bytes<W>(n);
    const uint8_t *w = a.w + head * tiles * tile_bytes;
    const float *rows = a.x + int64_t(head) * X::kHeadStride;
    WeightPatch patch = {};
    float held[kEach];
    const auto fetch = [&](int tile) {
        if (begin + 4 * quad < n)
            patch = decode_patch<W>(w + tile * tile_bytes, pair, begin + 4 * quad);
        INFERC_UNROLL for (int i = 0; i < kEach; i++) {
            const int at = thread + i * kTurnedThreads;
            const int row = first + at / kTurnedTile, d = tile * kTurnedTile + at % kTurnedTile;
            const bool inside = at < R * kTurnedTile && row < a.rows && d < k;
            held[i] = inside ? rows[int64_t(row) * X::kStride + d] : 0.0f;
        }
    };
    float acc[kMine] = {};
    fetch(0);
    for (int tile = 0; tile < tiles; tile++) {
        INFERC_UNROLL for (int i = 0; i < 4; i++) {
            weights[2 * pair][4 * quad + i] = patch.of[0][i];
            weights[2 * pair + 1][4 * quad + i] = patch.of[1][i];
        }
        INFERC_UNROLL for (int i = 0; i < kEach; i++) {
            const int at = thread + i * kTurnedThreads;
            if (at < R * kTurnedTile) x[at / kTurnedTile][at % kTurnedTile] = held[i];
        }
        __syncthreads();
        if (tile + 1 < tiles) fetch(tile + 1);
        INFERC_UNROLL for (int d = 0; d < kTurnedTile; d++) {
            const float weight = weights[d][col];
            INFERC_UNROLL for (int r = 0; r < kMine; r++)
                acc[r] = fmaf(x[mine + r][d], weight, acc[r]);
        }
        __syncthreads();
    }
    INFERC_UNROLL for (int r = 0; r < kMine; r++) {
        const int row = first + mine + r;
        if (row < a.rows && begin + col < n)
            a.y[int64_t(row) * Y::kStride + int64_t(head) * Y::kHeadStride + begin + col] = acc[r];
    }
}

#endif

#if INFERC_HOST_CODE

template <class Plan, int heads, int n>
void launch_turned(const Step &step, int32_t kernel, const HeadLinearArgs &a) {
    const Grid grid = {uint32_t(ceil_div(n, kTurnedColumns)), uint32_t(ceil_div(a.rows, Plan::R)),
                       uint32_t(heads)};
    step.launch(kernel, grid, kTurnedThreads, 0, a, 1, INFERC_LAUNCH_DEPENDENT);
}

#endif

}  // namespace inferc
