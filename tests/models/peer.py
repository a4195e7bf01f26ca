"""What the models' tests share: transformers' model of the same weights, and how close outputs have to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnt.models import Pretrained


def perturbed(peer: Any) -> Any:
    """Change all parameters, so that no bias is 0 and no norm is 1; return the model in eval mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.1
    return peer.eval()


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    """Compare to a share of the largest value."""
    assert ours.shape == theirs.shape
    difference = (ours - theirs).abs().max()
    assert difference <= tolerance * theirs.abs().max(), f"{difference} of {theirs.abs().max()}"


def backward_both(ours: Tensor, theirs: Tensor) -> None:
    """Give both models the same random gradient of their outputs."""
    torch.autograd.backward([ours, theirs], [torch.randn(ours.shape, dtype=ours.dtype)] * 2)


def assert_gradients_close(model: Pretrained[Any], peer: Any, tolerance: float = 1e-4) -> None:
    """Compare all gradients in the names of transformers, each to a share of its largest value."""
    named = {path: p.grad for path, p in model.named_parameters() if p.grad is not None}
    assert len(named) == len(list(model.parameters()))
    ours = model.layouts["hugging_face"].write(named)
    theirs = {path: p.grad for path, p in peer.named_parameters() if p.grad is not None}
    assert ours.keys() == theirs.keys()
    for path, gradient in theirs.items():
        assert_close(ours[path], gradient, tolerance)


def assert_round_trip(model: Pretrained[Any], peer: Any, folder: Path, **options: Any) -> None:
    """Save a model, load it into the peer's class, and compare tensors and config bit by bit."""
    model.save_pretrained(folder, **options)
    again, report = type(peer).from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not any(report.values()), report
    state = again.state_dict()
    assert state.keys() == peer.state_dict().keys()
    for path, value in peer.state_dict().items():
        assert value.dtype == state[path].dtype
        assert torch.equal(value, state[path]), path
    assert plain(again.config) == plain(peer.config)


def plain(config: Any) -> dict[str, Any]:
    """A config of transformers as JSON, without what depends on where it was loaded from."""
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    for key in ("transformers_version", "_name_or_path", "architectures", "dtype"):
        values.pop(key, None)
    return values
