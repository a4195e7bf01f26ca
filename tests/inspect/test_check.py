import random
import threading
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt.data import Batch
from burnt.errors import ArgumentError, ConfigError, ShapeError
from burnt.inspect import TensorSpec, check, num_params


class Lambda(nn.Module):
    """A module with a function for its forward, and a layer to have parameters."""

    def __init__(self, fn, *layers):
        super().__init__()
        self.fn = fn
        self.layers = nn.ModuleList(layers)

    def forward(self, *args, **kwargs):
        return self.fn(self, *args, **kwargs)


def failure(model, *inputs, **kwargs) -> ShapeError:
    with pytest.raises(ShapeError) as caught:
        check(model, *inputs, **kwargs)
    return caught.value


# messages


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x):
        return self.ff(x)


def test_the_message_names_layer_shapes_way_and_remedy():
    model = Lambda(lambda self, x: self.layers[0](x), Block())
    assert str(failure(model, torch.empty(2, 7, 128))) == (
        "ShapeError in model.layers.0.ff.2   Linear(128 -> 64)\n"
        "  expected  (..., 128)\n"
        "  found     (2, 7, 256)\n"
        "  from      model.layers.0.ff.1   GELU -> (2, 7, 256)\n"
        "            model.layers.0.ff.0   Linear(128 -> 256) -> (2, 7, 256)\n"
        "  hint      layers.0.ff.0 makes 256 features: Linear(256, 64)?"
    )


# dtypes that nothing converts


LAYERS_WITH_PARAMETERS = [
    (lambda of: of.Linear(8, 4), (3, 8)),
    (lambda of: of.Conv2d(3, 4, 3), (3, 3, 8, 8)),
    (lambda of: of.LayerNorm(8), (3, 8)),
    (lambda of: of.LSTM(8, 4) if of is nn else of.Lstm(8, 4), (3, 5, 8)),
    (lambda of: of.BatchNorm2d(3) if of is nn else of.BatchNorm(3), (3, 3, 8, 8)),
]


@pytest.mark.sample
@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.int64, torch.bool])
@pytest.mark.parametrize("of", [nn, burnt.nn], ids=["torch", "burnt"])
@pytest.mark.parametrize(("build", "shape"), LAYERS_WITH_PARAMETERS)
def test_data_of_a_dtype_that_the_parameters_do_not_have(build, shape, of, dtype):
    layer = build(of)
    name = str(dtype).removeprefix("torch.")
    numpy = ", the default of NumPy" if dtype == torch.float64 else ""
    error = failure(layer, torch.ones(shape, dtype=dtype))
    assert error.what.startswith(f"ShapeError in model   {type(layer).__name__}(")
    assert (error.expected, error.found) == ("float32, the dtype of its parameters", f"{name} {shape}")
    assert error.hint == f"input is {name}{numpy}: input.float()?"
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        layer(torch.ones(shape, dtype=dtype))
    if dtype == torch.float64:
        check(layer.double(), torch.ones(shape, dtype=dtype))
        assert ".double()" in failure(layer, torch.ones(shape)).hint


@pytest.mark.parametrize(
    ("batch", "hint"),
    [
        ({"x": torch.ones(3, 8).double(), "y": torch.ones(3)}, "batch['x'] is float64"),
        ((torch.ones(3, 8).double(), torch.ones(3).double()), "batch[0] is float64"),
        (Batch(x=torch.ones(3, 8).double(), y=torch.ones(3)), "batch.x is float64"),
    ],
)
def test_a_dtype_names_the_part_of_the_batch(batch, hint):
    def step(model, batch):
        x = batch[0] if isinstance(batch, tuple) else batch["x"] if isinstance(batch, dict) else batch.x
        return model(x.flatten(1))

    assert failure(nn.Linear(8, 4), batch, call=step).hint.startswith(hint)


def test_a_dtype_that_the_model_changes_names_all_that_it_may_come_from():
    def step(model, x, y):
        return model(x.flatten(1) * y.flatten(1))

    x, y = torch.ones(3, 2, 4).double(), torch.ones(3, 4, 2).double()
    assert failure(nn.Linear(8, 4), x, y, call=step).hint == (
        "batch0 and batch1 are float64, the default of NumPy: batch0.float(), batch1.float()?"
    )


