kernel void custom_gelu_0(
    device const float *x0 [[buffer(0)]],
    device float *y0 [[buffer(1)]],
    uint3 at [[thread_position_in_grid]])
{
    const int i0 = int(at.x);
    const float v0 = x0[i0];
    const float v1 = v0 * 0.5f;
    const float v2 = v0 * 0.70710677f;
    const float v3 = erf_f32(v2);
    const float v4 = v3 + 1.0f;
    const float v5 = v1 * v4;
    y0[i0] = v5;
}
