"""`burnt export`: write the model of a run as an ONNX file. Imports torch."""

from __future__ import annotations

from pathlib import Path

from burnt.cli.output import Page, UsageError, print_json
from burnt.cli.run_model import RunArguments, load_run_model

__all__ = ["run"]


def run(args: RunArguments, out: str, batch: int | None, weights: str, as_json: bool) -> int:
    """Export a run's model and print what was written.

    Args:
        args: which model.
        out: the file to write.
        batch: a fixed number of items; None leaves the batch axis open.
        weights: how matrices are stored: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        as_json: whether to print JSON.

    Returns:
        The exit code 0.

    Raises:
        UsageError: there is no such run, `out` is no path for a file, or `batch` is below 1.
        BurntError: the model cannot be loaded or exported.
    """
    from burnt import onnx

    if batch is not None and batch < 1:
        raise UsageError("--batch is invalid", expected="at least 1", found=batch)
    if not Path(out).parent.is_dir():
        raise UsageError("there is no folder for the file", found=out)
    shipped = load_run_model(args)
    exported = onnx.export(
        shipped.model, shipped.signature, out, batch=batch, weights=weights, metadata=shipped.metadata
    )
    if as_json:
        print_json(
            {
                "file": str(exported.path),
                "bytes": exported.size,
                "run": str(shipped.folder),
                "checkpoint": shipped.checkpoint,
                "signature": exported.signature.to_dict(),
                "largest_error": {str(batch): error for batch, error in exported.errors.items()},
            }
        )
        return 0
    page = Page()
    page.line(f"{shipped.folder}, {shipped.checkpoint}")
    for line in str(exported).splitlines():
        page.line(line)
    return 0
