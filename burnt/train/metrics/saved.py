"""Metrics as JSON: a run keeps its metrics, so that `burnt evaluate` can build them again."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnt._modules import class_in
from burnt.errors import MetricError
from burnt.train.metrics.base import Metric


def metric_to_dict(metric: Metric) -> dict[str, Any]:
    """Return a metric's name, class and arguments for JSON.

    The arguments are the attributes of the same names; of a metric that lacks one, or holds one that JSON
    cannot give back, they are None.

    >>> from burnt.train.metrics import Accuracy
    >>> metric_to_dict(Accuracy(ignore_index=-100))["arguments"]
    {'ignore_index': -100, 'name': 'accuracy'}
    """
    kind = type(metric)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    # A script's module has another name when the script is imported.
    module = Path(file).stem if kind.__module__ == "__main__" and file else kind.__module__
    names = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    arguments: dict[str, Any] | None = None
    if all(hasattr(metric, name) for name in names):
        arguments = {name: getattr(metric, name) for name in names}
        try:
            arguments = arguments if json.loads(json.dumps(arguments)) == arguments else None
        except (TypeError, ValueError):
            arguments = None
    return {"name": metric.name, "module": module, "class": kind.__qualname__, "arguments": arguments}


def metric_from_dict(document: Mapping[str, Any]) -> Metric:
    """Build the metric that `metric_to_dict` has described; its module must be imported already."""
    module = sys.modules.get(str(document.get("module")))
    found = class_in(module, str(document.get("class")), Metric)
    arguments = document.get("arguments")
    if found is not None and isinstance(arguments, dict):
        try:
            return found(**arguments)
        except (TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
    elif isinstance(arguments, dict):
        reason = f"no class {document.get('class')} in {document.get('module')}"
    else:
        reason = f"the attributes of {document.get('class')} do not hold its arguments"
    raise MetricError(
        f"the metric {document.get('name')!r} of the run cannot be built",
        found=reason,
        hint="name the metrics to compute: --metrics module:name",
    )
