// One kernel for each primitive of ptx.cuh and of CUDA that kernels use; beside numpy in
// test_emulation.py. Kernels of one warp unless said.
#include "emulation_test.cuh"

// ---- warps

// out[8][32] of in[32]: shuffles by 3, in whole warps and in segments of 8.
INFERC_KERNEL(shuffles, TestArgs, 32) {
    const float x = input<float>(args, 0)[lane()];
    float *out = static_cast<float *>(args.out) + lane();
    out[0] = __shfl_sync(kAllLanes, x, 5);
    out[32] = __shfl_sync(kAllLanes, x, lane() * 7, 8);
    out[64] = __shfl_xor_sync(kAllLanes, x, 3);
    out[96] = __shfl_down_sync(kAllLanes, x, 3);
    out[128] = __shfl_down_sync(kAllLanes, x, 3, 8);
    out[160] = __shfl_up_sync(kAllLanes, x, 3);
    out[192] = __shfl_up_sync(kAllLanes, x, 3, 8);
    // Halves of the warp apart, the second one more often.
    float sum = x;
    const uint32_t half = lane() < 16 ? 0xffffu : 0xffff0000u;
    for (int i = 0; i < (lane() < 16 ? 1 : 3); i++) sum += __shfl_xor_sync(half, sum, 1);
    out[224] = sum;
}

// out[4][32] of in[32]: ballot, any, all, and the ballot of the even lanes.
INFERC_KERNEL(votes, TestArgs, 32) {
    const int x = input<int32_t>(args, 0)[lane()];
    int32_t *out = static_cast<int32_t *>(args.out) + lane();
    out[0] = int(__ballot_sync(kAllLanes, x > 0));
    out[32] = __any_sync(kAllLanes, x > 8);
    out[64] = __all_sync(kAllLanes, x > -9);
    out[96] = lane() % 2 == 0 ? int(__ballot_sync(0x55555555u, x > 0)) : 0;
}

// out[128][4] of in[128]: sum and maximum of the warp, then of the block.
INFERC_KERNEL(reductions, TestArgs, 128) {
    const float x = input<float>(args, 0)[threadIdx.x];
    float *out = static_cast<float *>(args.out) + threadIdx.x * 4;
    out[0] = warp_sum(x);
    out[1] = warp_max(x);
    out[2] = block_sum<128>(x);
    out[3] = block_max<128>(x);
}

// out[8]: what 2 x 64 threads leave behind.
INFERC_KERNEL(atomics, TestArgs, 64) {
    int32_t *out = static_cast<int32_t *>(args.out);
    const int i = int(blockIdx.x * 64 + threadIdx.x);
    atomicAdd(out, i);
    atomicMax(out + 1, i);
    atomicMin(out + 2, -i);
    atomicAdd(reinterpret_cast<float *>(out + 3), 0.5f);
    atomicCAS(out + 4, 0, i == 77 ? 7 : 0);
    atomicOr(reinterpret_cast<uint32_t *>(out + 5), 1u << i % 31);
    if (i == 100) atomicExch(out + 6, 9);
    atomicAdd(reinterpret_cast<uint32_t *>(out + 7), 3u);
}

// out[2 x 64] of in[2 x 64], reversed in a block through static and through dynamic shared memory.
INFERC_KERNEL(shared_memory, TestArgs, 64) {
    INFERC_DYNAMIC_SHARED(float, dynamic);
    __shared__ float fixed[64];
    const int i = int(threadIdx.x), base = int(blockIdx.x) * 64;
    fixed[i] = input<float>(args, 0)[base + i];
    __syncthreads();
    dynamic[i] = fixed[63 - i];
    __syncthreads();
    static_cast<float *>(args.out)[base + i] = dynamic[(i + 1) % 64];
}

// out[4][32] words of in[32]: floats as bf16 and f16 pairs, e4m3, and back from e4m3.
INFERC_KERNEL(conversions, TestArgs, 32) {
    const float x = input<float>(args, 0)[lane()];
    uint32_t *out = static_cast<uint32_t *>(args.out) + lane();
    out[0] = pack_bf16(x, -x);
    out[32] = pack_f16(x, -x);
    out[64] = to_f8e4m3(x).bits;
    out[96] = float_to_bits(to_float(to_f8e4m3(x)));
}

// ---- copies and matrices

// out[n][128] of in[n][128] through a ring of three stages; copies of odd rows are of zeros.
INFERC_KERNEL(pipeline, TestArgs, 32) {
    INFERC_DYNAMIC_SHARED(float, stages);
    const float *x = input<float>(args, 0);
    const auto fetch = [&](int row) {
        const int at = lane() * 4;
        float *stage = stages + row % 3 * 128;
        if (row < args.n) ptx::cp_async16(stage + at, x + row * 128 + at, row % 2 == 0);
        ptx::cp_async_commit();
    };
    fetch(0);
    fetch(1);
    for (int row = 0; row < args.n; row++) {
        fetch(row + 2);
        ptx::cp_async_wait<2>();
        __syncwarp();
        for (int i = lane(); i < 128; i += 32)
            static_cast<float *>(args.out)[row * 128 + i] = stages[row % 3 * 128 + 127 - i];
        __syncwarp();
    }
}

