kernel void layer_norm_0(
    device const float *x0 [[buffer(0)]],
    device const float *x1 [[buffer(1)]],
    device const float *x2 [[buffer(2)]],
    device float *y0 [[buffer(3)]],
    uint3 at [[thread_position_in_grid]])
{
    threadgroup float r0_shared[8];
    threadgroup float r1_shared[8];
    const int lane = at.x % 256;
    const int row = int(at.x / 256);
    const int i0 = row;
    float r0 = 0, r0_low = 0;
    for (int i1 = lane; i1 < 530; i1 += 256) {
        const float v0 = x0[i0 * 530 + i1];
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
    float r1 = 0, r1_low = 0;
    for (int i1 = lane; i1 < 530; i1 += 256) {
        const float v1 = x0[i0 * 530 + i1];
        const long v2 = 530;
        const float v3 = float(v2);
        const float v4 = r0 / v3;
        const float v5 = v1 - v4;
        const float v6 = v5 * v5;
        add_compensated(r1, r1_low, v6);
    }
    r1 = compensated_sum(r1, r1_low);
    for (ushort distance = 16; distance > 0; distance /= 2) {
        r1 = r1 + shuffle_xor(r1, distance);
    }
    if (lane % 32 == 0) {
        r1_shared[at.x % 256 / 32] = r1;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    r1 = r1_shared[0];
    for (int part = 1; part < 8; part++) {
        r1 = r1 + r1_shared[part];
    }
    for (int i1 = lane; i1 < 530; i1 += 256) {
        const float v7 = x0[i0 * 530 + i1];
        const long v8 = 530;
        const float v9 = float(v8);
        const float v10 = r0 / v9;
        const float v11 = v7 - v10;
        const float v12 = r1 / v9;
        const float v13 = v12 + 1e-05f;
        const float v14 = rsqrt_f32(v13);
        const float v15 = v11 * v14;
        const float v16 = x1[i1];
        const float v17 = v15 * v16;
        const float v18 = x2[i1];
        const float v19 = v17 + v18;
        y0[i0 * 530 + i1] = v19;
    }
}
