"""Compile C source into a cached shared library, load it, and call its functions with little overhead.

The compiler and its flags are in `burnt.codegen.runtime.c_compiler`, the cache folder in
`burnt.codegen.runtime.build_cache`. Kernels use no headers of torch: they take plain pointers and numbers.

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
from burnt.codegen.runtime.c_compiler import CFunction, Compiler, find_compiler, why_no_compiler
from burnt.errors import CacheError, CompileError, UnsupportedError


@dataclass(frozen=True)
class Library:
    """The functions of a compiled library, by name."""

    path: Path
    source: Path  # the file of its C source
    # Each takes its arguments packed into bytes (`launcher` packs them), and releases the GIL during a call.
    functions: Mapping[str, CFunction]

    def __getitem__(self, name: str) -> CFunction:
        return self.functions[name]


class _State:
    """The libraries that this process has loaded, and the cache folders that it cannot write to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.libraries: dict[str, tuple[ctypes.CDLL, Path]] = {}
        self.build_locks: dict[str, threading.Lock] = {}
        self.unusable: set[Path] = set()
        self.forked = False


_state = _State()


def load(source: str, names: Sequence[str]) -> Library:
    """Compile C source, unless it is in the cache, and load the functions ``void name(const burnt_arg *a)``.

    The source is a whole C file that begins with `PREAMBLE`, without `omp.h`, which may not be installed. If
    several threads load the same source, one compiles it. Other processes find the library in the cache
    folder (`burnt.codegen.runtime.build_cache`), or compile it again if that folder cannot be written.

    Raises:
        CompileError: the source does not compile (it stays in the cache folder), lacks one of the functions,
            or there is no memory to load the library.
        UnsupportedError: no C compiler works here; the caller should use torch's ops.
        CacheError: other users can write to the cache folder.

    >>> from burnt.codegen.runtime.c_compiler import PREAMBLE
    >>> library = load(PREAMBLE + "void scale(const burnt_arg *a) { *(float *)a[0].p *= a[1].f; }", ["scale"])
    >>> scale = launcher(library["scale"], pointers=1, floats=1)
    >>> x = torch.tensor([21.0])
    >>> scale(x.data_ptr(), 2.0); x
    tensor([42.])
    """
    compiler = find_compiler()
    if compiler is None:
        raise UnsupportedError(
            "no C compiler works here",
            found=why_no_compiler(),
            hint="install gcc (apt install gcc, dnf install gcc, xcode-select --install), or set BURNT_CC",
        )
    # The library refers to the OpenMP runtime by file name only, so environments can share the cache.
    runtime = getattr(c_compiler.openmp_runtime(), "name", None)
    flags = (*c_compiler.flags(), *c_compiler.workaround_flags(compiler.kind))
    key = c_compiler.digest(
        [c_compiler.CACHE_FORMAT, source, flags, compiler, c_compiler.cpu_features(), runtime]
    )
    found = _state.libraries.get(key)
    if found is None:
        with _state.lock:
            build_lock = _state.build_locks.setdefault(key, threading.Lock())
        with build_lock:
            found = _state.libraries.get(key)
            if found is None:
                found = _state.libraries[key] = _load_or_compile(key, source, compiler)
    library, path = found
    code = path.with_suffix(".c")
    functions = {}
    for name in names:
        try:
            functions[name] = c_compiler.get_function(library, name)
        except AttributeError:
            raise CompileError(
                f"the compiled code has no function {name!r}",
                where=str(code),
                hint="check its spelling, and that it is not static",
            ) from None
    return Library(path, code, functions)


def _load_or_compile(key: str, source: str, compiler: Compiler) -> tuple[ctypes.CDLL, Path]:
    """Load from the cache folder, or compile into it, or into a temporary folder if it cannot be written."""
    _limit_threads_after_fork()
    try:
        folder: Path | None = build_cache.cache_folder()
    except CacheError:
        raise
    except OSError as error:
        folder = None
        build_cache.add_note(f"compiled code is not kept: {error}")
    if folder is not None:
        path = folder / f"{key}.so"
        try:
            return _open_library(path)
        except FileNotFoundError:  # compiled for the first time
            pass
        except OSError as error:
            build_cache.add_note(f"{path} could not be loaded and is compiled again: {error}")
        if folder not in _state.unusable:
            try:
                return _compile_and_open(key, source, compiler, folder)
            except CacheError:
                raise
            except OSError as error:
                _state.unusable.add(folder)
                build_cache.add_note(f"compiled code is not kept: {error}")
    try:
        return _compile_and_open(key, source, compiler, build_cache.temporary_folder())
    except OSError as error:
        raise CompileError(
            "compiled code cannot be stored or loaded",
            found=error,
            hint="set BURNT_CACHE to a folder that you can write to and that is not mounted noexec",
        ) from error


def _open_library(path: Path) -> tuple[ctypes.CDLL, Path]:
    """Load a library, and update its time of last use.

    Raises:
        OSError: the file does not exist, is damaged, or cannot be loaded.
        CompileError: the system has no memory for it; another folder would not help.
    """
    if not build_cache.has_valid_checksum(path):
        raise OSError("the file is damaged")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        if os.strerror(errno.ENOMEM) not in str(error) and not _is_out_of_mappings():
            raise
        raise CompileError(
            "there is no memory to load compiled code",
            found=error,
            hint="free memory; or, if the process has too many memory mappings (each kernel takes two), "
            "raise the limit: sysctl vm.max_map_count",
        ) from error
    with contextlib.suppress(OSError):  # a folder that cannot be written evicts nothing either
        os.utime(path)
    return library, path


