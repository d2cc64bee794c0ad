// The product of skinny.cu for 9 to 64 tokens, with Hopper's warpgroup instruction (sm_90a).
//
// Operand A of wgmma.m64n8TOKEN_TILESk16 comes from registers, in the same order as that of mma.m16n8k16, so the same packed
// matrix serves: each warp of a warpgroup decodes its own tile of 16 rows. Operand B, the tokens, is read from shared memory
// once for 64 rows instead of once for 16. Every warpgroup has its own tiles; nothing is shared but X.
//
// Macros beside those of common.cuh: WARPS (a multiple of 4), STAGES.

#define TOKENS (TOKEN_TILES * 8)
#define D4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define WGMMA(shape, sums, operands, ...)                                                                        \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, " operands ", p, 1, 1, 0; }"  \
                 : __VA_ARGS__                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                            \
                 : "memory")

__device__ __forceinline__ void wgmma(float* c, const u32* a, u64 b) {
#if TOKEN_TILES == 1
    WGMMA("m64n8k16", "%0,%1,%2,%3", "{%4,%5,%6,%7}, %8", D4(0));
#elif TOKEN_TILES == 2
    WGMMA("m64n16k16", "%0,%1,%2,%3,%4,%5,%6,%7", "{%8,%9,%10,%11}, %12", D4(0), D4(4));
#elif TOKEN_TILES == 4
    WGMMA("m64n32k16", "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", "{%16,%17,%18,%19}, %20", D16(0));
#else
    WGMMA("m64n64k16",
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31",
          "{%32,%33,%34,%35}, %36", D16(0), D16(16));
#endif
}

__device__ __forceinline__ void pin(float* c) {  // the compiler may not move the sums across this point
#pragma unroll
    for (int i = 0; i < TOKEN_TILES * 4; i++) asm volatile("" : "+f"(c[i])::"memory");
}

