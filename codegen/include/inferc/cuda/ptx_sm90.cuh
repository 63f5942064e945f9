// Instructions of sm_90 and later: barriers that count bytes, bulk copies, and wgmma (sm_90 alone).
// Included by ptx.cuh.
#pragma once

#if INFERC_SM == 90 && defined(__CUDACC__)
#include "inferc/cuda/ptx_wgmma.cuh"
#endif

namespace inferc::ptx {

// How rows of a matrix in shared memory are swizzled; values are those of wgmma's descriptor.
enum class Swizzle : uint32_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };

#if defined(__CUDACC__)

// An mbarrier is a uint64_t in shared memory. Behind mbarrier_init: fence_mbarrier_init by that
// thread, then a barrier of the block. A phase ends when `count` have arrived and all bytes that
// were expected have come.
INFERC_INLINE void mbarrier_init(uint64_t *bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count)
                 : "memory");
}
INFERC_INLINE void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
INFERC_INLINE void mbarrier_arrive(uint64_t *bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// Arrives (it is one of `count`), and has the phase expect so many bytes more.
INFERC_INLINE void mbarrier_expect_bytes(uint64_t *bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(bar)),
                 "r"(bytes)
                 : "memory");
}
// Until the phase of that parity has ended. The first phase has parity 0; a wait for parity 1
// passes during the first.
INFERC_INLINE void mbarrier_wait(uint64_t *bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(shared_address(bar)),
        "r"(parity)
        : "memory");
}

// Orders this thread's ordinary accesses to shared memory before later ones by bulk copies and
// wgmma.
INFERC_INLINE void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Copies contiguous memory, all three multiples of 16; the bytes count at `bar`. One thread calls
// it.
INFERC_INLINE void bulk_copy(void *shared, const void *global, uint32_t bytes, uint64_t *bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(bar))
        : "memory");
}
// The same for bytes that are read once: they are the first to leave the L2 cache.
INFERC_INLINE void bulk_copy_once(void *shared, const void *global, uint32_t bytes, uint64_t *bar) {
    asm volatile(
        "{\n.reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], policy;\n}\n" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(bar))
        : "memory");
}

#if INFERC_SM == 90 || INFERC_SM == 100
// Registers of each thread of the calling warps; all warps of a group of four call it.
template <int registers>
INFERC_INLINE void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
INFERC_INLINE void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
#endif

#if INFERC_SM == 90
// Before the first wgmma, and whenever registers of one were written since.
INFERC_INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INFERC_INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All groups but the `pending` last committed have their results in d, and are through with B.
template <int pending>
INFERC_INLINE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// d += a b by four warps: each has 16 of 64 rows, a as in mma_bf16; d[4j..] are columns 8j.. as in
// mma_bf16. b: [columns][16], k contiguous. Columns: 8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160,
// 192, 256.
template <int columns>
INFERC_INLINE void wgmma_bf16(float (&d)[columns / 2], const uint32_t (&a)[4], uint64_t b_shared) {
    wgmma_columns(d, a, b_shared);
}
// The same for b: [16][columns], columns contiguous: "MN-major" in the PTX ISA.
template <int columns>
INFERC_INLINE void wgmma_bf16_turned(float (&d)[columns / 2], const uint32_t (&a)[4],
                                     uint64_t b_shared) {
    wgmma_turned_columns(d, a, b_shared);
}
// Describes a matrix in shared memory for wgmma: eight rows are `stride_bytes` from the next eight.
// Swizzled, its start is a multiple of 1024 bytes, or such plus 32 bytes for each 16 k further;
// then `leading_bytes` does not matter. Otherwise it is from 8 k to the next 8 k.
//
// For wgmma_bf16_turned (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout",
// "Strides", MN-major): swizzled, rows are a k each and hold 64, 32 or 16 columns; the 8 rows of 8
// k are one after another, `stride_bytes` is from 8 k to the next 8 k, `leading_bytes` from as many
// columns as a row holds to the next as many. Unswizzled, rows hold 8 columns; `leading_bytes` is
// from 8 k to the next 8 k, `stride_bytes` from 8 columns to the next 8. CUTLASS describes the same
// as ((T, W, m), (8, k)) : ((1, T, LBO), (W T, SBO)) at make_gmma_desc<Major::MN>. Not yet tried on
// a device: the emulation reads the same text.
INFERC_INLINE uint64_t shared_descriptor(const void *pointer, uint32_t leading_bytes,
                                         uint32_t stride_bytes, Swizzle swizzle) {
    const uint32_t start = shared_address(pointer) & 0x3ffffu;
    return uint64_t(start >> 4) | uint64_t(leading_bytes >> 4) << 16 |
           uint64_t(stride_bytes >> 4) << 32 | uint64_t(swizzle) << 62;
}
#endif

