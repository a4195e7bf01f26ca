"""The GAN example: a short run through the command line, and digits that another model recognises."""

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from burnt.cli import main
from burnt.train import RunReader

FOLDER = Path(__file__).parent.parent.parent / "examples" / "gan"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(FOLDER))
    import train

    return train


def test_it_runs_from_the_command_line_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def train(*arguments: str) -> str:
        assert main(["train", f"{FOLDER / 'train.py'}:main", *arguments]) == 0
        return capfd.readouterr().out

    assert len(train("epochs=1", "folder=runs/a").splitlines()[-17:]) == 17  # two rows of drawings
    assert "resuming after step 28" in train("epochs=2", "folder=runs/a", "resume=true")
    with RunReader("runs/a") as run:
        assert run.points("learning_rate/discriminator").values[-1] == 5e-4


def test_a_sheet_shows_the_images_side_by_side(example: object) -> None:
    images = torch.zeros(4, 64)
    images[1, :8] = 1.0  # the top row of the second
    rows = example.sheet(images, columns=2).split("\n")  # type: ignore[attr-defined]
    assert len(rows) == 17
    assert rows[0] == 16 * " " + 16 * "@"
    assert not "".join(rows[1:]).strip()


@pytest.mark.full
def test_another_model_recognises_the_digits(example: object, tmp_path: Path) -> None:
    config = example.GanConfig(folder=tmp_path / "run", monitor="off")  # type: ignore[attr-defined]
    model = example.main(config)  # type: ignore[attr-defined]
    images, labels = load_digits(return_X_y=True)
    judge = SVC().fit(images / 16, labels)
    digits = torch.arange(10).repeat(50)
    torch.manual_seed(1)
    with torch.no_grad():
        drawn = model.draw(digits)
    assert judge.score(drawn.numpy(), digits.numpy()) > 0.95
    assert drawn.view(50, 10, 64).std(0).mean() > 0.05  # and they are not all the same
