"""Exports of a run, read back by independent parsers."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import threading

import pytest

from burnt.errors import RunError
from burnt.store import RunReader, RunWriter, export_csv, export_jsonl, export_tensorboard, iter_records
from burnt.store import export as export_module

VALUES = [0.5, math.nan, math.inf, -math.inf, -1e300, 1e-45, 1 / 3]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    with RunWriter.create(folder) as run:
        for step, value in enumerate(VALUES, 1):
            run.log(step, 1, {"loss": value})
        run.log(100, 9, {"loss": 100.0})
    with RunWriter.create(folder, resume=True, resumed_from_step=50) as run:
        run.log(51, None, {"loss": 51.0, 'a "b", ü/\n': 2.0})
        run.log(51, 2, {"loss": 0.25}, split="valid")
        run.log_line("hello")
        run.event("checkpoint", 51, best=math.nan)
        run.system({"cpu.percent": 3.0})
        run.record_table("t", ["a"], [[math.inf]], step=51)
        run.record_image("i", b"\x89PNG\r\n\x1a\n", step=51)
    return folder


def same(a, b):
    return list(map(repr, a)) == list(map(repr, b))


def test_csv(folder, tmp_path):
    out = tmp_path / "deep" / "metrics.csv"
    assert export_csv(folder, out) == 10
    rows = list(csv.DictReader(io.StringIO(out.read_bytes().decode(), newline="")))
    assert list(rows[0]) == ["name", "split", "step", "epoch", "value", "time", "attempt"]
    loss = [row for row in rows if (row["name"], row["split"]) == ("loss", "train")]
    assert same([float(row["value"]) for row in loss], [*VALUES, 51.0])
    assert [int(row["step"]) for row in loss] == [1, 2, 3, 4, 5, 6, 7, 51]
    assert (loss[0]["epoch"], loss[-1]["epoch"], loss[-1]["attempt"]) == ("1", "", "2")
    assert [row["value"] for row in rows if row["name"] == 'a "b", ü/\n'] == ["2.0"]
    assert [float(row["time"]) for row in loss] == RunReader(folder).points("loss").times
    assert [p.name for p in out.parent.iterdir()] == ["metrics.csv"]


def test_jsonl(folder):
    out = io.StringIO()
    count = export_jsonl(folder, out)

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    records = [json.loads(line, parse_constant=refuse) for line in out.getvalue().splitlines()]
    assert len(records) == count
    by_type = {kind: [r for r in records if r["type"] == kind] for kind in {r["type"] for r in records}}
    assert set(by_type) == {"attempt", "metric", "event", "log", "system", "table", "end"}
    loss = [r["value"] for r in by_type["metric"] if (r["name"], r["split"]) == ("loss", "train")]
    assert same(map(float, loss), [*VALUES, 51.0])
    assert loss[1:4] == ["NaN", "Infinity", "-Infinity"]
    assert [r["resumed_from_step"] for r in by_type["attempt"]] == [None, 50]
    assert [r["kind"] for r in by_type["event"]] == ["start", "end", "resume", "checkpoint", "end"]
    assert by_type["event"][3]["data"] == {"best": "NaN"}
    assert by_type["table"][0]["data"] == {"columns": ["a"], "rows": [["Infinity"]]}
    assert by_type["system"][0]["values"] == {"cpu.percent": 3.0}
    assert records[-1] == {"type": "end", "state": "finished", "reason": None}


def test_followed_records_come_once_each_and_end(tmp_path):
    run = RunWriter.create(tmp_path / "run")
    records, caught_up = [], threading.Event()

    def follow():
        for record in iter_records(tmp_path / "run", follow=True, poll=0.01):
            records.append(record)
            if record.get("step") == 100:
                caught_up.set()

    thread = threading.Thread(target=follow)
    thread.start()
    for step in range(1, 201):
        run.log(step, 1, {"x": float(step), "y": 1.0})
        if step % 20 == 0:
            run.flush()
        if step == 100:
            assert caught_up.wait(20)
    run.close("stopped", "enough")
    thread.join(20)
    assert not thread.is_alive()
    assert [r["step"] for r in records if r.get("name") == "x"] == list(range(1, 201))
    assert [r["step"] for r in records if r.get("name") == "y"] == list(range(1, 201))
    assert [r["kind"] for r in records if r["type"] == "event"] == ["start", "end"]
    assert records[-1] == {"type": "end", "state": "stopped", "reason": "enough"}


def test_a_followed_file_and_a_whole_one_hold_the_same(folder, tmp_path):
    export_jsonl(folder, tmp_path / "a.jsonl")
    export_jsonl(folder, tmp_path / "b.jsonl", follow=True)
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text() != ""


def test_long_series_are_read_in_pages(folder, monkeypatch):
    whole, paged = io.StringIO(), io.StringIO()
    export_csv(folder, whole)
    monkeypatch.setattr(export_module, "_PAGE", 2)
    export_csv(folder, paged)
    assert whole.getvalue() == paged.getvalue()


@pytest.mark.parametrize("export", [export_csv, export_jsonl, export_tensorboard])
@pytest.mark.parametrize("follow", [False, True])
def test_a_place_that_cannot_be_written_is_named(folder, tmp_path, export, follow):
    if follow and export is not export_jsonl:
        return
    (tmp_path / "file").write_text("")
    options = {"follow": True} if follow else {}
    with pytest.raises(RunError, match="the export cannot be written") as caught:
        export(folder, tmp_path / "file" / "out", **options)
    assert str(tmp_path / "file") in str(caught.value)


def test_an_export_that_fails_leaves_the_old_file(folder, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    out.write_text("old")

    def fail(*_):
        raise RunError("damaged")

    monkeypatch.setattr(RunReader, "raw_points", fail)
    with pytest.raises(RunError, match="damaged"):
        export_csv(folder, out)
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "run"]


# --- TensorBoard: a bitwise CRC-32C and a reader of any protobuf message


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            carry = (crc ^ (byte >> bit)) & 1
            crc = (crc >> 1) ^ (0x82F63B78 * carry)
    return crc ^ 0xFFFFFFFF


def unmask(masked):
    rotated = (masked - 0xA282EAD8) % 2**32
    return ((rotated << 15) | (rotated >> 17)) % 2**32


def records(content):
    stream = io.BytesIO(content)
    while header := stream.read(8):
        (length,) = struct.unpack("<Q", header)
        assert unmask(struct.unpack("<I", stream.read(4))[0]) == crc32c(header)
        data = stream.read(length)
        assert len(data) == length
        assert unmask(struct.unpack("<I", stream.read(4))[0]) == crc32c(data)
        yield data


def fields(data):
    """Field number -> value of a message: varints as int, the rest as bytes."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value = data[at : at + size]
            at += size
        assert key >> 3 not in found
        found[key >> 3] = value
    return found


