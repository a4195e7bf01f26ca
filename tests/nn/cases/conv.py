import torch
from torch import nn as tnn

from tests.nn.case import Case, images

CASES = [
    Case(
        "Conv2d",
        {"in_channels": 4, "out_channels": 6, "kernel_size": 3},
        lambda: tnn.Conv2d(4, 6, 3),
        images,
        misfit=((torch.zeros(2, 3, 8, 8),), "(N, 4, H, W)"),
    ),
    Case(
        "Conv2d",
        {
            "in_channels": 4,
            "out_channels": 6,
            "kernel_size": (2, 3),
            "stride": (1, 2),
            "padding": (1, 0),
            "dilation": (2, 1),
            "groups": 2,
            "bias": False,
            "padding_mode": "circular",
        },
        lambda: tnn.Conv2d(4, 6, (2, 3), (1, 2), (1, 0), (2, 1), 2, False, "circular"),
        images,
        "-odd",
    ),
    Case(
        "Conv2d",
        {"in_channels": 4, "out_channels": 6, "kernel_size": 5, "padding": "same"},
        lambda: tnn.Conv2d(4, 6, 5, padding="same"),
        images,
        "-same",
    ),
]
