"""Rnn, Lstm and Gru next to torch's: packed sequences, states, lengths, single steps, what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import burnt
from burnt import nn
from burnt.errors import BurntError, InputRuntimeError, InputTypeError, InputValueError, ShapeError

LAYERS: dict[str, tuple[Any, Any]] = {
    "Lstm": (nn.Lstm, torch.nn.LSTM),
    "Gru": (nn.Gru, torch.nn.GRU),
    "Rnn": (nn.Rnn, torch.nn.RNN),
}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
every = pytest.mark.parametrize("name", LAYERS)


def pair(name: str, **more: Any) -> tuple[Any, Any]:
    ours, theirs = LAYERS[name]
    torch.manual_seed(0)
    twin = theirs(6, 5, batch_first=True, **more)
    return ours.from_torch(twin), twin


def states(name: str, *shape: int) -> Any:
    result = torch.randn(2, *shape)
    return (result[0], result[1]) if name == "Lstm" else result[0]


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@every
@pytest.mark.parametrize(
    "more",
    [{}, {"num_layers": 3, "bidirectional": True}, {"bias": False}, {"dtype": torch.float64}],
    ids=["one", "deep", "bare", "double"],
)
def test_a_copy_of_torchs_layer(name: str, more: dict[str, Any]) -> None:
    ours, theirs = pair(name, **more)
    count = more.get("num_layers", 1) * (2 if more.get("bidirectional") else 1)
    dtype = more.get("dtype", torch.float32)
    x, hx = torch.randn(3, 7, 6, dtype=dtype), states(name, count, 3, 5)
    hx = tuple(h.to(dtype) for h in hx) if isinstance(hx, tuple) else hx.to(dtype)
    close(ours(x), theirs(x))
    close(ours(x, hx), theirs(x, hx))
    one = tuple(h[:, 0] for h in hx) if isinstance(hx, tuple) else hx[:, 0]
    close(ours(x[0]), theirs(x[0]))
    close(ours(x[0], one), theirs(x[0], one))
    theirs.load_state_dict({key: value * 0.5 for key, value in ours.state_dict().items()})
    close(theirs(x)[0], ours.from_torch(theirs)(x)[0])
    assert [[p.shape for p in layer] for layer in ours.all_weights] == [
        [p.shape for p in layer] for layer in theirs.all_weights
    ]


@every
def test_a_copy_has_the_settings(name: str) -> None:
    _, theirs = pair(name, num_layers=2, dropout=0.25, bidirectional=True)
    copy = LAYERS[name][0].from_torch(theirs.eval())
    assert not copy.training
    assert repr(copy) == f"{name}(6, 5, num_layers=2, dropout=0.25, bidirectional=True)"
    assert (copy.num_directions, copy.hidden_size) == (2, 5)
    next(copy.parameters()).data.zero_()
    assert next(theirs.parameters()).any()


@every
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("start", [True, False])
def test_packed_sequences(name: str, ordered: bool, start: bool) -> None:
    ours, theirs = pair(name, num_layers=2, bidirectional=True)
    sizes = [7, 4, 4, 1] if ordered else [4, 1, 7, 4]
    packed = pack_sequence([torch.randn(n, 6) for n in sizes], enforce_sorted=ordered)
    hx = states(name, 4, 4, 5) if start else None
    (found, last), (expected, right) = ours(packed, hx), theirs(packed, hx)
    assert isinstance(found, PackedSequence)
    for one, two in zip(found, expected, strict=True):
        close(one, two)
    close(last, right)


@every
def test_lengths_are_those_of_a_packed_sequence(name: str) -> None:
    ours, theirs = pair(name, bidirectional=True)
    x, lengths = torch.randn(3, 7, 6), torch.tensor([2, 7, 5])
    packed, right = theirs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    output, last = ours(x, lengths=lengths)
    close(output, pad_packed_sequence(packed, batch_first=True)[0])
    close(last, right)
    assert not output[0, 2:].any()
    assert not torch.equal(
        last[0] if name == "Lstm" else last, ours(x)[1][0] if name == "Lstm" else ours(x)[1]
    )


@every
def test_what_is_beyond_a_sequence_does_not_matter(name: str) -> None:
    ours, _ = pair(name, bidirectional=True)
    x, lengths = torch.randn(3, 7, 6), torch.tensor([2, 7, 5])
    other = x.clone()
    other[0, 2:], other[2, 5:] = float("nan"), 1e30
    close(ours(other, lengths=lengths), ours(x, lengths=lengths))
    leaf = x.clone().requires_grad_()
    ours(leaf, lengths=lengths)[0].sum().backward()
    assert leaf.grad is not None
    assert not leaf.grad[0, 2:].any()
    assert leaf.grad[0, :2].all()


@pytest.mark.full
@every
@pytest.mark.parametrize("start", [False, True], ids=["zeros", "hx"])
def test_a_compiled_training_step(name: str, start: bool) -> None:
    """As one graph with its backward, from states without gradients."""
    layer = LAYERS[name][0](6, 5)
    x, hx = torch.randn(3, 2, 6), states(name, 1, 3, 5) if start else None
    expected = layer(x, hx)
    gradients = torch.autograd.grad(expected[0].sum(), [*layer.parameters()])
    found = torch.compile(layer, backend="aot_eager", fullgraph=True)(x, hx)
    close(found, expected)
    close(torch.autograd.grad(found[0].sum(), [*layer.parameters()]), gradients)


@pytest.mark.sample(1)
@pytest.mark.parametrize("more", [{"bidirectional": True}, {"bias": False}], ids=["deep", "bare"])
@pytest.mark.parametrize("name", [*LAYERS, "projection"])
def test_lengths_of_a_compiled_layer(name: str, more: dict[str, Any]) -> None:
    cls, size = (nn.Lstm, {"proj_size": 3}) if name == "projection" else (LAYERS[name][0], {})
    layer = cls(6, 5, num_layers=2, **size, **more)
    x, lengths = torch.randn(3, 3, 6), torch.tensor([2, 3, 1])
    x[0, 2:] = float("nan")
    expected = layer(x, lengths=lengths)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    found = compiled(x, lengths=lengths)
    close(found, expected)
    close(
        torch.autograd.grad(found[0].sum(), [*layer.parameters()]),
        torch.autograd.grad(expected[0].sum(), [*layer.parameters()]),
    )


@pytest.mark.sample(1)
@every
def test_check_of_lengths_and_states(name: str) -> None:
    layer, x = LAYERS[name][0](6, 5), burnt.TensorSpec((2, 2, 6))
    report = burnt.check(layer, x, None, burnt.TensorSpec((2,), torch.int64))
    assert not report.unchecked
    assert burnt.summary(layer, x, None, burnt.TensorSpec((2,), torch.int64)).rows[0].output is not None
    for dtype in (torch.int32, torch.float32):
        with pytest.raises(
            ShapeError, match=r"expected  lengths of dtype int64(.|\n)*hint      lengths.long\(\)"
        ):
            burnt.check(layer, x, None, burnt.TensorSpec((2,), dtype))
        with pytest.raises(
            InputRuntimeError, match=r"in        \w+\(6, 5\)(.|\n)*expected  lengths of dtype int64"
        ):
            layer(torch.zeros(2, 2, 6), lengths=torch.ones(2, dtype=dtype))
    state = burnt.TensorSpec((1, 2, 4))
    with pytest.raises(
        ShapeError,
        match=r"ShapeError in model(.|\n)*expected  \(1, 2, 5\)(.|\n)*found     .*state h0 does not fit",
    ):
        burnt.check(layer, x, (state, state) if name == "Lstm" else state)


PROJECTIONS: list[dict[str, Any]] = [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}]


@pytest.mark.parametrize("more", PROJECTIONS, ids=["one", "deep", "bare"])
def test_a_projection_is_torchs(more: dict[str, Any]) -> None:
    ours, theirs = pair("Lstm", proj_size=3, **more)
    x = torch.randn(4, 7, 6)
    count = len(ours.all_weights)
    hx = torch.randn(count, 4, 3), torch.randn(count, 4, 5)
    assert "proj_size=3" in repr(ours)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [len(layer) for layer in ours.all_weights] == [len(layer) for layer in theirs.all_weights]
    close(ours(x), theirs(x))
    close(ours(x, hx), theirs(x, hx))
    close(ours(x[0], tuple(h[:, 0] for h in hx)), theirs(x[0], tuple(h[:, 0] for h in hx)))
    packed = pack_sequence([x[0, :2], x[1], x[2, :5], x[3, :1]], enforce_sorted=False)
    (found, last), (expected, right) = ours(packed, hx), theirs(packed, hx)
    close(found.data, expected.data)
    close(last, right)
    for layer in (ours, theirs):
        layer(x)[0].square().mean().backward()
    for (key, one), (_, two) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert one.grad is not None, key
        close(one.grad, two.grad)


def test_a_projection_has_states_of_two_sizes() -> None:
    layer = nn.Lstm(6, 5, proj_size=3)
    x, h, c = torch.randn(2, 4, 6), torch.zeros(1, 2, 3), torch.zeros(1, 2, 5)
    layer(x, (h, c))
    with pytest.raises(InputRuntimeError, match=r"the state h0 does not fit(.|\n)*expected  \(1, 2, 3\)"):
        layer(x, (c, c))
    with pytest.raises(InputRuntimeError, match=r"the state c0 does not fit(.|\n)*expected  \(1, 2, 5\)"):
        layer(x, (h, h))
    for size in (5, 7, -1):
        with pytest.raises(InputValueError, match="expected  less than hidden_size, 5, or 0"):
            nn.Lstm(6, 5, proj_size=size)


@pytest.mark.parametrize("name", [*LAYERS, "projection"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_steps_in_turn_are_the_whole_sequence(name: str, batch: tuple[int, ...]) -> None:
    more = {"proj_size": 3} if name == "projection" else {}
    layer = LAYERS["Lstm" if more else name][0](6, 5, num_layers=2, **more)
    x, state, outputs = torch.randn(*batch, 7, 6), None, []
    for t in range(7):
        output, state = layer.step(x[..., t, :], state)
        outputs.append(output)
    expected, last = layer(x)
    close(torch.stack(outputs, -2), expected)
    close(state, last)
    (torch.stack(outputs, -2) - expected.detach()).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@every
def test_steps_without_biases_under_autocast_and_with_dropout(name: str) -> None:
    layer = LAYERS[name][0](6, 5, num_layers=2, bias=False, dropout=0.5).eval()
    x = torch.randn(3, 6)
    expected, _ = layer(x[:, None])
    close(layer.step(x)[0], expected[:, 0])
    with torch.autocast("cpu", torch.bfloat16):
        output, state = layer.step(x)
        output, _ = layer.step(x, state)
    assert output.isfinite().all()
    layer.train()
    assert not torch.equal(layer.step(x)[0], layer.step(x)[0])


@every
def test_a_step_that_means_nothing(name: str) -> None:
    layer = LAYERS[name][0](6, 5)
    with pytest.raises(InputValueError, match=r"\[batch, 6\] or \[6\](.|\n)*hint      input\[:, t\]"):
        layer.step(torch.zeros(3, 7, 6))
    with pytest.raises(InputRuntimeError, match="the layer before makes 5 features"):
        layer.step(torch.zeros(3, 5))
    with pytest.raises(InputValueError, match="a layer that also runs backwards has no single steps"):
        LAYERS[name][0](6, 5, bidirectional=True).step(torch.zeros(3, 6))


@pytest.mark.parametrize("kind", [nn.Rnn, nn.RnnCell])
def test_the_nonlinearity_of_plain_layers(kind: Any) -> None:
    layer = kind(6, 5, nonlinearity="relu")
    x = 3 * torch.randn(2, 6)
    gates = x @ next(layer.parameters()).T + sum(p for n, p in layer.named_parameters() if "bias" in n)
    output = layer.step(x)[0] if kind is nn.Rnn else layer(x)
    close(output, gates.relu())
    assert "relu" in repr(layer)
    with pytest.raises(InputValueError, match="nonlinearity is not valid"):
        kind(6, 5, nonlinearity="gelu")


@pytest.mark.parametrize("name", ["Rnn", "Lstm", "Gru"])
def test_a_cell_is_a_step_of_a_layer(name: str) -> None:
    layer, cell = LAYERS[name][0](6, 5), getattr(nn, f"{name}Cell")(6, 5)
    cell.load_state_dict({key.removesuffix("_l0"): value for key, value in layer.state_dict().items()})
    x, hx = torch.randn(3, 6), states(name, 3, 5)
    start = tuple(h[None] for h in hx) if name == "Lstm" else hx[None]
    _, expected = layer.step(x, start)
    found = cell(x, hx)
    close(found, tuple(h[0] for h in expected) if name == "Lstm" else expected[0])


def kind_of(call: Any) -> type[Exception]:
    """What torch raises."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        call()
    return ValueError if isinstance(caught.value, ValueError) else RuntimeError


