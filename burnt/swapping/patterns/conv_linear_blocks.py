"""Kinds for blocks of layers that run as fewer kernels: convolutions and linear layers with an epilogue.

The blocks of torchvision, timm and Hugging Face have many names but few structures: layers in sequence, maybe
with the input added before the last activation. The structure is found by a probe, not by names: the block's
`forward` runs on a symbol, with layers replaced by recorders, which gives a data-flow graph (`Flow`). A block
that does more with its values than to call layers and to add stays unchanged.

Only classes of these libraries and `nn.Sequential` are probed: other code may do what a probe does not show.
Each call uses the flow only if layers and settings are still as in the probe.
"""

from __future__ import annotations

import copy
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
from burnt.kernels.interface.derived import derive
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.swapping.kind import Kind, is_lazy, original_class
from burnt.swapping.patterns.hf_layers import (
    LIBRARIES,
    activation_name,
    has_hooks,
    is_of_class,
    isolated_eval,
)
from burnt.swapping.patterns.torch_layers import conv_reason, padding_of

_MAX_LAYERS = 64
_CONVS = nn.Conv1d, nn.Conv2d, nn.Conv3d
_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
_TIMM_NORMS = "timm.layers.norm_act"


# --- recognising layers -----------------------------------------------------------------------------------


def _is_one_of(layer: nn.Module, classes: tuple[type[nn.Module], ...]) -> bool:
    if not isinstance(layer, classes) or isinstance(layer, torch.jit.ScriptModule):
        return False
    return original_class(layer).forward in {cls.forward for cls in classes}


def _has_default_call(layer: nn.Module) -> bool:
    """Whether a layer has no hooks, no parametrizations and its class's ``forward``."""
    return not has_hooks(layer) and "forward" not in vars(layer) and "parametrizations" not in layer._modules


def _is_linear(layer: nn.Module) -> bool:
    return (_is_one_of(layer, (nn.Linear,)) or _is_transposed_linear(layer)) and not is_lazy(layer)


def _is_transposed_linear(layer: nn.Module) -> bool:
    """Whether a layer is GPT-2's linear layer, whose weight is transposed."""
    return is_of_class(layer, "transformers.pytorch_utils", "Conv1D")


def _is_conv(layer: nn.Module) -> bool:
    return _is_one_of(layer, _CONVS) and not is_lazy(layer) and conv_reason(layer) is None  # type: ignore[arg-type]


def _is_norm(layer: nn.Module) -> bool:
    plain = _is_one_of(layer, _NORMS) or is_of_class(layer, _TIMM_NORMS, "BatchNormAct2d")
    return plain and layer.running_mean is not None and layer.running_var is not None


def _own_activation(norm: nn.Module) -> tuple[bool, str | None]:
    """Return whether the activation of a norm is supported, and its name (None without one)."""
    if _is_one_of(norm, _NORMS):
        return True, None
    act, drop = norm.act, getattr(norm, "drop", None)
    if not isinstance(drop, nn.Identity | None):
        return False, None
    activation = None if isinstance(act, nn.Identity) else activation_name(act)
    return activation is not None or isinstance(act, nn.Identity), activation


# --- recording the data flow ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Node:
    """A layer's call, or a sum (name None). Nodes are numbered from 1: node 0 is the block's input."""

    name: str | None
    inputs: tuple[int, ...]


class _Value:
    """The output of a node in a probe. Anything but a layer's call or a sum fails."""

    def __init__(self, nodes: list[_Node], number: int) -> None:
        self.nodes, self.number = nodes, number

    def record(self, name: str | None, *others: _Value) -> _Value:
        """Return the output of a new node with this and other values as inputs."""
        self.nodes.append(_Node(name, (self.number, *(other.number for other in others))))
        return _Value(self.nodes, len(self.nodes))

    def __add__(self, other: object) -> _Value:
        return self.record(None, other) if isinstance(other, _Value) else NotImplemented

    def __iadd__(self, other: object) -> _Value:
        if not isinstance(other, _Value):
            return NotImplemented
        self.number = self.record(None, other).number  # whatever holds this value sees the sum
        return self


