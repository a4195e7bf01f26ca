"""What a site's samples decide: times and the clock are given, so nothing depends on the machine."""

import pytest
import torch
from torch import nn

import burnt
from burnt.swapping import measure


def decided(model=None):
    """The row of a layer after its first call."""
    model = nn.Sequential(nn.LayerNorm(4)) if model is None else model
    report = burnt.swap(model)
    model(torch.randn(3, 4))
    return report.rows[0]


def test_clear_times_are_decided_after_few_samples(give_times):
    give_times([2e-3, 2.2e-3], [1e-3])
    row = decided()
    assert (row.state, row.speed, row.samples) == ("swapped", pytest.approx(2.1), 6)
    assert row.milliseconds["whole"] == pytest.approx((2.1, 1))
    give_times([1e-3], [2e-3])
    row = decided()
    assert (row.state, row.why, row.samples) == ("left", "0.50 times as fast", 6)


def test_one_disturbed_sample_decides_nothing(give_times):
    # The quickest swapped sample is not slower than the quickest original one, all others are.
    give_times([1e-3], [0.5e-3, *[1.2e-3] * 6])
    assert decided().state == "left"
    give_times([1e-3, *[1.3e-3] * 6], [1e-3])
    row = decided()
    assert (row.state, row.speed) == ("swapped", pytest.approx(1.3))


def test_samples_that_scatter_by_more_than_the_gain_are_taken_again(give_times):
    # At first the pairs' ratios lie around 1.05, from 0.8 to 1.3; later they are calm.
    noisy = [0.8e-3, 1.3e-3, 1.1e-3, 0.98e-3, 1.2e-3, 0.9e-3]
    give_times([*noisy, *[1.05e-3] * 1000], [1e-3])
    row = decided()
    assert (row.state, row.samples) == ("swapped", 24)
    assert row.speed == pytest.approx(1.05)


def test_what_stays_undecided_is_left_and_takes_a_limited_time(give_times):
    give_times([1.3e-3, 0.86e-3], [1e-3])
    row = decided()
    assert row.state == "left"
    assert row.why == "1.08 times as fast, undecided: the samples scatter by more than the gain"
    assert row.speed_range == pytest.approx((0.86, 1.3))
    assert row.samples == 192
    clock = give_times([0.13, 0.086], [0.1])
    row = decided()
    assert row.state == "left"
    assert clock.now < measure._SECONDS + 12 * 0.13  # the least number of rounds, or the time
    assert "undecided" in row.why


def test_what_promises_no_gain_is_left_after_enough_samples(give_times):
    give_times([1.2e-3, 0.82e-3], [1e-3])
    row = decided()
    assert (row.state, row.samples, row.why) == ("left", 24, "1.010 times as fast; 1.02 is required")


def test_the_interval_of_the_median_covers_it():
    """By a simulation: ratios of two equal calls with heavy-tailed noise, whose median is 1."""
    generator = torch.Generator().manual_seed(0)
    for count in (6, 12, 24, 48):
        hits = 0
        noise = torch.empty(400, count, 2).exponential_(generator=generator).pow(2).add(1)
        for pairs in noise.tolist():
            low, high = measure.Timing.of([((a, a), (b, b)) for a, b in pairs]).speed_range
            hits += low <= 1 <= high
        assert hits / 400 > 0.93
