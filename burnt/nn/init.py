"""Initializers: frozen Configs that fill a tensor, and `apply`, which fills a model's parameters by path.

The values for a seed are as in `torch.nn.init`, whose functions have the same names and arguments. An
initializer is called with a tensor, and may be a field of a Config (annotate it `Initializer`).

>>> Constant(val=0.5)(torch.empty(2))
tensor([0.5000, 0.5000])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Generator, Tensor

from burnt._hints import no_attribute
from burnt._lazy import own_names
from burnt._patterns import matches, near, warn_unmatched
from burnt.config import Config, field_values
from burnt.errors import ConfigError, ShapeError
from burnt.nn.moe import MoeFeedForward


class Initializer(Config, tag=True, open=True):
    """Base of the initializers: checks the shape of a tensor, and fills it.

    An initializer of your own is a subclass with fields and `fill`. As a field of a Config, ``weight:
    Initializer`` takes every initializer, in JSON by its class's name.

    >>> class Alternating(Initializer):
    ...     size: float = 1.0
    ...
    ...     def fill(self, tensor, generator=None):
    ...         tensor.fill_(self.size).view(-1)[1::2].neg_()
    >>> Alternating(size=2.0)(torch.empty(3))
    tensor([ 2., -2.,  2.])
    """

    def __call__(self, tensor: Tensor, generator: Generator | None = None) -> Tensor:
        """Fill a tensor in place, without gradients.

        Args:
            tensor: floating-point.
            generator: draws the random numbers; None is torch's global one.

        Returns:
            The tensor.

        Raises:
            ShapeError: the initializer is not for tensors of this shape.
        """
        if expected := self.expected_shape(tensor.shape):
            raise ShapeError(
                f"{type(self).__name__} does not fit the tensor", expected=expected, found=tuple(tensor.shape)
            )
        if tensor.numel():
            with torch.no_grad():
                self.fill(tensor, generator)
        return tensor

    def expected_shape(self, shape: Sequence[int]) -> str | None:
        """Return which shapes would fit, if this one does not; else None."""
        return None

    def fill(self, tensor: Tensor, generator: Generator | None = None) -> None:
        """Fill a tensor of a shape that fits, in place; gradients are off."""
        raise NotImplementedError(f"{type(self).__name__} does not implement fill")

    def _require(self, holds: bool, field: str, expected: str) -> None:
        if not holds:
            raise ConfigError(
                f"{type(self).__name__} cannot be built",
                where=field,
                expected=expected,
                found=getattr(self, field),
            )


class _Function(Initializer):
    """A function of `torch.nn.init` with arguments of the same names."""

    _function: ClassVar[Callable[..., Any]]
    _draws: ClassVar[bool] = True
    """Whether the function takes a generator."""

    def fill(self, tensor: Tensor, generator: Generator | None = None) -> None:
        """Fill the tensor."""
        generators = {"generator": generator} if self._draws else {}
        type(self)._function(tensor, **field_values(self), **generators)


class Constant(_Function):
    """One value everywhere.

    Args:
        val: the value of all elements.
    """

    _function = staticmethod(torch.nn.init.constant_)
    _draws = False

    val: float


class Zeros(_Function):
    """Zeros."""

    _function = staticmethod(torch.nn.init.zeros_)
    _draws = False


class Ones(_Function):
    """Ones."""

    _function = staticmethod(torch.nn.init.ones_)
    _draws = False


class Uniform(_Function):
    """Uniform numbers from `a` to `b`.

    Args:
        a: lower bound of the values.
        b: upper bound of the values.
    """

    _function = staticmethod(torch.nn.init.uniform_)

    a: float = 0.0
    b: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.a <= self.b, "b", f"at least a = {self.a}")


class Normal(_Function):
    """Numbers from a normal distribution.

    Args:
        mean: mean of the distribution.
        std: standard deviation of the distribution.
    """

    _function = staticmethod(torch.nn.init.normal_)

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.std >= 0, "std", "at least 0")


class TruncatedNormal(_Function):
    """Numbers from a normal distribution, drawn again until they are between `a` and `b`.

    Args:
        mean: mean of the distribution before it is truncated.
        std: standard deviation of the distribution.
        a: lower bound; a value, not a number of deviations.
        b: upper bound of the values.
    """

    _function = staticmethod(torch.nn.init.trunc_normal_)

    mean: float = 0.0
    std: float = 1.0
    a: float = -2.0
    b: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.std > 0, "std", "above 0")
        self._require(self.a < self.b, "b", f"above a = {self.a}")


class _ByFan(_Function):
    """An initializer that needs the numbers of inputs and outputs of a weight ``[out, in, *]``."""

    def expected_shape(self, shape: Sequence[int]) -> str | None:
        """Return which shapes would fit, if this one does not; else None."""
        return None if len(shape) >= 2 else "at least two axes, (out, in, ...)"


class _Matrix(Initializer):
    """An initializer of matrices."""

    def expected_shape(self, shape: Sequence[int]) -> str | None:
        """Return which shapes would fit, if this one does not; else None."""
        return None if len(shape) == 2 else "two axes"


class XavierUniform(_ByFan):
    r"""Uniform numbers, up to :math:`g \sqrt{6 / (\mathrm{fan\_in} + \mathrm{fan\_out})}`.

    Args:
        gain: factor :math:`g` of the values.

    Glorot and Bengio, 2010.
    """

    _function = staticmethod(torch.nn.init.xavier_uniform_)

    gain: float = 1.0


class XavierNormal(_ByFan):
    r"""Normal numbers of deviation :math:`g \sqrt{2 / (\mathrm{fan\_in} + \mathrm{fan\_out})}`.

    Args:
        gain: factor :math:`g` of the values.

    Glorot and Bengio, 2010.
    """

    _function = staticmethod(torch.nn.init.xavier_normal_)

    gain: float = 1.0


Nonlinearity = Literal["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]


class KaimingUniform(_ByFan):
    r"""Uniform numbers, up to :math:`g \sqrt{3 / \mathrm{fan}}`.

    Args:
        a: slope of a leaky ReLU; :math:`g = \sqrt{2 / (1 + a^2)}`.
        mode: which number of a weight ``[out, in, *]`` is the fan.
        nonlinearity: what follows the layer, which determines :math:`g`.

    ``a=math.sqrt(5)`` is what Linear and convolutions start with (Burn: ``gain = 1 / sqrt(3)``). He et al.,
    2015.
    """

    _function = staticmethod(torch.nn.init.kaiming_uniform_)

    a: float = 0.0
    mode: Literal["fan_in", "fan_out"] = "fan_in"
    nonlinearity: Nonlinearity = "leaky_relu"


class KaimingNormal(_ByFan):
    r"""Normal numbers of deviation :math:`g / \sqrt{\mathrm{fan}}`.

    Args:
        a: slope of a leaky ReLU; :math:`g = \sqrt{2 / (1 + a^2)}`.
        mode: which number of a weight ``[out, in, *]`` is the fan.
        nonlinearity: what follows the layer, which determines :math:`g`.

    He et al., 2015.
    """

    _function = staticmethod(torch.nn.init.kaiming_normal_)

    a: float = 0.0
    mode: Literal["fan_in", "fan_out"] = "fan_in"
    nonlinearity: Nonlinearity = "leaky_relu"


class Orthogonal(_ByFan):
    """Orthonormal rows, or columns if there are fewer of them; axes after the first one count as one.

    Args:
        gain: factor of the result.

    A tensor of 16 bits is computed in float32 (torch refuses it). Saxe et al., 2013.
    """

    gain: float = 1.0

    def fill(self, tensor: Tensor, generator: Generator | None = None) -> None:
        """Fill the tensor."""
        if tensor.element_size() >= 4 and tensor.is_contiguous():
            torch.nn.init.orthogonal_(tensor, self.gain, generator)
            return
        dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        exact = torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
        tensor.copy_(torch.nn.init.orthogonal_(exact, self.gain, generator))


class Sparse(_Matrix):
    """Normal numbers, of which a fraction of each column is zero.

    Args:
        sparsity: the fraction of zeros in each column.
        std: standard deviation of the others.

    Martens, 2010.
    """

    sparsity: float
    std: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 <= self.sparsity <= 1, "sparsity", "from 0 to 1")
        self._require(self.std >= 0, "std", "at least 0")

    def fill(self, tensor: Tensor, generator: Generator | None = None) -> None:
        """Fill the tensor."""
        # torch's function draws the rows without the generator.
        tensor.normal_(0, self.std, generator=generator)
        if tensor.is_meta:
            return
        rows, columns = tensor.shape
        device = None if generator is None else generator.device
        for column in range(columns):
            order = torch.randperm(rows, generator=generator, device=device)
            tensor[order[: math.ceil(self.sparsity * rows)], column] = 0


class Eye(_Matrix):
    """The identity: ones on the diagonal of a matrix."""

    def fill(self, tensor: Tensor, generator: Generator | None = None) -> None:
        """Fill the tensor."""
        tensor.zero_().diagonal().fill_(1)


class Dirac(_Function):
    """The identity of a convolution: a one in the middle of the kernel from channel i to channel i.

    Args:
        groups: number of groups of the convolution.
    """

    _function = staticmethod(torch.nn.init.dirac_)
    _draws = False

    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.groups >= 1, "groups", "at least 1")

    def expected_shape(self, shape: Sequence[int]) -> str | None:
        """Return which shapes would fit, if this one does not; else None."""
        if len(shape) not in (3, 4, 5):
            return "three to five axes, the weight of a convolution"
        return None if shape[0] % self.groups == 0 else f"a first axis that is a multiple of {self.groups}"


class Gates(Initializer, kw_only=False):
    """An initializer for each gate: equal parts of the first axis, as in the parameters of recurrent layers.

    Args:
        gates: the initializers, in the layer's order: i, f, g, o of an Lstm, and r, z, n of a Gru. None
            leaves the values of a gate.

    A forget gate that is open at first (Jozefowicz et al., 2015):

    >>> bias = Gates((Zeros(), Ones(), Zeros(), Zeros()))
    >>> bias(torch.empty(8))
    tensor([0., 0., 1., 1., 0., 0., 0., 0.])
    """

    gates: tuple[Initializer | None, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(len(self.gates) > 0, "gates", "at least one initializer")

    def expected_shape(self, shape: Sequence[int]) -> str | None:
        """Return which shapes would fit, if this one does not; else None."""
        count = len(self.gates)
        if not len(shape) or shape[0] % count:
            return f"a first axis that is a multiple of {count}"
        part = (shape[0] // count, *shape[1:])
        for gate in self.gates:
            if gate is not None and (expected := gate.expected_shape(part)):
                return f"{count} gates for {type(gate).__name__}, each of {expected}"
        return None

    def fill(self, tensor: Tensor, generator: Generator | None = None) -> None:
        """Fill the tensor."""
        for gate, part in zip(self.gates, tensor.chunk(len(self.gates)), strict=True):
            if gate is not None:
                gate.fill(part, generator)


def apply(
    model: torch.nn.Module, rules: Sequence[tuple[str, Initializer]], generator: Generator | None = None
) -> dict[str, Initializer]:
    """Fill the parameters of a model, each by the first rule whose pattern matches its path.

    Args:
        model: any module.
        rules: pairs of a pattern, as in `burnt.freeze`, and an initializer. A parameter without a rule is
            unchanged; a shared one is filled once; each expert of a `MoeFeedForward` is filled by itself.
        generator: draws the random numbers; None is torch's global one.

    Returns:
        The initializer of each parameter that was filled, by path, in the model's order. The vector of an
        embedding's ``padding_idx`` is zero afterwards.

    Raises:
        ConfigError: a rule is no such pair; a pattern matches no parameter, or none that an earlier one has
            not matched.
        ShapeError: an initializer does not fit the shape of a parameter. In both cases nothing was filled.

    Warns of alternatives of a pattern, separated by ``|``, that match nothing.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    >>> for path, initializer in apply(model, [("*.bias", Zeros()), ("0", Eye())]).items():
    ...     print(path, initializer)
    0.weight Eye()
    0.bias Zeros()
    1.bias Zeros()
    """
    _check_rules(rules)
    paths: dict[torch.nn.Parameter, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        paths.setdefault(parameter, []).append(path)
    all_paths = [name for names in paths.values() for name in names]
    chosen: dict[torch.nn.Parameter, Initializer] = {}
    for pattern, initializer in rules:
        found = {p for p, names in paths.items() if any(matches(pattern, name) for name in names)}
        if found <= chosen.keys():
            raise ConfigError(
                f"the pattern {pattern!r} initializes no parameter of {type(model).__name__}",
                expected="a glob on parameter paths, or the path of a module",
                found="a pattern whose parameters all match earlier ones" if found else repr(pattern),
                hint="the first pattern that matches wins: move this one up"
                if found
                else near(pattern, all_paths),
            )
        warn_unmatched(pattern, all_paths)
        chosen |= dict.fromkeys(found - chosen.keys(), initializer)
    filled = {names[0]: chosen[p] for p, names in paths.items() if p in chosen}
    mixtures = [m for m in model.modules() if isinstance(m, MoeFeedForward)]
    experts = {weight for m in mixtures for weight in (m.gate_proj, m.up_proj, m.down_proj)}
    for parameter, initializer in chosen.items():
        shape = parameter.shape[1:] if parameter in experts else parameter.shape
        if expected := initializer.expected_shape(shape):
            path = paths[parameter][0]
            raise ShapeError(
                f"{type(initializer).__name__} does not fit a parameter of {type(model).__name__}",
                where=path,
                expected=expected,
                found=tuple(parameter.shape),
                hint=f"an earlier rule for it, such as ({path!r}, Zeros())",
            )
    for parameter in paths:
        if parameter in chosen:
            for tensor in parameter.detach() if parameter in experts else [parameter]:
                chosen[parameter](tensor, generator)
    embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag)]
    for embedding in embeddings:
        if embedding.padding_idx is not None and embedding.weight in chosen:
            embedding.weight.detach()[embedding.padding_idx] = 0
    return filled


def _check_rules(rules: Any) -> None:
    """Raise a ConfigError unless these are pairs of a pattern and an initializer."""
    example = '[("*.bias", Zeros())]'
    if not isinstance(rules, list | tuple):
        raise ConfigError(
            "the rules of apply are a list",
            expected=f"pairs of a pattern and an initializer, such as {example}",
            found=type(rules).__name__,
            hint="[*rules.items()]" if isinstance(rules, Mapping) else None,
        )
    for index, rule in enumerate(rules):
        if not isinstance(rule, list | tuple) or len(rule) != 2 or not isinstance(rule[0], str):
            raise ConfigError(
                "a rule of apply is a pair",
                where=f"rules[{index}]",
                expected=f"a pattern and an initializer, as in {example}",
                found=repr(rule),
                hint="a list, also of one pair: [rule]" if isinstance(rule, str) else None,
            )
        if not isinstance(rule[1], Initializer):
            raise ConfigError(
                f"the rule for {rule[0]!r} has no initializer",
                where=f"rules[{index}]",
                expected="an instance of a class of burnt.nn.init, such as Zeros()",
                found=repr(rule[1]),
                hint=_hint(rule[1]),
            )


def _hint(given: Any) -> str:
    """Suggest the initializer that is meant by its class, its name, or torch's function."""
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    names = {known.lower(): known for known in own_names(globals()) if known[0].isupper()}
    known = names.get(name.replace("_", "").replace("trunc", "truncated").lower())
    return f"{known}(...)" if known else "for a function of your own: a subclass of Initializer with `fill`"


if not TYPE_CHECKING:  # as in burnt.nn
    __all__ = own_names(globals())

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
