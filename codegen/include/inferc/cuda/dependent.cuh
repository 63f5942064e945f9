// How a kernel begins that is launched with INFERC_LAUNCH_DEPENDENT.
#pragma once

#include "inferc/cuda/ptx.cuh"

namespace inferc {

// Stands before the first access to what other kernels read or write: parameters alone may be read
// earlier. The kernel behind may get ready from here on, and waits in its turn.
INFERC_INLINE void begin_dependent() {
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
}

}  // namespace inferc
