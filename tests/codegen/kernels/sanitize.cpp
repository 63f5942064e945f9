// Kernels on heap buffers of exactly the promised sizes, for AddressSanitizer and UBSan: a read or
// write past any of them, or of uninitialised sizes, stops the program. Prints "ok".
#include <stdio.h>

#include "attention.h"
#include "epilogue.h"
#include "kv_append.h"
#include "matmul.h"
#include "pool.h"

using namespace inferc;

namespace {

template <class T>
T *make(int64_t count, T value) {
    void *p = nullptr;
    if (posix_memalign(&p, 64, size_t(count) * sizeof(T)) != 0) abort();
    for (int64_t i = 0; i < count; i++) ((T *)p)[i] = value;
    return (T *)p;
}

template <class W, class Math>
void product(int64_t n, int64_t k) {
    uint8_t *w = make<uint8_t>(ceil_div(n, 16) * tile_bytes<W>(k), 0x11);
    const int64_t row_counts[] = {1, 3, 7, 19, 130};
    for (int64_t rows : row_counts)
        for (int workers = 1; workers <= 3; workers += 2) {
            float *x = make<float>(rows * k, 0.5f), *y = make<float>(rows * n, 0.0f);
            uint8_t *scratch =
                make<uint8_t>(workers * int64_t(matmul_scratch_bytes(rows, k)), 0xff);
            for (int i = 0; i < workers; i++)
                matmul<W, Math>(x, k, w, rows, n, k, StoreRows{y, n}, scratch, i, workers);
            free(x), free(y), free(scratch);
        }
    free(w);
}

struct Step {
    Pool *pool;
    KvAppendArgs append;
    AttentionArgs attention;
};

void step_worker(void *arg, int worker, int workers) {
    Step &s = *(Step *)arg;
    kv_append<float>(s.append, worker, workers);
    pool_barrier(s.pool);
    attention_prefill<float>(s.attention, worker, workers);
    if (attention_is_split(s.attention, workers)) {
        pool_barrier(s.pool);
        attention_merge(s.attention, worker, workers);
    }
}

// One sequence of `context` tokens, the last `tokens` of which are new; pages in order. `v_in_k`:
// values are read out of the keys.
void attend(int tokens, int context, int window, bool v_in_k = false) {
    const int H = 5, G = 1, D = 20, E = v_in_k ? 17 : 36, pt = 16, workers = 3, pages = (context + pt - 1) / pt;
    const int row = H * D + G * (D + E);
    float *qkv = make<float>(tokens * row, 0.25f), *out = make<float>(tokens * H * E, 0.0f);
    float *k = make<float>(pages * G * D * pt, 0.0f), *v = make<float>(pages * G * E * pt, 0.0f);
    float *cos = make<float>(tokens * D / 2, 1.0f), *sin = make<float>(tokens * D / 2, 0.0f);
    float *norm = make<float>(D, 1.0f), *heads = make<float>(H, 0.1f);  // slopes and sinks
    int32_t *positions = make<int32_t>(tokens, 0), *table = make<int32_t>(pages, 0);
    int32_t *starts = make<int32_t>(2, 0), *contexts = make<int32_t>(1, context);
    for (int i = 0; i < tokens; i++) positions[i] = context - tokens + i;
    for (int i = 0; i < pages; i++) table[i] = i;
    starts[1] = tokens;
    int64_t bytes = int64_t(attention_scratch_bytes(H, G, D, E, context, workers, v_in_k));
    uint8_t *scratch = make<uint8_t>(bytes, 0xff);
    Step s = {pool_create(workers),
              {qkv, qkv + H * D, qkv + (H + G) * D, row,    row, row,  qkv,  row,
               k,   v,           positions,         tokens, H,   G,    D,    E,
               pt,  D,           Pairing::half,     cos,    sin, norm, norm, 1e-6f},
              {qkv,   row, out, H * E, k, v_in_k ? nullptr : v,  positions, starts, contexts, table,   tokens, 1,
               pages, H,   G,   D,     E, pt, 0.5f,      0.0f,   window,   0,
               heads, heads, scratch, bytes}};
    pool_run(s.pool, step_worker, &s);
    pool_destroy(s.pool);
    void *all[] = {qkv,   out,       k,     v,      cos,      sin,    norm,
                   heads, positions, table, starts, contexts, scratch};
    for (void *p : all) free(p);
}

}  // namespace

int main() {
    product<F32, MathF32>(17, 33);
    product<BF16, MathBf16>(33, 65);
    product<Q5_1, MathF32>(33, 64);
    product<Q6_K, MathInt8>(17, 512);
    product<Q6_K, MathInt16>(17, 512);
    product<Q4_1, MathInt16>(33, 64);
    product<U4_G64, MathF32>(33, 192);
    product<F8_G128, MathF32>(17, 128);
    product<NF4_G64, MathF32>(17, 64);
    product<MXFP4, MathInt8>(17, 96);
    product<F8E4M3, MathF32>(17, 33);
    product<I8, MathF32>(17, 33);
    product<I8, MathInt8>(17, 45);
    attend(40, 40, 0);
    attend(1, 600, 0);
    attend(3, 90, 20);
    attend(40, 40, 0, true);
    attend(1, 600, 0, true);
    puts("ok");
}
