// Products of few rows, bound by the bytes of the weights.
//
// A block has R tiles of 16 matrix rows and S warps. k is cut into chunks; warp s takes chunks s,
// s + S, ...: it streams them through a ring of stages of its own in shared memory, so that no
// barrier of the block is in its way and many bytes are under way. At the end the sums of the warps
// are added in their order. Activations come straight from the cache, a unit of 32 k ahead.
//
// The operations that make an element depend on the shape alone: not on the rows of a launch, nor
// on R or T.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/gemm.cuh"
#include "inferc/cuda/step.h"

namespace inferc {

constexpr int kDecodeRows = 64;        // more are for gemm_wgmma.cuh
constexpr int kRingBytes = 46 * 1024;  // of a block: four blocks a multiprocessor of 228 KB
constexpr int kChunkBytes = 2304;      // of a tile, unless a record is larger
constexpr int kManyTiles = 1056;       // from here on a block of two tiles fills a large GPU too

template <class Shape>
struct DecodePlan {
    typedef typename Shape::W W;
    static constexpr int record = record_bytes<W>(), record_units = record_k<W>() / 32;
    static constexpr int chunk_records = max_of(1, kChunkBytes / record);
    static constexpr int chunk_bytes = chunk_records * record;
    static constexpr int chunk_k = chunk_records * record_k<W>();
    static constexpr int chunks = ceil_div(Shape::kK, chunk_k);
    // Tiles of a block: both of a pair, or two where a block of one would be one of very many.
    static constexpr bool two = Shape::tiles >= kManyTiles && record_units <= 4;
    static constexpr int R = Shape::kPair || two ? 2 : 1;
    // Warps that share k: more where blocks are few, as far as two stages of all fit.
    static constexpr bool many = Shape::tiles >= kManyTiles || 8 * 2 * R * chunk_bytes > kRingBytes;
    static constexpr int S = min_of(many ? 4 : 8, chunks);
    static constexpr int stages = max_of(2, min_of(4, kRingBytes / (S * R * chunk_bytes)));
    static constexpr int threads = 32 * S;
    // Blocks a multiprocessor that registers are to allow: 128 a thread, 168 for weights in terms.
    static constexpr int resident = max_of(1, (Shape::F::terms > 1 ? 384 : 512) / threads);
    // T where tokens are more than 8: sums of as many have to fit into registers.
    static constexpr int wide = 4;
    static constexpr int blocks = ceil_div(Shape::tiles, R);
};

// T: tiles of 8 tokens of a block.
template <class Shape, int T>
struct DecodeMemory {
    typedef DecodePlan<Shape> Plan;
    static constexpr int stage_bytes = Plan::R * Plan::chunk_bytes;
    static constexpr int bytes =
        max_of(Plan::S * Plan::stages * stage_bytes, Plan::S * Plan::R * T * 32 * 16);
};

#if INFERC_DEVICE_CODE

// The stages of one warp. Chunk i of the warp goes through stage i % stages.
template <class Shape>
struct WeightRing {
    typedef DecodePlan<Shape> Plan;
    static constexpr int stage_bytes = Plan::R * Plan::chunk_bytes;
    uint8_t *stages;    // shared memory
    uint64_t *arrived;  // a barrier a stage
    const uint8_t *w;   // the first tile
    int tiles;          // that exist from there on
    int lane;

