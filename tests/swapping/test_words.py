"""What `swap` takes and reports: names in `only=` and `skip=`, batches of `verify=`, the margin, refusals."""

import pytest
import torch
from torch import nn

import burnt
from burnt.errors import SwapError
from burnt.swapping import measure
from tests.messages import raises


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.into, self.act = nn.LayerNorm(4), nn.Linear(4, 4), nn.SiLU()

    def forward(self, x):
        return self.act(self.into(self.norm(x)))


def model():
    return nn.Sequential(Unit(), nn.Linear(4, 4), nn.LayerNorm(4), Unit())


def waiting(**settings):
    return burnt.swap(model(), **settings).waiting


def test_classes_stand_for_their_modules_with_all_below():
    assert waiting(only="LayerNorm") == ["0.norm", "2", "3.norm"]
    assert waiting(only="Unit") == ["0.norm", "0.into", "0.act", "3.norm", "3.into", "3.act"]
    assert waiting(only=["Unit", "2"], skip=["Linear", "SiLU"]) == ["0.norm", "2", "3.norm"]
    assert waiting(skip="Unit") == ["1", "2"]
    assert waiting(skip="Sequential") == []


@pytest.mark.parametrize("settings", [{"only": []}, {"skip": "*"}, {"skip": ["Unit", "1", "2"]}])
def test_the_report_says_that_all_was_left_out(settings):
    report = burnt.swap(model(), **settings)
    assert "only= and skip= exclude all 8 layers that burnt has kernels for" in str(report)
    assert "no layers that burnt has kernels for" in str(burnt.swap(nn.Tanh()))


@pytest.mark.parametrize("given", ["x", None, nn.Linear])
def test_there_is_nothing_to_unswap(given):
    with pytest.raises(SwapError, match=r"(?s)expected +a torch.nn.Module.*found +(str|NoneType|type)"):
        burnt.unswap(given)


@pytest.mark.parametrize("batch", [torch.ones(3), (torch.ones(3),), {"x": torch.ones(3)}])
def test_a_batch_that_the_model_does_not_take(batch):
    with raises(SwapError, "the model must work with it before swap"):
        burnt.swap(model(), verify=batch)


def test_nothing_is_measured_on_meta():
    plain, empty = model(), model().to("meta")
    for given, batch, what in (
        (plain, torch.ones(2, 4, device="meta"), "batch of verify="),
        (plain, {"x": torch.ones(2, 4, device="meta")}, "batch of verify="),
        (empty, torch.ones(2, 4), "model"),
    ):
        with pytest.raises(SwapError, match=f"the {what} is on the meta device"):
            burnt.swap(given, verify=batch)
    assert type(plain[1]) is nn.Linear


def test_the_margin_is_said_where_it_decides(always, monkeypatch):
    def why(speed):
        return measure._too_slow(measure.Timing((1, 1), (1, 1), speed, (speed, speed), 6))

    monkeypatch.setattr(measure, "_GAIN", 1.02)
    assert why(0.943) == "0.94 times as fast"
    assert why(1.0199) == "1.019 times as fast; 1.02 is required"
    monkeypatch.setattr(measure, "_GAIN", 1e9)
    report = burnt.swap(model(), verify=torch.ones(2, 4))
    assert all("times as fast" in why for why in report.left.values())


# --- what goes on around a model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts_are_left_alone():
    layers = nn.Linear(4, 4), nn.RMSNorm(4), nn.LayerNorm(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
    for layer in layers:
        whole = nn.Sequential(torch.jit.script(layer), nn.ReLU(), nn.Linear(4, 4))
        assert burnt.swap(whole).waiting == ["2"]
        assert burnt.swap(torch.jit.script(nn.Sequential(layer, nn.ReLU()))).rows == []


@pytest.fixture
def recorded():
    """The classes of the modules whose calls a global module hook sees, while it is registered."""
    seen: list[str] = []
    handles: list[torch.utils.hooks.RemovableHandle] = []

    def begin():
        seen.clear()
        hook = nn.modules.module.register_module_forward_hook
        handles.append(hook(lambda module, args, result: seen.append(type(module).__name__)))
        return seen

    yield begin
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("kind", ["feed_forward", "conv_block"])
def test_global_module_hooks_see_the_layers_alone(always, recorded, kind, settled):
    if kind == "feed_forward":
        block, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(2, 8)
    else:
        block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
        x = torch.randn(2, 3, 8, 8)
    names = [*(type(layer).__name__ for layer in block), "Sequential"]
    report = burnt.swap(block, mode="infer", only=kind)
    with torch.no_grad():
        expected = block(x) if settled else None
        seen = recorded()
        result = block(x)
        assert seen == names
        assert block(x).shape == result.shape
    assert report.swapped == [""]
    if settled:
        torch.testing.assert_close(result, expected)


def test_global_module_hooks_see_a_gated_units_activation(always, recorded):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=8, intermediate_size=12, num_attention_heads=2)
    unit = transformers.models.llama.modeling_llama.LlamaMLP(config)
    report = burnt.swap(unit, only="gated_unit")
    unit(torch.randn(2, 8))
    seen = recorded()
    unit(torch.randn(2, 8))
    assert report.swapped == [""]
    assert seen == ["Linear", "SiLUActivation", "Linear", "Linear", "LlamaMLP"]


def test_a_hook_of_all_modules_does_not_keep_logits_from_being_deferred(recorded):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2
    )
    whole, tokens = transformers.LlamaForCausalLM(config), torch.arange(6)[None]
    expected = whole(tokens, labels=tokens).loss
    seen = recorded()
    burnt.swap(whole, defer_logits=True)
    seen.clear()
    result = whole(tokens, labels=tokens)
    assert seen.count("Linear") == 8
    assert torch.is_tensor(result.logits)  # a hook expects tensors
    torch.testing.assert_close(result.loss, expected)
