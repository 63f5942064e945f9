// Packed weights as fragments of mma m16n8k16: the operand A, 16 rows of a tile by 16 k.
//
// Row g of the matrix instruction is row 2g of the tile, row g + 8 is row 2g + 1, so that a lane
// (g = lane / 4, t = lane % 4) owns two neighbouring rows and reads both at once. Of 16 k it takes
// 4t .. 4t + 3, in the order that suits the format; activations come in the same order. What order
// the instruction thinks the k are in does not matter.
//
// Fragments are exact: integers and short floats as one bf16, others as a sum of bf16 terms, the
// largest first. What a fragment holds times the scale of its group is the weight.
#pragma once

#include "inferc/cuda/weights_lanes.cuh"
#include "inferc/weights_groups.h"
#include "inferc/weights_k.h"

namespace inferc {
inline namespace INFERC_ISA {

// Dense formats, see weights.h.
struct F32 {
    static constexpr int step_bytes = 2 * 16 * 4;
};
struct F16 {
    static constexpr int step_bytes = 2 * 16 * 2;
};
struct BF16 {
    static constexpr int step_bytes = 2 * 16 * 2;
};
struct F8E4M3 {
    static constexpr int step_bytes = 2 * 16;
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

template <class W>
constexpr bool kDense = kSame<W, F32> || kSame<W, F16> || kSame<W, BF16> || kSame<W, F8E4M3>;

// The order of a lane's four k: 0, 1 | 2, 3 or 0, 2 | 1, 3 (bytes of a word, two at a time), or by
// pairs, of which lanes of odd t take the second first, so that shared memory is read without
// conflicts that need not be.
enum class Order { kNatural, kBytes, kPairs };

constexpr uint32_t kOnes = 0x3f803f80u, kMinusZeros = 0x80008000u;

// a b + c of two bf16 each, rounded once.
INFERC_INLINE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDACC__)
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    return pack_bf16(low_bf16(a) * low_bf16(b) + low_bf16(c),
                     high_bf16(a) * high_bf16(b) + high_bf16(c));
#endif
}

// a + c of two bf16 each.
INFERC_INLINE uint32_t add_bf16x2(uint32_t a, uint32_t c) {
#if defined(__CUDACC__) && INFERC_SM >= 90
    uint32_t d;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(c));
    return d;
#else
    return fma_bf16x2(a, kOnes, c);
#endif
}

// Two floats as a sum of pairs of bf16, the largest first; three make it exact.
template <int terms>
INFERC_INLINE void split_bf16(float low, float high, uint32_t (&out)[terms]) {
    INFERC_EACH_OF for (int i = 0; i < terms; i++) {
        out[i] = pack_bf16(low, high);
        low -= low_bf16(out[i]);
        high -= high_bf16(out[i]);
    }
}

// Four times 0x43, in a register: as a constant it would be an operand of the instruction itself,
// and what selects bytes would have to be moved to a register each time.
INFERC_INLINE uint32_t raising_bytes() {
    uint32_t lane = 0;
#if defined(__CUDACC__)
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
#endif
    return 0x43434343u + (lane >> 5);
}

// Bytes 0 and 2 of a word (or 1 and 3: `upper`) as two bf16. Signed bytes; or such below 128, of
// which `offset` is taken off.
template <int offset, bool has_sign, bool upper>
INFERC_INLINE uint32_t bytes_to_bf16(uint32_t word) {
    if constexpr (has_sign) {
        // 128 + the low seven bits; less 128, or less 256 where the sign is set.
        if (upper) word >>= 8;
        return add_bf16x2((word & 0x007f007fu) | 0x43004300u,
                          (word & 0x00800080u) | 0xc300c300u);
    } else {
        // 128 + the byte; up to 256 a bf16 counts by ones.
        constexpr uint32_t less = 0xc300u + offset;
        return add_bf16x2(__byte_perm(word, raising_bytes(), upper ? 0x4341 : 0x4240),
                          less << 16 | less);
    }
}

// f8e4m3 in bits 0-7 and 16-23 (low), or 8-15 and 24-31: exponents are 120 less than a bf16's.
template <bool upper>
INFERC_INLINE uint32_t f8_to_bf16(uint32_t word) {
    const uint32_t bits = upper ? (word & 0x80008000u) | ((word >> 4) & 0x07f007f0u)
                                : ((word & 0x00800080u) << 8) | ((word & 0x007f007fu) << 4);
    return fma_bf16x2(bits, 0x7b807b80u, kMinusZeros);
}

