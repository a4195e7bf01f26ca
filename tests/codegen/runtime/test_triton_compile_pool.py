"""Kernels that are compiled in processes of their own: the launch finds them; what hangs or dies is noted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton

from burnt.codegen.function import Function
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.tile_config import (
    Limits,
    TileConfig,
    neighbouring_configs,
    next_power_of_two,
    select_config,
    why_too_large,
)
from burnt.codegen.runtime import triton_compile_pool
from burnt.codegen.runtime.bound_launch import BoundLaunch, Pointer
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.runtime.triton_backend import TRITON, with_block_sizes
from burnt.codegen.runtime.triton_compile_pool import Job, Pool, choices_of, jobs_of, limits_of
from burnt.errors import CompileError
from burnt.kernels.ops.attention import flash, flash_config, flash_triton
from burnt.kernels.ops.attention.reference import dot_product_attention
from tests.codegen.render.triton.ahead import TARGETS, compiled, driven, planned

pytestmark = pytest.mark.timeout(300)
H200 = TARGETS["sm_90"]
HOPPER = Limits(132, shared_memory=227 << 10, has_tma=True)
GOOD = """import triton
import triton.language as tl
@triton.jit
def good(x, n, B: tl.constexpr):
    tl.store(x, n)
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    result = Pool((H200.backend, H200.arch, H200.warp_size), workers=1, seconds=5)
    yield result
    result.close()


def job(text: str, name: str = "good") -> Job:
    return Job(text, name, ["int64", 3], {"B": 4}, {"num_warps": 4, "num_stages": 2})


def losses(x, w, i):
    return torch.softmax(x, -1).sum(0) * 1.5 + torch.embedding(w, i)


@pytest.mark.sample(1)
@pytest.mark.parametrize("blocks", [None, TileConfig(2, 64, 8), TileConfig(1, 32, 4, chunks=4)], ids=str)
def test_a_launch_finds_what_was_compiled(pool: Pool, blocks: TileConfig | None) -> None:
    """Numbers, sizes of 1 and of multiples of 16, checks, work between functions, several kernels."""
    x, w = torch.randn(48, 500, dtype=torch.bfloat16), torch.randn(7, 500)
    given = (x.requires_grad_(), w.requires_grad_(), torch.tensor([3]))
    planned = Function(losses, target=TRITON)
    plan = planned.plan(*given)
    assert plan is not None
    for kernel in plan.kernels:
        pool.submit(jobs_of(kernel, blocks or select_config(structure_of(kernel)))).result(120)
    found: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: found.append(cache_hit)  # type: ignore[assignment]
    try:
        with driven(H200):
            if blocks is not None:
                names = [kernel.name for kernel in plan.kernels]
                plan = planned.on(with_block_sizes(dict.fromkeys(names, str(blocks)))).plan(*given)
                assert plan is not None
            for launch in plan.launchers.values():
                code = HostCode([])
                launch(code, ["t"] * len(plan.slots), ["n"] * len(plan.plan.number_positions))
                for bound in [o for o in code.objects.values() if isinstance(o, BoundLaunch)]:
                    # There is no device that it could be loaded to.
                    with pytest.raises(AttributeError, match="launcher_cls"):
                        bound.call(0, *[0 if isinstance(kind, Pointer) else 1.5 for kind in bound.varying])
    finally:
        triton.knobs.compilation.listener = None
    assert found
    assert all(found)


