"""`burnt evaluate RUN --data module:loader`: the metrics of a run's model on other data. Imports torch."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.output import Cell, Page, UsageError, print_json
from burnt.cli.run_model import load_model, read_run
from burnt.cli.train import config_class, configured, load_attribute, split_target
from burnt.errors import MetricError, clean, did_you_mean, quantity
from burnt.train.format import value_text

if TYPE_CHECKING:
    from burnt.store.afterwards import Table
    from burnt.train.after.loading import RunFiles
    from burnt.train.learner import StepFunction
    from burnt.train.metrics import Metric


@dataclass
class _Evaluation:
    values: Mapping[str, float]
    items: int
    texts: list[str]
    tables: list[Table]


def run(args: argparse.Namespace) -> int:
    """Evaluate a run's model and print the metrics. The code that the run names is imported."""
    from burnt.data.dataset import check_same_names
    from burnt.device import as_device
    from burnt.store.afterwards import add_results, check_ended

    files = read_run(args.run)
    folder = str(files.folder)
    files.checkpoint(args.checkpoint)  # raises before the data is read
    device = as_device(args.device)
    if args.record:
        check_ended(folder)
    loaders = load_data(args.data, args.batch_size, folder)
    for split, loader in loaders.items():
        check_same_names(loader, split, files.classes, files.categories)
    step = None if args.step is None else _named(args.step, "--step")
    if step is not None and not callable(step):
        raise UsageError(
            f"{args.step} is not a function", expected="step(model, batch)", found=type(step).__name__
        )
    saved, model = load_model(files, args.checkpoint, args.model)
    model = model.to(device)
    metrics = _choose_metrics(args.metrics, files)
    for metric in metrics:
        metric.data_classes = files.classes
    precision = str(files.document.get("precision", "float32"))
    found = {
        split: _evaluate(model, split, loader, metrics, step, precision, saved.position.step)
        for split, loader in loaders.items()
    }
    if args.record:
        for split, evaluation in found.items():
            data = {"split": split, "data": args.data, "checkpoint": saved.path.name}
            data["values"] = evaluation.values
            add_results(folder, "evaluation", saved.position.step, data, evaluation.tables)
    if args.json:
        print_json(
            {
                "run": folder,
                "checkpoint": saved.path.name,
                "step": saved.position.step,
                "data": args.data,
                "items": {split: evaluation.items for split, evaluation in found.items()},
                "values": {split: dict(evaluation.values) for split, evaluation in found.items()},
                "tables": {
                    name: {"columns": list(columns), "rows": [list(row) for row in rows]}
                    for evaluation in found.values()
                    for name, columns, rows in evaluation.tables
                },
            }
        )
    else:
        _print(Path(folder), saved.path.name, found, args.record)
    return 0


def _evaluate(
    model: Any,
    split: str,
    loader: Any,
    metrics: Sequence[Metric],
    step: StepFunction | None,
    precision: str,
    position: int,
) -> _Evaluation:
    from burnt.train import evaluate
    from burnt.train.metrics import Loss

    tables: list[Table] = []

    class Recorder:
        def record_table(
            self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int | None = None
        ) -> None:
            tables.append((name, columns, rows))

    loss = next((metric for metric in metrics if metric.name == "loss"), None) or Loss()
    measured = [loss, *(metric for metric in metrics if metric is not loss)]
    values = evaluate(model, loader, measured, step=step, precision=precision)
    for metric in measured:
        metric.record(Recorder(), split, position)
    texts = [str(metric) for metric in measured if not metric.scalar]
    return _Evaluation(values, loss.count, texts, tables)


def _print(folder: Path, checkpoint: str, found: Mapping[str, _Evaluation], is_recorded: bool) -> None:
    page = Page()
    page.line(Cell(str(folder), "bold"), f", {checkpoint}")
    names = list(dict.fromkeys(name for evaluation in found.values() for name in evaluation.values))
    rows: list[list[str | Cell]] = [
        [name, *(value_text(e.values[name]) if name in e.values else "" for e in found.values())]
        for name in names
    ]
    rows.append(["items", *(f"{evaluation.items:,}" for evaluation in found.values())])
    page.table(["metric", *found], rows, align_right=list(found))
    for split, evaluation in found.items():
        for text in evaluation.texts:
            page.heading(split)
            for line in text.splitlines():
                page.line(line)
    if is_recorded:
        page.line(f"recorded in the run: {quantity(len(found), 'event')}")


