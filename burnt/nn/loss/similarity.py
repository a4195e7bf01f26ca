"""Losses of pairs and triplets of embeddings: what belongs together must be close; distances of vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import ShapeError
from burnt.module import Module
from burnt.nn.checks import require
from burnt.nn.loss import checks


class HingeEmbedding(Module, torch.nn.HingeEmbeddingLoss):
    r"""Loss of distances: small for pairs that belong together (1), large for others (-1).

    .. math:: \ell = \begin{cases} x & t = 1 \\ \max(0, \mathrm{margin} - x) & t = -1 \end{cases}

    Args:
        margin: distance from which on a pair that does not belong together costs nothing.

    Shapes:
        input distances and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    >>> HingeEmbedding()(torch.tensor([0.5, 0.5]), torch.tensor([1, -1]))
    tensor(0.5000)
    """

    margin: float
    reduction: str

    def __init__(self, margin: float = 1.0, reduction: checks.Reduction = "mean") -> None:
        super().__init__(margin, reduction=checks.known_reduction(self, reduction))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of distances ``[*]`` and targets ``[*]``, 1 or -1."""
        checks.same_shape(self, input, target=target)
        checks.signs(self, target)
        return super().forward(input, target)


class CosineEmbedding(Module, torch.nn.CosineEmbeddingLoss):
    r"""Loss of cosine similarities: large for pairs that belong together (1), small for others (-1).

    .. math:: \ell = \begin{cases} 1 - \cos(a, b) & t = 1 \\
              \max(0, \cos(a, b) - \mathrm{margin}) & t = -1 \end{cases}

    Args:
        margin: similarity up to which a pair that does not belong together costs nothing, -1 to 1.

    Shapes:
        both inputs ``[batch, features]`` or ``[features]``, target ``[batch]`` or ``[]``; output ``[]``, with
        ``"none"`` the target's shape.

    Raises:
        InputValueError: `margin` is not from -1 to 1.
        ShapeError: the inputs differ in shape, or the target is not one for each pair. (torch broadcasts.)

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> CosineEmbedding()(x, torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([1, -1]))
    tensor(0.3536)
    """

    margin: float
    reduction: str

    def __init__(self, margin: float = 0.0, reduction: checks.Reduction = "mean") -> None:
        super().__init__(
            checks.in_range(self, "margin", margin, -1.0, 1.0),
            reduction=checks.known_reduction(self, reduction),
        )

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Return the loss of pairs ``[batch, features]`` and targets ``[batch]``, 1 or -1."""
        checks.same_shape(self, input1, input2=input2)
        if input1.dim() not in (1, 2) or target.shape != input1.shape[:-1]:
            raise ShapeError(
                "the targets are not one for each pair",
                where=type(self).__name__,
                expected="inputs [batch, features] and a target [batch], or [features] and []",
                found=f"inputs {tuple(input1.shape)} and a target {tuple(target.shape)}",
            )
        checks.signs(self, target)
        return super().forward(input1, input2, target)


class MarginRanking(Module, torch.nn.MarginRankingLoss):
    r"""Loss of pairs of scores: the first must be larger (1) or smaller (-1) by a margin.

    .. math:: \ell = \max(0, -t (a - b) + \mathrm{margin})

    Args:
        margin: how much larger or smaller the first score must be.

    Shapes:
        both inputs and the target ``[*]``, of one shape; output ``[]``, with ``"none"`` the inputs' shape.

    Raises:
        ShapeError: the inputs and the target differ in shape. (torch broadcasts.)

    >>> MarginRanking(0.5)(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0]), torch.tensor([1, 1]))
    tensor(0.7500)
    """

    margin: float
    reduction: str

    def __init__(self, margin: float = 0.0, reduction: checks.Reduction = "mean") -> None:
        super().__init__(margin, reduction=checks.known_reduction(self, reduction))

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores ``[*]``, ``[*]`` and targets ``[*]``, 1 or -1."""
        checks.same_shape(self, input1, input2=input2, target=target)
        return super().forward(input1, input2, target)


