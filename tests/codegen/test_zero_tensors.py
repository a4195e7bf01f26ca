"""Tensors without memory of their own, such as torch's zero tensor: no kernel is given their address."""

from __future__ import annotations

import pytest

from burnt.codegen.runtime.c_compiler import find_compiler
from tests import forked

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

# In a process of its own, which a null pointer ends. Results are those of dense zeros.
_PROGRAM = """
import torch, torch.nn.functional as F
from torch.testing import assert_close
from burnt import kernels
from burnt.codegen.function import Function

torch.manual_seed(0)

def zero(like):
    result = torch._efficientzerotensor(tuple(like.shape), dtype=like.dtype)
    assert result.data_ptr() == 0 and like.numel()
    return result

def check(name, fn, *args):
    print(name, flush=True)
    leaves = [[a.clone().requires_grad_() for a in args] for _ in range(3)]
    results = [fn(*each) for each in leaves]
    for kind in (zero, lambda like: torch._neg_view(torch.ones_like(like))):
        found = torch.autograd.grad(results[0], leaves[0], kind(results[0]), retain_graph=True)
        expected = torch.autograd.grad(results[1], leaves[1], kind(results[1]).clone(), retain_graph=True)
        assert_close(found, expected)
    results[2].sgn().sum().backward()
    assert not any(leaf.grad.any() for leaf in leaves[2])

x, weight = torch.randn(4, 6), torch.randn(6)
fused = Function(lambda x: x.exp() * 2, always_generate=True)
check("fused", fused, x)
check("cumprod and sgn in one", Function(lambda x: x.cumprod(-1).sgn(), always_generate=True), x)
check("softmax", lambda x: kernels.softmax(x), x)
check("rms_norm", kernels.rms_norm, x, weight)
check("linear", kernels.linear, x, torch.randn(3, 6))
check("attention", kernels.dot_product_attention, *torch.randn(3, 1, 2, 5, 4).unbind())
check("lstm", lambda x, *w: kernels.lstm_layer(x, *w)[0], *map(torch.randn, [(3, 2, 4), (20, 4), (20, 5)]))
from burnt.kernels.ops.embedding.embedding import embedding
print("embedding", flush=True)
table, rows = torch.randn(9, 6, requires_grad=True), torch.tensor([1, 7, 1])
result = embedding.candidates["sorted"](rows, table, None)
assert not torch.autograd.grad(result, table, zero(result))[0].any()

print("arguments", flush=True)
for _ in range(2):  # also from the inline cache
    assert_close(fused(x), x.exp() * 2)
    assert_close(fused(zero(x)), torch.full_like(x, 2))
    assert_close(kernels.softmax(x), x.softmax(-1))
    assert_close(kernels.softmax(zero(x)), torch.zeros_like(x).softmax(-1))
    assert_close(kernels.rms_norm(x, zero(weight)), torch.zeros_like(x))
assert "zero tensor" in fused.fallback_reason(zero(x))
state = torch.zeros(3, 5)
inputs = torch.randn(3, 2, 4), torch.randn(20, 4), torch.randn(20, 5), None, None
lstm = kernels.lstm_layer(*inputs, zero(state), zero(state)), kernels.lstm_layer(*inputs, state, state)
assert_close(*lstm)
print("tensors of a transform that has ended", flush=True)
left = []
torch.func.functionalize(lambda x: left.append(x + 0) or x)(x)
for tensor in (*left, torch._to_functional_tensor(x)):
    for call in (fused, kernels.softmax):
        assert_close(torch._from_functional_tensor(call(tensor)), call(x))
    assert "a transform that has ended" in fused.fallback_reason(tensor)
print("captures", flush=True)
captured = torch.ones(6)
scaled = Function(lambda x: x * captured + 1, always_generate=True)
assert_close(scaled(x), x + 1)
captured = zero(captured)
assert_close(scaled(x), torch.ones_like(x))
print("made within", flush=True)
within = Function(lambda x: (torch._efficientzerotensor((4, 6)) + x).exp(), always_generate=True)
assert_close(within(x), x.exp())

print("optimizer steps", flush=True)
def step(grads, **limits):
    params = [torch.ones(4, 6), torch.ones(6)]
    states = [[torch.full_like(p, 0.5) for p in params] for _ in range(2)]
    kernels.adamw_step(params, grads, *states, [torch.ones(()) for _ in params], lr=0.1, **limits)
    return [*params, *states[0], *states[1]]
for limits in ({"candidate": "burnt"}, {"candidate": "burnt", "max_norm": 1.0, "grad_scale": 2.0}):
    found = step([zero(x), weight], **limits)
    assert_close(found, step([torch.zeros_like(x), weight], **limits))
print("done")
"""


def test_kernels_are_not_given_tensors_without_memory() -> None:
    done = forked.run(_PROGRAM)
    assert (done.returncode, done.stdout.rsplit("\n", 2)[-2]) == (0, "done"), done.stdout + done.stderr
