import torch
from torch import nn as tnn

from tests.nn.case import Case, labelled, pairs

WEIGHTS = [0.5, 1.0, 2.0, 1.0, 1.0, 3.0]
CASES = [
    Case(
        "CrossEntropy",
        {},
        lambda: tnn.CrossEntropyLoss(),
        labelled,
        misfit=((torch.zeros(2, 6), torch.zeros(3, dtype=torch.int64)), "(2,)"),
    ),
    Case(
        "CrossEntropy",
        {"weight": WEIGHTS, "ignore_index": 2, "label_smoothing": 0.1, "reduction": "sum"},
        lambda: tnn.CrossEntropyLoss(
            torch.tensor(WEIGHTS), ignore_index=2, label_smoothing=0.1, reduction="sum"
        ),
        labelled,
        "-weighted",
    ),
    Case("Mse", {}, lambda: tnn.MSELoss(), pairs, misfit=((torch.zeros(2, 3), torch.zeros(2)), "(2, 3)")),
    Case("Mse", {"reduction": "none"}, lambda: tnn.MSELoss(reduction="none"), pairs, "-none"),
]
