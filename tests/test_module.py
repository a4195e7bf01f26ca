"""Module: declared fields, containers, Config in the file, and what torch does to modules."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import math
import os
import pickle
import pydoc
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Optional, TypeVar, Union

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import burnt
from burnt import Config, Module, field, nn
from burnt.errors import ConfigError, DefinitionError, RecordError
from burnt.module import TensorDict, TensorList, loading_problem

T = TypeVar("T", bound=torch.nn.Module)


class Mlp(Module):
    first: nn.Linear
    second: nn.Linear
    scale: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))) * self.scale


class MlpConfig(Config):
    hidden: int = 5
    scale: float = 2.0

    def init(self) -> Mlp:
        return Mlp(nn.Linear(3, self.hidden), nn.Linear(self.hidden, 2), self.scale)


class Deep(Mlp):
    third: nn.Linear | None = None
    names: tuple[str, ...] = ()


class Mode(enum.StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Point(NamedTuple):
    x: int
    y: int


class Holder(Module):
    inner: list[Mlp]
    act: nn.Relu
    config: MlpConfig
    pair: tuple[int, int] = (1, 2)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    by_number: dict[int, str] = field(default_factory=dict)
    mode: Mode = Mode.FAST
    rate: float = 0.5
    anything: Any = ()
    sizes: Sequence[int] = (1,)
    name: str | None = "holder"
    odd: torch.Size | Path | None = None
    point: Point = Point(0, 0)
    shape: torch.Size = torch.Size([1])
    bare: tuple = ()  # type: ignore[type-arg]
    table: dict = field(default_factory=dict)  # type: ignore[type-arg]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.inner[1](x))


class HolderConfig(Config):
    rate: float = 0.5

    def init(self) -> Holder:
        torch.manual_seed(0)
        return Holder([mlp(), mlp()], nn.Relu(), MlpConfig())


class Own(Module):
    layer: nn.Linear
    scale: float = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


class OwnConfig(Config):
    def init(self) -> Own:
        return Own()


class Layers(Module):
    layers: nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class LayersConfig(Config):
    def init(self) -> Layers:
        return Layers(
            nn.Sequential(
                torch.nn.Identity(),
                torch.nn.BatchNorm2d(3),
                nn.LeakyRelu(),
                torch.nn.Dropout(0.5),
                nn.Conv2d(3, 2, 3),
            )
        )


class Wrap(Module, Generic[T]):
    inner: T
    times: int = 2


class Tree(Module):
    children_: list[Tree] = field(default_factory=list)
    weight: Optional[Parameter] = None  # noqa: UP045 - the older spelling is met in the wild
    parent_: Union[Forward, None] = None  # noqa: UP007


class Forward(Module):
    value: int = 0


class Everything(Module):
    modules_: list[nn.Linear]
    pair: tuple[nn.Linear, nn.Relu]
    named: dict[str, nn.Linear]
    parameters_: list[Parameter]
    named_parameters_: dict[str, Parameter]
    tensors: list[Tensor]
    named_tensors: dict[str, Tensor]
    tensor: Tensor
    numbers: list[int]
    table: dict[str, int]
    anything: Any = None
    count: ClassVar[int] = 7


def everything() -> Everything:
    return Everything(
        [nn.Linear(1, 1), nn.Linear(1, 2)],
        (nn.Linear(2, 1), nn.Relu()),
        {"a": nn.Linear(1, 3)},
        [Parameter(torch.zeros(1)), Parameter(torch.zeros(2))],
        {"p": Parameter(torch.zeros(3))},
        [torch.zeros(4), torch.zeros(5)],
        {"t": torch.zeros(6)},
        torch.zeros(7),
        [1, 2],
        {"x": 1},
    )


def mlp() -> Mlp:
    torch.manual_seed(0)
    return MlpConfig().init()


class TestDerivedInit:
    def test_positional_keyword_and_default(self) -> None:
        first, second = nn.Linear(3, 4), nn.Linear(4, 2)
        model = Mlp(first, second=second)
        assert model.scale == 1.0
        assert model.first is first
        assert [name for name, _ in model.named_children()] == ["first", "second"]
        assert model.num_params() == 3 * 4 + 4 + 4 * 2 + 2
        x = torch.randn(5, 3)
        assert torch.equal(Mlp(first, second, 3.0)(x), 3 * model(x))

    def test_missing_and_unknown_arguments_are_errors(self) -> None:
        with pytest.raises(TypeError, match="second"):
            Mlp(nn.Linear(1, 1))  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="depth"):
            Mlp(nn.Linear(1, 1), nn.Linear(1, 1), depth=3)  # type: ignore[call-arg]

    def test_inherited_fields_come_first(self) -> None:
        model = Deep(nn.Linear(1, 1), nn.Linear(1, 1), 0.5, nn.Linear(1, 1), ("a",))
        assert [name for name, _ in model.named_children()] == ["first", "second", "third"]
        assert model.static_fields() == {"scale": 0.5, "names": ("a",)}
        plain = Deep(nn.Linear(1, 1), nn.Linear(1, 1))
        assert plain.third is None
        assert plain.scale == 1.0

    def test_generic(self) -> None:
        model = Wrap[nn.Linear](nn.Linear(1, 2))
        assert list(model.state_dict()) == ["inner.weight", "inner.bias"]
        assert model.times == 2

    def test_forward_references_to_oneself_and_to_later_classes(self) -> None:
        tree = Tree([Tree(), Tree([Tree()])])
        assert isinstance(tree.children_, torch.nn.ModuleList)
        assert sum(isinstance(module, Tree) for module in tree.modules()) == 4
        assert isinstance(Tree().children_, torch.nn.ModuleList)
        assert Tree(parent_=Forward(3)).parent_.value == 3

    def test_annotations_that_are_no_strings(self) -> None:
        annotations = {"inner": nn.Linear, "rate": float}
        kind = types.new_class(
            "Plain", (Module,), exec_body=lambda ns: ns.update(__annotations__=annotations, rate=0.5)
        )
        model = kind(nn.Linear(1, 1))
        assert model.static_fields() == {"rate": 0.5}

    def test_post_init_runs(self) -> None:
        class Doubled(Module):
            size: int

            def __post_init__(self) -> None:
                self.layer = nn.Linear(self.size, 2 * self.size)

        assert Doubled(3).layer.weight.shape == (6, 3)

    def test_own_init_is_kept_and_declared_fields_still_count(self) -> None:
        class Own(Module):
            layer: nn.Linear
            size: int

            def __init__(self, size: int) -> None:
                super().__init__()
                self.size = size
                self.layer = nn.Linear(size, size)

        model = Own(3)
        assert model.static_fields() == {"size": 3}
        assert isinstance(Own.Config(size=2).init(), Own)

        class Child(Own):
            pass

        assert Child(4).size == 4

    def test_repr_shows_layers_and_static_fields(self) -> None:
        text = repr(mlp())
        assert text.startswith("Mlp(\n  scale=2.0\n")
        assert "(first): Linear(in_features=3, out_features=5, bias=True)" in text


class TestRefused:
    @pytest.mark.parametrize("name", ["parameters", "training", "forward", "save", "map", "Config"])
    def test_names_that_torch_or_module_has(self, name: str) -> None:
        with pytest.raises(DefinitionError) as caught:
            types.new_class("Bad", (Module,), exec_body=lambda ns: ns.update(__annotations__={name: "int"}))
        assert f"Bad cannot have a field {name!r}" in str(caught.value)
        assert caught.value.hint == f"use another name, such as {name}_"

    @pytest.mark.parametrize(
        "default", [nn.Linear(1, 1), torch.zeros(1), Parameter(torch.zeros(1))], ids=repr
    )
    def test_defaults_that_all_would_share(self, default: Any) -> None:
        with pytest.raises(DefinitionError, match="all instances of Bad would share") as caught:
            types.new_class(
                "Bad", (Module,), exec_body=lambda ns: ns.update(__annotations__={"x": Any}, x=default)
            )
        assert "default_factory" in str(caught.value.expected)

    @pytest.mark.parametrize("default", [[], {}, set()], ids=repr)
    def test_mutable_defaults(self, default: Any) -> None:
        with pytest.raises(DefinitionError, match="no __init__ can be derived") as caught:
            types.new_class(
                "Bad", (Module,), exec_body=lambda ns: ns.update(__annotations__={"x": Any}, x=default)
            )
        assert "default_factory" in str(caught.value)

    def test_a_field_without_default_after_one_with(self) -> None:
        with pytest.raises(DefinitionError, match="non-default argument 'b' follows"):

            class Bad(Module):
                a: int = 1
                b: int

    @pytest.mark.parametrize(
        "items",
        [
            [nn.Linear(1, 1), torch.zeros(1)],
            [nn.Linear(1, 1), 3],
            [Parameter(torch.zeros(1)), torch.zeros(1)],
            (nn.Linear(1, 1), None),
            {"a": nn.Linear(1, 1), "b": "text"},
        ],
        ids=["module-tensor", "module-int", "parameter-tensor", "module-none", "dict"],
    )
    def test_mixed_containers(self, items: Any) -> None:
        model = everything()
        with pytest.raises(DefinitionError, match=r"Everything\.anything cannot be registered") as caught:
            model.anything = items
        assert "a mixture: " in str(caught.value.found)

    def test_keys_that_are_no_strings(self) -> None:
        model = everything()
        with pytest.raises(DefinitionError, match="keys that are strings") as caught:
            model.anything = {3: nn.Linear(1, 1)}
        assert caught.value.found == "3"

    def test_a_field_assigned_before_the_module_is_set_up(self) -> None:
        class Early(Module):
            layers: list[nn.Linear]

            def __init__(self) -> None:
                self.layers = [nn.Linear(1, 1)]

        with pytest.raises(DefinitionError, match=r"Early\.layers is assigned too early") as caught:
            Early()
        assert "super().__init__()" in str(caught.value)


class TestContainers:
    def test_each_kind_is_registered(self) -> None:
        model = everything()
        assert isinstance(model.modules_, torch.nn.ModuleList)
        assert isinstance(model.pair, torch.nn.ModuleList)
        assert isinstance(model.named, torch.nn.ModuleDict)
        assert isinstance(model.parameters_, torch.nn.ParameterList)
        assert isinstance(model.named_parameters_, torch.nn.ParameterDict)
        assert isinstance(model.tensors, TensorList)
        assert isinstance(model.named_tensors, TensorDict)
        assert {name for name, _ in model.named_buffers()} == {
            "tensors.0",
            "tensors.1",
            "named_tensors.t",
            "tensor",
        }
        assert [p.numel() for p in model.parameters() if p.dim() == 1 and not p.any()][-1:] == [3]
        assert model.static_fields() == {"numbers": [1, 2], "table": {"x": 1}, "anything": None}
        assert model.count == 7
        assert [t.numel() for t in model.tensors] == [4, 5]
        assert model.tensors[-1].numel() == 5
        assert len(model.tensors) == 2
        assert list(model.named_tensors) == ["t"]
        assert model.named_tensors["t"].numel() == 6
        assert len(model.named_tensors) == 1
        with pytest.raises(IndexError):
            model.tensors[2]

    def test_they_move_and_cast_with_the_module(self) -> None:
        model = everything().double()
        assert {v.dtype for v in model.state_dict().values()} == {torch.float64}

    def test_nested_lists(self) -> None:
        model = everything()
        model.anything = [[nn.Linear(1, 1)], [nn.Linear(1, 1), nn.Linear(1, 1)]]
        assert "anything.1.1.weight" in model.state_dict()

    def test_an_empty_container_follows_its_annotation(self) -> None:
        assert isinstance(Tree([]).children_, torch.nn.ModuleList)
        model = everything()
        model.numbers = []
        assert model.numbers == []
        assert type(model.numbers) is list


class TestReassigning:
    def test_none_to_a_module_and_back(self) -> None:
        model = Deep(nn.Linear(1, 1), nn.Linear(1, 1))
        assert "third" in model.static_fields()
        model.third = nn.Linear(1, 4)
        assert "third.weight" in model.state_dict()
        assert "third" not in model.static_fields()
        model.third = None
        assert "third.weight" not in model.state_dict()
        assert model.third is None

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)])
    def test_any_kind_after_any_other(self, order: tuple[int, ...]) -> None:
        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: torch.ones(2),
            lambda: Parameter(torch.ones(3)),
            lambda: nn.Linear(1, 1),
        ]
        model = Tree()
        for which in order:
            model.weight = None
            value = kinds[which]()
            model.weight = value
            assert model.weight is value
            keys = {key.partition(".")[0] for key in model.state_dict()}
            assert keys == (set() if value is None else {"weight"})
            assert len(list(model.parameters())) == (0, 0, 1, 2)[which]

    def test_a_tensor_replaces_a_tensor(self) -> None:
        model = everything()
        model.tensor = torch.ones(2)
        assert model.state_dict()["tensor"].tolist() == [1.0, 1.0]

    def test_lists_are_replaced_whole(self) -> None:
        model = everything()
        model.modules_ = [nn.Linear(5, 1)]
        assert [k for k in model.state_dict() if k.startswith("modules_")] == [
            "modules_.0.weight",
            "modules_.0.bias",
        ]


class TestRecord:
    def test_round_trip_with_config(self, tmp_path: Path) -> None:
        model = mlp()
        model.save(tmp_path / "m.safetensors")
        loaded = Mlp.load(tmp_path / "m.safetensors")
        assert loaded.scale == 2.0
        x = torch.randn(4, 3)
        assert torch.equal(loaded(x), model(x))
        loaded.save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()

    def test_every_container_round_trips(self, tmp_path: Path) -> None:
        model, other = everything(), everything()
        with torch.no_grad():
            for value in model.state_dict().values():
                value.normal_()
        model.save(tmp_path / "m.safetensors")
        report = other.load_record(burnt.Record.load(tmp_path / "m.safetensors"))
        assert set(report.applied) == set(model.state_dict())
        for path, value in model.state_dict().items():
            assert torch.equal(other.state_dict()[path], value), path

    def test_printing_a_record_shows_shapes_and_no_values(self) -> None:
        layer = nn.Linear(3, 3)
        record = Mlp(layer, layer).into_record()
        name = f"{Mlp.__module__}.Mlp"
        assert repr(record) == f"Record(2 tensors, 12 values, model={name!r}, config_type=None)"
        assert str(record).splitlines()[1:] == [
            "  first.weight  (3, 3) torch.float32",
            "  first.bias    (3,) torch.float32",
            "  second.weight is first.weight",
            "  second.bias is first.bias",
        ]
        assert str(burnt.Record({})) == "Record(0 tensors, 0 values, model=None, config_type=None)"

    def test_tied_weights_are_written_once_and_stay_tied(self, tmp_path: Path) -> None:
        layer = nn.Linear(3, 3)
        model = Mlp(layer, layer)
        record = model.into_record()
        assert record.aliases == {"second.weight": "first.weight", "second.bias": "first.bias"}
        model.save(tmp_path / "m.safetensors")
        loaded = burnt.Record.load(tmp_path / "m.safetensors")
        assert sorted(loaded.tensors) == ["first.bias", "first.weight"]
        tied, untied = Mlp(nn.Linear(3, 3), nn.Linear(3, 3)), Mlp(nn.Linear(3, 3), nn.Linear(3, 3))
        tied.second = tied.first
        for twin in (tied, untied):
            twin.load_record(loaded)
            assert torch.equal(twin.second.weight, layer.weight)
        assert tied.second is tied.first

    def test_static_fields_travel_and_differences_are_reported(self) -> None:
        model, other = mlp(), mlp()
        other.scale = 9.0
        report = other.load_record(model.into_record())
        assert report.static == {"scale": (2.0, 9.0)}
        assert "scale: 2.0 in the record, 9.0 here" in str(report)
        nested = Wrap(model)
        assert nested.into_record().static == {"": {"times": 2}, "inner": {"scale": 2.0}}

    def test_fields_that_were_set_after_init_are_those_of_the_loaded_model(self, tmp_path: Path) -> None:
        model = HolderConfig().init()
        model.inner[1].scale = 0.25
        values = {
            "pair": (3, 4),
            "pairs": [(1, 2)],
            "by_number": {1: "a"},
            "mode": Mode.SLOW,
            "rate": math.nan,
        }
        values |= {"point": Point(1, 2), "shape": torch.Size([3]), "bare": (1, 2.5), "table": {"a": [1]}}
        values |= {"anything": (5, 6), "sizes": (7, 8), "name": None, "config": MlpConfig(hidden=9)}
        for name, value in values.items():
            setattr(model, name, value)
        model.save(tmp_path / "m.safetensors")
        loaded = Holder.load(tmp_path / "m.safetensors")
        x = torch.randn(4, 3)
        assert torch.equal(loaded(x), model(x))
        assert not torch.equal(HolderConfig().init().inner[1](x), loaded.inner[1](x))
        for name, value in values.items():
            found = getattr(loaded, name)
            assert type(found) is type(value)
            assert found == value or (value != value and found != found)
        assert [type(pair) for pair in loaded.pairs] == [tuple]

    def test_fields_of_a_class_with_its_own_init_are_loaded(self, tmp_path: Path) -> None:
        model = OwnConfig().init()
        model.scale = 5.0  # the default is in the class
        model.save(tmp_path / "m.safetensors")
        loaded = Own.load(tmp_path / "m.safetensors")
        assert torch.equal(loaded(torch.ones(1, 2)), model(torch.ones(1, 2)))
        OwnConfig().init().save(tmp_path / "default.safetensors")
        assert Own.load(tmp_path / "default.safetensors").scale == 1.0

    def test_a_config_whose_whole_number_is_a_float_is_the_same(self, tmp_path: Path) -> None:
        model = HolderConfig(rate=0).init()
        model.rate = 3.0
        model.save(tmp_path / "m.safetensors")
        assert Holder.load(tmp_path / "m.safetensors").rate == 3.0

    @pytest.mark.parametrize(
        ("name", "value"), [("bare", (1, (2, 3))), ("table", {1: 2}), ("table", {None: 2})]
    )
    def test_a_value_of_which_json_loses_the_types_is_named(
        self, name: str, value: Any, tmp_path: Path
    ) -> None:
        model = HolderConfig().init()
        setattr(model, name, value)
        model.save(tmp_path / "m.safetensors")
        with pytest.raises(RecordError, match=f"{name} of the model cannot be made what it was"):
            Holder.load(tmp_path / "m.safetensors")

    def test_a_field_that_cannot_be_what_it_was_is_named(self, tmp_path: Path) -> None:
        model = HolderConfig().init()
        model.odd = [1, 2]  # annotated as a class that JSON does not have
        model.inner[1].scale = 0.25
        model.save(tmp_path / "m.safetensors")
        with pytest.raises(RecordError, match="odd of the model cannot be made what it was") as caught:
            Holder.load(tmp_path / "m.safetensors")
        assert "expected  [1, 2]" in str(caught.value)
        replaced = HolderConfig().init()
        replaced.act = nn.Gelu(approximate="tanh")
        replaced.save(tmp_path / "m.safetensors")
        with pytest.raises(RecordError, match=r"act\.approximate of the model cannot be made"):
            Holder.load(tmp_path / "m.safetensors")

    def test_numbers_of_torchs_layers_are_loaded_and_a_layer_that_was_replaced_is_named(
        self, tmp_path: Path
    ) -> None:
        model = LayersConfig().init()
        model.layers[1].eps, model.layers[2].negative_slope, model.layers[3].p = 0.5, 0.75, 0.25
        model.layers[4].stride = (2, 2)
        model.save(tmp_path / "m.safetensors")
        loaded = Layers.load(tmp_path / "m.safetensors").eval()
        x = torch.randn(3, 3, 8, 8)
        assert torch.equal(loaded(x), model.eval()(x))
        assert loaded.layers[3].p == 0.25
        for other in (torch.nn.Tanh(), nn.Elu(), torch.nn.Identity()):
            model.layers[2] = other
            model.save(tmp_path / "m.safetensors")
            with pytest.raises(RecordError, match=r"layers\.2\.class of the model") as caught:
                Layers.load(tmp_path / "m.safetensors")
            assert f"expected  '{type(other).__name__}'" in str(caught.value)

    def test_a_config_may_be_a_static_field(self, tmp_path: Path) -> None:
        class Kept(Module):
            config: MlpConfig
            layer: nn.Linear

        Kept(MlpConfig(hidden=3), nn.Linear(2, 2)).save(tmp_path / "m.safetensors")
        record = burnt.Record.load(tmp_path / "m.safetensors")
        assert record.static[""] == {"config": MlpConfig(hidden=3).to_dict()}
        assert not Kept(MlpConfig(hidden=3), nn.Linear(2, 2)).load_record(record).static
        differs = Kept(MlpConfig(hidden=4), nn.Linear(2, 2)).load_record(record).static
        assert list(differs) == ["config"]

    def test_the_meta_device_has_nothing_to_save_and_gets_memory_when_loaded(self, tmp_path: Path) -> None:
        real, meta = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
        with pytest.raises(RecordError, match="no values to save") as caught:
            meta.save(tmp_path / "m.safetensors")
        assert "in        weight" in str(caught.value)
        assert not list(tmp_path.iterdir())
        with pytest.raises(RecordError, match="no values to load") as caught:
            real.load_record(meta.into_record())
        assert caught.value.where == "weight"
        meta.load_record(real.into_record())
        assert torch.equal(meta.weight, real.weight)
        assert meta.weight.data_ptr() != real.weight.data_ptr()

    def test_a_static_field_that_json_cannot_hold(self, tmp_path: Path) -> None:
        model = Wrap(mlp())
        model.inner.scale = torch.relu  # type: ignore[assignment]
        with pytest.raises(RecordError) as caught:
            model.save(tmp_path / "m.safetensors")
        assert caught.value.where == "inner.scale"
        assert list(tmp_path.iterdir()) == []

    def test_a_mismatch_lists_every_tensor_and_changes_nothing(self) -> None:
        model = mlp()
        before = {path: value.clone() for path, value in model.state_dict().items()}
        other = Mlp(nn.Linear(5, 3, bias=False), nn.Linear(5, 2))
        with pytest.raises(RecordError) as caught:
            model.load_record(other.into_record())
        text = str(caught.value)
        assert "the record does not fit Mlp: 2 of 4 tensors" in text
        assert "first.weight: (5, 3) in the module, (3, 5) in the record (transposed?)" in text
        assert "first.bias: (5,) in the module, nothing in the record" in text
        assert "partial=True" in text
        for path, value in before.items():
            assert torch.equal(model.state_dict()[path], value)

    def test_partial_loads_what_fits_by_name(self) -> None:
        model = mlp()
        record = Deep(model.first, nn.Linear(5, 2), third=nn.Linear(1, 1)).into_record()
        twin = Mlp(nn.Linear(3, 5), nn.Linear(5, 2, bias=False))
        report = twin.load_record(record, partial=True)
        assert report.applied == ("first.weight", "first.bias", "second.weight")
        assert report.unexpected == ("second.bias", "third.weight", "third.bias")
        assert torch.equal(twin.first.weight, model.first.weight)
        wrong = Deep(nn.Linear(3, 5), nn.Linear(5, 2), third=nn.Linear(2, 1, bias=False))
        with pytest.raises(RecordError, match=r"1 of 6") as caught:
            wrong.load_record(record, partial=True)
        assert "third.weight: (1, 2) in the module, (1, 1) in the record" in str(caught.value)

    def test_a_name_that_only_looks_compiled(self) -> None:
        class Odd(Module):
            my_orig_mod: nn.Linear

        assert "my_orig_mod.weight" in Odd(nn.Linear(1, 1)).into_record().tensors

    def test_compiled_models_have_the_same_paths(self, tmp_path: Path) -> None:
        model = mlp()
        compiled: Any = torch.compile(Wrap(torch.compile(model, backend="eager")), backend="eager")
        record = burnt.record.record_of(compiled)
        assert list(record.tensors) == list(Wrap(model).into_record().tensors)
        assert record.static == {"": {"times": 2}, "inner": {"scale": 2.0}}
        compiled.save(tmp_path / "m.safetensors")
        fresh: Any = torch.compile(Wrap(mlp()), backend="eager")
        assert burnt.record.load_into(fresh, burnt.Record.load(tmp_path / "m.safetensors")).missing == ()

    def test_extra_state_is_refused(self) -> None:
        class Odd(Module):
            def get_extra_state(self) -> Any:
                return {"a": 1}

        with pytest.raises(RecordError, match="state that is not a tensor") as caught:
            Odd().into_record()
        assert caught.value.where == "_extra_state"

    def test_lora_adapters_on_one_side_alone_are_explained(self, tmp_path: Path) -> None:
        base, adapted, path = MlpConfig().init(), MlpConfig().init(), tmp_path / "model.safetensors"
        nn.lora(adapted, rank=3, targets="first")
        adapted.save(path)
        how = r"burnt.nn.lora\(model, rank=3, targets=...\) .*, with burnt.load\(run, model=model\)"
        with pytest.raises(RecordError, match=how):
            Mlp.load(path)
        with pytest.raises(RecordError, match=how):
            base.load_record(adapted.into_record())
        with pytest.raises(RecordError, match=r"has LoRA adapters: load .* before burnt.nn.lora\(model\)"):
            adapted.load_record(base.into_record())
        nn.lora(base, rank=3, targets="first")
        assert base.load_record(adapted.into_record()).missing == ()


class Wide(Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, width)


class Unannotated(Config):
    def init(self):  # type: ignore[no-untyped-def]
        return mlp()


class Unresolvable(Config):
    def init(self) -> NoSuchThing:  # type: ignore[name-defined]  # noqa: F821
        return mlp()


class Lying(Config):
    def init(self) -> Mlp:
        return Forward()  # type: ignore[return-value]


class WithoutInit(Config):
    hidden: int = 1


def with_config(model: Module, path: Path, config: Config) -> Path:
    model._remember_config(config)
    model.save(path / "m.safetensors")
    return path / "m.safetensors"


class TestConfigInTheFile:
    def test_no_config(self, tmp_path: Path) -> None:
        Mlp(nn.Linear(1, 1), nn.Linear(1, 1)).save(tmp_path / "m.safetensors")
        with pytest.raises(RecordError, match=r"holds no Config, so Mlp\.load cannot build") as caught:
            Mlp.load(tmp_path / "m.safetensors")
        assert "burnt.load(RUN, model=Mlp(...))" in str(caught.value)
        assert "load_record" in str(caught.value)

    def test_no_config_and_no_parameters(self, tmp_path: Path) -> None:
        class Fixed(Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 2)

        class Sized(Fixed):
            def __init__(self, size: int = 3) -> None:
                super().__init__()

        model = Fixed()
        model.save(tmp_path / "m.safetensors")
        assert torch.equal(Fixed.load(tmp_path / "m.safetensors").layer.weight, model.layer.weight)
        with pytest.raises(RecordError, match="holds no Config"):  # its size is not known
            Sized.load(tmp_path / "m.safetensors")

    def test_not_imported(self, tmp_path: Path) -> None:
        class Gone(Config):
            pass

        Gone.__qualname__ = "Elsewhere"
        path = with_config(mlp(), tmp_path, Gone())
        Gone.__qualname__ = "Gone"
        with pytest.raises(RecordError, match=r"the Config that built .* is not imported") as caught:
            Mlp.load(path)
        assert str(caught.value.expected).endswith(".Elsewhere")
        assert "import it first" in str(caught.value)

    @pytest.mark.parametrize(
        ("config", "found"),
        [
            (WithoutInit(), "no init"),
            (Unresolvable(), "NoSuchThing"),
            (nn.Linear.Config(in_features=1, out_features=1), "-> Linear"),
        ],
        ids=["no init", "unresolvable", "another layer"],
    )
    def test_a_config_that_builds_something_else(self, tmp_path: Path, config: Config, found: str) -> None:
        path = with_config(mlp(), tmp_path, config)
        with pytest.raises(RecordError, match="builds no Mlp") as caught:
            Mlp.load(path)
        assert found in str(caught.value)

    def test_an_init_without_annotation_is_called_in_the_module_of_the_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = with_config(mlp(), tmp_path, Unannotated())
        assert type(Mlp.load(path)) is Mlp
        assert loading_problem(mlp()) is loading_problem(Wrap(mlp())) is None
        with pytest.raises(RecordError, match="builds no Deep") as caught:
            Deep.load(path)
        assert caught.value.found == "Mlp"
        # A file may not call an init anywhere in the program.
        called = []
        monkeypatch.setattr(Unannotated, "init", lambda self: called.append(1))
        monkeypatch.setattr(Unannotated, "__module__", "elsewhere")
        path = with_config(mlp(), tmp_path, Unannotated())
        with pytest.raises(RecordError, match="builds no Mlp") as caught:
            Mlp.load(path)
        assert caught.value.found == "an init without a return annotation"
        assert "annotate it: def init(self) -> Mlp" in str(caught.value)
        assert called == []
        model = mlp()
        model._remember_config(Unannotated())
        assert "elsewhere.Unannotated.init is not annotated to return Mlp" in str(loading_problem(model))

    @pytest.mark.parametrize(
        ("written", "module"),
        [("__main__", None), ("package.net", None), (None, "__main__"), ("net", "package.net")],
    )
    def test_the_module_may_have_had_another_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None, module: str | None
    ) -> None:
        # As a script, as a file of `burnt train` and as a part of a package.
        for config in (MlpConfig(hidden=7), Wide.Config(width=7)):
            model = config.init()
            name = f"{written or config.__module__}.{type(config).__qualname__}"
            record = burnt.record.record_of(model, config=config)
            changed = dataclasses.replace(record, config_type=name)
            changed.save(tmp_path / "m.safetensors")
            with monkeypatch.context() as patch:
                if module is not None:
                    for owner in (type(config), type(model)):
                        patch.setattr(owner, "__module__", module)
                loaded = type(model).load(tmp_path / "m.safetensors")
            assert type(loaded) is type(model)
            for path, value in model.state_dict().items():
                assert torch.equal(loaded.state_dict()[path], value)

    def test_a_config_in_the_models_module_comes_before_one_that_builds_something_else(
        self, tmp_path: Path
    ) -> None:
        # As when a file is both imported and run as a script: each has a Mlp and a MlpConfig of its own.
        class Other(Config):
            def init(self) -> Forward:
                return Forward()

        Other.__module__, Other.__qualname__ = "elsewhere", "MlpConfig"
        record = burnt.record.record_of(mlp(), config=MlpConfig())
        dataclasses.replace(record, config_type="elsewhere.MlpConfig").save(tmp_path / "m.safetensors")
        assert type(Mlp.load(tmp_path / "m.safetensors")) is Mlp

    def test_a_config_whose_annotation_lies(self, tmp_path: Path) -> None:
        path = with_config(mlp(), tmp_path, Lying())
        with pytest.raises(RecordError, match="builds no Mlp") as caught:
            Mlp.load(path)
        assert caught.value.found == "Forward"

    def test_load_of_another_class(self, tmp_path: Path) -> None:
        mlp().save(tmp_path / "m.safetensors")
        with pytest.raises(RecordError, match="builds no Deep"):
            Deep.load(tmp_path / "m.safetensors")
        assert type(Module.load(tmp_path / "m.safetensors")) is Mlp

    def test_values_that_no_longer_fit(self, tmp_path: Path) -> None:
        record = mlp().into_record()
        assert record.config is not None
        changed = burnt.Record(
            record.tensors, config_type=record.config_type, config={**record.config, "hiden": 3}
        )
        changed.save(tmp_path / "m.safetensors")
        with pytest.raises(ConfigError, match="hiden"):
            Mlp.load(tmp_path / "m.safetensors")

    def test_another_config_may_be_given(self, tmp_path: Path) -> None:
        mlp().save(tmp_path / "m.safetensors")
        assert Mlp.load(tmp_path / "m.safetensors", config=MlpConfig(scale=7.0)).scale == 7.0
        with pytest.raises(RecordError, match="does not fit Mlp"):
            Mlp.load(tmp_path / "m.safetensors", config=MlpConfig(hidden=6))
        assert Mlp.load(tmp_path / "m.safetensors", device="meta").first.weight.is_meta

    def test_a_derived_init_has_no_config(self) -> None:
        with pytest.raises(DefinitionError, match="Mlp has no derived Config"):
            Mlp.Config

    def test_without_a_config_a_class_can_still_be_inspected(self) -> None:
        class Net(Module):
            def __init__(self, size: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821
                super().__init__()

        with pytest.raises(DefinitionError, match="names that exist at run time"):
            Net.Config
        for cls in (Net, Mlp, Module, burnt.nn.Linear, burnt.optim.Optimizer):
            assert cls.__name__ in pydoc.render_doc(cls)  # what help() shows
        assert not hasattr(Mlp, "Config")
        assert "forward" in dict(inspect.getmembers(mlp()))

    def test_parameters_without_annotation_have_no_config(self) -> None:
        class Bare(Module):
            def __init__(self, size):  # type: ignore[no-untyped-def]
                super().__init__()

        class Star(Module):
            def __init__(self, *sizes: int) -> None:
                super().__init__()

        for kind, name in ((Bare, "size"), (Star, "sizes")):
            with pytest.raises(DefinitionError, match="no Config can be derived") as caught:
                kind.Config
            assert name in str(caught.value.where)


class TestDamagedFiles:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        layer = nn.Linear(2, 2)
        model = Wrap(Mlp(layer, layer))
        model.save(tmp_path / "m.safetensors")
        return tmp_path / "m.safetensors"

    def test_a_newer_format(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("burnt.record.record.FORMAT", 2)
        mlp().save(saved)
        monkeypatch.undo()
        with pytest.raises(RecordError, match="newer format") as caught:
            burnt.Record.load(saved)
        assert (caught.value.expected, caught.value.found) == ("format 1", "format 2")
        assert "upgrade burnt" in str(caught.value)

    def test_a_foreign_safetensors_file(self, tmp_path: Path) -> None:
        import safetensors.torch

        model = mlp()
        safetensors.torch.save_file(dict(model.state_dict()), tmp_path / "m", {"format": "pt"})
        record = burnt.Record.load(tmp_path / "m")
        assert (record.model, record.config_type, record.aliases) == (None, None, {})
        fresh = Mlp(nn.Linear(3, 5), nn.Linear(5, 2))
        fresh.load_record(record)
        assert torch.equal(fresh.first.weight, model.first.weight)
        with pytest.raises(RecordError, match="holds no Config"):
            Mlp.load(tmp_path / "m")

    def test_metadata_of_another_shape(self, saved: Path) -> None:
        from burnt.record import write_tensors

        nothing = {"format": 1, "model": None, "config_type": None, "config": None, "static": {}}
        for document, message in [
            ({"format": "1"}, "newer format"),
            ({**nothing, "aliases": []}, "metadata of a record is damaged"),
            ({**nothing, "aliases": {"b": "a"}}, "tied tensors of a record are missing"),
        ]:
            write_tensors(saved, {"x": torch.zeros(1)}, document)
            with pytest.raises(RecordError, match=message):
                burnt.Record.load(saved)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            Mlp.load(tmp_path / "no.safetensors")
        with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere"):
            mlp().save(tmp_path / "nowhere" / "m.safetensors")

    def test_a_failed_save_leaves_the_old_file(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = saved.read_bytes()

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            mlp().save(saved)
        assert saved.read_bytes() == before
        assert list(saved.parent.iterdir()) == [saved]


class TestCopies:
    def test_fork_shares_nothing_and_keeps_ties_config_and_requires_grad(self) -> None:
        model = mlp()
        model.second = nn.Linear(5, 3)
        model.first.weight = Parameter(torch.zeros(5, 3), requires_grad=False)
        twin = model.fork()
        assert not twin.first.weight.requires_grad
        assert twin.into_record().config == {"hidden": 5, "scale": 2.0}
        mine = {p.data_ptr() for p in model.parameters()}
        assert not mine & {p.data_ptr() for p in twin.parameters()}
        layer = nn.Linear(2, 2)
        tied = Mlp(layer, layer).fork()
        assert tied.first is tied.second
        assert model.fork("meta").first.weight.is_meta

    def test_fork_of_what_has_a_graph(self) -> None:
        model = everything()
        model.tensor = torch.ones(2, requires_grad=True) * 2
        twin = model.fork()
        assert twin.tensor.tolist() == [2.0, 2.0]
        assert not twin.tensor.requires_grad

    def test_deepcopy_and_pickle_keep_the_config(self, tmp_path: Path) -> None:
        for twin in (copy.deepcopy(mlp()), pickle.loads(pickle.dumps(mlp()))):
            twin.save(tmp_path / "m.safetensors")
            assert torch.equal(Mlp.load(tmp_path / "m.safetensors").first.weight, mlp().first.weight)


class TestUnderTorch:
    def test_functional_call_and_grad(self) -> None:
        model, x = mlp(), torch.randn(4, 3)
        params = dict(model.named_parameters())
        grads = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(params)
        expected = burnt.Gradients.of(model(x).sum(), model)
        for path, gradient in expected.items():
            torch.testing.assert_close(grads[path], gradient)

    def test_compile_as_one_graph_and_export(self) -> None:
        torch._dynamo.reset()
        model, x = mlp(), torch.randn(4, 3)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
        model.scale = 5.0
        torch.testing.assert_close(compiled(x), model(x))
        program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
        torch.testing.assert_close(program.module()(x[:2]), model(x[:2]))

    def test_compile_through_containers(self) -> None:
        class Stack(Module):
            layers: list[nn.Linear]
            shifts: list[Tensor]
            named: dict[str, Tensor]

            def forward(self, x: Tensor) -> Tensor:
                for i, layer in enumerate(self.layers):
                    x = layer(x) + self.shifts[i] * self.named["s"]
                for shift in self.shifts:
                    x = x - shift
                return x

        torch._dynamo.reset()
        model = Stack(
            [nn.Linear(2, 2), nn.Linear(2, 2)], [torch.ones(2), torch.ones(2)], {"s": torch.ones(1)}
        )
        x = torch.randn(3, 2)
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


class Mixin:
    part = nn.Linear(2, 2)


class AnnotatedMixin:
    part: nn.Linear = nn.Linear(2, 2)


class TorchBase(torch.nn.Module):
    part = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("bases", "value"),
    [
        ((Module,), nn.Linear(2, 2)),
        ((Module,), torch.nn.Linear(2, 2)),
        ((Module,), nn.Relu()),
        ((Module,), Parameter(torch.ones(2))),
        ((Module,), torch.ones(2)),
        ((Module,), [nn.Linear(2, 2)]),
        ((Module,), {"a": {"b": (torch.ones(2),)}}),
        ((Mixin, Module), None),
        ((AnnotatedMixin, Module), None),
        ((Module, TorchBase), None),
    ],
)
def test_a_layer_in_the_body_of_a_class_is_refused(bases: tuple[type, ...], value: Any) -> None:
    body = {} if value is None else {"part": value}
    with pytest.raises(TypeError) as caught:
        types.new_class("Net", bases, {}, lambda namespace: namespace.update(body))
    assert isinstance(caught.value, DefinitionError)
    for words in ("Net.part would be neither trained nor saved", "part: ", "default_factory"):
        assert words in str(caught.value)


def test_what_may_stand_in_the_body_of_a_class() -> None:
    class Net(Mlp):
        mean: ClassVar[Tensor] = torch.ones(2)
        act = torch.relu
        kind = nn.Linear
        kinds = (nn.Relu, nn.Gelu)
        settings = MlpConfig()
        names: ClassVar[dict[str, list[int]]] = {"a": [1]}
        part = None

    class Overridden(Mixin, Module):
        part = None

    assert Net.part is None
    assert Overridden.part is None
    with pytest.raises(DefinitionError, match="would share the default of 'layers'"):

        class Shared(Module):
            layers: tuple[nn.Linear, ...] = (nn.Linear(2, 2),)


class TestDistributed:
    def test_ddp(self, process_group: None) -> None:
        model, x = mlp(), torch.randn(4, 3)
        expected = dict(burnt.Gradients.of(model(x).sum(), model))
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        parallel(x).sum().backward()
        for path, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[path])

    def test_fsdp2(self, process_group: None) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model, x = mlp(), torch.randn(4, 3)
        expected, grads = model(x), dict(burnt.Gradients.of(model(x).sum(), model))
        mesh = init_device_mesh("cpu", (1,))
        for layer in (model.first, model.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert isinstance(model, Mlp)
        assert isinstance(model.first, nn.Linear)
        output = model(x)
        torch.testing.assert_close(output, expected)
        output.sum().backward()
        for path, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad.full_tensor(), grads[path])
        assert model.static_fields() == {"scale": 2.0}


def test_init_false_keeps_the_init_of_torchs_layer_and_needs_one() -> None:
    class Elu(Module, torch.nn.ELU, init=False):
        pass

    assert repr(Elu(0.5)) == "Elu(alpha=0.5)"
    assert Elu.Config(alpha=0.5).init().alpha == 0.5
    with pytest.raises(DefinitionError, match="Bare has no __init__ to inherit"):

        class Bare(Module, init=False):
            size: int
