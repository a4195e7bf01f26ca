"""``quantize(verify=1/2)``: some calls are compared with the layer of the dequantized weight."""

import copy
import pickle

import pytest
import torch
from torch import nn

import burnt
from burnt.codegen.verification import listeners
from burnt.errors import FusionWarning, InputValueError


@pytest.fixture
def found():
    errors = []
    listeners.append(errors.append)
    yield errors
    listeners.remove(errors.append)


@pytest.mark.parametrize("scheme", ["int8", "int4-block32", "int8-dynamic"])
def test_a_share_of_calls_is_compared(found, scheme):
    model = nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 32))
    burnt.quantize(model, scheme, only="1", verify=1 / 2)
    ids = torch.arange(8)
    bias = model[1].bias
    results = [model(ids) for _ in range(3)]
    assert all(torch.equal(result, results[0]) for result in results)
    assert [list(errors) for errors in found] == [["verify/1"]] * 2
    assert bias.dtype == torch.float32
    limit = 0.05 if scheme == "int8-dynamic" else 1e-5
    assert all(errors["verify/1"] < limit for errors in found)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(ids), results[0])


def test_what_is_off_warns(found, monkeypatch):
    model = nn.Sequential(nn.Linear(64, 32))
    burnt.quantize(model, "int8", verify=1.0)
    cls = type(model[0])
    right = cls._weight_only
    monkeypatch.setattr(cls, "_weight_only", lambda self, input: right(self, input) * 1.01)
    with pytest.warns(FusionWarning, match="0 computes something else than torch"):
        model(torch.randn(4, 64))
    assert found[0]["verify/0"] > 1e-3
    with pytest.raises(InputValueError, match=r"in +burnt\.quantize"):
        burnt.quantize(nn.Sequential(nn.Linear(64, 32)), verify=7)
