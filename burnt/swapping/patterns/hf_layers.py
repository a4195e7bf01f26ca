"""Kinds for layers and losses of Hugging Face's models, recognised by their structure and their results.

A class that looks like an RMS norm or a gated unit is probed once with a few numbers, and matches if its
results are right. Nothing here imports transformers. Attention is in `hf_attention`.

`rebind_globals` copies a third-party function with one global name bound to another value; a function that
decorators hold in their closures is found and replaced there.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burnt import _torch, kernels
from burnt.codegen import fuse
from burnt.errors import InputError
from burnt.swapping.kind import Kind, original_class
from burnt.swapping.patterns.lazy_logits import Logits
from burnt.swapping.patterns.torch_layers import cross_entropy
from burnt.swapping.state import preserved_state

_ACTIVATIONS = "transformers.activations"
_TIMM = "timm.layers.activations"
LIBRARIES = "torch", "torchvision", "timm", "transformers"
"""Libraries whose classes are probed. Code of others may do what a probe does not show."""


def is_of_class(module: object, home: str, *names: str) -> bool:
    """Whether an object's class has one of these names and is defined in the module `home`."""
    cls = original_class(module) if isinstance(module, nn.Module) else type(module)
    return cls.__module__ == home and cls.__name__ in names


# --- GPT-2's linear layer ---------------------------------------------------------------------------------


def _conv1d(self: Any, x: Tensor) -> Tensor:
    return kernels.linear(x, self.weight.t(), self.bias)


Kind(
    "conv1d",
    "kernels.linear",
    lambda module: is_of_class(module, "transformers.pytorch_utils", "Conv1D"),
    lambda cls: _conv1d,
)


# --- activations ------------------------------------------------------------------------------------------


@fuse
def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@fuse
def _mish(x: Tensor) -> Tensor:
    return F.mish(x)


_FUNCTIONS: dict[Any, Callable[[Tensor], Tensor]] = {
    "gelu": kernels.gelu,
    "gelu_tanh": lambda x: kernels.gelu(x, "tanh"),
    "silu": kernels.silu,
    "relu2": kernels.relu2,
    (_ACTIVATIONS, "QuickGELUActivation"): _quick_gelu,
    (_ACTIVATIONS, "MishActivation"): _mish,
}
_NAMES: dict[Any, str] = {
    F.silu: "silu",
    F.relu: "relu",
    F.gelu: "gelu",
    nn.SiLU: "silu",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Hardswish: "hardswish",
    (_ACTIVATIONS, "SiLUActivation"): "silu",
    (_ACTIVATIONS, "ReLUSquaredActivation"): "relu2",
    (_ACTIVATIONS, "GELUActivation"): "gelu",
    (_TIMM, "GELU"): "gelu",
    (_TIMM, "GELUTanh"): "gelu_tanh",
    **{
        (_ACTIVATIONS, name): "gelu_tanh"
        for name in ("GELUTanh", "NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation")
    },
}


def activation_name(act: Any) -> str | None:
    """Return the key in `burnt.kernels.ACTIVATIONS` of a module or function, or None."""
    if not isinstance(act, nn.Module):
        return _NAMES.get(act) if isinstance(act, Hashable) else None
    cls = original_class(act)
    if cls is nn.GELU:
        return "gelu" if act.approximate == "none" else "gelu_tanh"
    return _NAMES.get(cls) or _NAMES.get((cls.__module__, cls.__name__))


def _function_of(cls: type) -> Callable[[Tensor], Tensor] | None:
    """Return the function of a library's activation class; None for torch's, which have own kinds."""
    key = cls.__module__, cls.__name__
    return _FUNCTIONS.get(key) or _FUNCTIONS.get(_NAMES.get(key))


def _activation(cls: type) -> Callable[..., Any]:
    call: Any = _function_of(cls)
    return lambda self, input: call(input)


Kind(
    "activation",
    "kernels.gelu, silu, ...",
    lambda module: _function_of(original_class(module)) is not None,
    _activation,
)


# --- root-mean-square norms -------------------------------------------------------------------------------

_EPS = ("variance_epsilon", "eps", "epsilon")
_norms: dict[type, tuple[str, bool] | None] = {}


def _is_norm(module: nn.Module) -> bool:
    """Whether a module with one weight, an epsilon and nothing else computes an RMS norm."""
    cls: Any = type(module)
    if set(module._parameters) != {"weight"} or module._buffers or module._modules:
        return False
    weight = module._parameters["weight"]
    eps = next((name for name in _EPS if isinstance(getattr(module, name, None), float)), None)
    if weight is None or weight.dim() != 1 or eps is None or cls.forward is nn.RMSNorm.forward:
        return False
    if cls not in _norms:
        with isolated_eval():
            _norms[cls] = _probe_norm(module, eps)
    return _norms[cls] is not None


