"""What the machine code of the products must look like, compiled for GPUs that need not be present."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.codegen.ir import Kernel
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import select_config
from burnt.kernels.ops import grouped_triton
from burnt.kernels.ops.attention import flash_config
from burnt.kernels.ops.loss.cross_entropy_rows import Terms, row_losses
from burnt.kernels.ops.matmul_gpu import rows_structure
from burnt.kernels.ops.quantized import scaled_gpu, scaled_triton, weight_only_config, weight_only_triton
from burnt.kernels.ops.quantized.scaled import LinearCall
from burnt.kernels.ops.quantized.weight_only import LinearArguments
from tests.codegen.render.triton import attention
from tests.codegen.render.triton.ahead import Compiled, compiled, compiled_launch, limits_of, planned


@pytest.mark.parametrize("target", ["sm_90", pytest.param("sm_100", marks=pytest.mark.full)])
@pytest.mark.parametrize("block", [0, 32, 128])
@pytest.mark.parametrize("rows", [1, 64])
def test_packed_weights_are_not_read_byte_by_byte(rows: int, block: int, target: str, tmp_path: Path) -> None:
    columns = terms = 4096
    meta = {"device": "meta"}
    x = torch.empty(rows, terms, dtype=torch.bfloat16, **meta)
    values = torch.empty(columns, terms // 2, dtype=torch.uint8, **meta)
    scale = torch.empty(columns, terms // block if block else 1, dtype=torch.bfloat16, **meta)
    structure = weight_only_config.structure_of(rows, columns, terms, 2)
    config = weight_only_config.select_config(structure, block, limits_of(target))
    call = LinearArguments(x, values, scale, None, None, None, "int4", block)
    found = compiled_launch(weight_only_triton.launches(call, config)[0][0], target, tmp_path)
    assert not found.code.count("LDG.E.U8", "LDG.E.S8")
    assert found.code.count("LDG.E.128", "LDGSTS.E.BYPASS.128", "LDGSTS.E.BYPASS.LTC128B.128")
    assert not found.spilled


def gelu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def test_gelu_after_a_product_takes_few_instructions(tmp_path: Path) -> None:
    x, w, b = (torch.empty(*shape).bfloat16() for shape in ((8192, 4096), (4096, 4096), (4096,)))
    (kernel,) = (k for k in planned(gelu_of_linear, x, w, b, products=True) if k.matmul is not None)
    limits = dataclasses.replace(limits_of("sm_90"), has_tma=True)
    selected = select_config(structure_of(kernel), limits)
    elements = selected.block_m * selected.block_n / (32 * selected.warps)
    # Persistent programs have the end of a tile in their loop, so it is counted in those of a tile each.
    for config in selected, dataclasses.replace(selected, programs=0):
        (found,) = compiled([print_kernel(kernel, config)], "sm_90", tmp_path)
        assert found.code.count("UTMALDG")
        assert not found.code.count("LDGSTS")
        assert not found.spilled
    assert found.code.outside(found.code.loop_with("HGMMA")) <= 24 * elements
    assert selected.programs == 132


def residual_block(x: Tensor, w: Tensor, s: Tensor, b: Tensor, r: Tensor) -> Tensor:
    scale, shift = (t.view(-1, 1, 1) for t in (s, b))
    return torch.relu(F.conv2d(x, w, padding=1) * scale + shift + r)


def block_products(size: int, channels: int) -> list[Kernel]:
    """The convolution of a residual block of 32 images, and the gradients of its input and its weight."""
    x, w = torch.empty(32, channels, size, size), torch.empty(channels, channels, 3, 3)
    x, w = (t.bfloat16().to(memory_format=torch.channels_last) for t in (x, w))
    by_channel = torch.empty(channels).bfloat16()
    kernels = planned(residual_block, x, w, by_channel, by_channel, x, products=True, gradients=True)
    return [kernel for kernel in kernels if kernel.matmul is not None]


def programs_at_once(found: Compiled, warps: int) -> int:
    """How many programs an H100 runs at once: 132 multiprocessors with 64 K registers and 228 KiB each."""
    registers = -(-found.registers // 8) * 8 * 32 * warps
    return 132 * min((64 << 10) // registers, (228 << 10) // (found.shared + 1024), 64 // warps)


@pytest.mark.parametrize(("size", "channels"), [(56, 64), (28, 128)])
def test_convolutions_multiply_more_than_they_compute_addresses(
    size: int, channels: int, tmp_path: Path
) -> None:
    most = {"itself": 165, "gradient of the input": 200, "gradient of the weight": 260}  # instructions
    for kernel, (name, limit) in zip(block_products(size, channels), most.items(), strict=True):
        config = select_config(structure_of(kernel), limits_of("sm_90"))
        source = print_kernel(kernel, config)
        functions = compiled([source], "sm_90", tmp_path)
        assert not sum(found.spilled for found in functions), name
        assert not sum(found.code.count("I2F", "MUFU.RCP") for found in functions), name
        loop = functions[0].code.loop_with("HGMMA")
        assert len(loop) <= limit, name
        assert loop.count("LDGSTS"), name
        assert not loop.count("STS"), name
        waits = [one.operands.split()[-1] for one in loop.instructions if one.opcode == "WARPGROUP.DEPBAR.LE"]
        assert waits == ["0x1"], name
        places = programs_at_once(functions[0], config.warps)
        programs = source.functions[0].programs
        assert programs / (-(-programs // places) * places) >= 0.8, name


@pytest.mark.full
@pytest.mark.parametrize(("target", "unit"), [("sm_100", "tcgen05.mma"), ("gfx942", "v_mfma")])
def test_convolutions_divide_by_constants_on_other_devices(target: str, unit: str, tmp_path: Path) -> None:
    for kernel in block_products(28, 128):
        config = select_config(structure_of(kernel), limits_of(target))
        functions = compiled([print_kernel(kernel, config)], target, tmp_path)
        assert unit in functions[0].assembly
        for found in functions:
            assert not found.spilled
            divisions = found.code.count("I2F", "MUFU.RCP") if found.cubin else found.assembly.count("v_rcp")
            assert not divisions


def losses(logits: Tensor, target: Tensor) -> Tensor:
    return row_losses.fn(logits, target, *Terms.of(-100, 0.0, 0.0))


def test_cross_entropy_takes_few_instructions_for_an_element(tmp_path: Path) -> None:
    logits, target = torch.empty(2048, 32768).bfloat16(), torch.zeros(2048).long()
    (kernel,) = planned(losses, logits, target)
    config = select_config(structure_of(kernel), limits_of("sm_90"))
    (found,) = compiled([print_kernel(kernel, config)], "sm_90", tmp_path)
    assert len(found.code.loop_with("MUFU.EX2")) <= 12 * config.cols / (32 * config.warps)
    assert not found.spilled


def test_float8_products_take_no_detour_and_stay_in_flight(tmp_path: Path) -> None:
    x = torch.empty(4096, 4096, dtype=torch.uint8, device="meta")
    scale = torch.empty(4096, device="meta")
    call = LinearCall(x, x, scale, scale, value="float8_e4m3", dtype=torch.bfloat16)
    config = select_config(scaled_gpu.structure_of(4096, 4096, 4096, "float8"), limits_of("sm_90"))
    (launch,) = scaled_triton.linear_launches(call, config, float8=True)[0]
    found = compiled_launch(launch, "sm_90", tmp_path)
    loop = found.code.loop_with("QGMMA")
    assert not loop.count("STS")
    assert [one.operands.split()[-1] for one in loop.instructions if one.opcode == "WARPGROUP.DEPBAR.LE"][
        -1
    ] == "0x1"
    assert not found.spilled


@pytest.mark.parametrize(
    "operand", ["rows", pytest.param("rows, transposed", marks=pytest.mark.full), "terms", "rows, unaligned"]
)
def test_groups_are_multiplied_with_a_product_in_flight(operand: str, tmp_path: Path) -> None:
    """Forward and the gradient of the rows by descriptor, that of the matrices by copies of 16 bytes."""
    terms = 4095 if operand == "rows, unaligned" else 4096
    a, grad_out = (torch.empty(16384, terms, dtype=torch.bfloat16, device="meta") for _ in range(2))
    b = torch.empty(64, terms, terms, dtype=torch.bfloat16, device="meta")
    b = b.mT if operand == "rows, transposed" else b
    ends = torch.empty(64, dtype=torch.int64, device="meta")
    limits = dataclasses.replace(limits_of("sm_90"), has_tma=True)
    config = select_config(rows_structure(a, b), limits)
    if operand == "terms":
        launches, _ = grouped_triton.terms_launches(a, grad_out, ends, config)
    else:
        launches, _ = grouped_triton.rows_launches(a, b, ends, config)
    (found,) = (compiled_launch(launch, "sm_90", tmp_path) for launch in launches)
    if operand == "rows, unaligned":  # elements are read one by one
        assert found.spilled <= 16
        return
    assert not found.spilled
    loop = found.code.loop_with("HGMMA")
    assert [one.operands.split()[-1] for one in loop.instructions if one.opcode == "WARPGROUP.DEPBAR.LE"] == [
        "0x1"
    ]
    by_descriptor = operand != "terms"
    assert bool(loop.count("UTMALDG")) == by_descriptor
    assert loop.count("LDGSTS") == loop.count("LDGSTS.E.BYPASS.128")
    assert bool(loop.count("LDGSTS")) != by_descriptor
    assert config.programs == 132


@pytest.mark.full
@pytest.mark.parametrize(("target", "unit"), [("sm_100", "tcgen05.mma"), ("gfx942", "v_mfma_f32")])
def test_groups_are_multiplied_by_matrix_units(target: str, unit: str, tmp_path: Path) -> None:
    a = torch.empty(16384, 4096, dtype=torch.bfloat16, device="meta")
    b, ends = a.new_empty(64, 4096, 4096), a.new_empty(64, dtype=torch.int64)
    config = select_config(rows_structure(a, b), limits_of(target))
    for launches, _ in (
        grouped_triton.rows_launches(a, b, ends, config),
        grouped_triton.terms_launches(a, a, ends, config),
    ):
        found = compiled_launch(launches[0], target, tmp_path)
        assert not found.spilled
        assert unit in found.assembly


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("variant", ["plain", "causal"])
def test_attention_computes_exponentials_while_scores_are_multiplied(
    variant: str, size: int, tmp_path: Path
) -> None:
    blocks = flash_config.select_config(size, 2, limits_of("sm_90"))["forward"]
    found = attention.compiled("forward", blocks, torch.bfloat16, size, variant, "sm_90", tmp_path)
    assert not found.spilled
    loop = found.code.loop_with("HGMMA")  # of the blocks that all queries see
    in_flight = False
    for _ in range(2):  # a loop may begin anywhere: the second time tells what is in flight at its beginning
        total = overlapping = 0
        for one in loop.instructions:
            if one.opcode.startswith("HGMMA"):
                in_flight = True
            elif one.opcode.startswith("WARPGROUP.DEPBAR"):
                in_flight = False
            elif one.opcode == "MUFU.EX2":
                total, overlapping = total + 1, overlapping + in_flight
    assert total == 34
    assert overlapping >= 24


@pytest.mark.parametrize("width", [128, 4096, 8192])
def test_a_norm_reads_its_rows_once_for_all_gradients(width: int, tmp_path: Path) -> None:
    x, weight, bias = (torch.empty(*shape).bfloat16() for shape in ((8192, width), (width,), (width,)))
    kernels = planned(lambda x, w, b: F.layer_norm(x, w.shape, w, b), x, weight, bias, gradients=True)
    rows, sums = (kernel for kernel in kernels if "backward" in kernel.name)
    assert not {b.shape for b in sums.buffers_read} & {x.shape}
    (found,) = compiled([print_kernel(rows, select_config(structure_of(rows)))], "sm_90", tmp_path)
    assert found.code.loop_with("LDGSTS").count("STG")  # the next rows are read while these are computed
    assert not found.spilled


@pytest.mark.parametrize(
    "variant",
    ["causal", *(pytest.param(v, marks=pytest.mark.full) for v in ("plain", "window", "tables"))],
)
def test_gradients_of_attention_take_five_products(variant: str, tmp_path: Path) -> None:
    limits = dataclasses.replace(limits_of("sm_90"), has_tma=True)
    blocks = flash_config.select_config(128, 2, limits)["both"]
    found = attention.compiled("both", blocks, torch.bfloat16, 128, variant, "sm_90", tmp_path)
    assert not found.spilled
    loop = found.code.loop_with("HGMMA")
    assert (blocks.m, blocks.n, blocks.warps) == (64, 128, 8)
    # A warp group multiplies 64 rows by 16 terms: QK, dP and dQ have 128 terms, dK and dV 64.
    assert loop.count("HGMMA") == 3 * 128 // 16 + 2 * 64 // 16
    assert loop.count("UTMAREDG") == 1
    assert not loop.count("RED.", "ATOM", "HMMA")


@pytest.mark.full
@pytest.mark.parametrize("kernel", ["forward", "both"])
def test_attention_on_a_b200(kernel: str, tmp_path: Path) -> None:
    limits = dataclasses.replace(limits_of("sm_100"), has_tma=True)
    blocks = flash_config.select_config(128, 2, limits)[kernel]
    found = attention.compiled(kernel, blocks, torch.float16, 128, "causal", "sm_100", tmp_path)
    assert not found.spilled
    assert found.shared <= limits.shared_memory
    assert found.code.count("UTCHMMA")
    assert bool(found.code.count("UTMAREDG")) == (kernel == "both")
