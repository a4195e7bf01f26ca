"""Recurrent layers and attention of torch.nn, swapped, next to the layers themselves."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence
from torch.utils import _pytree as pytree

import burnt
from burnt.swapping import site
from burnt.swapping.kind import is_swapped


@pytest.fixture
def strict(always, monkeypatch):
    """What the op refuses is not left to the original."""
    monkeypatch.setattr(site, "InputError", type("Never", (Exception,), {}))


def call(module, args, kwargs):
    """What a call makes, and all gradients."""

    def given(value):
        if torch.is_tensor(value) and value.is_floating_point():
            return copies.setdefault(id(value), value.clone().requires_grad_())
        return value

    copies = {}
    args, kwargs = pytree.tree_map(given, (args, kwargs))
    result = module(*args, **kwargs)
    tensors = [t for t in pytree.tree_leaves(result) if torch.is_tensor(t)]
    loss = sum(t.square().sum() for t in tensors if t.is_floating_point())
    wanted = [*copies.values(), *module.parameters()]
    return [*tensors, *torch.autograd.grad(loss, wanted, allow_unused=True)], type(result[0])


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def as_the_layer(module, args, kwargs, kind, training=True, times=2):
    original = copy.deepcopy(module.train(training))
    report = burnt.swap(module)
    for _ in range(times):
        found, cls = call(module, args, kwargs)
        wanted, expected = call(original, args, kwargs)
        assert cls is expected
        close(found, wanted)
        with torch.no_grad():
            tensors = [pytree.tree_leaves(each.eval()(*args, **kwargs)) for each in (module, original)]
        close(*tensors)
        module.train(training)
        original.train(training)
    row = report.rows[0]
    assert (row.kind, row.state) == (kind, "swapped"), report
    assert is_swapped(module)
    return report


# --- recurrent layers

LAYERS = {
    "one": {},
    "batch first": {"batch_first": True},
    "two without biases": {"num_layers": 2, "bias": False},
    "both directions": {"bidirectional": True, "num_layers": 2, "batch_first": True},
}
INPUTS = {
    "batch": torch.randn(4, 4, 3),
    "one sequence": torch.randn(6, 3),
    "packed": pack_sequence([torch.randn(n, 3) for n in (2, 5, 1, 4)], enforce_sorted=False),
    "packed in order": pack_padded_sequence(torch.randn(5, 4, 3), torch.tensor([5, 3, 3, 1])),
}


def states(layer, kind, input):
    shape = [layer.num_layers * (2 if layer.bidirectional else 1), 4, 5]
    if torch.is_tensor(input) and input.dim() == 2:
        del shape[1]
    return (torch.randn(shape), torch.randn(shape)) if kind == "lstm" else torch.randn(shape)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("input", "start"),
    [
        ("batch", False),
        ("one sequence", True),
        ("packed", False),
        ("packed", True),
        ("packed in order", True),
    ],
)
@pytest.mark.parametrize("settings", LAYERS)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers(strict, kind, settings, input, start):
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](3, 5, **LAYERS[settings])
    hx = {"hx": states(layer, kind, INPUTS[input])} if start else {}
    as_the_layer(layer, (INPUTS[input],), hx, kind, training=start)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_dropout_between_layers(always, kind):
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](16, 16, num_layers=2, dropout=0.5)
    x = torch.randn(7, 4, 16)
    wanted = layer.eval()(x)[0]
    assert burnt.swap(layer, verify=x).swapped == [""]
    torch.testing.assert_close(layer(x)[0], wanted)
    first, second = layer.train()(x)[0], layer(x)[0]
    assert not torch.equal(first, second)


def test_what_a_recurrent_layer_refuses_is_torchs_to_refuse(always):
    layer, x = nn.LSTM(3, 5), torch.randn(4, 2, 3)
    burnt.swap(layer, verify=x)
    for args, message in [
        ((torch.randn(3),), "Expected input to be 2D or 3D"),
        ((torch.randn(4, 2, 7),), "must be equal to input_size"),
        ((x, (torch.randn(1, 3, 5), torch.randn(1, 3, 5))), r"Expected hidden\[0\] size"),
        ((x, (torch.randn(1, 2, 5),)), "tuple index out of range|Expected"),
    ]:
        with pytest.raises((RuntimeError, ValueError, IndexError), match=message):
            layer(*args)


def test_a_recurrent_layer_copied_saved_and_put_back(always):
    layer, x = nn.LSTM(3, 5), torch.randn(4, 2, 3)
    wanted, keys = layer(x)[0], list(layer.state_dict())
    burnt.swap(layer, verify=x)
    other = copy.deepcopy(layer)
    assert is_swapped(other)
    assert list(layer.state_dict()) == keys
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x)[0], wanted)
    burnt.unswap(layer)
    assert torch.equal(layer(x)[0], wanted)


# --- attention


def attends(settings, args, kwargs, training=True):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, **settings)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    report = as_the_layer(module, args, {"need_weights": False, **kwargs}, "multihead_attention", training)
    assert [(row.path, row.state, row.why) for row in report.rows[1:]] == [
        ("out_proj", "part", "of the model")
    ]


X, Y, Z = torch.randn(3, 4, 8), torch.randn(5, 4, 8), torch.randn(5, 4, 8)
SETTINGS = {
    "plain": {},
    "without biases": {"bias": False},
    "batch first": {"batch_first": True},
    "dropout": {"dropout": 0.3},
}
WHICH = {"self": (X, X, X), "cross": (X, Y, Y), "three": (X, Y, Z)}


@pytest.mark.sample
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("batched", [True, False])
def test_attention(strict, settings, which, batched):
    known = {}
    args = [known.setdefault(id(t), t if batched else t[:, 0]) for t in WHICH[which]]
    if SETTINGS[settings].get("batch_first") and batched:
        args = [known.setdefault(-id(t), t.transpose(0, 1)) for t in args]
    attends(SETTINGS[settings], tuple(args), {}, training=settings != "dropout")


def test_attention_of_other_sizes(strict):
    attends({"kdim": 3, "vdim": 5}, (X, torch.randn(5, 4, 3), torch.randn(5, 4, 5)), {})


HIDDEN = torch.ones(3, 5).triu(2).bool()
PADDED = torch.arange(5) > torch.tensor([[4], [2], [0], [3]])
MASKS = {
    "boolean": {"attn_mask": HIDDEN},
    "floating": {"attn_mask": torch.randn(3, 5)},
    "of heads": {"attn_mask": torch.randn(8, 3, 5)},
    "padded": {"key_padding_mask": PADDED},
    "padded by numbers": {"key_padding_mask": torch.randn(4, 5)},
    "both": {"attn_mask": HIDDEN, "key_padding_mask": PADDED},
    "both by numbers": {"attn_mask": torch.randn(8, 3, 5), "key_padding_mask": torch.randn(4, 5)},
    "causal": {"attn_mask": torch.ones(3, 5).triu(1).bool(), "is_causal": True},
    "causal and padded": {
        "attn_mask": torch.ones(3, 5).triu(1).bool(),
        "is_causal": True,
        "key_padding_mask": PADDED,
    },
}


@pytest.mark.sample
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("first", [False, True])
def test_masks(strict, masks, first):
    args = tuple(t.transpose(0, 1) if first else t for t in (X, Y, Z))
    attends({"batch_first": first}, args, MASKS[masks])


def test_masks_of_one_sequence(strict):
    masks = {"attn_mask": torch.randn(2, 3, 5), "key_padding_mask": torch.randn(5)}
    attends({}, (X[:, 0], Y[:, 0], Z[:, 0]), masks)


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({}, "need_weights=True needs the attention weights, which burnt does not return"),
        ({"need_weights": False, "is_causal": True}, "is_causal=True is given without attn_mask"),
        (
            {"need_weights": False, "attn_mask": HIDDEN, "key_padding_mask": torch.randn(4, 5)},
            "its masks have different dtypes or integer dtypes",
        ),
        ({"need_weights": False, "attn_mask": torch.randn(1, 3, 5)}, "its masks do not fit the inputs"),
    ],
)
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_calls_that_are_torchs(always, kwargs, why):
    module = nn.MultiheadAttention(8, 2)
    twin = copy.deepcopy(module)
    report = burnt.swap(module)
    swapped = nn.MultiheadAttention(8, 2)
    swapped.load_state_dict(module.state_dict())
    burnt.swap(swapped)
    swapped(X, Y, Z, need_weights=False)
    try:
        wanted = twin(X, Y, Z, **kwargs)
    except (RuntimeError, AssertionError) as error:
        for each in (module, swapped):
            with pytest.raises(type(error)):
                each(X, Y, Z, **kwargs)
    else:
        for each in (module, swapped):
            for a, b in zip(each(X, Y, Z, **kwargs), wanted, strict=True):
                assert (a is None and b is None) or torch.equal(a, b)
    assert report.left == {"": why, "out_proj": report.left["out_proj"]}
    assert is_swapped(swapped)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attention_of_an_encoder_layer(always):
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(4, 5, 8)
    wanted = model(x)
    report = burnt.swap(model, verify=x)
    rows = {row.path: (row.state, row.why) for row in report.rows}
    assert rows["self_attn"] == ("swapped", None), report
    assert rows["self_attn.out_proj"] == ("part", "of self_attn")
    assert report.waiting == []
    torch.testing.assert_close(model(x), wanted)
    nested = torch.nested.nested_tensor([x[0], x[1, :3]])
    with torch.no_grad():
        result = model.eval()(nested)
    torch.testing.assert_close(result[0], wanted[0].detach())


ENCODERS = {
    "after": {"batch_first": True},
    "before, gelu": {"batch_first": True, "norm_first": True, "activation": "gelu"},
    "steps first": {},
    "without biases": {"batch_first": True, "bias": False},
}
ENCODER_MASKS = {
    "none": {},
    "boolean": {"src_mask": torch.ones(5, 5).triu(1).bool()},
    "causal": {"src_mask": torch.ones(5, 5).triu(1).bool(), "is_causal": True},
    "padded": {"src_key_padding_mask": PADDED},
}


@pytest.mark.sample
@pytest.mark.parametrize("masks", ENCODER_MASKS)
@pytest.mark.parametrize("settings", ENCODERS)
def test_an_encoder_layer_in_inference(strict, settings, masks):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, **ENCODERS[settings]).eval()
    x = torch.randn(4, 5, 8) if "batch_first" in ENCODERS[settings] else torch.randn(5, 4, 8)
    kwargs = ENCODER_MASKS[masks]
    twin = copy.deepcopy(model)
    report = burnt.swap(model, mode="infer", verify={"src": x, **kwargs})
    assert [report.rows[0].kind, report.rows[0].state] == ["encoder_layer", "swapped"], report
    assert {row.state for row in report.rows[1:]} == {"part"}
    with torch.no_grad():
        close([model(x, **kwargs)], [twin(x, **kwargs)])
    close([model(x, **kwargs)], [twin(x, **kwargs)])  # with gradients, layer by layer
    seen = []
    model.linear2.register_forward_hook(lambda *args: seen.append("linear2"))
    with torch.no_grad():
        close([model(x, **kwargs)], [twin(x, **kwargs)])
    assert seen == ["linear2"]


def test_what_a_batch_does_not_reach_is_said(always):
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    report = burnt.swap(model, mode="infer", skip="encoder_layer", verify=torch.randn(4, 5, 8))
    # torch computes the whole layer by one call of its own.
    why = {row.why for row in report.rows if row.state == "waiting"}
    assert why == {"it was not called with the batch of verify="}
