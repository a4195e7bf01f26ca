import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import nn
from burnt.errors import BurntError, InputRuntimeError, InputValueError, ShapeError, UnsupportedError

BATCH, LENGTH, KEYS, SIZE, HEADS = 2, 5, 7, 12, 4


def softmax_attention(
    layer: nn.MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention head by head in float64; `added` broadcasts to [batch, heads, L, S]."""
    state = {name: tensor.double() for name, tensor in layer.state_dict().items()}
    size, kv = layer.embed_dim, layer.num_kv_heads * layer.head_dim
    if "in_proj_weight" in state:
        rows = state["in_proj_weight"]
        w_q, w_k, w_v = rows[:size], rows[size : size + kv], rows[size + kv :]
    else:
        w_q, w_k, w_v = (state[f"{name}_proj_weight"] for name in "qkv")
    bias = state.get("in_proj_bias", torch.zeros(size + 2 * kv, dtype=torch.float64))
    q = query.double() @ w_q.T + bias[:size]
    k = key.double() @ w_k.T + bias[size : size + kv]
    v = value.double() @ w_v.T + bias[size + kv :]
    outputs, weights = [], []
    dim = layer.head_dim
    for head in range(layer.num_heads):
        shared = head // (layer.num_heads // layer.num_kv_heads)
        q_h = q[..., head * dim : (head + 1) * dim]
        k_h, v_h = (x[..., shared * dim : (shared + 1) * dim] for x in (k, v))
        scores = q_h @ k_h.transpose(-2, -1) / dim**0.5
        if added is not None:
            scores = scores + added.double()[:, head if added.shape[1] > 1 else 0]
        weight = scores.softmax(-1).nan_to_num(0.0)
        weights.append(weight)
        outputs.append(weight @ v_h)
    output = torch.cat(outputs, -1) @ state["out_proj.weight"].T + state.get("out_proj.bias", 0.0)
    return output, torch.stack(weights, -3)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), atol=tolerance, rtol=tolerance)


def trained(layer: Any) -> Any:
    """A layer whose biases are not zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 3)
    return layer


def inputs(length: int = LENGTH, keys: int = KEYS, kdim: int = SIZE, vdim: int = SIZE) -> tuple[Tensor, ...]:
    torch.manual_seed(2)
    return (torch.randn(BATCH, length, SIZE), torch.randn(BATCH, keys, kdim), torch.randn(BATCH, keys, vdim))


