"""A pool for large host buffers: freed memory is kept for reuse instead of being returned to the kernel.

torch allocates CPU tensors with malloc, and glibc's malloc requests each large block from the kernel: mmap, a
page fault and a zeroed page for every 4 KiB, munmap. That way, cloning 64 MB takes 29 ms, of which the copy
takes 5 (one core of an AMD EPYC; ``python benchmarks/kernels.py --rows clone``). The pool is the same malloc,
configured by mallopt to serve large blocks from its heap and to keep the heap's pages: 5 ms. It applies to
every user of malloc in the process as soon as it is enabled, and adds no code to an allocation.

An allocator under torch would need C++ against private layouts; huge pages and preloaded allocators must be
selected before the process starts. Neither mallopt nor malloc limits the free bytes in the heap, so a thread
checks them once a second, in half a microsecond, and calls malloc_trim if there are more. The number of
arenas (heaps of threads) is not changed: setting it cannot be undone, and makes other libraries' threads wait
for each other. docs/memory.md says what it costs and where it works.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from burnt.errors import ConfigError

SWITCH = "BURNT_MEMORY_POOL"
"""The environment variable: ``0`` keeps the pool off in any case; ``1`` lets burnt enable it by default even
if the environment tunes malloc; a size such as ``2GiB`` does the same with a limit."""

_PERIOD = 1.0
"""Seconds between two checks of the free memory."""
_DEFAULT_DIVISOR = 4
"""The default limit is the machine's memory divided by this."""
_PROBE = 100_000
"""Bytes allocated to identify malloc: below the mmap threshold, which freeing a mapped block would raise."""
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
# Parameters of mallopt, from malloc.h, and the values that glibc's own adaptation reaches after large frees.
# Setting one of them ends that adaptation for good.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_ADAPTED = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20, _MMAP_MAX: 65536}
_TUNED_BY = {
    _TRIM_THRESHOLD: ("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold"),
    _MMAP_THRESHOLD: ("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold"),
    _MMAP_MAX: ("MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max"),
}
_NEVER = -1  # as a threshold: mallopt converts this int to the largest size
_LARGEST_INT = 2**31 - 1


@dataclass(frozen=True)
class Stats:
    """The state of the pool, in bytes; None if malloc does not report a value.

    Args:
        enabled: whether freed buffers are kept now.
        reason: why they are not kept, and will not be by default; None if they are or will be.
        limit: the maximum of free bytes that are kept, also while the pool is off.
        in_use: bytes that are allocated by malloc in the whole process.
        kept: bytes that are free and resident. An estimate: memory allocated without malloc (Python's own
            objects) since the last trim counts too, up to the free bytes of malloc.
        resident: the process's resident memory.
        high_water: the peak of the process's resident memory.
    """

    enabled: bool
    reason: str | None
    limit: int | None
    in_use: int | None
    kept: int | None
    resident: int | None
    high_water: int | None


def enable(limit: int | str | None = None) -> Stats:
    """Enable the pool: keep freed buffers until `disable`.

    Args:
        limit: the maximum of free bytes to keep, or text such as ``"2GiB"``; by default a quarter of the
            machine's or the control group's memory. Larger buffers are returned to the kernel at once. The
            smallest of all limits applies (from here, from `pool`, from the environment).

    Returns:
        The state afterwards; if the pool could not be enabled, ``reason`` says why.

    Raises:
        ConfigError: the limit is not a size, or the environment variable BURNT_MEMORY_POOL is invalid.

    >>> enable("1GiB").limit
    1073741824
    >>> disable()
    """
    new_limit = _parse_limit(limit)
    with _pool.lock:
        _pool.requested, _pool.limit = True, new_limit
        _pool.apply()
        return _pool.stats()


