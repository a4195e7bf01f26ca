"""Blocks of layers that run as fewer kernels: what follows a convolution or a linear layer is its tail.

torchvision's, timm's and Hugging Face's blocks have many names and are few ideas: layers one after another,
maybe with what came in added before the last activation. What a block does is not read off its names. Its
`forward` is run once on a few numbers, with layers that only mark what goes through them in place of its own:
who gets what from whom is a flow (`Flow`), or it cannot be told, and the block stays as it is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from burnt import _torch, kernels
from burnt.kernels.choice import trains
from burnt.swapping.functions import by_itself
from burnt.swapping.hugging_face import has_hooks, is_of, word_of
from burnt.swapping.kinds import no_conv
from burnt.swapping.site import Kind, original_class

__all__: list[str] = []

_MOST_LAYERS = 64
_SHAPES = (2, 3, 4, 5), (3, 5, 2, 6)
_CONVS = nn.Conv1d, nn.Conv2d, nn.Conv3d
_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
_TIMM_NORMS = "timm.layers.norm_act"


# --- what a layer is --------------------------------------------------------------------------------------


def _is_one_of(layer: nn.Module, classes: tuple[type[nn.Module], ...]) -> bool:
    return original_class(layer).forward in {cls.forward for cls in classes}


def _is_linear(layer: nn.Module) -> bool:
    lazy = any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters(recurse=False))
    return not lazy and (_is_one_of(layer, (nn.Linear,)) or _is_turned(layer))


def _is_turned(layer: nn.Module) -> bool:
    """GPT-2's linear layer, whose weight is the other way around."""
    return is_of(layer, "transformers.pytorch_utils", "Conv1D")


def _is_conv(layer: nn.Module) -> bool:
    return _is_one_of(layer, _CONVS) and no_conv(layer) is None  # type: ignore[arg-type]


def _is_norm(layer: nn.Module) -> bool:
    plain = _is_one_of(layer, _NORMS) or is_of(layer, _TIMM_NORMS, "BatchNormAct2d")
    return plain and layer.running_mean is not None and layer.running_var is not None


def _own_activation(norm: nn.Module) -> tuple[bool, str | None]:
    """Of a norm that has an activation of its own: whether it is known, and its word."""
    if _is_one_of(norm, _NORMS):
        return True, None
    act, drop = norm.act, getattr(norm, "drop", None)
    if not isinstance(drop, nn.Identity | None):
        return False, None
    word = None if isinstance(act, nn.Identity) else word_of(act)
    return word is not None or isinstance(act, nn.Identity), word


# --- what goes where --------------------------------------------------------------------------------------


class _Mark(nn.Module):
    """A layer that only marks what goes through it, and answers for the one in whose place it is."""

    def __init__(self, name: str, layer: nn.Module, source: torch.Generator, calls: list[Any]) -> None:
        super().__init__()
        self.__dict__["of"] = layer
        self.name, self.calls = name, calls
        self.slope, self.shift = (1 + torch.rand(2, generator=source, dtype=torch.float64)).tolist()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["of"], name)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.slope * x + self.shift
        self.calls.append((self.name, x.clone(), made.clone()))
        return made


@dataclass(frozen=True)
class _Node:
    """A layer's call, or a sum, which has no name. Numbered from 1: node 0 is the block's input."""

    name: str | None
    given: tuple[int, ...]


