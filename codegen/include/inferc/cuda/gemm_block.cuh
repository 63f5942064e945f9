// Products of many rows on tensor cores: a block has R tiles of 16 matrix rows for each of its
// warps, and 8 T tokens.
//
// Tokens become operands of the matrix instruction once a block, 32 k at a time, two buffers in
// shared memory; weights come through a ring of stages of each warp, which are its own rows. What
// is done for an element is what gemm_decode.cuh does, in the same order, so the bits are the same:
// k in the order of the S parts that are summed apart there, the sums of the parts in theirs.
#pragma once

#include "inferc/cuda/gemm_block_tokens.cuh"

namespace inferc {

#if INFERC_DEVICE_CODE

// Walks the units of 32 k in the order of the sums: the chunks of a part, then of the next.
template <class Shape>
struct UnitOrder {
    typedef DecodePlan<Shape> Chunks;
    int part = 0, chunk = 0, unit = 0;

    INFERC_INLINE int k() const { return chunk * Chunks::chunk_k + 32 * unit; }
    INFERC_INLINE bool exists() const { return chunk < Chunks::chunks; }
    // By `units`, or to the next chunk if this one ends before.
    INFERC_INLINE void advance(int units) {
        unit += units;
        if (32 * unit < Chunks::chunk_k && k() < Shape::kK) return;
        unit = 0;
        chunk += Chunks::S;
        if (chunk >= Chunks::chunks && part + 1 < Chunks::S) chunk = ++part;
    }
};

// The stages of a warp for its R tiles. What it takes as i-th goes through stage i % stages.
template <class Shape, int T>
struct BlockRing {
    typedef BlockPlan<Shape, T> Plan;
    typedef typename Plan::Chunks Chunks;
    uint8_t *stages;   // shared memory
    const uint8_t *w;  // the first tile
    int tiles;         // that exist from there on
    int lane;

    INFERC_INLINE void fetch(const UnitOrder<Shape> &at, int i) const {
        const int inside = at.unit / Chunks::record_units * Chunks::record;  // of the chunk
        const int64_t from = int64_t(at.chunk) * Chunks::chunk_bytes + inside;
        const int64_t left =
            min_of(int64_t(Chunks::chunk_bytes - inside), Shape::tile_bytes - from);
        const int bytes = at.exists() ? int(min_of(int64_t(Plan::tile_bytes), left)) : 0;
        uint8_t *stage = stages + i % Plan::stages * Plan::stage_bytes;
        INFERC_EACH_OF for (int r = 0; r < Plan::R; r++) {
            // A tile that does not exist is another one: its results go nowhere.
            const uint8_t *source = w + min_of(r, tiles - 1) * Shape::tile_bytes + from;
            for (int b = 16 * lane; b < bytes; b += 512)
                ptx::cp_async16(stage + r * Plan::tile_bytes + b, source + b);
        }
        ptx::cp_async_commit();
    }
    INFERC_INLINE const uint8_t *wait(int i) const {
        ptx::cp_async_wait<Plan::stages - 1>();
        __syncwarp();
        return stages + i % Plan::stages * Plan::stage_bytes;
    }
};

// Sums of a part of k, and of a group.
template <class Shape, int T>
struct BlockSums {
    float of[2][T][4], part[2][T][4];
};

// sums += what unit u of a record gives, its fragments `a`; as decode_unit().
template <class Shape>
INFERC_INLINE void add_unit(const uint32_t (&a)[2][Shape::F::terms][4], int u,
                            const TokenFragments<1, Shape::x_terms> &b,
                            const UnitScales<typename Shape::W> &scales,
                            const float (&x_sum)[2][4], float (&part)[4], float (&sums)[4]) {
    typedef typename Shape::W W;
    constexpr bool halves = has_halves<W>(), scaled = Shape::F::scaled;
    constexpr int fold = folded_units<W>();
    INFERC_EACH_OF for (int step = 0; step < 2; step++) {
        if (scaled && (halves || (step == 0 && u % fold == 0)))
            part[0] = part[1] = part[2] = part[3] = 0.0f;
        multiply_terms(scaled ? part : sums, a[step], b.of[0][step]);
        if (!scaled || !(halves || (step == 1 && u % fold == fold - 1))) continue;
        const int group = halves ? step : 0;
        add_scaled(sums, scales.scale[group], part);
        if constexpr (has_minimum<W>()) add_scaled(sums, scales.minimum[group], x_sum[group]);
    }
}

// Unit u of the records at `record`, of R tiles, for the first `used` tiles of tokens.
template <class Shape, int T>
INFERC_INLINE void block_unit(const uint8_t *record, int u, int k, int lane,
                              const uint32_t *buffer, int used, BlockSums<Shape, T> &sums) {
    typedef typename Shape::W W;
    typedef BlockPlan<Shape, T> Plan;
    UnitScales<W> scales[Plan::R];
    uint32_t a[Plan::R][2][Shape::F::terms][4];
    INFERC_EACH_OF for (int r = 0; r < Plan::R; r++) {
        const uint8_t *at = record + r * Plan::tile_bytes;
        if constexpr (Shape::F::scaled)
            unit_scales<W>(at, u, lane, scales[r]);
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            load_fragment<W>(at, u, step, lane, a[r][step]);
            if constexpr (kDense<W> && !Shape::whole_units)
                mask_fragment<Shape>(k + 16 * step, lane, a[r][step]);
        }
    }
    INFERC_EACH_OF for (int j = 0; j < T; j++) {
        if (j >= used) break;
        TokenFragments<1, Shape::x_terms> b;
        float x_sum[2][4];
        read_tokens<Shape, T>(buffer, j, lane, b, x_sum);
        INFERC_EACH_OF for (int r = 0; r < Plan::R; r++)
            add_unit<Shape>(a[r], u, b, scales[r], x_sum, sums.part[r][j], sums.of[r][j]);
    }
}

