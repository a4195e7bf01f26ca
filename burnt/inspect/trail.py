"""The trail of a running model: which module was called with what, and where a failure came from."""

from __future__ import annotations

import linecache
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch import nn

from burnt.errors import ShapeError
from burnt.inspect.layers import Misfit, describe, features_made, known_by_attributes, misfit
from burnt.inspect.specs import shapes_text

__all__ = ["Call", "Trail", "first_line", "is_about_shapes"]

Call = Callable[..., Any]


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
        self.outputs: dict[str, str] = {}

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
        if known_by_attributes(module) and (problem := misfit(module, args, kwargs)) is not None:
            raise self._misfit_error(module, problem)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After a module returned."""
        path, shapes = self.paths[id(module)], shapes_text(output)
        self.outputs[path.removeprefix("model").removeprefix(".")] = shapes
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
            # The layer knows best what it expects, but not which layer before it made what came.
            problem = self._misfit_of(module)
            return self._error(
                module,
                call,
                expected=error.expected,
                found=error.found if error.found is not None else error.what,
                origin=error.origin,
                hint=(self._hint(problem) if problem is not None else None) or error.hint,
            )
        if not is_about_shapes(error, line):
            return None
        problem = self._misfit_of(module)
        if module is not None and problem is not None:
            return self._misfit_error(module, problem, detail=first_line(error))
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

    def _misfit_of(self, module: nn.Module | None) -> Misfit | None:
        if module is None or id(module) not in self.inputs:
            return None
        return misfit(module, *self.inputs[id(module)])

    def _hint(self, problem: Misfit) -> str | None:
        if problem.hint is not None or problem.instead is None:
            return problem.hint
        maker = next((step.path for step in reversed(self.steps) if step.makes == problem.size), None)
        source = f"{maker.removeprefix('model.')} makes" if maker else "the input has"
        return f"{source} {problem.size} {problem.unit}: {problem.instead}?"

    def _misfit_error(self, module: nn.Module, problem: Misfit, detail: str | None = None) -> ShapeError:
        # The attributes of an unknown class may mean something else than they do in torch.
        detailed = [f"torch: {detail}"] if detail is not None else []
        return self._error(
            module,
            None,
            expected=problem.expected,
            found=problem.found,
            last=detailed,
            hint=self._hint(problem),
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

# Words of torch's messages about shapes, of its kernels and of its meta kernels, whose messages differ.
_SHAPE_WORDS = re.compile(
    r"""\bshapes?\b | same\ reduction\ dim | \bsizes?\b.*\bmatch | size\ mismatch | broadcast
    | for\ input\ of\ size | channel | \b\dD\b.*input | should\ contain\ \d+\ elements | embedding\ dimension
    | input\.size\(-1\) | output\ size\ is\ too\ small | kernel\ size\ can't | must\ be\ the\ same\ as\ input
    | for\ first\ two\ dimensions | (?:equal|same)\ size | number\ of\ (?:spatial\ )?dimensions
    | dimension\ out\ of\ range | einsum | split_sizes | batch_size | target\ size | multi-target
    | indices\b | out\ of\ bounds\ for\ dimension | too\ many\ indices | multiply\ up | tensor\ size
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
