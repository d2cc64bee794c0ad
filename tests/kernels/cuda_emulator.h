// Runs a CUDA kernel of this project on a CPU, one cluster after the other, every thread a coroutine. It is for indices and
// hand-overs, not for speed or memory ordering: copies are done at once, barriers and shuffles really wait for their threads.
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

using std::max;
using std::min;
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n)

struct uint4 { uint32_t x, y, z, w; };
struct float4 { float x, y, z, w; };
struct Index { int x; };
static uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Group {  // threads that meet; `at` remembers what each brought to the last two meetings
    int size = 0, arrived = 0;
    long meeting = 0;
    std::vector<uint64_t> at[2];
};
struct Block {
    std::vector<uint4> memory;
    uint4* shared;
    Group all;
    std::vector<Group> warps;
    int number;
};
struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    Block* block;
    Index tid, bid;
    long cluster_ticket = 0;
    bool done = false;
};
static Thread* now;
static ucontext_t scheduler;
static Index grid;
static std::vector<std::unique_ptr<Block>> cluster_blocks;
static Group cluster_group;
static std::function<void()> body;
#define threadIdx (now->tid)
#define blockIdx (now->bid)
#define gridDim grid

static void yield() { swapcontext(&now->context, &scheduler); }
static long arrive(Group& g) {
    const long ticket = g.meeting;
    if (++g.arrived == g.size) g.arrived = 0, g.meeting++;
    return ticket;
}
static void meet(Group& g) {
    const long ticket = arrive(g);
    while (g.meeting == ticket) yield();
}
static Group& warp_group() { return now->block->warps[now->tid.x / 32]; }
static uint64_t from_lane(uint64_t mine, int lane) {
    Group& g = warp_group();
    auto& at = g.at[g.meeting & 1];
    at[now->tid.x & 31] = mine;
    meet(g);
    return at[lane];
}
template <class T> static T __shfl_sync(uint32_t, T v, int lane) { return (T)from_lane((uint64_t)v, lane & 31); }
template <class T> static T __shfl_xor_sync(uint32_t, T v, int step) { return (T)from_lane((uint64_t)v, (now->tid.x & 31) ^ step); }
template <class T> static T __shfl_down_sync(uint32_t, T v, int step) {
    const int lane = now->tid.x & 31;
    return (T)from_lane((uint64_t)v, lane + step < 32 ? lane + step : lane);
}
static uint32_t __ballot_sync(uint32_t, bool v) {
    Group& g = warp_group();
    auto& at = g.at[g.meeting & 1];
    at[now->tid.x & 31] = v;
    meet(g);
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (uint32_t)at[i] << i;
    return bits;
}
static void __syncwarp() { meet(warp_group()); }
static void __syncthreads() { meet(now->block->all); }
static void cluster_arrive() { now->cluster_ticket = arrive(cluster_group); }
static void cluster_wait() { while (cluster_group.meeting == now->cluster_ticket) yield(); }
static void __trap() { abort(); }
template <class T> static T __ldg(const T* p) { return *p; }
static void atomicMax(unsigned long long* p, unsigned long long v) { *p = max(*p, v); }
static uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static uint32_t __funnelshift_l(uint32_t low, uint32_t high, int by) { return (uint32_t)((((uint64_t)high << 32 | low) << by) >> 32); }
static uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t pick) {
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) d |= (uint32_t)(all >> 8 * (pick >> 4 * i & 7) & 255) << 8 * i;
    return d;
}

