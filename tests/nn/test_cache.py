"""Key-value caches: steps equal the whole sequence; what does not fit is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import nn
from burnt.errors import BurntError, InputValueError, ShapeError
from tests.nn.test_attention import Spin, trained

BATCH, LENGTH, SIZE, HEADS = 3, 7, 12, 4
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_kv_heads": 2, "head_dim": 4},
    {"num_kv_heads": 1, "rotary": Spin(), "head_dim": 6},
    {"quiet_softmax": True},
]


def sequence() -> Tensor:
    torch.manual_seed(4)
    return torch.randn(BATCH, LENGTH, SIZE)


def test_layers_share_the_angles_of_a_rotary_encoding() -> None:
    rotary = nn.RotaryEncoding(SIZE // HEADS - 1)
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, head_dim=rotary.head_dim, rotary=rotary))
    x = sequence()
    expected = layer(x, is_causal=True)
    assert torch.equal(layer(x, is_causal=True, offset=rotary.cos_sin(LENGTH)), expected)
    assert not torch.allclose(layer(x, is_causal=True, offset=rotary.cos_sin(LENGTH)[::-1]), expected)


@torch.no_grad()
@pytest.mark.sample
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("chunks", [[1] * 7, [4, 1, 2], [7]], ids=str)
@pytest.mark.parametrize("max_len", [None, 7, 20])
@pytest.mark.parametrize("padded", [False, True])
def test_steps_equal_the_whole(
    options: dict[str, Any], chunks: list[int], max_len: int | None, padded: bool
) -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, **options))
    x, cache = sequence(), nn.KeyValueCache(max_len)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, :3] = padded  # at the left, as for a batch of prompts
    expected, weights = layer(x, key_padding_mask=padding, is_causal=True, need_weights=True)
    done = 0
    for part in x.split(chunks, 1):
        new = done + part.shape[1]
        asked = {"key_padding_mask": padding[:, :new]} if padded else {}
        output, found = layer(part, cache=cache, need_weights=True, **asked)
        torch.testing.assert_close(output, expected[:, done:new], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found, weights[:, :, done:new, :new], atol=1e-6, rtol=1e-5)
        done = new
        assert cache.length == done
    assert cache.key is not None
    assert cache.key.shape == (BATCH, layer.num_kv_heads, LENGTH, layer.head_dim)
    cache.reset()
    assert (cache.length, cache.key, cache.value) == (0, None, None)
    torch.testing.assert_close(layer(x[:1], cache=cache), layer(x[:1], is_causal=True))


@torch.no_grad()
def test_masks_count_the_keys_in_the_cache() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS))
    x, cache = sequence(), nn.KeyValueCache()
    torch.manual_seed(5)
    bias = torch.randn(HEADS, LENGTH, LENGTH)
    expected = layer(x, attn_mask=bias[None], is_causal=True)
    layer(x[:, :4], attn_mask=bias[None, :, :4, :4], cache=cache)
    torch.testing.assert_close(layer(x[:, 4:], attn_mask=bias[None, :, 4:], cache=cache), expected[:, 4:])
    with pytest.raises(ShapeError) as caught:
        layer(x[:, :1], key_padding_mask=torch.zeros(BATCH, 1, dtype=torch.bool), cache=cache)
    assert "(3, 8), a value for each key" in str(caught.value)


def test_gradients_flow_through_a_cache() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=2))
    x, cache = sequence(), nn.KeyValueCache()
    steps = torch.cat([layer(part, cache=cache) for part in x.split(3, 1)], 1)
    grads = torch.autograd.grad(steps.square().sum(), list(layer.parameters()))
    expected = torch.autograd.grad(layer(x, is_causal=True).square().sum(), list(layer.parameters()))
    for gradient, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("max_len", [None, 9])
def test_sequences_can_be_reordered(max_len: int | None) -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS))
    x, cache = sequence(), nn.KeyValueCache(max_len)
    cache.reorder(torch.tensor([0]))  # empty: nothing to do
    layer(x[:, :4], cache=cache)
    beams = torch.tensor([2, 0, 0, 1])
    cache.reorder(beams)
    output = layer(x[beams, 4:], cache=cache)
    torch.testing.assert_close(output, layer(x[beams], is_causal=True)[:, 4:], atol=1e-6, rtol=1e-5)


def test_a_cache_from_tensors() -> None:
    key, value = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 6)
    for cache in (nn.KeyValueCache(key=key, value=value), nn.KeyValueCache(9, key=key, value=value)):
        assert cache.key is not None
        assert cache.value is not None
        assert torch.equal(cache.key, key)
        assert torch.equal(cache.value, value)
        assert cache.length == 4
    assert repr(cache) == "KeyValueCache(length=4, max_len=9)"


@torch.no_grad()
def test_keys_that_do_not_fit_are_refused() -> None:
    layer, x = nn.MultiHeadAttention(SIZE, HEADS), sequence()
    cache = nn.KeyValueCache(max_len=5)
    layer(x[:, :4], cache=cache)
    with pytest.raises(ShapeError, match="longer than the cache") as caught:
        layer(x[:, :2], cache=cache)
    assert (caught.value.expected, caught.value.found) == ("at most 5 keys", 6)
    assert caught.value.where == "KeyValueCache(length=4, max_len=5)"
    assert "max_len" in str(caught.value.hint)
    with pytest.raises(ShapeError, match="do not fit those in the cache") as caught:
        layer(x[:2, :1], cache=cache)
    assert (caught.value.expected, caught.value.found) == ("(3, 4, L, 3)", (2, 4, 1, 3))
    assert caught.value.hint == "cache.reset() before another batch"
    with pytest.raises(ShapeError, match="do not fit those in the cache"):
        nn.MultiHeadAttention(SIZE, 2)(x[:, :1], cache=cache)
    with pytest.raises(ShapeError, match="attends to itself") as caught:
        layer(x[:, :1], x, cache=cache)
    assert caught.value.found == "7 keys"
    assert "CrossAttention" in str(caught.value.hint)
    assert cache.length == 4


@pytest.mark.parametrize("max_len", [None, 9])
@pytest.mark.parametrize("shape", [(2, 4, 1, 3), (2, 1, 5, 3), (1, 4, 5, 3), (4, 5, 3)])
def test_values_that_do_not_fit_their_keys_are_refused(shape: tuple[int, ...], max_len: int | None) -> None:
    cache = nn.KeyValueCache(max_len)
    with pytest.raises(ShapeError, match="keys and values do not fit each other") as caught:
        cache.append(torch.zeros(2, 4, 5, 3), torch.zeros(shape))
    assert caught.value.found == f"(2, 4, 5, 3) and {shape}"
    assert cache.length == 0


def test_keys_without_values_are_refused() -> None:
    tensor = torch.zeros(2, 4, 5, 3)
    with pytest.raises(BurntError, match="needs keys and values") as caught:
        nn.KeyValueCache(key=tensor)
    assert caught.value.found == "only keys"
    with pytest.raises(BurntError, match="only values"):
        nn.KeyValueCache(value=tensor)


def test_no_gradient_flows_through_allocated_memory() -> None:
    layer, x = nn.MultiHeadAttention(SIZE, HEADS), sequence()
    with pytest.raises(BurntError, match="no gradient flows") as caught:
        layer(x, cache=nn.KeyValueCache(max_len=9))
    value = torch.zeros(1, 2, 3, 4, requires_grad=True)
    with pytest.raises(BurntError, match="no gradient flows"):
        nn.KeyValueCache(max_len=9).append(value.detach(), value)
    assert "torch.no_grad()" in str(caught.value.hint)


@torch.no_grad()
@pytest.mark.full
@pytest.mark.parametrize("max_len", [None, 8])
def test_a_step_compiles_as_one_graph(max_len: int | None) -> None:
    torch._dynamo.reset()
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=2))
    x, cache = sequence(), nn.KeyValueCache(max_len)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    steps = [compiled(part, cache=cache) for part in x.split([4, 1, 2], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, is_causal=True), atol=1e-6, rtol=1e-5)


class Step(torch.nn.Module):
    """A step with a cache as a function of tensors, to export."""

    def __init__(self, layer: nn.MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        cache = nn.KeyValueCache(key=key, value=value)
        return self.layer(x, cache=cache), cache.key, cache.value


@torch.no_grad()
def test_a_step_exports_with_an_open_length() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=2))
    x, cache = sequence(), nn.KeyValueCache()
    layer(x[:, :4], cache=cache)
    length = {2: torch.export.Dim("length", min=1, max=100)}
    step = torch.export.export(
        Step(layer), (x[:, 4:5], cache.key, cache.value), dynamic_shapes=(None, length, length)
    ).module()
    key, value = cache.key, cache.value
    for i in range(4, LENGTH):
        output, key, value = step(x[:, i : i + 1], key, value)
        torch.testing.assert_close(output, layer(x[:, : i + 1], is_causal=True)[:, -1:])


def test_masks() -> None:
    assert nn.causal_mask(3).tolist() == [[False, True, True], [False, False, True], [False] * 3]
    assert nn.causal_mask(2, 2).tolist() == [[False, False, False, True], [False] * 4]
    assert nn.causal_mask(1, device="meta").is_meta
    torch_mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    assert torch.equal(nn.causal_mask(5), torch_mask.isinf())
    tokens = torch.tensor([[3, 1, 2], [0, 0, 4]])
    assert nn.padding_mask(tokens, 0).tolist() == [[False] * 3, [True, True, False]]
    assert nn.length_mask(torch.tensor([3, 1]), 3).tolist() == [[False] * 3, [False, True, True]]
    assert nn.length_mask(torch.tensor([3, 1], device="meta"), 3).is_meta
    with pytest.raises(
        InputValueError, match=r"length_mask(.|\n)*found     \(2, 3\), int64(.|\n)*padding_mask"
    ):
        nn.length_mask(tokens, 3)
    with pytest.raises(InputValueError, match=r"expected  \[batch\], integers\n  found     \(2,\), float32$"):
        nn.length_mask(torch.ones(2), 3)
    with pytest.raises(
        InputValueError, match=r"padding_mask(.|\n)*of lengths: length_mask\(lengths, steps\)"
    ):
        nn.padding_mask(torch.tensor([3, 1]), 0)
