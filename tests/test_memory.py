"""The pool for host buffers: what is kept, bounded, given back. Most tests have a process of their own."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnt import memory
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import ConfigError

MIB = 1 << 20
# Asked of the platform: asked of the pool, one that takes glibc's malloc for another's would go untested.
LIBRARY, VERSION = platform.libc_ver()
NEEDS_GLIBC = pytest.mark.skipif(
    LIBRARY != "glibc" or tuple(map(int, VERSION.split("."))) < (2, 33) or "LD_PRELOAD" in os.environ,
    reason="needs the malloc of glibc 2.33 or newer",
)
HEAD = """
import ctypes, os, random, resource, threading, time
from burnt import memory
MIB = 1 << 20
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def take(mib):
    "A block of malloc's, written to."
    block = libc.malloc(int(mib * MIB))
    libc.memset(block, 1, int(mib * MIB))
    return block

def resident():
    "MiB, as the kernel counts them."
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmRSS"].split()[0]) / 1024

def mapped():
    "MiB of blocks that are mapped one by one."
    return memory._malloc()._info().hblkhd / MIB

def near(found, expected, within=4):
    assert abs(found - expected) <= within, f"{found:.1f} MiB, not {expected:.1f}"
"""


OTHER_MALLOC = """
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

static char *room;  /* given out from the front, and never again */

__attribute__((constructor)) static void reserve(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (!room) room = mmap(0, 1l << 36, PROT_READ | PROT_WRITE, flags, -1, 0);
}

void *malloc(size_t size) {
    reserve();
    size_t *block = (size_t *)__atomic_fetch_add(&room, (size + 31) & ~15ul, __ATOMIC_RELAXED);
    *block = size;
    return block + 2;
}

void free(void *block) {}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *realloc(void *block, size_t size) {
    size_t old = block ? ((size_t *)block)[-2] : 0;
    return block && size <= old ? block : memcpy(malloc(size), block, old);
}
"""


def run(code: str, **environment: str) -> str:
    names = {memory.SWITCH, "GLIBC_TUNABLES", "LD_PRELOAD"}
    kept = {k: v for k, v in os.environ.items() if k not in names and not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code],
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that nobody has asked for anything, in an environment that says nothing."""
    monkeypatch.setattr(memory, "_pool", memory._Pool())
    for name in (memory.SWITCH, "GLIBC_TUNABLES", *(variable for variable, _ in memory._TUNED_BY.values())):
        monkeypatch.delenv(name, raising=False)


# --- keeping and giving back


@NEEDS_GLIBC
def test_a_freed_buffer_is_kept_and_used_again_without_page_faults() -> None:
    run("""
libc.free(take(64))
assert resident() < 60, "without the pool it goes back at once"
memory.enable()
before = resident()
libc.free(take(64))
near(resident(), before + 64)
near(memory.stats().kept / MIB, 64)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
libc.free(take(64))
assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 100
""")


@NEEDS_GLIBC
def test_statistics_are_those_of_malloc_and_the_kernel() -> None:
    run("""
memory.enable()
before = memory.stats()
block, other = take(40), take(24)
now = memory.stats()
near((now.in_use - before.in_use) / MIB, 64)
near(now.resident / MIB, resident(), 1)
near(now.kept / MIB, before.kept / MIB)
libc.free(block)
freed = memory.stats()
near((freed.in_use - before.in_use) / MIB, 24)
near((freed.kept - before.kept) / MIB, 40)
near((freed.resident - before.resident) / MIB, 64)
assert freed.high_water >= now.resident - MIB
memory.trim()
trimmed = memory.stats()
assert trimmed.high_water >= now.resident - MIB > trimmed.resident
# What was given back is free for malloc, but no longer kept; it is kept again once it was used.
near(trimmed.kept / MIB, 0)
libc.free(take(40))
near(memory.stats().kept / MIB, 40)
""")


@NEEDS_GLIBC
def test_what_is_in_use_when_it_is_enabled_is_not_taken_for_kept() -> None:
    run("""
block, held = take(50), [bytearray(1000) for _ in range(50_000)]
memory.enable()
near(memory.stats().kept / MIB, 0)
libc.free(block)
near(memory.stats().kept / MIB, 0)  # it had been mapped, and goes back as such
memory.disable()
taken = [(take(0.1), take(0.001)) for _ in range(400)]
for block, _ in taken:
    libc.free(block)
assert memory.stats().kept > 30 * MIB
assert memory.enable().kept < 4 * MIB
""")


