// Kernels as they should be, and each with a fault planted: test_emulation_faults.py wants every
// fault caught. A fault is one statement that is missing, or one that is slightly wrong.
#include "emulation_test.cuh"

#define PLANTED(name, threads, ...) \
    INFERC_KERNEL(name, TestArgs, threads) { __VA_ARGS__(args); }

// ---- out[n] of in[n][128]: sums of a block; one row after another

enum class Sums { right, no_barrier, no_last_barrier, no_warp_barrier };

template <Sums fault>
INFERC_INLINE void sums(const TestArgs &args) {
    __shared__ float parts[4], values[128];
    for (int row = 0; row < args.n; row++) {
        values[threadIdx.x] = input<float>(args, 0)[row * 128 + threadIdx.x];
        if (fault != Sums::no_warp_barrier) __syncwarp();
        float sum = warp_sum(values[threadIdx.x ^ 1]);
        if (lane() == 0) parts[threadIdx.x / 32] = sum;
        if (fault != Sums::no_barrier) __syncthreads();
        if (threadIdx.x == 0)
            static_cast<float *>(args.out)[row] = parts[0] + parts[1] + parts[2] + parts[3];
        if (fault != Sums::no_last_barrier) __syncthreads();
    }
}
PLANTED(sums_right, 128, sums<Sums::right>)
PLANTED(sums_no_barrier, 128, sums<Sums::no_barrier>)
PLANTED(sums_no_last_barrier, 128, sums<Sums::no_last_barrier>)
PLANTED(sums_no_warp_barrier, 128, sums<Sums::no_warp_barrier>)

// ---- out[n][256] of in[n][256]: rows, each reversed, through a ring of two stages

enum class Ring { right, no_wait, weak_wait, no_barrier, no_last_barrier, no_commit };

template <Ring fault>
INFERC_INLINE void ring(const TestArgs &args) {
    INFERC_DYNAMIC_SHARED(float, stages);
    const int at = int(threadIdx.x) * 4;
    const auto fetch = [&](int row) {
        if (row < args.n)
            ptx::cp_async16(stages + row % 2 * 256 + at, input<float>(args, 0) + row * 256 + at);
        if (fault != Ring::no_commit) ptx::cp_async_commit();
    };
    fetch(0);
    for (int row = 0; row < args.n; row++) {
        fetch(row + 1);
        if (fault == Ring::weak_wait) ptx::cp_async_wait<2>();
        else if (fault != Ring::no_wait) ptx::cp_async_wait<1>();
        if (fault != Ring::no_barrier) __syncthreads();
        for (int i = 0; i < 4; i++)
            static_cast<float *>(args.out)[row * 256 + at + i] =
                stages[row % 2 * 256 + 255 - at - i];
        if (fault != Ring::no_last_barrier) __syncthreads();
    }
}
PLANTED(ring_right, 64, ring<Ring::right>)
PLANTED(ring_no_wait, 64, ring<Ring::no_wait>)
PLANTED(ring_weak_wait, 64, ring<Ring::weak_wait>)
PLANTED(ring_no_barrier, 64, ring<Ring::no_barrier>)
PLANTED(ring_no_last_barrier, 64, ring<Ring::no_last_barrier>)
PLANTED(ring_no_commit, 64, ring<Ring::no_commit>)

// ---- the same rows, brought by bulk copies of one thread

enum class Bulk {
    right, no_wait, no_free_wait, no_init_barrier, no_init_fence, wrong_parity,
    too_many_bytes, too_many_arrivals
};

template <Bulk fault>
INFERC_INLINE void bulk(const TestArgs &args) {
#if INFERC_SM >= 90
    INFERC_DYNAMIC_SHARED(float, stages);
    __shared__ uint64_t full[2], free[2];
    if (threadIdx.x == 63) {
        for (int i = 0; i < 2; i++) {
            ptx::mbarrier_init(full + i, 1);
            ptx::mbarrier_init(free + i, fault == Bulk::too_many_arrivals ? 1 : 64);
        }
        if (fault != Bulk::no_init_fence) ptx::fence_mbarrier_init();
    }
    if (fault != Bulk::no_init_barrier) __syncthreads();
    const auto fetch = [&](int row) {
        const int stage = row % 2;
        if (threadIdx.x != 0 || row >= args.n) return;
        const uint32_t parity = uint32_t(row / 2 % 2);
        if (fault != Bulk::no_free_wait) ptx::mbarrier_wait(free + stage, parity ^ 1);
        ptx::mbarrier_expect_bytes(full + stage, fault == Bulk::too_many_bytes ? 1040 : 1024);
        ptx::bulk_copy(stages + stage * 256, input<float>(args, 0) + row * 256, 1024, full + stage);
    };
    const int at = int(threadIdx.x) * 4;
    fetch(0);
    for (int row = 0; row < args.n; row++) {
        const int stage = row % 2;
        fetch(row + 1);
        const uint32_t parity = uint32_t(row / 2 % 2) ^ (fault == Bulk::wrong_parity ? 1 : 0);
        if (fault != Bulk::no_wait || threadIdx.x == 0) ptx::mbarrier_wait(full + stage, parity);
        for (int i = 0; i < 4; i++)
            static_cast<float *>(args.out)[row * 256 + at + i] = stages[stage * 256 + 255 - at - i];
        ptx::mbarrier_arrive(free + stage);
    }
#endif
}
PLANTED(bulk_right, 64, bulk<Bulk::right>)
PLANTED(bulk_no_wait, 64, bulk<Bulk::no_wait>)
PLANTED(bulk_no_free_wait, 64, bulk<Bulk::no_free_wait>)
PLANTED(bulk_no_init_barrier, 64, bulk<Bulk::no_init_barrier>)
PLANTED(bulk_no_init_fence, 64, bulk<Bulk::no_init_fence>)
PLANTED(bulk_wrong_parity, 64, bulk<Bulk::wrong_parity>)
PLANTED(bulk_too_many_bytes, 64, bulk<Bulk::too_many_bytes>)
PLANTED(bulk_too_many_arrivals, 64, bulk<Bulk::too_many_arrivals>)

