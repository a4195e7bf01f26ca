"""Models through torch.compile on burnt's kernels, compared with eager torch and in float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import burnt
from burnt.errors import FusionError, FusionWarning, UnsupportedError
from burnt.fusion.backend import backend
from burnt.fusion.graph import device_of, host_inputs

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("afresh")]


class Block(nn.Module):
    """A part of a transformer: attention of two heads and an MLP, with norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.heads, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.heads(self.norms[0](x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


def images() -> nn.Module:
    """Convolutions, of which one is of each channel by itself, with batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 3)), lambda: torch.randn(7, 6)),
    "transformer": (lambda: nn.Sequential(Block(16), Block(16)), lambda: torch.randn(2, 9, 16)),
    "images": (images, lambda: torch.randn(4, 3, 12, 12)),
}


def train(model: Callable[..., Any], parameters: list[Tensor], x: Tensor, steps: int = 3) -> list[Tensor]:
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_training_steps_are_as_close_to_float64_as_eager(name: str) -> None:
    build, inputs = MODELS[name]
    model, x = build(), inputs()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    losses = train(burnt.compile(model, fullgraph=True), list(model.parameters()), x)
    train(eager, list(eager.parameters()), x)
    expected = train(exact, list(exact.parameters()), x.double())
    torch.testing.assert_close(torch.stack(losses).double(), torch.stack(expected), rtol=1e-5, atol=1e-7)
    for (key, ours), torchs, right in zip(
        model.state_dict().items(), eager.state_dict().values(), exact.state_dict().values(), strict=True
    ):
        error, allowed = (ours - right).abs().max(), 4 * (torchs - right).abs().max() + 1e-6
        assert error <= allowed, (key, error, allowed)


@pytest.mark.parametrize("name", MODELS)
def test_inference_without_gradients(name: str) -> None:
    build, inputs = MODELS[name]
    model, x = build().eval(), inputs()
    compiled = burnt.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()  # and with them afterwards
    assert all(p.grad is not None for p in model.parameters())


def test_the_name_of_the_backend() -> None:
    """As installed: an entry point of torch_dynamo_backends."""
    x = torch.randn(5)
    assert torch.equal(torch.compile(torch.sin, backend="burnt")(x), burnt.compile(torch.sin)(x))


# --- dropout ----------------------------------------------------------------------------------------------


def in_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(lambda a: F.dropout(torch.sin(a) * 2, 0.5), x, use_reentrant=False)  # type: ignore[no-any-return]


def twice(x: Tensor) -> Tensor:
    return F.dropout(F.dropout(x, 0.3).exp() - 1, 0.5)


@pytest.mark.parametrize("fn", [in_checkpoint, twice])
def test_a_backward_draws_the_numbers_of_its_forward(fn: Callable[[Tensor], Tensor]) -> None:
    compiled = burnt.compile(fn, fullgraph=True)
    x = torch.randn(64, 64, requires_grad=True)
    results: list[Tensor] = []
    for _ in range(2):
        y = compiled(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad != 0, y != 0)
        assert 0.4 < (y == 0).float().mean() < 0.75
        results.append(y.detach())
    assert not torch.equal(*results)
    torch.manual_seed(3)
    first = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(first, compiled(x))


def draws_of_torch(x: Tensor) -> Tensor:
    return checkpoint(lambda a: a * torch.poisson(a.detach()), x, use_reentrant=False)  # type: ignore[no-any-return]


def test_torch_draws_again_what_has_no_kernel() -> None:
    x = torch.full((50,), 4.0, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FusionWarning)
        y = burnt.compile(draws_of_torch)(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
    first, second = (str(w.message) for w in caught if w.category is FusionWarning)
    assert "aten.poisson.default draws random numbers again in the backward, and has no kernel" in first
    assert "torch has drawn the random numbers of its forward" in second
    assert torch.equal(grad, (y / x).detach())


def test_a_backward_that_cannot_draw_the_numbers_of_kernels_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import burnt.fusion.backend as module

    plan = module._plan

    def failing(graph: torch.fx.GraphModule, fixed: Any, compiled: Any, options: Any) -> Any:
        if "backward" in compiled.name:
            raise ValueError("a fault")
        return plan(graph, fixed, compiled, options)

    monkeypatch.setattr(module, "_plan", failing)
    x = torch.randn(50, requires_grad=True)
    with pytest.raises(FusionError, match="other random numbers: a fault"):
        burnt.compile(twice)(x).sum().backward()
    torch._dynamo.reset()
    with pytest.warns(FusionWarning, match="torch runs .*_backward.* bug"):  # without them torch runs it
        burnt.compile(lambda x: x.sin().exp())(x).sum().backward()
    torch.testing.assert_close(x.grad, x.sin().exp() * x.cos())


def test_no_mask_is_saved_for_the_backward() -> None:
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    x = torch.randn(256, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, keep):
        burnt.compile(lambda x: F.dropout(x, 0.5) * 2, fullgraph=True)(x)
    assert sum(t.numel() for t in saved) == 1  # the seed


# --- memory that is shared --------------------------------------------------------------------------------


def test_a_result_that_is_a_view_of_an_argument() -> None:
    x = torch.randn(4, 6)
    view, other = burnt.compile(lambda x: (x.t(), x + 1), fullgraph=True)(x)
    assert view.data_ptr() == x.data_ptr()
    assert torch.equal(other, x + 1)


def test_results_that_share_memory() -> None:
    a, b = burnt.compile(lambda x: ((y := x * 2), y.view(-1)), fullgraph=True)(torch.randn(2, 3))
    a.zero_()
    assert (b == 0).all()


def test_arguments_and_buffers_changed_in_place() -> None:
    def add(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x, x * y

    x, y = torch.zeros(4), torch.full((4,), 3.0)
    same, product = burnt.compile(add, fullgraph=True)(x, y)
    assert same.data_ptr() == x.data_ptr()
    assert torch.equal(x, torch.ones(4))
    assert torch.equal(product, y)

    def halve(x: Tensor) -> Tensor:
        x[:, ::2] *= 0.5
        return x.sum(1)

    x = torch.ones(3, 4)
    assert torch.equal(burnt.compile(halve, fullgraph=True)(x), torch.full((3,), 3.0))
    assert torch.equal(x, torch.tensor([0.5, 1, 0.5, 1]).expand(3, 4))


def test_shared_parameters_and_a_deep_copy() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    compiled, x = burnt.compile(model, fullgraph=True), torch.randn(3, 4)
    compiled(x).sum().backward()
    found = layer.weight.grad
    layer.weight.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(found, layer.weight.grad)
    other = copy.deepcopy(compiled)
    with torch.no_grad():
        layer.weight.zero_()
        assert not torch.equal(other(x), compiled(x))


def test_a_saved_tensor_that_comes_back_with_other_strides() -> None:
    def contiguous(tensor: Tensor) -> Tensor:
        return tensor.contiguous()

    def product(x: Tensor) -> Tensor:
        return x.sin() * x.exp()

    for fn in (burnt.compile(product, fullgraph=True), burnt.fuse(product)):
        x = torch.randn(5, 7).t().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(contiguous, contiguous):
            y = fn(x)
        (found,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(found, torch.autograd.grad(product(x).sum(), x)[0])


def test_a_backward_frees_what_was_saved_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    from burnt.codegen.runtime import torch_calls

    model = nn.Sequential(*[nn.Linear(8, 8) if i % 2 == 0 else nn.Tanh() for i in range(12)])
    saved: list[Any] = []
    alive: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        alive.append(sum(reference() is not None for reference in saved))
        return torch.mm(*args, **kwargs)

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape == (5, 8):
            tensor = tensor.clone()
            saved.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setitem(torch_calls._FUNCTIONS, torch.ops.aten.mm.default, counted)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = burnt.compile(model, fullgraph=True)(torch.randn(5, 8))
    alive.clear()
    y.sum().backward()
    assert alive[0] >= 6
    assert alive[-1] <= 2


# --- sizes ------------------------------------------------------------------------------------------------


def test_sizes_may_vary_without_another_compilation() -> None:
    calls = 0

    def counted(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        nonlocal calls
        calls += 1
        return backend(graph, examples)

    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Softmax(-1))
    compiled = torch.compile(model, backend=counted, dynamic=True)
    first_calls = 0
    for rows in [*range(2, 8), 33, 2]:
        x, weight = torch.randn(rows, 4, requires_grad=True), torch.randn(rows, 8)
        found, expected = (torch.autograd.grad((m(x) * weight).sum(), x) for m in (compiled, model))
        torch.testing.assert_close(found, expected)
        first_calls = calls if rows == 2 and not first_calls else first_calls
    assert calls == first_calls


def test_dropout_of_sizes_that_vary() -> None:
    compiled = burnt.compile(twice, fullgraph=True, dynamic=True)
    for rows in (64, 50, 64):
        x = torch.randn(rows, 30, requires_grad=True)
        y = compiled(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad != 0, y != 0)


def test_no_more_than_64_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    import burnt.fusion.backend as module

    monkeypatch.setattr(module, "_MAX_SIZES", 2)
    compiled = burnt.compile(lambda x: torch.cumsum(x, 0) * x.shape[0], dynamic=True)
    for rows in (2, 3, 4, 2):
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(x), torch.cumsum(x, 0) * rows)


# --- what is left to torch, and errors --------------------------------------------------------------------


def test_autocast() -> None:
    w, x = torch.randn(64, 64, requires_grad=True), torch.randn(8, 64)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.gelu(x @ w).float().sum()

    burnt.compile(loss, fullgraph=True)(x, w).backward()
    found, w.grad = w.grad, None
    loss(x, w).backward()
    torch.testing.assert_close(found, w.grad, rtol=0.05, atol=0.3)


def test_a_graph_break_and_sizes_that_depend_on_data() -> None:
    def steps(x: Tensor) -> Tensor:
        y = x * 2
        return y + 1 if y.sum().item() > 0 else y - 1

    assert torch.equal(burnt.compile(steps)(torch.ones(3)), torch.full((3,), 3.0))
    x = torch.tensor([1.0, -1, 2])
    assert torch.equal(burnt.compile(lambda x: x[x > 0] * 2)(x), torch.tensor([2.0, 4.0]))


def test_an_index_out_of_range_is_torchs_error() -> None:
    with pytest.raises(IndexError, match="out of"):
        burnt.compile(lambda x, i: x[i] + 1)(torch.randn(4), torch.tensor([9]))


def test_second_derivatives_are_refused() -> None:
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(burnt.compile(lambda x: x.sin().sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


def test_numbers_on_the_cpu_go_to_the_device_of_a_plan() -> None:
    """Kernels of a GPU cannot read them where they are."""
    graph = torch.fx.symbolic_trace(lambda x, number: x * number)
    x, number, _, _ = graph.graph.nodes
    x.meta["val"], number.meta["val"] = torch.empty(3, device="meta"), torch.tensor(2.0)
    assert device_of(graph) == torch.device("meta")
    assert host_inputs(graph, torch.device("meta")) == [1]
    number.meta["val"] = torch.ones(3)
    with pytest.raises(UnsupportedError, match="it has tensors on cpu, meta"):
        device_of(graph)


def test_tensors_without_elements() -> None:
    assert burnt.compile(lambda x: (x * 2).sum(), fullgraph=True)(torch.zeros(0, 3)).item() == 0


def test_torch_runs_a_graph_that_cannot_be_planned_and_a_warning_says_why() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + 1

    x = torch.randn(3)
    with pytest.warns(
        FusionWarning, match=r"torch runs graph\d+_inference, as no kernels .*: it has control flow"
    ):
        torch.testing.assert_close(burnt.compile(fn)(x), fn(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="cannot be compiled") as caught:
        burnt.compile(fn, fullgraph=True)(x)
    assert isinstance(caught.value.inner_exception, FusionError)  # type: ignore[attr-defined]


def test_seeds_are_drawn_first_so_that_they_part_no_kernels() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Tanh(), nn.Dropout(0.2))
    found = burnt.explain(model, torch.randn(8, requires_grad=True), timed=False)
    assert [step.kind for step in found.steps] == ["library", "library", "elementwise"]
    assert [step.ops for step in found.steps[:2]] == [("draw_seed",)] * 2