// Twice the e2m1 in bits 0-3 and 16-19: exponents are 126 less than a bf16's.
INFERC_INLINE uint32_t doubled_e2m1_to_bf16(uint32_t word) {
    const uint32_t bits = ((word & 0x00080008u) << 12) | ((word & 0x00070007u) << 6);
    return fma_bf16x2(bits, 0x7f007f00u, kMinusZeros);
}

struct Floats16 {
    float of[16];
};
INFERC_BOTH constexpr Floats16 copied(const float (&table)[16]) {
    Floats16 out = {};
    for (int i = 0; i < 16; i++) out.of[i] = table[i];
    return out;
}
#if defined(__CUDACC__)
#define INFERC_TABLE static __device__ const
#else
#define INFERC_TABLE static const
#endif
INFERC_TABLE Floats16 kTableNF4 = copied(NF4Table::of);
INFERC_TABLE Floats16 kTableFP4 = copied(FP4Table::of);

template <class W>
constexpr bool kTable = kSame<W, NF4_G64> || kSame<W, FP4_G64>;

// ---- formats

// `x_terms`: bf16 terms of an activation, 1 or 3. With one, rounding x leaves nothing to be won by
// a third term of a table's values.
template <class W, int x_terms>
struct Format {
    static constexpr bool dense = kDense<W>;
    static constexpr bool scaled = !dense && !kSame<W, I8>;
    static constexpr int terms = kSame<W, F32> ? 3 : kTable<W> ? (x_terms == 1 ? 2 : 3)
                                                               : kSame<W, F16> ? 2 : 1;
    static constexpr Order order = kSame<W, BF16> ? Order::kPairs
                                   : dense || kTable<W> || kSame<W, F8_G128> ? Order::kNatural
                                                                             : Order::kBytes;
};

// k and bytes of a record. A dense record is 32 k; the last of a tile may be shorter.
template <class W>
INFERC_BOTH constexpr int record_k() {
    if constexpr (kDense<W>)
        return 32;
    else
        return W::block;
}
template <class W>
INFERC_BOTH constexpr int record_bytes() {
    if constexpr (kDense<W>)
        return 16 * W::step_bytes;
    else
        return int(W::record_bytes);
}
template <class W>
INFERC_BOTH constexpr int64_t packed_tile_bytes(int64_t k) {
    if constexpr (kDense<W>)
        return (k + 1) / 2 * W::step_bytes;
    else
        return (k + W::block - 1) / W::block * W::record_bytes;
}
template <class W>
INFERC_BOTH constexpr int group_k() {
    if constexpr (kDense<W>)
        return 32;
    else
        return W::group;
}
// Whether all groups of a record have the scale of the record.
template <class W>
INFERC_BOTH constexpr bool one_scale() {
    return !kDense<W> && group_k<W>() == 32 && record_k<W>() <= 128;
}
template <class W>
INFERC_BOTH constexpr bool has_minimum() {
    if constexpr (kDense<W>)
        return false;
    else
        return W::has_min;
}

template <int terms>
using Fragment = uint32_t[terms][4];

// Four floats of each of two rows, at k 4t .. 4t + 3, as a fragment in natural order.
template <int terms>
INFERC_INLINE void split_fragment(const RowFloats (&w)[4], Fragment<terms> &a) {
    INFERC_EACH_OF for (int half = 0; half < 2; half++) {
        uint32_t low[terms], high[terms];
        split_bf16(w[2 * half].low, w[2 * half + 1].low, low);
        split_bf16(w[2 * half].high, w[2 * half + 1].high, high);
        INFERC_EACH_OF for (int i = 0; i < terms; i++) {
            a[i][2 * half] = low[i];
            a[i][2 * half + 1] = high[i];
        }
    }
}