// total += sums; sums = 0.
template <class Shape, int T>
INFERC_INLINE void close_part(BlockSums<Shape, T> &sums, float (&total)[2][T][4]) {
    INFERC_EACH_OF for (int r = 0; r < 2; r++)
        INFERC_EACH_OF for (int j = 0; j < T; j++)
            INFERC_EACH_OF for (int i = 0; i < 4; i++) {
                total[r][j][i] += sums.of[r][j][i];
                sums.of[r][j][i] = 0.0f;
            }
}

// A lane has columns 2 (lane / 4) and the next of a tile, for tokens 2 (lane % 4) and the next.
template <class Shape, int T, class Epilogue>
INFERC_INLINE void block_finish(const float (&total)[2][T][4], int tile, int token, int end,
                                int lane, const Epilogue &epilogue) {
    INFERC_EACH_OF for (int j = 0; j < T; j++)
        INFERC_EACH_OF for (int i = 0; i < 4; i++) {
            const int row = token + 8 * j + lane % 4 * 2 + i % 2, c = lane / 4 * 2 + i / 2;
            if (row >= end) continue;
            if constexpr (Shape::kPair) {
                const int column = tile / 2 * 16 + c;
                if (column < Shape::kN)
                    epilogue(row, column, total[0][j][i], total[1][j][i]);
            } else {
                INFERC_EACH_OF for (int r = 0; r < 2; r++)
                    if ((tile + r) * 16 + c < Shape::kN)
                        epilogue(row, (tile + r) * 16 + c, total[r][j][i]);
            }
        }
}

