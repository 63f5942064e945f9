/* The C interface of a generated step library for CUDA. It launches kernels and needs no CUDA to be
 * built or loaded: whoever runs a step gives it a function that launches. */
#pragma once

#include "inferc/step_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INFERC_CUDA_ABI_VERSION 1

enum { INFERC_LAUNCH_DEPENDENT = 1 }; /* may begin before the kernel ahead of it has ended */

typedef struct inferc_launch_config {
    uint32_t grid[3];      /* blocks */
    uint32_t threads;      /* of a block */
    uint32_t shared_bytes; /* dynamic shared memory of a block */
    uint32_t cluster;      /* blocks of a cluster along grid[0]; 0 or 1: none */
    uint32_t flags;
} inferc_launch_config;

/* Launches kernel number `kernel` (of inferc_cuda_kernel_name) with its one argument, a struct of
 * `args_bytes`, behind all that was launched before. Not 0: it could not, the step ends. */
typedef int32_t inferc_launch(void *context, int32_t kernel, const inferc_launch_config *config,
                              const void *args, uint64_t args_bytes);

typedef struct inferc_cuda_context {
    inferc_launch *launch;
    void *launch_context;
    void *scratch;           /* device memory, inferc_cuda_scratch_bytes, 256-byte aligned */
    int32_t sm;              /* compute capability times ten, of the cubins in use */
    int32_t multiprocessors;
    int32_t longest_context; /* at least every context length of the step */
} inferc_cuda_context;

enum { INFERC_LAUNCH_FAILED = 7, INFERC_CONTEXT_TOO_LONG = 8 }; /* besides those of step_abi.h */

/* Arguments are those of step_abi.h with device pointers; the arrays `weights`, `caches` and
 * `states` themselves are in host memory. profile_ns and greedy_ids are not read. */
INFERC_EXPORT int32_t inferc_cuda_prefill(const inferc_cuda_context *cuda,
                                          const inferc_step_args *args);
INFERC_EXPORT int32_t inferc_cuda_decode(const inferc_cuda_context *cuda,
                                         const inferc_step_args *args);
INFERC_EXPORT int32_t inferc_cuda_kernel_count(void);
INFERC_EXPORT const char *inferc_cuda_kernel_name(int32_t kernel); /* as in the cubins */
INFERC_EXPORT const char *inferc_cuda_unit_name(int32_t kernel);   /* the cubin it is in */
INFERC_EXPORT uint64_t inferc_cuda_scratch_bytes(void);
INFERC_EXPORT int32_t inferc_cuda_abi_version(void); /* INFERC_CUDA_ABI_VERSION */

#ifdef __cplusplus
}
#endif
