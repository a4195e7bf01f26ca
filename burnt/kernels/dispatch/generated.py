"""The candidate ``generated``: kernels that `burnt.codegen` makes of an op's reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.targets import target_of
from burnt.codegen.runtime.triton_backend import TRITON, are_blocks, with_blocks
from burnt.kernels.interface.candidate import Alternative, Candidate
from burnt.kernels.interface.results import results_and_gradients
from burnt.kernels.interface.static_args import PartialReference, StaticArg

__all__ = ["Generated"]


class Generated(Candidate):
    """The kernels made of the reference.

    Its configurations, where Triton prints the kernels, are block sizes for some of them, those of gradients
    included, by the kernel's name: ``{"softmax_0": "1x2048 w8"}``. Where none are named they are picked.
    """

    def __init__(self, reference: Callable[..., Any], *, checks_values: bool = True) -> None:
        super().__init__(
            "generated", reference, differentiable=True, autocast=True, checks_values=checks_values
        )
        self.functions: dict[tuple[Any, ...], Function] = {}
        # Those with block sizes of their own live as long as something has chosen them.
        self.sized: WeakValueDictionary[tuple[Any, ...], Function] = WeakValueDictionary()

    def __call__(self, *args: Any) -> Any:
        """Run the kernels, with the block sizes that are picked, for all arguments by position."""
        return self.bound(args)(*args)

    def why_not(self, args: Sequence[Any]) -> str | None:
        """Why nothing can be generated for these arguments, or None."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors:
            return "no tensor is given"
        target = target_of(tensors[0].device)
        if isinstance(target, str):
            return target
        return "an empty tensor" if any(t.numel() == 0 for t in tensors) else None

    def function(self, args: Sequence[Any]) -> tuple[Function, list[int]]:
        """The traced function for the arguments that are no tensors, and the positions of those that are."""
        key = tuple(
            None
            if isinstance(a, Tensor | float)
            else StaticArg(tuple(a))
            if isinstance(a, list)
            else StaticArg(a)
            for a in args
        )
        function = self.functions.get(key)
        if function is None:
            function = self.functions[key] = Function(PartialReference(self.call, key), lowered=True)
        return function, [i for i, a in enumerate(key) if a is None]

    def with_blocks(self, args: Sequence[Any], config: dict[str, str] | None) -> tuple[Function, list[int]]:
        """As `function`, with these block sizes."""
        function, kept = self.function(args)
        if config is None:
            return function, kept
        key = (function, *sorted(config.items()))
        sized = self.sized.get(key)
        if sized is None:
            sized = self.sized[key] = function.on(with_blocks(config))
        return sized, kept

    def kernels(self, args: Sequence[Any]) -> list[Kernel]:
        """The kernels for these arguments; with gradients, the call and its backward are run once."""
        function, kept = self.function(args)
        given = [args[i] for i in kept]
        plan = function.plan(*given)
        if plan is None:
            return []
        if (
            not plan.backward
            and torch.is_grad_enabled()
            and any(isinstance(a, Tensor) and a.requires_grad for a in args)
        ):
            results_and_gradients(function, given)
        backward = [found.plan.kernels for found in plan.backward.values() if found is not None]
        return [*plan.kernels, *itertools.chain(*backward)]

    def alternatives(self, args: Sequence[Any]) -> list[Alternative]:
        """What is picked, then other block sizes of one kernel each."""
        found = [Alternative(None)]
        device = next(a.device for a in args if isinstance(a, Tensor))
        if target_of(device) is TRITON:
            from burnt.codegen.runtime.triton_compile_pool import choices_of, limits_of

            of_kernels = choices_of(self.kernels(args), limits_of(device))
            found += [Alternative({c.kernel: c.blocks}, c.left_out, c.risky) for c in of_kernels]
        return found

    def accepts(self, config: dict[str, Any] | None, args: Sequence[Any]) -> bool:
        """Whether it is block sizes by kernel, and the device one where they mean something."""
        if config is None:
            return True
        device = next(a.device for a in args if isinstance(a, Tensor))
        return target_of(device) is TRITON and are_blocks(config)

    def combined(self, timed: Sequence[tuple[dict[str, Any] | None, float]]) -> dict[str, Any] | None:
        """The best block sizes of each kernel, where several kernels have better ones than were picked."""
        usual = next((ms for config, ms in timed if config is None), 0.0)
        best: dict[str, tuple[float, str]] = {}
        for config, ms in timed:
            if config is not None and len(config) == 1 and ms < usual:
                ((name, blocks),) = config.items()
                best[name] = min(best.get(name, (ms, blocks)), (ms, blocks))
        return {name: blocks for name, (_, blocks) in best.items()} if len(best) > 1 else None

    def compiling(self, config: dict[str, Any] | None, args: Sequence[Any]) -> Future[None] | None:
        """The work of compiling the kernels that a configuration names, in other processes."""
        device = next(a.device for a in args if isinstance(a, Tensor))
        if config is None or device.type != "cuda":
            return None
        from burnt.codegen.render.triton.configs import parse_config
        from burnt.codegen.runtime.triton_compile_pool import jobs_of, pool_of

        named = [(k, parse_config(config[k.name])) for k in self.kernels(args) if k.name in config]
        jobs = [job for kernel, blocks in named for job in jobs_of(kernel, blocks)]
        return pool_of(torch.cuda.current_device() if device.index is None else device.index).submit(jobs)

    def bound(self, args: Sequence[Any], config: dict[str, str] | None = None) -> Callable[..., Any]:
        """The traced function as one of all arguments."""
        function, kept = self.with_blocks(args, config)
        if kept == list(range(len(args))):
            return function
        if kept == [0]:
            return lambda first, *_: function(first)
        if kept == list(range(len(kept))):
            return lambda *given: function(*given[: len(kept)])
        return lambda *given: function(*[given[i] for i in kept])
