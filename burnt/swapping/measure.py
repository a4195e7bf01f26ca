"""Original and swapped beside each other, for one place: the time of both, and how far they are apart.

Both are measured on twins of the module: the same classes and settings, parameters that share the memory of
the module's, and buffers, inputs and gradients of their own, without hooks. So nothing is seen of it
afterwards, neither in gradients nor in running averages nor in random numbers.
"""

from __future__ import annotations

import inspect
import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from burnt import _torch
from burnt.codegen.precision import matmul_eps, precision

if TYPE_CHECKING:
    from burnt.swapping.kind import Kind

__all__ = ["Finding", "checked", "measured", "signature_of"]

# What is swapped must be as much faster, or it is left alone: less is noise, and not worth a difference.
_GAIN = 1.02
_ROUNDS = range(5, 26)
_SECONDS = 0.4  # of a measurement, beyond the fewest rounds
_SHORTEST = 1e-3  # seconds of a sample
_CHEAP = 0.3  # seconds of the original's call up to which it is also computed in float64
# In units of the dtype's precision, relative to the largest number: what rounding explains of a difference
# between two results, where none is known in float64, and where one is.
_APART, _SLACK = 64, 8

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, slice, torch.Size)


@dataclass(eq=False)
class Finding:
    """What a measurement found: why the swapped one is not taken, or None; errors, and seconds."""

    why: str | None = None
    error: float | None = None
    original_error: float | None = None
    reference: str | None = None
    forward: tuple[float, float] | None = None
    """Seconds of the quickest forward, original and swapped."""
    whole: tuple[float, float] | None = None
    """Seconds with the backward; without one, those of the forward."""
    speed: float | None = None
    """Original by swapped, of the whole."""
    path: str = ""


class NotCallableError(Exception):
    """A module's call cannot be made again by itself."""


def signature_of(module: nn.Module, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What two places must have in common to be taken to be equally fast; and the inputs' shapes, as text."""
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    inputs = tuple((tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad) for t in tensors)
    own = tuple((tuple(p.shape), p.dtype, p.requires_grad) for p in module.parameters())
    casts = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), precision()
    text = ", ".join("x".join(map(str, t.shape)) or "1" for t in tensors[:3])
    key = kind, type(module).__qualname__, repr(module), own, inputs, module.training, casts
    return key, text + (", ..." if len(tensors) > 3 else "")


def measured(
    module: nn.Module,
    classes: tuple[type, type],
    kind: Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    train: bool,
) -> Finding:
    """Compare original and swapped, results first.

    Args:
        module: what is called.
        classes: the original class and the swapped one.
        kind: of what is swapped.
        args: of the call.
        kwargs: of the call.
        train: with gradients, and the time of the backward.
    """
    with _no_trace(list(module.parameters()), args, kwargs):
        try:
            inputs = _standing_in(module, kind, args, kwargs)
        except NotCallableError as error:
            return Finding(why=f"cannot be called by itself: {error}")
        theirs, ours = (_Call(_twin(module, cls, kind.deep), kind, *inputs, train) for cls in classes)
        try:
            expected = theirs.results()
        except Exception as error:  # of any kind: it is somebody's own code, called out of its turn
            return Finding(why=f"cannot be called by itself: {_told(error)}")
        try:
            found = ours.results()
        except Exception as error:
            return Finding(why=f"swapped, it fails: {_told(error)}")
        finding = Finding()
        if not kind.random:
            cheap = kind.wide and theirs.once() < _CHEAP
            exact = _exact(module, classes[0], kind, inputs, train) if cheap else None
            finding.error, finding.original_error, finding.reference, finding.why = _apart(
                found, expected, exact
            )
        if finding.why is None:
            _race(theirs, ours, finding)
        return finding


def checked(
    module: nn.Module,
    classes: tuple[type, type],
    kind: Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    train: bool,
) -> tuple[float | None, str | None, str | None]:
    """The error against the original, in its dtype, of what it is relative to, and why it is too large."""
    if kind.random:
        return None, None, None
    with _no_trace(list(module.parameters()), args, kwargs):
        try:
            inputs = _standing_in(module, kind, args, kwargs)
        except NotCallableError as error:
            return None, None, f"cannot be called by itself: {error}"
        calls = [_Call(_twin(module, cls, kind.deep), kind, *inputs, train) for cls in classes]
        try:
            expected, found = (call.results() for call in calls)
        except Exception as error:  # of any kind: it is somebody's own code, called out of its turn
            return None, None, f"cannot be called by itself: {_told(error)}"
        apart, _, reference, why = _apart(found, expected, None)
        return apart, reference, why


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


# --- twins ------------------------------------------------------------------------------------------------


@contextmanager
def _no_trace(*used: Any) -> Iterator[None]:
    """Random generators are as before afterwards; who counts saved tensors (checkpointing does) sees none.

    Nobody is told of the calls of modules.
    """
    tensors = [t for t in pytree.tree_leaves(used) if isinstance(t, Tensor) and t.device.type == "cuda"]
    unseen = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda saved: saved)
    devices = sorted({t.device.index or 0 for t in tensors})
    with torch.random.fork_rng(devices=devices), unseen, _torch.without_global_hooks():
        yield