#else

INFERC_INLINE void mbarrier_init(uint64_t *bar, uint32_t count INFERC_SITE) {
    emulation::init_mbarrier(bar, count, site);
}
INFERC_INLINE void fence_mbarrier_init() { emulation::fence_mbarriers(); }
INFERC_INLINE void mbarrier_arrive(uint64_t *bar INFERC_SITE) {
    emulation::arrive_at_mbarrier(bar, 0, "mbarrier_arrive", site);
}
INFERC_INLINE void mbarrier_expect_bytes(uint64_t *bar, uint32_t bytes INFERC_SITE) {
    emulation::arrive_at_mbarrier(bar, bytes, "mbarrier_expect_bytes", site);
}
INFERC_INLINE void mbarrier_wait(uint64_t *bar, uint32_t parity INFERC_SITE) {
    emulation::wait_for_mbarrier(bar, parity, site);
}
INFERC_INLINE void fence_async_shared() {
#if INFERC_SM == 90
    emulation::fence_async_view();
#endif
}
INFERC_INLINE void bulk_copy(void *shared, const void *global, uint32_t bytes,
                             uint64_t *bar INFERC_SITE) {
    emulation::issue_bulk_copy(shared, global, bytes, bar, site);
}
INFERC_INLINE void bulk_copy_once(void *shared, const void *global, uint32_t bytes,
                                  uint64_t *bar INFERC_SITE) {
    emulation::issue_bulk_copy(shared, global, bytes, bar, site);
}
template <int registers>
INFERC_INLINE void increase_registers() {
    static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256, "24, 32, .. 256");
}
template <int registers>
INFERC_INLINE void decrease_registers() {
    static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256, "24, 32, .. 256");
}
#if INFERC_SM == 90
INFERC_INLINE void wgmma_fence() { emulation::block.current->registers_fenced = true; }
INFERC_INLINE void wgmma_commit(INFERC_SITE_FIRST) { emulation::commit_wgmma(site); }
template <int pending>
INFERC_INLINE void wgmma_wait(INFERC_SITE_FIRST) {
    emulation::wait_for_wgmma(pending, site);
}
template <int columns>
INFERC_INLINE void wgmma_bf16(float (&d)[columns / 2], const uint32_t (&a)[4],
                              uint64_t b_shared INFERC_SITE) {
    static_assert(columns % 8 == 0 && columns >= 8 && columns <= 256, "8, 16, .. 256 columns");
    emulation::issue_wgmma(d, a, columns, b_shared, false, site);
}
template <int columns>
INFERC_INLINE void wgmma_bf16_turned(float (&d)[columns / 2], const uint32_t (&a)[4],
                                     uint64_t b_shared INFERC_SITE) {
    static_assert(columns % 8 == 0 && columns >= 8 && columns <= 256, "8, 16, .. 256 columns");
    emulation::issue_wgmma(d, a, columns, b_shared, true, site);
}
INFERC_INLINE uint64_t shared_descriptor(const void *pointer, uint32_t leading_bytes,
                                         uint32_t stride_bytes, Swizzle swizzle INFERC_SITE) {
    return emulation::describe_shared(pointer, leading_bytes, stride_bytes, uint32_t(swizzle),
                                      site);
}
#endif

#endif

}  // namespace inferc::ptx
