"""The layers and functions of Hugging Face's models, told by what they are made of and what they compute.

A class that looks like a root-mean-square norm or a gated unit is tried on a few numbers, once, and is one
where it gives the same. Nothing here imports transformers. Attention is `hugging_face_attention`'s matter.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burnt import _torch, kernels
from burnt.codegen import fuse
from burnt.swapping.kind import Kind, original_class
from burnt.swapping.patterns.lazy_logits import Logits
from burnt.swapping.patterns.rebind_globals import isolated_eval, names_of, with_global
from burnt.swapping.site import site_in_holder

__all__ = ["HEAD", "LIBRARIES", "has_hooks", "head_of", "is_of", "word_of"]

_ACTIVATIONS = "transformers.activations"
_TIMM = "timm.layers.activations"
LIBRARIES = "torch", "torchvision", "timm", "transformers"
"""Whose classes are tried for what they compute: anybody else's may do what no trial shows."""


def is_of(module: object, home: str, *names: str) -> bool:
    """Whether a module, or another object, is of a class of one of these names from a library's file."""
    cls = original_class(module) if isinstance(module, nn.Module) else type(module)
    return cls.__module__ == home and cls.__name__ in names


# --- GPT-2's linear layer ---------------------------------------------------------------------------------


def _conv1d(self: Any, x: Tensor) -> Tensor:
    return kernels.linear(x, self.weight.t(), self.bias)


Kind(
    "conv1d",
    "kernels.linear",
    lambda module: is_of(module, "transformers.pytorch_utils", "Conv1D"),
    lambda cls: _conv1d,
)


# --- activations ------------------------------------------------------------------------------------------


@fuse
def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@fuse
def _mish(x: Tensor) -> Tensor:
    return F.mish(x)


_BY_NAME: dict[str, Callable[[Tensor], Tensor]] = {
    "GELUActivation": kernels.gelu,
    "GELUTanh": lambda x: kernels.gelu(x, "tanh"),
    "NewGELUActivation": lambda x: kernels.gelu(x, "tanh"),
    "FastGELUActivation": lambda x: kernels.gelu(x, "tanh"),
    "AccurateGELUActivation": lambda x: kernels.gelu(x, "tanh"),
    "SiLUActivation": kernels.silu,
    "ReLUSquaredActivation": kernels.relu2,
    "QuickGELUActivation": _quick_gelu,
    "MishActivation": _mish,
}
_OF_TIMM: dict[str, Callable[[Tensor], Tensor]] = {"GELU": kernels.gelu, "GELUTanh": _BY_NAME["GELUTanh"]}


def _activation(cls: type) -> Callable[..., Any]:
    call = (_OF_TIMM if cls.__module__ == _TIMM else _BY_NAME)[cls.__name__]
    return lambda self, input: call(input)


Kind(
    "activation",
    "kernels.gelu, silu, ...",
    lambda module: is_of(module, _ACTIVATIONS, *_BY_NAME) or is_of(module, _TIMM, *_OF_TIMM),
    _activation,
)


# --- root-mean-square norms -------------------------------------------------------------------------------

_EPS = ("variance_epsilon", "eps", "epsilon")
_norms: dict[type, tuple[str, bool] | None] = {}


def _is_norm(module: nn.Module) -> bool:
    """One weight, an epsilon, nothing else: whether it computes a root-mean-square norm."""
    cls: Any = type(module)
    if set(module._parameters) != {"weight"} or module._buffers or module._modules:
        return False
    weight = module._parameters["weight"]
    eps = next((name for name in _EPS if isinstance(getattr(module, name, None), float)), None)
    if weight is None or weight.dim() != 1 or eps is None or cls.forward is nn.RMSNorm.forward:
        return False
    if cls not in _norms:
        with isolated_eval():
            _norms[cls] = _norm_of(module, eps)
    return _norms[cls] is not None