__device__ __forceinline__ uint4 load16(const void* from) {  // after the wait for the previous kernel, never before
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

// Brings in X in the layout of operand B: [block][token][64 columns], 128-byte rows with the 128-byte swizzle, columns in the
// order in which the threads hold the weights: within each half of a block, 4 x 4 pairs are transposed.
__device__ void load_tokens(uint4* xs, const u16* x, int x_stride, int tokens, int cols, int begin, int count) {
    for (int unit = threadIdx.x; unit < count * 2 * TOKENS; unit += WARPS * 32) {
        const int n = unit % TOKENS, half = unit / TOKENS % 2, block = unit / (2 * TOKENS);
        if (n >= tokens) continue;  // garbage there stays in its own column of the result
        const int col = (begin + block) * 64 + half * 32;
        const u16* from = x + (size_t)n * x_stride + col;
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = col + i * 8 < cols ? load16(from + i * 8) : make_uint4(0, 0, 0, 0);
        uint4* row = xs + (block * TOKENS + n) * 8;
        const int first = half * 4, twist = n & 7;
        row[first ^ twist] = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
        row[(first + 1) ^ twist] = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
        row[(first + 2) ^ twist] = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
        row[(first + 3) ^ twist] = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
wide(const uint4* __restrict__ weight, const u8* __restrict__ base, const int* __restrict__ starts,
     const int* __restrict__ escapes, const u16* x, int x_stride, int tokens, int rows, int cols, int tiles, int blocks,
     int slices, void* y, int y_stride, float4* partial, u64* result) {
    extern __shared__ __align__(1024) uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
    const int slice = blockIdx.x % slices, columns = gridDim.x / slices;
    const int step = columns * (WARPS / 4) * 4, tile0 = ((warp / 4) * columns + blockIdx.x / slices) * 4 + warp % 4;
    const int begin = blocks * slice / slices, count = blocks * (slice + 1) / slices - begin;
    const int tile_end = (tiles + 3) / 4 * 4;  // a warpgroup stays together: its warps past the end repeat the last tile
    uint4* ring = shared + (blocks + slices - 1) / slices * TOKENS * 8 + warp * STAGES * WORDS * 32;

    int ahead_tile = tile0, ahead = 0, write_stage = 0;
    auto prefetch = [&]() {
        if (ahead_tile < tile_end) {
            copy_block(ring + write_stage * WORDS * 32 + lane, weight, min(ahead_tile, tiles - 1), begin + ahead, rows, cols, blocks,
                       lane);
            if (++ahead == count) ahead = 0, ahead_tile += step;
        }
        if (++write_stage == STAGES) write_stage = 0;
        copy_commit();
    };
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) prefetch();

#if PACKED
    // Side tables run ahead: starts two tiles, escapes and bases one. A slice has at most 63 blocks.
    auto load_start = [&](int tile, int i) {
        return __ldg(starts + (size_t)min(tile, tiles - 1) * blocks + begin + min(i, count));
    };
    auto load_escape = [&](int from, int to) { return from + lane < to ? __ldg(escapes + from + lane) : 0; };
    auto load_base = [&](int tile, int row) { return (u32)__ldg(base + min(tile, tiles - 1) * 16 + row); };
    int low = load_start(tile0, lane), high = load_start(tile0, lane + 32);
    int low_next = load_start(tile0 + step, lane), high_next = load_start(tile0 + step, lane + 32);
    u32 upper_base = load_base(tile0, g), lower_base = load_base(tile0, g + 8);
    int escape = load_escape(__shfl_sync(FULL, low, 0), __shfl_sync(FULL, high, 31));
#endif
#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");  // X and Y only from here on: the weights never change
#endif
    load_tokens(shared, x, x_stride, tokens, cols, begin, count);
    __syncthreads();
    // Descriptor of operand B: address, 1024 bytes between groups of eight tokens, 128-byte swizzle.
    const u64 operand = ((u64)(shared_address(shared) & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;

    Output out = {y, rows, tokens, y_stride, {0, 0}};
    int read_stage = 0;
    for (int tile = tile0; tile < tile_end; tile += step) {
#if PACKED
        const u32 upper = (127 + upper_base) * 0x00800080u, lower = (127 + lower_base) * 0x00800080u;
        const int low_now = low, high_now = high, escape_now = escape, first = __shfl_sync(FULL, low, 0);
        const int turn = __shfl_sync(FULL, high, 0), follow = __shfl_down_sync(FULL, low, 1);
        const u32 has_low = __ballot_sync(FULL, (lane == 31 ? turn : follow) > low);
        const int follow_high = __shfl_down_sync(FULL, high, 1);
        const u64 has = (u64)__ballot_sync(FULL, follow_high > high) << 32 | has_low;
        upper_base = load_base(tile + step, g), lower_base = load_base(tile + step, g + 8);
        low = low_next, high = high_next;
        escape = load_escape(__shfl_sync(FULL, low, 0), __shfl_sync(FULL, high, 31));
        low_next = load_start(tile + 2 * step, lane), high_next = load_start(tile + 2 * step, lane + 32);
#endif
        float acc[TOKEN_TILES * 4] = {};
#pragma unroll 1
        for (int b = 0; b < count; b++) {
            copy_wait<STAGES - 2>();
            const u32 slot = shared_address(ring + read_stage * WORDS * 32 + lane);
            uint4 q[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; i++) q[i] = read16(slot + i * 512);
            if (++read_stage == STAGES) read_stage = 0;
            prefetch();
            u32 a[4][4];
#if PACKED
            decode_block(a, q, upper, lower);
            if (has >> b & 1) {
                auto start_of = [&](int i) {
                    int l = __shfl_sync(FULL, low_now, i & 31), h = __shfl_sync(FULL, high_now, i & 31);
                    return (i < 32 ? l : h) - first;
                };
                const int end = start_of(b + 1);
                for (int e = start_of(b); e < end; e++)
                    patch(a, e < 32 ? __shfl_sync(FULL, escape_now, e) : __ldg(escapes + first + e), lane);
            }
#else
            rows_to_registers(a, q);
#endif
            pin(acc);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int f = 0; f < 4; f++) wgmma(acc, a[f], operand + b * (TOKENS * 8) + f * 2);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            pin(acc);
        }
        if (tile >= tiles) continue;
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n++) {
            float4 v = make_float4(acc[4 * n], acc[4 * n + 1], acc[4 * n + 2], acc[4 * n + 3]);
            if (partial)
                partial[((size_t)slice * tiles + tile) * OUTPUTS + n * 32 + lane] = v;
            else
                out.put4(tile, n * 32 + lane, v);
        }
    }
}