    INFERC_INLINE void begin() const {
#if INFERC_SM >= 90
        if (lane == 0) {
            INFERC_EACH_OF for (int i = 0; i < Plan::stages; i++)
                ptx::mbarrier_init(arrived + i, 1);
            ptx::fence_mbarrier_init();
        }
        __syncwarp();
#endif
    }
    // Starts the copy of a chunk of all tiles; a chunk that is none counts as one.
    INFERC_INLINE void fetch(int chunk, int i) const {
        const bool any = chunk < Plan::chunks;
        const int64_t from = int64_t(chunk) * Plan::chunk_bytes;
        const int bytes =
            any ? int(min_of(int64_t(Plan::chunk_bytes), Shape::tile_bytes - from)) : 0;
        uint8_t *stage = stages + i % Plan::stages * stage_bytes;
#if INFERC_SM >= 90
        if (any && lane == 0) {
            uint64_t *bar = arrived + i % Plan::stages;
            ptx::mbarrier_expect_bytes(bar, Plan::R * bytes);
            INFERC_EACH_OF for (int r = 0; r < Plan::R; r++)
                ptx::bulk_copy(stage + r * Plan::chunk_bytes, source(r) + from, bytes, bar);
        }
#else
        INFERC_EACH_OF for (int r = 0; r < Plan::R; r++)
            for (int at = 16 * lane; at < bytes; at += 512)
                ptx::cp_async16(stage + r * Plan::chunk_bytes + at, source(r) + from + at);
        ptx::cp_async_commit();
#endif
    }
    // The i-th chunk of the warp, once it is there.
    INFERC_INLINE const uint8_t *wait(int i) const {
#if INFERC_SM >= 90
        ptx::mbarrier_wait(arrived + i % Plan::stages, i / Plan::stages & 1);
#else
        ptx::cp_async_wait<Plan::stages - 1>();
        __syncwarp();
#endif
        return stages + i % Plan::stages * stage_bytes;
    }
    // A tile that does not exist is another one: its results go nowhere.
    INFERC_INLINE const uint8_t *source(int r) const {
        return w + min_of(r, tiles - 1) * Shape::tile_bytes;
    }
};

// Totals, and sums under way: of a group, and of x in it.
template <class Shape, int T>
struct DecodeSums {
    float of[DecodePlan<Shape>::R][T][4];
    float part[DecodePlan<Shape>::R][T][4];
    float x[2][T][4];
};

template <int T>
INFERC_INLINE void set_zero(float (&sums)[T][4]) {
    INFERC_EACH_OF for (int j = 0; j < T; j++)
        INFERC_EACH_OF for (int i = 0; i < 4; i++) sums[j][i] = 0.0f;
}

// Tile r of 32 k of a record: unit u of it, `k` from the first.
template <class Shape, int T>
INFERC_INLINE void decode_unit(const uint8_t *record, int u, int k, int lane,
                               const TokenFragments<T, Shape::x_terms> &b, int r,
                               DecodeSums<Shape, T> &sums) {
    typedef typename Shape::W W;
    typedef typename Shape::F F;
    // Steps of 16, and units, that share a scale.
    constexpr bool apart = group_k<W>() == 16;
    constexpr int fold = one_scale<W>() ? record_k<W>() / 32 : 1;
    uint32_t a[2][F::terms][4];
    UnitScales<W> s;
    if constexpr (F::scaled)
        if (u % fold == fold - 1) unit_scales<W>(record, u, lane, s);
    INFERC_EACH_OF for (int step = 0; step < 2; step++) {
        load_fragment<W>(record, u, step, lane, a[step]);
        if constexpr (kDense<W> && !Shape::whole_units)
            mask_fragment<Shape>(k + 16 * step, lane, a[step]);
    }
    INFERC_EACH_OF for (int step = 0; step < 2; step++) {
        if (F::scaled && (apart || (step == 0 && u % fold == 0))) set_zero(sums.part[r]);
        INFERC_EACH_OF for (int j = 0; j < T; j++)
            multiply_terms(F::scaled ? sums.part[r][j] : sums.of[r][j], a[step], b.of[j][step]);
        if (!F::scaled || !(apart || (step == 1 && u % fold == fold - 1))) continue;
        const int group = apart ? step : 0;
        INFERC_EACH_OF for (int j = 0; j < T; j++) {
            add_scaled(sums.of[r][j], s.scale[group], sums.part[r][j]);
            if constexpr (has_minimum<W>())
                add_scaled(sums.of[r][j], s.minimum[group], sums.x[group][j]);
        }
    }
}

// Sums of x over a unit, of its steps apart where groups are of 16.
template <class Shape, int T>
INFERC_INLINE void add_tokens(const TokenFragments<T, Shape::x_terms> &b, int u,
                              DecodeSums<Shape, T> &sums) {
    typedef typename Shape::W W;
    if constexpr (has_minimum<W>()) {
        constexpr bool apart = group_k<W>() == 16;
        constexpr int fold = one_scale<W>() ? record_k<W>() / 32 : 1;
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            auto &x = sums.x[apart ? step : 0];
            if (apart || (step == 0 && u % fold == 0)) set_zero(x);
            INFERC_EACH_OF for (int j = 0; j < T; j++) sum_tokens(x[j], b.of[j][step]);
        }
    }
}

