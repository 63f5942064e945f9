/* Logits to tokens on the device: what a step library for CUDA offers beside its steps. */
#pragma once

#if !defined(__CUDACC_RTC__) /* that has no <stdint.h>: platform.cuh defines the types */
#include "inferc/cuda/step_abi.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* How the token of one row of logits is chosen. Logits are changed in this order: bias, penalties,
 * temperature, top_k, top_p, min_p. Of equal logits the lowest id comes first. */
typedef struct inferc_sample_row {
    double temperature; /* 0: the largest */
    double top_p;       /* 1: all */
    double min_p;       /* 0: all */
    double repetition_penalty;
    double presence_penalty;
    double frequency_penalty;
    uint64_t seed, sample, position; /* key and counter of the random number */
    int32_t top_k;                   /* 0: all */
    int32_t logprobs;                /* -1: none; n: of the chosen token and of the n largest */
    int32_t first_edit, edits;       /* its share of `edits` */
} inferc_sample_row;

/* A token whose logit bias or penalties change; each token once a row. */
typedef struct inferc_logit_edit {
    double bias;   /* -inf forbids */
    int32_t token; /* those from `columns` on are ignored */
    int32_t count; /* in the output */
    int32_t seen;  /* whether in prompt or output */
    int32_t unused;
} inferc_logit_edit;

enum { INFERC_SAMPLED = 0, INFERC_LOGITS_ARE_NAN = 1 };

typedef struct inferc_sampled {
    int32_t token;
    int32_t status;
    double logprob; /* of the model itself, before bias and penalties; if wanted */
} inferc_sampled;

typedef struct inferc_token_logprob {
    int32_t token;
    int32_t unused;
    double logprob;
} inferc_token_logprob;

/* Pointers are to device memory except `rows_host`. */
typedef struct inferc_sample_args {
    float *logits;  /* [rows, stride], overwritten */
    int64_t stride;
    int32_t rows;
    int32_t columns;      /* of a row: one more than the largest id of a token, at most 2^21 */
    const int32_t *holes; /* ids below `columns` that are no tokens */
    int32_t hole_count;
    int32_t top_stride;
    const inferc_sample_row *rows_host;  /* the same as `parameters`: tells what to launch */
    const inferc_sample_row *parameters; /* [rows] */
    const inferc_logit_edit *edits;      /* of all rows */
    int64_t edit_count;
    inferc_sampled *sampled;   /* [rows] */
    inferc_token_logprob *top; /* [rows, top_stride], the largest first; NULL if not wanted */
    void *workspace;           /* inferc_cuda_sample_bytes, 256-byte aligned */
} inferc_sample_args;

#if !defined(__CUDACC_RTC__)
/* Launches behind all that was launched before. INFERC_OK, INFERC_LAUNCH_FAILED, or, if there are
 * too many columns, INFERC_TOO_MANY_LOGITS. */
INFERC_EXPORT int32_t inferc_cuda_sample(const inferc_cuda_context *cuda,
                                         const inferc_sample_args *args);
INFERC_EXPORT uint64_t inferc_cuda_sample_bytes(int32_t rows, int32_t columns, int64_t edits);
#endif

#ifdef __cplusplus
}
#endif
