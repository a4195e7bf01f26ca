"""How much Python runs in a call of an op on a GPU, by a driver that launches nothing: counts, not clocks."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from tests import forked
from tests.null import driver

WHY_NOT = driver.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

START = """
import sys, torch
from tests.null import driver
driver.install()
from burnt import kernels
from burnt.codegen.render.triton.matmul_config import HOPPER
from burnt.codegen.runtime import triton_compile_pool
from burnt.kernels.dispatch import selection
triton_compile_pool.limits_of = lambda device: HOPPER

def choose(name, config=None):
    selection.select_candidate = lambda op, args, broken=None: (op.candidates[name], config, "", "")

def count(call):
    "Python functions that a call enters, and kernels that it launches."
    for _ in range(4):
        call()
    entered, before = [], driver.last_launch().launches
    sys.setprofile(lambda frame, event, _: event == "call" and entered.append(frame.f_code.co_qualname))
    call()
    sys.setprofile(None)
    return entered[1:], driver.last_launch().launches - before

def within(limit, launches, call):
    entered, found = count(call)
    assert found == launches, found
    assert len(entered) <= limit, entered

def rows(*shape, gradient=False):
    return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=gradient)

"""

OPS = """
choose("generated")
x, weight = rows(8, 64), rows(64)
square = rows(64, 64)
calls = {
    "softmax": lambda: kernels.softmax(x, -1),
    "gelu": lambda: kernels.gelu(x),
    "layer_norm": lambda: kernels.layer_norm(x, weight, weight.clone()),
    "rms_norm": lambda: kernels.rms_norm(x, weight, 1e-6),
    "rms_norm of a sum": lambda: kernels.rms_norm(x, weight, 1e-6, square[:8]),
    "swiglu": lambda: kernels.swiglu(x, square[:8]),
    "linear": lambda: kernels.linear(square, square.clone(), weight, None, "gelu"),
}
for name, call in calls.items():
    within(12, 1, call)
labels = torch.randint(0, 64, (8,))
within(14, 2, lambda: kernels.cross_entropy(x, labels))
print("as expected")
"""


HAND_WRITTEN = """
attention = kernels.OPS["dot_product_attention"]
attention.candidates["flash"].devices = kernels.quantized_linear.candidates["triton"].devices = None
for gradient, limit, launches in ((False, 14, 1), (True, 80, 4)):
    heads = [rows(1, 2, 128, 64, gradient=gradient) for _ in range(3)]
    out = rows(1, 2, 128, 64)
    choose("flash", dict.fromkeys(("forward", "dots", "keys", "queries"), "64x64 w4 s2"))

    def call():
        y = attention(*heads, None, None, 0)
        if gradient:
            y.backward(out)
            for head in heads:
                head.grad = None

    within(limit, launches, call)

from burnt.kernels.ops.quantized.quantize import quantized_example
parts = quantized_example(torch.device("cpu"), 128, 256, "int4", 32, True)
x = rows(1, 256)
for config in ({"vector": "4x32 w4"}, {"tiles": "16x32x32 w4 s2 k2"}):
    choose("triton", config)
    kernels.quantized_linear.forget()
    within(14, 1 + ("k2" in str(config)), lambda: kernels.quantized_linear(x, *parts, None, None, "int4", 32))
print("as expected")
"""


@pytest.mark.parametrize("program", [OPS, HAND_WRITTEN], ids=["generated", "by hand"])
def test_an_op_enters_few_python_functions(program: str) -> None:
    done = forked.run(START + program)
    assert done.stdout == "as expected\n", done.stderr
