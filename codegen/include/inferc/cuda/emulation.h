// CUDA kernels on the CPU, so that their sources can be tested where there is no GPU. A thread is a
// fiber; the blocks of a grid run one after another on the thread that launches; what a warp or a
// block does together happens when its last thread arrives. What a program may not rely on is made
// to go wrong where a test can see it: threads run in several orders, copies land as late or as
// early as they may, shared memory holds garbage, and threads that disagree end the launch with a
// message.
//
// Included by platform.cuh. The host build includes it too, for the names: none of it is emitted.
// Build with -fno-strict-aliasing: kernels read and write memory in units of uint4. With
// -fsanitize=alignment,bounds,shift-exponent such faults end a launch with a message; with
// -fsanitize=address the process ends at any access beyond an array, with its place in the kernel.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(INFERC_EMULATION)
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#ifndef INFERC_SM
#define INFERC_SM 80
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define __constant__ static const
// One block runs at a time, so its static shared memory can be any static memory.
#define __shared__ static

struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

// Several step libraries may be loaded by one process: each has its own state.
#pragma GCC visibility push(hidden)
// Tests build with little optimisation; matrix products and switches between threads are worth
// more.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif
#include "inferc/cuda/emulation_state.h"
#include "inferc/cuda/emulation_switch.h"
#include "inferc/cuda/emulation_fibers.h"

#define INFERC_SITE \
    , ::inferc::emulation::Site site = ::inferc::emulation::Site::here()
#define INFERC_SITE_FIRST ::inferc::emulation::Site site = ::inferc::emulation::Site::here()
#define INFERC_SITE_ONLY site
#define INFERC_PASS_SITE , site
#define INFERC_DYNAMIC_SHARED(T, name) \
    T *name = reinterpret_cast<T *>(::inferc::emulation::shared_memory.bytes)

#define threadIdx (::inferc::emulation::block.current->thread)
#define blockIdx (::inferc::emulation::block.index)
#define blockDim (::inferc::emulation::block.threads)
#define gridDim (::inferc::emulation::block.grid)

#include "inferc/cuda/emulation_warp.h"
#include "inferc/cuda/emulation_memory.h"
#include "inferc/cuda/emulation_mbarrier.h"
#include "inferc/cuda/emulation_matrix.h"
#include "inferc/cuda/emulation_wgmma.h"
#include "inferc/cuda/emulation_intrinsics.h"
#if defined(INFERC_EMULATION)
#include "inferc/cuda/emulation_checks.h"
#include "inferc/cuda/emulation_statics.h"
#include "inferc/cuda/emulation_launch.h"
#endif
#if !defined(__clang__)
#pragma GCC pop_options
#endif
#pragma GCC visibility pop
