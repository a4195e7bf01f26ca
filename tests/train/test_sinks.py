"""Sinks: what trackers get, also after a resume or a kill, and trackers that fail or hang."""

from __future__ import annotations

import errno
import json
import posixpath
import re
import shutil
import struct
import sys
import threading
import types
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import ConfigError, UnsupportedError
from burnt.store import Artefact
from burnt.store import tensorboard as encoding
from burnt.store.reader import Point, Series
from burnt.train import (
    KeepLast,
    Learner,
    MLflow,
    RunReader,
    RunWriter,
    StepOutput,
    SupervisedTraining,
    TensorBoard,
    TrainingResult,
    WandB,
)
from burnt.train.metrics import ConfusionMatrix
from burnt.train.sinks import Records, Run, Sink, base, tensorboard
from tests import forked

DATA = TensorDataset(x=torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), y=torch.arange(12) % 2)


def png(width: int = 2, height: int = 3) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(width) for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


class Pictures:
    """A callback that records an image and a histogram in each epoch."""

    def on_epoch(self, event: Any) -> None:
        writer, step = event.training.writer, event.training.position.step
        writer.record_image("samples/first", png(), step)
        writer.record_histogram("weights", [1, 2], [0.0, 0.5, 1.0], step)


def train(folder: Path, sinks: list[Any], duration: str = "2 epochs", **settings: Any) -> TrainingResult:
    def step(model: nn.Module, batch: Any) -> StepOutput:
        logits = model(batch.x)
        return StepOutput(nn.functional.cross_entropy(logits, batch.y), logits, batch.y)

    torch.manual_seed(0)
    options = {"monitor": "off", "log_every": 1, "metrics": [ConfusionMatrix(2)], **settings}
    training = SupervisedTraining(
        folder, train=Loader(DATA, 4), valid=Loader(DATA, 4), duration=duration, device="cpu",
        callbacks=[Pictures(), *sinks], config={"lr": 0.1, "model": {"width": 2}}, **options,
    )  # fmt: skip
    return training.run(Learner(nn.Linear(3, 2), optim.Sgd(), 0.1, step=step))


EVERY_2: Any = {"checkpoint_every": "2 steps", "checkpoints": [KeepLast(10)]}


def remove_checkpoints_after_step_2(folder: Path) -> None:
    """Leave a run as if it had been killed after step 2 was saved; its later steps are in the store."""
    for checkpoint in (folder / "checkpoints").iterdir():
        if checkpoint.name > "step-00000002":
            shutil.rmtree(checkpoint)


class Kept(Sink):
    """Keeps what it is sent, as a tracker would."""

    name = "kept"

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.steps: list[int] = []
        self.kinds: list[tuple[str, int | None]] = []
        self.artefacts: list[tuple[str, str, int | None]] = []
        self.ends: list[str] = []

    def open(self, run: Run) -> str:
        run.state.setdefault("id", f"id-{run.attempt}")
        self.runs.append(run)
        return "somewhere"

    def send(self, records: Records) -> None:
        for (name, split), point in records.points:
            self.points[f"{split}/{name}"].append((point.step, point.value))
            self.steps.append(point.step)
        self.kinds += [(event.kind, event.step) for event in records.events]
        self.artefacts += [(a.kind, a.name, a.step) for a in records.artefacts]

    def close(self, how: str) -> None:
        self.ends.append(how)


def stored(folder: Path) -> dict[str, list[tuple[int, float]]]:
    with RunReader(folder) as reader:
        series = {f"{s.split}/{s.name}": reader.points(*s) for s in reader.series()}
    return {key: list(zip(points.steps, points.values, strict=True)) for key, points in series.items()}


def test_a_sink_gets_everything_in_the_order_of_the_steps(tmp_path: Path) -> None:
    sink = Kept()
    train(tmp_path / "run", [sink])
    assert sink.points == stored(tmp_path / "run")
    assert sink.points["train/loss"][-1][0] == 6
    assert sink.steps == sorted(sink.steps)
    assert ("epoch", 3) in sink.kinds
    assert ("checkpoint", 6) in sink.kinds
    assert ("image", "samples/first", 3) in sink.artefacts
    assert ("histogram", "weights", 6) in sink.artefacts
    assert ("table", "valid/confusion", 6) in sink.artefacts
    assert sink.ends == ["finished"]
    (run,) = sink.runs
    assert (run.name, run.attempt, run.resumed_from_step) == ("run", 1, None)
    assert run.config["config"] == {"lr": 0.1, "model": {"width": 2}}
    assert "load" not in run.config


