import torch
from torch import Tensor
from torch import nn as tnn

from tests.nn.case import Case, labelled, pairs

WEIGHTS = [0.5, 1.0, 2.0, 1.0, 1.0, 3.0]
DIFFERENT = (torch.zeros(2, 3), torch.zeros(2))
OTHER_BATCH = (torch.zeros(2, 6), torch.zeros(3, dtype=torch.int64))


def probabilities(batch: int) -> tuple[Tensor, ...]:
    return torch.rand(batch, 3), torch.rand(batch, 3)


def distributions(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3).log_softmax(1), torch.randn(batch, 3).softmax(1)


def counts(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3), torch.randint(5, (batch, 3)).float()


def variances(batch: int) -> tuple[Tensor, ...]:
    return *pairs(batch), torch.rand(batch, 3)


def yes_or_no(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 6), torch.randint(2, (batch, 6)).float()


def signs(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3), 2 * torch.randint(2, (batch, 3)) - 1


def label_lists(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 6), torch.tensor([[3, 0, -1, 1, 2, 5]]).repeat(batch, 1)


def embeddings(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 5), torch.randn(batch, 5), 2.0 * torch.randint(2, (batch,)) - 1


def ranked(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch), torch.randn(batch), 2.0 * torch.randint(2, (batch,)) - 1


def triplets(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 5), torch.randn(batch, 5), torch.randn(batch, 5)


def segments(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 4, 5, 2), torch.randint(4, (batch, 5, 2))


def speech(batch: int) -> tuple[Tensor, ...]:
    log_probs = torch.randn(7, batch, 5).log_softmax(2)
    return log_probs, torch.randint(1, 5, (batch, 3)), torch.full((batch,), 7), torch.full((batch,), 3)


def hidden(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 8), 5 * torch.arange(batch) % 20


