"""What generated C costs beyond its own work: compiling, loading, calling.

    python benchmarks/toolchain.py

A one-line kernel is compiled into an empty cache folder and found again in it, each in a new process, after
`import torch` and after the compiler has been found. The calls pass 4 tensors and 6 integers to an empty
kernel, in every way that ctypes offers; the ways alternate, and the least of the repeats counts.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable

import torch

from burnt.codegen.runtime.c_compiler import PREAMBLE
from burnt.codegen.runtime.c_library import launcher, load

ONE_LINE = """
void add(const burnt_arg *a) {
    float *restrict y = a[0].p; const float *restrict x = a[1].p; int64_t n = a[2].i;
    #pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}
"""
EMPTY = """
void packed(const burnt_arg *a) { (void)a; }
void plain(void *p, void *q, void *r, void *s,
           int64_t i, int64_t j, int64_t k, int64_t l, int64_t m, int64_t n) {
    (void)p; (void)q; (void)r; (void)s; (void)i; (void)j; (void)k; (void)l; (void)m; (void)n;
}
"""
CHILD = """
import json, sys, time
import torch
from burnt.codegen import toolchain
seconds = []
for step in (toolchain.find_compiler, lambda: toolchain.load(sys.argv[1], ["add"]),
             lambda: toolchain.load(sys.argv[1], ["add"])):
    start = time.perf_counter()
    step()
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
"""


def process(folder: str) -> list[float]:
    """Seconds to find the compiler, to load, and to load again, in a new process."""
    code = [sys.executable, "-c", CHILD, PREAMBLE + ONE_LINE]
    done = subprocess.run(
        code, env={**os.environ, "BURNT_CACHE": folder}, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def loading(rounds: int = 5) -> None:
    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(process(folder))
            warm.append(process(folder))
    rows = [
        ("find the compiler, first time on the machine", cold, 0),
        ("find the compiler, later processes", warm, 0),
        ("load, compiled", cold, 1),
        ("load, from the folder", warm, 1),
        ("load, again in the process", warm, 2),
    ]
    for name, runs, step in rows:
        times = sorted(run[step] * 1e3 for run in runs)
        print(f"{name:<46} {statistics.median(times):9.3f} ms   ({times[0]:.3f} to {times[-1]:.3f})")


def ways() -> dict[str, Callable[[], object]]:
    library = load(PREAMBLE + EMPTY, ["packed"])
    t0, t1, t2, t3 = (torch.ones(4) for _ in range(4))

    plain = ctypes.CDLL(str(library.path)).plain
    plain.restype, plain.argtypes = None, [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 6
    i0, i1, i2, i3, i4, i5 = (ctypes.c_int64(i) for i in range(6))

    address = ctypes.CDLL(str(library.path)).packed
    address.restype, address.argtypes = None, [ctypes.c_void_p]
    kind = ctypes.c_int64 * 10
    reused = kind()
    place, fill = ctypes.addressof(reused), struct.Struct("10q").pack_into

    call = launcher(library["packed"], pointers=4, ints=6)

    def pointers() -> None:
        t0.data_ptr(), t1.data_ptr(), t2.data_ptr(), t3.data_ptr()

    def argtypes() -> None:
        plain(t0.data_ptr(), t1.data_ptr(), t2.data_ptr(), t3.data_ptr(), 0, 1, 2, 3, 4, 5)

    def prepared() -> None:
        plain(t0.data_ptr(), t1.data_ptr(), t2.data_ptr(), t3.data_ptr(), i0, i1, i2, i3, i4, i5)

    def new_array() -> None:
        address(kind(t0.data_ptr(), t1.data_ptr(), t2.data_ptr(), t3.data_ptr(), 0, 1, 2, 3, 4, 5))

    def reused_array() -> None:
        fill(reused, 0, t0.data_ptr(), t1.data_ptr(), t2.data_ptr(), t3.data_ptr(), 0, 1, 2, 3, 4, 5)
        address(place)

    def launched() -> None:
        call(t0.data_ptr(), t1.data_ptr(), t2.data_ptr(), t3.data_ptr(), 0, 1, 2, 3, 4, 5)

    return {
        "four data_ptr() alone": pointers,
        "argtypes": argtypes,
        "argtypes, integers prepared": prepared,
        "a new array": new_array,
        "one reused array (not thread-safe)": reused_array,
        "launcher: packed bytes": launched,
        "for comparison: torch.empty_like": lambda: torch.empty_like(t0),
        "for comparison: torch.add of 4 numbers": lambda: torch.add(t0, t1),
    }


def calling(number: int = 20_000, repeats: int = 15) -> None:
    functions = ways()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            best[name] = min(best[name], timeit.timeit(function, number=number) / number)
    for name, seconds in best.items():
        print(f"{name:<46} {seconds * 1e6:9.2f} us")


if __name__ == "__main__":
    loading()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BURNT_CACHE"] = folder
        calling()
