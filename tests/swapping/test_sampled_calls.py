"""``swap(verify=1/2)``: some calls of swapped sites are compared with the original's."""

import copy
import pickle

import pytest
import torch
from torch import nn

import burnt
from burnt.codegen.verification import listeners
from burnt.errors import FusionWarning, InputValueError
from burnt.swapping import site

pytestmark = pytest.mark.usefixtures("always")


@pytest.fixture
def found():
    errors = []
    listeners.append(errors.append)
    yield errors
    listeners.remove(errors.append)


def swapped(verify):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8))
    report = burnt.swap(model, only="LayerNorm", verify=verify)
    x = torch.randn(4, 6)
    model(x)  # decides, and is the first that is verified
    assert report.swapped == ["1"]
    return model, x


def test_a_share_of_calls_is_compared_with_gradients_and_changes_nothing(found):
    model, x = swapped(1 / 3)
    state = torch.get_rng_state()
    for _ in range(5):
        model(x).square().sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert [list(errors) for errors in found] == [["verify/1"]] * 2  # of calls 1 to 6
    assert all(0 <= error < 1e-5 for errors in found for error in errors.values())
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x), expected)
    burnt.unswap(model)
    assert type(model[1]) is nn.LayerNorm


def test_what_is_off_warns_with_the_layer(found, monkeypatch):
    model, x = swapped(1.0)
    monkeypatch.setattr(site, "class_with_kernels", lambda module, kind: Off)

    class Off(nn.LayerNorm):
        def forward(self, input):
            return super().forward(input) * 1.01

    with pytest.warns(FusionWarning, match="1 computes something else than torch") as warned:
        model(x)
    assert "LayerNorm by layer_norm" in str(warned[0].message)
    assert "off by " in str(warned[0].message)
    assert found[-1]["verify/1"] > 1e-3


def test_a_wrong_share_is_refused():
    with pytest.raises(InputValueError, match=r"in +burnt\.swap"):
        burnt.swap(nn.Sequential(nn.LayerNorm(8)), verify=3)
