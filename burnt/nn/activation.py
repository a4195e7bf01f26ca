"""Activations: functions of each element, softmaxes, and `build_activation`, which finds them by name.

Inputs have any shape and outputs the same unless a docstring says otherwise; `inplace` overwrites the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.config import Config, suggest_value
from burnt.errors import ConfigError, nearest
from burnt.module import Module
from burnt.nn.checks import require


class _WithoutArguments(Module):
    def __init__(self) -> None:
        super().__init__()


class Relu(Module, torch.nn.ReLU, init=False):
    r"""The positive part: :math:`y = \max(x, 0)`, of any shape.

    >>> Relu()(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """


class Relu2(_WithoutArguments):
    r"""The square of the positive part: :math:`y = \max(x, 0)^2`, of any shape.

    So et al., 2021.

    >>> Relu2()(torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, activated."""
        return kernels.relu2.in_layer(input)


class Relu6(Module, torch.nn.ReLU6, init=False):
    r"""ReLU with an upper limit: :math:`y = \min(\max(x, 0), 6)`, of any shape.

    Krizhevsky, 2010.

    >>> Relu6()(torch.tensor([-1.0, 2.0, 8.0]))
    tensor([0., 2., 6.])
    """


class LeakyRelu(Module, torch.nn.LeakyReLU, init=False):
    r"""ReLU with a slope for negative values: :math:`y = \max(x, 0) + a \min(x, 0)`, of any shape.

    Args:
        negative_slope: :math:`a`, 0.01 as in Burn.

    Maas et al., 2013.

    >>> LeakyRelu(0.1)(torch.tensor([-1.0, 2.0]))
    tensor([-0.1000,  2.0000])
    """


class Prelu(Module, torch.nn.PReLU):
    r"""ReLU with a learned slope for negative values: :math:`y = \max(x, 0) + a \min(x, 0)`.

    Args:
        num_parameters: number of slopes: 1, or one for each channel.
        alpha: value that the slopes start with (torch's ``init``, which is a method of each Config).

    Shapes:
        input ``[*]``, or ``[batch, num_parameters, *]`` if there are several; output the same; ``weight`` is
        ``[num_parameters]``.

    As :class:`torch.nn.PReLU`. Weight decay pulls the slopes to 0, which is rarely wanted. He et al., 2015.

    >>> Prelu()(torch.tensor([-1.0, 2.0])).tolist()
    [-0.25, 2.0]
    """

    def __init__(
        self,
        num_parameters: int = 1,
        alpha: float = 0.25,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_parameters, alpha, device, dtype)
        self.alpha = alpha


class Rrelu(Module, torch.nn.RReLU):
    r"""ReLU with a random slope for negative values: :math:`y = \max(x, 0) + a \min(x, 0)`, of any shape.

    While training, :math:`a` is drawn for each element, uniform between `lower` and `upper`; in evaluation
    it is their mean.

    Args:
        lower: smallest slope for negative values.
        upper: largest slope for negative values.

    Raises:
        InputValueError: `lower` is above `upper`.

    Xu et al., 2015.

    >>> Rrelu(0.1, 0.3).eval()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2000,  2.0000])
    """

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        require(lower <= upper, "Rrelu", "lower", f"at most upper, {upper}", lower)
        super().__init__(lower, upper, inplace)


class ThresholdedRelu(Module):
    r"""Values above a threshold, and zeros: :math:`y = x` where :math:`x > \alpha`, else 0; of any shape.

    Args:
        alpha: the threshold, 1 as in Burn and ONNX.

    `Threshold` gives another value than 0. Konda et al., 2014.

    >>> ThresholdedRelu()(torch.tensor([-1.0, 0.5, 2.0]))
    tensor([0., 0., 2.])
    """

    alpha: float

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, activated."""
        return F.threshold(input, self.alpha, 0.0)


class Threshold(Module, torch.nn.Threshold, init=False):
    r"""Values above a threshold, and a constant: :math:`y = x` where :math:`x > t`, else :math:`v`.

    Args:
        threshold: the bound :math:`t` that a value must exceed.
        value: the result :math:`v` at or below the threshold.

    >>> Threshold(0.1, 20.0)(torch.tensor([-1.0, 2.0]))
    tensor([20.,  2.])
    """


class Elu(Module, torch.nn.ELU, init=False):
    r"""The exponential linear unit: :math:`y = \max(x, 0) + \min(\alpha(e^x - 1), 0)`, of any shape.

    Args:
        alpha: minus the limit for small `x`.

    Clevert et al., 2015.

    >>> Elu()(torch.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """


class Celu(Module, torch.nn.CELU, init=False):
    r"""ELU with a continuous derivative: :math:`y = \max(x, 0) + \min(\alpha(e^{x/\alpha} - 1), 0)`.

    Args:
        alpha: minus the limit for small `x`.

    Barron, 2017.

    >>> Celu(2.0)(torch.tensor([-1.0, 2.0]))
    tensor([-0.7869,  2.0000])
    """


class Selu(Module, torch.nn.SELU, init=False):
    r"""A scaled ELU: :math:`y = s\,(\max(x, 0) + \min(\alpha(e^x - 1), 0))`, of any shape.

    With :math:`s = 1.0507` and :math:`\alpha = 1.6733`, mean 0 and variance 1 are a fixed point of deep
    networks, if weights start with variance ``1 / in_features`` (`AlphaDropout` keeps both).

    Klambauer et al., 2017.

    >>> Selu()(torch.tensor([-1.0, 2.0]))
    tensor([-1.1113,  2.1014])
    """


class Gelu(Module, torch.nn.GELU):
    r"""The Gaussian error linear unit: :math:`y = x\,\Phi(x)`, of any shape.

    Args:
        approximate: ``"none"`` for the error function, ``"tanh"`` for its approximation.

    Hendrycks and Gimpel, 2016.

    >>> Gelu()(torch.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """

    approximate: str

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        super().__init__(approximate)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, activated."""
        return kernels.gelu.in_layer(input, self.approximate)


class Silu(Module, torch.nn.SiLU):
    r"""The sigmoid linear unit, or swish: :math:`y = x\,\sigma(x)`, of any shape.

    Elfwing et al., 2017.

    >>> Silu()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """

    inplace: bool

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, activated."""
        return F.silu(input, inplace=True) if self.inplace else kernels.silu.in_layer(input)


class Mish(Module, torch.nn.Mish, init=False):
    r"""A smooth unit: :math:`y = x \tanh(\log(1 + e^x))`, of any shape.

    Misra, 2019.

    >>> Mish()(torch.tensor([-1.0, 2.0]))
    tensor([-0.3034,  1.9440])
    """


class Hardswish(Module, torch.nn.Hardswish, init=False):
    r"""SiLU from straight lines: :math:`y = x \min(\max(x + 3, 0), 6) / 6`, of any shape.

    Howard et al., 2019.

    >>> Hardswish()(torch.tensor([-1.0, 2.0]))
    tensor([-0.3333,  1.6667])
    """


class Glu(Module, torch.nn.GLU, init=False):
    r"""The gated linear unit: :math:`y = a\,\sigma(b)` for the two halves :math:`a` and :math:`b` of an axis.

    Args:
        dim: the axis that is halved.

    Shapes:
        input ``[*, 2 d, *]``, output ``[*, d, *]``.

    Dauphin et al., 2016.

    >>> Glu()(torch.tensor([1.0, 2.0, 0.0, 8.0]))
    tensor([0.5000, 1.9993])
    """


class Sigmoid(_WithoutArguments, torch.nn.Sigmoid, init=False):
    r"""The logistic function: :math:`y = 1 / (1 + e^{-x})`, of any shape.

    >>> Sigmoid()(torch.tensor([-1.0, 2.0]))
    tensor([0.2689, 0.8808])
    """


class LogSigmoid(_WithoutArguments, torch.nn.LogSigmoid, init=False):
    r"""The logarithm of the logistic function: :math:`y = -\log(1 + e^{-x})`, of any shape.

    >>> LogSigmoid()(torch.tensor([-1.0, 2.0]))
    tensor([-1.3133, -0.1269])
    """


class Hardsigmoid(Module, torch.nn.Hardsigmoid, init=False):
    r"""The logistic function from straight lines: :math:`y = \min(\max(x / 6 + 1 / 2, 0), 1)`, of any shape.

    (Burn and ONNX have slope and offset as arguments, 0.2 and 0.5 by default.) Courbariaux et al., 2015.

    >>> Hardsigmoid()(torch.tensor([-3.0, 0.0, 2.0]))
    tensor([0.0000, 0.5000, 0.8333])
    """


class Tanh(_WithoutArguments, torch.nn.Tanh, init=False):
    r"""The hyperbolic tangent: :math:`y = \tanh x`, of any shape.

    >>> Tanh()(torch.tensor([-1.0, 2.0]))
    tensor([-0.7616,  0.9640])
    """


class Hardtanh(Module, torch.nn.Hardtanh):
    r"""Limits to a range: :math:`y = \min(\max(x, a), b)`, of any shape.

    Args:
        min_val: lower bound :math:`a`.
        max_val: upper bound :math:`b`.

    Raises:
        InputValueError: `min_val` is not below `max_val`.

    As :class:`torch.nn.Hardtanh` without its deprecated arguments.

    >>> Hardtanh()(torch.tensor([-2.0, 0.5, 2.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        require(min_val < max_val, "Hardtanh", "min_val", f"less than max_val, {max_val}", min_val)
        super().__init__(min_val, max_val, inplace)


class Tanhshrink(_WithoutArguments, torch.nn.Tanhshrink, init=False):
    r"""What the hyperbolic tangent takes away: :math:`y = x - \tanh x`, of any shape.

    >>> Tanhshrink()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2384,  1.0360])
    """


class Softplus(Module, torch.nn.Softplus, init=False):
    r"""A smooth ReLU: :math:`y = \frac{1}{\beta} \log(1 + e^{\beta x})`, of any shape.

    Args:
        beta: sharpness of the bend at 0.
        threshold: where :math:`\beta x` is above, `y` is `x`. (Burn computes without a threshold.)

    >>> Softplus()(torch.tensor([-1.0, 2.0]))
    tensor([0.3133, 2.1269])
    """


class Softsign(_WithoutArguments, torch.nn.Softsign, init=False):
    r"""A slow saturation: :math:`y = x / (1 + |x|)`, of any shape.

    >>> Softsign()(torch.tensor([-1.0, 3.0]))
    tensor([-0.5000,  0.7500])
    """


class Shrink(Module):
    r"""Zeros around 0, and other values moved towards 0, of any shape.

    .. math:: y = x - b\,\mathrm{sign}(x) \text{ where } |x| > \lambda, \text{ else } 0

    Args:
        lambd: bound :math:`\lambda` of the values that become 0, not negative.
        bias: :math:`b`: 0 is a `Hardshrink`, and `lambd` a `Softshrink`.

    Raises:
        InputValueError: a negative `lambd`.

    As in Burn and ONNX.

    >>> Shrink(0.5, bias=0.25)(torch.tensor([-1.0, 0.4, 2.0]))
    tensor([-0.7500,  0.0000,  1.7500])
    """

    lambd: float
    bias: float

    def __init__(self, lambd: float = 0.5, bias: float = 0.0) -> None:
        require(lambd >= 0, "Shrink", "lambd", "at least 0", lambd)
        super().__init__()
        self.lambd = lambd
        self.bias = bias

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, activated."""
        outer = F.hardshrink(input, self.lambd)
        return outer if self.bias == 0 else outer - self.bias * outer.sign()