ADAPTIVE = {"in_features": 8, "n_classes": 20, "cutoffs": [4, 10], "div_value": 2.0}
CASES = [
    Case("L1", {}, "L1Loss", pairs, misfit=(DIFFERENT, "(2, 3)")),
    Case("Mse", {}, "MSELoss", pairs, misfit=(DIFFERENT, "(2, 3)")),
    Case("Mse", {"reduction": "none"}, "MSELoss", pairs, "-none"),
    Case("Lp", {"p": 3.0}, None, pairs, misfit=(DIFFERENT, "(2, 3)")),
    Case("SmoothL1", {}, "SmoothL1Loss", pairs, misfit=(DIFFERENT, "(2, 3)")),
    Case("Huber", {"delta": 0.5}, "HuberLoss", pairs, misfit=(DIFFERENT, "(2, 3)")),
    Case(
        "GaussianNll",
        {},
        "GaussianNLLLoss",
        variances,
        loose=0.1,
        misfit=((torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(3)), "(2, 3)"),
    ),
    Case("PoissonNll", {}, "PoissonNLLLoss", counts, misfit=(DIFFERENT, "(2, 3)")),
    Case("CrossEntropy", {}, "CrossEntropyLoss", labelled, misfit=(OTHER_BATCH, "(2,)")),
    Case(
        "CrossEntropy",
        {"weight": WEIGHTS, "ignore_index": 2, "label_smoothing": 0.1, "reduction": "sum"},
        lambda: tnn.CrossEntropyLoss(
            torch.tensor(WEIGHTS), ignore_index=2, label_smoothing=0.1, reduction="sum"
        ),
        labelled,
        "-weighted",
    ),
    Case("Nll", {}, "NLLLoss", labelled, misfit=(OTHER_BATCH, "(2,)")),
    Case(
        "Nll",
        {"weight": WEIGHTS, "ignore_index": 2, "reduction": "sum"},
        lambda: tnn.NLLLoss(torch.tensor(WEIGHTS), ignore_index=2, reduction="sum"),
        labelled,
        "-weighted",
    ),
    Case("Focal", {"weight": WEIGHTS, "ignore_index": 2}, None, labelled, misfit=(OTHER_BATCH, "(2,)")),
    Case("KlDiv", {"reduction": "batchmean"}, "KLDivLoss", distributions, misfit=(DIFFERENT, "(2, 3)")),
    # Of an empty batch, torch's mean is what is in memory.
    Case("MultiMargin", {"reduction": "none"}, "MultiMarginLoss", labelled, misfit=(OTHER_BATCH, "(2,)")),
    Case("BinaryCrossEntropy", {}, "BCELoss", probabilities, misfit=(DIFFERENT, "(2, 3)")),
    Case("BinaryCrossEntropyWithLogits", {}, "BCEWithLogitsLoss", yes_or_no, misfit=(DIFFERENT, "(2, 3)")),
    Case(
        "BinaryCrossEntropyWithLogits",
        {"weight": WEIGHTS, "pos_weight": WEIGHTS[::-1], "reduction": "none"},
        lambda: tnn.BCEWithLogitsLoss(
            torch.tensor(WEIGHTS), pos_weight=torch.tensor(WEIGHTS[::-1]), reduction="none"
        ),
        yes_or_no,
        "-weighted",
    ),
    Case("BinaryFocal", {}, None, yes_or_no, misfit=(DIFFERENT, "(2, 3)")),
    Case("SoftMargin", {}, "SoftMarginLoss", signs, misfit=(DIFFERENT, "(2, 3)")),
    Case(
        "MultiLabelSoftMargin",
        {"weight": WEIGHTS},
        lambda: tnn.MultiLabelSoftMarginLoss(torch.tensor(WEIGHTS)),
        yes_or_no,
        misfit=(DIFFERENT, "(2, 3)"),
    ),
    Case(
        "MultiLabelMargin",
        {"reduction": "none"},
        "MultiLabelMarginLoss",
        label_lists,
        misfit=((torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)), "(2, 3)"),
    ),
    Case("HingeEmbedding", {}, "HingeEmbeddingLoss", signs, misfit=(DIFFERENT, "(2, 3)")),
    Case(
        "CosineEmbedding",
        {"margin": 0.1},
        "CosineEmbeddingLoss",
        embeddings,
        misfit=((torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 1)), "[batch, features]"),
    ),
    Case(
        "MarginRanking",
        {"margin": 0.5},
        "MarginRankingLoss",
        ranked,
        misfit=((torch.zeros(2), torch.zeros(2), torch.ones(2, 1)), "(2,)"),
    ),
    Case(
        "TripletMargin",
        {"swap": True},
        "TripletMarginLoss",
        triplets,
        misfit=((torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(1, 3)), "(2, 3)"),
    ),
    Case(
        "TripletMarginWithDistance",
        {"margin": 2.0},
        "TripletMarginWithDistanceLoss",
        triplets,
        misfit=((torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(1, 3)), "(2, 3)"),
    ),
    Case("InfoNce", {"symmetric": True}, None, pairs, misfit=(DIFFERENT, "(2, 3)")),
    Case(
        "Dice",
        {"weight": [0.0, 1.0, 2.0, 1.0], "ignore_index": 3},
        None,
        segments,
        misfit=((torch.zeros(2, 3, 4), torch.zeros(2, 5)), "(2, 3, 4)"),
    ),
    Case(
        "Ctc",
        {},
        None,
        speech,
        misfit=(
            (torch.zeros(7, 2, 5), torch.ones(2, 3).long(), torch.full((7,), 2), torch.tensor([3, 3])),
            "(2,)",
        ),
    ),
    Case(
        "LinearCrossEntropy",
        {"in_features": 8, "num_classes": 20, "bias": True},
        None,
        hidden,
        misfit=((torch.zeros(2, 7), torch.zeros(2).long()), "(..., 8)"),
    ),
    Case(
        "AdaptiveLogSoftmax",
        ADAPTIVE,
        "AdaptiveLogSoftmaxWithLoss",
        hidden,
        misfit=((torch.zeros(2, 7), torch.zeros(2).long()), "[batch, 8]"),
    ),
]
