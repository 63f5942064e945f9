// Selection within one row, for routers: the largest elements, elements by index, replacement by
// index. Plain loops; rows are short.
#pragma once

#include <stdint.h>
#include <string.h>

#include "simd.h"

namespace inferc {
inline namespace INFERC_ISA {

template <class T>
INFERC_INLINE T lesser_of(T a, T b) {
    return b < a ? b : a;
}
template <class T>
INFERC_INLINE T greater_of(T a, T b) {
    return a < b ? b : a;
}

// The k largest of x[n] in descending order; of equal ones the first comes first. Indices are
// always within the row, also where elements are no numbers: they rank below all others.
template <class T>
INFERC_INLINE void topk_row(const T *x, int n, int k, T *values, int64_t *indices) {
    int last = -1;
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            const bool after = last < 0 || x[i] < x[last] || (x[i] == x[last] && i > last);
            if (after && x[i] == x[i] && (best < 0 || x[best] < x[i])) best = i;
        }
        if (best < 0) best = j;
        values[j] = x[best];
        indices[j] = best;
        last = best;
    }
}

template <class T, class Index>
INFERC_INLINE void take_row(const T *x, const Index *indices, int, int k, T *out) {
    for (int j = 0; j < k; j++) out[j] = x[indices[j]];
}

template <class T, class Index>
INFERC_INLINE void put_row(const T *x, const Index *indices, const T *values, int n, int k,
                           T *out) {
    memcpy(out, x, size_t(n) * sizeof(T));
    for (int j = 0; j < k; j++) out[indices[j]] = values[j];
}

}  // namespace INFERC_ISA
}  // namespace inferc
