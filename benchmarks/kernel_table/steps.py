"""Optimizer steps with clipping of the global norm: burnt's passes next to torch's, on a CPU and on a GPU.

A row is a step of all tensors of a model, after their gradients' norm was taken and they were scaled down to
it: `burnt.kernels` in two passes, torch by `clip_grad_norm_` and the step of `torch.optim`, fused where it
has that, and by lists. That all come to the same parameters is checked first. With 300 tensors their sizes
are spread as a transformer's are: evenly in their logarithm, from biases to embeddings. Muon's are the
matrices of a transformer's blocks; most of its time goes into Newton-Schulz iterations, torch's in bfloat16,
which CPUs without instructions for it take long for.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt import kernels, optim
from kernel_table import clock
from kernel_table.cpu import Effort, calm_median, quartiles

MAX_NORM = 1.0
RATES = {"adamw": 1e-3, "muon": 1e-3, "sgd": 1.0, "adadelta": 1.0}  # of steps that can be told from roundings
OURS = {"adamw": optim.AdamW, "muon": optim.Muon, "sgd": lambda: optim.Sgd(momentum=0.9)}
OTHERS = {  # by optimizers of burnt.optim, which these are called after, and of torch.optim
    "adadelta": (optim.Adadelta, torch.optim.Adadelta),
    "adafactor": (optim.Adafactor, torch.optim.Adafactor),
    "adagrad": (optim.Adagrad, torch.optim.Adagrad),
    "adamax": (optim.Adamax, torch.optim.Adamax),
    "adan": (optim.Adan, None),
    "lamb": (optim.Lamb, None),
    "lion": (optim.Lion, None),
    "nadam": (optim.NAdam, torch.optim.NAdam),
    "radam": (optim.RAdam, torch.optim.RAdam),
    "rms prop": (optim.RmsProp, torch.optim.RMSprop),
    "schedule-free adamw": (optim.ScheduleFreeAdamW, None),
}
RIVALS = ("torch", "lists")
"""The fused step, or the only one that there is; and the one by lists of tensors (``foreach``)."""


class NotServedError(RuntimeError):
    """A step that was asked of burnt was done by torch: its time says nothing of burnt's."""


class Step(NamedTuple):
    """A step: which, the shapes of its parameters (of a divisor), and the ratio to torch that is aimed at."""

    name: str
    kind: str
    shapes: Callable[[int], list[tuple[int, ...]]]
    target: float | None = None


