"""Blocks of layers that run as fewer kernels: what follows a convolution or a linear layer is its tail.

torchvision's, timm's and Hugging Face's blocks have many names and are few ideas: layers one after another,
maybe with what came in added before the last activation. What a block does is not read off its names. Its
`forward` is run on a few numbers, with layers that only mark what goes through them in place of its own: who
gets what from whom is a flow (`Flow`), or it cannot be told, and the block stays as it is.

That is asked of these libraries' classes, and of sequences, alone: anybody's `forward` may do what no trial
shows. At each call a flow is taken only while everything is as it was tried.
"""

from __future__ import annotations

import copy
import itertools
import random
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from burnt import _torch, kernels
from burnt.errors import InputError
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.swapping.kind import Kind, original_class
from burnt.swapping.patterns.hf_layers import LIBRARIES, has_hooks, is_of, word_of
from burnt.swapping.patterns.rebind_globals import isolated_eval
from burnt.swapping.patterns.torch_layers import is_lazy, no_conv, padding_of

__all__: list[str] = []

_MOST_LAYERS = 64
# Of inputs by rank: what depends on their sizes is no property of a block.
_SHAPES: dict[int, list[tuple[int, ...]]] = {
    2: [(4, 5), (1, 6)],
    3: [(2, 3, 4), (3, 1, 6)],
    4: [(2, 3, 4, 5), (3, 1, 6, 2)],
    5: [(2, 3, 4, 5, 2), (3, 1, 6, 2, 4)],
}
_LARGE = 1e6
_CONVS = nn.Conv1d, nn.Conv2d, nn.Conv3d
_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
_TIMM_NORMS = "timm.layers.norm_act"


# --- what a layer is --------------------------------------------------------------------------------------


def _is_one_of(layer: nn.Module, classes: tuple[type[nn.Module], ...]) -> bool:
    if not isinstance(layer, classes) or isinstance(layer, torch.jit.ScriptModule):
        return False
    return original_class(layer).forward in {cls.forward for cls in classes}


def _is_untouched(layer: nn.Module) -> bool:
    """Whether a layer's call is its class' and nobody is told of it."""
    return not has_hooks(layer) and "forward" not in vars(layer) and "parametrizations" not in layer._modules


def _is_linear(layer: nn.Module) -> bool:
    return (_is_one_of(layer, (nn.Linear,)) or _is_turned(layer)) and not is_lazy(layer)


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


class _LostError(Exception):
    """A layer is called in another way than the block is."""


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
        if not x.requires_grad or not torch.is_grad_enabled() or _torch.is_autocast():
            raise _LostError
        made: Tensor = self.slope * x + self.shift
        self.calls.append((self.name, x.detach().clone(), made.detach().clone()))
        return made


@dataclass(frozen=True)
class _Node:
    """A layer's call, or a sum, which has no name. Numbered from 1: node 0 is the block's input."""

    name: str | None
    given: tuple[int, ...]


def _nodes_of(module: nn.Module, x: Tensor, training: bool) -> tuple[list[_Node], int] | None:
    """What a block computes, and which node is its result; None where there is more to it.

    Args:
        module: the block.
        x: what it is tried with, float64.
        training: whether it trains, when its `forward` may do something of its own.
    """
    source, calls = torch.Generator().manual_seed(0), list[Any]()
    twin: nn.Module = object.__new__(original_class(module))
    twin.__dict__.update(
        {k: copy.copy(v) if isinstance(v, list | dict | set) else v for k, v in module.__dict__.items()}
    )
    marks = {n: None if m is None else _Mark(n, m, source, calls) for n, m in module._modules.items()}
    twin.__dict__["_modules"] = marks
    for each in (twin, *(mark for mark in marks.values() if mark is not None)):
        each.__dict__["training"] = training
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]), isolated_eval(), torch.enable_grad():
        before, drawn = random.getstate(), torch.get_rng_state()
        try:
            result = twin.forward(x.clone().requires_grad_() * 1)
        except Exception:  # of any kind: it is somebody's own code, which may want something else altogether
            return None
        finally:
            chance = random.getstate() != before or not torch.equal(torch.get_rng_state(), drawn)
            random.setstate(before)
    if chance or not isinstance(result, Tensor) or not result.requires_grad:
        return None
    nodes: list[_Node] = []
    known = [x]

    def number_of(value: Tensor) -> int | None:
        """The node that a value is, a sum of two others maybe."""

        def same(other: Tensor) -> bool:
            return torch.allclose(other, value, 1e-12, 1e-12, equal_nan=True)

        if value.shape != x.shape or value.dtype != x.dtype:
            return None
        for i, other in enumerate(known):
            if same(other):
                return i
        for i, j in itertools.combinations(range(len(known)), 2):
            if same(known[i] + known[j]):
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
    last = number_of(result.detach())
    return None if last is None else (nodes, last)


