// Products of many rows on tensor cores: a block has R tiles of 16 matrix rows for each of its
// warps, and 8 T tokens.
//
// Tokens become operands of the matrix instruction once a block, 32 k at a time, two buffers in
// shared memory; weights come through a ring of stages of each warp, which are its own rows. What
// is done for an element is what gemm_decode.cuh does, in the same order, so the bits are the same:
// k in the order of the S parts that are summed apart there, the sums of the parts in theirs.
#pragma once

#include "inferc/cuda/gemm_decode.cuh"

namespace inferc {

constexpr int kBlockRingBytes = 80 * 1024;  // with what else a block has, below 99 KB

// Units of 32 k that share a scale, and whether steps of 16 k do not.
template <class W>
INFERC_BOTH constexpr int folded_units() {
    return one_scale<W>() ? record_k<W>() / 32 : 1;
}
template <class W>
INFERC_BOTH constexpr bool has_halves() {
    return group_k<W>() == 16;
}

// T at most: totals, sums of a part of k, and of a group if they last, have to fit into registers.
template <class Shape>
INFERC_BOTH constexpr int most_block_tiles() {
    typedef typename Shape::W W;
    if (Shape::x_terms == 3 || Shape::F::terms > 1 || record_k<W>() == 256) return 4;
    return folded_units<W>() > 1 ? 6 : 8;
}

template <class Shape, int T>
struct BlockPlan {
    typedef typename Shape::W W;
    typedef DecodePlan<Shape> Chunks;
    static constexpr int R = 2;  // tiles of a warp: both of a pair, or two
    // A stage is half a chunk, if it can be.
    static constexpr int stage_records = ceil_div(Chunks::chunk_records, 2);
    static constexpr int stage_units = stage_records * Chunks::record_units;
    static constexpr int tile_bytes = stage_records * Chunks::record;  // of a stage
    static constexpr int stage_bytes = R * tile_bytes;
    static constexpr int warps = 8 * 2 * stage_bytes > kBlockRingBytes ? 4 : 8;
    static constexpr int stages = max_of(2, min_of(6, kBlockRingBytes / (warps * stage_bytes)));
    static constexpr int threads = 32 * warps;
    static constexpr int tiles = R * warps;  // of a block
    static constexpr int blocks = ceil_div(Shape::tiles, tiles);
    // Sums of x that go with a unit.
    static constexpr int sums = !has_minimum<W>() ? 0 : has_halves<W>() ? 2 : 1;
    static constexpr int token_words = 2 * 32 * 2 * Shape::x_terms;  // of 8 tokens, 32 k
    static constexpr int buffer_bytes = T * (4 * token_words + sums * 32 * 16);
    static constexpr int bytes = warps * stages * stage_bytes + 2 * buffer_bytes;
};

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

// A warp's tiles of 8 tokens (tile `warp + i * warps` of the block) from memory to operands in
// shared memory. Buffer: words [tile][step][term][lane][2], then sums of x [tile][..][lane][4].
template <class Shape, int T, bool aligned>
struct BlockTokens {
    typedef BlockPlan<Shape, T> Plan;
    typedef typename Shape::W W;
    static constexpr int kEach = ceil_div(T, Plan::warps), terms = Shape::x_terms;
    const float *row[kEach];  // of the lane's token, at its first k; nullptr: there is none
    RawTokens<1> raw[kEach];
    static constexpr int kSums = max_of(1, Plan::sums);
    float x_sum[kEach][kSums][4];

