"""Formulas of optimizers: elementwise updates, written once for C, Triton and torch.

A formula is a Python function of two namespaces: ``s`` holds the tensors and scalars of one parameter, ``o``
the options. It reads and assigns their attributes, with operators and the functions below::

    def lion(s, o):
        update = sign(lerp(s.exp_avg, s.grad, 1 - o.beta1))
        s.exp_avg = lerp(s.exp_avg, s.grad, 1 - o.beta2)
        s.param = s.param - o.lr * update

With tensors and numbers in the namespaces it computes (`apply_eagerly`); with terms it builds expressions
(`trace`), which `foreach_c` and `foreach_triton` print. The scope of a term says how often it is computed:
once per step, per tensor, or per element. A number in an `if` is asked whether it is nonzero; a formula has
one kernel for each answer.

Below are the formulas of all optimizers with elementwise updates. Names of tensors and scalars are those of
the state in `torch.optim`; operations are in the order of torch's fused or foreach steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class Scope(IntEnum):
    """How often a term has to be computed."""

    STEP = 0
    TENSOR = 1
    ELEMENT = 2


def _operator(op: str) -> tuple[Callable[[Any, Any], Term], Callable[[Any, Any], Term]]:
    """Return the methods for an operator whose left, or right, operand is the term."""
    return lambda term, other: _combine(op, term, other), lambda term, other: _combine(op, other, term)


@dataclass(frozen=True, eq=False)
class Term:
    """An expression: `args` are its operands, or the value or name of a leaf.

    Leaves are ``"literal"``, ``"number"`` (an option), ``"factor"`` (of the gradients), ``"scalar"`` (one per
    tensor) and ``"element"``; other `op` are operations.
    """

    op: str
    args: tuple[Any, ...]
    scope: Scope
    is_nonzero: bool | None = None

    def __bool__(self) -> bool:
        if self.is_nonzero is None:
            raise TypeError("a formula can only branch on options other than lr")
        return self.is_nonzero

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")

    def __neg__(self) -> Term:
        return _combine("subtract", 0.0, self)


def _combine(op: str, *operands: Any) -> Term:
    terms = tuple(x if isinstance(x, Term) else Term("literal", (float(x),), Scope.STEP) for x in operands)
    return Term(op, terms, max(term.scope for term in terms))


# What formulas call. torch's functions differ for numbers, so those have their own.
_NUMBERS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "sqrt": math.sqrt,
    "power": lambda a, b: a**b,
    "where_greater": lambda a, b, yes, no: yes if a > b else no,
}
_TENSORS: dict[str, Callable[..., Tensor]] = {
    "sqrt": torch.sqrt,
    "absolute": torch.abs,
    "sign": torch.sign,
    "power": torch.pow,
    "maximum": torch.maximum,
    "lerp": lambda a, b, weight: torch.lerp(
        a, b, weight.to(a.dtype) if isinstance(weight, Tensor) else weight
    ),
    "where_greater": lambda a, b, yes, no: torch.where(a > b, yes, no),
}


def _call(op: str, *operands: Any) -> Any:
    if any(isinstance(x, Term) for x in operands):
        return _combine(op, *operands)
    return (_TENSORS if any(isinstance(x, Tensor) for x in operands) else _NUMBERS)[op](*operands)


sqrt = partial(_call, "sqrt")
absolute = partial(_call, "absolute")
sign = partial(_call, "sign")  # -1, 0 or 1; 0 for NaN
power = partial(_call, "power")  # of a number to a scalar
maximum = partial(_call, "maximum")  # NaN if one operand is NaN
lerp = partial(_call, "lerp")  # a + weight * (b - a), exact at both ends like torch's
where_greater = partial(_call, "where_greater")  # (a, b, yes, no): scalars or numbers


# --- reading a formula ------------------------------------------------------------------------------------


def fold(term: Term, numbers: Mapping[str, float]) -> float:
    """Return the value of a term of scope STEP."""
    if term.op == "literal":
        return float(term.args[0])
    if term.op == "number":
        return float(numbers[term.args[0]])
    return _NUMBERS[term.op](*(fold(arg, numbers) for arg in term.args))


@dataclass(frozen=True)
class Update:
    """An elementwise update of parameters and optimizer state: a kernel's `name` and its `formula`.

    The rest are names of what the formula reads or assigns: `elements` (tensors other than ``grad`` and
    ``ema``), `scalars` (scalar tensors: float32, or float64 in `wide`), and `values` (scalars that are
    numbers).
    """

    name: str
    formula: Callable[[Any, Any], None]
    elements: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Trace:
    """A formula as terms.

    `elements` are in the order of their addresses; `results` are the new values of what the formula assigns.
    """

    update: Update
    elements: tuple[str, ...]
    results: Mapping[str, Term]
    options: tuple[str, ...]

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """Names of the scalars that the formula reads, in their order in a table."""
        return tuple(n for n in (*self.update.scalars, *self.update.values) if n in self.used)

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Names of the options that the formula reads as numbers."""
        return tuple(name for name in self.options if name in self.used)

    @cached_property
    def used(self) -> set[str]:
        """Names of the options, scalars and elements that the formula reads."""
        terms = [*self.results.values(), *(arg for term in self.terms() for arg in term.args)]
        return {term.args[0] for term in terms if term.op in ("number", "factor", "scalar", "element")}

    @cached_property
    def written(self) -> list[str]:
        """Names of the lists of tensors that are written."""
        return [name for name in self.elements if name in self.results]

    def terms(self) -> Iterator[Term]:
        """Iterate over all terms that have operands, operands first."""
        seen: set[Term] = set()

        def visit(term: Term) -> Iterator[Term]:
            if term not in seen and term.args and isinstance(term.args[0], Term):
                seen.add(term)
                for arg in term.args:
                    yield from visit(arg)
                yield term

        for result in self.results.values():
            yield from visit(result)


