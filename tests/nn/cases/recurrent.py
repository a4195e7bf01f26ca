import torch
from torch import nn as tnn

from tests.nn.case import Case, vectors

CASES = [
    Case(
        "Lstm",
        {"input_size": 12, "hidden_size": 5},
        lambda: tnn.LSTM(12, 5, batch_first=True),
        vectors,
        loose=0.05,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "Lstm",
        {"input_size": 12, "hidden_size": 5, "num_layers": 2, "dropout": 0.4, "bidirectional": True},
        lambda: tnn.LSTM(12, 5, 2, batch_first=True, dropout=0.4, bidirectional=True),
        vectors,
        "-deep",
        loose=0.2,
    ),
    Case(
        "Gru",
        {"input_size": 12, "hidden_size": 5},
        lambda: tnn.GRU(12, 5, batch_first=True),
        vectors,
        loose=0.05,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "Gru",
        {"input_size": 12, "hidden_size": 5, "num_layers": 3, "bias": False, "dropout": 0.4},
        lambda: tnn.GRU(12, 5, 3, bias=False, batch_first=True, dropout=0.4),
        vectors,
        "-deep",
        loose=0.2,
    ),
]
