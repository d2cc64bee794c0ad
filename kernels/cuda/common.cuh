// What the skinny products share: copies, the decode of 12-bit weights, and where sums go. Compiled in front of each kernel.
//
// Macros: PACKED (1: 12-bit weights, 0: bf16 rows), TOKEN_TILES, CLUSTER (blocks in a cluster), FLOAT_OUT, ARGMAX, OVERLAP (1: may start before the
// previous kernel ends, sm_90).

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

#define FULL 0xFFFFFFFFu
#define WORDS (PACKED ? 3 : 4)
#define OUTPUTS (TOKEN_TILES * 32)

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes, or fills with zeros.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// The same for weights: they are read once and leave the cache first.
__device__ __forceinline__ void stream16(u32 to, const void* from, bool valid, u64 policy) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes),
                 "l"(policy)
                 : "memory");
}
__device__ __forceinline__ u64 stream_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
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

__device__ __forceinline__ void decode_block(u32 (*a)[4], const uint4* q, u32 upper, u32 lower) {
    decode(a[0], q[0].x, q[0].y, q[0].z, upper, lower);
    decode(a[1], q[0].w, q[1].x, q[1].y, upper, lower);
    decode(a[2], q[1].z, q[1].w, q[2].x, upper, lower);
    decode(a[3], q[2].y, q[2].z, q[2].w, upper, lower);
}

// Eight neighbouring bf16 of rows g (q[0], q[2]) and g + 8 (q[1], q[3]), for both halves of a block.
__device__ __forceinline__ void rows_to_registers(u32 (*a)[4], const uint4* q) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint4 top = q[2 * j], low = q[2 * j + 1];
        a[2 * j][0] = top.x, a[2 * j][2] = top.y, a[2 * j + 1][0] = top.z, a[2 * j + 1][2] = top.w;
        a[2 * j][1] = low.x, a[2 * j][3] = low.y, a[2 * j + 1][1] = low.z, a[2 * j + 1][3] = low.w;
    }
}

// Starts the copy of this lane's part of one 16 x 64 block.
__device__ __forceinline__ void copy_block(uint4* to, const uint4* weight, int tile, int block, int rows, int cols, int blocks,
                                           int lane, u64 policy) {
#if PACKED
    const uint4* from = weight + ((size_t)tile * blocks + block) * 96 + lane;
#pragma unroll
    for (int q = 0; q < 3; q++) stream16(shared_address(to + q * 32), from + q * 32, true, policy);
#else
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const int row = min(tile * 16 + (q & 1) * 8 + lane / 4, rows - 1), col = block * 64 + (q >> 1) * 32 + lane % 4 * 8;
        const bool valid = col < cols;
        stream16(shared_address(to + q * 32), (const u16*)weight + (size_t)row * cols + (valid ? col : 0), valid, policy);
    }
#endif
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

__device__ __forceinline__ float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

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
            v = add(v, from[(size_t)s * tiles * OUTPUTS]);
        }
        out.put4(tile, threadIdx.x, v);
    }
    out.finish(threadIdx.x, result);
}
