from collections.abc import Callable

import torch
from torch import Tensor
from torch import nn as tnn
from torch.nn import functional as F

from tests.nn.case import Case, images, sequences, volumes


def maxima(axes: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Inputs of an unpooling: maxima and their indices."""
    sizes, pool = (8, 6, 4)[:axes], getattr(F, f"max_pool{axes}d")

    def inputs(batch: int) -> tuple[Tensor, ...]:
        x = torch.randn(batch, 4, *sizes)
        if not batch:
            return x[..., ::2] if axes == 1 else x[..., ::2, ::2], torch.zeros(0)
        pair: tuple[Tensor, ...] = pool(x, 2, return_indices=True)
        return pair

    return inputs


RANKS = [(1, sequences, "L"), (2, images, "H, W"), (3, volumes, "D, H, W")]
WRONG = torch.zeros(2, 3), torch.zeros(2, 3, 4, 5, 6, 7)

CASES = [
    *(
        Case(
            f"{name}{axes}d",
            arguments,
            lambda twin=twin, axes=axes, arguments=arguments: getattr(tnn, f"{twin}{axes}d")(**arguments),  # type: ignore[misc]
            inputs,
            misfit=((WRONG[axes == 1],), f"(N, C, {shape})"),
        )
        for name, twin, arguments in [
            ("MaxPool", "MaxPool", {"kernel_size": 2}),
            ("AvgPool", "AvgPool", {"kernel_size": 2}),
            ("LpPool", "LPPool", {"norm_type": 2.0, "kernel_size": 2}),
            ("AdaptiveMaxPool", "AdaptiveMaxPool", {"output_size": 3}),
            ("AdaptiveAvgPool", "AdaptiveAvgPool", {"output_size": 3}),
        ]
        for axes, inputs, shape in RANKS
    ),
    *(
        Case(
            f"MaxUnpool{axes}d",
            {"kernel_size": 2},
            lambda axes=axes: getattr(tnn, f"MaxUnpool{axes}d")(2),  # type: ignore[misc]
            maxima(axes),
            misfit=((WRONG[axes == 1], torch.zeros(0)), f"(N, C, {shape})"),
        )
        for axes, _, shape in RANKS
    ),
    Case(
        "MaxPool2d",
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": 1, "dilation": (1, 2), "ceil_mode": True},
        "MaxPool2d",
        images,
        "-odd",
    ),
    Case(
        "AvgPool2d",
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
        "AvgPool2d",
        images,
        "-odd",
    ),
    Case("AdaptiveAvgPool2d", {"output_size": (3, None)}, "AdaptiveAvgPool2d", images, "-keeps-width"),
    Case(
        "AdaptiveMaxPool3d",
        {"output_size": (None, 3, 2), "return_indices": True},
        "AdaptiveMaxPool3d",
        volumes,
        "-indices",
    ),
    Case(
        "MaxPool1d",
        {"kernel_size": 3, "stride": 2, "return_indices": True},
        "MaxPool1d",
        sequences,
        "-indices",
    ),
    Case(
        "MaxPool3d",
        {"kernel_size": 3, "stride": (2, 1, 2), "padding": 1, "ceil_mode": True},
        "MaxPool3d",
        volumes,
        "-odd",
    ),
    Case(
        "LpPool2d",
        {"norm_type": 4.0, "kernel_size": (3, 2), "stride": 1, "ceil_mode": True},
        "LPPool2d",
        images,
        "-odd",
    ),
]
