import torch
from torch import nn as tnn

from tests.nn.case import Case, images, vectors


def volumes(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 4, 2, 3, 5),)


ROW = (torch.zeros(3),)
CASES = [
    Case("Dropout", {"p": 0.3}, lambda: tnn.Dropout(0.3), vectors),
    Case("Dropout1d", {"p": 0.3}, lambda: tnn.Dropout1d(0.3), vectors, misfit=(ROW, "received a 1D input")),
    Case("Dropout2d", {"p": 0.3}, lambda: tnn.Dropout2d(0.3), images, misfit=(ROW, "at least 2 dimensions")),
    Case(
        "Dropout3d",
        {"p": 0.3},
        lambda: tnn.Dropout3d(0.3),
        volumes,
        misfit=((torch.zeros(()),), "at least 2 dimensions"),
    ),
    Case("AlphaDropout", {"p": 0.3}, lambda: tnn.AlphaDropout(0.3), vectors),
    Case(
        "FeatureAlphaDropout",
        {"p": 0.3},
        lambda: tnn.FeatureAlphaDropout(0.3),
        images,
        misfit=(ROW, "at least 2 dimensions"),
    ),
    Case("GaussianNoise", {"std": 0.3}, None, vectors),
]
