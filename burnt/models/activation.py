"""The activations of ``config.json``: transformers' names and burnt's."""

from __future__ import annotations

from typing import Literal, TypeAlias

from burnt.errors import ConfigError, did_you_mean

Activation: TypeAlias = Literal[
    "gelu",
    "gelu_tanh",
    "hardswish",
    "leaky_relu",
    "mish",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "tanh",
]
"""The names of `burnt.nn.build_activation` that transformers has, too."""

_NAMES: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "hardswish": "hardswish",
    "leaky_relu": "leaky_relu",
    "mish": "mish",
    "relu": "relu",
    "relu2": "relu2",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""burnt's names of transformers' activations; the first of several is the one that is written."""


def read_activation(name: str, where: str) -> Activation:
    """Return burnt's name of one of transformers' activations; a ConfigError if there is none."""
    if name not in _NAMES:
        raise ConfigError(
            "the models have no such activation",
            where=where,
            expected=" or ".join(map(repr, _NAMES)),
            found=repr(name),
            hint=did_you_mean(name, _NAMES),
        )
    return _NAMES[name]


def name_activation(activation: str, before: str) -> str:
    """Return transformers' name of an activation: the one before if that is the same activation."""
    if _NAMES.get(before) == activation:
        return before
    return next(name for name, ours in _NAMES.items() if ours == activation)
