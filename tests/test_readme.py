"""The Python blocks of README and docs run as they stand, and print what the page says they print."""

import re
from pathlib import Path

import pytest

from burnt.codegen.runtime.c_compiler import find_compiler
from tests import forked

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
NEEDS_A_COMPILER = pytest.mark.skipif(
    find_compiler() is None, reason="no C compiler here, so that eager functions run"
)
IN_ORDER = "run in order, as one program"


def blocks(document: Path) -> list[str]:
    """Return the programs of a page: its Python blocks, or all of them as one where the page says so."""
    text = document.read_text()
    # What asks a server is run by tests/serve, where there is one.
    python = [
        block
        for language, block in FENCE.findall(text)
        if language == "python" and "http://127.0.0.1" not in block
    ]
    return ["\n".join(python)] if IN_ORDER in text else python


BLOCKS = [
    pytest.param(
        block,
        id=f"{document.relative_to(ROOT)}-{number}",
        marks=[
            *([NEEDS_A_COMPILER] if document.name in ("kernels.md", "op.md", "lowering.md") else []),
            # On every change the blocks of the README and of kernels.md; the others take half a minute.
            *([] if document.name in ("README.md", "kernels.md") else [pytest.mark.full]),
        ],
    )
    for document in DOCUMENTS
    for number, block in enumerate(blocks(document))
]  # fmt: skip


def run(code: str, folder: Path) -> str:
    # A file, whose lines Triton can read.
    done = forked.run(code, cwd=folder, file=folder / "program.py", strict=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", BLOCKS)
def test_block_runs(code: str, tmp_path: Path) -> None:
    run(code, tmp_path)


def test_the_shape_error_is_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    code = next(block for language, block in FENCE.findall(page) if "ShapeError" in block)
    printed = next(block for language, block in FENCE.findall(page) if language == "text")
    assert run(code, tmp_path) == printed


def test_the_report_of_loaded_weights_is_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "weights.md").read_text()
    code = next(block for language, block in FENCE.findall(page) if "checkpoint.pt" in block)
    printed = next(block for language, block in FENCE.findall(page) if language == "text")
    assert run(code, tmp_path) == printed


@pytest.mark.full
def test_the_report_of_quantization_is_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quantization.md").read_text()
    code = next(block for language, block in FENCE.findall(page) if "burnt.quantize" in block)
    printed = next(block for language, block in FENCE.findall(page) if language == "text")
    assert run(code, tmp_path) == printed


@NEEDS_A_COMPILER
def test_the_kernel_is_as_printed(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "kernels.md").read_text()
    code = next(block for language, block in FENCE.findall(document) if "explain" in block)
    printed = next(block for language, block in FENCE.findall(document) if language == "text")
    assert run(code, tmp_path) == printed


OP_OF_ONES_OWN = next(
    block
    for _, block in FENCE.findall((ROOT / "docs" / "kernels.md").read_text())
    if "def forward_kernel" in block
)
OTHER_INPUTS = """
    x, bias, wide = torch.randn(6, 40), torch.randn(40), torch.randn(40, 2)
    for args in [
        (x, bias), (x, wide[:, 0]), (x, bias[:1]), (x, bias[0]), (x, bias[None]), (x.t(), bias[:6]),
        (x, wide[:1, 0].expand(40)), (x[:, ::2], bias[:20]), (x.int(), bias), (x.int(), bias.int()),
        (x, bias.int()), (x, bias.double()), (x.double(), bias), (x[0], bias), (x[0, 0], bias[0]),
        (x.view(2, 3, 40), bias), (x[:, :1], bias), (x[:0], bias), (x[:, :0], bias[:0]), (x, bias > 0),
    ]:
        args = [a.to(DEVICE) for a in args]
        torch.testing.assert_close(bias_relu2(*args), bias_relu2.reference(*args))
        given = [a.detach().requires_grad_() if a.is_floating_point() else a for a in args]
        wanted = [a for a in given if a.requires_grad]
        ours, theirs = bias_relu2(*given), bias_relu2.reference(*given)
        if wanted:
            gradients = torch.autograd.grad(theirs.sum(), wanted)
            torch.testing.assert_close(torch.autograd.grad(ours.sum(), wanted), gradients)
    assert bias_relu2.chosen(x.to(DEVICE), bias.to(DEVICE)).candidate.name == "mine"
"""


@NEEDS_A_COMPILER
def test_the_op_of_ones_own_is_right_for_all_that_its_reference_takes(tmp_path: Path) -> None:
    assert sum(bool(line.strip()) for line in OP_OF_ONES_OWN.splitlines()) <= 60
    run(OP_OF_ONES_OWN + OTHER_INPUTS, tmp_path)


def test_links_lead_somewhere() -> None:
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", FENCE.sub("", document.read_text())):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


def test_no_figure_is_missing() -> None:
    for document in DOCUMENTS:
        placeholders = re.findall(r"^[A-Z_]{6,}$", document.read_text(), re.M)
        assert placeholders == [], f"{document.name} waits for {placeholders}"
