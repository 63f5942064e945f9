// wgmma.mma_async: the instruction for each number of columns. It has an operand for each
// accumulator register, hence the lists.
#pragma once

namespace inferc::ptx {

#define INFERC_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define INFERC_D8(i) INFERC_D4(i), INFERC_D4(i + 4)
#define INFERC_D16(i) INFERC_D8(i), INFERC_D8(i + 8)
#define INFERC_D32(i) INFERC_D16(i), INFERC_D16(i + 16)
#define INFERC_D64(i) INFERC_D32(i), INFERC_D32(i + 32)
#define INFERC_R4 "%0, %1, %2, %3"
#define INFERC_R8 INFERC_R4 ", %4, %5, %6, %7"
#define INFERC_R12 INFERC_R8 ", %8, %9, %10, %11"
#define INFERC_R16 INFERC_R12 ", %12, %13, %14, %15"
#define INFERC_R20 INFERC_R16 ", %16, %17, %18, %19"
#define INFERC_R24 INFERC_R20 ", %20, %21, %22, %23"
#define INFERC_R32 INFERC_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define INFERC_R40 INFERC_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define INFERC_R48 INFERC_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define INFERC_R64 \
    INFERC_R48 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62" \
    ", %63"
#define INFERC_R80 \
    INFERC_R64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78" \
    ", %79"
#define INFERC_R96 \
    INFERC_R80 \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94" \
    ", %95"
#define INFERC_R128 \
    INFERC_R96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108" \
    ", %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121" \
    ", %122, %123, %124, %125, %126, %127"

// `count` accumulators of a lane are 2 * count columns; a, b and the rest are numbered behind them.
// The last immediate says that n are contiguous in b, not k.
#define INFERC_WGMMA_OF(name, turned, columns, count, a0, a1, a2, a3, b, ...)                     \
    INFERC_INLINE void name(float (&d)[count], const uint32_t (&a)[4], uint64_t b_shared) {       \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 "            \
                     "{" INFERC_R##count "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b      \
                     ", add, 1, 1, " #turned ";\n}\n"                                             \
                     : __VA_ARGS__                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared)                  \
                     : "memory");                                                                 \
    }
#define INFERC_WGMMA(...)                            \
    INFERC_WGMMA_OF(wgmma_columns, 0, __VA_ARGS__)   \
    INFERC_WGMMA_OF(wgmma_turned_columns, 1, __VA_ARGS__)
INFERC_WGMMA(8, 4, 4, 5, 6, 7, 8, INFERC_D4(0))
INFERC_WGMMA(16, 8, 8, 9, 10, 11, 12, INFERC_D8(0))
INFERC_WGMMA(24, 12, 12, 13, 14, 15, 16, INFERC_D8(0), INFERC_D4(8))
INFERC_WGMMA(32, 16, 16, 17, 18, 19, 20, INFERC_D16(0))
INFERC_WGMMA(40, 20, 20, 21, 22, 23, 24, INFERC_D16(0), INFERC_D4(16))
INFERC_WGMMA(48, 24, 24, 25, 26, 27, 28, INFERC_D16(0), INFERC_D8(16))
INFERC_WGMMA(64, 32, 32, 33, 34, 35, 36, INFERC_D32(0))
INFERC_WGMMA(80, 40, 40, 41, 42, 43, 44, INFERC_D32(0), INFERC_D8(32))
INFERC_WGMMA(96, 48, 48, 49, 50, 51, 52, INFERC_D32(0), INFERC_D16(32))
INFERC_WGMMA(128, 64, 64, 65, 66, 67, 68, INFERC_D64(0))
INFERC_WGMMA(160, 80, 80, 81, 82, 83, 84, INFERC_D64(0), INFERC_D16(64))
INFERC_WGMMA(192, 96, 96, 97, 98, 99, 100, INFERC_D64(0), INFERC_D32(64))
INFERC_WGMMA(256, 128, 128, 129, 130, 131, 132, INFERC_D64(0), INFERC_D64(64))

#undef INFERC_WGMMA
#undef INFERC_WGMMA_OF

}  // namespace inferc::ptx
