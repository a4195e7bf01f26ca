/* Enough of metal_stdlib to run generated Metal as C++ on one thread.
 *
 * The threads of a threadgroup are fibers, resumed in alternating order: forwards, then backwards. A fiber passes
 * a barrier or a shuffle once all fibers have reached it. Threadgroup memory is filled with garbage before each
 * group. Buffers know their sizes. Errors are recorded in `failure` and returned to Python.
 *
 * Generated source is put into namespace metal, where these names take precedence over those of C.
 */
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>

#define kernel
#define constant const
#define thread
#define threadgroup static __attribute__((section("threadgroup_memory")))

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

extern "C" char __start_threadgroup_memory[] __attribute__((visibility("hidden")));
extern "C" char __stop_threadgroup_memory[] __attribute__((visibility("hidden")));
static __attribute__((section("threadgroup_memory"), used)) int at_least_this;

namespace metal {

struct uint3 {
    uint x, y, z;
};
struct int2 {
    int x, y;
};

typedef _Float16 half;

struct bfloat {
    uint16_t bits;
    bfloat() = default;
    explicit bfloat(float x) {
        uint32_t u;
        memcpy(&u, &x, 4);
        bits = x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    explicit operator float() const {
        uint32_t u = (uint32_t)bits << 16;
        float x;
        memcpy(&x, &u, 4);
        return x;
    }
};

template <typename T, typename F> inline T as_type(F from) {
    static_assert(sizeof(T) == sizeof(F), "as_type between types of one size");
    T to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline float fabs(float x) { return __builtin_fabsf(x); }
inline float floor(float x) { return __builtin_floorf(x); }
inline float ceil(float x) { return __builtin_ceilf(x); }
inline float trunc(float x) { return __builtin_truncf(x); }
inline float rint(float x) { return __builtin_rintf(x); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float copysign(float x, float y) { return __builtin_copysignf(x, y); }
template <typename T> inline T min(T x, T y) { return y < x ? y : x; }
template <typename T> inline T max(T x, T y) { return x < y ? y : x; }
inline uint mulhi(uint x, uint y) { return (uint)((ulong)x * y >> 32); }
namespace precise {
inline float sqrt(float x) { return __builtin_sqrtf(x); }
} // namespace precise

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

/* ---- errors ------------------------------------------------------------------------------------------- */

static char failure[200];

inline void fail(const char *what, long found, long expected) {
    if (!failure[0])
        snprintf(failure, sizeof failure, "%s: %ld, expected %ld", what, found, expected);
}

template <typename T> struct checked {
    T *data;
    long size;
    T &operator[](long i) const {
        if (i >= 0 && i < size)
            return data[i];
        fail("an index out of bounds", i, size);
        static std::remove_const_t<T> nowhere;
        return nowhere;
    }
};

/* ---- threads ------------------------------------------------------------------------------------------ */

const int SIMD = 32, MOST = 1024;
const size_t STACK = 64 << 10;

struct fiber {
    ucontext_t context;
    bool done;
    long barriers, shuffles;
};

static fiber fibers[MOST];
static ucontext_t scheduler;
static int current, count;
static long progress;
static uint64_t slots[2][MOST];
static void (*body)(uint3);
static uint3 places[MOST];

inline void pause() { swapcontext(&fibers[current].context, &scheduler); }

inline void start() {
    body(places[current]);
    fibers[current].done = true;
    progress++;
    pause();
}

inline void threadgroup_barrier(mem_flags) {
    const long mine = ++fibers[current].barriers;
    progress++;
    for (bool all = false; !all && !failure[0];) {
        pause();
        all = true;
        for (int i = 0; i < count; i++)
            all &= fibers[i].barriers >= mine;
    }
}

/* The value that thread `other` of the same simdgroup passes. */
template <typename T> inline T of_thread(T x, int other) {
    const int first = current / SIMD * SIMD;
    const long mine = ++fibers[current].shuffles;
    progress++;
    memcpy(&slots[mine & 1][current], &x, sizeof x);
    if (first + SIMD > count)
        fail("a shuffle in a simdgroup without all lanes", count - first, SIMD);
    for (bool all = false; !all && !failure[0];) {
        pause();
        all = true;
        for (int i = first; i < first + SIMD; i++)
            all &= fibers[i].shuffles >= mine;
    }
    T there;
    memcpy(&there, &slots[mine & 1][other], sizeof there);
    return there;
}

template <typename T> inline T simd_shuffle_xor(T x, ushort mask) { return of_thread(x, current ^ mask); }

template <typename T> inline T simd_shuffle_up(T x, ushort distance) {
    return of_thread(x, current % SIMD < distance ? current : current - distance);
}

template <typename T> inline T simd_shuffle(T x, ushort lane) { return of_thread(x, current / SIMD * SIMD + lane); }

inline void run_group(char *stacks) {
    for (int i = 0; i < count; i++) {
        fiber &f = fibers[i];
        f.done = false;
        f.barriers = f.shuffles = 0;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = stacks + i * STACK;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = &scheduler;
        makecontext(&f.context, start, 0);
    }
    memset(__start_threadgroup_memory, 0x7f, __stop_threadgroup_memory - __start_threadgroup_memory);
    for (int pass = 0, idle = 0, left = count; left && !failure[0]; pass++) {
        const long before = progress;
        left = 0;
        for (int i = 0; i < count; i++) {
            current = pass % 2 ? count - 1 - i : i;
            if (!fibers[current].done)
                swapcontext(&scheduler, &fibers[current].context);
            left += !fibers[current].done;
        }
        /* The last fiber to arrive releases the others in the next pass. */
        idle = left && progress == before ? idle + 1 : 0;
        if (idle > 2)
            fail("threads that wait for others, who are gone or elsewhere", left, 0);
    }
}

/* Run all groups of a grid, one after the other. Kernels whose threads do not communicate need no
 * fibers. */
inline void run(void (*what)(uint3), const uint *threads, const uint *group, bool together) {
    failure[0] = 0;
    body = what;
    char *stacks = nullptr;
    if (together)
        stacks = (char *)mmap(nullptr, MOST * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint z = 0; z < threads[2]; z += group[2])
        for (uint y = 0; y < threads[1]; y += group[1])
            for (uint x = 0; x < threads[0]; x += group[0]) {
                count = 0;
                for (uint k = z; k < min(z + group[2], threads[2]); k++)
                    for (uint j = y; j < min(y + group[1], threads[1]); j++)
                        for (uint i = x; i < min(x + group[0], threads[0]); i++) {
                            if (!together)
                                body({i, j, k});
                            else
                                places[count++] = {i, j, k};
                        }
                if (together)
                    run_group(stacks);
                if (failure[0])
                    z = threads[2] - 1, y = threads[1] - 1, x = threads[0] - 1;
            }
    if (together)
        munmap(stacks, MOST * STACK);
}

} // namespace metal