// out[12][32] registers of in[32][8] halves: the four forms of ldmatrix.
INFERC_KERNEL(load_matrices, TestArgs, 32) {
    INFERC_DYNAMIC_SHARED(uint16_t, rows);
    for (int i = lane(); i < 256; i += 32) rows[i] = input<uint16_t>(args, 0)[i];
    __syncwarp();
    uint32_t *out = static_cast<uint32_t *>(args.out) + lane();
    uint32_t four[4], two[2];
    ptx::ldmatrix_x4(four, rows + lane() * 8);
    for (int i = 0; i < 4; i++) out[32 * i] = four[i];
    ptx::ldmatrix_x4_trans(four, rows + lane() * 8);
    for (int i = 0; i < 4; i++) out[32 * (4 + i)] = four[i];
    ptx::ldmatrix_x2(two, rows + lane() % 16 * 8);
    for (int i = 0; i < 2; i++) out[32 * (8 + i)] = two[i];
    ptx::ldmatrix_x2_trans(two, rows + lane() % 16 * 8);
    for (int i = 0; i < 2; i++) out[32 * (10 + i)] = two[i];
}

// out[2][16][8] += a[16][16] b[8][16]^T, as bf16 and as f16 (inputs 2 n halves long: bf16, f16).
INFERC_KERNEL(products, TestArgs, 32) {
    const int g = lane() / 4, t = lane() % 4;
    for (int half = 0; half < 2; half++) {
        const uint32_t *a = input<uint32_t>(args, 0) + half * 128;
        const uint32_t *b = input<uint32_t>(args, 1) + half * 64;
        float *out = static_cast<float *>(args.out) + half * 128;
        const uint32_t left[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4],
                                  a[(g + 8) * 8 + t + 4]};
        const uint32_t right[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
        float d[4];
        for (int i = 0; i < 4; i++) d[i] = float(i);
        if (half == 0) ptx::mma_bf16(d, left, right);
        else ptx::mma_f16(d, left, right);
        for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
    }
}

// out[n][4] of in[n][4], 16 bytes a thread; the warps of the block meet in pairs, at barriers 1, 2.
INFERC_KERNEL(named_barriers, TestArgs, 128) {
    INFERC_DYNAMIC_SHARED(uint4, passed);
    const int pair = int(threadIdx.x) / 64;
    passed[threadIdx.x ^ 32] = ptx::load_stream16(input<uint4>(args, 0) + threadIdx.x);
    for (int i = 0; i <= pair; i++) ptx::barrier_sync(1 + pair, 64);
    static_cast<uint4 *>(args.out)[threadIdx.x] = passed[threadIdx.x];
    ptx::grid_dependency_launch();
}

#if INFERC_SM >= 90
// out[n][128] of in[n][128]: a warp brings rows through two stages, the next adds 1 to them.
INFERC_KERNEL(bulk_pipeline, TestArgs, 64) {
    INFERC_DYNAMIC_SHARED(float, stages);
    __shared__ uint64_t full[2], free[2];
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            ptx::mbarrier_init(full + i, 1);
            ptx::mbarrier_init(free + i, 32);
        }
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    for (int row = 0; row < args.n; row++) {
        const int stage = row % 2;
        const uint32_t parity = uint32_t(row / 2 % 2);
        float *held = stages + stage * 128;
        if (threadIdx.x == 0) {
            const float *x = input<float>(args, 0) + row * 128;
            ptx::mbarrier_wait(free + stage, parity ^ 1);
            ptx::mbarrier_expect_bytes(full + stage, 512);
            ptx::bulk_copy(held, x, 256, full + stage);
            ptx::bulk_copy_once(held + 64, x + 64, 256, full + stage);
        } else if (threadIdx.x >= 32) {
            ptx::mbarrier_wait(full + stage, parity);
            for (int i = lane(); i < 128; i += 32)
                static_cast<float *>(args.out)[row * 128 + i] = held[i] + 1.0f;
            ptx::mbarrier_arrive(free + stage);
        }
    }
}
#endif

#if INFERC_SM == 90 || INFERC_SM == 100
// out[128] of in[128]: half of the block has few registers and passes it on, the other has many.
INFERC_KERNEL(handover, TestArgs, 256) {
    INFERC_DYNAMIC_SHARED(float, passed);
    if (threadIdx.x < 128) {
        ptx::decrease_registers<40>();
        passed[threadIdx.x] = input<float>(args, 0)[threadIdx.x];
        ptx::barrier_arrive(1, 256);
    } else {
        ptx::increase_registers<232>();
        ptx::barrier_sync(1, 256);
        static_cast<float *>(args.out)[threadIdx.x - 128] = passed[255 - threadIdx.x];
    }
}
#endif

