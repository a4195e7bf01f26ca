"""Blocks in the manner of torchvision, timm and Hugging Face, swapped as wholes, next to themselves."""

import copy
import functools
import pickle
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import burnt
from burnt.errors import SwapError
from burnt.swapping.patterns import conv_linear_blocks, hf_layers

IMAGES = 2, 8, 9, 7


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """The classes below are of a library whose blocks are tried."""
    for module in (conv_linear_blocks, hf_layers):
        monkeypatch.setattr(module, "LIBRARIES", (__name__.partition(".")[0],))


class Residual(nn.Module):
    """torchvision's form: an activation that is used twice, and a shortcut with layers."""

    def __init__(self, channels, made, stride=1, act=nn.ReLU):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, made, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(made)
        self.relu = act()
        self.conv2 = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(made)
        self.downsample = None
        if stride > 1 or channels != made:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, made, 1, stride, bias=False), nn.BatchNorm2d(made)
            )

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Idle(nn.Module):
    """timm's form: places for layers that do nothing here, an activation for each step, and a gate."""

    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, 1, 1), nn.BatchNorm2d(channels)
        self.drop, self.act1 = nn.Identity(), nn.SiLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid())
        self.gate.forward = lambda x, gate=self.gate: x * nn.Sequential.forward(gate, x)
        self.act2 = nn.ReLU()

    def forward(self, x):
        result = self.act1(self.drop(self.bn1(self.conv1(x))))
        result = self.gate(self.bn2(self.conv2(result)))
        return self.act2(result + x)


class Inverted(nn.Module):
    """What comes in is added to what a chain of convolutions makes, and nothing follows."""

    def __init__(self, channels):
        super().__init__()
        wide = 2 * channels
        self.expand, self.bn1, self.act = nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6()
        self.deep = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.bn2, self.narrow, self.bn3 = (
            nn.BatchNorm2d(wide),
            nn.Conv2d(wide, channels, 1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        result = self.act(self.bn2(self.deep(self.act(self.bn1(self.expand(x))))))
        return self.bn3(self.narrow(result)) + x


class FeedForward(nn.Module):
    """A transformer's, with layers that drop."""

    def __init__(self, size=6, p=0.5):
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(size, 4 * size), nn.GELU(), nn.Dropout(p)
        self.fc2, self.drop2 = nn.Linear(4 * size, size), nn.Dropout(p)

    def forward(self, hidden):
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1(hidden)))))


def chain():
    return nn.Sequential(
        nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.Hardswish(), nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Conv2d(4, 3, 1), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip


def same():
    """Convolutions whose padding is a word."""
    return nn.Sequential(
        nn.Conv2d(8, 6, (3, 5), padding="same", dilation=2), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 4, 3, stride=2, padding="valid"), nn.BatchNorm2d(4), nn.ReLU(),
    )  # fmt: skip


# The block, and the layers that become part of its kernels.
BLOCKS = {
    "residual": (lambda: Residual(8, 8), {"conv1", "bn1", "relu", "conv2", "bn2"}),
    "residual with a shortcut": (lambda: Residual(8, 6, 2), {"conv1", "bn1", "relu", "conv2", "bn2"}),
    "residual with GELU": (lambda: Residual(8, 8, act=nn.GELU), {"conv1", "bn1", "relu", "conv2", "bn2"}),
    "idle layers": (lambda: Idle(8), {"conv1", "bn1", "drop", "act1", "conv2", "bn2"}),
    "inverted": (lambda: Inverted(8), {"expand", "bn1", "act", "deep", "bn2", "narrow", "bn3"}),
    "chain": (chain, {"0", "1", "2", "4", "5", "7", "8"}),
    "padding by words": (same, {"0", "1", "2", "3", "4", "5"}),
}


