import copy
import warnings
from typing import Any

import pytest
import torch

import burnt
from burnt import nn
from burnt.errors import ConfigError, InputValueError, ShapeError

TWINS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}


@pytest.mark.parametrize(
    ("shape", "rank"), [((6, 3), 1), ((6, 3, 4), 1), ((6, 3, 4, 2), 2), ((2, 3, 4, 2, 3), 3)]
)
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_batch_norm_of_any_rank_is_torchs(shape: tuple[int, ...], rank: int, momentum: float | None) -> None:
    ours, theirs = nn.BatchNorm(3, momentum=momentum), TWINS[rank](3, momentum=momentum)
    for step in range(3):
        torch.manual_seed(step)
        x = torch.randn(shape) * 3 + 1
        torch.testing.assert_close(ours(x), theirs(x))
    assert int(ours.num_batches_tracked) == 3
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)
    fresh = nn.BatchNorm(3)
    fresh.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(fresh.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("name", ["BatchNorm", "InstanceNorm"])
def test_norms_of_rank_six(name: str) -> None:
    x = torch.randn(2, 3, 2, 1, 2, 2)
    expected = getattr(torch.nn, f"{name}1d")(3)(x.flatten(2)).view_as(x)
    torch.testing.assert_close(getattr(nn, name)(3)(x), expected)


def test_cumulative_average_is_the_mean_of_all_batches() -> None:
    layer = nn.BatchNorm(2, momentum=None)
    batches = [torch.randn(5, 2) + i for i in range(4)]
    for batch in batches:
        layer(batch)
    assert layer.running_mean is not None
    torch.testing.assert_close(layer.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0))
    assert layer.running_var is not None
    torch.testing.assert_close(layer.running_var, torch.stack([b.var(0) for b in batches]).mean(0))


