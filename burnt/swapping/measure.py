"""Run the original and the swapped module of one site side by side: the time of both, and their difference.

Both run as twins of the module: the same class and settings, parameters that share the memory of the
module's, and their own buffers, inputs and gradients, without hooks. What the twins share with the module is
restored. So measuring changes no parameter, gradient, running average or random number of the model.
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
from burnt.inspect.meta import preserved_random_states
from burnt.swapping.state import preserved_state

if TYPE_CHECKING:
    from burnt.swapping.kind import Kind

__all__ = ["Finding", "check_error", "measure", "signature_of"]

# The least speedup of a swapped site: anything less is noise, and not worth a numerical difference.
_GAIN = 1.02
_ROUNDS = range(5, 26)
_SECONDS = 0.4  # of a measurement; the minimum number of rounds may take longer
_SHORTEST = 1e-3  # seconds of a sample, at least
_CHEAP = 0.3  # seconds: if the original's call takes less, it is also computed in float64
# The tolerated difference, in units of the dtype's precision, relative to the largest number: without a
# float64 reference, and with one.
_APART, _SLACK = 64, 8

_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    slice,
    torch.Size,
)


@dataclass(eq=False)
class Finding:
    """The result of a measurement: why the swapped module is not used, or None; errors, and seconds."""

    why: str | None = None
    error: float | None = None
    original_error: float | None = None
    reference: str | None = None
    forward: tuple[float, float] | None = None
    """Seconds of the quickest forward, original and swapped."""
    whole: tuple[float, float] | None = None
    """Seconds with the backward; of the forward if there is none."""
    speed: float | None = None
    """Speedup of the whole: the original's seconds divided by the swapped one's."""
    path: str = ""


class NotCallableError(Exception):
    """A module's call cannot be repeated outside the model."""


def signature_of(module: nn.Module, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the key under which sites share a measurement, and the inputs' shapes as text."""
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    inputs = tuple((tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad) for t in tensors)
    own = tuple((tuple(p.shape), p.dtype, p.requires_grad) for p in module.parameters())
    casts = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), precision()
    text = ", ".join("x".join(map(str, t.shape)) or "1" for t in tensors[:3])
    key = kind, type(module).__qualname__, repr(module), own, inputs, module.training, casts
    return key, text + (", ..." if len(tensors) > 3 else "")


def measure(
    module: nn.Module,
    classes: tuple[type, type],
    kind: Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    train: bool,
) -> Finding:
    """Compare the results of the original and the swapped module, then their times.

    Args:
        module: the module that is called.
        classes: the original class and the swapped one.
        kind: the module's kind.
        args: the positional arguments of the call.
        kwargs: the keyword arguments of the call.
        train: compute gradients, and time the backward too.
    """
    with _no_trace(module, kind):
        try:
            inputs = _copy_arguments(module, kind, args, kwargs)
        except NotCallableError as error:
            return Finding(why=f"cannot be called by itself: {error}")
        theirs, ours = (
            _Call(_twin(module, cls, kind.uses_parameters), kind, *inputs, train) for cls in classes
        )
        try:
            expected = theirs.results()
        except Exception as error:  # user code, called outside its model, may raise any exception
            return Finding(why=f"cannot be called by itself: {_summarize_error(error)}")
        try:
            actual = ours.results()
        except Exception as error:
            return Finding(why=f"swapped, it fails: {_summarize_error(error)}")
        finding = Finding()
        if not kind.random:
            cheap = kind.has_float64 and theirs.once() < _CHEAP
            exact = _float64_results(module, classes[0], kind, inputs, train) if cheap else None
            finding.error, finding.original_error, finding.reference, finding.why = _compare(
                actual, expected, exact
            )
        if finding.why is None:
            _race(theirs, ours, finding)
        return finding


def check_error(
    module: nn.Module,
    classes: tuple[type, type],
    kind: Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    train: bool,
) -> tuple[float | None, str | None, str | None]:
    """Return the error against the original, the reference's dtype, and why it is too large or None."""
    if kind.random:
        return None, None, None
    with _no_trace(module, kind):
        try:
            inputs = _copy_arguments(module, kind, args, kwargs)
        except NotCallableError as error:
            return None, None, f"cannot be called by itself: {error}"
        calls = [_Call(_twin(module, cls, kind.uses_parameters), kind, *inputs, train) for cls in classes]
        try:
            expected, actual = (call.results() for call in calls)
        except Exception as error:  # user code, called outside its model, may raise any exception
            return None, None, f"cannot be called by itself: {_summarize_error(error)}"
        max_error, _, reference, why = _compare(actual, expected, None)
        return max_error, reference, why


