"""Flatten: several axes become one."""

from __future__ import annotations

import torch

from burnt.module import Module

__all__ = ["Flatten"]


class Flatten(Module, torch.nn.Flatten):
    """Joins the axes from `start_dim` to `end_dim`, both included.

    Args:
        start_dim: first axis that is joined.
        end_dim: last axis that is joined.

    Shapes:
        input ``[*, S_start, ..., S_end, *]``, output ``[*, S_start * ... * S_end, *]``.

    >>> import torch
    >>> Flatten()(torch.zeros(2, 3, 4, 5)).shape
    torch.Size([2, 60])
    """

    start_dim: int
    end_dim: int

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__(start_dim, end_dim)
