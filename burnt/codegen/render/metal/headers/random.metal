/* Counter-based random numbers: Philox4x32-10 as in c/headers/random.h, with 32-bit products and mulhi. */

/* The i-th word of a stream: word i % 4 of counter i / 4. */
inline uint32_t philox_word(long seed, long i, uint32_t stream) {
    uint32_t x = (uint32_t)((ulong)i >> 2), y = (uint32_t)((ulong)i >> 34), z = stream, w = 0;
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)((ulong)seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint32_t high_x = mulhi(x, 0xd2511f53u), high_z = mulhi(z, 0xcd9e8d57u);
        const uint32_t low_x = x * 0xd2511f53u, low_z = z * 0xcd9e8d57u;
        x = high_z ^ y ^ key0, y = low_z, z = high_x ^ w ^ key1, w = low_x;
        key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
    }
    const uint32_t low = i & 1 ? y : x, high = i & 1 ? w : z;
    return i & 2 ? high : low;
}

/* Uniform in [0, 1): a multiple of 2^-24, from the upper 24 bits of a word. */
inline float uniform_f32(long seed, long i, uint32_t stream) {
    return (float)(philox_word(seed, i, stream) >> 8) * 5.9604644775390625e-08f;
}

/* An integer in [0, bound), for bounds up to 2^32. */
inline long random_below(long seed, long i, uint32_t stream, ulong bound) {
    return (long)(philox_word(seed, i, stream) * bound >> 32);
}
