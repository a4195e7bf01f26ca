"""MLflow: mirrors a run to an MLflow tracking server, or to a local folder or database of MLflow."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from burnt.store.reader import Artefact, text_of
from burnt.train.sinks.base import How, Names, Records, Run, Sink, require_package

_MAX_METRICS, _MAX_PARAMS, _MAX_VALUE = 1000, 100, 6000  # of MLflow's requests
_MAX_RUN_NAME = 250  # of its databases
_DOT = "\0"  # becomes a dot; keys may have dots of their own
_DATABASES = ("mssql", "mysql", "postgresql", "sqlite")
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Sink):
    """Sends a run's metrics, images, histograms, tables, events and settings to MLflow.

    Metrics are named ``"train/loss"``, settings are parameters, and the rest are artifacts. A resumed
    training continues the same run of MLflow; steps that were sent are not sent again.

    Args:
        experiment: the name of the experiment, created if it is missing.
        tracking_uri: the server, a folder, or a database such as ``"sqlite:///mlflow.db"``, which needs
            ``pip install mlflow``; by default the environment variable ``MLFLOW_TRACKING_URI``.
        name: the run's name, by default its folder's.
        tags: the run's tags, by name.

    Raises:
        UnsupportedError: mlflow is not installed, or what it needs for a database.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(
        self,
        experiment: str = "Default",
        tracking_uri: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        require_package("mlflow", "MLflow")
        scheme = (tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")).partition(":")[0]
        if scheme.partition("+")[0] in _DATABASES:
            require_package("sqlalchemy", f"MLflow with {scheme}", "mlflow")
        self._experiment, self._uri, self._name = experiment, tracking_uri, name
        self._tags = dict(tags or {})

    def open(self, run: Run) -> str:
        """Create the run, or continue it."""
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        # The client keeps nothing global, so that the user's own code may use MLflow too.
        self._client, self._metric = MlflowClient(self._uri), Metric
        uri = self._client.tracking_uri or ""
        names = run.state.setdefault("names", {})
        # A metric of MLflow's file store is a file; an artefact's step and suffix are added to its name.
        self._is_files = "://" not in uri or uri.startswith("file:")
        self._names = {
            kind: Names(
                names.setdefault(kind, {}), _clean, nests=self._is_files, most=most, report=self.report
            )
            for kind, most in (("metrics", 250), ("params", 250), ("tags", 250), ("artefacts", 220))
        }
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        )
        if "run_id" not in run.state:
            tags = {"burnt.folder": str(run.folder.resolve())}
            tags |= {self._names["tags"](key): str(value)[:_MAX_VALUE] for key, value in self._tags.items()}
            name = (self._name or run.name)[:_MAX_RUN_NAME]
            created = self._client.create_run(experiment, run_name=name, tags=tags)
            run.state["run_id"] = created.info.run_id
        self._id = run.state["run_id"]
        known = self._client.get_run(self._id).data.params  # a parameter cannot be changed
        name_of = self._names["params"]
        params = [Param(name_of(k), v[:_MAX_VALUE]) for k, v in _flat(run.config)]
        self._log("params", [param for param in params if param.key not in known], _MAX_PARAMS)
        self._client.update_run(self._id, status="RUNNING")
        return f"run {self._id} at {self._client.tracking_uri}"

    def send(self, records: Records) -> None:
        """Log metrics in batches, and the rest as artifacts."""
        name_of = self._names["metrics"]
        metrics = [
            self._metric(name_of(f"{series.split}/{series.name}"), p.value, int(p.time * 1000), p.step)
            for series, p in records.points
        ]
        self._log("metrics", metrics, _MAX_METRICS)
        if records.events:
            first, lines = records.events[0].id, [json.dumps(event._asdict()) for event in records.events]
            self._client.log_text(self._id, "\n".join(lines) + "\n", f"events/{first:06d}.jsonl")
        for artefact in records.artefacts:
            try:
                self._log_artefact(artefact)
            except Exception as error:
                if not self._refuses(error):
                    raise
                self.leave_out(artefact.name, error)

    def close(self, how: How) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._id, _STATUS[how])

    def _refuses(self, error: Exception) -> bool:
        """Whether an error is about a value, so that others may be taken, and not about the server."""
        if isinstance(error, OSError):  # a full disk, for one
            return False
        codes = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
        return self._is_files or getattr(error, "error_code", None) in codes

    def _log(self, kind: str, values: Sequence[Any], most: int) -> None:
        """Log metrics or parameters: one by one, without those that MLflow refuses, if it refuses a batch."""
        for start in range(0, len(values), most):
            part = values[start : start + most]
            batch: dict[str, Any] = {kind: part}
            try:
                self._client.log_batch(self._id, **batch)
            except Exception as error:
                if not self._refuses(error):
                    raise
                if len(part) == 1:
                    self.leave_out(part[0].key, error)
                else:
                    self._log(kind, part, 1)

    def _log_artefact(self, artefact: Artefact) -> None:
        name = f"{self._names['artefacts'](artefact.name)}-{artefact.step or 0:08d}"
        if (text := text_of(artefact.data)) is not None:
            self._client.log_text(self._id, text, f"texts/{name}.txt")
            return
        if artefact.kind != "image":
            self._client.log_dict(self._id, artefact.data, f"{artefact.kind}s/{name}.json")
            return
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"{name.rpartition('/')[2]}.png")
            file.write_bytes(artefact.data)
            parent = name.rpartition("/")[0]
            self._client.log_artifact(self._id, str(file), f"images/{parent}".rstrip("/"))


def _clean(name: str) -> str:
    """Replace what MLflow does not take in names: characters, and paths that would be other ones."""
    name = re.sub(r"[^\w.\- /]", "_", name.replace(_DOT, "."))
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(part if part.strip(".") else "_" * len(part) for part in parts) or "_"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a configuration by names with a `_DOT` between the keys."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(part, f"{name}{_DOT}{key}" if name else str(key))
    elif name:
        yield name, value if isinstance(value, str) else json.dumps(value)
