"""burnt.compile(mode="infer"): constants, computed once and again after a change; next to float64."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import burnt
from burnt.errors import FusionError, FusionWarning
from burnt.fusion import infer

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def without_gradients(afresh: None) -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The graphs that are left when constants are taken out, as they come."""
    found: list[torch.fx.GraphModule] = []
    retraced = infer._retraced

    def logged(*args: Any) -> torch.fx.GraphModule:
        found.append(retraced(*args))
        return found[-1]

    monkeypatch.setattr(infer, "_retraced", logged)
    return found


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values were computed, each time that constants were."""
    found: list[int] = []
    run = torch.fx.Interpreter.run

    def logged(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(self, *args, **kwargs)
        if isinstance(result, list):
            found.append(len(result))
        return result

    monkeypatch.setattr(torch.fx.Interpreter, "run", logged)
    return found


def targets(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def with_statistics(model: nn.Module) -> nn.Module:
    """Give batch norms statistics and parameters that do something."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (module.running_mean, module.weight, module.bias):
                assert tensor is not None
                tensor.data.normal_()
            assert module.running_var is not None
            module.running_var.uniform_(0.1, 4)
    return model.eval()


class Images(nn.Module):
    """Convolutions with and without batch norm after them, a residual, and a batch norm after a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv2d(8, 16, 1), nn.SiLU(), nn.Conv2d(16, 8, 3, 1, "same"), nn.GELU())
        self.pixel = nn.Sequential(
            nn.Conv2d(8, 4, 1), nn.SiLU(), nn.Conv2d(4, 8, 1, bias=False), nn.Sigmoid()
        )
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 4, 2, 2), nn.BatchNorm2d(4))
        self.head = nn.Sequential(nn.Linear(4 * 100, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        x = self.norm(x * self.pixel(x.mean((2, 3), keepdim=True)) + self.depthwise(x) + self.wide(x))
        return x, self.head(self.up(x).flatten(1))


def images() -> tuple[nn.Module, Tensor]:
    return with_statistics(Images()), torch.randn(2, 3, 10, 10)


def few_layers() -> tuple[nn.Module, Tensor]:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardswish(), nn.Flatten(), nn.Linear(64, 5)
    return with_statistics(nn.Sequential(*layers)), torch.randn(2, 3, 6, 6)


def assert_as_eager(compiled: Callable[..., Any], model: nn.Module, *args: Any) -> None:
    """Outputs as close to float64 as eager ones, and in their strides."""
    found, eager = compiled(*args), model(*args)
    exact = copy.deepcopy(model).double()(*[a.double() if a.is_floating_point() else a for a in args])
    pairs = [(found, eager, exact)] if isinstance(eager, Tensor) else zip(found, eager, exact, strict=True)
    for ours, torchs, right in pairs:
        assert (ours.dtype, ours.stride()) == (torchs.dtype, torchs.stride())
        error, allowed = (ours - right).abs().max(), (torchs - right).abs().max()
        assert error <= 4 * allowed + 4 * torch.finfo(ours.dtype).eps * right.abs().max(), (error, allowed)


def test_batch_norms_are_folded_and_weights_packed(rests: list[torch.fx.GraphModule]) -> None:
    model, x = images()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    assert_as_eager(compiled, model, x)
    calls = targets(rests[0])
    assert calls.count("mkldnn._convolution_pointwise.default") == 4 * (
        torch.float32 in burnt.device.processor().onednn
    )
    assert calls.count("aten.addmm.default") + calls.count("aten.mm.default") == 4  # two of one pixel
    assert sum("sqrt" in call for call in calls) == 2  # after a sum, and after a transposed convolution
    assert sum("_convolution_pointwise" in c or "convolution.default" in c for c in calls) == 5


@pytest.mark.full
def test_channels_last() -> None:
    model, x = images()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    model.to(memory_format=torch.channels_last)
    assert_as_eager(compiled, model, x.contiguous(memory_format=torch.channels_last))
    with torch.inference_mode():
        assert_as_eager(compiled, model, x)


@pytest.mark.parametrize("approximate", ["none", pytest.param("tanh", marks=pytest.mark.full)])
def test_products_take_their_activation(approximate: str, rests: list[torch.fx.GraphModule]) -> None:
    model = nn.Sequential(
        nn.Linear(128, 256), nn.GELU(approximate), nn.Linear(256, 128, bias=False), nn.SiLU()
    )
    compiled, x = burnt.compile(model, mode="infer", fullgraph=True), torch.randn(4, 64, 128)
    assert_as_eager(compiled, model, x)
    if burnt.device.processor().mkl_is_slow:
        calls = [call for call in targets(rests[0]) if "view" not in call]
        assert calls == ["mkldnn._linear_pointwise.default"] * 2
    assert_as_eager(compiled, model, x[:1])


@pytest.mark.parametrize("norm_first", [True, pytest.param(False, marks=pytest.mark.full)])
def test_torchs_encoder_layer_in_one_op_becomes_ops(
    norm_first: bool, rests: list[torch.fx.GraphModule]
) -> None:
    activation: Any = "gelu" if norm_first else "relu"
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=True, norm_first=norm_first, activation=activation, layer_norm_eps=0.1
    ).eval()
    for parameter in layer.parameters():
        parameter.uniform_(-1, 1)
    assert_as_eager(burnt.compile(layer, mode="infer", fullgraph=True), layer, torch.randn(2, 5, 16))
    assert "aten._transformer_encoder_layer_fwd.default" not in targets(rests[0])
    x = torch.randn(2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (m(x) for m in (burnt.compile(layer, mode="infer", fullgraph=True), layer))
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.2)
    mask = torch.ones(5, 5).triu(1).bool()
    assert_as_eager(burnt.compile(layer, mode="infer", fullgraph=True), layer, torch.randn(2, 5, 16), mask)


@pytest.mark.full
def test_bfloat16() -> None:
    model, x = images()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    compiled(x)
    model.bfloat16()  # the parameters have other data then
    assert_as_eager(compiled, model, x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled.float()(x)[0], model.float()(x)[0], rtol=0.05, atol=0.1)


# --- changes of parameters ---------------------------------------------------------------------------------


def test_a_changed_parameter(computed: list[int]) -> None:
    model, x = few_layers()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)

    def check(count: int) -> None:
        before = len(computed)
        assert_as_eager(compiled, model, x)
        compiled(x)
        assert len(computed) - before == count

    check(1)
    check(0)
    model[1].running_var.mul_(3)
    check(1)
    model[0].weight.data = model[0].weight * 2
    check(1)
    model.load_state_dict({k: v + 0.5 for k, v in model.state_dict().items()})
    check(1)
    model.load_state_dict({k: v + 0.5 for k, v in model.state_dict().items()}, assign=True)
    assert_as_eager(compiled, model, x)
    model[0].weight = nn.Parameter(torch.randn(4, 3, 3, 3))
    assert_as_eager(compiled, model, x)
    model[1].running_mean = torch.randn(4)
    assert_as_eager(compiled, model, x)


def test_constants_go_with_the_memory_of_their_parameters() -> None:
    constants, weight = infer.Constants(), nn.Parameter(torch.zeros(100))
    constants.of([weight], "key", lambda: [weight + 1])
    assert len(constants.entries) == 1
    weight.data = torch.ones(100)
    assert not constants.entries  # another tensor may get the address of the first


@pytest.mark.full
def test_biases_that_are_not_contiguous() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(128, 128)), nn.Parameter(torch.randn(256))

        def forward(self, x: Tensor) -> list[Tensor]:
            filters = self.weight.view(32, 8, 8, 8)
            return [
                torch.addmm(self.bias[:1], x, self.weight),  # broadcast
                F.gelu(F.linear(x, self.weight, self.bias[::2])),
                F.silu(F.conv2d(x.view(16, 8, 8, 16), filters, self.bias[::8])),
                F.conv2d(x.view(1024, 16, 1, 1), self.weight.view(1024, 16, 1, 1)[::8], self.bias[::2]),
            ]

    model, x = Model(), torch.randn(128, 128)
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)


def test_an_argument_that_is_negated_lazily() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return x.sin() * self.weight.exp()

    model = Model()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    x = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.full
def test_copies_keep_constants_of_their_own_until_they_are_freed(computed: list[int]) -> None:
    model, x = few_layers()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    compiled(x)
    other = copy.deepcopy(compiled)
    model[0].weight.mul_(2)
    for _ in range(2):
        assert_as_eager(compiled, model, x)
        assert_as_eager(other, other._orig_mod, x)
    assert len(computed) == 3
    alive = [e for e in gc.get_objects() if type(e) is infer.Constants]
    assert sum(len(e.entries) for e in alive) == 2
    del other
    gc.collect()
    assert sum(len(e.entries) for e in alive) == 1


@pytest.mark.full
def test_parameters_made_in_inference_mode(computed: list[int]) -> None:
    with torch.inference_mode():
        model, x = few_layers()
        compiled = burnt.compile(model, mode="infer", fullgraph=True)
        with pytest.warns(FusionWarning, match="made in inference mode.* at every call"):
            assert_as_eager(compiled, model, x)
        model[0].weight.mul_(2)
        assert_as_eager(compiled, model, x)  # without another warning
    assert len(computed) == 2


@pytest.mark.full
def test_a_result_that_is_a_constant_may_be_changed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.bias = self.weight  # tied

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            scale = self.weight.exp() + self.bias
            return x * scale, scale.view(2, 2), self.weight * 2

    model = Model()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    for _ in range(2):
        for found, expected in zip(compiled(torch.ones(4)), model(torch.ones(4)), strict=True):
            torch.testing.assert_close(found, expected)
            found.zero_()


# --- modes, sizes, threads ---------------------------------------------------------------------------------


@pytest.mark.full
def test_training_modes_keep_their_meaning() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU()).train()
    other, x = copy.deepcopy(model), torch.randn(4, 3, 8, 8)
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    assert 0.6 < (compiled(x) == 0).float().mean() < 0.9
    other(x)
    for found, expected in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(found, expected)
    model.eval()
    other.eval()
    torch.testing.assert_close(compiled(x), other(x))
    model.train()
    compiled(x)
    other.train()(x)
    model.eval()
    torch.testing.assert_close(compiled(x), other.eval()(x))


@pytest.mark.full
def test_a_call_that_needs_gradients_is_compiled_as_for_training() -> None:
    model, x = few_layers()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    with torch.enable_grad():
        with pytest.warns(FusionWarning, match=r"graph\d+_forward needs gradients.*torch.no_grad\(\)"):
            found = compiled(x)
        torch.testing.assert_close(found, model(x))
        found.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert_as_eager(compiled, model, x)
    model.requires_grad_(False)
    with torch.enable_grad():
        assert_as_eager(compiled, model, x)


@pytest.mark.full
def test_sizes_that_vary_share_their_constants(computed: list[int]) -> None:
    model = with_statistics(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 1))
    )
    compiled = burnt.compile(model, mode="infer", fullgraph=True, dynamic=True)
    for rows in (2, 5, 3, 5):
        assert_as_eager(compiled, model, torch.randn(rows, 3, 6 + rows, 7))
    assert len(computed) == 1


@pytest.mark.full
def test_layers_of_one_class_have_their_own_constants() -> None:
    """They share Dynamo's graph, where the model is split between them."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return F.gelu(self.linear(x)) * self.linear.weight.sum()

    model = nn.Sequential(*[Layer() for _ in range(4)])
    compiled, x = burnt.compile(model, mode="infer"), torch.randn(3, 8)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.full
def test_threads() -> None:
    model, x = few_layers()
    compiled = burnt.compile(model, mode="infer", fullgraph=True)
    expected = model(x)
    found: list[Tensor] = []

    def call() -> None:
        with torch.no_grad():
            for _ in range(5):
                found.append(compiled(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for result in found:
        torch.testing.assert_close(result, expected)


@pytest.mark.full
def test_quantized_layers() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).eval()
    burnt.quantize(model)
    compiled, x = burnt.compile(model, mode="infer"), torch.randn(8, 64)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_an_unknown_mode() -> None:
    with pytest.raises(
        FusionError,
        match=r"mode= of compile is unknown(.|\n)*'train' or 'infer'(.|\n)*'infr'(.|\n)*mean 'infer'",
    ):
        burnt.compile(nn.Linear(2, 2), mode="infr")  # type: ignore[call-overload]
    for given in ({"mode": "reduce-overhead"}, {"options": {"verify": True}}):  # torch.compile's own
        model = torch.compile(nn.Linear(2, 2), backend="burnt", **given)
        with pytest.raises(BackendCompilerFailed, match=r"backend='burnt'(.|\n)*has no mode= and options="):
            model(torch.randn(1, 2))
