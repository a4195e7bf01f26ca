import torch
from torch import nn as tnn

from tests.nn.case import Case, images, vectors

CASES = [
    Case(
        "Upsample",
        {"scale_factor": 2.0},
        "Upsample",
        images,
        misfit=((torch.zeros(2, 3),), "(N, C, L) or (N, C, H, W) or (N, C, D, H, W)"),
    ),
    Case(
        "Upsample",
        {"size": (5, 12), "mode": "bilinear", "align_corners": True},
        lambda: tnn.UpsamplingBilinear2d((5, 12)),
        images,
        "-bilinear",
        misfit=((torch.zeros(2, 3, 4),), "(N, C, H, W)"),
    ),
    Case(
        "Upsample",
        {"scale_factor": (1.5, 0.6), "mode": "bicubic", "recompute_scale_factor": True},
        "Upsample",
        images,
        "-bicubic",
        loose=0.02,
    ),
    Case("Upsample", {"size": 7, "mode": "linear"}, "Upsample", vectors, "-linear"),
    Case("Upsample", {"size": 3, "mode": "area"}, "Upsample", images, "-area"),
    Case("Upsample", {"size": 5, "mode": "bilinear", "antialias": True}, None, images, "-antialias"),
    Case(
        "Upsample",
        {"scale_factor": 1.5, "mode": "cubic"},
        None,
        vectors,
        "-cubic",
        misfit=((torch.zeros(2, 3, 4, 5),), "(N, C, L)"),
    ),
]
