import torch

from tests.nn.case import Case, vectors

MISFIT = (torch.zeros(2, 3, 7),), "(..., 12)"

CASES = [
    Case("SwiGlu", {"in_features": 12, "out_features": 5}, None, vectors, misfit=MISFIT),
    Case("GeGlu", {"in_features": 12, "out_features": 5, "bias": True}, None, vectors, misfit=MISFIT),
    Case("GatedFeedForward", {"d_model": 12, "d_ff": 20}, None, vectors, misfit=MISFIT),
    Case(
        "GatedFeedForward",
        {"d_model": 12, "d_ff": 20, "activation": "gelu_tanh"},
        None,
        vectors,
        "-gelu_tanh",
    ),
]
