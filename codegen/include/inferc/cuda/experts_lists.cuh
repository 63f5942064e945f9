// Which rows go to an expert: entries, that are pairs of a row and a choice, in order of experts,
// then of pairs; and parts, that are a few entries of one expert, the work of a block. Made by
// counting, so that the lists are always the same.
//
// Of few pairs no lists are made: each is an entry and a part of its own.
// Pairs are cut into chunks, a block each. If there are several, expert_counts() counts the experts
// of each chunk first; expert_places() then adds up what stands before a pair.
#pragma once

#include "inferc/cuda/parts.cuh"

namespace inferc {

constexpr int kListThreads = 512, kListWarps = kListThreads / 32;
constexpr int kMostExperts = 1024;
constexpr int kUnsortedPairs = 32;  // up to so many are not worth a launch that lists them

struct ExpertLists {
    const int64_t *indices;  // [pairs]; outside 0 .. experts - 1: nothing is chosen
    int32_t pairs;
    int32_t part_entries;  // of a part at most
    int32_t *counts;       // [chunks][experts]
    int32_t *entries;      // [pairs]: the pair, row * chosen + choice
    int32_t *places;       // [pairs]: where a pair stands among the entries; -1 if nowhere
    int4 *parts;           // [most_parts]: expert, first entry, entries; expert -1: nothing to do
};

INFERC_BOTH bool has_expert_lists(int pairs) { return pairs > kUnsortedPairs; }

template <int kExperts>
INFERC_INLINE int expert_of(const ExpertLists &a, int pair) {
    const int64_t index = a.indices[pair];
    return index >= 0 && index < kExperts ? int(index) : -1;
}

// What the lists say, or what they would.
template <int kExperts>
INFERC_INLINE int4 expert_part(const ExpertLists &a, int number) {
    if (has_expert_lists(a.pairs)) return a.parts[number];
    return make_int4(expert_of<kExperts>(a, number), number, 1, 0);
}
INFERC_INLINE int expert_entry(const ExpertLists &a, int entry) {
    return has_expert_lists(a.pairs) ? a.entries[entry] : entry;
}
template <int kExperts>
INFERC_INLINE int expert_place(const ExpertLists &a, int pair) {
    if (has_expert_lists(a.pairs)) return a.places[pair];
    return expert_of<kExperts>(a, pair) < 0 ? -1 : pair;
}

INFERC_BOTH int expert_chunks(int pairs) { return ceil_div(pairs, kListThreads); }

// The pair of a thread: its expert, or -1, and how many of its warp before it have the same.
struct ListedPair {
    int expert, before;
};

// Counts the experts of a chunk by warps, counts[warp][expert]. Ends with a barrier.
template <int kExperts>
INFERC_INLINE ListedPair count_warps(const ExpertLists &a, int chunk,
                                     uint16_t (&counts)[kListWarps][kExperts]) {
    for (int i = int(threadIdx.x); i < kListWarps * kExperts; i += kListThreads)
        counts[i / kExperts][i % kExperts] = 0;
    __syncthreads();
    const int pair = chunk * kListThreads + int(threadIdx.x), lane = int(threadIdx.x) % 32;
    const int expert = pair < a.pairs ? expert_of<kExperts>(a, pair) : -1;
    uint32_t same = __ballot_sync(kAllLanes, expert >= 0);
    INFERC_UNROLL
    for (int bit = 1; bit < kExperts; bit *= 2) {
        const uint32_t set = __ballot_sync(kAllLanes, (expert & bit) != 0);
        same &= (expert & bit) != 0 ? set : ~set;
    }
    const int before = __popc(same & ((1u << lane) - 1u)), count = __popc(same);
    if (expert >= 0 && before == count - 1)
        counts[int(threadIdx.x) / 32][expert] = uint16_t(count);
    __syncthreads();
    return {expert, before};
}

template <int kExperts>
INFERC_INLINE void expert_counts(const ExpertLists &a) {
    __shared__ uint16_t counts[kListWarps][kExperts];
    const int chunk = int(blockIdx.x);
    count_warps<kExperts>(a, chunk, counts);
    for (int e = int(threadIdx.x); e < kExperts; e += kListThreads) {
        int sum = 0;
        for (int w = 0; w < kListWarps; w++) sum += counts[w][e];
        a.counts[chunk * kExperts + e] = sum;
    }
}

// bases[e] = all before bases[e] in it, by the first warp; [kExperts] gets the sum.
template <int kExperts>
INFERC_INLINE void sum_before(int32_t (&bases)[kExperts + 1]) {
    const int lane = int(threadIdx.x);
    if (lane >= 32) return;
    int total = 0;
    for (int first = 0; first <= kExperts; first += 32) {
        const int own = first + lane < kExperts ? bases[first + lane] : 0;
        int upto = own;
        INFERC_UNROLL
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(kAllLanes, upto, step);
            if (lane >= step) upto += below;
        }
        if (first + lane <= kExperts) bases[first + lane] = total + upto - own;
        total += __shfl_sync(kAllLanes, upto, 31);
    }
}

// Parts of the entries that begin at starts[expert]; part_starts gets the first of each expert.
template <int kExperts>
INFERC_INLINE void expert_parts(const ExpertLists &a, const int32_t (&starts)[kExperts + 1],
                                int32_t (&part_starts)[kExperts + 1]) {
    for (int e = int(threadIdx.x); e < kExperts; e += kListThreads)
        part_starts[e] = ceil_div(starts[e + 1] - starts[e], a.part_entries);
    __syncthreads();
    sum_before<kExperts>(part_starts);
    __syncthreads();
    const int most = most_parts(kExperts, a.part_entries, a.pairs);
    for (int p = int(threadIdx.x); p < most; p += kListThreads) {
        int low = 0, high = kExperts;  // the last expert whose first part is at most p
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (part_starts[middle] <= p ? low : high) = middle;
        }
        const int first = starts[low] + (p - part_starts[low]) * a.part_entries;
        const int count = min_of(a.part_entries, starts[low + 1] - first);
        a.parts[p] = make_int4(p < part_starts[kExperts] ? low : -1, first, count, 0);
    }
}

template <int kExperts>
INFERC_INLINE void expert_places(const ExpertLists &a) {
    __shared__ uint16_t counts[kListWarps][kExperts];
    __shared__ int32_t starts[kExperts + 1], part_starts[kExperts + 1], earlier[kExperts];
    const int chunk = int(blockIdx.x), chunks = expert_chunks(a.pairs);
    const ListedPair pair = count_warps<kExperts>(a, chunk, counts);
    for (int e = int(threadIdx.x); e < kExperts; e += kListThreads) {
        int before = 0, all = 0;
        if (chunks > 1)
            for (int c = 0; c < chunks; c++) {
                if (c == chunk) before = all;
                all += a.counts[c * kExperts + e];
            }
        int sum = 0;
        for (int w = 0; w < kListWarps; w++) {
            const int count = counts[w][e];
            counts[w][e] = uint16_t(sum);
            sum += count;
        }
        starts[e] = chunks > 1 ? all : sum;
        earlier[e] = before;
    }
    __syncthreads();
    sum_before<kExperts>(starts);
    __syncthreads();
    if (chunk == 0) expert_parts<kExperts>(a, starts, part_starts);
    const int number = chunk * kListThreads + int(threadIdx.x), expert = pair.expert;
    if (number >= a.pairs) return;
    int place = -1;
    if (expert >= 0) {
        place = starts[expert] + earlier[expert] + pair.before;
        place += counts[int(threadIdx.x) / 32][expert];
        a.entries[place] = number;
    }
    a.places[number] = place;
}

}  // namespace inferc
