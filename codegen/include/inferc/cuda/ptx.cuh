// The instructions that CUDA C++ has no functions for: PTX on the device, emulated on the CPU.
// Shared memory is named by ordinary pointers.
#pragma once

#include "inferc/cuda/platform.cuh"

namespace inferc::ptx {

#if defined(__CUDACC__)

INFERC_INLINE uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// d += a b, m16n8k16. Lane (g = lane / 4, t = lane % 4): a holds rows g, g + 8, g, g + 8 and
// columns 2t.., 2t.., 2t + 8.., 2t + 8..; b holds column g, rows 2t.. and 2t + 8..; d holds rows g,
// g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1.
INFERC_INLINE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
INFERC_INLINE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Matrices of 8 x 8 16-bit elements: lane 8i + r gives the address of row r of matrix i, lane (g,
// t) gets elements 2t and 2t + 1 of row g of each; of column g where transposed.
INFERC_INLINE void ldmatrix_x4(uint32_t (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}
INFERC_INLINE void ldmatrix_x4_trans(uint32_t (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}
INFERC_INLINE void ldmatrix_x2(uint32_t (&out)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(shared_address(row))
                 : "memory");
}
INFERC_INLINE void ldmatrix_x2_trans(uint32_t (&out)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copies 16 bytes, both sides 16-byte aligned, past the L1 cache; zeros where not `valid` (then
// `global` must still be an address that may be formed).
INFERC_INLINE void cp_async16(void *shared, const void *global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}
INFERC_INLINE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All of this thread's groups but the `pending` last committed have landed; others see them behind
// a barrier.
template <int pending>
INFERC_INLINE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Read once: does not displace what is in the L1 cache. 16-byte aligned.
INFERC_INLINE uint4 load_stream16(const void *global) {
    uint4 out;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "l"(global));
    return out;
}

// Barrier `id`, 1 to 15 (__syncthreads is 0), of `threads` threads, whole warps: who syncs waits
// for those who sync or arrive.
INFERC_INLINE void barrier_sync(int id, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
INFERC_INLINE void barrier_arrive(int id, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Programmatic dependent launch: `wait` until the kernel ahead has ended; `launch` lets the next
// begin.
INFERC_INLINE void grid_dependency_wait() {
#if INFERC_SM >= 90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
INFERC_INLINE void grid_dependency_launch() {
#if INFERC_SM >= 90
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#else

INFERC_INLINE void mma_bf16(float (&d)[4], const uint32_t (&a)[4],
                            const uint32_t (&b)[2] INFERC_SITE) {
    emulation::multiply<bf16>(d, a, b, "mma_bf16", site);
}
INFERC_INLINE void mma_f16(float (&d)[4], const uint32_t (&a)[4],
                           const uint32_t (&b)[2] INFERC_SITE) {
    emulation::multiply<f16>(d, a, b, "mma_f16", site);
}
INFERC_INLINE void ldmatrix_x4(uint32_t (&out)[4], const void *row INFERC_SITE) {
    emulation::load_matrices<4, false>(out, row, "ldmatrix_x4", site);
}
INFERC_INLINE void ldmatrix_x4_trans(uint32_t (&out)[4], const void *row INFERC_SITE) {
    emulation::load_matrices<4, true>(out, row, "ldmatrix_x4_trans", site);
}
INFERC_INLINE void ldmatrix_x2(uint32_t (&out)[2], const void *row INFERC_SITE) {
    emulation::load_matrices<2, false>(out, row, "ldmatrix_x2", site);
}
INFERC_INLINE void ldmatrix_x2_trans(uint32_t (&out)[2], const void *row INFERC_SITE) {
    emulation::load_matrices<2, true>(out, row, "ldmatrix_x2_trans", site);
}
INFERC_INLINE void cp_async16(void *shared, const void *global, bool valid = true INFERC_SITE) {
    if ((uintptr_t(shared) | (valid ? uintptr_t(global) : 0)) % 16 != 0)
        emulation::fail(site, "cp_async16 of addresses that are not 16-byte aligned");
    emulation::issue_copy(shared, valid ? global : nullptr, 16);
}
INFERC_INLINE void cp_async_commit() { emulation::block.current->copies.group++; }
template <int pending>
INFERC_INLINE void cp_async_wait() {
    emulation::wait_for_copies(pending);
}
INFERC_INLINE uint4 load_stream16(const void *global INFERC_SITE) {
    if (uintptr_t(global) % 16 != 0)
        emulation::fail(site, "load_stream16 of an address that is not 16-byte aligned");
    uint4 out;
    memcpy(&out, global, 16);
    return out;
}
INFERC_INLINE void barrier_sync(int id, int threads INFERC_SITE) {
    emulation::arrive_at_barrier(id, uint32_t(threads), true, "barrier_sync", site);
}
INFERC_INLINE void barrier_arrive(int id, int threads INFERC_SITE) {
    emulation::arrive_at_barrier(id, uint32_t(threads), false, "barrier_arrive", site);
}
INFERC_INLINE void grid_dependency_wait() {
    emulation::release_withheld();
    emulation::block.waited_for_grid = true;
}
INFERC_INLINE void grid_dependency_launch() {}

#endif

}  // namespace inferc::ptx

#if INFERC_SM >= 90
#include "inferc/cuda/ptx_sm90.cuh"
#endif
