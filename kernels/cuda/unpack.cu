// 12-bit weights back to bf16: whole matrices for products with many rows, and single rows for an embedding table.
// Compiled behind common.cuh with PACKED=1.

// Eight neighbouring columns of one row: `lower` chooses row g + 8, `half` the columns 32..63 of the block.
__device__ __forceinline__ uint4 columns_of(u32 (*a)[4], int lower, int half) {
    return make_uint4(a[2 * half][lower], a[2 * half][2 + lower], a[2 * half + 1][lower], a[2 * half + 1][2 + lower]);
}

__device__ __forceinline__ void decode_lane(u32 (*a)[4], const uint4* weight, const u8* base, const int* starts, const int* escapes,
                                            int tile, int blocks, int block, int lane) {
    const size_t at = (size_t)tile * blocks + block;
    uint4 q[3];
#pragma unroll
    for (int i = 0; i < 3; i++) q[i] = __ldg(weight + (at * 3 + i) * 32 + lane);
    const u32 upper = (127u + __ldg(base + tile * 16 + lane / 4)) * 0x00800080u;
    const u32 lower = (127u + __ldg(base + tile * 16 + 8 + lane / 4)) * 0x00800080u;
    decode_block(a, q, upper, lower);
    const int end = __ldg(starts + at + 1);
    for (int e = __ldg(starts + at); e < end; e++) patch(a, __ldg(escapes + e), lane);
}

// One warp a block of 16 x 64 weights.
extern "C" __global__ void __launch_bounds__(256)
unpack(const uint4* weight, const u8* base, const int* starts, const int* escapes, int rows, int cols, int tiles, int blocks, u16* out) {
    const int lane = threadIdx.x & 31, unit = blockIdx.x * 8 + threadIdx.x / 32;
    if (unit >= tiles * blocks) return;
    const int tile = unit / blocks, block = unit % blocks;
    u32 a[4][4];
    decode_lane(a, weight, base, starts, escapes, tile, blocks, block, lane);
#pragma unroll
    for (int lower = 0; lower < 2; lower++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = tile * 16 + lower * 8 + lane / 4, col = block * 64 + half * 32 + lane % 4 * 8;
            if (row < rows && col < cols) *(uint4*)(out + (size_t)row * cols + col) = columns_of(a, lower, half);
        }
}

// Four threads a block of 64 columns of a wanted row.
extern "C" __global__ void __launch_bounds__(256)
gather(const uint4* weight, const u8* base, const int* starts, const int* escapes, int rows, int cols, int blocks, const long long* index,
       int count, u16* out) {
    const int thread = blockIdx.x * 256 + threadIdx.x, t = thread & 3, block = (thread >> 2) % blocks, i = (thread >> 2) / blocks;
    if (i >= count) return;
    const int row = (int)index[i];
    if (row < 0 || row >= rows) __trap();
    u32 a[4][4];
    decode_lane(a, weight, base, starts, escapes, row >> 4, blocks, block, (row & 7) * 4 + t);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int col = block * 64 + half * 32 + t * 8;
        const uint4 v = columns_of(a, 0, half), w = columns_of(a, 1, half);
        if (col < cols) *(uint4*)(out + (size_t)i * cols + col) = row & 8 ? w : v;
    }
}
