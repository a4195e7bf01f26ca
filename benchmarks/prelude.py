"""The vector math of generated C next to torch's elementwise kernels: time per element, and the ratio.

    python benchmarks/prelude.py [--size 1048576] [--rounds 15]

One loop per function, compiled with the flags of generated kernels, on float32, outputs preallocated on both
sides; the two are timed in turn and the best of all rounds counts. Above 1 is faster than torch.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from burnt.codegen.render.c.prelude import source

FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp"]
UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf", "erfc", "sin", "cos",
    "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "rsqrt", "sqrt", "floor",
    "round", "sign",
]  # fmt: skip
BINARY = ["atan2", "pow", "fmod", "remainder", "maximum", "fmax", "copysign"]
HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}


def loop(name: str, function: str, result: str, *arguments: str) -> str:
    pointers = "".join(f"const {t} *restrict x{i}, " for i, t in enumerate(arguments))
    call = ", ".join(f"x{i}[i]" for i in range(len(arguments)))
    return (
        f"void {name}({result} *restrict y, {pointers}long n) {{\n"
        "#pragma omp parallel for simd schedule(static)\n"
        f"for (long i = 0; i < n; i++) y[i] = {function}({call}); }}\n"
    )


def compiled() -> tuple[ctypes.CDLL, float]:
    text = source()
    for name in UNARY:
        text += loop(f"loop_{name}", f"{name}_f32", "float", "float")
    for name in BINARY:
        text += loop(f"loop_{name}", f"{name}_f32", "float", "float", "float")
    for name in HALVES:
        text += loop(f"loop_from_{name}", f"f32_of_{name}", "float", "uint16_t")
        text += loop(f"loop_to_{name}", f"{name}_of_f32", "uint16_t", "float")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel"
        path.with_suffix(".c").write_text(text)
        start = time.perf_counter()
        subprocess.run(
            ["gcc", *FLAGS, "-shared", "-fPIC", f"{path}.c", "-o", f"{path}.so", "-lm"], check=True
        )
        seconds = time.perf_counter() - start
        return ctypes.CDLL(f"{path}.so"), seconds


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row(
    library: ctypes.CDLL, name: str, torchs: Callable[[], object], rounds: int, *tensors: torch.Tensor
) -> str:
    function = library[f"loop_{name}"]
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    count = ctypes.c_long(tensors[0].numel())
    cells = []
    for threads in (1, 2):
        # gcc's OpenMP runtime is the one torch has loaded, and takes its thread count.
        torch.set_num_threads(threads)
        pairs = [(seconds(torchs), seconds(lambda: function(*pointers, count))) for _ in range(rounds)]
        theirs, ours = (min(column) * 1e9 / tensors[0].numel() for column in zip(*pairs, strict=True))
        cells.append(f"{theirs:9.2f} {ours:9.2f} {theirs / ours:7.2f}")
    return f"{name:<12}" + "   ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    library, compile_seconds = compiled()
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {options.size} elements")
    print(f"all loops compiled in {compile_seconds:.2f} s; nanoseconds per element:")
    print(f"{'':<12}" + "   ".join(f"{f'torch, {n}':>9} {'burnt':>9} {'ratio':>7}" for n in (1, 2)))
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(options.size, generator=generator) * 4 + 0.1 for _ in range(2))
    out = torch.empty_like(x)
    for name in UNARY:
        # asin and its like get arguments they are defined for; the others more of their range.
        argument = x / 4.2 if name in ("asin", "acos", "atanh") else x
        call = getattr(torch, name)
        print(
            row(library, name, lambda call=call, x=argument: call(x, out=out), options.rounds, out, argument)
        )
    for name in BINARY:
        call = getattr(torch, name)
        operands = (y, x) if name == "pow" else (x, y)
        print(
            row(
                library, name, lambda call=call, o=operands: call(*o, out=out), options.rounds, out, *operands
            )
        )
    for name, dtype in HALVES.items():
        half = x.to(dtype)
        print(row(library, f"from_{name}", lambda h=half: out.copy_(h), options.rounds, out, half))
        print(row(library, f"to_{name}", lambda h=half: h.copy_(x), options.rounds, half, x))


if __name__ == "__main__":
    main()
