/* Counter-based random numbers: Philox4x32-10 of Salmon et al., 2011, "Parallel random numbers: as easy as
 * 1, 2, 3". Philox is a pure function of counter and key, so that loops that call it can be vectorised, and a
 * backward pass can draw the same numbers again.
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

/* Four 32-bit words for a 128-bit counter and a 64-bit key. */
static inline philox_t philox(philox_t counter, uint32_t key0, uint32_t key1) {
    for (uint32_t i = 0; i < 10; i++)
        counter = philox_round(counter, key0 + i * 0x9e3779b9u, key1 + i * 0xbb67ae85u);
    return counter;
}

/* The i-th word of a stream: word i % 4 of counter i / 4. */
static inline uint32_t philox_word(int64_t seed, int64_t i, uint32_t stream) {
    philox_t counter = {(uint32_t)((uint64_t)i >> 2), (uint32_t)((uint64_t)i >> 34), stream, 0};
    philox_t words = philox(counter, (uint32_t)seed, (uint32_t)((uint64_t)seed >> 32));
    uint32_t lane = (uint32_t)i & 3u, low = lane & 1u ? words.y : words.x, high = lane & 1u ? words.w : words.z;
    return lane & 2u ? high : low;
}

/* One counter for each 64-bit lane of a vector. For a 64-bit product, compilers emit three multiplications, as they
 * do not know that the operands' upper halves are irrelevant. So the instruction that multiplies the lower halves
 * is called explicitly.
 */
#if defined(__AVX512F__)
#define PHILOX_LANES 8
typedef uint64_t philox_wide __attribute__((vector_size(64)));
typedef int philox_halves __attribute__((vector_size(64)));
#ifdef __clang__
#define philox_product(a, b) ((philox_wide)__builtin_ia32_pmuludq512((philox_halves)(a), (philox_halves)(b)))
#else
typedef long long philox_signed __attribute__((vector_size(64)));
#define philox_product(a, b) \
    ((philox_wide)__builtin_ia32_pmuludq512_mask((philox_halves)(a), (philox_halves)(b), (philox_signed){0}, -1))
#endif
#define PHILOX_ORDER 0, 4, 1, 5, 2, 6, 3, 7
#define PHILOX_EVEN 0, 8, 2, 10, 4, 12, 6, 14
#define PHILOX_ODD 1, 9, 3, 11, 5, 13, 7, 15
#elif defined(__AVX2__)
#define PHILOX_LANES 4
typedef uint64_t philox_wide __attribute__((vector_size(32)));
typedef int philox_halves __attribute__((vector_size(32)));
#define philox_product(a, b) ((philox_wide)__builtin_ia32_pmuludq256((philox_halves)(a), (philox_halves)(b)))
#define PHILOX_ORDER 0, 2, 1, 3
#define PHILOX_EVEN 0, 4, 2, 6
#define PHILOX_ODD 1, 5, 3, 7
#endif

#ifdef PHILOX_LANES
#ifdef __clang__
#define philox_lanes(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define philox_lanes(a, b, ...) __builtin_shuffle(a, b, (philox_wide){__VA_ARGS__})
#endif

/* The words of two vectors of counters. Between rounds, the upper halves of x, y, z and w are not read. */
static inline void philox_pair(uint32_t *words, int64_t seed, int64_t counter, uint32_t stream) {
    const philox_wide zero = {0}, low = zero + 0xffffffffu, order = {PHILOX_ORDER};
    philox_wide x[2], y[2], z[2], w[2];
    for (int j = 0; j < 2; j++) {
        philox_wide at = zero + (uint64_t)(counter + PHILOX_LANES * j) + order;
        x[j] = at, y[j] = at >> 32, z[j] = zero + stream, w[j] = zero;
    }
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)((uint64_t)seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < 2; j++) {
            philox_wide a = philox_product(x[j], zero + 0xd2511f53u), b = philox_product(z[j], zero + 0xcd9e8d57u);
            x[j] = (b >> 32) ^ (y[j] ^ (zero + key0)), y[j] = b;
            z[j] = (a >> 32) ^ (w[j] ^ (zero + key1)), w[j] = a;
        }
        key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
    }
    for (int j = 0; j < 2; j++) {
        philox_wide xy = (x[j] & low) | (y[j] << 32), zw = (z[j] & low) | (w[j] << 32);
        philox_wide even = philox_lanes(xy, zw, PHILOX_EVEN), odd = philox_lanes(xy, zw, PHILOX_ODD);
        __builtin_memcpy(words + 4 * PHILOX_LANES * j, &even, sizeof even);
        __builtin_memcpy(words + 4 * PHILOX_LANES * j + 2 * PHILOX_LANES, &odd, sizeof odd);
    }
}
#endif

/* The words of `count` consecutive counters, four for each. Lanes are as wide as the products. */
static inline void philox_fill(uint32_t *restrict words, int64_t seed, int64_t counter, int64_t count, uint32_t stream) {
    int64_t first = 0;
#ifdef PHILOX_LANES
    for (; first + 2 * PHILOX_LANES <= count; first += 2 * PHILOX_LANES)
        philox_pair(words + 4 * first, seed, counter + first, stream);
#endif
#pragma omp simd
    for (int64_t i = first; i < count; i++) {
        philox_t start = {(uint32_t)((uint64_t)(counter + i)), (uint32_t)((uint64_t)(counter + i) >> 32), stream, 0};
        philox_t four = philox(start, (uint32_t)seed, (uint32_t)((uint64_t)seed >> 32));
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
}

/* Uniform in [0, 1): a multiple of 2^-24, from the upper 24 bits. */
static inline float uniform_f32(uint32_t u) { return (float)(int32_t)(u >> 8) * 0x1p-24f; }

#endif
