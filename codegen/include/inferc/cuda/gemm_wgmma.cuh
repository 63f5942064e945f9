// Products of many rows with weights that have no scales, on sm_90, where they may have bits of
// their own (GemmShape::kFast): wgmma.
//
// First x is rounded to bf16 once, into images of what shared memory is to hold: for 64 tokens and
// 64 k the rows of 128 bytes, swizzled, k in the order of weights.cuh. Then a block of two groups
// of four warps has 16 tiles of 16 matrix rows and 128 or 192 tokens: 192 are as much as registers
// hold, and ask the second-level cache for less; which of them leaves fewer multiprocessors without
// work depends on the launch. The bits are the same. Weights and images come by bulk copies through
// the same stages; a warp decodes two tiles of weights in registers, the operand A, while the
// product before runs.
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/gemm_block.cuh"

namespace inferc {

constexpr int kWgmmaThreads = 256, kWgmmaWarps = 8, kWgmmaK = 64, kWgmmaBytes = 224 * 1024;
constexpr int kImageTokens = 64, kImageBytes = kImageTokens * kWgmmaK * 2;

// Sums of a group would need as many registers again: formats with scales go through mma.sync.
template <class Shape>
constexpr bool kWgmma = Shape::kFast && !Shape::F::scaled && Shape::F::terms <= 2 &&
                        Shape::x_terms == 1;

template <class Shape, int tokens>
struct WgmmaPlan {
    typedef typename Shape::W W;
    static constexpr int images = tokens / kImageTokens;  // of a stage
    static constexpr int block_tiles = 2 * kWgmmaWarps;
    static constexpr int chunk_bytes = 2 * record_bytes<W>();  // of a tile, 64 k
    static constexpr int chunks = ceil_div(Shape::kK, kWgmmaK);
    static constexpr int stage_bytes = block_tiles * chunk_bytes + images * kImageBytes;
    static constexpr int stages = min_of(4, kWgmmaBytes / stage_bytes);
    static constexpr int bytes = stages * stage_bytes;
    static constexpr int blocks = ceil_div(Shape::tiles, block_tiles);
    static_assert(stages >= 3, "one is read, one may still be multiplied, one is filled");
};

// The product where there is no wgmma. Its bits are those of gemm_decode.cuh.
template <class Shape>
using ManyPlan = BlockPlan<Shape, most_block_tiles<Shape>()>;

#if INFERC_DEVICE_CODE

// Grid: {chunks, images of tokens}, kWgmmaThreads threads.
template <class Shape, class Epilogue>
INFERC_INLINE void gemm_round_tokens(const GemmArgs<Epilogue> &args) {
    begin_dependent();
    const int block = int(blockIdx.y), chunk = int(blockIdx.x);
    uint8_t *image = args.image + (int64_t(block) * gridDim.x + chunk) * kImageBytes;
    for (int i = threadIdx.x; i < kImageTokens * kWgmmaK / 4; i += kWgmmaThreads) {
        const int token = i / 16, step = i % 16 / 4, t = i % 4;
        const int row = block * kImageTokens + token, k = chunk * kWgmmaK + i % 16 * 4;
        RawTokens<1> raw = {};
        if (row < args.rows && k < Shape::kK)
            raw.of[0][0] = load_four<Shape, true>(args.x + int64_t(row) * Shape::kK + k, k);
        TokenFragments<1, 1> b;
        token_fragments<Shape>(raw, t, b);
        INFERC_EACH_OF for (int half = 0; half < 2; half++) {
            const int unit = (2 * step + half) ^ (token % 8);  // of 16 bytes
            *reinterpret_cast<uint32_t *>(image + token * 128 + unit * 16 + 4 * t) =
                b.of[0][0][0][half];
        }
    }
}

#if INFERC_SM == 90

// The stages of a block. Chunk i goes through stage i % stages: weights of all tiles, then x.
template <class Shape, int tokens>
struct WgmmaRing {
    typedef WgmmaPlan<Shape, tokens> Plan;
    uint8_t *stages;       // shared memory
    uint64_t *arrived;     // a barrier a stage
    const uint8_t *w;      // the first tile
    const uint8_t *image;  // of the block's first tokens
    int tiles;             // that exist from there on
    int lane, warp;