@pytest.mark.full
def test_dtypes_that_may_fit_are_left_to_torch():
    x = torch.ones(3, 8)
    check(nn.Linear(8, 4), x.bfloat16())  # under autocast this runs
    check(nn.Linear(8, 4).half(), x)
    check(nn.Linear(8, 4, dtype=torch.complex64), x.double())
    check(nn.LayerNorm(8, elementwise_affine=False), x.double())
    check(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), torch.zeros(3, 2, dtype=torch.int32))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + x[:, :3],
        lambda x: x.view(3, -1, 7),
        lambda x: torch.cat([x, x[:, :2]], 0),
        lambda x: x.sum(3),
        lambda x: x[:, 9],
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: F.cross_entropy(x, torch.zeros(11, dtype=torch.long)),
        lambda x: F.conv2d(x[None], torch.empty(3, 9, 1, 1)),
        lambda x: F.batch_norm(x, torch.empty(4), torch.empty(4)),
        lambda x: x.unflatten(1, (2, 2)),
        lambda x: F.scaled_dot_product_attention(x[None], x[None, :, :3], x[None]),
        lambda x: F.max_pool2d(x[None], 50),
    ],
)
def test_torch_s_own_failures_become_shape_errors_at_the_module(fn):
    model = nn.Sequential(nn.Linear(4, 5), Lambda(lambda self, x: fn(x)))
    error = failure(model, torch.empty(2, 4))
    assert error.what == "ShapeError in model.1   Lambda"
    assert error.found.endswith("\ninputs (2, 5)")
    assert error.origin[0].startswith("test_check.py:")
    assert "lambda x:" in error.origin[0]
    assert error.origin[1] == "model.0   Linear(4 -> 5) -> (2, 5)"
    assert error.__cause__ is not None
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        model(torch.rand(2, 4))


def unpack_shape(self, x):
    batch, length, width = x.shape
    return x.view(batch * length, width)


def unpack_something(self, x):
    a, b, c = {"a": 1, "b": 2}.items()
    return x, a, b, c


def test_containers_that_return_what_their_last_layer_did_are_not_said():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Flatten()), nn.Linear(4, 5))
    assert failure(model, torch.empty(2, 4)).origin == (
        "model.0.1   Flatten -> (2, 6)",
        "model.0.0   Linear(4 -> 6) -> (2, 6)",
    )


def test_unpacking_a_shape_is_about_shapes_and_unpacking_else_is_not():
    assert "batch, length, width = x.shape" in failure(Lambda(unpack_shape), torch.empty(2, 4)).origin[0]
    assert "values to unpack" in check(Lambda(unpack_something), torch.empty(2, 4)).unchecked[0]


