import torch
from torch import nn as tnn

from tests.nn.case import Case, images, sequences, vectors, volumes


def without_bias(norm: tnn.Module) -> tnn.Module:
    """As by ``bias=False``, which torch's norms of channels take from 2.13 on."""
    norm.register_parameter("bias", None)
    return norm


CASES = [
    Case(
        "BatchNorm",
        {"num_features": 4},
        "BatchNorm2d",
        images,
        misfit=((torch.zeros(2, 3, 8),), "(batch, 4, ...)"),
    ),
    Case(
        "BatchNorm",
        {"num_features": 4, "affine": False, "track_running_stats": False, "eps": 0.1},
        "BatchNorm2d",
        images,
        "-bare",
    ),
    Case("BatchNorm", {"num_features": 4, "momentum": None}, "BatchNorm2d", images, "-cumulative"),
    Case(
        "BatchNorm",
        {"num_features": 4, "bias": False},
        lambda: without_bias(tnn.BatchNorm3d(4)),
        volumes,
        "-without-bias",
    ),
    Case(
        "GroupNorm",
        {"num_groups": 2, "num_channels": 4},
        "GroupNorm",
        images,
        misfit=((torch.zeros(2, 6, 8),), "(batch, 4, ...)"),
    ),
    Case(
        "GroupNorm",
        {"num_groups": 4, "num_channels": 4, "eps": 0.1, "bias": False},
        lambda: without_bias(tnn.GroupNorm(4, 4, 0.1)),
        sequences,
        "-without-bias",
    ),
    Case("GroupNorm", {"num_groups": 1, "num_channels": 4, "affine": False}, "GroupNorm", volumes, "-bare"),
    Case(
        "InstanceNorm",
        {"num_features": 4},
        "InstanceNorm2d",
        images,
        loose=0.02,
        misfit=((torch.zeros(2, 4),), "(batch, 4, axis, ...)"),
    ),
    Case(
        "InstanceNorm",
        {"num_features": 4, "eps": 0.1, "affine": True},
        "InstanceNorm1d",
        sequences,
        "-affine",
        loose=0.02,
    ),
    Case(
        "InstanceNorm",
        {"num_features": 4, "momentum": 0.3, "affine": True, "track_running_stats": True, "bias": False},
        lambda: without_bias(tnn.InstanceNorm3d(4, 1e-5, 0.3, affine=True, track_running_stats=True)),
        volumes,
        "-running",
    ),
    Case(
        "LocalResponseNorm",
        {"size": 2},
        "LocalResponseNorm",
        images,
        misfit=((torch.zeros(2, 4),), "got 2 dimensions"),
    ),
    Case(
        "LocalResponseNorm",
        {"size": 3, "alpha": 0.5, "beta": 0.6, "k": 2.0},
        "LocalResponseNorm",
        sequences,
        "-odd",
    ),
    Case(
        "LayerNorm",
        {"normalized_shape": 12},
        "LayerNorm",
        vectors,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
    Case(
        "LayerNorm",
        {"normalized_shape": (5, 12), "eps": 0.1, "bias": False},
        "LayerNorm",
        vectors,
        "-two-axes",
    ),
    Case("RmsNorm", {"normalized_shape": 12}, "RMSNorm", vectors, misfit=((torch.zeros(2, 7),), "(..., 12)")),
    Case(
        "RmsNorm",
        {"normalized_shape": (12,), "eps": 0.1, "elementwise_affine": False},
        "RMSNorm",
        vectors,
        "-bare",
    ),
    Case(
        "SyncBatchNorm",
        {"num_features": 4},
        "SyncBatchNorm",
        images,
        misfit=((torch.zeros(2, 3, 8),), "(N, 4, ...)"),
    ),
    Case(
        "SyncBatchNorm",
        {"num_features": 4, "bias": False},
        lambda: without_bias(tnn.SyncBatchNorm(4)),
        images,
        "-without-bias",
    ),
]
