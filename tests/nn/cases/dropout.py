import torch

from tests.nn.case import Case, images, vectors


def volumes(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 4, 2, 3, 5),)


ROW = (torch.zeros(3),)
CASES = [
    Case("Dropout", {"p": 0.3}, "Dropout", vectors),
    Case("Dropout1d", {"p": 0.3}, "Dropout1d", vectors, misfit=(ROW, "received a 1D input")),
    Case("Dropout2d", {"p": 0.3}, "Dropout2d", images, misfit=(ROW, "at least 2 dimensions")),
    Case("Dropout3d", {"p": 0.3}, "Dropout3d", volumes, misfit=((torch.zeros(()),), "at least 2 dimensions")),
    Case("AlphaDropout", {"p": 0.3}, "AlphaDropout", vectors),
    Case(
        "FeatureAlphaDropout",
        {"p": 0.3},
        "FeatureAlphaDropout",
        images,
        misfit=(ROW, "at least 2 dimensions"),
    ),
    Case("GaussianNoise", {"std": 0.3}, None, vectors),
]
