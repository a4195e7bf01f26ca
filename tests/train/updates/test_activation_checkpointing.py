"""Activation checkpointing: less is stored, and nothing else changes, to the bit."""

import gc

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import burnt.nn
from burnt import Gradients, optim
from burnt.data import Loader, TensorDataset
from burnt.errors import ConfigError, ShapeError
from burnt.train import Learner, StepOutput
from burnt.train.updates.activation_checkpointing import checkpointed, select_modules
from tests.train.cases import refused, supervised


class Block(burnt.Module):
    norm: burnt.nn.BatchNorm
    linear: burnt.nn.Linear
    dropout: burnt.nn.Dropout

    def forward(self, x):
        return x + self.dropout(torch.tanh(self.linear(self.norm(x))))


class Net(burnt.Module):
    layers: nn.ModuleList
    head: burnt.nn.Linear

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def net(depth: int = 3) -> Net:
    torch.manual_seed(0)
    blocks = [
        Block(burnt.nn.BatchNorm(8), burnt.nn.Linear(8, 8), burnt.nn.Dropout(0.3)) for _ in range(depth)
    ]
    return Net(nn.ModuleList(blocks), burnt.nn.Linear(8, 2))


def transformer() -> nn.Module:
    torch.manual_seed(0)
    encoder = burnt.nn.TransformerEncoder(8, num_heads=2, d_ff=16, num_layers=2, dropout=0.2)
    return nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Linear(4, 8), encoder, nn.Flatten(), nn.Linear(16, 2))


def step(model, batch) -> StepOutput:
    logits = model(batch.x)
    return StepOutput(nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


def train(folder, model, **settings):
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(
        x=torch.randn(12, 8, generator=generator), y=torch.randint(2, (12,), generator=generator)
    )
    defaults = {"train": Loader(data, 4), "valid": Loader(data, 12), "duration": "2 epochs", "seed": 0}
    training = supervised(folder, {**defaults, "checkpoints": None}, **settings)
    return training.run(Learner(model, optim.AdamW(), 0.01, step=step))


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "bfloat16 whole"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("build", "pattern"), [(net, "layers.*"), (net, "layers.0|layers.2.dropout"), (transformer, "2.layers.*"),
                           (transformer, "2")],
)  # fmt: skip
def test_a_training_is_the_same_to_the_bit(tmp_path, precision, accumulate, build, pattern):
    settings = {"precision": precision, "accumulate": accumulate}
    plain = train(tmp_path / "plain", build(), **settings)
    model = build()
    paths = [path for path, _ in model.named_modules()]
    result = train(tmp_path / "run", model, checkpoint_activations=pattern, **settings)
    expected = plain.model.state_dict()
    for path, value in result.model.state_dict().items():  # running statistics are updated once
        assert torch.equal(value, expected[path]), path
    assert result.values == plain.values
    assert [path for path, _ in model.named_modules()] == paths
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_less_is_stored():
    x = torch.randn(64, 8)
    stored = {}
    for pattern in (None, "layers.*"):
        model, sizes = net(8), []

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with checkpointed(model, pattern), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(x).sum()
        stored[pattern] = sum(sizes)
    assert stored["layers.*"] < 0.4 * stored[None]


def test_activations_are_freed_at_once():
    """A recomputation ends with an exception, whose frames hold tensors: no reference cycle may keep it."""
    model, x = net(4), torch.randn(16, 8)
    with checkpointed(model, "layers.*"):
        Gradients.of(model(x).sum(), model)  # the process's first traces have cycles
        for _ in range(2):  # the first call of an op is another path
            gc.collect()
            gc.disable()
            try:
                Gradients.of(model(x).sum(), model)
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                kept = [found for found in gc.garbage if isinstance(found, torch.Tensor)]
                assert not [found for found in kept if not isinstance(found, FakeTensor)]  # without memory
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()


def test_hooks_run_and_stay():
    model, seen = net(2), []
    model.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    own = model.layers[1].forward
    object.__setattr__(model.layers[1], "forward", own)  # as tools do that patch a module
    with checkpointed(model, "layers.*"):
        model(torch.randn(4, 8)).sum().backward()
        assert seen == [(4, 8)]
        assert model.layers[0].linear.weight.grad is not None
        with torch.no_grad():
            model(torch.randn(2, 8))
        model.eval()(torch.randn(3, 8))
    assert seen == [(4, 8), (2, 8), (3, 8)]
    assert model.layers[1].__dict__["forward"] is own
    assert "forward" not in model.layers[0].__dict__


def test_the_forward_comes_back_after_an_error():
    model = net(1)
    with pytest.raises(ShapeError), checkpointed(model, "layers.*"):
        model(torch.randn(4, 9))
    assert "forward" not in model.layers[0].__dict__


def test_the_outermost_modules_are_chosen():
    assert list(select_modules(net(), "layers.*")) == ["layers.0", "layers.1", "layers.2"]
    assert list(select_modules(net(), "*.linear")) == [f"layers.{i}.linear" for i in range(3)]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("layer.*", ["matches no module", "'layer.*'", "did you mean 'layers"]),
        ("layers", ["is never called", "layers", "a ModuleList", "did you mean 'layers.*'?"]),
    ],
)
def test_what_is_refused(tmp_path, pattern, words):
    with refused(ConfigError, *words):
        train(tmp_path / "run", net(), checkpoint_activations=pattern)
    assert not (tmp_path / "run").exists()


def test_a_part_of_a_pattern_that_matches_nothing_is_a_warning():
    with pytest.warns(UserWarning, match=r"'decoder\.\*' in the pattern .* matches no module"):
        select_modules(net(), "layers.*|decoder.*")


class Drifting(nn.Module):
    """Outputs depend on a buffer that the forward pass changes, in place or by assigning another."""

    def __init__(self, in_place: bool):
        super().__init__()
        self.linear, self.in_place = nn.Linear(4, 4), in_place
        self.register_buffer("factor", torch.ones(()))

    def forward(self, x):
        if self.in_place:
            self.factor.mul_(2)
        else:
            self.factor = self.factor * 2
        return torch.tanh(self.linear(x) * self.factor.clone())


@pytest.mark.parametrize("in_place", [True, False])
def test_a_pass_that_is_repeated_starts_from_the_same_buffers(in_place):
    torch.manual_seed(0)
    model, x = nn.Sequential(Drifting(in_place)), torch.randn(3, 4)
    stored = Gradients.of(model(x).sum(), model)
    model[0].factor = torch.ones(())
    with checkpointed(model, "0"):
        loss = model(x).sum()
        repeated = [Gradients.of(loss, model, retain_graph=True), Gradients.of(loss, model)]
    for gradients in repeated:
        assert all(torch.equal(gradients[path], value) for path, value in stored.items())
    assert model[0].factor == 2
