"""Decisions of an earlier swap, given as a report or kept in the cache: nothing is measured again."""

import copy
import json
import os
import time

import pytest
import torch
from torch import nn

import burnt
from burnt.errors import SwapError
from burnt.swapping import Report, first_call, kept, measure, site
from tests import forked

FASTER = [2e-3], [1e-3]
ALL = ["LayerNorm", "GELU", "Linear", "Sequential"]


def build(width=4):
    return nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Linear(4, width))


X = torch.linspace(-1, 1, 12).view(3, 4)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder of kept decisions."""
    monkeypatch.setenv(kept.SWITCH, "1")
    monkeypatch.setattr(kept, "_folder", lambda: tmp_path / "swap")
    return tmp_path / "swap"


@pytest.fixture
def measured(monkeypatch):
    """The classes of layers that are measured, and of models that are timed."""
    names = []

    def recorded(function):
        def call(module, *rest, timed=True):
            if timed:
                names.append(type(module).__name__)
            return function(module, *rest, **({} if timed else {"timed": False}))

        return call

    monkeypatch.setattr(site, "measure", recorded(site.measure))
    monkeypatch.setattr(first_call, "time_model", recorded(first_call.time_model))
    return names


def swapped(model=None, x=X, **settings):
    """The report of a swapped model after its first call."""
    model = build() if model is None else model
    report = burnt.swap(model, **settings)
    model(x)
    return report


def sources(report):
    return [row.source for row in report.rows]


# --- kept


def test_the_next_process_takes_what_was_kept(always, folder, measured):
    first = swapped()
    assert measured == ALL
    assert sources(first) == ["measured"] * 3
    measured.clear()
    model, plain = build(), build()
    plain.load_state_dict(model.state_dict())
    second = swapped(model)
    assert measured == []
    assert second.swapped == first.swapped == ["0", "1", "2"]
    assert sources(second) == ["kept"] * 3
    torch.testing.assert_close(model(X), plain(X))
    for a, b in zip(first.rows, second.rows, strict=True):
        assert (a.speed, a.speed_range, a.samples, a.error) == (b.speed, b.speed_range, b.samples, b.error)
        assert b.milliseconds["whole"] == pytest.approx(a.milliseconds["whole"])
    assert second.whole.timing == first.whole.timing
    assert second.whole.source == "kept"


def test_the_report_says_what_was_kept(give_times, folder):
    give_times(*FASTER, whole=([4e-3], [2e-3]))
    swapped(skip="gelu")
    (file,) = kept.files()
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"at": 1e9}))
    lines = str(swapped(skip="gelu")).splitlines()
    speed = "2.00x (2.00-2.00, 6 samples)"
    assert lines[:5] == [
        "2 sites, mode='train': 2 swapped",
        f"the whole model: {speed}  4 -> 2 ms, forward and backward in training mode; kept",
        f"decisions of 2 sites kept, from {time.strftime('%Y-%m-%d %H:%M', time.localtime(1e9))}",
        "",
        "swapped:",
    ]
    assert lines[5].split() == ["with", "inputs", "error", "from", "speed"]
    assert lines[6].endswith(f"kept  {speed}  2 -> 1 ms")


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({}, []),
        ({"x": X[:2]}, ALL),
        ({"x": X.clone().requires_grad_()}, ALL),
        ({"model": build(8)}, ALL),
        ({"model": build().eval()}, ALL),
        ({"mode": "infer"}, ALL),
        ({"only": ["0", "1"]}, ["LayerNorm", "GELU", "Sequential"]),
        ({"remeasure": True}, ALL),
    ],
)
def test_what_was_kept_is_of_the_same_model_and_inputs(always, folder, measured, change, again):
    swapped()
    measured.clear()
    swapped(**change)
    assert measured == again


def test_another_machine(always, folder, measured, monkeypatch):
    swapped()
    monkeypatch.setattr(measure, "machine_name", lambda kind, index: "cpu Z80, 2 threads")
    swapped()
    assert measured == ALL * 2
    swapped()
    assert measured == ALL * 2
    assert len(kept.files()) == 2


def test_what_another_version_kept_is_measured_again(always, folder, measured):
    swapped()
    (file,) = kept.files()
    content = json.loads(file.read_text())
    content["context"]["torch"] = "1.13.1"
    file.write_text(json.dumps(content))
    measured.clear()
    report = swapped()
    assert len(measured) == 4
    note = f"kept decisions were measured again: torch was 1.13.1, and is {torch.__version__}"
    assert note in str(report).splitlines()
    assert sources(swapped()) == ["kept"] * 3


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": "burnt swap report", "version": 99}', "[" * 1000]
)
def test_a_damaged_file_is_measured_again_and_replaced(always, folder, measured, text):
    swapped()
    (file,) = kept.files()
    file.write_text(text)
    measured.clear()
    report = swapped()
    assert len(measured) == 4
    assert "kept decisions cannot be used: the file is not a report of swap, or of another version" in str(
        report
    )
    assert sources(swapped()) == ["kept"] * 3


def test_a_folder_that_cannot_be_written(always, folder, measured):
    folder.parent.joinpath("swap").write_text("a file")
    report = swapped()
    assert report.swapped == ["0", "1", "2"]
    assert "the decisions cannot be kept: " in str(report)


def test_nothing_is_kept_where_that_is_turned_off(always, folder, monkeypatch):
    monkeypatch.setenv(kept.SWITCH, "0")
    swapped()
    assert not folder.exists()


def test_the_oldest_files_are_deleted(always, folder, monkeypatch):
    monkeypatch.setattr(kept, "_MAX_FILES", 2)
    for rows in (1, 2, 3):
        swapped(x=X[:rows])
        for file in kept.files():
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 10))
    assert len(kept.files()) == 2
    assert sources(swapped(x=X[:3])) == ["kept"] * 3
    assert sources(swapped(x=X[:1])) == ["measured"] * 3


def test_a_restored_original_is_kept_too(give_times, folder, measured):
    give_times(*FASTER, whole=([1e-3], [2e-3]))
    first = swapped()
    assert first.whole.restored
    measured.clear()
    second = swapped()
    assert measured == []
    assert second.left == first.left == dict.fromkeys("012", "the whole model is 0.50 times as fast swapped")
    assert second.whole.restored
    assert [row.speed for row in second.rows] == [2.0] * 3
    assert sources(second) == ["kept"] * 3


def test_what_stayed_undecided_is_measured_again_unless_it_is_given(give_times, folder, measured):
    give_times([1.3e-3, 0.8e-3], [1e-3])
    first = swapped()
    assert "undecided" in first.left["0"]
    give_times(*FASTER)
    measured.clear()
    assert swapped(decisions=first).left == first.left
    assert measured == []
    second = swapped()
    assert measured == ALL
    assert second.swapped == ["0", "1", "2"]
    assert sources(swapped()) == ["kept"] * 3


def test_a_layer_that_differs_is_compared_again_and_no_other_is_measured(
    always, folder, measured, monkeypatch
):
    monkeypatch.setattr("burnt.kernels.gelu.in_layer", lambda x, approximate: nn.functional.gelu(x) * 1.01)
    for _ in range(2):
        measured.clear()
        report = swapped()
    assert measured == ["GELU"]
    assert sources(report) == ["kept", None, "kept"]
    assert report.whole.source == "kept"


def test_verify_checks_the_errors_of_kept_decisions(always, folder, measured, monkeypatch):
    swapped()
    measured.clear()
    monkeypatch.setattr("burnt.kernels.gelu.in_layer", lambda x, approximate: nn.functional.gelu(x) * 1.01)
    report = burnt.swap(build(), verify=X)
    assert report.swapped == ["0", "2"]
    assert report.left["1"].startswith("off by ")


def test_another_process_takes_it(always, folder):
    swapped()
    program = f"""