// The chunks of a warp. x.of(j): the row of the lane's token of tile j.
template <class Shape, int T, class Tokens>
INFERC_INLINE void decode_warp(const WeightRing<Shape> &ring, Tokens x, int tokens, int warp,
                               DecodeSums<Shape, T> &sums) {
    typedef typename Shape::W W;
    typedef DecodePlan<Shape> Plan;
    constexpr int all = ceil_div(Shape::kK, record_k<W>()), groups = record_k<W>() / group_k<W>();
    constexpr bool even = Shape::kK % Plan::chunk_k == 0;
    constexpr int at_once = even && T == 1 ? Plan::chunk_records : 1;
    // Unrolled, scales of a whole record are computed at once: beside many sums, or terms of x, that
    // is too much.
    constexpr int units_at_once = T > 1 || Plan::R * groups >= (Shape::x_terms == 1 ? 32 : 16) ? 1
                                  : Shape::x_terms == 1 ? Plan::record_units
                                                        : min_of(Plan::record_units, 4);
    const int lane = ring.lane;
    RawTokens<T> next = {};
    x.advance(warp * Plan::chunk_k + 4 * (lane % 4));
    load_tokens<Shape>(x, 0, warp * Plan::chunk_k, tokens, lane, next);
    int i = 0;
    INFERC_NO_UNROLL for (int chunk = warp; chunk < Plan::chunks; chunk += Plan::S, i++) {
        const uint8_t *stage = ring.wait(i);
        const int records =
            even ? Plan::chunk_records
                 : min_of(Plan::chunk_records, all - chunk * Plan::chunk_records);
        INFERC_UNROLL_BY(at_once) for (int rec = 0; rec < records; rec++, stage += Plan::record) {
            INFERC_UNROLL_BY(units_at_once) for (int u = 0; u < Plan::record_units; u++) {
                const int done = 32 * (rec * Plan::record_units + u);
                const int k = chunk * Plan::chunk_k + done;
                TokenFragments<T, Shape::x_terms> b;
                token_fragments<Shape>(next, lane, b);
                const bool last = rec == records - 1 && u == Plan::record_units - 1;
                const int ahead = last ? Plan::S * Plan::chunk_k : done + 32;
                if ((even && !last) || ahead - done + k < Shape::kK)
                    load_tokens<Shape>(x, ahead, ahead - done + k, tokens, lane, next);
                add_tokens<Shape>(b, u, sums);
                INFERC_EACH_OF for (int r = 0; r < Plan::R; r++)
                    decode_unit<Shape, T>(stage + r * Plan::chunk_bytes, u, k, lane, b, r, sums);
            }
        }
        x.advance(Plan::S * Plan::chunk_k);
        __syncwarp();
        ring.fetch(chunk + Plan::stages * Plan::S, i + Plan::stages);
    }
}