def disable() -> None:
    """Disable the pool: return free memory to the kernel, and restore malloc's settings.

    Afterwards burnt does not enable the pool by default; an open `pool` block keeps it on until its end.
    glibc's malloc adapts its thresholds until one is set, and cannot resume that: they are set to the values
    where the adaptation ends (32 MiB), or to the environment's.
    """
    with _pool.lock:
        _pool.requested, _pool.limit, _pool.by_default = False, None, False
        _pool.apply()


@contextlib.contextmanager
def pool(limit: int | str | None = None, *, by_default: bool = False) -> Iterator[None]:
    """Keep freed buffers inside a `with` block, and return free memory to the kernel at its end.

    Args:
        limit: the most bytes to keep, as for `enable`.
        by_default: do nothing if `enable_by_default` would not enable the pool; burnt's own code sets this.

    Raises:
        ConfigError: as in `enable`.

    >>> with pool("512MiB"):
    ...     inside = stats()
    >>> inside.limit
    536870912
    """
    if by_default and _default_off_reason() is not None:
        yield
        return
    mark, new_limit = object(), _parse_limit(limit)
    with _pool.lock:
        _pool.scopes[mark] = new_limit
        _pool.apply()
    try:
        yield
    finally:
        with _pool.lock:
            _pool.scopes.pop(mark, None)  # a forked child has none
            _pool.apply()
        trim()


def enable_by_default() -> None:
    """Enable the pool unless `disable` was called, BURNT_MEMORY_POOL is 0 or the environment tunes malloc.

    Called when code is compiled. An invalid BURNT_MEMORY_POOL is a ConfigError.
    """
    if _pool.by_default or _default_off_reason() is not None:
        return
    with _pool.lock:
        _pool.by_default = True
        _pool.apply()


def trim() -> int:
    """Return free memory to the kernel, also while the pool is off.

    Returns:
        The number of bytes by which the process's resident memory has decreased.

    >>> trim() >= 0
    True
    """
    with _pool.lock:
        return _pool.trim()


def stats() -> Stats:
    """Return the state of the pool.

    Raises:
        ConfigError: the environment variable BURNT_MEMORY_POOL is invalid.

    >>> now = stats()
    >>> now.resident is None or now.resident <= now.high_water
    True
    """
    with _pool.lock:
        return _pool.stats()


# --- glibc's malloc ---------------------------------------------------------------------------------------


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
    hblkhd: int
    uordblks: int
    fordblks: int
    keepcost: int


@dataclass(frozen=True)
class _Counts:
    """Bytes of all arenas: allocated, free, and free at the end of the heap."""

    in_use: int
    free: int
    end: int


class _Malloc:
    """glibc's malloc: settings, counts, trimming. ctypes releases the GIL in each call."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._mallopt, self._trim, self._info = libc.mallopt, libc.malloc_trim, libc.mallinfo2
        self._trim.argtypes = (ctypes.c_size_t,)
        self._info.restype = _Mallinfo2

    def keep(self, limit: int) -> None:
        """Serve blocks of up to `limit` bytes from the heap, and never shrink it automatically."""
        self._mallopt(_TRIM_THRESHOLD, _NEVER)
        largest = max(limit, _ADAPTED[_MMAP_THRESHOLD])  # a lower threshold would map small blocks too
        if not self._mallopt(_MMAP_THRESHOLD, largest if largest <= _LARGEST_INT else _NEVER):
            # Up to glibc 2.34 the maximum threshold is 32 MiB, but mmap can be switched off.
            self._mallopt(_MMAP_MAX, 0)

    def restore(self) -> None:
        """Set the environment's values, or the ones that glibc's adaptation ends at."""
        for parameter, value in (_ADAPTED | _tuned_by_environment()).items():
            self._mallopt(parameter, min(value, _LARGEST_INT))

    def counts(self) -> _Counts:
        info = self._info()
        return _Counts(info.uordblks + info.hblkhd, info.fordblks, info.keepcost)

    def trim(self, keep: int) -> None:
        self._trim(keep)


@once
def _malloc() -> _Malloc | str:
    """Return the process's malloc, or why it cannot be used as a pool."""
    if platform.system() != "Linux":
        return f"{platform.system()} has its own malloc, which has no such settings"
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return "the C library is not glibc (musl has no such settings)"
    libc = ctypes.CDLL("libc.so.6")  # by name: another library may define the same functions
    if not hasattr(libc, "mallinfo2"):
        return f"{os.confstr('CS_GNU_LIBC_VERSION')} cannot count past 2 GiB: 2.33 or newer is needed"
    malloc = _Malloc(libc)
    if not _is_process_malloc(malloc):
        preloaded = os.environ.get("LD_PRELOAD")
        return "malloc is not glibc's but another library's" + (f": {preloaded}" if preloaded else "")
    return malloc


