"""`burnt page`: write the model of a run as one HTML file. Imports torch."""

from __future__ import annotations

from burnt.cli.output import Page
from burnt.cli.run_model import RunArguments, load_run_model

__all__ = ["run"]


def run(args: RunArguments, out: str, weights: str, title: str | None) -> int:
    """Write a run's model as a page and print where.

    Args:
        args: which model.
        out: the file to write.
        weights: how matrices are stored: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        title: the page's title, by default the run's name.

    Returns:
        The exit code 0.

    Raises:
        UsageError: there is no such run.
        BurntError: the model cannot be loaded, or cannot run in a page.
    """
    from burnt.export import write_page

    shipped = load_run_model(args)
    written = write_page(
        shipped.model,
        shipped.signature,
        out,
        title=title or shipped.folder.resolve().name,
        classes=shipped.classes,
        weights=weights,
    )
    page = Page()
    page.line(f"{shipped.folder}, {shipped.checkpoint}")
    page.line(f"{written.path}, {written.size:,} bytes: open it in a browser")
    return 0
