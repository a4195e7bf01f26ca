from typing import Any

import torch
from torch import Tensor
from torch import nn as tnn

from burnt import nn
from tests.nn.case import Case, vectors

LAYER = {"d_model": 12, "num_heads": 3, "d_ff": 20, "dropout": 0.0}
MODERN = {
    "norm_first": True,
    "norm": "rms",
    "activation": "swiglu",
    "bias": False,
    "num_kv_heads": 1,
    "rotary": nn.RotaryEncoding.Config(head_dim=4),
}


def torch_layer() -> tnn.Module:
    return tnn.TransformerEncoderLayer(12, 3, 20, 0.0, batch_first=True)


def vectors_and_memory(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 5, 12), torch.randn(batch, 4, 12)


class CausalDecoderLayer(tnn.TransformerDecoderLayer):
    """torch's layer with the mask that burnt's has by default."""

    def forward(self, tgt: Tensor, memory: Tensor, **masks: Any) -> Tensor:
        mask = tnn.Transformer.generate_square_subsequent_mask(tgt.shape[1], dtype=tgt.dtype)
        return super().forward(tgt, memory, tgt_mask=mask, tgt_is_causal=True)


class CausalTransformer(tnn.Transformer):
    def forward(self, src: Tensor, tgt: Tensor, **masks: Any) -> Tensor:
        mask = tnn.Transformer.generate_square_subsequent_mask(tgt.shape[1], dtype=tgt.dtype)
        return super().forward(src, tgt, tgt_mask=mask, tgt_is_causal=True)


CASES = [
    Case(
        "PositionWiseFeedForward",
        {"d_model": 12, "d_ff": 20, "dropout": 0.0, "activation": "geglu"},
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "TransformerEncoderLayer",
        dict(**LAYER),
        lambda: torch_layer(),
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "TransformerEncoder",
        dict(**LAYER, num_layers=2, norm_first=True, final_norm=True),
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "12"),
    ),
    Case(
        "TransformerEncoder", dict(**LAYER, **MODERN, num_layers=2, final_norm=True), None, vectors, "-modern"
    ),
    Case(
        "TransformerDecoderLayer",
        dict(**LAYER),
        lambda: CausalDecoderLayer(12, 3, 20, 0.0, batch_first=True),
        vectors_and_memory,
        misfit=((torch.zeros(2, 3, 12), torch.zeros(2, 3, 7)), "12"),
    ),
    Case(
        "TransformerDecoder",
        dict(**LAYER, num_layers=2, final_norm=True),
        None,
        vectors_and_memory,
        misfit=((torch.zeros(2, 3, 12), torch.zeros(2, 3, 7)), "12"),
    ),
    Case(
        "Transformer",
        {"num_encoder_layers": 1, "num_decoder_layers": 1, **LAYER, "num_heads": 2},
        lambda: CausalTransformer(12, 2, 1, 1, 20, 0.0, batch_first=True),
        vectors_and_memory,
        loose=0.02,
        misfit=((torch.zeros(2, 3, 7), torch.zeros(2, 3, 12)), "12"),
    ),
]