def _summarize_error(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


# --- twins ------------------------------------------------------------------------------------------------


@contextmanager
def _no_trace(module: nn.Module, kind: Kind) -> Iterator[None]:
    """Restore the module and the random generators afterwards; no global or saved-tensor hooks are called."""
    # Other methods than forward use no parameters, and may belong to a module as large as the model.
    preserved = preserved_state(module) if kind.uses_parameters else preserved_random_states()
    with preserved, _torch.without_saved_tensor_hooks(), _torch.without_global_hooks():
        yield


def _seed(device: torch.device) -> None:
    """Seed the generators, so that each call draws the same numbers; `_no_trace` restores them."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(0)


def _twin(module: nn.Module, cls: type, below: bool, dtype: torch.dtype | None = None) -> nn.Module:
    """Create a twin of a module with a class: parameters share their memory, buffers are copied, no hooks.

    With `below`, submodules become twins too. Those that are swapped, or wait, get their original class;
    otherwise their gain could not be told from the module's own.
    """
    from burnt.swapping.kind import original_class

    twin: nn.Module = object.__new__(cls)
    state = dict(module.__dict__)
    for name, value in state.items():
        if "hooks" in name and isinstance(value, dict):
            state[name] = OrderedDict()
    state["_parameters"] = {
        name: None if p is None else nn.Parameter(_cast(p.detach(), dtype), p.requires_grad)
        for name, p in module._parameters.items()
    }
    with torch.inference_mode(False):  # buffers with a version counter, as the module's have
        state["_buffers"] = {
            name: None if b is None else _cast(b.detach().clone(), dtype)
            for name, b in module._buffers.items()
        }
    if below:
        state["_modules"] = {
            name: None if child is None else _twin(child, original_class(child), below, dtype)
            for name, child in module._modules.items()
        }
    twin.__dict__.update(state)
    return twin


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _copy_arguments(
    module: nn.Module, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Copy the arguments of a call, so that it can be repeated.

    Objects with state, such as a cache of keys and values, are replaced by the parameter's default.

    Raises:
        NotCallableError: such an object's parameter has no default.
    """
    parameters: Mapping[str, inspect.Parameter] = {}
    copies: dict[int, Tensor] = {}  # a tensor that is passed twice is copy_value once: identity may matter
    if kind.uses_parameters:
        parameters = inspect.signature(module.forward).parameters

    def copy_value(value: Any, name: str) -> Any:
        leaves, spec = pytree.tree_flatten(value)
        if all(isinstance(leaf, (Tensor, *_CONSTANTS)) for leaf in leaves):
            new = [copies.setdefault(id(t), _copy(t)) if isinstance(t, Tensor) else t for t in leaves]
            return pytree.tree_unflatten(new, spec)
        if not kind.uses_parameters:
            return value  # settings of the model
        parameter = parameters.get(name)
        if parameter is None or parameter.default is inspect.Parameter.empty:
            raise NotCallableError(f"its argument {name} is a {type(value).__name__}")
        return parameter.default

    names = [*parameters, *[f"number {i}" for i in range(len(parameters), len(args))]]
    return (
        [copy_value(value, name) for value, name in zip(args, names, strict=False)],
        {name: copy_value(value, name) for name, value in kwargs.items()},
    )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class _Call:
    """A call of a twin, with gradients if `train`."""

    def __init__(
        self, twin: nn.Module, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any], train: bool
    ) -> None:
        self.twin, self.train = twin, train
        self.args, self.kwargs = args, kwargs
        self.random_in_training = kind.random_in_training
        self.method, self.select_output = kind.method, kind.select_output
        inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        own = list(twin.parameters()) if kind.uses_parameters else []
        self.buffers = list(twin.buffers()) if kind.uses_parameters else []
        self.leaves = [t for t in (*inputs, *own) if t.requires_grad] if train else []
        self.device = next((t.device for t in (*inputs, *own)), torch.device("cpu"))
        self.grad_outs: list[Tensor] | None = None

    def forward(self) -> list[Tensor]:
        """Run the call and return its tensors."""
        with torch.set_grad_enabled(self.train):
            output = getattr(self.twin, self.method)(*self.args, **self.kwargs)
        return [t for t in pytree.tree_leaves(self.select_output(output)) if isinstance(t, Tensor)]

    def backward(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the inputs and parameters that require one."""
        roots = [t for t in outputs if t.requires_grad]
        if not roots or not self.leaves:
            return []
        if self.grad_outs is None:
            generator = torch.Generator(self.device).manual_seed(1)
            # They are drawn in float32, so that a float64 run gets the same numbers. They have the result's
            # layout, as in a model: torch's channels-last batch norm takes eight times as long with others.
            noise = [torch.randn(t.shape, generator=generator, device=t.device) for t in roots]
            self.grad_outs = [torch.empty_like(t).copy_(d) for d, t in zip(noise, roots, strict=True)]
        gradients = torch.autograd.grad(roots, self.leaves, self.grad_outs, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(self.leaves, gradients, strict=True)]

    def results(self) -> list[Tensor]:
        """Run the call and return its outputs, the gradients, and the buffers afterwards."""
        _seed(self.device)
        modes = {module: module.training for module in self.twin.modules()}
        if self.random_in_training:
            self.twin.eval()
        outputs = self.forward()
        gradients = self.backward(outputs)
        for module, training in modes.items():
            module.training = training
        return [*(t.detach() for t in outputs), *gradients, *(b.clone() for b in self.buffers)]

    def once(self) -> float:
        """Run the call once and return its seconds."""
        return self.sample(1)[1]

    def sample(self, calls: int) -> tuple[float, float]:
        """Return the mean seconds of a forward, and of a forward with its backward."""
        forward = 0.0
        self._wait()
        began = time.perf_counter()
        for _ in range(calls):
            start = time.perf_counter()
            outputs = self.forward()
            if self.leaves:
                self._wait()
                forward += time.perf_counter() - start
                self.backward(outputs)
            del outputs
        self._wait()
        whole = time.perf_counter() - began
        return (forward or whole) / calls, whole / calls

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def _race(theirs: _Call, ours: _Call, finding: Finding) -> None:
    """Time both calls alternately, and store the result in `finding`."""
    calls = max(1, round(_SHORTEST / max(theirs.once(), 1e-7)))
    ours.once()
    samples: list[tuple[tuple[float, float], tuple[float, float]]] = []
    began = time.perf_counter()
    for round_index in range(_ROUNDS.stop - 1):
        first, second = (theirs, ours) if round_index % 2 == 0 else (ours, theirs)
        one, other = first.sample(calls), second.sample(calls)
        samples.append((one, other) if round_index % 2 == 0 else (other, one))
        if round_index + 1 >= _ROUNDS.start and time.perf_counter() - began > _SECONDS:
            break
    # With few samples the minimum is the best estimate: other load on the machine only adds time.
    finding.forward, finding.whole = (
        (min(a[i] for a, _ in samples), min(b[i] for _, b in samples)) for i in (0, 1)
    )
    finding.speed = finding.whole[0] / finding.whole[1]
    if finding.speed < _GAIN:
        finding.why = _too_slow(finding.speed)


def _too_slow(speed: float) -> str:
    """Explain that a speedup is below `_GAIN`."""
    if speed < 1:
        return f"{speed:.2f} times as fast"
    return f"{math.floor(1000 * speed) / 1000:.3f} times as fast; {_GAIN:g} is required"


# --- errors -----------------------------------------------------------------------------------------------


def _float64_results(
    module: nn.Module,
    original: type,
    kind: Kind,
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    train: bool,
) -> list[Tensor] | None:
    """Return the original's results in float64; None if it does not compute in float64."""

    copies: dict[int, Tensor] = {}

    def to_float64(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            copy = value.detach().double().requires_grad_(value.requires_grad)
            return copies.setdefault(id(value), copy)
        return value

    args, kwargs = pytree.tree_map(to_float64, inputs)
    twin = _twin(module, original, kind.uses_parameters, torch.float64)
    try:
        with torch.autocast(module_device(module), enabled=False):
            results = _Call(twin, kind, args, kwargs, train).results()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None  # the module uses a fixed dtype; the report then shows another reference than float64
    return results if all(t.dtype == torch.float64 for t in results if t.is_floating_point()) else None


def module_device(module: nn.Module) -> str:
    """Return the device type of a module's parameters."""
    return next((p.device.type for p in module.parameters()), "cpu")


def _compare(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], exact: Sequence[Tensor] | None
) -> tuple[float | None, float | None, str | None, str | None]:
    """Compare results: the largest errors of ours and of the original, relative to the largest number.

    Also returns the reference that errors are relative to, and why they are too large, or None.
    """
    shapes = [[(tuple(t.shape), t.dtype) for t in results] for results in (ours, theirs)]
    if shapes[0] != shapes[1]:
        return None, None, None, "its results have other shapes or dtypes than the original's"
    pairs = [i for i, t in enumerate(theirs) if t.is_floating_point() and t.numel()]
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if i not in pairs and not torch.equal(a, b):
            return None, None, None, "its integer results differ from the original's"
    if not pairs:
        return 0.0, 0.0, "equal", None
    baseline = theirs if exact is None or len(exact) != len(theirs) else exact
    scale = max(float(baseline[i].double().abs().nan_to_num(0, 0, 0).max()) for i in pairs) or 1.0
    max_error, max_their_error, why = 0.0, 0.0, None
    for i in pairs:
        finite = theirs[i].isfinite()
        if not torch.equal(finite, ours[i].isfinite()):
            return None, None, None, "NaNs or infinities where the original has none, or the other way round"
        error, their_error = (
            float((t.double() - baseline[i].double())[finite].abs().max()) / scale
            if bool(finite.any())
            else 0.0
            for t in (ours[i], theirs[i])
        )
        eps = torch.finfo(theirs[i].dtype).eps
        # With a float64 reference, the original's own error shows the precision that it multiplies with;
        # without one, the precision that the settings allow bounds it.
        eager_tolerance = max(_APART * eps, _SLACK * matmul_eps(theirs[i].dtype))
        tolerance = eager_tolerance if baseline is theirs else 4 * their_error + _SLACK * eps
        if error > tolerance and why is None:
            why = f"off by {error:.1e} of the largest number, where {tolerance:.1e} is allowed"
        max_error, max_their_error = max(max_error, error), max(max_their_error, their_error)
    reference = str(theirs[pairs[0]].dtype).removeprefix("torch.") if baseline is theirs else "float64"
    return max_error, None if baseline is theirs else max_their_error, reference, why
