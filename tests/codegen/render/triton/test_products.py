"""Matmul kernels compiled for GPUs that need not be present, and their block sizes."""

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


from burnt.codegen import precision
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.matmul_config import MatmulConfig, MatmulStructure
from burnt.codegen.render.triton.source import (
    neighbouring_configs,
    parse_config,
    select_config,
    why_too_large,
)
from burnt.codegen.render.triton.tile_config import Limits
from burnt.codegen.runtime.triton_backend import are_block_sizes
from burnt.codegen.runtime.triton_compile_pool import Pool, jobs_of
from tests.codegen.render.triton.ahead import SHARED, TARGETS, compiled, limits_of, planned

H200 = Limits(132, shared_memory=227 << 10)
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


@pytest.mark.sample(3)
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
    kernels = [k for k in planned(fn, *args, products=True) if k.matmul is not None]
    assert len(kernels) == 1
    (kernel,) = kernels
    limits = Limits(
        132,
        warp_size=TARGETS[target].warp_size,
        shared_memory=SHARED[target],
        is_rocm=target.startswith("gfx"),
    )
    config = select_config(structure_of(kernel), limits)
    for found in compiled([print_kernel(kernel, config)], target, tmp_path):
        assert found.shared <= SHARED[target]
        # Two programs fit if a thread has at most 128 registers; ptxas uses these and spills a few words.
        assert found.spilled <= 16, (
            f"{found.registers} registers and {found.spilled} bytes of others: {config}"
        )
        assert not re.search(r"\.f64|_f64", found.assembly)
        multiplies = found.name.endswith("_part0") or str(config).count(" k") == 0
        if multiplies and target in UNITS:
            assert UNITS[target] in found.assembly
        elif multiplies:
            assert re.search(r"v_(mfma|wmma)_", found.assembly)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=() if (name, target) == ("gelu", "sm_90") else pytest.mark.full)
        for name in ("gelu", "convolution")
        for target in UNITS
    ],
)
def test_persistent_programs(name: str, target: str, tmp_path: Path) -> None:
    fn, args = CASES[name]
    (kernel,) = (k for k in planned(fn, *args, products=True) if k.matmul is not None)
    limits = Limits(132, shared_memory=SHARED[target])
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
def test_every_candidate_compiles(target: str, name: str, dtype: torch.dtype) -> None:
    """Compiled as by the tuner, in a pool of processes, with all features of that device."""
    fn, args = CASES[name]
    (kernel,) = (k for k in planned(fn, *(a.to(dtype) for a in args), products=True) if k.matmul is not None)
    rocm = target.startswith("gfx")
    machine = TARGETS[target]
    limits = Limits(132, warp_size=machine.warp_size, shared_memory=SHARED[target], is_rocm=rocm)
    limits = dataclasses.replace(limits, has_tma=not rocm)
    structure = structure_of(kernel)
    offered = [
        config
        for config in neighbouring_configs(structure, limits)
        if why_too_large(structure, config, limits) is None
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
def test_operands_loaded_by_tensor_descriptor(name: str, target: str, tmp_path: Path) -> None:
    fn, args = CASES[name]
    (kernel,) = (k for k in planned(fn, *args, products=True) if k.matmul is not None)
    limits = Limits(132, shared_memory=SHARED[target], has_tma=True)
    offered = neighbouring_configs(structure_of(kernel), limits)
    config = next(c for c in offered if isinstance(c, MatmulConfig) and c.descriptors)
    (found, *_) = compiled([print_kernel(kernel, config)], target, tmp_path)
    assert found.shared <= SHARED[target]
    assert found.spilled <= 16, f"{found.registers} registers, {found.spilled} bytes of others: {config}"
    assert "cp.async.bulk.tensor" in found.assembly
    assert UNITS[target] in found.assembly


def test_which_configs_use_descriptors() -> None:
    """Only for devices with TMA, and for operands whose layout a tensor descriptor can address."""

    def offered(fn: Callable[..., Tensor], *args: Tensor, **given: bool) -> set[bool]:
        (kernel,) = (k for k in planned(fn, *args, products=True) if k.matmul is not None)
        found = neighbouring_configs(structure_of(kernel), Limits(132, shared_memory=227 << 10, **given))
        return {c.descriptors for c in found if isinstance(c, MatmulConfig)}

    fn, args = CASES["gelu"]
    assert offered(fn, *args, has_tma=True) == {False, True}
    assert offered(fn, *args) == offered(fn, *args, is_rocm=True) == {False}
    odd = randn(512, 1025)[:, :1023]
    for fn, args in (
        CASES["residual"],  # one operand is computed: Triton's pipelines of such products go wrong
        CASES["convolution"],
        (gelu_of_linear, (odd, odd, randn(512))),
    ):
        assert offered(fn, *args, has_tma=True) == {False}


EXPECTED_INSTRUCTIONS = {
    ("ieee", "sm_90"): "fma.rn.f32", ("tf32", "sm_90"): "f32.tf32.tf32", ("tf32x3", "sm_90"): "f32.tf32.tf32",
    ("flex32", "sm_90"): "f32.bf16.bf16", ("tf32", "gfx942"): "xf32",
    ("tf32", "gfx90a"): "v_mfma_f32_32x32x2f32", ("tf32", "gfx1100"): "v_fma",
    ("tf32x3", "gfx942"): "v_mfma_f32_32x32x2_f32", ("flex32", "gfx1100"): "v_wmma_f32_16x16x16_bf16",
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "target"), EXPECTED_INSTRUCTIONS)
def test_float32_matmul_precision(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_rocm_architecture", lambda: target if target.startswith("gfx") else None)
    with precision.multiplying(name):
        args = torch.randn(256, 128), torch.randn(256, 128), torch.randn(256)
        (kernel,) = planned(gelu_of_linear, *args, products=True)
        limits = Limits(
            132, warp_size=TARGETS[target].warp_size, shared_memory=SHARED[target], is_rocm=target[0] == "g"
        )
        (found,) = compiled(
            [print_kernel(kernel, select_config(structure_of(kernel), limits))], target, tmp_path
        )
    assert EXPECTED_INSTRUCTIONS[name, target] in found.assembly


def test_block_sizes_of_a_table_compile_in_other_processes() -> None:
    """What the tuner compiles, by the text that a table stores."""
    fn, args = CASES["few rows"]
    (kernel,) = (k for k in planned(fn, *args) if k.matmul is not None)
    jobs = jobs_of(kernel, parse_config("64x64x64 w4 s3 k4"))
    assert [job.name for job in jobs] == [f"{kernel.name}_part0", kernel.name]
    assert jobs[0].constants == {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}
    assert jobs[0].options == {"num_warps": 4, "num_stages": 3}


STRUCTURES = [
    MatmulStructure(batches, rows, columns, terms, itemsize)
    for batches in (1, 96)
    for rows in (16, 100, 4096)
    for columns in (17, 768, 128_256)
    for terms in (16, 1000, 65_536)
    for itemsize in (2, 4)
]


def test_selected_config_fits() -> None:
    for structure in STRUCTURES:
        config = select_config(structure)
        assert isinstance(config, MatmulConfig)
        assert parse_config(str(config)) == config
        assert why_too_large(structure, config, H200) is None, (structure, config)
        assert config.block_m < 4 * structure.rows
        assert config.block_n < 4 * structure.columns
        assert config.split == 1 or config.split * config.block_k <= structure.terms


def test_neighbouring_configs_round_trip_as_texts() -> None:
    for structure in STRUCTURES[::7]:
        found = neighbouring_configs(structure)
        assert found[0] == select_config(structure)
        assert len(found) == len(set(found)) > 5
        assert are_block_sizes({f"linear_{i}": str(config) for i, config in enumerate(found)})


def test_exact_operands_have_a_small_block_k_without_matrix_units() -> None:
    """There a thread holds the operands of a whole iteration; CDNA has matrix units for float32."""
    structure, cdna = MatmulStructure(1, 4096, 4096, 4096, 4, is_exact=True), limits_of("gfx942")
    assert str(select_config(structure)) == "128x128x16 w8 s3"
    assert str(select_config(structure, limits_of("gfx1100"))) == "128x128x16 w8 s2"
    assert select_config(structure, cdna) == select_config(
        dataclasses.replace(structure, is_exact=False), cdna
    )
    # Computed operands have smaller tiles.
    assert str(select_config(dataclasses.replace(structure, num_tensors=5))) == "64x128x16 w8 s3"

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
        assert found.is_exact == exact, (name, dtype)


def test_few_tiles_use_split_k() -> None:
    assert select_config(MatmulStructure(1, 64, 64, 65_536, 2)).split == 64  # 1,024 terms each
    assert select_config(MatmulStructure(1, 64, 576, 65_536, 2)).split == 44  # of 9 tiles: 396 programs


def test_convolutions_of_any_number_of_images_share_a_text() -> None:
    def texts(images: int, size: int) -> list[str]:
        x, w, channels = last(images, 32, size, size), last(32, 32, 3, 3), randn(32)
        kernels = planned(block, x, w, channels, channels, x, products=True, gradients=True)
        config = parse_config("64x32x32 w4 s2 k3")
        return [print_kernel(kernel, config).text for kernel in kernels if kernel.matmul is not None]

    assert texts(4, 8) == texts(12, 8) != texts(4, 16)


@pytest.mark.parametrize(("size", "channels"), [(56, 64), (28, 128), (14, 256), (56, 256)])
def test_convolutions_fill_the_device(size: int, channels: int) -> None:
    """Three programs of 128x64 or 64x64 fit on a multiprocessor, two of 128x128."""
    positions, columns = 32 * size * size, 9 * channels
    for rows, terms in ((positions, columns), (channels, positions)):
        other = channels if rows == positions else columns
        structure = MatmulStructure(1, rows, other, terms, 2, is_convolution=True)
        config = select_config(structure, H200)
        assert isinstance(config, MatmulConfig)
        assert config.split == 1 or rows == channels
        assert config.group == 1
        programs = config.split * -(-rows // config.block_m) * -(-other // config.block_n)
        places = 132 * (2 if config.block_n == 128 else 3)
        assert programs / (-(-programs // places) * places) >= 0.8, config
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
def test_invalid_block_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected those of a matmul, such as '128x128x64 w8 s3'"):
        parse_config(text)


def test_empty_operands_are_not_read() -> None:
    """The dear part of a factor of (0, 1) was computed of one element, which there is none of."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factor = torch.log1p(x[:, None].abs())
        return torch.copysign(x, factor), (factor @ factor.mT) ** 4

    assert not planned(fn, torch.randn(0), gradients=True, products=True)
