"""Notebooks: where a training shows its progress and curves, what the output holds, and a real kernel."""

from __future__ import annotations

import base64
import itertools
import re
import sys
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import UnsupportedError
from burnt.train import Learner, Position, StepOutput, SupervisedTraining, predict
from burnt.train.events import Logged, Started, Validated
from burnt.train.reporting import notebook as work_module
from burnt.train.reporting import progress as progress_module
from burnt.train.reporting.notebook import WorkProgress, bar_html, curves_html, in_notebook, table_html
from burnt.train.reporting.progress import NotebookReporter, PlainReporter, choose_reporter

DATA = TensorDataset(x=torch.linspace(0, 1, 16)[:, None], y=torch.linspace(0, 1, 16)[:, None])


def at(position: Position) -> Any:
    """Return a training, as far as reporters look at it."""
    return types.SimpleNamespace(position=position)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """IPython's shell as in a kernel, whose display publisher keeps what it is given."""
    pytest.importorskip("IPython", reason="no IPython here: pip install ipykernel")
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.kernel = object()
    shell.display_pub = CapturingDisplayPublisher()
    monkeypatch.delenv("BURNT_MONITOR", raising=False)
    yield shell
    InteractiveShell.clear_instance()


def train(folder: Path, **settings: Any) -> None:
    def step(model: nn.Module, batch: Any) -> StepOutput:
        outputs = model(batch.x)
        return StepOutput((outputs - batch.y).square().mean(), outputs, batch.y)

    torch.manual_seed(0)
    loader = Loader(DATA, 4)
    options = {"duration": "3 epochs", "log_every": 1, **settings}
    SupervisedTraining(folder, train=loader, valid=loader, device="cpu", **options).run(
        Learner(nn.Linear(1, 1), optim.Sgd(), 0.1, step=step)
    )


def pictures(html_text: str) -> dict[str, ElementTree.Element]:
    """Return the drawings in an output by their alternative text."""
    found = re.findall(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)">', html_text)
    return {name: ElementTree.fromstring(base64.b64decode(data)) for name, data in found}


def test_a_notebook_is_recognised_and_other_shells_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()
    terminal = types.SimpleNamespace()  # `ipython` in a terminal has no kernel
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: terminal))
    assert not in_notebook()
    assert isinstance(choose_reporter("auto"), PlainReporter)
    with pytest.raises(UnsupportedError) as caught:
        choose_reporter("notebook")
    assert (caught.value.expected, caught.value.hint) == ("the kernel of a notebook", "use monitor='auto'")
    terminal.kernel = object()
    assert in_notebook()
    assert isinstance(choose_reporter("auto"), NotebookReporter)
    monkeypatch.setenv("BURNT_MONITOR", "plain")
    assert isinstance(choose_reporter("auto"), PlainReporter)