def _tried(module: nn.Module, ranks: tuple[int, ...]) -> tuple[list[_Node], int, bool] | None:
    """What a block computes for inputs of some ranks, its result, and whether it is the same in training."""
    source, found = torch.Generator().manual_seed(1), list[Any]()
    shapes: list[tuple[int, ...]] = [shape for rank in ranks for shape in _SHAPES[rank]]
    for shape in shapes:
        plain, large = torch.randn(2, *shape, generator=source, dtype=torch.float64)
        large *= _LARGE
        large.view(-1)[0] = torch.nan
        found += [_nodes_of(module, x, False) for x in (plain, large)]
        if found[-1] is None or found[-2:] != [found[0]] * 2:
            return None
    trained = _nodes_of(
        module, torch.randn(_SHAPES[ranks[0]][0], generator=source, dtype=torch.float64), True
    )
    nodes, result = found[0]
    return nodes, result, trained == found[0]


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
        act: the name of the activation that follows.
        activation: its word, or that of the norm's own.
    """

    layer: str | None
    given: tuple[int, ...]
    made: int
    norm: str | None = None
    residual: int | None = None
    act: str | None = None
    activation: str | None = None

    @property
    def has_tail(self) -> bool:
        """Whether its kernel does more than the layer."""
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
        ranks: of inputs.
        inside: the names of those that are not called, because they are part of a kernel.
    """

    parts: tuple[tuple[_Part, tuple[int, ...]], ...]
    result: int
    ranks: tuple[int, ...]
    inside: frozenset[str]

    @property
    def norms(self) -> list[str]:
        """The batch norms that are folded."""
        return [part.norm for part, _ in self.parts if part.norm is not None]


def _flow_of(module: nn.Module) -> Flow | None:
    """What a block runs where tails are part of kernels; None without any, or where it cannot be told."""
    layers: list[Any] = [layer for layer in module._modules.values() if layer is not None]
    convs: set[int] = {layer.weight.dim() for layer in layers if _is_conv(layer)}
    ranks = tuple(convs) if convs else (2, 3, 4)
    found = _tried(module, ranks) if len(convs) < 2 else None
    if found is None:
        return None
    nodes, result, alike = found
    named: dict[str | None, Any] = dict(module._modules.items())
    # Layers that do nothing are the value that they are given.
    same = {0: 0}
    for number, node in enumerate(nodes, 1):
        idle = node.name is not None and isinstance(named[node.name], nn.Identity)
        same[number] = same[node.given[0]] if idle else number
    nodes = [_Node(node.name, tuple(same[n] for n in node.given)) for node in nodes]
    result = same[result]
    numbers = [number for number in range(1, len(nodes) + 1) if same[number] == number]
    uses = Counter([result, *(n for number in numbers for n in nodes[number - 1].given)])
    if any(
        node.name is not None and uses[node.given[0]] > 1 and _changes(named[node.name]) for node in nodes
    ):
        return None  # what it reads may be another value afterwards
    taken: set[int] = set()

    def reader(value: int) -> tuple[int, _Node] | None:
        """The node that alone reads a value."""
        if uses[value] != 1 or value == result:
            return None
        number = next(n for n in numbers if value in nodes[n - 1].given)
        return None if number in taken else (number, nodes[number - 1])

    def with_tail(number: int, node: _Node) -> _Part:
        part = _Part(node.name, node.given, number)
        after = reader(number)
        if _is_conv(named[node.name]) and after is not None and after[1].name is not None:
            norm = named[after[1].name]
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
            word = word_of(named[after[1].name])
            if word is not None:
                part = replace(part, act=after[1].name, activation=word, made=after[0])
                taken.add(after[0])
        return part

    parts: list[_Part] = []
    for number in numbers:
        node = nodes[number - 1]
        if number in taken:
            continue
        takes = node.name is not None and (_is_conv(named[node.name]) or _is_linear(named[node.name]))
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
    return Flow(tuple(reversed(listed)), result, ranks, frozenset(inside))


def _changes(layer: nn.Module) -> bool:
    """Whether a layer may change what it is given."""
    return any(getattr(module, "inplace", False) for module in layer.modules())


_Known = tuple[list[Any], dict[str, Any], Flow | None]
_flows: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def flow_of(module: nn.Module) -> Flow | None:
    """What a block runs, as long as it has the layers and the settings that it was tried with."""
    layers, settings = module._modules.values(), _settings(module)
    known = _flows.get(module)
    if known is not None and known[1] == settings and [ref and ref() for ref in known[0]] == list(layers):
        return known[2]
    refs = [None if layer is None else weakref.ref(layer) for layer in layers]
    _flows[module] = refs, settings, _flow_of(module)
    return _flows[module][2]


def _settings(module: nn.Module) -> dict[str, Any]:
    plain = bool, int, float, str, tuple
    return {k: v for k, v in module.__dict__.items() if isinstance(v, plain) and k != "training"}


