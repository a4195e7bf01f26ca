"""Observers: the sample is uniform and bounded; ranges agree with torch's observers and numpy."""

import numpy as np
import pytest
import torch

from burnt import kernels
from burnt.errors import ConfigError
from burnt.quant.observers import ACTIVATION_METHODS, InputObserver, Reservoir, activation_range
from tests.messages import raises


def observed(*batches: torch.Tensor) -> InputObserver:
    observer = InputObserver()
    for batch in batches:
        observer.add(batch)
    return observer


def test_a_reservoir_is_a_uniform_sample_of_bounded_size():
    counts = torch.zeros(60)
    for seed in range(400):
        sample = Reservoir(seed, max_items=12)
        for start, stop in ((0, 5), (5, 40), (40, 60)):
            sample.add(torch.arange(start, stop).view(-1, 1))
        (group,) = sample.groups()
        assert len(group) == 12
        counts[group.flatten()] += 1
    # 80 expected for each, standard deviation 8.
    assert counts.min() > 45
    assert counts.max() < 115


def test_a_reservoir_holds_items_of_several_shapes_within_its_elements():
    sample = Reservoir(max_elements=1000)
    for size in (10, 20, 30, 10):
        sample.add(torch.zeros(40, size, size // 10))
    assert sum(group.numel() for group in sample.groups()) <= 1000
    huge = Reservoir(max_elements=10)
    huge.add(torch.zeros(3, 50))
    assert [len(group) for group in huge.groups()] == [1]


def test_the_global_generator_is_not_used():
    state = torch.get_rng_state()
    observed(torch.randn(3, 4, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", ["minmax", "moving_average"])
@pytest.mark.parametrize("shift", [0.0, 3.0, -50.0])
def test_ranges_are_those_of_torchs_observers(method: str, shift: float):
    batches = [torch.randn(50, 1) * (i + 1) + shift for i in range(4)]
    theirs: torch.nn.Module
    if method == "minmax":
        theirs = torch.ao.quantization.MinMaxObserver(torch.qint8, torch.per_tensor_affine)
    else:
        theirs = torch.ao.quantization.MovingAverageMinMaxObserver(0.01, torch.qint8, torch.per_tensor_affine)
    for batch in batches if method == "minmax" else batches[:1]:
        theirs(batch)
    expected_scale, expected_zero = theirs.calculate_qparams()
    scale, zero = activation_range(
        observed(*(batches if method == "minmax" else batches[:1])), "int8", method
    )
    torch.testing.assert_close(scale.flatten(), expected_scale)
    assert zero is not None
    assert zero.item() == expected_zero.item()


def test_the_moving_average_is_the_mean_of_the_first_calls():
    scale, zero = activation_range(
        observed(*(torch.tensor([[-x], [x]]) for x in (1.0, 2.0, 6.0))), "float8_e4m3", "moving_average"
    )
    assert zero is None
    assert scale.item() == pytest.approx(3 / 448)


def test_a_percentile_leaves_out_the_outliers_of_both_sides():
    values = torch.randn(100_000, 1)
    values[0], values[1] = 1000.0, -500.0
    scale, zero = activation_range(observed(values[:60_000], values[60_000:]), "int8", "percentile")
    # The reservoir has 4096 of the rows, so that outliers are in it rarely, and one is cut off.
    low, high = np.quantile(values.numpy(), [0.0001, 0.9999])
    assert scale.item() * 255 == pytest.approx(high - low, rel=0.35)
    assert zero is not None


@pytest.mark.parametrize("value", ["int8", "float8_e4m3"])
def test_mse_has_the_least_error_of_all_methods(value: str):
    values = torch.randn(2000, 1) * torch.rand(2000, 1).add(0.01).pow(-1)
    values[7] = 3000.0
    observer = observed(values)
    errors = {}
    for method in ACTIVATION_METHODS:
        scale, zero = activation_range(observer, value, method)
        codes = kernels.quantize(values.t().contiguous(), scale, zero, value)
        errors[method] = (kernels.dequantize(codes, scale, zero, value) - values.t()).square().sum().item()
    assert errors["mse"] <= min(errors.values()) * 1.0001, errors


def test_absmean_starts_as_learned_step_sizes_do():
    values = torch.cat([torch.full((99, 1), 1.0), torch.full((1, 1), -1000.0)])
    scale, _ = activation_range(observed(values), "int8", "absmean")
    limit = 2 * float(values.abs().mean()) * 127**0.5
    assert scale.item() == pytest.approx((limit + 1.0) / 255)


def test_only_zeros_have_a_scale_that_is_not_zero():
    for value in ("int8", "float8_e4m3"):
        for method in ACTIVATION_METHODS:
            scale, zero = activation_range(observed(torch.zeros(3, 2)), value, method)
            assert scale.item() == 1.0
            assert zero is None or zero.item() == 0


def test_a_divisor_counts_before_the_range_is_taken():
    values, divisor = torch.randn(200, 3) * torch.tensor([1.0, 50.0, 0.1]), torch.tensor([2.0, 50.0, 1.0])
    for method in ACTIVATION_METHODS:
        got = activation_range(observed(values), "int8", method, divisor)
        expected = activation_range(observed(values / divisor), "int8", method)
        torch.testing.assert_close(got, expected, msg=method)


def test_an_unknown_method_is_named_with_the_closest():
    with raises(ConfigError, "did you mean 'percentile'?"):
        activation_range(observed(torch.ones(1, 1)), "int8", "percentil")
