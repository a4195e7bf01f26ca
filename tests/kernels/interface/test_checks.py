"""Bad input on every op and every candidate: torch's class of error, with our message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputError
from burnt.kernels.dispatch.op import Op
from tests.kernels.ops.test_families import CASES, ONE_OF_EACH, is_float

KINDS = (NotImplementedError, IndexError, ValueError, TypeError, RuntimeError)


def elsewhere(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


def halved(tensor: Tensor) -> Tensor:
    return tensor.half()


def shorter(tensor: Tensor) -> Tensor:
    return tensor[..., :-2]


def deeper(tensor: Tensor) -> Tensor:
    return tensor.expand(2, *tensor.shape)


def too_large(tensor: Tensor) -> Tensor:
    return tensor + 1000


def below_zero(tensor: Tensor) -> Tensor:
    return -tensor - 1


def spoilt() -> Iterator[Any]:
    """Op, its arguments with one of them spoilt, and what was done to it."""
    for name, (op, args, _) in CASES.items():
        tensors = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        for i in tensors:
            ways: list[Callable[[Tensor], Tensor]] = []
            if i != tensors[0]:
                ways += [elsewhere]
                ways += [halved] if is_float(args[i]) else []
                ways += [shorter] if args[i].dim() and args[i].shape[-1] > 2 else []
                ways += [deeper]
            if op.look is not None and not is_float(args[i]) and args[i].dtype != torch.bool:
                ways += [too_large, below_zero]
            for way in ways:
                changed = (*args[:i], way(args[i]), *args[i + 1 :])
                marks = () if name in ONE_OF_EACH else pytest.mark.full
                case = f"{name}-{list(op.positions)[i]}-{way.__name__}"
                yield pytest.param(op, changed, way.__name__, id=case, marks=marks)


def raised(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.mark.sample(30)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(("op", "args", "way"), [*spoilt()])
def test_every_candidate_raises_what_torch_does(
    op: Op[..., Any], args: tuple[Any, ...], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tuple(a.detach().requires_grad_() if is_float(a) and not a.is_meta else a for a in args)
    library, candidates = op.candidates["library"], dict(op.candidates)
    torchs = raised(lambda: library(*given))
    kind = None if torchs is None else next(kind for kind in KINDS if isinstance(torchs, kind))
    if kind is NotImplementedError and any(isinstance(a, Tensor) and a.is_meta for a in args):
        kind = RuntimeError  # of a tensor without values, where a GPU's would do
    ours = {}
    for name, candidate in candidates.items():
        if name != "library" and find_compiler() is None:
            continue
        # A candidate for the gradient alone leaves the look-up to others.
        kept = {name: candidate} if name == "generated" else {"library": library, name: candidate}
        monkeypatch.setattr(op, "candidates", kept)
        monkeypatch.setattr(candidate, "best", lambda *_: True)
        op.forget()
        ours[name] = raised(lambda: op(*given))
        monkeypatch.undo()
        op.forget()
    errors = [error for error in ours.values() if error is not None]
    assert kind is None or len(errors) == len(ours), f"torch raises {torchs!r}, and there is {ours}"
    # What torch takes by accident (a tensor without memory, say) ours may refuse, but then all of ours.
    assert len(errors) in (0, len(ours)), ours
    for error in errors:
        assert isinstance(error, InputError)
        assert kind is None or isinstance(error, kind), (torchs, error)
        assert str(error.where).startswith("burnt.kernels.")
        assert error.found is not None
