/* Counter-based random numbers: Philox4x32-10 of Salmon et al., 2011, "Parallel random numbers: as easy as
 * 1, 2, 3". A pure function of counter and key, so that a loop around it becomes SIMD and a backward pass
 * can draw the same numbers again.
 */
#ifndef BURNT_RANDOM_H
#define BURNT_RANDOM_H

#include <stdint.h>

typedef struct {
    uint32_t x, y, z, w;
} philox_t;

static inline philox_t philox_round(philox_t c, uint32_t key0, uint32_t key1) {
    uint64_t a = (uint64_t)0xd2511f53u * c.x;
    uint64_t b = (uint64_t)0xcd9e8d57u * c.z;
    return (philox_t){(uint32_t)(b >> 32) ^ c.y ^ key0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.w ^ key1, (uint32_t)a};
}

/* Four numbers for one counter of 128 bits under a key of 64. */
static inline philox_t philox(philox_t counter, uint32_t key0, uint32_t key1) {
    for (uint32_t i = 0; i < 10; i++)
        counter = philox_round(counter, key0 + i * 0x9e3779b9u, key1 + i * 0xbb67ae85u);
    return counter;
}

/* The i-th number of a stream: a word of the counter i / 4. */
static inline uint32_t philox_word(int64_t seed, int64_t i, uint32_t stream) {
    philox_t counter = {(uint32_t)((uint64_t)i >> 2), (uint32_t)((uint64_t)i >> 34), stream, 0};
    philox_t words = philox(counter, (uint32_t)seed, (uint32_t)((uint64_t)seed >> 32));
    uint32_t lane = (uint32_t)i & 3u, low = lane & 1u ? words.y : words.x, high = lane & 1u ? words.w : words.z;
    return lane & 2u ? high : low;
}

/* The words of `count` counters from one on, four for each. In lanes as wide as the products. */
static inline void philox_fill(uint32_t *restrict words, int64_t seed, int64_t counter, int64_t count, uint32_t stream) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = (uint64_t)(counter + i) & 0xffffffffu, y = (uint64_t)(counter + i) >> 32, z = stream, w = 0;
        uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)((uint64_t)seed >> 32);
        for (int round = 0; round < 10; round++) {
            uint64_t a = (x & 0xffffffffu) * 0xd2511f53u, b = (z & 0xffffffffu) * 0xcd9e8d57u;
            x = (b >> 32) ^ y ^ key0, y = b & 0xffffffffu, z = (a >> 32) ^ w ^ key1, w = a & 0xffffffffu;
            key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
        }
        words[4 * i] = (uint32_t)x, words[4 * i + 1] = (uint32_t)y;
        words[4 * i + 2] = (uint32_t)z, words[4 * i + 3] = (uint32_t)w;
    }
}

/* [0, 1), every multiple of 2^-24 alike: the upper 24 bits. */
static inline float uniform_f32(uint32_t u) { return (float)(int32_t)(u >> 8) * 0x1p-24f; }

#endif
