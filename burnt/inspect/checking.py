"""check: test whether the shapes of a model fit, without allocating memory or changing the model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from burnt.errors import ArgumentError, ConfigError, ShapeError
from burnt.inspect.call_trace import Call, first_line, is_about_shapes
from burnt.inspect.crossings import Crossing
from burnt.inspect.layers import is_rank_hint
from burnt.inspect.meta import MetaModel, batch_size_of, meta_context, meta_inputs, run_isolated
from burnt.inspect.specs import shapes_text, tensors_in


@dataclass(frozen=True)
class CheckReport:
    """The result of `check` for a model whose shapes fit.

    Args:
        outputs: the model's outputs in the first run, as meta tensors (without a graph, where the check runs
            in a process of its own); None if one of the runs did not finish.
        batch_sizes: the sizes of the batch axis that were tried.
        unchecked: the modules that could not be checked, and why; for instance, code that depends on values.
        without_gradient: paths of trainable parameters that got no gradient in any run.
        seconds: wall-clock time of the check.
        shapes: the shapes that each module returned, by path, for the first batch size; modules that were not
            called are missing.
        crossings: what a model in parts (`burnt.place`) copies between devices, for the first batch size.
    """

    outputs: Any
    batch_sizes: tuple[int, ...]
    unchecked: tuple[str, ...]
    without_gradient: tuple[str, ...]
    seconds: float
    shapes: Mapping[str, str] = field(default_factory=dict)
    crossings: tuple[Crossing, ...] = ()

    def __str__(self) -> str:
        sizes = " and ".join(map(str, self.batch_sizes))
        verdict = "the shapes fit" + (", as far as they were checked" if self.unchecked else "")
        lines = [f"{verdict} (batch {sizes}, {self.seconds:.2f} s)" if sizes else verdict]
        if self.outputs is not None:
            lines.append(f"  outputs           {shapes_text(self.outputs)}")
        for title, entries in (
            ("crossings", self.crossings),
            ("unchecked", self.unchecked),
            ("without gradient", self.without_gradient),
        ):
            lines += [f"  {title if i == 0 else '':<16}  {entry}" for i, entry in enumerate(entries)]
        return "\n".join(lines)


def check(
    model: nn.Module,
    *inputs: Any,
    call: Call | None = None,
    backward: bool = True,
    batch_sizes: Iterable[int] | None = None,
    **kwargs: Any,
) -> CheckReport:
    """Run a model forward and backward on meta tensors, for two batch sizes, to see whether its shapes fit.

    Also found are integers and float64 that reach a layer with parameters of another dtype.

    No tensor memory is used, no value is computed, and neither the model nor any random state is changed:
    a copy of the model is run. Forward hooks of the model are part of it and run too.

    On Linux it runs in a forked process: whatever the model, its hooks and `call` store elsewhere, such as in
    a `functools.lru_cache` or a global dictionary, is gone afterwards. On other systems, and after CUDA or
    torch.distributed has been started, it runs in this process. Then only `functools` caches that hold meta
    tensors are cleared; what is stored in other places stays there.

    Args:
        model: any module. Its training mode is kept.
        inputs: the model's inputs: tensors, TensorSpecs, numbers, None, and containers or batch
            objects of these.
        call: ``call(model, *inputs, **kwargs)`` instead of the plain call, such as a training step.
        backward: also take the gradients of the output's ``loss`` where there is one, else of everything.
        batch_sizes: sizes to try. By default the leading size of the first tensor, at least 2, and one
            more. Every tensor with that leading size is varied.
        kwargs: keyword arguments of the call.

    Returns:
        A report, whose ``unchecked`` names the modules that cannot run without values.

    Raises:
        ShapeError: a shape, or such a dtype, does not fit; the message names the layer, what was found, and
            its source.
        ArgumentError: a module gets arguments that its ``forward`` does not take.
        ConfigError: ``batch_sizes`` is empty or has a number below 1.

    >>> import torch
    >>> from burnt.inspect import TensorSpec
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(32, 4))
    >>> check(model, TensorSpec((5, 8)))
    Traceback (most recent call last):
    ...
    burnt.errors.ShapeError: ShapeError in model.1   Linear(32 -> 4)
      expected  (..., 32)
      found     (5, 16)
      from      model.0   Linear(8 -> 16) -> (5, 16)
      hint      0 makes 16 features: Linear(16, 4)?
    >>> check(model[:1], TensorSpec((5, 8))).batch_sizes
    (5, 6)
    """
    start = time.perf_counter()
    size = batch_size_of(list(tensors_in((inputs, kwargs))))
    sizes = _sizes_to_try(size, batch_sizes)
    run = _Run(call, inputs, kwargs, backward, size)
    report = run_isolated(lambda: _check(model, run, sizes))
    return replace(report, seconds=time.perf_counter() - start)


def _check(model: nn.Module, run: _Run, sizes: tuple[int | None, ...]) -> CheckReport:
    failures: dict[int | None, ShapeError] = {}
    with meta_context():
        meta_model = MetaModel(model)
        for tried in sizes:
            try:
                run(meta_model, tried)
            except ShapeError as error:
                failures[tried] = error
        if failures:
            mismatch = next(iter(failures.values()))
            _add_batch_size_hint(mismatch, run, model, sizes, set(failures))
            raise mismatch
    return CheckReport(
        outputs=None if any(one is None for one in run.outputs) else run.outputs[0],
        batch_sizes=tuple(tried for tried in sizes if tried is not None),
        unchecked=tuple(run.unchecked),
        without_gradient=run.without_gradient,
        seconds=0.0,
        shapes=run.shapes,
        crossings=run.crossings,
    )


def _sizes_to_try(size: int | None, requested: Iterable[int] | None) -> tuple[int | None, ...]:
    if requested is None:
        first = None if size is None else max(size, 2)
        return (None,) if first is None else (first, first + 1)
    sizes = tuple(requested)
    if not sizes or any(tried < 1 for tried in sizes):
        raise ConfigError("check needs batch sizes to try", expected="positive numbers", found=repr(sizes))
    return sizes if size is not None else (None,)


class _Run:
    """One forward and backward of a meta model, for a batch size."""

    def __init__(
        self,
        call: Call | None,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        backward: bool,
        size: int | None,
    ) -> None:
        self.call, self.inputs, self.kwargs = call, inputs, kwargs
        self.backward, self.size = backward, size
        self.outputs: list[Any] = []  # of each run; None of one that did not finish
        self.without_gradient: tuple[str, ...] = ()
        self.unchecked: dict[str, None] = {}  # an ordered set
        self.shapes: dict[str, str] = {}
        self.crossings: tuple[Crossing, ...] = ()

    def __call__(self, meta_model: MetaModel, tried: int | None) -> None:
        """Run the model once. Failures other than Shape- and ArgumentErrors are recorded as unchecked."""
        batch = None if tried is None or self.size is None else (self.size, tried)
        inputs, kwargs = meta_inputs((self.inputs, self.kwargs), batch)
        outputs, self.without_gradient = None, ()
        with torch.enable_grad() if self.backward else nullcontext():
            try:
                outputs = meta_model.run(self.call, inputs, kwargs)
            except (ArgumentError, ShapeError):
                raise
            except Exception as error:
                # Without values a model may raise any exception; only errors about shapes count here.
                module, line = meta_model.trace.locate(error)
                self._add_unchecked(meta_model.trace.path_of(module, self.call), error, line)
                return
            finally:
                self.shapes = self.shapes or meta_model.trace.outputs
                self.crossings = self.crossings or tuple(meta_model.crossings.found.values())
                self.outputs.append(outputs)
            if self.backward:
                self._take_gradients(meta_model, outputs)

    def _take_gradients(self, meta_model: MetaModel, outputs: Any) -> None:
        loss = getattr(outputs, "loss", None)
        roots = [loss] if isinstance(loss, torch.Tensor) else list(tensors_in(outputs))
        roots = [root for root in roots if root.requires_grad]
        try:
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        except Exception as error:
            # As in the forward: a backward formula may need values.
            if is_about_shapes(error, None):
                raise ShapeError(
                    "ShapeError in the backward pass",
                    found=first_line(error),
                    origin=meta_model.trace.origin(),
                ) from error
            self._add_unchecked("the backward pass", error, None)
            return
        parameters = meta_model.parameters.items()
        self.without_gradient = tuple(name for name, p in parameters if p.requires_grad and p.grad is None)

    def _add_unchecked(self, path: str, error: Exception, line: str | None) -> None:
        at = f" ({line})" if line else ""
        self.unchecked[f"{path}: {type(error).__name__}: {first_line(error)}{at}"] = None


def _add_batch_size_hint(
    error: ShapeError, run: _Run, model: nn.Module, sizes: tuple[int | None, ...], failed: set[int | None]
) -> None:
    """Extend the error's hint if another batch size works: then no layer's size is wrong."""
    works = next((tried for tried in sizes if tried not in failed), None)
    if works is None and run.size not in sizes:
        try:
            run(MetaModel(model), run.size)
        except ShapeError:
            return
        works = run.size
    # A layer for more axes accepts the batch sizes that equal its channels.
    if works is not None and not is_rank_hint(error.hint):
        fails = next(tried for tried in sizes if tried in failed)
        error.hint = (
            f"a batch of {works} works and one of {fails} does not: a batch size is fixed in the model. "
            f"If the leading axis is not a batch: batch_sizes=({works},)"
        )
