"""Config: construction, JSON, messages, overrides."""

import enum
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import pytest
import torch

from burnt import Config, field, nn
from burnt.errors import ConfigError, DefinitionError


class Norm(enum.Enum):
    BATCH = "batch"
    LAYER = "layer"


class Sgd(Config, tag=True):
    momentum: float = 0.0


class Adam(Config, tag=True):
    betas: tuple[float, float] = (0.9, 0.999)


class Layer(Config):
    width: int
    norm: Norm = Norm.BATCH


class Experiment(Config):
    layers: list[Layer] = []
    optim: Sgd | Adam = Sgd()
    named: dict[str, Layer] = {}
    folder: Path = Path("runs")
    seed: int | None = None
    rate: float = 1e-3


FULL = Experiment(
    layers=[Layer(width=3), Layer(width=5, norm=Norm.LAYER)],
    optim=Adam(betas=(0.5, 0.75)),
    named={"head": Layer(width=7)},
    folder=Path("a/b"),
    seed=4,
    rate=0.25,
)


def test_json_round_trip(tmp_path: Path) -> None:
    assert Experiment.from_json(FULL.to_json()) == FULL
    FULL.save(tmp_path / "c.json")
    assert Experiment.load(tmp_path / "c.json") == FULL
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["format"] == 1
    assert document["config"]["optim"] == {"type": "Adam", "betas": [0.5, 0.75]}


def test_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        FULL.rate = 2.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Layer(3)  # type: ignore[misc]


def test_every_problem_of_a_file_is_reported_with_its_path() -> None:
    data = {
        "layers": [{"width": 1}, {"width": "wide"}],
        "optim": {"type": "Adam", "betas": [0.9, "x"]},
        "named": {"head": {}},
        "rat": 0.1,
    }
    with pytest.raises(ConfigError) as caught:
        Experiment.from_dict(data)
    message = str(caught.value)
    assert "4 problems" in message
    assert "did you mean 'rate'?" in message
    assert "layers[1].width: 'wide' (str), expected int" in message
    assert "optim.betas[1]: 'x' (str), expected float" in message
    assert "named.head.width: nothing, expected int" in message


