"""WandB: mirrors a run to Weights & Biases."""

from __future__ import annotations

import io
import json
import secrets
from itertools import groupby
from typing import Any, ClassVar

from burnt.store.reader import Artefact
from burnt.train.sinks.base import How, Records, Run, Sink, require_package


class WandB(Sink):
    """Sends a run's metrics, images, histograms, tables, events and settings to Weights & Biases.

    Metrics are named ``"train/loss"``. A resumed training continues the same run of W&B, whose steps cannot
    be taken back: those that were sent are not sent again. Without a network, ``mode="offline"`` writes files
    for ``wandb sync``.

    Args:
        project: the project of the run.
        name: the run's name, by default its folder's.
        mode: ``"online"``, ``"offline"`` or ``"disabled"``; by default the environment variable
            ``WANDB_MODE``.
        options: further arguments of ``wandb.init``, such as ``entity``, ``group``, ``tags``.

    Raises:
        UnsupportedError: wandb is not installed.
    """

    name: ClassVar[str] = "wandb"

    def __init__(
        self, project: str | None = None, name: str | None = None, mode: str | None = None, **options: Any
    ) -> None:
        super().__init__()
        require_package("wandb", "WandB")
        self._options = {"project": project, "name": name, "mode": mode, **options}

    def open(self, run: Run) -> str | None:
        """Start or continue the run of W&B."""
        import wandb

        self._events: list[list[Any]] = []
        self._state = run.state
        identity = run.state.setdefault("id", self._options.get("id") or secrets.token_hex(4))
        given = {key: value for key, value in self._options.items() if value is not None}
        settings = given.pop("settings", None) or wandb.Settings(console="off", silent=True)
        arguments = {"name": run.name, "dir": str(run.folder), **given, "id": identity}
        # A separate run from one that the user's code may have open.
        self._run: Any = wandb.init(
            **arguments, config=run.config, resume="allow", reinit="create_new", settings=settings
        )
        return self._run.url or f"wandb sync {self._run.dir.removesuffix('/files')}"

    def send(self, records: Records) -> None:
        """Log the values of each step together, in the order of the steps."""
        values = [(point.step, f"{s.split}/{s.name}", point.value) for s, point in records.points]
        for artefact in records.artefacts:
            try:
                values.append((artefact.step or 0, artefact.name, _media(artefact)))
            except Exception as error:  # whatever a library raises for what it cannot show
                self.leave_out(artefact.name, error)
        for step, group in groupby(sorted(values, key=lambda value: value[0]), key=lambda value: value[0]):
            # W&B takes no earlier step than the last one, such as that of a table without a step.
            self._state["step"] = max(step, self._state.get("step", 0))
            self._run.log({name: value for _, name, value in group}, step=self._state["step"])
        self._events += [[e.time, e.step, e.kind, json.dumps(e.data)] for e in records.events]

    def close(self, how: How) -> None:
        """Log the events as a table, and finish."""
        import wandb

        table = wandb.Table(columns=["time", "step", "kind", "data"], data=self._events)
        self._run.log({"events": table}, step=self._state.get("step", 0))
        self._run.finish(exit_code=1 if how == "failed" else 0)


def _media(artefact: Artefact) -> Any:
    import wandb

    data = artefact.data
    if artefact.kind == "image":
        from PIL import Image

        return wandb.Image(Image.open(io.BytesIO(data)))
    if artefact.kind == "histogram":
        return wandb.Histogram(np_histogram=(data["counts"], data["edges"]))
    # Its columns have one type each; cells of burnt's tables need not.
    rows = [[cell if isinstance(cell, int | float) else str(cell) for cell in row] for row in data["rows"]]
    columns: list[str | int] = [str(name) for name in data["columns"]]
    return wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