def test_cumulative_average_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("the count was read")

    for name in ("item", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    nn.BatchNorm(2, momentum=None)(torch.ones(3, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_input_of_16_bits_with_float32_parameters_as_torch(dtype: torch.dtype) -> None:
    pairs = [
        (nn.LayerNorm(6), torch.nn.LayerNorm(6)),
        (nn.RmsNorm(6, eps=1e-5), torch.nn.RMSNorm(6, eps=1e-5)),
    ]
    x = torch.randn(3, 4, 6).to(dtype)
    for ours, theirs in pairs:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # ours does not warn
            result = ours(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs(x)
        assert result.dtype == expected.dtype == dtype
        torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)
        result.float().square().sum().backward()
        assert ours.weight.grad.dtype == torch.float32


def test_a_single_value_for_each_channel_is_refused_as_in_torch() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm(3)(torch.ones(1, 3))


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((3,), "add a batch axis: input.unsqueeze(0)"),
        ((4, 5, 3), "the channels are last: input.movedim(-1, 1)"),
        ((3, 5, 4), "the channels are first: add a batch axis with input.unsqueeze(0)"),
        ((2, 7, 4, 4), "the layer before makes 7 channels: BatchNorm(7)?"),
        ((), "add a batch axis: input.unsqueeze(0)"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_refuses_wrong_channels(shape: tuple[int, ...], hint: str, training: bool) -> None:
    with pytest.raises(ShapeError) as caught:
        nn.BatchNorm(3).train(training)(torch.zeros(shape))
    error = caught.value
    assert (error.where, error.expected, error.found) == ("BatchNorm(3)", "(batch, 3, ...)", shape)
    assert error.hint == hint


class Block(burnt.Module):
    conv: nn.Conv1d
    norm: nn.BatchNorm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.norm(self.conv(x))
        return output


@pytest.mark.parametrize("bias", [True, False])
def test_statistics_over_gpus_are_those_of_torchs_layer(bias: bool) -> None:
    block = Block(nn.Conv1d(3, 4, 2), nn.BatchNorm(4, bias=bias))
    block(torch.randn(5, 3, 7))
    names = list(block.state_dict())
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(block)
    assert isinstance(converted.norm, torch.nn.SyncBatchNorm)
    assert list(converted.state_dict()) == names
    converted(torch.randn(5, 3, 7))  # in one process it needs no GPU
    again = Block(nn.Conv1d(3, 4, 2), nn.BatchNorm(4, bias=bias))
    again.load_record(converted.into_record())
    x = torch.randn(5, 3, 7)
    torch.testing.assert_close(again.eval()(x), converted.eval()(x))


def test_torchs_tools_know_a_batch_norm() -> None:
    model = torch.nn.Sequential(nn.BatchNorm(3))
    data = [torch.randn(8, 3) for _ in range(4)]
    torch.optim.swa_utils.update_bn(data, model)
    torch.testing.assert_close(model[0].running_mean, torch.stack(data).mean((0, 1)))
    model[0].weight.data.fill_(2.0)
    assert isinstance(copy.deepcopy(model)[0], nn.BatchNorm)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted[0], torch.nn.SyncBatchNorm)
    assert nn.SyncBatchNorm.Config(num_features=3).to_dict()["process_group"] is None
    torch.testing.assert_close(converted.eval()(data[0]), model.eval()(data[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rms_norm_by_its_formula(dtype: torch.dtype) -> None:
    layer = nn.RmsNorm((2, 5), dtype=dtype)
    with torch.no_grad():
        layer.weight.normal_()
    x = torch.randn(3, 2, 5).to(dtype)
    wide, weight = x.double(), layer.weight.double()
    expected = wide / (wide.square().mean((1, 2), keepdim=True) + torch.finfo(dtype).eps).sqrt() * weight
    torch.testing.assert_close(
        layer(x).double(), expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=2e-2
    )


@pytest.mark.parametrize(("shape", "rank"), [((6, 3, 4), 1), ((6, 3, 4, 2), 2), ((2, 3, 4, 2, 3), 3)])
@pytest.mark.parametrize("settings", [{}, {"affine": True}, {"track_running_stats": True, "momentum": None}])
def test_instance_norm_of_any_rank_is_torchs(shape: tuple[int, ...], rank: int, settings: dict) -> None:
    theirs = getattr(torch.nn, f"InstanceNorm{rank}d")(3, **settings)
    ours = nn.InstanceNorm(3, **settings)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, True, False):
        x = torch.randn(shape) * 3 + 1
        torch.testing.assert_close(ours.train(training)(x), theirs.train(training)(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize(
    ("layer", "shape", "expected", "hint"),
    [
        (nn.InstanceNorm(3), (3, 5), "(batch, 3, axis, ...)", "add a batch axis: input.unsqueeze(0)"),
        (
            nn.InstanceNorm(3),
            (2, 3),
            "(batch, 3, axis, ...)",
            "BatchNorm takes features without further axes",
        ),
        (
            nn.InstanceNorm(3),
            (2, 4, 5),
            "(batch, 3, axis, ...)",
            "the layer before makes 4 channels: InstanceNorm(4)?",
        ),
        (
            nn.GroupNorm(2, 4, affine=False),
            (2, 6, 5),
            "(batch, 4, ...)",
            "the layer before makes 6 channels: GroupNorm(2, 6)?",
        ),
        (nn.GroupNorm(2, 4), (2, 5, 4), "(batch, 4, ...)", "the channels are last: input.movedim(-1, 1)"),
    ],
)
def test_wrong_channels_are_refused(layer: torch.nn.Module, shape: tuple, expected: str, hint: str) -> None:
    with pytest.raises(ShapeError) as caught:
        layer(torch.zeros(shape))
    assert (caught.value.expected, caught.value.found, caught.value.hint) == (expected, shape, hint)
    assert caught.value.where in ("InstanceNorm(3)", "GroupNorm(2, 4)")


@pytest.mark.parametrize("training", [True, False])
def test_a_single_value_of_a_sample_is_refused_as_in_torch(training: bool) -> None:
    for layer in (nn.InstanceNorm(3), torch.nn.InstanceNorm2d(3)):
        with pytest.raises(ValueError, match=r"single value for each channel|more than 1 spatial element"):
            layer.train(training)(torch.zeros(2, 3, 1, 1))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: nn.GroupNorm(3, 4), "a divisor of 4 channels"),
        (lambda: nn.GroupNorm(0, 4), "a divisor of 4 channels"),
        (lambda: nn.GroupNorm(-2, 4), "a divisor of 4 channels"),
        (lambda: nn.LocalResponseNorm(0), "at least 1 channel in a sum"),
    ],
)
def test_arguments_are_checked(build: Any, expected: str) -> None:
    with pytest.raises(InputValueError) as caught:
        build()
    assert caught.value.expected == expected


def test_local_response_norm_by_its_formula() -> None:
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    expected = torch.empty_like(x)
    for channel in range(7):
        total = x[:, max(channel - 2, 0) : channel + 3].square().sum(1)
        expected[:, channel] = x[:, channel] / (2.0 + 0.5 / 5 * total) ** 0.75
    torch.testing.assert_close(nn.LocalResponseNorm(5, alpha=0.5, k=2.0)(x), expected)


# by name


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("batch", nn.BatchNorm(64)),
        ("group", nn.GroupNorm(32, 64)),
        ("instance", nn.InstanceNorm(64)),
        ("layer", nn.LayerNorm(64)),
        ("rms", nn.RmsNorm(64)),
        ("identity", nn.Identity()),
        (nn.Identity.Config(), nn.Identity()),
        (nn.GroupNorm.Config(num_groups=8, num_channels=8, eps=0.1), nn.GroupNorm(8, 64, 0.1)),
        (nn.LayerNorm.Config(normalized_shape=1, bias=False), nn.LayerNorm(64, bias=False)),
        ({"type": "InstanceNorm", "affine": True}, nn.InstanceNorm(64, affine=True)),
        ({"type": "RmsNorm", "eps": 0.1, "normalized_shape": 3}, nn.RmsNorm(64, 0.1)),
        (torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)),
    ],
    ids=repr,
)
def test_what_it_builds_from(normalization: Any, expected: torch.nn.Module) -> None:
    layer = nn.build_normalization(normalization, 64)
    assert type(layer) is type(expected)
    assert repr(layer) == repr(expected)
    layer = nn.build_normalization(normalization, 64, "meta", torch.float64)
    if not isinstance(normalization, torch.nn.Module):
        assert all(p.is_meta and p.dtype == torch.float64 for p in layer.parameters())


@pytest.mark.parametrize(
    ("normalization", "hint"),
    [
        ("layr", "did you mean 'layer'?"),
        ("spectral", None),
        (nn.Linear.Config(in_features=1, out_features=1), None),
    ],
)
def test_what_is_no_normalisation(normalization: Any, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        nn.build_normalization(normalization, 4)
    assert caught.value.hint == hint
    assert str(caught.value.expected).startswith(
        "batch, group, identity, instance, layer, rms; or the Config"
    )


def test_a_dict_that_is_no_normalisation() -> None:
    with pytest.raises(ConfigError) as caught:
        nn.build_normalization({"type": "GroupNorm", "num_group": 8}, 64)
    assert str(caught.value).startswith(
        "Normalization cannot be read: 2 problems\n  in        normalization.num_group\n"
    )
    with pytest.raises(ConfigError, match="did you mean 'LayerNorm'"):
        nn.build_normalization({"type": "LayersNorm"}, 64)
    with pytest.raises(InputValueError, match="num_groups is not valid"):
        nn.build_normalization({"type": "GroupNorm", "num_groups": 32}, 48)


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (3, 1), (8, 8), (16, 16), (48, 16), (320, 32)])
def test_groups_by_name_fit_any_number_of_channels(channels: int, groups: int) -> None:
    assert repr(nn.build_normalization("group", channels)) == repr(nn.GroupNorm(groups, channels))
    explicit = nn.GroupNorm.Config(num_groups=1, num_channels=1)
    assert repr(nn.build_normalization(explicit, channels)) == repr(nn.GroupNorm(1, channels))
