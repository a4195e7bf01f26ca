"""The examples on common kinds of data, in short: each learns, and writes its figure and picture."""

from __future__ import annotations

import csv
import gzip
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from burnt.cli import main
from burnt.errors import ConfigError
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


def test_mnist_reads_the_files_of_mnist(capfd: pytest.CaptureFixture[str]) -> None:
    digits, labels = load_digits(return_X_y=True)
    images = np.kron(digits.reshape(-1, 8, 8), np.full((3, 3), 15)).astype("uint8")  # 24 x 24, up to 240
    images = np.pad(images, [(0, 0), (2, 2), (2, 2)])
    for split, start, end in (("train", 0, 400), ("t10k", 400, 500)):
        sizes = b"".join(size.to_bytes(4, "big") for size in (end - start, 28, 28))
        pixels = images[start:end].tobytes()
        packed = gzip.compress(b"\0\0\x08\x03" + sizes + pixels)
        Path(f"{split}-images-idx3-ubyte.gz").write_bytes(packed)
        numbers = labels[start:end].astype("uint8").tobytes()
        Path(f"{split}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + sizes[:4] + numbers)
    out = train("mnist", "data=.", "epochs=3", "width=8", "batch_size=32", "lr=1e-2", capfd=capfd)
    assert losses("mnist")[-1] < 0.8 * losses("mnist")[0]
    assert figure(r"Test accuracy: (\S+) on 100 images", out) > 0.5
    assert Path("runs/mnist/unsure.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["train", f"{EXAMPLES}/mnist/mnist.py:main", "data=elsewhere"]) == 1
    assert "expected  train-images-idx3-ubyte or train-images-idx3-ubyte.gz" in capfd.readouterr().err


def test_csv_regression(capfd: pytest.CaptureFixture[str]) -> None:
    out = train("csv_regression", "epochs=8", "lr=1e-2", capfd=capfd)
    assert losses("csv_regression")[-1] < 0.8 * losses("csv_regression")[0]
    r2 = figure(r"burnt +R2 +(\S+)", out)
    assert 0.2 < r2 < 0.7
    assert figure(r"ridge regression +R2 +(\S+)", out) == pytest.approx(0.475, abs=0.02)
    assert abs(figure(r"mean +R2 +(\S+)", out)) < 0.05
    assert Path("runs/csv_regression/errors.svg").read_text().startswith("<svg")
    assert len(Path("diabetes.csv").read_text().splitlines()) == 443
    assert main(["train", f"{EXAMPLES}/csv_regression/csv_regression.py:main", "data=diabetse.csv"]) == 1
    assert "diabetse.csv" in capfd.readouterr().err  # not written in its place
    # The run keeps what the columns of the table become, so that a file can be predicted.
    assert main(["predict", "runs/csv_regression", "--data", "diabetes.csv", "-o", "predicted.csv"]) == 0
    assert Path("predicted.csv").read_text().splitlines()[0].endswith("target,prediction")


def test_image_folder(capfd: pytest.CaptureFixture[str]) -> None:
    pixels, labels = load_digits(n_class=3, return_X_y=True)
    for i, (image, label) in enumerate(zip(pixels[:320], labels[:320], strict=True)):
        path = Path("photos", ("train", "train", "valid", "test")[i // 40 % 4], f"digit {label}", f"{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * image.reshape(8, 8)).astype("uint8")).save(path)
    out = train("image_folder", "data=photos", "classes=3", "epochs=3", "width=8", "lr=1e-2", capfd=capfd)
    assert losses("image_folder")[-1] < 0.8 * losses("image_folder")[0]
    assert figure(r"Test accuracy: (\S+) on 80 pictures", out) > 0.6
    assert Path("runs/image_folder/augmented.png").read_bytes()[:4] == b"\x89PNG"
    assert Path("runs/image_folder/test.csv").read_text().startswith("path,prediction,probability_digit 0,")


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
    small = ["data=text.txt", "size=32", "layers=1", "context=32", "lr=2e-2", "write=120"]
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


PROGRAMS = [
    path
    for path in sorted(EXAMPLES.rglob("*.py"))
    if "(burnt.Config)" in (text := path.read_text("utf-8")) and "torchft" not in text  # of no release
]


@pytest.mark.parametrize("program", PROGRAMS, ids=[path.parent.name for path in PROGRAMS])
def test_a_program_takes_settings_as_burnt_train_does(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(program), "foldre=x"])
    with pytest.raises(ConfigError, match="did you mean 'folder'"):
        runpy.run_path(str(program), run_name="__main__")
