// Y[tokens, rows] = X[tokens, cols] W[rows, cols]^T for few tokens, on tensor cores, streaming W once.
//
// One block of WARPS warps stays on a multiprocessor. It keeps its slice of X in shared memory and walks over tiles of 16
// rows; the warps share the columns of a tile and add up at its end, always in the same order. Each warp has its own ring
// of asynchronous copies, which runs on across tiles, so that memory never waits for a sum. The weights are operand A
// (16 rows) of mma.m16n8k16 and go from the ring straight into its registers; the tokens are operand B, eight at a time.
// Which columns a thread owns is free, as long as both operands agree: thread t of four takes columns 8t..8t+7 of each
// 32, so that operand B is one 16-byte read and a bf16 matrix can be read row by row as it lies.
//
// Macros: PACKED (1: 12-bit weights, 0: bf16 rows), TOKEN_TILES, WARPS, STAGES, BULK (1: one bulk copy a block, sm_90),
// OCCUPANCY, FLOAT_OUT, ARGMAX, OVERLAP (1: start before the previous kernel ends, sm_90).

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

#define FULL 0xFFFFFFFFu
#define WORDS (PACKED ? 3 : 4)
#define CHAINS (TOKEN_TILES == 1 ? 2 : 1)
#define OUTPUTS (TOKEN_TILES * 32)
#define SUM_BUFFERS (TOKEN_TILES == 8 ? 1 : 2)

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    int bytes = valid ? 16 : 0;  // the rest is filled with zeros
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ uint4 read16(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
    return v;
}

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// (a & mask) | (b & ~mask)
__device__ __forceinline__ u32 select_bits(u32 a, u32 b, u32 mask) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}

// Multiplies two bf16 by powers of two: exact. Adding -0 keeps the sign of zeros.
__device__ __forceinline__ u32 scale_pair(u32 pair, u32 scale) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(pair), "r"(scale), "r"(0x80008000u));
    return d;
}

// Three words to the four A registers of one fragment; `upper` and `lower` are the scales of rows g and g + 8.
__device__ __forceinline__ void decode(u32* a, u32 w0, u32 w1, u32 w2, u32 upper, u32 lower) {
    u32 rest = select_bits(w0 >> 4, w1 >> 8, 0x07800780u);
    rest = select_bits(rest, __funnelshift_l(w2, w2, 4), 0x07F807F8u);
    a[0] = scale_pair(w0 & 0x87FF87FFu, upper);
    a[1] = scale_pair(w1 & 0x87FF87FFu, lower);
    a[2] = scale_pair(w2 & 0x87FF87FFu, upper);
    a[3] = scale_pair(rest & 0x87FF87FFu, lower);
}

// Puts the true bits of one escape into the registers of the thread that holds it.
__device__ __forceinline__ void patch(u32 (*a)[4], int entry, int lane) {
    int position = entry >> 16, slot = position >> 6;
    u32 pick = (position & 31) != lane ? 0x3210u : (position & 32) ? 0x5410u : 0x3254u;
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (slot == i) a[i >> 2][i & 3] = __byte_perm(a[i >> 2][i & 3], (u32)entry, pick);
}

__device__ __forceinline__ u16 to_bf16(float v) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

// Larger keys are larger values, NaN first; among equal values the lowest row wins.
__device__ __forceinline__ u64 argmax_key(float v, int row) {
    u32 b = __float_as_uint(v);
    b = v != v ? FULL : (b & 0x80000000u) ? ~b : b | 0x80000000u;
    if (v == 0.0f) b = 0x80000000u;
    return (u64)b << 32 | (FULL - (u32)row);
}

struct Output {
    void* y;
    int rows, tokens, stride;
    u64 best[2];

    __device__ __forceinline__ void put(int row, int token, int odd, float v) {
        if (row >= rows || token >= tokens) return;
#if FLOAT_OUT
        if (y) ((float*)y)[(size_t)token * stride + row] = v;
#else
        u16 h = to_bf16(v);
        if (y) ((u16*)y)[(size_t)token * stride + row] = h;
        v = __uint_as_float((u32)h << 16);
#endif
#if ARGMAX
        u64 key = argmax_key(v, row);
        if (key > best[odd]) best[odd] = key;
#endif
    }
    // One thread's four sums of a tile: rows g and g + 8, two neighbouring tokens.
    __device__ __forceinline__ void put4(int tile, int slot, float4 v) {
        int row = tile * 16 + (slot & 31) / 4, token = slot / 32 * 8 + (slot & 3) * 2;
        put(row, token, 0, v.x);
        put(row, token + 1, 1, v.y);
        put(row + 8, token, 0, v.z);
        put(row + 8, token + 1, 1, v.w);
    }
    __device__ __forceinline__ void finish(int slot, u64* result) {
#if ARGMAX
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            u64 key = best[odd];
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                u64 other = __shfl_xor_sync(FULL, key, step);
                if (other > key) key = other;
            }
            int token = slot / 32 * 8 + (slot & 3) * 2 + odd;
            if ((slot & 31) < 4 && token < tokens) atomicMax(result + token, key);
        }
