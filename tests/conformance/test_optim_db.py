"""torch's own samples of its optimizers (`optim_db`), run through burnt's twins."""

from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db

from burnt import Gradients, optim

TWINS = {"SGD": optim.Sgd, "Adam": optim.Adam, "AdamW": optim.AdamW}
# What the twins do not have. A twin that comes to accept one of these fails below, and it leaves the list.
UNSUPPORTED = {
    "maximize": "negate the loss",
    "differentiable": "gradients through a step are taken of a step written out",
    "capturable": "the learning rate is a number of each step, which a CUDA graph would freeze",
    "foreach": "the fused step is taken wherever there is one",
    "fused": "the fused step is taken wherever there is one",
}


def samples() -> list[Any]:
    cases = []
    for info in optim_db:
        name = info.optim_cls.__name__
        if name in TWINS:
            for number, sample in enumerate(info.optim_inputs_func(device="cpu")):
                cases.append(
                    pytest.param(info, sample, id=f"{name}-{number}-{sample.desc.replace(' ', '_')}")
                )
    return cases


SAMPLES = samples()


def options_of(sample: OptimizerInput) -> dict[str, Any]:
    return {name: value for name, value in sample.kwargs.items() if name != "lr"}


def test_the_samples_are_there():
    assert {case.values[0].optim_cls.__name__ for case in SAMPLES} == set(TWINS)
    assert len(SAMPLES) >= 19


@pytest.mark.parametrize(("info", "sample"), SAMPLES)
def test_sample(info: OptimizerInfo, sample: OptimizerInput):
    twin, options = TWINS[info.optim_cls.__name__], options_of(sample)
    left_out = options.keys() & UNSUPPORTED.keys()
    if left_out:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{'|'.join(left_out)}'"):
            twin(**{name: options[name] for name in left_out})
        options = {name: value for name, value in options.items() if name not in left_out}
    lr = float(sample.kwargs.get("lr", 1e-3))
    torch.manual_seed(0)
    model, other = (torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)) for _ in range(2))
    other.load_state_dict(model.state_dict())
    ours = twin(**options)
    theirs = info.optim_cls(other.parameters(), **{**options, "lr": lr}, foreach=False)
    for _ in range(5):
        x = torch.randn(8, 4)
        ours.step(lr, model, Gradients.of(model(x).square().mean(), model))
        theirs.zero_grad()
        other(x).square().mean().backward()
        theirs.step()
    for mine, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_options_are_refused_by_every_twin(name):
    assert UNSUPPORTED[name]
    for twin in TWINS.values():
        with pytest.raises(TypeError, match=name):
            twin(**{name: True})


def test_every_option_of_torch_is_either_there_or_listed():
    for info in optim_db:
        twin = TWINS.get(info.optim_cls.__name__)
        if twin is not None:
            parameter = torch.nn.Parameter(torch.zeros(1))
            known = info.optim_cls([parameter], lr=0.1).defaults.keys() - {"lr", "decoupled_weight_decay"}
            assert known == twin().into_record().options.keys() | UNSUPPORTED.keys() & known