@pytest.mark.parametrize(
    ("data", "where", "expected"),
    [
        ({"optim": {"type": "Adm"}}, "optim.type", "'Sgd' or 'Adam'"),
        ({"optim": {}}, "optim.type", "'Sgd' or 'Adam'"),
        ({"seed": "x"}, "seed", "int | None"),
        ({"layers": [{"width": 1, "norm": "group"}]}, "layers[0].norm", "Norm"),
        ({"folder": 3}, "folder", "Path"),
        ({"layers": 3}, "layers", "list[tests.test_config.Layer]"),
    ],
)
def test_paths_of_single_problems(data: dict[str, object], where: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.from_dict(data)
    assert caught.value.where == where
    if where != "layers":
        assert caught.value.expected == expected


def test_the_constructor_checks_types() -> None:
    with pytest.raises(ConfigError, match="Experiment cannot be built") as caught:
        Experiment(seed="4")  # type: ignore[arg-type]
    assert caught.value.where == "seed"
    with pytest.raises(ConfigError, match="Layer cannot be built"):
        Experiment(layers=[Layer(width=None)])  # type: ignore[arg-type]


def test_replace() -> None:
    assert FULL.replace(rate=0.5).rate == 0.5
    with pytest.raises(ConfigError, match="did you mean 'rate'"):
        FULL.replace(rte=0.5)
    with pytest.raises(ConfigError, match="expected  float"):
        FULL.replace(rate="fast")


def test_override() -> None:
    changed = FULL.override(
        ["layers.1.width=9", "optim.betas=[0.1, 0.2]", "named.tail={\"width\": 2}", "seed=null", "folder=12"]
    )  # fmt: skip
    assert changed.layers[1].width == 9
    assert changed.optim == Adam(betas=(0.1, 0.2))
    assert changed.named["tail"] == Layer(width=2)
    assert changed.seed is None
    assert changed.folder == Path("12")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rate", "key=value"),
        ("optm.momentum=1", "did you mean 'optim'"),
        ("optim.beta=1", "did you mean 'betas'"),
        ("layers.7.width=1", "layers.7"),
        ("rate=quick", "expected  float"),
        ("layers=[1", "is not JSON"),
    ],
)
def test_override_messages(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FULL.override([assignment])


class Decay(Config, tag=True):
    every: int
    inner: Sgd | Adam | None = None


class Choices(Config):
    optim: Sgd | Adam | Decay
    other: Literal["sgd", "adam"] | Sgd | Adam | Decay = "adam"
    none: Adam | Decay | None = None
    listed: list[Sgd | Adam | Decay] = []
    named: dict[str, Sgd | Adam] = {}
    type: str = "plain"


FULL_CHOICES = Choices(optim=Sgd(momentum=0.5), listed=[Sgd(), Decay(every=2, inner=Sgd())])


@pytest.mark.parametrize(
    ("assignments", "changes"),
    [
        (["optim.type=Adam"], {"optim": Adam()}),
        (["optim.type=Sgd"], {"optim": Sgd(momentum=0.5)}),
        (["optim.type=Adam", "optim.betas=[0.1, 0.2]"], {"optim": Adam(betas=(0.1, 0.2))}),
        (["optim.betas=[0.1, 0.2]", "optim.type=Adam"], {"optim": Adam(betas=(0.1, 0.2))}),
        (["optim.type=Decay", "optim.every=3"], {"optim": Decay(every=3)}),
        (["other.type=Decay", "other.every=3"], {"other": Decay(every=3)}),
        (["none.type=Decay", "none.every=3", "none.inner.type=Adam"], {"none": Decay(every=3, inner=Adam())}),
        (["listed.1.inner.type=Adam"], {"listed": [Sgd(), Decay(every=2, inner=Adam())]}),
        (["listed.0.type=Adam"], {"listed": [Adam(), Decay(every=2, inner=Sgd())]}),
        (["named.head.type=Adam"], {"named": {"head": Adam()}}),
        (["type=fancy"], {"type": "fancy"}),
    ],
)
def test_override_selects_the_class_of_a_config(assignments: list[str], changes: dict[str, Any]) -> None:
    assert FULL_CHOICES.override(assignments) == FULL_CHOICES.replace(**changes)


def test_assignments_select_the_class_of_a_required_field() -> None:
    assert Choices.from_assignments(["optim.type=Decay", "optim.every=3"]) == Choices(optim=Decay(every=3))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("optim.type=Adm", "optim.type\n  expected  'Sgd' or 'Adam' or 'Decay'\n  found     'Adm'"),
        ("other.every=3", 'hint      select a type first: other.type=..., or other={"type": ...} as JSON'),
        ("listed.7.type=Adam", "listed.7\n  found     an unknown key"),
        ("type.type=Adam", "type\n  found     'plain'"),
    ],
)
def test_messages_of_selected_classes(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        FULL_CHOICES.override([assignment])


class Named(Config):
    norm: nn.NormalizationConfig = "batch"
    act: nn.ActivationConfig = "relu"


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("norm", "BatchNorm", "did you mean 'batch'?"),
        ("norm", "BatchNorm2d", "did you mean 'batch'?"),
        ("norm", "btch", "did you mean 'batch'?"),
        ("norm", None, "did you mean 'identity'?"),
        ("norm", "none", "did you mean 'identity'?"),
        ("norm", nn.BatchNorm, "a Config, not the layer itself: BatchNorm.Config(...)"),
        ("norm", torch.nn.GroupNorm, "by name: 'group'"),
        ("norm", nn.Linear.Config, None),
        ("norm", 3, None),
        ("act", "LeakyReLU", "did you mean 'leaky_relu'?"),
        ("act", "swish", "did you mean 'silu'?"),
        ("act", nn.LeakyRelu(0.2), "a Config, not the layer itself: LeakyRelu.Config(...)"),
        ("act", nn.LeakyRelu.Config, "call it: LeakyRelu.Config(...)"),
        ("act", torch.relu, "by name: 'relu'"),
        ("act", "softmax", 'did you mean {"type": "Softmax"}?'),
        ("act", "qqq", None),
    ],
)
def test_layers_by_another_name(key: str, value: Any, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        Named(**{key: value})
    assert caught.value.hint == hint
    if key == "act":
        assert str(caught.value.expected).endswith(
            "'thresholded_relu' | one of 30 Configs, such as Celu.Config"
        )


class Net:
    class Config(Config):
        width: int = 3


def test_a_config_inside_of_a_class_is_shown_with_it() -> None:
    assert repr(Net.Config()) == "Net.Config(width=3)"
    assert repr(nn.LeakyRelu.Config(negative_slope=0.2)) == (
        "LeakyRelu.Config(negative_slope=0.2, inplace=False)"
    )
    with pytest.raises(ConfigError, match=r"^Net\.Config cannot be built"):
        Net.Config(width="wide")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    FULL.save(path)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ConfigError, match="not JSON"):
        Experiment.load(path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r'"format": 1'):
        Experiment.load(path)
    path.write_text(text.replace('"format": 1', '"format": 99'))
    with pytest.raises(ConfigError, match="upgrade burnt"):
        Experiment.load(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="an object"):
        Experiment.load(path)
    path.write_text(text.replace('"rate"', '"rat"'))
    with pytest.raises(ConfigError, match=r"in        config\.rat") as caught:
        Experiment.load(path)
    assert str(path) in str(caught.value)


