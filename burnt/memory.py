"""A pool for large host buffers: what is freed is kept and used again, instead of going back to the kernel.

torch takes the memory of a CPU tensor from malloc, and glibc's malloc asks the kernel for a large block anew
each time: mmap, a page fault and a zeroed page for every 4 KiB, munmap. Cloning 64 MB takes 29 ms so, 5 of
them for the copy (one core of an AMD EPYC; ``python benchmarks/kernels.py --rows clone``). The pool is that
same malloc, told by mallopt to take large blocks from its heap and to let the heap keep its pages: 5 ms, for
every user of malloc in the process, from the moment it is enabled, with no code of ours in the path.

Other ways were weighed. An allocator of our own under torch (``c10::SetCPUAllocator``) would know its bytes
exactly, but is C++ against private layouts, and helps no one but torch; torch's caching CPU allocator exists
in mobile builds alone. Huge pages (``GLIBC_TUNABLES=glibc.malloc.hugetlb=1``, ``THP_MEM_ALLOC_ENABLE=1``) and
preloaded allocators have to be chosen before the process starts; huge pages make faults cheaper, not fewer
(10 ms), and add less than a tenth to a kept heap.

What it costs is resident memory: up to `limit` bytes that are free stay with the process. Inside the heap
neither mallopt nor malloc bounds that, so a thread looks once a second, in half a microsecond, and calls
malloc_trim where more is kept: the bound holds to within a second. Threads that have an arena (a heap) of
their own get buffers of up to 64 MiB pooled, larger ones not. The end of such an arena, 64 MiB at most, stays
above the bound, as it does without a pool. The number of arenas is left alone: setting it cannot be undone,
and makes other libraries' threads wait for each other. In a forked child the pool is off.

Only glibc from 2.33 on has what this needs. Elsewhere nothing happens, and ``stats().reason`` says why.
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

__all__ = ["SWITCH", "Stats", "disable", "enable", "enable_by_default", "pool", "stats", "trim"]

SWITCH = "BURNT_MEMORY_POOL"
"""The environment variable: ``0`` keeps the pool off whoever asks, ``1`` lets burnt turn it on by itself even
where the environment tunes malloc, a size such as ``2GiB`` does so with a limit."""

_PERIOD = 1.0
"""Seconds between two looks at what is kept."""
_SHARE = 4
"""Without a limit, one part in so many of the machine's memory may be kept."""
_PROBE = 100_000
"""Bytes that tell whose malloc it is: below what glibc maps, whose thresholds a freed mapping would raise."""
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
# Parameters of mallopt, from malloc.h, and where glibc's own adaptation of them ends after large frees: it
# cannot be resumed once one of them was set.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_ADAPTED = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20, _MMAP_MAX: 65536}
_TUNED_BY = {
    _TRIM_THRESHOLD: ("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold"),
    _MMAP_THRESHOLD: ("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold"),
    _MMAP_MAX: ("MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max"),
}
_NEVER = -1  # as a threshold: mallopt takes an int and makes the largest size of it
_LARGEST_INT = 2**31 - 1


@dataclass(frozen=True)
class Stats:
    """How the pool stands, in bytes; None where malloc does not tell.

    Args:
        enabled: whether freed buffers are kept now.
        reason: why they are not, and will not be by burnt's own doing; None if they are or will be.
        limit: how much may be kept, also while it is off.
        in_use: what malloc has given out and not got back, small and large, to everyone in the process.
        kept: what is free and still resident. An estimate: memory that others than malloc (Python's own
            objects) took since the last trim counts here too, as far as malloc has that much free.
        resident: the process's resident memory.
        high_water: the most that it ever was.
    """

    enabled: bool
    reason: str | None
    limit: int | None
    in_use: int | None
    kept: int | None
    resident: int | None
    high_water: int | None


def enable(limit: int | str | None = None) -> Stats:
    """Keep freed buffers from now on, until `disable`.

    Args:
        limit: bytes that may be kept, or text such as ``"2GiB"``; a quarter of the machine's or the control
            group's memory by default. Larger buffers go back at once. Of several limits that are asked for
            (here, by `pool`, by the environment) the smallest holds.

    Returns:
        How it stands then: ``reason`` says why nothing was done where that is so.

    Raises:
        ConfigError: the limit is no size, or the environment variable BURNT_MEMORY_POOL cannot be read.

    >>> enable("1GiB").limit
    1073741824
    >>> disable()
    """
    wanted = _checked(limit)
    with _pool.lock:
        _pool.asked, _pool.limit = True, wanted
        _pool.settle()
        return _pool.stats()