Options = Mapping[str, Any]
Lists = Mapping[str, Sequence[Any]]  # tensors, or numbers, of all parameters by name


def trace(update: Update, elements: Iterable[str], options: Options) -> Trace:
    """Trace a formula; cached. Options that are floats become numbers, others are constants of the trace."""
    return _trace(
        update,
        tuple(elements),
        tuple(
            (name, name == "lr" or value != 0, None) if isinstance(value, float) else (name, None, value)
            for name, value in options.items()
        ),
    )


@cache
def _trace(
    update: Update, elements: tuple[str, ...], options: tuple[tuple[str, bool | None, Any], ...]
) -> Trace:
    o, s = SimpleNamespace(ema_weight=None), SimpleNamespace()
    for name, is_nonzero, value in options:
        if is_nonzero is not None:
            value = Term("number", (name,), Scope.STEP, None if name == "lr" else is_nonzero)
        setattr(o, name, value)
    before: dict[str, Term] = {}
    for name in (*update.scalars, *update.values):
        before[name] = Term("scalar", (name,), Scope.TENSOR)
    for name in elements:
        before[name] = Term("element", (name,), Scope.ELEMENT)
    vars(s).update(before)
    if "grad" in before:
        s.grad = before["grad"] * Term("factor", ("grad_factor",), Scope.STEP)
    update.formula(s, o)
    if "ema" in before:
        s.ema = lerp(before["ema"], s.param, o.ema_weight)
    results = {
        name: value for name, value in vars(s).items() if name != "grad" and value is not before.get(name)
    }
    return Trace(update, elements, results, tuple(name for name, _, _ in options))


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return float64; float32 on Metal, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def apply_eagerly(update: Update, elements: Lists, options: Options, scalars: Lists) -> None:
    """Apply an update with torch's operations, one tensor at a time; 16-bit elements in float32."""
    o = SimpleNamespace(**options)
    for i in range(len(next(iter(elements.values())))):
        tensors = {name: column[i] for name, column in elements.items()}
        # With an axis, as a scalar promotes a 0-dimensional tensor to its own dtype.
        before = {
            name: (t if t.dtype == torch.float64 else t.float()).reshape(t.shape or (1,))
            for name, t in tensors.items()
        }
        for name, column in scalars.items():
            if isinstance(column[i], Tensor):
                tensors[name], before[name] = column[i], column[i].to(wide_dtype(column[i].device))
        s = SimpleNamespace(**{name: column[i] for name, column in scalars.items()} | before)
        update.formula(s, o)
        for name, tensor in tensors.items():
            if name != "grad" and vars(s)[name] is not before[name]:
                tensor.copy_(vars(s)[name].reshape(tensor.shape))


def _decay(s: Any, o: Any, *, decoupled: bool) -> Any:
    """Apply weight decay: decoupled to ``s.param``, else as an L2 penalty. Returns the gradient."""
    if not o.weight_decay:
        return s.grad
    if decoupled:
        s.param = s.param * (1 - o.lr * o.weight_decay)
        return s.grad
    return s.grad + s.param * o.weight_decay


