"""Similarity and distance of vectors."""

from __future__ import annotations

import torch

from burnt.module import Module


class CosineSimilarity(Module, torch.nn.CosineSimilarity, init=False):
    r"""The cosine of the angle between vectors.

    .. math:: \frac{a \cdot b}{\max(|a|, \epsilon) \max(|b|, \epsilon)}

    Args:
        dim: the axis of the vectors, 1 as in Burn.
        eps: smallest norm, against a division by zero.

    Shapes:
        two inputs ``[*, d, *]`` of shapes that broadcast, with ``d`` on axis `dim`; output ``[*, *]``.

    >>> CosineSimilarity()(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([0.7071])
    """


class PairwiseDistance(Module, torch.nn.PairwiseDistance, init=False):
    r"""The distance of each vector to its partner: :math:`(\sum_i |a_i - b_i + \epsilon|^p)^{1/p}`.

    Args:
        p: which norm; 2 is Euclidean.
        eps: added to the differences, so that the gradient at distance 0 is finite.
        keepdim: whether the axis of the vectors stays, with size 1.

    Shapes:
        two inputs ``[*, d]`` of shapes that broadcast; output ``[*]``, or ``[*, 1]``.

    >>> PairwiseDistance()(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([5.0000])
    """