def test_a_resumed_run_goes_on_with_its_id_and_repeats_nothing(tmp_path: Path) -> None:
    sink, folder = Kept(), tmp_path / "run"
    train(folder, [sink], duration="6 steps", **EVERY_2)
    remove_checkpoints_after_step_2(folder)
    resumed_from = train(folder, [sink], duration="3 epochs", resume=True)
    assert resumed_from.position.step == 9
    assert [run.state["id"] for run in sink.runs] == ["id-1", "id-1"]
    assert {key: [s for s, _ in points] for key, points in sink.points.items()} == {
        key: [s for s, _ in points] for key, points in stored(folder).items()
    }
    assert sink.points["train/loss"] == stored(folder)["train/loss"]
    for entries in (sink.artefacts, [e for e in sink.kinds if e[0] in ("epoch", "checkpoint")]):
        stepped = [entry for entry in entries if entry[-1] is not None]
        assert len(stepped) == len(set(stepped))
    assert sink.kinds.count(("resume", 2)) == 1


@pytest.mark.full
def test_what_a_killed_process_had_not_sent_is_sent_after_the_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, [])  # no sink at all, so that nothing was sent
    sink = Kept()
    train(folder, [sink], duration="3 epochs", resume=True)
    assert sink.points == stored(folder)
    assert ("epoch", 3) in sink.kinds


class Failing(Kept):
    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def open(self, run: Run) -> str:
        if self.at == "open":
            raise ConnectionError("no route to host")
        return super().open(run)

    def send(self, records: Records) -> None:
        raise ConnectionError("no route to host")


class Other(Kept):
    name = "other"


@pytest.mark.sample(1)
@pytest.mark.parametrize("at", ["open", "send"])
def test_a_failing_sink_is_reported_once_and_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str
) -> None:
    other = Other()
    result = train(tmp_path / "run", [Failing(at), other], monitor="plain")
    assert result.reason == "finished"
    assert other.points == stored(tmp_path / "run")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning")]
    assert lines[0] == "Warning: kept failed and gets nothing more: ConnectionError: no route to host"
    assert len(lines) == 2
    # Also those that were being sent when it failed; not the log lines.
    num_records = len(other.steps) + len(other.kinds) + len(other.artefacts)
    assert lines[1] == f"Warning: kept lacks {num_records} records of the run."
    with RunReader(tmp_path / "run") as reader:
        assert lines[0] in [line.text for line in reader.log_lines()]


def test_a_failing_sink_of_a_run_that_was_deleted_does_not_fail_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delete = types.SimpleNamespace(on_end=lambda event: shutil.rmtree(tmp_path / "run"))
    flush = RunWriter.flush
    flushed = []
    monkeypatch.setattr(RunWriter, "flush", lambda writer, **_: flushed.append(flush(writer, 1000)))
    result = train(tmp_path / "run", [delete, Failing("open")], monitor="plain")
    assert result.reason == "finished"
    assert flushed[-1] is False, "nothing is written any more, so the end of the training waits for nothing"
    assert "kept failed" in capsys.readouterr().out


def test_two_sinks_of_a_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the training has 2 sinks named 'kept'"):
        train(tmp_path / "run", [Kept(), Kept()])


def test_a_sink_that_hangs_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()

    class Hanging(Kept):
        def send(self, records: Records) -> None:
            released.wait(30)

    monkeypatch.setattr(base, "_END_SECONDS", 0.2)
    result = train(tmp_path / "run", [Hanging()], monitor="plain")
    assert result.position.step == 6
    assert "kept has not sent everything in 0 s" in capsys.readouterr().out
    released.set()


def test_how_the_training_ended_is_told(tmp_path: Path) -> None:
    def fail(event: Any) -> None:
        raise ValueError("mine")

    sink = Kept()
    with pytest.raises(ValueError, match="mine"):
        train(tmp_path / "run", [sink, types.SimpleNamespace(on_step=fail)])
    assert sink.ends == ["failed"]


@pytest.mark.full
def test_a_damaged_file_of_a_sink_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    train(folder, [Kept()])
    (folder / "logs" / "kept.json").write_text("{")
    sink = Kept()
    result = train(folder, [sink], duration="3 epochs", resume=True, monitor="plain")
    assert result.position.step == 9
    assert "the file of a sink is damaged" in capsys.readouterr().out


