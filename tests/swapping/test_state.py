"""What a call of a module changes is restored, by whatever means the module changes it."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt.errors import SwapError
from burnt.swapping.state import preserved_state


class Changing(nn.Module):
    """Changes one thing at each call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 6).view(2, 3))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("hidden", torch.full((1,), torch.nan), persistent=False)
        self.register_buffer("wide", torch.ones(1).expand(3))
        self.plain = torch.zeros(3)
        self.table = {"a": [torch.ones(2)]}
        self.calls, self.is_ready, self.late = 0, False, None
        self.generator = torch.Generator().manual_seed(3)
        self.unregistered = [nn.BatchNorm1d(3)]

    def forward(self, x):
        self.change(x.detach())
        return x @ self.weight.detach().T


def assign_data(module, x):
    module.weight.data = module.weight.data * 2


def change_data(module, x):
    module.weight.data.mul_(2)
    module.hidden.data.fill_(1)
    module.wide.data[:1] = 5


def change_in_place(module, x):
    with torch.no_grad():
        module.weight.clamp_(-1, 1)
        module.total += x.sum(0)


def bind_again(module, x):
    module.total = module.total + x.sum(0)
    module.plain = module.plain + 1
    module.calls += 1


def resize(module, x):
    module.total.resize_(5).fill_(1)


def change_attributes(module, x):
    module.plain += 1
    module.table["a"][0].add_(1)
    module.table["a"].append(x)
    module.table["b"] = x
    torch.rand(1, generator=module.generator)


def set_batch_norm_statistics(module, x):
    F.batch_norm(x, module.total, module.plain, training=True)
    module.unregistered[0](x)


def add_state(module, x):
    module.late = nn.Linear(3, 3)
    module.register_buffer("extra", x, persistent=False)
    module.bias = nn.Parameter(torch.ones(3))
    module.seen, module.is_ready = x, True


def change_mode(module, x):
    module.eval()
    module.unregistered[0].eval()


def draw(module, x):
    torch.rand(3), random.random(), np.random.rand()


CHANGES = [
    *(assign_data, change_data, change_in_place, bind_again, resize, change_attributes),
    *(set_batch_norm_statistics, add_state, change_mode, draw),
]


def state(value):
    """Everything reachable from a value, as comparable Python values."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.stride(), str(value.tolist())
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, nn.Module):
        return type(value), {name: state(v) for name, v in vars(value).items() if "_burnt" not in name}
    if isinstance(value, dict):
        return {name: state(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [state(v) for v in value]
    return value


def random_states():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


def identities(module):
    return [id(v) for v in (*module.parameters(), *module.buffers())]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_a_call_changes_is_restored(change):
    module, x = Changing(), torch.randn(4, 3)
    other = copy.deepcopy(module)
    before, kept = (state(module), random_states()), identities(module)
    change(other, x)
    assert (state(other), random_states()) != before  # the test would notice
    with preserved_state(module):
        change(module, x)
    assert state(module) == before[0]
    assert identities(module) == kept
    before = state(module), random_states()
    with pytest.raises(KeyError), preserved_state(module, on_host=True):
        raise KeyError(change(module, x))
    assert (state(module), random_states()) == before


@pytest.mark.parametrize("which", [{}, {"skip": "BatchNorm1d"}, {"only": "Linear"}], ids=str)
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_verify_leaves_the_models_state(always, which, mode):
    changing = Changing()
    changing.change = lambda x: [change(changing, x) for change in CHANGES if change is not resize]
    model = nn.Sequential(
        nn.Embedding(5, 3, max_norm=0.1),
        changing,
        nn.BatchNorm1d(2),
        nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
        nn.Linear(2, 2),
    )
    before, kept, generators = state(model), identities(model), random_states()
    burnt.swap(model, mode=mode, verify=torch.tensor([1, 2, 3]), **which)
    burnt.unswap(model)
    assert state(model) == before
    assert identities(model) == kept
    assert random_states() == generators


def test_a_model_that_fails_with_the_batch_has_its_state(always):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(4, 4))
    before = state(model)
    with pytest.raises(SwapError, match="the model fails with the batch of verify="):
        burnt.swap(model, verify=torch.randn(4, 3), skip="BatchNorm1d")
    assert state(model) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_and_inputs_made_in_inference_mode(always, dtype):
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval().to(dtype)
        x = torch.randn(3, 4, dtype=dtype)
        expected = model(x)
    report = burnt.swap(model, verify=x, mode="infer")
    assert report.swapped == ["0", "1"]
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
    burnt.unswap(model)
    with pytest.raises(SwapError, match="the model fails with the batch of verify=") as caught:
        burnt.swap(model, verify=x, mode="train")
    assert "nference tensor" in str(caught.value.found)


def test_a_failure_to_measure_is_not_blamed_on_the_model(always, monkeypatch):
    def fail(*_):
        raise RuntimeError("of the measurement")

    monkeypatch.setattr("burnt.swapping.site.measure", fail)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    before = state(model)
    with pytest.raises(SwapError, match="but burnt failed to measure it") as caught:
        burnt.swap(model, verify=torch.randn(3, 4))
    assert caught.value.found == "RuntimeError: of the measurement"
    assert [type(layer) for layer in model] == [nn.Linear, nn.LayerNorm]
    assert state(model) == before


def test_a_first_call_changes_no_more_than_one_call_does(always):
    """A user's layer is probed and measured with its own parameters and attributes."""

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps, self.shapes = nn.Parameter(torch.ones(3)), 1e-6, []

        def forward(self, x):
            self.weight.data.mul_(1 + 2**-20)
            self.shapes.append(x.shape)
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

    model, x = Norm(), torch.randn(2, 3)
    report = burnt.swap(model)
    assert model.weight.tolist() == [1, 1, 1]
    model(x)
    assert report.swapped == [""]
    assert model.weight.max() <= 1 + 2**-20
    assert len(model.shapes) <= 1


def test_tensors_that_a_call_leaves_alone_keep_their_version():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    versions = [t._version for t in (*model.parameters(), *model.buffers())]
    with preserved_state(model):
        model.eval()(torch.randn(2, 3))
    assert [t._version for t in (*model.parameters(), *model.buffers())] == versions
    with preserved_state(model):
        model(torch.randn(2, 3))
        model[0].weight.data.zero_()
    assert model[0].weight._version > versions[0]  # whoever has packed the zeros must pack again


@torch.inference_mode()
def test_state_of_inference_tensors_and_lazy_modules():
    model = nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3))
    before = state(model[1])
    with preserved_state(model):
        model(torch.randn(2, 4))
    assert state(model[1]) == before
    assert model[0].weight.shape == (3, 4)


def test_sparse_buffers_and_script_modules():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("adjacency", torch.eye(3).to_sparse())
            self.norm = torch.jit.script(nn.BatchNorm1d(3))

        def forward(self, x):
            self.adjacency.mul_(2)
            return self.norm(self.adjacency @ x)

    model = Sparse()
    with preserved_state(model):
        model(torch.randn(3, 3))
        model.eval()
    assert torch.equal(model.adjacency.to_dense(), torch.eye(3))
    assert model.norm.training
    assert model.norm.running_mean.tolist() == [0, 0, 0]
    assert model.norm.num_batches_tracked == 0