def test_splits_whose_names_become_one_have_folders_of_their_own(tmp_path):
    with RunWriter.create(tmp_path / "run") as run:
        for split in ("valid/a", "valid_a"):
            run.log(1, 1, {"loss": 0.5}, split=split)
    files = export_tensorboard(tmp_path / "run", tmp_path / "tb")
    assert len({file.parent for file in files}) == 2


def test_tensorboard(folder, tmp_path):
    files = export_tensorboard(folder, tmp_path / "tb")
    assert [file.parent.name for file in files] == ["train", "valid"]
    assert all(".tfevents." in file.name for file in files)
    header, *events = map(fields, records(files[0].read_bytes()))
    assert header[3] == b"brain.Event:2"
    found: dict[str, list] = {}
    for event in events:
        value = fields(fields(event[5])[1])
        (number,) = struct.unpack("<f", value[2])
        (time,) = struct.unpack("<d", event[1])
        found.setdefault(value[1].decode(), []).append((event[2], time, number))
    assert set(found) == {"loss", 'a "b", ü/\n'}
    points = RunReader(folder).points("loss")
    assert [row[0] for row in found["loss"]] == points.steps
    assert [row[1] for row in found["loss"]] == points.times
    # As float32: what is beyond its range is infinite.
    as_float32 = [
        0.5,
        math.nan,
        math.inf,
        -math.inf,
        -math.inf,
        1.401298464324817e-45,
        0.3333333432674408,
        51.0,
    ]
    assert same([row[2] for row in found["loss"]], as_float32)
    assert [fields(r).get(2) for r in records(files[1].read_bytes())] == [None, 51]


def test_a_large_step_is_kept_in_tensorboard(tmp_path):
    with RunWriter.create(tmp_path / "run") as run:
        run.log(2**40 + 5, 1, {"x": 3.4028234663852886e38})
    (file,) = export_tensorboard(tmp_path / "run", tmp_path / "tb")
    _, event = map(fields, records(file.read_bytes()))
    assert event[2] == 2**40 + 5
    assert struct.unpack("<f", fields(fields(event[5])[1])[2]) == (3.4028234663852886e38,)
