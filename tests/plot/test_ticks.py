"""Ticks: positions within the range, labels that differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from burnt.plot.ticks import count_text, linear_ticks, log_ticks, number_text, span_text, time_ticks

NAN, INF = math.nan, math.inf


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300), st.integers(1, 12), st.booleans())
@example(0.0, 5e-324, 5, False)
@example(-1.7e308, 1.7e308, 5, False)
@example(1e9, 1e9 + 1e-3, 5, False)
@example(0.1, 0.1 + 1e-17, 5, False)
def test_linear_ticks_lie_within_and_have_distinct_labels(
    one: float, other: float, most: int, whole: bool
) -> None:
    low, high = sorted((one, other))
    ticks = linear_ticks(low, high, most, whole=whole)
    assert len(ticks) <= most
    texts = [tick.text for tick in ticks]
    assert len(set(texts)) == len(texts)
    slack = (high / 2 - low / 2) * 1e-6
    for tick in ticks:
        assert low - slack <= tick.at <= high + slack
        assert not whole or tick.at == int(tick.at)


@pytest.mark.parametrize(
    ("low", "high", "most", "texts"),
    [
        (0.0, 1.0, 6, "0.0 0.2 0.4 0.6 0.8 1.0"),
        (0.0, 1.0, 3, "0.0 0.5 1.0"),
        (0.031, 0.049, 4, "0.035 0.040 0.045"),
        (-2.5, 2.5, 5, "-2 -1 0 1 2"),
        (0.0, 3e-7, 4, "0 1e-7 2e-7 3e-7"),
        (0.0, 3e12, 4, "0 1e12 2e12 3e12"),
        (1e6, 1e6 + 2, 3, "1.000000e6 1.000001e6 1.000002e6"),
        (5.0, 5.0, 4, ""),
        (0.0, INF, 4, ""),
        (NAN, 1.0, 4, ""),
    ],
)
def test_linear_ticks(low: float, high: float, most: int, texts: str) -> None:
    assert [tick.text for tick in linear_ticks(low, high, most)] == texts.split()


@pytest.mark.parametrize(
    ("low", "high", "most", "texts"),
    [
        (0.0, 9.5, 20, "0 1 2 3 4 5 6 7 8 9"),
        (0.2, 0.8, 5, ""),
        (0.0, 1_200_000.0, 4, "0 500k 1M"),
        (2000.0, 8000.0, 4, "2k 4k 6k 8k"),
    ],
)
def test_whole_ticks(low: float, high: float, most: int, texts: str) -> None:
    assert [tick.text for tick in linear_ticks(low, high, most, whole=True)] == texts.split()


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), st.integers(1, 12))
def test_log_ticks_lie_within(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    ticks = log_ticks(low, high, most)
    assert len(ticks) <= most
    for tick in ticks:
        assert low * (1 - 1e-6) <= tick.at <= high * (1 + 1e-6)
    if high >= 100 * low:
        assert ticks


@pytest.mark.parametrize(
    ("low", "high", "most", "texts"),
    [
        (0.9, 1100.0, 5, "1 10 100 1000"),
        (0.9, 12.0, 5, "1 2 5 10"),
        (0.9, 12.0, 3, "1 3 10"),
        (2.0, 6.0, 6, "2 5"),
        (2.1, 4.4, 4, "2.5 3.0 3.5 4.0"),
        (1e-12, 1.0, 4, "1e-12 1e-8 1e-4 1"),
        (0.0, 1.0, 4, ""),
        (-1.0, 1.0, 4, ""),
    ],
)
def test_log_ticks(low: float, high: float, most: int, texts: str) -> None:
    assert [tick.text for tick in log_ticks(low, high, most)] == texts.split()


@pytest.mark.parametrize(
    ("high", "most", "texts"),
    [
        (1.0, 6, "0.0s 0.2s 0.4s 0.6s 0.8s 1.0s"),
        (50.0, 6, "0 10s 20s 30s 40s 50s"),
        (200.0, 4, "0 1m 2m 3m"),
        (7200.0, 5, "0 30m 1h 1h30m 2h"),
        (86400.0 * 12, 4, "0 5d 10d"),
    ],
)
def test_time_ticks(high: float, most: int, texts: str) -> None:
    assert [tick.text for tick in time_ticks(0.0, high, most)] == texts.split()


def test_texts() -> None:
    assert [span_text(s) for s in (0.25, 59, 61, 3600, 90_000, -90)] == [
        "0.25s",
        "59s",
        "1m1s",
        "1h",
        "1d1h",
        "-1m30s",
    ]
    assert [count_text(n) for n in (0, 999, 1000, 1500, 2e9)] == ["0", "999", "1k", "1.5k", "2G"]
    texts = [number_text(v) for v in (NAN, INF, -INF, 0.0, 0.12345, 12345.6, 123456.0, 1.5e-5, -2e-300)]
    assert texts == ["NaN", "inf", "-inf", "0", "0.1235", "12346", "1.23e5", "1.5e-5", "-2e-300"]