def hidden(*shape: int) -> Tensor:
    """A boolean mask that leaves every query its first key."""
    torch.manual_seed(3)
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    return mask


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("kdim", "vdim"), [(SIZE, SIZE), (3, SIZE), (SIZE, 5), (6, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_is_a_softmax_head_by_head(num_kv_heads: int, kdim: int, vdim: int, bias: bool) -> None:
    layer = trained(
        nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=num_kv_heads, kdim=kdim, vdim=vdim, bias=bias)
    )
    query, key, value = inputs(kdim=kdim, vdim=vdim)
    output, weights = softmax_attention(layer, query, key, value, None)
    close(layer(query, key, value), output)
    close(layer.attention_weights(query, key), weights)


ATTN_MASKS = {
    "none": None,
    "L,S": (LENGTH, KEYS),
    "B,L,S": (BATCH, LENGTH, KEYS),
    "B*H,L,S": (BATCH * HEADS, LENGTH, KEYS),
    "B,H,L,S": (BATCH, HEADS, LENGTH, KEYS),
    "1,H,L,S": (1, HEADS, LENGTH, KEYS),
    "B,1,L,S": (BATCH, 1, LENGTH, KEYS),
}


def as_bhls(mask: Tensor) -> Tensor:
    if mask.dim() == 2:
        return mask[None, None]
    if mask.dim() == 4:
        return mask
    return mask[:, None] if mask.shape[0] == BATCH else mask.unflatten(0, (BATCH, HEADS))


@pytest.mark.parametrize("shape", ATTN_MASKS.values(), ids=ATTN_MASKS.keys())
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("padding", [None, "bool", "float"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_of_every_kind(
    shape: tuple[int, ...] | None, kind: str, padding: str | None, is_causal: bool
) -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=2))
    query, key, value = inputs()
    added = torch.zeros(1, 1, LENGTH, KEYS)
    attn_mask = key_padding_mask = None
    if shape is not None:
        attn_mask = hidden(*shape) if kind == "bool" else torch.randn(shape)
        added = added + (
            torch.zeros(()).masked_fill(as_bhls(attn_mask), float("-inf"))
            if kind == "bool"
            else as_bhls(attn_mask)
        )
    if padding is not None:
        mask = hidden(BATCH, KEYS)
        bias = torch.zeros(BATCH, KEYS).masked_fill(mask, float("-inf"))
        key_padding_mask = mask if padding == "bool" else bias
        added = added + bias[:, None, None]
    if is_causal:
        later = torch.arange(KEYS)[None, :] > torch.arange(LENGTH)[:, None]
        added = added.masked_fill(later, float("-inf"))
    masks = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
    output, weights = softmax_attention(layer, query, key, value, added)
    close(layer(query, key, value, **masks), output)
    close(layer.attention_weights(query, key, **masks), weights)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("num_kv_heads", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_a_query_without_keys_gets_nothing(
    kind: str, num_kv_heads: int, dtype: torch.dtype, grad: bool
) -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=num_kv_heads)).to(dtype)
    query, key, value = (x.to(dtype) for x in inputs())
    mask = torch.zeros(LENGTH, KEYS, dtype=torch.bool)
    mask[3] = True
    attn_mask = mask if kind == "bool" else torch.zeros(LENGTH, KEYS).masked_fill(mask, float("-inf"))
    with torch.set_grad_enabled(grad):
        output = layer(query, key, value, attn_mask=attn_mask)
        weights = layer.attention_weights(query, key, attn_mask=attn_mask)
    assert torch.equal(output[:, 3], layer.out_proj.bias.expand(BATCH, SIZE))
    assert not weights[:, :, 3].any()
    close(weights.sum(-1)[:, :, :3], torch.ones(BATCH, HEADS, 3), 2e-2)
    if grad:
        for gradient in torch.autograd.grad(output.sum() + weights.sum(), list(layer.parameters())):
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kdim", [None, 5])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_is_torchs_layer(kdim: int | None, bias: bool, training: bool) -> None:
    def build() -> torch.nn.MultiheadAttention:
        torch.manual_seed(0)
        return torch.nn.MultiheadAttention(SIZE, HEADS, bias=bias, kdim=kdim, batch_first=True)

    theirs = build().train(training)
    torch.manual_seed(0)
    seeded = nn.MultiHeadAttention(SIZE, HEADS, bias=bias, kdim=kdim)
    assert list(seeded.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(seeded.state_dict()[name], value), name

    ours = nn.MultiHeadAttention.from_torch(trained(theirs))
    assert ours.training == training
    query, key, value = inputs(kdim=kdim or SIZE)
    masks = itertools.product(
        (None, hidden(LENGTH, KEYS), hidden(BATCH * HEADS, LENGTH, KEYS)), (None, hidden(BATCH, KEYS))
    )
    for attn_mask, key_padding_mask in masks:
        asked = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        expected, weights = theirs(query, key, value, average_attn_weights=False, **asked)
        output = ours(query, key, value, **asked)
        close(output, expected, 1e-5)
        close(ours.attention_weights(query, key, **asked), weights, 1e-5)
        grads = torch.autograd.grad(output.square().sum(), list(ours.parameters()))
        wanted = torch.autograd.grad(expected.square().sum(), list(theirs.parameters()))
        for gradient, want in zip(grads, wanted, strict=True):
            close(gradient, want, 1e-4)


def test_from_torch_copies() -> None:
    theirs = torch.nn.MultiheadAttention(SIZE, HEADS, dropout=0.3, dtype=torch.float64)
    ours = nn.MultiHeadAttention.from_torch(theirs)
    assert ours.dropout == 0.3
    assert ours.out_proj.weight.dtype == torch.float64
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
    assert ours.in_proj_weight is not None
    assert ours.in_proj_weight.any()


def test_from_torch_refuses_a_learned_key() -> None:
    with pytest.raises(UnsupportedError, match="add_bias_kv") as caught:
        nn.MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(4, 2, add_bias_kv=True))
    assert "quiet_softmax" in str(caught.value.hint)
    with pytest.raises(UnsupportedError, match="kdim=3, vdim=4") as caught:
        nn.CrossAttention.from_torch(torch.nn.MultiheadAttention(4, 2, kdim=3, vdim=4))
    assert caught.value.hint == "MultiHeadAttention.from_torch"


