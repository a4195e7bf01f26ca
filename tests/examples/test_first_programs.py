"""The examples on common kinds of data, in short: each learns, and writes its figure and picture."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from burnt.cli import main
from burnt.train import RunReader

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNT_MONITOR", "plain")


def train(name: str, *assignments: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Run an example with these settings in ``runs/NAME``; return what it printed."""
    assert main(["train", f"{EXAMPLES / name / name}.py:main", *assignments]) == 0
    return capfd.readouterr().out


def losses(name: str) -> list[float]:
    """Return the training losses that the run has, by step."""
    with RunReader(f"runs/{name}") as run:
        return run.points("loss").values


def figure(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed)
    assert found is not None, printed
    return float(found[1])


def test_mnist(capfd: pytest.CaptureFixture[str]) -> None:
    out = train("mnist", "epochs=1", "width=8", "lr=1e-2", capfd=capfd)
    assert losses("mnist")[-1] < 0.8 * losses("mnist")[0]
    assert figure(r"Test accuracy: (\S+) on 359 images", out) > 0.5
    assert Path("runs/mnist/unsure.png").read_bytes()[:4] == b"\x89PNG"


def test_mnist_reads_the_files_of_mnist(capfd: pytest.CaptureFixture[str]) -> None:
    for split, count in (("train", 100), ("t10k", 20)):
        labels = bytes(i % 10 for i in range(count))
        pixels = b"".join(bytes([25 * label]) * 784 for label in labels)
        sizes = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
        Path(f"{split}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + sizes + pixels)
        Path(f"{split}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + sizes[:4] + labels)
    out = train("mnist", "data=.", "epochs=1", "width=4", capfd=capfd)
    assert "on 20 images" in out


def test_csv_regression(capfd: pytest.CaptureFixture[str]) -> None:
    out = train("csv_regression", "epochs=12", "lr=1e-2", capfd=capfd)
    assert losses("csv_regression")[-1] < 0.8 * losses("csv_regression")[0]
    r2 = figure(r"burnt +R2 +(\S+)", out)
    assert 0.2 < r2 < 0.7
    assert figure(r"ridge regression +R2 +(\S+)", out) == pytest.approx(0.475, abs=0.02)
    assert abs(figure(r"mean +R2 +(\S+)", out)) < 0.05
    assert Path("runs/csv_regression/errors.svg").read_text().startswith("<svg")
    assert len(Path("diabetes.csv").read_text().splitlines()) == 443
    # The table is saved with the run: its file can be predicted, and a stopped run goes on.
    assert main(["predict", "runs/csv_regression", "--data", "diabetes.csv", "-o", "predicted.csv"]) == 0
    assert Path("predicted.csv").read_text().splitlines()[0].endswith("target,prediction")
    again = train("csv_regression", "epochs=13", "lr=1e-2", "resume=true", capfd=capfd)
    assert "resuming after step 108" in again


def test_image_folder(capfd: pytest.CaptureFixture[str]) -> None:
    out = train("image_folder", "epochs=1", "width=8", "lr=1e-2", capfd=capfd)
    assert losses("image_folder")[-1] < 0.9 * losses("image_folder")[0]
    assert figure(r"Test accuracy: (\S+) on 397 pictures", out) > 0.4
    assert len(list(Path("digits/train").rglob("*.png"))) == 1100
    assert Path("runs/image_folder/augmented.png").read_bytes()[:4] == b"\x89PNG"
    assert len(Path("runs/image_folder/test.csv").read_text().splitlines()) == 398


def test_text_classification(capfd: pytest.CaptureFixture[str]) -> None:
    out = train("text_classification", "epochs=3", "dim=32", "lr=2e-2", capfd=capfd)
    assert losses("text_classification")[-1] < 0.5 * losses("text_classification")[0]
    assert figure(r"Test accuracy: (\S+) on \d+ texts", out) > 0.6  # the most frequent class is 0.17
    rows = list(csv.DictReader(Path("docstrings.csv").read_text("utf-8").splitlines()))
    assert len({row["label"] for row in rows}) == 8
    assert len({row["text"] for row in rows}) == len(rows)
    assert not any("asyncio" in row["text"] for row in rows)
    assert Path("runs/text_classification/loss.svg").read_text().startswith("<svg")


def test_char_gpt(capfd: pytest.CaptureFixture[str]) -> None:
    Path("text.txt").write_text(
        "the quick brown fox jumps over the lazy dog, again and again; " * 40, "utf-8"
    )
    small = ["data=text.txt", "size=32", "layers=1", "context=32", "lr=2e-2"]
    out = train("char_gpt", "steps=40", *small, capfd=capfd)
    assert losses("char_gpt")[-1] < 0.3 * losses("char_gpt")[0]
    assert figure(r"Loss on the last tenth: (\S+) nats", out) < 0.6
    written = out[out.index("The for statement") + len("The for statement") :]
    assert sum(word in written for word in ("quick", "brown", "jumps", "lazy", "again")) >= 4
    assert Path("runs/char_gpt/loss.svg").read_text().startswith("<svg")


def test_lstm_series(capfd: pytest.CaptureFixture[str]) -> None:
    out = train("lstm_series", "epochs=12", capfd=capfd)
    assert losses("lstm_series")[-1] < 0.6 * losses("lstm_series")[0]
    naive = figure(r"error (\S+)  the value of the year before", out)
    assert naive == pytest.approx(25.45, abs=0.01)  # as NumPy computes it from the file
    assert figure(r"error +(\S+)  LSTM", out) < 0.8 * naive
    assert Path("runs/lstm_series/forecast.svg").read_text().startswith("<svg")
