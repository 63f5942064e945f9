// Products of many rows, bound by arithmetic: mma.sync, any architecture.
//
// A block of 4 x 2 warps has 4 R tiles of 16 matrix rows and 2 T tiles of 8 tokens; a warp R by T
// of them. Weights come as chunks through stages in shared memory, as they are packed, and are
// decoded in registers. x comes a unit of 32 k ahead: from memory to registers while the unit
// before is multiplied, then to one of two buffers, as bf16 and in the order in which lanes want
// operands B. The operations that make an element depend on the shape alone, not on the rows of a
// launch; they are not those of gemm_decode.cuh, where k is split.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/gemm.cuh"
#include "inferc/cuda/step.h"

namespace inferc {

constexpr int kPrefillThreads = 256, kPrefillWarps = 8;
constexpr int kPrefillChunk = 1152;       // bytes of a tile, unless a record is larger
constexpr int kPrefillBytes = 98 * 1024;  // shared memory that a block has from sm_80 on

template <class Shape>
struct PrefillPlan {
    typedef typename Shape::W W;
    static constexpr int record = record_bytes<W>(), record_units = record_k<W>() / 32;
    static constexpr int chunk_records = max_of(1, kPrefillChunk / record);
    static constexpr int chunk_bytes = chunk_records * record;
    static constexpr int chunk_k = chunk_records * record_k<W>();
    static constexpr int chunks = ceil_div(Shape::kK, chunk_k);
    static constexpr int T = Shape::x_terms == 1 ? 8 : 4, tokens = 16 * T;
    // Of one of two buffers: operands B of a unit, then sums of x over its steps.
    static constexpr int b_bytes = 2 * T * 2 * Shape::x_terms * 256;
    static constexpr int x_bytes = b_bytes + (has_minimum<W>() ? 2 * tokens * 4 : 0);
    static constexpr bool large = 16 * chunk_bytes * 2 + 2 * x_bytes > kPrefillBytes;
    // Scales and sums under way want registers of their own.
    static constexpr int R = large || Shape::F::scaled || Shape::F::terms > 1 ? 2 : 4;
    static constexpr int block_tiles = 4 * R, stage_bytes = block_tiles * chunk_bytes;
    static constexpr int stages = min_of(4, (kPrefillBytes - 2 * x_bytes) / stage_bytes);
    static constexpr int bytes = stages * stage_bytes + 2 * x_bytes;
    static constexpr int blocks = ceil_div(Shape::tiles, block_tiles);
    static_assert(stages >= 2, "a stage is read while another is filled");
};

#if INFERC_DEVICE_CODE

// The stages of a block. Chunk i goes through stage i % stages.
template <class Shape>
struct PrefillRing {
    typedef PrefillPlan<Shape> Plan;
    uint8_t *stages;    // shared memory
    uint64_t *arrived;  // a barrier a stage
    const uint8_t *w;   // the first tile
    int tiles;          // that exist from there on
    int lane, warp;

    INFERC_INLINE void begin() const {
#if INFERC_SM >= 90
        if (threadIdx.x == 0) {
            INFERC_EACH_OF for (int i = 0; i < Plan::stages; i++)
                ptx::mbarrier_init(arrived + i, kPrefillWarps);
            ptx::fence_mbarrier_init();
        }
        __syncthreads();
#endif
    }
    // Each warp copies some tiles. One that does not exist is another: its results go nowhere.
    INFERC_INLINE void fetch(int chunk) const {
        const bool any = chunk < Plan::chunks;
        const int64_t from = int64_t(chunk) * Plan::chunk_bytes;
        const int bytes =
            any ? int(min_of(int64_t(Plan::chunk_bytes), Shape::tile_bytes - from)) : 0;
        uint8_t *stage = stages + chunk % Plan::stages * Plan::stage_bytes;
#if INFERC_SM >= 90
        uint64_t *bar = arrived + chunk % Plan::stages;
        if (any && lane == 0)
            ptx::mbarrier_expect_bytes(bar, Plan::block_tiles / kPrefillWarps * bytes);
#endif
        INFERC_EACH_OF for (int i = 0; i < Plan::block_tiles / kPrefillWarps; i++) {
            const int tile = i * kPrefillWarps + warp;
            uint8_t *to = stage + tile * Plan::chunk_bytes;
            const uint8_t *source = w + min_of(tile, tiles - 1) * Shape::tile_bytes + from;
#if INFERC_SM >= 90
            if (any && lane == 0) ptx::bulk_copy(to, source, bytes, bar);
#else
            for (int at = 16 * lane; at < bytes; at += 512) ptx::cp_async16(to + at, source + at);
#endif
        }
#if INFERC_SM < 90
        ptx::cp_async_commit();
#endif
    }
    // Behind it, and a barrier of the block, the chunk is there.
    INFERC_INLINE const uint8_t *wait(int chunk) const {
#if INFERC_SM >= 90
        ptx::mbarrier_wait(arrived + chunk % Plan::stages, chunk / Plan::stages & 1);
#else
        ptx::cp_async_wait<Plan::stages - 2>();
#endif
        return stages + chunk % Plan::stages * Plan::stage_bytes;
    }
};

// The share of x that a warp brings to the buffers: a tile of tokens, or two.
template <class Shape>
struct PrefillTokens {
    typedef PrefillPlan<Shape> Plan;
    static constexpr int each = 2 * Plan::T / kPrefillWarps;
    StridedTokens<Shape::kK> x;  // of the warp's first tile
    int tokens;                  // from there on
    int lane, warp;
    RawTokens<each> raw;