def test_missing_packages_are_noticed_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: None)
    for sink, package in ((WandB, "burnt[wandb]"), (MLflow, "burnt[mlflow]")):
        with pytest.raises(UnsupportedError) as caught:
            sink()
        assert caught.value.hint == f"pip install '{package}'"
    TensorBoard()  # needs none
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: None if name == "sqlalchemy" else name)
    MLflow(tracking_uri="mlruns")
    with pytest.raises(UnsupportedError, match="MLflow with sqlite needs sqlalchemy") as caught:
        MLflow(tracking_uri="sqlite:///runs.db")
    assert caught.value.hint == "pip install 'mlflow'"


# --- TensorBoard


def event_files(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        found[str(file.parent.relative_to(folder))].append(file)
    return found


def scalars_in(file: Path) -> list[tuple[str, int, float]]:
    """Return tag, step and value of the scalars in a file of at most 127 bytes a record."""
    data, found, at = file.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + length]
        at += length + 16
        if record[9:10] == b"\x10" and b"\x15" in record[-5:-4]:  # step, and simple_value at the end
            tag_length = record[record.index(b"\x0a", 11) + 3]
            start = record.index(b"\x0a", 11) + 4
            tag = record[start : start + tag_length].decode()
            found.append((tag, record[10], struct.unpack("<f", record[-4:])[0]))
    return found


def test_tensorboard_files_of_each_split(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, [TensorBoard()])
    files = event_files(folder / "tensorboard")
    assert set(files) == {".", "train", "valid"}
    for split in ("train", "valid"):
        losses = [(step, value) for tag, step, value in scalars_in(files[split][0]) if tag == "loss"]
        expected = stored(folder)[f"{split}/loss"]
        assert losses == [
            (step, struct.unpack("<f", struct.pack("<f", value))[0]) for step, value in expected
        ]


@pytest.mark.full
def test_tensorboard_reads_what_was_written_also_after_a_kill_and_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="pip install tensorboard"
    )
    folder = tmp_path / "run"
    train(folder, [TensorBoard()], duration="6 steps", **EVERY_2)
    remove_checkpoints_after_step_2(folder)
    train_file = event_files(folder / "tensorboard")["train"][0]
    size = train_file.stat().st_size
    train_file.write_bytes(train_file.read_bytes() + b"half a record")  # a process that was killed
    train(folder, [TensorBoard()], duration="3 epochs", resume=True)
    assert train_file.stat().st_size == size
    for split in ("train", "valid"):
        reader = accumulator.EventAccumulator(str(folder / "tensorboard" / split))
        reader.Reload()
        found = [(event.step, event.value) for event in reader.Scalars("loss")]
        expected = stored(folder)[f"{split}/loss"]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected])
    board = accumulator.EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    tags = board.Tags()
    assert tags["images"] == ["samples/first"]
    assert tags["histograms"] == ["weights"]
    image = board.Images("samples/first")[0]
    assert (image.width, image.height, image.encoded_image_string) == (2, 3, png())
    histogram = board.Histograms("weights")[0].histogram_value
    assert (histogram.num, list(histogram.bucket_limit), list(histogram.bucket)) == (3, [0.5, 1.0], [1, 2])
    assert {"config", "valid/confusion", "events/epoch"} <= set(tags["tensors"])
    text = board.Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text.strip("`").removeprefix("json"))["config"]["lr"] == 0.1


def test_a_text_is_a_text_in_tensorboard() -> None:
    caption = Artefact(1, "table", "caption", 3, 5.0, 1, {"columns": ["text"], "rows": [["two\nlines"]]})
    assert tensorboard._artefact_record(caption) == encoding.text("caption", 3, 5.0, "two\nlines")


KILLED = """
import os, signal, sys
import torch
from pathlib import Path
from tests.train.test_sinks import Kept, TensorBoard, train

class Kill:
    def on_step(self, event):
        if event.training.position.step == int(sys.argv[1]):
            event.training.writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)

train(Path("run"), [TensorBoard(), Kill()], duration="60 steps", checkpoint_every="7 steps", resume=True)
"""


@pytest.mark.full
def test_a_process_that_is_killed_leaves_neither_gaps_nor_repetitions(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="pip install tensorboard"
    )
    codes = [forked.run(KILLED, step, cwd=tmp_path).returncode for step in (24, 40, -1)]
    assert codes == [-9, -9, 0]
    expected = stored(tmp_path / "run")["train/loss"]
    assert [step for step, _ in expected] == list(range(1, 61))
    reader = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "train"))
    reader.Reload()
    assert [event.step for event in reader.Scalars("loss")] == list(range(1, 61))