class TripletMargin(Module, torch.nn.TripletMarginLoss):
    r"""Loss of triplets: an anchor must be closer to the positive than to the negative, by a margin.

    .. math:: \ell = \max(0, \lVert a - p \rVert_p - \lVert a - n \rVert_p + \mathrm{margin})

    Args:
        margin: how much closer the positive must be, more than 0.
        p: which norm measures distances; 2 is Euclidean.
        eps: added to differences, so that the norm has a gradient at 0.
        swap: whether to take the distance from positive to negative where it is the smaller one
            (Balntas et al., 2016).

    Shapes:
        anchor, positive and negative ``[*, features]``, of one shape; output ``[]``, with ``"none"`` ``[*]``.

    Raises:
        InputValueError: `margin` is not positive.
        ShapeError: the three differ in shape. (torch broadcasts.)

    >>> anchor, near, far = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 5.0]]).split(1)
    >>> TripletMargin()(anchor, near, far)
    tensor(1.0000)
    """

    margin: float
    p: float
    eps: float
    swap: bool
    reduction: str

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: checks.Reduction = "mean",
    ) -> None:
        require(margin > 0, type(self).__name__, "margin", "more than 0", margin)
        super().__init__(margin, p, eps, swap, reduction=checks.known_reduction(self, reduction))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the loss of triplets ``[*, features]``."""
        checks.same_shape(self, anchor, positive=positive, negative=negative)
        return super().forward(anchor, positive, negative)


class TripletMarginWithDistance(Module, torch.nn.TripletMarginWithDistanceLoss):
    r"""`TripletMargin` with any distance: :math:`\ell = \max(0, d(a, p) - d(a, n) + \mathrm{margin})`.

    Args:
        distance_function: takes two tensors of embeddings and returns their distances; None is
            `torch.nn.PairwiseDistance`.
        margin: how much closer the positive must be, more than 0.
        swap: whether to take the distance from positive to negative where it is the smaller one.

    Shapes:
        anchor, positive and negative ``[*, features]``, of one shape; output ``[]``, with ``"none"`` the
        distances' shape.

    Raises:
        InputValueError: `margin` is not positive.
        ShapeError: the three differ in shape. (torch broadcasts.)

    A Config holds no function: it builds the layer with the default one.

    >>> loss = TripletMarginWithDistance(distance_function=lambda a, b: (a - b).abs().amax(-1))
    >>> loss(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 5.0]]))
    tensor(0.)
    """

    margin: float
    swap: bool
    reduction: str

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: checks.Reduction = "mean",
    ) -> None:
        require(margin > 0, type(self).__name__, "margin", "more than 0", margin)
        super().__init__(
            distance_function=distance_function,
            margin=margin,
            swap=swap,
            reduction=checks.known_reduction(self, reduction),
        )

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the loss of triplets ``[*, features]``."""
        checks.same_shape(self, anchor, positive=positive, negative=negative)
        return super().forward(anchor, positive, negative)


class InfoNce(Module):
    r"""Contrastive loss of a batch of pairs: each embedding must find its partner among all of them.

    .. math:: \ell_i = -\log \frac{e^{\cos(a_i, b_i) / \tau}}{\sum_j e^{\cos(a_i, b_j) / \tau}}

    Args:
        temperature: divisor :math:`\tau` of the similarities, more than 0.
        symmetric: whether to add the loss of finding the first embedding of a pair by the second one, and
            take the mean of both, as CLIP does.

    Shapes:
        both inputs ``[batch, features]``; output ``[]``, with ``"none"`` ``[batch]``.

    Raises:
        InputValueError: `temperature` is not positive.
        ShapeError: the inputs are not ``[batch, features]`` of one shape.

    van den Oord et al., 2018; symmetric: Radford et al., 2021. Neither torch nor Burn has it.

    >>> InfoNce(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.3133)
    """

    temperature: float
    symmetric: bool
    reduction: str

    def __init__(
        self, temperature: float = 0.07, symmetric: bool = False, reduction: checks.Reduction = "mean"
    ) -> None:
        super().__init__()
        require(temperature > 0, "InfoNce", "temperature", "more than 0", temperature)
        self.temperature, self.symmetric = temperature, symmetric
        self.reduction = checks.known_reduction(self, reduction)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """Return the loss of embeddings ``[batch, features]``, whose rows i belong together."""
        checks.same_shape(self, input1, input2=input2)
        if input1.dim() != 2:
            raise ShapeError(
                "a batch of embeddings has two axes",
                where=type(self).__name__,
                expected="[batch, features]",
                found=tuple(input1.shape),
            )
        checks.floating(self, input1=input1, input2=input2)
        logits = F.normalize(input1, dim=1) @ F.normalize(input2, dim=1).t() / self.temperature
        labels = torch.arange(logits.shape[0], device=logits.device)
        loss = F.cross_entropy(logits, labels, reduction=self.reduction)
        if self.symmetric:
            loss = (loss + F.cross_entropy(logits.t(), labels, reduction=self.reduction)) / 2
        return loss


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