    INFERC_INLINE void load(int k) {
        if (k < Shape::kK) load_tokens<Shape>(x, k, k, tokens, lane, raw);
    }
    INFERC_INLINE void store(uint8_t *buffer) const {
        constexpr int terms = Shape::x_terms;
        TokenFragments<each, terms> b;
        token_fragments<Shape>(raw, lane, b);
        INFERC_EACH_OF for (int j = 0; j < each; j++)
            INFERC_EACH_OF for (int step = 0; step < 2; step++) {
                const int tile = warp * each + j;
                INFERC_EACH_OF for (int i = 0; i < terms; i++)
                    *reinterpret_cast<uint2 *>(
                        buffer + (((tile * 2 + step) * terms + i) * 32 + lane) * 8) =
                        make_uint2(b.of[j][step][i][0], b.of[j][step][i][1]);
                if constexpr (has_minimum<typename Shape::W>()) {
                    float sum = 0.0f;
                    INFERC_EACH_OF for (int i = terms - 1; i >= 0; i--)
                        INFERC_EACH_OF for (int h = 0; h < 2; h++)
                            sum += low_bf16(b.of[j][step][i][h]) + high_bf16(b.of[j][step][i][h]);
                    sum += __shfl_xor_sync(kAllLanes, sum, 1);
                    sum += __shfl_xor_sync(kAllLanes, sum, 2);
                    float *sums = reinterpret_cast<float *>(buffer + Plan::b_bytes);
                    if (lane % 4 == 0) sums[step * Plan::tokens + tile * 8 + lane / 4] = sum;
                }
            }
    }
};

template <class Shape>
struct PrefillSums {
    float of[PrefillPlan<Shape>::R][PrefillPlan<Shape>::T][4];
};

// Sums of x over the steps of a unit, for the tokens of a lane's two columns of tile j.
template <class Shape>
INFERC_INLINE void prefill_x(const uint8_t *buffer, int j, int lane, float (&x)[2][4]) {
    typedef PrefillPlan<Shape> Plan;
    if constexpr (has_minimum<typename Shape::W>())
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            const float2 two = *reinterpret_cast<const float2 *>(
                buffer + Plan::b_bytes + 4 * (step * Plan::tokens + 8 * j + lane % 4 * 2));
            x[step][0] = x[step][2] = two.x;
            x[step][1] = x[step][3] = two.y;
        }
}

// One tile of weights, a unit of them, times 8 tokens.
template <class Shape>
INFERC_INLINE void prefill_product(const Fragment<Shape::F::terms> (&a)[2],
                                   const uint32_t (&b)[2][Shape::x_terms][2],
                                   const UnitScales<typename Shape::W> &s, const float (&x)[2][4],
                                   float (&sum)[4]) {
    typedef typename Shape::W W;
    constexpr bool scaled = Shape::F::scaled, apart = group_k<W>() == 16;
    float part[2][4] = {};
    INFERC_EACH_OF for (int step = 0; step < 2; step++)
        multiply_terms(scaled ? part[apart ? step : 0] : sum, a[step], b[step]);
    if constexpr (scaled && apart) {
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            add_scaled(sum, s.scale[step], part[step]);
            if constexpr (has_minimum<W>()) add_scaled(sum, s.minimum[step], x[step]);
        }
    } else if constexpr (scaled) {
        add_scaled(sum, s.scale[0], part[0]);
        if constexpr (has_minimum<W>()) {
            const float both[4] = {x[0][0] + x[1][0], x[0][1] + x[1][1], x[0][2] + x[1][2],
                                   x[0][3] + x[1][3]};
            add_scaled(sum, s.minimum[0], both);
        }
    }
}

// A unit: decodes the warp's tiles of weights, then goes through its tokens. u: of the record at
// the start of each tile; `k`: from the first.
template <class Shape>
INFERC_INLINE void prefill_unit(const uint8_t *stage, const uint8_t *buffer, int u, int k, int lane,
                                int warp, PrefillSums<Shape> &sums) {
    typedef PrefillPlan<Shape> Plan;
    typedef typename Shape::W W;
    typedef typename Shape::F F;
    constexpr int R = Plan::R, terms = Shape::x_terms;
    uint32_t a[R][2][F::terms][4];
    UnitScales<W> scales[R];
    INFERC_EACH_OF for (int r = 0; r < R; r++) {
        const uint8_t *record = stage + (warp % 4 * R + r) * Plan::chunk_bytes;
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            load_fragment<W>(record, u, step, lane, a[r][step]);
            if constexpr (kDense<W> && !Shape::whole_units)
                mask_fragment<Shape>(k + 16 * step, lane, a[r][step]);
        }
        if constexpr (F::scaled) unit_scales<W>(record, u, lane, scales[r]);
    }
    INFERC_EACH_OF for (int j = 0; j < Plan::T; j++) {
        const int tile = warp / 4 * Plan::T + j;
        uint32_t b[2][terms][2];
        INFERC_EACH_OF for (int step = 0; step < 2; step++)
            INFERC_EACH_OF for (int i = 0; i < terms; i++) {
                const uint2 two = *reinterpret_cast<const uint2 *>(
                    buffer + (((tile * 2 + step) * terms + i) * 32 + lane) * 8);
                b[step][i][0] = two.x;
                b[step][i][1] = two.y;
            }
        float x[2][4];
        prefill_x<Shape>(buffer, tile, lane, x);
        INFERC_EACH_OF for (int r = 0; r < R; r++)
            prefill_product<Shape>(a[r], b, scales[r], x, sums.of[r][j]);
    }
}

