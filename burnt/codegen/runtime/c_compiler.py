"""Find a working C compiler, choose its flags, and link against the OpenMP runtime that torch uses.

Caching, loading and calling libraries is in `burnt.codegen.runtime.c_library`.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from burnt import _files, _torch
from burnt.codegen.runtime import build_cache
from burnt.errors import CompileError

ALLOW_FMA = """
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif
"""
"""A pragma that allows fused multiply-add, for kernels whose values no other kernel recomputes."""

PREAMBLE = """\
#include <math.h>
#include <stdint.h>
typedef union { void *p; int64_t i; double f; } burnt_arg;
"""
"""The first lines of every generated source."""

CFunction = Callable[[bytes], None]
"""A compiled ``void name(const burnt_arg *a)``."""

CACHE_FORMAT = "burnt-c-1"
"""Part of every cache key: the version of how libraries are built and stored."""
COMPILE_TIMEOUT = 300.0
"""Seconds. A kernel compiles in a fraction of one; a compiler on a slow network file system takes longer."""
ERROR_LINES = 8
_CRASH_MESSAGES = ("internal compiler error", "PLEASE submit a bug report")  # of gcc and of clang
_LOWER_OPTIMIZATION = (
    "-O2"  # gcc 12 crashes on some loops of 16-bit floats for AVX-512 with -O3, but not with -O2
)
# Two memory mappings per library instead of five: Linux allows a process 65,530. The gold linker lacks these.
_FEW_MAPPINGS = "-Wl,-z,noseparate-code,-z,norelro"

UNSAFE_FLAGS = frozenset(
    (
        *("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "-mdaz-ftz"),
        *("-fassociative-math", "-freciprocal-math", "-fno-signed-zeros"),
    )
)
"""Flags that let a compiler assume there is no NaN, infinity or signed zero, or make it link crtfastmath.o,
which turns off denormals in the whole process when the library is loaded."""

PROBE = """
#ifndef _OPENMP
#error "OpenMP is off"
#endif
int omp_get_max_threads(void);
void probe(const burnt_arg *a) {
    int64_t ran = 0;
    /* One thread: it must not wait for a pool that a fork has taken away. */
    #pragma omp parallel num_threads(1) reduction(+ : ran)
    ran += 1;
    *(int64_t *)a[0].p = ran * omp_get_max_threads() + a[1].i + (int64_t)a[2].f;
}
"""


@dataclass(frozen=True)
class Compiler:
    """A C compiler that was tested: it compiled an OpenMP library that ran in this process."""

    command: tuple[str, ...]  # its path, and the arguments that follow it in ``$BURNT_CC`` or ``$CC``
    kind: str  # ``gcc``, ``clang`` or ``other``
    version: str  # the first line of what ``--version`` prints

    @property
    def path(self) -> str:
        """The path of the program."""
        return self.command[0]


def find_compiler() -> Compiler | None:
    """Return the first C compiler that works of ``$BURNT_CC``, ``$CC``, gcc, clang and cc, or None.

    It must compile a parallel region into a library that runs on torch's OpenMP runtime and on no other. The
    search runs once per process; a compiler is tested once per machine, until the program's file changes.

    >>> find_compiler().kind in ("gcc", "clang", "other")
    True
    """
    return search()[0]


def why_no_compiler() -> str:
    """Return why `find_compiler` finds none, one line per program; empty if it finds one."""
    compiler, reasons = search()
    return "" if compiler else "\n".join(reasons)


def search() -> tuple[Compiler | None, tuple[str, ...]]:
    """Return the compiler, or None, and why each program before it in the list cannot be used."""
    return _search(*(os.environ.get(name) for name in ("BURNT_CC", "CC", "PATH")))


@cache
def _search(*environment: str | None) -> tuple[Compiler | None, tuple[str, ...]]:
    """Search for a compiler; the arguments are what the search depends on."""
    if sys.platform == "win32":
        return None, ("generated C kernels are not supported on Windows: they need POSIX shared libraries",)
    if openmp_runtime() is None:
        return None, ("torch runs without OpenMP here: generated kernels need its threads",)
    reasons: list[str] = []
    for origin, command_words in _candidates():
        name = f"{origin}: {shlex.join(command_words)}" if origin else command_words[0]
        path = shutil.which(command_words[0])
        if path is None:
            reasons.append(f"{name}: not found")
        elif unsafe := sorted(UNSAFE_FLAGS.intersection(command_words)):
            reasons.append(f"{name}: {' '.join(unsafe)} would change NaN, infinity or denormals")
        else:
            try:
                return _try_compiler((path, *command_words[1:])), tuple(reasons)
            except CompileError as error:
                reasons.append(f"{name}: {error.found}")
            except (OSError, subprocess.SubprocessError) as error:
                reasons.append(f"{name}: {error}")
    return None, tuple(reasons)


def _candidates() -> Iterator[tuple[str, list[str]]]:
    """Yield each candidate's origin and command; a variable may hold arguments, as in "ccache gcc"."""
    for variable in ("BURNT_CC", "CC"):
        if command_words := shlex.split(os.environ.get(variable, "")):
            yield f"${variable}", command_words
    for name in ("gcc", "clang", "cc"):
        yield "", [name]


