import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from burnt import nn
from burnt.config import field_values
from burnt.errors import ConfigError, InputIndexError, ShapeError
from burnt.nn import rope_scaling


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_sines_and_cosines(d_model: int, base: float) -> None:
    layer = nn.PositionalEncoding(d_model, max_len=50, base=base)
    output = layer(torch.zeros(3, 50, d_model))
    for position in (0, 1, 7, 49):
        for column in range(d_model):
            angle = position / base ** (2 * (column // 2) / d_model)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert float(output[2, position, column]) == pytest.approx(expected, abs=1e-6)


def test_keeps_the_inputs_dtype_and_is_no_state() -> None:
    layer = nn.PositionalEncoding(4, max_len=5)
    x = torch.ones(5, 4, dtype=torch.bfloat16)
    assert layer(x).dtype == torch.bfloat16
    assert not layer.state_dict()
    assert layer.static_fields() == {"d_model": 4, "max_len": 5, "base": 10000.0}
    longer = nn.PositionalEncoding(4, max_len=9)
    longer.load_state_dict(layer.state_dict())
    assert torch.equal(longer(x), layer(x))


def test_leaving_the_meta_device() -> None:
    layer = nn.PositionalEncoding(3, max_len=6, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert torch.equal(layer.encoding, nn.PositionalEncoding(3, max_len=6).encoding)


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 5, 3), (4,), (2, 6, 5)])
def test_what_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        nn.PositionalEncoding(4, max_len=6)(torch.zeros(shape))
    assert caught.value.found == shape
    assert caught.value.expected == "(..., at most 6, 4)"
    assert (caught.value.hint is not None) == (shape == (2, 7, 4))


# --- rotary encoding --------------------------------------------------------------------------------------

SCALINGS = {
    "none": None,
    "linear": rope_scaling.Linear(factor=4.0),
    "ntk": rope_scaling.Ntk(factor=4.0),
    "dynamic": rope_scaling.DynamicNtk(factor=2.0, original_max_len=16),
    "yarn": rope_scaling.Yarn(factor=4.0, original_max_len=64),
    "yarn, not truncated": rope_scaling.Yarn(factor=4.0, original_max_len=64, truncate=False),
    "llama3": rope_scaling.Llama3(factor=8.0, original_max_len=64),
}


