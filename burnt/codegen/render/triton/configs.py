"""Block sizes of Triton kernels of all kinds: those that walk (`triton_blocks`) and products."""

from __future__ import annotations

from typing import TypeAlias

from burnt.codegen.render.triton import matmul_config, tile_config
from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulConfig, MatmulStructure
from burnt.codegen.render.triton.tile_config import Limits, TileConfig, TileStructure

__all__ = [
    "AnyConfig",
    "AnyStructure",
    "is_risky",
    "neighbouring_configs",
    "parse_config",
    "select_config",
    "why_too_large",
]

AnyStructure: TypeAlias = TileStructure | MatmulStructure
AnyConfig: TypeAlias = TileConfig | MatmulConfig


def select_config(form: AnyStructure, limits: Limits = HOPPER) -> AnyConfig:
    """Block sizes for a kernel, without measuring; those of a product are such that `limits` has room."""
    return (
        matmul_config.select_config(form, limits)
        if isinstance(form, MatmulStructure)
        else tile_config.select_config(form)
    )


def neighbouring_configs(form: AnyStructure, limits: Limits = HOPPER) -> list[AnyConfig]:
    """Block sizes worth measuring, the picked ones first."""
    if isinstance(form, MatmulStructure):
        return [*matmul_config.neighbouring_configs(form, limits)]
    return [*tile_config.neighbouring_configs(form)]


def why_too_large(form: AnyStructure, config: AnyConfig, limits: Limits) -> str | None:
    """Why these block sizes cannot be fast on a device, or None; estimated, nothing is compiled."""
    if isinstance(form, MatmulStructure):
        assert isinstance(config, MatmulConfig)
        return matmul_config.why_too_large(form, config, limits)
    assert isinstance(config, TileConfig)
    return tile_config.why_too_large(form, config, limits)


def is_risky(config: AnyConfig) -> bool:
    """Whether compilers are known to fail with such block sizes, or to make wrong kernels."""
    return isinstance(config, MatmulConfig) and config.specialized


def parse_config(text: str) -> AnyConfig:
    """The block sizes that a text names.

    Raises:
        ValueError: it names none.

    >>> str(parse_config("4x256 w8")), str(parse_config("64x64x32 w4 s3"))
    ('4x256 w8', '64x64x32 w4 s3')
    """
    return MatmulConfig.of(text) if text.count("x") == 2 else TileConfig.of(text)
