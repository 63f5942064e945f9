// Rows of a table by number, from a table as stored or as packed for matrix products (n16).
#pragma once

#include "inferc/cuda/dependent.cuh"
#include "inferc/cuda/math.cuh"
#include "inferc/cuda/weights.cuh"

namespace inferc {

constexpr int kEmbeddingThreads = 128;
constexpr int kEmbeddingColumns = 4;  // of a thread

// Columns `first` .. `first` + 3 of a row; those from `width` on are zero.
template <class T, int width>
struct StoredTable {
    static INFERC_INLINE void read(const void *table, int32_t id, int first, float (&out)[4]) {
        const T *from = static_cast<const T *>(table) + int64_t(id) * width + first;
        if constexpr (width % 4 == 0) {
            struct alignas(4 * sizeof(T)) Four {
                T of[4];
            };
            const Four four = *reinterpret_cast<const Four *>(from);
            INFERC_UNROLL for (int i = 0; i < 4; i++) out[i] = to_float(four.of[i]);
        } else {
            INFERC_UNROLL for (int i = 0; i < 4; i++)
                out[i] = first + i < width ? to_float(from[i]) : 0.0f;
        }
    }
};

// One row of a tile, for the readers of packed formats.
struct RowOfTile {
    typedef float Float;
    typedef uint32_t Int;
    int row;
    INFERC_INLINE Int u32(const uint8_t *p) const {
        return *reinterpret_cast<const uint32_t *>(p + 4 * row);
    }
    INFERC_INLINE Int u16(const uint8_t *p) const {
        return *reinterpret_cast<const uint16_t *>(p + 2 * row);
    }
    INFERC_INLINE Int u8(const uint8_t *p) const { return p[row]; }
    INFERC_INLINE Float f32(const uint8_t *p) const { return bits_to_float(u32(p)); }
    INFERC_INLINE Float half(const uint8_t *p) const { return to_float(f16{uint16_t(u16(p))}); }
    INFERC_INLINE Float bhalf(const uint8_t *p) const { return to_float(bf16{uint16_t(u16(p))}); }
    INFERC_INLINE Int splat(uint32_t x) const { return x; }
};

// k and k + 1 are a step of a dense tile.
template <class W>
INFERC_INLINE float dense_element(const uint8_t *step, RowOfTile row, int odd) {
    if constexpr (kSame<W, F32>)
        return row.f32(step + 64 * odd);
    else if constexpr (kSame<W, F16>)
        return row.half(step + 32 * odd);
    else if constexpr (kSame<W, BF16>)
        return to_float(reinterpret_cast<const bf16 *>(step)[2 * row.row + odd]);
    else
        return to_float(f8e4m3{step[16 * odd + row.row]});
}

// Twice an e2m1.
INFERC_INLINE float doubled_e2m1(uint32_t code) {
    const uint32_t exponent = (code >> 1) & 3, mantissa = code & 1;
    const uint32_t magnitude = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
    return code & 8 ? -float(magnitude) : float(magnitude);
}

// Quad `v` of a group of a record, less scale and minimum.
template <class W>
INFERC_INLINE void block_quad(const uint8_t *record, RowOfTile row, int group, int v,
                              float (&out)[4]) {
    if constexpr (kSame<W, F8_G128>) {
        const uint8_t *at = record + FloatScale::bytes + group * W::group_bytes + 64 * v;
        INFERC_UNROLL for (int i = 0; i < 4; i++) out[i] = to_float(f8e4m3{uint8_t(row.u8(at + 16 * i))});
    } else if constexpr (kTable<W> || kSame<W, MXFP4>) {
        constexpr int64_t scale_bytes = kTable<W> ? FloatScale::bytes : HalfPowerScale::bytes;
        const uint32_t codes =
            nibble_quad(row, record + scale_bytes + group * W::group_bytes, v);
        const float *table = kSame<W, NF4_G64> ? kTableNF4.of : kTableFP4.of;
        INFERC_UNROLL for (int i = 0; i < 4; i++) {
            const uint32_t code = codes >> 8 * i & 15;
            out[i] = kTable<W> ? table[code] : doubled_e2m1(code);
        }
    } else {
        const uint32_t quad = W::quad(row, record, group, v);
        constexpr int offset = W::stored_signed ? 0 : W::offset;
        INFERC_UNROLL for (int i = 0; i < 4; i++) {
            const uint32_t byte = quad >> 8 * i & 0xffu;
            out[i] = float(W::stored_signed ? int(int8_t(byte)) : int(byte) - offset);
        }
    }
}

// As the formats define them: scale * integer, then + minimum.
template <class W, int width>
struct PackedTable {
    static INFERC_INLINE void read(const void *table, int32_t id, int first, float (&out)[4]) {
        const RowOfTile row = {id % 16};
        const uint8_t *tile =
            static_cast<const uint8_t *>(table) + int64_t(id) / 16 * packed_tile_bytes<W>(width);
        if constexpr (kDense<W>) {
            INFERC_UNROLL for (int i = 0; i < 4; i++) {
                const uint8_t *step = tile + int64_t(first + i) / 2 * W::step_bytes;
                out[i] = first + i < width ? dense_element<W>(step, row, i % 2) : 0.0f;
            }
        } else {
            constexpr int kGroups = W::block / W::group;
            const uint8_t *record = tile + int64_t(first) / W::block * W::record_bytes;
            const int group = first % W::block / W::group, v = first % W::group / 4;
            float scales[kGroups], minima[kGroups], scale = 0.0f, minimum = 0.0f;
            W::scales(row, record, scales, minima);
            // Arrays that are indexed by what is not known when compiling would not be registers.
            INFERC_UNROLL for (int g = 0; g < kGroups; g++) {
                if (g != group) continue;
                scale = scales[g];
                if constexpr (W::has_min) minimum = minima[g];
            }
            block_quad<W>(record, row, group, v, out);
            INFERC_UNROLL for (int i = 0; i < 4; i++) {
                out[i] = scale * out[i];
                if constexpr (W::has_min) out[i] = out[i] + minimum;
            }
        }
    }
};

}  // namespace inferc