import os, torch
from pathlib import Path
from torch import nn
os.environ["BURNT_SWAP_CACHE"] = "1"
import burnt
from burnt.swapping import kept, measure
kept._folder = lambda: Path({str(folder)!r})
model = nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 4))
report = burnt.swap(model)
model(torch.linspace(-1, 1, 12).view(3, 4))
print(*(row.source for row in report.rows), report.whole.source)
"""
    done = forked.run(program, timeout=120)
    assert done.stdout.split() == ["kept"] * 4, done.stdout + done.stderr


# --- given


def test_given_decisions_are_used(always, measured, tmp_path):
    first = swapped()
    first.save(tmp_path / "decisions.json")
    for given in first, tmp_path / "decisions.json", str(tmp_path / "decisions.json"):
        measured.clear()
        report = swapped(decisions=given)
        assert measured == []
        assert sources(report) == ["given"] * 3
        assert report.whole.source == "given"
        assert "decisions of 3 sites given, from " in str(report)


def test_a_loaded_report_is_the_saved_one(always, tmp_path):
    def model():
        return nn.Sequential(*build(), nn.Sigmoid(), nn.BatchNorm1d(4, momentum=None))

    report = swapped(model(), skip="gelu")
    report.save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert str(loaded) == str(report)
    assert loaded.left == report.left == {"4": "momentum=None averages all batches"}
    assert (loaded.mode, loaded.others, loaded.whole) == (report.mode, report.others, report.whole)
    assert os.listdir(tmp_path) == ["report.json"]
    given = swapped(model(), skip="gelu", decisions=loaded)
    given.save(tmp_path / "report.json")
    again = Report.load(tmp_path / "report.json")
    assert again.plan.at == loaded.plan.at > 0
    assert str(again).splitlines()[2] == "decisions of 2 sites given"


def test_sites_without_a_decision_are_measured(always, measured):
    first = swapped(skip="gelu")
    measured.clear()
    report = swapped(decisions=first)
    assert measured == ["GELU", "Sequential"]
    assert sources(report) == ["given", "measured", "given"]
    # The last layer has another shape.
    assert sources(swapped(build(8), decisions=first)) == ["given", "measured", "measured"]


def test_left_layers_stay_left(give_times):
    give_times([1e-3], [2e-3])
    first = swapped()
    assert len(first.left) == 3
    give_times(*FASTER)
    assert swapped(decisions=first).left == first.left


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        ("torch", "1.13.1", "torch was 1.13.1, and is"),
        ("burnt", "0.0.1", "burnt was 0.0.1, and is"),
        ("machine", "cpu Z80, 1 threads", "machine was cpu Z80, 1 threads, and is cpu "),
    ],
)
def test_stale_decisions_are_not_used(always, measured, what, value, message):
    first = swapped()
    first.plan.context[what] = value
    measured.clear()
    with pytest.warns(RuntimeWarning, match=message):
        report = swapped(decisions=first)
    assert len(measured) == 4
    assert f"the given decisions were not used: {message}" in str(report)


def test_decisions_of_another_mode_are_not_used(always, measured):
    first = swapped(mode="infer")
    measured.clear()
    with pytest.warns(RuntimeWarning, match="mode was infer, and is train"):
        swapped(decisions=first)
    assert len(measured) == 4


def test_decisions_that_are_none(always, tmp_path):
    model = build()
    (tmp_path / "other.json").write_text('{"a": 3}')
    cases = [
        (3, "(?s)decisions= of swap has the wrong type.*found +int"),
        (tmp_path / "missing.json", r"(?s)a report of swap cannot be read.*missing\.json.*No such file"),
        (tmp_path / "other.json", "(?s)the file is not a report of swap.*other.json.*KeyError: 'format'"),
        (
            burnt.swap(build()),
            "(?s)the report has no decisions.*found +3 sites waiting for that call, none measured",
        ),
        (
            swapped(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))),
            r"(?s)decisions are of another model.*expected +'0' \(LayerNorm\).*found +'0' \(Linear\), '1'",
        ),
    ]
    for decisions, message in cases:
        with pytest.raises(SwapError, match=message):
            burnt.swap(model, decisions=decisions)
        assert [type(m) for m in model] == [nn.LayerNorm, nn.GELU, nn.Linear]
        assert not model._forward_hooks
    with pytest.raises(SwapError, match="remeasure=True ignores what decisions= gives"):
        burnt.swap(model, decisions=swapped(), remeasure=True)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize(
    "layer", [lambda: nn.RNN(4, 8), lambda: nn.LSTM(4, 8, proj_size=3)], ids=["none", "left"]
)
def test_decisions_of_a_model_without_sites_to_measure(always, layer, tmp_path):
    burnt.swap(layer(), verify=torch.randn(5, 2, 4)).save(tmp_path / "d.json")
    model = layer()
    report = burnt.swap(model, decisions=tmp_path / "d.json")
    model(torch.randn(5, 2, 4))
    assert report.swapped == []


# --- copies


def test_a_copy_decides_for_itself(always, folder, measured):
    model = build()
    report = burnt.swap(model)
    other = copy.deepcopy(model)
    other(X)
    assert report.waiting == ["0", "1", "2"]
    assert measured == ALL[:3]
    assert not other._forward_hooks
    model(X)
    assert report.swapped == ["0", "1", "2"]
