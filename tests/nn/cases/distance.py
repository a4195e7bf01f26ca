import torch
from torch import nn as tnn

from tests.nn.case import Case, pairs

MISFIT = ((torch.zeros(2, 3), torch.zeros(2, 4)), "(2, 3), (2, 4)")


def rows(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, 5), torch.randn(batch, 3, 5)


CASES = [
    Case("CosineSimilarity", {}, lambda: tnn.CosineSimilarity(), pairs, misfit=MISFIT, loose=0.01),
    Case(
        "CosineSimilarity",
        {"dim": -1, "eps": 0.1},
        lambda: tnn.CosineSimilarity(-1, 0.1),
        rows,
        "-last",
        loose=0.01,
    ),
    Case("PairwiseDistance", {}, lambda: tnn.PairwiseDistance(), pairs, misfit=MISFIT),
    Case(
        "PairwiseDistance",
        {"p": 1.5, "eps": 0.1, "keepdim": True},
        lambda: tnn.PairwiseDistance(1.5, 0.1, True),
        rows,
        "-norm",
    ),
]
