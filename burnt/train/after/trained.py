"""TrainedAs: how a model was trained, as far as its predictions depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from burnt.inspect.signature import Signature
from burnt.inspect.specs import Path


@dataclass(frozen=True)
class TrainedAs:
    """What a training leaves on its model, and `burnt.load` on the one it returns.

    `signature` is what the training step gave the model. `sources` says where in the batch the step took each
    of these inputs from: None for one that the step computes or changes in place, and a single None if that
    could not be found out.
    """

    precision: str
    signature: Signature | None = None
    sources: tuple[Path | None, ...] = ()

    @classmethod
    def read(cls, precision: str, load: Mapping[str, Any]) -> Self:
        """Read the part ``load`` of a run's ``config.json``; runs of an older burnt lack the sources."""
        signature, sources = load.get("signature"), load.get("sources")
        try:
            paths = tuple(None if path is None else tuple(path) for path in sources or ())
            if isinstance(signature, Mapping) and "unknown" in signature:
                return cls(precision, None, paths)
            return cls(precision, Signature.from_dict(signature), paths)  # type: ignore[arg-type]  # raises
        except (KeyError, TypeError, ValueError):
            return cls(precision)

    @classmethod
    def of(cls, model: torch.nn.Module) -> TrainedAs | None:
        """Return what `attach` left on a model; None if burnt has not trained it."""
        found = getattr(model, "_trained_as", None)
        return found if isinstance(found, TrainedAs) else None

    def attach(self, model: torch.nn.Module) -> None:
        """Leave this on a model."""
        object.__setattr__(model, "_trained_as", self)