VARIANTS = {
    "plain": {},
    "softcap and a window": {"softcap": 30.0, "before": 100, "after": 0},
    "lengths and dropout": {"lengths": torch.tensor([700, 1]), "dropout": 0.1, "seed": torch.tensor(3)},
    "slopes": {"slopes": torch.rand(4), "after": 0},
}


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_a_launch_of_attention_finds_what_was_compiled(pool: Pool, name: str) -> None:
    pool.seconds = 60
    q, k, v = (torch.randn(2, 900, 4, 64).bfloat16().transpose(1, 2).requires_grad_() for _ in range(3))
    bound = list(dot_product_attention.bind((q, k, v), VARIANTS[name]))
    blocks = flash_config.select_config(64, 2, HOPPER)
    launches = flash.call_launches(blocks, *bound)
    jobs = [triton_compile_pool.job_of(*launch[:1], *launch[2:]) for launch in launches]
    pool.submit(jobs).result(240)
    problem = flash.make_problem(q, k, *bound[3:])
    by_name = flash_triton.launches(q, k, v, problem, blocks, gradients=True)
    backward = ["both"] if name == "plain" else ["keys", "queries"]
    assert list(by_name) == ["forward", "dots", *backward]
    found: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: found.append(cache_hit)  # type: ignore[assignment]
    try:
        with driven(H200):
            for launch in by_name.values():
                triton.JITFunction(launch.kernel.fn).warmup(
                    *launch.arguments, grid=(1,), **launch.constants, **launch.options
                )
    finally:
        triton.knobs.compilation.listener = None
    assert found == [True] * len(by_name)


class _Asked(Pool):
    """A pool that does nothing but note what it is asked for."""

    def __init__(self) -> None:
        super().__init__((H200.backend, H200.arch, H200.warp_size), workers=1)
        self.asked: list[tuple[str, Future[None]]] = []

    def _enqueue(self, job: Job) -> Future[None]:
        future: Future[None] = Future()
        self.asked.append((job.name, future))
        return future


def test_a_function_is_compiled_once_for_all_that_wait_for_it() -> None:
    pool = _Asked()
    one = pool.submit([job("", "a"), job("", "b")])
    two = pool.submit([job("", "a"), job("", "c")])
    futures = dict(pool.asked)
    assert [name for name, _ in pool.asked] == ["a", "b", "c"]
    futures["a"].set_result(None)
    assert not one.done()
    futures["c"].set_result(None)
    assert two.result(0) is None
    assert not one.done()
    futures["b"].set_exception(CompileError("no"))
    with pytest.raises(CompileError, match="no"):
        one.result(0)
    # What failed may have been the process; what is there is not compiled again.
    pool.submit([job("", "a"), job("", "b")])
    assert [name for name, _ in pool.asked] == ["a", "b", "c", "b"]
    assert pool.submit([]).result(0) is None


def test_what_nobody_waits_for_any_more_is_cancelled() -> None:
    pool = _Asked()
    one, two = (pool.submit([job("", "a"), job("", name)]) for name in "bc")
    futures = dict(pool.asked)
    assert one.cancel()
    assert [futures[name].cancelled() for name in "abc"] == [False, True, False]
    assert two.cancel()
    assert [futures[name].cancelled() for name in "abc"] == [True, True, True]
    three = pool.submit([job("", "a")])
    pool.asked[-1][1].set_result(None)
    assert three.result(0) is None