def disable() -> None:
    """Give back what is kept, and let malloc do as it did.

    burnt does not turn the pool on by itself afterwards; a `pool` that is open keeps it on until it ends.
    glibc's malloc adapts its thresholds until someone sets them, and cannot be told to adapt again: they stay
    where the adaptation ends, at 32 MiB, or at what the environment says.
    """
    with _pool.lock:
        _pool.asked, _pool.limit, _pool.by_default = False, None, False
        _pool.settle()


@contextlib.contextmanager
def pool(limit: int | str | None = None, *, by_default: bool = False) -> Iterator[None]:
    """Keep freed buffers inside of a `with` block, and give back what is kept at its end.

    Args:
        limit: as for `enable`.
        by_default: only where `enable_by_default` would, as burnt's own rooms do.

    Raises:
        ConfigError: as `enable`.

    >>> with pool("512MiB"):
    ...     inside = stats()
    >>> inside.limit
    536870912
    """
    if by_default and _refusal() is not None:
        yield
        return
    mark, wanted = object(), _checked(limit)
    with _pool.lock:
        _pool.scopes[mark] = wanted
        _pool.settle()
    try:
        yield
    finally:
        with _pool.lock:
            _pool.scopes.pop(mark, None)  # a forked child has none
            _pool.settle()
        trim()


def enable_by_default() -> None:
    """Keep freed buffers, unless `disable`, BURNT_MEMORY_POOL=0 or an environment that tunes malloc says no.

    What compiled code calls when it is made.

    Raises:
        ConfigError: the environment variable BURNT_MEMORY_POOL cannot be read.
    """
    if _pool.by_default or _refusal() is not None:
        return
    with _pool.lock:
        _pool.by_default = True
        _pool.settle()


def trim() -> int:
    """Give free memory back to the kernel, also while the pool is off.

    Returns:
        By how many bytes the process's resident memory went down.

    >>> trim() >= 0
    True
    """
    with _pool.lock:
        return _pool.trim()


def stats() -> Stats:
    """How the pool stands.

    Raises:
        ConfigError: the environment variable BURNT_MEMORY_POOL cannot be read.

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
    """Bytes of all arenas: given out, free, and free at the end of the heap."""

    in_use: int
    free: int
    end: int


class _Malloc:
    """glibc's malloc: options, counts, giving back. ctypes releases the GIL in each call."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._mallopt, self._trim, self._info = libc.mallopt, libc.malloc_trim, libc.mallinfo2
        self._trim.argtypes = (ctypes.c_size_t,)
        self._info.restype = _Mallinfo2

    def keep(self, limit: int) -> None:
        """Serve blocks of up to `limit` bytes from the heap, and never let it shrink by itself."""
        self._mallopt(_TRIM_THRESHOLD, _NEVER)
        largest = max(limit, _ADAPTED[_MMAP_THRESHOLD])  # a heap that cannot grow is of no use to small ones
        if not self._mallopt(_MMAP_THRESHOLD, largest if largest <= _LARGEST_INT else _NEVER):
            # Up to glibc 2.34 thresholds end at 32 MiB, but mmap can be forbidden.
            self._mallopt(_MMAP_MAX, 0)

    def restore(self) -> None:
        """What the environment says, or what glibc arrives at by itself."""
        for parameter, value in (_ADAPTED | _tuned()).items():
            self._mallopt(parameter, min(value, _LARGEST_INT))

    def counts(self) -> _Counts:
        info = self._info()
        return _Counts(info.uordblks + info.hblkhd, info.fordblks, info.keepcost)

    def trim(self, keep: int) -> None:
        self._trim(keep)


@once
def _malloc() -> _Malloc | str:
    """The process's malloc, or why it cannot keep anything."""
    if platform.system() != "Linux":
        return f"{platform.system()} has its own malloc, which has no such settings"
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return "the C library is not glibc (musl has no such settings)"
    libc = ctypes.CDLL("libc.so.6")  # and not another library's functions of these names
    if not hasattr(libc, "mallinfo2"):
        return f"{os.confstr('CS_GNU_LIBC_VERSION')} cannot count past 2 GiB: 2.33 or newer is needed"
    malloc = _Malloc(libc)
    if not _serves(malloc):
        preloaded = os.environ.get("LD_PRELOAD")
        return "malloc is not glibc's but another library's" + (f": {preloaded}" if preloaded else "")
    return malloc


def _serves(malloc: _Malloc) -> bool:
    """Whether the process's blocks are `malloc`'s: then it counts one that is taken.

    Addresses do not tell: in a program linked to run at a fixed one, such as Debian's python3, ``malloc`` has
    the address of the program's jump to it.
    """
    process = ctypes.PyDLL(None)  # keeps the GIL: no other thread of Python's frees anything meanwhile
    process.malloc.restype, process.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    process.free.argtypes = (ctypes.c_void_p,)
    for _ in range(3):  # a thread that is not Python's may free as much
        before = malloc.counts().in_use
        block = process.malloc(_PROBE)
        taken = malloc.counts().in_use - before
        process.free(block)
        if taken >= _PROBE:
            return True
    return False


