kernel void column_sum_0(
    device const float *x0 [[buffer(0)]],
    device float *y0 [[buffer(1)]],
    uint3 at [[thread_position_in_grid]])
{
    threadgroup float r0_shared[8][32];
    const int i0 = int(at.x);
    const int lane = at.y;
    float r0 = 0, r0_low = 0;
    for (int i1 = lane; i1 < 500; i1 += 8) {
        const float v0 = x0[i1 * 70 + i0];
        add_compensated(r0, r0_low, v0);
    }
    r0 = compensated_sum(r0, r0_low);
    r0_shared[lane][at.x % 32] = r0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    r0 = r0_shared[0][at.x % 32];
    for (int part = 1; part < 8; part++) {
        r0 = r0 + r0_shared[part][at.x % 32];
    }
    if (lane == 0) {
        y0[i0] = r0;
    }
}
