// The product of skinny.cu for more tokens, with Hopper's warpgroup instruction (sm_90a).
//
// Operand A of wgmma.m64n8TOKEN_TILESk16 comes from registers, in the same order as that of mma.m16n8k16, so the same packed
// matrix serves: each warp of a warpgroup decodes its own tile of 16 rows. Operand B, the tokens, is read from shared memory
// once for 64 rows instead of once for 16. A block takes WARPS * 16 rows; one warp more brings in X, 64 columns at a time, for
// all the others. The warpgroups drift apart as far as the stages allow, so one decodes while another multiplies. Where there
// are too few rows to fill the GPU, a cluster of blocks shares the columns and adds up through shared memory.
//
// Macros beside those of common.cuh: WARPS (a multiple of 4), STAGES (3 or more).

#define TOKENS (TOKEN_TILES * 8)
#define X_STAGE (TOKENS * 8)                   // 16-byte words of X a stage
#define SHARE (WARPS * TOKEN_TILES / CLUSTER)  // 512-byte pieces of the sums that one block of a cluster owns
#define LOOKAHEAD (STAGES > 3 ? 2 : 1)
#define D4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define WGMMA(shape, sums, operands, ...)                                                                       \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, " operands ", p, 1, 1, 0; }" \
                 : __VA_ARGS__                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                           \
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

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
    asm volatile(
        "{ .reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again; }\n" ::"r"(bar), "r"(parity)
        : "memory");
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

