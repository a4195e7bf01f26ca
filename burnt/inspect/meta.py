"""A run of a model on meta tensors: shapes without memory, followed layer by layer.

The model itself stays as it is. A copy is run whose parameters, buffers and other tensors are replaced by
meta twins; where a model cannot be copied, the model runs with twins put in its place for the moment.
"""

from __future__ import annotations

import copy
import linecache
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.overrides import TorchFunctionMode

from burnt.errors import ShapeError
from burnt.inspect.layers import Misfit, describe, features_made, is_torch_layer, misfit
from burnt.inspect.specs import TensorSpec, is_list_of_tensors, map_tensors, shapes_text

__all__ = [
    "MetaModel",
    "Trail",
    "batch_size_of",
    "first_line",
    "is_about_shapes",
    "meta_copy",
    "meta_inputs",
    "meta_world",
]

Call = Callable[..., Any]


def meta_twin(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without memory, of the same kind, shape, strides and dtype.

    Quantized and nested tensors, which cannot be meta, are copied; what uses them stays unchecked.
    """
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        kind: Any = type(tensor)
        lazy: torch.Tensor = kind(requires_grad=tensor.requires_grad, device="meta", dtype=tensor.dtype)
        return lazy
    source = tensor.detach()
    if source.is_quantized or is_list_of_tensors(source):
        return source.clone()
    if source.layout == torch.strided:
        twin = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device="meta")
    else:
        twin = torch.empty_like(source, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad)


def meta_inputs(inputs: Any, batch: tuple[int, int] | None = None) -> Any:
    """Inputs with meta tensors for their tensors and specs.

    Args:
        inputs: any nested value.
        batch: ``(old, new)``: each tensor whose leading axis has size ``old`` gets ``new``.
    """

    def twin(value: torch.Tensor | TensorSpec) -> torch.Tensor:
        shape = list(value.shape)
        if batch is not None and shape and shape[0] == batch[0]:
            shape[0] = batch[1]
        if isinstance(value, TensorSpec):
            return torch.empty(shape, dtype=value.dtype, device="meta")
        if shape == list(value.shape) or value.layout != torch.strided:
            return meta_twin(value)
        # The order of the axes in memory decides what .view accepts; it is that of the example.
        strides = value.stride()
        order = sorted(range(value.dim()), key=lambda axis: -strides[axis])
        resized = torch.empty_permuted(shape, order, dtype=value.dtype, device="meta")
        return resized.requires_grad_(value.requires_grad)

    return map_tensors(inputs, twin)


def batch_size_of(tensors: list[Any]) -> int | None:
    """The leading size of the first tensor that has axes."""
    return next((tensor.shape[0] for tensor in tensors if len(tensor.shape)), None)


class MetaModel:
    """A model that runs on meta tensors and knows where it is.

    Args:
        model: any module; it is not changed.

    Attributes:
        parameters: meta twins of the parameters, by path, shared ones under their first path.
        trail: what the last calls of modules returned, for error messages.
    """

    def __init__(self, model: nn.Module, trail: type[Trail] | None = None) -> None:
        self._overrides: dict[str, torch.Tensor] | None = None
        try:
            self.model = meta_copy(model)
        except Exception:
            # Anything may stand in a model's attributes, and copying it may fail in any way: locks, files.
            self.model = model
            self._overrides = {name: meta_twin(p) for name, p in model.named_parameters()}
            self._overrides |= {name: meta_twin(b) for name, b in model.named_buffers()}
        self.trail = (trail or Trail)(self.model)

    def clear_gradients(self) -> None:
        """Drop the gradients of an earlier run."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Meta twins of the parameters by path; lazy ones have their shape after the first run."""
        named = self.model.named_parameters()
        return {name: p if self._overrides is None else self._overrides[name] for name, p in named}

    def run(self, call: Call | None, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the model, or ``call(model, *inputs)``, on meta inputs.

        Raises:
            ShapeError: a shape does not fit.
            Exception: whatever else the model raises.
        """
        self.trail.clear()
        target = call or _plain_call
        with self._in_place_of_tensors():
            try:
                with self.trail.following():
                    if self._overrides is None:
                        return target(self.model, *inputs, **kwargs)
                    overrides = {f"model.{name}": tensor for name, tensor in self._overrides.items()}
                    shell = _Shell(self.model, target)
                    return torch.func.functional_call(shell, overrides, inputs, dict(kwargs))
            except Exception as error:
                mismatch = self.trail.shape_error(error, call)
                if mismatch is None or mismatch is error:
                    raise
                raise mismatch from error

    @contextmanager
    def _in_place_of_tensors(self) -> Iterator[None]:
        """For a model that could not be copied: its other attributes, as they were afterwards."""
        if self._overrides is None:
            yield
            return
        saved = [(module, dict(vars(module))) for module in self.model.modules()]
        parameters = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        memo: dict[int, Any] = {id(t): self._overrides[name] for name, t in parameters.items()}
        try:
            for module, attributes in saved:
                for name, value in attributes.items():
                    # torch's own tables of parameters, buffers and modules; functional_call sees to them.
                    if name not in ("_parameters", "_buffers", "_modules") and isinstance(
                        value, (torch.Tensor, list, tuple, dict)
                    ):
                        vars(module)[name] = map_tensors(value, meta_twin, memo)
            yield
        finally:
            for module, attributes in saved:
                vars(module).clear()
                vars(module).update(attributes)


class _Shell(nn.Module):
    """Lets functional_call run a step that takes the model as an argument."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.call(self.model, *inputs, **kwargs)


def _plain_call(model: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
    return model(*inputs, **kwargs)


class _CopiesAreMeta(TorchFunctionMode):
    """Makes copy.deepcopy give meta twins also of tensors that are in no list of parameters or buffers."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.__deepcopy__, torch.Tensor.clone):
            tensor = args[0]
            twin = meta_twin(tensor)
            if func is torch.Tensor.__deepcopy__:
                args[1][id(tensor)] = twin
            return twin
        return func(*args, **(kwargs or {}))


def meta_copy(model: nn.Module) -> nn.Module:
    """A deep copy of a model with meta twins for its tensors; what shares a tensor, shares the twin."""
    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {id(tensor): meta_twin(tensor) for tensor in tensors}
    with _CopiesAreMeta():
        return copy.deepcopy(model, memo)


@contextmanager
def meta_world() -> Iterator[None]:
    """New tensors are meta, compiled functions run as written, and random states are put back after."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    cuda_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if cuda_in_use else ()
    with ExitStack() as stack:
        stack.callback(random.setstate, python_state)
        stack.callback(np.random.set_state, numpy_state)
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(_uncompiled())
        stack.enter_context(torch.device("meta"))
        yield


def _uncompiled() -> Any:
    # torch.compile's machinery takes seconds to import; where it is not loaded, nothing is compiled.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


@dataclass(frozen=True)
class Step:
    """One finished call of a module: where, what it is, what it returned, how many features it makes."""

    path: str
    layer: str
    output: str
    makes: int | None

    def __str__(self) -> str:
        return f"{self.path}   {self.layer} -> {self.output}"


class Trail:
    """Follows the calls of modules by hooks and turns failures into ShapeErrors that say where."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths = {id(m): f"model.{path}" if path else "model" for path, m in model.named_modules()}
        self.clear()

    def clear(self) -> None:
        """Forget the last run."""
        self.steps: deque[Step] = deque(maxlen=64)
        self.inputs: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Hooks on each module, removed at the end."""
        handles = []
        try:
            for module in self.model.modules():
                if not isinstance(module, torch.jit.ScriptModule):  # whose hooks must be scripted
                    # First to see the inputs, last to see the output, so that other hooks' work is included.
                    handles.append(module.register_forward_pre_hook(self.enter, with_kwargs=True))
                    handles.append(module.register_forward_hook(self.leave, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a module is called."""
        self.inputs[id(module)] = (args, kwargs)
        # Not left to torch: some meta kernels (transposed convolution) let a wrong number of channels pass.
        if is_torch_layer(module) and (problem := misfit(module, args, kwargs)) is not None:
            raise self._misfit_error(module, problem)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After a module returned."""
        path, shapes = self.paths[id(module)], shapes_text(output)
        last = self.steps[-1] if self.steps else None
        # A container returns what its last layer returned; saying so twice helps nobody.
        if last is None or not (last.path.startswith(f"{path}.") and last.output == shapes):
            self.steps.append(Step(path, describe(module), shapes, features_made(module)))

    def shape_error(self, error: Exception, call: Call | None) -> ShapeError | None:
        """The ShapeError that tells what went wrong, or None when it is nothing about shapes."""
        module, line = self.place(error)
        if isinstance(error, ShapeError):
            if error.what.startswith("ShapeError in "):
                return error
            return self._error(
                module,
                call,
                expected=error.expected,
                found=error.found if error.found is not None else error.what,
                origin=error.origin,
                hint=error.hint,
            )
        if module is not None and id(module) in self.inputs and isinstance(error, _SHAPE_FAILURES):
            problem = misfit(module, *self.inputs[id(module)])
            if problem is not None:
                return self._misfit_error(module, problem, detail=first_line(error))
        if not is_about_shapes(error, line):
            return None
        found = first_line(error)
        if module is not None and id(module) in self.inputs:
            args, kwargs = self.inputs[id(module)]
            found += f"\ninputs {shapes_text((*args, *kwargs.values()))}"
        return self._error(module, call, found=found, origin=[line] if line else [])

    def place(self, error: BaseException) -> tuple[nn.Module | None, str | None]:
        """The innermost module an error passed through, and the line of the user's code it came from."""
        module, line = None, None
        for frame, number in walk_tb(error.__traceback__):
            owner = frame.f_locals.get("self")
            # Read from the traceback, because a failure that the model itself caught leaves no end behind.
            if isinstance(owner, nn.Module) and id(owner) in self.paths:
                module = owner
            if not _is_library(frame):
                source = linecache.getline(frame.f_code.co_filename, number).strip()
                line = f"{Path(frame.f_code.co_filename).name}:{number}   {source}".rstrip()
        return module, line

    def path_of(self, module: nn.Module | None, call: Call | None) -> str:
        """How messages name the place."""
        if module is not None:
            return self.paths[id(module)]
        return getattr(call, "__name__", "model") if call is not None else "model"

    def origin(self) -> list[str]:
        """The last modules that returned, nearest first."""
        return [str(step) for step in list(self.steps)[:-4:-1]]

    def _misfit_error(self, module: nn.Module, problem: Misfit, detail: str | None = None) -> ShapeError:
        path = self.paths[id(module)]
        hint = problem.hint
        if hint is None and problem.instead is not None:
            maker = next((s.path for s in reversed(self.steps) if s.makes == problem.size), None)
            source = f"{maker.removeprefix('model.')} makes" if maker else "the input has"
            hint = f"{source} {problem.size} {problem.unit}: {problem.instead}?"
        detailed = [] if detail is None or is_torch_layer(module) else [f"torch: {detail}"]
        return self._error(
            module, None, expected=problem.expected, found=problem.found, last=detailed, hint=hint, path=path
        )

    def _error(
        self,
        module: nn.Module | None,
        call: Call | None,
        *,
        expected: object = None,
        found: object = None,
        origin: Any = (),
        last: Any = (),
        hint: str | None = None,
        path: str | None = None,
    ) -> ShapeError:
        path = path or self.path_of(module, call)
        layer = f"   {describe(module)}" if module is not None else ""
        return ShapeError(
            f"ShapeError in {path}{layer}",
            expected=expected,
            found=found,
            origin=[*origin, *self.origin(), *last],
            hint=hint,
        )


_SHAPE_FAILURES = (RuntimeError, ValueError, IndexError, AssertionError)

# Words of torch's messages about shapes, of its kernels and of its meta kernels, whose messages differ.
_SHAPE_WORDS = re.compile(
    r"""\bshapes?\b | same\ reduction\ dim | \bsizes?\b.*\bmatch | size\ mismatch | broadcast
    | for\ input\ of\ size | channel | \b\dD\b.*input | should\ contain\ \d+\ elements | embedding\ dimension
    | input\.size\(-1\) | output\ size\ is\ too\ small | kernel\ size\ can't | must\ be\ the\ same\ as\ input
    | for\ first\ two\ dimensions | (?:equal|same)\ size | number\ of\ (?:spatial\ )?dimensions
    | dimension\ out\ of\ range | einsum | split_sizes | batch_size | target\ size | multi-target
    | out\ of\ bounds\ for\ dimension | too\ many\ indices | multiply\ up | tensor\ size
    | exceeds\ dimension\ size | padding\ length | normalized_shape | must\ be\ divisible""",
    re.IGNORECASE | re.VERBOSE,
)
# Words of failures that come from running without values.
_META_WORDS = re.compile(r"meta tensor|meta device|on device meta|device meta", re.IGNORECASE)


def is_about_shapes(error: Exception, line: str | None) -> bool:
    """Whether a failure is recognisably one of shapes; ``line`` is the source line it came from."""
    message = str(error)
    if isinstance(error, NotImplementedError) or not isinstance(error, _SHAPE_FAILURES):
        return False
    if "values to unpack" in message:
        return line is not None and re.search(r"\.(shape|size|chunk|split|unbind)\b", line) is not None
    return _META_WORDS.search(message) is None and _SHAPE_WORDS.search(message) is not None


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def _is_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((*_LIBRARIES, "<"))
