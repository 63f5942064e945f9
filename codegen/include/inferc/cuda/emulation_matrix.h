// ldmatrix and mma.sync: the last lane to arrive computes for its warp. How the elements of a
// matrix lie in the registers of the lanes is PTX's, with g = lane / 4 and t = lane % 4.
#pragma once

namespace inferc::emulation {

// Eight floats, and sum += scale * values: vectors of the compiler, since tests are built with -O1.
typedef float Float8 __attribute__((vector_size(32), aligned(4), may_alias));
inline void add_scaled8(float *sum, float scale, const float *values) {
    *reinterpret_cast<Float8 *>(sum) += scale * *reinterpret_cast<const Float8 *>(values);
}

struct MatrixLoad {
    const void *row;  // 16 bytes; lane 8i + r has row r of matrix i
    uint32_t *out;
};

// `count` matrices of 8 x 8 16-bit elements: lane (g, t) gets elements 2t and 2t + 1 of row g, or
// of column g where `transposed`.
template <int count, bool transposed>
inline void load_matrices(uint32_t *out, const void *row, const char *what, Site site) {
    MatrixLoad operand = {row, out};
    whole_warp_operation(operand, what, site, [=](Warp &warp, uint32_t) {
        for (int matrix = 0; matrix < count; matrix++) {
            uint16_t rows[8][8];
            for (int r = 0; r < 8; r++) {
                const void *from = static_cast<MatrixLoad *>(warp.operands[matrix * 8 + r])->row;
                if (uintptr_t(from) % 16 != 0)
                    fail(site, "%s of a row that is not 16-byte aligned", what);
                memcpy(rows[r], from, 16);
            }
            for (int lane = 0; lane < kWarpLanes; lane++) {
                int g = lane / 4, t = lane % 4;
                uint32_t low = transposed ? rows[2 * t][g] : rows[g][2 * t];
                uint32_t high = transposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
                static_cast<MatrixLoad *>(warp.operands[lane])->out[matrix] = low | high << 16;
            }
        }
    });
}

// The 16 x 16 A of m16n8k16 and m64nNk16 (there a warp's 16 rows): register 2h + i of lane (g, t)
// holds row g + 8i, columns 2t + 8h and 2t + 8h + 1.
template <class Element>
inline void unpack_a(float (&a)[16][16], int lane, const uint32_t *registers) {
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++)
            a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] =
                to_float(Element{uint16_t(registers[i] >> 16 * half)});
}

struct MatrixProduct {
    float *d;           // 4: rows g and g + 8, columns 2t and 2t + 1
    const uint32_t *a;  // 4
    const uint32_t *b;  // 2: column g, rows 2t, 2t + 1 and 2t + 8, 2t + 9
};

// d += a b, m16n8k16: products are exact, their sum is rounded as floats are added in order of k.
template <class Element>
inline void multiply(float *d, const uint32_t *a, const uint32_t *b, const char *what, Site site) {
    MatrixProduct operand = {d, a, b};
    whole_warp_operation(operand, what, site, [](Warp &warp, uint32_t) {
        float left[16][16], right[16][8], sum[16][8];
        for (int lane = 0; lane < kWarpLanes; lane++) {
            auto &mine = *static_cast<MatrixProduct *>(warp.operands[lane]);
            int g = lane / 4, t = lane % 4;
            unpack_a<Element>(left, lane, mine.a);
            for (int i = 0; i < 2; i++)
                for (int half = 0; half < 2; half++)
                    right[2 * t + 8 * i + half][g] =
                        to_float(Element{uint16_t(mine.b[i] >> 16 * half)});
            for (int i = 0; i < 4; i++) sum[g + i / 2 * 8][2 * t + i % 2] = mine.d[i];
        }
        for (int row = 0; row < 16; row++)
            for (int k = 0; k < 16; k++)
                add_scaled8(sum[row], left[row][k], right[k]);
        for (int lane = 0; lane < kWarpLanes; lane++) {
            auto &mine = *static_cast<MatrixProduct *>(warp.operands[lane]);
            int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; i++) mine.d[i] = sum[g + i / 2 * 8][2 * t + i % 2];
        }
    });
}

}  // namespace inferc::emulation
