"""The C compiler: which one works here, its flags, and the OpenMP runtime its code must share with torch.

Where libraries are kept, found again and called is `burnt.codegen.runtime.c_library`'s matter.
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
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

import torch

from burnt import _files, _torch
from burnt.codegen.runtime import build_cache
from burnt.errors import CompileError

__all__ = [
    "CONTRACTED",
    "FORMAT",
    "PREAMBLE",
    "UNSAFE_FLAGS",
    "CFunction",
    "Compiler",
    "careful_flags",
    "compile_library",
    "cpu_features",
    "digest",
    "find_compiler",
    "flags",
    "forget",
    "function",
    "openmp_runtime",
    "search",
    "why_no_compiler",
]

CONTRACTED = """
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif
"""
"""C after which products go into sums unrounded: for kernels whose numbers no other kernel computes again."""

PREAMBLE = """\
#include <math.h>
#include <stdint.h>
typedef union { void *p; int64_t i; double f; } burnt_arg;
"""
"""What every generated source begins with."""

CFunction = Callable[[bytes], None]
"""A compiled ``void name(const burnt_arg *a)``."""

FORMAT = "burnt-c-1"
"""Part of every key: what is done to libraries has a version."""
COMPILE_TIMEOUT = 300.0
"""Seconds. A kernel takes a fraction of one; a compiler on a slow network file system takes more."""
ERROR_LINES = 8
_CRASHES = ("internal compiler error", "PLEASE submit a bug report")  # gcc's words and clang's
_LESS = "-O2"  # gcc 12 crashes over some loops of 16-bit floats for AVX-512 with -O3, and not with this
# Two mappings of memory for each library instead of five: Linux gives a process 65,530. Not for gold.
_FEW_MAPPINGS = "-Wl,-z,noseparate-code,-z,norelro"

UNSAFE_FLAGS = frozenset(
    (
        *("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "-mdaz-ftz"),
        *("-fassociative-math", "-freciprocal-math", "-fno-signed-zeros"),
    )
)
"""Flags that let a compiler assume there is no NaN, infinity or signed zero, or make it link crtfastmath.o,
which switches denormals off for the whole process when the library is loaded."""

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
    """A C compiler that has compiled an OpenMP library which ran here.

    Args:
        command: its path, and the words that follow it in ``$BURNT_CC`` or ``$CC``.
        kind: ``gcc``, ``clang`` or ``other``.
        version: the first line of what ``--version`` prints.
    """

    command: tuple[str, ...]
    kind: str
    version: str

    @property
    def path(self) -> str:
        """Where the program is."""
        return self.command[0]


_lock = threading.Lock()
_found: dict[tuple[str | None, ...], tuple[Compiler | None, tuple[str, ...]]] = {}


def find_compiler() -> Compiler | None:
    """The first C compiler that works: of ``$BURNT_CC``, ``$CC``, gcc, clang, cc.

    It has to compile a parallel region into a library that runs on torch's own OpenMP runtime and on no
    other. Asked once per process, and tried once per machine as long as the program's file does not change.

    >>> find_compiler().kind in ("gcc", "clang", "other")
    True
    """
    return search()[0]


def why_no_compiler() -> str:
    """Why `find_compiler` finds none, a line per program that does not count; empty when it finds one."""
    compiler, reasons = search()
    return "" if compiler else "\n".join(reasons)


def search() -> tuple[Compiler | None, tuple[str, ...]]:
    """The compiler, if any, and why those before it in the list do not count."""
    place = tuple(os.environ.get(name) for name in ("BURNT_CC", "CC", "PATH"))
    with _lock:
        if place not in _found:
            _found[place] = _try_all()
        return _found[place]


def forget() -> None:
    """Look for a compiler again when next asked."""
    with _lock:
        _found.clear()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def _try_all() -> tuple[Compiler | None, tuple[str, ...]]:
    if openmp_runtime() is None:
        return None, ("torch runs without OpenMP here: kernels could not share its threads",)
    reasons: list[str] = []
    for origin, words in _candidates():
        name = f"{origin}: {shlex.join(words)}" if origin else words[0]
        path = shutil.which(words[0])
        if path is None:
            reasons.append(f"{name}: not found")
        elif unsafe := sorted(UNSAFE_FLAGS.intersection(words)):
            reasons.append(f"{name}: {' '.join(unsafe)} would change NaN, infinity or denormals")
        else:
            try:
                return _tried((path, *words[1:])), tuple(reasons)
            except CompileError as error:
                reasons.append(f"{name}: {error.found}")
            except (OSError, subprocess.SubprocessError) as error:
                reasons.append(f"{name}: {error}")
    return None, tuple(reasons)


def _candidates() -> Iterator[tuple[str, list[str]]]:
    """Where each comes from, and its words: a variable may carry a wrapper or flags, as in "ccache gcc"."""
    for variable in ("BURNT_CC", "CC"):
        if words := shlex.split(os.environ.get(variable, "")):
            yield f"${variable}", words
    for name in ("gcc", "clang", "cc"):
        yield "", [name]


def _tried(command: tuple[str, ...]) -> Compiler:
    """The compiler behind a command, tried once per machine.

    Raises:
        CompileError, OSError, subprocess.SubprocessError: it is of no use.
    """
    try:
        remembered: Path | None = build_cache.cache_folder() / f"compiler-{_identity(command)}.json"
    except OSError:  # loading a library will say what is wrong; here it only costs another trial
        remembered = None
    if remembered is not None:
        try:
            known = json.loads(remembered.read_text(encoding="utf-8"))
            return Compiler(command, str(known["kind"]), str(known["version"]))
        except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged: try again
            pass
    compiler = _asked(command)
    with tempfile.TemporaryDirectory(prefix="burnt-probe-") as folder:
        path = Path(folder) / "probe.so"
        compile_library(PREAMBLE + PROBE, compiler, Path(folder), path)
        result = ctypes.c_int64()
        probe = function(ctypes.CDLL(str(path)), "probe")
        probe(struct.pack("qqd", ctypes.addressof(result), 4000, 20000.0))
    expected = torch.get_num_threads() + 4000 + 20000
    if result.value != expected:
        raise CompileError(
            "a trial gave a wrong result", found=f"a trial gave {result.value}, not {expected}"
        )
    if remembered is not None:
        try:
            with _files.replacing(remembered) as aside:
                aside.write_text(json.dumps({"kind": compiler.kind, "version": compiler.version}))
        except OSError as error:
            build_cache.note(f"the compiler is tried again in every process: {error}")
    return compiler


def _identity(command: tuple[str, ...]) -> str:
    """Of the files that a command's words name, which an upgrade changes, and of torch's runtime."""
    parts: list[object] = [FORMAT, flags(), cpu_features(), str(openmp_runtime())]
    for word in command:
        path = shutil.which(word)
        if path is not None:
            info = os.stat(path)
            parts += [os.path.realpath(path), info.st_mtime_ns, info.st_size]
        parts.append(word)
    return digest(parts)


def _asked(command: tuple[str, ...]) -> Compiler:
    said = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, timeout=30, check=True, env=_environment()
    ).stdout
    if "clang" in said:
        kind = "clang"
    elif "Free Software Foundation" in said:
        kind = "gcc"
    else:
        kind = "other"
    return Compiler(command, kind, said.partition("\n")[0].strip())


@once
def flags() -> tuple[str, ...]:
    """What every kernel is compiled with; nothing that changes NaN, infinity, denormals or signed zero.

    OpenMP is asked of the compiler proper, not of its driver, which would add a runtime of the compiler's
    own to the link: what is linked is the file that torch has loaded, and no symbol may stay open.
    """
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64", "i686"):
        native: tuple[str, ...] = ("-march=native",)
        if "avx512_vbmi2" in cpu_features().split():
            # Vectors of 512 bits cost processors before Ice Lake their clock; gcc takes 256 for those that it
            # does not know, too. On a Xeon of today exponentials and error functions take 0.75 of the time.
            native += ("-mprefer-vector-width=512",)
    elif platform.system() == "Darwin":
        native = ("-mcpu=apple-m1",)  # older clangs of Apple's know no native
    elif machine in ("aarch64", "arm64", "ppc64le"):
        native = ("-mcpu=native",)
    else:
        native = ()
    return (
        *("-O3", *native, "-fno-math-errno", "-fno-trapping-math"),
        # A number that two kernels compute must be the same in both: a maximum is looked for among such.
        "-ffp-contract=off",
        "-fwrapv",  # integers wrap around, as torch's do
        *("-Xpreprocessor", "-fopenmp", "-shared", "-fPIC", "-std=gnu11"),
        # An undeclared function would be taken to return int, and give wrong numbers.
        "-Werror=implicit-function-declaration",
    )


def careful_flags(kind: str) -> tuple[str, ...]:
    """Flags besides, for what a kind of compiler gets wrong.

    gcc before 14 packs loads that are under a test into vectors wrongly. Kernels are printed so that it packs
    none; this keeps it from moving others under a test of whose outcomes only one needs them.
    """
    return ("-fno-tree-sink", "-fno-thread-jumps") if kind == "gcc" else ()


def _link_flags() -> tuple[str, ...]:
    if platform.system() == "Darwin":
        return ("-Wl,-undefined,dynamic_lookup",)  # finds the runtime among the images already loaded
    return (str(openmp_runtime()), "-lm", "-Wl,-z,defs", _FEW_MAPPINGS)


@once
def openmp_runtime() -> Path | None:
    """The file of the OpenMP runtime that torch calls, or None when torch has none.

    Wheels bring a copy, sometimes under a name of its own, and other packages may have loaded others: so it
    is looked up through torch.

    >>> openmp_runtime().is_file()
    True
    """
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


@once
def cpu_features() -> str:
    """What -march=native looks at: a home folder may be shared by machines of several kinds."""
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
    lines = [platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if not line.strip():  # the end of the first core
                    break
                if line.startswith(wanted):
                    lines.append(line.strip())
    except OSError:  # not Linux
        pass
    return "\n".join(lines)


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}  # messages are read, and quoted in errors


def compile_library(source: str, compiler: Compiler, work: Path, target: Path) -> None:
    """Compile in a folder of its own, where the source stays as ``kernel.c``.

    Raises:
        CompileError: the compiler refuses the source, or does not end.
        OSError: the disk is full, or the compiler is gone.
    """
    (work / "kernel.c").write_text(source, encoding="utf-8")
    chosen = (*flags(), *careful_flags(compiler.kind))
    link = _link_flags()
    done = _compiled(compiler, (*chosen, *link), work, target)
    if done.returncode != 0 and "unknown -z option" in done.stderr:
        link = tuple(flag for flag in link if flag != _FEW_MAPPINGS)
        done = _compiled(compiler, (*chosen, *link), work, target)
    if done.returncode != 0 and any(sign in done.stderr for sign in _CRASHES):
        build_cache.note(f"{compiler.version} crashes over a kernel, which is compiled with {_LESS}")
        chosen = (*chosen, _LESS)
        done = _compiled(compiler, (*chosen, *link), work, target)
    if done.returncode == 0:
        return
    for code in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(code) in done.stderr:
            raise OSError(code, os.strerror(code), str(work))
    lines = done.stderr.splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line or "undefined" in line), 0)
    raise CompileError(
        "generated code does not compile",
        found="\n".join(lines[first : first + ERROR_LINES]) or f"exit status {done.returncode}",
        origin=[shlex.join(done.args), compiler.version],
        hint="a fault of burnt's, unless CC carries flags: please report it with the source",
    )


def _compiled(
    compiler: Compiler, chosen: Sequence[str], work: Path, target: Path
) -> subprocess.CompletedProcess[str]:
    """Run the compiler, whose words and exit status are for the caller to read."""
    command = [*compiler.command, "kernel.c", *chosen, "-o", str(target)]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT,
            check=False,
            cwd=work,
            # The compiler's own temporary files go with the folder, also when it is killed.
            env={**_environment(), "TMPDIR": str(work)},
        )
    except subprocess.TimeoutExpired:
        raise CompileError(
            "the compiler does not end",
            found=f"no result after {COMPILE_TIMEOUT:.0f} s",
            origin=[shlex.join(command), compiler.version],
            hint="set BURNT_CC to another compiler",
        ) from None


def function(library: ctypes.CDLL, name: str) -> CFunction:
    """A compiled function that takes its arguments packed into bytes.

    Raises:
        AttributeError: the library has none of that name.
    """
    found = getattr(library, name)
    found.restype = None
    found.argtypes = (ctypes.c_char_p,)  # anything else is refused, where it would crash
    call: CFunction = found
    return call


def digest(parts: Sequence[object]) -> str:
    """A key: 128 bits of a hash."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