def _is_out_of_mappings() -> bool:
    """Whether this process is near Linux's limit of memory mappings; dlopen's error may not say so."""
    try:
        max_mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
        with open("/proc/self/maps", "rb") as mappings:
            return sum(1 for _ in mappings) > max_mappings - 4
    except OSError:  # another system
        return False


def _compile_and_open(key: str, source: str, compiler: Compiler, folder: Path) -> tuple[ctypes.CDLL, Path]:
    """Compile in a work folder, move the result into place atomically, and load it."""
    path = folder / f"{key}.so"
    with tempfile.TemporaryDirectory(
        prefix=build_cache.WORK_PREFIX, dir=folder, ignore_cleanup_errors=True
    ) as work_folder:
        work = Path(work_folder)
        try:
            c_compiler.compile_library(source, compiler, work, work / "kernel.so")
        except CompileError as error:
            source_path = path.with_suffix(".c")
            os.replace(work / "kernel.c", source_path)
            error.where = str(source_path)
            raise
        build_cache.append_checksum(work / "kernel.so")
        os.replace(work / "kernel.c", path.with_suffix(".c"))
        os.replace(work / "kernel.so", path)
    loaded = _open_library(path)
    build_cache.sweep(folder)
    return loaded


def launcher(
    function: CFunction, *, pointers: int = 0, ints: int = 0, floats: int = 0, sizes: Sequence[int] = ()
) -> Callable[..., None]:
    """Return ``call(*addresses, *ints, *floats)`` for a function of a `Library`, with little overhead.

    Addresses are ``tensor.data_ptr()``, integers int64, floats double. The function takes `sizes`, int64
    values that are the same in every call, last. The caller keeps the tensors alive and checks their dtype,
    shape and device. The call is thread-safe; the kernel's parallel regions use as many threads as torch's
    own ops. It raises `struct.error` for a wrong number of arguments, or an integer outside int64.

    An empty kernel with 4 tensors and 6 integers takes 0.60 microseconds this way, ``data_ptr()`` included.
    Alternatives: 0.53 with one reused array (not thread-safe), 1.15 with ctypes' ``argtypes``, 0.78 with
    ``argtypes`` and prepared integer objects, 1.26 with a new ctypes array. `torch.add` of 4 numbers takes
    1.09 (``python benchmarks/toolchain.py``, two cores of an AMD EPYC).
    """
    pack = struct.Struct("q" * (pointers + ints) + "d" * floats).pack
    # A thread that has not run one of torch's parallel ops yet does not use torch's number of threads;
    # get_num_threads sets it.
    set_torch_threads = torch.get_num_threads

    def call(*arguments: float) -> None:
        set_torch_threads()
        function(pack(*arguments))

    if not sizes:
        return call
    packed_sizes = struct.pack(f"{len(sizes)}q", *sizes)

    def call_with_sizes(*arguments: float) -> None:
        set_torch_threads()
        function(pack(*arguments) + packed_sizes)

    return call_with_sizes


def address_of(function: CFunction) -> int:
    """Return the address of a function of a `Library`."""
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


def status() -> dict[str, Any]:
    """Return the state of the compiler and the cache as JSON-compatible values, for `burnt info`.

    The keys are ``compiler``, ``rejected`` (why compilers before it are not used), ``flags``, ``openmp``
    (torch's runtime), ``folder`` with its number of ``entries``, ``bytes`` and ``limit``, ``loaded`` (number
    of libraries in this process), and ``notes`` (problems that did not stop the program).
    """
    compiler, rejected = c_compiler.search()
    runtime = c_compiler.openmp_runtime()
    facts: dict[str, Any] = {
        "compiler": asdict(compiler) if compiler else None,
        "rejected": list(rejected),
        "flags": [*c_compiler.flags(), *(c_compiler.workaround_flags(compiler.kind) if compiler else ())],
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
        entries = build_cache.entries(folder)
        facts |= {
            "folder": str(folder),
            "entries": len(entries),
            "bytes": sum(entry.size for entry in entries),
        }
        facts["limit"] = build_cache.limit()
    except OSError as error:  # includes CacheError
        facts["notes"].append(str(error))
    return facts


def _after_fork() -> None:
    _state.lock = threading.Lock()  # another thread of the parent may have held it
    _state.build_locks.clear()
    _state.forked = True
    if _state.libraries:
        _limit_threads_after_fork()


def _limit_threads_after_fork() -> None:
    """Make a forked process that runs kernels use one thread, as torch's data loader workers do.

    OpenMP's threads do not survive a fork. GNU's runtime does not notice, and would wait for them forever in
    the next parallel region, in torch as well as in generated kernels.
    """
    if _state.forked:
        _state.forked = False
        torch.set_num_threads(1)
        build_cache.add_note("this forked process uses one thread: OpenMP's threads do not survive a fork")


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_after_fork)