@NEEDS_GLIBC
def test_trim_gives_back_and_says_how_much() -> None:
    run("""
memory.enable()
before = resident()
low, pin, high = take(100), take(1), take(50)
libc.free(low)
libc.free(high)
near(memory.trim() / MIB, 150)
near(resident(), before + 1)
assert memory.trim() < MIB
memory.disable()
assert memory.trim() < MIB
""")


@NEEDS_GLIBC
def test_disable_gives_back_and_restores() -> None:
    run("""
memory.enable()
before = resident()
libc.free(take(64))
assert mapped() < 4
with memory.pool():
    pass
near(resident(), before)  # the end of a scope gives back, too
libc.free(take(64))
memory.disable()
near(resident(), before)
assert not memory.stats().enabled
assert not [thread for thread in threading.enumerate() if thread.name == "burnt-memory" and thread.join(5)]
in_use = memory.stats().in_use
block = take(64)
near(mapped(), 64)
near((memory.stats().in_use - in_use) / MIB, 64)
libc.free(block)
near(resident(), before)
# Where glibc's own adaptation ends: 32 MiB are mapped, and a top of 64 MiB is trimmed.
block = take(31)
near(mapped(), 0)
libc.free(block)
near(resident(), before + 31)
libc.free(block := take(33))
near(mapped(), 0)
""")