# --- Weights & Biases and MLflow, with clients that keep what they are given


class FakeWandb(types.ModuleType):
    """The part of wandb's client that the sink calls."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.exit_codes: list[int] = []

    def init(self, **options: Any) -> Any:
        self.inits.append(options)
        return types.SimpleNamespace(url="https://wandb/run", log=self.log, finish=self.finish)

    def log(self, values: dict[str, Any], step: int) -> None:
        assert step >= (self.logged[-1][0] if self.logged else 0)  # W&B drops earlier steps
        self.logged.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)

    def Settings(self, **settings: Any) -> Any:
        return settings

    def Table(self, **arguments: Any) -> Any:
        return ("table", arguments)

    def Image(self, image: Any) -> Any:
        return ("image", image.size)

    def Histogram(self, np_histogram: Any) -> Any:
        return ("histogram", np_histogram)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: fake)
    return fake


def test_wandb_gets_steps_media_and_settings_and_the_same_run_after_a_resume(
    tmp_path: Path, wandb: FakeWandb
) -> None:
    pytest.importorskip("PIL", reason="images for wandb need Pillow")
    folder = tmp_path / "digits"
    train(folder, [WandB("demo", tags=["a"])])
    train(folder, [WandB("demo", tags=["a"])], duration="3 epochs", resume=True)
    first, second = wandb.inits
    assert (first["project"], first["name"], first["tags"]) == ("demo", "digits", ["a"])
    assert first["id"] == second["id"]
    assert first["resume"] == "allow"
    assert first["config"]["config"] == {"lr": 0.1, "model": {"width": 2}}
    losses = [(step, values["train/loss"]) for step, values in wandb.logged if "train/loss" in values]
    assert losses == stored(folder)["train/loss"]
    found = {key: value for _, values in wandb.logged for key, value in values.items()}
    assert found["samples/first"] == ("image", (2, 3))
    assert found["weights"] == ("histogram", ([1, 2], [0.0, 0.5, 1.0]))
    assert found["valid/confusion"][1]["columns"] == ["target", "0", "1"]
    assert "resume" in [row[2] for row in found["events"][1]["data"]]
    assert wandb.exit_codes == [0, 0]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_real_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    pytest.importorskip("PIL", reason="images for wandb need Pillow")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "run"
    train(folder, [WandB("demo", mode="offline")])
    train(folder, [WandB("demo", mode="offline")], duration="3 epochs", resume=True)
    identity = json.loads((folder / "logs" / "wandb.json").read_text())["state"]["id"]
    files = sorted((folder / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))
    assert len(files) >= 1
    content = b"".join(file.read_bytes() for file in files)
    assert b"train/loss" in content
    assert b"valid/confusion" in content
    with RunReader(folder) as reader:
        assert not [line.text for line in reader.log_lines() if "failed" in line.text]


class Param(NamedTuple):
    key: str
    value: Any


class Sample(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class MlflowException(Exception):
    error_code = "INVALID_PARAMETER_VALUE"


class FakeMlflow:
    """The part of MLflow's client that the sink calls."""

    def __init__(self, uri: str | None) -> None:
        self.tracking_uri = uri
        self.experiments: dict[str, str] = {}
        self.created: list[tuple[str, str, dict[str, str]]] = []
        self.metrics: list[tuple[str, float, int, int]] = []
        self.params: dict[str, str] = {}
        self.files: dict[str, Any] = {}
        self.status: list[str] = []
        self.refused: set[str] = set()

    def get_experiment_by_name(self, name: str) -> Any:
        return (
            types.SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None
        )

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = "7"
        return "7"

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        self.created.append((experiment, run_name, tags))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

    def get_run(self, identity: str) -> Any:
        return types.SimpleNamespace(data=types.SimpleNamespace(params=self.params))

    def log_batch(self, identity: str, metrics: Any = (), params: Any = ()) -> None:
        assert identity == "abc"
        assert len(metrics) <= 1000
        assert len(params) <= 100
        for key, *_ in (*metrics, *params):  # as MLflow's validation.py
            is_path = posixpath.normpath(key) == key and not key.startswith(("..", "/")) and key != "."
            if not is_path or not re.fullmatch(r"[/\w.\- ]+", key) or len(key) > 250 or key in self.refused:
                raise MlflowException(f"Invalid value {key}")
        assert not set(self.params) & {key for key, _ in params}  # MLflow refuses to change one
        self.metrics += metrics
        self.params |= dict(params)

    def update_run(self, identity: str, status: str) -> None:
        self.status.append(status)

    def set_terminated(self, identity: str, status: str) -> None:
        self.status.append(status)

    def log_text(self, identity: str, text: str, file: str) -> None:
        self.files[file] = text

    def log_dict(self, identity: str, data: Any, file: str) -> None:
        self.files[file] = data

    def log_artifact(self, identity: str, path: str, folder: str) -> None:
        self.files[f"{folder}/{Path(path).name}"] = Path(path).read_bytes()


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    client = FakeMlflow("sqlite:///x.db")
    entities = types.SimpleNamespace(Metric=Sample, Param=Param)
    monkeypatch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setitem(
        sys.modules, "mlflow.tracking", types.SimpleNamespace(MlflowClient=lambda uri: client)
    )
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: client)
    return client