@every
@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((6,), r"\[batch, steps, 6\] or \[steps, 6\]"),
        ((2, 3, 4, 6), r"\[batch, steps, 6\] or \[steps, 6\]"),
        ((3, 7, 5), "the layer before makes 5 features"),
        ((3, 0, 6), "at least one step"),
    ],
    ids=str,
)
def test_inputs_of_the_wrong_shape(name: str, shape: tuple[int, ...], match: str) -> None:
    ours, theirs = pair(name)
    with pytest.raises(BurntError, match=match) as caught:
        ours(torch.randn(shape))
    assert isinstance(caught.value, kind_of(lambda: theirs(torch.randn(shape))))


@every
def test_states_of_the_wrong_shape(name: str) -> None:
    ours, theirs = pair(name, num_layers=2)
    x = torch.randn(3, 7, 6)
    for shape in ((1, 3, 5), (2, 2, 5), (2, 3, 4)):
        hx = states(name, *shape)
        with pytest.raises(InputRuntimeError, match=r"expected  \(2, 3, 5\)"):
            ours(x, hx)
        assert kind_of(lambda hx=hx: theirs(x, hx)) is RuntimeError
    with pytest.raises(
        InputRuntimeError, match="expected  h0 and c0, as a pair" if name == "Lstm" else "tuple"
    ):
        ours(x, torch.zeros(2, 3, 5) if name == "Lstm" else (torch.zeros(2, 3, 5), torch.zeros(2, 3, 5)))