def load_data(target: str, batch_size: int, config_file: str | None) -> dict[str, Any]:
    """Return the loaders that ``"module:name"`` names, by split.

    The name belongs to a loader, a dataset, a list of batches, a dict of these, or a function for one, which
    may take a Config: the one in `config_file`.
    """
    from burnt.data import Loader, as_loader
    from burnt.errors import DataError

    value, name = _named(target, "--data", call=True, config_file=config_file), target.rpartition(":")[2]
    is_mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    loaders: dict[str, Any] = {}
    for split, source in value.items() if is_mapping else [(name, value)]:
        is_loader = callable(getattr(source, "epoch", None))
        is_dataset = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        try:
            if is_dataset and not is_loader and not isinstance(source, list | tuple | str):
                loaders[split] = Loader(source, batch_size)
            else:
                loaders[split] = as_loader(source, split)
        except DataError as error:
            raise UsageError(
                f"{target} gives no batches",
                where=split if is_mapping else None,
                expected="a loader, a dataset, a list of batches, a dict of these, or a function for one",
                found=error.found or error.what,
            ) from None
    return loaders


def _named(target: str, option: str, *, call: bool = False, config_file: str | None = None) -> Any:
    """Return what ``module:name`` stands for, or with `call` what it returns if it is a function."""
    from burnt.train.code.source import importing

    module, name = split_target(target, f"{option} names nothing")
    with importing(Path(module)):
        value = load_attribute(module, name)
    if not call or not callable(value) or callable(getattr(value, "epoch", None)):
        return value
    try:
        parameters = inspect.signature(value).parameters
    except ValueError:  # a builtin
        parameters = {}  # type: ignore[assignment]
    has_defaults = all(parameter.default is not parameter.empty for parameter in parameters.values())
    if has_defaults and not _takes_config(value, target):
        return value()
    return configured(target, (), config_file)()


def _takes_config(function: Any, target: str) -> bool:
    try:
        config_class(function, target)
    except UsageError:
        return False
    return True


def _choose_metrics(names: str | None, files: RunFiles) -> list[Metric]:
    from burnt.train.metrics.base import metric_from_dict

    saved = files.metrics()
    if names is None:
        metrics = []
        for document in saved.values():
            try:
                metrics.append(metric_from_dict(document))
            except MetricError as error:
                print(clean(f"warning: {error.what}: {error.found}"), file=sys.stderr)
        return metrics
    return [metric for name in names.split(",") for metric in _named_metrics(name.strip(), saved)]


def _named_metrics(name: str, saved: Mapping[str, Mapping[str, Any]]) -> Sequence[Metric]:
    from burnt.train import metrics
    from burnt.train.metrics.base import metric_from_dict

    if name in saved:
        return [metric_from_dict(saved[name])]
    classes = {key.lower(): getattr(metrics, key) for key in metrics.__all__ if key[0].isupper()}
    for base in ("metric", "epochmetric", "torchmetric"):
        del classes[base]
    kind: Any = _named(name, "--metrics") if ":" in name else classes.get(name.lower().replace("_", ""))
    if kind is None:
        known = dict.fromkeys([*saved, *classes])
        raise UsageError(
            f"there is no metric {name!r}",
            expected=f"{', '.join(known)}, or module:name",
            hint=did_you_mean(name, known),
        )
    try:
        built = kind() if callable(kind) else kind
    except TypeError as error:
        raise UsageError(
            f"the metric {name!r} needs arguments",
            found=str(error),
            hint="--metrics module:name of an object",
        ) from None
    found = list(built) if isinstance(built, list | tuple) else [built]
    if not all(isinstance(metric, metrics.Metric) for metric in found):
        raise UsageError(
            f"{name} is not a metric", expected="a metric, a list of metrics, or a function that returns one",
            found=type(built).__name__,
        )  # fmt: skip
    return found
