"""What a fused function runs: its kernels, what is in them, the bytes they move, and why each ends."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from burnt.codegen.compiled import CompiledPlan
from burnt.codegen.function import Function
from burnt.codegen.ir import Buffer, Fold, Kernel, Store, walk
from burnt.codegen.schedule import Call

__all__ = ["Explanation", "Step", "explain"]

_NO_OPS = frozenset({"load", "const", "number", "index", "as", "reduced", "identity"})


@dataclasses.dataclass(frozen=True)
class Step:
    """A kernel, or a call of torch's own.

    Args:
        name: the kernel's function, or torch's op.
        kind: ``elementwise``, ``reduction`` or ``vendor``.
        ops: what is computed in it, in order.
        bytes: of memory that it reads and writes, each tensor counted once.
        why: why it is a step of its own.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    bytes: int
    why: str


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a function runs for some arguments.

    Args:
        steps: kernels and calls in order; none where the plain function runs.
        plain: why the plain function runs, or None.
        code: the generated C, without the prelude that every kernel shares.
    """

    steps: tuple[Step, ...]
    plain: str | None = None
    code: str = ""

    def source(self, name: str) -> str:
        """The C of a kernel.

        Raises:
            KeyError: no kernel has this name.
        """
        found = re.search(rf"^void {re.escape(name)}\(.*?^}}$", self.code, re.M | re.S)
        if found is None:
            raise KeyError(f"no kernel {name!r}; there are: {', '.join(s.name for s in self.steps)}")
        return found[0]

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        if self.plain is not None:
            return f"the plain function runs: {self.plain}"
        rows = [("kernel", "kind", "bytes", "ops", "a step of its own because")]
        rows += [(s.name, s.kind, f"{s.bytes:,}", " ".join(s.ops), s.why) for s in self.steps]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = []
        for row in rows:
            cells = [
                c.rjust(w) if i == 2 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def explain(fn: Callable[..., Any], *args: Any) -> Explanation:
    """What a function runs for these arguments: kernels, ops, bytes, and why groups end.

    Args:
        fn: a function made by `fuse`, or a plain one, which is fused to be looked at.
        args: its arguments; the function is called with them once.

    >>> import torch
    >>> from burnt.codegen import explain
    >>> print(explain(lambda x: torch.softmax(x * 2, -1), torch.ones(4, 8)))
    kernel      kind       bytes  ops                      a step of its own because
    _lambda__0  reduction    256  mul max sub exp sum div  it is all there is
    """
    function = fn if isinstance(fn, Function) else Function(fn)
    compiled = function.plan(*args)
    if compiled is None:
        return Explanation((), function.why_plain(*args))
    steps = tuple(_step(step, compiled) for step in compiled.plan.steps)
    return Explanation(
        steps, None, compiled.source[compiled.source.index("\nvoid ") :] if compiled.kernels else ""
    )


def _step(step: Kernel | Call, compiled: CompiledPlan) -> Step:
    if isinstance(step, Call):
        moved = [*step.inputs.values(), *(b for b in step.outputs if b is not None)]
        name = str(step.node.target)
        return Step(
            name, "vendor", (name.split(".")[1],), _bytes(moved), "torch's own call serves: not lowered"
        )
    exprs = [s.value if isinstance(s, Store) else s.body for s in step.steps]
    moved = [e.extra[0] for e in walk(exprs) if e.op == "load"]  # type: ignore[misc]
    moved += [s.buffer for s in step.steps if isinstance(s, Store)]
    return Step(step.name, step.kind, tuple(_ops(step)), _bytes(moved), _why(step, compiled))


def _ops(kernel: Kernel) -> list[str]:
    """The ops of a kernel, each once: a fold and the store after it compute the same chain in loops apart."""
    names: dict[str, None] = {}
    for step in kernel.steps:
        exprs = walk([step.value if isinstance(step, Store) else step.body])
        names |= dict.fromkeys(e.op for e in exprs if e.op not in _NO_OPS)
        if isinstance(step, Fold):
            names[step.reduction.kind] = None
    return list(names)


def _why(kernel: Kernel, compiled: CompiledPlan) -> str:
    if len(compiled.plan.steps) == 1:
        return "it is all there is"
    stores = [s.buffer for s in kernel.steps if isinstance(s, Store)]
    readers = [
        s for s in compiled.plan.steps if isinstance(s, Call) and any(b in s.inputs.values() for b in stores)
    ]
    if readers:
        return f"{readers[0].node.target} reads its result from memory"
    if any(b.role == "between" for b in stores):
        return "other rows need its folds, or its rows are few and long"
    sizes = ", ".join(str(tuple(b.shape)) for b in stores)
    return f"its results {sizes} have rows of their own"


def _bytes(buffers: list[Buffer]) -> int:
    return sum(math.prod(b.shape) * b.dtype.itemsize for b in dict.fromkeys(buffers) if b.role != "local")
