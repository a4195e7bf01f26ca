"""What holds for every layer: it is torch's by value, and it works under whatever torch does to a module.

The layers are in `tests/nn/cases`, a file per family, each with a list `CASES`.
"""

import copy
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt import Config, Module, Record, nn
from burnt.errors import ConfigError, ShapeError
from tests.nn.case import LAYERS, Case

FAMILIES = sorted(path.stem for path in (Path(__file__).parent / "cases").glob("*.py"))
CASES: list[Case] = [
    case for family in FAMILIES for case in importlib.import_module(f"tests.nn.cases.{family}").CASES
]

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
every = pytest.mark.parametrize("case", CASES, ids=str)
FIRST = {case.name: case for case in reversed(CASES)}
# One case of each layer for every change, and the others with other arguments for `--full`.
each = pytest.mark.parametrize(
    "case",
    [case if case is FIRST[case.name] else pytest.param(case, marks=pytest.mark.full) for case in CASES],
    ids=str,
)
twins = pytest.mark.parametrize("case", [case for case in CASES if case.twin is not None], ids=str)


def results(
    layer: torch.nn.Module, inputs: tuple[Tensor, ...], seed: int = 3
) -> tuple[Tensor, list[Tensor | None]]:
    """Output, and the gradients of inputs and parameters for an output gradient that is not uniform."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    torch.manual_seed(seed)
    output = first(layer(*leaves))
    wanted = [x for x in leaves if x.requires_grad] + [p for p in layer.parameters() if p.requires_grad]
    if not wanted:
        return output, []
    grad = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).reshape(output.shape)
    return output, list(torch.autograd.grad(output, wanted, grad, allow_unused=True))


def first(output: Any) -> Tensor:
    """Of a layer that returns its last states, too, the output."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def assert_same(ours: Any, theirs: Any, loose: float = 0.0) -> None:
    tolerance = {"atol": loose, "rtol": loose} if loose else {}
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)


def pair(case: Case, dtype: torch.dtype = torch.float32) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(0)
    ours = case.build()
    torch.manual_seed(0)
    theirs = case.build_twin()
    return ours.to(dtype), theirs.to(dtype)


def test_every_exported_layer_is_here() -> None:
    assert {case.name for case in CASES} == set(LAYERS)


def test_every_public_name_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "layers.md").read_text()
    assert [name for name in nn.__all__ if f"`{name}`" not in page and f"`nn.{name}`" not in page] == []


@twins
def test_names_values_for_a_seed_and_state_are_torchs(case: Case) -> None:
    ours, theirs = pair(case)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    trained = {
        name: torch.rand_like(v) if v.is_floating_point() else v for name, v in theirs.state_dict().items()
    }
    ours.load_state_dict(trained)
    for name, value in trained.items():
        assert torch.equal(ours.state_dict()[name], value), name


@pytest.mark.sample
@twins
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_values_and_gradients_are_torchs(case: Case, dtype: torch.dtype, training: bool) -> None:
    ours, theirs = pair(case, dtype)
    ours.train(training)
    theirs.train(training)
    for step in range(2):
        torch.manual_seed(step)
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in case.inputs(3))
        try:
            expected, expected_grads = results(theirs, inputs)
        except RuntimeError as error:
            if dtype in (torch.bfloat16, torch.float16) and "not implemented for" in str(error):
                return  # torch has no such kernel on the CPU: there is nothing to compare with
            raise
        output, grads = results(ours, inputs)
        assert output.dtype == expected.dtype
        loose = case.loose if dtype in (torch.bfloat16, torch.float16) else 0.0
        assert_same(output, expected, loose)
        assert_same(grads, expected_grads, loose)
    for name, value in theirs.state_dict().items():
        assert_same(ours.state_dict()[name], value)


@twins
def test_inputs_need_not_be_contiguous(case: Case) -> None:
    ours, theirs = pair(case)
    inputs = case.inputs(4)
    strided = tuple(x.transpose(0, -1).contiguous().transpose(0, -1)[::2] for x in inputs)
    assert not strided[0].is_contiguous()
    ours.eval()
    theirs.eval()
    assert_same(results(ours, strided), results(theirs, tuple(x.contiguous() for x in strided)))


