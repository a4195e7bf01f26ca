"""The layer of GPT-2, Llama and ViT."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnt import nn
from burnt.module import Module


class PreNormLayer(Module):
    """Attention and feed-forward, each of normalised vectors and added to them."""

    norm1: nn.LayerNorm | nn.RmsNorm
    attention: nn.MultiHeadAttention
    norm2: nn.LayerNorm | nn.RmsNorm
    feed_forward: nn.PositionWiseFeedForward | nn.GatedFeedForward
    dropout: torch.nn.Module

    def forward(self, x: Tensor, **attention: Any) -> Tensor:
        """Map ``[B, L, E]`` to the same shape, with these arguments of the attention."""
        x = x + self.dropout(self.attention(self.norm1(x), **attention))
        out: Tensor = x + self.dropout(self.feed_forward(self.norm2(x)))
        return out
