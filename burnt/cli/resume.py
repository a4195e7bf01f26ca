"""`burnt train --resume RUN`: call the function that started a run again, to go on with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from burnt.cli.output import UsageError
from burnt.cli.runs_show import open_run, run_folder
from burnt.cli.stored_target import StoredTarget

__all__ = ["run"]


def run(name: str, overrides: Sequence[str], show: bool) -> int:
    """Resume a run; return the exit code 0.

    Args:
        name: the run's folder, or its name in ``runs``.
        overrides: ``"key=value"`` assignments, such as a longer duration.
        show: whether to print the configuration instead of training.

    Raises:
        UsageError: there is no such run, or it cannot be started again.
        RunError: the function trains in another folder.
    """
    folder = Path(run_folder(name))
    with open_run(str(folder)) as reader:
        document = reader.config()
    target = StoredTarget.read(
        folder, document, f"run the program again with SupervisedTraining({str(folder)!r}, ..., resume=True)"
    )
    target = target.override(overrides).in_folder(folder, resume=True)
    if show:
        print(target.config.to_json())
        return 0
    from burnt.train.directing import Resuming, directed

    resuming = Resuming(folder)
    target.call(directed(resuming))
    if not resuming.has_run:
        raise UsageError(f"{target.target} ran no training", where=str(folder))
    return 0