class Hardshrink(Module, torch.nn.Hardshrink):
    r"""Zeros around 0: :math:`y = x` where :math:`|x| > \lambda`, else 0; of any shape.

    Args:
        lambd: bound :math:`\lambda` of the values that become 0, not negative.

    Raises:
        InputValueError: a negative `lambd`.

    >>> Hardshrink()(torch.tensor([-1.0, 0.4, 2.0]))
    tensor([-1.,  0.,  2.])
    """

    lambd: float

    def __init__(self, lambd: float = 0.5) -> None:
        require(lambd >= 0, "Hardshrink", "lambd", "at least 0", lambd)
        super().__init__(lambd)


class Softshrink(Module, torch.nn.Softshrink):
    r"""Moves values to 0: :math:`y = x - \lambda\,\mathrm{sign}(x)` where :math:`|x| > \lambda`, else 0.

    Args:
        lambd: bound :math:`\lambda` of the values that become 0, not negative.

    Raises:
        InputValueError: a negative `lambd`.

    >>> Softshrink()(torch.tensor([-1.0, 0.4, 2.0]))
    tensor([-0.5000,  0.0000,  1.5000])
    """

    lambd: float

    def __init__(self, lambd: float = 0.5) -> None:
        require(lambd >= 0, "Softshrink", "lambd", "at least 0", lambd)
        super().__init__(lambd)