def test_without_a_batch() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS))
    query, key, value = inputs()
    asked = {"key_padding_mask": hidden(BATCH, KEYS), "attn_mask": hidden(LENGTH, KEYS)}
    whole = layer(query, key, value, **asked)
    single = layer(
        query[1],
        key[1],
        value[1],
        attn_mask=asked["attn_mask"],
        key_padding_mask=asked["key_padding_mask"][1],
    )
    assert single.shape == (LENGTH, SIZE)
    close(single, whole[1])
    assert layer.attention_weights(query[1], key[1]).shape == (HEADS, LENGTH, KEYS)


def test_self_attention_is_the_default() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS))
    query, key, _ = inputs()
    close(layer(query), layer(query, query.clone(), query.clone()))
    close(layer(query, key), layer(query, key, key.clone()))


def test_dropout_drops_only_while_training() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, dropout=0.5))
    query, _, _ = inputs()
    assert not torch.equal(layer(query), layer(query))
    layer.eval()
    assert torch.equal(layer(query), layer(query))


@pytest.mark.parametrize("kind", [nn.MultiHeadAttention, nn.CrossAttention])
def test_a_dropout_that_is_no_probability_is_refused(kind: Any) -> None:
    with pytest.raises(InputValueError, match="p is not valid") as caught:
        kind(SIZE, HEADS, dropout=1.5)
    assert (caught.value.where, caught.value.found) == (kind.__name__, 1.5)


@pytest.mark.parametrize("shapes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_empty_inputs(shapes: tuple[int, int, int]) -> None:
    batch, length, keys = shapes
    layer = nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=2)
    output = layer(torch.randn(batch, length, SIZE), torch.randn(batch, keys, SIZE))
    assert output.shape == (batch, length, SIZE)
    assert torch.isfinite(output).all()


def test_autocast_with_a_float32_mask() -> None:
    layer = nn.MultiHeadAttention(SIZE, HEADS)
    query, _, _ = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(query, attn_mask=torch.zeros(LENGTH, LENGTH), is_causal=True)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), layer(query, is_causal=True), atol=0.03, rtol=0.03)


