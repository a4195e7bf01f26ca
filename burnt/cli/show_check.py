"""`burnt show --check`: compare weights, checkpoints and runs with their checksums. Imports torch."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from burnt._json import parse_json
from burnt.cli.output import Cell, Page, UsageError, print_json, progress_bar
from burnt.errors import BurntError, RecordError, quantity
from burnt.record.formats.safetensors_file import open_safetensors
from burnt.record.sources import open_source
from burnt.store.schema import DATABASE, check_schema, connect
from burnt.train.checkpoints.checkpoint import MODEL_FILE, TRAINING_FILE, Checkpoints, model_file

_COLOURS = {"ok": "green", "damaged": "bold red", "not checked": "yellow"}


def run(path: str, as_json: bool) -> int:
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
