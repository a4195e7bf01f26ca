"""Parameters of a model by path: count, visit, replace, freeze."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from burnt._patterns import matches, near, warn_unmatched
from burnt.errors import ConfigError


def num_params(model: nn.Module, trainable: bool | None = None) -> int:
    """Return the number of elements in a model's parameters; a shared parameter counts once.

    Quantized weights are buffers and do not count; `burnt.summary` has them.

    Args:
        model: any module.
        trainable: True counts only parameters that require a gradient, False only frozen ones.

    >>> from torch import nn
    >>> num_params(nn.Linear(3, 4))
    16
    """
    return sum(p.numel() for p in model.parameters() if trainable is None or p.requires_grad == trainable)


def visit(model: nn.Module, fn: Callable[[str, nn.Parameter], object]) -> None:
    """Call ``fn(path, parameter)`` for each parameter; a shared one is visited once, under its first path.

    >>> from torch import nn
    >>> visit(nn.Sequential(nn.Linear(2, 3)), lambda path, parameter: print(path, tuple(parameter.shape)))
    0.weight (3, 2)
    0.bias (3,)
    """
    for path, parameter in list(model.named_parameters()):
        fn(path, parameter)


def map_params(model: nn.Module, fn: Callable[[str, nn.Parameter], torch.Tensor]) -> None:
    """Replace each parameter in place by ``fn(path, parameter)``; shared parameters stay shared.

    Args:
        model: any module.
        fn: called once per parameter, without gradients. A plain tensor becomes a Parameter with the
            ``requires_grad`` of the one it replaces; a Parameter is used unchanged.

    Raises:
        ConfigError: ``fn`` returned no tensor. The model is then unchanged.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> map_params(layer, lambda path, parameter: parameter.double())
    >>> layer.weight.dtype
    torch.float64
    """
    replaced: dict[int, nn.Parameter] = {}
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            new = fn(path, parameter)
            if not isinstance(new, torch.Tensor):
                raise ConfigError(
                    "map_params needs a tensor for each parameter",
                    where=path,
                    expected="torch.Tensor",
                    found=type(new).__name__,
                )
            if not isinstance(new, nn.Parameter):
                new = nn.Parameter(new.detach(), requires_grad=parameter.requires_grad)
            replaced[id(parameter)] = new
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            # setattr, not register_parameter: recurrent layers also update their list of weights in it.
            setattr(module, name, replaced[id(parameter)])


def freeze(model: nn.Module, *patterns: str) -> list[str]:
    """Exclude parameters from training (``requires_grad = False``).

    Args:
        model: any module.
        patterns: globs on parameter paths (``"encoder.*.bias"``; ``*`` also crosses dots), or several in one
            string (``"*.bias|*norm*"``). One that matches a module's path includes everything below it
            (``"encoder"``). Without patterns, every parameter.

    Returns:
        The paths of the matching parameters, in the model's order.

    Raises:
        ConfigError: a pattern matches nothing; then no parameter is changed.

    Warns of alternatives, separated by ``|``, that match nothing.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> freeze(model, "0")
    ['0.weight', '0.bias']
    >>> unfreeze(model, "*.bias")
    ['0.bias', '1.bias']
    """
    return _set_requires_grad(model, patterns, False)


def unfreeze(model: nn.Module, *patterns: str) -> list[str]:
    """Include parameters in training again: the inverse of `freeze`, with the same patterns."""
    return _set_requires_grad(model, patterns, True)


def _set_requires_grad(model: nn.Module, patterns: tuple[str, ...], value: bool) -> list[str]:
    names: dict[int, list[str]] = {}  # all paths of each parameter; the first one is reported
    parameters = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(path)
        parameters[id(parameter)] = parameter
    all_paths = [path for paths in names.values() for path in paths]
    chosen = set() if patterns else set(names)
    for pattern in patterns:
        matching = {key for key, paths in names.items() if any(matches(pattern, path) for path in paths)}
        if not matching:
            raise _no_match(model, pattern, all_paths)
        warn_unmatched(pattern, all_paths)
        chosen |= matching
    for key in chosen:
        parameters[key].requires_grad_(value)
    return [paths[0] for key, paths in names.items() if key in chosen]


def _no_match(model: nn.Module, pattern: str, paths: list[str]) -> ConfigError:
    modules = [path for path, _ in model.named_modules() if path]
    is_module = any(matches(pattern, path) for path in modules)
    return ConfigError(
        f"the pattern {pattern!r} matches no parameter of {type(model).__name__}",
        expected="a glob on parameter paths, or the path of a module",
        found=repr(pattern),
        hint="this module exists, but has no parameters" if is_module else near(pattern, [*paths, *modules]),
    )
