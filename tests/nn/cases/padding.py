"""Every padding with the same number on each side, and with a number for each side."""

from typing import Any

import torch
from torch import nn as tnn

from tests.nn.case import Case

KINDS = ("Circular", "Constant", "Reflection", "Replication", "Zero")
SHAPES = {1: (4, 7), 2: (3, 7, 5), 3: (2, 5, 4, 6)}
SIDES = {1: (2, 1), 2: (2, 1, 0, 3), 3: (2, 1, 0, 3, 1, 1)}


def case(kind: str, rank: int, label: str) -> Case:
    name = f"{kind}Pad{rank}d"
    arguments: dict[str, Any] = {"padding": SIDES[rank] if label else 1}
    if kind == "Constant":
        arguments["value"] = 2.5
    any_rank = kind in ("Constant", "Zero")
    few = torch.zeros((3,) * (rank - 1 if any_rank else rank))
    return Case(
        name,
        arguments,
        lambda: getattr(tnn, name)(**arguments),
        lambda batch: (torch.randn(batch, *SHAPES[rank]),),
        label,
        misfit=((few,), f"dimension {rank - 1}" if any_rank else f"{rank}D input"),
    )


CASES = [case(kind, rank, label) for kind in KINDS for rank in SHAPES for label in ("", "-sides")]