def _probe_norm(module: Any, eps: str) -> tuple[str, bool] | None:
    """Return the name of the epsilon, and whether 1 is added to the weight; None if it is not an RMS norm."""
    generator = torch.Generator().manual_seed(0)
    size = module._parameters["weight"].shape[0]
    weight = torch.randn(size, generator=generator)
    x = 3 * torch.randn(2, size, generator=generator) + 1
    actual = _probe(module, {"weight": weight}, {}, x)
    for adds_one in (False, True):
        if _is_close(actual, F.rms_norm(x, (size,), weight + adds_one, getattr(module, eps))):
            return eps, adds_one
    return None


def _rms_norm(cls: type) -> Callable[..., Any]:
    settings = _norms[cls]
    assert settings is not None
    eps, adds_one = settings

    def forward(self: Any, hidden_states: Tensor) -> Any:
        weight = 1 + self.weight if adds_one else self.weight
        return kernels.rms_norm(hidden_states, weight, getattr(self, eps))

    return forward


# It computes in float32 for every input dtype.
Kind("rms_norm_by_hand", "kernels.rms_norm", _is_norm, _rms_norm, has_float64=False)


# --- layer norms with a forward of their own --------------------------------------------------------------

_layer_norms: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()


def _is_layer_norm(module: nn.Module) -> bool:
    """Whether a library's `nn.LayerNorm` subclass with its own ``forward`` computes a layer norm."""
    cls: Any = original_class(module)
    if not isinstance(module, nn.LayerNorm) or cls.forward is nn.LayerNorm.forward:
        return False
    if cls.__module__.partition(".")[0] not in LIBRARIES:
        return False
    if len(module.normalized_shape) != 1 or module.weight is None or module.bias is None:
        return False
    if module not in _layer_norms:
        with isolated_eval():
            _layer_norms[module] = _probe_layer_norm(module)
    return _layer_norms[module] is not None


def _probe_layer_norm(module: nn.LayerNorm) -> str | None:
    """Return the normalised axis, ``"last"`` or ``"channels"`` of images; None if it is not a layer norm."""
    generator = torch.Generator().manual_seed(0)
    (size,) = module.normalized_shape
    weight, bias = torch.randn(2, size, generator=generator)
    parameters = {"weight": weight, "bias": bias}

    def is_correct(shape: tuple[int, ...], *, channels: bool = False) -> bool:
        x = 3 * torch.randn(shape, generator=generator) + 1
        rows = x.movedim(1, -1) if channels else x
        expected = F.layer_norm(rows, (size,), weight, bias, module.eps)
        expected = expected.movedim(-1, 1) if channels else expected
        modes = False, True
        return all(_is_close(_probe(module, parameters, {}, x, mode), expected) for mode in modes)

    if all(map(is_correct, [(2, size), (2, 3, size), (2, 3, 2, size)])):
        return "last"
    return "channels" if is_correct((2, size, 3, 2), channels=True) else None


def _layer_norm(cls: type) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        axis = _layer_norms[self] if self in _layer_norms or _is_layer_norm(self) else None
        is_single_tensor = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        ranks = {"last": (2, 3, 4), "channels": (4,), None: ()}[axis]
        if not is_single_tensor or args[0].dim() not in ranks:
            return cls.forward(self, *args, **kwargs)  # type: ignore[attr-defined]
        x = args[0].movedim(1, -1) if axis == "channels" else args[0]
        out: Any = kernels.layer_norm(x, self.weight, self.bias, self.eps)
        return out.movedim(-1, 1) if axis == "channels" else out

    return forward


# Some of them compute in float32 for every input dtype.
Kind("layer_norm_by_hand", "kernels.layer_norm", _is_layer_norm, _layer_norm, has_float64=False)


def _probe(
    module: nn.Module,
    parameters: dict[str, Tensor],
    children: dict[str, nn.Module],
    x: Tensor,
    training: bool | None = None,
) -> Tensor | None:
    """Run a copy of a module with other parameters and children on `x`; None if it fails."""
    copy: nn.Module = object.__new__(original_class(module))
    copy.__dict__.update(module.__dict__)
    copy.__dict__["_parameters"] = {name: nn.Parameter(t) for name, t in parameters.items()}
    copy.__dict__["_modules"] = {**module._modules, **children}
    if training is not None:
        copy.__dict__["training"] = training
    with torch.no_grad(), preserved_state(module):  # the copy shares what is not replaced
        try:
            out = copy.forward(x)
        except Exception:  # third-party code may need other inputs and raise any exception
            return None
    return out if isinstance(out, Tensor) else None


def _is_close(actual: Tensor | None, expected: Tensor) -> bool:
    if actual is None:
        return False
    return actual.shape == expected.shape and torch.allclose(actual, expected, 1e-5, 1e-6)