class _Recorder(nn.Module):
    """Replaces a layer in a probe: records its calls, and has the layer's attributes."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.__dict__["of"] = layer
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["of"], name)

    def forward(self, x: _Value) -> _Value:
        if not torch.is_grad_enabled() or _torch.is_autocast():
            raise TypeError("unlike the block, a layer is called without gradients or under autocast")
        return x.record(self.name)


def _probe(module: nn.Module, training: bool) -> tuple[list[_Node], int] | None:
    """Return a block's nodes and the number of its result; None if it computes anything else."""
    copied: nn.Module = object.__new__(original_class(module))
    copied.__dict__.update(
        {k: copy.copy(v) if isinstance(v, list | dict | set) else v for k, v in module.__dict__.items()}
    )
    recorders = {n: None if m is None else _Recorder(n, m) for n, m in module._modules.items()}
    copied.__dict__["_modules"] = recorders
    for each in (copied, *(recorder for recorder in recorders.values() if recorder is not None)):
        each.__dict__["training"] = training
    nodes: list[_Node] = []
    with torch.random.fork_rng(devices=[]), isolated_eval(), torch.enable_grad():
        before, torch_before = random.getstate(), torch.get_rng_state()
        try:
            result = copied.forward(_Value(nodes, 0))
        except Exception:  # third-party code may need a tensor and raise any exception
            return None
        finally:
            is_random = random.getstate() != before or not torch.equal(torch.get_rng_state(), torch_before)
            random.setstate(before)
    return (nodes, result.number) if isinstance(result, _Value) and not is_random else None


# --- planning and running the kernels ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A step of a flow: a layer with or without an epilogue (norm, residual, activation), or a sum.

    Values go by number, layers by name; `layer` is None for a sum. `activation` is the name in
    `burnt.kernels` of the layer `act`, or of the norm's own activation.
    """

    layer: str | None
    inputs: tuple[int, ...]
    output: int
    norm: str | None = None
    residual: int | None = None
    act: str | None = None
    activation: str | None = None

    @property
    def has_epilogue(self) -> bool:
        """Whether its kernel computes more than the layer."""
        return self.norm is not None or self.activation is not None

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of all values that it needs."""
        return self.inputs if self.residual is None else (*self.inputs, self.residual)


@dataclass(frozen=True, eq=False)
class Flow:
    """The steps of a block, each with the values that are not needed after it.

    `result` is the number of the value that is returned, `ranks` are the supported ranks of inputs,
    `absorbed` the layers that are not called, because they are part of a kernel.
    """

    parts: tuple[tuple[_Part, tuple[int, ...]], ...]
    result: int
    ranks: tuple[int, ...]
    absorbed: frozenset[str]

    @property
    def norms(self) -> list[str]:
        """The batch norms that are folded."""
        return [part.norm for part, _ in self.parts if part.norm is not None]


