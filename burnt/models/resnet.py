"""ResNet: convolutions in blocks with a shortcut around each.

Axes: B images, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from burnt import nn
from burnt.errors import ConfigError
from burnt.models.pretrained import Activation, Pretrained, PretrainedConfig, build
from burnt.module import Module
from burnt.record import Keep, Layout, Step

_REDUCTION = 4
"""How many times fewer channels the 3x3 convolution of a bottleneck has."""


class ResNetConfig(PretrainedConfig):
    """What a `ResNet` consists of; `resnet18` to `resnet152` return the paper's.

    Args:
        in_channels: number C of channels of the images.
        stem_channels: channels of the first convolution.
        channels: channels of what the blocks of each stage return.
        depths: number of blocks of each stage.
        block: ``"basic"`` has two 3x3 convolutions, ``"bottleneck"`` a 3x3 between two 1x1.
        activation: after the first convolution and after each block; within blocks it is always a ReLU, as
            in transformers.
        downsample_in_first_stage: whether the first stage halves height and width, as the others do.
        downsample_in_bottleneck: whether the first 1x1 convolution of a bottleneck has the stride, as in the
            paper, and not the 3x3, as in torchvision ("v1.5").
        head: ``"classification"`` for logits of the classes, None for the last feature maps.
        num_classes: number K of classes.
    """

    in_channels: int = 3
    stem_channels: int = 64
    channels: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    block: Literal["basic", "bottleneck"] = "bottleneck"
    activation: Activation = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False
    head: Literal["classification"] | None = "classification"
    num_classes: int = 2

    _MODEL_TYPES: ClassVar[Mapping[str, str]] = {"resnet": "ResNet"}
    _KEYS: ClassVar[Mapping[str, str]] = {
        "in_channels": "num_channels",
        "stem_channels": "embedding_size",
        "channels": "hidden_sizes",
        "depths": "depths",
        "block": "layer_type",
        "activation": "hidden_act",
        "downsample_in_first_stage": "downsample_in_first_stage",
        "downsample_in_bottleneck": "downsample_in_bottleneck",
    }
    _HEADS: ClassVar[Mapping[str, str | None]] = {
        "ForImageClassification": "classification",
        "Model": None,
        "Backbone": None,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.depths) != len(self.channels) or not self.channels:
            raise ConfigError(
                "a ResNet needs a depth for the channels of each stage",
                where="depths",
                expected=f"{max(1, len(self.channels))} numbers, as many as channels",
                found=self.depths,
            )

    @classmethod
    def resnet18(cls, **changes: Any) -> Self:
        """Return the Config of ResNet-18 for ImageNet's 1,000 classes; `changes` are fields to change.

        >>> ResNetConfig.resnet18(num_classes=10).channels
        (64, 128, 256, 512)
        """
        return cls._of_depths("basic", (2, 2, 2, 2), changes)

    @classmethod
    def resnet34(cls, **changes: Any) -> Self:
        """Return the Config of ResNet-34; otherwise as `resnet18`."""
        return cls._of_depths("basic", (3, 4, 6, 3), changes)

    @classmethod
    def resnet50(cls, **changes: Any) -> Self:
        """Return the Config of ResNet-50; otherwise as `resnet18`."""
        return cls._of_depths("bottleneck", (3, 4, 6, 3), changes)

    @classmethod
    def resnet101(cls, **changes: Any) -> Self:
        """Return the Config of ResNet-101; otherwise as `resnet18`."""
        return cls._of_depths("bottleneck", (3, 4, 23, 3), changes)

    @classmethod
    def resnet152(cls, **changes: Any) -> Self:
        """Return the Config of ResNet-152; otherwise as `resnet18`."""
        return cls._of_depths("bottleneck", (3, 8, 36, 3), changes)

    @classmethod
    def _of_depths(
        cls, block: Literal["basic", "bottleneck"], depths: tuple[int, ...], changes: Mapping[str, Any]
    ) -> Self:
        widen = _REDUCTION if block == "bottleneck" else 1
        channels = tuple(widen * width for width in (64, 128, 256, 512))
        return cls(**{"block": block, "depths": depths, "channels": channels, "num_classes": 1000, **changes})

    def init(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ResNet:
        """Build the model, with new weights."""
        return build(ResNet, self, device, dtype)


class ConvNorm(Module):
    """A convolution without bias, and a batch norm."""

    conv: nn.Conv2d
    norm: nn.BatchNorm

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        padding = kernel_size // 2
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        # He et al., 2015; "fan_out" keeps the size of gradients.
        torch.nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.norm = nn.BatchNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, C, H, W]`` to ``[B, out_channels, H / stride, W / stride]``."""
        out: Tensor = self.norm(self.conv(x))
        return out


