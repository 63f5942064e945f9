// What the launching half of a generated kernel file gets: the step, and a way to launch.
#pragma once

#include "inferc/cuda/platform.cuh"

#if INFERC_HOST_CODE

#include "inferc/cuda/step_abi.h"

namespace inferc {

struct Grid {
    uint32_t x = 1, y = 1, z = 1;
};

// One step as its launches see it. After a launch that failed, `launch` does nothing.
struct Step {
    const inferc_step_args *args;
    const inferc_cuda_context *cuda;
    mutable int32_t status = INFERC_OK;

    // Memory that all launches of a step share: what a launch leaves there is gone with the next
    // kernel file.
    void *scratch() const { return cuda->scratch; }

    template <class Args>
    void launch(int32_t kernel, Grid grid, uint32_t threads, uint32_t shared_bytes,
                const Args &kernel_args, uint32_t cluster = 1, uint32_t flags = 0) const {
        static_assert(sizeof(Args) <= 4096, "kernel arguments are limited to 4 KB");
        if (status != INFERC_OK || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
        const inferc_launch_config config = {
            {grid.x, grid.y, grid.z}, threads, shared_bytes, cluster, flags};
        if (cuda->launch(cuda->launch_context, kernel, &config, &kernel_args, sizeof(Args)) != 0)
            status = INFERC_LAUNCH_FAILED;
    }
};

// Blocks for `count` items of which a block does `each`.
inline Grid grid_1d(int64_t count, int64_t each) { return {uint32_t((count + each - 1) / each), 1, 1}; }

}  // namespace inferc

#endif