# --- gated units ------------------------------------------------------------------------------------------

_PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("gate_up_proj", "down_proj"))
_ACTS = ("act_fn", "activation_fn", "act")
_gated_units: dict[type, tuple[tuple[str, ...], str] | None] = {}


_GATES = {"gelu": "none", "gelu_tanh": "tanh"}


def _is_gate_activation(act: Any) -> bool:
    return activation_name(act) in ("silu", *_GATES)


def _is_gated_unit(module: nn.Module) -> bool:
    """Whether a module with projections of known names computes ``down(act(gate(x)) * up(x))``."""
    cls: Any = type(module)
    names = next((n for n in _PROJECTIONS if set(n) <= set(module._modules)), None)
    act = next((name for name in _ACTS if _is_gate_activation(getattr(module, name, None))), None)
    if names is None or act is None:
        return False
    if cls not in _gated_units:
        with isolated_eval():
            _gated_units[cls] = (names, act) if _computes_gated(module, names, act) else None
    return _gated_units[cls] == (names, act)


def _computes_gated(module: Any, names: tuple[str, ...], act: str) -> bool:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        sizes = [(4, 6), (3, 4)] if len(names) == 2 else [(4, 3), (4, 3), (3, 4)]
        linears = [nn.Linear(*size) for size in sizes]
        x = torch.randn(2, 4)
    children: dict[str, nn.Module] = dict(zip(names, linears, strict=True))
    with torch.no_grad():
        halves = (linears[0](x),) if len(names) == 2 else (linears[0](x), linears[1](x))
        expected = linears[-1](_apply_gate(getattr(module, act), *halves))
    return _is_close(_probe(module, {}, children, x), expected)


def _apply_gate(act: Any, gate: Tensor, up: Tensor | None = None) -> Tensor:
    name = activation_name(act)
    if name == "silu":
        return kernels.swiglu(gate, up)
    if name in _GATES:
        return kernels.geglu(gate, up, _GATES[name])
    first, second = gate.chunk(2, -1) if up is None else (gate, up)
    out: Tensor = act(first) * second
    return out


def _gated_unit(cls: type) -> Callable[..., Any]:
    found = _gated_units[cls]
    assert found is not None
    (*into, out), act = found

    def forward(self: Any, x: Tensor) -> Any:
        if _torch.has_global_hooks():  # they must see the activation's call
            return cls.forward(self, x)  # type: ignore[attr-defined]
        return getattr(self, out)(_apply_gate(getattr(self, act), *(getattr(self, name)(x) for name in into)))

    return forward


def _hooks_reason(module: Any, *args: Any, **kwargs: Any) -> str | None:
    found = _gated_units[original_class(module)]
    act = getattr(module, found[1]) if found is not None else None
    hooks = isinstance(act, nn.Module) and has_hooks(act)
    return "its activation has hooks, which would not be called" if hooks else None