def _tuned() -> dict[int, int]:
    """Parameters that the environment sets, for glibc to read when the process starts."""
    tunables = dict(re.findall(r"([\w.]+)=(\w+)", os.environ.get("GLIBC_TUNABLES", "")))
    found = {}
    for parameter, (variable, tunable) in _TUNED_BY.items():
        text = tunables.get(tunable, os.environ.get(variable))
        if text is not None:
            with contextlib.suppress(ValueError):  # glibc overlooks what is no number
                found[parameter] = int(text, 0)
    return found


# --- the pool ---------------------------------------------------------------------------------------------


class _Pool:
    """Who asked for what, and what was done about it. Everything is called with the lock held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.asked: bool | None = None  # by enable and disable
        self.limit: int | None = None  # of enable
        self.by_default = False
        self.scopes: dict[object, int | None] = {}  # the limits of `pool`s that are open
        self.others = 0  # anonymous resident memory that malloc has not given out, when nothing was kept
        self.stop: threading.Event | None = None  # of the thread that looks; None while off
        self.bound = 0  # what that thread holds to

    def settle(self) -> None:
        """Make it so."""
        malloc = _malloc()
        forbidden, size = _switch()
        if isinstance(malloc, str):
            return
        wanted = not forbidden and (bool(self.asked) or bool(self.scopes) or self.by_default)
        if wanted:
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
        """Of the limits that are asked for, the environment's among them."""
        asked = [limit for limit in (self.limit, *self.scopes.values(), size) if limit is not None]
        return min(asked, default=_memory() // _SHARE)

    def stats(self) -> Stats:
        malloc = _malloc()
        _, size = _switch()
        if isinstance(malloc, str):
            return Stats(False, malloc, None, None, None, None, None)
        reason = None if self.stop is not None else _refusal()
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        peak, now = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) << 10 for name in ("VmHWM", "VmRSS"))
        counts = malloc.counts()
        kept = self.kept(counts)
        return Stats(self.stop is not None, reason, self.smallest(size), counts.in_use, kept, now, peak)

    def kept(self, counts: _Counts) -> int:
        """Free bytes that are resident. malloc counts free ones that were given back as well."""
        return max(0, min(counts.free, _anonymous() - counts.in_use - self.others))

    def trim(self, keep: int = 0) -> int:
        malloc = _malloc()
        if isinstance(malloc, str):
            return 0
        before = _anonymous()
        malloc.trim(keep)
        after, counts = _anonymous(), malloc.counts()
        self.others = after - counts.in_use - counts.end
        return max(0, before - after)

    def look(self) -> None:
        """Give back what is above the limit: all but the end of the heap, and of that as much as may stay."""
        malloc = _malloc()
        if isinstance(malloc, str) or self.stop is None:
            return
        counts = malloc.counts()
        if counts.free > self.bound and self.kept(counts) > self.bound:
            self.trim(self.bound)


_pool = _Pool()


def _after_fork() -> None:
    """In a child: the thread is gone, and another of the parent's may have held the lock."""
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
                _pool.look()


def _refusal() -> str | None:
    """Why burnt does not turn the pool on by itself."""
    forbidden, _ = _switch()
    if forbidden:
        return f"{SWITCH}=0"
    if _pool.asked is False:
        return "burnt.memory.disable() was called"
    if _tuned() and not os.environ.get(SWITCH):
        return f"the environment tunes malloc, which is left so; {SWITCH}=1 for the pool nonetheless"
    return None


def _switch() -> tuple[bool, int | None]:
    """What the environment says: whether the pool is forbidden, and a limit."""
    text = os.environ.get(SWITCH, "").strip()
    if text in ("", "0", "1"):
        return text == "0", None
    return False, _size(text, SWITCH)


def _checked(limit: int | str | None) -> int | None:
    """A limit in bytes, before anything is changed; the environment has to be readable too."""
    _switch()
    return None if limit is None else _size(limit, "limit")


def _size(size: int | str, where: str) -> int:
    """Bytes, of a number or of text such as ``2GiB``.

    Raises:
        ConfigError: it is no size, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([a-zA-Z]*)", str(size).strip())
    units = {name.lower(): factor for name, factor in _UNITS.items()}
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None or int(float(match[1]) * factor) < 1:
        expected = "a size such as 2GiB, or bytes" + (
            ", or 0 for off, or 1 for on" if where == SWITCH else ""
        )
        raise ConfigError(
            "the memory pool cannot have such a limit", where=where, expected=expected, found=size
        )
    return int(float(match[1]) * factor)


def _anonymous() -> int:
    """Resident bytes that belong to no file."""
    resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


@once
def _memory(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that this process may have: the machine's, or those of the control groups that it is in."""
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
