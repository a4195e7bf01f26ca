"""Kernels read and write nothing outside of their tensors, which lie between pages that cannot be touched."""

from __future__ import annotations

import sys

import pytest

from burnt.codegen.runtime.c_compiler import find_compiler
from tests import forked

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect as Linux has it"),
]

PROGRAM = """
import ctypes, mmap, sys
import torch
from torch.nn import functional as F
from burnt.codegen.function import Function

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE = mmap.PAGESIZE
held = []

def walled(tensor, *, at_end):
    "A copy whose first or last byte is the first or last of a page next to one that cannot be touched."
    size = tensor.numel() * tensor.element_size()
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    offset = PAGE + (pages * PAGE - size if at_end else 0)
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    copy.copy_(tensor.reshape(-1))
    for page in (start, start + (pages + 1) * PAGE):
        assert libc.mprotect(page, PAGE, 0) == 0
    held.append(memory)
    return copy.reshape(tensor.shape)

x, y, image = torch.randn(1, 40), torch.randn(1, 24), torch.randn(1, 1, 32, 32)
where = torch.randint(0, 40, (7,))
PROGRAMS = {
    "cat": (lambda x, y: torch.cat([x * 2, y * 3], -1), x, y),
    "cat of three": (lambda x, y: torch.cat([y, x, y.exp()], -1), x, y),
    "pad": (lambda x: F.pad(x, (3, 5)) * 2, x),
    "negative pad": (lambda x: F.pad(x, (-3, 5)).exp(), x),
    "roll": (lambda x: torch.roll(x, 7, -1) + 1, x),
    "tril": (lambda x: torch.tril(x.view(5, 8)) * 2, x),
    "windows": (lambda i: F.max_pool2d(i, 3, 2, 1), image),
    "means": (lambda i: F.avg_pool2d(i, 3, 2, 1), image),
    "gather": (lambda x, w: x[0, w] * 2, x, where),
    "rows": (lambda i: torch.softmax(i.view(32, 32) * 2, -1), image),
    "columns": (lambda i: torch.softmax(i.view(32, 32) * 2, 0), image),
    "scan": (lambda x: torch.cumsum(x.exp(), -1), x),
    "sum": (lambda i: i.view(32, 32).sum(0), image),
}
for name, (fn, *args) in PROGRAMS.items():
    print(name, flush=True)
    expected = fn(*args)
    for at_end in (False, True):
        fused = Function(fn)
        given = [walled(a, at_end=at_end) for a in args]
        torch.testing.assert_close(fused(*given), expected)
        assert fused.fallback_reason(*given) is None, fused.fallback_reason(*given)
        if given[0].is_floating_point():
            wanting = given[0].detach().requires_grad_()
            fused(wanting, *given[1:]).sum().backward()
print("done")
"""


def test_nothing_outside_of_a_tensor_is_touched() -> None:
    run = forked.run(PROGRAM)
    assert run.returncode == 0, f"after {run.stdout.split()[-1:]}: {run.returncode} {run.stderr[-2000:]}"
    assert run.stdout.endswith("done\n")