def test_one_output_is_updated_with_bar_table_and_curves(
    shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run")
    outputs = shell.display_pub.outputs
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    assert [output.get("update", False) for output in outputs] == [False] + [True] * (len(outputs) - 1)
    last = outputs[-1]["data"]
    assert '<progress value="12" max="12"' in last["text/html"]
    assert "epoch 3/3, step 12/12," in last["text/html"]
    assert "<th>valid</th>" in last["text/html"]
    (name, drawing) = next(iter(pictures(last["text/html"]).items()))
    assert name == "loss"
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert {"train/loss", "valid/loss"} <= set(texts)
    assert last["text/plain"].splitlines()[1].endswith(", done")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Training finished: 3 epochs, 12 steps")


def test_drawing_takes_a_share_of_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    drawn: list[float] = []

    class Timed(NotebookReporter):
        def _draw(self) -> None:
            drawn.append(now[0])
            now[0] += 0.1

    reporter = Timed()
    speed = {"samples_per_second": 1.0}
    for _ in range(100):
        reporter.on_log(Logged(at(Position()), {"loss": 1.0}, speed))
        now[0] += 0.05
    assert len(drawn) == 3
    assert min(b - a for a, b in itertools.pairwise(drawn)) >= 2


def test_a_resumed_run_shows_its_curves_from_the_beginning(shell: Any, tmp_path: Path) -> None:
    train(tmp_path / "run", monitor="off")
    train(tmp_path / "run", duration="4 epochs", resume=True)
    html_text = shell.display_pub.outputs[-1]["data"]["text/html"]
    drawing = pictures(html_text)["loss"]
    longest = max((e.get("points", "") for e in drawing.iter() if e.tag.endswith("polyline")), key=len)
    left = min(float(point.split(",")[0]) for point in longest.split())
    assert left < 60  # step 1 is at the left edge
    assert "step 16/16" in html_text


def test_a_duration_in_seconds_counts_those_before_a_resume(shell: Any) -> None:
    reporter = NotebookReporter()
    reporter.on_start(Started(at(Position(40, 1, 0, seconds=5400.0)), "title", None, None, 7200.0))
    shown = shell.display_pub.outputs[-1]["data"]["text/html"]
    assert '<progress value="5400" max="7200"' in shown
    assert "eta 30:00" in shown


def test_a_run_whose_folder_is_gone_has_no_curves(shell: Any, tmp_path: Path) -> None:
    reporter = NotebookReporter()
    reporter.open(types.SimpleNamespace(folder=tmp_path / "gone", log_line=lambda text, level: None))  # type: ignore[arg-type]
    reporter.on_start(Started(at(Position()), "title"))
    reporter.on_validation(Validated(at(Position()), "valid", {"loss": 0.5}))
    reporter.close()
    assert "<img" not in shell.display_pub.outputs[-1]["data"]["text/html"]
    assert "<td>0.5000</td>" in shell.display_pub.outputs[-1]["data"]["text/html"]


def test_texts_are_escaped_and_parts_may_be_missing() -> None:
    assert "&lt;b&gt;" in bar_html(1, 2, "<b>", "<b>")
    assert bar_html(1, None, "step 1") == "<div>step 1</div>"
    assert table_html([], {}) == ""
    assert "<th>&lt;loss&gt;</th>" in table_html(["<loss>"], {"now": ["1"]})
    assert curves_html({}, "step") == ""
    drawing = pictures(curves_html({"a&b": {"train": ([1, 2], [float("nan")] * 2)}}, "step"))
    assert list(drawing) == ["a&amp;b"]


def test_long_predictions_show_a_bar_and_remove_it(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "_SECONDS_BEFORE", 0.0)
    monkeypatch.setattr(work_module, "_SECONDS_BETWEEN", 0.0)
    predict(nn.Linear(1, 1), DATA.columns["x"], 4)
    texts = [output["data"]["text/plain"] for output in shell.display_pub.outputs]
    assert texts == [f"Predicting: {done} of 4 batches" for done in (1, 2, 3, 4)] + [""]
    shell.display_pub.outputs.clear()
    predict(nn.Linear(1, 1), DATA.columns["x"], 4, progress=False)
    assert shell.display_pub.outputs == []


def test_work_shows_a_bar_in_a_terminal_and_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(work_module, "_SECONDS_BEFORE", 0.0)
    with WorkProgress("Predicting", 2, "batches") as bar:
        bar.advance()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with WorkProgress("Predicting", 2, "batches") as bar:
        bar.advance()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Predicting" in captured.err
    assert "1/2" in captured.err


NOTEBOOK = """
import torch
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

x = torch.linspace(0, 1, 64)[:, None]
loader = Loader(TensorDataset(x=x, y=x.square()), 16)

def step(model, batch):
    outputs = model(batch.x)
    return StepOutput((outputs - batch.y).square().mean(), outputs, batch.y)

training = SupervisedTraining(
    "run", train=loader, valid=loader, duration="20 epochs", device="cpu", log_every=1
)
result = training.run(Learner(torch.nn.Linear(1, 1), optim.Sgd(), 0.2, step=step))
"""


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_real_notebook(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="no nbclient here: pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="no nbclient here: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="no ipykernel here: pip install ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = notebook.cells[0].outputs
    displays = [output for output in outputs if output.output_type == "display_data"]
    (display,) = displays  # updated in place
    assert '<progress value="80" max="80"' in display.data["text/html"]
    assert list(pictures(display.data["text/html"])) == ["loss"]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Training finished: 20 epochs, 80 steps" in text
