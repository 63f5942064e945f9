/* What this machine can do at best, from plain loops: the limits that figures are set against.
 *   cc -O3 -march=native -pthread limits.c -o limits
 *   ./limits read THREADS MIB RUNS      bytes a second of reading memory, a line per run
 *   ./limits rates THREADS RUNS         "instruction operations-a-second", a line per run
 * A multiply and an add are two operations. Reading walks several streams a thread, since one
 * stream leaves a core waiting. Arithmetic is from registers only. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { STREAMS = 4, MOST_THREADS = 256, LINE_BYTES = 64 };

typedef struct {
    void (*work)(void *);
    void *argument;
    pthread_barrier_t *ready;
    double begin_s, end_s;
} job;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void *run_job(void *p)
{
    job *j = p;
    pthread_barrier_wait(j->ready);
    j->begin_s = now_s();
    j->work(j->argument);
    j->end_s = now_s();
    return NULL;
}

/* Seconds from the first begin to the last end of `threads` workers that start together. */
static double together_s(int threads, void (*work)(void *), void *arguments, size_t stride)
{
    static job jobs[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    pthread_barrier_t ready;
    pthread_barrier_init(&ready, NULL, threads);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (job){work, (char *)arguments + i * stride, &ready, 0, 0};
        if (pthread_create(&ids[i], NULL, run_job, &jobs[i])) exit(1);
    }
    double begin_s = 1e300, end_s = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        if (jobs[i].begin_s < begin_s) begin_s = jobs[i].begin_s;
        if (jobs[i].end_s > end_s) end_s = jobs[i].end_s;
    }
    pthread_barrier_destroy(&ready);
    return end_s - begin_s;
}

typedef uint64_t words __attribute__((vector_size(64)));
typedef struct {
    const char *begin;
    size_t bytes;
    uint64_t sum;
} part;

static void read_part(void *p)
{
    part *r = p;
    words sum[STREAMS][2] = {0};
    size_t stream = r->bytes / STREAMS;
    for (size_t o = 0; o < stream; o += 2 * LINE_BYTES)
        for (int s = 0; s < STREAMS; s++)
            for (int i = 0; i < 2; i++)
                sum[s][i] += *(const words *)(r->begin + s * stream + o + i * LINE_BYTES);
    for (int s = 0; s < STREAMS; s++) r->sum += sum[s][0][0] + sum[s][1][1];
}

static int read_memory(int threads, size_t mib, int runs)
{
    size_t each = (mib << 20) / threads / (STREAMS * 4096) * (STREAMS * 4096);
    char *data;
    if (!each || posix_memalign((void **)&data, 4096, each * threads)) return 1;
    memset(data, 1, each * threads);
    static part parts[MOST_THREADS];
    for (int i = 0; i < threads; i++) parts[i] = (part){data + i * each, each, 0};
    for (int r = 0; r < runs; r++)
        printf("%.0f\n", each * threads / together_s(threads, read_part, parts, sizeof *parts));
    uint64_t sum = 0;
    for (int i = 0; i < threads; i++) sum += parts[i].sum;
    fprintf(stderr, "sum %llu\n", (unsigned long long)sum); /* so that the reads are needed */
    return 0;
}

enum { LOOPS = 4000000, CHAINS = 12, GROUP_CHAINS = 8 };