def _is_process_malloc(malloc: _Malloc) -> bool:
    """Whether the process allocates with `malloc`: then its counts include a block that is allocated here.

    Comparing addresses does not work: in a program linked at a fixed address, such as Debian's python3,
    ``malloc`` is the address of the program's jump to it.
    """
    process = ctypes.PyDLL(None)  # keeps the GIL, so that no other Python thread frees memory meanwhile
    process.malloc.restype, process.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    process.free.argtypes = (ctypes.c_void_p,)
    for _ in range(3):  # repeated, since a native thread may free as much meanwhile
        before = malloc.counts().in_use
        block = process.malloc(_PROBE)
        increase = malloc.counts().in_use - before
        process.free(block)
        if increase >= _PROBE:
            return True
    return False


def _tuned_by_environment() -> dict[int, int]:
    """Return the mallopt parameters that the environment sets, which glibc reads at the start."""
    tunables = dict(re.findall(r"([\w.]+)=(\w+)", os.environ.get("GLIBC_TUNABLES", "")))
    values = {}
    for parameter, (variable, tunable) in _TUNED_BY.items():
        text = tunables.get(tunable, os.environ.get(variable))
        if text is not None:
            with contextlib.suppress(ValueError):  # glibc ignores values that are not numbers
                values[parameter] = int(text, 0)
    return values


# --- the pool ---------------------------------------------------------------------------------------------


class _Pool:
    """The requests to enable the pool, and its state. Call every method with the lock held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.requested: bool | None = None  # True by enable, False by disable
        self.limit: int | None = None  # the argument of enable
        self.by_default = False
        self.scopes: dict[object, int | None] = {}  # the limits of open `pool` blocks
        self.other_memory = 0  # anonymous resident bytes that are not malloc's, at the last trim
        self.stop: threading.Event | None = None  # stops the trimming thread; None while the pool is off
        self.bound = 0  # the limit that the thread applies

    def apply(self) -> None:
        """Switch the pool on or off as requested."""
        malloc = _malloc()
        forbidden, size = _read_switch()
        if isinstance(malloc, str):
            return
        is_on = not forbidden and (bool(self.requested) or bool(self.scopes) or self.by_default)
        if is_on:
            self.bound = self.smallest(size)
            malloc.keep(self.bound)
            if self.stop is None:
                self.trim()
                self.stop = threading.Event()
                threading.Thread(target=_watch, args=(self.stop,), name="burnt-memory", daemon=True).start()
        elif self.stop is not None:
            self.stop.set()
            self.stop = None
            malloc.restore()
            self.trim()

    def smallest(self, size: int | None) -> int:
        """Return the smallest of the requested limits, including the environment's."""
        limits = [limit for limit in (self.limit, *self.scopes.values(), size) if limit is not None]
        return min(limits, default=_memory_limit() // _DEFAULT_DIVISOR)

    def stats(self) -> Stats:
        malloc = _malloc()
        _, size = _read_switch()
        if isinstance(malloc, str):
            return Stats(False, malloc, None, None, None, None, None)
        reason = None if self.stop is not None else _default_off_reason()
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        peak, now = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) << 10 for name in ("VmHWM", "VmRSS"))
        counts = malloc.counts()
        kept = self.kept(counts)
        return Stats(self.stop is not None, reason, self.smallest(size), counts.in_use, kept, now, peak)

    def kept(self, counts: _Counts) -> int:
        """Estimate the free bytes that are resident; malloc's count includes ones returned to the kernel."""
        return max(0, min(counts.free, _anonymous_bytes() - counts.in_use - self.other_memory))

    def trim(self, keep: int = 0) -> int:
        malloc = _malloc()
        if isinstance(malloc, str):
            return 0
        before = _anonymous_bytes()
        malloc.trim(keep)
        after, counts = _anonymous_bytes(), malloc.counts()
        self.other_memory = after - counts.in_use - counts.end
        return max(0, before - after)

    def trim_excess(self) -> None:
        """Trim if the limit is exceeded; `bound` bytes at the end of the heap may stay."""
        malloc = _malloc()
        if isinstance(malloc, str) or self.stop is None:
            return
        counts = malloc.counts()
        if counts.free > self.bound and self.kept(counts) > self.bound:
            self.trim(self.bound)