// ---- out[64][8] = a[64][16] b[8][16]^T, twice: then b of the second row of in[2][8][16]

enum class Products {
    right, no_fence, no_commit, no_wait, weak_wait, early_overwrite, one_warp_less,
    no_async_fence
};

template <Products fault>
INFERC_INLINE void products(const TestArgs &args) {
#if INFERC_SM == 90
    INFERC_DYNAMIC_SHARED(uint16_t, b);
    const int warp = int(threadIdx.x) / 32, g = lane() / 4, t = lane() % 4;
    const uint32_t *a = input<uint32_t>(args, 0) + (warp * 16 + g) * 8 + t;
    const uint32_t left[4] = {a[0], a[64], a[4], a[68]};
    const int n = int(threadIdx.x) / 16, k = int(threadIdx.x) % 16;
    float d[4] = {};
    const auto store_b = [&](int half) {
        b[k / 8 * 64 + n * 8 + k % 8] = input<uint16_t>(args, 1)[half * 128 + threadIdx.x];
        if (fault != Products::no_async_fence) ptx::fence_async_shared();
        __syncthreads();
    };
    for (int half = 0; half < 2; half++) {
        store_b(half);
        if (fault != Products::no_fence) ptx::wgmma_fence();
        if (fault != Products::one_warp_less || warp != 2)
            ptx::wgmma_bf16<8>(d, left, ptx::shared_descriptor(b, 128, 128, ptx::Swizzle::none));
        if (fault != Products::no_commit) ptx::wgmma_commit();
        if (fault == Products::early_overwrite && half == 0) continue;
        if (fault == Products::weak_wait) ptx::wgmma_wait<1>();
        else if (fault != Products::no_wait) ptx::wgmma_wait<0>();
        __syncthreads();
    }
    float *out = static_cast<float *>(args.out) + (warp * 16 + g) * 8 + 2 * t;
    for (int i = 0; i < 4; i++) out[i / 2 * 64 + i % 2] = d[i];
#endif
}
PLANTED(products_right, 128, products<Products::right>)
PLANTED(products_no_fence, 128, products<Products::no_fence>)
PLANTED(products_no_commit, 128, products<Products::no_commit>)
PLANTED(products_no_wait, 128, products<Products::no_wait>)
PLANTED(products_weak_wait, 128, products<Products::weak_wait>)
PLANTED(products_early_overwrite, 128, products<Products::early_overwrite>)
PLANTED(products_no_async_fence, 128, products<Products::no_async_fence>)
PLANTED(products_one_warp_less, 128, products<Products::one_warp_less>)

// ---- out[128]: 1 everywhere; threads that part

enum class Parting {
    right, barrier, barrier_after_return, two_barriers, shuffle, shuffle_after_return, mask,
    matrix_load, own_mask, named_barrier
};

template <Parting fault>
INFERC_INLINE void parting(const TestArgs &args) {
    const bool first_half = lane() < 16, low = threadIdx.x < 64;
    float one = 1.0f;
    if (fault == Parting::right) {
        if (low) one = __shfl_xor_sync(kAllLanes, one, 1);  // whole warps may part
        if (first_half) one = __shfl_xor_sync(0xffffu, one, 1);
        __syncwarp();
        __syncthreads();
    }
    if (fault == Parting::barrier && first_half) __syncthreads();
    if (fault == Parting::barrier_after_return) {
        if (!first_half) return;
        __syncthreads();
    }
    if (fault == Parting::two_barriers) {
        if (low) __syncthreads();
        else __syncthreads();
    }
    if (fault == Parting::shuffle && first_half) one = __shfl_xor_sync(kAllLanes, one, 1);
    if (fault == Parting::shuffle_after_return) {
        if (!first_half) return;
        one = __shfl_xor_sync(kAllLanes, one, 16);
    }
    if (fault == Parting::mask) one = __shfl_xor_sync(first_half ? kAllLanes : 0xfffffffeu, one, 1);
    if (fault == Parting::own_mask) one = __shfl_xor_sync(0xffffu, one, 1);
    if (fault == Parting::matrix_load) {
        INFERC_DYNAMIC_SHARED(uint4, rows);
        uint32_t out[2];
        if (first_half) ptx::ldmatrix_x2(out, rows);
    }
    if (fault == Parting::named_barrier) ptx::barrier_sync(1, low ? 64 : 128);
    static_cast<float *>(args.out)[threadIdx.x] = one;
}
PLANTED(parting_right, 128, parting<Parting::right>)
PLANTED(parting_barrier, 128, parting<Parting::barrier>)
PLANTED(parting_barrier_after_return, 128, parting<Parting::barrier_after_return>)
PLANTED(parting_two_barriers, 128, parting<Parting::two_barriers>)
PLANTED(parting_shuffle, 128, parting<Parting::shuffle>)
PLANTED(parting_shuffle_after_return, 128, parting<Parting::shuffle_after_return>)
PLANTED(parting_mask, 128, parting<Parting::mask>)
PLANTED(parting_own_mask, 128, parting<Parting::own_mask>)
PLANTED(parting_matrix_load, 128, parting<Parting::matrix_load>)
PLANTED(parting_named_barrier, 128, parting<Parting::named_barrier>)

