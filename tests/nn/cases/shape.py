import torch

from tests.nn.case import Case, images, vectors


def columns(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 12, 14),)


CASES = [
    Case("Flatten", {}, "Flatten", images, misfit=((torch.zeros(3),), "Dimension out of range")),
    Case("Flatten", {"start_dim": 0, "end_dim": -2}, "Flatten", images, "-front"),
    Case("Identity", {}, "Identity", vectors),
    Case(
        "Unflatten",
        {"dim": -1, "unflattened_size": (3, 4)},
        "Unflatten",
        vectors,
        misfit=((torch.zeros(2, 10),), "multiply up to the size of dim 1 (10)"),
    ),
    Case(
        "PixelShuffle",
        {"upscale_factor": 2},
        "PixelShuffle",
        images,
        misfit=((torch.zeros(2, 6, 3, 3),), "upscale_factor = 2"),
    ),
    Case(
        "PixelUnshuffle",
        {"downscale_factor": 3},
        "PixelUnshuffle",
        lambda batch: (torch.randn(batch, 4, 6, 9),),
        misfit=((torch.zeros(2, 4, 7, 9),), "[2, 4, 2, 3, 3, 3]"),
    ),
    Case(
        "ChannelShuffle",
        {"groups": 2},
        "ChannelShuffle",
        images,
        misfit=((torch.zeros(2, 5, 7),), "5 channels and 2 groups"),
    ),
    Case(
        "Fold",
        {"output_size": (4, 5), "kernel_size": (2, 3), "padding": (0, 1), "stride": (1, 2)},
        "Fold",
        lambda batch: (torch.randn(batch, 12, 9),),
        misfit=((torch.zeros(2, 12, 8),), "expected input.size(-1) to be 9"),
    ),
    Case("Fold", {"output_size": (8, 3), "kernel_size": 2}, "Fold", columns, "-square"),
    Case(
        "Unfold",
        {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (0, 1), "stride": 2},
        "Unfold",
        images,
        misfit=((torch.zeros(2, 4, 2, 9),), "at least one"),
    ),
    Case("Unfold", {"kernel_size": 3}, "Unfold", images, "-square"),
]
