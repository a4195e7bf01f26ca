"""Run the original and the swapped module of one site side by side: the time of both, and their difference.

Both run as copies of the module: the same class and settings, parameters that share the memory of the
module's, and their own buffers, inputs and gradients, without hooks. What they share with the module is
restored. So measuring changes no parameter, gradient, running average or random number of the model.

Other load on the machine makes samples scatter by more than most gains. So the two are sampled in turns, the
speed is the median of the pairs' ratios, and it comes with the interval in which that median lies at 95 %. A
site is decided as soon as the interval allows it; else more samples are taken, within a time limit.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from burnt import _torch
from burnt._version import __version__
from burnt.codegen.precision import matmul_eps, precision
from burnt.inspect.meta import preserved_random_states
from burnt.kernels.interface.tuning_key import machine_name
from burnt.swapping.kind import Kind, original_class
from burnt.swapping.state import preserved_state

# The least speedup of a swapped site: anything less is not worth a numerical difference.
_GAIN = 1.02
_EVEN = 1.0  # the speed of two that take the same time
# Pairs of samples: the interval of the median of six has a probability of 97 %, of five less than 95 %.
_ROUNDS = range(6, 193)
_SECONDS = 3.0  # for an undecided site; the minimum number of rounds may take longer
_ENOUGH = 24  # samples after which a median below `_GAIN` needs no certainty: the original is kept
_SHORTEST = 1e-3  # seconds of a sample, at least
_CHEAP = 0.3  # seconds: if the original's call takes less, it is also computed in float64
# The tolerated difference, in units of the dtype's precision, relative to the largest number: without a
# float64 reference, and with one.
_APART, _SLACK = 64, 8

_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, slice, torch.Size),
)


Source = Literal["measured", "kept", "given"]
"""Whether something was measured in this process, kept from an earlier one, or given to `swap`."""


@dataclass(frozen=True)
class Timing:
    """The times of the original and of the swapped one, sampled in turns.

    `forward` and `whole` (with the backward, if there is one) are median seconds, original and swapped.
    `speed` is the median of the samples' speedups: the original's seconds divided by the swapped one's; it
    lies in `speed_range` with a probability of 95 %.
    """

    forward: tuple[float, float]
    whole: tuple[float, float]
    speed: float
    speed_range: tuple[float, float]
    samples: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> Timing:
        """Summarize pairs of samples, original and swapped, each the seconds of a forward and of a whole."""
        forward, whole = (
            (statistics.median(a[i] for a, _ in pairs), statistics.median(b[i] for _, b in pairs))
            for i in (0, 1)
        )
        # Other load lasts longer than a pair, so it mostly cancels in a ratio.
        speeds = sorted(a[1] / b[1] for a, b in pairs)
        # The order statistics of the sign test, which assumes nothing about how the samples are distributed.
        cut = max(0, math.floor((len(speeds) - 1) / 2 - 0.98 * math.sqrt(len(speeds))))
        return cls(forward, whole, statistics.median(speeds), (speeds[cut], speeds[-1 - cut]), len(speeds))

    @property
    def is_fast_enough(self) -> bool:
        """Whether a site is surely fast enough to be swapped."""
        return self.speed >= _GAIN and self.speed_range[0] >= _EVEN

    @property
    def is_decided(self) -> bool:
        """Whether a site is surely fast enough, surely not, or promises no gain.

        Else more samples might decide otherwise: the original is kept for now, and not for good.
        """
        promises_nothing = self.speed < _GAIN and self.samples >= _ENOUGH
        return self.is_fast_enough or self.speed_range[1] < _GAIN or promises_nothing

    @property
    def is_slower(self) -> bool:
        """Whether the swapped one is slower beyond the scatter of the samples."""
        return self.speed_range[1] < _EVEN

    @property
    def is_surely_faster_or_slower(self) -> bool:
        """Whether the samples decide which of both is faster."""
        return self.speed_range[0] >= _EVEN or self.is_slower


@dataclass
class ModelTiming:
    """The time of a whole model, original and swapped.

    `how` says what was timed: the steps, and the training mode of the call. `why` says why it was not timed,
    or what followed: `restored` if the original is faster. `source` is whether this process measured it.
    """

    how: str
    timing: Timing | None = None
    why: str | None = None
    restored: bool = False
    source: Source = "measured"


@dataclass(eq=False)
class Finding:
    """The result of a measurement: why the swapped module is not used, or None; errors, and the time."""

    why: str | None = None
    error: float | None = None
    original_error: float | None = None
    reference: str | None = None
    timing: Timing | None = None
    path: str = ""
    source: Source = "measured"


class NotCallableError(Exception):
    """A module's call cannot be repeated outside the model."""


def device_of(module: nn.Module, args: Any = (), kwargs: Any = None) -> torch.device:
    """Return the device of a module's first parameter, or else of the first tensor among its arguments."""
    tensors = (t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor))
    return next((t.device for source in (module.parameters(), tensors) for t in source), torch.device("cpu"))