class ResNetBlock(Module):
    """Convolutions, to whose result the input is added; a convolution fits that where the shapes differ."""

    convs: list[ConvNorm]
    shortcut: ConvNorm | None
    activation: torch.nn.Module

    def __init__(self, config: ResNetConfig, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        if config.block == "basic":
            self.convs = [
                ConvNorm(in_channels, out_channels, 3, stride),
                ConvNorm(out_channels, out_channels, 3),
            ]
        else:
            inner = out_channels // _REDUCTION
            first, second = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
            self.convs = [
                ConvNorm(in_channels, inner, 1, first),
                ConvNorm(inner, inner, 3, second),
                ConvNorm(inner, out_channels, 1),
            ]
        fits = in_channels == out_channels and stride == 1
        self.shortcut = None if fits else ConvNorm(in_channels, out_channels, 1, stride)
        self.activation = nn.build_activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, C, H, W]`` to ``[B, out_channels, H / stride, W / stride]``."""
        change = x
        for conv in self.convs[:-1]:
            change = torch.relu(conv(change))
        change = self.convs[-1](change)
        out: Tensor = self.activation(change + (x if self.shortcut is None else self.shortcut(x)))
        return out


class ResNet(Pretrained[ResNetConfig]):
    """A convolution and max pooling, stages of residual blocks, and a Linear on the mean over all places.

    He et al., 2015 (https://arxiv.org/abs/1512.03385).

    >>> from burnt.models import ResNetConfig
    >>> model = ResNetConfig.resnet18(num_classes=10).init()
    >>> model(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 10])
    """

    config_class = ResNetConfig
    HEADS = ("head",)

    stem: ConvNorm
    activation: torch.nn.Module
    pool: nn.MaxPool2d
    stages: list[nn.Sequential]
    head: nn.Linear | None

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        c = config
        self.stem = ConvNorm(c.in_channels, c.stem_channels, 7, stride=2)
        self.activation = nn.build_activation(c.activation)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = []
        before = c.stem_channels
        for index, (channels, depth) in enumerate(zip(c.channels, c.depths, strict=True)):
            stride = 2 if index or c.downsample_in_first_stage else 1
            first = ResNetBlock(c, before, channels, stride)
            rest = [ResNetBlock(c, channels, channels, 1) for _ in range(depth - 1)]
            self.stages.append(nn.Sequential(first, *rest))
            before = channels
        self.head = None if c.head is None else nn.Linear(before, c.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits of the classes.

        Args:
            images: ``[B, C, H, W]`` of any size, normalised as in the training.

        Returns:
            ``[B, K]``, or without a head the last feature maps ``[B, channels, H / 32, W / 32]``.

        Raises:
            ShapeError: the images have other channels.
        """
        x = self.pool(self.activation(self.stem(images)))
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = x if self.head is None else self.head(x.mean((2, 3)))
        return logits

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """``"hugging_face"``: the layout of transformers' ResNet; ``"torchvision"``, which is also timm's."""
        hugging_face: list[Step] = [
            ("embedder.embedder.convolution", "stem.conv"),
            ("embedder.embedder.normalization", "stem.norm"),
            ("encoder.stages.*.layers.*.layer.*.convolution", "stages.*.*.convs.*.conv"),
            ("encoder.stages.*.layers.*.layer.*.normalization", "stages.*.*.convs.*.norm"),
            ("encoder.stages.*.layers.*.shortcut.convolution", "stages.*.*.shortcut.conv"),
            ("encoder.stages.*.layers.*.shortcut.normalization", "stages.*.*.shortcut.norm"),
            ("classifier.1", "head"),
        ]
        torchvision: list[Step] = [("conv1", "stem.conv"), ("bn1", "stem.norm"), ("fc", "head")]
        for stage in range(len(self.config.channels)):
            theirs, ours = f"layer{stage + 1}.*", f"stages.{stage}.*"
            for index in range(2 if self.config.block == "basic" else 3):
                torchvision.append((f"{theirs}.conv{index + 1}", f"{ours}.convs.{index}.conv"))
                torchvision.append((f"{theirs}.bn{index + 1}", f"{ours}.convs.{index}.norm"))
            torchvision.append((f"{theirs}.downsample.0", f"{ours}.shortcut.conv"))
            torchvision.append((f"{theirs}.downsample.1", f"{ours}.shortcut.norm"))
        torchvision.append(Keep("**.num_batches_tracked"))  # files of torch before 0.4.1 lack it
        prefixed = self.head is not None
        return {
            "hugging_face": Layout(hugging_face, prefix="resnet", heads=("classifier.1",), prefixed=prefixed),
            "torchvision": Layout(torchvision),
        }