/* Twelve independent chains hide the latency; asm keeps the compiler from merging them. */
#define CHAINS_OF(NAME, T, ZERO, INS)                                                              \
    static void NAME(void *unused)                                                                 \
    {                                                                                              \
        (void)unused;                                                                              \
        T x = ZERO, y = ZERO, a = ZERO, b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a,    \
          j = a, k = a, l = a;                                                                     \
        for (long n = 0; n < LOOPS; n++)                                                           \
            __asm__ volatile(INS " %12,%13,%0\n\t" INS " %12,%13,%1\n\t" INS " %12,%13,%2\n\t" INS \
                                 " %12,%13,%3\n\t" INS " %12,%13,%4\n\t" INS " %12,%13,%5\n\t" INS \
                                 " %12,%13,%6\n\t" INS " %12,%13,%7\n\t" INS " %12,%13,%8\n\t" INS \
                                 " %12,%13,%9\n\t" INS " %12,%13,%10\n\t" INS " %12,%13,%11"       \
                             : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g),      \
                               "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)                         \
                             : "v"(x), "v"(y));                                                    \
    }

#if defined(__AVX512F__)
CHAINS_OF(fp32, __m512, _mm512_setzero_ps(), "vfmadd231ps")
#define FP32_OPERATIONS 32
#elif defined(__AVX2__) && defined(__FMA__)
CHAINS_OF(fp32, __m256, _mm256_setzero_ps(), "vfmadd231ps")
#define FP32_OPERATIONS 16
#endif

#if defined(__AVX512BF16__)
CHAINS_OF(bf16, __m512, _mm512_setzero_ps(), "vdpbf16ps")
#endif

#if defined(__AVX512VNNI__)
CHAINS_OF(int16, __m512i, _mm512_setzero_si512(), "vpdpwssd")
CHAINS_OF(int8, __m512i, _mm512_setzero_si512(), "vpdpbusd")
#elif defined(__AVX2__)
/* Without dot products: multiply, add pairs (bytes: widen and add pairs once more), accumulate. */
#define INT16_GROUP(ACC) "vpmaddwd %8,%9,%%ymm" #ACC "\n\tvpaddd %%ymm" #ACC ",%"
#define INT8_GROUP(ACC)                                                                            \
    "vpmaddubsw %8,%9,%%ymm" #ACC "\n\tvpmaddwd %10,%%ymm" #ACC ",%%ymm" #ACC                      \
    "\n\tvpaddd %%ymm" #ACC ",%"
#define GROUPS_OF(NAME, GROUP)                                                                     \
    static void NAME(void *unused)                                                                 \
    {                                                                                              \
        (void)unused;                                                                              \
        __m256i x = _mm256_set1_epi8(1), a = _mm256_setzero_si256(), b = a, c = a, d = a, e = a,   \
                f = a, g = a, h = a, one = _mm256_set1_epi16(1);                                   \
        for (long n = 0; n < LOOPS; n++)                                                           \
            __asm__ volatile(GROUP(12) "0,%0\n\t" GROUP(13) "1,%1\n\t" GROUP(14) "2,%2\n\t"        \
                             GROUP(15) "3,%3\n\t" GROUP(12) "4,%4\n\t" GROUP(13) "5,%5\n\t"        \
                             GROUP(14) "6,%6\n\t" GROUP(15) "7,%7"                                 \
                             : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g),      \
                               "+x"(h)                                                             \
                             : "x"(x), "x"(x), "x"(one)                                            \
                             : "xmm12", "xmm13", "xmm14", "xmm15");                                \
    }
GROUPS_OF(int16, INT16_GROUP)
GROUPS_OF(int8, INT8_GROUP)
#endif

static void rate(const char *name, void (*work)(void *), double operations, int threads, int runs)
{
    for (int r = 0; r < runs; r++)
        printf("%s %.0f\n", name, operations * LOOPS * threads / together_s(threads, work, NULL, 0));
}

static int rates(int threads, int runs)
{
#if defined(FP32_OPERATIONS)
    rate("fp32:vfmadd231ps", fp32, FP32_OPERATIONS * CHAINS, threads, runs);
#endif
#if defined(__AVX512BF16__)
    rate("bf16:vdpbf16ps", bf16, 64 * CHAINS, threads, runs);
#endif
#if defined(__AVX512VNNI__)
    rate("int16:vpdpwssd", int16, 64 * CHAINS, threads, runs);
    rate("int8:vpdpbusd", int8, 128 * CHAINS, threads, runs);
#elif defined(__AVX2__)
    rate("int16:vpmaddwd+vpaddd", int16, 32 * GROUP_CHAINS, threads, runs);
    rate("int8:vpmaddubsw+vpmaddwd+vpaddd", int8, 64 * GROUP_CHAINS, threads, runs);
#endif
    (void)rate, (void)threads, (void)runs; /* another instruction set: none measured */
    return 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 2 ? atoi(argv[2]) : 0;
    if (threads < 1 || threads > MOST_THREADS) return 2;
    if (argc == 5 && !strcmp(argv[1], "read"))
        return read_memory(threads, strtoul(argv[3], NULL, 10), atoi(argv[4]));
    if (argc == 4 && !strcmp(argv[1], "rates")) return rates(threads, atoi(argv[3]));
    return 2;
}
