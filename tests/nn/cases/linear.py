import torch

from tests.nn.case import Case, vectors


def vectors_of_two_sizes(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 5, 12), torch.randn(batch, 5, 3)


CASES = [
    Case(
        "Linear",
        {"in_features": 12, "out_features": 5},
        "Linear",
        vectors,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
    Case("Linear", {"in_features": 12, "out_features": 5, "bias": False}, "Linear", vectors, "-no-bias"),
    Case(
        "Bilinear",
        {"in1_features": 12, "in2_features": 3, "out_features": 5},
        "Bilinear",
        vectors_of_two_sizes,
        misfit=((torch.zeros(2, 3), torch.zeros(2, 12)), "got 3 but expected 12"),
    ),
    Case(
        "Bilinear",
        {"in1_features": 12, "in2_features": 3, "out_features": 5, "bias": False},
        "Bilinear",
        vectors_of_two_sizes,
        "-no-bias",
    ),
]