def _absorbed_activation(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    found = _gated_units[original_class(module)]
    act = None if found is None else getattr(module, found[1])
    if found is not None and isinstance(act, nn.Module):
        yield from act.named_modules(prefix=found[1])


Kind(
    "gated_unit",
    "kernels.swiglu, geglu",
    _is_gated_unit,
    _gated_unit,
    _hooks_reason,
    absorbed=_absorbed_activation,
    call_fallback_reason=_hooks_reason,
)


# --- losses -----------------------------------------------------------------------------------------------

_LOSSES = "transformers.loss.loss_utils"
_CROSS_ENTROPY = "fixed_cross_entropy"


def _has_loss(module: nn.Module) -> bool:
    """Whether a model's ``forward`` calls a loss function of transformers that ends in cross entropy."""
    if not isinstance(getattr(type(module), "loss_function", None), property):
        return False
    forward: Any = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is not None and "loss_function" in code.co_names and _uses_cross_entropy(module.loss_function)


def _uses_cross_entropy(loss: Any) -> bool:
    plain = isinstance(loss, types.FunctionType) and loss.__module__ == _LOSSES
    return plain and _CROSS_ENTROPY in loss.__code__.co_names


def _cross_entropy(
    source: Tensor | Logits,
    target: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor:
    count = num_items_in_batch
    reduction = "mean" if count is None else "sum"
    if isinstance(source, Logits):
        loss = source.cross_entropy(target, ignore_index, reduction)
    else:
        loss = kernels.cross_entropy(source, target, None, ignore_index, reduction)
    if count is None:
        return loss
    return loss / (count.to(loss.device) if isinstance(count, Tensor) else count)


@functools.cache
def _with_burnt_cross_entropy(loss: types.FunctionType) -> Callable[..., Any]:
    return with_global(loss, _CROSS_ENTROPY, _cross_entropy)


def _loss(cls: type) -> Callable[..., Any]:
    loss_property: Any = cls.loss_function  # type: ignore[attr-defined]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = loss_property.fget(self)
        return (_with_burnt_cross_entropy(loss) if _uses_cross_entropy(loss) else loss)(*args, **kwargs)

    return call


Kind("loss", "kernels.cross_entropy", _has_loss, _loss, method="loss_function")


def head_of(module: nn.Module) -> nn.Linear | None:
    """Return the last layer of a model whose loss can be computed without logits, or None."""
    find = getattr(module, "get_output_embeddings", None)
    if not callable(find) or not _has_loss(module):
        return None
    head = find()
    plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    return head if plain and not has_hooks(head) else None


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks; `_torch.has_global_hooks` covers global ones."""
    forward, backward = module._forward_hooks or module._forward_pre_hooks, module._backward_hooks
    return bool(forward or backward or module._backward_pre_hooks)


def _head(self: nn.Linear, input: Tensor) -> Any:
    # Hooks expect a tensor, and sharding frees the weight in a hook, before the loss is computed. Replicas
    # of `nn.DataParallel` can gather only tensors.
    needs_tensor = has_hooks(self) or _torch.has_global_hooks() or hasattr(self, "_is_replica")
    if self.training and torch.is_grad_enabled() and _torch.is_plain_call() and not needs_tensor:
        return Logits(input, self)
    return F.linear(input, self.weight, self.bias)


HEAD = Kind("head", "kernels.linear_cross_entropy", lambda module: False, lambda cls: _head)

_LOSS_CLASS = "CrossEntropyLoss"


class _IsALoss(type):
    """Makes `isinstance` accept torch's losses as instances of the class that replaces theirs."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, nn.CrossEntropyLoss)


class _CrossEntropyLoss(nn.CrossEntropyLoss, metaclass=_IsALoss):
    """Replaces the class in a ``forward`` that constructs a loss at each call."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        try:
            return cross_entropy(self, input, target)
        except InputError:
            return super().forward(input, target)


def _constructs_losses(module: nn.Module) -> bool:
    return resolve_global(type(module).forward, _LOSS_CLASS) is nn.CrossEntropyLoss


Kind(
    "made_loss",
    "kernels.cross_entropy",
    _constructs_losses,
    lambda cls: with_global(cls.forward, _LOSS_CLASS, _CrossEntropyLoss),  # type: ignore[attr-defined]
    is_measured=False,
)


@contextlib.contextmanager
def isolated_eval() -> Iterator[None]:
    """Context for probing third-party code with a few numbers: float32, CPU, no gradients, no autocast.

    Global module hooks are off. The result must not depend on the settings around a model's first call.
    """
    before = torch.get_default_dtype()
    alone = _torch.without_global_hooks()
    with alone, torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class _ReboundGlobals(dict[str, Any]):
    """A function's globals with one name rebound; all others are read from its module when they are used."""

    def __init__(self, module: dict[str, Any], name: str, value: Any) -> None:
        super().__init__({name: value, "__builtins__": module["__builtins__"]})
        self._module = module

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._module

    def __missing__(self, name: str) -> Any:
        return self._module[name]


def resolve_global(function: Any, name: str) -> Any:
    """Return the value of a global that a function uses; None if it does not use it, or is not Python code.

    Also None for functions that assign globals: in a copy, the assignments would not reach the module.
    """
    user = _find_user(function, name, set())
    return None if user is None else user.__globals__[name]


def _find_user(function: Any, name: str, seen: set[int]) -> types.FunctionType | None:
    """Return the function that uses a global: this one, or one in its closure."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return None
    seen.add(id(function))
    if name in function.__code__.co_names and name in function.__globals__:
        assigns = any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(function))
        return None if assigns else function
    return next(
        (f for _, held in _closure_functions(function) if (f := _find_user(held, name, seen)) is not None),
        None,
    )


def with_global(function: types.FunctionType, name: str, value: Any) -> types.FunctionType:
    """Copy a function with a global that it uses bound to `value`; nothing outside the copy changes."""
    names, cells = function.__globals__, list(function.__closure__ or ())
    if name in function.__code__.co_names and name in names:
        names = _ReboundGlobals(names, name, value)
    else:
        at, held = next(
            (i, f) for i, f in _closure_functions(function) if _find_user(f, name, {id(function)}) is not None
        )
        cells[at] = types.CellType(with_global(held, name, value))
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, tuple(cells) or None
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    made.__wrapped__ = function  # type: ignore[attr-defined]
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    return made


def _closure_functions(function: types.FunctionType) -> Iterator[tuple[int, types.FunctionType]]:
    """Yield the functions in a function's closure, with the index of their cell."""
    for i, cell in enumerate(function.__closure__ or ()):
        try:
            held = cell.cell_contents
        except ValueError:  # empty: it is assigned later
            continue
        if isinstance(held, types.FunctionType):
            yield i, held