def test_a_failure_the_model_catches_leaves_no_trace():
    def forward(self, x):
        try:
            self.layers[0](x)
        except (ShapeError, RuntimeError):
            x = self.layers[1](x)
        return x.view(-1, 4)

    model = Lambda(forward, nn.Linear(9, 9), nn.Linear(4, 5))
    assert failure(model, torch.empty(2, 4)).what == "ShapeError in model   Lambda"
    assert not check(
        Lambda(lambda s, x: forward(s, x).sum(), nn.Linear(9, 9), nn.Linear(4, 8)), torch.empty(2, 4)
    ).unchecked


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class OtherMeaning(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_features, self.out_features = 3, 3

    def forward(self, x):
        return x * x.sum().item()


class OwnLinear(nn.Linear):
    def forward(self, x):
        return x @ self.weight.T


class OwnEmbedding(nn.Embedding):
    def forward(self, x):
        return F.embedding(x, self.weight)


class OwnTransposed(nn.ConvTranspose1d):
    def forward(self, x):
        return F.conv_transpose1d(x, self.weight)


@pytest.mark.full
def test_classes_of_others_are_judged_only_where_they_fail():
    assert check(ChannelNorm(3), torch.empty(2, 3, 5, 5)).unchecked == ()
    assert "item()" in check(OtherMeaning(), torch.empty(2, 4)).unchecked[0]
    error = failure(nn.Sequential(nn.Linear(4, 6), OwnLinear(5, 7)), torch.empty(2, 4))
    assert (error.what, error.expected) == ("ShapeError in model.1   OwnLinear(5 -> 7)", "(..., 5)")
    assert error.hint == "0 makes 6 features: OwnLinear(6, 7)?"
    assert error.origin[0] == "model.0   Linear(4 -> 6) -> (2, 6)"
    assert error.origin[-1].startswith(
        "torch: "
    )  # the name of an attribute is a guess; this is what happened
    assert failure(OwnEmbedding(5, 7), torch.empty(2, 4)).expected == "indices of dtype int64 or int32"
    # torch's meta kernel lets this pass
    assert failure(OwnTransposed(3, 4, 2), torch.empty(2, 5, 9)).expected == "(N, 3, L)"


class Strict(nn.Linear):
    def forward(self, x):
        if x.shape[-1] != self.in_features:
            raise ShapeError("no", expected="its own words", found="as well", hint="ask the layer before")
        return super().forward(x)


def test_a_layer_s_own_shape_error_is_placed():
    """Its words are kept; a hint names the layer before, if that is what does not fit."""

    def forward(self, x):
        raise ShapeError("heads do not divide", expected="a multiple of 3", found=4, hint="use 3 heads")

    error = failure(nn.Sequential(Lambda(forward)), torch.empty(2, 4))
    assert error.what == "ShapeError in model.0   Lambda"
    assert (error.expected, error.found, error.hint) == ("a multiple of 3", 4, "use 3 heads")
    error = failure(nn.Sequential(nn.Linear(4, 6), Strict(5, 7)), torch.empty(2, 4))
    assert (error.expected, error.found) == ("its own words", "as well")
    assert error.hint == "0 makes 6 features: Strict(6, 7)?"


def test_a_step_is_named_when_it_fails_outside_the_model():
    def step(model, batch):
        return F.mse_loss(model(batch["x"]), batch["y"].view(-1, 7))

    batch = {"x": torch.empty(3, 4), "y": torch.empty(3, 1)}
    assert failure(nn.Linear(4, 1), batch, call=step).what == "ShapeError in step"


def test_backward_shapes():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad[:, :1].expand(-1, 9)

    model = Lambda(lambda self, x: Wrong.apply(self.layers[0](x)), nn.Linear(4, 5))
    assert "backward" in failure(model, torch.empty(2, 4)).what
    assert check(model, torch.empty(2, 4), backward=False).outputs.shape == (2, 5)


# batch sizes


@pytest.mark.sample(1)
@pytest.mark.parametrize(("given", "fixed", "works", "fails"), [(1, 1, 1, 2), (2, 2, 2, 3), (5, 5, 5, 6)])
def test_a_fixed_batch_size_is_said(given, fixed, works, fails):
    model = Lambda(lambda self, x: self.layers[0](x.view(fixed, 4)), nn.Linear(4, 3))
    model(torch.empty(given, 4))
    hint = failure(model, torch.empty(given, 4)).hint
    assert f"a batch of {works} works and one of {fails} does not" in hint
    assert f"batch_sizes=({works},)" in hint
    assert check(model, torch.empty(given, 4), batch_sizes=(works,)).batch_sizes == (works,)


def test_which_tensors_vary(in_process):
    seen = []

    def forward(self, x, mask, y, n=None):
        seen.append((tuple(x.shape), tuple(mask.shape), tuple(y.shape), n))
        return x

    check(Lambda(forward), torch.empty(4, 3), torch.empty(3, 3), y=TensorSpec((4,), torch.int64), n=4)
    assert seen == [((4, 3), (3, 3), (4,), 4), ((5, 3), (3, 3), (5,), 4)]
    seen.clear()
    report = check(Lambda(forward), torch.empty(1, 3), torch.empty(()), torch.empty(1), batch_sizes=[7])
    assert seen == [((7, 3), (), (7,), None)]
    assert report.batch_sizes == (7,)
    assert check(Lambda(lambda self: torch.ones(2))).batch_sizes == ()


POOLED = "model.1 pooled the channels of (2, 8, 14, 14), 4 axes: {} is for images"


@pytest.mark.parametrize(
    ("layers", "hint"),
    [
        ([burnt.nn.Conv3d(3, 8, 3)], "4 axes: Conv2d is for images"),
        (
            [burnt.nn.Conv2d(3, 8, 3), burnt.nn.MaxPool3d(2), burnt.nn.Conv2d(8, 8, 3)],
            POOLED.format("MaxPool2d"),
        ),
        ([nn.Conv2d(3, 8, 3), nn.AvgPool3d(2), nn.Conv2d(8, 8, 3)], POOLED.format("AvgPool2d")),
        ([nn.MaxPool1d(2)], "4 axes: MaxPool2d is for images"),
    ],
    ids=repr,
)
def test_a_layer_for_another_number_of_axes(layers, hint):
    assert failure(nn.Sequential(*layers), TensorSpec((2, 3, 16, 16))).hint == hint


def test_one_example_stands_for_a_batch():
    assert check(nn.BatchNorm1d(4), torch.empty(1, 4)).batch_sizes == (2, 3)  # refuses a batch of one
    assert check(nn.Linear(4, 4), torch.empty(0, 4)).batch_sizes == (2, 3)


def test_a_gradient_in_one_of_the_runs_is_enough():
    model = Lambda(
        lambda self, x: self.layers[len(x) % 2](x), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    )
    assert check(model, torch.empty(2, 4)).without_gradient == ("layers.2.weight", "layers.2.bias")


@pytest.mark.parametrize("sizes", [(), (0,), (2, -1)])
def test_impossible_batch_sizes(sizes):
    with pytest.raises(ConfigError, match="batch sizes"):
        check(nn.Linear(2, 2), torch.empty(3, 2), batch_sizes=sizes)


def test_inputs_keep_dtype_strides_and_requires_grad():
    def forward(self, x, i):
        assert x.is_meta
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert x.requires_grad
        assert i.dtype == torch.int32
        return x

    x = torch.empty(2, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    assert not check(Lambda(forward), x, torch.empty(2, dtype=torch.int32)).unchecked
    assert x.grad is None


Pair = namedtuple("Pair", "x y")


@dataclass
class Batch:
    x: torch.Tensor
    names: list


@pytest.mark.sample(1)
@pytest.mark.parametrize("wrap", [lambda x: {"x": x}, lambda x: Pair(x, None), lambda x: Batch(x, ["a"])])
def test_batches_of_any_kind(wrap):
    def forward(self, batch):
        return self.layers[0](batch["x"] if isinstance(batch, dict) else batch.x)

    model = Lambda(forward, nn.Linear(4, 5))
    assert check(model, wrap(torch.empty(2, 4))).outputs.shape == (2, 5)
    assert failure(model, wrap(torch.empty(2, 3))).found == "(2, 3)"


# what cannot be checked


class NeedsValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * grad.sum().item()


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.detach().numpy(),
        lambda x: x.repeat_interleave(torch.ones(x.shape[1], dtype=torch.long), dim=1),
        lambda x: x.cpu(),
        lambda x: x + torch.ones(4, device="cpu"),
        lambda x: torch.from_numpy(np.ones(4, "float32")) + x,
        lambda x: x.no_such_method(),
        lambda x: NeedsValue.apply(x * torch.ones(4, requires_grad=True)),
    ],
)
def test_what_depends_on_values_is_reported_and_no_error(fn):
    model = nn.Sequential(nn.Identity(), Lambda(lambda self, x: fn(x)))
    report = check(model, torch.ones(2, 4))
    assert len(report.unchecked) == 1
    assert report.unchecked[0].startswith(("model.1: ", "the backward pass: "))
    assert "unchecked" in str(report)
    assert report.without_gradient == ()


