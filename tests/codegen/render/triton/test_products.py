"""Kernels with a matrix product compiled for GPUs that are not there; their block sizes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton

from burnt.codegen import precision
from burnt.codegen.render.triton.configs import (
    neighbouring_configs,
    parse_config,
    select_config,
    why_too_large,
)
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.matmul_config import MatmulConfig, MatmulStructure
from burnt.codegen.render.triton.tile_config import Limits
from burnt.codegen.runtime.triton_backend import are_blocks
from burnt.codegen.runtime.triton_compile_pool import Pool, can_specialize_warps, choices_of, jobs_of
from tests.codegen.render.triton.ahead import SHARED, TARGETS, compiled, limits_of, planned

H200 = Limits(132, shared=227 << 10)
UNITS = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma", "sm_120": "mma.sync"}


def gelu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def linear_of_norm(x: Tensor, g: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, (1024,), g, b), w)


def residual_of_linear(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return torch.relu(F.linear(x * 2, w, b)) + r


def scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(q @ k.transpose(1, 2) * 0.125)


def block(x: Tensor, w: Tensor, s: Tensor, b: Tensor, r: Tensor) -> Tensor:
    scale, shift = (t.view(-1, 1, 1) for t in (s, b))
    return torch.relu(F.conv2d(x, w, padding=1) * scale + shift + r)


def pooled(x: Tensor, w: Tensor, s: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.max_pool2d(block(x, w, s, b, r), 2)


def averaged(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.avg_pool2d(F.gelu(F.conv2d(x, w, b, padding=1)), 4)


def normalised(x: Tensor, w: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, b, training=True))


def larger(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv_transpose2d(x, w, b, stride=2, padding=1))


def weight_gradient(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    sizes = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    return torch.ops.aten.convolution_backward(dy, x, w, None, *sizes)[1] * 0.5


def randn(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def last(*shape: int) -> Tensor:
    return randn(*shape).to(memory_format=torch.channels_last)


IMAGES, WEIGHT = last(32, 128, 28, 28), last(128, 128, 3, 3)


CASES = {
    "gelu": (gelu_of_linear, (randn(4096, 1024), randn(4096, 1024), randn(4096))),
    "norm": (linear_of_norm, (randn(4096, 1024), randn(1024), randn(1024), randn(4096, 1024))),
    "residual": (residual_of_linear, (randn(512, 768), randn(768, 768), randn(768), randn(512, 768))),
    "few rows": (gelu_of_linear, (randn(64, 8192), randn(96, 8192), randn(96))),
    "batches": (scores, (randn(16, 256, 64), randn(16, 256, 64))),
    "convolution": (block, (IMAGES, WEIGHT, randn(128), randn(128), IMAGES)),
    "statistics": (normalised, (IMAGES, WEIGHT, randn(128), randn(128))),
    "maxima": (pooled, (IMAGES, WEIGHT, randn(128), randn(128), IMAGES)),
    "means": (averaged, (IMAGES, WEIGHT, randn(128))),
    "convolution by phases": (larger, (IMAGES, last(128, 64, 4, 4), randn(64))),
    "convolution's weight": (weight_gradient, (IMAGES, IMAGES, WEIGHT)),
}
SAMPLE = [
    ("gelu", "sm_90"), ("residual", "gfx942"), ("few rows", "sm_80"), ("batches", "sm_90"),
    ("convolution", "sm_90"), ("statistics", "sm_90"), ("maxima", "sm_90"), ("norm", "sm_90"),
]  # fmt: skip
EVERY = [
    pytest.param(name, target, marks=() if (name, target) in SAMPLE else pytest.mark.full)
    for name in CASES
    for target in TARGETS
]


@pytest.mark.parametrize(("name", "target"), EVERY)
def test_compiled_ahead(name: str, target: str, tmp_path: Path) -> None:
    fits_and_multiplies(name, torch.bfloat16, target, tmp_path)


@pytest.mark.sample(0, full=30)
@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_compiled_ahead_in_float16(name: str, target: str, tmp_path: Path) -> None:
    """30 of them, which BURNT_SEED draws."""
    fits_and_multiplies(name, torch.float16, target, tmp_path)


def fits_and_multiplies(name: str, dtype: torch.dtype, target: str, tmp_path: Path) -> None:
    fn, args = CASES[name]
    args = tuple(a.to(dtype) for a in args)
    kernels = [k for k in planned(fn, *args, products=True) if k.product is not None]
    assert len(kernels) == 1
    (kernel,) = kernels
    limits = Limits(
        132, lanes=TARGETS[target].warp_size, shared=SHARED[target], rocm=target.startswith("gfx")
    )
    config = select_config(structure_of(kernel), limits)
    for found in compiled([print_kernel(kernel, config)], target, tmp_path):
        assert found.shared <= SHARED[target]
        # 128 registers are what a thread may have for two programs to fit; ptxas takes them and a few words.
        assert found.spilled <= 16, (
            f"{found.registers} registers and {found.spilled} bytes of others: {config}"
        )
        assert not re.search(r"\.f64|_f64", found.assembly)
        multiplies = found.name.endswith("_part0") or str(config).count(" k") == 0
        if multiplies and target in UNITS:
            assert UNITS[target] in found.assembly
        elif multiplies:
            assert re.search(r"v_(mfma|wmma)_", found.assembly)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=() if (name, target) == ("gelu", "sm_90") else pytest.mark.full)
        for name in ("gelu", "convolution")
        for target in UNITS
    ],
)
def test_programs_that_make_several_tiles(name: str, target: str, tmp_path: Path) -> None:
    fn, args = CASES[name]
    (kernel,) = (k for k in planned(fn, *args, products=True) if k.product is not None)
    limits = Limits(132, shared=SHARED[target])
    config = next(
        c
        for c in neighbouring_configs(structure_of(kernel), limits)
        if isinstance(c, MatmulConfig) and c.programs
    )
    assert str(config).endswith(" p132")
    printed = print_kernel(kernel, config)
    assert [f.programs for f in printed.functions] == [132]
    (found,) = compiled([printed], target, tmp_path)
    assert found.shared <= SHARED[target]
    assert found.spilled <= 16, f"{found.registers} registers and {found.spilled} bytes of others: {config}"
    assert UNITS[target] in found.assembly


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_every_block_size_with_specialized_warps_that_is_offered(target: str, tmp_path: Path) -> None:
    if not can_specialize_warps(triton.__version__):
        pytest.skip(f"Triton {triton.__version__} is offered none")
    for name in ("gelu", "batches", "few rows"):
        fn, args = CASES[name]
        (kernel,) = (k for k in planned(fn, *args, products=True) if k.product is not None)
        limits = Limits(132, shared=SHARED[target], copies=True, specializes=True)
        form = structure_of(kernel)
        offered = [c for c in neighbouring_configs(form, limits) if str(c).endswith(" ws")]
        assert offered
        for config in offered:
            if why_too_large(form, config, limits) is None:
                found = compiled([print_kernel(kernel, config)], target, tmp_path)
                assert "setmaxnreg" in found[0].assembly, config


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gelu", torch.bfloat16),
        ("gelu", torch.float16),
        ("few rows", torch.float16),
        ("batches", torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_every_block_size_that_is_offered(target: str, name: str, dtype: torch.dtype) -> None:
    """Compiled as the tuner does it, by a pool of processes, with whatever that device has units for."""
    fn, args = CASES[name]
    (kernel,) = (k for k in planned(fn, *(a.to(dtype) for a in args), products=True) if k.product is not None)
    rocm = target.startswith("gfx")
    machine = TARGETS[target]
    limits = Limits(132, lanes=machine.warp_size, shared=SHARED[target], rocm=rocm)
    limits = dataclasses.replace(limits, copies=not rocm, specializes=not rocm)
    form = structure_of(kernel)
    offered = [
        config for config in neighbouring_configs(form, limits) if why_too_large(form, config, limits) is None
    ]
    pool = Pool((machine.backend, machine.arch, machine.warp_size), workers=2)
    try:
        found = {str(config): pool.submit(jobs_of(kernel, config)) for config in offered}
        failed = {name: future.exception() for name, future in found.items()}
    finally:
        pool.close()
    assert len(found) > 5
    assert not {name: str(error) for name, error in failed.items() if error is not None}


COPYING = [
    (name, target) for name in ("gelu", "batches", "few rows") for target in ("sm_90", "sm_100", "sm_120")
]


@pytest.mark.parametrize(
    ("name", "target"),
    [pytest.param(*case, marks=() if case == ("gelu", "sm_90") else pytest.mark.full) for case in COPYING],
)
def test_factors_that_are_copied_by_units_of_their_own(name: str, target: str, tmp_path: Path) -> None:
    fn, args = CASES[name]
    (kernel,) = (k for k in planned(fn, *args, products=True) if k.product is not None)
    limits = Limits(132, shared=SHARED[target], copies=True, specializes=True)
    offered = [
        c
        for c in neighbouring_configs(structure_of(kernel), limits)
        if isinstance(c, MatmulConfig) and c.descriptors
    ]
    copied = next(c for c in offered if not c.specialized)
    specialized = next(c for c in offered if c.specialized)
    for config in (copied, specialized):
        (found, *_) = compiled([print_kernel(kernel, config)], target, tmp_path)
        assert found.shared <= SHARED[target]
        assert found.spilled <= 16, f"{found.registers} registers, {found.spilled} bytes of others: {config}"
        assert "cp.async.bulk.tensor" in found.assembly
        assert UNITS[target] in found.assembly
        # Those that copy give registers to those that multiply.
        assert ("setmaxnreg" in found.assembly) == config.specialized


def test_what_is_offered_of_copies() -> None:
    """To devices that have units for them, and for factors that lie in memory as descriptors can tell."""

    def offered(fn: Callable[..., Tensor], *args: Tensor, **given: bool) -> set[tuple[bool, bool]]:
        (kernel,) = (k for k in planned(fn, *args, products=True) if k.product is not None)
        found = neighbouring_configs(structure_of(kernel), Limits(132, shared=227 << 10, **given))
        return {(c.descriptors, c.specialized) for c in found if isinstance(c, MatmulConfig)}

    fn, args = CASES["gelu"]
    assert offered(fn, *args, copies=True) == {(False, False), (True, False)}
    both = {"copies": True, "specializes": True}
    assert offered(fn, *args, **both) == {(False, False), (True, False), (True, True)}
    assert offered(fn, *args) == offered(fn, *args, rocm=True) == {(False, False)}
    fn, args = CASES["residual"]  # of which one factor is computed
    assert offered(fn, *args, **both) == {(False, False), (True, False)}
    fn, args = CASES["convolution"]
    assert offered(fn, *args, **both) == {(False, False)}
    odd = randn(512, 1025)[:, :1023]
    assert offered(gelu_of_linear, odd, odd, randn(512), **both) == {(False, False)}


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1"])
def test_specialized_warps_come_last_and_only_where_they_compile(version: str) -> None:
    fn, args = CASES["gelu"]
    two = [k for k in planned(fn, *args, products=True, gradients=True) if k.product is not None][:2]
    limits = Limits(132, shared=227 << 10, copies=True, specializes=can_specialize_warps(version))
    offered = neighbouring_configs(structure_of(two[0]), limits)
    assert offered[0] == select_config(structure_of(two[0]), limits)
    last = [str(config).endswith(" ws") for config in offered]
    assert sorted(last) == last
    assert any(last) == (version == "3.7.1")
    # Of several kernels, too: those of all come last.
    choices = choices_of(two, limits)
    assert {choice.kernel for choice in choices} == {kernel.name for kernel in two}
    risky = [choice.blocks.endswith(" ws") for choice in choices]
    assert risky == [choice.risky for choice in choices] == sorted(risky)
    assert any(risky) == (version == "3.7.1")


def test_which_versions_specialize_warps() -> None:
    found = {
        v: can_specialize_warps(v) for v in ("3.4.0", "3.6.1", "3.7.0", "3.10.0+gitabc", "4.0", "3.7.0rc1")
    }
    assert found == {
        "3.4.0": False, "3.6.1": False, "3.7.0": True, "3.10.0+gitabc": True, "4.0": True, "3.7.0rc1": True,
    }  # fmt: skip


MEANT = {
    ("ieee", "sm_90"): "fma.rn.f32", ("tf32", "sm_90"): "f32.tf32.tf32", ("tf32x3", "sm_90"): "f32.tf32.tf32",
    ("flex32", "sm_90"): "f32.bf16.bf16", ("tf32", "gfx942"): "xf32",
    ("tf32", "gfx90a"): "v_mfma_f32_32x32x2f32", ("tf32", "gfx1100"): "v_fma",
    ("tf32x3", "gfx942"): "v_mfma_f32_32x32x2_f32", ("flex32", "gfx1100"): "v_wmma_f32_16x16x16_bf16",
}  # fmt: skip


@pytest.mark.parametrize(("name", "target"), MEANT)
def test_float32_is_multiplied_as_was_set(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_rocm", lambda: target if target.startswith("gfx") else None)
    with precision.multiplying(name):
        args = torch.randn(256, 128), torch.randn(256, 128), torch.randn(256)
        (kernel,) = planned(gelu_of_linear, *args, products=True)
        limits = Limits(132, lanes=TARGETS[target].warp_size, shared=SHARED[target], rocm=target[0] == "g")
        (found,) = compiled(
            [print_kernel(kernel, select_config(structure_of(kernel), limits))], target, tmp_path
        )
    assert MEANT[name, target] in found.assembly


def test_block_sizes_of_a_table_are_compiled_in_other_processes() -> None:
    """What the tuner asks for, by the text that a table holds."""
    fn, args = CASES["few rows"]
    (kernel,) = (k for k in planned(fn, *args) if k.product is not None)
    jobs = jobs_of(kernel, parse_config("64x64x64 w4 s3 k4"))
    assert [job.name for job in jobs] == [f"{kernel.name}_part0", kernel.name]
    assert jobs[0].constants == {"BM": 64, "BN": 64, "BK": 64}
    assert jobs[0].options == {"num_warps": 4, "num_stages": 3}


FORMS = [
    MatmulStructure(batches, rows, columns, terms, itemsize)
    for batches in (1, 96)
    for rows in (16, 100, 4096)
    for columns in (17, 768, 128_256)
    for terms in (16, 1000, 65_536)
    for itemsize in (2, 4)
]


def test_picked_blocks_fit() -> None:
    for form in FORMS:
        config = select_config(form)
        assert isinstance(config, MatmulConfig)
        assert parse_config(str(config)) == config
        assert why_too_large(form, config, H200) is None, (form, config)
        assert config.bm < 4 * form.rows
        assert config.bn < 4 * form.columns
        assert config.split == 1 or config.split * config.bk <= form.terms


def test_others_are_near_and_written_as_tables_hold_them() -> None:
    for form in FORMS[::7]:
        found = neighbouring_configs(form)
        assert found[0] == select_config(form)
        assert len(found) == len(set(found)) > 5
        assert are_blocks({f"linear_{i}": str(config) for i, config in enumerate(found)})


def test_exact_factors_have_small_steps_where_no_unit_multiplies_them() -> None:
    """There a thread holds all that a step multiplies; CDNA has units for float32."""
    form, cdna = MatmulStructure(1, 4096, 4096, 4096, 4, exact=True), limits_of("gfx942")
    assert str(select_config(form)) == "128x128x16 w8 s3"
    assert str(select_config(form, limits_of("gfx1100"))) == "128x128x16 w8 s2"
    assert select_config(form, cdna) == select_config(dataclasses.replace(form, exact=False), cdna)
    # Of factors that are computed, too, smaller tiles.
    assert str(select_config(dataclasses.replace(form, read=5))) == "64x128x16 w8 s3"

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w)

    for name, dtype, exact in (
        ("ieee", torch.float32, True),
        ("tf32", torch.float32, False),
        ("ieee", torch.bfloat16, False),
    ):
        with precision.multiplying(name):
            args = torch.ones(256, 128, dtype=dtype), torch.ones(128, 128, dtype=dtype)
            found = structure_of(planned(fn, *args, products=True)[0])
        assert isinstance(found, MatmulStructure)
        assert found.exact == exact, (name, dtype)


def test_few_tiles_share_their_terms() -> None:
    assert select_config(MatmulStructure(1, 64, 64, 65_536, 2)).split == 16
    assert select_config(MatmulStructure(1, 4096, 4096, 65_536, 2)).split == 1


@pytest.mark.parametrize(
    "text",
    [
        "128x128x48 w8 s3",
        "8x128x64 w8 s3",
        "512x512x64 w8 s3",
        "128x128x64 w64 s3",
        "128x128x64 w8 s9",
        "128x128x64",
    ],
)
def test_no_block_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected those of a product, as in '128x128x64 w8 s3'"):
        parse_config(text)


def test_factors_without_elements_are_not_read() -> None:
    """The dear part of a factor of (0, 1) was computed of one element, which there is none of."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factor = torch.log1p(x[:, None].abs())
        return torch.copysign(x, factor), (factor @ factor.mT) ** 4

    assert not planned(fn, torch.randn(0), gradients=True, products=True)
