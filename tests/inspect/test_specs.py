from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field

import torch
from torch import nn

from burnt.inspect import TensorSpec
from burnt.inspect.specs import map_tensors, shapes_text, tensors_in

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Batch:
    images: torch.Tensor
    name: str = "x"
    more: dict = field(default_factory=dict, init=False)


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor


class Plain:
    def __init__(self, x):
        self.x = x
        self.count = 3


class Fields(UserDict):
    pass


def doubled(value):
    return map_tensors(value, lambda tensor: tensor * 2)


def test_containers_keep_their_kinds():
    x = torch.ones(2)
    for value, read in [
        ([x], lambda v: v[0]),
        ((x, 1), lambda v: v[0]),
        ({"a": {"b": x}}, lambda v: v["a"]["b"]),
        (OrderedDict(a=x), lambda v: v["a"]),
        (Fields(a=x), lambda v: v["a"]),
        (Pair(x, None), lambda v: v.left),
        (Batch(x), lambda v: v.images),
        (Slotted(x), lambda v: v.x),
        (Plain([x]), lambda v: v.x[0]),
    ]:
        twin = doubled(value)
        assert type(twin) is type(value)
        assert twin is not value
        assert read(twin).tolist() == [2, 2]
        assert read(value) is x
    assert Pair(x, None)._replace(left=0) == doubled(Pair(x, None))._replace(left=0)
    assert doubled(Plain(x)).count == 3


def test_what_holds_no_tensor_is_returned_itself():
    for value in (None, 3, "text", [1, 2], {"a": None}, Plain(3), Plain, len, nn.Linear(2, 2), torch.float32):
        assert doubled(value) is value


def test_a_tensor_that_occurs_twice_is_mapped_once():
    x = torch.ones(2)
    twin = doubled([x, {"again": x}])
    assert twin[0] is twin[1]["again"]
    assert len(list(tensors_in([x, x, TensorSpec((1,))]))) == 2


def test_cycles_end():
    value = Plain(torch.ones(2))
    value.me = value
    assert doubled(value).x.tolist() == [2, 2]
    assert len(list(tensors_in(value))) == 1


def test_shapes_text():
    assert shapes_text(torch.empty(2, 3)) == "(2, 3)"
    assert shapes_text((torch.empty(2, 3), {"a": torch.empty(())})) == "(2, 3), ()"
    assert shapes_text([torch.empty(i) for i in range(6)]) == "(0,), (1,), (2,), (3,), and 2 more"
    assert shapes_text(None) == "NoneType"


def test_spec_takes_any_sequence_and_is_frozen():
    assert TensorSpec([2, 3]) == TensorSpec((2, 3), torch.float32)
    assert hash(TensorSpec(torch.Size([2])))