def test_the_report_can_be_read():
    model = Lambda(lambda self, x: self.layers[0](x), nn.Linear(4, 3), nn.Linear(4, 3))
    report = check(model, torch.empty(4, 4))
    assert report.without_gradient == ("layers.1.weight", "layers.1.bias")
    lines = str(report).splitlines()
    assert lines[0].startswith("the shapes fit (batch 4 and 5, ")
    assert lines[1:] == [
        "  outputs           (4, 3)",
        "  without gradient  layers.1.weight",
        "                    layers.1.bias",
    ]


def test_gradients_are_taken_of_the_loss():
    @dataclass
    class Output:
        loss: torch.Tensor
        outputs: torch.Tensor

    def step(model, x):
        return Output(model[0](x).sum(), model[1](x))

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].bias.requires_grad_(False)
    assert check(model, torch.empty(2, 4), call=step).without_gradient == ("1.weight", "1.bias")
    assert check(model, torch.empty(2, 4), call=step, backward=False).without_gradient == ()
    detached = check(model, torch.empty(2, 4), call=lambda m, x: m(x).detach())
    assert len(detached.without_gradient) == 3


def test_it_works_where_gradients_are_off():
    model = nn.Linear(4, 4)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            report = check(model, torch.empty(2, 4))
        assert (report.without_gradient, report.unchecked) == ((), ())


