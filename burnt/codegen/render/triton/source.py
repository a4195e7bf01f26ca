"""What printing makes of a kernel for Triton: functions, and what they are called with."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch

from burnt.codegen.ir import Buffer

if TYPE_CHECKING:
    from burnt.codegen.render.triton.matmul_config import MatmulConfig
    from burnt.codegen.render.triton.tile_config import TileConfig

__all__ = ["DeviceFunction", "FailedFlag", "ScalarArg", "TritonSource", "Workspace"]


class Workspace(NamedTuple):
    """A tensor that one function of a kernel leaves for the next: a part of a fold for each chunk and row."""

    name: str
    size: int
    dtype: torch.dtype


class FailedFlag(NamedTuple):
    """A tensor of int64, one for each of the kernel's checks: ``2 * shown + 1`` of a failure."""


class ScalarArg(NamedTuple):
    """A run-time number, by its position."""

    position: int


@dataclasses.dataclass(frozen=True)
class DeviceFunction:
    """A printed function: how it is called.

    Args:
        name: its name in the text.
        arguments: what it is called with, in order; sizes are integers.
        constants: the block sizes, by name.
        programs: how many are launched.
    """

    name: str
    arguments: tuple[Buffer | Workspace | FailedFlag | ScalarArg | int, ...]
    constants: dict[str, int]
    programs: int


@dataclasses.dataclass(frozen=True)
class TritonSource:
    """A kernel as Triton.

    Args:
        text: a Python module.
        functions: those of it that are launched, in order.
        config: the block sizes.
    """

    text: str
    functions: tuple[DeviceFunction, ...]
    config: TileConfig | MatmulConfig
