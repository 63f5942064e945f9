// wgmma.mma_async, m64nNk16, with A in registers and B in shared memory. Of the 64 rows each warp
// of a group of four has 16, and multiplies them by the same B: a warp needs none of the others.
//
// A product is added to its accumulators only when a wait_group covers it. B is read when it is
// issued, where copies land late, and when it is waited for, where copies land early: a B that has
// not come yet, or that is overwritten too soon, gives a wrong result in one of the orders.
#pragma once

namespace inferc::emulation {

constexpr int kMostColumns = 256;

// The matrix descriptor of sm_90: addresses and strides in units of 16 bytes, at bits 0, 16 and 32.
// An address is an offset in dynamic shared memory here.
inline uint64_t describe_shared(const void *pointer, uint32_t leading_bytes, uint32_t stride_bytes,
                                uint32_t swizzle, Site site) {
    int64_t offset = static_cast<const unsigned char *>(pointer) - shared_memory.bytes;
    if (offset < 0 || offset >= int64_t(shared_memory.used) || offset % 16 != 0)
        fail(site, "shared_descriptor of byte %lld: not 16-byte aligned, or not in dynamic memory",
             static_cast<long long>(offset));
    return uint64_t(offset) >> 4 | uint64_t(leading_bytes >> 4) << 16 |
           uint64_t(stride_bytes >> 4) << 32 | uint64_t(swizzle) << 62;
}

// Offset in shared memory of 16-bit element (n, k) of a B whose k are contiguous. Swizzled by 1, 2
// or 3, rows are 128, 64 or 32 bytes, eight to a group, groups a stride apart; 3, 2 or 1 bits of
// the address from bit 4 on are xor-ed with those from bit 7 on. Unswizzled, a row is cut into
// pieces of 16 bytes, a leading distance apart.
inline uint32_t element_offset(uint64_t descriptor, uint32_t n, uint32_t k) {
    uint32_t start = uint32_t(descriptor & 0x3fff) << 4;
    uint32_t leading = uint32_t(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = uint32_t(descriptor >> 32 & 0x3fff) << 4;
    uint32_t swizzle = uint32_t(descriptor >> 62);
    uint32_t group = start + n / 8 * stride;
    if (swizzle == 0) return group + k / 8 * leading + n % 8 * 16 + k % 8 * 2;
    uint32_t log_row = 8 - swizzle;  // 1: 128 bytes, 2: 64, 3: 32
    uint32_t address = group + (n % 8 << log_row) + k * 2;
    return address ^ ((address >> 7 & ((1u << (log_row - 4)) - 1)) << 4);
}

// The same of a B whose n are contiguous: rows are a k each, groups of 8 of them a stride apart,
// and n that do not fit a row are a leading distance further. Unswizzled, a row is a piece of 16
// bytes, and the two distances change their parts. See shared_descriptor in ptx_sm90.cuh.
inline uint32_t turned_offset(uint64_t descriptor, uint32_t n, uint32_t k) {
    uint32_t start = uint32_t(descriptor & 0x3fff) << 4;
    uint32_t leading = uint32_t(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = uint32_t(descriptor >> 32 & 0x3fff) << 4;
    uint32_t swizzle = uint32_t(descriptor >> 62);
    if (swizzle == 0) return start + n / 8 * stride + k / 8 * leading + k % 8 * 16 + n % 8 * 2;
    uint32_t log_row = 8 - swizzle, row = 1u << (log_row - 1);
    uint32_t address = start + n / row * leading + k / 8 * stride;
    address += (k % 8 << log_row) + n % row * 2;
    return address ^ ((address >> 7 & ((1u << (log_row - 4)) - 1)) << 4);
}

struct PendingProduct {
    float *d[kWarpLanes];
    float a[16][16];
    uint64_t descriptor;
    int columns;
    uint32_t group;
    bool turned, has_b;
    uint16_t b[16][kMostColumns];  // by k
    Site site;
};
struct ProductQueue {
    PendingProduct *products;
    int32_t count, capacity;
    uint32_t group;
    uint32_t issued;
};
inline ProductQueue product_queues[kMostWarps];  // by position, as block.warps

inline void read_b(PendingProduct &product) {
    for (int n = 0; n < product.columns; n++)
        for (int k = 0; k < 16; k++) {
            uint32_t offset = (product.turned ? turned_offset : element_offset)(
                product.descriptor, uint32_t(n), uint32_t(k));
            if (offset + 2 > shared_memory.used)
                fail(product.site, "wgmma reads byte %u of %u of dynamic shared memory", offset,
                     shared_memory.used);
            memcpy(&product.b[k][n], async_view + offset, 2);
        }
    product.has_b = true;
}

// d += a b. Lane (g, t) has rows g and g + 8, and of each 8 columns 2t and 2t + 1.
inline void add_product(PendingProduct &product) {
    if (!product.has_b) read_b(product);
    static float sum[16][kMostColumns];
    for (int lane = 0; lane < kWarpLanes; lane++)
        for (int i = 0; i < product.columns / 2; i++)
            sum[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = product.d[lane][i];
    for (int k = 0; k < 16; k++) {
        float right[kMostColumns];
        for (int n = 0; n < product.columns; n++) right[n] = to_float(bf16{product.b[k][n]});
        for (int row = 0; row < 16; row++)
            for (int n = 0; n < product.columns; n += 8)
                add_scaled8(sum[row] + n, product.a[row][k], right + n);
    }
    for (int lane = 0; lane < kWarpLanes; lane++)
        for (int i = 0; i < product.columns / 2; i++)
            product.d[lane][i] = sum[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

struct WgmmaOperand {
    float *d;
    const uint32_t *a;
    uint64_t descriptor;
};

inline PendingProduct &new_product(ProductQueue &queue) {
    if (queue.count == queue.capacity) {
        queue.capacity = queue.capacity == 0 ? 8 : 2 * queue.capacity;
        queue.products = static_cast<PendingProduct *>(
            realloc(queue.products, sizeof(PendingProduct) * size_t(queue.capacity)));
    }
    return queue.products[queue.count++];
}

inline void issue_wgmma(float *d, const uint32_t *a, int columns, uint64_t descriptor, bool turned,
                        Site site) {
    if (!block.current->registers_fenced)
        fail(site, "wgmma without wgmma_fence since its registers were last free to be written");
    WgmmaOperand operand = {d, a, descriptor};
    whole_warp_operation(operand, "wgmma", site, [=](Warp &warp, uint32_t) {
        ProductQueue &queue = product_queues[warp.index];
        PendingProduct &product = new_product(queue);
        product.descriptor = descriptor;
        product.columns = columns;
        product.turned = turned;
        product.group = queue.group;
        product.has_b = false;
        product.site = site;
        for (int lane = 0; lane < kWarpLanes; lane++) {
            auto &mine = *static_cast<WgmmaOperand *>(warp.operands[lane]);
            if (mine.descriptor != descriptor) fail(site, "wgmma: lanes differ in the descriptor");
            product.d[lane] = mine.d;
            unpack_a<bf16>(product.a, lane, mine.a);
        }
        queue.issued++;
        if (!(block.order & kEager)) read_b(product);
    });
}

inline void commit_wgmma(Site site) {
    int nothing = 0;
    whole_warp_operation(nothing, "wgmma_commit", site,
                         [](Warp &warp, uint32_t) { product_queues[warp.index].group++; });
}

// Adds the products of all groups but the `pending` last committed.
inline void wait_for_wgmma(uint32_t pending, Site site) {
    block.current->registers_fenced = false;
    int nothing = 0;
    whole_warp_operation(nothing, "wgmma_wait", site, [=](Warp &warp, uint32_t) {
        ProductQueue &queue = product_queues[warp.index];
        int32_t done = 0;
        while (done < queue.count && queue.products[done].group + pending < queue.group)
            add_product(queue.products[done++]);
        queue.count -= done;
        for (int32_t i = 0; i < queue.count && done > 0; i++)
            queue.products[i] = queue.products[done + i];
    });
}

}  // namespace inferc::emulation