def trained(model):
    """With statistics as of a training, that tell one layer from another."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return model.eval()


def close(made, wanted):
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.sample
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("name", BLOCKS)
def test_evaluated_it_gives_the_same(always, name, form):
    make, inside = BLOCKS[name]
    model = trained(make()).to(memory_format=form)
    x = torch.randn(IMAGES).to(memory_format=form)
    with torch.no_grad():
        wanted = model(x)
        report = burnt.swap(model, mode="infer", verify=x)
        assert "" in report.swapped, report
        parts = {row.path for row in report.rows if row.state == "part" and "." not in row.path}
        assert parts == inside & {row.path for row in report.rows}, report
        before = x.clone()
        close(model(x), wanted)
        assert torch.equal(x, before)
        smaller = torch.randn(1, 8, 11, 5).to(memory_format=form)
        result = model(smaller)
        burnt.unswap(model)
        close(result, model(smaller))


@pytest.mark.parametrize("name", BLOCKS)
def test_tails_are_part_of_kernels(always, name, monkeypatch):
    make, inside = BLOCKS[name]
    model = trained(make())
    called, plain = [], {}

    def forward(self, *args):
        called.append(self)
        return plain[type(self)](self, *args)

    with torch.no_grad():
        burnt.swap(model, mode="infer", verify=torch.randn(IMAGES))
        for cls in {type(module) for module in model.children()}:
            plain[cls] = cls.forward
            monkeypatch.setattr(cls, "forward", forward)
        model(torch.randn(IMAGES))
    named = {name for name, module in model.named_children() if any(module is c for c in called)}
    assert named == {name for name, _ in model.named_children()} - inside


def changed_tensors(model):
    model.bn1.running_mean.add_(1)
    model.conv2.weight.mul_(2)
    model.bn2.weight = nn.Parameter(torch.rand(8))


def exchanged_layer(model):
    model.bn1 = nn.Identity()


@pytest.mark.parametrize("change", [changed_tensors, exchanged_layer])
def test_changed_statistics_and_layers_are_noticed(always, change):
    model = trained(Residual(8, 8)).to(memory_format=torch.channels_last)
    x = torch.randn(IMAGES).to(memory_format=torch.channels_last)
    with torch.no_grad():
        burnt.swap(model, mode="infer", verify=x)
        model(x)
        change(model)
        result = model(x)
        burnt.unswap(model)
        close(result, model(x))


def test_trained_it_is_the_original(always):
    model = trained(Residual(8, 6, 2))
    plain = copy.deepcopy(model)
    x = torch.randn(IMAGES)
    with torch.no_grad():
        burnt.swap(model, mode="infer", verify=x)
    for training in (True, False):  # with fixed statistics and gradients, too
        for each in (model, plain):
            each.train(training).zero_grad()
            each(x).square().sum().backward()
        close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
        close(list(model.buffers()), list(plain.buffers()))


def test_to_train_its_layers_are_the_sites(always):
    model = Residual(8, 8)
    report = burnt.swap(model, mode="train", verify=torch.randn(IMAGES))
    assert report.swapped == ["conv1", "bn1", "conv2", "bn2"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_swapped(always, copied):
    model = trained(Residual(8, 8))
    x = torch.randn(IMAGES)
    with torch.no_grad():
        wanted = model(x)
        burnt.swap(model, mode="infer", verify=x)
        again = copied(model)
        close(again(x), wanted)
        burnt.unswap(again)
        assert torch.equal(again(x), wanted)


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("act", [nn.GELU(), nn.GELU("tanh"), nn.ReLU(), nn.SiLU()], ids=repr)
def test_feed_forward(always, act, mode):
    model, x = FeedForward(p=0.0), torch.randn(3, 5, 6, requires_grad=True)
    model.act = act
    wanted = model(x)
    gradients = torch.autograd.grad(wanted.square().sum(), [x, *model.parameters()])
    report = burnt.swap(model, mode=mode, verify=x.detach())
    assert "" in report.swapped
    assert {row.path for row in report.rows if row.state == "part"} == {"fc1", "act"} & {
        r.path for r in report.rows
    }
    result = model(x)
    close(result, wanted)
    close(torch.autograd.grad(result.square().sum(), [x, *model.parameters()]), gradients)


def test_layers_that_drop_do(always):
    model, x = FeedForward(), torch.randn(3, 6)
    torch.manual_seed(1)
    wanted = model(x)
    burnt.swap(model, only="feed_forward", verify=x)
    torch.manual_seed(1)
    close(model(x), wanted)
    assert (wanted == 0).any()


def hidden(self, x):
    return self.act(self.fc1(x))


# What a block does besides calling its layers in turn.
FORWARDS = {
    "dropout": lambda self, x: self.fc2(F.dropout(hidden(self, x), 0.5, self.training)),
    "a factor": lambda self, x: self.fc2(0.5 * hidden(self, x)),
    "as long": lambda self, x: functools.reduce(lambda y, _: self.fc2(hidden(self, y)), range(len(x)), x),
    "read twice": lambda self, x: self.fc2(self.act(y := self.fc1(x))) + self.fc2(y),
    "detached": lambda self, x: self.fc2(hidden(self, x).detach()),
    "frozen": lambda self, x: self.fc2(torch.no_grad()(hidden)(self, x)),
    "autocast": lambda self, x: torch.autocast("cpu", torch.bfloat16)(FeedForward.forward)(self, x),
    "random": lambda self, x: x if self.training and torch.rand(()) < 0 else FeedForward.forward(self, x),
    "Python's random": lambda self, x: x if random.random() < 0 else FeedForward.forward(self, x),
}


class Weighed(FeedForward):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, hidden):
        return hidden + self.alpha * super().forward(hidden)


@pytest.mark.parametrize("name", [*FORWARDS, "weighed"])
def test_what_does_more_is_left_to_its_layers(always, name):
    cls = type("Odd", (FeedForward,), {"forward": FORWARDS[name]}) if name in FORWARDS else Weighed
    model, x = cls(p=0.0).eval(), torch.randn(3, 4, 6)
    wanted = model(x)
    report = burnt.swap(model, mode="infer", verify=x)
    assert "" not in [row.path for row in report.rows]
    tolerance = 1e-2 if name == "autocast" else 1e-5
    torch.testing.assert_close(model(x), wanted, rtol=tolerance, atol=tolerance)


def test_ones_own_classes_are_not_tried(always, monkeypatch):
    monkeypatch.setattr(conv_linear_blocks, "LIBRARIES", ("torch",))
    assert "" not in [row.path for row in burnt.swap(FeedForward()).rows]
    assert "" in [row.path for row in burnt.swap(nn.Sequential(nn.Linear(3, 4), nn.ReLU())).rows]


def test_trying_leaves_no_trace():
    class Counting(FeedForward):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, hidden):
            self.seen.append(hidden)
            random.random(), torch.rand(1)
            return super().forward(hidden)

    model = Counting()
    states = random.getstate(), torch.get_rng_state()
    burnt.swap(model)
    assert not model.seen
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


def test_other_arguments_go_to_the_original(always):
    class Masked(FeedForward):
        def forward(self, hidden, mask=None):
            hidden_states = super().forward(hidden)
            return hidden_states if mask is None else hidden_states * mask

    model, x = Masked(p=0.0), torch.randn(3, 6)
    wanted = model(x)
    assert "" in burnt.swap(model, verify=x).swapped
    close(model(hidden=x), wanted)
    close(model(x, torch.zeros(1)), torch.zeros(3, 6))


def test_settings_of_the_block_count(always):
    class Set(FeedForward):
        scale = 1.0

        def __init__(self):
            super().__init__(p=0.0)
            self.scale = 1.0

        def forward(self, hidden):
            return super().forward(hidden if self.scale == 1 else hidden * self.scale)

    model, x = Set(), torch.randn(3, 6)
    assert "" in burnt.swap(model, verify=x).swapped
    model.scale = 2.0
    result = model(x)
    burnt.unswap(model)
    close(result, model(x))


def test_recorded_and_transformed_calls_are_the_originals(always):
    model, x = trained(Residual(8, 8)), torch.randn(IMAGES)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        burnt.swap(model, mode="infer", verify=x)
        weights = {name: torch.stack([p, 2 * p]) for name, p in plain.named_parameters()}

        def call(given, of):
            return torch.func.functional_call(of, given, (x,))

        result, wanted = (torch.vmap(lambda w, of=of: call(w, of))(weights) for of in (model, plain))
        close(result, wanted)
        for factor in range(20):
            other = {"bn1.weight": torch.full((8,), float(factor))}
            close(call(other, model), call(other, plain))
        model.bn1.weight.data.mul_(3)
        plain.bn1.weight.data.mul_(3)
        model.conv2.weight.data.mul_(3)
        plain.conv2.weight.data.mul_(3)
        close(model(x), plain(x))
        close(torch.jit.trace(model, (x,))(x), plain(x))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_no_number_stays(always, name):
    model, x = trained(BLOCKS[name][0]()), torch.randn(IMAGES)
    with torch.no_grad():
        burnt.swap(model, mode="infer", verify=x)
        x[1, 2, 3, 4] = torch.nan
        result = model(x)
        burnt.unswap(model)
        assert result.isnan().any()
        assert torch.equal(result.isnan(), model(x).isnan())


def test_under_inference_mode_and_autocast(always):
    model, x = trained(Residual(8, 8)).to(memory_format=torch.channels_last), torch.randn(IMAGES)
    with torch.inference_mode():
        wanted = model(x)
        assert "" in burnt.swap(model, mode="infer", verify=x).swapped
        close(model(x), wanted)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = model(x)
        burnt.unswap(model)
        assert result.dtype == model(x).dtype
        torch.testing.assert_close(result, model(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["convolutions", "feed-forward", "feed-forward under autocast"])
def test_16_bits(always, kind):
    cast = "autocast" in kind
    model, x = FeedForward(p=0.0), torch.randn(32, 6)
    if kind == "convolutions":
        model, x = trained(Residual(8, 8)).requires_grad_(False), torch.randn(IMAGES)
    if not cast:
        model, x = model.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        wanted = model(x)
        assert "" in burnt.swap(model, mode="infer" if kind == "convolutions" else "train", verify=x).swapped
        result = model(x)
    assert result.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(result, wanted, rtol=0.05, atol=0.05)


def test_one_image_without_a_batch(always):
    model = trained(nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU()))
    with torch.no_grad():
        burnt.swap(model, mode="infer", verify=torch.randn(2, 8, 8))
        x = torch.randn(8, 8)
        result = model(x)
        burnt.unswap(model)
        close(result, model(x))


class Projection(nn.Module):
    """Two convolutions whose norms are added up."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2, self.act = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()

    def forward(self, x):
        return self.act(self.bn1(self.conv1(x)) + self.bn2(self.conv2(x)))