class _AlongAxis(Module):
    dim: int

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


class Softmax(_AlongAxis, torch.nn.Softmax, init=False):  # type: ignore[misc]
    r"""Positive values with the sum 1 along an axis: :math:`y_i = e^{x_i} / \sum_j e^{x_j}`.

    Args:
        dim: the axis. (torch guesses one if there is none, which it deprecates.)

    Shapes:
        any with that axis; the output has the input's shape.

    >>> Softmax(-1)(torch.tensor([0.0, 1.0]))
    tensor([0.2689, 0.7311])
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, exponentiated and divided by the sums along the axis."""
        return kernels.softmax.in_layer(input, self.dim)


class LogSoftmax(_AlongAxis, torch.nn.LogSoftmax, init=False):  # type: ignore[misc]
    r"""The logarithm of a softmax: :math:`y_i = x_i - \log \sum_j e^{x_j}`.

    Args:
        dim: the axis. (torch guesses one if there is none, which it deprecates.)

    Shapes:
        any with that axis; the output has the input's shape.

    `CrossEntropy` takes logits, and needs no LogSoftmax before it.

    >>> LogSoftmax(-1)(torch.tensor([0.0, 1.0]))
    tensor([-1.3133, -0.3133])
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]`` less the logarithms of the sums of exponentials along the axis."""
        return kernels.log_softmax.in_layer(input, self.dim)