def _seed(device: torch.device) -> None:
    """The same random numbers for the next call, by generators that `_no_trace` puts back."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(0)


def _twin(module: nn.Module, cls: type, below: bool, dtype: torch.dtype | None = None) -> nn.Module:
    """A module like another one, of a class: its parameters in the same memory, its buffers copied, no hooks.

    With `below` there are twins of the modules below it, too. Those that are swapped, or wait, are what they
    are to begin with: there is no telling them apart from the module's own gain otherwise.
    """
    from burnt.swapping.kind import original_class

    made: nn.Module = object.__new__(cls)
    state = dict(module.__dict__)
    for name, value in state.items():
        if "hooks" in name and isinstance(value, dict):
            state[name] = OrderedDict()
    state["_parameters"] = {
        name: None if p is None else nn.Parameter(_cast(p.detach(), dtype), p.requires_grad)
        for name, p in module._parameters.items()
    }
    with torch.inference_mode(False):  # buffers of a kind that can be told to have changed, as the module's
        state["_buffers"] = {
            name: None if b is None else _cast(b.detach().clone(), dtype)
            for name, b in module._buffers.items()
        }
    if below:
        state["_modules"] = {
            name: None if child is None else _twin(child, original_class(child), below, dtype)
            for name, child in module._modules.items()
        }
    made.__dict__.update(state)
    return made


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _standing_in(
    module: nn.Module, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, copied, so that it can be made again.

    Objects that may remember calls, such as a cache of keys and values, are left out where they may be.

    Raises:
        NotCallableError: one cannot be left out.
    """
    parameters: Mapping[str, inspect.Parameter] = {}
    copies: dict[int, Tensor] = {}  # what is given twice is one tensor, which may make a difference
    if kind.deep:
        parameters = inspect.signature(module.forward).parameters

    def copied(value: Any, name: str) -> Any:
        leaves, spec = pytree.tree_flatten(value)
        if all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in leaves):
            made = [copies.setdefault(id(t), _copy(t)) if isinstance(t, Tensor) else t for t in leaves]
            return pytree.tree_unflatten(made, spec)
        if not kind.deep:
            return value  # settings of the model
        known = parameters.get(name)
        if known is None or known.default is inspect.Parameter.empty:
            raise NotCallableError(f"its argument {name} is a {type(value).__name__}")
        return known.default

    names = [*parameters, *[f"number {i}" for i in range(len(parameters), len(args))]]
    return (
        [copied(value, name) for value, name in zip(args, names, strict=False)],
        {name: copied(value, name) for name, value in kwargs.items()},
    )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class _Call:
    """A call of a twin, with gradients where they are wanted."""

    def __init__(
        self, twin: nn.Module, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any], train: bool
    ) -> None:
        self.twin, self.train = twin, train
        self.args, self.kwargs = args, kwargs
        self.draws = kind.draws
        self.method, self.part = kind.method, kind.part
        inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        own = list(twin.parameters()) if kind.deep else []
        self.buffers = list(twin.buffers()) if kind.deep else []
        self.wanted = [t for t in (*inputs, *own) if t.requires_grad] if train else []
        self.device = next((t.device for t in (*inputs, *own)), torch.device("cpu"))
        self.cotangents: list[Tensor] | None = None

    def forward(self) -> list[Tensor]:
        """The tensors that the call returns."""
        with torch.set_grad_enabled(self.train):
            made = getattr(self.twin, self.method)(*self.args, **self.kwargs)
        return [t for t in pytree.tree_leaves(self.part(made)) if isinstance(t, Tensor)]

    def backward(self, made: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of what wants one."""
        roots = [t for t in made if t.requires_grad]
        if not roots or not self.wanted:
            return []
        if self.cotangents is None:
            generator = torch.Generator(self.device).manual_seed(1)
            # In float64 the same numbers: they are drawn in float32. In the result's layout, as what comes
            # after it gives them: torch's batch norm of channels-last takes eight times as long for others.
            drawn = [torch.randn(t.shape, generator=generator, device=t.device) for t in roots]
            self.cotangents = [torch.empty_like(t).copy_(d) for d, t in zip(drawn, roots, strict=True)]
        found = torch.autograd.grad(roots, self.wanted, self.cotangents, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(self.wanted, found, strict=True)]

    def results(self) -> list[Tensor]:
        """What it returns, the gradients, and the buffers afterwards."""
        _seed(self.device)
        modes = {module: module.training for module in self.twin.modules()}
        if self.draws:
            self.twin.eval()
        made = self.forward()
        gradients = self.backward(made)
        for module, training in modes.items():
            module.training = training
        return [*(t.detach() for t in made), *gradients, *(b.clone() for b in self.buffers)]

    def once(self) -> float:
        """Seconds of one call."""
        return self.sample(1)[1]

    def sample(self, calls: int) -> tuple[float, float]:
        """Seconds of a forward, and of all."""
        forward = 0.0
        self._wait()
        began = time.perf_counter()
        for _ in range(calls):
            start = time.perf_counter()
            made = self.forward()
            if self.wanted:
                self._wait()
                forward += time.perf_counter() - start
                self.backward(made)
            del made
        self._wait()
        whole = time.perf_counter() - began
        return (forward or whole) / calls, whole / calls

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def _race(theirs: _Call, ours: _Call, finding: Finding) -> None:
    """Take the time of both in turns."""
    calls = max(1, round(_SHORTEST / max(theirs.once(), 1e-7)))
    ours.once()
    samples: list[tuple[tuple[float, float], tuple[float, float]]] = []
    began = time.perf_counter()
    for turn in range(_ROUNDS.stop - 1):
        first, second = (theirs, ours) if turn % 2 == 0 else (ours, theirs)
        one, other = first.sample(calls), second.sample(calls)
        samples.append((one, other) if turn % 2 == 0 else (other, one))
        if turn + 1 >= _ROUNDS.start and time.perf_counter() - began > _SECONDS:
            break
    # Of few samples the quickest is the one to go by: what else goes on in a machine only adds to them.
    finding.forward, finding.whole = (
        (min(a[i] for a, _ in samples), min(b[i] for _, b in samples)) for i in (0, 1)
    )
    finding.speed = finding.whole[0] / finding.whole[1]
    if finding.speed < _GAIN:
        finding.why = _too_slow(finding.speed)


def _too_slow(speed: float) -> str:
    """Why a place is left that is not as much faster as is wanted."""
    if speed < 1:
        return f"{speed:.2f} times as fast"
    return f"{math.floor(1000 * speed) / 1000:.3f} times as fast, where {_GAIN:g} is wanted"


# --- errors -----------------------------------------------------------------------------------------------


def _exact(
    module: nn.Module,
    original: type,
    kind: Kind,
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    train: bool,
) -> list[Tensor] | None:
    """What the original gives in float64; None where it does not compute in it."""

    known: dict[int, Tensor] = {}

    def wide(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            made = value.detach().double().requires_grad_(value.requires_grad)
            return known.setdefault(id(value), made)
        return value

    args, kwargs = pytree.tree_map(wide, inputs)
    twin = _twin(module, original, kind.deep, torch.float64)
    try:
        with torch.autocast(module_device(module), enabled=False):
            found = _Call(twin, kind, args, kwargs, train).results()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None  # a dtype of its own inside: the report says that float64 was not the reference
    return found if all(t.dtype == torch.float64 for t in found if t.is_floating_point()) else None


def module_device(module: nn.Module) -> str:
    """The kind of device that a module's parameters are on."""
    return next((p.device.type for p in module.parameters()), "cpu")


def _apart(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], exact: Sequence[Tensor] | None
) -> tuple[float | None, float | None, str | None, str | None]:
    """Largest errors of ours and of the original, relative to the largest number.

    Then what they are against, and why they are too large, or None.
    """
    shapes = [[(tuple(t.shape), t.dtype) for t in results] for results in (ours, theirs)]
    if shapes[0] != shapes[1]:
        return None, None, None, "its results are of other shapes or dtypes than the original's"
    pairs = [i for i, t in enumerate(theirs) if t.is_floating_point() and t.numel()]
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if i not in pairs and not torch.equal(a, b):
            return None, None, None, "other integers than the original's"
    if not pairs:
        return 0.0, 0.0, "equal", None
    truth = theirs if exact is None or len(exact) != len(theirs) else exact
    scale = max(float(truth[i].double().abs().nan_to_num(0, 0, 0).max()) for i in pairs) or 1.0
    worst, worst_theirs, why = 0.0, 0.0, None
    for i in pairs:
        finite = theirs[i].isfinite()
        if not torch.equal(finite, ours[i].isfinite()):
            return None, None, None, "NaNs or infinities where the original has none, or the other way round"
        error, their_error = (
            float((t.double() - truth[i].double())[finite].abs().max()) / scale if bool(finite.any()) else 0.0
            for t in (ours[i], theirs[i])
        )
        eps = torch.finfo(theirs[i].dtype).eps
        # Beside float64 the original's own error tells how it multiplies; without, what it was allowed to.
        apart = max(_APART * eps, _SLACK * matmul_eps(theirs[i].dtype))
        allowed = apart if truth is theirs else 4 * their_error + _SLACK * eps
        if error > allowed and why is None:
            why = f"off by {error:.1e} of the largest number, where {allowed:.1e} is tolerated"
        worst, worst_theirs = max(worst, error), max(worst_theirs, their_error)
    reference = str(theirs[pairs[0]].dtype).removeprefix("torch.") if truth is theirs else "float64"
    return worst, None if truth is theirs else worst_theirs, reference, why
