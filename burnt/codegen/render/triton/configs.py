"""Block sizes of Triton kernels of all kinds: those that walk (`triton_blocks`) and products."""

from __future__ import annotations

from typing import TypeAlias

from burnt.codegen.render.triton import matmul_config, tile_config
from burnt.codegen.render.triton.matmul_config import HOPPER, ProductConfig, ProductForm
from burnt.codegen.render.triton.tile_config import Config, Form, Limits

__all__ = ["AnyConfig", "AnyForm", "config_of", "is_risky", "pick", "too_much", "variants"]

AnyForm: TypeAlias = Form | ProductForm
AnyConfig: TypeAlias = Config | ProductConfig


def pick(form: AnyForm, limits: Limits = HOPPER) -> AnyConfig:
    """Block sizes for a kernel, without measuring; those of a product are such that `limits` has room."""
    return matmul_config.pick(form, limits) if isinstance(form, ProductForm) else tile_config.pick(form)


def variants(form: AnyForm, limits: Limits = HOPPER) -> list[AnyConfig]:
    """Block sizes worth measuring, the picked ones first."""
    if isinstance(form, ProductForm):
        return [*matmul_config.variants(form, limits)]
    return [*tile_config.variants(form)]


def too_much(form: AnyForm, config: AnyConfig, limits: Limits) -> str | None:
    """Why these block sizes cannot be fast on a device, or None; estimated, nothing is compiled."""
    if isinstance(form, ProductForm):
        assert isinstance(config, ProductConfig)
        return matmul_config.too_much(form, config, limits)
    assert isinstance(config, Config)
    return tile_config.too_much(form, config, limits)


def is_risky(config: AnyConfig) -> bool:
    """Whether compilers are known to fail with such block sizes, or to make wrong kernels."""
    return isinstance(config, ProductConfig) and config.specialized


def config_of(text: str) -> AnyConfig:
    """The block sizes that a text names.

    Raises:
        ValueError: it names none.

    >>> str(config_of("4x256 w8")), str(config_of("64x64x32 w4 s3"))
    ('4x256 w8', '64x64x32 w4 s3')
    """
    return ProductConfig.of(text) if text.count("x") == 2 else Config.of(text)