@twins
def test_an_empty_batch_does_what_it_does_in_torch(case: Case) -> None:
    ours, theirs = pair(case)
    inputs = case.inputs(0)
    try:
        expected = results(theirs, inputs)
    except IndexError:
        return  # torch's instance norm has no empty batch: there is nothing to compare with
    except (RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            results(ours, inputs)
    else:
        assert_same(results(ours, inputs), expected)


@pytest.mark.sample(40)
@every
def test_check_follows_it(case: Case) -> None:
    layer = case.build()
    report = burnt.check(layer, *case.inputs(3))
    assert bool(report.unchecked) == case.check_with_values
    if not case.check_with_values:
        assert tuple(first(report.outputs).shape) == tuple(first(layer(*case.inputs(3))).shape)


@pytest.mark.sample(30)
@every
def test_summary_counts_its_parameters(case: Case) -> None:
    layer = case.build()
    text = str(burnt.summary(layer, *case.inputs(3)))
    assert case.name in text
    assert f"{sum(p.numel() for p in layer.parameters()):,}" in text


@pytest.mark.sample(45)
@pytest.mark.filterwarnings("ignore:dropout")
@pytest.mark.parametrize("case", [case for case in CASES if case.misfit is not None], ids=str)
def test_an_input_that_does_not_fit_is_a_shape_error(case: Case) -> None:
    assert case.misfit is not None
    inputs, expected = case.misfit
    with pytest.raises(ShapeError) as caught:
        burnt.check(case.build(), *inputs)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("ShapeError in model")


@pytest.mark.parametrize("name", sorted({c.name for c in CASES} - {c.name for c in CASES if c.misfit}))
def test_a_layer_without_a_shape_error_takes_any_shape(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    for shape in ((), (3,), (2, 0), (1, 2, 3, 4, 5, 6)):
        assert first(case.build()(torch.randn(shape))).shape == shape


@each
def test_works_on_the_meta_device(case: Case) -> None:
    layer = case.build(device="meta") if case.has_parameters else case.build().to("meta")
    assert all(p.is_meta for p in layer.parameters())
    output = first(layer(*(x.to("meta") for x in case.inputs(2))))
    assert output.is_meta
    assert output.shape == first(case.build()(*case.inputs(2))).shape


@each
def test_device_and_dtype_reach_every_parameter(case: Case) -> None:
    if case.has_parameters:
        layer = case.build(dtype=torch.float64, device="cpu")
        assert {p.dtype for p in layer.parameters()} == {torch.float64}
    layer = type(case.build()).Config(**case.arguments).init(dtype=torch.float64)
    assert {v.dtype for v in layer.state_dict().values() if v.is_floating_point()} <= {torch.float64}


@pytest.mark.sample(4)
@every
def test_compiles_as_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    layer, inputs = case.build(), case.inputs(3)
    twin = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert_same(results(compiled, inputs), results(twin, inputs))
    assert_same(compiled._orig_mod.state_dict(), twin.state_dict())


@pytest.mark.sample(6)
@every
def test_exports(case: Case) -> None:
    layer, inputs = case.build().eval(), case.inputs(3)
    program = torch.export.export(layer, inputs)
    assert_same(program.module()(*inputs), layer(*inputs))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # a trace is for the shapes it was made with
@each
def test_torch_jit_traces(case: Case) -> None:
    layer, inputs = case.build().eval(), case.inputs(3)
    try:
        traced = torch.jit.trace(layer, inputs)
    except TypeError:
        with pytest.raises(TypeError):  # torch's cannot be traced either
            torch.jit.trace(case.build_twin(), inputs)
        return
    assert "burnt::" not in str(traced.inlined_graph)  # a program without burnt can load it
    for other in inputs, case.inputs(3):
        assert_same(traced(*other), layer(*other))


@each
def test_a_deep_copy_is_independent(case: Case) -> None:
    layer, inputs = case.build().eval(), case.inputs(3)
    twin = copy.deepcopy(layer)
    before = first(twin(*inputs))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1.0)
    assert torch.equal(first(twin(*inputs)), before)
    assert repr(twin) == repr(layer)


@each
def test_functional_call(case: Case) -> None:
    layer, other, inputs = case.build().eval(), case.build().eval(), case.inputs(3)
    state = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    assert_same(torch.func.functional_call(layer, state, inputs), other(*inputs))


@each
def test_autocast(case: Case) -> None:
    layer = case.build().eval()
    inputs = case.inputs(3)
    with torch.autocast("cpu", torch.bfloat16):
        output = first(layer(*inputs))
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output.float(), first(layer(*inputs)).float(), atol=0.1, rtol=0.1)


