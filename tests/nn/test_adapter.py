import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

import burnt
from burnt import nn, optim
from burnt.errors import ConfigError, InputValueError, RecordError
from burnt.nn import adapter
from burnt.record import read_document
from burnt.train import Learner, StepOutput, SupervisedTraining


class Net(burnt.Module):
    embed: nn.Embedding
    layers: list[torch.nn.Module]
    norm: nn.LayerNorm
    head: nn.Linear

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def net() -> Net:
    torch.manual_seed(0)
    return Net(
        nn.Embedding(11, 6), [nn.Linear(6, 6), torch.nn.Linear(6, 6)], nn.LayerNorm(6), nn.Linear(6, 3)
    )


def randomize(model: torch.nn.Module) -> None:
    """Give the adapters values as after some training."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "lora_" in path:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)


IDS = torch.arange(10).reshape(2, 5)
LINEARS = ["layers.0", "layers.1", "head"]


def test_the_base_is_frozen_and_outputs_do_not_change() -> None:
    model, base = net(), net()
    assert nn.lora(model, rank=2) == LINEARS
    assert torch.equal(model(IDS), base(IDS))
    trained = [path for path, p in model.named_parameters() if p.requires_grad]
    assert trained == [f"{path}.lora_{part}.weight" for path in LINEARS for part in "AB"]
    assert model.layers[0].lora_A.weight.shape == (2, 6)
    assert model.head.lora_B.weight.shape == (3, 2)
    assert model.load_state_dict(base.state_dict(), strict=False).unexpected_keys == []


# A layer, an input, and the change of the output by the adapter, written out.
LAYERS: dict[str, tuple[Callable[[], Any], Tensor, Callable[[Any, Tensor], Tensor]]] = {
    "Linear": (
        lambda: nn.Linear(6, 4),
        torch.randn(3, 5, 6),
        lambda m, x: x @ (m.lora_B.weight @ m.lora_A.weight).t(),
    ),
    "torch Linear": (
        lambda: torch.nn.Linear(6, 4, bias=False),
        torch.randn(6),
        lambda m, x: (m.lora_B.weight @ m.lora_A.weight) @ x,
    ),
    "Embedding": (
        lambda: nn.Embedding(11, 6),
        IDS,
        lambda m, x: (m.lora_embedding_B @ m.lora_embedding_A).t()[x],
    ),
    "Conv1d": (
        lambda: torch.nn.Conv1d(3, 4, 3, padding=2, padding_mode="circular"),
        torch.randn(2, 3, 8),
        lambda m, x: F.conv1d(
            F.pad(x, (2, 2), mode="circular"),
            torch.einsum("or,rik->oik", m.lora_B.weight[:, :, 0], m.lora_A.weight),
        ),
    ),
    "Conv2d": (
        lambda: nn.Conv2d(3, 4, (3, 2), stride=2, padding=1),
        torch.randn(2, 3, 7, 5),
        lambda m, x: F.conv2d(
            x,
            torch.einsum("or,riyx->oiyx", m.lora_B.weight[:, :, 0, 0], m.lora_A.weight),
            stride=2,
            padding=1,
        ),
    ),
}
every = pytest.mark.parametrize("name", LAYERS)


@every
@pytest.mark.parametrize("rank_stabilized", [False, True])
def test_the_output_is_that_of_w_plus_ba(name: str, rank_stabilized: bool) -> None:
    build, x, change = LAYERS[name]
    layer = build()
    base = copy.deepcopy(layer)
    assert nn.lora(layer, rank=3, alpha=6.0, targets="*", rank_stabilized=rank_stabilized) == [""]
    assert torch.equal(layer(x), base(x))
    randomize(layer)
    scale = 6 / 3**0.5 if rank_stabilized else 2.0
    expected = base(x) + scale * change(layer, x)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(input=x), expected, atol=1e-5, rtol=1e-5)
    leaves = [p for p in layer.parameters() if p.requires_grad]
    assert len(leaves) == 2
    grad = torch.randn(expected.shape)
    torch.testing.assert_close(
        torch.autograd.grad(layer(x), leaves, grad),
        torch.autograd.grad(expected, leaves, grad),
        atol=1e-4,
        rtol=1e-4,
    )
    with nn.without_lora(layer):
        assert torch.equal(layer(x), base(x))
    output = layer(x)
    nn.merge_lora(layer)
    assert list(layer.state_dict()) == list(base.state_dict())
    torch.testing.assert_close(layer(x), output, atol=1e-5, rtol=1e-5)
    nn.unmerge_lora(layer)
    torch.testing.assert_close(layer(x), output, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer.weight, base.weight)


def test_gradients_of_an_embedding_s_padding_stay_zero() -> None:
    layer = nn.Embedding(5, 4, padding_idx=1)
    nn.lora(layer, rank=2, targets="*")
    layer(torch.tensor([0, 1, 1])).sum().backward()
    grad = layer.lora_embedding_A.grad
    assert isinstance(grad, Tensor)
    assert grad[:, 0].any()
    assert not grad[:, 1].any()


def test_a_weight_of_16_bits_has_an_adapter_in_float32() -> None:
    layer = nn.Linear(6, 4, dtype=torch.bfloat16)
    nn.lora(layer, rank=2)
    assert layer.lora_A.weight.dtype == torch.float32
    randomize(layer)
    x = torch.randn(3, 6, dtype=torch.bfloat16)
    weight = layer.weight.float() + layer.lora_B.weight @ layer.lora_A.weight
    assert layer(x).dtype == torch.bfloat16
    torch.testing.assert_close(
        layer(x), F.linear(x.float(), weight, layer.bias.float()).bfloat16(), atol=0.02, rtol=0.02
    )
    nn.merge_lora(layer)
    assert torch.equal(layer.weight, weight.bfloat16())
    assert nn.lora(other := nn.Linear(2, 2), rank=1, dtype=torch.float64) == [""]
    assert other.lora_B.weight.dtype == torch.float64


def test_dropout_is_of_the_adapter_s_input_alone() -> None:
    layer = nn.Linear(400, 4)
    nn.lora(layer, rank=2, dropout=0.5)
    x = torch.randn(3, 400)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    randomize(layer)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


# --- attention --------------------------------------------------------------------------------------------

ATTENTIONS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "burnt": (lambda: nn.MultiHeadAttention(8, 4, num_kv_heads=2), ["", "out_proj"]),
    "separate": (lambda: nn.MultiHeadAttention(8, 4, kdim=8, vdim=6), ["", "out_proj"]),
    "torch": (lambda: torch.nn.MultiheadAttention(8, 4, batch_first=True), ["", "out_proj"]),
    "torch's layer": (
        lambda: torch.nn.TransformerEncoderLayer(8, 4, 16, 0.0, batch_first=True),
        ["self_attn", "self_attn.out_proj", "linear1", "linear2"],
    ),
}


def attend(layer: Any, compiled: Any = None) -> Tensor:
    x = torch.linspace(-1, 1, 80).reshape(2, 5, 8).sin()
    inputs = (x,) if isinstance(layer, torch.nn.TransformerEncoderLayer) else (x, x, x)
    if getattr(layer, "vdim", 8) == 6:
        inputs = (x, x, x[..., :6])
    output = (layer if compiled is None else compiled)(*inputs)
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_projections_of_attention_are_adapted(name: str) -> None:
    build, paths = ATTENTIONS[name]
    layer = build()
    base = copy.deepcopy(layer)
    assert nn.lora(layer, rank=2, alpha=6.0) == paths
    assert torch.equal(attend(layer), attend(base))
    assert layer.load_state_dict(base.state_dict(), strict=False).unexpected_keys == []
    randomize(layer)
    # The same with the weights written out.
    expected = copy.deepcopy(base)
    state = dict(layer.named_parameters())
    for path, value in expected.named_parameters():
        prefix, _, weight = path.rpartition(".")
        for a, b in ((f"lora_{weight}_A", f"lora_{weight}_B"), ("lora_A.weight", "lora_B.weight")):
            a, b = (f"{prefix}.{part}" if prefix else part for part in (a, b))
            if a in state and value.dim() == 2:
                value.data = value.data + 3.0 * state[b].data @ state[a].data
                break
    output = attend(layer)
    assert not torch.allclose(output, attend(base), atol=1e-2)
    torch.testing.assert_close(output, attend(expected))
    wanted = [p for p in layer.parameters() if p.requires_grad]
    assert all(g.any() for g in torch.autograd.grad(output.square().sum(), wanted))
    with torch.no_grad():  # torch's fast path reads the weights, too
        torch.testing.assert_close(attend(layer.eval()), attend(expected.eval()))
    with nn.without_lora(layer):
        torch.testing.assert_close(attend(layer), attend(base.eval()))
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(attend(clone), output)
        nn.merge_lora(clone)
        assert type(clone) is type(base)
        assert list(clone.state_dict()) == list(base.state_dict())
        torch.testing.assert_close(attend(clone), output, atol=1e-5, rtol=1e-5)
        nn.unmerge_lora(clone)
        torch.testing.assert_close(attend(clone), output, atol=1e-5, rtol=1e-5)
        nn.remove_lora(clone)
        torch.testing.assert_close(attend(clone), attend(base), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attend(layer), output)


def test_an_adapter_may_be_merged_while_its_layer_has_another_class_on_top() -> None:
    layer = nn.MultiHeadAttention(8, 4)
    nn.lora(layer, rank=2)
    randomize(layer)
    output, changed = attend(layer), type(layer)
    layer.__class__ = type("Swapped", (changed,), {})
    for call in (nn.merge_lora, nn.unmerge_lora, nn.merge_lora, nn.remove_lora):
        call(layer)
        torch.testing.assert_close(attend(layer), output, atol=1e-5, rtol=1e-5)
    nn.lora(layer, rank=1)
    randomize(layer)
    assert not torch.allclose(attend(layer), output, atol=1e-2)
    layer.__class__ = changed
    nn.remove_lora(layer)
    assert type(layer) is nn.MultiHeadAttention
    torch.testing.assert_close(attend(layer), output, atol=1e-5, rtol=1e-5)


def test_an_attention_s_adapter_is_saved_and_checked(tmp_path: Path) -> None:
    layer, path = nn.MultiHeadAttention(8, 4), tmp_path / "adapter.safetensors"
    base = copy.deepcopy(layer)
    nn.lora(layer, rank=2)
    randomize(layer)
    nn.save_lora(layer, path)
    assert nn.load_lora(base, path) == ["", "out_proj"]
    assert torch.equal(attend(base), attend(layer))
    x = torch.zeros(2, 5, 8)
    assert burnt.check(layer, x).outputs.shape[1:] == (5, 8)  # type: ignore[attr-defined]
    assert repr(layer).splitlines()[0] == repr(nn.MultiHeadAttention(8, 4)).splitlines()[0]


@pytest.mark.full
@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_with_an_adapter_compiles_as_one_graph(name: str) -> None:
    layer = ATTENTIONS[name][0]()
    nn.lora(layer, rank=2)
    randomize(layer)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(attend(layer, compiled), attend(layer))
    with nn.without_lora(layer):
        torch.testing.assert_close(attend(layer, compiled), attend(layer))


# --- which layers -----------------------------------------------------------------------------------------


def test_targets_are_patterns_and_more_may_follow() -> None:
    model = net()
    assert nn.lora(model, rank=2, targets=["layers", "*bed"]) == ["embed", "layers.0", "layers.1"]
    burnt.unfreeze(model, "norm")
    with pytest.warns(
        UserWarning, match="'hed' in the pattern 'head | hed' matches no layer that can be a"
    ) as w:
        assert nn.lora(model, rank=5, targets="head | hed") == ["head"]
    assert str(w[0].message).endswith("did you mean 'head'?")
    assert w[0].filename == __file__
    assert (model.head.lora_adapter.settings.rank, model.embed.lora_adapter.settings.rank) == (5, 2)
    assert model.norm.weight.requires_grad
    assert not model.head.weight.requires_grad


def test_layers_that_cannot_have_an_adapter_are_left_out() -> None:
    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 6)
            self.linear = torch.nn.Linear(6, 6)
            self.conv = torch.nn.Conv1d(6, 6, 3, groups=2)
            self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 6))
            self.head = torch.nn.Linear(6, 4)
            self.head.weight = self.embed.weight

    model = Parts()
    assert nn.lora(model, rank=1) == ["linear"]
    for targets, reason in (
        ("head", "head: its weight is shared with 'embed'"),
        ("conv", "conv: it is a convolution with groups"),
        ("normed", "normed: its weight is not a parameter, as with a parametrization"),
    ):
        with pytest.raises(ConfigError, match=f"targets='{targets}' matches no layer of Parts") as caught:
            nn.lora(model, targets=targets)
        assert caught.value.found == reason


def test_a_second_call_without_other_targets_says_that_all_have_adapters() -> None:
    model = net()
    nn.lora(model, rank=2)
    for targets in ("head", None):
        with pytest.raises(ConfigError, match=f"for targets={targets!r} have adapters already") as caught:
            nn.lora(model, rank=2, targets=targets)
        assert "with an adapter, such as" in caught.value.found


def test_a_layer_that_is_used_twice_has_one_adapter() -> None:
    layer = nn.Linear(4, 4)
    model = torch.nn.Sequential(layer, nn.Relu(), layer)
    assert nn.lora(model, rank=2) == ["0"]
    randomize(model)
    output = model(torch.ones(4))
    nn.merge_lora(model)
    torch.testing.assert_close(model(torch.ones(4)), output)


def test_a_weight_that_another_layer_shares_is_not_merged() -> None:
    model = torch.nn.ModuleDict(
        {"embed": nn.Embedding(4, 6), "head": nn.Linear(6, 4), "last": nn.Linear(4, 4)}
    )
    nn.lora(model, rank=2)
    randomize(model)
    model["head"].weight = model["embed"].weight
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConfigError, match="cannot be merged without changing another layer") as caught:
        nn.merge_lora(model)
    assert (caught.value.where, caught.value.found) == ("head", "its weight is shared with 'embed'")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("layer.0", "did you mean 'layers.0'?"),
        ("zzz", "the first path is 'embed'"),
        (["head", "hed"], "did you mean 'head'?"),
    ],
)
def test_a_pattern_without_a_layer_is_refused(targets: Any, expected: str) -> None:
    model = net()
    with pytest.raises(ConfigError) as caught:
        nn.lora(model, targets=targets)
    assert caught.value.hint == expected
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ConfigError, match="targets=None matches no layer of LayerNorm") as caught:
        nn.lora(torch.nn.LayerNorm(3))
    assert (caught.value.found, caught.value.hint) == ("no such layer", None)
    with pytest.raises(ConfigError, match="matches no layer of Net that can be adapted") as caught:
        nn.lora(model, targets="*norm*")
    assert caught.value.found == "norm: a LayerNorm, which LoRA cannot adapt"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"rank": 0}, "at least 1"), ({"alpha": 0.0}, "above 0"), ({"dropout": 1.0}, "from 0 to below 1")],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputValueError) as caught:
        nn.lora(net(), **arguments)
    assert caught.value.expected == expected
    assert next(iter(arguments)) in str(caught.value)


# --- merging and removing ---------------------------------------------------------------------------------


def test_removing_leaves_the_base_or_the_merged_weights() -> None:
    model, base = net(), net()
    nn.lora(model, rank=2)
    randomize(model)
    output = model(IDS)
    merged = copy.deepcopy(model)
    assert nn.remove_lora(model) == LINEARS
    assert list(model.state_dict()) == list(base.state_dict())
    assert torch.equal(model(IDS), base(IDS))
    nn.merge_lora(merged)
    nn.remove_lora(merged)
    torch.testing.assert_close(merged(IDS), output, atol=1e-5, rtol=1e-5)
    nn.lora(merged, rank=1)  # once more, from there
    torch.testing.assert_close(merged(IDS), output, atol=1e-5, rtol=1e-5)


def test_unmerging_keeps_the_parameters_and_follows_mode_and_device() -> None:
    model = net()
    nn.lora(model, rank=2, targets="embed|head", dropout=0.5)
    before = dict(model.named_parameters())
    nn.merge_lora(model)
    model.eval()
    nn.unmerge_lora(model)
    assert not model.head.lora_dropout.training
    assert all(parameter is before[path] for path, parameter in model.named_parameters())
    nn.merge_lora(model)
    model.to("meta")
    nn.unmerge_lora(model)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_adapters_are_in_the_mode_of_their_layers(tmp_path: Path) -> None:
    model = net().eval()
    model.head.train()
    nn.lora(model, rank=2, dropout=0.5)
    nn.save_lora(model, tmp_path / "adapter.safetensors")
    loaded = net().eval()
    nn.load_lora(loaded, tmp_path / "adapter.safetensors")
    assert {path for path, m in model.named_modules() if m.training} == {
        *("head", "head.lora_A", "head.lora_B", "head.lora_dropout")
    }
    assert not any(m.training for m in loaded.modules())


def test_what_is_not_there_or_not_in_this_state_is_refused() -> None:
    model = net()
    for call in (nn.merge_lora, nn.unmerge_lora, nn.remove_lora, lambda m: nn.save_lora(m, "x")):
        with pytest.raises(ConfigError, match=r"Net has no .*LoRA adapters") as caught:
            call(model)
        assert "burnt.nn.lora(model)" in str(caught.value.hint)
    nn.lora(model)
    with pytest.raises(ConfigError, match="no merged LoRA adapters; those it has are active"):
        nn.unmerge_lora(model)
    nn.merge_lora(model)
    with pytest.raises(ConfigError, match="no active LoRA adapters; those it has are merged") as caught:
        nn.merge_lora(model)
    assert "unmerge_lora" in str(caught.value.hint)
    with pytest.raises(ConfigError), nn.without_lora(model):
        pass


# --- copies, compilers, files, training -------------------------------------------------------------------


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m.fork()]
)
def test_copies_are_independent(clone: Callable[[Any], Any]) -> None:
    model = net()
    nn.lora(model, rank=2)
    randomize(model)
    output, twin = model(IDS), clone(model)
    assert torch.equal(twin(IDS), output)
    nn.merge_lora(twin)
    twin = clone(twin)
    nn.unmerge_lora(twin)
    torch.testing.assert_close(twin(IDS), output, atol=1e-5, rtol=1e-5)
    nn.remove_lora(twin)
    assert torch.equal(model(IDS), output)


def adapted() -> Net:
    model = net()
    nn.lora(model, rank=2, targets="*", dropout=0.2)
    randomize(model)
    return model.eval()


def test_compiles_as_one_graph() -> None:
    model = torch.nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 3))
    nn.lora(model, rank=2, targets="*")
    randomize(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(IDS), model(IDS))
    with nn.without_lora(model):
        torch.testing.assert_close(compiled(IDS), model(IDS))


def test_check_and_summary_follow_it() -> None:
    model = net()
    nn.lora(model, rank=2)
    assert burnt.check(model, IDS).outputs.shape[1:] == (5, 3)  # type: ignore[attr-defined]
    assert f"{sum(p.numel() for p in model.parameters()):,}" in str(burnt.summary(model, IDS))


def test_the_adapter_is_saved_alone(tmp_path: Path) -> None:
    model, path = net(), tmp_path / "adapter.safetensors"
    nn.lora(model, rank=2, alpha=4.0, dropout=0.1, targets="layers|embed")
    nn.lora(model, rank=3, targets="head")
    burnt.unfreeze(model, "norm")
    randomize(model)
    with torch.no_grad():
        model.norm.weight.add_(1.0)
    nn.save_lora(model, path)
    document = read_document(path)
    assert document is not None
    assert document["lora"] == [
        {
            "rank": 2,
            "alpha": 4.0,
            "dropout": 0.1,
            "rank_stabilized": False,
            "targets": ["embed", "layers.0", "layers.1"],
        },
        {"rank": 3, "alpha": 3.0, "dropout": 0.0, "rank_stabilized": False, "targets": ["head"]},
    ]
    record = burnt.Record.load(path)
    assert set(record.tensors) == {p for p, v in model.named_parameters() if v.requires_grad}
    assert "layers.0.weight" not in record.tensors
    fresh = net()
    assert nn.load_lora(fresh, path) == ["embed", "layers.0", "layers.1", "head"]
    assert torch.equal(fresh.eval()(IDS), model.eval()(IDS))
    assert {p: v.requires_grad for p, v in fresh.named_parameters()} == {
        p: v.requires_grad for p, v in model.named_parameters()
    }
    assert str(fresh) == str(model)
    assert model.load_record(fresh.into_record()).missing == ()


def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model, path = net(), tmp_path / "adapter.safetensors"
    nn.lora(model, rank=2, targets="layers|head")
    nn.save_lora(model, path)
    with pytest.raises(ConfigError, match="has adapters already"):
        nn.load_lora(model, path)
    other = net()
    for change, where, found in (
        (
            lambda: setattr(other, "head", nn.Linear(6, 4)),
            "head.lora_B.weight",
            "(3, 2) in the file, (4, 2) in the model",
        ),
        (lambda: setattr(other, "head", nn.Gelu()), "head", "an adapter in the file, Gelu in the model"),
        (lambda: delattr(other, "head"), "head", "an adapter in the file, nothing in the model"),
    ):
        change()
        names = [name for name, _ in other.named_modules()]
        with pytest.raises(RecordError, match="the adapters do not fit Net") as caught:
            nn.load_lora(other, path)
        assert (caught.value.where, caught.value.found) == (f"{path}: {where}", found)
        assert [name for name, _ in other.named_modules()] == names
        assert all(p.requires_grad for p in other.parameters())
    net().save(path)
    with pytest.raises(RecordError, match="not a file of LoRA adapters"):
        nn.load_lora(net(), path)


def test_a_learner_trains_only_the_adapter(tmp_path: Path) -> None:
    def step(model: Any, batch: Any) -> StepOutput:
        return StepOutput(loss=F.cross_entropy(model(batch.ids).flatten(0, 1), batch.targets.flatten()))

    model, base = net(), net()
    nn.lora(model, rank=2)
    data = burnt.data.Loader(burnt.data.TensorDataset(ids=IDS, targets=IDS % 3), 1)
    learner = Learner(model, optim.AdamW(), 1e-2, step=step)
    training = SupervisedTraining(
        tmp_path / "run", train=data, duration="2 epochs", monitor="off", device="cpu"
    )
    training.run(learner)
    trained = model.state_dict()
    for path, value in base.state_dict().items():
        assert torch.equal(trained[path], value)
    assert trained["head.lora_B.weight"].any()


@pytest.mark.full
@pytest.mark.parametrize(("use_rslora", "bias"), [(False, "lora_only"), (True, "all"), (True, "none")])
def test_peft_s_adapter_loads_and_computes_the_same(tmp_path: Path, use_rslora: bool, bias: Any) -> None:
    import peft

    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=["embed", "layers.0", "layers.1"],
        modules_to_save=["head"],
        rank_pattern={"layers.1": 2},
        use_rslora=use_rslora,
        bias=bias,
    )
    theirs = peft.get_peft_model(net(), config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    theirs.save_pretrained(tmp_path)
    model = net()
    assert sorted(nn.load_lora(model, tmp_path)) == ["embed", "layers.0", "layers.1"]
    torch.testing.assert_close(model(IDS), theirs(IDS), atol=1e-5, rtol=1e-5)
    assert model.head.weight.requires_grad


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"peft_type": "IA3"}', "Invalid enum value 'IA3'"),
        ('{"peft_type": "LORA", "lora_alpha": 8, "use_dora": true}', "use_dora"),
        (
            '{"peft_type": "LORA", "lora_alpha": 8, "init_lora_weights": "pissa"}',
            "Invalid enum value 'pissa'",
        ),
        ('{"peft_type": "LORA", "lora_alpha": 8, "alora_invocation_tokens": [1]}', "alora_invocation_tokens"),
        ('{"peft_type": "LORA", "lora_alpha": 8, "alpha_pattern": {"0": 2}}', "alpha_pattern={'0': 2}"),
        (
            '{"peft_type": "LORA", "lora_alpha": 8, "layer_replication": [[0, 2]]}',
            "layer_replication=[[0, 2]]",
        ),
        (
            '{"peft_type": "LORA", "lora_alpha": 8, "lora_bias": true, "of_tomorrow": 1, "off": null}',
            "lora_bias=True, of_tomorrow=1",
        ),
        ('{"peft_type": "LORA", "lora_alpha": 8, "bias": "some"}', "Invalid enum value 'some'"),
        ("{", "truncated"),
    ],
)
def test_other_adapters_of_peft_are_refused(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(RecordError, match="peft's adapter cannot be read") as caught:
        nn.load_lora(net(), tmp_path)
    assert found in str(caught.value.found)


def peft_folder(
    folder: Path, tensors: dict[str, Tensor], file: str = "adapter_model.safetensors", **options: object
) -> Path:
    """Write an adapter's folder as peft does."""
    named = {f"base_model.model.{name}": value for name, value in tensors.items()}
    if file.endswith(".bin"):
        torch.save(named, folder / file)
    else:
        save_file(named, folder / file)
    config = {"peft_type": "LORA", "lora_alpha": 4, "bias": "none", "use_dora": False, **options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(11, 6)
        self.middle = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 11)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.middle(self.embed(ids)))  # type: ignore[no-any-return]