#endif
    }
};

#if BULK
__device__ __forceinline__ void barrier_init(u32 bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 bytes, u32 bar, u64 policy) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
    asm volatile(
        "{ .reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again; }\n" ::"r"(bar), "r"(parity)
        : "memory");
}
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, OCCUPANCY)
skinny(const uint4* __restrict__ weight, const u8* __restrict__ base, const int* __restrict__ starts,
       const int* __restrict__ escapes, const u16* __restrict__ x, int x_stride, int tokens, int rows, int cols, int tiles,
       int blocks, int slices, void* y, int y_stride, float4* __restrict__ partial, u64* result) {
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int slice = blockIdx.x % slices, step = gridDim.x / slices;
    const int first_block = blocks * slice / slices, slice_blocks = blocks * (slice + 1) / slices - first_block;
    const int begin = first_block + slice_blocks * warp / WARPS;
    const int count = first_block + slice_blocks * (warp + 1) / WARPS - begin;

    uint4* ring = shared + warp * STAGES * WORDS * 32;
    float4* sums = (float4*)(shared + WARPS * STAGES * WORDS * 32);  // [SUM_BUFFERS][WARPS][OUTPUTS]
    char* xs = (char*)(sums + SUM_BUFFERS * WARPS * OUTPUTS);
    // A row of X ends with 64 spare bytes: eight threads (two rows, four 16-byte pieces) then hit all banks once.
    const int x_bytes = ((blocks + slices - 1) / slices) * 128 + 64;
#if BULK
    __shared__ u64 bars[WARPS][STAGES];
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    if (lane == 0) {
        for (int s = 0; s < STAGES; s++) barrier_init(shared_address(&bars[warp][s]));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
#endif

    int ahead_tile = count ? blockIdx.x / slices : tiles, ahead = 0, write_stage = 0;
    auto prefetch = [&]() {
        uint4* slot = ring + write_stage * WORDS * 32;
        if (ahead_tile < tiles) {
#if BULK
            if (lane == 0)
                bulk_copy(shared_address(slot), weight + ((size_t)ahead_tile * blocks + begin + ahead) * 96, 1536,
                          shared_address(&bars[warp][write_stage]), policy);
#elif PACKED
            const uint4* from = weight + ((size_t)ahead_tile * blocks + begin + ahead) * 96 + lane;
#pragma unroll
            for (int q = 0; q < 3; q++) copy16(shared_address(slot + q * 32 + lane), from + q * 32, true);
#else
#pragma unroll
            for (int q = 0; q < 4; q++) {
                int row = min(ahead_tile * 16 + (q & 1) * 8 + g, rows - 1), col = (begin + ahead) * 64 + (q >> 1) * 32 + t * 8;
                bool valid = col < cols;
                copy16(shared_address(slot + q * 32 + lane), (const u16*)weight + (size_t)row * cols + (valid ? col : 0), valid);
            }
#endif
            if (++ahead == count) ahead = 0, ahead_tile += step;
        }
        if (++write_stage == STAGES) write_stage = 0;
    };

#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        prefetch();
#if !BULK
        copy_commit();
#endif
    }
#if PACKED
    // Side tables run ahead: starts two tiles, escapes and bases one.
    auto load_starts = [&](int tile) { return tile < tiles && lane <= count ? __ldg(starts + (size_t)tile * blocks + begin + lane) : 0; };
    auto load_escape = [&](int from, int to) { return from + lane < to ? __ldg(escapes + from + lane) : 0; };
    auto load_base = [&](int tile, int row) { return tile < tiles ? (u32)__ldg(base + tile * 16 + row) : 0u; };
    int tile0 = blockIdx.x / slices;
    int start = load_starts(tile0), start_next = load_starts(tile0 + step);
    u32 upper_base = load_base(tile0, g), lower_base = load_base(tile0, g + 8);
    int escape = load_escape(__shfl_sync(FULL, start, 0), __shfl_sync(FULL, start, count));
#endif

#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");  // X and Y only from here on: the weights never change
#endif
    {   // each warp brings in the columns of X that it will read: no barrier between warps
        const char* from = (const char*)(x + begin * 64);
        char* to = xs + (begin - first_block) * 128;
        for (int m = 0; m < tokens; m++)
            for (int c = lane; c < count * 8; c += 32) {
                bool valid = begin * 64 + c * 8 < cols;
                copy16(shared_address(to + m * x_bytes + c * 16), from + (valid ? (size_t)m * x_stride * 2 + c * 16 : 0), valid);
            }
        copy_commit();
    }

    u32 token_at[TOKEN_TILES];
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; n++)
        token_at[n] = shared_address(xs) + min(n * 8 + g, tokens - 1) * x_bytes + t * 16 - first_block * 128;

    Output out = {y, rows, tokens, y_stride, {0, 0}};
    copy_wait<0>();
    __syncwarp();
    int read_stage = 0, buffer = 0;
    u32 phase = 0;
    for (int tile = blockIdx.x / slices; tile < tiles; tile += step) {
#if PACKED
        const u32 upper = (127 + upper_base) * 0x00800080u, lower = (127 + lower_base) * 0x00800080u;
        const int first = __shfl_sync(FULL, start, 0), start_now = start, escape_now = escape;
        const int follow = __shfl_down_sync(FULL, start, 1);
        const u32 has = __ballot_sync(FULL, lane < count && follow > start);
        upper_base = load_base(tile + step, g), lower_base = load_base(tile + step, g + 8);
        start = start_next;
        escape = load_escape(__shfl_sync(FULL, start, 0), __shfl_sync(FULL, start, count));
        start_next = load_starts(tile + 2 * step);
#endif
        float acc[TOKEN_TILES][CHAINS][4] = {};
#pragma unroll 1
        for (int b = 0; b < count; b++) {
#if BULK
            barrier_wait(shared_address(&bars[warp][read_stage]), phase);
#else
            copy_wait<STAGES - 2>();
#endif
            const u32 slot = shared_address(ring + read_stage * WORDS * 32 + lane);
            uint4 q[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; i++) q[i] = read16(slot + i * 512);
            if (++read_stage == STAGES) read_stage = 0, phase ^= 1;
#if BULK
            __syncwarp();  // the slot read in the round before is free for everyone
#endif
            prefetch();
#if !BULK
            copy_commit();
#endif
            u32 a[4][4];
#if PACKED
            decode(a[0], q[0].x, q[0].y, q[0].z, upper, lower);
            decode(a[1], q[0].w, q[1].x, q[1].y, upper, lower);
            decode(a[2], q[1].z, q[1].w, q[2].x, upper, lower);
            decode(a[3], q[2].y, q[2].z, q[2].w, upper, lower);
            if (has >> b & 1) {
                int end = __shfl_sync(FULL, start_now, b + 1) - first;
                for (int e = __shfl_sync(FULL, start_now, b) - first; e < end; e++)
                    patch(a, e < 32 ? __shfl_sync(FULL, escape_now, e) : __ldg(escapes + first + e), lane);
            }
#else
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint4 top = q[2 * j], low = q[2 * j + 1];
                a[2 * j][0] = top.x, a[2 * j][2] = top.y, a[2 * j + 1][0] = top.z, a[2 * j + 1][2] = top.w;
                a[2 * j][1] = low.x, a[2 * j][3] = low.y, a[2 * j + 1][1] = low.z, a[2 * j + 1][3] = low.w;
            }
#endif
            const u32 at = (begin + b) * 128;
#pragma unroll
            for (int n = 0; n < TOKEN_TILES; n++) {
                const uint4 left = read16(token_at[n] + at), right = read16(token_at[n] + at + 64);
                mma(acc[n][0], a[0], left.x, left.y);
                mma(acc[n][CHAINS - 1], a[1], left.z, left.w);
                mma(acc[n][0], a[2], right.x, right.y);
                mma(acc[n][CHAINS - 1], a[3], right.z, right.w);
            }
        }
        float4* mine = sums + (buffer * WARPS + warp) * OUTPUTS + lane;
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n++) {
            float4 v = make_float4(acc[n][0][0], acc[n][0][1], acc[n][0][2], acc[n][0][3]);
            if (CHAINS == 2) v.x += acc[n][1][0], v.y += acc[n][1][1], v.z += acc[n][1][2], v.w += acc[n][1][3];
            mine[n * 32] = v;
        }
        __syncthreads();
        for (int slot = threadIdx.x; slot < OUTPUTS; slot += WARPS * 32) {
            float4 v = sums[buffer * WARPS * OUTPUTS + slot];
#pragma unroll
            for (int w = 1; w < WARPS; w++) {
                float4 u = sums[(buffer * WARPS + w) * OUTPUTS + slot];
                v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
            }
            if (slices > 1)
                partial[((size_t)slice * tiles + tile) * OUTPUTS + slot] = v;
            else
                out.put4(tile, slot, v);
        }
        if (SUM_BUFFERS == 2)
            buffer ^= 1;
        else
            __syncthreads();
    }
    if (ARGMAX && slices == 1 && threadIdx.x < OUTPUTS) out.finish(threadIdx.x, result);
}

// Adds the slices of a split product in order; OUTPUTS threads a block.
extern "C" __global__ void __launch_bounds__(OUTPUTS)
combine(const float4* __restrict__ partial, int slices, int tiles, void* y, int rows, int tokens, int y_stride, u64* result) {
#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    Output out = {y, rows, tokens, y_stride, {0, 0}};
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const float4* from = partial + (size_t)tile * OUTPUTS + threadIdx.x;
        float4 v = from[0];
        for (int s = 1; s < slices; s++) {
            float4 u = from[(size_t)s * tiles * OUTPUTS];
            v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
        }
        out.put4(tile, threadIdx.x, v);
    }
    out.finish(threadIdx.x, result);
}
