"""What the Triton printer returns (the text, its functions and their arguments), and its block sizes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch

from burnt.codegen.ir import Buffer

if TYPE_CHECKING:
    from burnt.codegen.render.triton.matmul_config import MatmulConfig
    from burnt.codegen.render.triton.tile_config import TileConfig

from typing import TypeAlias

from burnt.codegen.render.triton import matmul_config, tile_config
from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulConfig, MatmulStructure
from burnt.codegen.render.triton.tile_config import Limits, TileConfig, TileStructure

AnyStructure: TypeAlias = TileStructure | MatmulStructure
AnyConfig: TypeAlias = TileConfig | MatmulConfig


def select_config(structure: AnyStructure, limits: Limits = HOPPER) -> AnyConfig:
    """Select block sizes for a kernel by heuristic; a matmul's fit `limits`."""
    return (
        matmul_config.select_config(structure, limits)
        if isinstance(structure, MatmulStructure)
        else tile_config.select_config(structure)
    )


def neighbouring_configs(structure: AnyStructure, limits: Limits = HOPPER) -> list[AnyConfig]:
    """Return block sizes to measure, the selected ones first."""
    if isinstance(structure, MatmulStructure):
        return [*matmul_config.neighbouring_configs(structure, limits)]
    return [*tile_config.neighbouring_configs(structure)]


def why_too_large(structure: AnyStructure, config: AnyConfig, limits: Limits) -> str | None:
    """Return why these block sizes cannot be fast on a device, or None. An estimate: nothing is compiled."""
    if isinstance(structure, MatmulStructure):
        assert isinstance(config, MatmulConfig)
        return matmul_config.why_too_large(structure, config, limits)
    assert isinstance(config, TileConfig)
    return tile_config.why_too_large(structure, config, limits)


def parse_config(text: str) -> AnyConfig:
    """Parse the text of block sizes of either kind.

    >>> str(parse_config("4x256 w8")), str(parse_config("64x64x32 w4 s3"))
    ('4x256 w8', '64x64x32 w4 s3')
    """
    return MatmulConfig.of(text) if text.count("x") == 2 else TileConfig.of(text)


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