def context_of(device: torch.device) -> dict[str, str]:
    """Return what measurements depend on besides the model and its inputs: the versions and the machine."""
    machine = machine_name(device.type, device.index or 0)
    return {"burnt": __version__, "torch": str(torch.__version__), "machine": machine}


def signature_of(
    module: nn.Module, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the key under which sites share a measurement, and the inputs' shapes as text.

    The key is the same in other processes, unless the module's `repr` shows an address.
    """
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    inputs = tuple((tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad) for t in tensors)
    own = tuple((tuple(p.shape), p.dtype, p.requires_grad) for p in module.parameters())
    casts = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), precision()
    text = ", ".join("x".join(map(str, t.shape)) or "1" for t in tensors[:3])
    key = kind, type(module).__qualname__, repr(module), own, inputs, module.training, casts
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16], text + (", ..." if len(tensors) > 3 else "")


def measure(
    module: nn.Module,
    classes: tuple[type, type],
    kind: Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    train: bool,
    timed: bool = True,
) -> Finding:
    """Compare the results of the original and the swapped module, then their times.

    `classes` are the original class and the swapped one. With `train`, gradients are computed and the
    backward is timed too; without `timed`, only errors against the original are computed.
    """
    finding = Finding()
    if kind.random and not timed:
        return finding
    # Other methods than forward use no parameters, and may belong to a module as large as the model.
    preserved = preserved_state(module) if kind.uses_parameters else preserved_random_states()
    with preserved, _torch.without_saved_tensor_hooks(), _torch.without_global_hooks():
        try:
            inputs = copy_arguments(module, args, kwargs, kind.uses_parameters)
            theirs, ours = (Call(_site_copy(module, cls, kind), *inputs, train, kind) for cls in classes)
            expected = theirs.results()
        except NotCallableError as error:
            return Finding(why=f"cannot be called by itself: {error}")
        except Exception as error:  # user code, called outside its model, may raise any exception
            return Finding(why=f"cannot be called by itself: {summarize_error(error)}")
        try:
            actual = ours.results()
        except Exception as error:
            return Finding(why=f"swapped, it fails: {summarize_error(error)}")
        if not kind.random:
            exact = None
            if timed and kind.has_float64 and theirs.once() < _CHEAP:
                exact = _float64_results(module, classes[0], kind, inputs, train)
            finding.error, finding.original_error, finding.reference, finding.why = _compare(
                actual, expected, exact
            )
        if timed and finding.why is None:
            finding.timing = race(theirs, ours, lambda timing: timing.is_decided, _SECONDS)
            finding.why = _too_slow(finding.timing)
        return finding


def summarize_error(error: Exception) -> str:
    """Return an exception's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


# --- copies -----------------------------------------------------------------------------------------------


def _seed(device: torch.device) -> None:
    """Seed the generators, so that each call draws the same numbers; `measure` restores them."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(0)


def _site_copy(module: nn.Module, cls: type, kind: Kind, dtype: torch.dtype | None = None) -> nn.Module:
    """Copy a site's module with a class.

    Submodules that are swapped, or wait, get their original class; otherwise their gain could not be told
    from the module's own.
    """
    return shared_copy(module, cls, original_class if kind.uses_parameters else None, dtype)


def shared_copy(
    module: nn.Module,
    cls: type,
    class_below: Callable[[nn.Module], type] | None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Copy a module as a `cls`: parameters share their memory, buffers are copied, no hooks.

    `class_below` returns the class of a submodule's copy; None keeps the submodules themselves.
    Floating-point parameters and buffers are cast to `dtype`.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return module  # it runs without Python, and is never a site
    copy: nn.Module = object.__new__(cls)
    state = dict(module.__dict__)
    for name, value in state.items():
        if "hooks" in name and isinstance(value, dict):
            state[name] = OrderedDict()
    state["_parameters"] = {
        name: None if p is None else _parameter(_cast(p.detach(), dtype), p.requires_grad)
        for name, p in module._parameters.items()
    }
    with torch.inference_mode(False):  # buffers with a version counter, as the module's have
        state["_buffers"] = {
            name: None if b is None else _cast(b.detach().clone(), dtype)
            for name, b in module._buffers.items()
        }
    if class_below is not None:
        state["_modules"] = {
            name: None if child is None else shared_copy(child, class_below(child), class_below, dtype)
            for name, child in module._modules.items()
        }
    copy.__dict__.update(state)
    return copy


def _parameter(value: Tensor, requires_grad: bool) -> nn.Parameter:
    """Make a parameter of values, which takes gradients unless they were made in inference mode."""
    return nn.Parameter(
        value, requires_grad and (not value.is_inference() or torch.is_inference_mode_enabled())
    )


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def copy_arguments(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], is_forward: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Copy the arguments of a call, so that it can be repeated.

    Objects with state, such as a cache of keys and values, are replaced by the parameter's default, or raise
    NotCallableError without one. For other methods than forward they are settings, and passed as they are.
    """
    parameters: Mapping[str, inspect.Parameter] = {}
    copies: dict[int, Tensor] = {}  # a tensor that is passed twice is copied once: identity may matter
    if is_forward:
        parameters = inspect.signature(module.forward).parameters

    def copy_value(value: Any, name: str) -> Any:
        leaves, spec = pytree.tree_flatten(value)
        if all(isinstance(leaf, (Tensor, *_CONSTANTS)) for leaf in leaves):
            new = [copies.setdefault(id(t), _copy(t)) if isinstance(t, Tensor) else t for t in leaves]
            return pytree.tree_unflatten(new, spec)
        if not is_forward:
            return value
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


class Call:
    """A call of a copy, with gradients if `train`: of a site's method, or of a model's forward."""

    def __init__(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        train: bool,
        kind: Kind | None = None,
        select_output: Callable[[Any], Any] = lambda output: output,
    ) -> None:
        self.module, self.train = module, train
        self.args, self.kwargs = args, kwargs
        self.random_in_training = kind is not None and kind.random_in_training
        self.method = "forward" if kind is None else kind.method
        self.select_output = select_output if kind is None else kind.select_output
        inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        uses_parameters = self.method == "forward"
        own = list(module.parameters()) if uses_parameters else []
        self.buffers = list(module.buffers()) if uses_parameters else []
        self.leaves = [t for t in (*inputs, *own) if t.requires_grad] if train else []
        on_accelerator = (t.device for t in (*inputs, *own) if t.device.type != "cpu")
        self.device = next(on_accelerator, torch.device("cpu"))
        self.grad_outs: list[Tensor] | None = None

    def forward(self) -> list[Tensor]:
        """Run the call and return its tensors."""
        with torch.set_grad_enabled(self.train):
            output = getattr(self.module, self.method)(*self.args, **self.kwargs)
        return [t for t in pytree.tree_leaves(self.select_output(output)) if isinstance(t, Tensor)]

    def backward(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the inputs and parameters that require one."""
        roots = [t for t in outputs if t.requires_grad]
        if not roots or not self.leaves:
            return []
        if self.grad_outs is None:
            generators = {t.device: torch.Generator(t.device).manual_seed(1) for t in roots}
            # They are drawn in float32, so that a float64 run gets the same numbers. They have the result's
            # layout, as in a model: torch's channels-last batch norm takes eight times as long with others.
            noise = [torch.randn(t.shape, generator=generators[t.device], device=t.device) for t in roots]
            self.grad_outs = [torch.empty_like(t).copy_(d) for d, t in zip(noise, roots, strict=True)]
        gradients = torch.autograd.grad(roots, self.leaves, self.grad_outs, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(self.leaves, gradients, strict=True)]

    def results(self) -> list[Tensor]:
        """Run the call and return its outputs, the gradients, and the buffers afterwards."""
        _seed(self.device)
        modes = {module: module.training for module in self.module.modules()}
        if self.random_in_training:
            self.module.eval()
        outputs = self.forward()
        gradients = self.backward(outputs)
        for module, training in modes.items():
            module.training = training
        return [*(t.detach() for t in outputs), *gradients, *(b.clone() for b in self.buffers)]

    def run(self) -> None:
        """Run the call and its backward."""
        self.backward(self.forward())

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


def race(theirs: Call, ours: Call, is_decided: Callable[[Timing], bool], seconds: float) -> Timing:
    """Time both calls in turns until their speed is decided, at the latest after so many seconds.

    The samples are looked at each time their number has doubled: more looks would find a decision in noise.
    """
    calls = max(1, round(_SHORTEST / max(theirs.once(), 1e-7)))
    ours.sample(calls)  # burnt's kernels take some calls until all of their caches are filled
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    next_look, began = _ROUNDS.start, time.perf_counter()
    while True:
        first, second = (theirs, ours) if len(pairs) % 2 == 0 else (ours, theirs)
        one, other = first.sample(calls), second.sample(calls)
        pairs.append((one, other) if first is theirs else (other, one))
        if len(pairs) < _ROUNDS.start:
            continue
        if len(pairs) == _ROUNDS.stop - 1 or time.perf_counter() - began > seconds:
            return Timing.of(pairs)
        if len(pairs) == next_look:
            if is_decided(timing := Timing.of(pairs)):
                return timing
            next_look *= 2


def _too_slow(timing: Timing) -> str | None:
    """Explain that a speedup is below `_GAIN`, or not certain; None if it is enough."""
    if timing.is_fast_enough:
        return None
    if not timing.is_decided:
        return f"{timing.speed:.2f} times as fast, undecided: the samples scatter by more than the gain"
    if timing.speed < 1:
        return f"{timing.speed:.2f} times as fast"
    return f"{math.floor(1000 * timing.speed) / 1000:.3f} times as fast; {_GAIN:g} is required"


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
            copy = value.detach().to(torch.float64, copy=True).requires_grad_(value.requires_grad)
            return copies.setdefault(id(value), copy)
        return value

    args, kwargs = pytree.tree_map(to_float64, inputs)
    copy = _site_copy(module, original, kind, torch.float64)
    try:
        with _torch.without_autocast():
            results = Call(copy, args, kwargs, train, kind).results()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None  # the module uses a fixed dtype; the report then shows another reference than float64
    return results if all(t.dtype == torch.float64 for t in results if t.is_floating_point()) else None


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