def middle(rank: int = 2) -> dict[str, Tensor]:
    return {
        "middle.lora_A.weight": torch.randn(rank, 6) * 0.3,
        "middle.lora_B.weight": torch.randn(6, rank) * 0.3,
    }


def with_middle(base: Tied, adapter: dict[str, Tensor], hidden: Tensor) -> Tensor:
    change = hidden @ adapter["middle.lora_A.weight"].t() @ adapter["middle.lora_B.weight"].t()
    return base.middle(hidden) + change * (4 / 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin"])
def test_peft_s_biases_are_those_of_the_base_layer(tmp_path: Path, file: str) -> None:
    change = middle()
    tensors = {**change, "middle.base_layer.bias": torch.randn(6), "head.bias": torch.randn(11)}
    model, base = Tied(), Tied()
    assert nn.load_lora(model, peft_folder(tmp_path, tensors, file, bias="all")) == ["middle"]
    with torch.no_grad():
        base.middle.bias.copy_(tensors["middle.base_layer.bias"])
        base.head.bias.copy_(tensors["head.bias"])
    torch.testing.assert_close(model(IDS), base.head(with_middle(base, change, base.embed(IDS))))
    trained = [path for path, p in model.named_parameters() if p.requires_grad and "lora" not in path]
    assert trained == ["middle.bias", "head.bias"]


def test_peft_s_copies_of_adapted_weights_stay_frozen(tmp_path: Path) -> None:
    change = {"head.lora_A.weight": torch.randn(2, 6), "head.lora_B.weight": torch.randn(11, 2)}
    copies = {"head.base_layer.weight": Tied().head.weight.detach(), "head.base_layer.bias": Tied().head.bias}
    model, base = Tied(), Tied()
    nn.load_lora(model, peft_folder(tmp_path, {**change, **copies}))
    hidden = base.middle(base.embed(IDS))
    low = hidden @ change["head.lora_A.weight"].t()
    torch.testing.assert_close(model(IDS), base.head(hidden) + low @ change["head.lora_B.weight"].t() * 2)
    assert [path for path, p in model.named_parameters() if p.requires_grad and "lora" not in path] == []


def test_a_resized_vocabulary_in_peft_s_file_is_loaded(tmp_path: Path) -> None:
    change = {"embed.lora_embedding_A": torch.randn(2, 11), "embed.lora_embedding_B": torch.randn(6, 2)}
    other = torch.randn(11, 6)
    model = net()
    nn.load_lora(model, peft_folder(tmp_path, {**change, "embed.base_layer.weight": other}))
    expected = other + (change["embed.lora_embedding_B"] @ change["embed.lora_embedding_A"]).t() * 2
    torch.testing.assert_close(model.embed(torch.arange(11)), expected)
    nn.save_lora(model, tmp_path / "again.safetensors")
    again = net()
    nn.load_lora(again, tmp_path / "again.safetensors")
    assert torch.equal(again(IDS), model(IDS))


def test_a_weight_of_its_own_for_one_of_two_tied_layers_is_refused(tmp_path: Path) -> None:
    model, saved = Tied(), torch.randn(11, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for tensors, found in (
        ({"embed.weight": saved}, "embed.weight only"),
        ({"head.weight": saved}, "head.weight only"),
        ({"embed.weight": saved, "head.weight": saved + 1}, "with different values"),
        ({"embed.base_layer.weight": saved}, "embed.weight only"),
    ):
        with pytest.raises(RecordError, match="shares one in the model") as caught:
            nn.load_lora(model, peft_folder(tmp_path, {**middle(), **tensors}))
        assert found in str(caught.value.found)
        assert "'head.weight'" in str(caught.value.hint)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(before) == len(model.state_dict())
    change = middle()
    both = {"embed.weight": saved, "head.weight": saved.clone()}
    nn.load_lora(model, peft_folder(tmp_path, {**change, **both}))
    base = Tied()
    with torch.no_grad():
        base.embed.weight.copy_(saved)
    torch.testing.assert_close(model(IDS), base.head(with_middle(base, change, base.embed(IDS))))


def test_tied_adapters_of_peft_are_refused(tmp_path: Path) -> None:
    change = {"head.lora_A.weight": torch.randn(2, 6), "head.lora_B.weight": torch.randn(11, 2)}
    nn.load_lora(Tied(), peft_folder(tmp_path, change))
    with pytest.raises(RecordError, match="peft's adapter cannot be read") as caught:
        nn.load_lora(Tied(), peft_folder(tmp_path, change, ensure_weight_tying=True))
    assert caught.value.found == "ensure_weight_tying=True"


@pytest.mark.parametrize(("tensors", "part"), [({}, "lora_"), (middle(), "head")])
def test_a_file_of_peft_without_its_tensors_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], part: str
) -> None:
    with pytest.raises(RecordError, match="a tensor of peft's adapter is missing") as caught:
        nn.load_lora(Tied(), peft_folder(tmp_path, tensors, modules_to_save=["score", "head"]))
    assert caught.value.expected == f"tensors of {part}"


