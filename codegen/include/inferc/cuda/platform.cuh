// What a kernel file of the CUDA target is written against. One file is built three times:
//
//   device     nvcc or NVRTC: the kernels            INFERC_DEVICE_CODE 1, INFERC_HOST_CODE 0
//   host       a C++ compiler, -DINFERC_HOST:        INFERC_DEVICE_CODE 0, INFERC_HOST_CODE 1
//              the launches; no CUDA header or library
//   emulation  a C++ compiler, -DINFERC_EMULATION:   both 1
//              kernels and launches, all on the CPU
//
// INFERC_SM is the compute capability times ten, a number in every build. Headers may hold device
// functions outside of `#if INFERC_DEVICE_CODE`: the host build compiles them and emits none.
#pragma once

#if defined(INFERC_EMULATION)
#define INFERC_DEVICE_CODE 1
#define INFERC_HOST_CODE 1
#elif defined(INFERC_HOST)
#define INFERC_DEVICE_CODE 0
#define INFERC_HOST_CODE 1
#elif defined(__CUDACC__)
#define INFERC_DEVICE_CODE 1
#define INFERC_HOST_CODE 0
#else
#error "build with nvcc or NVRTC, or define INFERC_HOST or INFERC_EMULATION"
#endif

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
#define INFINITY __int_as_float(0x7f800000)
#else
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#endif

#if defined(__CUDACC__)
#if defined(__CUDA_ARCH__) && !defined(INFERC_SM)
#define INFERC_SM (__CUDA_ARCH__ / 10)
#endif
#define INFERC_INLINE __device__ __forceinline__
#define INFERC_BOTH __host__ __device__ __forceinline__
#define INFERC_UNROLL _Pragma("unroll")
#define INFERC_UNROLL_BY_2 _Pragma("unroll 2")
#define INFERC_NO_UNROLL _Pragma("unroll 1")
// Dynamic shared memory. The swizzles of wgmma need its alignment there; it pads static memory too.
#if INFERC_SM == 90
extern __shared__ __align__(1024) unsigned char inferc_shared[];
#else
extern __shared__ __align__(128) unsigned char inferc_shared[];
#endif
#define INFERC_DYNAMIC_SHARED(T, name) T *name = reinterpret_cast<T *>(::inferc_shared)
// A place in a kernel, for messages: of interest to the emulation only.
#define INFERC_SITE
#define INFERC_SITE_ONLY
#define INFERC_PASS_SITE
#else
#define INFERC_INLINE inline
#define INFERC_BOTH inline __attribute__((always_inline))
// Registers are memory here, and compiling is most of what a test takes.
#define INFERC_UNROLL
#define INFERC_UNROLL_BY_2
#define INFERC_NO_UNROLL
#endif

#include "inferc/cuda/numbers.cuh"
#if !defined(__CUDACC__)
#include "inferc/cuda/emulation.h"
#endif
#include "inferc/cuda/warp.cuh"

#ifndef INFERC_SM
#define INFERC_SM 80
#endif

// INFERC_KERNEL(name, Args, threads[, blocks a multiprocessor]) { ... args ... }
// defines a kernel whose one argument is the struct `args`, passed by value. The number by which a
// launch names it is defined by the generated step: a kernel file declares it.
#if defined(__CUDACC__)
#define INFERC_KERNEL(name, Args, ...)                         \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) \
        name(const __grid_constant__ Args args)
#else
#define INFERC_FIRST(first, ...) first
#define INFERC_KERNEL(name, Args, ...)                                           \
    static void name##_body(const Args &args);                                   \
    extern "C" void name##_emulated(const void *args) {                          \
        ::inferc::emulation::check_threads(INFERC_FIRST(__VA_ARGS__, 0), #name); \
        name##_body(*static_cast<const Args *>(args));                           \
    }                                                                            \
    static void name##_body(const Args &args)
#define INFERC_KERNEL_ID(name) name##_id
#define INFERC_DECLARE_KERNEL(name) extern "C" const int32_t INFERC_KERNEL_ID(name)
#define INFERC_LAUNCH(name)                                                     \
    extern "C" void name##_launch([[maybe_unused]] const ::inferc::Step &step,  \
                                  [[maybe_unused]] int64_t rows,                \
                                  [[maybe_unused]] void *const *at)
#endif
