// What kernels of the emulation's tests take: see emulated_kernels.py.
#pragma once

#include "inferc/cuda/ptx.cuh"

using namespace inferc;

struct TestArgs {
    const void *in[3];
    void *out;
    int32_t n;
};

template <class T>
INFERC_INLINE const T *input(const TestArgs &args, int i) {
    return static_cast<const T *>(args.in[i]);
}

INFERC_INLINE int lane() { return int(threadIdx.x % 32); }