@pytest.mark.parametrize(
    ("arguments", "found", "hint"),
    [
        ({"embed_dim": 10, "num_heads": 4}, "embed_dim=10, num_heads=4", "num_heads may be 1, 2, 5, 10"),
        ({"embed_dim": 8, "num_heads": 0}, "num_heads=0", "num_heads may be 1, 2, 4, 8"),
        (
            {"embed_dim": 12, "num_heads": 6, "num_kv_heads": 4},
            "num_heads=6, num_kv_heads=4",
            "num_kv_heads may be 1, 2, 3, 6",
        ),
        ({"embed_dim": 8, "num_heads": 2, "num_kv_heads": 0}, "num_kv_heads=0", "num_kv_heads may be 1, 2"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(arguments: dict[str, int], found: str, hint: str) -> None:
    with pytest.raises(ShapeError) as caught:
        nn.MultiHeadAttention(**arguments)
    assert found in str(caught.value)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("masks", "expected", "found"),
    [
        ({"attn_mask": hidden(KEYS, LENGTH)}, "(5, 7), (2, 5, 7), (8, 5, 7) or (2, 4, 5, 7)", (7, 5)),
        ({"attn_mask": hidden(3, LENGTH, KEYS)}, "(8, 5, 7)", (3, 5, 7)),
        ({"attn_mask": hidden(BATCH, 3, LENGTH, KEYS)}, "(2, 4, 5, 7)", (2, 3, 5, 7)),
        ({"attn_mask": hidden(BATCH, KEYS)}, "(5, 7)", (2, 7)),
        ({"key_padding_mask": hidden(BATCH, LENGTH)}, "(2, 7), a value for each key", (2, 5)),
        ({"key_padding_mask": hidden(KEYS)}, "(2, 7), a value for each key", (7,)),
    ],
)
def test_masks_of_a_wrong_shape_are_refused(
    masks: dict[str, Tensor], expected: str, found: tuple[int, ...]
) -> None:
    layer = nn.MultiHeadAttention(SIZE, HEADS)
    with pytest.raises(ShapeError) as caught:
        layer(*inputs(), **masks)
    assert expected in str(caught.value.expected)
    assert caught.value.found == found
    assert caught.value.where == "MultiHeadAttention(12, num_heads=4)"


def test_a_mask_of_integers_is_refused() -> None:
    with pytest.raises(BurntError, match="boolean or floating") as caught:
        nn.MultiHeadAttention(SIZE, HEADS)(*inputs(), key_padding_mask=torch.ones(BATCH, KEYS).long())
    assert "mask == 0" in str(caught.value)


@pytest.mark.parametrize(
    ("query", "key", "value", "name", "expected"),
    [
        ((2, 5, 11), (2, 7, 12), (2, 7, 12), "query", "(2, L, 12)"),
        ((2, 5, 12), (2, 7, 11), (2, 7, 12), "key", "(2, S, 12)"),
        ((2, 5, 12), (3, 7, 12), (3, 7, 12), "key", "(2, S, 12)"),
        ((2, 5, 12), (2, 7, 12), (2, 6, 12), "value", "(2, 7, 12)"),
        ((12,), (12,), (12,), "query", "[batch, length, 12] or [length, 12]"),
        ((2, 3, 5, 12), (2, 3, 5, 12), (2, 3, 5, 12), "query", "[batch, length, 12] or [length, 12]"),
        ((2, 5, 12), (7, 12), (7, 12), "key", "(2, S, 12)"),
    ],
)
def test_inputs_of_a_wrong_shape_are_refused(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], name: str, expected: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        nn.MultiHeadAttention(SIZE, HEADS)(*(torch.zeros(shape) for shape in (query, key, value)))
    assert f"the {name} does not fit" in str(caught.value)
    assert caught.value.expected == expected


@pytest.mark.parametrize("bias", [(True, None), (False, None), (True, False), (False, True)])
@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_heads_of_any_size(bias: tuple[bool, bool | None], num_kv_heads: int) -> None:
    both, out = bias
    layer = nn.MultiHeadAttention(SIZE, HEADS, head_dim=5, num_kv_heads=num_kv_heads, bias=both, out_bias=out)
    assert (layer.in_proj_bias is not None) == both
    assert (layer.out_proj.bias is not None) == (both if out is None else out)
    assert layer.out_proj.weight.shape == (SIZE, 5 * HEADS)
    trained(layer)
    query, _, _ = inputs()
    state = {name: tensor.double() for name, tensor in layer.state_dict().items()}
    x = query.double() @ state["in_proj_weight"].T + state.get("in_proj_bias", 0.0)
    q, k, v = x.split([5 * HEADS, 5 * num_kv_heads, 5 * num_kv_heads], -1)
    q, k, v = (t.unflatten(-1, (-1, 5)).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS // num_kv_heads, 1) for t in (k, v))
    heads = (q @ k.mT / 5**0.5).softmax(-1) @ v
    expected = heads.transpose(1, 2).flatten(2) @ state["out_proj.weight"].T + state.get("out_proj.bias", 0.0)
    close(layer(query), expected)
    assert nn.MultiHeadAttention(10, 4, head_dim=3)(torch.zeros(1, 2, 10)).shape == (1, 2, 10)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kind", [None, "bool", "float"])
def test_a_quiet_softmax_is_torchs_attention_to_a_zero(is_causal: bool, kind: str | None) -> None:
    theirs = trained(torch.nn.MultiheadAttention(SIZE, HEADS, add_zero_attn=True, batch_first=True))
    ours = nn.MultiHeadAttention.from_torch(theirs)
    assert ours.quiet_softmax
    query, _, _ = inputs()
    padding = hidden(BATCH, LENGTH)
    mask = nn.causal_mask(LENGTH) if is_causal else None
    if mask is not None and kind == "float":  # torch warns of masks of two kinds
        mask = torch.zeros(LENGTH, LENGTH).masked_fill(mask, float("-inf"))
    asked = {} if kind is None else {"key_padding_mask": padding if kind == "bool" else -3.0 * padding}
    expected, weights = theirs(query, query, query, attn_mask=mask, average_attn_weights=False, **asked)
    output, found = ours(query, is_causal=is_causal, need_weights=True, **asked)
    close(output, expected, 1e-5)
    close(found, weights[..., :-1], 1e-5)
    close(ours.attention_weights(query, is_causal=is_causal, **asked), found)
    if kind is None:
        # By its formula: exp(s) / (1 + sum exp(s)).
        ours.quiet_softmax = False
        scores = ours.attention_weights(query, is_causal=is_causal).log()
        ours.quiet_softmax = True
        normal = scores.exp()
        assert (found.sum(-1) < 1).all()
        close(found / found.sum(-1, keepdim=True), normal)
    hides_all = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    assert torch.equal(ours(query, attn_mask=hides_all), ours.out_proj.bias.expand_as(query))


@pytest.mark.parametrize("kind", [nn.MultiHeadAttention, nn.CrossAttention])
def test_scores_have_a_scale_of_ones_own(kind: Any) -> None:
    layer = trained(kind(SIZE, HEADS, scale=0.7))
    x, _, _ = inputs()
    output, weights = layer(x, x, need_weights=True)
    # The same scores from scaled queries.
    factor = torch.tensor([0.7 * layer.head_dim**0.5, 1, 1]).repeat_interleave(SIZE)
    usual = kind(SIZE, HEADS)
    usual.load_state_dict(
        {
            **layer.state_dict(),
            "in_proj_weight": layer.in_proj_weight * factor[:, None],
            "in_proj_bias": layer.in_proj_bias * factor,
        }
    )
    expected, expected_weights = usual(x, x, need_weights=True)
    close(output, expected, 1e-5)
    close(weights, expected_weights, 1e-5)


def test_weights_of_large_float16_are_finite() -> None:
    torch.manual_seed(0)
    layer = nn.MultiHeadAttention(64, 1, bias=False)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(64).repeat(3, 1))
    query = 50 * torch.randn(1, 4, 64)  # products with themselves of about 160,000, too large for float16
    close(layer.half()(query.half(), need_weights=True)[1][0, 0], torch.eye(4))


def test_weights_on_request() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, HEADS, num_kv_heads=2, dropout=0.5)).eval()
    query, key, value = inputs()
    padding = hidden(BATCH, KEYS)
    output, weights = layer(query, key, value, key_padding_mask=padding, need_weights=True)
    assert torch.equal(output, layer(query, key, value, key_padding_mask=padding))
    assert torch.equal(weights, layer.attention_weights(query, key, key_padding_mask=padding))
    single = layer(query[0], key[0], value[0], key_padding_mask=padding[0], need_weights=True)
    close(single[0], output[0])
    close(single[1], weights[0])
    cross = trained(nn.CrossAttention(SIZE, HEADS, context_dim=5))
    context = torch.randn(BATCH, KEYS, 5)
    output, weights = cross(query, context, key_padding_mask=padding, need_weights=True)
    assert weights.shape == (BATCH, HEADS, LENGTH, KEYS)
    close(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH))
    assert not weights[:, :, :, padding[0]][0].any()
    assert torch.equal(output, cross(query, context, key_padding_mask=padding))
    assert cross(query[0], context[0], need_weights=True)[1].shape == (HEADS, LENGTH, KEYS)


