// Work of unknown sizes on a grid of known size: groups of items are cut into parts, and a block
// finds the one that is its own. The grid has as many blocks as there can be parts at most.
#pragma once

#include "inferc/cuda/platform.cuh"

namespace inferc {

// Part `index` of `group`; a negative group: there are not so many parts.
struct Part {
    int group, index;
};

// Parts of `each` items, one behind the other through all groups: the one of number `wanted`.
// count(group) gives the items of a group. Called by whole warps, each finds the same.
template <class Count>
INFERC_INLINE Part find_part(int groups, int each, int wanted, const Count &count) {
    const int lane = int(threadIdx.x) % 32;
    for (int first = 0; first < groups; first += 32) {
        const int own = first + lane < groups ? ceil_div(count(first + lane), each) : 0;
        int upto = own;
        INFERC_UNROLL
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(kAllLanes, upto, step);
            if (lane >= step) upto += below;
        }
        const uint32_t behind = __ballot_sync(kAllLanes, wanted < upto);
        if (behind != 0) {
            const int found = __ffs(int(behind)) - 1;
            return {first + found, wanted - __shfl_sync(kAllLanes, upto - own, found)};
        }
        wanted -= __shfl_sync(kAllLanes, upto, 31);
    }
    return {-1, 0};
}

// Parts there are at most, of `items` in all.
INFERC_BOTH int most_parts(int groups, int each, int items) {
    return min_of(items, items / each + min_of(groups, items));
}

}  // namespace inferc
