"""The candidate ``generated``: kernels that `burnt.codegen` generates from an op's reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from burnt.codegen.frontend.guards import GuardedCall
from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.targets import target_of
from burnt.codegen.runtime.triton_backend import TRITON, are_block_sizes, with_block_sizes
from burnt.kernels.interface.binding import PartialReference, StaticArg, results_and_gradients
from burnt.kernels.interface.candidate import Alternative, Candidate


class Generated(Candidate):
    """The candidate that runs kernels generated from the reference.

    With Triton, a configuration gives block sizes for some of the kernels, backward kernels included, by
    kernel name: ``{"softmax_0": "1x2048 w8"}``. Kernels that are not named use their default block sizes.
    """

    def __init__(self, reference: Callable[..., Any], *, checks_values: bool = True) -> None:
        super().__init__(
            "generated", reference, differentiable=True, autocast=True, checks_values=checks_values
        )
        self.functions: dict[tuple[Any, ...], Function] = {}
        # Functions with explicit block sizes live as long as a cached selection refers to them.
        self.functions_with_blocks: WeakValueDictionary[tuple[Any, ...], Function] = WeakValueDictionary()

    def __call__(self, *args: Any) -> Any:
        """Run the kernels with their default block sizes; takes all arguments by position."""
        return self.bind_config(args)(*args)

    def why_not(self, args: Sequence[Any]) -> str | None:
        """Return the reason why no kernels can be generated for these arguments, or None."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors:
            return "there is no tensor argument"
        target = target_of(tensors[0].device)
        if isinstance(target, str):
            return target
        return "an empty tensor" if any(t.numel() == 0 for t in tensors) else None

    def function_for(self, args: Sequence[Any]) -> tuple[Function, list[int]]:
        """Return the function traced for the static arguments, and the positions of the other arguments."""
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
            function = self.functions[key] = Function(PartialReference(self.call, key), always_generate=True)
        return function, [i for i, a in enumerate(key) if a is None]

    def with_blocks(self, args: Sequence[Any], config: dict[str, str] | None) -> tuple[Function, list[int]]:
        """Return the same as `function_for`, with these block sizes."""
        function, positions = self.function_for(args)
        if config is None:
            return function, positions
        key = (function, *sorted(config.items()))
        function_with_blocks = self.functions_with_blocks.get(key)
        if function_with_blocks is None:
            function_with_blocks = self.functions_with_blocks[key] = function.on(with_block_sizes(config))
        return function_with_blocks, positions

    def kernels(self, args: Sequence[Any]) -> list[Kernel]:
        """Return the kernels for these arguments.

        If a gradient is required, run the call and its backward once to compile the backward kernels.
        """
        function, positions = self.function_for(args)
        dynamic_args = [args[i] for i in positions]
        plan = function.plan(*dynamic_args)
        if plan is None:
            return []
        if (
            not plan.backward_plans
            and torch.is_grad_enabled()
            and any(isinstance(a, Tensor) and a.requires_grad for a in args)
        ):
            # A function that draws random numbers draws the same ones in the call that these kernels are for.
            devices = {a.device for a in dynamic_args if isinstance(a, Tensor) and a.is_cuda}
            with torch.random.fork_rng(devices):
                results_and_gradients(function, dynamic_args)
        backward = [planned.plan.kernels for planned in plan.backward_plans.values() if planned is not None]
        return [*plan.kernels, *itertools.chain(*backward)]

    def alternatives(self, args: Sequence[Any]) -> list[Alternative]:
        """Return the default block sizes, then other block sizes, each for one kernel."""
        alternatives = [Alternative(None)]
        device = next(a.device for a in args if isinstance(a, Tensor))
        if target_of(device) is TRITON:
            from burnt.codegen.runtime.triton_compile_pool import choices_of, limits_of

            block_choices = choices_of(self.kernels(args), limits_of(device))
            alternatives += [Alternative({c.kernel: c.blocks}, c.skip_reason) for c in block_choices]
        return alternatives

    def accepts(self, config: dict[str, Any] | None, args: Sequence[Any]) -> bool:
        """Whether the configuration holds block sizes by kernel name and Triton runs on the device."""
        if config is None:
            return True
        device = next(a.device for a in args if isinstance(a, Tensor))
        return target_of(device) is TRITON and are_block_sizes(config)

    def suggest_config(self, timed: Sequence[tuple[dict[str, Any] | None, float]]) -> dict[str, Any] | None:
        """Combine the fastest block sizes of each kernel, if several kernels' beat the default."""
        default_ms = next((ms for config, ms in timed if config is None), 0.0)
        best: dict[str, tuple[float, str]] = {}
        for config, ms in timed:
            if config is not None and len(config) == 1 and ms < default_ms:
                ((name, blocks),) = config.items()
                best[name] = min(best.get(name, (ms, blocks)), (ms, blocks))
        return {name: blocks for name, (_, blocks) in best.items()} if len(best) > 1 else None

    def start_compiling(self, config: dict[str, Any] | None, args: Sequence[Any]) -> Future[None] | None:
        """Start compiling the kernels that a configuration names, in other processes."""
        device = next(a.device for a in args if isinstance(a, Tensor))
        if config is None or device.type != "cuda":
            return None
        from burnt.codegen.render.triton.source import parse_config
        from burnt.codegen.runtime.triton_compile_pool import jobs_of, pool_of

        named = [(k, parse_config(config[k.name])) for k in self.kernels(args) if k.name in config]
        jobs = [job for kernel, blocks in named for job in jobs_of(kernel, blocks)]
        return pool_of(torch.cuda.current_device() if device.index is None else device.index).submit(jobs)

    def bind_guarded(self, args: Sequence[Any], config: dict[str, Any] | None) -> GuardedCall | None:
        """Return the generated function that runs the plan, a function of all arguments."""
        function, positions = self.with_blocks(args, config)
        parameters = [f"x{i}" for i in range(len(args))]
        return function.bind([args[i] for i in positions], parameters, [parameters[i] for i in positions])

    def bind_config(self, args: Sequence[Any], config: dict[str, str] | None = None) -> Callable[..., Any]:
        """Return the traced function as a function of all arguments."""
        function, positions = self.with_blocks(args, config)
        if positions == list(range(len(args))):
            return function
        return lambda *all_args: function(*[all_args[i] for i in positions])