@every
def test_its_config_builds_an_equal_layer(case: Case) -> None:
    kind = getattr(nn, case.name)
    config = kind.Config(**case.arguments)
    again = kind.Config.from_json(config.to_json())
    assert again.to_dict() == config.to_dict()
    torch.manual_seed(5)
    expected = case.build()
    torch.manual_seed(5)
    layer = again.init()
    assert type(layer) is kind
    assert repr(layer) == repr(expected)
    assert_same(layer.state_dict(), expected.state_dict())
    with pytest.raises(ConfigError, match="no such field"):
        config.replace(no_such_thing=1)


@each
def test_saves_and_loads(case: Case, tmp_path: Any) -> None:
    kind = getattr(nn, case.name)
    layer = kind.Config(**case.arguments).init()
    layer.save(tmp_path / "layer.safetensors")
    loaded = kind.load(tmp_path / "layer.safetensors")
    assert_same(loaded.state_dict(), layer.state_dict())
    assert repr(loaded) == repr(layer)
    record = Record.load(tmp_path / "layer.safetensors")
    assert str(kind.Config(**case.arguments).init().load_record(record)).count("\n") == 0


REQUIRED = {(nn.Softmax, "dim"), (nn.LogSoftmax, "dim"), (nn.Softmin, "dim")}
"""Arguments whose default is deprecated in torch."""


@pytest.mark.parametrize("case", [c for c in CASES if c.label == ""], ids=str)
def test_arguments_and_defaults_are_torchs(case: Case) -> None:
    import inspect

    kind = getattr(nn, case.name)
    base = next((b for b in kind.__mro__[1:] if b.__module__.startswith("torch.nn.modules")), None)
    if base in (None, torch.nn.Module):
        return
    theirs = inspect.signature(base.__init__).parameters
    renamed = {"alpha": "init"} if kind is nn.Prelu else {}
    ours = {renamed.get(name, name): p for name, p in inspect.signature(kind.__init__).parameters.items()}
    if "bias" in ours and "bias" not in theirs:
        del ours["bias"]  # torch has it from 2.13 on
    for name, parameter in ours.items():
        if name not in theirs:
            assert parameter.default is not parameter.empty, name
        elif (kind, name) not in REQUIRED:
            assert parameter.default == theirs[name].default, name
    left_out = {"size_average", "reduce", "_weight", "_freeze", "min_value", "max_value", "args", "kwargs"}
    assert set(theirs) - set(ours) <= left_out


class Net(Config):
    head: nn.Linear.Config
    block: nn.Conv2d.Config | nn.Linear.Config
    pool: nn.MaxPool2d.Config | nn.AvgPool2d.Config | None = None


def test_layer_configs_sit_in_a_users_config() -> None:
    config = Net(
        head=nn.Linear.Config(in_features=3, out_features=2),
        block=nn.Conv2d.Config(in_channels=1, out_channels=3, kernel_size=(2, 3)),
        pool=nn.AvgPool2d.Config(kernel_size=2),
    )
    again = Net.from_json(config.to_json())
    assert again == config
    assert isinstance(again.block.init(), nn.Conv2d)
    assert isinstance(again.pool, nn.AvgPool2d.Config)
    text = config.to_json().replace('"Conv2d"', '"Conv3d"')
    with pytest.raises(ConfigError) as caught:
        Net.from_json(text)
    assert caught.value.where == "block.type"
    assert "Conv2d" in str(caught.value)
    assert config.override(["head.out_features=7"]).head.init().out_features == 7


def test_a_config_refuses_what_is_not_of_its_type() -> None:
    with pytest.raises(ConfigError) as caught:
        nn.Gelu.Config(approximate="sigmoid")
    assert caught.value.where == "approximate"
    with pytest.raises(ConfigError) as caught:
        nn.Conv2d.Config.from_json('{"in_channels": 1, "out_channels": 2, "kernel_size": [1, 2, 3]}')
    assert caught.value.where is not None
    assert caught.value.where.startswith("kernel_size")


def test_a_subclass_of_a_layer_is_a_layer() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    torch.manual_seed(0)
    layer = Scaled(2, 3)
    torch.manual_seed(0)
    x = torch.ones(1, 2)
    assert torch.equal(layer(x), 2 * nn.Linear(2, 3)(x))
    assert isinstance(layer, Module)
    assert isinstance(Scaled.Config(in_features=2, out_features=3).init(), Scaled)
