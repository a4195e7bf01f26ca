import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt.errors import ShapeError
from burnt.inspect import TensorSpec, check, summary


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))


def rows_of(table):
    return {row.path: row for row in table.rows}


def test_linear_layers_by_hand():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))
    rows = rows_of(summary(model, torch.empty(7, 3)))
    first, last = 2 * 7 * 3 * 5, 2 * 7 * 5 * 2
    assert [row.flops for row in rows.values()] == [first + last, first, 0, last]
    assert [row.activation_bytes for row in rows.values()] == [0, 7 * 5 * 4, 7 * 5 * 4, 7 * 2 * 4]
    assert [row.parameters for row in rows.values()] == [0, 20, 0, 10]
    assert [row.output for row in rows.values()] == ["(7, 2)", "(7, 5)", "(7, 5)", "(7, 2)"]
    assert rows["0"].layer == "Linear(3 -> 5)"


def test_convolution_by_hand():
    # 2 images, 6 output channels, 8 x 5 positions, each a sum over 3 / 3 x 3 x 3 inputs
    model = nn.Conv2d(3, 6, 3, padding=(1, 0), groups=3)
    table = summary(model, TensorSpec((2, 3, 8, 7)))
    assert table.flops == 2 * (2 * 6 * 8 * 5) * (1 * 3 * 3)
    assert table.activation_bytes == 2 * 6 * 8 * 5 * 4
    assert table.rows[0].output == "(2, 6, 8, 5)"


@pytest.mark.sample(1)
@pytest.mark.parametrize("training", [True, False])
def test_attention_by_hand(training):
    batch, length = 2, 5
    model = Attention(heads=2).to(torch.bfloat16).train(training)
    table = summary(model, torch.empty(batch, length, 8, dtype=torch.bfloat16))
    rows = rows_of(table)
    scores_and_mix = 2 * (2 * batch * length * length * 8)
    assert rows["qkv"].flops == 2 * batch * length * 8 * 24
    assert rows["out"].flops == 2 * batch * length * 8 * 8
    assert rows[""].flops == rows["qkv"].flops + rows["out"].flops + scores_and_mix
    assert table.flops == rows[""].flops
    assert table.activation_bytes == batch * length * (24 + 8) * 2
    assert table.parameter_bytes == 8 * 32 * 2


def test_a_module_that_runs_twice_and_a_shared_parameter():
    layer, twin = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    twin.weight = layer.weight
    table = summary(nn.Sequential(layer, layer, twin), torch.empty(3, 4))
    rows = rows_of(table)
    assert (rows["0"].calls, rows["0"].flops, rows["0"].activation_bytes) == (2, 2 * 96, 2 * 48)
    assert (rows["0"].parameters, rows["2"].parameters) == (16, 0)
    assert table.trainable == 16
    assert "(3, 4)  x2" in str(table)


def test_frozen_parameters_and_layers_that_are_not_called():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(4, 2)
            self.unused = nn.Linear(4, 3)

        def forward(self, x):
            return {"out": self.used(x), "again": self.used(x)}

    model = Net()
    model.used.weight.requires_grad_(False)
    table = summary(model, x=torch.empty(1, 4))
    assert (table.trainable, table.frozen) == (2 + 15, 8)
    assert rows_of(table)["unused"].output is None
    assert rows_of(table)[""].output == "(1, 2), (1, 2)"
    assert "not called" in str(table)
    assert "25 (100 B): 17 trainable, 8 frozen" in str(table)


def test_it_is_json():
    table = summary(nn.Sequential(nn.Linear(3, 5)), torch.empty(7, 3))
    data = json.loads(json.dumps(table.as_dict()))
    row = {"path": "0", "layer": "Linear(3 -> 5)", "output": "(7, 5)", "parameters": 20}
    assert data["rows"][1] == row | {"flops": 210, "activation_bytes": 140, "calls": 1}
    assert (data["flops"], data["unchecked"]) == (210, [])


def test_the_table_is_aligned():
    model = nn.Sequential(nn.Sequential(nn.Linear(2048, 2048), nn.GELU()), nn.Linear(2048, 10))
    lines = str(summary(model, TensorSpec((1024, 2048)))).splitlines()
    assert lines[0].split() == ["layer", "output", "parameters", "FLOPs", "activations"]
    assert lines[3].startswith("  0  Sequential")
    assert lines[4].startswith("    0  Linear(2048 -> 2048)")
    assert "8.59 G" in lines[4]
    assert lines[4].endswith("8 MiB")
    assert len({line.index("(1024, ") for line in lines[2:7]}) == 1


