import torch

from tests.nn.case import Case, vectors

CASES = [
    Case(
        "MoeFeedForward",
        {"d_model": 12, "d_ff": 20, "num_experts": 4},
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "(..., 12)"),
    ),
    Case(
        "MoeFeedForward",
        {
            "d_model": 12,
            "d_ff": 8,
            "num_experts": 3,
            "top_k": 1,
            "activation": "gelu",
            "normalize": False,
            "shared_d_ff": 10,
            "capacity_factor": 1.0,
        },
        None,
        vectors,
        "-capacity",
    ),
]
