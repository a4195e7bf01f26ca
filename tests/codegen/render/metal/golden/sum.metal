kernel void sum_0_part0(
    device const float *x0 [[buffer(0)]],
    device float *r0_chunks [[buffer(1)]],
    uint3 at [[thread_position_in_grid]])
{
    threadgroup float r0_shared[8];
    const int lane = at.x % 256;
    const int row = int(at.x / 256);
    const int chunk = at.y;
    float r0 = 0, r0_low = 0;
    for (int i0 = chunk * 1094 + lane; i0 < min((chunk + 1) * 1094, 70000); i0 += 256) {
        const float v0 = x0[i0];
        add_compensated(r0, r0_low, v0);
    }
    r0 = compensated_sum(r0, r0_low);
    for (ushort distance = 16; distance > 0; distance /= 2) {
        r0 = r0 + shuffle_xor(r0, distance);
    }
    if (lane % 32 == 0) {
        r0_shared[at.x % 256 / 32] = r0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    r0 = r0_shared[0];
    for (int part = 1; part < 8; part++) {
        r0 = r0 + r0_shared[part];
    }
    if (lane == 0) r0_chunks[chunk * 1 + row] = r0;
}

kernel void sum_0(
    device const float *r0_chunks [[buffer(0)]],
    device float *t1 [[buffer(1)]],
    uint3 at [[thread_position_in_grid]])
{
    const int lane = at.x % 256;
    const int row = int(at.x / 256);
    const int chunk = at.y;
    float r0 = 0, r0_low = 0;
    for (int part = 0; part < 64; part++) {
        add_compensated(r0, r0_low, r0_chunks[part * 1 + row]);
    }
    r0 = compensated_sum(r0, r0_low);
    if (lane == 0 && chunk == 0) {
        t1[0] = r0;
    }
}

kernel void sum_1(
    device const float *t1 [[buffer(0)]],
    device float *y0 [[buffer(1)]],
    uint3 at [[thread_position_in_grid]])
{
    const float v0 = t1[0];
    y0[0] = v0;
}
