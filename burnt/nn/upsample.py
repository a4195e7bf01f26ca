"""Upsample: resizes sequences, images and volumes by interpolation."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt._torch import interpolate_antialiased
from burnt.errors import InputValueError, did_you_mean
from burnt.module import Module
from burnt.nn.checks import explain_input

_RANKS = {"linear": 1, "cubic": 1, "bilinear": 2, "bicubic": 2, "lanczos": 2, "trilinear": 3}
_SMOOTH = ("linear", "cubic", "bilinear", "bicubic", "trilinear")
_ANTIALIASED = ("bilinear", "bicubic", "lanczos")


class Upsample(Module, torch.nn.Upsample):
    """Resizes the axes after the channels, by interpolation; also to fewer elements.

    Args:
        size: size of each axis of the output.
        scale_factor: what each axis is multiplied by, instead of `size`.
        mode: for all ranks ``"nearest"`` (which rounds positions down, as OpenCV), ``"nearest-exact"`` (as
            Pillow) or ``"area"`` (means); for sequences ``"linear"`` or ``"cubic"``; for images
            ``"bilinear"``, ``"bicubic"`` or, with `antialias`, ``"lanczos"`` (on the CPU, from torch 2.13
            on); for volumes ``"trilinear"``.
        align_corners: whether the centres of the outermost elements stay in place, in the linear and cubic
            modes; None is False. (Burn: True by default.)
        recompute_scale_factor: compute positions from the sizes of input and output, and not from a
            `scale_factor` that gives a fractional size.
        antialias: widen the filter when images shrink, so that the result is Pillow's; for ``"bilinear"``,
            ``"bicubic"`` and ``"lanczos"``.

    Shapes:
        input ``[batch, channels, length]``, ``[batch, channels, height, width]`` or
        ``[batch, channels, depth, height, width]``; output ``[batch, channels, *size]``, or
        ``floor(axis * scale_factor)`` for each axis.

    Raises:
        InputValueError: neither or both of `size` and `scale_factor`, an unknown mode, an option that the
            mode does not have, or numbers for other axes than the mode's.
        ShapeError: the input has a number of axes that the mode does not take.

    As :class:`torch.nn.Upsample`, with `antialias` and ``"cubic"`` (Burn: ``Interpolate1d`` and
    ``Interpolate2d``). :class:`torch.nn.UpsamplingNearest2d` is the default mode, and
    :class:`torch.nn.UpsamplingBilinear2d` is ``mode="bilinear", align_corners=True``.

    >>> Upsample(scale_factor=2, mode="bilinear")(torch.zeros(1, 3, 4, 5)).shape
    torch.Size([1, 3, 8, 10])
    """

    antialias: bool

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: Literal[
            "nearest",
            "nearest-exact",
            "area",
            "linear",
            "cubic",
            "bilinear",
            "bicubic",
            "trilinear",
            "lanczos",
        ] = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise InputValueError(
                "Upsample needs one size",
                expected="size or scale_factor",
                found="neither" if size is None else "both",
            )
        modes = ("nearest", "nearest-exact", "area", *_SMOOTH, "lanczos")
        if mode not in modes:
            raise InputValueError(
                "Upsample has no such mode",
                expected=", ".join(modes),
                found=repr(mode),
                hint=did_you_mean(mode, modes),
            )
        given = size if scale_factor is None else scale_factor
        if mode in _RANKS and isinstance(given, tuple) and len(given) != _RANKS[mode]:
            raise InputValueError(
                "Upsample has other axes in this mode",
                expected=f"a number, or {_RANKS[mode]} of them, for {mode!r}",
                found=given,
            )
        if recompute_scale_factor and size is not None:
            raise InputValueError(
                "Upsample has no factor to recompute", expected="scale_factor", found="size"
            )
        if align_corners is not None and mode not in _SMOOTH:
            raise _option_error("align_corners", _SMOOTH, mode)
        if antialias and mode not in _ANTIALIASED:
            raise _option_error("antialias", _ANTIALIASED, mode)
        if mode == "lanczos" and not antialias:
            raise InputValueError(
                "Upsample has Lanczos filters only with antialias", expected="antialias=True"
            )
        super().__init__(size, scale_factor, mode, align_corners, recompute_scale_factor)
        self.antialias = antialias

    @explain_input
    def forward(self, input: Tensor) -> Tensor:
        """Resize ``[batch, channels, *]``."""
        options = self.align_corners, self.recompute_scale_factor
        if self.antialias and input.dim() == 4:
            return interpolate_antialiased(input, self.size, self.scale_factor, self.mode, *options)
        if self.mode != "cubic":
            return F.interpolate(input, self.size, self.scale_factor, self.mode, *options, self.antialias)
        # torch has cubic filters for images alone: a sequence is an image of one row.
        size, factor = _of_row(self.size, 1), _of_row(self.scale_factor, 1.0)
        return F.interpolate(input.unsqueeze(-2), size, factor, "bicubic", *options).squeeze(-2)


def _of_row(value: Any, height: float) -> Any:
    """Return the size or factor of an image of one row, from that of a sequence."""
    return value if value is None else (height, *value) if isinstance(value, tuple) else (height, value)


def _option_error(option: str, modes: tuple[str, ...], mode: str) -> InputValueError:
    return InputValueError(
        f"Upsample has no {option} in this mode",
        expected=f"mode {' or '.join(map(repr, modes))}",
        found=repr(mode),
    )
