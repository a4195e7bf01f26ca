import math

import pytest
import torch

from burnt import nn
from burnt.errors import ShapeError


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
