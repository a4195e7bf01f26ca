"""`burnt show`: print the tensors of a file or folder of weights, or an ONNX model. Imports torch."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from burnt.cli import show_check, show_onnx
from burnt.cli.output import Cell, Page, UsageError, print_json, progress_bar
from burnt.errors import ConfigError, quantity
from burnt.monitor.format import size_text
from burnt.record.loading import Selection
from burnt.record.sources import Source, open_source
from burnt.record.stored import Statistics, StoredTensor, statistics_of
from burnt.scheme import QuantScheme
from burnt.store.schema import DATABASE
from burnt.store.search import setting_text
from burnt.train.format import value_text

_LONGEST_METADATA = 200  # characters of a value; --json has all


def run(args: argparse.Namespace) -> int:
    """Print what weights or an ONNX model hold; with ``--check`` return 1 if something is damaged."""
    path = args.file
    if args.check:
        if args.only or args.values:
            raise UsageError("--check reads all values, and shows none", found="--only or --values")
        return show_check.run(path, args.json)
    check_source(path)
    if path.endswith(".onnx") and os.path.isfile(path):
        if args.only or args.values:
            raise UsageError("--only and --values are for files of weights", found=path)
        return show_onnx.run(path, args.json, args.max_constant_bytes)
    with ExitStack() as stack:
        source = open_source(path, stack)
        names = [*source.tensors, *source.record.aliases]
        selection = Selection(args.only or None, None)
        selection.check([], names)
        tensors = {name: stored for name, stored in source.tensors.items() if selection.takes(name)}
        statistics = _statistics(tensors) if args.values else {}
        if args.json:
            print_json(_json(path, source, tensors, selection, statistics))
        else:
            _print(path, source, tensors, selection, statistics)
    return 0


def check_source(path: str) -> None:
    """Refuse what is no file or folder of weights by its name alone."""
    if not os.path.exists(path):
        raise UsageError("there is no such file or folder", found=path)
    if os.path.isfile(os.path.join(path, DATABASE)):
        raise UsageError(
            "this is the folder of a run, not of weights",
            found=path,
            hint=f"`burnt runs show {path}` shows it; its weights are in the folders of {path}/checkpoints",
        )


def _statistics(tensors: Mapping[str, StoredTensor]) -> dict[str, Statistics]:
    statistics = {}
    done, total = 0, sum(stored.nbytes for stored in tensors.values())
    with progress_bar("reading", total) as advance_to:
        for name, stored in tensors.items():
            statistics[name] = statistics_of(stored)
            done += stored.nbytes
            advance_to(done, total)
    return statistics


def _print(
    path: str,
    source: Source,
    tensors: Mapping[str, StoredTensor],
    selection: Selection,
    statistics: Mapping[str, Statistics],
) -> None:
    page = Page()
    page.line(Cell(path, "bold"))
    facts: dict[str, str | Cell] = {"format": source.format}
    if source.shards:
        facts["files"] = str(len(set(source.shards.values())))
    record = source.record
    if record.model:
        facts["model"] = record.model
    if record.config_type:
        facts["config"] = _short(f"{record.config_type} {json.dumps(record.config)}")
    if record.static:
        facts["static"] = _short(json.dumps(record.static))
    schemes = _schemes(record.quantized)
    if schemes:
        facts["quantized"] = ", ".join(f"{quantity(n, 'layer')} in {name}" for name, n in schemes.items())
    facts |= {"note": Cell("; ".join(source.notes), "yellow")} if source.notes else {}
    page.pairs(facts)
    # safetensors' `save_model` names tied tensors in the metadata.
    metadata = {key: value for key, value in source.metadata.items() if key not in record.aliases}
    if metadata:
        page.heading("metadata")
        page.pairs({key: _short(setting_text(value)) for key, value in metadata.items()})
    page.line("")
    columns = ["tensor", "dtype", "shape", "size"]
    # Names get what room there is: the file is shown where the statistics are not.
    with_files = bool(source.shards) and not statistics
    columns += ["min", "max", "mean", "NaN"] if statistics else []
    columns += ["file"] if with_files else []
    rows = []
    for name, stored in tensors.items():
        row: list[str | Cell] = [name, _dtype(stored), str(stored.shape), size_text(stored.nbytes)]
        row += _value_cells(stored, statistics[name]) if statistics else []
        rows.append(row + ([source.shards[name]] if with_files else []))
    page.table(
        columns,
        rows,
        align_right=["size", "min", "max", "mean", "NaN"],
        fold_column="tensor",
        droppable=["file"] if with_files else ["size"],
    )
    for alias, name in record.aliases.items():
        if selection.takes(alias):
            page.line(f"{alias} is {name}")
    page.line("")
    _print_totals(page, source, tensors)


def _print_totals(page: Page, source: Source, tensors: Mapping[str, StoredTensor]) -> None:
    totals = _totals(tensors)
    whole = f" of {len(source.tensors):,}" if len(tensors) < len(source.tensors) else ""
    count = f"{len(tensors):,}{whole} {'tensor' if len(source.tensors) == 1 else 'tensors'}"
    page.line(f"{count}, {quantity(totals['values'], 'value')}, {size_text(totals['bytes'])}")
    if len(totals["dtypes"]) > 1:
        for dtype, of_dtype in totals["dtypes"].items():
            page.line(
                f"  {dtype}: {quantity(of_dtype['tensors'], 'tensor')},"
                f" {quantity(of_dtype['values'], 'value')}, {size_text(of_dtype['bytes'])}"
            )


def _json(
    path: str,
    source: Source,
    tensors: Mapping[str, StoredTensor],
    selection: Selection,
    statistics: Mapping[str, Statistics],
) -> dict[str, Any]:
    record = source.record
    entries = []
    for name, stored in tensors.items():
        entry = {"name": name, "dtype": _dtype(stored), "shape": stored.shape, "bytes": stored.nbytes}
        entry |= {"file": source.shards[name]} if source.shards else {}
        entries.append(entry | (asdict(statistics[name]) if statistics else {}))
    return {
        "path": path,
        "kind": source.kind,
        "format": source.format,
        "model": record.model,
        "config_type": record.config_type,
        "config": record.config,
        "static": record.static,
        "quantized": {path: _scheme_name(entry) for path, entry in record.quantized.items()},
        "metadata": source.metadata,
        "notes": source.notes,
        "tensors": entries,
        "aliases": {alias: name for alias, name in record.aliases.items() if selection.takes(alias)},
        "totals": _totals(tensors),
    }


def _schemes(layers: Mapping[str, Mapping[str, Any]]) -> Counter[str]:
    """Return how many layers are quantized by each scheme; folded layers are no tensors of the file."""
    return Counter(name for entry in layers.values() if (name := _scheme_name(entry)) is not None)


def _scheme_name(entry: Mapping[str, Any]) -> str | None:
    if "scheme" not in entry:
        return None
    try:
        return QuantScheme.from_dict(entry["scheme"]).name
    except (ConfigError, TypeError):
        return "a scheme that this version does not know"


def _totals(tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    dtypes: dict[str, dict[str, int]] = {}
    for stored in tensors.values():
        entry = dtypes.setdefault(_dtype(stored), {"tensors": 0, "values": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["values"] += math.prod(stored.shape)
        entry["bytes"] += stored.nbytes
    sums = {key: sum(entry[key] for entry in dtypes.values()) for key in ("tensors", "values", "bytes")}
    return {**sums, "dtypes": dtypes}


def _value_cells(stored: StoredTensor, statistics: Statistics) -> list[str | Cell]:
    ends = [
        "" if end is None else value_text(end) if stored.dtype.is_floating_point else f"{end:.0f}"
        for end in (statistics.min, statistics.max)
    ]
    mean = "" if statistics.mean is None else value_text(statistics.mean)
    return [*ends, mean, Cell(f"{statistics.nans:,}", "red" if statistics.nans else "")]


def _dtype(stored: StoredTensor) -> str:
    return str(stored.dtype).removeprefix("torch.")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_METADATA else text[: _LONGEST_METADATA - 3] + "..."