def _square_mean(mean: Any, x: Any, beta: Any) -> Any:
    return mean * beta + (1 - beta) * x * x


def _sgd(s: Any, o: Any) -> None:
    grad = _decay(s, o, decoupled=False)
    if o.momentum:
        # In a parameter's first step there is no dampening; the buffer is 0.
        weight = where_greater(s.is_first, 0, 1, 1 - o.dampening)
        s.momentum_buffer = s.momentum_buffer * o.momentum + grad * weight
        grad = grad + s.momentum_buffer * o.momentum if o.nesterov else s.momentum_buffer
    s.param = s.param - grad * o.lr


def _adam(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=o.decoupled)
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_avg_sq = largest = _square_mean(s.exp_avg_sq, grad, o.beta2)
    if o.amsgrad:
        s.max_exp_avg_sq = largest = maximum(s.max_exp_avg_sq, s.exp_avg_sq)
    step_size = o.lr / (1 - power(o.beta1, s.step))
    bias_correction = sqrt(1 - power(o.beta2, s.step))
    s.param = s.param - step_size * s.exp_avg / (sqrt(largest) / bias_correction + o.eps)


def _momentum(s: Any, o: Any) -> None:
    s.momentum_buffer = lerp(s.momentum_buffer, s.grad, 1 - o.momentum)
    s.update = lerp(s.grad, s.momentum_buffer, o.momentum) if o.nesterov else s.momentum_buffer


def _muon(s: Any, o: Any) -> None:
    s.param = s.param * (1 - o.lr * o.weight_decay) - s.rate * s.update


def _rms_prop(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.square_avg = variance = _square_mean(s.square_avg, grad, o.alpha)
    if o.centered:
        s.grad_avg = lerp(s.grad_avg, grad, 1 - o.alpha)
        variance = variance - s.grad_avg * s.grad_avg
    update = grad / (sqrt(variance) + o.eps)
    if o.momentum:
        s.momentum_buffer = update = s.momentum_buffer * o.momentum + update
    s.param = s.param - o.lr * update


def _adagrad(s: Any, o: Any) -> None:
    rate = o.lr / (1 + s.step * o.lr_decay)
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.sum = s.sum + grad * grad
    s.param = s.param - rate * grad / (sqrt(s.sum) + o.eps)


def _adadelta(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.square_avg = _square_mean(s.square_avg, grad, o.rho)
    update = sqrt(s.acc_delta + o.eps) / sqrt(s.square_avg + o.eps) * grad
    s.acc_delta = _square_mean(s.acc_delta, update, o.rho)
    s.param = s.param - o.lr * update


def _adamax(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_inf = maximum(s.exp_inf * o.beta2, absolute(grad) + o.eps)
    s.param = s.param - o.lr / (1 - power(o.beta1, s.step)) * s.exp_avg / s.exp_inf


def _nadam(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=o.decoupled_weight_decay)
    mu = o.beta1 * (1 - 0.5 * power(0.96, s.step * o.momentum_decay))
    mu_next = o.beta1 * (1 - 0.5 * power(0.96, (s.step + 1) * o.momentum_decay))
    s.mu_product = s.mu_product * mu
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, grad, o.beta2)
    denominator = sqrt(s.exp_avg_sq) / sqrt(1 - power(o.beta2, s.step)) + o.eps
    grad_rate = o.lr * (1 - mu) / (1 - s.mu_product)
    mean_rate = o.lr * mu_next / (1 - s.mu_product * mu_next)
    s.param = s.param - (grad_rate * grad + mean_rate * s.exp_avg) / denominator


def _radam(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=o.decoupled_weight_decay)
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, grad, o.beta2)
    decayed = power(o.beta2, s.step)
    longest = 2 / (1 - o.beta2) - 1
    length = longest - 2 * s.step * decayed / (1 - decayed)  # of the simple moving average
    rectification = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    scale = sqrt(rectification * (1 - decayed))
    # The variance of the adaptive rate is finite, and it is used, from a length of 5 on.
    adaptive = where_greater(length, 5, scale / (sqrt(s.exp_avg_sq) + o.eps), 1)
    step_size = o.lr / (1 - power(o.beta1, s.step))
    s.param = s.param - step_size * s.exp_avg * adaptive


def _adan(s: Any, o: Any) -> None:
    # The difference of the first gradient to the one before is 0.
    difference = (s.grad - s.previous_grad) * where_greater(s.step, 0, 1, 0)
    s.step = s.step + 1
    s.previous_grad = s.grad
    s.exp_avg = lerp(s.exp_avg, s.grad, 1 - o.beta1)
    s.exp_avg_diff = lerp(s.exp_avg_diff, difference, 1 - o.beta2)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, s.grad + o.beta2 * difference, o.beta3)
    denominator = sqrt(s.exp_avg_sq) / sqrt(1 - power(o.beta3, s.step)) + o.eps
    mean = s.exp_avg * (o.lr / (1 - power(o.beta1, s.step)))
    mean_difference = s.exp_avg_diff * (o.lr * o.beta2 / (1 - power(o.beta2, s.step)))
    update = (mean + mean_difference) / denominator
    if o.no_prox:
        s.param = s.param * (1 - o.lr * o.weight_decay) - update
    else:
        s.param = (s.param - update) / (1 + o.lr * o.weight_decay)


