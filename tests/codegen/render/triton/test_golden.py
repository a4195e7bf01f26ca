"""Printed Triton as files that people can read; `BURNT_GOLDEN=write` regenerates them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.tile_config import TileConfig, select_config
from tests.codegen.render.triton.ahead import planned, printed

FOLDER = Path(__file__).parent / "golden"


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, w, b, eps):
    return F.layer_norm(x, (x.shape[-1],), w, b) * eps


def transposed(x, y):
    return x.t() + y


def padded(x):
    return F.pad(x, (1, 2)).relu()


def column_mean(x):
    return x.mean(0)


def rope(x, c, s):
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half] * c - x[..., half:] * s, x[..., half:] * c + x[..., :half] * s], -1)


def looked_up(w, i):
    return F.embedding(i, w) * 2


# Name of the file -> function, arguments, whether it includes the backward.
CASES = {
    "gelu": (gelu, (torch.zeros(1 << 20),), True),
    "softmax": (softmax, (torch.zeros(100, 1000).bfloat16(),), True),
    "softmax_long_rows": (softmax, (torch.zeros(600, 40_000),), False),
    "layer_norm": (layer_norm, (torch.zeros(64, 768), torch.zeros(768), torch.zeros(768), 0.5), False),
    "transposed": (transposed, (torch.zeros(300, 500), torch.zeros(500, 300)), False),
    "padded": (padded, (torch.zeros(33, 65),), False),
    "var_long_rows": (lambda x: x.var(-1), (torch.zeros(30, 1_000_000),), False),
    "column_mean": (column_mean, (torch.zeros(5000, 300),), False),
    "cumsum_long_rows": (lambda x: x.cumsum(-1), (torch.zeros(7, 50_000),), False),
    "rope": (rope, (torch.zeros(2, 3, 5, 8), torch.zeros(5, 4), torch.zeros(5, 4)), False),
    "embedding": (looked_up, (torch.zeros(100, 64), torch.zeros(7, 9, dtype=torch.int64)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_text(name):
    fn, args, gradients = CASES[name]
    kernels = printed(fn, *args, gradients=gradients)
    text = "\n\n".join(kernel.text for kernel in kernels)
    text = "".join(f"# {k.config!r}, {[f.programs for f in k.functions]}\n" for k in kernels) + "\n" + text
    file = FOLDER / f"{name}.txt"
    if os.environ.get("BURNT_GOLDEN") == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), (
        "if the change is intended, regenerate with BURNT_GOLDEN=write"
    )


def test_one_text_serves_several_shapes():
    texts = {
        printed(softmax, torch.zeros(rows, cols))[0].text for rows, cols in ((50, 100), (70, 999), (3, 5))
    }
    assert len(texts) == 1
    assert printed(softmax, torch.zeros(50, 100).bfloat16())[0].text not in texts


def test_block_sizes_can_be_chosen_for_a_kernel():
    (kernel,) = planned(softmax, torch.zeros(50, 5000))
    structure = structure_of(kernel)
    assert (structure.rows, structure.cols, structure.is_column_major, structure.has_inner_loop) == (
        50,
        5000,
        False,
        True,
    )
    default = print_kernel(kernel, select_config(structure))
    other = print_kernel(kernel, TileConfig(4, 8192, 8, 1))
    assert other.text == default.text
    assert other.functions[0].constants == {"ROWS": 4, "COLS": 8192}
    assert other.functions[0].programs == 13
    looped = print_kernel(kernel, TileConfig(1, 1024))
    assert "for start in range(0, n1, COLS)" in looped.text
    chunked = print_kernel(kernel, TileConfig(1, 1024, chunks=4))
    assert [f.programs for f in chunked.functions] == [200, 200]
    assert chunked.functions[-1].name == kernel.name
