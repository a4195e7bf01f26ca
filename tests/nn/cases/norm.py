import torch
from torch import nn as tnn

from tests.nn.case import Case, images, vectors

CASES = [
    Case(
        "BatchNorm",
        {"num_features": 4},
        lambda: tnn.BatchNorm2d(4),
        images,
        misfit=((torch.zeros(2, 3, 8),), "(batch, 4, ...)"),
    ),
    Case(
        "BatchNorm",
        {"num_features": 4, "affine": False, "track_running_stats": False, "eps": 0.1},
        lambda: tnn.BatchNorm2d(4, 0.1, affine=False, track_running_stats=False),
        images,
        "-bare",
    ),
    Case(
        "BatchNorm",
        {"num_features": 4, "momentum": None},
        lambda: tnn.BatchNorm2d(4, momentum=None),
        images,
        "-cumulative",
    ),
    Case(
        "LayerNorm",
        {"normalized_shape": 12},
        lambda: tnn.LayerNorm(12),
        vectors,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
    Case(
        "LayerNorm",
        {"normalized_shape": (5, 12), "eps": 0.1, "bias": False},
        lambda: tnn.LayerNorm((5, 12), 0.1, bias=False),
        vectors,
        "-two-axes",
    ),
    Case(
        "RmsNorm",
        {"normalized_shape": 12},
        lambda: tnn.RMSNorm(12),
        vectors,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
    Case(
        "RmsNorm",
        {"normalized_shape": (12,), "eps": 0.1, "elementwise_affine": False},
        lambda: tnn.RMSNorm((12,), 0.1, False),
        vectors,
        "-bare",
    ),
    Case(
        "SyncBatchNorm",
        {"num_features": 4},
        lambda: tnn.SyncBatchNorm(4),
        images,
        misfit=((torch.zeros(2, 3, 8),), "(N, 4, ...)"),
    ),
]