def _lion(s: Any, o: Any) -> None:
    grad = _decay(s, o, decoupled=True)
    update = sign(lerp(s.exp_avg, grad, 1 - o.beta1))
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta2)
    s.param = s.param - o.lr * update


def _lamb_direction(s: Any, o: Any) -> None:
    s.step = s.step + 1
    s.exp_avg = lerp(s.exp_avg, s.grad, 1 - o.beta1)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, s.grad, o.beta2)
    mean = s.exp_avg / (1 - power(o.beta1, s.step))
    s.update = mean / (sqrt(s.exp_avg_sq / (1 - power(o.beta2, s.step))) + o.eps)
    if o.weight_decay:
        s.update = s.update + o.weight_decay * s.param


def _lamb(s: Any, o: Any) -> None:
    s.param = s.param - o.lr * s.trust_ratio * s.update


def _schedule_free_adamw(s: Any, o: Any) -> None:
    """The parameter is y, where gradients are computed; z is stepped, x is its average."""
    s.step = s.step + 1
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, s.grad, o.beta2)
    rate = o.lr * sqrt(1 - power(o.beta2, s.step))
    if o.warmup_steps:
        rate = rate * where_greater(o.warmup_steps, s.step, s.step / o.warmup_steps, 1)
    direction = s.grad / (sqrt(s.exp_avg_sq) + o.eps)
    if o.weight_decay:
        direction = direction + o.weight_decay * s.param
    s.z = s.z - rate * direction
    weight = rate * rate
    s.weight_sum = s.weight_sum + weight
    # A rate of 0 in all steps so far leaves x as it is.
    s.x = lerp(s.x, s.z, weight / where_greater(s.weight_sum, 0, s.weight_sum, 1))
    s.param = lerp(s.z, s.x, o.beta1)


SGD = Update("sgd", _sgd, ("param", "momentum_buffer"), values=("is_first",))
ADAM = Update("adam", _adam, ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"), ("step",))
MOMENTUM = Update("momentum", _momentum, ("update", "momentum_buffer"))
"""First half of Muon; `update` is the matrix to orthogonalize."""
MUON = Update("muon", _muon, ("param", "update"), values=("rate",))
"""Second half of Muon."""
RMS_PROP = Update("rms_prop", _rms_prop, ("param", "square_avg", "grad_avg", "momentum_buffer"), ("step",))
ADAGRAD = Update("adagrad", _adagrad, ("param", "sum"), ("step",))
ADADELTA = Update("adadelta", _adadelta, ("param", "square_avg", "acc_delta"), ("step",))
ADAMAX = Update("adamax", _adamax, ("param", "exp_avg", "exp_inf"), ("step",))
NADAM = Update("nadam", _nadam, ("param", "exp_avg", "exp_avg_sq"), ("step", "mu_product"))
RADAM = Update("radam", _radam, ("param", "exp_avg", "exp_avg_sq"), ("step",))
ADAN = Update("adan", _adan, ("param", "exp_avg", "exp_avg_sq", "exp_avg_diff", "previous_grad"), ("step",))
LION = Update("lion", _lion, ("param", "exp_avg"))
LAMB_DIRECTION = Update(
    "lamb_direction", _lamb_direction, ("param", "update", "exp_avg", "exp_avg_sq"), ("step",)
)
"""First half of Lamb."""
LAMB = Update("lamb", _lamb, ("param", "update"), ("trust_ratio",), wide=("trust_ratio",))
"""Second half of Lamb."""
SCHEDULE_FREE_ADAMW = Update(
    "schedule_free_adamw",
    _schedule_free_adamw,
    ("param", "z", "x", "exp_avg_sq"),
    ("step", "weight_sum"),
    wide=("weight_sum",),
)
