kernel void rotary_0(
    device const float *x0 [[buffer(0)]],
    device const float *x1 [[buffer(1)]],
    device const float *x2 [[buffer(2)]],
    device float *y0 [[buffer(3)]],
    uint3 at [[thread_position_in_grid]])
{
    const int i0 = int(at.z);
    const int i1 = int(at.y);
    const int i2 = int(at.x);
    const float v0 = x0[i1 * 8 + i2 + i0 * 40];
    const float v1 = x1[i1 * 8 + i2];
    const float v2 = v0 * v1;
    const long v3 = i2;
    const bool v4 = v3 < 4L;
    const float v5 = v4 ? x0[i1 * 8 + i2 + i0 * 40 + 4] : 0;
    const float v6 = -v5;
    const long v7 = i2;
    const bool v8 = v7 >= 4L;
    const float v9 = !v4 && v8 ? x0[i1 * 8 + i2 + i0 * 40 + (-4)] : 0;
    const float v10 = v8 ? v9 : 0.0f;
    const float v11 = v4 ? v6 : v10;
    const float v12 = x2[i1 * 8 + i2];
    const float v13 = v11 * v12;
    const float v14 = v2 + v13;
    y0[i1 * 8 + i2 + i0 * 40] = v14;
}