def _nodes_of(module: nn.Module, shape: tuple[int, ...], training: bool) -> tuple[list[_Node], int] | None:
    """What a block computes, and which node is its result; None where there is more to it.

    Args:
        module: the block.
        shape: of the numbers that it is run on: what depends on it is no property of the block.
        training: whether it trains, when its `forward` may do something of its own.
    """
    source, calls = torch.Generator().manual_seed(0), list[Any]()
    twin: nn.Module = object.__new__(original_class(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__["training"] = training
    twin.__dict__["_modules"] = {
        name: None if layer is None else _Mark(name, layer, source, calls)
        for name, layer in module._modules.items()
    }
    x = torch.randn(shape, generator=source, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]), by_itself():
        try:
            result = twin.forward(x.clone())
        except Exception:  # of any kind: it is somebody's own code, which may want something else altogether
            return None
    nodes: list[_Node] = []
    known = [x]

    def number_of(value: Any) -> int | None:
        """The node that a value is, a sum of two others maybe."""
        if not isinstance(value, Tensor) or value.shape != x.shape:
            return None
        for i, other in enumerate(known):
            if torch.allclose(other, value, 1e-12, 1e-12):
                return i
        for i, j in itertools.combinations(range(len(known)), 2):
            if torch.allclose(known[i] + known[j], value, 1e-12, 1e-12):
                nodes.append(_Node(None, (i, j)))
                known.append(value)
                return len(nodes)
        return None

    for name, given, made in calls:
        number = number_of(given)
        if number is None:
            return None
        nodes.append(_Node(name, (number,)))
        known.append(made)
    last = number_of(result)
    return None if last is None else (nodes, last)


# --- what is run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A layer with its tail, a layer by itself, or a sum.

    Args:
        layer: its name; None for a sum.
        given: the values that it is made of.
        made: the value that it makes.
        norm: the name of the batch norm that follows a convolution.
        residual: a value that is added then.
        activation: its word.
    """

    layer: str | None
    given: tuple[int, ...]
    made: int
    norm: str | None = None
    residual: int | None = None
    activation: str | None = None

    @property
    def has_tail(self) -> bool:
        return self.norm is not None or self.activation is not None

    @property
    def reads(self) -> tuple[int, ...]:
        """All values that it needs."""
        return self.given if self.residual is None else (*self.given, self.residual)


@dataclass(frozen=True, eq=False)
class Flow:
    """What a block runs.

    Args:
        parts: in order, each with the values that nobody needs after it.
        result: the value that is returned.
        layers: the block's own, by which it is known whether they were exchanged since.
        inside: the names of those that are not called, because they are part of a kernel.
    """

    parts: tuple[tuple[_Part, tuple[int, ...]], ...]
    result: int
    layers: tuple[nn.Module | None, ...]
    inside: frozenset[str]

    @property
    def norms(self) -> list[str]:
        """The batch norms that are folded."""
        return [part.norm for part, _ in self.parts if part.norm is not None]


def _flow_of(module: nn.Module) -> Flow | None:
    """What a block runs where tails are part of kernels; None without any, or where it cannot be told."""
    found = _nodes_of(module, _SHAPES[0], False)
    if found is None or _nodes_of(module, _SHAPES[1], False) != found:
        return None
    alike = _nodes_of(module, _SHAPES[0], True) == found
    nodes, result = found
    layers: dict[str | None, Any] = dict(module._modules.items())
    # Layers that do nothing are the value that they are given.
    same = {0: 0}
    for number, node in enumerate(nodes, 1):
        idle = node.name is not None and isinstance(layers[node.name], nn.Identity)
        same[number] = same[node.given[0]] if idle else number
    nodes = [_Node(node.name, tuple(same[n] for n in node.given)) for node in nodes]
    result = same[result]
    numbers = [number for number in range(1, len(nodes) + 1) if same[number] == number]
    uses = Counter([result, *(n for number in numbers for n in nodes[number - 1].given)])
    if any(uses[node.given[0]] > 1 and getattr(layers.get(node.name), "inplace", False) for node in nodes):
        return None  # what it reads is another value afterwards
    taken: set[int] = set()

    def reader(value: int) -> tuple[int, _Node] | None:
        """The node that alone reads a value."""
        if uses[value] != 1 or value == result:
            return None
        return next((n, nodes[n - 1]) for n in numbers if value in nodes[n - 1].given)

    def with_tail(number: int, node: _Node) -> _Part:
        part = _Part(node.name, node.given, number)
        after = reader(number)
        if _is_conv(layers[node.name]) and after is not None and after[1].name is not None:
            norm = layers[after[1].name]
            known, word = _own_activation(norm) if _is_norm(norm) else (False, None)
            if known:
                part = replace(part, norm=after[1].name, activation=word, made=after[0])
                taken.add(after[0])
                after = reader(part.made)
        if part.activation is None and part.norm is not None and after is not None and after[1].name is None:
            (other,) = (n for n in after[1].given if n != part.made)
            part = replace(part, residual=other, made=after[0])
            taken.add(after[0])
            after = reader(part.made)
        if part.activation is None and after is not None and after[1].name is not None:
            word = word_of(layers[after[1].name])
            if word is not None:
                part = replace(part, activation=word, made=after[0])
                taken.add(after[0])
        return part

    parts: list[_Part] = []
    for number in numbers:
        node = nodes[number - 1]
        if number in taken:
            continue
        takes = node.name is not None and (_is_conv(layers[node.name]) or _is_linear(layers[node.name]))
        parts.append(with_tail(number, node) if takes else _Part(node.name, node.given, number))
    # A part comes where its last value was made: what it adds is there by then, as it was in the block.
    parts.sort(key=lambda part: part.made)
    called = {part.layer for part in parts if not part.has_tail}
    inside = {node.name for node in nodes if node.name is not None} - called
    folds = any(part.norm is not None for part in parts)
    if not any(part.has_tail for part in parts) or not (alike or folds):
        return None
    needed, listed = {result}, list[tuple[_Part, tuple[int, ...]]]()
    for part in reversed(parts):
        listed.append((part, tuple(set(part.reads) - needed)))
        needed |= set(part.reads)
    return Flow(tuple(reversed(listed)), result, tuple(module._modules.values()), frozenset(inside))


_flows: WeakKeyDictionary[nn.Module, tuple[tuple[nn.Module | None, ...], Flow | None]] = WeakKeyDictionary()


def flow_of(module: nn.Module) -> Flow | None:
    """What a block runs, as long as its layers are the ones that they were."""
    layers = tuple(module._modules.values())
    known = _flows.get(module)
    if (
        known is None
        or len(known[0]) != len(layers)
        or any(a is not b for a, b in zip(*(known[0], layers), strict=True))
    ):
        known = _flows[module] = layers, _flow_of(module)
    return known[1]


_folded: WeakKeyDictionary[nn.Module, tuple[object, tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def _scale_and_bias(conv: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """A batch norm with fixed statistics as its convolution's scale and bias.

    The same tensors until something that they are made of changes: for them the weight is packed once.
    """
    made_of = norm.running_mean, norm.running_var, norm.weight, norm.bias, conv.bias
    state = [None if t is None else (id(t), _torch.version_of(t), t.data_ptr()) for t in made_of]
    state.append(norm.eps)
    known = _folded.get(norm)
    if known is None or known[0] != state:
        mean, var, weight, bias, own = (None if t is None else t.detach() for t in made_of)
        assert mean is not None
        assert var is not None
        known = _folded[norm] = state, kernels.folded_norm(mean, var, weight, bias, norm.eps, own)
    return known[1]


def _run(module: Any, flow: Flow, x: Tensor) -> Tensor:
    layers: dict[str | None, Any] = module._modules
    values = {0: x}
    for part, done in flow.parts:
        given = [values[n] for n in part.given]
        layer = layers[part.layer] if part.layer is not None else None
        if layer is None:
            made = given[0] + given[1]
        elif not part.has_tail:
            made = layer(*given)
        elif _is_linear(layer):
            weight = layer.weight.t() if _is_turned(layer) else layer.weight
            made = kernels.linear(given[0], weight, layer.bias, activation=part.activation)
        else:
            norm = None if part.norm is None else layers[part.norm]
            scale, bias = (None, layer.bias) if norm is None else _scale_and_bias(layer, norm)
            residual = None if part.residual is None else values[part.residual]
            sizes = layer.stride, layer.padding, layer.dilation, layer.groups
            made = kernels.conv(given[0], layer.weight, bias, scale, residual, part.activation, *sizes)
        values[part.made] = made
        for n in done:
            values.pop(n, None)
    return values[flow.result]


def _block(cls: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Any:
        flow = flow_of(self)
        if flow is None or (flow.norms and not _is_fixed(self, flow, x)):
            return cls.forward(self, x)
        return _run(self, flow, x)

    return forward


def _is_fixed(module: nn.Module, flow: Flow, x: Tensor) -> bool:
    """Whether nothing is trained, and what batch norms are made of changes by nothing unseen."""
    norms: list[Any] = [module._modules[name] for name in flow.norms]
    if module.training or any(norm.training for norm in norms) or trains(x, *module.parameters()):
        return False
    return not any(t.is_inference() for norm in norms for t in (norm.running_mean, norm.running_var))


# --- kinds ------------------------------------------------------------------------------------------------


def _may_be_one(module: nn.Module, *, norms: bool) -> bool:
    layers = [layer for layer in module._modules.values() if layer is not None]
    if not 2 <= len(layers) <= _MOST_LAYERS or original_class(module).forward is nn.Module.forward:
        return False
    convs = any(map(_is_conv, layers))
    if norms:
        return convs and any(map(_is_norm, layers))
    return (convs or any(map(_is_linear, layers))) and any(word_of(layer) for layer in layers)


def _is_conv_block(module: nn.Module) -> bool:
    flow = flow_of(module) if _may_be_one(module, norms=True) else None
    return flow is not None and bool(flow.norms)


def _is_feed_forward(module: nn.Module) -> bool:
    flow = flow_of(module) if _may_be_one(module, norms=False) else None
    return flow is not None and not flow.norms


def inside(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a block that are part of its kernels."""
    flow = flow_of(module)
    for name in () if flow is None else flow.inside:
        layer = module._modules[name]
        assert layer is not None
        yield from layer.modules()


def _hooked(module: nn.Module) -> str | None:
    hooked = any(has_hooks(layer) for layer in inside(module))
    return "a layer in it has hooks, which would not be called" if hooked else None


Kind("conv_block", "kernels.conv", _is_conv_block, _block, _hooked, inside=inside, inference=True)
Kind("feed_forward", "kernels.linear, conv", _is_feed_forward, _block, _hooked, inside=inside)
