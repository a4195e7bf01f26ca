"""The whole model is timed at the end, without effects on it; the original is restored where it is faster."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import burnt
from burnt.swapping import measure
from burnt.swapping.kind import is_swapped

FASTER = [2e-3], [1e-3]


class Model(nn.Module):
    """Layers of several kinds, with state that a call changes."""

    def __init__(self):
        super().__init__()
        self.norm, self.run, self.into = nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.shape)
        return nn.functional.dropout(self.into(self.run(self.norm(x))), 0.5, self.training)


def swapped_paths(model):
    return [path for path, module in model.named_modules() if is_swapped(module)]


def test_a_slower_model_gets_its_original_back(give_times):
    give_times(*FASTER, whole=([1e-3], [1.25e-3]))
    model = Model()
    original = copy.deepcopy(model)
    report = burnt.swap(model)
    model(torch.randn(5, 4))
    assert swapped_paths(model) == report.swapped == []
    assert set(report.left.values()) == {"the whole model is 0.80 times as fast swapped"}
    assert report.whole.restored
    lines = str(report).splitlines()
    assert lines[0] == "3 sites, mode='train': 3 unchanged"
    assert lines[1] == (
        "the whole model: 0.80x (0.80-0.80, 6 samples)  1 -> 1.25 ms, forward and backward in training mode"
    )
    assert lines[2] == "  slower beyond the scatter of the samples: the original was restored"
    burnt.unswap(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]


@pytest.mark.parametrize(
    ("original", "swapped", "speed"),
    [
        ([1e-3], [1e-3], 1),
        ([1e-3], [0.5e-3], 2),
        ([1.2e-3, 0.9e-3], [1e-3], 1.05),
        ([0.8e-3, 1.1e-3], [1e-3], 0.95),
    ],
)
def test_a_model_that_is_not_surely_slower_stays_swapped(give_times, original, swapped, speed):
    give_times(*FASTER, whole=(original, swapped))
    model = Model()
    report = burnt.swap(model)
    model(torch.randn(5, 4))
    assert swapped_paths(model) == report.swapped == ["norm", "run", "into"]
    assert not report.whole.restored
    assert report.whole.timing.speed == pytest.approx(speed)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_timing_leaves_no_trace(always, training, grad):
    torch.manual_seed(3)
    model = Model().train(training)
    plain = copy.deepcopy(model)
    x = torch.randn(5, 4, requires_grad=grad)
    hooks = []
    model.register_forward_hook(lambda *args: hooks.append("forward"))
    model.into.weight.register_hook(lambda gradient: hooks.append("weight"))
    report = burnt.swap(model)
    results, random = [], []
    for each in model, plain:
        torch.manual_seed(5)
        with torch.set_grad_enabled(grad):
            results.append(each(x))
        random.append(torch.get_rng_state())
    torch.testing.assert_close(*results)
    assert torch.equal(*random)
    torch.testing.assert_close(list(model.buffers()), list(plain.buffers()))
    assert (model.calls, model.seen) == (plain.calls, plain.seen) == (1, [x.shape])
    assert x.grad is None
    assert all(p.grad is None for p in model.parameters())
    assert hooks == ["forward"]
    steps = "forward and backward" if grad else "forward"
    assert report.whole.how == f"{steps} in {'training' if training else 'evaluation'} mode"
    assert not any("FirstCall" in str(hook) for hook in model._forward_hooks.values())


def test_a_forward_alone_is_timed_in_inference(always):
    model = Model()
    report = burnt.swap(model, mode="infer", verify=torch.randn(5, 4))
    assert report.whole.how == "forward in evaluation mode"
    assert (model.calls, model.training) == (0, True)


def test_the_loss_is_what_the_backward_starts_from(always, monkeypatch):
    class WithLoss(nn.Sequential):
        def forward(self, x):
            y = super().forward(x)
            return {"loss": y.sum(), "logits": y}

    roots, backward = [], measure.Call.backward

    def recorded(call, outputs):
        roots.append([t.dim() for t in outputs])
        return backward(call, outputs)

    monkeypatch.setattr(measure.Call, "backward", recorded)
    report = burnt.swap(model := WithLoss(nn.LayerNorm(4)))
    model(torch.randn(3, 4))
    assert report.whole.timing is not None
    assert roots[-1] == [0]


def test_a_slow_model_is_not_timed_and_the_report_says_so(always, monkeypatch):
    monkeypatch.setattr(measure.Call, "once", lambda call: 3.12 if list(call.module.children()) else 1e-3)
    report = burnt.swap(model := Model())
    model(torch.randn(5, 4))
    assert report.whole.timing is None
    assert "\nthe whole model was not timed: a call takes 3.1 s, and some 15 are needed\n" in str(report)
    assert len(report.swapped) == 3


def test_progress_is_shown_where_it_takes_long(give_times, monkeypatch, capsys):
    give_times(*FASTER)
    monkeypatch.setattr(measure.Call, "once", lambda call: 1.2 if list(call.module.children()) else 1e-3)
    burnt.swap(model := Model())
    model(torch.randn(5, 4))
    assert capsys.readouterr().err == "burnt.swap times the whole model, for some 18 s\n"


def test_a_call_that_cannot_be_repeated(always):
    class Once(Model):
        def forward(self, x, cache):
            if cache:
                raise RuntimeError("already\nused")
            return super().forward(x)

    report = burnt.swap(model := Once())
    model(torch.randn(5, 4), object.__new__(type("Cache", (), {"__bool__": lambda self: False})))
    assert report.whole.why == "its call cannot be repeated: its argument cache is a Cache"

    class Twice(Model):
        def forward(self, x):
            if not hasattr(self, "norm_done"):
                self.norm_done = [1]
                return super().forward(x)
            raise RuntimeError("only\nonce")

    report = burnt.swap(model := Twice())
    model(torch.randn(5, 4))
    assert report.whole.why == "its call cannot be repeated: RuntimeError: only"
    assert len(report.swapped) == 3


def test_checkpointed_layers_are_not_exchanged_before_the_backward(always, monkeypatch):
    """A checkpoint compares what its second forward saves with what the first has saved."""
    monkeypatch.setattr(measure.Timing, "is_slower", property(lambda timing: True))

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=False)

    model, x = Checkpointed(), torch.randn(2, 5, 4, requires_grad=True)
    report = burnt.swap(model)
    model(x).sum().backward()
    assert x.grad is not None
    assert "layer.norm1" in report.swapped
    assert report.whole.why.startswith("slower, but not restored: checkpointing may call layers again")


def test_a_wrapper_that_counts_backwards_is_not_called_again(always, process_group):
    model = nn.parallel.DistributedDataParallel(Model(), find_unused_parameters=True)
    report = burnt.swap(model)
    for _ in range(2):
        model(torch.randn(5, 4)).sum().backward()
    assert len(report.swapped) == 3
    assert report.whole.why == "a DistributedDataParallel expects a backward after each call"


def test_a_model_that_looks_at_its_hooks(always):
    """torch computes this layer by one call of its own, unless it has hooks."""
    x, calls = torch.randn(2, 5, 8), []
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model.linear1.forward = lambda x: calls.append(x)
    report = burnt.swap(model, mode="infer", skip="encoder_layer")
    with torch.no_grad():
        model(x)
    assert (calls, report.whole) == ([], None)


def test_a_call_in_inference_mode(always):
    report = burnt.swap(model := Model(), mode="infer")
    with torch.inference_mode():
        model(torch.randn(5, 4))
    assert report.whole.timing is not None


def test_layers_that_still_wait_are_restored_too(give_times):
    give_times(*FASTER, whole=([1e-3], [2e-3]))
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    report = burnt.swap(model)
    model(torch.randn(5, 4))
    assert swapped_paths(model) == []
    assert list(report.left) == ["0", "1"]