class Softmin(_AlongAxis, torch.nn.Softmin, init=False):  # type: ignore[misc]
    r"""The softmax of negated values: :math:`y_i = e^{-x_i} / \sum_j e^{-x_j}`.

    Args:
        dim: the axis. (torch guesses one if there is none, which it deprecates.)

    Shapes:
        any with that axis; the output has the input's shape.

    >>> Softmin(-1)(torch.tensor([0.0, 1.0]))
    tensor([0.7311, 0.2689])
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, negated, exponentiated and divided by the sums along the axis."""
        return kernels.softmax.in_layer(-input, self.dim)


class Softmax2d(_WithoutArguments, torch.nn.Softmax2d, init=False):
    r"""The softmax over the channels of each pixel.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch, output the same.

    >>> Softmax2d()(torch.zeros(1, 4, 2, 2)).unique()
    tensor([0.2500])
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[batch, channels, height, width]``, exponentiated and divided by the channels' sums."""
        if input.dim() not in (3, 4):
            return super().forward(input)  # raises
        return kernels.softmax.in_layer(input, -3)


ActivationName = Literal[
    "celu",
    "elu",
    "gelu",
    "gelu_tanh",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "prelu",
    "relu",
    "relu2",
    "relu6",
    "rrelu",
    "selu",
    "shrink",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "thresholded_relu",
]

