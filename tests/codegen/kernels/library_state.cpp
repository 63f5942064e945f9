// Recurrent kernels behind plain C functions of one signature, for the tests.
#include "state.h"

using namespace inferc;

#define STATE_KERNEL(name, ...)                                                                     \
    extern "C" void name(float *pool, const int32_t *positions, const int32_t *starts,             \
                         const int32_t *slots, int sequences, const float *const *rows,            \
                         const int64_t *strides, const float *const *weights, float *out,          \
                         int worker, int workers) {                                                \
        const SequenceStates s = {pool, positions, starts, slots, sequences};                      \
        InputRows in[5] = {};                                                                      \
        for (int i = 0; i < 5; i++) in[i] = {rows[i], strides[i]};                                 \
        __VA_ARGS__(s, in, weights, out, worker, workers);                                         \
    }

STATE_KERNEL(conv_silu, causal_conv1d<37, 4, ConvActivation::silu>)
STATE_KERNEL(conv_bias, causal_conv1d<16, 3, ConvActivation::none>)
STATE_KERNEL(conv_one, causal_conv1d<5, 2, ConvActivation::none>)
STATE_KERNEL(selective, selective_scan<37, 5>)
STATE_KERNEL(selective_wide, selective_scan<48, 16>)
STATE_KERNEL(ssd_odd, ssd_scan<4, 24, 2, 5>)
STATE_KERNEL(ssd_wide, ssd_scan<2, 64, 1, 16>)
STATE_KERNEL(ssd_own, ssd_scan<3, 32, 3, 7>)
STATE_KERNEL(delta_head, gated_delta_rule<4, 2, 5, 24, 1>)
STATE_KERNEL(delta_key, gated_delta_rule<4, 4, 20, 32, 20>)
STATE_KERNEL(delta_wide, gated_delta_rule<2, 1, 16, 64, 1>)
STATE_KERNEL(linear, linear_scan<37>)