def _norm_of(module: Any, eps: str) -> tuple[str, bool] | None:
    """The name of the epsilon, and whether 1 is added to the weight; None where it is no such norm."""
    generator = torch.Generator().manual_seed(0)
    size = module._parameters["weight"].shape[0]
    weight = torch.randn(size, generator=generator)
    x = 3 * torch.randn(2, size, generator=generator) + 1
    made = _tried(module, {"weight": weight}, {}, x)
    for plus in (False, True):
        if _same(made, F.rms_norm(x, (size,), weight + plus, getattr(module, eps))):
            return eps, plus
    return None


def _rms_norm(cls: type) -> Callable[..., Any]:
    found = _norms[cls]
    assert found is not None
    eps, plus = found

    def forward(self: Any, hidden_states: Tensor) -> Any:
        weight = 1 + self.weight if plus else self.weight
        return kernels.rms_norm(hidden_states, weight, getattr(self, eps))

    return forward


# It computes in float32, whatever it is given.
Kind("rms_norm_by_hand", "kernels.rms_norm", _is_norm, _rms_norm, wide=False)


# --- layer norms with a forward of their own --------------------------------------------------------------

_layer_norms: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()


def _is_layer_norm(module: nn.Module) -> bool:
    """A library's layer norm with a ``forward`` of its own: whether it computes one, along which axis."""
    cls: Any = original_class(module)
    if not isinstance(module, nn.LayerNorm) or cls.forward is nn.LayerNorm.forward:
        return False
    if cls.__module__.partition(".")[0] not in LIBRARIES:
        return False
    if len(module.normalized_shape) != 1 or module.weight is None or module.bias is None:
        return False
    if module not in _layer_norms:
        with isolated_eval():
            _layer_norms[module] = _axis_of(module)
    return _layer_norms[module] is not None


def _axis_of(module: nn.LayerNorm) -> str | None:
    """``"last"``, or ``"channels"`` of images, in training and evaluation; None where it is no such norm."""
    generator = torch.Generator().manual_seed(0)
    (size,) = module.normalized_shape
    weight, bias = torch.randn(2, size, generator=generator)
    parameters = {"weight": weight, "bias": bias}

    def tried(shape: tuple[int, ...], *, channels: bool = False) -> bool:
        x = 3 * torch.randn(shape, generator=generator) + 1
        turned = x.movedim(1, -1) if channels else x
        wanted = F.layer_norm(turned, (size,), weight, bias, module.eps)
        wanted = wanted.movedim(-1, 1) if channels else wanted
        return all(_same(_tried(module, parameters, {}, x, training), wanted) for training in (False, True))

    if all(map(tried, [(2, size), (2, 3, size), (2, 3, 2, size)])):
        return "last"
    return "channels" if tried((2, size, 3, 2), channels=True) else None


def _layer_norm(cls: type) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        axis = _layer_norms[self] if self in _layer_norms or _is_layer_norm(self) else None
        alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        ranks = {"last": (2, 3, 4), "channels": (4,), None: ()}[axis]
        if not alone or args[0].dim() not in ranks:
            return cls.forward(self, *args, **kwargs)  # type: ignore[attr-defined]
        x = args[0].movedim(1, -1) if axis == "channels" else args[0]
        made: Any = kernels.layer_norm(x, self.weight, self.bias, self.eps)
        return made.movedim(-1, 1) if axis == "channels" else made

    return forward


# Some of them compute in float32, whatever they are given.
Kind("layer_norm_by_hand", "kernels.layer_norm", _is_layer_norm, _layer_norm, wide=False)


