// Sixteen rows of sixteen numbers, turned the other way: only moves, every number stays as it is.
#pragma once

#include "simd.h"

namespace inferc {
inline namespace INFERC_ISA {

#if defined(INFERC_AVX512)
// Pairs of rows `step` apart trade the halves of their blocks of 2 * step columns.
template <int kStep>
INFERC_INLINE void trade_blocks(__m512 (&row)[16], __m512i low, __m512i high) {
    INFERC_EACH(i, 16) {
        if (i & kStep) continue;
        const __m512 a = row[i], b = row[i + kStep];
        row[i] = _mm512_permutex2var_ps(a, low, b);
        row[i + kStep] = _mm512_permutex2var_ps(a, high, b);
    }
}

template <int kStep>
INFERC_INLINE __m512i traded_columns(bool high) {
    alignas(64) int32_t index[16];
    for (int i = 0; i < 16; i++)
        index[i] = (i & kStep) ? 16 + (high ? i : i - kStep) : (high ? i + kStep : i);
    return _mm512_load_si512(index);
}

INFERC_INLINE void transpose16(f32x16 (&rows)[16]) {
    __m512 row[16];
    INFERC_EACH(i, 16) row[i] = rows[i].v;
    trade_blocks<8>(row, traded_columns<8>(false), traded_columns<8>(true));
    trade_blocks<4>(row, traded_columns<4>(false), traded_columns<4>(true));
    trade_blocks<2>(row, traded_columns<2>(false), traded_columns<2>(true));
    trade_blocks<1>(row, traded_columns<1>(false), traded_columns<1>(true));
    INFERC_EACH(i, 16) rows[i].v = row[i];
}
#else
INFERC_INLINE void transpose16(f32x16 (&rows)[16]) {
    float from[16][16], to[16][16];
    for (int i = 0; i < 16; i++) store(from[i], rows[i]);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) to[i][j] = from[j][i];
    for (int i = 0; i < 16; i++) rows[i] = load(to[i]);
}
#endif

// to[column][row] = from[row][column]: `rows` rows of `columns`, a multiple of 16, without gaps, to
// rows `stride` apart.
template <class T>
INFERC_NOINLINE void transpose_rows(const T *from, int64_t rows, int64_t columns, float *to,
                                    int64_t stride) {
    for (int64_t r = 0; r < rows; r += 16)
        for (int64_t c = 0; c < columns; c += 16) {
            const int count = int(min_of(16, rows - r));
            f32x16 block[16];
            INFERC_EACH(i, 16)
                block[i] = i < count ? load(from + (r + i) * columns + c) : zero();
            transpose16(block);
            float *at = to + c * stride + r;
            if (count == 16)
                INFERC_EACH(i, 16) store(at + i * stride, block[i]);
            else
                for (int i = 0; i < 16; i++) store(at + i * stride, block[i], count);
        }
}

}  // namespace INFERC_ISA
}  // namespace inferc
