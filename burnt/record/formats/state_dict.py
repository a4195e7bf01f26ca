"""The state dict in what a training program has saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from burnt.errors import RecordError

_NESTED = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
"""Keys under which training programs store a model's state dict, in order of preference."""

_DEEPEST = 4


def find_state_dict(value: Any, where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Find the state dict in what a training program has saved; with notes on what was chosen or ignored."""
    notes: list[str] = []
    for _ in range(_DEEPEST):
        if not isinstance(value, Mapping):
            raise RecordError(
                "this is not a state dict",
                where=where,
                expected="tensors by name",
                found=type(value).__name__,
            )
        inner = [key for key, item in value.items() if isinstance(key, str) and _holds_tensors(item)]
        key = next((key for key in _NESTED if key in inner), None)
        if key is None:
            if not inner or any(isinstance(item, Tensor) for item in value.values()):
                break
            key = inner[0]
            if len(inner) > 1:
                raise RecordError(
                    "there are several state dicts to load from",
                    where=where,
                    expected=f"one, or one under {_NESTED[0]!r}",
                    found=", ".join(map(repr, inner[:12])) + (", ..." if len(inner) > 12 else ""),
                    hint=f"pass one of them: torch.load(path, weights_only=True)[{key!r}]",
                )
        others = [other for other in inner if other != key]
        notes.append(f"taken from {key!r}" + (f", not from {', '.join(map(repr, others))}" if others else ""))
        value = value[key]
    state = {key: item for key, item in value.items() if isinstance(item, Tensor) and isinstance(key, str)}
    if value and not state:
        raise RecordError(
            "this is not a state dict",
            where=where,
            expected="tensors by name",
            found="no tensors",
            hint="torch.from_numpy makes tensors of arrays"
            if any(hasattr(item, "__array__") for item in value.values())
            else None,
        )
    ignored = [repr(key)[:80] for key in value if key not in state]
    if ignored:
        shown = ", ".join(ignored[:5]) + (", ..." if len(ignored) > 5 else "")
        notes.append(f"ignored, as they are not tensors: {shown}")
    return state, tuple(notes)


def _holds_tensors(value: Any) -> bool:
    for _ in range(_DEEPEST):
        if not isinstance(value, Mapping):
            return False
        if any(isinstance(item, Tensor) for item in value.values()):
            return any(isinstance(key, str) for key in value)
        # A state dict inside: {"model": {"state_dict": {...}}}.
        value = next((value[key] for key in _NESTED if key in value), None)
    return False
