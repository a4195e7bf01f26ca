"""Five architectures to read and to load published weights into: burnt Modules with a Config each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import own_names
from burnt.models.bert import Bert as Bert
from burnt.models.bert import BertConfig as BertConfig
from burnt.models.generation import Generation as Generation
from burnt.models.generation import TokenStream as TokenStream
from burnt.models.gpt2 import Gpt2 as Gpt2
from burnt.models.gpt2 import Gpt2Config as Gpt2Config
from burnt.models.llama import Llama as Llama
from burnt.models.llama import LlamaConfig as LlamaConfig
from burnt.models.pretrained import Pretrained as Pretrained
from burnt.models.pretrained import PretrainedConfig as PretrainedConfig
from burnt.models.pretrained import load_pretrained as load_pretrained
from burnt.models.resnet import ResNet as ResNet
from burnt.models.resnet import ResNetConfig as ResNetConfig
from burnt.models.tokenizer import TextStream as TextStream
from burnt.models.tokenizer import Tokenizer as Tokenizer
from burnt.models.vit import ViT as ViT
from burnt.models.vit import ViTConfig as ViTConfig

if not TYPE_CHECKING:  # type checkers take the imports above as exports
    __all__ = own_names(globals())