def frequencies(d: int, base: float, name: str, length: int) -> tuple[np.ndarray, float]:
    """The frequencies of the papers, in float64, and the factor of sines and cosines."""
    i = np.arange(d // 2)
    theta = base ** (-2 * i / d)
    if name == "linear":
        return theta / 4, 1.0
    if name == "ntk":
        return (base * 4 ** (d / (d - 2))) ** (-2 * i / d), 1.0
    if name == "dynamic":
        factor = 2 * max(length, 16) / 16 - 1
        return (base * factor ** (d / (d - 2))) ** (-2 * i / d), 1.0
    turns = 64 * theta / (2 * np.pi)
    if name == "llama3":
        smooth = np.clip((turns - 1) / 3, 0, 1)
        return (1 - smooth) * theta / 8 + smooth * theta, 1.0
    if name.startswith("yarn"):
        # The paper's ramp is over the index at which a wave turns 32 times and once.
        low, high = (d / 2 * np.log(64 / (2 * np.pi * r)) / np.log(base) for r in (32, 1))
        if name == "yarn":
            low, high = np.floor(low), np.ceil(high)
        ramp = np.clip((i - max(low, 0)) / (high - max(low, 0)), 0, 1)
        return theta / 4 * ramp + theta * (1 - ramp), 0.1 * np.log(4) + 1
    return theta, 1.0


def rotate_by_hand(x: Tensor, start: int, d: int, base: float, interleaved: bool, name: str) -> Tensor:
    """Multiply each pair, as a complex number, with the unit number of its angle."""
    length = x.shape[-2]
    theta, amplitude = frequencies(d, base, name, start + length)
    turn = amplitude * np.exp(1j * (start + np.arange(length))[:, None] * theta)
    values = x.double().numpy()
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + d // 2) for i in range(d // 2)]
    result = values.copy()
    for i, (a, b) in enumerate(pairs):
        rotated = (values[..., a] + 1j * values[..., b]) * turn[:, i]
        result[..., a], result[..., b] = rotated.real, rotated.imag
    return torch.from_numpy(result)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize(("rotary_dim", "interleaved"), [(12, False), (8, True), (6, False), (2, True)])
def test_rotates_as_the_papers_say(name: str, rotary_dim: int, interleaved: bool) -> None:
    if rotary_dim == 2 and name in ("ntk", "dynamic"):
        return  # d / (d - 2) has no value
    layer = nn.RotaryEncoding(
        12, 1000.0, rotary_dim=rotary_dim, interleaved=interleaved, scaling=SCALINGS[name]
    )
    x = torch.randn(3, 2, 30, 12)
    for start in (0, 1, 50):
        expected = rotate_by_hand(x, start, rotary_dim, 1000.0, interleaved, name)
        torch.testing.assert_close(layer(x, start).double(), expected, atol=2e-5, rtol=1e-5)
    starts = torch.tensor([0, 50, 7])
    expected = torch.stack(
        [
            rotate_by_hand(x[i], s, rotary_dim, 1000.0, interleaved, name)
            for i, s in enumerate(starts.tolist())
        ]
    )
    torch.testing.assert_close(layer(x, starts).double(), expected, atol=2e-5, rtol=1e-5)
    assert torch.equal(layer(x, layer.cos_sin(30, starts)), layer(x, starts))
    torch.testing.assert_close(layer(x, torch.tensor(50)), layer(x, 50))


@pytest.mark.full
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_hugging_face(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = SCALINGS[name]
    kind = name.partition(",")[0]
    if scaling is None or kind == "ntk":
        return  # the default is written in each model, and nobody has a fixed NTK factor
    parameters = {"rope_type": kind, "rope_theta": 1000.0, **field_values(scaling)}
    parameters["original_max_position_embeddings"] = parameters.pop("original_max_len", 16)
    config = LlamaConfig(
        hidden_size=24, num_attention_heads=2, max_position_embeddings=16, rope_parameters=parameters
    )
    expected, amplitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=40)
    layer = nn.RotaryEncoding(12, 1000.0, scaling=scaling)
    cos, sin = layer.cos_sin(2, 38)
    positions = torch.tensor([38.0, 39.0])[:, None]
    torch.testing.assert_close(cos, (positions * expected).cos() * amplitude)
    torch.testing.assert_close(sin, (positions * expected).sin() * amplitude)


def test_products_depend_on_distances_alone() -> None:
    layer, q, k = nn.RotaryEncoding(8), torch.randn(1, 8), torch.randn(1, 8)
    near, far = (layer(q, 5 + shift) @ layer(k, 2 + shift).t() for shift in (0, 100))
    torch.testing.assert_close(near, far, atol=1e-5, rtol=1e-4)


def test_a_sequence_in_parts_is_the_whole_and_has_no_longest() -> None:
    layer, x = nn.RotaryEncoding(8), torch.randn(2, 3, 9, 8)
    parts = torch.cat([layer(x[:, :, :4]), layer(x[:, :, 4:5], 4), layer(x[:, :, 5:], offset=5)], 2)
    torch.testing.assert_close(parts, layer(x))
    assert layer(torch.zeros(1, 20_000, 8)).shape == (1, 20_000, 8)


@pytest.mark.parametrize("scaling", [None, rope_scaling.DynamicNtk(factor=2.0, original_max_len=4)], ids=repr)
def test_exports_with_open_batch_and_length(scaling: Any) -> None:
    layer, dim = nn.RotaryEncoding(8, scaling=scaling), torch.export.Dim
    program = torch.export.export(
        layer,
        (torch.randn(3, 2, 5, 8), torch.tensor([0, 1, 2])),
        dynamic_shapes=({0: dim("batch"), 2: dim("length")}, {0: dim("batch")}),
    )
    x, offset = torch.randn(4, 2, 9, 8), torch.tensor([3, 0, 7, 1])
    torch.testing.assert_close(program.module()(x, offset), layer(x, offset))


def test_frequencies_stay_exact_in_16_bits_and_leave_the_meta_device() -> None:
    exact = nn.RotaryEncoding(8)
    for layer in (
        nn.RotaryEncoding(8).to(torch.bfloat16),
        nn.RotaryEncoding(8, device="meta").to_empty(device="cpu"),
        torch.nn.Sequential(nn.RotaryEncoding(8)).half().float()[0],
    ):
        assert torch.equal(layer.inv_freq, exact.inv_freq)
    assert not exact.state_dict()
    x = torch.randn(3000, 8)
    torch.testing.assert_close(exact(x.bfloat16()), exact(x.bfloat16().float()).bfloat16())


@pytest.mark.parametrize(
    ("shape", "offset", "expected"),
    [
        ((8,), 0, "(..., L, 8)"),
        ((2, 3, 5, 6), 0, "(..., L, 8)"),
        ((2, 5, 8), torch.tensor([1, 2]), "(2, H, L, 8)"),
        ((3, 1, 5, 8), torch.tensor([1, 2]), "(2, H, L, 8)"),
    ],
)
def test_what_cannot_be_rotated_is_refused(
    shape: tuple[int, ...], offset: int | Tensor, expected: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        nn.RotaryEncoding(8)(torch.zeros(shape), offset)
    assert caught.value.expected == expected
    assert caught.value.found == shape


@pytest.mark.parametrize("rotary_dim", [0, 3, 10])
def test_a_rotary_dim_without_pairs_is_refused(rotary_dim: int) -> None:
    with pytest.raises(ShapeError, match="even and at most 8") as caught:
        nn.RotaryEncoding(8, rotary_dim=rotary_dim)
    assert caught.value.found == rotary_dim


@pytest.mark.parametrize(
    ("build", "field", "expected"),
    [
        (lambda: rope_scaling.Linear(factor=0.0), "factor", "a positive number"),
        (
            lambda: rope_scaling.Yarn(factor=2.0, original_max_len=8, beta_fast=0.5),
            "beta_fast",
            "more than beta_slow = 1.0",
        ),
        (
            lambda: rope_scaling.Llama3(high_freq_factor=1.0),
            "high_freq_factor",
            "more than low_freq_factor = 1.0",
        ),
    ],
)
def test_a_scaling_that_is_not_possible_is_refused(
    build: Callable[[], object], field: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert (caught.value.where, caught.value.expected) == (field, expected)


def test_learned_positions_are_an_embedding_of_the_index() -> None:
    torch.manual_seed(0)
    layer = nn.LearnedPositionalEncoding(200, max_len=50, std=0.3)
    assert float(layer.weight.detach().std()) == pytest.approx(0.3, rel=0.05)
    assert float(layer.weight.detach().mean()) == pytest.approx(0.0, abs=0.02)
    x = torch.randn(2, 7, 200)
    positions = torch.nn.functional.embedding(torch.arange(7), layer.weight)
    torch.testing.assert_close(layer(x), x + positions, atol=0, rtol=0)
    assert layer.weight.grad is None
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad[:, 0] > 0, torch.arange(50) < 7)


LAYERS = [nn.PositionalEncoding, nn.LearnedPositionalEncoding]


@pytest.mark.parametrize("kind", LAYERS)
def test_positions_from_an_offset(kind: type[nn.PositionalEncoding]) -> None:
    layer, x = kind(4, max_len=9), torch.randn(2, 9, 4)
    parts = [layer(part, offset=start) for start, part in ((0, x[:, :2]), (2, x[:, 2:3]), (3, x[:, 3:]))]
    assert torch.equal(torch.cat(parts, 1), layer(x))
    with pytest.raises(ShapeError) as caught:
        layer(x[:, :2], offset=8)
    assert caught.value.expected == "(..., at most 1, 4) after 8 others"
    assert caught.value.where == f"{kind.__name__}(4, max_len=9)"
    assert "max_len" in str(caught.value.hint)


@pytest.mark.parametrize(
    "layer", [nn.PositionalEncoding(4, max_len=9), nn.LearnedPositionalEncoding(4, max_len=9)]
)
def test_a_negative_offset_is_refused(layer: Any) -> None:
    with pytest.raises(InputIndexError, match="an offset of 0 or more") as caught:
        layer(torch.zeros(2, 4), offset=-3)
    assert caught.value.where == f"{type(layer).__name__}(4, max_len=9)"
