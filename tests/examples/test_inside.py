"""The examples inside Lightning, Accelerate and the Trainer: the same losses with burnt's kernels."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import burnt
from burnt.swapping.kind import is_swapped
from tests.swapping.conftest import always

__all__ = ["always"]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.full
@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("library", ["lightning", "accelerate", "trainer"])
def test_a_swapped_model_trains_to_the_same_losses(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate" if library == "trainer" else library)
    monkeypatch.setenv("BURNT_SWAP_CACHE", "0")
    models: list[torch.nn.Module] = []
    swap = burnt.swap

    def swap_and_keep(model: torch.nn.Module, **options: Any) -> object:
        models.append(model)
        return swap(model, **options)

    monkeypatch.setattr(burnt, "swap", swap_and_keep)
    main = runpy.run_path(str(EXAMPLES / f"inside_{library}" / "train.py"))["main"]
    out = tmp_path / "losses.svg"
    sizes = ["--steps", "6", "--width", "64", "--layers", "1"]
    found = main([*sizes, "--out", str(out)])
    with_torch, swapped = (
        value[0] if isinstance(value, tuple) else value.losses for value in (found["torch"], found["swapped"])
    )
    assert len(with_torch) == 6
    assert swapped[-1] < swapped[0]
    assert swapped == pytest.approx(with_torch, rel=1e-3)
    assert sum(map(is_swapped, models[0].modules())) > 3  # also at the end
    assert "ms a step" in capsys.readouterr().out
    assert out.read_text().startswith("<svg")
