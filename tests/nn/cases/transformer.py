import torch
from torch import nn as tnn

from tests.nn.case import Case, vectors

ENCODER = {"d_model": 12, "num_heads": 3, "d_ff": 20, "dropout": 0.0}


def torch_layer() -> tnn.Module:
    return tnn.TransformerEncoderLayer(12, 3, 20, 0.0, batch_first=True)


CASES = [
    Case(
        "TransformerEncoderLayer",
        dict(**ENCODER),
        lambda: torch_layer(),
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "TransformerEncoder",
        dict(**ENCODER, num_layers=2, norm_first=True, final_norm=True),
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
]
