from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from burnt import nn
from burnt.errors import ArgumentError, BurntError, ConfigError, InputTypeError, ShapeError, UnsupportedError

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


@pytest.mark.sample(8)
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
    [torch.tanh, F.leaky_relu, torch.nn.GELU("tanh"), torch.nn.PReLU()],
    ids=lambda a: getattr(a, "__name__", str(a)),
)
def test_any_activation(activation: Callable[..., Any]) -> None:
    theirs = torchs(1, activation=activation, dropout=0.0)
    ours = nn.TransformerEncoder.from_torch(theirs)
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(ours(x), theirs(x), atol=2e-5, rtol=2e-5)


def test_activations_without_a_name_are_refused() -> None:
    for activation in (F.softmax, lambda x: x.abs()):
        with pytest.raises(UnsupportedError, match="no such activation") as caught:
            nn.TransformerEncoderLayer.from_torch(
                torch.nn.TransformerEncoderLayer(**ARGUMENTS, activation=activation)
            )
        assert "torch.nn.Module" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="did you mean 'tanh'"):
        nn.TransformerEncoder(8, 2, 12, 1, activation="tanhh")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tanhh"):
        nn.TransformerEncoder.Config(d_model=8, num_heads=2, d_ff=12, num_layers=1, activation="tanhh")


def test_other_norms_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="no such norm") as caught:
        nn.TransformerDecoderLayer(8, 2, norm="batch")  # type: ignore[arg-type]
    assert (caught.value.expected, caught.value.found) == ("'layer' or 'rms'", "'batch'")


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


