import torch

from tests.nn.case import Case, vectors

CASES = [
    Case(
        "PositionalEncoding",
        {"d_model": 12, "max_len": 9},
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
]
