"""Generated C to callable functions: libraries compiled once and kept, and the cheap call.

Which code is generated is not decided here; the compiler and its flags are
`burnt.codegen.runtime.c_compiler`'s matter, the folder of libraries `burnt.codegen.runtime.build_cache`'s. No
header of torch's is used: a kernel gets plain pointers and numbers.

A kernel is ``void name(const burnt_arg *a)``, with `burnt_arg` from `PREAMBLE`, and reads ``a[0].p`` (a
pointer), ``a[1].i`` (int64), ``a[2].f`` (double).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from burnt.codegen.runtime import build_cache, c_compiler
from burnt.codegen.runtime.c_compiler import (
    CONTRACTED,
    PREAMBLE,
    CFunction,
    Compiler,
    find_compiler,
    why_no_compiler,
)
from burnt.errors import CacheError, CompileError, UnsupportedError

__all__ = [
    "CONTRACTED",
    "PREAMBLE",
    "CFunction",
    "Compiler",
    "Library",
    "clear_cache",
    "find_compiler",
    "launcher",
    "load",
    "status",
    "why_no_compiler",
]


@dataclass(frozen=True)
class Library:
    """Functions of compiled code, by name.

    Args:
        path: the library.
        source: the C code it was made from, for reading.
        functions: each takes its arguments packed into bytes; `launcher` does that. The GIL is released
            during a call.
    """

    path: Path
    source: Path
    functions: Mapping[str, CFunction]

    def __getitem__(self, name: str) -> CFunction:
        return self.functions[name]


class _State:
    """What this process has loaded, and where it cannot write."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.libraries: dict[str, tuple[ctypes.CDLL, Path]] = {}
        self.building: dict[str, threading.Lock] = {}
        self.unusable: set[Path] = set()
        self.forked = False


_state = _State()


def load(source: str, names: Sequence[str]) -> Library:
    """Compile C code, unless that has been done before, and load it.

    Args:
        source: a whole C file that begins with `PREAMBLE`. `omp.h` is not needed, nor always there.
        names: its functions of the form ``void name(const burnt_arg *a)``.

    Returns:
        The functions. Threads that ask for the same source compile it once; other processes find it in the
        cache folder (`burnt.codegen.runtime.build_cache`), or compile it for themselves where that cannot be
        written.

    Raises:
        CompileError: the code does not compile, or lacks one of the functions, and its source is kept; or
            there is no memory to load it into.
        UnsupportedError: no compiler works here; the caller takes torch's own operations.
        CacheError: others may write to the cache folder.

    >>> library = load(PREAMBLE + "void scale(const burnt_arg *a) { *(float *)a[0].p *= a[1].f; }", ["scale"])
    >>> scale = launcher(library["scale"], pointers=1, floats=1)
    >>> x = torch.tensor([21.0])
    >>> scale(x.data_ptr(), 2.0); x
    tensor([42.])
    """
    chosen = find_compiler()
    if chosen is None:
        raise UnsupportedError(
            "no C compiler works here",
            found=why_no_compiler(),
            hint="install gcc (apt install gcc, dnf install gcc, xcode-select --install), or set BURNT_CC",
        )
    # Of the runtime only the name counts, by which the library refers to it: environments may share.
    runtime = getattr(c_compiler.openmp_runtime(), "name", None)
    flags = (*c_compiler.flags(), *c_compiler.careful_flags(chosen.kind))
    key = c_compiler.digest([c_compiler.FORMAT, source, flags, chosen, c_compiler.cpu_features(), runtime])
    found = _state.libraries.get(key)
    if found is None:
        with _state.lock:
            building = _state.building.setdefault(key, threading.Lock())
        with building:
            found = _state.libraries.get(key)
            if found is None:
                found = _state.libraries[key] = _obtain(key, source, chosen)
    library, path = found
    code = path.with_suffix(".c")
    functions = {}
    for name in names:
        try:
            functions[name] = c_compiler.function(library, name)
        except AttributeError:
            raise CompileError(
                f"the compiled code has no function {name!r}",
                where=str(code),
                hint="is it static, or spelt otherwise?",
            ) from None
    return Library(path, code, functions)


def _obtain(key: str, source: str, chosen: Compiler) -> tuple[ctypes.CDLL, Path]:
    """From the user's folder, or compiled into it, or into a temporary one."""
    _mind_fork()
    try:
        folder: Path | None = build_cache.cache_folder()
    except CacheError:
        raise
    except OSError as error:
        folder = None
        build_cache.note(f"compiled code is not kept: {error}")
    if folder is not None:
        path = folder / f"{key}.so"
        try:
            return _opened(path)
        except FileNotFoundError:  # compiled for the first time
            pass
        except OSError as error:
            build_cache.note(f"{path} is compiled again: {error}")
        if folder not in _state.unusable:
            try:
                return _built(key, source, chosen, folder)
            except CacheError:
                raise
            except OSError as error:
                _state.unusable.add(folder)
                build_cache.note(f"compiled code is not kept: {error}")
    try:
        return _built(key, source, chosen, build_cache.private_folder())
    except OSError as error:
        raise CompileError(
            "compiled code cannot be stored or loaded",
            found=error,
            hint="set BURNT_CACHE to a folder that can be written and that is not mounted noexec",
        ) from error


def _opened(path: Path) -> tuple[ctypes.CDLL, Path]:
    """Load a library.

    Raises:
        OSError: it is not there, damaged, or cannot be loaded.
        CompileError: the system has no memory for it, which no other folder would change.
    """
    if not build_cache.is_sealed(path):
        raise OSError("the file is damaged")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        if os.strerror(errno.ENOMEM) not in str(error) and not _mappings_are_used_up():
            raise
        raise CompileError(
            "there is no memory to load compiled code into",
            found=error,
            hint="leave more memory free; or the process has too many mappings, each kernel being two, "
            "and the system wants to allow more (sysctl vm.max_map_count)",
        ) from error
    with contextlib.suppress(OSError):  # where it cannot be touched, nothing is evicted either
        os.utime(path)
    return library, path


