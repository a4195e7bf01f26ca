"""ViT: a transformer over the patches of an image.

Axes: B images, C channels, H height, W width, N patches, E the size of a vector, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from burnt import nn
from burnt.errors import ConfigError, ShapeError
from burnt.models.layer import PreNormLayer
from burnt.models.pretrained import LAYER_KEYS, Activation, Pretrained, PretrainedConfig, build, join_qkv
from burnt.module import Module
from burnt.record import Drop, Layout, Rename, Step


class ViTConfig(PretrainedConfig):
    """What a `ViT` consists of.

    Args:
        image_size: height and width of the images of the training; one number for squares.
        patch_size: height and width of a patch; one number for squares.
        in_channels: number C of channels.
        d_model: size E of the vectors.
        d_ff: size between the Linears of a feed-forward.
        num_layers: number of layers.
        num_heads: heads of the attention.
        head_dim: size of a head; None is ``d_model // num_heads``.
        activation: between the Linears of a feed-forward.
        dropout: probability, after the embeddings, attention and feed-forward.
        attention_dropout: probability, of an attention weight.
        eps: added to the variance in the norms; the weights of timm need 1e-6.
        init_std: standard deviation of the initial weights.
        qkv_bias: whether the projections of queries, keys and values have biases.
        head: ``"classification"`` for logits of the classes, None for the last vectors.
        num_classes: number K of classes.
        pooler: whether a model without a head has a `ViTPooler`.
        pooler_size: size of what the pooler returns; None is `d_model`.
        pooler_activation: activation after the pooler's Linear.
    """

    image_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16
    in_channels: int = 3
    d_model: int = 768
    d_ff: int = 3072
    num_layers: int = 12
    num_heads: int = 12
    head_dim: int | None = None
    activation: Activation = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    eps: float = 1e-12
    init_std: float = 0.02
    qkv_bias: bool = True
    head: Literal["classification"] | None = "classification"
    num_classes: int = 2
    pooler: bool = True
    pooler_size: int | None = None
    pooler_activation: Activation = "tanh"

    _MODEL_TYPES: ClassVar[Mapping[str, str]] = {"vit": "ViT"}
    _KEYS: ClassVar[Mapping[str, str]] = {
        "image_size": "image_size",
        "patch_size": "patch_size",
        "in_channels": "num_channels",
        **LAYER_KEYS,
        "head_dim": "head_dim",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "eps": "layer_norm_eps",
        "qkv_bias": "qkv_bias",
        "pooler_size": "pooler_output_size",
        "pooler_activation": "pooler_act",
    }
    _ACTIVATIONS: ClassVar[tuple[str, ...]] = ("activation", "pooler_activation")
    _HEADS: ClassVar[Mapping[str, str | None]] = {
        "ForImageClassification": "classification",
        "Model": None,
        "ForMaskedImageModeling": None,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(image < patch for image, patch in zip(self.image_hw, self.patch_hw, strict=True)):
            raise ConfigError(
                "an image has no patch",
                where="image_size",
                expected=f"at least patch_size = {self.patch_size}",
                found=self.image_size,
            )

    def init(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ViT:
        """Build the model, with new weights."""
        return build(ViT, self, device, dtype)

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images of the training."""
        return _pair(self.image_size)

    @property
    def patch_hw(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return _pair(self.patch_size)

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the contents of the ``config.json`` of this model."""
        document = super().to_hugging_face()
        if self.head_dim is None:
            del document["head_dim"]  # transformers would take None for the size
        return document


class ViTPooler(Module):
    """A vector for the image from the class token's vector."""

    linear: nn.Linear
    activation: torch.nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, 1 + N, E]`` to ``[B, pooler_size]``."""
        out: Tensor = self.activation(self.linear(x[:, 0]))
        return out


class ViT(Pretrained[ViTConfig]):
    """An encoder of the patches of an image and a class token, with learned positions.

    Without a head, it returns a vector for the class token and each patch; ``model.pooler`` maps these to one
    for the image.

    Dosovitskiy et al., 2020 (https://arxiv.org/abs/2010.11929).

    >>> from burnt.models import ViTConfig
    >>> config = ViTConfig(image_size=32, patch_size=8, d_model=24, d_ff=48, num_layers=2, num_heads=2)
    >>> model = config.init()
    >>> model(torch.zeros(1, 3, 32, 32)).shape, model(torch.zeros(1, 3, 48, 64), interpolate=True).shape
    (torch.Size([1, 2]), torch.Size([1, 2]))
    """

    config_class = ViTConfig
    HEADS = ("head", "pooler")

    patches: nn.Conv2d
    class_token: Parameter
    positions: Parameter
    dropout: nn.Dropout
    layers: list[PreNormLayer]
    norm: nn.LayerNorm
    pooler: ViTPooler | None
    head: nn.Linear | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        c = config
        self._image_hw = c.image_hw
        self._patch_hw = c.patch_hw
        rows, columns = self._grid = (c.image_hw[0] // c.patch_hw[0], c.image_hw[1] // c.patch_hw[1])
        self.patches = nn.Conv2d(c.in_channels, c.d_model, c.patch_hw, stride=c.patch_hw)
        self.class_token = Parameter(torch.empty(1, 1, c.d_model))
        self.positions = Parameter(torch.empty(1, 1 + rows * columns, c.d_model))
        self.dropout = nn.Dropout(c.dropout)
        self.layers = [
            PreNormLayer(
                norm1=nn.LayerNorm(c.d_model, c.eps),
                attention=nn.MultiHeadAttention(
                    c.d_model,
                    c.num_heads,
                    head_dim=c.head_dim,
                    dropout=c.attention_dropout,
                    bias=c.qkv_bias,
                    out_bias=True,
                ),
                norm2=nn.LayerNorm(c.d_model, c.eps),
                feed_forward=nn.PositionWiseFeedForward(
                    c.d_model, c.d_ff, dropout=0.0, activation=c.activation
                ),
                dropout=nn.Dropout(c.dropout),
            )
            for _ in range(c.num_layers)
        ]
        self.norm = nn.LayerNorm(c.d_model, c.eps)
        self.pooler = None
        if c.head is None and c.pooler:
            size = c.d_model if c.pooler_size is None else c.pooler_size
            self.pooler = ViTPooler(nn.Linear(c.d_model, size), nn.build_activation(c.pooler_activation))
        self.head = None if c.head is None else nn.Linear(c.d_model, c.num_classes)
        self._initialize(c.init_std)

    def forward(self, images: Tensor, *, interpolate: bool = False) -> Tensor:
        """Compute the logits of the classes.

        Args:
            images: ``[B, C, H, W]``, normalised as in the training.
            interpolate: take images of other sizes than in the training; the positions are
                interpolated.

        Returns:
            ``[B, K]``, or the normalised vectors ``[B, 1 + N, E]`` without a head.

        Raises:
            ShapeError: the images have another size, or other channels.
        """
        height, width = images.shape[-2:]
        if images.dim() != 4:
            raise ShapeError(
                "images come in a batch",
                where=type(self).__name__,
                expected="(batch, channels, height, width)",
                found=tuple(images.shape),
                hint="images[None] is a batch of one image" if images.dim() == 3 else None,
            )
        if not interpolate and (height, width) != self._image_hw:
            raise ShapeError(
                "the images do not have the size of the training",
                where=type(self).__name__,
                expected=f"(batch, {self.config.in_channels}, {self._image_hw[0]}, {self._image_hw[1]})",
                found=tuple(images.shape),
                hint="model(images, interpolate=True) interpolates the positions for images of other sizes",
            )
        patches = self.patches(images)  # [B, E, rows, columns]
        x = patches.flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.dropout(x + self._positions(patches.shape[-2], patches.shape[-1]))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits: Tensor = x if self.head is None else self.head(x[:, 0])
        return logits

    def _positions(self, rows: int, columns: int) -> Tensor:
        """Return the positions ``[1, 1 + N, E]`` of a grid of patches."""
        if (rows, columns) == self._grid:
            return self.positions
        grid = self.positions[:, 1:].reshape(1, *self._grid, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False)
        return torch.cat((self.positions[:, :1], grid.flatten(2).transpose(1, 2)), dim=1)

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """``"hugging_face"``: the layout of transformers' ViT; ``"timm"``: of timm's ``vit_*_patch*``."""
        size = self.config.num_heads * self.layers[0].attention.head_dim if self.layers else 0
        published, attention = "encoder.layer.*", "layers.*.attention"
        qkv = (f"{published}.attention.attention.{name}" for name in ("query", "key", "value"))
        steps: list[Step] = [
            ("embeddings.cls_token", "class_token"),
            ("embeddings.position_embeddings", "positions"),
            ("embeddings.patch_embeddings.projection", "patches"),
            Drop("embeddings.mask_token"),
            *join_qkv(qkv, attention, (size,) * 3),
            (f"{published}.attention.output.dense", f"{attention}.out_proj"),
            (f"{published}.layernorm_before", "layers.*.norm1"),
            (f"{published}.layernorm_after", "layers.*.norm2"),
            (f"{published}.intermediate.dense", "layers.*.feed_forward.linear1"),
            (f"{published}.output.dense", "layers.*.feed_forward.linear2"),
            ("layernorm", "norm"),
            ("pooler.dense", "pooler.linear"),
            ("classifier", "head"),
        ]
        # The names in transformers 5's modules; its files have those above.
        steps += [
            *join_qkv((f"{attention}.{name}_proj" for name in "qkv"), attention, (size,) * 3),
            (f"{attention}.o_proj", f"{attention}.out_proj"),
            ("layers.*.layernorm_before", "layers.*.norm1"),
            ("layers.*.layernorm_after", "layers.*.norm2"),
            ("layers.*.mlp.fc1", "layers.*.feed_forward.linear1"),
            ("layers.*.mlp.fc2", "layers.*.feed_forward.linear2"),
        ]
        timm: list[Step] = [
            ("cls_token", "class_token"),
            ("pos_embed", "positions"),
            ("patch_embed.proj", "patches"),
            ("blocks.*.norm1", "layers.*.norm1"),
            Rename("blocks.*.attn.qkv.weight", f"{attention}.in_proj_weight"),
            Rename("blocks.*.attn.qkv.bias", f"{attention}.in_proj_bias"),
            ("blocks.*.attn.proj", f"{attention}.out_proj"),
            ("blocks.*.norm2", "layers.*.norm2"),
            ("blocks.*.mlp.fc1", "layers.*.feed_forward.linear1"),
            ("blocks.*.mlp.fc2", "layers.*.feed_forward.linear2"),
        ]
        prefixed = self.head is not None
        return {
            "hugging_face": Layout(steps, prefix="vit", heads=("classifier",), prefixed=prefixed),
            "timm": Layout(timm),
        }


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