// The warp that brings in X in the layout of operand B: [token][64 columns], 128-byte rows with the 128-byte swizzle, columns
// in the order in which the threads hold the weights: within each half of a block, 4 x 4 pairs are transposed, in place, by
// the thread that copied them.
struct Stages {
    int write, done;
    u32 phase;
};
__device__ __forceinline__ void bring_tokens(uint4* xs, u32 full, u32 empty, const u16* x, int x_stride, int tokens, int cols,
                                             int begin, int count, int total, Stages& at) {
    const int lane = threadIdx.x & 31;
    int block = 0;
#pragma unroll 1
    for (int i = 0; i < total + LOOKAHEAD; i++) {
        if (i < total) {
            barrier_wait(empty + at.write * 8, at.phase);
#pragma unroll
            for (int unit = 0; unit < TOKENS * 2; unit += 32) {
                const int n = (unit + lane) >> 1, half = lane & 1, col = (begin + block) * 64 + half * 32;
                if (unit + lane >= TOKENS * 2 || n >= tokens) continue;  // garbage there stays in its own column
                uint4* row = xs + at.write * X_STAGE + n * 8;
                const u16* from = x + (size_t)n * x_stride;
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const bool valid = col + c * 8 < cols;
                    copy16(shared_address(row + ((half * 4 + c) ^ (n & 7))), from + (valid ? col + c * 8 : 0), valid);
                }
            }
            if (++block == count) block = 0;
            if (++at.write == STAGES) at.write = 0, at.phase ^= 1;
        }
        copy_commit();
        if (i < LOOKAHEAD) continue;
        copy_wait<LOOKAHEAD>();
#pragma unroll
        for (int unit = 0; unit < TOKENS * 2; unit += 32) {
            const int n = (unit + lane) >> 1, first = (lane & 1) * 4, twist = n & 7;
            if (unit + lane >= TOKENS * 2 || n >= tokens) continue;
            uint4* row = xs + at.done * X_STAGE + n * 8;
            const uint4 a = row[first ^ twist], b = row[(first + 1) ^ twist], c = row[(first + 2) ^ twist],
                        d = row[(first + 3) ^ twist];
            row[first ^ twist] = make_uint4(a.x, b.x, c.x, d.x);
            row[(first + 1) ^ twist] = make_uint4(a.y, b.y, c.y, d.y);
            row[(first + 2) ^ twist] = make_uint4(a.z, b.z, c.z, d.z);
            row[(first + 3) ^ twist] = make_uint4(a.w, b.w, c.w, d.w);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        barrier_arrive(full + at.done * 8);
        if (++at.done == STAGES) at.done = 0;
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32 + 32, 1)
wide(const uint4* __restrict__ weight, const u8* __restrict__ base, const int* __restrict__ starts,
     const int* __restrict__ escapes, const u16* x, int x_stride, int tokens, int rows, int cols, int tiles, int blocks,
     int slices, void* y, int y_stride, float4* partial, u64* result) {
    extern __shared__ __align__(1024) uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
    const int slice = blockIdx.x % slices, columns = gridDim.x / slices, column = blockIdx.x / slices;
    const int begin = blocks * slice / slices, count = blocks * (slice + 1) / slices - begin;
    const int rounds = ((tiles + WARPS - 1) / WARPS - column + columns - 1) / columns;
    uint4* rings = shared + STAGES * X_STAGE;
    float4* inbox = (float4*)(rings + WARPS * STAGES * WORDS * 32);  // [CLUSTER][SHARE][32] where there is a cluster
    u64* bars = (u64*)(inbox + (CLUSTER > 1 ? CLUSTER * SHARE * 32 : 0));
    const u32 full = shared_address(bars), empty = full + STAGES * 8;
    const u64 policy = stream_policy();
    uint4* ring = rings + warp * STAGES * WORDS * 32;
    const int step = columns * WARPS, tile0 = column * WARPS + warp;
    int ahead_tile = tile0, ahead = 0, write_stage = 0, ahead_left = rounds * count;
    auto prefetch = [&]() {
        if (ahead_left > 0) {  // tiles past the end repeat the last one; their sums are dropped
            copy_block(ring + write_stage * WORDS * 32 + lane, weight, min(ahead_tile, tiles - 1), begin + ahead, rows, cols, blocks,
                       lane, policy);
            if (++ahead == count) ahead = 0, ahead_tile += step;
            ahead_left--;
        }
        if (++write_stage == STAGES) write_stage = 0;
        copy_commit();
    };
    if (warp < WARPS) {
#pragma unroll 1
        for (int s = 0; s < STAGES - 1; s++) prefetch();
    }

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) barrier_init(full + s * 8, 32), barrier_init(empty + s * 8, WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
#if CLUSTER > 1
    cluster_arrive();  // waited for before the first send: no block writes to another before that one runs
#endif

    if (warp == WARPS) {
#if OVERLAP
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");  // X and Y only from here on: the weights never change
#endif
        Stages at = {0, 0, 1};  // the first waits for an empty stage succeed at once
#if CLUSTER > 1
        for (int round = 0; round < rounds; round++) {
            bring_tokens(shared, full, empty, x, x_stride, tokens, cols, begin, count, count, at);
            cluster_wait();
            cluster_arrive();
            cluster_wait();
            cluster_arrive();
        }
        cluster_wait();
#else
        bring_tokens(shared, full, empty, x, x_stride, tokens, cols, begin, count, count * rounds, at);
#endif
        return;
    }

#if PACKED
    // Side tables come in segments of 32 blocks and run ahead: starts by two segments, escapes by one, bases by a tile.
    auto load_start = [&](int tile, int i) { return __ldg(starts + (size_t)min(tile, tiles - 1) * blocks + begin + min(i, count)); };
    auto load_escape = [&](int from, int to) { return from + lane < to ? __ldg(escapes + from + lane) : 0; };
    auto load_base = [&](int tile, int row) { return (u32)__ldg(base + min(tile, tiles - 1) * 16 + row); };
    int next_tile = tile0, next_segment = 0;
    auto advance = [&]() {
        next_segment += 32;
        if (next_segment >= count) next_segment = 0, next_tile += step;
    };
    int start = load_start(tile0, lane), end = load_start(tile0, 32);
    advance();
    int start_next = load_start(next_tile, next_segment + lane), end_next = load_start(next_tile, next_segment + 32);
    u32 upper_base = load_base(tile0, g), lower_base = load_base(tile0, g + 8);
    int escape = load_escape(__shfl_sync(FULL, start, 0), end);
#endif
#if OVERLAP
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    // Descriptor of operand B: address, 1024 bytes between groups of eight tokens, 128-byte swizzle.
    const u64 operand = ((u64)(shared_address(shared) & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
    Output out = {y, rows, tokens, y_stride, {0, 0}};
    auto emit = [&](int tile, int slot, float4 v) {
        if (tile >= tiles) return;
        if (partial)
            partial[((size_t)(slice / CLUSTER) * tiles + tile) * OUTPUTS + slot] = v;
        else
            out.put4(tile, slot, v);
    };
    int stage = 0;
    u32 phase = 0;
    for (int round = 0, tile = tile0; round < rounds; round++, tile += step) {
        float acc[TOKEN_TILES * 4] = {};
#if PACKED
        const u32 upper = (127 + upper_base) * 0x00800080u, lower = (127 + lower_base) * 0x00800080u;
        upper_base = load_base(tile + step, g), lower_base = load_base(tile + step, g + 8);
#endif
#pragma unroll 1
        for (int segment = 0; segment < count; segment += 32) {
#if PACKED
            const int start_now = start, end_now = end, escape_now = escape, first = __shfl_sync(FULL, start, 0);
            const int follow = __shfl_down_sync(FULL, start, 1);
            const u32 has = __ballot_sync(FULL, (lane == 31 ? end_now : follow) > start_now);
            start = start_next, end = end_next;
            escape = load_escape(__shfl_sync(FULL, start, 0), end);
            advance();
            start_next = load_start(next_tile, next_segment + lane), end_next = load_start(next_tile, next_segment + 32);
#endif
            const int here = min(32, count - segment);
#pragma unroll 1
            for (int b = 0; b < here; b++) {
                copy_wait<STAGES - 2>();
                const u32 slot = shared_address(ring + stage * WORDS * 32 + lane);
                uint4 q[WORDS];
#pragma unroll
                for (int i = 0; i < WORDS; i++) q[i] = read16(slot + i * 512);
                prefetch();
                u32 a[4][4];
#if PACKED
                decode_block(a, q, upper, lower);
                if (has >> b & 1) {
                    const int after = __shfl_sync(FULL, start_now, (b + 1) & 31);
                    const int stop = (b == 31 ? end_now : after) - first;
                    for (int e = __shfl_sync(FULL, start_now, b) - first; e < stop; e++)
                        patch(a, e < 32 ? __shfl_sync(FULL, escape_now, e) : __ldg(escapes + first + e), lane);
                }
#else
                rows_to_registers(a, q);
#endif
                barrier_wait(full + stage * 8, phase);
                pin(acc);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int f = 0; f < 4; f++) wgmma(acc, a[f], operand + stage * X_STAGE + f * 2);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                pin(acc);
                if (lane == 0) barrier_arrive(empty + stage * 8);
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
#if CLUSTER > 1
        cluster_wait();  // everyone has read the last sums
#endif
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n++) {
            const float4 v = make_float4(acc[4 * n], acc[4 * n + 1], acc[4 * n + 2], acc[4 * n + 3]);
#if CLUSTER > 1
            const int unit = warp * TOKEN_TILES + n;
            send(inbox + (slice % CLUSTER * SHARE + unit % SHARE) * 32 + lane, unit / SHARE, v);
#else
            emit(tile, n * 32 + lane, v);
#endif
        }
#if CLUSTER > 1
        cluster_arrive();
        cluster_wait();
        for (int k = warp; k < SHARE; k += WARPS) {
            float4 v = inbox[k * 32 + lane];
#pragma unroll
            for (int r = 1; r < CLUSTER; r++) v = add(v, inbox[(r * SHARE + k) * 32 + lane]);
            const int unit = slice % CLUSTER * SHARE + k;
            emit(tile - warp + unit / TOKEN_TILES, unit % TOKEN_TILES * 32 + lane, v);
        }
        cluster_arrive();
#endif
    }
#if CLUSTER > 1
    cluster_wait();
#endif
}
