"""The examples on common kinds of data, in short: each learns, and writes its figure and picture."""

from __future__ import annotations

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