@every
def test_lengths_that_do_not_fit(name: str) -> None:
    ours, _ = pair(name)
    x = torch.randn(3, 7, 6)
    with pytest.raises(ShapeError, match="a length for each sequence"):
        ours(x, lengths=torch.tensor([1, 2]))
    with pytest.raises(ShapeError, match="one sequence"):
        ours(x[0], lengths=torch.tensor([1]))
    with pytest.raises(InputRuntimeError, match="lengths from 1 to 7") as caught:
        ours(x, lengths=torch.tensor([1, 8, 2]))
    assert str(caught.value.where).startswith(name)
    packed = pack_sequence([torch.randn(2, 6)])
    with pytest.raises(InputValueError, match="has its lengths itself"):
        ours(packed, lengths=torch.tensor([2]))
    with pytest.raises(InputTypeError, match=r"found     \[5, 2, 1\]\n  hint      torch.tensor\(lengths\)"):
        ours(x, lengths=[5, 2, 1])
    with pytest.raises(InputTypeError, match=r"found     5$"):
        ours(x, lengths=5)
    for dtype in (torch.float32, torch.int32):
        with pytest.raises(
            InputRuntimeError, match=r"lengths of dtype int64(.|\n)*lengths.long\(\)"
        ) as caught:
            ours(x, lengths=torch.tensor([5, 2, 1], dtype=dtype))
        assert str(caught.value.where).startswith(name)


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_another_dtype_than_the_parameters(name: str, dtype: torch.dtype) -> None:
    ours, _ = pair(name)
    x, h = torch.randn(3, 7, 6), torch.zeros(1, 3, ours.hidden_size, dtype=dtype)
    ours = getattr(nn, name)(6, ours.hidden_size)
    for call in (lambda: ours(x.to(dtype)), lambda: ours.step(x[:, 0].to(dtype))):
        with pytest.raises(InputRuntimeError) as caught:
            call()
        assert str(caught.value.where).startswith(f"{name}(6, ")
        assert caught.value.expected == "input of torch.float32"
        assert caught.value.found == dtype
        assert caught.value.hint == "input.float()"
    with pytest.raises(InputRuntimeError, match=r"h0.float\(\)"):
        ours(x, (h, h) if name == "Lstm" else h)


