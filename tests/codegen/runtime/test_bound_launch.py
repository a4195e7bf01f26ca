"""Launches through Triton's C launcher, under a driver that launches nothing, in processes of their own."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from tests import forked
from tests.null import driver

WHY_NOT = driver.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

LAUNCHES = """
import torch, triton
from tests.null import driver
driver.install()
from burnt.codegen.runtime import bound_launch
from burnt.codegen.runtime.bound_launch import BoundLaunch
from burnt.codegen.runtime.triton_launch import load

kernels = load('''
import triton
import triton.language as tl

@triton.jit
def scale(x, y, strides, rows, factor, absent, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + i, tl.load(x + i * strides[1], mask=i < rows) * factor, mask=i < rows)

@triton.jit
def copy(x, y, rows, columns, SIZE: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [SIZE, SIZE])
    target = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [SIZE, SIZE])
    target.store([0, 0], source.load([0, 0]))
''')
x, y = torch.zeros(64, 64), torch.zeros(64, 64)
a, b = x.data_ptr(), y.data_ptr()

def launches(*calls):
    before = driver.last_launch().launches
    for call in calls:
        call()
    return driver.last_launch().launches - before

arguments = x, y, x.stride(), 64, 2.0, None
scale = BoundLaunch(kernels["scale"], (8, 2), arguments, {"SIZE": 64}, {"num_warps": 2})
first = scale.call
assert launches(lambda: first(0, a, b, 2.0)) == 1
fast = scale.call
assert fast != first
assert launches(lambda: fast(0, a, b, 3.0)) == 1
seen = driver.last_launch()
assert (list(seen.grid), list(seen.block)) == ([8, 2, 1], [64, 1, 1])
assert len(driver.compiled()) == 1
assert launches(lambda: fast(0, a + 4, b, 3.0), lambda: fast(0, a + 4, b, 3.0)) == 2
assert len(driver.compiled()) == 2, "another alignment is another kernel"

hooked = []
triton.knobs.runtime.launch_enter_hook.add(lambda metadata: hooked.append(metadata.get()["name"]))
fast(0, a, b, 3.0)
assert hooked == ["scale"]
triton.knobs.runtime.launch_enter_hook.calls.clear()
fast(0, a, b, 3.0)
assert hooked == ["scale"]
former, triton.knobs.runtime.launch_exit_hook = triton.knobs.runtime.launch_exit_hook, hooked.append
fast(0, a, b, 3.0)
assert len(hooked) == 2
triton.knobs.runtime.launch_exit_hook = former

copy = BoundLaunch(kernels["copy"], (1,), (x, y, 64, 64), {"SIZE": 16}, {})
copy.call(0, a, b)
assert launches(lambda: copy.call(0, a, b), lambda: copy.call(8, a, b), lambda: copy.call(0, a, b)) == 3
zero, eight = (bound_launch.scratch(1, 128, stream) for stream in (0, 8))
assert zero is bound_launch.scratch(1, 128, 0) and zero is not eight
assert bound_launch.scratch(zero.numel() + 1, 128, 0) is not zero
assert bound_launch.scratch(1, 128, 2) is not bound_launch.scratch(1, 128, 2), "a stream of each thread"
torch.cuda.is_current_stream_capturing = lambda: True
assert bound_launch.scratch(1, 128, 8) is not eight

import contextlib
from burnt.codegen.runtime.host_code import HostCode

current, entered = [0], []

@contextlib.contextmanager
def device(index):
    entered.append(index)
    current[0] = index
    yield
    current[0] = 0

torch.cuda.current_device, torch.cuda.device = lambda: current[0], device
for index, expected in ((1, [1]), (0, [])):
    entered.clear()
    code = HostCode(["x", "y", "f"], torch.device("cuda", index))
    bound_launch.add_launch(code, scale, [code.address("x"), code.address("y"), "f"])
    run = code.build("(x,)")
    assert launches(lambda: run(x, y, 3.0)) == 1
    assert entered == expected and current == [0]
print("as expected")
"""


def test_arguments_alignments_hooks_and_workspaces() -> None:
    done = forked.run(LAUNCHES)
    assert done.stdout == "as expected\n", done.stderr