_pool = _Pool()


def _after_fork() -> None:
    """Reset the pool in a child: its thread is gone, and a thread of the parent may have held the lock."""
    global _pool
    malloc, enabled = _malloc(), _pool.stop is not None
    _pool = _Pool()
    if enabled and not isinstance(malloc, str):
        malloc.restore()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_after_fork)


def _watch(stop: threading.Event) -> None:
    while not stop.wait(_PERIOD):
        with _pool.lock:
            if not stop.is_set():
                _pool.trim_excess()


def _default_off_reason() -> str | None:
    """Return why burnt does not enable the pool by default, or None."""
    forbidden, _ = _read_switch()
    if forbidden:
        return f"{SWITCH}=0"
    if _pool.requested is False:
        return "burnt.memory.disable() was called"
    if _tuned_by_environment() and not os.environ.get(SWITCH):
        return f"the environment tunes malloc; set {SWITCH}=1 to enable the pool anyway"
    return None


def _read_switch() -> tuple[bool, int | None]:
    """Return the environment's setting: whether the pool is forbidden, and the limit."""
    text = os.environ.get(SWITCH, "").strip()
    if text in ("", "0", "1"):
        return text == "0", None
    return False, _parse_size(text, SWITCH)


def _parse_limit(limit: int | str | None) -> int | None:
    """Parse a limit and validate the environment variable, before any state changes."""
    _read_switch()
    return None if limit is None else _parse_size(limit, "limit")


def parse_bytes(size: int | str) -> int | None:
    """Return the bytes of a number or a text such as ``2GiB``, ``500MB`` or ``64k``, or None.

    >>> parse_bytes("2GB"), parse_bytes("1.5 MiB"), parse_bytes("64k"), parse_bytes("2 apples")
    (2000000000, 1572864, 65536, None)
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([a-z]*)", str(size).strip().lower())
    factor = _UNITS.get(match[2]) if match else None
    return None if match is None or factor is None else int(float(match[1]) * factor) or None


def _parse_size(size: int | str, where: str) -> int:
    found = parse_bytes(size)
    if found is None:
        expected = "a size such as 2GiB, or bytes" + (
            ", or 0 for off, or 1 for on" if where == SWITCH else ""
        )
        raise ConfigError(
            "the limit of the memory pool is invalid", where=where, expected=expected, found=size
        )
    return found


def _anonymous_bytes() -> int:
    """Return the resident bytes that belong to no file."""
    resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


@once
def _memory_limit(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory available to this process: the machine's, or its control groups' limit."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):  # no control groups here
        for line in own.read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                group = groups / line.removeprefix("0::/")
                for folder in (group, *group.parents):
                    limit = folder / "memory.max"
                    if folder.is_relative_to(groups) and limit.exists():
                        text = limit.read_text(encoding="ascii").strip()
                        sizes += [int(text)] if text != "max" else []
    return min(sizes)
