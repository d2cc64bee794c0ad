// Y[tokens, rows] = X[tokens, cols] W[rows, cols]^T for few tokens, on tensor cores, streaming W once.
//
// One block of WARPS warps stays on a multiprocessor. It keeps its slice of X in shared memory and walks over tiles of 16
// rows; the warps share the columns of a tile and add up at its end, always in the same order. Each warp has its own ring
// of asynchronous copies, which runs on across tiles, so that memory never waits for a sum. The weights are operand A
// (16 rows) of mma.m16n8k16 and go from the ring straight into its registers; the tokens are operand B, eight at a time.
// Which columns a thread owns is free, as long as both operands agree: thread t of four takes columns 8t..8t+7 of each
// 32, so that operand B is one 16-byte read and a bf16 matrix can be read row by row as it lies.
//
// Macros beside those of common.cuh: WARPS, STAGES, SUM_BUFFERS.

#define CHAINS (TOKEN_TILES == 1 ? 2 : 1)

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}


extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
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
    const u64 policy = stream_policy();

    int ahead_tile = count ? blockIdx.x / slices : tiles, ahead = 0, write_stage = 0;
    auto prefetch = [&]() {
        uint4* slot = ring + write_stage * WORDS * 32;
        if (ahead_tile < tiles) {
            copy_block(slot + lane, weight, ahead_tile, begin + ahead, rows, cols, blocks, lane, policy);
            if (++ahead == count) ahead = 0, ahead_tile += step;
        }
        if (++write_stage == STAGES) write_stage = 0;
    };

#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        prefetch();
        copy_commit();
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
    auto emit = [&](int tile, int slot, float4 v) {
        if (partial)
            partial[((size_t)slice * tiles + tile) * OUTPUTS + slot] = v;
        else
            out.put4(tile, slot, v);
    };
    int read_stage = 0, buffer = 0;
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
            copy_wait<STAGES - 2>();
            const u32 slot = shared_address(ring + read_stage * WORDS * 32 + lane);
            uint4 q[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; i++) q[i] = read16(slot + i * 512);
            if (++read_stage == STAGES) read_stage = 0;
            prefetch();
            copy_commit();
            u32 a[4][4];
#if PACKED
            decode_block(a, q, upper, lower);
            if (has >> b & 1) {
                int end = __shfl_sync(FULL, start_now, b + 1) - first;
                for (int e = __shfl_sync(FULL, start_now, b) - first; e < end; e++)
                    patch(a, e < 32 ? __shfl_sync(FULL, escape_now, e) : __ldg(escapes + first + e), lane);
            }
#else
            rows_to_registers(a, q);
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
            for (int w = 1; w < WARPS; w++) v = add(v, sums[(buffer * WARPS + w) * OUTPUTS + slot]);
            emit(tile, slot, v);
        }
        if (SUM_BUFFERS == 2)
            buffer ^= 1;
        else
            __syncthreads();
    }
    if (ARGMAX && !partial && threadIdx.x < OUTPUTS) out.finish(threadIdx.x, result);
}