// Bytes of rows `pair`, one k in 16 bytes: four k as a fragment in natural order.
INFERC_INLINE void f8_fragment(const uint8_t *at, int pair, Fragment<1> &a) {
    INFERC_EACH_OF for (int half = 0; half < 2; half++) {
        const uint32_t first = *reinterpret_cast<const uint16_t *>(at + 32 * half + 2 * pair);
        const uint32_t second = *reinterpret_cast<const uint16_t *>(at + 32 * half + 16 + 2 * pair);
        const uint32_t both = first | second << 16;
        a[0][2 * half] = f8_to_bf16<false>(both);
        a[0][2 * half + 1] = f8_to_bf16<true>(both);
    }
}

template <class W, int terms>
INFERC_INLINE void dense_fragment(const uint8_t *at, int step, int pair, int t,
                                  Fragment<terms> &a) {
    at += step * 8 * W::step_bytes;
    if constexpr (kSame<W, BF16>) {
        INFERC_EACH_OF for (int half = 0; half < 2; half++) {
            const RowWords words = RowPair{pair}.u32(at + 64 * (2 * t + (half ^ (t & 1))));
            a[0][2 * half] = words.low;
            a[0][2 * half + 1] = words.high;
        }
    } else if constexpr (kSame<W, F8E4M3>) {
        f8_fragment(at + 64 * t, pair, a);
    } else {
        RowFloats w[4];
        INFERC_EACH_OF for (int i = 0; i < 4; i++) {
            if constexpr (kSame<W, F16>)
                w[i] = RowPair{pair}.half(at + 32 * (4 * t + i));
            else
                w[i] = RowPair{pair}.f32(at + 64 * (4 * t + i));
        }
        split_fragment(w, a);
    }
}

template <class W, int terms>
INFERC_INLINE void table_fragment(const uint8_t *record, int group, int v, int pair,
                                  Fragment<terms> &a) {
    const uint8_t *words = record + FloatScale::bytes + group * W::group_bytes;
    const RowWords codes = nibble_quad(RowPair{pair}, words, v);
    const float *table = kSame<W, NF4_G64> ? kTableNF4.of : kTableFP4.of;
    RowFloats w[4];
    INFERC_EACH_OF for (int i = 0; i < 4; i++)
        w[i] = {table[codes.low >> 8 * i & 15], table[codes.high >> 8 * i & 15]};
    split_fragment(w, a);
}

// Quad `v` of a group of a record.
template <class W, int terms>
INFERC_INLINE void block_fragment(const uint8_t *record, int group, int v, int pair,
                                  Fragment<terms> &a) {
    if constexpr (kTable<W>) {
        table_fragment<W>(record, group, v, pair, a);
    } else if constexpr (kSame<W, F8_G128>) {
        f8_fragment(record + FloatScale::bytes + group * W::group_bytes + 64 * v, pair, a);
    } else if constexpr (kSame<W, MXFP4>) {
        const RowWords q = nibble_quad(RowPair{pair}, record + HalfPowerScale::bytes, v);
        a[0][0] = doubled_e2m1_to_bf16(q.low);
        a[0][1] = doubled_e2m1_to_bf16(q.high);
        a[0][2] = doubled_e2m1_to_bf16(q.low >> 8);
        a[0][3] = doubled_e2m1_to_bf16(q.high >> 8);
    } else {
        const RowWords q = W::quad(RowPair{pair}, record, group, v);
        constexpr int offset = W::stored_signed ? 0 : W::offset;
        a[0][0] = bytes_to_bf16<offset, W::stored_signed, false>(q.low);
        a[0][1] = bytes_to_bf16<offset, W::stored_signed, false>(q.high);
        a[0][2] = bytes_to_bf16<offset, W::stored_signed, true>(q.low);
        a[0][3] = bytes_to_bf16<offset, W::stored_signed, true>(q.high);
    }
}

// k 32 unit + 16 step .. + 15 of a record.
template <class W, int terms>
INFERC_INLINE void load_fragment(const uint8_t *record, int unit, int step, int lane,
                                 Fragment<terms> &a) {
    const int pair = lane / 4, t = lane % 4;
    if constexpr (kDense<W>)
        dense_fragment<W>(record, step, pair, t, a);
    else if constexpr (group_k<W>() == 16)
        block_fragment<W>(record, 2 * unit + step, t, pair, a);
    else
        block_fragment<W>(record, unit, 4 * step + t, pair, a);
}

}  // namespace INFERC_ISA
}  // namespace inferc
