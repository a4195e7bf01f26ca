"""Convolutions are `burnt.kernels.conv`'s where that may pay, and torch's where calls are recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels, nn
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError, ShapeError
from tests.nn.case import record_calls


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments that the op is called with."""
    return record_calls(monkeypatch, kernels.conv)


def gradients(layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    result = layer(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("batch", [(2,), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_large_ones_are_the_ops(calls: list[tuple[Any, ...]], bias: bool, batch: tuple[int, ...]) -> None:
    settings = {"stride": (2, 1), "padding": (1, 2), "dilation": 2, "groups": 2, "bias": bias}
    layer, x = nn.Conv2d(16, 24, 3, **settings), torch.randn(*batch, 16, 33, 40)  # type: ignore[arg-type]
    exact = torch.nn.Conv2d(16, 24, 3, **settings, dtype=torch.float64)  # type: ignore[arg-type]
    exact.load_state_dict(layer.state_dict())
    for ours, theirs in zip(gradients(layer, x), gradients(exact, x.double()), strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-3)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    "settings",
    [
        {"padding": "same"},
        {"padding": "same", "kernel_size": (4, 3)},
        {"padding": "valid"},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": "valid", "padding_mode": "replicate"},
        {"padding": "same", "padding_mode": "circular", "kernel_size": 4, "dilation": (1, 2)},
    ],
    ids=str,
)
def test_every_padding_is_torchs(calls: list[tuple[Any, ...]], settings: dict[str, Any]) -> None:
    settings = {"kernel_size": 3, **settings}
    layer, x = nn.Conv2d(16, 24, **settings), torch.randn(2, 16, 33, 40)
    theirs = torch.nn.Conv2d(16, 24, **settings)
    theirs.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), theirs(x), rtol=1e-4, atol=1e-4)
    assert len(calls) == 1


def test_small_and_recorded_ones_are_torchs(calls: list[tuple[Any, ...]]) -> None:
    layer = nn.Conv2d(16, 24, 3)
    layer(torch.randn(1, 16, 5, 5))
    torch.export.export(layer, (torch.randn(2, 16, 33, 40),))
    assert not calls


@pytest.mark.parametrize("size", [4, 66])  # below and above the size where a kernel of burnt is taken
@pytest.mark.parametrize(
    ("layer", "channels", "axes", "expected", "hint"),
    [
        (nn.Conv2d(16, 24, 3), 8, 2, "(N, 16, H, W)", "the input has 8 channels: Conv2d(8, 24, ...)?"),
        (nn.Conv1d(16, 24, 3), 16, 2, "(N, 16, L)", "4 axes: Conv2d is for images"),
        (nn.Conv3d(16, 24, 3), 16, 1, "(N, 16, D, H, W)", "3 axes: Conv1d is for sequences"),
        (nn.Conv3d(16, 24, 3), 16, 2, "(N, 16, D, H, W)", "4 axes: Conv2d is for images"),
        (nn.ConvTranspose2d(16, 24, 3), 8, 2, "(N, 16, H, W)", "channels: ConvTranspose2d(8, 24, ...)?"),
        (nn.ConvTranspose1d(16, 24, 3), 16, 2, "(N, 16, L)", "4 axes: ConvTranspose2d is for images"),
    ],
    ids=repr,
)
def test_inputs_that_do_not_fit(
    layer: torch.nn.Module, channels: int, axes: int, expected: str, hint: str | None, size: int
) -> None:
    x = torch.randn(2, channels, *[size] * axes)
    with pytest.raises(ShapeError, match=f"in +{type(layer).__name__}\\(16 -> 24, 3") as caught:
        layer(x)
    assert caught.value.expected == expected
    assert caught.value.found == str(tuple(x.shape))
    assert hint is None or hint in str(caught.value.hint)


@pytest.mark.parametrize("build", [nn.Conv2d, nn.ConvTranspose2d])
def test_inputs_that_are_no_floats_or_no_tensors(build: Any) -> None:
    image = np.zeros((2, 3, 8, 8), np.float32)
    with pytest.raises(InputTypeError, match=r"hint      torch.from_numpy\(input\)"):
        build(3, 8, 3)(image)
    with pytest.raises(InputRuntimeError, match=r"hint      input\.float\(\)"):
        build(3, 8, 3)(torch.from_numpy(image).byte())
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):  # torch's own, of what else fails
        nn.Conv2d(3, 8, 3)(torch.zeros(1, 3, 2, 2))


@pytest.mark.parametrize("build", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose3d])
@pytest.mark.parametrize(("channels", "groups"), [((8, 6), 3), ((6, 8), 3), ((4, 4), 0)])
def test_channels_that_cannot_be_split(build: Any, channels: tuple[int, int], groups: int) -> None:
    with pytest.raises(InputValueError, match="groups is not valid") as caught:
        build(*channels, 3, groups=groups)
    assert str(caught.value.expected).startswith(f"a divisor of {channels[0]} and {channels[1]}")
    assert caught.value.found == groups


