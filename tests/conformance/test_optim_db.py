"""torch's own samples of its optimizers (`optim_db`), run through burnt's twins."""

import inspect
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db

from burnt import Gradients, optim
from burnt.device import processor

TWINS: dict[str, Any] = {
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "Adamax": optim.Adamax,
    "LBFGS": optim.Lbfgs,
    "Muon": optim.Muon,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": optim.RmsProp,
    "SGD": optim.Sgd,
}
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
    assert len(SAMPLES) >= 75


@pytest.mark.sample(30)
@pytest.mark.parametrize(("info", "sample"), SAMPLES)
def test_sample(info: OptimizerInfo, sample: OptimizerInput, monkeypatch: pytest.MonkeyPatch):
    if torch.bfloat16 not in processor().onednn:  # then `orthogonalized` computes in float32
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    twin, options = TWINS[info.optim_cls.__name__], options_of(sample)
    left_out = options.keys() & UNSUPPORTED.keys()
    if left_out:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{'|'.join(left_out)}'"):
            twin(**{name: options[name] for name in left_out})
        options = {name: value for name, value in options.items() if name not in left_out}
    lr = float(sample.kwargs.get("lr", 1e-3))
    torch.manual_seed(0)
    has_bias = info.optim_cls is not torch.optim.Muon  # which takes only matrices
    model, other = (
        torch.nn.Sequential(torch.nn.Linear(4, 6, has_bias), torch.nn.Linear(6, 2, has_bias))
        for _ in range(2)
    )
    other.load_state_dict(model.state_dict())
    ours = twin(**options)
    unfused = {"foreach": False} if "foreach" in inspect.signature(info.optim_cls).parameters else {}
    theirs = info.optim_cls(other.parameters(), **{**options, "lr": lr}, **unfused)
    x = torch.randn(8, 4)
    for _ in range(3):
        if not ours.needs_closure:  # torch's L-BFGS without line search diverges on changing data
            x = torch.randn(8, 4)

        def closure(x=x):
            loss = model(x).square().mean()
            return loss, Gradients.of(loss, model)

        def torch_closure(x=x):
            theirs.zero_grad()
            loss = other(x).square().mean()
            loss.backward()
            return loss

        if ours.needs_closure:
            ours.step_with(lr, model, closure)
        else:
            ours.step(lr, model, closure()[1])
        theirs.step(torch_closure)
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
            parameter = torch.nn.Parameter(torch.zeros(1, 1))
            known = info.optim_cls([parameter], lr=0.1).defaults.keys() - {"lr"}
            if twin in (optim.Adam, optim.AdamW):
                known -= {"decoupled_weight_decay"}  # the one has it, the other not
            assert known == twin().into_record().options.keys() | UNSUPPORTED.keys() & known
