import torch

from tests.nn.case import Case


def tables(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3),)


MISFIT = (torch.zeros(2, 4),), "(..., 3)"
CASES = [
    Case("FillMissing", {"num_features": 3, "by": 0.5}, None, tables, misfit=MISFIT),
    Case(
        "Standardize",
        {"num_features": 3, "mean": [1.0, 2.0, 3.0], "std": [0.5, 1.0, 2.0]},
        None,
        tables,
        misfit=MISFIT,
    ),
]
