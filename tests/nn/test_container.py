"""Sequential: torch's, as a burnt Module. The table of every layer leaves it out, since it has no Config."""

import copy
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from burnt import Config, nn
from burnt.errors import DefinitionError, ShapeError


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Relu(), nn.Linear(8, 2))


class NetConfig(Config):
    hidden: int = 8

    def init(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, self.hidden), nn.Relu(), nn.Linear(self.hidden, 2))


def test_it_is_torchs() -> None:
    torch.manual_seed(0)
    ours = build()
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    assert torch.equal(ours(x), theirs(x))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert isinstance(ours, torch.nn.Sequential)
    assert isinstance(ours[1], nn.Relu)
    assert type(ours[:2]) is nn.Sequential
    assert len(ours[:2] + ours[2:]) == 3
    named = nn.Sequential(OrderedDict(first=nn.Linear(4, 2), second=nn.Tanh()))
    assert isinstance(named.second, nn.Tanh)
    named.append(nn.Relu())
    assert named(x).shape == (3, 2)
    assert torch.equal(copy.deepcopy(ours)(x), ours(x))


def test_it_compiles_exports_and_is_summarised() -> None:
    model, x = build(), torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))
    assert model.num_params() == 58
    assert "Sequential" in str(model.summary(x))


def test_check_names_the_layer() -> None:
    with pytest.raises(ShapeError, match=r"ShapeError in model\.1 ") as caught:
        nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 2)).check(torch.zeros(3, 4))
    assert caught.value.hint == "0 makes 8 features: Linear(8, 2)?"


def test_it_saves_and_loads_by_a_config_of_the_user(tmp_path: Path) -> None:
    model = NetConfig(hidden=3).init()
    model.save(tmp_path / "net.safetensors")
    loaded = nn.Sequential.load(tmp_path / "net.safetensors")
    assert torch.equal(loaded[2].weight, model[2].weight)
    other = build()
    other.load_record(build().into_record())
    with pytest.raises(DefinitionError, match="no Config can be derived for Sequential"):
        nn.Sequential.Config
