"""A run stopped after any step, in any way, and resumed equals one that was never stopped: every setting."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
from pathlib import Path

import pytest
import torch

import burnt.nn
from burnt import kernels
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import CheckpointError, DataError
from burnt.kernels.autotune.database import Row, TuningDatabase
from burnt.train import Checkpoints, EarlyStopping, RunReader
from tests import faults, forked
from tests.train import exact
from tests.train.cases import refused
from tests.train.exact import SETTINGS, Stream, assert_equal_runs, differences, run


def num_steps(folder: Path) -> int:
    with RunReader(folder) as reader:
        return max(max(reader.points(*series).steps) for series in reader.series())


def saved_steps(folder: Path) -> list[int]:
    return [saved.position.step for saved in Checkpoints(folder / "checkpoints").saved()]


@pytest.mark.sample(keep=("background", "manual", "float16"))
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.full)])
def test_stopped_every_few_steps_it_ends_as_if_it_had_never_stopped(tmp_path, setting, apart):
    whole = run(tmp_path / "whole", setting)
    folder = tmp_path / "run"
    ways = itertools.cycle(["SIGINT", "crash", "SIGTERM"])
    for k, how in zip(range(1, num_steps(tmp_path / "whole") + 1, apart), ways, strict=False):
        # Without a checkpoint it starts anew, and like the other one.
        seed = k if saved_steps(folder) else 0
        ended = run(folder, setting, stop_at=k, how=how, resume=k > 1, seed=seed)
        assert not ended.finished
    ended = run(folder, setting, resume=True, seed=99)
    assert differences(ended.state, whole.state) == []
    assert_equal_runs(folder, tmp_path / "whole")


class Wrapped:
    """A loader around another, which does something before a batch of a number, counted over all epochs."""

    def __init__(self, inner, number, act):
        self.inner, self.number, self.act, self.served = inner, number, act, 0

    def epoch(self, epoch, start=0):
        for batch in self.inner.epoch(epoch, start):
            self.served += 1
            if self.served == self.number:
                self.act()
            yield batch

    def num_batches(self):
        return self.inner.num_batches()

    def state(self):
        return self.inner.state()


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def fail(*drawn):
    raise DataError("a file is gone")


FIRST = {"validate_first": True, "duration": "3 steps"}


# Of three batches: in the validation, and when it is done; with averages; in the second of two sets.
@pytest.mark.sample(keep=("validations",))
@pytest.mark.parametrize(
    ("setting", "settings", "batch", "saved"),
    [
        ("plain", FIRST, 1, 0),
        pytest.param("plain", FIRST, 3, 0, marks=pytest.mark.full),
        pytest.param("plain", {}, 3, 7, marks=pytest.mark.full),
        pytest.param("plain", {}, 5, 14, marks=pytest.mark.full),
        ("groups", {}, 2, 7),
        ("validations", {}, 9, 6),
    ],
)
def test_stopped_in_a_validation_it_validates_anew_when_resumed(tmp_path, setting, settings, batch, saved):
    class Drawing:
        def on_start(self, event):
            torch.rand(1)

    settings = {**settings, "callbacks": [Drawing()]}
    whole = run(tmp_path / "whole", setting, **settings)
    folder = tmp_path / "run"
    sets = SETTINGS[setting]().get("valid", {"valid": exact.validation()})
    *_, last = sets
    sets[last] = stopping = Wrapped(sets[last], batch, interrupt)
    assert not run(folder, setting, **settings, valid=sets).finished
    assert stopping.served == batch
    assert saved_steps(folder)[-1] == saved
    ended = run(folder, setting, **settings, resume=True, seed=99)
    assert differences(ended.state, whole.state) == []
    assert_equal_runs(folder, tmp_path / "whole")


def impatient() -> EarlyStopping:
    """Ends a run after its second validation: no loss is better by so much."""
    return EarlyStopping("loss", patience="1 epoch", min_delta=100.0)


@pytest.mark.parametrize("stop_at", [pytest.param(7, marks=pytest.mark.full), 14])
def test_a_run_that_is_to_stop_early_stops_there_also_when_it_was_interrupted_there(tmp_path, stop_at):
    folder = tmp_path / "run"
    whole = run(tmp_path / "whole", "plain", stopping=impatient(), duration="4 epochs")
    assert (whole.reason, num_steps(tmp_path / "whole")) == ("stopped early", 14)
    assert not run(folder, "plain", stopping=impatient(), duration="4 epochs", stop_at=stop_at).finished
    for _ in range(2):  # once more changes nothing
        ended = run(folder, "plain", stopping=impatient(), duration="4 epochs", resume=True, seed=9)
        assert differences(ended.state, whole.state) == []
    # With more patience it goes on.
    assert run(folder, "plain", duration="4 epochs", resume=True).reason == "finished"
    assert num_steps(folder) == 28


@pytest.mark.full
def test_what_watched_another_run_starts_afresh(tmp_path):
    stopping, schedule = impatient(), SETTINGS["validations"]()["schedule"]
    first, second = (
        run(tmp_path / name, "validations", stopping=stopping, schedule=schedule, duration="4 epochs")
        for name in ("one", "other")
    )
    assert first.state["plateau"]["scale"] < 1
    assert differences(first.state, second.state) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize(("first", "then"), [("2 epochs", "2 epochs"), ("1 epoch", "2 epochs")])
def test_a_finished_run_resumed_goes_on_to_a_longer_duration_or_changes_nothing(tmp_path, first, then):
    whole = run(tmp_path / "whole", "plain", duration=then)
    run(tmp_path / "run", "plain", duration=first)
    ended = run(tmp_path / "run", "plain", duration=then, resume=True, seed=9)
    assert differences(ended.state, whole.state) == []


class WideDropout(exact.Net):
    """Features by a mean over so many dropped copies that kernels are generated for the dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = burnt.nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.a(x))
        return self.b(self.dropout(hidden.unsqueeze(-1).expand(*hidden.shape, 45_000)).mean(-1))


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here: the library serves")
def test_kernels_are_those_of_the_checkpoint_whatever_the_tuner_has_found_since(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))
    for op in kernels.OPS.values():
        op.forget()
    settings, folder = {"model": WideDropout, "duration": "9 steps"}, tmp_path / "stopped"
    whole = run(tmp_path / "whole", "plain", **settings)
    assert not run(folder, "plain", stop_at=6, **settings).finished
    chosen = {k: c for k, c in kernels.choices().items() if k.startswith("dropout") and c == "generated"}
    assert chosen
    for key in chosen:
        TuningDatabase().add([Row(key, "generated", "ok", 2.0), Row(key, "library", "ok", 1.0)])
    kernels.dropout.forget()
    ended = run(folder, "plain", resume=True, seed=1006, **settings)
    assert differences(ended.state, whole.state) == []
    assert_equal_runs(folder, tmp_path / "whole")
    # A run that starts anew goes by what was found: torch's dropout draws other numbers.
    kernels.dropout.forget()
    assert differences(run(tmp_path / "other", "plain", **settings).state, whole.state)
    kernels.dropout.forget()


