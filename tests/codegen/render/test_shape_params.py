"""Size templates: a new shape with a known template needs no compiler; another plan has another template."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from burnt.codegen import function
from burnt.codegen.function import Function
from burnt.codegen.render.shape_params import (
    SizeTemplates,
    mark_size,
    mark_step,
    sizes_as_parameters,
    with_constant_sizes,
)
from burnt.codegen.runtime import c_library


def norm(x, w, scale):
    return F.layer_norm(x, (x.shape[-1],), w) * scale


def count_compilations(run):
    before = c_library.status()["loaded"]
    run()
    return c_library.status()["loaded"] - before


def test_marks_become_constants_or_parameter_names():
    text = f"x[i * {mark_size(12)} + {mark_size(-3)}] < {mark_size(12)}"
    assert with_constant_sizes(text) == "x[i * 12 + (-3)] < 12"
    assert sizes_as_parameters(text, lambda k: f"n{k}") == ("x[i * n0 + n1] < n2", (12, -3, 12))


def test_a_template_needs_parameters_once_its_sizes_change():
    templates = SizeTemplates()
    assert not templates.needs_parameters(f"a {mark_size(1)}")
    assert templates.needs_parameters(f"a {mark_size(2)}")
    assert not templates.needs_parameters(f"b {mark_size(2)}")


def test_small_strides_are_constants():
    """With a stride that it does not know, the compiler gathers elements one by one."""
    assert [mark_step(n) for n in (2, 8, -1, 9, -9)] == ["2", "8", "(-1)", "@9@", "@-9@"]
    fused = Function(lambda x: F.max_pool2d(x, 3, 2))
    for columns in (41, 43):
        x = torch.randn(2, 3, 40, columns)
        torch.testing.assert_close(fused(x), F.max_pool2d(x, 3, 2))
        plan = fused.plan(x)
        assert plan is not None
        assert " * 2" in "".join(plan.texts.values())


def test_the_third_shape_needs_no_compiler():
    fused = Function(norm)
    w = torch.randn(37)

    def check(rows):
        x = torch.randn(rows, 37, requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        result, expected = fused(x, w, 1.7), norm(twin, w, 1.7)
        grad_out = torch.randn_like(result)
        result.backward(grad_out)
        expected.backward(grad_out)
        torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(x.grad, twin.grad, atol=1e-6, rtol=1e-5)

    check(50)
    assert count_compilations(lambda: check(53)) == 2  # forward and backward, with parameters
    assert count_compilations(lambda: [check(rows) for rows in (54, 55, 91, 77)]) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[:, 3:].mean(1),
        lambda x: torch.cat([x, x[:, :2]], 1).amax(0),
        lambda x: F.pad(x, (1, 2)).t().reshape(-1) * 2,
        lambda x: x.flip(0).var(0),
        lambda x: x.reshape(-1, 3, x.shape[1]).argmax(1),
        lambda x: x.std(-1) + x.repeat(1, 2).sum(-1),
    ],
)
def test_sizes_as_parameters_give_the_same_results(fn):
    fused = Function(fn)
    for rows, columns in ((3, 5), (6, 7), (9, 4), (12, 11), (33, 300), (300, 33), (1200, 129)):
        x = torch.randn(rows, columns, dtype=torch.float64)
        torch.testing.assert_close(fused(x), fn(x))
        assert fused.fallback_reason(x) is None


def test_size_one_has_its_own_template():
    fused = Function(lambda x, y: x + y)
    for rows in (4, 5, 1, 2):
        x, y = torch.randn(rows, 3), torch.randn(1, 3)
        assert torch.equal(fused(x, y), x + y)
        assert torch.equal(fused(y, x), x + y)


@pytest.mark.full
def test_a_function_forgets_its_oldest_plans(monkeypatch):
    monkeypatch.setattr(function, "_MAX_ENTRIES", 6)
    fused = Function(lambda x: x * 2)
    for rows in range(2, 22):
        assert fused(torch.ones(rows)).sum() == 2 * rows
    assert len(fused._entries) <= 6
