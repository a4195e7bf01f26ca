from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from burnt import nn
from burnt.errors import ConfigError, UnsupportedError

ARGUMENTS = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "batch_first": True}


def trained(layer: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return layer


def torchs(num_layers: int = 2, norm: bool = False, **changes: Any) -> Any:
    layer = torch.nn.TransformerEncoderLayer(**{**ARGUMENTS, **changes})
    final = torch.nn.LayerNorm(8, eps=1e-3) if norm else None
    encoder = torch.nn.TransformerEncoder(layer, num_layers, norm=final, enable_nested_tensor=False)
    return trained(encoder)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    "activation",
    ["relu", "gelu", F.silu, torch.nn.SiLU(), torch.nn.GELU()],
    ids=lambda a: getattr(a, "__name__", str(a)),
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_is_torchs_encoder(norm_first: bool, activation: Any, bias: bool, norm: bool) -> None:
    theirs = torchs(norm_first=norm_first, activation=activation, bias=bias, norm=norm, dropout=0.0)
    ours = nn.TransformerEncoder.from_torch(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = torch.randn(3, 5, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    later = causal.isinf()
    for asked, wanted in [
        ({}, {}),
        ({"key_padding_mask": padding}, {"src_key_padding_mask": padding}),
        ({"is_causal": True}, {"mask": causal, "is_causal": True}),
        ({"attn_mask": later, "key_padding_mask": padding}, {"mask": later, "src_key_padding_mask": padding}),
    ]:
        output, expected = ours(x, **asked), theirs(x, **wanted)
        torch.testing.assert_close(output, expected, atol=2e-5, rtol=2e-5)
    grads = torch.autograd.grad(output.square().sum(), list(ours.parameters()))
    wanted_grads = torch.autograd.grad(expected.square().sum(), list(theirs.parameters()))
    for gradient, want in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(gradient, want, atol=1e-3, rtol=1e-3)


def test_dropout_draws_as_torchs() -> None:
    # Without the dropouts around the attention: torch computes that with the batch second, and draws so.
    theirs = torchs(dropout=0.4)
    for layer in theirs.layers:
        layer.self_attn.dropout = layer.dropout1.p = 0.0
    ours = nn.TransformerEncoder.from_torch(theirs)
    x = torch.randn(3, 5, 8)
    torch.manual_seed(4)
    output = ours(x)
    torch.manual_seed(4)
    torch.testing.assert_close(output, theirs(x), atol=2e-5, rtol=2e-5)
    assert not torch.equal(ours(x), ours(x))
    ours.eval()
    assert torch.equal(ours(x), ours(x))


def test_the_first_layer_has_torchs_values_and_the_others_their_own() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(**ARGUMENTS)
    torch.manual_seed(0)
    ours = nn.TransformerEncoder(8, 2, 12, 2)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.layers[0].state_dict()[name], value), name
    assert not torch.equal(ours.layers[0].linear1.weight, ours.layers[1].linear1.weight)


def test_from_torch_takes_dtype_mode_and_eps() -> None:
    theirs = torchs(norm=True, layer_norm_eps=1e-2, dtype=torch.float64).eval()
    theirs.norm.double()
    ours = nn.TransformerEncoder.from_torch(theirs)
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    assert not ours.training
    assert ours.layers[0].norm1.eps == 1e-2
    assert ours.norm is not None
    assert ours.norm.eps == 1e-3
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert all(parameter.any() for parameter in ours.parameters())


@pytest.mark.parametrize(
    "activation",
    [torch.tanh, torch.nn.GELU("tanh"), torch.nn.Tanh()],
    ids=lambda a: getattr(a, "__name__", str(a)),
)
def test_other_activations_are_refused(activation: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match="no such activation"):
        nn.TransformerEncoderLayer.from_torch(
            torch.nn.TransformerEncoderLayer(**ARGUMENTS, activation=activation)
        )
    with pytest.raises(UnsupportedError, match="relu or gelu or silu"):
        nn.TransformerEncoder(8, 2, 12, 1, activation="tanh")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tanh"):
        nn.TransformerEncoder.Config(d_model=8, num_heads=2, d_ff=12, num_layers=1, activation="tanh")


def test_another_final_norm_is_refused() -> None:
    theirs = torchs()
    theirs.norm = torch.nn.RMSNorm(8)
    with pytest.raises(UnsupportedError, match="a RMSNorm"):
        nn.TransformerEncoder.from_torch(theirs)


def test_no_layers_and_no_tokens() -> None:
    x = torch.randn(2, 3, 8)
    assert torch.equal(nn.TransformerEncoder(8, 2, 12, 0)(x), x)
    assert nn.TransformerEncoder(8, 2, 12, 2)(x[:, :0]).shape == (2, 0, 8)
    assert nn.TransformerEncoder(8, 2, 12, 2)(x[0]).shape == (3, 8)


def test_grouped_queries_reach_the_attention() -> None:
    encoder = nn.TransformerEncoder(8, 4, 12, 2, num_kv_heads=1)
    assert encoder.layers[1].self_attn.in_proj_weight.shape == (8 + 2 * 2, 8)
    assert encoder(torch.randn(2, 3, 8)).shape == (2, 3, 8)