# the model stays as it is


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.register_buffer("calls", torch.zeros(()))
        self.steps = 0
        self.history = []
        self.scale = torch.full((4,), 2.0)
        self.derived = self.scale * nn.Parameter(torch.ones(4))  # no leaf: torch refuses to copy it
        self.seen = None

    def forward(self, x):
        self.calls += 1
        self.steps += 1
        self.scale += 1
        self.seen = x
        torch.rand(1, device="cpu")
        y, _ = self.rnn(self.body(x * self.scale + self.derived)[:, None])
        assert y.is_meta
        return y + torch.rand(4) + random.random() + float(np.random.rand())


class Uncopyable(Stateful):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [Stateful, Uncopyable])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_of_the_model_or_the_process_changes(kind, training, in_process):
    model, x = kind().train(training), torch.randn(3, 4)
    model.body[0].weight.requires_grad_(False)
    model.body[0].bias.grad = torch.ones(4)
    handle_count = []
    model.body.register_forward_hook(lambda *args: handle_count.append(1))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = {name: id(t) for name, t in [*model.named_parameters(), *model.named_buffers()]}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    hooks = {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in model.named_modules()}
    rng = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    kept = x.clone()

    report = check(model, x)

    assert report.unchecked == ()
    assert report.without_gradient == ()
    assert handle_count  # the model's hooks are part of it
    assert torch.equal(rng[0], torch.get_rng_state())
    assert rng[1] == random.getstate()
    assert rng[2] == np.random.get_state()[1].tolist()
    assert torch.equal(x, kept)
    assert {name: id(t) for name, t in [*model.named_parameters(), *model.named_buffers()]} == tensors
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    for name, module in model.named_modules():
        assert vars(module).keys() == attributes[name].keys()
        assert all(vars(module)[key] is value for key, value in attributes[name].items()), name
        assert len(module._forward_hooks) + len(module._forward_pre_hooks) == hooks[name]
        assert not module._forward_hooks_with_kwargs
        assert module.training == training
    assert (model.steps, model.history, model.seen) == (0, [], None)
    assert model.scale.tolist() == [2, 2, 2, 2]
    assert not model.body[0].weight.requires_grad
    assert model.body[0].bias.grad.tolist() == [1, 1, 1, 1]
    assert model.rnn._flat_weights[0] is model.rnn.weight_ih_l0
    assert torch.empty(1).device.type == "cpu"


@pytest.mark.parametrize("kind", [Stateful, Uncopyable])
def test_nor_after_a_shape_error(kind, in_process):
    model = kind()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.rnn.input_size = 5
    with pytest.raises(ShapeError, match=r"model\.rnn   LSTM\(5 -> 4\)"):
        check(model, torch.empty(2, 4))
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.steps == 0


def test_training_mode_is_that_of_the_model(in_process):
    seen = []
    model = Lambda(lambda self, x: seen.append(self.training) or x)
    check(model.eval(), torch.empty(2))
    check(model.train(), torch.empty(2))
    assert seen == [False, False, True, True]


