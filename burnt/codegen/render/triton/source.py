"""What the Triton printer returns: the text, its functions and their arguments."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch

from burnt.codegen.ir import Buffer

if TYPE_CHECKING:
    from burnt.codegen.render.triton.matmul_config import MatmulConfig
    from burnt.codegen.render.triton.tile_config import TileConfig


class Workspace(NamedTuple):
    """A tensor that one function of a kernel writes for the next: a partial result per chunk and row."""

    name: str
    size: int
    dtype: torch.dtype


class FailedFlag(NamedTuple):
    """An int64 tensor with an element per check of the kernel: ``2 * value + 1`` of a failure, else 0."""


class ScalarArg(NamedTuple):
    """A run-time number, by its position."""

    position: int


@dataclasses.dataclass(frozen=True)
class DeviceFunction:
    """A printed function and how to launch it."""

    name: str
    arguments: tuple[Buffer | Workspace | FailedFlag | ScalarArg | int, ...]
    constants: dict[str, int]  # the block sizes, by name
    programs: int  # the size of the grid


@dataclasses.dataclass(frozen=True)
class TritonSource:
    """A kernel as Triton."""

    text: str  # a Python module
    functions: tuple[DeviceFunction, ...]  # its functions to launch, in order
    config: TileConfig | MatmulConfig