@NEEDS_GLIBC
@pytest.mark.parametrize(
    "environment",
    [{"MALLOC_MMAP_THRESHOLD_": "1048576"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=0x100000"}],
)
def test_disable_restores_what_the_environment_had_tuned(environment: dict[str, str]) -> None:
    run(
        """
def is_mapped():
    block = take(2)
    try:
        return mapped() - before > 1
    finally:
        libc.free(block)

before = mapped()
assert is_mapped()
memory.enable_by_default()
assert not memory.stats().enabled
assert memory.stats().reason.startswith("the environment tunes malloc")
memory.enable()
assert memory.stats().enabled
assert not is_mapped()
memory.disable()
assert is_mapped()
""",
        **environment,
    )


# --- the bound


@NEEDS_GLIBC
def test_the_bound_holds_in_the_middle_of_the_heap_and_at_its_end() -> None:
    run("""
memory._PERIOD = 0.02
memory.enable("100MiB")
before = resident()
def blocks():
    taken = [(take(16), take(0.01)) for _ in range(20)]
    for block, _ in taken:
        libc.free(block)
blocks()
deadline = time.monotonic() + 20
while True:  # the thread trims now and then, and a second look may find a little more again
    more, kept = resident() - before, memory.stats().kept / MIB
    if more <= 105 and kept <= 100:
        break
    assert time.monotonic() < deadline, (more, kept)
    time.sleep(0.01)
# What is below the limit stays.
memory.trim()
memory._pool.trim_excess()
before = resident()
libc.free(take(80))
time.sleep(0.2)
near(resident(), before + 80)
""")


@NEEDS_GLIBC
def test_the_end_of_the_heap_is_kept_up_to_the_bound() -> None:
    run("""
memory._PERIOD = 1000
memory.enable("100MiB")
before = resident()
taken = [take(30) for _ in range(10)]
for block in taken:
    libc.free(block)
near(resident(), before + 300)
memory._pool.trim_excess()
near(resident(), before + 100)
near(memory.stats().kept / MIB, 100)
""")


@NEEDS_GLIBC
def test_buffers_beyond_the_bound_are_not_pooled() -> None:
    run("""
memory.enable("48MiB")
before = resident()
block = take(64)
near(mapped(), 64)
libc.free(block)
near(resident(), before)
memory.enable("64KiB")  # small blocks still come from the heap
taken = [libc.malloc(200_000) for _ in range(100)]
assert mapped() < 4
""")


@NEEDS_GLIBC
def test_of_several_limits_the_smallest_holds() -> None:
    run(
        """
assert memory.stats().limit == 3 * MIB * 1024
memory.enable("5GiB")
assert memory.stats().limit == 3 * MIB * 1024
with memory.pool("2 GB"):
    assert memory.stats().limit == 2_000_000_000 == memory._pool.bound
    with memory.pool("2.5GiB"):
        assert memory.stats().limit == 2_000_000_000
assert memory.stats().limit == 3 * MIB * 1024 == memory._pool.bound
memory.enable(1024)
assert memory.stats().limit == 1024
memory.enable()
assert memory.stats().limit == 3 * MIB * 1024
""",
        BURNT_MEMORY_POOL="3GiB",
    )


@NEEDS_GLIBC
def test_buffers_of_many_sizes_do_not_add_up() -> None:
    """Fragmentation: what is resident levels off at a small multiple of what lives."""
    run("""
memory.enable("2GiB")
dice, live, total, after = random.Random(0), [], 0, []
before = resident()
for step in range(4000):
    size = dice.choice([dice.uniform(0.004, 0.016), dice.uniform(0.5, 8)])
    live.append((take(size), size))
    total += size
    while total > 100:
        index = dice.randrange(len(live))
        block, size = live[index]
        live[index] = live[-1]
        live.pop()
        libc.free(block)
        total -= size
    if step % 1000 == 999:
        after.append(resident() - before)
assert max(after) < 300, after
assert after[3] < 1.25 * after[1], after
for block, _ in live:
    libc.free(block)
memory.trim()
near(resident(), before, 16)
""")


@NEEDS_GLIBC
def test_without_a_limit_a_part_of_the_memory_of_machine_or_control_group(
    tmp_path: Path, fresh: None
) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    own, job = tmp_path / "own", tmp_path / "groups" / "user" / "job"
    job.mkdir(parents=True)
    assert memory._memory_limit(tmp_path / "groups", own) == machine
    own.write_text("1:cpu:/elsewhere\n0::/user/job\n")
    assert memory._memory_limit.__wrapped__(tmp_path / "groups", own) == machine
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text("1073741824\n")
    (tmp_path / "memory.max").write_text("1\n")  # no group's
    assert memory._memory_limit.__wrapped__(tmp_path / "groups", own) == 2**30
    assert memory.stats().limit == memory._memory_limit() // 4


# --- threads and forks


@pytest.mark.full
@NEEDS_GLIBC
def test_threads_with_arenas_of_their_own_are_bounded_and_trimmed() -> None:
    run("""
def work():
    for size in (1, 24, 60, 100):
        for _ in range(5):
            libc.free(take(size))

threading.Thread(target=lambda: libc.free(take(1))).start()  # its arena is there before the pool
memory._PERIOD = 1000
memory.enable("200MiB")
before, after = resident(), []
for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory._pool.trim_excess()
    assert memory.stats().kept <= 200 * MIB
    after.append(resident() - before)
# The end of each arena stays, as it does without a pool; they were given 8 GiB.
assert max(after) < 200 + 4 * 64, after
near(after[2], after[1], 64)
memory.trim()
assert resident() - before < 4 * 64
""")


@pytest.mark.full
@NEEDS_GLIBC
def test_torchs_tensors_and_openmp_threads() -> None:
    run(
        """
import torch
def work():
    x = torch.arange(8 << 20, dtype=torch.float32).requires_grad_()
    y = (x.clone() * 2 + 1).view(4096, -1).softmax(-1).sum()
    y.backward()
    assert abs(y.item() - 4096) < 1
    torch.randn(700, 700) @ torch.randn(700, 700)

work()
with memory.pool("1GiB"):
    for _ in range(12):  # until the heap has about the size that the rounds need; it differs from run to run
        work()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        work()
    # 330,000 without the pool; another buffer or two at the end of the heap take 8,192 each.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 66_000
    high, kept = resident(), memory.stats().kept / MIB
    assert 100 < kept < 1024
assert resident() < high - 0.8 * kept
""",
        OMP_NUM_THREADS="2",
    )


@NEEDS_GLIBC
def test_scopes_in_several_threads_end_in_any_order() -> None:
    run("""
entered, leave = [threading.Event() for _ in range(8)], [threading.Event() for _ in range(8)]
def scope(i):
    with memory.pool(f"{i + 1}GiB"):
        entered[i].set()
        assert leave[i].wait(20)

threads = [threading.Thread(target=scope, args=(i,)) for i in range(8)]
for i, thread in enumerate(threads):
    thread.start()
    assert entered[i].wait(20)
for i, smallest in zip((0, 5, 1, 7, 3, 2, 4, 6), (2, 2, 3, 3, 3, 5, 7, None)):
    now = memory.stats()
    assert now.enabled
    leave[i].set()
    threads[i].join()
    assert memory.stats().enabled is (smallest is not None)
    assert smallest is None or memory.stats().limit == smallest << 30
""")


@NEEDS_GLIBC
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_begins_without_and_can_have_its_own() -> None:
    out = run("""
memory.enable("1GiB")
held, done = threading.Event(), threading.Event()
def hold():
    with memory._pool.lock:
        held.set()
        done.wait(20)

thread = threading.Thread(target=hold)
thread.start()
held.wait(20)
with_parent = memory._pool
child = os.fork()
if child == 0:
    assert not memory.stats().enabled
    block = take(64)
    near(mapped(), 64)
    libc.free(block)
    memory.enable("2GiB")
    assert memory.stats().enabled
    assert memory.stats().limit == 2 << 30
    block = take(64)
    near(mapped(), 0)
    assert [t.name for t in threading.enumerate()].count("burnt-memory") == 1
    print("child is well", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
done.set()
thread.join()
assert memory.stats().enabled
assert memory.stats().limit == 1 << 30

with memory.pool("512MiB"):  # a child that leaves a scope of its parent's
    child = os.fork()
if child == 0:
    assert not memory.stats().enabled
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")
    assert out == "child is well\n"


# --- who may turn it on


@NEEDS_GLIBC
def test_burnt_turns_it_on_unless_the_user_forbids_it() -> None:
    run("""
memory.enable_by_default()
assert memory.stats().enabled
memory.enable_by_default()
assert [thread.name for thread in threading.enumerate()].count("burnt-memory") == 1
with memory.pool():
    pass
assert memory.stats().enabled
memory.disable()
memory.enable_by_default()
with memory.pool(by_default=True):
    now = memory.stats()
assert (now.enabled, now.reason) == (False, "burnt.memory.disable() was called")
with memory.pool():
    assert memory.stats().enabled
    assert memory.stats().reason is None
    memory.disable()
    assert memory.stats().enabled
assert not memory.stats().enabled
memory.enable()
assert memory.stats().reason is None
""")


@NEEDS_GLIBC
def test_the_switch_beats_everybody() -> None:
    run(
        """
memory.enable_by_default()
assert not memory.enable().enabled
with memory.pool():
    assert not memory.stats().enabled
assert memory.stats().reason == "BURNT_MEMORY_POOL=0"
libc.free(take(64))
assert resident() < 60
""",
        BURNT_MEMORY_POOL="0",
    )


@NEEDS_GLIBC
@pytest.mark.parametrize("switch", ["1", "512MiB"])
def test_the_switch_turns_it_on_where_the_environment_tunes_malloc(switch: str) -> None:
    run(
        "memory.enable_by_default(); assert memory.stats().enabled",
        BURNT_MEMORY_POOL=switch,
        MALLOC_TRIM_THRESHOLD_="100000",
    )


@NEEDS_GLIBC
def test_compiled_code_and_the_learner_ask_for_it(tmp_path: Path) -> None:
    if find_compiler() is None:
        pytest.skip("no C compiler here, so that nothing is compiled")
    run(
        f"""
import torch, burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

seen = []
def step(model, batch):
    seen.append(memory.stats().enabled)
    outputs = model(batch.x)
    return StepOutput(torch.nn.functional.mse_loss(outputs, batch.y), outputs, batch.y)

def train(folder, **options):
    seen.clear()
    data = Loader(TensorDataset(x=torch.randn(8, 2), y=torch.randn(8, 1)), batch_size=4)
    training = SupervisedTraining({str(tmp_path)!r} + folder, train=data, duration="2 steps", monitor="off",
                                  check=False, checkpoints=None, **options)
    training.run(Learner(torch.nn.Linear(2, 1), optim.Sgd(), 0.1, step=step))
    return set(seen), memory.stats().enabled

assert train("/on") == ({{True}}, False)
assert train("/off", memory_pool=False) == ({{False}}, False)
x = torch.ones(4)
assert burnt.fuse(lambda x: x + 1)(x).tolist() == [2.0] * 4
assert memory.stats().enabled
assert train("/after") == ({{True}}, True)
"""
    )


# --- where it cannot be


def without_glibc(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    monkeypatch.setattr(memory, "_malloc", memory.once(memory._malloc.__wrapped__))
    for name, value in changes.items():
        monkeypatch.setattr(*({"system": (platform, "system"), "CDLL": (ctypes, "CDLL")}[name]), value)


def does_nothing() -> str:
    assert memory.enable("1GiB") == memory.stats()
    with memory.pool():
        memory.enable_by_default()
    assert memory.trim() == 0
    memory.disable()
    now = memory.stats()
    assert (now.enabled, now.limit, now.in_use, now.kept) == (False, None, None, None)
    assert now.reason is not None
    return now.reason


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_other_systems(fresh: None, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    without_glibc(monkeypatch, system=lambda: system)
    assert does_nothing() == f"{system} has its own malloc, which has no such settings"


def test_other_c_libraries(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without_glibc(monkeypatch, system=lambda: "Linux", CDLL=lambda name: SimpleNamespace())
    assert does_nothing() == "the C library is not glibc (musl has no such settings)"


@NEEDS_GLIBC
def test_an_old_glibc(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = ctypes.CDLL(None)
    old = SimpleNamespace(gnu_get_libc_version=libc.gnu_get_libc_version, malloc=libc.malloc)
    without_glibc(monkeypatch, CDLL=lambda name: old)
    assert does_nothing().endswith("cannot count past 2 GiB: 2.33 or newer is needed")


@NEEDS_GLIBC
def test_a_threshold_that_is_refused_forbids_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    malloc, set_ = memory._Malloc(ctypes.CDLL(None)), []
    monkeypatch.setattr(malloc, "_mallopt", lambda name, value: set_.append((name, value)) or name != -3)
    malloc.keep(2**30)
    assert set_ == [(-1, -1), (-3, 2**30), (-4, 0)]


def preloaded(source: str, folder: Path) -> str:
    """The path of a library made of `source`."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler here to make another malloc with")
    (folder / "other.c").write_text(source)
    library = folder / "libother.so"
    command = [*compiler.command, "-shared", "-fPIC", "-fno-builtin", "other.c", "-o", str(library)]
    subprocess.run(command, cwd=folder, check=True)
    return str(library)


@NEEDS_GLIBC
def test_another_librarys_malloc_is_noticed(tmp_path: Path) -> None:
    library = preloaded(OTHER_MALLOC, tmp_path)
    out = run("print(memory.enable().reason)", LD_PRELOAD=library)
    assert out == f"malloc is not glibc's but another library's: {library}\n"


@NEEDS_GLIBC
def test_a_malloc_that_hands_on_to_glibcs_is_glibcs(tmp_path: Path) -> None:
    """It has another address, as in Debian's python3, a program that is linked to run at a fixed one."""
    source = "void *__libc_malloc(unsigned long); void *malloc(unsigned long n) { return __libc_malloc(n); }"
    run(
        """
assert memory.enable("1GiB").reason is None
libc.free(take(200))
near(memory.stats().kept / MIB, 200)
""",
        LD_PRELOAD=preloaded(source, tmp_path),
    )


# --- sizes and the switch


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), (4096, 4096), ("2GiB", 2**31), ("1.5 gib", 3 << 29), ("800MB", 800_000_000), ("3B", 3),
     ("1KiB", 1024), ("2kb", 2000), ("1TiB", 2**40), (" 7MiB ", 7 * MIB)],
)  # fmt: skip
def test_sizes(text: str | int, expected: int) -> None:
    assert memory._parse_size(text, "limit") == expected


