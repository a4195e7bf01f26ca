import torch
from torch import nn as tnn

from tests.nn.case import Case, images, vectors


def columns(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 12, 14),)


CASES = [
    Case("Flatten", {}, lambda: tnn.Flatten(), images, misfit=((torch.zeros(3),), "Dimension out of range")),
    Case("Flatten", {"start_dim": 0, "end_dim": -2}, lambda: tnn.Flatten(0, -2), images, "-front"),
    Case("Identity", {}, lambda: tnn.Identity(), vectors),
    Case(
        "Unflatten",
        {"dim": -1, "unflattened_size": (3, 4)},
        lambda: tnn.Unflatten(-1, (3, 4)),
        vectors,
        misfit=((torch.zeros(2, 10),), "multiply up to the size of dim 1 (10)"),
    ),
    Case(
        "PixelShuffle",
        {"upscale_factor": 2},
        lambda: tnn.PixelShuffle(2),
        images,
        misfit=((torch.zeros(2, 6, 3, 3),), "upscale_factor = 2"),
    ),
    Case(
        "PixelUnshuffle",
        {"downscale_factor": 3},
        lambda: tnn.PixelUnshuffle(3),
        lambda batch: (torch.randn(batch, 4, 6, 9),),
        misfit=((torch.zeros(2, 4, 7, 9),), "[2, 4, 2, 3, 3, 3]"),
    ),
    Case(
        "ChannelShuffle",
        {"groups": 2},
        lambda: tnn.ChannelShuffle(2),
        images,
        misfit=((torch.zeros(2, 5, 7),), "5 channels and 2 groups"),
    ),
    Case(
        "Fold",
        {"output_size": (4, 5), "kernel_size": (2, 3), "padding": (0, 1), "stride": (1, 2)},
        lambda: tnn.Fold((4, 5), (2, 3), padding=(0, 1), stride=(1, 2)),
        lambda batch: (torch.randn(batch, 12, 9),),
        misfit=((torch.zeros(2, 12, 8),), "expected input.size(-1) to be 9"),
    ),
    Case("Fold", {"output_size": (8, 3), "kernel_size": 2}, lambda: tnn.Fold((8, 3), 2), columns, "-square"),
    Case(
        "Unfold",
        {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (0, 1), "stride": 2},
        lambda: tnn.Unfold((2, 3), (2, 1), (0, 1), 2),
        images,
        misfit=((torch.zeros(2, 4, 2, 9),), "at least one"),
    ),
    Case("Unfold", {"kernel_size": 3}, lambda: tnn.Unfold(3), images, "-square"),
]