def test_a_parametrized_weight_is_computed_once() -> None:
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(16, 24, 3))
    theirs = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Conv2d(16, 24, 3))
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(2, 16, 33, 40)
    torch.testing.assert_close(layer(x), theirs(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        layer.parametrizations.weight[0]._u,
        theirs.parametrizations.weight[0]._u,  # type: ignore[index, union-attr]
    )


def test_complex_numbers_and_tracers_are_torchs(calls: list[tuple[Any, ...]]) -> None:
    layer = nn.Conv2d(16, 24, 3, dtype=torch.complex64)
    layer(torch.randn(2, 16, 33, 40, dtype=torch.complex64))
    plain, x = nn.Conv2d(16, 24, 3), torch.randn(2, 16, 33, 40)
    traced = torch.jit.trace(plain, (x,), check_trace=False)
    assert not calls
    torch.testing.assert_close(traced(x), plain(x), rtol=1e-4, atol=1e-5)


def test_a_weight_changed_through_data_counts() -> None:
    layer, x = nn.Conv2d(16, 24, 3), torch.randn(2, 16, 33, 40).to(memory_format=torch.channels_last)
    layer.to(memory_format=torch.channels_last)
    with torch.no_grad():
        before = layer(x)
        layer.weight.data.mul_(2)
        assert layer.bias is not None
        layer.bias.data.mul_(2)
        torch.testing.assert_close(layer(x), 2 * before, rtol=1e-4, atol=1e-4)


def test_sequences_and_volumes_are_the_ops(calls: list[tuple[Any, ...]]) -> None:
    for layer, exact, x in [
        (nn.Conv1d(64, 96, 5, 2, 1), torch.nn.Conv1d(64, 96, 5, 2, 1), torch.randn(2, 64, 99)),
        (nn.Conv3d(8, 9, 3, padding=1), torch.nn.Conv3d(8, 9, 3, padding=1), torch.randn(2, 8, 9, 8, 7)),
    ]:
        exact.load_state_dict(layer.state_dict())
        for ours, theirs in zip(gradients(layer, x), gradients(exact.double(), x.double()), strict=True):
            torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-3)
    assert len(calls) == 2


@pytest.mark.parametrize("channels", [2, 32])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_uneven_padding_is_padding_before(calls: list[tuple[Any, ...]], mode: Any, channels: int) -> None:
    layer = nn.Conv2d(channels, 6, 3, 2, ((1, 2), 1), padding_mode=mode)
    x = torch.randn(2, channels, 18, 34)
    padded = F.pad(x, (1, 1, 1, 2), "constant" if mode == "zeros" else mode)
    torch.testing.assert_close(layer(x), F.conv2d(padded, layer.weight, layer.bias, 2), rtol=1e-4, atol=1e-5)
    assert len(calls) == (channels == 32)
    assert "padding=((1, 2), 1)" in repr(layer)


def test_padding_of_one_side_is_causal() -> None:
    layer = nn.Conv1d(3, 3, 4, padding=((6, 0),), dilation=2)
    x = torch.randn(1, 3, 12)
    later = x.clone()
    later[..., 7:] = 9.0
    assert layer(x).shape == x.shape
    torch.testing.assert_close(layer(x)[..., :7], layer(later)[..., :7])
    assert not torch.equal(layer(x)[..., 7], layer(later)[..., 7])


@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (4, 1), (2, 3)])
def test_same_is_the_rule_of_onnx(stride: int, kernel: int, dilation: int) -> None:
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    layer = nn.Conv1d(2, 3, kernel, stride, "same", dilation)
    sizes = {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation]}
    node = onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], auto_pad="SAME_UPPER", **sizes)
    state = {"w": layer.weight.detach().numpy(), "b": layer.bias.detach().numpy()}  # type: ignore[union-attr]
    for size in (7, 8, 9, 10):
        x = torch.randn(1, 2, size)
        (expected,) = reference.ReferenceEvaluator(node).run(None, {"x": x.numpy(), **state})
        assert layer(x).shape[-1] == -(-size // stride)
        torch.testing.assert_close(layer(x), torch.from_numpy(expected))
        torch.testing.assert_close(layer(x[0]), layer(x)[0])


def test_sizes_may_vary_in_an_exported_program() -> None:
    layer = nn.Conv2d(2, 3, 3, 2, "same").eval()
    batch = torch.export.Dim("batch", min=1, max=10_000)
    shapes = {0: batch, 2: torch.export.Dim.AUTO}
    program = torch.export.export(layer, (torch.randn(4, 2, 9, 8),), dynamic_shapes=(shapes,))
    x = torch.randn(500, 2, 20, 8)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "name", "found"),
    [
        (lambda: nn.Conv1d(2, 3, 3, padding=(2, 0)), "padding", "(2, 0)"),  # type: ignore[arg-type]
        (lambda: nn.Conv1d(2, 3, 3, padding="full"), "padding", "'full'"),  # type: ignore[arg-type]
        (lambda: nn.Conv2d(2, 3, 3, padding=-1), "padding", "-1"),
        (lambda: nn.Conv2d(2, 3, 3, padding=(1, (0, -1))), "padding", "(1, (0, -1))"),
        (lambda: nn.Conv2d(2, 3, 3, padding=(1, (0, 1, 2))), "padding", "(1, (0, 1, 2))"),  # type: ignore[arg-type]
        (lambda: nn.Conv2d(2, 3, (3, 3, 3)), "kernel_size", "(3, 3, 3)"),  # type: ignore[arg-type]
        (lambda: nn.Conv2d(2, 3, 0), "kernel_size", "0"),
        (lambda: nn.Conv3d(2, 3, 3, stride=0), "stride", "0"),
        (lambda: nn.ConvTranspose1d(2, 3, 3, dilation=0), "dilation", "0"),
        (lambda: nn.ConvTranspose2d(2, 3, 3, output_padding=-1), "output_padding", "-1"),
    ],
)
def test_sizes_are_checked(build: Any, name: str, found: str) -> None:
    with pytest.raises(InputValueError, match=f"^{name} is not valid") as caught:
        build()
    assert caught.value.found == found
    least = int("padding" not in name)
    assert f"a number of at least {least}, or " in str(caught.value.expected)
