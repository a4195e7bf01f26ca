kernel void softmax_0(
    device const float *x0 [[buffer(0)]],
    device float *y0 [[buffer(1)]],
    uint3 at [[thread_position_in_grid]])
{
    const int lane = at.x % 32;
    const int row = int(at.x / 32);
    const int i0 = row;
    float r0 = (-INFINITY);
    for (int i1 = lane; i1 < 53; i1 += 32) {
        const float v0 = x0[i0 * 53 + i1];
        r0 = maximum_f32(r0, v0);
    }
    for (ushort distance = 16; distance > 0; distance /= 2) {
        r0 = maximum_f32(r0, shuffle_xor(r0, distance));
    }
    float r1 = 0, r1_low = 0;
    for (int i1 = lane; i1 < 53; i1 += 32) {
        const float v1 = x0[i0 * 53 + i1];
        const float v2 = v1 - r0;
        const float v3 = exp_f32(v2);
        add_compensated(r1, r1_low, v3);
    }
    r1 = compensated_sum(r1, r1_low);
    for (ushort distance = 16; distance > 0; distance /= 2) {
        r1 = r1 + shuffle_xor(r1, distance);
    }
    for (int i1 = lane; i1 < 53; i1 += 32) {
        const float v4 = x0[i0 * 53 + i1];
        const float v5 = v4 - r0;
        const float v6 = exp_f32(v5);
        const float v7 = 1 / r1;
        const float v8 = v6 * v7;
        y0[i0 * 53 + i1] = v8;
    }
}
