"""Losses, a file per family.

Every loss takes `reduction`: the ``"mean"`` of the losses of all elements, their ``"sum"``, or ``"none"`` for
the losses themselves. Docstrings describe it where its meaning differs. An input and a target that must have
one shape raise a ShapeError otherwise, where torch would broadcast them.

regression       of numbers: L1, Mse, Huber, ..., and likelihoods of numbers and counts
classification   of one class per element: CrossEntropy, Nll, Focal, ..., and KlDiv of distributions
binary           of labels that are yes or no: BinaryCrossEntropy, BinaryFocal, the margins of several labels
similarity       of pairs and triplets of embeddings: CosineEmbedding, TripletMargin, InfoNce, ...
segmentation     of overlapping regions: Dice
sequence         of sequences without alignment: Ctc
output_layer     those that hold the last layer: LinearCrossEntropy, AdaptiveLogSoftmax
checks           checks and reductions that they share
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import own_names
from burnt.nn.loss.binary import BinaryCrossEntropy as BinaryCrossEntropy
from burnt.nn.loss.binary import BinaryCrossEntropyWithLogits as BinaryCrossEntropyWithLogits
from burnt.nn.loss.binary import BinaryFocal as BinaryFocal
from burnt.nn.loss.binary import MultiLabelMargin as MultiLabelMargin
from burnt.nn.loss.binary import MultiLabelSoftMargin as MultiLabelSoftMargin
from burnt.nn.loss.binary import SoftMargin as SoftMargin
from burnt.nn.loss.classification import AdaptiveLogSoftmax as AdaptiveLogSoftmax
from burnt.nn.loss.classification import CrossEntropy as CrossEntropy
from burnt.nn.loss.classification import Focal as Focal
from burnt.nn.loss.classification import KlDiv as KlDiv
from burnt.nn.loss.classification import LinearCrossEntropy as LinearCrossEntropy
from burnt.nn.loss.classification import MultiMargin as MultiMargin
from burnt.nn.loss.classification import Nll as Nll
from burnt.nn.loss.regression import L1 as L1
from burnt.nn.loss.regression import GaussianNll as GaussianNll
from burnt.nn.loss.regression import Huber as Huber
from burnt.nn.loss.regression import Lp as Lp
from burnt.nn.loss.regression import Mse as Mse
from burnt.nn.loss.regression import PoissonNll as PoissonNll
from burnt.nn.loss.regression import SmoothL1 as SmoothL1
from burnt.nn.loss.segmentation import Dice as Dice
from burnt.nn.loss.sequence import Ctc as Ctc
from burnt.nn.loss.similarity import CosineEmbedding as CosineEmbedding
from burnt.nn.loss.similarity import HingeEmbedding as HingeEmbedding
from burnt.nn.loss.similarity import InfoNce as InfoNce
from burnt.nn.loss.similarity import MarginRanking as MarginRanking
from burnt.nn.loss.similarity import TripletMargin as TripletMargin
from burnt.nn.loss.similarity import TripletMarginWithDistance as TripletMarginWithDistance

if not TYPE_CHECKING:  # type checkers take the imports above as exports
    __all__ = own_names(globals())