KILLED_AT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.train import exact

class Flush:
    def on_step(self, event):
        event.training.writer.flush()  # rows that must not be seen twice

exact.run(Path(sys.argv[2]), sys.argv[3], stop_at=int(sys.argv[4]), how="SIGKILL", callbacks=[Flush()])
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("killed_at", "setting", "saved"), [(1, "plain", None), (10, "plain", 8), (12, "validations", 9)]
)
def test_killed_in_the_middle_it_resumes_from_the_last_checkpoint(tmp_path, killed_at, setting, saved):
    whole = run(tmp_path / "whole", setting)
    folder = tmp_path / "run"
    killed = forked.run(KILLED_AT, exact.ROOT, folder, setting, killed_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with RunReader(folder) as reader:
        assert reader.state() == "crashed"
    ended = run(folder, setting, resume=True, seed=9 if saved else 0)
    with RunReader(folder) as reader:
        assert reader.attempts()[-1].resumed_from_step == saved
    assert differences(ended.state, whole.state) == []
    # Checkpoints hold the kernels in use as well, which are others in another process.
    assert differences(exact.history(folder), exact.history(tmp_path / "whole")) == []


def test_other_loaders_between_epochs_are_reported_and_in_an_epoch_refused(tmp_path, capsys):
    def other(_):
        return exact.Loader(exact.TensorDataset(**exact.tensors()), 4)

    run(tmp_path / "run", "plain", stop_at=7)
    run(tmp_path / "run", "plain", train=other, resume=True, monitor="plain")
    warning = "Warning: train= changed since the checkpoint: was {'seed': 3, 'shuffle': True, 'batch_size': 2"
    assert warning in capsys.readouterr().out
    with RunReader(tmp_path / "run") as reader:
        assert (reader.progress().step, reader.progress().total_steps) == (11, 11)
    run(tmp_path / "other", "plain", stop_at=8)
    words = ["'batch_size': 2", "'batch_size': 4", "resume with the same loader"]
    refusal = "step-00000008 was saved in the middle of an epoch, with a different loader"
    with refused(CheckpointError, refusal, *words):
        run(tmp_path / "other", "plain", train=other, resume=True)


@pytest.mark.full
def test_other_precision_and_clipping_are_reported(tmp_path, capsys):
    run(tmp_path / "run", "plain", stop_at=5, clip_norm=1.0)
    run(tmp_path / "run", "plain", resume=True, precision="bfloat16", monitor="plain")
    out = capsys.readouterr().out
    assert "Warning: precision= changed since the checkpoint: was float32, is now bfloat16." in out
    assert "Warning: clip_norm= changed since the checkpoint: was 1.0, is now None." in out


@pytest.mark.full
def test_rows_of_a_crashed_attempt_are_seen_until_they_are_written_again(tmp_path):
    run(tmp_path / "whole", "plain")
    folder = tmp_path / "run"
    run(folder, "plain", stop_at=9, how="crash")
    assert num_steps(folder) == 8  # the crash came before the row of its step
    run(folder, "plain", stop_at=11, how="crash", resume=True, seed=1)
    with RunReader(folder) as reader:
        assert reader.attempts()[0].visible_until == 8
        assert reader.points("loss").steps == list(range(1, 11))
    run(folder, "plain", resume=True, seed=2)
    assert_equal_runs(folder, tmp_path / "whole")


@pytest.mark.full
def test_a_training_stopped_by_bad_batches_goes_on_as_if_it_had_skipped_them(tmp_path):
    whole = run(tmp_path / "whole", "skip")
    folder = tmp_path / "run"
    for attempt, step in enumerate([2, 5, 8]):
        ended = run(folder, "skip", on_nan="stop", resume=attempt > 0, seed=attempt)
        assert saved_steps(folder)[-1] == step
    assert differences(ended.state, whole.state) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["full", "refused"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_on_a_full_disk_it_ends_with_an_error_and_resumes_exactly(tmp_path, setting, how):
    whole = run(tmp_path / "whole", setting)
    with faults.operations() as counted:
        run(tmp_path / "counted", setting)
    checkpoint = next(i for i, (_, path) in enumerate(counted.log) if "-step-" in path)
    generator = random.Random(f"{setting} {how}")
    for number in sorted(generator.sample(range(checkpoint + 1, len(counted.log)), 2)):
        folder = tmp_path / f"failed-{number}"
        # The last operations remove old checkpoints, or end with an error.
        with faults.operations(number, how) as operations, contextlib.suppress(OSError):
            run(folder, setting)
        assert operations.failed
        seed = 7 if saved_steps(folder) else 0
        assert differences(run(folder, setting, resume=True, seed=seed).state, whole.state) == []
        assert_equal_runs(folder, tmp_path / "whole")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("setting", "at", "saved"), [("plain", 10, 9), ("accumulate", 9, 3)])
def test_data_that_cannot_be_loaded_cost_no_step(tmp_path, setting, at, saved, capsys):
    whole = run(tmp_path / "whole", setting)
    folder = tmp_path / "run"
    with pytest.raises(DataError):
        run(folder, setting, train=lambda inner: Wrapped(inner, at, fail), checkpoint_every="5 epochs",
            monitor="plain")  # fmt: skip
    out = capsys.readouterr().out
    assert f"The state after step {saved} is saved: the next batch cannot be loaded." in out
    assert saved_steps(folder)[-1] == saved
    ended = run(folder, setting, resume=True, seed=5)
    assert differences(ended.state, whole.state) == []


@pytest.mark.full
def test_a_validation_that_fails_is_run_again(tmp_path):
    whole = run(tmp_path / "whole", "validations")
    folder = tmp_path / "run"
    valid = SETTINGS["validations"]()["valid"]
    # The second validation of three batches; the first look, at one batch, is that of the checks.
    failing = Wrapped(valid["again"], 5, lambda: fail(torch.rand(1)))
    with pytest.raises(DataError):
        run(folder, "validations", valid={"valid": valid["valid"], "again": failing})
    assert saved_steps(folder)[-1] == 4
    ended = run(folder, "validations", resume=True, seed=5)
    assert differences(ended.state, whole.state) == []
    assert_equal_runs(folder, tmp_path / "whole")


def test_a_state_that_cannot_be_saved_before_an_error_is_reported(tmp_path, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(DataError):
        run(tmp_path, "plain", train=lambda inner: Wrapped(inner, 2, fail), monitor="plain")
    assert "The state after step 1 is not saved: OSError: [Errno 28] No space" in capsys.readouterr().out


class Counted:
    """Items that count how often they are opened."""

    def __init__(self):
        self.items = list(zip(*exact.tensors().values(), strict=True))
        self.opened: list[int] = []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.opened.append(index)
        return {"x": self.items[index][0], "y": self.items[index][1]}


def test_samples_that_were_served_are_not_opened_again(tmp_path):
    def counted():
        data = Counted()
        return data, exact.Loader(data, exact.BATCH, shuffle=True, seed=3)

    _, train = counted()
    run(tmp_path, "plain", train=lambda _: train, stop_at=4)
    data, train = counted()
    order = train.order(0).tolist()
    run(tmp_path, "plain", train=lambda _: train, stop_at=6, resume=True, check=True)
    # The check before the first step opens the next batch, too.
    assert data.opened == order[8:10] + order[8:12]


class CountedStream(Stream):
    def __init__(self):
        self.gone_through = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.gone_through += 1
            yield batch


def test_an_iterable_is_gone_through_once_more_and_that_is_said_once(tmp_path, capsys):
    run(tmp_path, "stream", train=lambda _: CountedStream(), stop_at=3)
    stream = CountedStream()
    run(tmp_path, "stream", train=lambda _: stream, stop_at=4, resume=True, check=True, monitor="plain")
    assert stream.gone_through == 7  # 6 were served, one more makes step 4, the last of the epoch
    said = "The loader cannot skip batches: going through the 6 that epoch 1 has had."
    assert capsys.readouterr().out.count(said) == 1


def test_what_the_model_takes_is_not_forgotten_by_a_resume_without_a_check(tmp_path):
    run(tmp_path, "stream", stop_at=3, check=True)
    with RunReader(tmp_path) as reader:
        first = reader.config()["load"]["signature"]
    assert "unknown" not in first
    run(tmp_path, "stream", stop_at=4, resume=True, check=True)
    with RunReader(tmp_path) as reader:
        assert reader.config()["load"]["signature"] == first


def test_checkpoints_of_interruptions_push_out_no_others(tmp_path):
    for k, kept in ((5, [2, 4, 5]), (6, [4, 6]), (7, [4, 6, 7])):
        run(tmp_path, "plain", stop_at=k, resume=k > 5)
        assert saved_steps(tmp_path) == kept


@pytest.mark.full
def test_a_process_that_was_killed_before_it_removed_a_checkpoint(tmp_path, monkeypatch):
    run(tmp_path / "whole", "plain")
    prune = Checkpoints.prune
    monkeypatch.setattr(Checkpoints, "prune", lambda self: None)
    run(tmp_path / "run", "plain")
    monkeypatch.setattr(Checkpoints, "prune", prune)
    assert len(saved_steps(tmp_path / "run")) > 4
    run(tmp_path / "run", "plain", resume=True)
    assert saved_steps(tmp_path / "run") == saved_steps(tmp_path / "whole")


@pytest.mark.full
def test_rows_of_the_step_that_it_resumes_from_are_not_written_twice(tmp_path):
    class CrashAfter:
        def __init__(self, at):
            self.at = at

        def on_validation(self, event):
            if event.training.position.step == self.at:
                raise exact.Crash

    # That the last batch of an epoch is the last is known only after its checkpoint.
    settings = {"validate_every": "1 epoch", "checkpoint_every": "1 step"}
    run(tmp_path / "whole", "stream", **settings)
    folder = tmp_path / "run"
    run(folder, "stream", callbacks=[CrashAfter(4)], **settings)
    assert saved_steps(folder)[-1] == 4
    run(folder, "stream", resume=True, seed=3, **settings)
    assert_equal_runs(folder, tmp_path / "whole")


KILLED = """
import random, sys, threading, os, signal
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.train import exact

folder, setting, how, seed = Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
delay = random.Random(seed).uniform(0.0, 0.12)

class Killer:
    def on_start(self, event):
        self.timer = threading.Timer(delay, os.kill, (os.getpid(), signal.Signals[how]))
        self.timer.start()

    def on_end(self, event):
        self.timer.cancel()

is_saved = any(folder.glob("checkpoints/step*"))
ended = exact.run(folder, setting, resume=folder.exists(), seed=seed if is_saved else 0,
                  duration="20 epochs", callbacks=[Killer()])
sys.exit(0 if ended.finished else 3)
"""


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_hundred_kills_over_twenty_runs(tmp_path):
    base = int(os.environ.get("BURNT_SEED", "0")) * 1000
    generator = random.Random(base)
    kills, names = 0, list(SETTINGS)
    for number in range(20):
        setting = names[number % len(names)]
        whole = tmp_path / f"whole-{setting}"
        if not whole.exists():
            run(whole, setting, duration="20 epochs")
        folder = tmp_path / f"run-{number}"
        for attempt in range(5):
            how = generator.choice(["SIGKILL", "SIGKILL", "SIGTERM", "SIGINT"])
            done = forked.run(KILLED, exact.ROOT, folder, setting, how, base + number * 100 + attempt)
            if done.returncode == 0:  # it was faster
                break
            # A signal that comes late ends the process before or after the training.
            late = done.returncode == -signal.SIGTERM or "KeyboardInterrupt" in done.stderr
            assert done.returncode in (-signal.SIGKILL, 3) or late, done.stderr
            kills += 1
        seed = 1 if saved_steps(folder) else 0
        ended = run(folder, setting, resume=True, seed=seed, duration="20 epochs")
        assert ended.finished
        assert_equal_runs(folder, whole)
    assert kills >= 90