// total += the product of the warp's tiles with the first `used` tiles of tokens.
template <class Shape, int T, bool aligned>
INFERC_INLINE void block_totals(const BlockRing<Shape, T> &ring,
                                BlockTokens<Shape, T, aligned> &tokens, uint32_t *buffers, int used,
                                int warp, float (&total)[2][T][4]) {
    typedef BlockPlan<Shape, T> Plan;
    typedef typename Plan::Chunks Chunks;
    constexpr int words = Plan::buffer_bytes / 4;
    UnitOrder<Shape> fetched, ahead, at;  // of weights, of tokens, of products
    INFERC_EACH_OF for (int i = 0; i < Plan::stages; i++, fetched.advance(Plan::stage_units))
        ring.fetch(fetched, i);
    begin_dependent();  // weights no kernel writes
    tokens.load(0, ring.lane);
    tokens.store(buffers, 0, warp, ring.lane);
    ahead.advance(1);
    if (ahead.exists()) tokens.load(ahead.k(), ring.lane);
    __syncthreads();
    BlockSums<Shape, T> sums = {};
    const uint8_t *record = nullptr;
    int n = 0, i = 0;
    INFERC_NO_UNROLL while (at.exists()) {
        const int part = at.part;
        if (at.unit % Plan::stage_units == 0) record = ring.wait(i);
        INFERC_EACH_OF for (int u = 0; u < Chunks::record_units; u++, n++) {
            if (ahead.exists()) {
                tokens.store(buffers + (n + 1) % 2 * words, ahead.unit % Chunks::record_units, warp,
                             ring.lane);
                ahead.advance(1);
                if (ahead.exists()) tokens.load(ahead.k(), ring.lane);
            }
            block_unit<Shape, T>(record, u, at.k() + 32 * u, ring.lane, buffers + n % 2 * words,
                                 used, sums);
            __syncthreads();
        }
        record += Chunks::record;
        at.advance(Chunks::record_units);
        if (at.unit % Plan::stage_units == 0) {
            ring.fetch(fetched, i + Plan::stages);
            fetched.advance(Plan::stage_units);
            i++;
        }
        if (!at.exists() || at.part != part) close_part(sums, total);
    }
}

// Tiles from BlockPlan::tiles * block of the matrix at w, for tokens token .. min(token + 8 T, end)
// - 1: rows(token) says where one is. BlockPlan::threads threads, BlockPlan::bytes.
template <class Shape, int T, bool aligned, class Rows, class Epilogue>
INFERC_INLINE void gemm_block_tiles(const uint8_t *w, int block, const Rows &rows, int token,
                                    int end, const Epilogue &epilogue) {
    typedef BlockPlan<Shape, T> Plan;
    INFERC_DYNAMIC_SHARED(uint8_t, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tile = block * Plan::tiles + warp * Plan::R;
    // A warp without tiles works on the last ones: it is needed for tokens and barriers.
    const int source = min_of(tile, Shape::tiles - 1);
    const BlockRing<Shape, T> ring = {shared + warp * Plan::stages * Plan::stage_bytes,
                                      w + source * Shape::tile_bytes, Shape::tiles - source, lane};
    uint32_t *buffers =
        reinterpret_cast<uint32_t *>(shared + Plan::warps * Plan::stages * Plan::stage_bytes);
    const int count = min_of(end - token, 8 * T);
    BlockTokens<Shape, T, aligned> tokens = {};
    INFERC_EACH_OF for (int i = 0; i < tokens.kEach; i++) {
        const int number = 8 * (warp + i * Plan::warps) + lane / 4;
        tokens.row[i] = number < count ? rows(token + number) + 4 * (lane % 4) : nullptr;
    }
    // -0 + x is x for every x, so the first part needs no case of its own: a choice between it and
    // a sum takes as many registers again as the totals (ptxas for sm_100 and sm_120).
    float total[2][T][4];
    INFERC_EACH_OF for (int r = 0; r < 2; r++)
        INFERC_EACH_OF for (int j = 0; j < T; j++)
            INFERC_EACH_OF for (int i = 0; i < 4; i++) total[r][j][i] = -0.0f;
    block_totals<Shape, T>(ring, tokens, buffers, ceil_div(count, 8), warp, total);
    block_finish<Shape, T>(total, tile, token, end, lane, epilogue);
}

#endif

}  // namespace inferc