@pytest.mark.parametrize("context_dim", [None, 5])
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "head_dim": 5, "bias": False}], ids=str)
def test_cross_attention_is_attention_to_a_context(context_dim: int | None, options: dict[str, Any]) -> None:
    size = context_dim or SIZE
    layer = trained(nn.CrossAttention(SIZE, HEADS, context_dim=context_dim, **options))
    general = nn.MultiHeadAttention(SIZE, HEADS, kdim=size, vdim=size, **options)
    general.load_state_dict(layer.state_dict())
    query, _, _ = inputs()
    context = torch.randn(BATCH, KEYS, size)
    for masks in ({}, {"attn_mask": hidden(LENGTH, KEYS), "key_padding_mask": hidden(BATCH, KEYS)}):
        close(layer(query, context, **masks), general(query, context, **masks))
    close(layer(query[0], context[0]), general(query[0], context[0]))
    if not options:
        theirs = torch.nn.MultiheadAttention(SIZE, HEADS, kdim=size, vdim=size, batch_first=True)
        theirs.load_state_dict(layer.state_dict())
        ours = nn.CrossAttention.from_torch(theirs)
        close(ours(query, context), theirs(query, context, context)[0], 1e-5)


def test_cross_attention_keeps_its_context() -> None:
    layer = trained(nn.CrossAttention(SIZE, HEADS, context_dim=5, num_kv_heads=2))
    query, _, _ = inputs()
    context, cache = torch.randn(BATCH, KEYS, 5), nn.KeyValueCache()
    padding = hidden(BATCH, KEYS)
    expected = layer(query, context, key_padding_mask=padding)
    assert torch.equal(layer(query, context, key_padding_mask=padding, cache=cache), expected)
    assert cache.length == KEYS
    with torch.no_grad():
        layer.k_proj_weight.zero_()
    step = layer(query[:, 2:3], key_padding_mask=padding, cache=cache)
    close(step, expected[:, 2:3])
    cache.reset()
    with pytest.raises(BurntError, match="an empty cache") as caught:
        layer(query, cache=cache)
    assert caught.value.where == "CrossAttention(12, num_heads=4)"
    with pytest.raises(BurntError, match="no cache"):
        layer(query)
    with pytest.raises(ShapeError) as refused:
        layer(query, torch.zeros(BATCH, KEYS, 6))
    assert "the context does not fit" in str(refused.value)
    assert refused.value.expected == "(2, S, 5)"


