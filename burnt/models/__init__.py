"""Five architectures to read and to load published weights into: burnt Modules with a Config each."""

from __future__ import annotations

from burnt.models.bert import Bert, BertConfig
from burnt.models.generation import Generation, TokenStream
from burnt.models.gpt2 import Gpt2, Gpt2Config
from burnt.models.llama import Llama, LlamaConfig
from burnt.models.pretrained import Pretrained, PretrainedConfig, load_pretrained
from burnt.models.resnet import ResNet, ResNetConfig
from burnt.models.tokenizer import TextStream, Tokenizer
from burnt.models.vit import ViT, ViTConfig

__all__ = [
    "Bert",
    "BertConfig",
    "Generation",
    "Gpt2",
    "Gpt2Config",
    "Llama",
    "LlamaConfig",
    "Pretrained",
    "PretrainedConfig",
    "ResNet",
    "ResNetConfig",
    "TextStream",
    "TokenStream",
    "Tokenizer",
    "ViT",
    "ViTConfig",
    "load_pretrained",
]
