"""The toolchain of generated C: what it finds, keeps, refuses, and shares with torch."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from burnt.codegen.runtime import build_cache, c_compiler, c_library
from burnt.codegen.runtime.c_compiler import PREAMBLE, find_compiler
from burnt.codegen.runtime.c_library import launcher, load, status
from burnt.errors import CacheError, CompileError, UnsupportedError
from tests import forked

SCALE = PREAMBLE + "void scale(const burnt_arg *a) { *(float *)a[0].p *= a[1].f; }"
THREADS = (
    PREAMBLE
    + """
int omp_get_max_threads(void);
void threads(const burnt_arg *a) {
    int64_t *out = a[0].p, seen = 0;
    #pragma omp parallel reduction(+ : seen)
    seen += 1;
    out[0] = seen;
    out[1] = omp_get_max_threads();
}
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of the test's own, and a process that knows nothing yet."""
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))
    for name in ("BURNT_CC", "CC", "BURNT_CACHE_MIB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(c_library, "_state", c_library._State())
    monkeypatch.setattr(build_cache, "_notes", {})
    c_compiler._search.cache_clear()
    threads = torch.get_num_threads()
    yield tmp_path / "cache" / "c"
    torch.set_num_threads(threads)
    c_compiler._search.cache_clear()


HEAD = (
    "import ctypes, os, sys, torch\n"
    "from burnt.codegen.runtime import build_cache, c_compiler, c_library\n"
    "from burnt.codegen.runtime.c_library import *\n"
)


def output(code: str, *arguments: str) -> str:
    """What another process prints, which has this one's environment, and nothing of burnt loaded."""
    done = forked.run(HEAD + code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def script(path: Path, text: str) -> Path:
    """A program that stands in for a compiler."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def scaled(library: c_library.Library) -> float:
    x = torch.tensor([3.0])
    launcher(library["scale"], pointers=1, floats=1)(x.data_ptr(), 2.0)
    return x.item()


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir() if not path.name.startswith("compiler-"))


class TestCalls:
    def test_arguments_of_all_kinds_arrive(self) -> None:
        library = load(
            PREAMBLE
            + """
            void mix(const burnt_arg *a) {
                double *out = a[0].p;
                out[0] = a[1].i; out[1] = a[2].i % 1000; out[2] = a[3].f;
            }
            void other(const burnt_arg *a) { *(double *)a[0].p = -1; }
            """,
            ["mix", "other"],
        )
        out = torch.zeros(3, dtype=torch.float64)
        launcher(library["mix"], pointers=1, ints=2, floats=1)(out.data_ptr(), -7, 2**62 + 3, 1e-310)
        assert out.tolist() == [-7.0, (2**62 + 3) % 1000, 1e-310]
        launcher(library["other"], pointers=1)(out.data_ptr())
        assert out[0] == -1

    @pytest.mark.parametrize("arguments", [(), (0, 1.0, 2.0), (0, "x"), (2**63, 1.0), (0.5, 1.0)])
    def test_what_does_not_fit_is_refused_before_the_call(self, arguments: tuple[float, ...]) -> None:
        call = launcher(load(SCALE, ["scale"])["scale"], pointers=1, floats=1)
        with pytest.raises(struct.error):
            call(*arguments)

    def test_a_raw_function_takes_nothing_but_bytes(self) -> None:
        with pytest.raises(ctypes.ArgumentError):
            load(SCALE, ["scale"])["scale"](1234)  # type: ignore[arg-type]

    def test_other_threads_of_python_run_during_a_call(self) -> None:
        wait = """
        void wait(const burnt_arg *a) {
            volatile int64_t *flag = a[0].p;
            for (int64_t i = 0; i < 20000000000 && !*flag; i++) ;
            if (*flag == 1) *flag = 2;
        }
        """
        flag = ctypes.c_int64(0)
        call = launcher(load(PREAMBLE + wait, ["wait"])["wait"], pointers=1)
        thread = threading.Thread(target=call, args=(ctypes.addressof(flag),))
        thread.start()
        flag.value = 1
        thread.join()
        assert flag.value == 2

    def test_an_empty_kernel_and_no_names(self) -> None:
        assert load(PREAMBLE, []).functions == {}


class TestNumbers:
    def test_no_flag_changes_what_numbers_mean(self) -> None:
        flags = c_compiler.flags()
        assert not c_compiler.UNSAFE_FLAGS.intersection(flags)
        assert not re.search("fast-math|Ofast|unsafe", " ".join(flags))
        assert {"-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fopenmp"} <= set(flags)

    @pytest.mark.parametrize(
        ("machine", "system", "features", "expected"),
        [
            ("x86_64", "Linux", "avx2 avx512f avx512_vbmi2", ("-march=native", "-mprefer-vector-width=512")),
            ("AMD64", "Linux", "avx2 avx512f", ("-march=native",)),
            ("x86_64", "Linux", "avx2", ("-march=native",)),
            ("aarch64", "Linux", "asimd", ("-mcpu=native",)),
            ("arm64", "Darwin", "", ("-mcpu=apple-m1",)),
            ("riscv64", "Linux", "", ()),
        ],
    )
    def test_flags_are_those_of_the_machine(
        self,
        machine: str,
        system: str,
        features: str,
        expected: tuple[str, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Vectors of 512 bits where they cost no clock."""
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(c_compiler, "cpu_features", lambda: f"flags : {features} sha_ni")
        found = c_compiler.flags.__wrapped__()
        assert tuple(flag for flag in found if flag.startswith("-m")) == expected

    def test_a_processor_that_is_given_changes_no_flag(self, processor: str) -> None:
        """It would make instructions that this machine lacks."""
        assert c_compiler.flags.__wrapped__() == c_compiler.flags()
        assert c_compiler.cpu_features.__wrapped__() == c_compiler.cpu_features()

    def test_denormals_live_on_in_torch_and_in_the_kernel(self) -> None:
        half = """
        void half(const burnt_arg *a) {
            float *x = a[0].p;
            #pragma omp parallel for
            for (int64_t i = 0; i < a[1].i; i++) x[i] *= 0.5f;
        }
        """
        x = torch.full((10_000,), 2e-40)
        launcher(load(PREAMBLE + half, ["half"])["half"], pointers=1, ints=1)(x.data_ptr(), x.numel())
        assert (x.view(torch.int32) == 71362).all()  # 1e-40 in units of 2**-149
        assert (torch.full((100_000,), 2e-40) * 0.5).view(torch.int32).eq(71362).all()

    def test_nan_infinity_and_signed_zero(self) -> None:
        odd = """
        void odd(const burnt_arg *a) {
            float *x = a[0].p;
            for (int64_t i = 0; i < 4; i++) x[i] = x[i] != x[i] ? 1.f : isinf(x[i]) ? 2.f : x[i] + 0.f * x[i];
        }
        """
        x = torch.tensor([float("nan"), float("-inf"), -0.0, -5.0])
        launcher(load(PREAMBLE + odd, ["odd"])["odd"], pointers=1)(x.data_ptr())
        assert x.tolist() == [1.0, 2.0, 0.0, -5.0]
        assert torch.signbit(x).tolist() == [False, False, True, True]


class TestThreads:
    def test_one_openmp_runtime_is_mapped_and_no_second_pool(self) -> None:
        code = """
torch.set_num_threads(2)
x = torch.ones(4_000_000); (x + x).sum()
tasks = len(os.listdir("/proc/self/task"))
out = torch.zeros(2, dtype=torch.int64)
launcher(load(sys.argv[1], ["threads"])["threads"], pointers=1)(out.data_ptr())
with open("/proc/self/maps") as file:
    maps = {line.split(maxsplit=5)[-1].strip() for line in file if "omp" in line.rpartition("/")[2]}
print(*out.tolist(), len(os.listdir("/proc/self/task")) - tasks, maps == {str(c_compiler.openmp_runtime())})
"""
        assert output(code, THREADS) == "2 2 0 True"

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_the_number_of_threads_is_torchs_also_in_a_new_thread(self, number: int) -> None:
        call = launcher(load(THREADS, ["threads"])["threads"], pointers=1)
        torch.set_num_threads(number)
        here, there = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        call(here.data_ptr())
        thread = threading.Thread(target=call, args=(there.data_ptr(),))
        thread.start()
        thread.join()
        assert here.tolist() == there.tolist() == [number, number]

    def test_a_runtime_of_another_name_is_what_gets_linked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = find_compiler()
        assert found
        fake = tmp_path / "libgomp-0a1b2c3d.so.1.0.0"
        (tmp_path / "fake.c").write_text(
            "void GOMP_parallel(void) {} int omp_get_max_threads(void) { return 1; }"
        )
        subprocess.run(
            [
                found.path,
                "-shared",
                "-fPIC",
                "-Wl,-soname,libgomp-0a1b2c3d.so.1",
                "-o",
                fake,
                tmp_path / "fake.c",
            ],
            check=True,
        )
        monkeypatch.setattr(c_compiler, "openmp_runtime", lambda: fake)
        source = THREADS.replace("reduction(+ : seen)", "")
        # Some distributions make linkers leave out what is not needed; this must not depend on that.
        strict = dataclasses.replace(found, command=(*found.command, "-Wl,--no-as-needed"))
        c_compiler.compile_library(source, strict, tmp_path, tmp_path / "out.so")
        content = (tmp_path / "out.so").read_bytes()
        assert b"libgomp-0a1b2c3d.so.1\0" in content
        assert b"libgomp.so" not in content

    def test_code_for_another_runtime_is_refused(self) -> None:
        other = "void __kmpc_fork_call(void); void f(const burnt_arg *a) { __kmpc_fork_call(); }"
        with pytest.raises(CompileError, match="undefined reference to `__kmpc_fork_call'"):
            load(PREAMBLE + other, ["f"])

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("loaded_before", [True, False])
    def test_a_forked_child_computes(self, loaded_before: bool) -> None:
        code = """
import signal
torch.set_num_threads(2)
x = torch.ones(4_000_000); (x + x).sum()   # the threads that the child will not have
run = lambda out: launcher(load(sys.argv[1], ["threads"])["threads"], pointers=1)(out.data_ptr())
out = torch.zeros(2, dtype=torch.int64)
if sys.argv[2] == "True":
    run(out)
child = os.fork()
if not child:
    signal.alarm(60)
    run(out); (x + x).sum()
    os._exit(0 if out.tolist() == [1, 1] and "one thread" in status()["notes"][-1] else 1)
run(out)
print(os.waitpid(child, 0)[1], *out.tolist())
"""
        assert output(code, THREADS, str(loaded_before)) == "0 2 2"

    def test_threads_with_the_same_source_compile_it_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        find_compiler()
        compiled = []
        original = c_compiler.compile_library
        monkeypatch.setattr(
            c_compiler, "compile_library", lambda *arguments: (compiled.append(1), original(*arguments))
        )
        barrier, results = threading.Barrier(4), []

        def work() -> None:
            barrier.wait()
            results.append(scaled(load(SCALE, ["scale"])))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (results, len(compiled)) == ([6.0] * 4, 1)


class TestFolder:
    def test_what_is_kept(self, folder: Path) -> None:
        library = load(SCALE, ["scale"])
        assert library.source.read_text() == SCALE
        assert library.path.parent == folder
        assert folder.stat().st_mode & 0o777 == 0o700
        assert files(folder) == ["", ".c", ".so"]  # and the time of the last sweep
        assert load(SCALE, ["scale"]).path == library.path

    @pytest.mark.parametrize(
        ("environment", "where"),
        [
            ({"BURNT_CACHE": "{}/b", "XDG_CACHE_HOME": "{}/x"}, "b/c"),
            ({"XDG_CACHE_HOME": "{}/x"}, "x/burnt/c"),
            ({}, "home/.cache/burnt/c"),
        ],
    )
    def test_where_it_is(
        self, environment: dict[str, str], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("BURNT_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert build_cache.cache_folder() == tmp_path / where

    def test_a_relative_one_is_below_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("BURNT_CACHE", "of mine")
        library = load(SCALE, ["scale"])
        assert (library.path.parent, scaled(library)) == (tmp_path / "of mine" / "c", 6.0)

    def test_another_process_finds_it_and_compiles_nothing(self) -> None:
        load(SCALE, ["scale"])
        code = """
import subprocess
def refuse(*_, **__): raise AssertionError("a process was started")
subprocess.run = refuse
x = torch.tensor([3.0])
launcher(load(sys.argv[1], ["scale"])["scale"], pointers=1, floats=1)(x.data_ptr(), 5.0)
print(x.item())
"""
        assert output(code, SCALE) == "15.0"

    def test_two_processes_at_once(self, folder: Path) -> None:
        code = """
read, write = os.pipe()  # both children go on when it is closed here
children = []
for _ in range(2):
    if not (child := os.fork()):
        os.close(write)
        os.read(read, 1)
        x = torch.tensor([3.0])
        launcher(load(sys.argv[1], ["scale"])["scale"], pointers=1, floats=1)(x.data_ptr(), 2.0)
        os._exit(int(x.item()))
    children.append(child)
os.close(write)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
        assert output(code, SCALE) == "6 6"
        assert files(folder) == ["", ".c", ".so"]

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "one bit", "no library, but sealed"])
    def test_a_damaged_library_is_compiled_again(self, damage: str) -> None:
        path = load(SCALE, ["scale"]).path
        content = path.read_bytes()
        # A new file, since the old one is mapped; and a new process, where nothing is.
        path.unlink()
        if damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "one bit":
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        else:
            path.write_bytes(b"" if damage == "empty" else b"not ELF" * 999)
            if damage.endswith("sealed"):
                build_cache.append_checksum(path)
        code = """
x = torch.tensor([3.0])
launcher(load(sys.argv[1], ["scale"])["scale"], pointers=1, floats=1)(x.data_ptr(), 2.0)
print(x.item(), *status()["notes"])
"""
        value, note = output(code, SCALE).split(" ", 1)
        assert value == "6.0"
        assert note.startswith(f"{path} could not be loaded and is compiled again: ")
        assert build_cache.has_valid_checksum(path)

    def test_a_key_depends_on_source_flags_and_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = {load(SCALE, []).path, load(SCALE + "\n", []).path}
        with monkeypatch.context() as patch:
            patch.setattr(c_compiler, "cpu_features", lambda: "another processor")
            paths.add(load(SCALE, []).path)
        flags = (*c_compiler.flags(), "-DMORE")
        with monkeypatch.context() as patch:
            patch.setattr(c_compiler, "flags", lambda: flags)
            paths.add(load(SCALE, []).path)
        assert len(paths) == 4

    def test_a_killed_compile_leaves_nothing_that_matters(self, folder: Path, tmp_path: Path) -> None:
        begun = tmp_path / "begun"
        slow = script(
            tmp_path / "slow",
            f'grep -q scale kernel.c 2>/dev/null && touch {begun} && exec sleep 60\nexec gcc "$@"\n',
        )
        code = """
import signal, time
os.environ["BURNT_CC"] = sys.argv[1]
if not (child := os.fork()):
    load(sys.argv[3], ["scale"])
deadline = time.monotonic() + 60
while not os.path.exists(sys.argv[2]) and time.monotonic() < deadline:
    time.sleep(0.01)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
        output(code, str(slow), str(begun), SCALE)
        (left,) = folder.glob(build_cache.WORK_PREFIX + "*")
        assert scaled(load(SCALE, ["scale"])) == 6.0
        assert left.exists()  # it could be another process at work
        old = time.time() - 2 * build_cache.STALE_AFTER
        os.utime(left, (old, old))
        os.utime(folder / ".burnt-swept", (old, old))
        load(SCALE + "\n", [])
        assert not left.exists()

    def test_writable_by_others_is_refused(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for mode in (0o770, 0o702):
            folder.chmod(mode)
            with pytest.raises(CacheError) as caught:
                load(SCALE, ["scale"])
            assert str(caught.value).splitlines() == [
                "the cache of compiled kernels can be written by other users",
                f"  in        {folder}",
                "  expected  mode 0700",
                f"  found     mode {mode:04o}",
                f"  hint      check its files, then run `chmod 700 {folder}`, "
                "or set BURNT_CACHE to another folder",
            ]
        assert "can be written by other users" in status()["notes"][-1]
        assert status()["folder"] is None
        folder.chmod(0o755)  # others may read
        assert scaled(load(SCALE, ["scale"])) == 6.0

    def test_a_folder_of_another_user_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir(parents=True, mode=0o700)
        owner = folder.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(
            CacheError, match=f"belongs to another user(.|\n)*owner {owner + 1}(.|\n)*BURNT_CACHE"
        ):
            load(SCALE, ["scale"])

    def test_where_no_folder_can_be_made_a_temporary_one_serves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "file" / "below"))
        code = """
paths = [load(sys.argv[1], ["scale"]).path for _ in range(2)]
print(*paths, *status()["notes"], sep="|")
"""
        first, again, *notes = output(code, SCALE).split("|")
        assert first == again
        assert not Path(first).parent.exists()
        assert any("not kept" in note and "Not a directory" in note for note in notes)

    def test_a_read_only_folder_still_serves_what_it_has(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load(SCALE, ["scale"])
        c_library._state.libraries.clear()
        make, touch = tempfile.mkdtemp, os.utime

        def read_only(suffix: str | None = None, prefix: str | None = None, dir: object = None) -> str:
            if dir == folder:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))
            return make(suffix, prefix, dir)  # type: ignore[type-var]

        def untouched(path: Path, *arguments: object) -> None:
            if Path(path).parent == folder:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            touch(path, *arguments)

        monkeypatch.setattr(tempfile, "mkdtemp", read_only)
        monkeypatch.setattr(os, "utime", untouched)
        library = load(SCALE, ["scale"])
        assert (library.path.parent, scaled(library)) == (folder, 6.0)
        others = [load(SCALE + "\n" * i, ["scale"]) for i in (1, 2)]
        assert {other.path.parent for other in others} == {build_cache.temporary_folder()}
        assert len([note for note in status()["notes"] if "Read-only" in note]) == 1

    def test_a_full_disk(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        full = script(
            tmp_path / "full",
            'case "$PWD" in\n'
            f'{folder}*) echo "ld: final link failed: No space left on device" >&2; exit 1;;\n'
            "esac\n"
            'exec gcc "$@"\n',
        )
        monkeypatch.setenv("BURNT_CC", str(full))
        library = load(SCALE, ["scale"])
        assert (library.path.parent, scaled(library)) == (build_cache.temporary_folder(), 6.0)
        assert any("No space left" in note for note in status()["notes"])

    def test_neither_folder_can_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        find_compiler()

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(c_compiler, "compile_library", full)
        with pytest.raises(
            CompileError, match=r"cannot be stored or loaded(.|\n)*No space left(.|\n)*BURNT_CACHE"
        ):
            load(SCALE, ["scale"])

    @pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
    def test_a_library_takes_two_mappings(self) -> None:
        path = str(load(SCALE, ["scale"]).path)
        assert len([line for line in Path("/proc/self/maps").read_text().splitlines() if path in line]) == 2

    @pytest.mark.skipif(platform.system() != "Linux", reason="the limit is Linux's")
    def test_as_many_mappings_as_a_process_may_have(self) -> None:
        code = """
import mmap
load(sys.argv[1], ["scale"])
c_library._state = c_library._State()
libc, page, most = ctypes.CDLL(None), mmap.PAGESIZE, int(open("/proc/sys/vm/max_map_count").read())
room = mmap.mmap(-1, 2 * most * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(room))
protected = 0  # every other page: each makes one mapping three
while protected < most and not libc.mprotect(ctypes.c_void_p(start + 2 * protected * page), page, 1):
    protected += 1
try:
    load(sys.argv[1] + "\\n", ["scale"])
except Exception as error:
    failed = error
libc.mprotect(ctypes.c_void_p(start), 2 * most * page, 3)
print(protected < most, type(failed).__name__, failed)
print(load(sys.argv[1] + "\\n", ["scale"]).path.parent == build_cache.cache_folder())
"""
        printed = output(code, SCALE)
        expected = r"True CompileError there is no memory to load(.|\n)*vm.max_map_count(.|\n)*\nTrue$"
        assert re.match(expected, printed), printed

    def test_the_least_recently_used_goes_first(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = [load(SCALE + "\n" * i, []).path for i in range(4)]
        size = build_cache.entries(folder)[0].size
        for age, path in enumerate(reversed(paths)):
            for file in (path, path.with_suffix(".c")):
                os.utime(file, (time.time() - 1000 * (age + 1),) * 2)
        c_library._state.libraries.clear()
        load(SCALE, [])  # the oldest is used again
        monkeypatch.setenv("BURNT_CACHE_MIB", str(3.5 * size / 2**20))
        build_cache.sweep(folder)
        assert all(path.exists() for path in paths), "swept within the hour"
        os.utime(folder / ".burnt-swept", (0, 0))
        build_cache.sweep(folder)
        assert [path.exists() for path in paths] == [True, False, False, True]
        assert [path.with_suffix(".c").exists() for path in paths] == [True, False, False, True]

    @pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
    def test_a_limit_that_is_none(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BURNT_CACHE_MIB", text)
        with pytest.raises(CacheError, match=f"BURNT_CACHE_MIB is not a size(.|\n)*'{text}'"):
            load(SCALE, ["scale"])


class TestErrors:
    def test_code_that_does_not_compile(self, folder: Path) -> None:
        source = PREAMBLE + "void bad(const burnt_arg *a) {\n    float x = y;\n}\n"
        with pytest.raises(CompileError) as caught:
            load(source, ["bad"])
        what, where, found, *rest = str(caught.value).splitlines()
        (kept,) = folder.glob("*.c")
        assert what == "generated code does not compile"
        assert where == f"  in        {kept}"
        assert kept.read_text() == source
        assert re.match(r"  found     kernel.c:5:\d+: error: .y. undeclared", found)
        assert any(line.startswith("  from ") and "-O3" in line for line in rest)
        assert rest[-1].startswith("  hint      this is a bug in burnt")
        assert files(folder) == [".c"]

    def test_an_undeclared_function_is_an_error_and_not_an_int(self) -> None:
        with pytest.raises(CompileError, match=r"implicit declaration of function .mystery"):
            load(PREAMBLE + "void f(const burnt_arg *a) { *(float *)a[0].p = mystery(1.0f); }", ["f"])

    def test_a_missing_function(self) -> None:
        with pytest.raises(CompileError, match="no function 'scales'"):
            load(SCALE, ["scale", "scales"])

    def test_a_compiler_that_does_not_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        endless = script(
            tmp_path / "endless", 'grep -q scale kernel.c 2>/dev/null && exec sleep 60\nexec gcc "$@"\n'
        )
        monkeypatch.setenv("BURNT_CC", str(endless))
        find_compiler()
        monkeypatch.setattr(c_compiler, "COMPILE_TIMEOUT", 0.2)
        with pytest.raises(CompileError, match="does not finish"):
            load(SCALE, ["scale"])

    @pytest.mark.parametrize("crash", ["internal compiler error: in f", "PLEASE submit a bug report to g"])
    def test_a_compiler_that_crashes_is_asked_for_less(
        self, crash: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """gcc 12 does with -O3 over some loops of 16-bit floats for AVX-512."""
        crashing = script(
            tmp_path / "crashing",
            'case "$*" in *-O2*) exec gcc "$@";; esac\n'
            f'grep -q scale kernel.c 2>/dev/null && echo "{crash}" >&2 && exit 1\nexec gcc "$@"\n',
        )
        monkeypatch.setenv("BURNT_CC", str(crashing))
        assert scaled(load(SCALE, ["scale"])) == 6.0
        assert any("crashed; compiling this kernel with -O2 instead" in n for n in status()["notes"])

    def test_a_compiler_that_always_crashes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        crashing = script(
            tmp_path / "crashing",
            "grep -q scale kernel.c 2>/dev/null && echo 'internal compiler error: in f' >&2 && exit 1\n"
            'exec gcc "$@"\n',
        )
        monkeypatch.setenv("BURNT_CC", str(crashing))
        with pytest.raises(CompileError, match=r"(?s)internal compiler error: in f.*-O2"):
            load(SCALE, ["scale"])


class TestCompiler:
    def test_none_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert find_compiler() is None
        assert c_compiler.why_no_compiler().splitlines() == [
            "gcc: not found",
            "clang: not found",
            "cc: not found",
        ]
        with pytest.raises(
            UnsupportedError, match=r"no C compiler works here(.|\n)*gcc: not found(.|\n)*install gcc"
        ):
            load(SCALE, ["scale"])
        assert status()["compiler"] is None

    def test_the_first_that_works(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BURNT_CC", "no-such-compiler -x")
        monkeypatch.setenv("CC", str(script(tmp_path / "broken", "echo out of order >&2; exit 3\n")))
        found = find_compiler()
        assert found
        assert (found.kind, Path(found.path).name) == ("gcc", "gcc")
        assert "gcc" in found.version
        assert c_compiler.why_no_compiler() == ""
        first, second = status()["rejected"]
        assert first == "$BURNT_CC: no-such-compiler -x: not found"
        assert second.startswith("$CC: ")
        assert "status 3" in second

    def test_a_wrapper_and_flags(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", "env gcc -DSCALE=7")
        found = find_compiler()
        assert found
        assert (Path(found.path).name, found.command[1:]) == ("env", ("gcc", "-DSCALE=7"))
        x = torch.tensor([3.0])
        library = load(PREAMBLE + "void f(const burnt_arg *a) { *(float *)a[0].p *= SCALE; }", ["f"])
        launcher(library["f"], pointers=1)(x.data_ptr())
        assert x.item() == 21.0

    @pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast"])
    def test_flags_that_change_numbers_do_not_count(self, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", f"gcc {flag}")
        found = find_compiler()
        assert found
        assert flag not in found.command
        assert status()["rejected"] == [f"$CC: gcc {flag}: {flag} would change NaN, infinity or denormals"]

    def test_a_linker_that_knows_fewer_options(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """gold, for one."""
        old = script(
            tmp_path / "old",
            'case "$*" in *noseparate-code*)\n'
            "echo 'ld.gold: noseparate-code: unknown -z option' >&2; exit 1;;\n"
            'esac\nexec gcc "$@"\n',
        )
        monkeypatch.setenv("BURNT_CC", str(old))
        assert scaled(load(SCALE, ["scale"])) == 6.0

    @pytest.mark.skipif(shutil.which("ld.gold") is None, reason="gold is not installed")
    def test_gold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BURNT_CC", "gcc -fuse-ld=gold")
        assert scaled(load(SCALE, ["scale"])) == 6.0

    def test_one_without_openmp_does_not_count(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        serial = script(
            tmp_path / "serial",
            'for a in "$@"; do\n'
            'shift; case "$a" in -Xpreprocessor|-fopenmp) ;; *) set -- "$@" "$a";; esac\n'
            "done\n"
            'exec gcc "$@"\n',
        )
        monkeypatch.setenv("BURNT_CC", str(serial))
        find_compiler()
        (reason,) = status()["rejected"]
        assert "OpenMP is off" in reason

    def test_one_whose_code_does_not_run_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cross = script(
            tmp_path / "cross",
            'if [ "$1" = --version ]; then echo cross 1.0; exit; fi\n'
            'for a; do out=$a; done; echo alien > "$out"\n',
        )
        monkeypatch.setenv("BURNT_CC", str(cross))
        find_compiler()
        (reason,) = status()["rejected"]
        assert "probe.so" in reason

    def test_it_is_tried_once_until_its_file_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "log"
        own = script(tmp_path / "own", f'echo x >> {log}\nexec gcc "$@"\n')
        monkeypatch.setenv("BURNT_CC", str(own))

        def calls() -> int:
            c_compiler._search.cache_clear()
            find_compiler()
            return len(log.read_text().split())

        first = calls()
        assert first == 2  # its version, and the trial
        assert calls() == first
        os.utime(own, (1, 1))
        assert calls() == 2 * first

    def test_a_damaged_memory_of_it_is_no_harm(self, folder: Path) -> None:
        find_compiler()
        (fact,) = folder.glob("compiler-*.json")
        for text in ("", "[]", "{}", "\0"):
            fact.write_text(text)
            c_compiler._search.cache_clear()
            assert find_compiler()
            assert json.loads(fact.read_text())["kind"] == "gcc"

    def test_torch_without_openmp(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(c_compiler, "openmp_runtime", lambda: None)
        assert find_compiler() is None
        assert "torch runs without OpenMP" in c_compiler.why_no_compiler()


def test_status_can_be_written_as_json(folder: Path) -> None:
    load(SCALE, ["scale"])
    facts = json.loads(json.dumps(status()))
    assert facts["compiler"]["kind"] == "gcc"
    assert facts["folder"] == str(folder)
    assert facts["entries"] == facts["loaded"] == 1
    assert facts["bytes"] == sum(
        path.stat().st_size for path in folder.glob("*.[cs]*") if path.suffix != ".json"
    )
    assert facts["limit"] == 512 * 2**20
    assert facts["notes"] == facts["rejected"] == []