@pytest.mark.sample
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_is_torchs_decoder(norm_first: bool, bias: bool, norm: bool) -> None:
    layer = torch.nn.TransformerDecoderLayer(**ARGUMENTS, norm_first=norm_first, bias=bias, dropout=0.0)
    final = torch.nn.LayerNorm(8, eps=1e-3) if norm else None
    theirs = trained(torch.nn.TransformerDecoder(layer, 2, norm=final))
    ours = nn.TransformerDecoder.from_torch(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, memory = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    padding, memory_padding = torch.zeros(3, 5, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool)
    padding[1, 3:] = memory_padding[0, 2:] = True
    later, near = nn.causal_mask(5), torch.rand(5, 4) < 0.3
    near[:, 0] = False
    for asked, wanted in [
        ({"is_causal": False}, {}),
        ({}, {"tgt_mask": later, "tgt_is_causal": True}),
        (
            {"attn_mask": later, "is_causal": False, "key_padding_mask": padding, "memory_mask": near},
            {"tgt_mask": later, "tgt_key_padding_mask": padding, "memory_mask": near},
        ),
        (
            {"memory_key_padding_mask": memory_padding},
            {"tgt_mask": later, "memory_key_padding_mask": memory_padding},
        ),
    ]:
        output, expected = ours(x, memory, **asked), theirs(x, memory, **wanted)
        torch.testing.assert_close(output, expected, atol=2e-5, rtol=2e-5)
    grads = torch.autograd.grad(output.square().sum(), list(ours.parameters()))
    wanted_grads = torch.autograd.grad(expected.square().sum(), list(theirs.parameters()))
    for gradient, want in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(gradient, want, atol=1e-3, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [True, False])
def test_is_torchs_transformer(norm_first: bool) -> None:
    theirs = trained(torch.nn.Transformer(8, 2, 2, 1, 12, batch_first=True, norm_first=norm_first)).eval()
    ours = nn.Transformer.from_torch(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert not ours.training
    source, target = torch.randn(3, 6, 8), torch.randn(3, 5, 8)
    padding, target_padding = torch.zeros(3, 6, dtype=torch.bool), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = target_padding[2, 4:] = True
    later, source_mask, memory_mask = nn.causal_mask(5), torch.rand(6, 6) < 0.3, torch.rand(5, 6) < 0.3
    source_mask[:, 0] = memory_mask[:, 0] = False
    for asked, wanted in [
        ({}, {"tgt_mask": later, "tgt_is_causal": True}),
        ({"is_causal": False}, {}),
        (
            {"source_key_padding_mask": padding},
            {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": later},
        ),
        (
            {
                "source_mask": source_mask,
                "memory_mask": memory_mask,
                "target_key_padding_mask": target_padding,
            },
            {
                "src_mask": source_mask,
                "memory_mask": memory_mask,
                "tgt_mask": later,
                "tgt_key_padding_mask": target_padding,
            },
        ),
        (
            {"target_mask": later, "memory_key_padding_mask": padding, "is_causal": False},
            {"tgt_mask": later, "memory_key_padding_mask": padding},
        ),
    ]:
        output, expected = ours(source, target, **asked), theirs(source, target, **wanted)
        torch.testing.assert_close(output, expected, atol=2e-5, rtol=2e-5)


def test_custom_parts_are_refused() -> None:
    theirs = torch.nn.Transformer(8, 2, 1, 1, 12, batch_first=True, custom_decoder=torch.nn.Linear(8, 8))
    with pytest.raises(UnsupportedError, match="a TransformerDecoder") as caught:
        nn.Transformer.from_torch(theirs)
    assert caught.value.found == "a Linear"


def test_decoders_from_torch_keep_what_was_changed() -> None:
    layer = torch.nn.TransformerDecoderLayer(**ARGUMENTS, dtype=torch.float64).eval()
    layer.norm3.eps, layer.dropout3.p, layer.multihead_attn.dropout = 0.5, 0.7, 0.2
    ours = nn.TransformerDecoderLayer.from_torch(layer)
    assert (ours.norm3.eps, ours.dropout3.p, ours.multihead_attn.dropout) == (0.5, 0.7, 0.2)
    assert not ours.training
    assert ours.linear1.weight.dtype == torch.float64


def test_the_memory_may_have_another_size() -> None:
    decoder = nn.TransformerDecoder(8, 2, 12, 2, memory_dim=5)
    assert decoder(torch.randn(2, 3, 8), torch.randn(2, 4, 5)).shape == (2, 3, 8)
    assert decoder(torch.randn(3, 8), torch.randn(4, 5)).shape == (3, 8)


@pytest.mark.parametrize("kind", ["swiglu", "geglu"])
def test_a_gated_feed_forward(kind: Any) -> None:
    layer = trained(nn.PositionWiseFeedForward(8, 12, activation=kind, dropout=0.0))
    x = torch.randn(3, 5, 8)
    gate, up = (x @ layer.linear1.weight.T + layer.linear1.bias).split(12, -1)
    activated = gate * gate.sigmoid() if kind == "swiglu" else gate * (1 + torch.erf(gate / 2**0.5)) / 2
    expected = (activated * up) @ layer.linear2.weight.T + layer.linear2.bias
    torch.testing.assert_close(layer(x), expected)


def test_another_feed_forward() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    for kind, inputs in ((nn.TransformerEncoderLayer, (x,)), (nn.TransformerDecoderLayer, (x, memory))):
        built = kind(8, 2, norm_first=True, dropout=0.0, feed_forward=Double())
        layer = trained(built)
        assert not any(name.startswith("linear") for name, _ in layer.named_parameters())
        norm = layer.norm3 if len(inputs) == 2 else layer.norm2
        before: list[torch.Tensor] = []
        norm.register_forward_pre_hook(lambda module, args, before=before: before.append(args[0]))
        output = layer(*inputs)
        torch.testing.assert_close(output, before[0] + 2 * norm(before[0]))


class Halves(torch.nn.Module):
    """Rotary positions as in GPT-NeoX and Llama, written out."""

    def forward(self, x: torch.Tensor, offset: int = 0) -> torch.Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(offset, offset + x.shape[-2])[:, None] / 10000 ** (torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


MODERN = {"norm": "rms", "activation": "swiglu", "bias": False, "num_kv_heads": 1, "rotary": Halves()}
STACKS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm_first": True, "final_norm": True, "quiet_softmax": True},
    "modern": {"norm_first": True, "final_norm": True, **MODERN},
}


@torch.no_grad()
@pytest.mark.sample
@pytest.mark.parametrize("options", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("chunks", [[1] * 7, [4, 1, 1, 1]], ids=["from nothing", "after a prompt"])
@pytest.mark.parametrize("max_len", [None, 7])
@pytest.mark.parametrize("padded", [False, True])
def test_steps_equal_the_whole(
    options: dict[str, Any], chunks: list[int], max_len: int | None, padded: bool
) -> None:
    encoder = trained(nn.TransformerEncoder(8, 4, 12, 2, **options)).eval()
    decoder = trained(nn.TransformerDecoder(8, 4, 12, 2, memory_dim=5, **options)).eval()
    x, memory = torch.randn(3, 7, 8), torch.randn(3, 6, 5)
    padding, memory_padding = torch.zeros(3, 7, dtype=torch.bool), torch.zeros(3, 6, dtype=torch.bool)
    padding[1, :3] = padded  # at the left, as for prompts of different lengths
    memory_padding[2, 4:] = padded
    encoded = encoder(x, key_padding_mask=padding, is_causal=True)
    decoded = decoder(x, memory, key_padding_mask=padding, memory_key_padding_mask=memory_padding)
    encoder_cache, decoder_cache = encoder.new_cache(max_len), decoder.new_cache(max_len)
    for part in x.split(chunks, 1):
        start = encoder_cache.length
        end = start + part.shape[1]
        # Once the cache holds its projection, the memory is not needed.
        given = memory if start == 0 else None
        seen = padding[:, :end]
        step = encoder(part, key_padding_mask=seen, cache=encoder_cache)
        torch.testing.assert_close(step, encoded[:, start:end], atol=1e-5, rtol=1e-5)
        step = decoder(
            part, given, key_padding_mask=seen, memory_key_padding_mask=memory_padding, cache=decoder_cache
        )
        torch.testing.assert_close(step, decoded[:, start:end], atol=1e-5, rtol=1e-5)
    assert repr(decoder_cache) == "TransformerCache(num_layers=2, length=7)"
    beams = torch.tensor([1, 1, 0])
    decoder_cache.reset()
    decoder(x[:, :4], memory, cache=decoder_cache)
    decoder_cache.reorder(beams)
    expected = decoder(x[beams], memory[beams])[:, 4:]
    torch.testing.assert_close(decoder(x[beams, 4:], cache=decoder_cache), expected, atol=1e-5, rtol=1e-5)


def test_a_cache_of_another_stack_is_refused() -> None:
    encoder, decoder = nn.TransformerEncoder(8, 2, 12, 1), nn.TransformerDecoder(8, 2, 12, 2)
    with pytest.raises(BurntError, match="of another stack") as caught:
        encoder(torch.zeros(1, 1, 8), cache=decoder.new_cache())
    assert caught.value.found == "TransformerCache(num_layers=2, length=0)"
    assert (caught.value.where, caught.value.hint) == ("TransformerEncoder", "cache = model.new_cache()")
    with pytest.raises(BurntError, match="nothing to attend to"):
        decoder(torch.zeros(1, 1, 8), cache=decoder.new_cache())


def test_configs_name_positions_and_feed_forwards() -> None:
    config = nn.Transformer.Config(
        d_model=8,
        num_heads=2,
        num_encoder_layers=2,
        num_decoder_layers=1,
        rotary=nn.RotaryEncoding.Config(head_dim=4, base=100.0),
        feed_forward=nn.MoeFeedForward.Config(d_model=8, d_ff=12, num_experts=3),
    )
    again = nn.Transformer.Config.from_json(config.to_json())
    model = again.init(dtype=torch.float64)
    assert model.encoder.layers[1].self_attn.rotary.base == 100.0
    kinds = [layer.feed_forward for stack in (model.encoder, model.decoder) for layer in stack.layers]
    assert all(isinstance(kind, nn.MoeFeedForward) for kind in kinds)
    assert len(set(map(id, kinds))) == 3
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    inputs = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    assert model(*inputs).shape == (2, 3, 8)
    layer = nn.TransformerEncoderLayer(
        8, 2, feed_forward=nn.GatedFeedForward.Config(d_model=8, d_ff=12), rotary=nn.RotaryEncoding(4)
    )
    assert isinstance(layer.feed_forward, nn.GatedFeedForward)
    assert layer(torch.randn(2, 5, 8)).shape == (2, 5, 8)


def test_experts_of_a_transformer_start_as_in_the_encoder_alone() -> None:
    config = nn.MoeFeedForward.Config(d_model=16, d_ff=64, num_experts=4)
    model = nn.Transformer(16, 2, num_encoder_layers=1, num_decoder_layers=1, feed_forward=config)
    experts = model.encoder.layers[0].feed_forward
    assert isinstance(experts, nn.MoeFeedForward)
    for weight in (experts.gate_proj, experts.up_proj, experts.down_proj):
        bound = weight.shape[-1] ** -0.5
        assert 0.9 * bound < float(weight.detach().abs().max()) <= bound


def test_caches_and_masks_of_another_type_are_refused() -> None:
    x, stack = torch.randn(2, 5, 8), nn.TransformerEncoder(8, 2, 16, 1)
    for cache in ({}, nn.KeyValueCache()):
        with pytest.raises(InputTypeError, match="a transformer cannot use this as a cache") as caught:
            stack(x, cache=cache)
        assert caught.value.hint.startswith("cache = model.new_cache()")
    for layer, inputs in ((nn.MultiHeadAttention(8, 2), (x,)), (nn.CrossAttention(8, 2), (x, x))):
        for cache in ({}, stack.new_cache()):
            with pytest.raises(InputTypeError, match="an attention layer cannot use this as a cache"):
                layer(*inputs, cache=cache)
        for name in ("attn_mask", "key_padding_mask"):
            with pytest.raises(InputTypeError, match=f"{name} must be a tensor") as caught:
                layer(*inputs, **{name: [[True]]})
            assert caught.value.found == "list"


SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1}


@pytest.mark.parametrize("kind", [nn.TransformerEncoder, nn.TransformerDecoder])
@pytest.mark.parametrize(
    ("arguments", "what", "expected"),
    [
        ({"num_layers": -1}, "a layer cannot have this num_layers", "num_layers, an integer of at least 0"),
        ({"num_layers": "2"}, "a layer cannot have this num_layers", "num_layers, an integer of at least 0"),
        ({"d_ff": 0}, "a layer cannot have this d_ff", "d_ff, an integer of at least 1"),
        ({"d_model": 8.0}, "a layer cannot have this d_model", "d_model, an integer of at least 1"),
        (
            {"rotary": nn.RotaryEncoding.Config(head_dim=8)},
            "does not fit the heads",
            "head_dim=4, the size of",
        ),
        ({"rotary": nn.RotaryEncoding(8)}, "does not fit the heads", "head_dim=4, the size of"),
        ({"rotary": True}, "this is not a rotary encoding", "a RotaryEncoding, its Config"),
        ({"feed_forward": "swiglu"}, "this is not a feed-forward", "the Config of a GatedFeedForward or Moe"),
        (
            {"feed_forward": nn.GatedFeedForward.Config(d_model=6, d_ff=9)},
            "the feed-forward does not fit",
            "d_model=8",
        ),
        (
            {"feed_forward": nn.MoeFeedForward.Config(d_model=6, d_ff=9, num_experts=2)},
            "the feed-forward does not fit",
            "d_model=8",
        ),
    ],
)
def test_arguments_that_fail_in_a_step_are_refused_at_construction(
    kind: Any, arguments: dict[str, Any], what: str, expected: str
) -> None:
    with pytest.raises(BurntError, match=what) as caught:
        kind(**SIZES | arguments)
    assert caught.value.expected.startswith(expected)
    if arguments.get("feed_forward") == "swiglu":
        assert caught.value.hint == "two Linears with another activation: activation='swiglu'"


def test_sizes_of_other_blocks_are_checked_too() -> None:
    for build in (
        lambda: nn.PositionWiseFeedForward(8, 0),
        lambda: nn.GatedFeedForward(8, 0),
        lambda: nn.Transformer(8, 2, 1, 1, 0),
    ):
        with pytest.raises(ShapeError, match="an integer of at least 1"):
            build()


@pytest.mark.parametrize(
    ("activation", "hint"),
    [
        ("SwiGLU", "did you mean 'swiglu'?"),
        ("GELU", "did you mean 'gelu'?"),
        (F.gelu, "by name: 'gelu'"),
        (lambda x: x, "a function as a module: class Activation(burnt.Module)"),
        (nn.Gelu, "a layer, Gelu(), and not its class"),
    ],
)
def test_what_is_no_activation_gets_a_hint(activation: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match="there is no such activation") as caught:
        nn.TransformerEncoderLayer(8, 2, 16, activation=activation)
    assert caught.value.hint == hint
    assert ("thresholded_relu, swiglu, geglu;" in caught.value.expected) == isinstance(activation, str)


def test_a_layer_as_in_torch_is_refused_with_a_hint() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(ArgumentError, match="missing a required argument") as caught:
        nn.TransformerEncoder(layer, 2)  # type: ignore[call-arg, arg-type]
    assert caught.value.hint == "TransformerEncoder.from_torch(module) copies one of torch"