def test_mlflow_gets_metrics_parameters_and_artifacts_and_the_same_run_after_a_resume(
    tmp_path: Path, mlflow: FakeMlflow
) -> None:
    folder = tmp_path / "digits"
    train(folder, [MLflow("study", tags={"team": "a"})])
    train(folder, [MLflow("study")], duration="3 epochs", resume=True)
    assert mlflow.created == [("7", "digits", {"burnt.folder": str(folder), "team": "a"})]
    losses = [(step, value) for key, value, _, step in mlflow.metrics if key == "train/loss"]
    assert losses == stored(folder)["train/loss"]
    assert mlflow.params["config.model.width"] == "2"
    assert mlflow.params["duration"] == "2 epochs"  # as it was begun
    assert mlflow.files["images/samples/first-00000003.png"] == png()
    histogram = {"counts": [1.0, 2.0], "edges": [0.0, 0.5, 1.0]}
    assert mlflow.files["histograms/weights-00000003.json"] == histogram
    assert mlflow.files["tables/valid/confusion-00000003.json"]["columns"] == ["target", "0", "1"]
    kinds = [
        json.loads(line)["kind"]
        for text in mlflow.files.values()
        if isinstance(text, str)
        for line in text.splitlines()
    ]
    assert kinds.count("start") == kinds.count("resume") == 1
    assert mlflow.status == ["RUNNING", "FINISHED", "RUNNING", "FINISHED"]


NAMES = ["recall>0.5", "recall<0.5", "a//b", "a/./b", "../up", "é" * 200, "x" * 300, "x" * 301]
NAMES += ["AR", "AR/small"]


def records(step: int) -> Records:
    """A value and an image for each name; its place says which one it is."""
    sent = Records([], [], [])
    for place, name in enumerate(NAMES):
        sent.points.append((Series(name, "train"), Point(step, 1, 0.0, float(place), 1)))
        sent.artefacts.append(Artefact(place, "image", name, step, 0.0, 1, png(place + 1)))
    return sent


def open_in(folder: Path, sink: Sink) -> Sink:
    sink.open(Run(folder, "run", {}, 0.0, "host", 1, None, {}))
    return sink


