import torch
from torch import nn as tnn

from tests.nn.case import Case, vectors

CASES = [
    Case(
        "Linear",
        {"in_features": 12, "out_features": 5},
        lambda: tnn.Linear(12, 5),
        vectors,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
    Case(
        "Linear",
        {"in_features": 12, "out_features": 5, "bias": False},
        lambda: tnn.Linear(12, 5, False),
        vectors,
        "-no-bias",
    ),
]
