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

from burnt.nn.loss.binary import (
    BinaryCrossEntropy,
    BinaryCrossEntropyWithLogits,
    BinaryFocal,
    MultiLabelMargin,
    MultiLabelSoftMargin,
    SoftMargin,
)
from burnt.nn.loss.classification import CrossEntropy, Focal, KlDiv, MultiMargin, Nll
from burnt.nn.loss.output_layer import AdaptiveLogSoftmax, LinearCrossEntropy
from burnt.nn.loss.regression import L1, GaussianNll, Huber, Lp, Mse, PoissonNll, SmoothL1
from burnt.nn.loss.segmentation import Dice
from burnt.nn.loss.sequence import Ctc
from burnt.nn.loss.similarity import (
    CosineEmbedding,
    HingeEmbedding,
    InfoNce,
    MarginRanking,
    TripletMargin,
    TripletMarginWithDistance,
)

__all__ = [
    "L1",
    "AdaptiveLogSoftmax",
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
    "BinaryFocal",
    "CosineEmbedding",
    "CrossEntropy",
    "Ctc",
    "Dice",
    "Focal",
    "GaussianNll",
    "HingeEmbedding",
    "Huber",
    "InfoNce",
    "KlDiv",
    "LinearCrossEntropy",
    "Lp",
    "MarginRanking",
    "Mse",
    "MultiLabelMargin",
    "MultiLabelSoftMargin",
    "MultiMargin",
    "Nll",
    "PoissonNll",
    "SmoothL1",
    "SoftMargin",
    "TripletMargin",
    "TripletMarginWithDistance",
]