ActivationConfig: TypeAlias = (
    ActivationName
    | Celu.Config
    | Elu.Config
    | Gelu.Config
    | Hardshrink.Config
    | Hardsigmoid.Config
    | Hardswish.Config
    | Hardtanh.Config
    | LeakyRelu.Config
    | LogSigmoid.Config
    | LogSoftmax.Config
    | Mish.Config
    | Prelu.Config
    | Relu.Config
    | Relu2.Config
    | Relu6.Config
    | Rrelu.Config
    | Selu.Config
    | Shrink.Config
    | Sigmoid.Config
    | Silu.Config
    | Softmax.Config
    | Softmax2d.Config
    | Softmin.Config
    | Softplus.Config
    | Softshrink.Config
    | Softsign.Config
    | Tanh.Config
    | Tanhshrink.Config
    | Threshold.Config
    | ThresholdedRelu.Config
)
"""An activation in a Config or as an argument: its name, for the defaults, or its Config.

All but `Glu`, which halves an axis. A Config writes its class as ``"type"``:

>>> class NetConfig(Config):
...     activation: ActivationConfig = "gelu"
>>> NetConfig.from_json('{"activation": {"type": "LeakyRelu", "negative_slope": 0.2}}')
NetConfig(activation=LeakyRelu.Config(negative_slope=0.2, inplace=False))
"""

_CONFIGS = {kind.__struct_config__.tag.lower(): kind for kind in get_args(ActivationConfig)[1:]}
_BY_NAME: dict[str, Config] = {
    name: Gelu.Config(approximate="tanh") if name == "gelu_tanh" else _CONFIGS[name.replace("_", "")]()
    for name in get_args(ActivationName)
}


def build_activation(
    activation: ActivationConfig | Mapping[str, Any] | torch.nn.Module,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> torch.nn.Module:
    """Build an activation from its name or Config.

    Args:
        activation: a name, such as ``"gelu"`` or ``"leaky_relu"``, for the layer with its defaults; the
            Config of an activation, or a dict of it; or a layer, which is returned as it is.
        device: where new parameters live; a given layer's stay where they are.
        dtype: dtype of parameters.

    Raises:
        ConfigError: there is no such activation, or it has no such argument.

    (Burn's ``ActivationConfig``.)

    >>> build_activation("gelu")
    Gelu(approximate='none')
    >>> build_activation({"type": "LeakyRelu", "negative_slope": 0.2})
    LeakyRelu(negative_slope=0.2)
    """
    if isinstance(activation, torch.nn.Module):
        return activation
    if isinstance(activation, Mapping):
        activation = Activation.from_dict({"activation": dict(activation)}).activation
    config = _BY_NAME.get(activation) if isinstance(activation, str) else activation
    if not isinstance(config, Config):
        raise activation_error(activation)
    layer: torch.nn.Module = config.init(device=device, dtype=dtype)  # type: ignore[attr-defined]
    return layer


def activation_error(activation: object, also: Sequence[str] = ()) -> ConfigError:
    """Return the error for what is not an activation; `also` are names besides the layers'."""
    known = (*_BY_NAME, *also)
    name = activation if isinstance(activation, str) else getattr(activation, "__name__", "")
    close = nearest(name.lower(), known)
    if isinstance(activation, str):
        hint = suggest_value(activation, known, (str(c.__struct_config__.tag) for c in _BY_NAME.values()))
    elif isinstance(activation, type) and issubclass(activation, torch.nn.Module):
        hint = f"a layer, {name}(), and not its class"
    else:
        hint = f"by name: {close!r}" if close else "a function as a module: class Activation(burnt.Module)"
    return ConfigError(
        "there is no such activation",
        expected=f"{', '.join(known)}; or the Config of an activation, or a layer",
        found=repr(activation),
        hint=hint,
    )


class Activation(Config):
    """Holds any activation's Config; its name is in messages."""

    activation: ActivationConfig