def test_the_config_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    settings = {"model": "Net", "optimizer": "AdamW()", "duration": "1 epoch"}
    path.write_text(json.dumps({"config": FULL.to_dict(), **settings}))
    assert Experiment.load(path) == FULL
    path.write_text(json.dumps({"config": {**FULL.to_dict(), "rat": 1}, **settings}))
    with pytest.raises(ConfigError, match=r"in        config\.rat"):
        Experiment.load(path)
    path.write_text(json.dumps({"config": {}, **settings}))
    with pytest.raises(ConfigError, match="a run that was given none"):
        Experiment.load(path)


def test_saving_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    FULL.save(path)

    def fail(fd: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        Experiment().save(path)
    assert Experiment.load(path) == FULL
    assert list(tmp_path.iterdir()) == [path]


def test_an_unresolvable_annotation_is_a_definition_error() -> None:
    class Broken(Config):
        x: "Missing"  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match="Missing"):
        Broken(x=1)


def test_a_check_of_the_users_own_is_reported_at_its_path() -> None:
    with pytest.raises(ConfigError, match="heads must divide") as caught:
        Outer.from_dict({"inner": {"dim": 10, "heads": 4}})
    assert caught.value.where == "inner"


class Inner(Config):
    dim: int
    heads: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            raise ValueError("heads must divide dim")


class Outer(Config):
    inner: Inner


def test_sets_are_sorted_as_their_order_differs_from_process_to_process() -> None:
    class Part(Config):
        ids: frozenset[int]
        kinds: dict[str, set[str]] = {"b": {"y", "x"}, "a": {"z"}}

    class Whole(Config, rename={"parts": "all_parts"}):
        parts: tuple[Part, ...]
        pairs: set[tuple[str, frozenset[int]]]
        mixed: set[int | str | None] = set()

    one, other = frozenset([16, 8]), frozenset([8, 16])
    assert list(one) != list(other)  # the order of collisions, as that of texts by their hashes
    wholes = [
        Whole(parts=(Part(ids=ids),), pairs={("b", ids), ("a", ids)}, mixed={None, "x", 3, 20})
        for ids in (one, other)
    ]
    for whole in wholes:
        assert whole.to_dict() == {
            "all_parts": ({"ids": [8, 16], "kinds": {"b": ["x", "y"], "a": ["z"]}},),
            "pairs": [("a", [8, 16]), ("b", [8, 16])],
            "mixed": [None, 3, 20, "x"],
        }
        assert list(whole.to_dict()["all_parts"][0]["kinds"]) == ["b", "a"]
        assert Whole.from_json(whole.to_json()) == whole


