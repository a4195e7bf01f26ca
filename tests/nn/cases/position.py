import torch
from torch import Tensor

from burnt.nn import rope_scaling
from tests.nn.case import Case, vectors


def heads(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 2, 5, 12),)


CASES = [
    Case(
        "PositionalEncoding",
        {"d_model": 12, "max_len": 9},
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "LearnedPositionalEncoding",
        {"d_model": 12, "max_len": 9},
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "RotaryEncoding", {"head_dim": 12}, None, heads, misfit=((torch.zeros(2, 2, 3, 7),), "(..., L, 12)")
    ),
    Case(
        "RotaryEncoding",
        {
            "head_dim": 12,
            "base": 500.0,
            "rotary_dim": 8,
            "interleaved": True,
            "scaling": rope_scaling.DynamicNtk(factor=2.0, original_max_len=3),
        },
        None,
        heads,
        "-dynamic",
    ),
]
