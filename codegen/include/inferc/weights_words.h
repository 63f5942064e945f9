// Arithmetic on packed words that readers of weights use for one row at a time. Included behind the
// header that names the machine: simd.h, or cuda/platform.cuh.
#pragma once

namespace inferc {
inline namespace INFERC_ISA {

INFERC_INLINE float to_f32(uint32_t a) { return float(int32_t(a)); }
INFERC_INLINE float bitcast_f(uint32_t a) { return bits_to_float(a); }

// Byte `i` of each lane, zero extended.
template <class Int>
INFERC_INLINE Int byte_of(Int a, int i, Int mask) {
    return (a >> (8 * i)) & mask;
}

// Moves bit `from` to bit `to`.
template <class Int>
INFERC_INLINE Int shift_bits(Int a, int from, int to) {
    return from <= to ? a << (to - from) : a >> (from - to);
}

}  // namespace INFERC_ISA
}  // namespace inferc