// What the kernels do in PTX.
static uint32_t shared_address(const void* p) { return (uint32_t)((const char*)p - (const char*)now->block->shared) + 1024; }
static char* shared_pointer(uint32_t at) { return (char*)now->block->shared + at - 1024; }
static void copy16(uint32_t to, const void* from, bool valid) { valid ? memcpy(shared_pointer(to), from, 16) : memset(shared_pointer(to), 0, 16); }
static void stream16(uint32_t to, const void* from, bool valid, uint64_t) { copy16(to, from, valid); }
static uint64_t stream_policy() { return 0; }
static void copy_commit() {}
template <int N> static void copy_wait() {}
static uint4 read16(uint32_t at) { uint4 v; memcpy(&v, shared_pointer(at), 16); return v; }
static uint32_t select_bits(uint32_t a, uint32_t b, uint32_t mask) { return (a & mask) | (b & ~mask); }
static float wide_of(uint32_t half) { return __uint_as_float(half << 16); }
static uint16_t to_bf16(float v) {
    const uint32_t u = __float_as_uint(v);
    return v != v ? 0x7FFF : (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
static uint32_t scale_pair(uint32_t pair, uint32_t scale) {
    const uint32_t low = to_bf16(wide_of(pair & 0xFFFF) * wide_of(scale & 0xFFFF)), high = to_bf16(wide_of(pair >> 16) * wide_of(scale >> 16));
    return high << 16 | low;
}
// Operand A of a warp's 16 x 16 fragment: row, column.
struct OperandA {
    float at[16][16];
    explicit OperandA(const uint32_t* a) {
        for (int i = 0; i < 4; i++)
            for (int lane = 0, mine = a[i]; lane < 32; lane++) {
                const uint32_t pair = (uint32_t)from_lane((uint32_t)mine, lane);
                const int row = lane / 4 + i % 2 * 8, col = lane % 4 * 2 + i / 2 * 8;
                at[row][col] = wide_of(pair & 0xFFFF), at[row][col + 1] = wide_of(pair >> 16);
            }
    }
};
static void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    const OperandA x(a);
    float b[16][8];
    for (int i = 0; i < 2; i++)
        for (int lane = 0; lane < 32; lane++) {
            const uint32_t pair = (uint32_t)from_lane(i ? b1 : b0, lane);
            b[lane % 4 * 2 + i * 8][lane / 4] = wide_of(pair & 0xFFFF), b[lane % 4 * 2 + i * 8 + 1][lane / 4] = wide_of(pair >> 16);
        }
    const int lane = now->tid.x & 31;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) c[i] += x.at[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
}
static void wgmma(float* c, const uint32_t* a, uint64_t descriptor) {
    const OperandA x(a);
    const int lane = now->tid.x & 31;
    const uint32_t start = (uint32_t)(descriptor & 0x3FFF) << 4, group = (uint32_t)(descriptor >> 32 & 0x3FFF) << 4;
    if (descriptor >> 62 != 1) abort();  // the 128-byte swizzle
    for (int i = 0; i < TOKEN_TILES * 4; i++) {
        const int row = lane / 4 + i % 4 / 2 * 8, token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            uint32_t at = start + token / 8 * group + token % 8 * 128 + k * 2;
            at ^= (at >> 7 & 7) << 4;
            uint16_t b;
            memcpy(&b, shared_pointer(at), 2);
            c[i] += x.at[row][k] * wide_of(b);
        }
    }
}
static void pin(float*) {}
static void send(const float4* to, int owner, float4 v) {
    Block& block = *cluster_blocks[owner];
    memcpy((char*)block.shared + ((const char*)to - (const char*)now->block->shared), &v, 16);
}

static void enter() {
    body();
    now->done = true;
    yield();
}
static void launch(int blocks, int cluster, int threads, size_t bytes, std::function<void()> kernel) {
    body = kernel, grid.x = blocks;
    for (int first = 0; first < blocks; first += cluster) {
        cluster_blocks.clear();
        cluster_group = Group();
        cluster_group.size = cluster * threads;
        std::vector<std::unique_ptr<Thread>> all;
        for (int b = 0; b < cluster; b++) {
            auto block = std::make_unique<Block>();
            block->memory.resize(bytes / 16 + 65, make_uint4(0x7FC07FC0, 0x7FC07FC0, 0x7FC07FC0, 0x7FC07FC0));  // NaN
            block->shared = (uint4*)(((uintptr_t)block->memory.data() + 1023) / 1024 * 1024);
            block->all.size = threads, block->number = first + b;
            block->warps.resize(threads / 32);
            for (auto& warp : block->warps) warp.size = 32, warp.at[0].resize(32), warp.at[1].resize(32);
            for (int t = 0; t < threads; t++) {
                all.push_back(std::make_unique<Thread>());
                Thread& thread = *all.back();
                thread.stack.resize(1 << 15), thread.block = block.get(), thread.tid.x = t, thread.bid.x = first + b;
                getcontext(&thread.context);
                thread.context.uc_stack.ss_sp = thread.stack.data(), thread.context.uc_stack.ss_size = thread.stack.size();
                thread.context.uc_link = nullptr;
                makecontext(&thread.context, enter, 0);
            }
            cluster_blocks.push_back(std::move(block));
        }
        for (bool busy = true; busy;) {
            busy = false;
            for (auto& thread : all)
                if (!thread->done) busy = true, now = thread.get(), swapcontext(&scheduler, &thread->context);
        }
    }
}
