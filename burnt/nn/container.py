"""Sequential: layers in a row. Lists and dicts of layers are fields of a Module, and need no class."""

from __future__ import annotations

import torch

from burnt.module import Module


class Sequential(Module, torch.nn.Sequential, init=False):
    """Calls layers one after the other, each with the output of the one before.

    Args:
        args: the layers, or one ``OrderedDict`` of them by name.

    As :class:`torch.nn.Sequential`, with indices and slices, and with the methods of a burnt Module. It has
    no derived Config: write a Config class whose ``init`` builds it, annotated ``-> nn.Sequential``.

    >>> from burnt import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Relu(), nn.Linear(8, 2))
    >>> model(torch.zeros(3, 4)).shape, model.num_params(), len(model[:2])
    (torch.Size([3, 2]), 58, 2)
    """