template <class Shape, class Epilogue>
INFERC_INLINE void prefill_finish(const PrefillSums<Shape> &sums, int tile, int token, int rows,
                                  int lane, const Epilogue &epilogue) {
    typedef PrefillPlan<Shape> Plan;
    constexpr int joined = Shape::kPair ? 2 : 1;
    INFERC_EACH_OF for (int j = 0; j < Plan::T; j++)
        INFERC_EACH_OF for (int r = 0; r < Plan::R; r += joined)
            INFERC_EACH_OF for (int i = 0; i < 4; i++) {
                const int row = token + 8 * j + lane % 4 * 2 + i % 2;
                const int column = (tile + r) / joined * 16 + lane / 4 * 2 + i / 2;
                if (row >= rows || column >= Shape::kN) continue;
                if constexpr (Shape::kPair)
                    epilogue(row, column, sums.of[r][j][i], sums.of[r + 1][j][i]);
                else
                    epilogue(row, column, sums.of[r][j][i]);
            }
}

// Grid: {blocks of tokens, Plan::blocks}, kPrefillThreads threads, Plan::bytes.
template <class Shape, class Epilogue>
INFERC_INLINE void gemm_prefill(const GemmArgs<Epilogue> &args) {
    typedef PrefillPlan<Shape> Plan;
    INFERC_DYNAMIC_SHARED(uint8_t, shared);
    __shared__ uint64_t arrived[Plan::stages];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(kAllLanes, int(threadIdx.x) / 32, 0);
    const int tile = blockIdx.y * Plan::block_tiles, token = blockIdx.x * Plan::tokens;
    const PrefillRing<Shape> ring = {shared, arrived, args.w + tile * Shape::tile_bytes,
                                     Shape::tiles - tile, lane, warp};
    uint8_t *buffers = shared + Plan::stages * Plan::stage_bytes;
    constexpr int own = 8 * PrefillTokens<Shape>::each;
    const int64_t first = token + warp * own + lane / 4;
    PrefillTokens<Shape> x = {{args.x + first * Shape::kK + 4 * (lane % 4)},
                              args.rows - token - warp * own, lane, warp, {}};
    ring.begin();
    INFERC_EACH_OF for (int i = 0; i < Plan::stages - 1; i++) ring.fetch(i);
    begin_dependent();  // weights no kernel writes
    x.load(0);
    x.store(buffers);
    PrefillSums<Shape> sums = {};
    constexpr int all = ceil_div(Shape::kK, record_k<typename Shape::W>());
    int k = 0;
    INFERC_NO_UNROLL for (int chunk = 0; chunk < Plan::chunks; chunk++) {
        const uint8_t *stage = ring.wait(chunk);
        const int records = min_of(Plan::chunk_records, all - chunk * Plan::chunk_records);
        INFERC_NO_UNROLL for (int rec = 0; rec < records; rec++, stage += Plan::record) {
            INFERC_NO_UNROLL for (int u = 0; u < Plan::record_units; u++, k += 32) {
                __syncthreads();  // this unit's x is there, the last one's is read; so is its chunk
                if (rec == 0 && u == 0) ring.fetch(chunk + Plan::stages - 1);
                x.load(k + 32);
                prefill_unit<Shape>(stage, buffers + k / 32 % 2 * Plan::x_bytes, u, k, lane, warp,
                                    sums);
                x.store(buffers + (k / 32 + 1) % 2 * Plan::x_bytes);
            }
        }
    }
    prefill_finish<Shape>(sums, tile + warp % 4 * Plan::R, token + warp / 4 * 8 * Plan::T,
                          args.rows, lane, args.epilogue);
}

#endif

#if INFERC_HOST_CODE

template <class Shape, class Epilogue>
inline void launch_prefill(const Step &step, int32_t kernel, const GemmArgs<Epilogue> &args) {
    typedef PrefillPlan<Shape> Plan;
    const Grid grid = {uint32_t(ceil_div(args.rows, Plan::tokens)), uint32_t(Plan::blocks), 1};
    step.launch(kernel, grid, kPrefillThreads, Plan::bytes, args, 1, INFERC_LAUNCH_DEPENDENT);
}

#endif

}  // namespace inferc