def test_mutable_defaults_belong_to_each_instance() -> None:
    class Inner(Config, frozen=False):
        width: int = 1

    class Outer(Config):
        kinds: ClassVar[list[str]] = ["a"]
        names: "ClassVar[list[str]]" = ["b"]
        widths: list[int] = [1, 2]
        named: dict[str, list[int]] = {"a": [1]}
        marks: set[int] = {3}
        made: list[int] = field(default_factory=lambda: [7])
        inner: Inner = field(default_factory=Inner)
        rates: list[float] = field(default=[0.5])
        size: int = field(default=4)
        needed: int = field()

    first, second = Outer(needed=0), Outer(needed=0)
    first.widths.append(3)
    first.named["a"].append(2)
    first.rates.clear()
    assert second.to_dict() == {
        "widths": [1, 2], "named": {"a": [1]}, "marks": [3], "made": [7], "inner": {"width": 1},
        "rates": [0.5], "size": 4, "needed": 0,
    }  # fmt: skip
    assert first.made is not second.made
    assert (Outer.kinds, Outer.names) == (["a"], ["b"])
    assert Outer.from_assignments(["widths.1=5", "needed=1"]).widths == [1, 5]
    assert Outer.from_json(first.to_json()) == first
    with pytest.raises(ConfigError, match="in        needed"):
        Outer.from_dict({})


def test_messages_of_fields_that_cannot_be() -> None:
    class Inner(Config, frozen=False):
        width: int = 1

    with pytest.raises(DefinitionError) as caught:

        class Shared(Config):
            inner: Inner = Inner()

    assert "the Config Shared cannot be defined" in str(caught.value)
    assert caught.value.hint == "burnt.field(default_factory=...)"
    with pytest.raises(DefinitionError, match=r"in        .*Computed\.width"):

        class Computed(Config):
            width: int = field(init=False, default=3)

    class Wrong(Config):
        width: int = field(default_factory=list)

    with pytest.raises(ConfigError, match=r"found     \[\] \(list\)"):
        Wrong()


class Model(Config, tag=True, open=True):
    pass


class Mlp(Model):
    width: int = 8


class Ensemble(Model):
    members: list[Model]
    weights: dict[str, Model] = {}


class Wide(Mlp):
    depth: int = 2


class Choice(Config):
    model: Model
    other: Model | None = None
    count: int | list[Model] = 3
    pair: tuple[Model, int] | None = None


def test_an_open_config_stands_for_its_subclasses():
    choice = Choice(
        model=Ensemble(members=[Mlp(), Wide(width=3)], weights={"a": Ensemble(members=[])}),
        other=Wide(),
        count=[Mlp(width=2)],
        pair=(Mlp(), 4),
    )
    document = choice.to_dict()
    assert document["model"]["members"][1] == {"type": "Wide", "width": 3, "depth": 2}
    assert Choice.from_json(choice.to_json()) == choice
    assert Choice.from_dict({"model": {"type": "Mlp"}}) == Choice(model=Mlp())
    assert Choice.from_dict({"model": {"type": "Mlp"}, "count": 5}).count == 5
    assert choice.override(["model.members.0.width=9"]).model.members[0] == Mlp(width=9)
    assert Choice.from_assignments(["model.type=Wide", "model.depth=5"]).model == Wide(depth=5)

    class Later(Model):
        pass

    assert Choice.from_dict({"model": {"type": "Later"}}) == Choice(model=Later())


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"model": {"type": "Mpl"}},
            "Choice cannot be read\n"
            "  in        model.type\n"
            "  expected  'Mlp' or 'Wide' or 'Ensemble'\n"
            "  found     'Mpl'\n"
            "  hint      did you mean 'Mlp'?",
        ),
        (
            {"model": {"type": "Ensemble", "members": [{"type": "Mlp"}, {"type": "Mlp", "with": 3}]}},
            "Choice cannot be read\n"
            "  in        model.members[1].with\n"
            "  found     an unknown key\n"
            "  hint      did you mean 'width'? Known: width",
        ),
        (
            {"model": 3, "other": {"type": "Wide", "width": "x"}},
            "Choice cannot be read: 2 problems\n"
            "  in        model\n"
            "  expected  Model\n"
            "  found     3 (int)\n"
            "  from      also other.width: 'x' (str), expected int",
        ),
        ({}, "Choice cannot be read\n  in        model\n  expected  Model\n  found     nothing"),
        (
            {"model": {"type": "Mlp"}, "pair": [{"type": "Mlp"}]},
            "Choice cannot be read\n"
            "  in        pair\n"
            "  expected  tuple[Model, int] | None\n"
            "  found     [{'type': 'Mlp'}] (list)",
        ),
    ],
)
def test_problems_in_an_open_config(document, text):
    with pytest.raises(ConfigError) as caught:
        Choice.from_dict(document)
    shown = str(caught.value)
    # Classes that other tests define may be listed too.
    assert shown.replace(" or 'Later'", "") == text