def _try_compiler(command: tuple[str, ...]) -> Compiler:
    """Return the compiler of a command after testing it, or raise; the result is cached on disk."""
    try:
        cache_file: Path | None = build_cache.cache_folder() / f"compiler-{_compiler_key(command)}.json"
    except OSError:  # loading a library will report it; here it only means that the test runs again
        cache_file = None
    if cache_file is not None:
        try:
            cached = json.loads(cache_file.read_text(encoding="utf-8"))
            return Compiler(command, str(cached["kind"]), str(cached["version"]))
        except (OSError, ValueError, KeyError, TypeError):  # missing or damaged: test again
            pass
    compiler = _identify_compiler(command)
    with tempfile.TemporaryDirectory(prefix="burnt-probe-") as folder:
        path = Path(folder) / "probe.so"
        compile_library(PREAMBLE + PROBE, compiler, Path(folder), path)
        result = ctypes.c_int64()
        probe = get_function(ctypes.CDLL(str(path)), "probe")
        probe(struct.pack("qqd", ctypes.addressof(result), 4000, 20000.0))
    expected = torch.get_num_threads() + 4000 + 20000
    if result.value != expected:
        raise CompileError(
            "a test kernel gave a wrong result",
            found=f"a test kernel returned {result.value} instead of {expected}",
        )
    if cache_file is not None:
        try:
            with _files.replacing(cache_file) as aside:
                aside.write_text(json.dumps({"kind": compiler.kind, "version": compiler.version}))
        except OSError as error:
            build_cache.add_note(f"the compiler is tested again in every process: {error}")
    return compiler


def _compiler_key(command: tuple[str, ...]) -> str:
    """Return a cache key that changes when a file named in the command, the flags, CPU or runtime change."""
    parts: list[object] = [CACHE_FORMAT, flags(), cpu_features(), str(openmp_runtime())]
    for word in command:
        path = shutil.which(word)
        if path is not None:
            info = os.stat(path)
            parts += [os.path.realpath(path), info.st_mtime_ns, info.st_size]
        parts.append(word)
    return digest(parts)


def _identify_compiler(command: tuple[str, ...]) -> Compiler:
    version_text = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, timeout=30, check=True, env=_environment()
    ).stdout
    if "clang" in version_text:
        kind = "clang"
    elif "Free Software Foundation" in version_text:
        kind = "gcc"
    else:
        kind = "other"
    return Compiler(command, kind, version_text.partition("\n")[0].strip())


@cache
def flags() -> tuple[str, ...]:
    """Return the flags of every kernel; none of them changes NaN, infinity, denormals or signed zero.

    ``-fopenmp`` goes to the compiler proper, not to its driver, which would link the compiler's own OpenMP
    runtime. Libraries are linked against the runtime's file that torch has loaded; undefined symbols are an
    error.
    """
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64", "i686"):
        native: tuple[str, ...] = ("-march=native",)
        if "avx512_vbmi2" in cpu_features().split():
            # Processors before Ice Lake lower their clock for vectors of 512 bits, and gcc uses 256 bits also
            # for processors that it does not know. On a current Xeon exp and erf take 0.75 of the time with
            # 512.
            native += ("-mprefer-vector-width=512",)
    elif platform.system() == "Darwin":
        native = ("-mcpu=apple-m1",)  # Apple's older clang does not support native
    elif machine in ("aarch64", "arm64", "ppc64le"):
        native = ("-mcpu=native",)
    else:
        native = ()
    return (
        *("-O3", *native, "-fno-math-errno", "-fno-trapping-math"),
        # Two kernels that compute the same value must get the same bits: gradients compare it with a maximum.
        "-ffp-contract=off",
        "-fwrapv",  # integers wrap around, as in torch
        *("-Xpreprocessor", "-fopenmp", "-shared", "-fPIC", "-std=gnu11"),
        # An undeclared function would be assumed to return int, and give wrong results.
        "-Werror=implicit-function-declaration",
    )


