"""What happens to a compiled module besides calls: hooks, changed parameters, copies, threads, forks."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import burnt
from burnt.errors import FusionWarning

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("afresh"),
    pytest.mark.filterwarnings("ignore"),
]


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.wide, self.norm, self.drop = nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(dropout)
        self.narrow = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.drop(F.gelu(self.norm(self.wide(x)))))  # type: ignore[no-any-return]


def numbers(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape, **options)


def gradients(model: nn.Module, call: Callable[..., Any], *args: Any) -> list[Tensor]:
    """The result, and the gradients of all parameters that require one."""
    result = call(*args)
    wanted = [p for p in model.parameters() if p.requires_grad]
    return [result.detach(), *torch.autograd.grad(result.square().sum(), wanted)]


def agree(model: nn.Module, compiled: Callable[..., Any], *args: Any) -> None:
    assert_close(gradients(model, compiled, *args), gradients(model, model, *args))


# --- hooks ------------------------------------


@pytest.mark.full
def test_hooks_of_modules() -> None:
    model, seen = Net(), []
    model.norm.register_forward_hook(lambda module, given, result: result * 2)
    model.wide.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    model.register_forward_hook(lambda module, given, result: seen.append(1))
    model.norm.register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    agree(model, burnt.compile(model), numbers(2, 4))
    assert len(seen) == 2


@pytest.mark.full
def test_hooks_of_tensors() -> None:
    model, seen = Net(), []
    compiled = burnt.compile(model)
    model.wide.weight.register_hook(lambda gradient: gradient * 2)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(seen.append)
    agree(model, compiled, numbers(2, 4))
    compiled(numbers(2, 4)).sum().backward()
    assert len(seen) == 6


@pytest.mark.full
def test_hooks_of_saved_tensors() -> None:
    model, x = Net(), numbers(2, 4)
    compiled, expected = burnt.compile(model), gradients(model, model, x)
    arrays = []

    def pack(tensor: Tensor) -> Any:
        arrays.append(tensor.detach().numpy().copy())
        return arrays[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        assert_close(gradients(model, compiled, x), expected)
    assert arrays
    with torch.autograd.graph.save_on_cpu():
        assert_close(gradients(model, compiled, x), expected)


# --- parameters, buffers and modes that change ------------------------------------


def test_parameters_change_after_compilation() -> None:
    model, x = Net(), numbers(2, 4)
    compiled = burnt.compile(model)
    agree(model, compiled, x)
    model.wide.weight.data = numbers(4, 8).t()
    agree(model, compiled, x)
    model.wide.weight.requires_grad_(False)
    agree(model, compiled, x)
    model.double()
    agree(model, compiled, x.double())


@pytest.mark.full
def test_parameters_are_replaced_after_compilation() -> None:
    model, x = Net(), numbers(2, 4)
    compiled = burnt.compile(model)
    agree(model, compiled, x)
    model.wide.weight = nn.Parameter(numbers(8, 4))
    agree(model, compiled, x)
    model.wide = nn.Linear(4, 8, bias=False)
    agree(model, compiled, x)
    state = {key: value * 2 for key, value in model.state_dict().items()}
    for assign in (False, True):
        model.load_state_dict(state, assign=assign)
        agree(model, compiled, x)
    assert set(compiled.state_dict()) == {f"_orig_mod.{key}" for key in state}


@pytest.mark.full
def test_a_module_that_moves_to_another_device() -> None:
    model, x = Net(), numbers(2, 4)
    compiled = burnt.compile(model)
    compiled(x)
    model.to("meta")
    with pytest.warns(FusionWarning, match="kernels are generated for cpu, cuda, mps only"):
        assert compiled(x.to("meta")).shape == (2, 3)


@pytest.mark.full
def test_buffers_that_are_changed_and_replaced() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("last", torch.zeros(3))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.norm = nn.BatchNorm1d(3, momentum=None)

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.9).add_(x.detach().mean(0))  # type: ignore[operator]
            self.last = self.last * 0.5 + x.mean(0)
            self.count += 1
            return self.norm(x - self.mean)  # type: ignore[no-any-return]

    model = Counting()
    eager, compiled = copy.deepcopy(model), burnt.compile(model)
    for _ in range(3):
        x = numbers(4, 3)
        assert_close(compiled(x), eager(x))
    assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))


@pytest.mark.full
def test_training_inference_and_no_grad_in_turn() -> None:
    model, x = Net(0.5), numbers(2, 4)
    compiled = burnt.compile(model)
    with torch.inference_mode():
        compiled(x)
    compiled(x).sum().backward()
    assert not torch.equal(compiled(x), compiled(x))
    model.eval()
    agree(model, compiled, x)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
        of_inference = Net()
        assert_close(burnt.compile(of_inference)(x), of_inference(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16
        assert_close(compiled(x), model(x), rtol=0.05, atol=0.05)
    assert compiled(x).dtype == torch.float32
    with torch.compiler.set_stance("force_eager"):
        agree(model, compiled, x)


@pytest.mark.full
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_compiled_function_in_a_checkpoint(reentrant: bool) -> None:
    x = numbers(64, 64, requires_grad=True)
    y = checkpoint(burnt.compile(lambda a: F.dropout(a.sin(), 0.5)), x, use_reentrant=reentrant)
    (gradient,) = torch.autograd.grad(y.sum(), x) if not reentrant else (y.sum().backward(), x.grad)[1:]
    assert torch.equal(gradient != 0, y != 0)


@pytest.mark.full
def test_what_a_backward_has_saved_is_not_changed() -> None:
    x, w = numbers(3, requires_grad=True), numbers(3)
    y = burnt.compile(lambda x, w: (x * w).exp())(x, w)
    y.sum().backward(retain_graph=True)
    first, x.grad = x.grad, None
    y.sum().backward(retain_graph=True)
    assert_close(x.grad, first)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- copies, threads, processes, transforms ------------------------------------


@pytest.mark.full
def test_copies_and_pickles() -> None:
    model, x = Net(), numbers(2, 4)
    compiled = burnt.compile(model)
    expected = gradients(model, compiled, x)
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    for other in (
        copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), torch.load(file, weights_only=False)
    ):  # fmt: skip
        assert_close(gradients(other, other, x), expected)
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}


def in_threads(*calls: Callable[[], Any]) -> list[str]:
    """Start all at once; return their errors."""
    errors: list[str] = []
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> None:
        try:
            barrier.wait()
            call()
        except Exception as error:  # of any kind: it is reported below
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.full
def test_first_calls_in_several_threads() -> None:
    models = [nn.Sequential(Net(), *(nn.Linear(3, 3) for _ in range(i))) for i in range(3)]
    compiled, x = [burnt.compile(model) for model in models], numbers(2, 4)
    pairs = [*zip(models, compiled, strict=True), (models[0], compiled[0])]
    assert not in_threads(*(lambda m=m, c=c: agree(m, c, x) for m, c in pairs))  # type: ignore[misc]


@pytest.mark.full
def test_calls_in_several_threads() -> None:
    model = Net()
    compiled = burnt.compile(model)
    inputs = [numbers(64, 4) for _ in range(4)]
    expected = [gradients(model, model, x) for x in inputs]
    gradients(model, compiled, inputs[0])

    def work(number: int) -> None:
        for _ in range(30):
            assert_close(gradients(model, compiled, inputs[number]), expected[number], rtol=1e-4, atol=1e-5)

    assert not in_threads(*(lambda i=i: work(i) for i in range(4)))  # type: ignore[misc]


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_after_compilation() -> None:
    model, x = Net(), numbers(2, 4)
    compiled = burnt.compile(model)
    expected = gradients(model, compiled, x)
    child = os.fork()
    if not child:
        code = 1
        try:
            assert_close(gradients(model, compiled, x), expected)
            other = nn.Sequential(nn.Linear(4, 5), nn.Softmax(-1))
            agree(other, burnt.compile(other), x)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.full
def test_transforms_of_compiled_functions() -> None:
    x, model = numbers(3, 4), Net()
    assert_close(torch.func.vmap(burnt.compile(lambda x: x.softmax(-1) * 2))(x), x.softmax(-1) * 2)
    assert_close(torch.func.grad(burnt.compile(lambda x: x.sin().sum()))(x), x.cos())
    compiled = burnt.compile(model)
    doubled = {name: p.detach() * 2 for name, p in model.named_parameters()}
    expected = torch.func.functional_call(model, doubled, (x,))
    prefixed = {f"_orig_mod.{name}": p for name, p in doubled.items()}
    assert_close(torch.func.functional_call(compiled, prefixed, (x,)), expected)
    inside = burnt.compile(lambda parameters, x: torch.func.functional_call(model, parameters, (x,)))
    assert_close(inside(doubled, x), expected)
    model.norm = burnt.compile(model.norm)
    agree(model, burnt.compile(model), x)


@pytest.mark.full
def test_optimizers_in_compiled_functions() -> None:
    for make in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        torch._dynamo.reset()
        model, x = Net(), numbers(2, 4)
        eager = copy.deepcopy(model)

        def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()  # type: ignore[no-any-return]

        ours, theirs = make(model.parameters(), lr=0.01), make(eager.parameters(), lr=0.01)
        compiled, compiled_step = burnt.compile(step), burnt.compile(ours.step)
        for _ in range(2):
            assert_close(compiled(model, ours), step(eager, theirs), rtol=1e-4, atol=1e-5)
        for m, stepper in ((model, compiled_step), (eager, theirs.step)):
            m.zero_grad()
            m(x).square().mean().backward()
            stepper()
        assert_close([*model.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_batch_sizes_without_another_compilation_by_dynamo() -> None:
    from torch._dynamo.utils import counters

    model = Net()
    compiled = burnt.compile(model, dynamic=True)
    for rows in (2, 3):
        agree(model, compiled, numbers(rows, 4))
    before = counters["stats"]["unique_graphs"]
    for rows in range(2, 34):
        agree(model, compiled, numbers(rows, 4))
    assert counters["stats"]["unique_graphs"] == before
    for rows in (0, 1):
        agree(model, compiled, numbers(rows, 4))


@pytest.mark.full
def test_a_subclass_of_tensor_that_wraps_two() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(numbers(4), numbers(4)).requires_grad_()
    result = burnt.compile(lambda x: (x * 2).sin())(pair)
    assert type(result) is TwoTensor
    result.sum().backward()
    assert_close(pair.grad.a, (pair.a * 2).cos() * 2)