@pytest.mark.parametrize(
    "text", ["2GB2", "-1", "0", "0.2B", "GiB", "2XiB", "nan", "", "1e9", "2 GiB!", 0, -5]
)
def test_no_sizes(fresh: None, text: str | int) -> None:
    with pytest.raises(ConfigError) as caught:
        memory.enable(text)
    assert str(caught.value).splitlines() == [
        "the limit of the memory pool is invalid",
        "  in        limit",
        "  expected  a size such as 2GiB, or bytes",
        f"  found     {text}".rstrip() if text else f"  found     {text}",
    ]
    assert memory._pool.requested is None  # nothing was done


@pytest.mark.parametrize("call", [memory.enable, memory.enable_by_default, memory.stats])
def test_a_switch_that_cannot_be_read(fresh: None, monkeypatch: pytest.MonkeyPatch, call: object) -> None:
    monkeypatch.setenv(memory.SWITCH, "on")
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value).splitlines()[1:] == [
        "  in        BURNT_MEMORY_POOL",
        "  expected  a size such as 2GiB, or bytes, or 0 for off, or 1 for on",
        "  found     on",
    ]
    assert not memory._pool.by_default
    assert memory._pool.requested is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (False, None)), ("0", (True, None)), ("1", (False, None)), (" 1GiB", (False, 2**30))],
)
def test_the_switch(monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[bool, int | None]) -> None:
    monkeypatch.setenv(memory.SWITCH, text)
    assert memory._read_switch() == expected