@every
def test_arguments_of_the_wrong_type(name: str) -> None:
    kind = getattr(nn, name)
    for arguments in ({"hidden_size": 6.0}, {"input_size": "4"}, {"num_layers": 1.0}):
        with pytest.raises(InputTypeError, match="is an integer"):
            kind(**{"input_size": 4, "hidden_size": 6} | arguments)
    with pytest.raises(InputValueError, match="0 to 1"):
        kind(4, 6, dropout="0.5")
    other = torch.nn.LSTM if name == "Gru" else torch.nn.GRU
    with pytest.raises(
        InputTypeError, match=f"expected  a torch.nn.{name.upper()}\n  found     a {other.__name__}"
    ):
        kind.from_torch(other(4, 6))


@every
@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"hidden_size": 0}, "hidden_size is not valid"),
        ({"num_layers": 0}, "num_layers is not valid"),
        ({"dropout": 1.5}, "found     1.5"),
    ],
    ids=["hidden_size", "num_layers", "dropout"],
)
def test_settings_that_mean_nothing(name: str, more: dict[str, Any], match: str) -> None:
    with pytest.raises(InputValueError, match=match) as caught:
        LAYERS[name][0](**{"input_size": 6, "hidden_size": 5, **more})
    assert isinstance(
        caught.value, kind_of(lambda: LAYERS[name][1](**{"input_size": 6, "hidden_size": 5, **more}))
    )
