"""Hints for names and arguments of torch, Lightning and Keras: each names what exists and is needed."""

import importlib
import inspect
import operator
import re
import types

import pytest
import torch

import burnt
from burnt import data, nn, optim, train
from burnt._hints import ELSEWHERE, SYNONYMS, explain_arguments, no_attribute
from burnt.errors import ArgumentError, OptimError, nearest

PAIRS = [
    (nn, torch.nn),
    (nn.init, torch.nn.init),
    (optim, torch.optim),
    (data, torch.utils.data),
    (burnt, torch),
]
CALLABLES = [
    *(getattr(nn, name) for name in nn.__all__ if isinstance(getattr(nn, name), type)),
    nn.lora,
    *(
        getattr(optim, name)
        for name in optim.__all__
        if name not in ("Optimizer", "OptimizerRecord", "Schedule", "matrices")
    ),
    data.CsvDataset,
    data.DataframeDataset,
    data.HuggingFaceDataset,
    data.JsonLinesDataset,
    data.Loader,
    data.ParquetDataset,
    data.SqliteDataset,
    data.split,
    train.Learner,
    train.SupervisedTraining,
    train.EarlyStopping,
]


def found(path: str) -> object:
    """The object of a dotted path; raises AttributeError if there is none."""
    first, *rest = path.split(".")
    value: object = importlib.import_module(first)
    for name in rest:
        value = getattr(value, name)
    return value