def _flow_of(module: nn.Module) -> Flow | None:
    """Plan a block with epilogues fused; None if there are none, or the data flow is ambiguous."""
    layers: list[Any] = [layer for layer in module._modules.values() if layer is not None]
    convs: set[int] = {layer.weight.dim() for layer in layers if _is_conv(layer)}
    ranks = tuple(convs) if convs else (2, 3, 4)
    probed = _probe(module, training=False) if len(convs) < 2 else None
    if probed is None:
        return None
    same_in_training = _probe(module, training=True) == probed
    nodes, result = probed
    named: dict[str | None, Any] = dict(module._modules.items())
    # The output of an identity layer is its input value.
    same = {0: 0}
    for number, node in enumerate(nodes, 1):
        idle = node.name is not None and isinstance(named[node.name], nn.Identity)
        same[number] = same[node.inputs[0]] if idle else number
    nodes = [_Node(node.name, tuple(same[n] for n in node.inputs)) for node in nodes]
    result = same[result]
    numbers = [number for number in range(1, len(nodes) + 1) if same[number] == number]
    uses = Counter([result, *(n for number in numbers for n in nodes[number - 1].inputs)])
    if any(
        node.name is not None and uses[node.inputs[0]] > 1 and _is_inplace(named[node.name]) for node in nodes
    ):
        return None  # the layer may overwrite a value that another one reads
    fused: set[int] = set()

    def reader(value: int) -> tuple[int, _Node] | None:
        """Return the only node that reads a value, or None."""
        if uses[value] != 1 or value == result:
            return None
        number = next(n for n in numbers if value in nodes[n - 1].inputs)
        return None if number in fused else (number, nodes[number - 1])

    def add_epilogue(number: int, node: _Node) -> _Part:
        part = _Part(node.name, node.inputs, number)
        after = reader(number)
        if _is_conv(named[node.name]) and after is not None and after[1].name is not None:
            norm = named[after[1].name]
            supported, activation = _own_activation(norm) if _is_norm(norm) else (False, None)
            if supported:
                part = replace(part, norm=after[1].name, activation=activation, output=after[0])
                fused.add(after[0])
                after = reader(part.output)
        if part.activation is None and part.norm is not None and after is not None and after[1].name is None:
            (other,) = (n for n in after[1].inputs if n != part.output)
            part = replace(part, residual=other, output=after[0])
            fused.add(after[0])
            after = reader(part.output)
        if part.activation is None and after is not None and after[1].name is not None:
            activation = activation_name(named[after[1].name])
            if activation is not None:
                part = replace(part, act=after[1].name, activation=activation, output=after[0])
                fused.add(after[0])
        return part

    parts: list[_Part] = []
    for number in numbers:
        node = nodes[number - 1]
        if number in fused:
            continue
        takes = node.name is not None and (_is_conv(named[node.name]) or _is_linear(named[node.name]))
        parts.append(add_epilogue(number, node) if takes else _Part(node.name, node.inputs, number))
    # Steps are ordered by their outputs, so that a residual is computed before the step that adds it.
    parts.sort(key=lambda part: part.output)
    called = {part.layer for part in parts if not part.has_epilogue}
    absorbed = {node.name for node in nodes if node.name is not None} - called
    folds = any(part.norm is not None for part in parts)
    if not any(part.has_epilogue for part in parts) or not (same_in_training or folds):
        return None
    needed, listed = {result}, list[tuple[_Part, tuple[int, ...]]]()
    for part in reversed(parts):
        listed.append((part, tuple(set(part.reads) - needed)))
        needed |= set(part.reads)
    return Flow(tuple(reversed(listed)), result, ranks, frozenset(absorbed))


def _is_inplace(layer: nn.Module) -> bool:
    """Whether a layer may change its input in place."""
    return any(getattr(module, "inplace", False) for module in layer.modules())


_CacheEntry = tuple[list[Any], dict[str, Any], Flow | None]
_flows: WeakKeyDictionary[nn.Module, _CacheEntry] = WeakKeyDictionary()


def flow_of(module: nn.Module) -> Flow | None:
    """Return a block's cached flow, planned again if its layers or settings have changed."""
    layers, settings = module._modules.values(), _settings(module)
    entry = _flows.get(module)
    if entry is not None and entry[1] == settings and [ref and ref() for ref in entry[0]] == list(layers):
        return entry[2]
    refs = [None if layer is None else weakref.ref(layer) for layer in layers]
    _flows[module] = refs, settings, _flow_of(module)
    return _flows[module][2]


def _settings(module: nn.Module) -> dict[str, Any]:
    plain = bool, int, float, str, tuple
    return {k: v for k, v in module.__dict__.items() if isinstance(v, plain) and k != "training"}


def _scale_and_bias(conv: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """Fold a batch norm with fixed statistics into its convolution's scale and bias.

    They are cached until a source tensor changes: with the same tensors, the weight is packed only once.
    """
    sources = norm.running_mean, norm.running_var, norm.weight, norm.bias, conv.bias

    def fold() -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False):
            mean, var, weight, bias, conv_bias = (None if t is None else t.detach() for t in sources)
            assert mean is not None
            assert var is not None
            return kernels.folded_norm(mean, var, weight, bias, norm.eps, conv_bias)

    state = [norm.eps, *map(_torch.state_of, sources)]
    return derive(norm, "folded", state, fold, keep_alive=sources)


def _run(module: Any, flow: Flow, x: Tensor) -> Tensor:
    layers: dict[str | None, Any] = module._modules
    values = {0: x}
    for part, done in flow.parts:
        if part.layer is None:
            first, second = part.inputs
            out = values[first] + values[second]
        else:
            out = (
                _run_with_epilogue(layers, part, values)
                if part.has_epilogue
                else layers[part.layer](values[part.inputs[0]])
            )
        values[part.output] = out
        for n in done:
            values.pop(n, None)
    return values[flow.result]