_folded: WeakKeyDictionary[nn.Module, tuple[object, object, tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def _scale_and_bias(conv: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """A batch norm with fixed statistics as its convolution's scale and bias.

    The same tensors until something that they are made of changes: for them the weight is packed once.
    """
    made_of = norm.running_mean, norm.running_var, norm.weight, norm.bias, conv.bias
    state = [norm.eps, *map(_torch.state_of, made_of)]
    known = _folded.get(norm)
    if known is None or known[0] != state:
        with torch.inference_mode(False):
            mean, var, weight, bias, own = (None if t is None else t.detach() for t in made_of)
            assert mean is not None
            assert var is not None
            folded = kernels.folded_norm(mean, var, weight, bias, norm.eps, own)
        # What it is made of is kept: another tensor might be at its address otherwise.
        known = _folded[norm] = state, made_of, folded
    return known[2]


def _run(module: Any, flow: Flow, x: Tensor) -> Tensor:
    layers: dict[str | None, Any] = module._modules
    values = {0: x}
    for part, done in flow.parts:
        if part.layer is None:
            first, second = part.given
            made = values[first] + values[second]
        else:
            made = (
                _with_tail(layers, part, values)
                if part.has_tail
                else layers[part.layer](values[part.given[0]])
            )
        values[part.made] = made
        for n in done:
            values.pop(n, None)
    return values[flow.result]


def _with_tail(layers: Mapping[str | None, Any], part: _Part, values: Mapping[int, Tensor]) -> Tensor:
    layer, x = layers[part.layer], values[part.given[0]]
    norm = None if part.norm is None else layers[part.norm]
    residual = None if part.residual is None else values[part.residual]
    try:
        if _is_linear(layer):
            weight = layer.weight.t() if _is_turned(layer) else layer.weight
            return kernels.linear(x, weight, layer.bias, activation=part.activation)
        scale, bias = (None, layer.bias) if norm is None else _scale_and_bias(layer, norm)
        sizes = layer.stride, padding_of(layer), layer.dilation, layer.groups
        return kernels.conv(x, layer.weight, bias, scale, residual, part.activation, *sizes)
    except InputError:
        # What burnt's ops refuse, a residual that is broadcast say, is the layers' to compute or to refuse.
        made: Tensor = layer(x)
        made = made if norm is None else norm(made)
        made = made if residual is None else made + residual
        return made if part.act is None else layers[part.act](made)


def _block(cls: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and _torch.is_plain_call()
        flow = flow_of(self) if alone else None
        if flow is None or not _as_tried(self, flow, args[0]):
            return cls.forward(self, *args, **kwargs)
        return _run(self, flow, args[0])

    return forward


def _as_tried(module: nn.Module, flow: Flow, x: Tensor) -> bool:
    """Whether a call is one that the flow is right for."""
    layers: dict[str | None, Any] = module._modules  # type: ignore[assignment]
    if _torch.has_global_hooks() or x.dim() not in flow.ranks:
        return False
    if not all(_is_untouched(layers[name]) for name in flow.inside):
        return False
    for part, _ in flow.parts:
        if part.act is not None and word_of(layers[part.act]) != part.activation:
            return False
        if part.has_tail and not (_is_conv(layers[part.layer]) or _is_linear(layers[part.layer])):
            return False
    norms = [layers[name] for name in flow.norms]
    if not norms:
        return True
    if not all(map(_is_norm, norms)):
        return False
    # Norms are folded where nothing is trained, and results are of one dtype.
    if module.training or any(norm.training for norm in norms) or _torch.is_autocast():
        return False
    words = {part.norm: part.activation for part, _ in flow.parts if part.act is None}
    alike = all(_own_activation(layers[n]) == (True, words[n]) for n in flow.norms if n in words)
    return alike and not wants_gradient(x, *module.parameters())


# --- kinds ------------------------------------------------------------------------------------------------


def _may_be_one(module: nn.Module, *, norms: bool) -> bool:
    cls = original_class(module)
    layers = [layer for layer in module._modules.values() if layer is not None]
    known = cls.__module__.partition(".")[0] in LIBRARIES or cls.forward is nn.Sequential.forward
    own = any(t is not None for t in (*module._parameters.values(), *module._buffers.values()))
    if not known or own or not 2 <= len(layers) <= _MOST_LAYERS:
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


def inside(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a block that are part of its kernels, with their paths in it."""
    flow = flow_of(module)
    for name in () if flow is None else flow.inside:
        layer = module._modules[name]
        assert layer is not None
        yield from layer.named_modules(prefix=name)


def _touched(module: nn.Module) -> str | None:
    if all(_is_untouched(layer) for _, layer in inside(module)):
        return None
    return "a layer in it has hooks or a forward of its own, which would not be called"


Kind("conv_block", "kernels.conv", _is_conv_block, _block, _touched, inside=inside, inference=True)
Kind("feed_forward", "kernels.linear, conv", _is_feed_forward, _block, _touched, inside=inside)