def workaround_flags(kind: str) -> tuple[str, ...]:
    """Return further flags that avoid bugs of a kind of compiler.

    gcc before 14 vectorizes loads inside a branch wrongly. Generated kernels have no such loads; these flags
    keep gcc from moving other loads into the only branch that needs them.
    """
    return ("-fno-tree-sink", "-fno-thread-jumps") if kind == "gcc" else ()


def _link_flags() -> tuple[str, ...]:
    if platform.system() == "Darwin":
        return ("-Wl,-undefined,dynamic_lookup",)  # resolved from the images already loaded
    return (str(openmp_runtime()), "-lm", "-Wl,-z,defs", _FEW_MAPPINGS)


@cache
def openmp_runtime() -> Path | None:
    """Return the file of the OpenMP runtime that torch calls, or None if torch has none.

    It is looked up through torch: wheels ship their own copy, sometimes under another name, and other
        packages
    may have loaded further runtimes.

    >>> openmp_runtime().is_file()
    True
    """
    if sys.platform == "win32":  # without dladdr; generated C is not supported there
        return None
    try:
        symbol = ctypes.CDLL(_torch.EXTENSION).omp_get_max_threads
    except AttributeError:
        return None
    info = _DlInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(symbol, ctypes.c_void_p), ctypes.byref(info))
    return Path(os.fsdecode(info.file)).resolve()


class _DlInfo(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@cache
def cpu_features() -> str:
    """Return what -march=native depends on, for cache keys: different machines may share a home folder."""
    prefixes = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
    lines = [platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if not line.strip():  # the end of the first core
                    break
                if line.startswith(prefixes):
                    lines.append(line.strip())
    except OSError:  # not Linux
        pass
    return "\n".join(lines)


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}  # compiler messages are parsed, and quoted in errors


def compile_library(source: str, compiler: Compiler, work: Path, target: Path) -> None:
    """Compile source into the library `target`; the source stays in the folder `work` as ``kernel.c``.

    Raises:
        CompileError: the source does not compile, or the compiler does not finish.
        OSError: the disk is full, or the compiler no longer exists.
    """
    (work / "kernel.c").write_text(source, encoding="utf-8")
    compile_flags = (*flags(), *workaround_flags(compiler.kind))
    link_flags = _link_flags()
    result = _run_compiler(compiler, (*compile_flags, *link_flags), work, target)
    if result.returncode != 0 and "unknown -z option" in result.stderr:
        link_flags = tuple(flag for flag in link_flags if flag != _FEW_MAPPINGS)
        result = _run_compiler(compiler, (*compile_flags, *link_flags), work, target)
    if result.returncode != 0 and any(message in result.stderr for message in _CRASH_MESSAGES):
        build_cache.add_note(
            f"{compiler.version} crashed; compiling this kernel with {_LOWER_OPTIMIZATION} instead"
        )
        compile_flags = (*compile_flags, _LOWER_OPTIMIZATION)
        result = _run_compiler(compiler, (*compile_flags, *link_flags), work, target)
    if result.returncode == 0:
        return
    for code in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(code) in result.stderr:
            raise OSError(code, os.strerror(code), str(work))
    lines = result.stderr.splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line or "undefined" in line), 0)
    raise CompileError(
        "generated code does not compile",
        found="\n".join(lines[first : first + ERROR_LINES]) or f"exit status {result.returncode}",
        origin=[shlex.join(result.args), compiler.version],
        hint="this is a bug in burnt, unless CC sets flags: please report it with the source",
    )


def _run_compiler(
    compiler: Compiler, compile_flags: Sequence[str], work: Path, target: Path
) -> subprocess.CompletedProcess[str]:
    """Run the compiler and return its exit status and output; the caller checks them."""
    command = [*compiler.command, "kernel.c", *compile_flags, "-o", str(target)]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT,
            check=False,
            cwd=work,
            # The compiler's temporary files are removed with the folder, even if it is killed.
            env={**_environment(), "TMPDIR": str(work)},
        )
    except subprocess.TimeoutExpired:
        raise CompileError(
            "the compiler does not finish",
            found=f"no result after {COMPILE_TIMEOUT:.0f} s",
            origin=[shlex.join(command), compiler.version],
            hint="set BURNT_CC to another compiler",
        ) from None


def get_function(library: ctypes.CDLL, name: str) -> CFunction:
    """Return a function of a library; it takes its arguments packed into bytes."""
    found = getattr(library, name)
    found.restype = None
    found.argtypes = (ctypes.c_char_p,)  # ctypes rejects anything else, which would crash
    call: CFunction = found
    return call


def digest(parts: Sequence[object]) -> str:
    """Return a cache key: 128 bits of a hash in hexadecimal."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
