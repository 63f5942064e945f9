// Launches on a GPU: an inferc_launch over the driver's cuLaunchKernelEx, given as a pointer, so that
// a step library has neither CUDA headers nor libraries. Included once, by the step.
//
// The few structures of the driver's interface are declared here; a test compares them with cuda.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "inferc/cuda/step_abi.h"

extern "C" {

// CUlaunchAttribute: the value is a union of 64 bytes.
typedef struct inferc_cu_attribute {
    int32_t id;
    int32_t padding;
    union {
        uint32_t cluster[3];
        int32_t enabled;
        uint64_t bytes[8];
    } value;
} inferc_cu_attribute;

// CUlaunchConfig.
typedef struct inferc_cu_config {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    void *stream;
    inferc_cu_attribute *attributes;
    uint32_t attribute_count;
} inferc_cu_config;

enum {
    INFERC_CU_CLUSTER_DIMENSION = 4,       // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    INFERC_CU_PROGRAMMATIC_DEPENDENCE = 6  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
};

typedef int32_t inferc_cu_launch_kernel(const inferc_cu_config *config, void *function,
                                        void **arguments, void **extra);
typedef int32_t inferc_cu_stream_synchronize(void *stream);

// What inferc_cuda_driver_launch takes as its context; the caller fills it.
typedef struct inferc_cuda_driver_context {
    inferc_cu_launch_kernel *launch_kernel;     // cuLaunchKernelEx
    inferc_cu_stream_synchronize *synchronize;  // cuStreamSynchronize: after each launch; or NULL
    void *stream;
    void *const *functions;  // CUfunction of each kernel, in order of inferc_cuda_kernel_name
    uint32_t allowed_flags;  // of inferc_launch_config.flags; others are ignored
    int32_t failed_kernel;   // -1, or the kernel whose launch failed first, and the CUresult
    int32_t error;
} inferc_cuda_driver_context;

INFERC_EXPORT int32_t inferc_cuda_driver_launch(void *context, int32_t kernel,
                                                const inferc_launch_config *config,
                                                const void *args, uint64_t args_bytes) {
    inferc_cuda_driver_context *driver = static_cast<inferc_cuda_driver_context *>(context);
    inferc_cu_attribute attributes[2] = {};
    inferc_cu_config launch = {{config->grid[0], config->grid[1], config->grid[2]},
                               {config->threads, 1, 1},
                               config->shared_bytes,
                               driver->stream,
                               attributes,
                               0};
    if (config->cluster > 1) {
        inferc_cu_attribute &cluster = attributes[launch.attribute_count++];
        cluster.id = INFERC_CU_CLUSTER_DIMENSION;
        cluster.value.cluster[0] = config->cluster;
        cluster.value.cluster[1] = cluster.value.cluster[2] = 1;
    }
    if (config->flags & driver->allowed_flags & INFERC_LAUNCH_DEPENDENT) {
        inferc_cu_attribute &dependence = attributes[launch.attribute_count++];
        dependence.id = INFERC_CU_PROGRAMMATIC_DEPENDENCE;
        dependence.value.enabled = 1;
    }
    void *arguments[] = {const_cast<void *>(args)};
    (void)args_bytes;
    int32_t error = driver->launch_kernel(&launch, driver->functions[kernel], arguments, nullptr);
    if (error == 0 && driver->synchronize != nullptr) error = driver->synchronize(driver->stream);
    if (error != 0 && driver->failed_kernel < 0) {
        driver->failed_kernel = kernel;
        driver->error = error;
    }
    return error;
}
}