    INFERC_INLINE void begin() const {
        if (threadIdx.x == 0) {
            INFERC_EACH_OF for (int i = 0; i < Plan::stages; i++)
                ptx::mbarrier_init(arrived + i, kWgmmaWarps);
            ptx::fence_mbarrier_init();
        }
        __syncthreads();
    }
    // Each warp copies two tiles and an eighth of each image.
    INFERC_INLINE void fetch(int chunk) const {
        if (chunk >= Plan::chunks || lane != 0) return;
        constexpr int part = kImageBytes / kWgmmaWarps;
        const int64_t from = int64_t(chunk) * Plan::chunk_bytes;
        const int bytes = int(min_of(int64_t(Plan::chunk_bytes), Shape::tile_bytes - from));
        uint8_t *stage = stages + chunk % Plan::stages * Plan::stage_bytes;
        uint64_t *bar = arrived + chunk % Plan::stages;
        ptx::mbarrier_expect_bytes(bar, 2 * bytes + Plan::images * part);
        INFERC_EACH_OF for (int i = 0; i < 2; i++) {
            // A tile that does not exist is another one: its results go nowhere.
            const int tile = 2 * warp + i;
            ptx::bulk_copy(stage + tile * Plan::chunk_bytes,
                           w + min_of(tile, tiles - 1) * Shape::tile_bytes + from, bytes, bar);
        }
        INFERC_EACH_OF for (int i = 0; i < Plan::images; i++)
            ptx::bulk_copy(
                stage + Plan::block_tiles * Plan::chunk_bytes + i * kImageBytes + warp * part,
                image + (int64_t(i) * Plan::chunks + chunk) * kImageBytes + warp * part, part, bar);
    }
    INFERC_INLINE const uint8_t *wait(int chunk) const {
        ptx::mbarrier_wait(arrived + chunk % Plan::stages, chunk / Plan::stages & 1);
        return stages + chunk % Plan::stages * Plan::stage_bytes;
    }
};

template <class Shape, int tokens, class Epilogue>
INFERC_INLINE void wgmma_finish(const float (&sums)[2][tokens / 2], int tile, int token, int rows,
                                int lane, const Epilogue &epilogue) {
    constexpr int joined = Shape::kPair ? 2 : 1;
    INFERC_EACH_OF for (int i = 0; i < tokens / 2; i++)
        INFERC_EACH_OF for (int r = 0; r < 2; r += joined) {
            const int row = token + i / 4 * 8 + lane % 4 * 2 + i % 2;
            const int column = (tile + r) / joined * 16 + lane / 4 * 2 + i % 4 / 2;
            if (row >= rows || column >= Shape::kN) continue;
            if constexpr (Shape::kPair)
                epilogue(row, column, sums[0][i], sums[1][i]);
            else
                epilogue(row, column, sums[r][i]);
        }
}

// Grid: {blocks of tokens, Plan::blocks}, kWgmmaThreads threads, Plan::bytes.
template <class Shape, int tokens, class Epilogue>
INFERC_INLINE void gemm_wgmma(const GemmArgs<Epilogue> &args) {
    typedef WgmmaPlan<Shape, tokens> Plan;
    typedef typename Shape::W W;
    constexpr int terms = Shape::F::terms;
    INFERC_DYNAMIC_SHARED(uint8_t, shared);
    __shared__ uint64_t arrived[Plan::stages];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(kAllLanes, int(threadIdx.x) / 32, 0);
    const int tile = blockIdx.y * Plan::block_tiles, token = blockIdx.x * tokens;
    const WgmmaRing<Shape, tokens> ring = {
        shared, arrived, args.w + tile * Shape::tile_bytes,
        args.image + int64_t(blockIdx.x) * Plan::images * Plan::chunks * kImageBytes,
        Shape::tiles - tile, lane, warp};
    ring.begin();
    begin_dependent();
    INFERC_EACH_OF for (int i = 0; i < Plan::stages - 2; i++) ring.fetch(i);
    float sums[2][tokens / 2] = {};
    uint32_t a[2][2][terms][4];  // one set is decoded while the other is multiplied
    INFERC_NO_UNROLL for (int chunk = 0; chunk < Plan::chunks; chunk++) {
        const uint8_t *stage = ring.wait(chunk);
        // All products of the last chunk but one have been waited for: its stage is free.
        __syncthreads();
        ring.fetch(chunk + Plan::stages - 2);
        const uint8_t *x = stage + Plan::block_tiles * Plan::chunk_bytes;
        INFERC_EACH_OF for (int step = 0; step < kWgmmaK / 16; step++) {
            INFERC_EACH_OF for (int r = 0; r < 2; r++) {
                const uint8_t *record = stage + (2 * warp + r) * Plan::chunk_bytes +
                                        step / 2 * record_bytes<W>();
                load_fragment<W>(record, 0, step % 2, lane, a[step % 2][r]);
                if constexpr (Shape::kK % kWgmmaK != 0)
                    mask_fragment<Shape>(chunk * kWgmmaK + 16 * step, lane, a[step % 2][r]);
            }
            const uint64_t b =
                ptx::shared_descriptor(x + 32 * step, 16, 1024, ptx::Swizzle::bytes128);
            ptx::wgmma_fence();
            INFERC_EACH_OF for (int i = terms - 1; i >= 0; i--)
                INFERC_EACH_OF for (int r = 0; r < 2; r++)
                    ptx::wgmma_bf16<tokens>(sums[r], a[step % 2][r][i], b);
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
        }
    }
    ptx::wgmma_wait<0>();
    wgmma_finish<Shape, tokens>(sums, tile + 2 * warp, token, args.rows, lane, args.epilogue);
}

#endif

// Many rows, in three kernels that launch_many knows: this one rounds x for wgmma,
template <class Shape, class Epilogue>
INFERC_INLINE void gemm_round(const GemmArgs<Epilogue> &args) {
    if constexpr (kWgmma<Shape> && INFERC_SM == 90) gemm_round_tokens<Shape>(args);
}
// this one multiplies 128 tokens a block, or goes through gemm_block.cuh where there is no wgmma,
template <class Shape>
constexpr int kManyThreads = kWgmma<Shape> && INFERC_SM == 90 ? kWgmmaThreads
                                                              : ManyPlan<Shape>::threads;
template <class Shape, class Epilogue>
INFERC_INLINE void gemm_many(const GemmArgs<Epilogue> &args) {
#if INFERC_SM == 90
    if constexpr (kWgmma<Shape>) return gemm_wgmma<Shape, 128>(args);
#endif
    if constexpr (!kWgmma<Shape> || INFERC_SM != 90) {
        constexpr int T = most_block_tiles<Shape>();
        const auto rows = [&](int row) { return args.x + int64_t(row) * Shape::kK; };
        gemm_block_tiles<Shape, T, true>(args.w, int(blockIdx.y), rows, int(blockIdx.x) * 8 * T,
                                         args.rows, args.epilogue);
    }
}
// and this one 192.
template <class Shape, class Epilogue>
INFERC_INLINE void gemm_more(const GemmArgs<Epilogue> &args) {
#if INFERC_SM == 90
    if constexpr (kWgmma<Shape>) gemm_wgmma<Shape, 192>(args);
#endif
}

#endif

#if INFERC_HOST_CODE

struct ManyKernels {
    int32_t round, many, more;
};

template <class Shape, int tokens, class Epilogue>
inline void launch_wgmma(const Step &step, int32_t round, int32_t kernel,
                         const GemmArgs<Epilogue> &args) {
    typedef WgmmaPlan<Shape, tokens> Plan;
    const uint32_t blocks = uint32_t(ceil_div(args.rows, tokens));
    const Grid images = {uint32_t(Plan::chunks), blocks * Plan::images, 1};
    step.launch(round, images, kWgmmaThreads, 0, args, 1, INFERC_LAUNCH_DEPENDENT);
    step.launch(kernel, {blocks, uint32_t(Plan::blocks), 1}, kWgmmaThreads, Plan::bytes, args, 1,
                INFERC_LAUNCH_DEPENDENT);
}

// How long a launch takes, in tokens of a block: blocks run one a multiprocessor.
template <class Shape, int tokens>
inline int64_t wgmma_time(int32_t rows, int32_t multiprocessors) {
    const int blocks = ceil_div(rows, tokens) * WgmmaPlan<Shape, tokens>::blocks;
    return int64_t(ceil_div(blocks, multiprocessors)) * tokens;
}

template <class Shape, class Epilogue>
inline void launch_many(const Step &step, const ManyKernels &kernels, GemmArgs<Epilogue> args) {
    if constexpr (kWgmma<Shape>) {
        if (step.cuda->sm == 90) {
            args.image = static_cast<uint8_t *>(step.scratch());
            const int32_t processors = step.cuda->multiprocessors;
            // Of 192 tokens a little longer is shorter: less comes from the second-level cache.
            if (10 * wgmma_time<Shape, 192>(args.rows, processors) <=
                11 * wgmma_time<Shape, 128>(args.rows, processors))
                launch_wgmma<Shape, 192>(step, kernels.round, kernels.more, args);
            else
                launch_wgmma<Shape, 128>(step, kernels.round, kernels.many, args);
            return;
        }
    }
    typedef ManyPlan<Shape> Plan;
    const uint32_t blocks = uint32_t(ceil_div(args.rows, 8 * most_block_tiles<Shape>()));
    step.launch(kernels.many, {blocks, uint32_t(Plan::blocks), 1}, Plan::threads, Plan::bytes, args,
                1, INFERC_LAUNCH_DEPENDENT);
}

#endif

}  // namespace inferc
