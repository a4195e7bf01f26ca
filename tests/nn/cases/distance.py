import torch

from tests.nn.case import Case, pairs

MISFIT = ((torch.zeros(2, 3), torch.zeros(2, 4)), "(2, 3), (2, 4)")


def rows(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, 5), torch.randn(batch, 3, 5)


CASES = [
    Case("CosineSimilarity", {}, "CosineSimilarity", pairs, misfit=MISFIT, loose=0.01),
    Case("CosineSimilarity", {"dim": -1, "eps": 0.1}, "CosineSimilarity", rows, "-last", loose=0.01),
    Case("PairwiseDistance", {}, "PairwiseDistance", pairs, misfit=MISFIT),
    Case("PairwiseDistance", {"p": 1.5, "eps": 0.1, "keepdim": True}, "PairwiseDistance", rows, "-norm"),
]