@pytest.mark.parametrize("part", "AB")
def test_a_tensor_that_peft_s_file_lacks_is_named(tmp_path: Path, part: str) -> None:
    tensors = middle()
    missing = f"middle.lora_{part}.weight"
    del tensors[missing]
    model = Tied()
    with pytest.raises(RecordError, match="a tensor of peft's adapter is missing") as caught:
        nn.load_lora(model, peft_folder(tmp_path, tensors))
    assert caught.value.expected == missing
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "rank"),
    [
        ({"r": 1}, 1),
        ({"r": 4}, 4),
        ({"r": 2, "rank_pattern": {"middle": 3}}, 3),
        ({"r": 8, "rank_pattern": {"mid.*": 2}}, None),
        ({"r": 2, "rank_pattern": {"iddle": 3}}, None),
    ],
)
def test_a_rank_other_than_that_of_peft_s_tensors(
    tmp_path: Path, options: dict[str, Any], rank: int | None
) -> None:
    folder = peft_folder(tmp_path, middle(2), **options)
    if rank is None:
        assert nn.load_lora(Tied(), folder) == ["middle"]
        return
    with pytest.raises(RecordError, match="peft's adapter cannot be read") as caught:
        nn.load_lora(Tied(), folder)
    assert (caught.value.expected, caught.value.found) == (
        f"rank {rank}, as adapter_config.json says",
        "rank 2",
    )