def spread(count: int, tensors: int) -> Callable[[int], list[tuple[int, ...]]]:
    """Vectors over three orders of magnitude, `count` elements in all or a few more."""

    def shapes(divisor: int) -> list[tuple[int, ...]]:
        weights = [math.exp(7 * i / max(tensors - 1, 1)) for i in range(tensors)]
        return [(max(1, round(count // divisor * weight / sum(weights))),) for weight in weights]

    return shapes


def blocks(layers: int, width: int) -> Callable[[int], list[tuple[int, ...]]]:
    """The matrices of a transformer's blocks: four square ones, one that widens, one that narrows."""

    def shapes(divisor: int) -> list[tuple[int, ...]]:
        size = max(width // divisor, 8)
        return [*[(size, size)] * 4, (4 * size, size), (size, 4 * size)] * layers

    return shapes


ADAMW = Step("adamw + clip, 50 M in 300 tensors", "adamw", spread(50_000_000, 300), 1.4)
SGD = Step("sgd, momentum + clip, 50 M in 300 tensors", "sgd", spread(50_000_000, 300))
ON_CPU = (
    ADAMW,
    SGD,
    Step("adamw + clip, 1 M in 300 tensors", "adamw", spread(1_000_000, 300)),
    Step("adamw + clip, 9 k in 6 tensors", "adamw", spread(9_000, 6)),
    *(Step(f"{kind} + clip, 1 M in 300 tensors", kind, spread(1_000_000, 300), 1.0) for kind in OTHERS),
    Step("muon + clip, 6 matrices of a block 256 wide", "muon", blocks(1, 256)),
)
ON_GPU = (
    ADAMW._replace(target=None),  # what is aimed at is a CPU's
    SGD,
    Step("muon + clip, 24 matrices of blocks 2048 wide", "muon", blocks(4, 2048)),
)


def burnts(kind: str, params: list[Tensor], grads: list[Tensor]) -> Callable[[], Any]:
    """A step of burnt's. Whenever torch does it, a `NotServedError` says why."""
    step = kernel_step(kind, params, grads)

    def run() -> None:
        by = step().by
        if by != "burnt" and kind != "adafactor":  # which has no kernel
            raise NotServedError(f"the step was served by {by}")

    return run


def kernel_step(kind: str, params: list[Tensor], grads: list[Tensor]) -> Callable[[], kernels.StepResult]:
    optimizer = (OURS.get(kind) or OTHERS[kind][0])()
    named = {str(i): torch.nn.Parameter(p) for i, p in enumerate(params)}
    named_grads = {str(i): g for i, g in enumerate(grads)}
    return lambda: optimizer.step(RATES.get(kind, 1e-3), named, named_grads, clip_norm=MAX_NORM)


def torchs(kind: str, params: list[Tensor], grads: list[Tensor], **options: Any) -> Callable[[], Any]:
    own = [torch.nn.Parameter(p) for p in params]
    for parameter, gradient in zip(own, grads, strict=True):
        parameter.grad = gradient
    optimizer: torch.optim.Optimizer
    if kind in OTHERS:
        optimizer = OTHERS[kind][1](own, lr=RATES.get(kind, 1e-3), **options)
    elif kind == "muon":
        optimizer = torch.optim.Muon(own, lr=RATES[kind])
    elif kind == "sgd":
        optimizer = torch.optim.SGD(own, lr=RATES[kind], momentum=0.9, **options)
    else:
        optimizer = torch.optim.AdamW(own, lr=RATES[kind], **options)

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(own, MAX_NORM)
        optimizer.step()

    return run


def runs(step: Step, divisor: int, device: torch.device | str = "cpu") -> dict[str, Callable[[], Any]]:
    """Steps of burnt's and of torch's on parameters of their own, which come to the same.

    Raises:
        SystemExit: they do not.
        NotServedError: torch did burnt's.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = step.shapes(divisor)
    count = sum(math.prod(shape) for shape in shapes)
    start = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    # Of a norm that clipping leaves: torch's changes its gradients, and finds them small the next time.
    drawn = [torch.randn(shape, generator=generator) * (0.5 / math.sqrt(count)) for shape in shapes]
    grads = [gradient.to(device) for gradient in drawn]
    makers: dict[str, Callable[..., Callable[[], Any]]] = {
        "burnt": burnts,
        "torch": lambda *args: torchs(*args, fused=True),
        "lists": lambda *args: torchs(*args, foreach=True),
    }
    if step.kind == "muon":
        del makers["lists"]
    if step.kind in OTHERS:
        theirs = OTHERS[step.kind][1]
        makers = {"burnt": burnts}
        if theirs is not None:
            has_fused = "fused" in inspect.signature(theirs).parameters
            makers["torch"] = lambda *args: torchs(*args, **{"fused" if has_fused else "foreach": True})
    made: dict[str, list[Tensor]] = {}
    found: dict[str, Callable[[], Any]] = {}
    for name, make in makers.items():
        made[name] = [p.clone() for p in start]
        found[name] = make(step.kind, made[name], [g.clone() for g in grads])
        for _ in range(2):
            found[name]()
    for name, params in made.items():
        if not all(map(alike, params, made["burnt"], start)):
            raise SystemExit(f"{step.name}: {name} and burnt come to different parameters")
    return found


def alike(found: Tensor, expected: Tensor, start: Tensor) -> bool:
    """Whether two parameters went the same way, but for their own roundings and those of bfloat16."""
    way = expected - start
    near = 0.05 * way.norm() + 1e-6 * start.norm()
    return bool((found - expected).norm() <= near)


def measure(step: Step, effort: Effort) -> dict[str, Any]:
    """A row on the CPU, as JSON can hold it; without ratios where torch did burnt's steps."""
    try:
        takers = runs(step, effort.divisor)
    except NotServedError as error:
        return {"burnt": {"error": str(error)}}
    calls = {name: clock.warmed(run) for name, run in takers.items()}
    samples: dict[str, list[clock.Sample]] = {name: [] for name in takers}
    began, orders = time.monotonic(), clock.orders(takers)
    for number in range(effort.rounds):
        if number >= effort.least and time.monotonic() - began > effort.seconds:
            break
        for name in next(orders):
            samples[name].append(clock.sample(takers[name], calls[name]))
    ours = samples["burnt"]
    seconds = calm_median(ours)
    result: dict[str, Any] = {"burnt": {"ms": seconds * 1e3, "calm": sum(s.calm for s in ours)}}
    for rival, taken in samples.items():
        if rival == "burnt":
            continue
        ratio = calm_median(taken) / seconds
        aim = step.target if rival == "torch" else None
        result[rival] = {
            "ms": calm_median(taken) * 1e3,
            "ratio": ratio,
            "quartiles": quartiles([a.seconds / b.seconds for a, b in zip(taken, ours, strict=True)]),
            "calm": sum(s.calm for s in taken),
            "target": aim,
            "met": None if aim is None else ratio >= aim,
        }
    return result
