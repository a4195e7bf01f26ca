"""Each example in full, as its page says, gives the figures of the page: nine minutes of one core."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ACCURACY = r"[Tt]est accuracy:? ([\d.]+)"


FIGURES = [
    ("mnist/mnist.py", ACCURACY, 0.02),
    ("csv_regression/csv_regression.py", r"burnt +R2 +(\S+)", 0.05),
    ("image_folder/image_folder.py", ACCURACY + " on 397 pictures", 0.02),
    ("text_classification/text_classification.py", ACCURACY, 0.04),  # docstrings of this Python
    ("char_gpt/char_gpt.py", r"Loss on the last tenth: (\S+)", 0.05),
    ("lstm_series/lstm_series.py", r"error +(\S+)  LSTM", 3.0),
    ("digits/train.py", ACCURACY, 0.01),
    ("import_onnx/finetune.py", r"(?:given|fine-tuned|int8) +(\S+)%", 0.6),
    ("lora/train.py", r"(?:base|adapted) +code (\S+) +English (\S+)", 0.05),
    ("custom_loop/train.py", r"SAM, \D*0.1\D*(0\.\d+)", 0.005),
    ("custom_loop_with_ranks/custom_loop_with_ranks.py", ACCURACY, 0.01),
    ("two_nodes/two_nodes.py", r"epoch 20/20 +valid .* accuracy (\S+)", 0.01),
    ("threads/threads.py", ACCURACY, 0.01),
    ("custom_metric/train.py", r"Test: .* accuracy ([\d.]+), .* coverage_at_0.005 (\S+)", 0.05),
    ("custom_kernel/train.py", r"snake: root mean square error after the data (\S+)", 0.2),
    ("quantize/lines.py", ACCURACY, 0.06),  # lines of this Python
]
"""A program, what it prints with its figures, and how far these may be from those of its page."""


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("program", "pattern", "tolerance"), FIGURES, ids=[case[0] for case in FIGURES])
def test_a_program_reaches_the_figures_of_its_page(
    program: str, pattern: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page repeats what is printed, or has the figure in bold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNT_MONITOR", "plain")
    command = [sys.executable, EXAMPLES / program]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    page = (EXAMPLES / program).with_name("README.md").read_text("utf-8")
    expected = re.findall(pattern, page) or re.findall(r"\*\*([\d.]+)\*\*", page)[:1]
    assert expected
    assert numbers(re.findall(pattern, done.stdout)) == pytest.approx(numbers(expected), abs=tolerance)


def numbers(found: list[str] | list[tuple[str, ...]]) -> list[float]:
    return [float(part) for one in found for part in ([one] if isinstance(one, str) else one)]