@pytest.mark.parametrize("shape", [(1, 5, SIZE), (3, 5, SIZE), (5, SIZE)])
def test_a_query_of_another_batch_than_the_cached_context_is_refused(shape: tuple[int, ...]) -> None:
    layer, cache = nn.CrossAttention(SIZE, HEADS), nn.KeyValueCache()
    layer(torch.randn(BATCH, LENGTH, SIZE), torch.randn(BATCH, KEYS, SIZE), cache=cache)
    with pytest.raises(ShapeError, match="does not fit the context in the cache") as caught:
        layer(torch.randn(shape), cache=cache)
    assert (caught.value.expected, caught.value.found) == (f"({BATCH}, L, {SIZE})", shape)
    assert caught.value.where == f"CrossAttention({SIZE}, num_heads={HEADS})"


class Spin(torch.nn.Module):
    """A rotation of adjacent features in the complex plane, written without burnt."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        count = x.shape[-1] // 2
        turns = torch.arange(offset, offset + x.shape[-2])[:, None] / 7.0 ** torch.arange(count)
        pairs = torch.view_as_complex(x.unflatten(-1, (count, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(turns), turns)).flatten(-2)


def test_positions_reach_queries_and_keys() -> None:
    layer = trained(nn.MultiHeadAttention(SIZE, 2, rotary=Spin()))
    query, _, _ = inputs()
    state = layer.state_dict()
    q, k, v = (query @ state["in_proj_weight"].T + state["in_proj_bias"]).chunk(3, -1)
    q, k, v = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (q, k, v))
    q, k = Spin()(q), Spin()(k)
    weights = (q @ k.mT / 6**0.5).softmax(-1)
    close(layer.attention_weights(query), weights)
    heads = (weights @ v).transpose(1, 2).flatten(2)
    close(layer(query), heads @ state["out_proj.weight"].T + state["out_proj.bias"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_another_dtype_than_the_parameters(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 3, 8)
    own, cross = nn.MultiHeadAttention(8, 2), nn.CrossAttention(8, 2, context_dim=8)
    for call, name in (
        (lambda: own(x.to(dtype)), "query"),
        (lambda: own(x, x.to(dtype), x), "key"),
        (lambda: cross(x.to(dtype), x), "query"),
        (lambda: cross(x, x.to(dtype)), "context"),
    ):
        with pytest.raises(InputRuntimeError, match=f"{name} of torch.float32") as caught:
            call()
        assert "Attention" in str(caught.value.where)
        assert caught.value.hint == f"{name}.float()"