@pytest.mark.parametrize("uri", ["sqlite:///x.db", "file:///mlruns"])
def test_mlflow_gets_each_name_as_one_of_its_own_that_it_takes(
    tmp_path: Path, mlflow: FakeMlflow, uri: str
) -> None:
    mlflow.tracking_uri = uri
    told: list[str] = []
    config = {"sources": {"s3://bucket/a": 0.3, "s3:/bucket/a": 0.4}, "refused": 1, "last": 2}
    mlflow.refused = {"refused", "train/recall_0.5"}
    run = Run(tmp_path, "n" * 400, config, 0.0, "host", 1, None, {})
    for attempt in (1, 2):
        sink = MLflow("study", tags={"a//b": "1", "a/b": "2"})
        sink.report = told.append  # type: ignore[method-assign]
        sink.open(run)
        for step in (2 * attempt, 2 * attempt + 1):
            sink.send(records(step))
        run.state = json.loads(json.dumps(run.state))  # all that is kept
        assert sink.left_out == 3  # a parameter, and a metric of two steps
    steps: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for key, value, _, step in mlflow.metrics:
        steps[key].append((step, value))
    expected = [[(step, float(place)) for step in (2, 3, 4, 5)] for place in range(1, len(NAMES))]
    assert sorted(steps.values()) == sorted(expected)
    assert {"train/a/b", "train/__/up", "train/AR"} <= steps.keys()
    assert ("train/AR/small" in steps) == (uri == "sqlite:///x.db")
    pictures = [file for file in mlflow.files if file.endswith("00000002.png")]
    assert {mlflow.files[file] for file in pictures} == {png(place + 1) for place in range(len(NAMES))}
    assert all(len(part.encode()) < 256 for file in pictures for part in file.split("/"))
    assert sorted(map(str, mlflow.params.values())) == ["0.3", "0.4", "2"]
    ((_, name, tags),) = mlflow.created
    assert len(name) == 250
    assert sorted(tags.values()) == sorted([str(tmp_path), "1", "2"])
    assert sum("does not take 'refused', which it lacks: Invalid value" in text for text in told) == 2
    assert sum("likewise" in text for text in told) == 4  # one of each kind, in the first attempt alone


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("sqlite:///x.db", TypeError("of the client")),
        ("./mlruns", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_a_client_that_fails_for_another_reason_ends_the_mirror(
    tmp_path: Path, mlflow: FakeMlflow, uri: str, error: Exception
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    mlflow.tracking_uri = uri
    sink = open_in(tmp_path, MLflow("study"))
    mlflow.log_batch = fail  # type: ignore[method-assign]
    with pytest.raises(type(error)) as caught:
        sink.send(records(1))
    assert caught.value is error


def test_a_picture_that_cannot_be_read_does_not_end_wandb(tmp_path: Path, wandb: FakeWandb) -> None:
    pytest.importorskip("PIL", reason="images for wandb need Pillow")
    sink = open_in(tmp_path, WandB("demo"))
    told: list[str] = []
    sink.report = told.append  # type: ignore[method-assign]
    sent = records(1)
    sent.artefacts[0] = sent.artefacts[0]._replace(data=b"no picture")
    sink.send(sent)
    assert len(wandb.logged[0][1]) == 2 * len(NAMES) - 1
    assert told[0].startswith("Warning: wandb does not take 'recall>0.5', which it lacks")


def test_tensorboard_has_a_folder_of_each_split_inside_its_own(tmp_path: Path) -> None:
    sink = open_in(tmp_path, TensorBoard(tmp_path / "board"))
    splits = ["..", "a/b", "a_b", "s" * 300]
    sink.send(Records([(Series("loss", split), Point(1, 1, 0.0, 0.5, 1)) for split in splits]))
    sink.close("finished")
    folders = {file.parent for file in tmp_path.glob("**/events.out.*")}
    assert len(folders) == len(splits) + 1
    assert all(folder.is_relative_to(tmp_path / "board" / "run") for folder in folders)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_real_mlflow_keeps_a_run_in_a_local_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    folder = tmp_path / "run"
    train(folder, [MLflow("study", uri)])
    train(folder, [MLflow("study", uri)], duration="3 epochs", resume=True)
    with RunReader(folder) as reader:
        assert not [line.text for line in reader.log_lines() if "failed" in line.text]
    client = tracking.MlflowClient(uri)
    identity = json.loads((folder / "logs" / "mlflow.json").read_text())["state"]["run_id"]
    history = client.get_metric_history(identity, "train/loss")
    assert [(m.step, m.value) for m in sorted(history, key=lambda m: m.step)] == stored(folder)["train/loss"]
    run = client.get_run(identity)
    assert run.info.status == "FINISHED"
    assert run.data.params["config.lr"] == "0.1"
    assert {a.path for a in client.list_artifacts(identity)} == {"events", "histograms", "images", "tables"}


def test_new_points_come_in_pages_by_step(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run") as run:
        for step in range(1, 8):
            run.log(step, 1, {"loss": float(step)})
            if step % 3 == 0:
                run.log(step, 1, {"loss": -float(step)}, "valid")
    positions: dict[Any, int] = {}
    pages: list[list[tuple[int, float]]] = []
    with RunReader(tmp_path / "run") as reader:
        while rows := reader.new_points(positions, limit=3):
            pages.append([(point.step, point.value) for _, _, point in rows])
            positions |= {(series, point.attempt): at + 1 for series, at, point in rows}
    flat = [entry for page in pages for entry in page]
    assert [step for step, _ in flat] == sorted(step for step, _ in flat)
    assert sorted(flat) == sorted([(s, float(s)) for s in range(1, 8)] + [(3, -3.0), (6, -6.0)])
    assert pages[0] == [(1, 1.0), (2, 2.0), (3, 3.0), (3, -3.0)]
