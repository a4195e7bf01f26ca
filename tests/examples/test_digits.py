"""The digits example, in short: its parts, and a run through the command line."""

import re
from pathlib import Path

import pytest
import torch

import burnt
from burnt.cli import main
from burnt.data import Batch

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "digits"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(FOLDER))
    import train

    return train


def test_the_splits_share_no_image_and_never_change(example: object) -> None:
    splits = example.load_splits()  # type: ignore[attr-defined]
    again = example.load_splits()  # type: ignore[attr-defined]
    assert {name: len(split) for name, split in splits.items()} == {"train": 1149, "valid": 288, "test": 360}
    for name, split in splits.items():
        assert torch.equal(split.columns["images"], again[name].columns["images"])
        assert split.columns["labels"].bincount().min() > 25
    whole = torch.cat([split.columns["images"] for split in splits.values()])
    assert len(whole) == 1797
    assert whole.min() == 0
    assert whole.max() == 1


def test_distortion_is_a_function_of_its_generator(example: object) -> None:
    images = torch.rand(5, 1, 8, 8)
    batch = Batch(images=images, labels=torch.arange(5))
    one, two, other = (
        example.distort(batch, torch.Generator().manual_seed(seed)).images  # type: ignore[attr-defined]
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.shape == images.shape
    assert torch.equal(batch.images, images)


def test_the_model_comes_back_from_its_file(example: object, tmp_path: Path) -> None:
    model = example.DigitsConfig(hidden=4).init().eval()  # type: ignore[attr-defined]
    model.save(tmp_path / "m.safetensors")
    twin = example.Digits.load(tmp_path / "m.safetensors").eval()  # type: ignore[attr-defined]
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(model(images), twin(images))
    assert burnt.check(model, images).unchecked == ()


def test_it_runs_from_the_command_line_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def train(*arguments: str) -> str:
        assert main(["train", f"{FOLDER / 'train.py'}:main", *arguments]) == 0
        return capfd.readouterr().out

    out = train("epochs=2", "model.hidden=8", "folder=runs/a")
    accuracy = re.search(r"^Test accuracy: (0\.\d{4})$", out, re.M)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.3
    assert "predicted" in out
    assert re.search(r"epoch 2/2 +valid +loss", out)
    out = train("epochs=3", "model.hidden=8", "folder=runs/a", "resume=true")
    assert "resuming after step 36" in out
    assert "epoch 3/3" in out
    assert "epoch 2/3" not in out