def test_an_adapter_of_an_embedding_with_max_norm_is_not_merged() -> None:
    """Peft limits the norm of the base's rows, not of the sums: no merged weight computes that."""
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4, max_norm=1.0), torch.nn.Linear(4, 4))
    nn.lora(model, rank=2, targets=["0", "1"])
    randomize(model)
    ids = torch.arange(5)
    outputs = model(ids)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConfigError, match="max_norm cannot be merged") as caught:
        nn.merge_lora(model)
    assert (caught.value.where, caught.value.found) == ("0", "max_norm=1.0")
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(ids), outputs)


def test_an_adapter_folder_without_weights_says_what_is_there(tmp_path: Path) -> None:
    peft_folder(tmp_path, middle()).joinpath("adapter_model.safetensors").unlink()
    with pytest.raises(RecordError, match="no weights of an adapter") as caught:
        nn.load_lora(Tied(), tmp_path)
    assert caught.value.expected == "adapter_model.safetensors or adapter_model.bin"
    assert caught.value.found == "adapter_config.json"


@pytest.mark.parametrize("kdim", [None, 6])
def test_the_weights_of_attention_are_computed_once(
    kdim: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.MultiHeadAttention(8, 2, kdim=kdim, vdim=kdim)
    nn.lora(layer, rank=2)
    read: list[str] = []
    change = adapter._change
    monkeypatch.setattr(adapter, "_change", lambda layer, name: read.append(name) or change(layer, name))
    x = torch.randn(2, 3, 8)
    layer(x) if kdim is None else layer(x, torch.randn(2, 3, 6))
    assert sorted(read) == sorted(layer.lora_adapter.weights)