@pytest.mark.full
def test_what_does_not_compile_dies_or_hangs(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pool for all of it: each process imports torch."""
    with monkeypatch.context() as patch:
        patch.setattr(triton_compile_pool, "_IDLE_SECONDS", 0.05)
        pool.submit([job(GOOD)]).result(120)
        end = time.monotonic() + 60
        while pool._processes and time.monotonic() < end:
            time.sleep(0.01)
        assert not pool._processes  # there is no work
    began = time.monotonic()
    bad = pool.submit([job(GOOD.replace("tl.store(x, n)", "tl.store(x, nothing)"))])
    missing = pool.submit([job(GOOD, "other")])
    good = pool.submit([job(GOOD + "# again")])
    dies = pool.submit([job("import os\nos._exit(3)")])
    hangs = pool.submit([job("import time\ntime.sleep(600)")])
    prints = pool.submit([job('print("not an answer")\n' + GOOD)])
    with pytest.raises(CompileError, match="nothing is not defined"):
        bad.result(120)
    with pytest.raises(CompileError, match="KeyError: 'other'"):
        missing.result(120)
    assert good.result(120) is None
    with pytest.raises(CompileError, match="died with exit code 3"):
        dies.result(200)
    with pytest.raises(CompileError, match="took longer than 5 s"):
        hangs.result(200)
    assert prints.result(200) is None
    assert time.monotonic() - began < 200
    running = pool.submit([job("while True: pass")])
    waiting = pool.submit([job(GOOD + "# later")])
    (process,) = pool._processes
    while not any(part.running() for part, _ in pool._requested.values()):
        time.sleep(0.01)
    pool.close()
    with pytest.raises(CompileError, match="died with exit code -9"):
        running.result(30)
    with pytest.raises(CompileError, match="was not compiled"):
        waiting.result(0)
    process.wait(30)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit([job(GOOD + "# too late")])


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "burnt.codegen.runtime.triton_compile_pool"]
    command += [json.dumps([H200.backend, H200.arch, H200.warp_size]), "5"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[3]
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"{}\n"
        child.stdin.close()  # as a parent that is killed leaves it
        assert child.wait(30) == 0


def rms_norm(x, r, w):
    s = x + r
    return s * torch.rsqrt((s * s).mean(-1, keepdim=True) + 1e-6) * w, s


ESTIMATED = {
    "softmax": (lambda x: torch.softmax(x, -1), (512, 4096)),
    "rms_norm": (rms_norm, (512, 4096), (512, 4096), (4096,)),
    "swiglu": (lambda a, b: torch.nn.functional.silu(a) * b, (512, 4096), (512, 4096)),
    "transposed": (lambda x, y: x.t() + y, (4096, 512), (512, 4096)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ESTIMATED)
def test_what_is_tried_spills_no_registers_and_what_is_left_out_is_heavy(name: str, tmp_path: Path) -> None:
    fn, *shapes = ESTIMATED[name]
    args = [torch.empty(s, dtype=torch.bfloat16) for s in shapes]
    heavy = 0
    for kernel in planned(fn, *args, gradients=True):
        form = structure_of(kernel)
        for blocks in neighbouring_configs(form)[:: 5 if name != "swiglu" else 2][:4]:
            (found,) = compiled([print_kernel(kernel, blocks)], "sm_90", tmp_path)[:1]
            # A few bytes of stack are no spill of what is walked.
            assert found.spilled <= 16 or "registers" in str(why_too_large(form, blocks, HOPPER)), str(blocks)
            assert found.shared <= HOPPER.shared_memory
        # No more than that: what has 512 elements a thread takes ptxas minutes.
        crowded = dataclasses.replace(
            select_config(form), cols=min(4096, next_power_of_two(form.cols)), rows=1, warps=1
        )
        if "registers" in str(why_too_large(form, crowded, HOPPER)):
            (found,) = compiled([print_kernel(kernel, crowded)], "sm_90", tmp_path)[:1]
            heavy += found.registers > 200 or found.spilled > 16
    assert heavy or name == "transposed"  # a copy needs few registers, whatever is estimated


def test_limits_are_read_off_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(
        multi_processor_count=132,
        shared_memory_per_block=48 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        warp_size=32,
        major=9,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h200)
    assert limits_of(torch.device("cuda")) == HOPPER
    h200.major = 8
    assert limits_of(torch.device("cuda")) == dataclasses.replace(HOPPER, has_tma=False)
    mi300 = SimpleNamespace(multi_processor_count=304, shared_memory_per_block=64 << 10, warp_size=64)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: mi300)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert limits_of(torch.device("cuda")) == Limits(304, 131_072, 256, 64 << 10, 64, is_rocm=True)


def test_kernels_that_do_little_are_left_alone() -> None:
    kernels = [planned(torch.exp, torch.zeros(rows, 4096))[0] for rows in (64, 8, 4, 3)]
    for i, kernel in enumerate(kernels):
        kernel.name = f"exp_{i}"
    found = choices_of(kernels, HOPPER)
    names = [choice.kernel for choice in found]
    assert set(names) == {"exp_0", "exp_1", "exp_2"}  # those of a sixteenth, too
    # The nearest of all come first.
    assert names[:6] == ["exp_0", "exp_1", "exp_2"] * 2
    assert [choice.blocks for choice in found[:3]] == ["1x1024 w8"] * 3
    assert choices_of([], HOPPER) == []