def _run_with_epilogue(layers: Mapping[str | None, Any], part: _Part, values: Mapping[int, Tensor]) -> Tensor:
    layer, x = layers[part.layer], values[part.inputs[0]]
    norm = None if part.norm is None else layers[part.norm]
    residual = None if part.residual is None else values[part.residual]
    try:
        if _is_linear(layer):
            weight = layer.weight.t() if _is_transposed_linear(layer) else layer.weight
            return kernels.linear(x, weight, layer.bias, activation=part.activation)
        scale, bias = (None, layer.bias) if norm is None else _scale_and_bias(layer, norm)
        sizes = layer.stride, padding_of(layer), layer.dilation, layer.groups
        return kernels.conv(x, layer.weight, bias, scale, residual, part.activation, *sizes)
    except InputError:
        # For inputs that burnt's ops refuse, such as a broadcast residual, the layers compute or raise.
        out: Tensor = layer(x)
        out = out if norm is None else norm(out)
        out = out if residual is None else out + residual
        return out if part.act is None else layers[part.act](out)


def _block(cls: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_tensor_call = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        flow = flow_of(self) if is_tensor_call and _torch.is_plain_call() else None
        if flow is None or not _matches_probe(self, flow, args[0]):
            return cls.forward(self, *args, **kwargs)
        return _run(self, flow, args[0])

    return forward


def _matches_probe(module: nn.Module, flow: Flow, x: Tensor) -> bool:
    """Whether the flow is valid for a call: layers, modes and inputs are as in the probe."""
    layers: dict[str | None, Any] = module._modules  # type: ignore[assignment]
    if _torch.has_global_hooks() or x.dim() not in flow.ranks:
        return False
    if not all(_has_default_call(layers[name]) for name in flow.absorbed):
        return False
    for part, _ in flow.parts:
        if part.act is not None and activation_name(layers[part.act]) != part.activation:
            return False
        if part.has_epilogue and not (_is_conv(layers[part.layer]) or _is_linear(layers[part.layer])):
            return False
    norms = [layers[name] for name in flow.norms]
    if not norms:
        return True
    if not all(map(_is_norm, norms)):
        return False
    # Norms are folded only in evaluation without gradients, and if all results have one dtype.
    if module.training or any(norm.training for norm in norms) or _torch.is_autocast():
        return False
    names = {part.norm: part.activation for part, _ in flow.parts if part.act is None}
    unchanged = all(_own_activation(layers[n]) == (True, names[n]) for n in flow.norms if n in names)
    return unchanged and not wants_gradient(x, *module.parameters())


# --- kinds ------------------------------------------------------------------------------------------------


def _may_be_one(module: nn.Module, *, norms: bool) -> bool:
    cls = original_class(module)
    layers = [layer for layer in module._modules.values() if layer is not None]
    is_probed = cls.__module__.partition(".")[0] in LIBRARIES or cls.forward is nn.Sequential.forward
    own = any(t is not None for t in (*module._parameters.values(), *module._buffers.values()))
    if not is_probed or own or not 2 <= len(layers) <= _MAX_LAYERS:
        return False
    convs = any(map(_is_conv, layers))
    if norms:
        return convs and any(map(_is_norm, layers))
    return (convs or any(map(_is_linear, layers))) and any(activation_name(layer) for layer in layers)


def _is_conv_block(module: nn.Module) -> bool:
    flow = flow_of(module) if _may_be_one(module, norms=True) else None
    return flow is not None and bool(flow.norms)


def _is_feed_forward(module: nn.Module) -> bool:
    flow = flow_of(module) if _may_be_one(module, norms=False) else None
    return flow is not None and not flow.norms


def absorbed_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that are part of the block's kernels, with their paths in the block."""
    flow = flow_of(module)
    for name in () if flow is None else flow.absorbed:
        layer = module._modules[name]
        assert layer is not None
        yield from layer.named_modules(prefix=name)


def _hook_reason(module: nn.Module) -> str | None:
    if all(_has_default_call(layer) for _, layer in absorbed_layers(module)):
        return None
    return "a layer in it has hooks or its own forward, which would not be called"


_MORE: dict[str, Any] = {"fallback_reason": _hook_reason, "absorbed": absorbed_layers}
Kind("conv_block", "kernels.conv", _is_conv_block, _block, inference_only=True, **_MORE)
Kind("feed_forward", "kernels.linear, conv", _is_feed_forward, _block, **_MORE)