class Gated(nn.Module):
    """What is added is broadcast, after a layer that works in place."""

    def __init__(self):
        super().__init__()
        self.first, self.conv, self.bn = nn.SiLU(inplace=True), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.first(x)
        return self.bn(self.conv(x)) + self.pool(x)


@pytest.mark.parametrize("cls", [Projection, Gated])
def test_sums(always, cls):
    model, x = trained(cls()), torch.randn(IMAGES)
    with torch.no_grad():
        wanted = model(x.clone())
        assert "" in burnt.swap(model, mode="infer", verify=x.clone()).swapped
        close(model(x), wanted)


class Below(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()
        self.pre = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1))

    def forward(self, x):
        hidden_states, other = self.conv(x), self.pre(x)
        return self.act(self.bn(hidden_states) + other)


class Before(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.conv, self.bn = nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x):
        return self.bn(self.conv(self.act(x))) + x


@pytest.mark.parametrize("cls", [Below, Before])
def test_what_is_changed_in_place_and_read_again(always, cls):
    model, x = trained(cls()), torch.randn(IMAGES)
    with torch.no_grad():
        wanted = model(x.clone())
        report = burnt.swap(model, mode="infer", verify=x.clone())
        assert "" not in [row.path for row in report.rows]
        close(model(x), wanted)


