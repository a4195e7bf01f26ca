"""Record the module calls of a running model, and find the module where a failure occurred."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.hooks import RemovableHandle

from burnt._user_code import user_line
from burnt.errors import ArgumentError, InputError, ShapeError
from burnt.inspect.layers import (
    ShapeMismatch,
    describe,
    dtype_mismatch,
    find_mismatch,
    has_known_inputs,
    output_features,
    pooled_channels_hint,
)
from burnt.inspect.specs import shape_text, shapes_text

Call = Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """A finished call of a module: its path, description, output shapes and number of output features."""

    path: str
    layer: str
    output: str
    out_features: int | None

    def __str__(self) -> str:
        return f"{self.path}   {self.layer} -> {self.output}"


class CallTrace:
    """Records module calls with hooks, and turns failures into ShapeErrors that name the module."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.clear()

    def clear(self) -> None:
        """Forget the last run."""
        self.paths: dict[int, str] = {}
        self._modules: list[nn.Module] = []  # keeps them alive, so that each id stays one module's
        self._handles: list[RemovableHandle] = []
        self._add_paths(self.model, "model")
        self.steps: deque[Step] = deque(maxlen=64)
        self.inputs: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.outputs: dict[str, str] = {}
        self.pooled_channels: str | None = None
        self.given: Mapping[str, Any] = {}  # the inputs of the run, by name

    def _add_paths(self, root: nn.Module, path: str) -> list[nn.Module]:
        """Give a path to the modules in a module that have none, and return these."""
        new = {p: m for p, m in root.named_modules(prefix=path) if id(m) not in self.paths}
        self.paths |= {id(module): p for p, module in new.items()}
        self._modules += new.values()
        return [*new.values()]

    @contextmanager
    def following(self) -> Iterator[None]:
        """Context with hooks on each module, also on those that the model makes while it runs."""
        self._handles = [register_module_module_registration_hook(self._on_registration)]
        try:
            for module in self.model.modules():
                self._add_hooks(module)
            yield
        finally:
            for handle in self._handles:
                handle.remove()

    def _add_hooks(self, module: nn.Module) -> None:
        if not isinstance(module, torch.jit.ScriptModule):  # its hooks would have to be scripted
            # Registered last: the hooks see inputs and outputs as other hooks have changed them.
            self._handles.append(module.register_forward_pre_hook(self.enter, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self.leave, with_kwargs=True))

    def _on_registration(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """Global hook: start to record a module that becomes part of the model while it runs."""
        if module is not None and id(parent) in self.paths:
            for new in self._add_paths(module, f"{self.paths[id(parent)]}.{name}"):
                self._add_hooks(new)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Pre-forward hook: record the inputs, and check their shapes."""
        self.inputs[id(module)] = (args, kwargs)
        # torch does not catch everything: some meta kernels accept wrong channels (transposed convolution) or
        # mixed dtypes (linear).
        problem = None
        if has_known_inputs(module):
            problem = find_mismatch(module, args, kwargs)
        elif type(module).__module__.startswith("burnt.nn."):
            problem = dtype_mismatch(module, next(iter([*args, *kwargs.values()]), None))
        if problem is not None:
            raise self._mismatch_error(module, problem)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Forward hook: record the output."""
        path, shapes = self.paths[id(module)], shapes_text(output)
        self.outputs[path.removeprefix("model").removeprefix(".")] = shapes
        last = self.steps[-1] if self.steps else None
        if (hint := pooled_channels_hint(module, next(iter([*args, *kwargs.values()]), None))) is not None:
            self.pooled_channels = f"{self.paths[id(module)]} {hint}"
        # A container returns its last layer's output; it is listed only once.
        if last is None or not (last.path.startswith(f"{path}.") and last.output == shapes):
            self.steps.append(Step(path, describe(module), shapes, output_features(module)))

    def shape_error(self, error: Exception, call: Call | None) -> ShapeError | None:
        """Return a ShapeError that names the module, or None if the error is not about shapes."""
        module, line = self.locate(error)
        problem = self._mismatch_of(module)
        if isinstance(error, ShapeError):
            if error.what.startswith("ShapeError in "):
                return error
            # The layer's own error says what it expects, but not which layer has computed its input.
            what = error.found if error.found is not None else error.what
            hint = (self._hint(problem) if problem is not None else None) or error.hint
            return self._error(
                module, call, expected=error.expected, found=what, origin=error.origin, hint=hint
            )
        if module is not None and problem is not None and isinstance(error, InputError):
            return self._mismatch_error(module, problem)
        if isinstance(error, InputError) and "device" not in error.what:
            # No value was read: shapes, dtypes and options are refused in every run. Of devices, only some
            # tensors are meta.
            text = error.what if error.found is None else f"{error.found}: {error.what}"
            return self._error(
                module,
                call,
                expected=error.expected,
                found=text.replace(" on meta", ""),
                origin=[*error.origin, line] if line else error.origin,
                hint=error.hint,
            )
        # Layers of torch and burnt compute with any values: what they raise is about shapes.
        home = getattr(getattr(type(module), "forward", None), "__module__", "")
        is_of_layer = home.startswith(("torch.nn.modules.", "burnt.nn."))
        if not (is_of_layer and _may_be_about_shapes(error)) and not is_about_shapes(error, line):
            return None
        if module is not None and problem is not None:
            return self._mismatch_error(module, problem, detail=first_line(error))
        found = first_line(error)
        if module is not None and id(module) in self.inputs:
            args, kwargs = self.inputs[id(module)]
            found += f"\ninputs {shapes_text((*args, *kwargs.values()))}"
        return self._error(module, call, found=found, origin=[line] if line else [])

    def argument_error(self, error: Exception) -> ArgumentError | None:
        """Return an ArgumentError that names the module whose ``forward`` does not take what it was given.

        None if the error is another one.
        """
        module, line = self.locate(error)
        if not isinstance(error, TypeError) or module is None or id(module) not in self.inputs:
            return None
        args, kwargs = self.inputs[id(module)]
        signature = inspect.signature(module.forward)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as problem:
            return ArgumentError(
                f"the arguments do not fit the forward of {describe(module)}",
                where=self.paths[id(module)],
                expected=f"forward({', '.join(signature.parameters)})",
                found=str(problem),
                origin=[line] if line else [],
            )
        return None

    def locate(self, error: BaseException) -> tuple[nn.Module | None, str | None]:
        """Return the innermost module that raised an error, and the line of user code that did."""
        module = None
        for frame, _ in walk_tb(error.__traceback__):
            owner = frame.f_locals.get("self")
            # From the traceback, not the hooks: a call that fails with an exception never leaves.
            if isinstance(owner, nn.Module) and id(owner) in self.paths:
                module = owner
        return module, user_line(error)

    def path_of(self, module: nn.Module | None, call: Call | None) -> str:
        """Return the path of a module for messages."""
        if module is not None:
            return self.paths[id(module)]
        return getattr(call, "__name__", "model") if call is not None else "model"

    def origin(self) -> list[str]:
        """Return the last module calls, the latest first."""
        return [str(step) for step in list(self.steps)[:-4:-1]]

    def _mismatch_of(self, module: nn.Module | None) -> ShapeMismatch | None:
        if module is None or id(module) not in self.inputs:
            return None
        return find_mismatch(module, *self.inputs[id(module)])

    def _hint(self, problem: ShapeMismatch) -> str | None:
        if problem.dtype is not None:
            return self._dtype_hint(problem)
        if self.pooled_channels is not None:
            return self.pooled_channels
        if problem.hint is not None or problem.instead is None:
            return problem.hint
        producer = next(
            (step.path for step in reversed(self.steps) if step.out_features == problem.size), None
        )
        source = f"{producer.removeprefix('model.')} makes" if producer else "the input has"
        return f"{source} {problem.size} {problem.unit}: {problem.instead}?"

    def _dtype_hint(self, problem: ShapeMismatch) -> str:
        """Say which inputs of the run have the dtype that does not fit, and how to convert them."""
        dtype = str(problem.dtype).removeprefix("torch.")
        paths = [path for path, tensor in self.given.items() if tensor.dtype == problem.dtype]
        # The layer often gets an input of the run itself.
        same = [path for path in paths if f"{dtype} {shape_text(self.given[path])}" == problem.found]
        paths = same or paths or ["x"]
        usual = ", the default of NumPy" if problem.dtype == torch.float64 else ""
        casts = ", ".join(f"{path}{problem.hint}" for path in paths)
        return f"{' and '.join(paths)} {'is' if len(paths) == 1 else 'are'} {dtype}{usual}: {casts}?"

    def _mismatch_error(
        self, module: nn.Module, problem: ShapeMismatch, detail: str | None = None
    ) -> ShapeError:
        # torch's message is added, since an unknown class may use the attributes in another sense.
        last = [f"torch: {detail}"] if detail is not None else []
        expected, found, hint = problem.expected, problem.found, self._hint(problem)
        return self._error(module, None, expected=expected, found=found, last=last, hint=hint)

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
    ) -> ShapeError:
        path = self.path_of(module, call)
        layer = f"   {describe(module)}" if module is not None else ""
        return ShapeError(
            f"ShapeError in {path}{layer}",
            expected=expected,
            found=found,
            origin=[*origin, *self.origin(), *last],
            hint=hint,
        )


