"""`burnt show`: the tensors of weights and whether they are damaged, or an ONNX model. Imports torch."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from burnt._files import parse_json
from burnt.cli.output import Cell, Page, UsageError, print_json, progress_bar
from burnt.errors import BurntError, ConfigError, RecordError, quantity
from burnt.monitor.format import size_text
from burnt.record.formats.safetensors_file import open_safetensors
from burnt.record.loading import Selection
from burnt.record.sources import Source, open_source
from burnt.record.stored import Statistics, StoredTensor, statistics_of
from burnt.scheme import QuantScheme
from burnt.store.schema import DATABASE, check_schema, connect
from burnt.store.search import setting_text
from burnt.train.checkpoints.checkpoint import MODEL_FILE, TRAINING_FILE, Checkpoints, model_file
from burnt.train.format import value_text

_LONGEST_METADATA = 200  # characters of a value; --json has all


def run(args: argparse.Namespace) -> int:
    """Print what weights or an ONNX model hold; with ``--check`` return 1 if something is damaged."""
    path = args.file
    if args.check:
        if args.only or args.values:
            raise UsageError("--check reads all values, and shows none", found="--only or --values")
        return check_weights(path, args.json)
    check_source(path)
    if path.endswith(".onnx") and os.path.isfile(path):
        if args.only or args.values:
            raise UsageError("--only and --values are for files of weights", found=path)
        return show_onnx(path, args.json, args.max_constant_bytes)
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
    """Refuse what is not a file or folder of weights by only its name."""
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
    """Return how many layers are quantized by each scheme; folded layers are not tensors of the file."""
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


def show_onnx(path: str, as_json: bool, max_constant_bytes: int | None = None) -> int:
    """Print inputs, outputs, operator sets, ops by count, parameters, and what is not supported."""
    from burnt.onnx.importer.summary import summarize

    summary = summarize(path, max_constant_bytes)
    if as_json:
        print_json({"path": path, "format": "onnx", **asdict(summary)})
        return 0
    page = Page()
    opsets = ", ".join(f"{domain} {version}" for domain, version in summary.opsets.items())
    page.line(f"{path}: ONNX, IR version {summary.ir_version}, opset {opsets}")
    if summary.producer:
        page.line(f"written by {summary.producer}")
    parameters = quantity(summary.parameters, "parameter")
    page.line(f"{parameters} in {quantity(summary.tensors, 'tensor')}, {size_text(summary.nbytes)}")
    for title, values in (("inputs", summary.inputs), ("outputs", summary.outputs)):
        page.heading(title)
        page.pairs(values)
    page.heading(f"{quantity(sum(summary.ops.values()), 'node')}")
    page.pairs({op: f"{count:,}" for op, count in summary.ops.items()})
    if summary.functions:
        page.line(f"functions: {', '.join(summary.functions)}")
    if summary.unsupported:
        page.heading("not supported by `burnt import`")
        page.pairs(summary.unsupported)
    else:
        page.line("`burnt import` supports all of them.")
    return 0


_COLOURS = {"ok": "green", "damaged": "bold red", "not checked": "yellow"}


def check_weights(path: str, as_json: bool) -> int:
    """Compare weights, a checkpoint or a run with the checksums in it; return 1 if something is damaged."""
    if not os.path.exists(path) or path.endswith(".onnx"):
        what = "ONNX models have no checksums" if os.path.exists(path) else "there is no such file or folder"
        raise UsageError(what, found=path)
    found = list(_check(Path(path)))
    is_damaged = any(state == "damaged" for _, state, _ in found)
    if as_json:
        files = [{"file": str(file), "state": state, "detail": detail} for file, state, detail in found]
        print_json({"path": path, "ok": not is_damaged, "files": files})
    else:
        rows: list[list[str | Cell]] = [
            [str(file), Cell(state, _COLOURS[state]), detail] for file, state, detail in found
        ]
        Page().table(["file", "state", ""], rows, fold_column="")
    return 1 if is_damaged else 0


def _check(path: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield files, what is known of each, and why."""
    if (path / DATABASE).is_file():
        yield path / DATABASE, *_check_database(path / DATABASE)
        yield path / "config.json", *_check_document(path / "config.json")
        for folder in Checkpoints(path / "checkpoints").folders():
            found = list(_check(folder))
            if folder.exists():  # else the training has removed it meanwhile
                yield from found
    elif (path / TRAINING_FILE).is_file():
        yield path / TRAINING_FILE, *_check_tensors(path / TRAINING_FILE)
        state, detail = _check_tensors(path / MODEL_FILE)
        try:
            model_file(path)
        except (BurntError, OSError) as error:
            state, detail = "damaged", detail if state == "damaged" else _text(error)
        yield path / MODEL_FILE, state, detail
    else:
        yield path, *_check_tensors(path)


def _check_tensors(path: Path) -> tuple[str, str]:
    damaged: list[str] = []
    unchecked = 0
    is_zip = path.is_file() and zipfile.is_zipfile(path)  # .npz and .pt
    try:
        with ExitStack() as stack:
            # The document of an optimizer's state is not that of a Record.
            is_plain = path.suffix == ".safetensors" and path.is_file()
            tensors = open_safetensors(path, stack)[0] if is_plain else open_source(path, stack).tensors
            if is_zip and (name := stack.enter_context(zipfile.ZipFile(path)).testzip()) is not None:
                return "damaged", f"the checksum of {name} in the zip differs"
            done, total = 0, sum(stored.nbytes for stored in tensors.values())
            with progress_bar(f"checking {path.name}", total) as advance_to:
                for name, stored in tensors.items():
                    try:
                        stored.verify(f"{path}: {name}")
                    except RecordError as error:
                        damaged.append(_text(error))
                    unchecked += getattr(stored, "checksum", None) is None
                    advance_to(done := done + stored.nbytes, total)
    except (BurntError, OSError, zipfile.BadZipFile) as error:
        return "damaged", _text(error)
    if damaged:
        return "damaged", "; ".join(damaged[:3]) + (f"; {len(damaged)} in all" if len(damaged) > 3 else "")
    if unchecked and not is_zip:
        return "not checked", f"{quantity(unchecked, 'tensor')} without checksums"
    return "ok", quantity(len(tensors), "tensor")


def _check_document(path: Path) -> tuple[str, str]:
    try:
        parse_json(path.read_bytes())
    except (ValueError, OSError) as error:
        return "damaged", _text(error)
    return "not checked", "it is JSON, without a checksum"


def _check_database(path: Path) -> tuple[str, str]:
    try:
        with contextlib.closing(connect(path, "ro")) as connection:
            check_schema(connection, path)
            problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
    except (BurntError, sqlite3.Error, UnicodeDecodeError) as error:
        return "damaged", _text(error)
    if problems != ["ok"]:
        return "damaged", "; ".join(problems)
    return "ok", "its structure: SQLite keeps no checksums of the values in it"


def _text(error: Exception) -> str:
    if not isinstance(error, BurntError):
        return str(error)
    found = f": expected {error.expected}, found {error.found}" if error.found is not None else ""
    return error.what + (f", in {error.where}" if error.where else "") + found