// Adds what the warps have, in their order, and hands it on: 16 columns of a token side by side.
template <class Shape, int T, class Epilogue>
INFERC_INLINE void decode_finish(float *shared, const DecodeSums<Shape, T> &sums, int tile,
                                 int token, int rows, const Epilogue &epilogue) {
    typedef DecodePlan<Shape> Plan;
    constexpr int joined = Shape::kPair ? 2 : 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();  // the rings are read
    INFERC_EACH_OF for (int r = 0; r < Plan::R; r++)
        INFERC_EACH_OF for (int j = 0; j < T; j++)
            *reinterpret_cast<float4 *>(shared + 4 * (((warp * Plan::R + r) * T + j) * 32 + lane)) =
                make_float4(sums.of[r][j][0], sums.of[r][j][1], sums.of[r][j][2], sums.of[r][j][3]);
    __syncthreads();
    for (int e = threadIdx.x; e < Plan::R / joined * 8 * T * 16; e += Plan::threads) {
        const int c = e % 16, n = e / 16 % (8 * T), r = e / (16 * 8 * T) * joined;
        const int row = token + n, column = (tile + r) / joined * 16 + c;
        if (row >= rows || column >= Shape::kN) continue;
        float value[joined];
        INFERC_EACH_OF for (int q = 0; q < joined; q++) {
            const float *at = shared + ((r + q) * T + n / 8) * 128 +
                              4 * (c / 2 * 4 + n % 8 / 2) + c % 2 * 2 + n % 2;
            value[q] = at[0];
            INFERC_EACH_OF for (int s = 1; s < Plan::S; s++) value[q] += at[s * Plan::R * T * 128];
        }
        if constexpr (Shape::kPair)
            epilogue(row, column, value[0], value[1]);
        else
            epilogue(row, column, value[0]);
    }
}

// Tiles tile .. tile + R - 1 of the matrix at w, for tokens token .. min(token + 8 T, end) - 1:
// x.of(..) says where they are, the epilogue gets their numbers.
template <class Shape, int T, class Tokens, class Epilogue>
INFERC_INLINE void gemm_decode_tiles(const uint8_t *w, int tile, const Tokens &x, int token,
                                     int end, const Epilogue &epilogue) {
    typedef DecodePlan<Shape> Plan;
    INFERC_DYNAMIC_SHARED(uint8_t, shared);
    __shared__ uint64_t arrived[Plan::S * Plan::stages];
    const int lane = threadIdx.x % 32;
    // From one lane: then the compiler knows that it is the same in all of them.
    const int warp = __shfl_sync(kAllLanes, int(threadIdx.x) / 32, 0);
    const WeightRing<Shape> ring = {shared + warp * Plan::stages * WeightRing<Shape>::stage_bytes,
                                    arrived + warp * Plan::stages, w + tile * Shape::tile_bytes,
                                    Shape::tiles - tile, lane};
    ring.begin();
    INFERC_EACH_OF for (int i = 0; i < Plan::stages; i++) ring.fetch(warp + i * Plan::S, i);
    begin_dependent();  // weights no kernel writes: they are under way before x is there
    DecodeSums<Shape, T> sums = {};
    decode_warp<Shape, T>(ring, x, end - token, warp, sums);
    decode_finish<Shape, T>(reinterpret_cast<float *>(shared), sums, tile, token, end, epilogue);
}

// Grid: {tiles of 8 T tokens, Plan::blocks}, Plan::threads threads, DecodeMemory bytes.
template <class Shape, int T, class Epilogue>
INFERC_INLINE void gemm_decode(const GemmArgs<Epilogue> &args) {
    const int token = blockIdx.x * 8 * T, lane = threadIdx.x % 32;
    const StridedTokens<Shape::kK> x = {args.x + int64_t(token + lane / 4) * Shape::kK};
    gemm_decode_tiles<Shape, T>(args.w, blockIdx.y * DecodePlan<Shape>::R, x, token, args.rows,
                                args.epilogue);
}

#endif

#if INFERC_HOST_CODE

template <class Shape, int T, class Epilogue>
inline void launch_decode(const Step &step, int32_t kernel, const GemmArgs<Epilogue> &args) {
    typedef DecodePlan<Shape> Plan;
    const Grid grid = {uint32_t(ceil_div(args.rows, 8 * T)), uint32_t(Plan::blocks), 1};
    step.launch(kernel, grid, Plan::threads, DecodeMemory<Shape, T>::bytes, args, 1,
                INFERC_LAUNCH_DEPENDENT);
}

#endif

}  // namespace inferc