def _mappings_are_used_up() -> bool:
    """Whether this process has about as many as Linux allows; dlopen's words do not always tell."""
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
        with open("/proc/self/maps", "rb") as mappings:
            return sum(1 for _ in mappings) > most - 4
    except OSError:  # another system
        return False


def _built(key: str, source: str, chosen: Compiler, folder: Path) -> tuple[ctypes.CDLL, Path]:
    """Compile aside, move into place so that no other process sees a part, and load."""
    path = folder / f"{key}.so"
    with tempfile.TemporaryDirectory(
        prefix=build_cache.WORK_PREFIX, dir=folder, ignore_cleanup_errors=True
    ) as aside:
        work = Path(aside)
        try:
            c_compiler.compile_library(source, chosen, work, work / "kernel.so")
        except CompileError as error:
            kept = path.with_suffix(".c")
            os.replace(work / "kernel.c", kept)
            error.where = str(kept)
            raise
        build_cache.seal(work / "kernel.so")
        os.replace(work / "kernel.c", path.with_suffix(".c"))
        os.replace(work / "kernel.so", path)
    loaded = _opened(path)
    build_cache.sweep(folder)
    return loaded


def launcher(
    function: CFunction, *, pointers: int = 0, ints: int = 0, floats: int = 0, sizes: Sequence[int] = ()
) -> Callable[..., None]:
    """A callable for one of `load`'s functions, as cheap as Python allows.

    Args:
        function: of a `Library`.
        pointers: how many addresses it takes, first (``tensor.data_ptr()``). The caller keeps the tensors
            alive and sees to their dtype, shape and device.
        ints: how many int64 follow.
        floats: how many doubles follow.
        sizes: int64 that are the same in every call, last.

    Returns:
        ``call(*addresses, *ints, *floats)``. Thread-safe; the kernel's parallel regions use as many threads
        as torch's own operations would.

    With 4 tensors and 6 integers, ``data_ptr()`` included, an empty kernel took 0.60 microseconds this way,
    0.53 with one reused array (which threads could not share), 1.15 with ctypes' ``argtypes`` and 0.78 with
    those and prepared integer objects, 1.26 with a new ctypes array; `torch.add` of 4 numbers took 1.09
    (``python benchmarks/toolchain.py``, two cores of an AMD EPYC).

    Raises:
        struct.error: on a call with the wrong number of arguments, or an integer that is none of int64.
    """
    pack = struct.Struct("q" * (pointers + ints) + "d" * floats).pack
    # A thread that has run none of torch's parallel operations yet does not have torch's number of threads:
    # asking for it sets it.
    synchronise = torch.get_num_threads

    def call(*arguments: float) -> None:
        synchronise()
        function(pack(*arguments))

    if not sizes:
        return call
    fixed = struct.pack(f"{len(sizes)}q", *sizes)

    def call_with_sizes(*arguments: float) -> None:
        synchronise()
        function(pack(*arguments) + fixed)

    return call_with_sizes


def status() -> dict[str, Any]:
    """What there is, for `burnt info` and bug reports; JSON can hold it.

    ``compiler``, ``rejected`` (why programs before it do not count), ``flags``, ``openmp`` (torch's runtime),
    ``folder`` with its number of ``entries``, ``bytes`` and ``limit``, ``loaded`` (libraries in this
    process), and ``notes`` on what went otherwise than hoped.
    """
    chosen, rejected = c_compiler.search()
    runtime = c_compiler.openmp_runtime()
    facts: dict[str, Any] = {
        "compiler": asdict(chosen) if chosen else None,
        "rejected": list(rejected),
        "flags": [*c_compiler.flags(), *(c_compiler.careful_flags(chosen.kind) if chosen else ())],
        "openmp": str(runtime) if runtime else None,
        "folder": None,
        "entries": 0,
        "bytes": 0,
        "limit": None,
        "loaded": len(_state.libraries),
        "notes": build_cache.notes(),
    }
    try:
        folder = build_cache.cache_folder()
        present = build_cache.entries(folder)
        facts |= {
            "folder": str(folder),
            "entries": len(present),
            "bytes": sum(entry.size for entry in present),
        }
        facts["limit"] = build_cache.limit()
    except OSError as error:  # a CacheError is one too
        facts["notes"].append(str(error))
    return facts


def clear_cache() -> None:
    """Empty the cache folder, and forget what this process has loaded; functions in use stay usable.

    Raises:
        CacheError: others may write to the folder.
        OSError: it cannot be written.
    """
    build_cache.clear(build_cache.cache_folder())
    c_compiler.forget()
    with _state.lock:
        _state.libraries.clear()
        _state.unusable.clear()


def _after_fork() -> None:
    _state.lock = threading.Lock()  # another thread of the parent may have held it
    _state.building.clear()
    _state.forked = True
    if _state.libraries:
        _mind_fork()


def _mind_fork() -> None:
    """Let a forked process that runs kernels compute with one thread, as torch's own data loader workers do.

    The threads of OpenMP do not survive a fork. GNU's runtime does not know that, and would wait for them
    forever at the next parallel region, of torch's as well as of ours.
    """
    if _state.forked:
        _state.forked = False
        torch.set_num_threads(1)
        build_cache.note("a forked process computes with one thread: OpenMP's others do not survive a fork")


os.register_at_fork(after_in_child=_after_fork)
