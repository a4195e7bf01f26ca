"""What the machine code of the products must look like, compiled for GPUs that need not be present."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.kernels.ops.quantized import weight_only_config, weight_only_triton
from burnt.kernels.ops.quantized.weight_only import LinearArguments
from tests.codegen.render.triton.ahead import compiled_launch, limits_of


@pytest.mark.parametrize("target", ["sm_90", pytest.param("sm_100", marks=pytest.mark.full)])
@pytest.mark.parametrize("block", [0, 32, 128])
@pytest.mark.parametrize("rows", [1, 64])
def test_packed_weights_are_not_read_byte_by_byte(rows: int, block: int, target: str, tmp_path: Path) -> None:
    columns = terms = 4096
    meta = {"device": "meta"}
    x = torch.empty(rows, terms, dtype=torch.bfloat16, **meta)
    values = torch.empty(columns, terms // 2, dtype=torch.uint8, **meta)
    scale = torch.empty(columns, terms // block if block else 1, dtype=torch.bfloat16, **meta)
    sizes = weight_only_config.LinearSizes(rows, columns, terms, 2, block)
    config = weight_only_config.select_config(sizes, limits_of(target))
    call = LinearArguments(x, values, scale, None, None, None, "int4", block)
    found = compiled_launch(weight_only_triton.launches(call, config)[0][0], target, tmp_path)
    assert not found.code.count("LDG.E.U8", "LDG.E.S8")
    assert found.code.count("LDG.E.128", "LDGSTS.E.BYPASS.128", "LDGSTS.E.BYPASS.LTC128B.128")
    assert not found.spilled
