"""`burnt.explain` of compiled models: what runs, and that the model is as before."""

from __future__ import annotations

import inspect
import json
import re
import warnings

import pytest
import torch
from torch import Tensor, nn

import burnt
from burnt.errors import ConfigError, FusionWarning, UnsupportedError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("afresh")]


class Net(nn.Module):
    """A linear layer, batch norm and dropout, which change buffers and draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.sigmoid(self.norm(self.linear(x))))


class Split(Net):
    """The same, split by Dynamo."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).exp()
        torch._dynamo.graph_break()
        return self.dropout(x)


def kinds(found: burnt.codegen.Explanation) -> set[str]:
    return {step.kind for step in found.steps}


def test_the_kernels_and_calls_of_a_model_are_those_that_run():
    model = burnt.compile(Net())
    x = torch.randn(6, 4)
    model(x).sum().backward()
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found = burnt.explain(model, x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled, "nothing is compiled again"
    calls = [step for step in found.steps if step.kind == "library"]
    assert [step.ops for step in calls] == [("draw_seed",), ("addmm",)]
    assert calls[1].bytes == 4 * (8 + 6 * 4 + 4 * 8 + 6 * 8)
    kernels = [step for step in found.steps if step.kind == "reduction"]
    assert "rsqrt" in kernels[0].ops
    assert f"void {kernels[0].name}(" in found.source(kernels[0].name)
    assert found.backward is not None
    assert any(step.ops == ("mm",) for step in found.backward.steps)
    assert all(step.seconds is not None and step.seconds > 0 for step in found.steps)
    assert found.graph_breaks == ()
    assert json.loads(json.dumps(found.as_dict()))["steps"][0]["graph"] == found.steps[0].graph
    text = str(found)
    assert re.match(r"2 graphs, \d+ kernels, \d+ library calls; [\d.]+ KiB read and written; \d+ us", text)
    calls = [step for step in (*found.steps, *found.backward.steps) if step.kind == "library"]
    assert f", of which library calls take {sum(s.seconds or 0 for s in calls) * 1e6:,.0f}\n" in text
    for graph in (found.steps[0].graph, found.backward.steps[0].graph):
        assert f"\n{graph}\n" in text


def test_the_model_is_as_before():
    model = Net()
    model.linear.weight.grad = grad = torch.ones(8, 4)
    x = torch.randn(6, 4, requires_grad=True)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    random_state = torch.get_rng_state()
    assert burnt.explain(model, x).backward is not None
    assert model.linear.weight.grad is grad
    assert torch.equal(grad, torch.ones(8, 4))
    assert x.grad is None
    assert model.linear.bias.grad is None
    for name, values in model.state_dict().items():
        assert torch.equal(values, before[name]), name
    assert torch.equal(torch.get_rng_state(), random_state)


def test_arguments_that_are_changed_in_place_are_put_back():
    @burnt.compile
    def add_one(cache: Tensor) -> Tensor:
        return cache.add_(1).sin()

    cache = torch.zeros(3)
    assert "elementwise" in kinds(burnt.explain(add_one, cache))
    assert torch.equal(cache, torch.zeros(3))


@pytest.mark.full
def test_there_is_no_backward_without_gradients():
    with torch.no_grad():
        assert burnt.explain(Net(), torch.randn(6, 4), timed=False).backward is None


@torch.no_grad()
def test_graph_breaks_say_where_and_why():
    found = burnt.explain(Split(), torch.randn(6, 4), timed=False)
    (reason,) = found.graph_breaks
    line = inspect.getsourcelines(Split.forward)[1] + 2
    assert reason.startswith(f"{__file__}:{line}, `torch._dynamo.graph_break()`: ")
    assert len({step.graph for step in found.steps}) == 2
    assert str(found).endswith(f"where Dynamo split the model\n  {reason}")


@pytest.mark.full
def test_a_branch_on_values_is_named():
    @burnt.compile
    def relu_or_sin(x: Tensor) -> Tensor:
        return x.relu() if x.sum() > 0 else x.sin()

    found = burnt.explain(relu_or_sin, torch.ones(3), timed=False)
    assert found.graph_breaks[0].endswith(": a branch depends on a tensor's value")


def test_a_graph_that_torch_runs_is_a_step_with_the_reason():
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionWarning)
        found = burnt.explain(burnt.compile(branches), torch.ones(3))
    (step,) = found.steps
    assert (step.kind, step.seconds) == ("torch", None)
    assert step.ops[:2] == ("aten.sum.default", "aten.gt.Scalar")
    assert step.why == "it has control flow, torch.ops.higher_order.cond"
    assert "1 torch graph;" in str(found)


def test_a_model_is_shown_for_a_device_that_is_not_there():
    pytest.importorskip("triton", reason="Triton exists for Linux alone")
    model = burnt.compile(Net())
    x = torch.randn(6, 4)
    found = burnt.explain(model, x, target="gfx942")
    name = next(step.name for step in found.steps if step.kind == "reduction")
    assert "@triton.jit" in found.source(name)
    assert found.backward is not None
    assert all(step.seconds is None for step in found.steps)
    assert ".amdgcn_target" in found.source(name, assembly=True)
    again = burnt.explain(model, x, target="gfx942")
    assert [step.graph for step in again.steps] == [step.graph for step in found.steps]


def test_a_target_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"no target 'cuda'(.|\n)*c, triton, metal"):
        burnt.explain(Net(), torch.randn(6, 4), target="cuda")


@pytest.mark.full
def test_what_another_compiler_compiled_is_refused():
    with pytest.raises(
        UnsupportedError,
        match=r"no graph that burnt compiled ran(.|\n)*burnt.compile\(model\)(.|\n)*GRU and LSTM",
    ):
        burnt.explain(torch.compile(Net(), backend="eager"), torch.randn(6, 4))


@pytest.mark.full
def test_a_model_that_was_compiled_in_place_is_explained():
    model = Net()
    model.compile(backend="burnt")
    with torch.no_grad():
        assert kinds(burnt.explain(model, torch.randn(6, 4), timed=False)) >= {"library", "reduction"}
        assert kinds(burnt.explain(model, torch.randn(6, 4), target="triton")) >= {"library", "reduction"}


def test_a_function_is_fused():
    found = burnt.explain(lambda x: x.sin() * 2, torch.ones(3), timed=False)
    assert str(found) == "\n".join([
        "kernel      kind         bytes  ops      separate step because",
        "_lambda__0  elementwise     24  sin mul  it is the only step",
    ])  # fmt: skip
