"""The LoRA example, in short: what is trained, what the adapter changes, and what merging does not."""

import importlib
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

FILE = Path(__file__).parent.parent.parent / "examples" / "lora" / "train.py"


def test_an_adapter_changes_the_model_and_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FILE.parent))
    sys.modules.pop("train", None)
    program = importlib.import_module("train")
    texts = program.load_texts(32)
    few = {name: [parts[0][i] for i in range(64)] for name, parts in texts.items()}
    assert all(parts[0][0].shape == (33,) and parts[0][0].max() < 128 for parts in texts.values())
    monkeypatch.setattr(
        program, "load_texts", lambda length: {name: [part, part] for name, part in few.items()}
    )
    losses = program.main(program.LoraConfig(width=32, length=32, base_steps=10, steps=20, rank=2))
    base, adapted, without, merged = losses.values()
    assert adapted["English"] < base["English"] - 0.01
    assert without == pytest.approx(base, rel=1e-6)
    assert merged == pytest.approx(adapted, rel=1e-5)
    # two matrices of rank 2 for q, k, v and out (of width 32), and for both Linears, in each of two blocks
    trained = 2 * 2 * ((32 + 96) + (32 + 32) + 2 * (32 + 128))
    printed = capsys.readouterr().out
    assert f"{trained:,} of " in printed
    with safe_open("runs/lora/adapter.safetensors", "pt") as file:
        assert all("lora" in name for name in file.keys())  # noqa: SIM118  it is no dict
    assert Path("runs/lora/losses.svg").read_text().startswith("<svg")