def _tried(
    module: nn.Module,
    parameters: dict[str, Tensor],
    children: dict[str, nn.Module],
    x: Tensor,
    training: bool | None = None,
) -> Tensor | None:
    """What a module like this one, with other parameters and children, makes of `x`; None where it fails."""
    twin: nn.Module = object.__new__(original_class(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_parameters"] = {name: nn.Parameter(t) for name, t in parameters.items()}
    twin.__dict__["_modules"] = {**module._modules, **children}
    if training is not None:
        twin.__dict__["training"] = training
    with torch.no_grad():
        try:
            made = twin.forward(x)
        except Exception:  # of any kind: it is somebody's own code, which may want something else altogether
            return None
    return made if isinstance(made, Tensor) else None


def _same(made: Tensor | None, wanted: Tensor) -> bool:
    return made is not None and made.shape == wanted.shape and torch.allclose(made, wanted, 1e-5, 1e-6)


# --- gated units ------------------------------------------------------------------------------------------

_PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("gate_up_proj", "down_proj"))
_ACTS = ("act_fn", "activation_fn", "act")
_gated: dict[type, tuple[tuple[str, ...], str] | None] = {}


_GATES = {"gelu": "none", "gelu_tanh": "tanh"}


def word_of(act: Any) -> str | None:
    """A key of `burnt.kernels.ACTIVATIONS`, for a module or a function that computes it."""
    if act is F.silu or is_of(act, _ACTIVATIONS, "SiLUActivation") or _of_torch(act, nn.SiLU):
        return "silu"
    if act is F.relu or _of_torch(act, nn.ReLU):
        return "relu"
    if _of_torch(act, nn.ReLU6) or _of_torch(act, nn.Hardswish):
        return "relu6" if _of_torch(act, nn.ReLU6) else "hardswish"
    if is_of(act, _ACTIVATIONS, "ReLUSquaredActivation"):
        return "relu2"
    if _of_torch(act, nn.GELU):
        return "gelu" if act.approximate == "none" else "gelu_tanh"
    if act is F.gelu or is_of(act, _ACTIVATIONS, "GELUActivation") or is_of(act, _TIMM, "GELU"):
        return "gelu"
    tanh = is_of(act, _ACTIVATIONS, "GELUTanh", "NewGELUActivation") or is_of(act, _TIMM, "GELUTanh")
    return "gelu_tanh" if tanh else None


def _of_torch(module: object, cls: type[nn.Module]) -> bool:
    return isinstance(module, nn.Module) and original_class(module) is cls


def _is_gate(act: Any) -> bool:
    return word_of(act) in ("silu", *_GATES)


def _is_gated(module: nn.Module) -> bool:
    """Projections by their names, an activation: whether it computes ``down(act(gate(x)) * up(x))``."""
    cls: Any = type(module)
    names = next((n for n in _PROJECTIONS if set(n) <= set(module._modules)), None)
    act = next((name for name in _ACTS if _is_gate(getattr(module, name, None))), None)
    if names is None or act is None:
        return False
    if cls not in _gated:
        with isolated_eval():
            _gated[cls] = (names, act) if _computes_gated(module, names, act) else None
    return _gated[cls] == (names, act)


def _computes_gated(module: Any, names: tuple[str, ...], act: str) -> bool:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        sizes = [(4, 6), (3, 4)] if len(names) == 2 else [(4, 3), (4, 3), (3, 4)]
        made = [nn.Linear(*size) for size in sizes]
        x = torch.randn(2, 4)
    children: dict[str, nn.Module] = dict(zip(names, made, strict=True))
    with torch.no_grad():
        halves = (made[0](x),) if len(names) == 2 else (made[0](x), made[1](x))
        wanted = made[-1](_gate(getattr(module, act), *halves))
    return _same(_tried(module, {}, children, x), wanted)


def _gate(act: Any, gate: Tensor, up: Tensor | None = None) -> Tensor:
    word = word_of(act)
    if word == "silu":
        return kernels.swiglu(gate, up)
    if word in _GATES:
        return kernels.geglu(gate, up, _GATES[word])
    first, second = gate.chunk(2, -1) if up is None else (gate, up)
    made: Tensor = act(first) * second
    return made


def _gated_unit(cls: type) -> Callable[..., Any]:
    found = _gated[cls]
    assert found is not None
    (*into, out), act = found

    def forward(self: Any, x: Tensor) -> Any:
        if _torch.has_global_hooks():  # which are told of the activation
            return cls.forward(self, x)  # type: ignore[attr-defined]
        return getattr(self, out)(_gate(getattr(self, act), *(getattr(self, name)(x) for name in into)))

    return forward


def _hooked(module: Any, *args: Any, **kwargs: Any) -> str | None:
    found = _gated[original_class(module)]
    act = getattr(module, found[1]) if found is not None else None
    hooks = isinstance(act, nn.Module) and has_hooks(act)
    return "its activation has hooks, which would not be called" if hooks else None


def _act_inside(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    found = _gated[original_class(module)]
    act = None if found is None else getattr(module, found[1])
    if found is not None and isinstance(act, nn.Module):
        yield from act.named_modules(prefix=found[1])


Kind(
    "gated_unit",
    "kernels.swiglu, geglu",
    _is_gated,
    _gated_unit,
    _hooked,
    inside=_act_inside,
    why_not_call=_hooked,
)


# --- losses -----------------------------------------------------------------------------------------------

_LOSSES = "transformers.loss.loss_utils"
_ENTROPY = "fixed_cross_entropy"


def _has_loss(module: nn.Module) -> bool:
    """Whether a model's ``forward`` calls a loss of the library's that ends in cross entropy."""
    if not isinstance(getattr(type(module), "loss_function", None), property):
        return False
    forward: Any = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is not None and "loss_function" in code.co_names and _ends_in_entropy(module.loss_function)


def _ends_in_entropy(loss: Any) -> bool:
    plain = isinstance(loss, types.FunctionType) and loss.__module__ == _LOSSES
    return plain and _ENTROPY in loss.__code__.co_names


def _entropy(
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
def _with_entropy(loss: types.FunctionType) -> Callable[..., Any]:
    return with_global(loss, _ENTROPY, _entropy)


def _loss(cls: type) -> Callable[..., Any]:
    of: Any = cls.loss_function  # type: ignore[attr-defined]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = of.fget(self)
        return (_with_entropy(loss) if _ends_in_entropy(loss) else loss)(*args, **kwargs)

    return call


Kind("loss", "kernels.cross_entropy", _has_loss, _loss, method="loss_function")


def head_of(module: nn.Module) -> nn.Linear | None:
    """The last layer of a model whose loss can do without its logits, or None."""
    find = getattr(module, "get_output_embeddings", None)
    if not callable(find) or not _has_loss(module):
        return None
    head = find()
    plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    return head if plain and not has_hooks(head) else None


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody wants to know of a module's calls, of which `_torch.has_global_hooks` tells none."""
    forward, backward = module._forward_hooks or module._forward_pre_hooks, module._backward_hooks
    return bool(forward or backward or module._backward_pre_hooks)


def _head(self: nn.Linear, input: Tensor) -> Any:
    # Who has hooks wants a tensor; sharding takes the weight away behind them, before there is a loss. Copies
    # of a model in threads (`nn.DataParallel`) gather tensors alone.
    wanted = has_hooks(self) or _torch.has_global_hooks() or hasattr(self, "_is_replica")
    if self.training and torch.is_grad_enabled() and _torch.is_plain_call() and not wanted:
        return Logits(input, self)
    return F.linear(input, self.weight, self.bias)


HEAD = Kind("head", "kernels.linear_cross_entropy", lambda module: False, lambda cls: _head)

_MADE = "CrossEntropyLoss"


class _IsALoss(type):
    """What torch's class makes is an instance of the one that stands for it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, nn.CrossEntropyLoss)


class _CrossEntropyLoss(nn.CrossEntropyLoss, metaclass=_IsALoss):
    """The class by which a ``forward`` makes a loss at each call; what it makes is a place of the model."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = nn.CrossEntropyLoss(*args, **kwargs)
        if made.weight is not None:
            return made  # of this call alone, maybe
        return site_in_holder(made, (made.ignore_index, made.reduction, made.label_smoothing))


def _makes_losses(module: nn.Module) -> bool:
    return names_of(type(module).forward, _MADE) is nn.CrossEntropyLoss


Kind(
    "made_loss",
    "kernels.cross_entropy",
    _makes_losses,
    lambda cls: with_global(cls.forward, _MADE, _CrossEntropyLoss),  # type: ignore[attr-defined]
    makes="cross_entropy",
)
