"""Five architectures to read and to load published weights into: burnt Modules with a Config each."""

from __future__ import annotations

from burnt.models.bert import Bert, BertConfig
from burnt.models.llama import Llama, LlamaConfig
from burnt.models.pretrained import Pretrained, PretrainedConfig, load_pretrained
from burnt.models.tokenizer import TextStream, Tokenizer

__all__ = [
    "Bert",
    "BertConfig",
    "Llama",
    "LlamaConfig",
    "Pretrained",
    "PretrainedConfig",
    "TextStream",
    "Tokenizer",
    "load_pretrained",
]
