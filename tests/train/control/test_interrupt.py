"""Signals, output readers that disappear, and EarlyStopping and KeepBest outside of a training."""

import io
import signal

import pytest

from burnt.errors import MetricError
from burnt.train import EarlyStopping, KeepBest, Position
from burnt.train.control.end_reason import Interruption
from burnt.train.metrics import Loss
from burnt.train.reporting.progress import PlainReporter


def test_a_lost_terminal_is_like_a_request_to_end() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may have started the tests, ignores it
    messages: list[str] = []
    with Interruption(messages.append) as interruption:
        signal.raise_signal(signal.SIGHUP)
        assert interruption.signal is signal.SIGHUP
    assert interruption.signal == signal.SIGHUP
    assert "SIGHUP" in messages[0]
    assert "saving" in messages[0]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption(lambda text: None) as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert interruption.signal is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interruption(lambda text: None):
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


class Gone(io.StringIO):
    """A pipe whose reader goes away after the first line."""

    def flush(self) -> None:
        if self.getvalue().count("\n") > 1:
            raise BrokenPipeError


def test_training_goes_on_when_nobody_reads_its_lines() -> None:
    out = Gone()
    reporter = PlainReporter(out)
    for i in range(4):
        reporter.message(f"line {i}")
    assert out.getvalue() == "line 0\nline 1\n"


def test_a_watcher_by_name_says_that_it_needs_an_object() -> None:
    with pytest.raises(MetricError, match="EarlyStopping has only the name of its metric"):
        EarlyStopping("loss", patience="1 epoch").update(0.5, Position())
    with pytest.raises(MetricError, match=r"KeepBest\(Loss\(\), ...\)"):
        KeepBest("loss").keep([])
    assert not EarlyStopping(Loss(), patience="1 epoch").update(0.5, Position())