// ---- out[128] of in[128], through 512 bytes of dynamic shared memory

enum class Bounds {
    right, shared_behind, shared_before, global_behind, global_before, global_read, unwritten,
    unwritten_static, copy_not_aligned, load_not_aligned, array, shift, no_memory, deep
};

// Deeper than a stack.
__device__ __noinline__ float descend(const volatile float *x, int depth) {
    volatile float kept[256];
    for (int i = 0; i < 256; i++) kept[i] = x[i % 2];
    return depth == 0 ? kept[0] : descend(kept, depth - 1) + kept[1];
}

template <Bounds fault>
INFERC_INLINE void bounds(const TestArgs &args) {
    INFERC_DYNAMIC_SHARED(float, held);
    const int i = int(threadIdx.x);
    const float x = input<float>(args, 0)[i];
    if (fault != Bounds::unwritten || i != 77) held[i] = x;
    if (fault == Bounds::shared_behind && i == 127) held[i + 1] = x;
    if (fault == Bounds::shared_before && i == 0) held[-1] = x;
    __shared__ float zero;
    if (fault != Bounds::unwritten_static && i == 0) zero = 0.0f;
    if (fault == Bounds::copy_not_aligned) ptx::cp_async16(held + 1, args.in[0]);
    if (fault == Bounds::load_not_aligned)
        held[i] = float(reinterpret_cast<const uint4 *>(held + i)->x);
    if (fault == Bounds::array) {
        __shared__ float parts[100];
        parts[i] = x;
    }
    if (fault == Bounds::shift && i == 40) held[i] = float(1 << i);
    if (fault == Bounds::no_memory) held[i] = input<float>(args, 1)[i];
    if (fault == Bounds::deep) held[i] = descend(input<float>(args, 0), 1000);
    __syncthreads();
    float *out = static_cast<float *>(args.out);
    out[i] = held[i] + zero;
    if (fault == Bounds::global_behind && i == 127) out[i + 1] = x;
    if (fault == Bounds::global_before && i == 0) out[-1] = x;
    if (fault == Bounds::global_read && input<float>(args, 0)[i + 1] == x) out[i] = -x;
}
PLANTED(bounds_right, 128, bounds<Bounds::right>)
PLANTED(bounds_shared_behind, 128, bounds<Bounds::shared_behind>)
PLANTED(bounds_shared_before, 128, bounds<Bounds::shared_before>)
PLANTED(bounds_global_behind, 128, bounds<Bounds::global_behind>)
PLANTED(bounds_global_before, 128, bounds<Bounds::global_before>)
PLANTED(bounds_global_read, 128, bounds<Bounds::global_read>)
PLANTED(bounds_unwritten, 128, bounds<Bounds::unwritten>)
PLANTED(bounds_unwritten_static, 128, bounds<Bounds::unwritten_static>)
PLANTED(bounds_copy_not_aligned, 128, bounds<Bounds::copy_not_aligned>)
PLANTED(bounds_load_not_aligned, 128, bounds<Bounds::load_not_aligned>)
PLANTED(bounds_array, 128, bounds<Bounds::array>)
PLANTED(bounds_shift, 128, bounds<Bounds::shift>)
PLANTED(bounds_no_memory, 128, bounds<Bounds::no_memory>)
PLANTED(bounds_deep, 128, bounds<Bounds::deep>)

// ---- out[64] of in[64], launched so that it may begin before the kernel ahead has ended

enum class Wait { first, none, after_reading };

template <Wait wait>
INFERC_INLINE void dependent(const TestArgs &args) {
    if (wait == Wait::first) ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    const float x = input<float>(args, 0)[threadIdx.x];
    if (wait == Wait::after_reading) ptx::grid_dependency_wait();
    static_cast<float *>(args.out)[threadIdx.x] = x;
}
PLANTED(dependent_right, 64, dependent<Wait::first>)
PLANTED(dependent_no_wait, 64, dependent<Wait::none>)
PLANTED(dependent_late_wait, 64, dependent<Wait::after_reading>)
PLANTED(dependent_too_many_threads, 32, dependent<Wait::first>)