def test_shared_parameters_stay_shared():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight

    def step(twin, x):
        assert twin[1].weight is twin[0].weight
        assert twin[0].weight.is_meta
        assert twin is not model
        return twin(x)

    report = check(model, torch.empty(2, 4), call=step)
    assert (report.unchecked, report.without_gradient) == ((), ())


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature", "ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 4)),
        lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(torch.bfloat16),
        lambda: torch.compile(nn.Linear(4, 4)),
    ],
    ids=["lazy", "weight_norm", "parametrized", "spectral", "encoder", "bfloat16", "compiled"],
)
def test_unusual_models(make):
    model = make()
    dtype = next(model.parameters()).dtype
    report = check(model, torch.empty(3, 4, dtype=dtype))
    assert report.outputs.shape == (3, 4)
    assert (report.unchecked, report.without_gradient) == ((), ())
    if isinstance(model[0] if isinstance(model, nn.Sequential) else None, nn.LazyLinear):
        assert model[0].has_uninitialized_params()


def test_scripts_are_reported_as_unchecked():
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 4), torch.ones(1, 4)))
    assert check(model, torch.empty(3, 4)).unchecked[0].startswith("model.1: RuntimeError: ")


class Holder(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.register_buffer("held", held)
        self.layer = nn.Linear(4, 4)

    def forward(self, x, other, use):
        return self.layer(x), self.held.dequantize() + x if use else other


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.eye(4).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.ones(3, dtype=torch.complex64).conj(),
        lambda: torch.ones(1).expand(4),
    ],
    ids=["coo", "csr", "quantized", "nested", "jagged", "conjugate", "expanded"],
)
def test_unusual_tensors_do_no_harm(make):
    held = make()
    report = check(Holder(held), torch.empty(2, 4), held, use=False)
    assert (report.outputs[0].shape, report.unchecked) == ((2, 4), ())
    if held.is_quantized:
        assert "device" in check(Holder(held), torch.empty(2, 4), held, use=True).unchecked[0]


@pytest.mark.full
def test_a_large_model_is_checked_without_its_memory(in_process):
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)])
    assert num_params(model) * 4 > 200e6
    check(nn.Sequential(nn.Linear(8, 8)), torch.empty(2, 8))  # loads what torch needs for meta tensors
    before = psutil.Process().memory_info().rss
    peak = [before]
    model[5].register_forward_hook(lambda *_: peak.append(psutil.Process().memory_info().rss))
    report = check(model, TensorSpec((65536, 2048)))  # whose activations alone would be 12 times 512 MB
    peak.append(psutil.Process().memory_info().rss)
    assert report.outputs.shape == (65536, 2048)
    assert max(peak) - before < 50e6


def test_what_a_layer_refuses_for_its_shapes_is_no_matter_of_values():
    """Errors of layers and of ops, in any layer: they would come in every run."""

    class Seq2Seq(burnt.Module):
        encoder: burnt.nn.Lstm
        decoder: burnt.nn.Lstm

        def forward(self, x):
            return self.decoder(x, self.encoder(x)[1])

    error = failure(Seq2Seq(burnt.nn.Lstm(4, 8), burnt.nn.Lstm(4, 6)), torch.empty(2, 5, 4))
    assert error.what == "ShapeError in model.decoder   Lstm(4 -> 6)"
    assert (error.expected, error.found) == (
        (1, 2, 6),
        "(1, 2, 8): the state h0 does not fit a recurrent layer",
    )
    assert error.origin[1].startswith("model.encoder   Lstm(4 -> 8) -> ")
    error = failure(Lambda(lambda self, x: burnt.kernels.lstm(x, [])), torch.empty(2, 4))
    assert error.what == "ShapeError in model   Lambda"


def test_arguments_that_a_forward_does_not_take():
    for call in (check, burnt.summary):
        with pytest.raises(ArgumentError, match="missing a required argument: 'input'") as caught:
            call(Lambda(lambda self, x: self.layers[0](), nn.Linear(4, 3)), torch.empty(2, 4))
        assert (caught.value.where, caught.value.expected) == ("model.layers.0", "forward(input)")
        assert "test_check.py" in caught.value.origin[0]
        with pytest.raises(ArgumentError, match="unexpected keyword argument 'length'"):
            call(burnt.nn.Gru(4, 3), torch.empty(2, 5, 4), length=torch.ones(2))
    # A TypeError inside is none of the arguments.
    assert "TypeError" in check(Lambda(lambda self, x: len(3)), torch.empty(2, 4)).unchecked[0]
