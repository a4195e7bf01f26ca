import torch
from torch import nn as tnn

from tests.nn.case import Case, images

CASES = [
    Case(
        "MaxPool2d",
        {"kernel_size": 2},
        lambda: tnn.MaxPool2d(2),
        images,
        misfit=((torch.zeros(2, 3),), "(N, C, H, W)"),
    ),
    Case(
        "MaxPool2d",
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": 1, "dilation": (1, 2), "ceil_mode": True},
        lambda: tnn.MaxPool2d((3, 2), (2, 1), 1, (1, 2), ceil_mode=True),
        images,
        "-odd",
    ),
    Case(
        "AvgPool2d",
        {"kernel_size": 2},
        lambda: tnn.AvgPool2d(2),
        images,
        misfit=((torch.zeros(2, 3),), "(N, C, H, W)"),
    ),
    Case(
        "AvgPool2d",
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
        lambda: tnn.AvgPool2d(3, 2, 1, True, False),
        images,
        "-odd",
    ),
    Case(
        "AdaptiveAvgPool2d",
        {"output_size": (3, None)},
        lambda: tnn.AdaptiveAvgPool2d((3, None)),
        images,
        misfit=((torch.zeros(2, 3),), "(N, C, H, W)"),
    ),
]
