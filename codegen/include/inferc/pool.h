// Persistent worker threads that run one function together (SPMD) and meet at barriers.
//
// A waiting worker spins for some microseconds, then sleeps in the kernel (futex), so that a shared
// or oversubscribed machine loses little. Nothing is allocated after pool_create(). One step at a
// time: pool_run() is not reentrant.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#endif

namespace inferc {

// A counter that workers wait on, and how many sleep on it.
struct alignas(64) WaitWord {
    uint32_t value;
    uint32_t sleepers;
};

struct Pool {
    WaitWord job;    // number of the job handed out last
    WaitWord phase;  // number of barriers passed
    alignas(64) uint32_t arrived;
    alignas(64) int workers;
    int64_t spin_ns;
    int pinned;
    int stop;
    void (*fn)(void *arg, int worker, int workers);
    void *arg;
    int started;
    pthread_t *threads;
    struct Start {
        Pool *pool;
        int worker;
    } *starts;
#if !defined(__linux__)
    pthread_mutex_t mutex;
    pthread_cond_t changed;
#endif
};

inline void pool_pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

inline int64_t pool_now_ns() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// Looks for a value other than `old` for spin_ns; whether there was one. The length of a pause
// differs by a factor of ten between processors, so time decides and not their number.
inline bool pool_spin(const Pool *pool, const WaitWord *word, uint32_t old) {
    for (int64_t end_ns = 0;;) {
        for (int i = 0; i < 64; i++) {
            if (__atomic_load_n(&word->value, __ATOMIC_ACQUIRE) != old) return true;
            if (pool->spin_ns == 0) return false;
            pool_pause();
        }
        const int64_t now_ns = pool_now_ns();
        if (end_ns == 0) end_ns = now_ns + pool->spin_ns;
        if (now_ns >= end_ns) return false;
    }
}

// Returns when word->value differs from `old`.
inline void pool_wait(Pool *pool, WaitWord *word, uint32_t old) {
    if (pool_spin(pool, word, old)) return;
    // Sequentially consistent with pool_advance(): either the sleeper is counted or the value is
    // seen.
    __atomic_fetch_add(&word->sleepers, 1, __ATOMIC_SEQ_CST);
#if defined(__linux__)
    while (__atomic_load_n(&word->value, __ATOMIC_SEQ_CST) == old)
        syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
#else
    pthread_mutex_lock(&pool->mutex);
    while (__atomic_load_n(&word->value, __ATOMIC_SEQ_CST) == old)
        pthread_cond_wait(&pool->changed, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
#endif
    __atomic_fetch_sub(&word->sleepers, 1, __ATOMIC_RELAXED);
}

inline void pool_advance(Pool *pool, WaitWord *word) {
    (void)pool;
    __atomic_fetch_add(&word->value, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&word->sleepers, __ATOMIC_SEQ_CST) == 0) return;
#if defined(__linux__)
    syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
#else
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
#endif
}

// Every worker calls it; returns when all have. What was written before is visible after.
inline void pool_barrier(Pool *pool) {
    uint32_t phase = __atomic_load_n(&pool->phase.value, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&pool->arrived, 1, __ATOMIC_ACQ_REL) == uint32_t(pool->workers)) {
        __atomic_store_n(&pool->arrived, 0, __ATOMIC_RELAXED);
        pool_advance(pool, &pool->phase);
    } else {
        pool_wait(pool, &pool->phase, phase);
    }
}

inline int pool_workers(const Pool *pool) { return pool->workers; }

// Keeps the calling thread on the allowed processor number `worker`. Best effort: where it cannot
// be had the thread stays free.
inline void pool_pin(int worker) {
#if defined(__linux__)
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
    CPU_ZERO(&one);
    for (int cpu = 0, index = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && index++ == worker) CPU_SET(cpu, &one);
    if (CPU_COUNT(&one) == 1) (void)sched_setaffinity(0, sizeof(one), &one);
#else
    (void)worker;
#endif
}

inline void *pool_thread(void *start) {
    Pool *pool = ((Pool::Start *)start)->pool;
    int worker = ((Pool::Start *)start)->worker;
    if (pool->pinned) pool_pin(worker);
    for (uint32_t seen = 0;; seen++) {
        pool_wait(pool, &pool->job, seen);
        if (pool->stop) return nullptr;
        pool->fn(pool->arg, worker, pool->workers);
        pool_barrier(pool);
    }
}

// Runs fn(arg, worker, workers) on all workers, the caller being worker 0; returns when all are
// done.
inline void pool_run(Pool *pool, void (*fn)(void *arg, int worker, int workers), void *arg) {
    pool->fn = fn;
    pool->arg = arg;
    pool_advance(pool, &pool->job);
    fn(arg, 0, pool->workers);
    pool_barrier(pool);
}

// How many processors this process may use.
inline int pool_processors() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
    return int(sysconf(_SC_NPROCESSORS_ONLN));
}

// How many workers, how long each waits busily, and whether each but the caller of pool_run()
// stays on one processor.
struct PoolOptions {
    int threads, spin_us, pinned;
};

// Spinning helps only when every worker has a processor of its own.
inline PoolOptions pool_defaults(int threads) {
    return {threads, threads <= pool_processors() ? 50 : 0, 0};
}

inline void pool_destroy(Pool *pool) {
    if (pool == nullptr) return;
    pool->stop = 1;
    pool_advance(pool, &pool->job);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->threads[i], nullptr);
#if !defined(__linux__)
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->changed);
#endif
    free(pool->threads);
    free(pool->starts);
    free(pool);
}

// `threads` workers, of which the caller of pool_run() is one; nullptr if they cannot be had.
inline Pool *pool_create(const PoolOptions &options) {
    const int threads = options.threads;
    void *memory = nullptr;
    if (threads < 1 || posix_memalign(&memory, 64, sizeof(Pool)) != 0) return nullptr;
    memset(memory, 0, sizeof(Pool));
    Pool *pool = (Pool *)memory;
    pool->workers = threads;
    pool->spin_ns = int64_t(options.spin_us) * 1000;
    pool->pinned = options.pinned && threads <= pool_processors();
#if !defined(__linux__)
    pthread_mutex_init(&pool->mutex, nullptr);
    pthread_cond_init(&pool->changed, nullptr);
#endif
    pool->threads = (pthread_t *)calloc(size_t(threads), sizeof(pthread_t));
    pool->starts = (Pool::Start *)calloc(size_t(threads), sizeof(Pool::Start));
    bool complete = pool->threads != nullptr && pool->starts != nullptr;
    for (int i = 1; complete && i < threads; i++) {
        pool->starts[i] = {pool, i};
        complete =
            pthread_create(&pool->threads[i - 1], nullptr, pool_thread, &pool->starts[i]) == 0;
        pool->started += complete;
    }
    if (complete) return pool;
    pool_destroy(pool);
    return nullptr;
}

inline Pool *pool_create(int threads) { return pool_create(pool_defaults(threads)); }

}  // namespace inferc
