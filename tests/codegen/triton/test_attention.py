"""Kernels of flash attention compiled for GPUs that are not there, and which block sizes are picked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton

from burnt.codegen.triton_blocks import Limits
from burnt.kernels import attention_triton as kernels
from burnt.kernels.attention_blocks import KERNELS, Blocks, configs, pick
from tests.codegen.triton.ahead import SHARED, TARGETS, Compiled, _measured, driven

ROCM = dict.fromkeys(("gfx90a", "gfx942", "gfx950"), 64) | {"gfx1100": 32}
pytestmark = pytest.mark.filterwarnings("ignore")

# Tests and score functions of each.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"high": 1},
    "window": {"low": -100, "high": 1},
    "mask": {"mask": torch.bool},
    "mask, added": {"mask": torch.float32},
    "tables": {"tables": True},
    "dropout": {"dropout": 0.1},
    "softcap": {"high": 1, "score": kernels.capped, "slope": kernels.capped_slope, "args": (30.0, 1, 0)},
}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def limits_of(target: str) -> Limits:
    if target in ROCM:
        return Limits(304, 2048 * ROCM[target], 256, SHARED[target], ROCM[target], rocm=True)
    return Limits(132, shared=SHARED[target])


def compiled(
    kernel: str, blocks: Blocks, dtype: torch.dtype, size: int, variant: str, target: str, folder: Path
) -> Compiled:
    """A kernel for (4, 32, 4096, size), as its launch would have it."""
    options = dict(VARIANTS[variant])
    x = torch.empty(4, 4096, 32, size, dtype=dtype, device="meta").transpose(1, 2)
    table = torch.empty(4, 4096, dtype=torch.int32, device="meta")
    if "mask" in options:
        mask = torch.empty(4, 1, 4096, 4096, dtype=options["mask"], device="meta")
        options["mask"] = mask.expand(4, 32, -1, -1)
    options["tables"] = (table,) * 4 if options.get("tables") else None
    options["seed"] = torch.empty((), dtype=torch.int64, device="meta") if "dropout" in options else None
    problem = kernels.Problem(size**-0.5, **options)
    launch = kernels.launches(x, x, x, problem, dict.fromkeys(KERNELS, blocks), gradients=True)[kernel]
    with driven(TARGETS[target]):
        made = triton.JITFunction(launch.kernel.fn).warmup(
            *launch.arguments, grid=(1,), **launch.constants, **launch.options
        )
        return _measured(made, f"{kernel}_{variant}", target, folder)


# Bytes that do not fit into the 256 registers of a lane, of the smallest tiles that products have.
SPILLED = {("gfx1100", "f32", 128): 280, ("gfx1100", "bf16", 128): 64}


def check(kernel: str, dtype: str, size: int, variant: str, target: str, folder: Path) -> Compiled:
    blocks = pick(size, DTYPES[dtype].itemsize, limits_of(target))[kernel]
    made = compiled(kernel, blocks, DTYPES[dtype], size, variant, target, folder)
    said = f"{kernel} {dtype} {size} {variant} {target} {blocks}: {made.registers} registers"
    assert made.spilled <= SPILLED.get((target, dtype, size), 0), f"{said}, {made.spilled} bytes spilled"
    assert made.shared <= SHARED[target], f"{said}, {made.shared} bytes shared"
    double = re.findall(r"\S*\.f64\S*|v_\S*_f64\S*", made.assembly)
    assert not double, f"{said}: {sorted(set(double))}"
    return made


@pytest.mark.parametrize("kernel", ["forward", "keys", "queries"])
@pytest.mark.parametrize(("target", "variant"), [("sm_90", "causal"), ("gfx942", "plain")])
def test_a_sample(kernel: str, target: str, variant: str, tmp_path: Path) -> None:
    made = check(kernel, "bf16", 128, variant, target, tmp_path)
    assert ("wgmma.mma_async" if target == "sm_90" else "v_mfma") in made.assembly


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("kernel", ["forward", "dots", "keys", "queries"])
def test_the_picked_sizes_everywhere(kernel: str, dtype: str, size: int, target: str, tmp_path: Path) -> None:
    check(kernel, dtype, size, "causal", target, tmp_path)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", ["forward", "keys", "queries"])
def test_all_options(kernel: str, variant: str, target: str, tmp_path: Path) -> None:
    """Options ask for registers of their own: what spills a little is left to the tuner."""
    blocks = pick(64, 2, limits_of(target))[kernel]
    made = compiled(kernel, blocks, torch.float16, 64, variant, target, tmp_path)
    assert made.spilled <= 64, f"{made.spilled} bytes spilled"
    assert made.shared <= SHARED[target]
    assert "f64" not in made.assembly


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_all_configurations_compile(size: int, tmp_path: Path) -> None:
    for config in configs(size, 2, limits_of("sm_90")):
        for kernel in ("forward", "keys", "queries"):
            blocks = Blocks.of(config[kernel])
            made = compiled(kernel, blocks, torch.bfloat16, size, "plain", "sm_90", tmp_path)
            assert made.shared <= SHARED["sm_90"], (kernel, config)


@pytest.mark.parametrize("size", [64, 128])
def test_the_first_configurations_are_of_all_kernels(size: int) -> None:
    """As many as the tuner tries in its quick mode."""
    listed = configs(size, 2, limits_of("sm_90"))
    changed = [[name for name in KERNELS if c[name] != listed[0][name]] for c in listed[1:]]
    assert all(len(names) == 1 for names in changed)
    for first in (3, 6, 9, 12):
        counts = [changed[: first - 1].count([name]) for name in ("forward", "keys", "queries")]
        assert max(counts) - min(counts) <= 1, (first, counts)
    of_forward = configs(size, 2, limits_of("sm_90"), ["forward"])
    assert of_forward == [
        c for c in listed if c["keys"] == listed[0]["keys"] and c["queries"] == listed[0]["queries"]
    ]


def test_what_is_picked_fits_and_is_the_first_configuration() -> None:
    for target in TARGETS:
        for size in (1, 64, 65, 128, 200, 256):
            for itemsize in (2, 4):
                limits = limits_of(target)
                picked = pick(size, itemsize, limits)
                listed = configs(size, itemsize, limits)
                assert listed[0] == {name: str(blocks) for name, blocks in picked.items()}
                assert len({tuple(c.items()) for c in listed}) == len(listed)
                assert all(Blocks.of(text) is not None for config in listed for text in config.values())
    with pytest.raises(ValueError, match="expected such as"):
        Blocks.of("64 w4")