    INFERC_INLINE void load(int k, int lane) {
        INFERC_EACH_OF for (int i = 0; i < kEach; i++) {
            const StridedTokens<0, aligned> one = {row[i]};
            load_tokens<Shape>(one, k, k, row[i] == nullptr ? 0 : 8, lane, raw[i]);
        }
    }
    // Unit `u` of a record.
    INFERC_INLINE void store(uint32_t *buffer, int u, int warp, int lane) {
        INFERC_EACH_OF for (int i = 0; i < kEach; i++) {
            const int tile = warp + i * Plan::warps;
            if (tile >= T) continue;
            TokenFragments<1, terms> b;
            token_fragments<Shape>(raw[i], lane, b);
            INFERC_EACH_OF for (int step = 0; step < 2; step++)
                INFERC_EACH_OF for (int term = 0; term < terms; term++) {
                    uint32_t *at = buffer + (((tile * 2 + step) * terms + term) * 32 + lane) * 2;
                    *reinterpret_cast<uint2 *>(at) =
                        make_uint2(b.of[0][step][term][0], b.of[0][step][term][1]);
                }
            float *sums = reinterpret_cast<float *>(buffer + T * Plan::token_words);
            if constexpr (Plan::sums > 0) store_sums(sums, tile, u, lane, b, x_sum[i]);
        }
    }
    static INFERC_INLINE void store_sums(float *sums, int tile, int u, int lane,
                                         const TokenFragments<1, terms> &b,
                                         float (&x_sum)[kSums][4]) {
        INFERC_EACH_OF for (int step = 0; step < 2; step++) {
            float(&x)[4] = x_sum[step % kSums];
            if (has_halves<W>() || (step == 0 && u % folded_units<W>() == 0))
                x[0] = x[1] = x[2] = x[3] = 0.0f;
            sum_tokens(x, b.of[0][step]);
        }
        INFERC_EACH_OF for (int s = 0; s < Plan::sums; s++)
            *reinterpret_cast<float4 *>(sums + ((tile * Plan::sums + s) * 32 + lane) * 4) =
                make_float4(x_sum[s][0], x_sum[s][1], x_sum[s][2], x_sum[s][3]);
    }
};

// Sums of a part of k, and of a group.
template <class Shape, int T>
struct BlockSums {
    float of[2][T][4], part[2][T][4];
};

// Operands of tile j, and its sums of x, from a buffer of BlockTokens.
template <class Shape, int T>
INFERC_INLINE void read_tokens(const uint32_t *buffer, int j, int lane,
                               TokenFragments<1, Shape::x_terms> &b, float (&x_sum)[2][4]) {
    typedef BlockPlan<Shape, T> Plan;
    constexpr int terms = Shape::x_terms;
    INFERC_EACH_OF for (int step = 0; step < 2; step++)
        INFERC_EACH_OF for (int term = 0; term < terms; term++) {
            const uint2 word = *reinterpret_cast<const uint2 *>(
                buffer + (((j * 2 + step) * terms + term) * 32 + lane) * 2);
            b.of[0][step][term][0] = word.x, b.of[0][step][term][1] = word.y;
        }
    const float *sums = reinterpret_cast<const float *>(buffer + T * Plan::token_words);
    INFERC_EACH_OF for (int s = 0; s < Plan::sums; s++) {
        const float4 four =
            *reinterpret_cast<const float4 *>(sums + ((j * Plan::sums + s) * 32 + lane) * 4);
        x_sum[s][0] = four.x, x_sum[s][1] = four.y, x_sum[s][2] = four.z, x_sum[s][3] = four.w;
    }
}

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

// total += sums, or = where it is the first part; sums = 0.
template <class Shape, int T>
INFERC_INLINE void close_part(bool first, BlockSums<Shape, T> &sums, float (&total)[2][T][4]) {
    INFERC_EACH_OF for (int r = 0; r < 2; r++)
        INFERC_EACH_OF for (int j = 0; j < T; j++)
            INFERC_EACH_OF for (int i = 0; i < 4; i++) {
                total[r][j][i] = first ? sums.of[r][j][i] : total[r][j][i] + sums.of[r][j][i];
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

// Tiles from BlockPlan::tiles * block of the matrix at w, for tokens token .. min(token + 8 T, end)
// - 1: rows(token) says where one is. BlockPlan::threads threads, BlockPlan::bytes.
template <class Shape, int T, bool aligned, class Rows, class Epilogue>
INFERC_INLINE void gemm_block_tiles(const uint8_t *w, int block, const Rows &rows, int token,
                                    int end, const Epilogue &epilogue) {
    typedef BlockPlan<Shape, T> Plan;
    typedef typename Plan::Chunks Chunks;
    INFERC_DYNAMIC_SHARED(uint8_t, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tile = block * Plan::tiles + warp * Plan::R;
    // A warp without tiles works on the last ones: it is needed for tokens and barriers.
    const int source = min_of(tile, Shape::tiles - 1);
    const BlockRing<Shape, T> ring = {shared + warp * Plan::stages * Plan::stage_bytes,
                                      w + source * Shape::tile_bytes, Shape::tiles - source, lane};
    uint32_t *buffers =
        reinterpret_cast<uint32_t *>(shared + Plan::warps * Plan::stages * Plan::stage_bytes);
    UnitOrder<Shape> fetched, ahead;
    INFERC_EACH_OF for (int i = 0; i < Plan::stages; i++, fetched.advance(Plan::stage_units))
        ring.fetch(fetched, i);
    BlockTokens<Shape, T, aligned> tokens = {};
    INFERC_EACH_OF for (int i = 0; i < tokens.kEach; i++) {
        const int number = token + 8 * (warp + i * Plan::warps) + lane / 4;
        const bool exists = number < min_of(end, token + 8 * T);
        tokens.row[i] = exists ? rows(number) + 4 * (lane % 4) : nullptr;
    }
    tokens.load(0, lane);
    tokens.store(buffers, 0, warp, lane);
    ahead.advance(1);
    if (ahead.exists()) tokens.load(ahead.k(), lane);
    __syncthreads();
    BlockSums<Shape, T> sums = {};
    float total[2][T][4] = {};
    const int used = ceil_div(min_of(end - token, 8 * T), 8);
    const uint8_t *record = nullptr;
    UnitOrder<Shape> at;
    int n = 0, i = 0;
    INFERC_NO_UNROLL while (at.exists()) {
        const int part = at.part;
        if (at.unit % Plan::stage_units == 0) record = ring.wait(i);
        INFERC_EACH_OF for (int u = 0; u < Chunks::record_units; u++, n++) {
            constexpr int words = Plan::buffer_bytes / 4;
            if (ahead.exists()) {
                tokens.store(buffers + (n + 1) % 2 * words, ahead.unit % Chunks::record_units, warp,
                             lane);
                ahead.advance(1);
                if (ahead.exists()) tokens.load(ahead.k(), lane);
            }
            block_unit<Shape, T>(record, u, at.k() + 32 * u, lane, buffers + n % 2 * words, used,
                                 sums);
            __syncthreads();
        }
        record += Chunks::record;
        at.advance(Chunks::record_units);
        if (at.unit % Plan::stage_units == 0) {
            ring.fetch(fetched, i + Plan::stages);
            fetched.advance(Plan::stage_units);
            i++;
        }
        if (!at.exists() || at.part != part) close_part(part == 0, sums, total);
    }
    block_finish<Shape, T>(total, tile, token, end, lane, epilogue);
}

#endif

}  // namespace inferc
