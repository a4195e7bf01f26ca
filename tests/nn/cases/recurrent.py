import torch
from torch import Tensor
from torch import nn as tnn

from tests.nn.case import Case, vectors


def step(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 12),)


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
        "Lstm",
        {"input_size": 12, "hidden_size": 5, "proj_size": 3},
        lambda: tnn.LSTM(12, 5, batch_first=True, proj_size=3),
        vectors,
        "-projection",
        loose=0.05,
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
    Case(
        "Rnn",
        {"input_size": 12, "hidden_size": 5},
        lambda: tnn.RNN(12, 5, batch_first=True),
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "Rnn",
        {
            "input_size": 12,
            "hidden_size": 5,
            "num_layers": 2,
            "nonlinearity": "relu",
            "dropout": 0.4,
            "bidirectional": True,
        },
        lambda: tnn.RNN(12, 5, 2, "relu", batch_first=True, dropout=0.4, bidirectional=True),
        vectors,
        "-deep",
    ),
    Case(
        "RnnCell",
        {"input_size": 12, "hidden_size": 5, "nonlinearity": "relu"},
        "RNNCell",
        step,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
    Case(
        "LstmCell",
        {"input_size": 12, "hidden_size": 5},
        "LSTMCell",
        step,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
    Case(
        "GruCell",
        {"input_size": 12, "hidden_size": 5, "bias": False},
        "GRUCell",
        step,
        misfit=((torch.zeros(2, 7),), "(..., 12)"),
    ),
]