def hint_of(package: types.ModuleType, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(package, name)
    text, _, hint = str(caught.value).partition(": ")
    assert text == f"module {package.__name__!r} has no attribute {name!r}"
    return hint


@pytest.mark.parametrize(("package", "of_torch"), PAIRS, ids=lambda module: module.__name__)
def test_every_name_of_torch_exists_or_its_error_names_what_does(package, of_torch):
    for name in (name for name in dir(of_torch) if not name.startswith("_")):
        if not hasattr(package, name):
            (path,) = re.match(r"(?:did you mean|use) ([\w.]+)", hint_of(package, name)).groups()
            found(path)
            assert not path.startswith("torch.") or path == f"{of_torch.__name__}.{name}"


@pytest.mark.parametrize("name", ["LSTM", "GRU", "ReLU", "GELU", "RMSNorm", "MultiheadAttention", "SiLU"])
def test_case_is_a_hint(name):
    path = hint_of(nn, name).removeprefix("did you mean ").removesuffix("?")
    assert path.lower() == f"burnt.nn.{name}".lower()
    assert issubclass(found(path), burnt.Module)


@pytest.mark.parametrize(
    ("package", "name", "hint"),
    [
        (nn, "BatchNorm2d", "use burnt.nn.BatchNorm"),
        (nn, "CrossEntropyLoss", "did you mean burnt.nn.CrossEntropy?"),
        (nn, "LSTMM", "did you mean burnt.nn.Lstm?"),
        (nn, "Activation", "did you mean burnt.nn.build_activation?"),
        (nn, "functional", "use torch.nn.functional, it works inside a burnt Module"),
        (nn, "ModuleList", "use torch.nn.ModuleList, it works inside a burnt Module"),
        (nn, "Constant", "use burnt.nn.init.Constant"),
        (nn, "Bidirectional", "bidirectional=True of burnt.nn.Lstm, Gru and Rnn"),
        (nn.init, "xavier_uniform_", "did you mean burnt.nn.init.XavierUniform?"),
        (nn.init, "calculate_gain", "use torch.nn.init.calculate_gain, which works on tensors"),
        (optim, "swa_utils", "use burnt.optim.Swa"),
        (optim, "clip_grad_norm_", "clip_norm= of burnt.train.SupervisedTraining, or of an optimizer's step"),
        (optim, "lr_scheduler", "use burnt.optim.Schedule"),
        (optim, "ReduceLROnPlateau", "use burnt.train.Plateau"),
        (
            optim,
            "Rprop",
            "use torch.optim.Rprop, it steps burnt modules in a loop of your own, but not in a Learner",
        ),
        (nn, "Conv", "did you mean burnt.nn.Conv1d or burnt.nn.Conv2d or burnt.nn.Conv3d?"),
        (nn, "UpsamplingBilinear2d", "use burnt.nn.Upsample(mode='bilinear', align_corners=True)"),
        (nn, "DeformConv2d", "left out: torchvision.ops.DeformConv2d works inside a burnt Module"),
        (nn, "Initializer", "initializers are in burnt.nn.init"),
        (nn, "PaddingConfig2d", "use padding= of the layer: 'same', 'valid' or numbers"),
        (train.metrics, "Acuracy", "did you mean burnt.train.metrics.Accuracy?"),
        (burnt, "Trainer", "use burnt.train.SupervisedTraining"),
        (burnt, "randn", "use torch.randn, burnt works on torch tensors"),
        (burnt, "lora", "use burnt.nn.lora"),
        (burnt, "Linear", "use burnt.nn.Linear or burnt.optim.Linear"),
        (nn, "Learner", "use burnt.train.Learner"),
        (burnt, "sumary", "did you mean burnt.summary?"),
        (data.transforms, "ToTensor", "use burnt.data.transforms.ToImage, and ToFloat to scale to 0 to 1"),
        (nn, "zzz", ""),
        (nn, "__wrapped__", ""),
    ],
)
def test_attribute(package, name, hint):
    assert hint_of(package, name) == hint


def test_a_name_in_the_wrong_package_says_where_each_kind_is():
    assert hint_of(burnt, "Lineer").startswith(
        "layers are in burnt.nn, optimizers and schedules in burnt.optim"
    )


def test_the_table_of_names_is_needed_and_true():
    for name, path in ELSEWHERE.items():
        found(path)
        package = importlib.import_module(path.rpartition(".")[0])
        known = {other.lower() for other in package.__all__}
        # A name of burnt.train may be looked for in burnt.optim, and one of burnt.nn.init in burnt.nn.
        assert name.lower() not in known or package in (burnt, train, nn.init), name


def test_a_layer_of_torch_works_inside_a_burnt_module():
    class Net(burnt.Module):
        conv: torch.nn.Conv1d
        norm: torch.nn.GroupNorm

        def forward(self, x):
            return torch.nn.functional.hardswish(self.norm(self.conv(x)))

    net = Net(torch.nn.Conv1d(2, 4, 3), torch.nn.GroupNorm(2, 4))
    net(torch.randn(3, 2, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_burnt_export_is_not_torchs():
    assert str(no_attribute("burnt", "export", ["Module"])).endswith("'export': use burnt.onnx.export")


# arguments


@pytest.mark.parametrize("kind", CALLABLES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_constructor_explains_an_argument_that_it_lacks(kind):
    # Of a class with an __init__, that: older Pythons prefer a __new__ of a base class.
    written = getattr(kind, "__init__", None)
    parameters = inspect.signature(written if inspect.isfunction(written) else kind).parameters
    names = [name for name in parameters if name != "self"]
    longest = max(names, key=len, default="")
    # What is required is missing too: it is the unknown name that gets the hint.
    with pytest.raises(ArgumentError, match=f"unexpected keyword argument '{longest}_'") as caught:
        kind(**{f"{longest}_": 1})
    assert caught.value.expected == (", ".join(names) or "no arguments")
    assert caught.value.hint == (f"did you mean {longest!r}?" if len(longest) > 1 else None)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: nn.Linear(4, 2, units=3), "did you mean 'out_features'?"),
        (lambda: nn.Linear.Config(in_feature=3, out_features=3), "did you mean 'in_features'?"),
        (lambda: nn.Dropout(rate=0.5), "did you mean 'p'?"),
        (lambda: nn.Lstm(3, 4, batch_first=True), "not needed: the batch always comes first"),
        (lambda: nn.Gru(3, 4, proj_size=2), "only Lstm projects its states"),
        (lambda: nn.CrossAttention(8, 2, kdim=3), "did you mean 'context_dim'?"),
        (lambda: nn.lora(nn.Linear(4, 2), r=8), "did you mean 'rank'?"),
        (
            lambda: nn.Conv2d(1, filters=3, kernel=5),
            "filters: did you mean 'out_channels'?\nkernel: did you mean 'kernel_size'?",
        ),
        (lambda: optim.AdamW(lr=1e-3), "the learning rate is the Learner's schedule"),
        (lambda: optim.AdamW(params=[]), "the parameters are those of the model"),
        (lambda: optim.Cosine(1e-3, T_max=10), "did you mean 'steps'?"),
        (lambda: data.Loader([1], 1, num_workers=2), "workers= is the number of worker processes"),
        (lambda: data.Loader([1], 1, batch_sampler=[[0]]), "sampler= decides the items"),
        (lambda: train.SupervisedTraining("runs/a", train=[1], max_epochs=3), "did you mean 'duration'?"),
        (lambda: train.SupervisedTraining("runs/a", train_dataloader=[1]), "did you mean 'train'?"),
        (lambda: train.Learner(None, None, lr=0.1), "the learning rate is the schedule"),
        (lambda: train.evaluate(nn.Linear(1, 1), [], device="cpu"), "the model is evaluated where it is"),
    ],
)
def test_argument(call, hint):
    with pytest.raises(ArgumentError, match="unexpected keyword argument") as caught:
        call()
    assert caught.value.hint.startswith(hint)


def test_every_argument_of_torchs_data_loader_exists_or_has_a_hint():
    ours = inspect.signature(data.Loader).parameters
    for name in inspect.signature(torch.utils.data.DataLoader).parameters.keys() - ours.keys():
        with pytest.raises(ArgumentError) as caught:
            data.Loader([1], 1, **{name: None})
        assert caught.value.hint, name


def test_the_table_of_arguments_is_needed_and_true():
    parameters = [inspect.signature(kind).parameters for kind in CALLABLES]
    for name, others in SYNONYMS.items():
        lacking = [known for known in parameters if name not in known]
        for other in others:
            suggested = [known for known in lacking if other in known]
            assert suggested, (name, other)
            assert any(nearest(name, known) != other for known in suggested), (name, other)


def test_what_is_missing_is_named_with_all_arguments():
    with pytest.raises(ArgumentError) as caught:
        nn.Linear(3)
    assert str(caught.value) == (
        "Linear() missing a required argument: 'out_features'\n"
        "  expected  in_features, out_features, bias, device, dtype"
    )


def test_an_error_inside_a_call_that_fits_stays_as_it_is():
    @explain_arguments()
    def add(a, b):
        return a + b

    assert add(1, b=2) == 3
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        add(1, "2")
    assert type(caught.value) is TypeError
    with pytest.raises(TypeError, match=r"failed to unpack|must be tuple of ints") as caught:
        nn.Linear("3", 2)
    assert type(caught.value) is TypeError


def test_a_learning_rate_is_not_taken_for_betas():
    with pytest.raises(OptimError, match="AdamW takes no number as its first argument") as caught:
        optim.AdamW(1e-3)
    assert "the learning rate is the Learner's schedule" in str(caught.value)


@pytest.mark.parametrize(
    "first",
    [
        lambda model: model.parameters(),
        lambda model: list(model.parameters()),
        lambda model: [{"params": model.parameters()}],
        lambda model: model.named_parameters(),
        lambda model: model,
    ],
)
@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adam, optim.Sgd, optim.Muon])
def test_parameters_are_not_taken_for_an_option(kind, first):
    with pytest.raises(OptimError, match=f"{kind.__name__} is built without parameters"):
        kind(first(nn.Linear(2, 2)), 1e-3)


def test_signatures_and_names_stay():
    assert list(inspect.signature(nn.Linear).parameters) == [
        "in_features",
        "out_features",
        "bias",
        "device",
        "dtype",
    ]
    assert nn.Linear.__init__.__qualname__ == "Linear.__init__"
    assert operator.attrgetter("__init__.__module__")(nn.Linear) == "burnt.nn.linear"