def test_an_open_config_needs_a_tag():
    with pytest.raises(DefinitionError, match="the open Config Untagged has no tag") as caught:

        class Untagged(Config, open=True):
            pass

    assert caught.value.hint == "class Untagged(Config, tag=True, open=True)"


def test_a_check_of_a_nested_config_names_its_field():
    class Checked(Config):
        width: int

        def __post_init__(self):
            super().__post_init__()
            if self.width % 2:
                raise ConfigError("it is odd", where="width", expected="an even number", found=self.width)

    class Outer(Config):
        inner: Checked

    with pytest.raises(ConfigError) as caught:
        Outer.from_dict({"inner": {"width": 3}})
    assert str(caught.value) == (
        "Outer cannot be read\n  in        inner.width\n  expected  an even number\n  found     3"
    )


def test_an_open_config_in_the_constructor():
    with pytest.raises(ConfigError) as caught:
        Choice(model=Layer(width=3))
    assert "in        model\n  expected  Model\n  found     Layer(width=3" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        Ensemble(members=[Mlp(), 3])
    assert "in        members[1]\n" in str(caught.value)


def test_what_json_cannot_hold():
    class Holder(Config):
        call: Callable[[int], int]
        things: list[Layer] = []

    with pytest.raises(ConfigError) as caught:
        Holder(call=len).to_json()
    assert str(caught.value).startswith("Holder cannot be saved as JSON")
    assert "a function, len" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        Holder.from_dict({"call": "len"})
    assert "in        call\n" in str(caught.value)
    assert "'len' (str)" in str(caught.value)


def test_from_assignments_sets_required_fields():
    class Inner(Config):
        width: int
        norm: Norm = Norm.BATCH

    class Outer(Config):
        inner: Inner
        path: Path
        sizes: list[int] = msgspec.field(default_factory=lambda: [1, 2])
        either: Sgd | Adam = Adam()

    built = Outer.from_assignments(["inner.width=3", "path=a/b", "sizes.1=5", "either.betas=[0.5, 0.6]"])
    assert built == Outer(inner=Inner(width=3), path=Path("a/b"), sizes=[1, 5], either=Adam(betas=(0.5, 0.6)))
    with pytest.raises(ConfigError) as caught:
        Outer.from_assignments(["inner.norm=layer"])
    assert caught.value.where == "inner.width"
    assert "path: nothing, expected Path" in str(caught.value)


class Either(Config):
    count: int | str = "many"
    rate: float | str = "auto"
    flag: bool | str = "auto"
    name: str | None = "a"
    limit: int | None = 3
    any: int | bool | float | str | None = "a"
    mixed: list[int | str] = msgspec.field(default_factory=lambda: ["a"])
    text: str = "a"


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("count=5", 5),
        ("count=-5", -5),
        ('count="5"', "5"),
        ("count=5.5", "5.5"),
        ("count=05", "05"),
        ("count=true", "true"),
        ("rate=5", 5.0),
        ("rate=1e-3", 1e-3),
        ("rate=nan", "nan"),
        ("rate=Infinity", "Infinity"),
        ('rate="1.5"', "1.5"),
        ("flag=true", True),
        ("flag=False", False),
        ("flag=1", "1"),
        ('flag="true"', "true"),
        ("name=None", None),
        ("name=none", None),
        ("name=null", None),
        ('name="None"', "None"),
        ("name=5", "5"),
        ("name=", ""),
        ("limit=None", None),
        ("any=1", 1),
        ("any=1.5", 1.5),
        ("any=true", True),
        ("any=None", None),
        ("any=b", "b"),
        ("mixed.0=7", [7]),
        ("mixed.0=b", ["b"]),
        ("text=5", "5"),
        ("text=None", "None"),
    ],
)
def test_values_of_fields_that_may_be_strings(assignment: str, value: Any) -> None:
    found = getattr(Either.from_assignments([assignment]), assignment.partition("=")[0].partition(".")[0])
    assert (type(found), found) == (type(value), value)