#if INFERC_SM == 90
// out[64][columns] = a[64][64] b[columns][64]^T, both bf16: four products of 16 k, in two groups. B
// is written with the swizzle of rows of `row_bytes`, which hold row_bytes / 2 of the k.
template <int columns, int row_bytes, ptx::Swizzle swizzle>
INFERC_INLINE void multiply_group(const TestArgs &args) {
    INFERC_DYNAMIC_SHARED(uint16_t, b);
    constexpr int row_k = row_bytes / 2, part = columns * row_k;  // a part has all columns
    for (int i = int(threadIdx.x); i < columns * 64; i += 128) {
        const int n = i / 64, k = i % 64;
        uint32_t byte = uint32_t(n * row_bytes + k % row_k * 2);
        if (swizzle != ptx::Swizzle::none) byte ^= (byte >> 7 & (row_bytes / 16 - 1)) << 4;
        b[k / row_k * part + byte / 2] = input<uint16_t>(args, 1)[i];
    }
    ptx::fence_async_shared();
    __syncthreads();
    const int warp = int(threadIdx.x) / 32, g = lane() / 4, t = lane() % 4;
    const uint32_t *a = input<uint32_t>(args, 0) + (warp * 16 + g) * 32 + t;
    float d[columns / 2] = {};
    ptx::wgmma_fence();
    INFERC_UNROLL for (int step = 0; step < 4; step++) {
        const uint32_t left[4] = {a[step * 8], a[step * 8 + 256], a[step * 8 + 4],
                                  a[step * 8 + 260]};
        const int k = step * 16;
        const uint16_t *start = b + k / row_k * part + k % row_k;
        ptx::wgmma_bf16<columns>(
            d, left, ptx::shared_descriptor(start, part * 2, 8 * row_bytes, swizzle));
        if (step % 2 == 1) ptx::wgmma_commit();
    }
    ptx::wgmma_wait<1>();
    ptx::wgmma_wait<0>();
    float *out = static_cast<float *>(args.out) + (warp * 16 + g) * columns + 2 * t;
    for (int i = 0; i < columns / 2; i++)
        out[i / 2 % 2 * 8 * columns + i / 4 * 8 + i % 2] = d[i];
}
// The same of b[64][columns], as rows of a k that hold row_bytes / 2 of the columns.
template <int columns, int row_bytes, ptx::Swizzle swizzle>
INFERC_INLINE void multiply_turned(const TestArgs &args) {
    INFERC_DYNAMIC_SHARED(uint16_t, b);
    constexpr int row_n = row_bytes / 2, part = 64 * row_n;  // a part has all k
    for (int i = int(threadIdx.x); i < columns * 64; i += 128) {
        const int k = i / columns, n = i % columns;
        uint32_t byte = uint32_t(k * row_bytes + n % row_n * 2);
        if (swizzle != ptx::Swizzle::none) byte ^= (byte >> 7 & (row_bytes / 16 - 1)) << 4;
        b[n / row_n * part + byte / 2] = input<uint16_t>(args, 1)[i];
    }
    ptx::fence_async_shared();
    __syncthreads();
    const int warp = int(threadIdx.x) / 32, g = lane() / 4, t = lane() % 4;
    const uint32_t *a = input<uint32_t>(args, 0) + (warp * 16 + g) * 32 + t;
    constexpr uint32_t eight_k = 8 * row_bytes, parts = part * 2;
    constexpr bool plain = swizzle == ptx::Swizzle::none;
    float d[columns / 2] = {};
    ptx::wgmma_fence();
    INFERC_UNROLL for (int step = 0; step < 4; step++) {
        const uint32_t left[4] = {a[step * 8], a[step * 8 + 256], a[step * 8 + 4],
                                  a[step * 8 + 260]};
        ptx::wgmma_bf16_turned<columns>(
            d, left,
            ptx::shared_descriptor(b + step * 16 * row_n, plain ? eight_k : parts,
                                   plain ? parts : eight_k, swizzle));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    float *out = static_cast<float *>(args.out) + (warp * 16 + g) * columns + 2 * t;
    for (int i = 0; i < columns / 2; i++)
        out[i / 2 % 2 * 8 * columns + i / 4 * 8 + i % 2] = d[i];
}
INFERC_KERNEL(turned_24, TestArgs, 128) { multiply_turned<24, 16, ptx::Swizzle::none>(args); }
INFERC_KERNEL(turned_48, TestArgs, 128) { multiply_turned<48, 32, ptx::Swizzle::bytes32>(args); }
INFERC_KERNEL(turned_64, TestArgs, 128) { multiply_turned<64, 64, ptx::Swizzle::bytes64>(args); }
INFERC_KERNEL(turned_128, TestArgs, 128) {
    multiply_turned<128, 128, ptx::Swizzle::bytes128>(args);
}
// Unswizzled, pieces of 8 k are rows of 16 bytes.
INFERC_KERNEL(wgmma_8, TestArgs, 128) { multiply_group<8, 16, ptx::Swizzle::none>(args); }
INFERC_KERNEL(wgmma_40, TestArgs, 128) { multiply_group<40, 32, ptx::Swizzle::bytes32>(args); }
INFERC_KERNEL(wgmma_64, TestArgs, 128) { multiply_group<64, 64, ptx::Swizzle::bytes64>(args); }
INFERC_KERNEL(wgmma_256, TestArgs, 128) { multiply_group<256, 128, ptx::Swizzle::bytes128>(args); }
#endif