def test_what_depends_on_values_ends_the_table_early():
    class Stops(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    table = summary(nn.Sequential(nn.Linear(3, 5), Stops(), nn.Linear(5, 5)), torch.empty(7, 3))
    rows = rows_of(table)
    assert rows["0"].flops == table.flops == 210
    assert rows["1"].output is rows["2"].output is rows[""].output is None
    assert table.unchecked[0].startswith("model.1: RuntimeError: ")
    assert "unchecked    model.1" in str(table)


def test_a_wrong_shape_is_an_error_and_the_model_is_left_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(5, 5))
    with pytest.raises(ShapeError, match=r"model\.2   Linear"):
        summary(model, torch.empty(7, 3))
    summary(model[:2], torch.empty(7, 3))
    assert model[1].num_batches_tracked == 0
    assert not model[0]._forward_hooks


def test_a_call_that_fails_and_is_caught_is_not_counted():
    class Tries(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(9, 9), nn.Linear(4, 5)

        def forward(self, x):
            try:
                return self.first(x)
            except (ShapeError, RuntimeError):
                return self.second(x)

    rows = rows_of(summary(Tries(), torch.empty(2, 4)))
    assert (rows["first"].calls, rows["second"].calls, rows[""].flops) == (0, 1, 2 * 2 * 4 * 5)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_are_counted_with_the_shape_they_get():
    model = nn.LazyLinear(5)
    assert summary(model, torch.empty(2, 3)).trainable == 20
    assert model.has_uninitialized_params()


def test_torch_s_own_transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    rows = rows_of(summary(layer, torch.empty(2, 5, 8)))
    assert rows["linear1"].flops == 2 * 10 * 8 * 16
    attention = 2 * 10 * 8 * 24 + 2 * 10 * 8 * 8 + 2 * (2 * 2 * 5 * 5 * 8)
    assert rows["self_attn"].flops == attention
    assert rows["self_attn.out_proj"].output is None  # its weights are used by self_attn directly
    assert rows["self_attn"].layer == "MultiheadAttention(8, 2 heads)"
    assert rows["self_attn"].activation_bytes == 2 * 5 * 8 * 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("again", [False, True])
def test_layers_that_a_forward_makes(again):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.late = nn.Linear(4, 4), None

        def forward(self, x):
            if self.late is None or again:
                self.late = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
            return self.late(self.first(x)) + nn.Linear(4, 3)(x)

    model = Late()
    rows = {row.path: row for row in summary(model, torch.empty(2, 4)).rows}
    assert list(rows) == ["", "first", "late", "late.0", "late.1"]
    assert [rows[path].output for path in rows] == ["(2, 3)", "(2, 4)", "(2, 3)", "(2, 3)", "(2, 3)"]
    assert [rows[path].calls for path in rows] == [1] * 5
    assert rows["late.0"].parameters == 15
    assert rows["late"].flops == 2 * 2 * 4 * 3
    report = check(model, torch.empty(2, 4))
    assert report.unchecked == ()
    assert report.shapes["late.1"] == "(2, 3)"
    assert model.late is None
    model.first = nn.Linear(4, 5)
    with pytest.raises(ShapeError, match=r"in model\.late\.0   Linear\(4 -> 3\)"):
        check(model, torch.empty(2, 4))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("ours", "theirs"), [("Lstm", "LSTM"), ("Gru", "GRU"), ("Rnn", "RNN")])
def test_recurrent_layers_count_what_torchs_do(ours, theirs):
    x, lengths = TensorSpec((8, 7, 16)), TensorSpec((8,), torch.int64)
    for more in ({}, {"num_layers": 2, "bidirectional": True}):
        expected = summary(getattr(nn, theirs)(16, 32, batch_first=True, **more), x).flops
        layer = getattr(burnt.nn, ours)(16, 32, **more)
        assert expected == summary(layer, x).flops == summary(layer, x, lengths=lengths).flops > 0


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 64)
        self.head = nn.Linear(64, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


QUANTIZED_MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(40, 6), nn.Linear(6, 3)), lambda: torch.randn(2, 5, 40)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, 2, padding=1, groups=2), nn.Conv2d(6, 2, 1, bias=False)),
        lambda: torch.randn(2, 4, 8, 8),
    ),
    "tied": (Tied, lambda: torch.arange(10).view(2, 5)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", ["int8", "int4-block32", "int8-dynamic", "fp8-dynamic", "int8-static"])
@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_quantized_layers_count_as_their_originals(name, scheme):
    build, draw = QUANTIZED_MODELS[name]
    model, x = build(), draw()
    before = summary(model, x)
    report = burnt.quantize(model, scheme, calibrate=[x])
    after = summary(model, x)
    assert after.unchecked == ()
    assert [(row.parameters, row.flops) for row in after.rows] == [
        (row.parameters, row.flops) for row in before.rows
    ]
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    assert after.parameter_bytes == sum(t.nbytes for t in tensors.values()) < before.parameter_bytes
    assert after.trainable == sum(p.numel() for p in model.parameters())
    assert after.trainable + after.frozen == before.trainable
    assert len(report.quantized) == 2
