from typing import Any

import pytest
import torch

from burnt import kernels, nn
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputValueError
from burnt.kernels.dispatch.generated import Generated

LARGE = 1 << 16  # elements from which kernels are generated


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here: the library serves")
def test_a_large_one_is_generated_and_follows_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = kernels.dropout.chosen(torch.ones(LARGE), 0.3, True)
    assert isinstance(chosen.candidate, Generated)
    layer, x = nn.Dropout(0.3), torch.ones(LARGE, requires_grad=True)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.3) < 0.01
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first.detach())


def test_in_place_in_evaluation_and_compiled_it_is_torchs() -> None:
    x = torch.ones(LARGE)
    layer = nn.Dropout(0.5, inplace=True)
    assert layer(x) is x
    assert 0 < int((x == 0).sum()) < LARGE
    ints = torch.arange(3)
    assert nn.Dropout(0.5).eval()(ints) is ints
    for run in (nn.Dropout(0.4), torch.nn.Dropout(0.4)):
        torch.manual_seed(5)
        result = torch.compile(run, backend="eager", fullgraph=True)(torch.ones(LARGE))
        torch.manual_seed(5)
        assert torch.equal(result, torch.nn.functional.dropout(torch.ones(LARGE), 0.4))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.Dropout1d, (4, 50, 9)), (nn.Dropout2d, (4, 50, 3, 3)), (nn.Dropout3d, (4, 50, 3, 3, 1))],
)
def test_whole_channels_are_dropped(kind: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    sums = kind(0.25)(torch.ones(shape, dtype=torch.float64)).flatten(2).sum(-1).round(decimals=9)
    assert set(sums.unique().tolist()) == {0.0, 12.0}
    assert abs(float((sums == 0).float().mean()) - 0.25) < 0.1


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    torch.manual_seed(0)
    x = torch.randn(200_000)
    for layer in (nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)):
        output = layer(x.view(400, 500))
        assert abs(float(output.mean())) < 0.02
        assert abs(float(output.var()) - 1) < 0.02


def test_gaussian_noise() -> None:
    layer, x = nn.GaussianNoise(0.5), torch.full((100_000,), 2.0, requires_grad=True)
    torch.manual_seed(0)
    output = layer(x)
    torch.manual_seed(0)
    assert torch.equal(layer(x), output)
    assert not torch.equal(layer(x), output)
    noise = (output - x).detach()
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.std()) - 0.5) < 0.01
    assert abs(float((noise.abs() < 0.5).float().mean()) - 0.6827) < 0.01  # of a normal distribution
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert layer.eval()(x) is x
    assert nn.GaussianNoise(0.0)(x) is x


KINDS = [
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.GaussianNoise,
]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_arguments(kind: Any) -> None:
    with pytest.raises(InputValueError) as caught:
        kind(-0.5)
    assert caught.value.found == -0.5
    assert caught.value.where == kind.__name__
    if kind is not nn.GaussianNoise:
        with pytest.raises(InputValueError, match=r"expected +a probability from 0 to 1"):
            kind(1.5)