def parametrized(model):
    nn.utils.parametrizations.weight_norm(model.fc1)
    with torch.no_grad():
        model.fc1.parametrizations.weight.original0.mul_(2)


CHANGES = {
    "hooked": lambda model: model.act.register_forward_hook(lambda module, args, result: 2 * result),
    "hooked before": lambda model: model.fc1.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
    "own forward": lambda model: setattr(model.act, "forward", torch.tanh),
    "pruned": lambda model: prune.l1_unstructured(model.fc1, "weight", 0.5),
    "parametrized": parametrized,
    "set otherwise": lambda model: setattr(model.act, "approximate", "tanh"),
    "another class": lambda model: setattr(model, "act", nn.Tanh()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_afterwards_counts(always, change):
    model, x = FeedForward(p=0.0), torch.randn(3, 6)
    burnt.swap(model, verify=x)
    before = model(x)
    CHANGES[change](model)
    result = model(x)
    assert not torch.equal(result, before)
    burnt.unswap(model)
    close(result, model(x))


@pytest.mark.parametrize("change", ["hooked", "hooked before", "own forward"])
def test_layers_that_the_user_changed_before(always, change):
    model, x = FeedForward(p=0.0), torch.randn(3, 6)
    CHANGES[change](model)
    wanted = model(x)
    report = burnt.swap(model, verify=x)
    assert report.left[""] == "a layer in it has hooks or its own forward, which would not be called"
    close(model(x), wanted)


@pytest.mark.parametrize("skip", ["gelu", "fc1", "feed_forward"])
def test_what_is_skipped_is_no_part(always, skip):
    model = FeedForward(p=0.0)
    report = burnt.swap(model, skip=skip, verify=torch.randn(3, 6))
    assert "" not in [row.path for row in report.rows]
    assert "fc2" in report.swapped


def test_the_report_tells_what_is_part(always):
    model = nn.Sequential(FeedForward(p=0.0), FeedForward(p=0.0))
    report = burnt.swap(model, verify=torch.randn(3, 6))
    assert report.left == {}
    assert "4 part of these" in str(report)
    (line,) = [line for line in str(report).splitlines() if "*.fc1" in line or "0.fc1, 1.fc1" in line]
    assert line.endswith("of *")


class TurnedNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class OwnNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


class InTraining(nn.LayerNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)


class NoNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + x


@pytest.mark.parametrize(("cls", "shape"), [(TurnedNorm, (2, 6, 5, 4)), (OwnNorm, (2, 5, 6))])
def test_layer_norms_with_a_forward_of_their_own(always, cls, shape):
    model, x = cls(6), torch.randn(shape, requires_grad=True)
    nn.init.normal_(model.weight)
    nn.init.normal_(model.bias)
    wanted = model(x)
    gradients = torch.autograd.grad(wanted.square().sum(), [x, *model.parameters()])
    report = burnt.swap(model, verify=x.detach())
    assert [(row.kind, row.state) for row in report.rows] == [("layer_norm_by_hand", "swapped")]
    result = model(x)
    close(result, wanted)
    close(torch.autograd.grad(result.square().sum(), [x, *model.parameters()]), gradients)


@pytest.mark.parametrize("cls", [NoNorm, InTraining])
def test_what_only_looks_like_a_layer_norm(cls):
    assert burnt.swap(cls(6).eval()).rows == []


def test_layer_norms_of_other_ranks_are_the_originals(always):
    model, x = TurnedNorm(6), torch.randn(2, 6, 5, 4)
    burnt.swap(model, verify=x)
    with pytest.raises(RuntimeError, match="permute"):
        model(x[0])
    close(model(x=x), TurnedNorm(6)(x))


def test_to_train_there_are_no_folded_norms():
    with pytest.raises(SwapError, match="faster only in inference"):
        burnt.swap(Residual(8, 8), mode="train", only="conv_block")
