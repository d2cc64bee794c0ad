// The product of skinny.cu for 9 to 64 tokens, with Hopper's warpgroup instruction (sm_90a).
//
// Operand A of wgmma.m64n8TOKEN_TILESk16 comes from registers, in the same order as that of mma.m16n8k16, so the same packed
// matrix serves: each warp of a warpgroup decodes its own tile of 16 rows. Operand B, the tokens, is read from shared memory
// once for 64 rows instead of once for 16. Every warpgroup has its own tiles; nothing is shared but X.
//
// Macros beside those of common.cuh: WARPS (a multiple of 4), STAGES, SUM_BUFFERS.

#define TOKENS (TOKEN_TILES * 8)
#define SHARE (4 * TOKEN_TILES / CLUSTER)  // 512-byte pieces of a tile's sums that one block owns
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

// The slices of one tile sit in one cluster: each block owns a part of the sums and gets the others' addends.
#if CLUSTER > 1
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void send(const float4* to, int owner, float4 v) {
    u32 address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(to)), "r"(owner));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
#endif

// Brings in X in the layout of operand B: [block][token][64 columns], 128-byte rows with the 128-byte swizzle, columns in the
// order in which the threads hold the weights: within each half of a block, 4 x 4 pairs are transposed (in place).
__device__ void load_tokens(uint4* xs, const u16* x, int x_stride, int tokens, int cols, int begin, int count) {
    for (int n = threadIdx.x / 32; n < tokens; n += WARPS)
        for (int piece = threadIdx.x % 32; piece < count * 8; piece += 32) {
            const int col = begin * 64 + piece * 8;
            const bool valid = col < cols;
            uint4* row = xs + (piece / 8 * TOKENS + n) * 8;
            copy16(shared_address(row + (piece % 8 ^ (n & 7))), x + (size_t)n * x_stride + (valid ? col : 0), valid);
        }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int i = threadIdx.x; i < count * 2 * TOKENS; i += WARPS * 32) {
        const int n = i % TOKENS, first = i / TOKENS % 2 * 4, twist = n & 7;
        uint4* row = xs + (i / (2 * TOKENS) * TOKENS + n) * 8;
        const uint4 a = row[first ^ twist], b = row[(first + 1) ^ twist], c = row[(first + 2) ^ twist], d = row[(first + 3) ^ twist];
        row[first ^ twist] = make_uint4(a.x, b.x, c.x, d.x);
        row[(first + 1) ^ twist] = make_uint4(a.y, b.y, c.y, d.y);
        row[(first + 2) ^ twist] = make_uint4(a.z, b.z, c.z, d.z);
        row[(first + 3) ^ twist] = make_uint4(a.w, b.w, c.w, d.w);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
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
    const u64 policy = stream_policy();

    int ahead_tile = tile0, ahead = 0, write_stage = 0;
    auto prefetch = [&]() {
        if (ahead_tile < tile_end) {
            copy_block(ring + write_stage * WORDS * 32 + lane, weight, min(ahead_tile, tiles - 1), begin + ahead, rows, cols, blocks,
                       lane, policy);
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
    // Descriptor of operand B: address, 1024 bytes between groups of eight tokens, 128-byte swizzle.
    const u64 operand = ((u64)(shared_address(shared) & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;

    Output out = {y, rows, tokens, y_stride, {0, 0}};
    int read_stage = 0;
    auto emit = [&](int tile, int slot, float4 v) {
        if (tile >= tiles) return;
        if (partial)
            partial[((size_t)(slice / CLUSTER) * tiles + tile) * OUTPUTS + slot] = v;
        else
            out.put4(tile, slot, v);
    };
#if CLUSTER > 1
    // [SUM_BUFFERS][warpgroup][CLUSTER][SHARE][32] behind the rings.
    float4* inbox = (float4*)(shared + (blocks + slices - 1) / slices * TOKENS * 8 + WARPS * STAGES * WORDS * 32) +
                    warp / 4 * CLUSTER * SHARE * 32 + lane;
    const int inbox_size = WARPS / 4 * CLUSTER * SHARE * 32;
    int half = 0;
    auto receive = [&](int tile, int from_half) {
        if (tile - warp % 4 >= tile_end) return;
        for (int k = warp % 4; k < SHARE; k += 4) {
            const float4* from = inbox + from_half * inbox_size + k * 32;
            float4 v = from[0];
#pragma unroll
            for (int r = 1; r < CLUSTER; r++) v = add(v, from[r * SHARE * 32]);
            const int unit = slice % CLUSTER * SHARE + k;
            emit(tile - warp % 4 + unit / TOKEN_TILES, unit % TOKEN_TILES * 32 + lane, v);
        }
    };
    cluster_arrive();  // no block writes to another before that one runs
    cluster_wait();
#endif
    // Every warpgroup of a cluster makes the same number of rounds, with or without a tile.
    const int rounds = (tile_end - blockIdx.x / slices * 4 + step - 1) / step;
    for (int round = 0, tile = tile0; round < rounds; round++, tile += step) {
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
        for (int b = 0; b < count && tile < tile_end; b++) {
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
#if CLUSTER > 1
        if (round) cluster_wait();  // two buffers: the last addends are here; one: the last ones were read
        if (round && SUM_BUFFERS == 2) receive(tile - step, half ^ 1);
#endif
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n++) {
            const float4 v = make_float4(acc[4 * n], acc[4 * n + 1], acc[4 * n + 2], acc[4 * n + 3]);
#if CLUSTER > 1
            const int unit = warp % 4 * TOKEN_TILES + n;
            send(inbox + half * inbox_size + (slice % CLUSTER * SHARE + unit % SHARE) * 32, unit / SHARE, v);
#else
            emit(tile, n * 32 + lane, v);
#endif
        }
#if CLUSTER > 1
        cluster_arrive();
        if (SUM_BUFFERS == 2) {
            half ^= 1;
        } else {
            cluster_wait();
            receive(tile, 0);
            cluster_arrive();
        }
#endif
    }
#if CLUSTER > 1
    if (rounds < 1) return;
    cluster_wait();
    if (SUM_BUFFERS == 2) receive(tile0 + (rounds - 1) * step, half ^ 1);
#endif
}