_SHAPE_FAILURES = (RuntimeError, ValueError, IndexError, AssertionError)

# Patterns of torch's messages about shapes; its kernels and meta kernels have different ones.
_SHAPE_PATTERN = re.compile(
    r"""\bshapes?\b | same\ reduction\ dim | \bsizes?\b.*\bmatch | size\ mismatch | broadcast
    | for\ input\ of\ size | channel | \b\dD\b.*input | should\ contain\ \d+\ elements | embedding\ dimension
    | input\.size\(-1\) | output\ size\ is\ too\ small | kernel\ size\ can't | must\ be\ the\ same\ as\ input
    | for\ first\ two\ dimensions | (?:equal|same)\ size | number\ of\ (?:spatial\ )?dimensions
    | dimension\ out\ of\ range | einsum | split_sizes | batch_size | target\ size | multi-target
    | indices\b | out\ of\ bounds\ for\ dimension | too\ many\ indices | multiply\ up | tensor\ size
    | exceeds\ dimension\ size | padding\ length | normalized_shape | must\ be\ divisible""",
    re.IGNORECASE | re.VERBOSE,
)
# Patterns of messages of failures that come from running without values.
_META_PATTERN = re.compile(r"meta tensor|meta device|device meta|'meta' backend", re.IGNORECASE)


def is_about_shapes(error: Exception, line: str | None) -> bool:
    """Whether an error is about shapes, by type and message; ``line`` is the source line that raised it."""
    message = str(error)
    if isinstance(error, NotImplementedError) or not _may_be_about_shapes(error):
        return False
    if "values to unpack" in message:
        return line is not None and re.search(r"\.(shape|size|chunk|split|unbind)\b", line) is not None
    return _SHAPE_PATTERN.search(message) is not None


def _may_be_about_shapes(error: Exception) -> bool:
    """Whether an error has a type that torch raises for shapes, and does not come from the lack of values."""
    return isinstance(error, _SHAPE_FAILURES) and _META_PATTERN.search(str(error)) is None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
